"""Record order: which records the elements of a chain are made of, without reading them.

A chain is walked downwards with whole arrays of positions, as for reading. What comes of it is the
rank of each record: its index in its source, counted on over the sources of the chain.

Invariant: nothing is read, and no function of the user's is called but a selection map.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from windrow.demand import repeats_for_ever
from windrow.errors import PlanError
from windrow.transforms import orders
from windrow.transforms.nodes import (
    ENDLESS,
    STREAM,
    BatchNode,
    IndexNode,
    MixNode,
    Node,
    RangeNode,
    RepeatNode,
    RoutingNode,
    SeedNode,
    SliceNode,
    SourceNode,
    UnseenNode,
    ValueNode,
    ZipNode,
)
from windrow.transforms.positions import Positions, positions
from windrow.transforms.streams import (
    StreamLimitNode,
    StreamMixNode,
    StreamRepeatNode,
    StreamWindowShuffleNode,
    ToStreamNode,
)

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """Records of one leaf, and the rows that they come in.

    Args:
        leaf: Number of the leaf: a source, or a `range`.
        rows: int64 `(n,)`.
        records: int64 `(n,)`, indices in the leaf.
    """

    leaf: int
    rows: IntArray
    records: IntArray


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What some elements are made of. A batch has many rows, an element that is no batch one.

    Args:
        counts: int64 `(elements,)`, the rows of each element, one after the other.
        ranks: float64 `(rows,)`. A row of a zip is of several records, and has their mean.
        taken: All records of all rows.
    """

    counts: IntArray
    ranks: FloatArray
    taken: list[Taken]


class RecordOrder:
    """The order of a chain: which records come at which of its elements.

    Example:
        >>> import numpy as np, windrow
        >>> from windrow.record_order import RecordOrder
        >>> chain = windrow.MapDataset.range(6)[::-1].batch(4)
        >>> RecordOrder(chain._node).rows(np.array([0])).ranks.tolist()
        [5.0, 4.0, 3.0, 2.0]
    """

    def __init__(self, node: Node) -> None:
        """The order of `node`, a stream too, as if its filters dropped nothing.

        Raises:
            PlanError: If a mixture has an empty stream.
        """
        self.node = random_access(node)
        self.leaves: list[SourceNode | RangeNode] = []
        self.starts: list[int] = []
        self.length = 0
        self._number: dict[int, int] = {}
        self._look(self.node)

    def _look(self, node: Node) -> None:
        """Number the leaves as they are met depth first, each source once."""
        if isinstance(node, SourceNode | RangeNode) and _identity(node) not in self._number:
            self._number[_identity(node)] = len(self.leaves)
            self.leaves.append(node)
            self.starts.append(self.length)
            self.length += node.length
        for parent in node.parents:
            self._look(parent)

    def rows(self, indices: IntArray) -> Rows:
        """What the elements at `indices`, of any epoch, are made of.

        Raises:
            PlanError: If a zip has batches of different sizes, or a selection map is wrong.
        """
        return self.rows_at(self.node, positions(indices, self.node.length))

    def rows_at(self, node: Node, at: Positions) -> Rows:
        """What elements of a node of the chain are made of."""
        match node:
            case SourceNode() | RangeNode():
                number = self._number[_identity(node)]
                taken = Taken(number, np.arange(len(at)), at.offsets)
                ranks = at.offsets.astype(np.float64) + self.starts[number]
                return Rows(np.ones(len(at), np.int64), ranks, [taken])
            case IndexNode():
                return self.rows_at(node.parent, node.to_parent(at))
            case RoutingNode():
                return self._routed(node, at)
            case ZipNode():
                return _zipped([self.rows_at(parent, at) for parent in node.parents], node)
            case BatchNode():
                rows, bounds = node.to_rows(at)
                below = self.rows_at(node.parent, rows)
                counts = np.add.reduceat(below.counts, bounds[:-1]) if len(at) else below.counts
                return Rows(counts, below.ranks, below.taken)
            case _:
                return self.rows_at(node.parent, at)

    def _routed(self, node: RoutingNode, at: Positions) -> Rows:
        which, below = node.route(at)
        numbers = np.unique(which).tolist()
        elements = [np.flatnonzero(which == number) for number in numbers]
        parts = [
            self.rows_at(node.parents[number], below.taken(own))
            for number, own in zip(numbers, elements, strict=True)
        ]
        counts = np.zeros(len(at), np.int64)
        for own, part in zip(elements, parts, strict=True):
            counts[own] = part.counts
        starts = np.cumsum(counts) - counts
        ranks = np.empty(int(counts.sum()))
        taken: list[Taken] = []
        for own, part in zip(elements, parts, strict=True):
            inside = np.arange(len(part.ranks)) - np.repeat(
                np.cumsum(part.counts) - part.counts, part.counts
            )
            rows = np.repeat(starts[own], part.counts) + inside
            ranks[rows] = part.ranks
            taken += [Taken(t.leaf, rows[t.rows], t.records) for t in part.taken]
        return Rows(counts, ranks, taken)


def _zipped(parts: list[Rows], node: ZipNode) -> Rows:
    first, *others = parts
    if not all(np.array_equal(first.counts, other.counts) for other in others):
        raise PlanError(
            f"shuffle_quality: {node.label} has batches of different sizes; ask for the quality of"
            " each of its datasets"
        )
    ranks: FloatArray = sum((part.ranks for part in others), first.ranks) / len(parts)
    return Rows(first.counts, ranks, [taken for part in parts for taken in part.taken])


def _identity(node: SourceNode | RangeNode) -> int:
    return id(node.source if isinstance(node, SourceNode) else node)


# --- streams -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class StreamWindowsNode(IndexNode):
    """The order in which a stream gives out shuffled windows; see `orders.window_order`."""

    window_size: int
    seed: int

    def count(self) -> int:
        return self.parent.length

    @property
    def label(self) -> str:
        return f"window_shuffle(window_size={self.window_size}, seed={self.seed})"

    def to_parent(self, at: Positions) -> Positions:
        size = min(self.window_size, self.length)
        first = at.offsets // size * size
        last = first + np.minimum(size, self.length - first) - 1
        turned = first + last - at.offsets
        offsets = orders.window_shuffled(at.seed_epochs(), turned, self.length, size, self.seed)
        return Positions(at.epochs, offsets)


def random_access(node: Node) -> Node:
    """A chain with random access and the order of `node`, as if filters of a stream dropped nothing.

    Raises:
        PlanError: If a mixture has an empty stream.
    """
    if node.length != STREAM:
        return node
    if isinstance(node, ToStreamNode):
        return node.parent
    below = tuple(random_access(parent) for parent in node.parents)
    match node:
        case StreamRepeatNode():
            return (
                below[0]
                if below[0].length >= ENDLESS
                else RepeatNode(below, node.times, reseed=False)
            )
        case StreamLimitNode():
            return _first(below[0], node.size)
        case StreamWindowShuffleNode():
            return StreamWindowsNode(below, node.window_size, node.seed)
        case StreamMixNode():
            return MixNode(below, node.weights)
        case ZipNode():
            shortest = min(parent.length for parent in below)
            return ZipNode(tuple(_first(parent, shortest) for parent in below))
        case BatchNode():
            return BatchNode(below, node.size, node.drop_remainder)
        case _:
            return below[0]


def _first(node: Node, count: int) -> Node:
    return node if count >= node.length else SliceNode((node,), 0, 1, count)


# --- epochs --------------------------------------------------------------------------------------


def epoch_length(node: Node) -> int:
    """Elements that a chain with random access gives in one epoch, below what repeats it.

    Of a mixture that never ends, as many as one epoch of each of its datasets has.
    """
    match node:
        case RepeatNode() | SeedNode() | ValueNode() | UnseenNode():
            return epoch_length(node.parent)
        case BatchNode():
            below = epoch_length(node.parent)
            return node.length if below == node.parent.length else max(1, below // node.size)
        case MixNode() if repeats_for_ever(node):
            return sum(epoch_length(parent) for parent in node.parents)
        case Node(parents=(parent, *_)) if repeats_for_ever(node):
            return epoch_length(parent)
        case _:
            return node.length


def whole_epochs(node: Node) -> tuple[int, int]:
    """The fewest epochs that end where an element does: how many elements they have, and how many.

    Batches of 7 that are made of epochs of 100 end with an epoch after 7 epochs only. Of a chain
    that ends before, all of its elements and epochs.
    """
    match node:
        case RepeatNode() | SeedNode() | ValueNode() | UnseenNode():
            return whole_epochs(node.parent)
        case BatchNode() if goes_over_epochs(node):
            below, epochs = whole_epochs(node.parent)
            batches, shared = below // math.gcd(below, node.size), math.gcd(below, node.size)
            if batches > node.length:
                return node.length, max(1, node.parent.length * epochs // below)
            return batches, epochs * node.size // shared
        case _:
            return epoch_length(node), 1


def goes_over_epochs(node: BatchNode) -> bool:
    """Whether a batch may have records of two epochs."""
    return epoch_length(node.parent) != node.parent.length


def nodes_below(node: Node) -> list[Node]:
    """The node and all nodes below it."""
    return [node, *(found for parent in node.parents for found in nodes_below(parent))]
