"""Batches of a chain, looked at without reading: whole epochs where they are short, else samples.

How much is looked at follows from the chain alone, so that it is the same on every machine: each
kind of node costs so many nanoseconds per record, and for going to another place.

Invariant: batches are looked at in order, in runs of equal length; runs that are not whole epochs
are spread evenly over one.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from windrow.costs import Amount
from windrow.errors import PlanError
from windrow.record_order import (
    RecordOrder,
    Rows,
    StreamWindowsNode,
    epoch_length,
    goes_over_epochs,
    nodes_below,
    whole_epochs,
)
from windrow.sources import LaidOutSource
from windrow.transforms import layouts
from windrow.transforms.block_nodes import BlockShuffleNode, LaidOut
from windrow.transforms.blocks import most_in_window
from windrow.transforms.halves import with_parents
from windrow.transforms.nodes import (
    BatchNode,
    Node,
    RangeNode,
    ReindexNode,
    RepeatNode,
    SeedNode,
    SelectNode,
    ShuffleNode,
    SliceNode,
    SourceNode,
    ValueNode,
    WindowShuffleNode,
)
from windrow.transforms.positions import positions

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

SHUFFLES: Final = (ShuffleNode, WindowShuffleNode, BlockShuffleNode, StreamWindowsNode)
BUDGET_NS: Final = 3e8
_EXACT_NS: Final = 6e8  # for an order that is the same in every epoch: it is then exact

ENOUGH_EPOCHS: Final = 8  # to tell from their differences how sure their mean is

_MOST_EPOCHS: Final = 200
_LEAST_RUNS: Final = 16
_FEWEST_RUNS: Final = 4  # of batches that take long
_MOST_NS: Final = 1e9  # for more runs than that
_MOST_KEPT: Final = 2**20  # numbers of blocks, before they are added up
_MOST_RUNS: Final = 4096
_SHOWN_RUNS: Final = 64
_ROWS_AT_ONCE: Final = 2**16
_STRETCH: Final = 16_384  # elements of small windows that a block shuffle makes at once
_TABLE_LENGTH: Final = 2**18  # up to this a shuffle makes its whole order at once
_LEAST_STATES: Final = 2**16
_WINDOW_NS: Final = 1.5e6  # of a window shuffle, however small the window is
_MOST_IN_TABLE: Final = 2**24
_MOST_IN_BATCH: Final = 2**22
_FEW_RECORDS: Final = 2**14
_ERRORS: Final = 3.0  # standard errors on either side


# --- blocks --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class BlockNumbers:
    """Which block each record of one leaf lies in.

    Args:
        first: Number of its first block.
        count: Its blocks.
        length: Its records.
        even: Records of every block, but perhaps the last; 0 where they differ.
        bounds: int64 `(blocks + 1,)`, in records; None where blocks are even, or by the table.
        table: The block of each record, counted from 0; None where blocks are of neighbours.
    """

    first: int
    count: int
    length: int
    even: int = 0
    bounds: IntArray | None = None
    table: npt.NDArray[np.uint32] | None = None

    def of(self, records: IntArray) -> IntArray:
        """The numbers of the blocks that records lie in."""
        if self.table is not None:
            return self.table[records] + np.int64(self.first)
        if self.bounds is not None:
            return self.bounds.searchsorted(records, side="right") - 1 + self.first
        return records // self.even + self.first

    def sizes(self) -> tuple[FloatArray, FloatArray]:
        """The sizes that there are, and of how many blocks each is."""
        if self.table is not None:
            sizes: IntArray = np.bincount(self.table)
        elif self.bounds is not None:
            sizes = np.diff(self.bounds)
        else:
            last = self.length - (self.count - 1) * self.even
            return np.array([self.even, last], np.float64), np.array([self.count - 1.0, 1.0])
        found, counts = np.unique(sizes, return_counts=True)
        return found.astype(np.float64), counts.astype(np.float64)


def block_numbers(order: RecordOrder, block: int | IntArray | None) -> list[BlockNumbers] | None:
    """The blocks of every leaf; None where one has none, or too many to look up.

    Args:
        order: Has the leaves.
        block: Records of a block, or the bounds of the blocks of the only leaf; None for those that
            the sources tell.

    Raises:
        PlanError: If bounds are given, and do not end where the only leaf does.
    """
    ends = [leaf.length for leaf in order.leaves]
    if isinstance(block, np.ndarray) and ends != [block[-1]]:
        raise PlanError(
            f"shuffle_quality: the blocks end at record {block[-1]}, and the sources have {ends}"
            " records; give bounds for one source, or the number of records in a block"
        )
    found: list[BlockNumbers] = []
    first = 0
    for leaf in order.leaves:
        numbers = _numbers(leaf, block, first)
        if numbers is None:
            return None
        found.append(numbers)
        first += numbers.count
    return found


def _numbers(
    leaf: SourceNode | RangeNode, block: int | IntArray | None, first: int
) -> BlockNumbers | None:
    if block is None:
        layout = _told(leaf)
        return None if layout is None else _of_layout(layout, first)
    if isinstance(block, np.ndarray):
        return _of_layout(layouts.Layout(block), first)
    return BlockNumbers(first, -(-leaf.length // block), leaf.length, even=block)


def _told(leaf: SourceNode | RangeNode) -> layouts.Layout | None:
    """The layout that a source tells, unless a table for it would be large."""
    if isinstance(leaf, RangeNode) or not isinstance(leaf.source, LaidOut):
        return None
    parts = leaf.source.parts if isinstance(leaf.source, LaidOutSource) else ()
    if any(part.piece_count > _MOST_IN_TABLE for part in parts):
        return None
    return layouts.told(leaf.source, leaf.length)


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


# --- what looking costs --------------------------------------------------------------------------


def cost_ns(node: Node) -> tuple[float, float]:
    """What it costs to go to another place of a chain, and for each record from there on."""
    below = [cost_ns(parent) for parent in node.parents]
    setup, each = sum(s for s, _ in below), sum(e for _, e in below)
    match node:
        case ShuffleNode() if node.length <= _TABLE_LENGTH:
            return 40.0 * max(_LEAST_STATES, 2 * node.length), 20 + setup + each
        case ShuffleNode():
            return 0.0, 120 + setup + each
        case WindowShuffleNode() | StreamWindowsNode():
            return setup + _WINDOW_NS, 100 + each + _WINDOW_NS / min(node.window_size, node.length)
        case BlockShuffleNode():
            most = most_in_window(node.order.bounds, node.order.window_blocks)
            return setup + 200 * max(most, _STRETCH), 200 + setup + each
        case SliceNode() if abs(node.step) > 1:
            return setup, min(abs(node.step) * each, setup + each)
        case ReindexNode():
            return 0.0, setup + each
        case SelectNode():
            return 0.0, 2_000 + setup + each
        case _:
            return setup, each if below else 40.0


# --- looking -------------------------------------------------------------------------------------


def added_up(numbers: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """Different numbers in order, and for each the sum of its counts."""
    if len(numbers) and int(numbers.max()) < 4 * len(numbers):  # a sort costs five times as much
        sums = np.bincount(numbers, counts)
        found = np.flatnonzero(sums)
        return found, sums[found].astype(np.int64)
    found, which = np.unique(numbers, return_inverse=True)
    return found, np.bincount(which, counts, len(found)).astype(np.int64)


@dataclasses.dataclass(slots=True)
class Population:
    """The records that come in an epoch, added up.

    Args:
        centre: Subtracted from ranks before they are squared, so that no digits are lost.
        rows: How many there are.
        sums: Of their ranks, less the centre.
        squares: Of the same.
        taken: Records of each leaf.
        blocks: Numbers of blocks, and records in each; a block may come several times.
    """

    centre: float
    rows: int = 0
    sums: float = 0.0
    squares: float = 0.0
    taken: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    blocks: list[tuple[IntArray, IntArray]] = dataclasses.field(default_factory=list)

    @property
    def mean(self) -> float:
        """Of the ranks, less the centre."""
        return self.sums / self.rows

    @property
    def variance(self) -> float:
        """Of the ranks."""
        return max(0.0, self.squares / self.rows - self.mean**2)

    def add(self, rows: Rows, blocks: Sequence[IntArray]) -> None:
        """Add records, and the blocks that they lie in where these are known."""
        centred = rows.ranks - self.centre
        self.rows += len(centred)
        self.sums += float(centred.sum())
        self.squares += float(np.square(centred, out=centred).sum())
        for taken in rows.taken:
            self.taken[taken.leaf] += len(taken.records)
        if blocks:
            joined = np.concatenate(blocks)
            self.blocks.append(added_up(joined, np.ones(len(joined), np.int64)))
            if sum(len(found) for found, _ in self.blocks) > _MOST_KEPT:
                self.blocks = [self._all_blocks()]

    def _all_blocks(self) -> tuple[IntArray, IntArray]:
        found, counts = zip(*self.blocks, strict=True)
        return added_up(np.concatenate(found), np.concatenate(counts))

    def block_sizes(
        self, numbers: Sequence[BlockNumbers], rows: int
    ) -> tuple[FloatArray, FloatArray]:
        """Records of a block in an epoch of so many rows: the sizes, and of how many blocks each is.

        Of a sample, those that blocks have if records are left out evenly.
        """
        if self.rows % rows == 0:
            each = self._all_blocks()[1] * (rows / self.rows)
            sizes, many = np.unique(each, return_counts=True)
            return sizes, many.astype(np.float64)
        parts = [leaf.sizes() for leaf in numbers]
        shares = [
            self.taken[number] / self.rows * (rows / leaf.length)
            for number, leaf in enumerate(numbers)
        ]
        return (
            np.concatenate(
                [sizes * share for (sizes, _), share in zip(parts, shares, strict=True)]
            ),
            np.concatenate([many for _, many in parts]),
        )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """Batches that were looked at.

    Args:
        sizes: int64 `(batches,)`, their records.
        means: float64 `(batches,)`, of the ranks less the population's centre.
        blocks: float64 `(batches,)`, different blocks of each; empty where no source tells.
        runs: int64, the batch at which each run begins.
        is_exact: Whether these are all batches there are in any epoch.
        records: Records in an epoch.
        population: Of the epoch, or of a sample of it.
    """

    sizes: IntArray
    means: FloatArray
    blocks: FloatArray
    runs: IntArray
    is_exact: bool
    records: int
    population: Population


# Is told what is looked at: how many batches were before, and what the next ones are made of.
Watch = Callable[[int, Rows], None]


def looked_at(
    order: RecordOrder,
    numbers: Sequence[BlockNumbers] | None,
    watch: Watch | None = None,
    watch_all: Watch | None = None,
) -> Batches:
    """Batches of a chain whose elements are batches: whole epochs, or runs spread over one.

    Args:
        order: The chain's.
        numbers: The blocks of its leaves, where they are known.
        watch: Is told the batches.
        watch_all: Is told the sample of an epoch, where the batches are no whole epochs.

    Raises:
        PlanError: If a batch has more records than are looked at.
    """
    most = _most_rows(order.node)
    if most > _MOST_IN_BATCH:
        raise PlanError(
            f"shuffle_quality: a batch has {most} records, and looking at it takes memory for all;"
            f" give a batch_size of at most {_MOST_IN_BATCH}"
        )
    size = int(order.rows(np.zeros(1, np.int64)).counts[0])
    varies = any(isinstance(node, SHUFFLES) for node in nodes_below(order.node))
    setup, each = cost_ns(order.node)
    most_ns = BUDGET_NS if varies else _EXACT_NS
    if setup + float(epoch_length(order.node)) * size * each > most_ns:
        return _sample(order, numbers, size, watch, watch_all)
    elements, epochs = whole_epochs(order.node)
    are_whole = setup + float(elements) * size * each <= most_ns
    if not are_whole:
        elements, epochs = epoch_length(order.node), 1  # but for some records of the last batch
    look_ns = setup + float(elements) * size * each
    times = max(1, min(_MOST_EPOCHS // epochs, int(BUDGET_NS / look_ns))) if varies else 1
    looks = _Looks(times * elements, times * epochs, are_whole)
    return _epochs(order, numbers, size, looks, watch, is_exact=not varies and are_whole)


class _Looks(NamedTuple):
    """How many elements are looked at, of how many epochs, and whether they end with an epoch."""

    elements: int
    epochs: int
    are_whole: bool


def _epochs(
    order: RecordOrder,
    numbers: Sequence[BlockNumbers] | None,
    size: int,
    looks: _Looks,
    watch: Watch | None,
    *,
    is_exact: bool,
) -> Batches:
    """All batches of some epochs, of `size` records each but perhaps the last of an epoch."""
    epochs = looks.epochs
    indices = np.arange(looks.elements)
    population = Population(order.length / 2)
    found = _walked(order, order.node, indices, size, numbers, population, watch)
    # What shares a window of a block shuffle is no two draws.
    windows = max(1, len(indices) * size // _largest_window(order.node))
    count = epochs if epochs >= ENOUGH_EPOCHS else min(windows, _SHOWN_RUNS)
    count = min(count, len(indices))
    runs = np.arange(count) * len(indices) // count
    records = population.rows // epochs if looks.are_whole else _records(order)
    return Batches(*found, runs, is_exact, records, population)


def _sample(
    order: RecordOrder,
    numbers: Sequence[BlockNumbers] | None,
    size: int,
    watch: Watch | None,
    watch_all: Watch | None,
) -> Batches:
    """Runs of batches from all over an epoch, with batches spread evenly as its population."""
    batches = epoch_length(order.node)
    setup, each = cost_ns(order.node)
    # Of large batches fewer: each takes long.
    least = int(np.clip(_MOST_NS / (setup + size * each), _FEWEST_RUNS, _LEAST_RUNS))
    count = min(batches, int(np.clip(BUDGET_NS / (setup + size * each), least, _MOST_RUNS)))
    length = max(1, min(batches // count, int((BUDGET_NS / count - setup) / (size * each))))
    places = (np.arange(count) + np.random.default_rng(0).random(count)) / count
    starts = (places * (batches - length + 1)).astype(np.int64)
    indices = (starts[:, None] + np.arange(length)).ravel()
    found = _walked(order, order.node, indices, size, numbers, None, watch)

    plain = _unshuffled(order.node)
    if isinstance(plain, BatchNode) and plain.size == size > _ROWS_AT_ONCE:
        # Which batches there are is all one to the population.
        size = _ROWS_AT_ONCE
        plain = BatchNode(plain.parents, size, plain.drop_remainder)
        batches = epoch_length(plain)
    setup, each = cost_ns(plain)
    some = min(batches, int(np.clip(BUDGET_NS / 2 / (setup + size * each), _LEAST_RUNS, 2**14)))
    # In Python, as the products may be beyond 64 bits.
    evenly = np.array([(k * batches + batches // 2) // some for k in range(some)], np.int64)
    population = Population(order.length / 2)
    _walked(order, plain, evenly, size, numbers, population, watch_all)
    return Batches(*found, np.arange(count) * length, False, _records(order), population)


def _records(order: RecordOrder) -> int:
    """Records in an epoch, of which no element but the last has fewer than the first."""
    node = order.node
    while isinstance(node, BatchNode) and goes_over_epochs(node):
        node = node.parent
    elements = epoch_length(node)
    first, last = order.rows_at(node, positions(np.array([0, elements - 1]), node.length)).counts
    return (elements - 1) * int(first) + int(last)


def _most_rows(node: Node) -> int:
    """Rows that an element of a chain has at most, without looking at one."""
    most = max(map(_most_rows, node.parents), default=1)
    return min(node.size, node.parent.length) * most if isinstance(node, BatchNode) else most


def _largest_window(node: Node) -> int:
    """Records that come together out of the same blocks; 1 where there is no block shuffle."""
    shuffles = [below for below in nodes_below(node) if isinstance(below, BlockShuffleNode)]
    return max(
        (most_in_window(below.order.bounds, below.order.window_blocks) for below in shuffles),
        default=1,
    )


def _walked(
    order: RecordOrder,
    node: Node,
    indices: IntArray,
    size: int,
    numbers: Sequence[BlockNumbers] | None,
    population: Population | None,
    watch: Watch | None,
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Sizes, means and different blocks of batches; their records are added to a population."""
    sizes, means, blocks = [], [], []
    step = max(1, _ROWS_AT_ONCE // size)
    for first in range(0, len(indices), step):
        at = positions(indices[first : first + step], node.length)
        rows = order.rows_at(node, at)
        begin = np.cumsum(rows.counts) - rows.counts
        sizes.append(rows.counts)
        means.append(np.add.reduceat(rows.ranks, begin) / rows.counts - order.length / 2)
        found: list[IntArray] = []
        if numbers is not None:
            found = [numbers[taken.leaf].of(taken.records) for taken in rows.taken]
            blocks.append(_different(rows, found))
        if population is not None:
            population.add(rows, found)
        if watch is not None:
            watch(first, rows)
    return np.concatenate(sizes), np.concatenate(means), np.concatenate([np.empty(0), *blocks])


def _different(rows: Rows, blocks: Sequence[IntArray]) -> IntArray:
    """Different blocks in each element."""
    owner = np.repeat(np.arange(len(rows.counts)), rows.counts)
    most = max(int(found.max()) for found in blocks) + 1
    pairs = zip(rows.taken, blocks, strict=True)
    if most > 2**62 // max(1, len(rows.counts)):  # the products would be beyond 64 bits
        joined, numbers = np.unique(np.concatenate(blocks), return_inverse=True)
        ends = np.cumsum([len(found) for found in blocks])
        most = len(joined)
        pairs = zip(rows.taken, np.split(numbers, ends[:-1]), strict=True)
    keys = np.concatenate([owner[taken.rows] * most + found for taken, found in pairs])
    keys.sort()
    first = np.append(True, keys[1:] != keys[:-1])
    return np.bincount(keys[first] // most, minlength=len(rows.counts))


def _unshuffled(node: Node) -> Node:
    """The chain without the shuffles that change nothing about which records an epoch has."""
    match node:
        case _ if isinstance(node, SHUFFLES):
            return _unshuffled(node.parent)
        case SliceNode() if not spans(node):
            return node
        case ValueNode() | SeedNode() | BatchNode() | RepeatNode() | SliceNode():
            return with_parents(node, (_unshuffled(node.parent),))
        case _:
            return node


def spans(node: SliceNode) -> bool:
    """Whether a slice takes elements from all over its parent."""
    return abs(node.step) * (node.length + 1) > node.parent.length


# --- figures with their intervals ----------------------------------------------------------------


def amount(values: FloatArray, runs: IntArray, *, is_exact: bool) -> Amount:
    """The mean of some values, with three standard errors on either side unless it is exact.

    The error follows from the differences between neighbouring runs (Wolter, "Introduction to
    Variance Estimation", on systematic sampling), so that a trend over the epoch does not widen it.
    """
    mean = float(values.mean())
    if is_exact:
        return Amount.exactly(mean)
    if len(runs) < 2:
        runs = np.unique([0, len(values) // 2])
    means = np.add.reduceat(values, runs) / np.diff(np.append(runs, len(values)))
    error = mean  # one run says little
    if len(means) > 1:
        steps = float(np.square(np.diff(means)).sum())
        error = math.sqrt(steps / (2 * len(means) * (len(means) - 1)))
    return Amount(max(0.0, mean - _ERRORS * error), mean + _ERRORS * error)


def over_shuffled(
    squares: FloatArray,
    sizes: IntArray,
    records: float,
    variance: float,
    runs: IntArray,
    *,
    is_exact: bool,
) -> Amount | None:
    """Squared deviations of batches' means over those that are expected of a global shuffle.

    The mean of `b` records that are drawn without replacement from `N` of variance `s` has the
    variance `s / b * (N - b) / (N - 1)` (Cochran, "Sampling Techniques", theorem 2.2). None where
    that is 0: there is nothing that could vary.
    """
    expected = variance / sizes * (records - sizes) / max(1, records - 1)
    if not expected.min() > 0:
        return None
    return amount(squares / expected, runs, is_exact=is_exact)


def blocks_if_shuffled(sizes: FloatArray, many: FloatArray, records: int, batch: int) -> float:
    """Different blocks in a batch of a global shuffle: blocks less those of which none is drawn.

    Of a block of `n` records none is drawn with the probability `C(N - n, b) / C(N, b)`.

    Args:
        sizes: Of blocks, in records; an average need not be whole.
        many: Of how many blocks each is.
        records: In all blocks.
        batch: Records that are drawn.
    """
    left = np.maximum(records - sizes - batch, 0.0)
    if records <= _FEW_RECORDS:
        numbers = np.array([records, records - batch], np.float64)
        whole, rest = _log_factorial(numbers)
        log_none = _log_factorial(records - sizes) - _log_factorial(left) - whole + rest
    else:
        # The same by Stirling's formula, put so that no large numbers are subtracted.
        others = records - sizes
        log_none = (
            (records - batch + 0.5) * math.log1p(-batch / records)
            - (left + 0.5) * np.log1p(-batch / np.maximum(others, batch + 1.0))
            + batch * np.log1p(-np.minimum(sizes / records, 1 - 1e-15))
        )
    is_drawn = np.where(records - sizes < batch, 1.0, -np.expm1(np.minimum(log_none, 0.0)))
    # Of tiny parts the digits are lost in the logarithms; twice in one block is as unlikely.
    part = sizes / records * batch
    is_drawn = np.where(part < 1e-6, part, is_drawn)
    return float((many * is_drawn).sum())


def _log_factorial(n: FloatArray) -> FloatArray:
    """`log(n!)`, by Stirling's series above 16 and by the recurrence up to there."""
    up = np.where(n < 16, n + 16, n) + 1
    series = 1 / (12 * up) - 1 / (360 * up**3) + 1 / (1260 * up**5)
    value = (up - 0.5) * np.log(up) - up + 0.5 * math.log(2 * math.pi) + series
    steps = np.log(np.maximum(n, 0)[:, None] + np.arange(1, 17)).sum(axis=1)
    logs: FloatArray = np.where(n < 16, value - steps, value)
    return logs
