"""Samples batches of a chain without reading, and adds up which records each batch has.

Short epochs are traced as a whole, and several of them if their orders differ. In a long epoch,
batches from all over it are traced. The size of the sample follows from the chain alone, so the same
chain has the same sample on every machine.

Invariant: at most about `MOST_POSITIONS` positions are computed, unless a few batches have more.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from windrow.engine.record_trace import Trace, TracedLeaf, leaves_of, trace
from windrow.errors import PlanError
from windrow.sources.chunks import LaidOutSource
from windrow.transforms import layouts
from windrow.transforms.nodes import LaidOut, Node
from windrow.transforms.order_costs import AT_ONCE

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

MOST_POSITIONS: Final = 2**22
MOST_SOURCES: Final = 32
"""Chains of more sources get no figures per source."""

_MOST_EPOCHS: Final = 200
_ENOUGH_EPOCHS: Final = 30  # enough for their differences to show the error of their mean
_FEWEST_RUNS: Final = 4
_MOST_RUNS: Final = 1024
_MOST_BATCHES: Final = 2**17
_MOST_KEPT: Final = 2**20  # numbers of blocks to keep before they are added up
_APART: Final = 4  # sample one epoch if its places cover at most a quarter of it
MOST_IN_BATCH: Final = 2**22
_MOST_IN_TABLE: Final = 2**24


# --- blocks --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class BlockNumbers:
    """Maps the records of one leaf to the numbers of their blocks.

    Args:
        first: Number of its first block.
        count: Number of its blocks.
        length: Number of its records.
        even: Records per block, except perhaps in the last block; 0 if blocks differ.
        bounds: int64 `(blocks + 1,)`, in records; None if blocks are even, or `table` has them.
        table: uint32 `(length,)`, the block of each record, counted from 0; None if the records
            of a block are neighbours.
    """

    first: int
    count: int
    length: int
    even: int = 0
    bounds: IntArray | None = None
    table: npt.NDArray[np.uint32] | None = None

    def of(self, records: IntArray) -> IntArray:
        """Return the numbers of the blocks that records lie in."""
        if self.table is not None:
            return self.table[records] + np.int64(self.first)
        if self.bounds is not None:
            return self.bounds.searchsorted(records, side="right") - 1 + self.first
        return records // self.even + self.first

    def sizes(self) -> tuple[FloatArray, FloatArray]:
        """Return the distinct sizes of blocks, in records, and how many blocks have each."""
        if self.table is not None:
            sizes: IntArray = np.bincount(self.table)
        elif self.bounds is not None:
            sizes = np.diff(self.bounds)
        else:
            last = self.length - (self.count - 1) * self.even
            return np.array([self.even, last], np.float64), np.array([self.count - 1.0, 1.0])
        found, counts = np.unique(sizes, return_counts=True)
        return found.astype(np.float64), counts.astype(np.float64)


def block_numbers(
    leaves: Sequence[TracedLeaf], block: int | IntArray | None
) -> list[BlockNumbers] | None:
    """Return the blocks of every leaf; None if one has no blocks, or too many to look up.

    Args:
        leaves: The leaves.
        block: Records per block, or the bounds of the blocks of the only leaf; None for the blocks
            that the sources declare.

    Raises:
        PlanError: If bounds are given that do not end where the only leaf does.
    """
    ends = [leaf.length for leaf in leaves]
    if isinstance(block, np.ndarray) and ends != [block[-1]]:
        raise PlanError(
            f"shuffle_quality: the blocks end at record {block[-1]}, and the sources have {ends}"
            " records; give bounds for one source, or the number of records in a block"
        )
    found: list[BlockNumbers] = []
    for leaf in leaves:
        length = leaf.length
        first = sum(numbers.count for numbers in found[-1:]) + (found[-1].first if found else 0)
        if isinstance(block, int):
            found.append(BlockNumbers(first, -(-length // block), length, even=block))
            continue
        layout = layouts.Layout(block) if block is not None else _declared(leaf)
        numbers = None if layout is None else _of_layout(layout, first)
        if numbers is None:
            return None
        found.append(numbers)
    return found


def _declared(leaf: TracedLeaf) -> layouts.Layout | None:
    """Return the layout that a source declares, unless a table for it would be large."""
    if not isinstance(leaf.source, LaidOut):
        return None
    parts = leaf.source.parts if isinstance(leaf.source, LaidOutSource) else ()
    if any(part.chunk_count > _MOST_IN_TABLE for part in parts):
        return None
    return layouts.declared_layout(leaf.source, leaf.length)


def _of_layout(layout: layouts.Layout, first: int) -> BlockNumbers | None:
    sizes = np.diff(layout.bounds)
    if layout.elements is not None:
        if layout.length > _MOST_IN_TABLE:
            return None
        table = np.empty(layout.length, np.uint32)
        table[layout.at(np.arange(layout.length))] = np.repeat(np.arange(len(sizes)), sizes)
        return BlockNumbers(first, len(sizes), layout.length, table=table)
    if len(sizes) and (sizes[:-1] == sizes[0]).all() and sizes[-1] <= sizes[0]:
        return BlockNumbers(first, len(sizes), layout.length, even=int(sizes[0]))
    return BlockNumbers(first, len(sizes), layout.length, bounds=layout.bounds)


# --- records of batches --------------------------------------------------------------------------


class Records:
    """Adds up the records that batches have from one source, or from all sources.

    Each list has one array per call of `add`, with one number for each batch that has records.
    """

    def __init__(self, centre: float, blocks: Sequence[BlockNumbers] | None) -> None:
        """Start without batches.

        Args:
            centre: Subtracted from values before they are squared, so that no digits are lost.
            blocks: The blocks of each leaf; None if they are not known.
        """
        self.centre = centre
        self.blocks = blocks
        self.batches: list[IntArray] = []
        self.counts: list[IntArray] = []
        self.sums: list[FloatArray] = []
        self.squares: list[FloatArray] = []
        self.different: list[IntArray] = []
        self.taken: collections.Counter[int] = collections.Counter()
        self._in_blocks: list[tuple[IntArray, IntArray]] = []

    @property
    def rows(self) -> int:
        """Number of rows in all batches."""
        return sum(int(counts.sum()) for counts in self.counts)

    @property
    def mean(self) -> float:
        """Mean of the values, minus the centre."""
        return sum(float(sums.sum()) for sums in self.sums) / self.rows

    @property
    def variance(self) -> float:
        """Variance of the values."""
        squares = sum(float(part.sum()) for part in self.squares)
        return max(0.0, squares / self.rows - self.mean**2)

    def add(
        self,
        first: int,
        batches: int,
        owners: IntArray,
        values: FloatArray,
        taken: Sequence[tuple[int, IntArray, IntArray]],
    ) -> None:
        """Add the records of some batches.

        Args:
            first: The number of the first of these batches.
            batches: Number of these batches.
            owners: int64 `(rows,)`, the batch of each row, counted from `first`.
            values: float64 `(rows,)`.
            taken: For each leaf its index in `blocks`, the owners of its records, and the records.
        """
        counts = np.bincount(owners, minlength=batches)
        having = np.flatnonzero(counts)
        centred = values - self.centre
        self.batches.append(first + having)
        self.counts.append(counts[having])
        self.sums.append(np.asarray(np.bincount(owners, centred, batches)[having], np.float64))
        self.squares.append(
            np.asarray(np.bincount(owners, centred**2, batches)[having], np.float64)
        )
        for leaf, _, records in taken:
            self.taken[leaf] += len(records)
        if self.blocks is None:
            return
        own = np.concatenate([owners for _, owners, _ in taken])
        numbers = np.concatenate([self.blocks[leaf].of(records) for leaf, _, records in taken])
        self.different.append(_different(own, numbers, batches)[having])
        self._in_blocks.append(added_up(numbers))
        if sum(len(found) for found, _ in self._in_blocks) > _MOST_KEPT:
            self._in_blocks = [self._all_blocks()]

    def _all_blocks(self) -> tuple[IntArray, IntArray]:
        found, counts = zip(*self._in_blocks, strict=True)
        return added_up(np.concatenate(found), np.concatenate(counts))

    def block_sizes(self, records: float, *, is_whole: bool) -> tuple[FloatArray, FloatArray]:
        """Return the records per block in an epoch of `records` rows, and how many blocks have each.

        For a sample (not `is_whole`) it assumes that an epoch leaves out records evenly.
        """
        if is_whole:
            each = self._all_blocks()[1] * (records / self.rows)
            sizes, many = np.unique(each, return_counts=True)
            return sizes, many.astype(np.float64)
        found = []
        for number, leaf in enumerate(self.blocks or ()):
            share = self.taken[number] / self.rows * (records / leaf.length)
            found.append((leaf.sizes()[0] * share, leaf.sizes()[1]))
        return np.concatenate([s for s, _ in found]), np.concatenate([m for _, m in found])


def added_up(numbers: IntArray, counts: IntArray | None = None) -> tuple[IntArray, IntArray]:
    """Return the distinct numbers in order, and the sum of each one's counts, which default to 1."""
    if len(numbers) and int(numbers.max()) < 4 * len(numbers):  # a sort costs five times as much
        sums = np.bincount(numbers, counts)
        found = np.flatnonzero(sums)
        return found, sums[found].astype(np.int64)
    found, which = np.unique(numbers, return_inverse=True)
    return found, np.bincount(which, counts, len(found)).astype(np.int64)


def _different(owners: IntArray, numbers: IntArray, batches: int) -> IntArray:
    """Count the distinct numbers of each batch."""
    most = int(numbers.max()) + 1
    if most > 2**62 // max(1, batches):  # the products would be beyond 64 bits
        known, numbers = np.unique(numbers, return_inverse=True)
        most = len(known)
    keys = owners * most + numbers
    keys.sort()
    first = np.append(True, keys[1:] != keys[:-1])
    return np.bincount(keys[first] // most, minlength=batches)


class _Traced:
    """Traces batches of a chain, and adds up their records over all sources and per source."""

    def __init__(self, node: Node, block: int | IntArray | None) -> None:
        """Start without batches; `block` is as for `block_numbers`."""
        found = leaves_of(node)
        self.leaves = list(found.values())
        self._number = {key: number for number, key in enumerate(found)}
        ends = np.cumsum([leaf.length for leaf in self.leaves], dtype=object).tolist()
        self._starts = [0, *ends[:-1]]
        self.records = [Records(ends[-1] / 2, block_numbers(self.leaves, block))]
        """Records of all sources, then of each source if there are several and not very many."""
        if 1 < len(self.leaves) <= MOST_SOURCES and not isinstance(block, np.ndarray):
            for leaf in self.leaves:
                numbers = block_numbers([leaf], block)
                self.records.append(Records(leaf.length // 2, numbers))

    def walk(self, node: Node, indices: IntArray, size: int) -> None:
        """Trace elements of a node; each has about `size` rows."""
        step = max(1, AT_ONCE // size)
        for first in range(0, len(indices), step):
            self._add(first, trace(node, indices[first : first + step]))

    def _add(self, first: int, found: Trace) -> None:
        batches = len(found.counts)
        owner = np.repeat(np.arange(batches), found.counts)
        leaves = [self._number[id(taken.leaf)] for taken in found.taken]
        taken = [
            (leaf, owner[part.rows], part.records)
            for leaf, part in zip(leaves, found.taken, strict=True)
        ]
        self.records[0].add(first, batches, owner, self._ranks(found, leaves), taken)
        for leaf in set(leaves) if len(self.records) > 1 else ():
            parts = [part for part in taken if part[0] == leaf]
            owners, records = (np.concatenate([p[at] for p in parts]) for at in (1, 2))
            values = records.astype(np.float64)
            self.records[1 + leaf].add(first, batches, owners, values, [(0, owners, records)])

    def _ranks(self, found: Trace, leaves: Sequence[int]) -> FloatArray:
        """Return the rank of each row, which is the mean rank if the row has several records."""
        count = int(found.counts.sum())
        parts: list[FloatArray] = [
            np.add(part.records, float(self._starts[leaf]), dtype=np.float64)
            for leaf, part in zip(leaves, found.taken, strict=True)
        ]
        if len(parts) == 1:
            return parts[0]  # a record in each row, in order
        rows = np.concatenate([part.rows for part in found.taken])
        sums = np.bincount(rows, np.concatenate(parts), count)
        ranks: FloatArray = sums / np.bincount(rows, minlength=count)
        return ranks


# --- which batches -------------------------------------------------------------------------------


def _places(node: Node, elements: int, size: int, budget: float) -> tuple[IntArray, IntArray]:
    """Choose elements from all over an epoch within a budget: one place in each of equal parts.

    If moving to a place is expensive, it takes several elements there, spread over the rows that the
    move yields. If an epoch has only a few such places, it takes places of other epochs too.

    Args:
        node: The chain.
        elements: Elements of an epoch, with `size` rows each.
        size: Rows of an element.
        budget: Positions that may be computed.

    Returns:
        int64: the elements, and where each run of them begins.
    """
    cost = node.order_cost()
    count = int(np.clip(budget / 4 / (size * cost.each), _FEWEST_RUNS, _MOST_BATCHES))
    count = min(count, elements)
    fewest = _FEWEST_RUNS if cost.begin > budget else 2 * _FEWEST_RUNS
    runs = min(count, max(fewest, int(0.75 * budget / max(1.0, cost.begin))))
    length = count // runs
    extent = min(elements // runs, max(length, int(cost.span / size)))
    shares = (np.arange(runs) + np.random.default_rng(0).random(runs)) / runs
    starts = (shares * (elements - extent + 1)).astype(np.int64)
    epochs = min(runs, 1 + int(_APART * runs * cost.together / (float(elements) * size)))
    starts += np.arange(runs) % max(1, min(epochs, 2**62 // elements)) * elements
    inside = np.arange(length) * extent // length
    return (starts[:, None] + inside).ravel(), np.arange(runs) * length


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class BatchSample:
    """A sample of the batches of a chain.

    Args:
        batches: Records of the batches: of all sources, and then of each source if there are several
            and not very many.
        population: Records of an epoch, or of a sample of it, in the same order.
        runs: int64, the batch at which each run begins; batches of different runs are independent.
        records: Rows of an epoch.
        is_whole: Whether the population is whole epochs.
        is_exact: Whether the sample has every batch that any epoch can have.
        leaves: The sources, and the nodes that make their elements out of nothing.
    """

    batches: Sequence[Records]
    population: Sequence[Records]
    runs: IntArray
    records: int
    is_whole: bool
    is_exact: bool
    leaves: Sequence[TracedLeaf]


def sample(node: Node, block: int | IntArray | None) -> BatchSample:
    """Trace batches of a chain: whole epochs if these are short, else batches from all over one.

    Args:
        node: A chain with random access that has at least one element; its elements are batches.
        block: As for `block_numbers`.

    Raises:
        PlanError: If a batch has more records than are traced.
    """
    most = most_rows(node)
    if most > MOST_IN_BATCH:
        raise PlanError(
            f"shuffle_quality: a batch has {most} records, and tracing it takes memory for all of"
            f" them; give a batch_size of at most {MOST_IN_BATCH}"
        )
    found = _Traced(node, block)
    size = _rows_of_first(node)
    elements, epochs = node.whole_epochs()
    if _positions(node, elements, size) <= MOST_POSITIONS:
        return _whole_epochs(found, node, elements, epochs, size)
    elements = node.epoch_length()
    if _positions(node, elements, size) <= MOST_POSITIONS:
        # The whole epoch, except some records of the last batch, which extends into the next epoch.
        runs = _walk_epochs(found, node, elements, 1, size)
        population = found
    else:
        indices, runs = _places(node, elements, size, MOST_POSITIONS)
        found.walk(node, indices, size)
        parts = min(len(runs), _MOST_RUNS, max(1, elements * size // node.order_cost().together))
        runs = runs[np.arange(parts) * len(runs) // parts]
        population = _Traced(node, block)
        _walk_population(population, _unshuffled(node))
    records = _records(node)
    return BatchSample(found.records, population.records, runs, records, False, False, found.leaves)


def _whole_epochs(found: _Traced, node: Node, elements: int, epochs: int, size: int) -> BatchSample:
    """Trace every batch of some epochs, or of one if orders do not differ, with exact figures."""
    varies = any(each.shuffles for each in node.walk())
    times = min(_MOST_EPOCHS // epochs, int(MOST_POSITIONS / _positions(node, elements, size)))
    times = max(1, times) if varies else 1
    runs = _walk_epochs(found, node, times * elements, times * epochs, size)
    records = found.records[0].rows // (times * epochs)
    return BatchSample(found.records, found.records, runs, records, True, not varies, found.leaves)


def _walk_epochs(found: _Traced, node: Node, count: int, epochs: int, size: int) -> IntArray:
    """Trace the first elements, and return where independent runs of them begin."""
    found.walk(node, np.arange(count), size)
    # Batches that share a window of a block shuffle are not independent.
    parts = min(_MOST_RUNS, max(1, count * size // node.order_cost().together))
    parts = min(count, epochs if epochs >= _ENOUGH_EPOCHS else parts)
    return np.arange(parts) * count // parts


def _positions(node: Node, elements: int, size: int) -> float:
    """Return how many positions tracing elements of `size` rows in order computes."""
    cost = node.order_cost()
    return cost.begin + float(elements) * size * cost.each


def _walk_population(found: _Traced, node: Node) -> None:
    """Add rows from all over an epoch of a chain; it does not matter which rows share a batch."""
    while node.group_size is not None or node.makes_values:
        node = node.parent
    size = _rows_of_first(node)
    indices, _ = _places(node, node.epoch_length(), size, MOST_POSITIONS / 4)
    found.walk(node, indices, size)


def _rows_of_first(node: Node) -> int:
    return int(trace(node, np.zeros(1, np.int64)).counts[0])


def _records(node: Node) -> int:
    """Return the rows of an epoch; only its last element may have fewer rows than the first."""
    while node.group_size is not None and node.parent.epoch_length() != node.parent.length:
        node = node.parent  # an element may have rows of two epochs
    elements = node.epoch_length()
    first, last = trace(node, np.array([0, elements - 1])).counts
    return (elements - 1) * int(first) + int(last)


def most_rows(node: Node) -> int:
    """Return the most rows that an element of a chain has, without tracing one."""
    most = max(map(most_rows, node.parents), default=1)
    size = node.group_size
    return most if size is None else min(size, node.parent.length) * most


def _unshuffled(node: Node) -> Node:
    """Return the chain without the shuffles that do not change which records an epoch has."""
    if node.shuffles:
        return _unshuffled(node.parent)
    return node.over((_unshuffled(node.parent),)) if _is_spread(node) else node


def _is_spread(node: Node) -> bool:
    """Return whether a node makes its elements from all over its only parent."""
    return len(node.parents) == 1 and (node.takes_all or node.group_size is not None)
