"""Batches of elements of like lengths, planned from their lengths.

Invariant: a batch has elements of one bucket, each once, padded to the bucket's largest length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from windrow.errors import ElementError, PlanError
from windrow.sources.base import ArraySpec, IntArray
from windrow.sources.ragged_column import RaggedColumn
from windrow.transforms import columns, packed_values
from windrow.transforms.arguments import at_least
from windrow.transforms.nodes.planned import PlannedNode
from windrow.transforms.packed_values import RowMemory, Runs
from windrow.transforms.packing import GroupPlan, TooLong, plan_buckets
from windrow.transforms.positions import Positions
from windrow.transforms.specs import Spec
from windrow.transforms.tables import Listed, Table

LENGTHS: Final = "_lengths"


@dataclasses.dataclass(frozen=True, eq=False)
class BucketNode(PlannedNode):
    """Batches of elements of one bucket of lengths.

    Args:
        boundaries: The largest length of each bucket, ascending.
        batch_sizes: Elements of a batch of each bucket.
        pad_value: Fills sequences up to the boundary.
    """

    boundaries: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    pad_value: int

    who: ClassVar[str] = "bucket"

    def check(self) -> None:
        if not self.boundaries or len(self.boundaries) != len(self.batch_sizes):
            raise PlanError(
                f"bucket: needs one batch size for each boundary, got {len(self.boundaries)}"
                f" boundaries and {len(self.batch_sizes)} batch sizes"
            )
        at_least(1, self.boundaries[0], "bucket: the first boundary")
        if list(self.boundaries) != sorted(set(self.boundaries)):
            raise PlanError(f"bucket: boundaries must ascend, got {list(self.boundaries)}")
        for size in self.batch_sizes:
            at_least(1, size, "bucket: a batch size")
        if self.too_long is TooLong.SPLIT:
            raise PlanError(
                "bucket: too_long must be 'truncate', 'drop' or 'error'; to split, pack the dataset"
            )

    @property
    def arguments(self) -> str:
        some = "" if self.sequences is None else f", sequences={list(self.sequences)}"
        return (
            f"{list(self.boundaries)}, {list(self.batch_sizes)}, window={self.window},"
            f" too_long={self.too_long.value}{some}, seed={self.seed}"
        )

    # --- what comes out --------------------------------------------------------------------------

    def spec(self, parents: Sequence[Spec]) -> Spec:
        given = parents[0]
        leaves = given if isinstance(given, dict) else {"tokens": given}
        sequences = packed_values.sequences_in(leaves, self.sequences)
        found: dict[str, Any] = {}
        for name, leaf in leaves.items():
            if not isinstance(leaf, ArraySpec):
                found[name] = list
            elif name in sequences:
                found[name] = ArraySpec((None, None, *leaf.shape[1:]), leaf.dtype)
                found[name + LENGTHS] = ArraySpec((None,), np.int32)
            else:
                found[name] = ArraySpec((None, *leaf.shape), leaf.dtype)
        return found

    # --- plans -----------------------------------------------------------------------------------

    @property
    def longest(self) -> int:
        return self.boundaries[-1]

    def refusal(self, length: int) -> str:
        return (
            f"has {length} items, more than the last boundary, {self.longest}; add a"
            " boundary, or choose too_long='truncate' or 'drop'"
        )

    def planned(self, lengths: IntArray, number: tuple[int, int]) -> GroupPlan:
        return plan_buckets(
            lengths,
            self.boundaries,
            self.batch_sizes,
            too_long=self.too_long,
            seed=self.seed,
            number=number,
        )

    # --- values ----------------------------------------------------------------------------------

    def gather_at(self, table: Table, bounds: Sequence[int], at: Positions) -> Table:
        pieces = self.pieces_of(at)
        if not table.rows:
            return Listed([None] * len(at))
        given = packed_values.named_columns(
            table, "bucket", lambda row: self.named(self.element_of(pieces, row))
        )
        joined: dict[str, RaggedColumn] = {}
        for name in packed_values.chosen(given, self.known_sequences, "bucket"):
            joined[name] = packed_values.end_to_end(given[name], name, "bucket")
            self.mismatch(pieces, joined[name].lengths, name)
        buckets = self._buckets(at)
        spans = zip(pieces.bounds[:-1].tolist(), pieces.bounds[1:].tolist(), buckets, strict=True)
        return Listed(
            [
                self._batch(given, joined, start, stop, self.boundaries[bucket])
                if stop > start
                else None
                for start, stop, bucket in spans
            ]
        )

    def _buckets(self, at: Positions) -> list[int]:
        """The bucket of each batch; 0 for an index without one."""
        windows, groups = self.places_of(at)
        plans = {window: self.plan_of(window) for window in set(windows.tolist())}
        return [
            int(plans[window].buckets[group]) if group < len(plans[window].buckets) else 0
            for window, group in zip(windows.tolist(), groups.tolist(), strict=True)
        ]

    def _batch(
        self,
        given: Mapping[str, Any],
        joined: Mapping[str, RaggedColumn],
        start: int,
        stop: int,
        boundary: int,
    ) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for name, column in given.items():
            if name not in joined:
                out[name] = columns.batch_from(column, start, stop)
                continue
            sequences = joined[name]
            if not columns.holds(sequences.values.dtype, self.pad_value):
                raise ElementError(
                    f"bucket: pad_value={self.pad_value!r} is not a value of dtype {sequences.values.dtype},"
                    f" which {name!r} has; choose another, or convert it in a map before"
                )
            lengths = np.minimum(sequences.lengths[start:stop], boundary)
            places = np.arange(stop - start) * boundary
            runs = Runs(sequences.bounds[start:stop], places, lengths, (stop - start, boundary))
            out[name] = runs.copied(sequences.values, RowMemory(0), self.pad_value)
            out[name + LENGTHS] = lengths.astype(np.int32)
        return out
