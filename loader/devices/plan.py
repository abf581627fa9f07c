"""Plan: the chain that a process runs for its devices, checked before anything is read.

Rules:
1. A sharding gets the shapes of whole global batches. If batches differ in rows, it gets all shapes
   that they may have.
2. Where other axes than rows are cut, the chain is narrowed to the boxes of the devices, before it is
   shared by rows.
3. A shorter last batch is allowed if its rows are known and the sharding divides it, or if no sharding cuts
   the batch axis. So the same chains run on any number of processes.
4. Processes agree on the end only where metadata do not show it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from windrow.devices import trees
from windrow.devices.agreement import Agreement, store_of_jax
from windrow.devices.arrays import GlobalArrays, Narrowing, narrowing_text
from windrow.devices.arrays import narrowed as narrowed_dtype
from windrow.devices.boxes import boxes_held, grid_of, placed
from windrow.devices.extra import jax
from windrow.devices.placement import (
    Placement,
    RowParts,
    check_shape,
    participants,
    rows_of,
    whole_shape,
)
from windrow.errors import PlanError
from windrow.sources.base import ArraySpec
from windrow.transforms.nodes import BatchNode, BatchParts, Node, Tail, narrowed, shared, tail_of
from windrow.transforms.nodes.metadata import known_spec
from windrow.transforms.specs import Spec


@dataclasses.dataclass(frozen=True, eq=False)
class DevicePlan:
    """What a process runs.

    Args:
        node: The chain, which makes the rows that its devices hold.
        arrays: Makes global arrays of them.
        new_agreement: Begins an agreement on the end; None where metadata show the end.
        processes: The processes that have devices: this one, and all.
        spec: The spec of a batch that its leaves were found in; None if it is not known.
    """

    node: Node
    arrays: GlobalArrays
    new_agreement: Callable[[], Agreement] | None
    processes: tuple[int, tuple[int, ...]]
    spec: Spec | None


def planned(node: Node, placement: Placement, first_spec: Callable[[Node], Spec]) -> DevicePlan:
    """Plan a stream for devices.

    Args:
        node: The stream.
        placement: Where leaves go.
        first_spec: Reads the spec of the first element of a chain: asked where only that shows which
            leaves a function of paths is called for.

    Raises:
        PlanError: If the chain has no last batch, a shape does not divide, or a leaf is not an array.
        ArgumentError: If a leaf has no sharding, or `host` names no leaf.
    """
    whole = shared(node, BatchParts((0,), 1, who="to_jax"))  # finds the last batch
    tail, spec = tail_of(whole), known_spec(whole)
    batch = tail.batch
    if batch is None:
        raise PlanError(f"to_jax: {whole.label} has no last batch; write .batch(global_batch_size)")
    if spec is None and placement.needs_leaves:
        spec = _read_spec(tail, first_spec)
    found = placement.shardings(spec)
    if not found:
        raise PlanError("to_jax: no leaf goes to a device; iterate the dataset itself")
    own, all_of_them = participants([sharding for _, _, sharding in found], placement.process)
    sizes = _batch_rows(tail, batch)
    parts: RowParts | None = None
    grid = grid_of(node)
    if spec is None and grid is not None:  # shapes are checked, though dtypes are not known
        found = [*placed(grid, placement)] or found
    for path, leaf, sharding in found:
        for rows in sizes or [batch.size]:
            shape = whole_shape(leaf, rows, sharding)
            if shape is not None:
                check_shape(path, shape, sharding)
                if not sizes and shape and sharding.shard_shape(shape)[0] != rows:
                    raise PlanError(_unknown_end(batch, rows))
                part = rows_of(shape, sharding, placement.process)
                parts = part if parts is None else parts.joined(part)
    parts = parts or RowParts()
    boxes = {} if grid is None else boxes_held(grid, placement)
    node = narrowed(node, boxes)
    agreement = None
    if _ends_unknown(tail, batch) and len(all_of_them) > 1:
        agreement = functools.partial(_begun, own, all_of_them, tail.fingerprint())
    if parts.count > 1 or agreement is not None:
        agree = None if agreement is None else _at_delivery
        share = BatchParts(parts.numbers, parts.count, agree, is_even=True, who="to_jax")
        node = shared(node, share)
    tail_of(node).run()  # checks that the shards can end together
    arrays = GlobalArrays(placement, parts, Narrowing(), boxes)
    return DevicePlan(node, arrays, agreement, (own, all_of_them), spec)


def check_colocated(node: Node) -> None:
    """Check that hosts without a key-value store can run a stream for a controller.

    Raises:
        PlanError: If batches may differ in rows, or only reading shows where the stream ends.
    """
    whole = shared(node, BatchParts((0,), 1, who="to_jax"))
    tail = tail_of(whole)
    batch = tail.batch
    if batch is not None and batch.fixed_rows is None:
        raise PlanError(
            "to_jax: colocated=True needs batches of one shape, and the last one may have fewer rows;"
            " write remainder='drop' or 'pad', or repeat before the batch"
        )
    if batch is not None and _ends_unknown(tail, batch):
        raise PlanError(
            "to_jax: colocated=True needs a stream whose end metadata show, or none; write repeat()"
            " before the batch"
        )


def _read_spec(tail: Tail, first_spec: Callable[[Node], Spec]) -> Spec:
    """The spec of a batch, of one that has a row of each lane."""

    def any_rows(_: trees.Path, leaf: Any) -> Any:
        is_array = isinstance(leaf, ArraySpec) and leaf.shape
        return ArraySpec((None, *leaf.shape[1:]), leaf.dtype) if is_array else leaf

    small = tail.with_batch_of(tail.lanes)
    return trees.mapped(any_rows, first_spec(small), is_spec=True)


def _batch_rows(tail: Tail, batch: BatchNode) -> list[int] | None:
    """The numbers of rows that batches may have; None if they are not known."""
    fixed = batch.fixed_rows
    if fixed is not None:
        return [fixed]
    if tail.is_indexed:
        return [batch.size, batch.parent.length % batch.size]
    counts = tail.lane_rows
    if counts is not None and batch.size % tail.lanes == 0:
        turn = batch.size // tail.lanes
        if len(set(counts)) == 1 and counts[0] % turn == 0:
            return [batch.size]
    return None


def _unknown_end(batch: BatchNode, rows: int) -> str:
    return (
        f"to_jax: the last batch of the stream may have fewer than {rows} rows, and the sharding cuts"
        f" the batch axis; write {batch.label.partition('(')[0]}(..., remainder='drop') or 'pad', or"
        " repeat before it"
    )


def _ends_unknown(tail: Tail, batch: BatchNode) -> bool:
    if tail.is_indexed or not batch.drop_remainder or tail.row_node.never_ends():
        return False
    return tail.lane_rows is None


def _at_delivery(has_batch: bool) -> bool:
    """Stands in the chain for the agreement, which a delivery makes."""
    return has_batch


def _begun(own: int, all_of_them: Sequence[int], name: str) -> Agreement:
    return Agreement(store_of_jax(), own, all_of_them, name)


# --- what comes out ------------------------------------------------------------------------------


def narrowed_leaves(spec: Any, placement: Placement) -> list[str]:
    """The leaves of a spec that become leaves of 32 bits."""
    return [
        narrowing_text(path, leaf.dtype)
        for path, leaf in trees.leaves(spec, is_spec=True)
        if isinstance(leaf, ArraySpec) and not placement.is_kept(path)
        if narrowed_dtype(leaf.dtype).itemsize < leaf.dtype.itemsize
    ]


def device_spec(spec: Any, placement: Placement) -> Any:
    """The spec of global batches: a `jax.ShapeDtypeStruct` with its sharding for each array.

    Raises:
        PlanError: If a size differs between batches.
    """

    def leaf_of(path: trees.Path, leaf: Any) -> Any:
        if placement.is_kept(path):
            return leaf
        if None in leaf.shape:
            raise PlanError(
                f"element_spec: {trees.shown(path)} has shape {leaf.shape}, and a None there differs"
                " between batches"
            )
        dtype, sharding = narrowed_dtype(leaf.dtype), placement.sharding_of(path)
        return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=sharding)  # type: ignore[no-untyped-call]

    return trees.mapped(leaf_of, spec, is_spec=True)
