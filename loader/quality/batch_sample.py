"""Samples batches of a chain without reading, and finds the records and blocks of their rows.

Short epochs are traced as a whole, and several of them if their orders differ. In a long epoch,
batches from all over it are traced. The sample follows from the chain alone, so the same chain has
the same sample on every machine.

Invariant: at most about `MOST_POSITIONS` positions are computed and `MOST_ROWS` rows kept, unless a
few batches have more.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.engine.record_trace import TracedLeaf, leaves_of, trace
from windrow.errors import PlanError
from windrow.sources.base import IntArray
from windrow.sources.chunks import LaidOutSource
from windrow.transforms import layouts
from windrow.transforms.nodes import LaidOut, Node, walk
from windrow.transforms.nodes.following import group_size
from windrow.transforms.nodes.metadata import epoch_length
from windrow.transforms.nodes.random_access import whole_epochs
from windrow.transforms.nodes.reading import AT_ONCE, OrderCost, most_records, order_cost

FloatArray = npt.NDArray[np.float64]
# The number of blocks of a leaf, and a function from its records to their blocks.
Blocks: TypeAlias = tuple[int, Callable[[IntArray], IntArray]]

MOST_POSITIONS: Final = 2**22
MOST_ROWS: Final = 2**19
MOST_IN_BATCH: Final = 2**20

_MOST_EPOCHS: Final = 200
_FEWEST_RUNS: Final = 4
_EPOCHS_OF_LONG: Final = 4  # a sample of long epochs that differ is from this many
_MOST_IN_TABLE: Final = 2**24


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows of some batches. A row is made of a record of each leaf that is zipped.

    Args:
        counts: int64 `(batches,)`, rows of each batch.
        taken: By the number of a leaf, the rows that its records are in, and the records.
    """

    counts: IntArray
    taken: Mapping[int, tuple[IntArray, IntArray]]

    def first(self, count: int) -> Rows:
        """The first rows, as one batch."""
        return Rows(
            np.array([count]),
            {
                leaf: (rows[rows < count], records[rows < count])
                for leaf, (rows, records) in self.taken.items()
            },
        )

    def redrawn(self) -> Rows:
        """The same with random records of each leaf, from between its first and last record here."""
        generator = np.random.default_rng(1)
        return Rows(
            self.counts,
            {
                leaf: (rows, generator.integers(records.min(), records.max() + 1, len(records)))
                for leaf, (rows, records) in self.taken.items()
            },
        )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class BatchSample:
    """A sample of the batches of a chain.

    Args:
        batches: Rows of the batches.
        population: Rows of an epoch, or as many like these.
        records: Rows of an epoch.
        parts: Number of parts of the order that were seen and are independent of each other.
        is_exact: Whether the sample has every batch that any epoch can have.
    """

    batches: Rows
    population: Rows
    records: int
    parts: int
    is_exact: bool


def sample(node: Node) -> BatchSample:
    """Trace batches of a chain: whole epochs if these are short, else batches from all over them.

    Args:
        node: A chain with random access that has at least one element; its elements are batches.

    Raises:
        PlanError: If a batch has more records than are traced, or batches have none.
    """
    most = most_records(node)
    if most > MOST_IN_BATCH:
        raise PlanError(
            f"shuffle_quality: a batch has {most} records, and tracing it takes memory for all of"
            f" them; give a batch_size of at most {MOST_IN_BATCH}"
        )
    size = max(1, int(trace(node, np.zeros(1, np.int64)).counts[0]))
    varies = any(each.shuffles for each in walk(node))
    cost = order_cost(node)
    elements, epochs = whole_epochs(node)
    positions = cost.begin + float(elements) * size * cost.each
    times = int(min(MOST_POSITIONS / positions, MOST_ROWS / (float(elements) * size)))
    if not times:
        elements = epoch_length(node)
        indices, parts = _places(cost, elements, size, epochs=_EPOCHS_OF_LONG if varies else 1)
        found = _traced(node, indices, size)
        return BatchSample(found, found.redrawn(), _records(node), parts, is_exact=False)
    times = min(times, max(1, _MOST_EPOCHS // epochs)) if varies else 1
    found = _traced(node, np.arange(times * elements), size)
    rows = int(found.counts.sum())
    # A chain that ends within its first batch has fewer rows than epochs.
    records, parts = max(1, rows // (times * epochs)), max(1, rows // cost.together)
    return BatchSample(found, found.first(records), records, parts, is_exact=not varies)


def _traced(node: Node, indices: IntArray, size: int) -> Rows:
    """Trace elements of a node; each has about `size` rows."""
    numbers = {key: number for number, key in enumerate(leaves_of(node))}
    taken = collections.defaultdict[int, list[tuple[IntArray, IntArray]]](list)
    counts: list[IntArray] = []
    rows, step = 0, max(1, AT_ONCE // size)
    for first in range(0, len(indices), step):
        found = trace(node, indices[first : first + step])
        for each in found.taken:
            if len(each.rows):
                taken[numbers[id(each.leaf)]].append((each.rows + rows, each.records))
        counts.append(found.counts)
        rows += int(found.counts.sum())
    joined = {
        leaf: (np.concatenate([r for r, _ in parts]), np.concatenate([r for _, r in parts]))
        for leaf, parts in taken.items()
    }
    every = np.concatenate(counts)
    if not joined:
        raise PlanError("shuffle_quality: the batches have no records")
    return Rows(every[every > 0], joined)


def _places(cost: OrderCost, elements: int, size: int, *, epochs: int) -> tuple[IntArray, int]:
    """Choose runs of elements, one at a random place in each of equal parts of an epoch.

    Where moving to a place is expensive, runs are longer, and spread over the rows that the move yields.

    Returns:
        The elements, and the number of independent parts of the order that they are from.
    """
    each = size * cost.each
    length = int(np.clip(cost.begin / 3 / each, 1, elements))
    runs = min(MOST_POSITIONS / (cost.begin + length * each), MOST_ROWS / (length * size))
    runs = int(np.clip(runs, min(_FEWEST_RUNS, elements), max(1, elements // length)))
    length = min(length, max(1, elements // runs))
    extent = min(max(1, elements // runs), max(length, int(cost.span / size)))
    shares = (np.arange(runs) + np.random.default_rng(0).random(runs)) / runs
    starts = (shares * (elements - extent + 1)).astype(np.int64)
    epochs = max(1, min(epochs, 2**62 // elements))
    starts += np.arange(runs) % epochs * elements
    inside = np.arange(length) * extent // length
    in_run = max(1, min(length, extent * size // cost.together))
    parts = min(runs * in_run, epochs * elements * size // cost.together)
    return (starts[:, None] + inside).ravel(), max(1, parts)


def _records(node: Node) -> int:
    """Return the rows of an epoch; only its last element may have fewer rows than the first."""
    while group_size(node) is not None and epoch_length(node.parent) != node.parent.length:
        node = node.parent  # an element may have rows of two epochs
    elements = epoch_length(node)
    first, last = trace(node, np.array([0, elements - 1])).counts
    return (elements - 1) * int(first) + int(last)


# --- ranks and blocks ----------------------------------------------------------------------------


class Leaves:
    """Ranks and blocks of records. Both run on over the leaves of a chain."""

    def __init__(self, node: Node, block: int | IntArray | None) -> None:
        """Find the leaves and their blocks.

        Args:
            node: The chain.
            block: Records per block, or the bounds of the blocks of the only leaf; None for the
                blocks that the sources declare.

        Raises:
            PlanError: If bounds are given that do not end where the only leaf does.
        """
        leaves = list(leaves_of(node).values())
        lengths = [leaf.length for leaf in leaves]
        if isinstance(block, np.ndarray) and lengths != [block[-1]]:
            raise PlanError(
                f"shuffle_quality: the blocks end at record {block[-1]}, and the sources have"
                f" {lengths} records; give bounds for one source, or the number of records in a block"
            )
        self.count = len(leaves)
        ends = np.cumsum([0, *lengths], dtype=object).tolist()
        self._firsts = [first - ends[-1] / 2 for first in ends]
        self._blocks = [each for leaf in leaves if (each := _blocks_of(leaf, block)) is not None]
        self._first_blocks = np.cumsum([0, *(count for count, _ in self._blocks)]).tolist()

    @property
    def blocks(self) -> int | None:
        """Number of blocks; None if a leaf has no blocks, or too many to look up."""
        return self._first_blocks[-1] if len(self._blocks) == self.count else None

    def ranks(self, rows: Rows) -> FloatArray:
        """The mean rank of the records of each row; 0 is the middle of all."""
        count = int(rows.counts.sum())
        sums, records = np.zeros(count), np.zeros(count)
        for leaf, (places, taken) in rows.taken.items():
            sums += np.bincount(places, taken + self._firsts[leaf], count)
            records += np.bincount(places, minlength=count)
        return sums / records

    def blocks_of(self, rows: Rows) -> tuple[IntArray, IntArray] | None:
        """The row of each record, and its block; None if blocks are not known."""
        if self.blocks is None:
            return None
        found = [
            (places, self._blocks[leaf][1](records) + self._first_blocks[leaf])
            for leaf, (places, records) in rows.taken.items()
        ]
        return np.concatenate([p for p, _ in found]), np.concatenate([b for _, b in found])


def _blocks_of(leaf: TracedLeaf, block: int | IntArray | None) -> Blocks | None:
    if isinstance(block, int):
        return -(-leaf.length // block), lambda records: records // block
    layout = layouts.Layout(block) if block is not None else _declared(leaf)
    if layout is None:
        return None
    bounds, count = layout.bounds, len(layout.bounds) - 1
    if layout.elements is None:
        return count, lambda records: bounds.searchsorted(records, side="right") - 1
    if layout.length > _MOST_IN_TABLE:
        return None
    table = np.empty(layout.length, np.int64)
    table[layout.at(np.arange(layout.length))] = np.repeat(np.arange(count), np.diff(bounds))
    return count, lambda records: table[records]


def _declared(leaf: TracedLeaf) -> layouts.Layout | None:
    """Return the layout that a source declares, unless a table for it would be large."""
    if not isinstance(leaf.source, LaidOut):
        return None
    parts = leaf.source.parts if isinstance(leaf.source, LaidOutSource) else ()
    if any(part.chunk_count > _MOST_IN_TABLE for part in parts):
        return None
    return layouts.declared_layout(leaf.source, leaf.length)
