"""The order of a chain for a picture: which record stands at which position, of a sample of them.

A stream is taken as the random access that it comes from, so that any of its positions can be worked
out. What a filter drops is not known, and its positions count.

Invariant: nothing is read, and no function of the user's is called but a selection map; the same
chain gives the same sample.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from windrow.record_order import RecordOrder, StreamWindowsNode, epoch_length, nodes_below
from windrow.transforms.nodes import (
    BatchNode,
    FilterNode,
    IndexNode,
    Node,
    RangeNode,
    RoutingNode,
    SourceNode,
    ValueNode,
    WindowShuffleNode,
)
from windrow.transforms.positions import Positions, positions

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

MOST_POINTS: Final = 20_000

# Each window that is touched costs about 1 ms: their chains are sampled in runs, not one by one.
_RUNS: Final = 100


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Which record stands at which position.

    Args:
        positions: Float64 `(n,)`, in elements; row `r` of a batch of `b` stands `r / b` behind it.
        records: Int64 `(n,)`, counted through all sources, one behind the other.
        sources: Names and lengths of the sources, in the order in which they are met.
        elements: How many elements the sample is of, from the first on.
        is_whole: Whether all their records are there.
        rows: Records of an element, at most, where every parent gives one.
        notes: What is to be known of it, in words.
    """

    positions: FloatArray
    records: IntArray
    sources: tuple[tuple[str, int], ...]
    elements: int
    is_whole: bool
    rows: int = 1
    notes: tuple[str, ...] = ()


def order_of(node: Node, *, points: int = MOST_POINTS, beginning: bool = False) -> Order:
    """The order of an epoch, or of its beginning.

    Args:
        node: Any chain.
        points: Records at most.
        beginning: Whether they are the first ones, all of them, and not a sample of an epoch.

    Raises:
        PlanError: If nothing tells the order.
    """
    order = RecordOrder(node)
    plain = order.node
    rows = _rows(plain)
    elements = epoch_length(plain)
    notes = []
    if any(isinstance(below, FilterNode) for below in nodes_below(node)):
        notes.append("positions count what the filter drops")
    if elements < plain.length:
        notes.append("the first epoch of several")
    sources = tuple((_name(leaf), leaf.length) for leaf in order.leaves)
    # Python's integers: elements of endless datasets, times rows, may be more than 64 bits hold.
    whole = elements * rows
    if not whole:
        nothing = np.zeros(0, np.int64)
        return Order(nothing.astype(np.float64), nothing, sources, 0, True)
    is_whole = beginning or whole <= points
    wanted = range(min(whole, points)) if is_whole else _sampled(whole, points, _windowed(plain))
    indices = np.array([place // rows for place in wanted], np.int64)
    row = np.array([place % rows for place in wanted], np.float64)
    at = positions(indices, plain.length)
    starts = {_key(leaf): start for leaf, start in zip(order.leaves, order.starts, strict=True)}
    found = list(_records(plain, at, (row + 0.5) / rows, indices + row / rows, starts))
    places, records = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Order(
        positions=places,
        records=records,
        sources=sources,
        elements=int(indices[-1]) + 1 if beginning else elements,
        is_whole=is_whole,
        rows=rows,
        notes=tuple(notes),
    )


def sources_of(order: Order, node: Node) -> dict[tuple[int, int | None], int]:
    """The number of the source, from 1, that an element comes from, by its index and a row.

    Row None stands for the whole element. There is none of what several sources go into, and of
    rows that a function of the user's may have moved.
    """
    ends = np.cumsum([length for _, length in order.sources])
    numbers = (np.searchsorted(ends, order.records, side="right") + 1).tolist()
    elements = np.floor(order.positions)
    rows = np.rint((order.positions - elements) * order.rows).astype(np.int64).tolist()
    found: dict[tuple[int, int | None], set[int]] = {}
    keeps_rows = _keeps_rows(node)
    for element, row, number in zip(elements.astype(np.int64).tolist(), rows, numbers, strict=True):
        for place in (None, row) if keeps_rows else (None,):
            found.setdefault((element, place), set()).add(number)
    return {place: min(several) for place, several in found.items() if len(several) == 1}


def _keeps_rows(node: Node) -> bool:
    """Whether row `r` of an element is the `r`-th that went into its one batch."""
    while len(node.parents) == 1 and not isinstance(node, (BatchNode, ValueNode)):
        node = node.parent
    below = nodes_below(node)
    return isinstance(node, BatchNode) and not any(isinstance(n, BatchNode) for n in below[1:])


# --- which positions -----------------------------------------------------------------------------


def _rows(node: Node) -> int:
    """Records that one element is made of, at most, where every parent gives one."""
    below = max(map(_rows, node.parents), default=1)
    return (
        below * max(1, min(node.size, node.parent.length)) if isinstance(node, BatchNode) else below
    )


def _sampled(whole: int, points: int, in_runs: bool) -> list[int]:
    """Places in `[0, whole)`, increasing: one in each of as many equal parts, or runs."""
    random = np.random.default_rng(0)
    parts = _RUNS if in_runs else points
    run = points // parts
    edges = [whole * part // parts for part in range(parts + 1)]
    shares = random.random(parts).tolist()
    starts = [
        low + int(share * (high - low - run + 1))
        for low, high, share in zip(edges[:-1], edges[1:], shares, strict=True)
    ]
    return [start + at for start in starts for at in range(run)]


def _windowed(node: Node) -> bool:
    windows = (WindowShuffleNode, StreamWindowsNode)
    return any(isinstance(below, windows) for below in nodes_below(node))


# --- which records -------------------------------------------------------------------------------


def _records(
    node: Node, at: Positions, inside: FloatArray, owners: FloatArray, starts: Mapping[int, int]
) -> Iterator[tuple[FloatArray, IntArray]]:
    """One record of each element of a node, from each source that it is made of.

    Args:
        node: A node with random access.
        at: Which of its elements.
        inside: Where in them, `[0, 1)`: the row of a batch.
        owners: What stands beside each of the records that come out.
        starts: Where the records of each leaf begin, by its key.
    """
    match node:
        case SourceNode() | RangeNode():
            yield owners, starts[_key(node)] + at.offsets
        case IndexNode():
            yield from _records(node.parent, node.to_parent(at), inside, owners, starts)
        case RoutingNode():
            which, below = node.route(at)
            for number in np.unique(which).tolist():
                rows = np.flatnonzero(which == number)
                part = below.taken(rows)
                yield from _records(node.parents[number], part, inside[rows], owners[rows], starts)
        case BatchNode():
            size = min(node.size, node.parent.length)
            scaled = inside * size
            row = scaled.astype(np.int64)
            below = Positions(at.epochs, at.offsets * size + row)
            there = np.flatnonzero(below.offsets < node.parent.length)  # the last batch is shorter
            part, within = below.taken(there), (scaled - row)[there]
            yield from _records(node.parent, part, within, owners[there], starts)
        case _:
            for parent in node.parents:
                yield from _records(parent, at, inside, owners, starts)


def _key(leaf: Node) -> int:
    return id(leaf.source) if isinstance(leaf, SourceNode) else id(leaf)


def _name(leaf: Node) -> str:
    return repr(leaf.source) if isinstance(leaf, SourceNode) else leaf.label
