"""The records that elements are made of, found without reading them.

The positions of elements go down the chain as they do for reading (`index_walk.start`). The chain
returns the records that the values would be made of, not the values. A batch is made of rows, one
after the other. An element that is not a batch is one row. A row of a zip is made of several records.

Invariant: nothing is read, and a selection map is the only function of the user that is called.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from windrow.engine.index_walk import start
from windrow.errors import PlanError
from windrow.sources.base import IntArray
from windrow.sources.ragged_column import PiecePlaces
from windrow.transforms.nodes import (
    JoinNode,
    LeafNode,
    Node,
    PieceNode,
    RegroupNode,
    ValueNode,
    source_of,
)
from windrow.transforms.nodes.split import GivenNode
from windrow.transforms.positions import Positions, positions, run_numbers, starts_of

Unknown = list[tuple[int, list[int]]]
"""Elements whose records another process knows: the number of a `GivenNode`, and indices."""

# Stands for the chain before a stage, in `Unknown`.
OWN_CHAIN = -1


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """Records of one leaf, and the rows that they are in.

    Args:
        leaf: A source, or the node of a range.
        rows: int64 `(n,)`.
        records: int64 `(n,)`, indices in the leaf.
        shared: bool `(n,)`, which records are in all rows of their element, as a part of the zip has
            fewer rows than another.
    """

    leaf: Any
    rows: IntArray
    records: IntArray
    shared: npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The records of some elements.

    Args:
        counts: int64 `(elements,)`, rows of each element. Rows are counted through all elements.
        taken: All records of all rows.
        joined: int64 `(elements,)`, how many elements were joined to each last: of a batch of
            batches, its batches.
        sizes: int64 `(joined.sum(),)`, the rows of each of these.
    """

    counts: IntArray
    taken: list[Taken]
    joined: IntArray
    sizes: IntArray


def trace(node: Node, indices: IntArray, *, uneven: bool = False) -> Trace:
    """The records that elements of a chain with random access are made of.

    Args:
        node: The chain.
        indices: Indices of its elements, in any epoch.
        uneven: Whether a zip may have batches of different sizes; the longest has the rows then.

    Raises:
        PlanError: If a zip has batches of different sizes, or a selection map is wrong.

    Example:
        >>> import numpy as np, windrow
        >>> from windrow.engine.record_trace import trace
        >>> chain = windrow.MapDataset.range(6)[::-1].batch(4)
        >>> trace(chain._node, np.array([0])).taken[0].records.tolist()
        [5, 4, 3, 2]
    """
    at = positions(indices, node.length)
    return start(node, at, [0, len(at)], Recorder(uneven=uneven))()


class TracedLeaf(NamedTuple):
    """A leaf of a chain, which has the records of a trace.

    Args:
        source: The source; None for a node that makes its elements from indices alone.
        length: Number of its records.
        text: Its description.
    """

    source: Any
    length: int
    text: str


def leaves_of(node: Node) -> dict[int, TracedLeaf]:
    """The leaves that a trace of a chain may name, each once, in the order of the chain.

    Returns:
        Leaves by `id(taken.leaf)`.
    """
    if not node.parents or node.hides_parents:
        source = source_of(node)
        if source is None:
            return {id(node): TracedLeaf(None, node.length, node.label)}
        return {id(source): TracedLeaf(source, node.length, repr(source))}
    return {key: leaf for parent in node.parents for key, leaf in leaves_of(parent).items()}


class Recorder:
    """Makes traces in place of values, and notes what was started."""

    def __init__(self, *, uneven: bool = False) -> None:
        self._uneven = uneven
        self.started: list[tuple[Any, IntArray]] = []
        self.unknown: Unknown = []

    def start(
        self, source: Any, records: IntArray, places: PiecePlaces | None = None
    ) -> Callable[[], Trace]:
        """Note records of a source."""
        self.started.append((source, records))
        return lambda: of_leaf(source, records)

    def given(self, node: GivenNode, at: Positions, cuts: Sequence[int]) -> Callable[[], Trace]:
        """Note elements whose records another process knows."""
        if len(at):
            self.unknown.append((node.number, at.flat(node.length).tolist()))
        return lambda: of_leaf(node, at.offsets)

    def leaf(self, node: LeafNode, at: Positions) -> Callable[[], Trace]:
        """The numbers of a range are its records."""
        return lambda: of_leaf(node, at.offsets)

    def merged(self, parts: Sequence[tuple[Trace, IntArray]], count: int) -> Trace:
        """The rows of every part go where its elements go."""
        counts, joined = np.zeros((2, count), np.int64)
        for part, elements in parts:
            counts[elements], joined[elements] = part.counts, part.joined
        sizes = np.zeros(joined.sum(), np.int64)
        taken: list[Taken] = []
        for part, elements in parts:
            sizes[run_numbers(part.joined, starts_of(joined)[elements])] = part.sizes
            rows = run_numbers(part.counts, starts_of(counts)[elements])
            taken += [dataclasses.replace(each, rows=rows[each.rows]) for each in part.taken]
        return Trace(counts, taken, joined, sizes)

    def joined(self, node: JoinNode, parts: Sequence[Trace]) -> Trace:
        """The records of all parts."""
        first, *others = parts
        if self._uneven:
            first, *others = parts = _evened(parts)
        elif not all(np.array_equal(first.counts, other.counts) for other in others):
            raise PlanError(
                f"shuffle_quality: {node.label} has batches of different sizes; ask for the quality"
                " of each of its datasets"
            )
        taken = [taken for part in parts for taken in part.taken]
        return Trace(first.counts, taken, first.joined, first.sizes)

    def gathered(
        self, node: RegroupNode, rows: Trace, bounds: Sequence[int], at: Positions
    ) -> Trace:
        """Join elements to batches; the rows stay."""
        ends = np.concatenate([[0], np.cumsum(rows.counts)])[np.array(bounds)]
        counts, joined = np.diff(ends), np.diff(bounds)
        has_rows = np.ones(len(counts), np.bool_)
        has_rows[node.without_rows_at(at)] = False
        if has_rows.all():
            taken = [dataclasses.replace(t, shared=np.zeros_like(t.shared)) for t in rows.taken]
            return Trace(counts, taken, joined, rows.counts)
        kept = np.flatnonzero(np.repeat(has_rows, counts))
        taken = [at_rows(taken, kept) for taken in rows.taken]
        sizes = rows.counts[np.repeat(has_rows, joined)]
        return Trace(np.where(has_rows, counts, 0), taken, np.where(has_rows, joined, 0), sizes)

    def cut(self, node: PieceNode, whole: Trace, which: IntArray, at: Positions) -> Trace:
        """A part of an element is made of its records."""
        counts = whole.counts[which]
        rows = run_numbers(counts, starts_of(whole.counts)[which])  # of the whole, for each row
        return Trace(counts, [at_rows(t, rows) for t in whole.taken], np.ones_like(counts), counts)

    def before(self, node: ValueNode) -> Self:
        """Bad rows are not known: nothing is read."""
        return self

    def applied(self, node: ValueNode, rows: Trace, at: Positions, cuts: Sequence[int]) -> Trace:
        """Return the records unchanged: a function does not change them."""
        return rows


def at_rows(taken: Taken, rows: IntArray) -> Taken:
    """The records of some rows, which may come several times."""
    order = np.argsort(taken.rows, kind="stable")
    own = taken.rows[order]
    first, stop = np.searchsorted(own, rows), np.searchsorted(own, rows, side="right")
    found = order[run_numbers(stop - first, first)]
    of, records = np.repeat(np.arange(len(rows)), stop - first), taken.records[found]
    return Taken(taken.leaf, of, records, np.zeros(len(of), np.bool_))


def _evened(parts: Sequence[Trace]) -> list[Trace]:
    """The same records; each element has as many rows as in the part that gives it most."""
    joined = np.max([part.joined for part in parts], axis=0)
    places = [run_numbers(part.joined, starts_of(joined)) for part in parts]
    sizes = np.zeros(joined.sum(), np.int64)
    for part, at in zip(parts, places, strict=True):
        sizes[at] = np.maximum(sizes[at], part.sizes)
    counts = np.diff(np.append(0, np.cumsum(sizes))[np.append(0, np.cumsum(joined))])
    found = []
    for part, at in zip(parts, places, strict=True):
        rows = run_numbers(part.sizes, starts_of(sizes)[at])
        is_short = np.repeat(part.joined < joined, part.counts)
        taken = [
            Taken(t.leaf, rows[t.rows], t.records, is_short[t.rows] | t.shared) for t in part.taken
        ]
        found.append(Trace(counts, taken, joined, sizes))
    return found


def of_leaf(leaf: Any, records: IntArray) -> Trace:
    """The trace of elements that are one record each."""
    ones = np.ones(len(records), np.int64)
    taken = Taken(leaf, np.arange(len(records)), records, np.zeros(len(records), np.bool_))
    return Trace(ones, [taken], ones, ones)


# --- as text ------------------------------------------------------------------------------------


def origins(node: Node, elements: Sequence[int] | IntArray) -> tuple[str, Unknown]:
    """The records that elements of a chain with random access are made of.

    Returns:
        The records as text, empty if the elements have no records; and the elements whose records
        only another process can name.
    """
    recorder = Recorder()
    with contextlib.suppress(Exception):  # of a selection map
        at = positions(np.array(elements), node.length)
        start(node, at, [0, len(elements)], recorder)
    found = (f"{_listed(own)} of {source!r}" for source, own in recorder.started if len(own))
    return "; ".join(found), recorder.unknown


def records_of(node: Node, elements: Sequence[int] | IntArray) -> str:
    """The records that elements of a chain are made of, as text; empty for no records."""
    return origins(node, elements)[0]


def _listed(records: IntArray) -> str:
    some = ", ".join(map(str, records[:8].tolist()))
    more = ", ..." if len(records) > 8 else ""
    return f"record {some}" if len(records) == 1 else f"records {some}{more}"
