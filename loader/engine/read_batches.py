"""Read batches: elements of a chain with random access, read some at a time, in order.

A read batch is planned from the indices of its elements, which a node gives by `indices_from`: all
integers in turn, or, where a node has indices without elements, those with one.

While one read batch is made, the next ones are read, or planned by the prefetcher. A read batch is
a work item like any other. It is made here, or its records are read here and a worker calls its
functions.

Invariant: elements, and the records that they are made of, do not depend on the sizes of read
    batches.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import functools
import itertools
import logging
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from windrow.engine import execute, record_trace, stages
from windrow.engine.context import RunContext
from windrow.engine.executors import results
from windrow.engine.prefetch import Prefetcher
from windrow.engine.stages import ChainStage, Result, StageTask, WorkItem, done, watch_of_stage
from windrow.engine.thread_map import StageThreads, ThreadMap
from windrow.sources.base import IntArray
from windrow.stats.profiler import PLANNING, doing
from windrow.stats.read_counters import ReadCounters
from windrow.transforms import tables
from windrow.transforms.made_of import MadeOf
from windrow.transforms.nodes import Node, RowShare, ToStreamNode, walk
from windrow.transforms.nodes.dealing import NumbersWithGaps, numbers_of
from windrow.transforms.nodes.following import calls_on_rows
from windrow.transforms.nodes.split import Halves
from windrow.transforms.options import ReadOptions
from windrow.transforms.positions import Positions, positions
from windrow.transforms.row_blocks import BLOCK_ROWS, Block, Blocks
from windrow.transforms.tables import Listed, Table

if TYPE_CHECKING:
    from windrow.engine.bad_rows import BadRow

_log = logging.getLogger("windrow.plan")
Elements: TypeAlias = "range | IntArray"
"""Indices of elements, ascending but where lanes are read together; a `range` takes no room."""

# A consumer waits for a block as a whole, so slow functions get small ones.
GOAL_S = 0.1

# How many times as many elements as the queue a read batch may have, if its reads are planned and no
# function is called: planning costs less for each then.
_LONGER = 8

# Rows of all shards that are planned for one read batch of a shard, unless one batch has more.
_MOST_SHARED = 1 << 12

# The most read batches planned ahead, and the rows of all shards in them where each shard plans all.
MOST_READ_BATCHES = 512
_MOST_SHARED_AHEAD = 1 << 17


class BlockSize:
    """The number of rows to make at once: few at first, then as many as the goals allow."""

    def __init__(self, goal_bytes: int, unit: int, most: int) -> None:
        self._goal_bytes = goal_bytes
        self._most = max(unit, most)
        self._unit = unit
        self._rows = self._given = unit

    def next_rows(self) -> int:
        """Rows of the next block: at most four times the rows of the last block."""
        self._given = self._rows
        return self._given

    def saw(self, rows: int, size_bytes: int, took_s: float, *, too_few: bool = False) -> None:
        """Learn from a block of `rows` rows, of `size_bytes`, that took `took_s` to make.

        If the block had too few rows for its threads, the next block gets twice as many, so that
        slow functions use all threads.
        """
        by_bytes = self._goal_bytes / max(1, size_bytes)
        by_time = max(GOAL_S / max(1e-9, took_s), 2 if too_few else 0)
        # `_given` belongs to the last block begun: several results may come before the next one
        # begins.
        wanted = min(int(rows * min(by_bytes, by_time)), 4 * self._given, self._most)
        self._rows = max(1, wanted // self._unit) * self._unit


def block_size(
    options: ReadOptions, batch_bytes: int, unit: int, *, longer: bool = False
) -> BlockSize:
    """The size of read batches with these options.

    Args:
        options: The options of the stream.
        batch_bytes: Bytes that a read batch should have.
        unit: Elements that are wanted together.
        longer: Whether a read batch costs much, however few elements it has.
    """
    # One read for several batches costs less per record than one for each.
    units = 4 if unit > 1 and options.prefetch_buffer_size else 1
    times = _LONGER if longer else 1
    most = max(options.prefetch_buffer_size * times, units * unit)
    return BlockSize(batch_bytes, unit, most)


def random_access(
    node: ToStreamNode,
    stage: ChainStage,
    position: Sequence[int],
    run: RunContext,
    unit: int | None,
) -> Blocks:
    """The stage on top of a chain with random access, from an element on."""
    # Batched functions get the same rows at any position, so read batches keep to their bounds.
    rows = (unit or BLOCK_ROWS) if calls_on_rows(node.parent) else 1
    order: ElementOrder = _InOrder(node.parent, position[0] - position[0] % rows, rows)
    if node.share is not None:
        order = _InShare(node.parent, position[0], node.share)
    yield from ReadBatches(node, stage, run, order, unit, rows, position[0]).blocks()


class ElementOrder(Protocol):
    """Decides which elements a read batch has."""

    @property
    def is_over(self) -> bool:
        """Whether there are no more."""
        ...

    def take(self, rows: int) -> Elements:
        """The elements of the next read batch, about `rows` of them; none at the end."""
        ...


class _InOrder:
    """All elements of a chain in order, from one on; read batches end at multiples of `bound`."""

    def __init__(self, node: Node, following: int, bound: int) -> None:
        self._node, self._following, self._bound = node, following, bound
        self.is_over = following >= node.length

    def take(self, rows: int) -> Elements:
        node, bound = self._node, self._bound
        found = numbers_of(node).indices_from(self._following, rows)
        self.is_over = len(found) < rows
        if self.is_over:
            return compact(found)
        following = int(found[-1]) + 1
        if following % bound:  # some indices in between have no element
            more = numbers_of(node).indices_from(following, bound)
            following += -following % bound
            found = np.concatenate([found, more[more < following]])
        self._following = following
        self.is_over = following >= node.length
        return compact(found)


class _InShare:
    """The elements of some rows of each batch: see `ToStreamNode.of_shard`."""

    def __init__(self, node: Node, following: int, share: RowShare) -> None:
        self._node, self._following, self._share = node, following, share
        self.is_over = following >= node.length

    def take(self, rows: int) -> Elements:
        size, low, high = self._share
        batches = max(1, min(rows // (high - low), _MOST_SHARED // size))
        found = numbers_of(self._node).indices_from(self._following, batches * size)
        self.is_over = len(found) < batches * size
        if len(found):
            self._following = int(found[-1]) + 1
        place = np.arange(len(found)) % size
        mine = (place >= low) & (place < high)
        rest = len(found) % size
        if 0 < rest <= low:
            mine[len(found) - rest] = True
        return compact(found[mine])


class ReadBatches(Iterator["ReadBatch"]):
    """Started read batches in order; with threads, later ones are read while one is made."""

    def __init__(
        self,
        node: ToStreamNode,
        stage: ChainStage,
        run: RunContext,
        order: ElementOrder,
        unit: int | None,
        rows: int = 1,
        first: int = 0,
        *,
        longer: bool = False,
    ) -> None:
        """Begin read batches.

        Args:
            node: The node that makes a stream of a chain.
            stage: The steps on top of it.
            run: The state that streams share.
            order: Decides which elements are read.
            unit: Rows that the next batch takes, if it takes a fixed number.
            rows: Read batches are split at multiples of this number of elements.
            first: The first element that is wanted; those before it only go through functions.
            longer: Whether a read batch costs much, however few elements it has.
        """
        self._run, self._order, self._executor = run, order, run.executor_of(stage)
        self._options = node.read_options
        self._prefetcher = run.prefetcher(node)
        calls = any(each.functions for each in (*walk(node), *stage.steps))
        self._size = block_size(
            self._options,
            self._executor.bounded(run.budget_of(node).batch_bytes),
            unit or rows,
            longer=longer or (self._prefetcher is not None and not calls),
        )
        self._most_planned = MOST_READ_BATCHES
        if node.share is not None:
            rows_of_all = max(node.share.size, _MOST_SHARED)
            self._most_planned = max(2, min(MOST_READ_BATCHES, _MOST_SHARED_AHEAD // rows_of_all))
        # The queue counts elements, if no batch above puts them together.
        self._most_rows = self._options.prefetch_buffer_size if unit is None else sys.maxsize
        self._chain = _Chain(node, stage, *self._executor.part_of(stage), rows, first)
        self._waiting: collections.deque[ReadBatch] = collections.deque()
        self._chain_number = run.chain_numbers[id(node.parent)]
        self._made = 0
        self._last_window = -1  # of a plan from lengths
        self._read_batch_bytes = self._rest_bytes = 0  # of the last one; of its rows to come
        dropping = () if node.allow_nones else walk(node.parent)
        self._watch = run.drop_watch((*dropping, *stage.steps))
        run.maker.watch(self)

    def blocks(self) -> Blocks:
        """The rows of the stage."""
        watch = watch_of_stage(self._chain.stage) if self._run.has_values else None
        for result in self._results():
            if watch is not None:
                watch.saw(result.rows, len(result.block) > 0)
            yield from self._in_steps(result.block)

    def whole_blocks(self) -> Iterator[tuple[Block, int]]:
        """The rows of the stage, each read batch as one block, with the number of its elements."""
        for result in self._results():
            self._rest_bytes = 0
            yield result.block, result.rows

    def _results(self) -> Iterator[Result]:
        begins_at = -1
        count = self._run.counting_bad(self._chain_number)
        for work, found in self._executor.in_order(self):
            begins_at = int(work.elements[0]) if begins_at < 0 else begins_at
            for result in results(self._executor, work, found, count):
                self._learn(result)
                made_of = MadeOf.of_elements(self._chain_number, result.block.marks[:, 0] - 1)
                known = dataclasses.replace(result.block, made_of=made_of)
                yield dataclasses.replace(result, block=known)
                if self._watch is not None:
                    self._watch.saw(result.rows, len(known))
        if self._watch is not None and begins_at == 0:
            self._watch.ended()

    def __next__(self) -> ReadBatch:
        # A filter may drop everything forever, so the loop checks here whether the run was stopped.
        if self._run.stopped.is_set():
            raise StopIteration
        with doing(PLANNING):
            return self._next_read_batch()

    def _next_read_batch(self) -> ReadBatch:
        self._plan()
        if not self._waiting:
            raise StopIteration
        prefetcher = self._prefetcher
        if prefetcher:
            if self._order.is_over:
                prefetcher.end()
            prefetcher.start(self._made)
        for soon in itertools.islice(self._waiting, 2 if self._options.ahead else 1):
            soon.reader.begin()
        self._made += 1
        return self._waiting.popleft()

    def _plan(self) -> None:
        prefetcher, waiting = self._prefetcher, self._waiting
        while not self._order.is_over and (
            len(waiting)
            < min(self._most_planned, _planned_read_batches(self._options, prefetcher, self._made))
        ):
            elements = self._order.take(self._size.next_rows())
            if not len(elements):
                return
            self._count(elements)
            number = self._made + len(waiting)
            reader = self._run.reader(self._options, prefetcher, number)
            waiting.append(ReadBatch(self._chain, elements, reader))
            if _log.isEnabledFor(logging.DEBUG):
                from windrow.core.debug_log import debug

                text = "read batch %d is planned: %d elements; %d read batches wait"
                debug(_log, text, number, len(elements), len(waiting))

    def _count(self, elements: Elements) -> None:
        """Count the windows that a plan from lengths begins with these elements."""
        parent = self._chain.node.parent
        if not isinstance(parent, NumbersWithGaps):
            return
        for window, counts in parent.planned_counts(as_array(elements)).items():
            if window > self._last_window:
                self._last_window = window
                self._run.packed(counts)

    def _learn(self, result: Result) -> None:
        size_bytes = max(result.bytes_read, tables.nbytes(result.block.table))
        self._read_batch_bytes = self._rest_bytes = size_bytes
        self._run.heard(result, self._chain.halves)
        if self._prefetcher is not None and self._run.has_values:
            self._run.maker.weigh(always=True)  # such read batches are few, and long
        too_few = self._executor.wants_more_rows()
        self._size.saw(result.rows, size_bytes, result.took_s, too_few=too_few)

    def bytes_by(self) -> Mapping[str, int]:
        """Bytes of the read batches that are made or begun, and of planned reads."""
        begun = self._waiting[0].reader.expected_bytes() if self._waiting else 0
        planned = {} if self._prefetcher is None else self._prefetcher.bytes_by()
        return {**planned, "rounds": self._rest_bytes + begun}

    def _in_steps(self, block: Block) -> Blocks:
        """Yield a block's rows, at most half as many at a time as the queue has room for."""
        rows, most = len(block), self._most_rows
        steps = min(rows, math.ceil(2 * rows / most)) if rows > most > 0 else 1
        for number in range(steps):
            start, stop = (rows * n // steps for n in (number, number + 1))
            self._rest_bytes = self._read_batch_bytes * (rows - stop) // max(1, rows)
            if rows:
                yield block if steps == 1 else block.sliced(start, stop)


def _planned_read_batches(options: ReadOptions, prefetcher: Prefetcher | None, made: int) -> int:
    """The number of read batches to plan. It grows little by little, so the first come soon."""
    if not options.ahead:
        return 1
    if not prefetcher or not prefetcher.wants_more:
        return 2
    # Little by little, since planning many at once delays the next batch.
    return min(MOST_READ_BATCHES, 1 + prefetcher.batches_per_plan * (1 + made))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Chain:
    """State shared by all read batches of a stream.

    Args:
        node: The node that makes a stream of a chain.
        stage: The steps on top of it.
        number: The stage's number for the workers.
        halves: The chain in two, where workers make the upper half.
        rows: Read batches are split at multiples of this number of elements.
        first: The first element that is wanted.
    """

    node: ToStreamNode
    stage: ChainStage
    number: int
    halves: Halves | None
    rows: int
    first: int


@dataclasses.dataclass(frozen=True, slots=True)
class ReadBatchTask(StageTask):
    """Elements of a chain, from the tables that its lower half made; those before `first` go.

    `bad` are the rows that `on_bad` nodes left out or replaced when these tables were made.
    """

    stage: int
    elements: Elements
    rows: int
    first: int
    allow_nones: bool
    given: tuple[Any, ...]
    bad: tuple[BadRow, ...]

    def result(self, stage: Sequence[Node], upper: Node | None, threads: StageThreads) -> Result:
        if upper is None:
            raise TypeError(f"stage {self.stage} has no chain of its own")
        began = time.perf_counter()
        at, cuts = _asked(upper.length, self.elements, self.rows)
        # Before a node that takes bad rows, a table comes with these.
        given_bytes = sum(tables.nbytes(getattr(each, "table", each)) for each in self.given)
        read_counters = ReadCounters(upper)
        handed = execute.UpperReader(self.given, threads, read_counters)
        table = execute.start(upper, at, cuts, handed)()
        found = _result(self, table, stage, threads.thread_map, began)
        bytes_read = given_bytes + handed.reader.bytes_read
        return dataclasses.replace(
            found,
            bytes_read=bytes_read,
            arrived=read_counters.arrivals(),
            bad=(*found.bad, *handed.noted),
        )


def compact(indices: IntArray) -> Elements:
    """The same ascending indices, as a `range` if they are consecutive."""
    count = len(indices)
    if count and indices[-1] - indices[0] + 1 == count:
        return range(int(indices[0]), int(indices[-1]) + 1)
    return indices


def as_array(elements: Elements) -> IntArray:
    """The indices of elements, int64."""
    if isinstance(elements, range):
        return np.arange(elements.start, elements.stop)
    return elements


def _asked(length: int, elements: Elements, rows: int) -> tuple[Positions, list[int]]:
    """The positions of elements, and the bounds of the rows of batched functions in them."""
    count, cuts = len(elements), [0]
    if rows > 1 and isinstance(elements, range):
        cuts = [*range(0, count, rows)]
    elif rows > 1:
        cuts = [0, *(np.flatnonzero(np.diff(as_array(elements) // rows)) + 1).tolist()]
    return positions(as_array(elements), length), [*cuts, count]


def _result(
    task: ReadBatchTask,
    table: Table,
    steps: Sequence[Node],
    thread_map: ThreadMap | None,
    began: float,
) -> Result:
    block = _as_block(table, task.elements, allow_nones=task.allow_nones)
    if task.first > task.elements[0]:
        block = block.sliced(int(np.sum(block.marks[:, 0] <= task.first)), len(block))
    block, error, bad = done(block, steps, seen=0, skip=0, thread_map=thread_map)
    took_s = time.perf_counter() - began
    return Result(block, error, len(task.elements), took_s, bad=(*task.bad, *bad))


class ReadBatch(WorkItem):
    """Elements of a chain, being read."""

    def __init__(self, chain: _Chain, elements: Elements, reader: execute.Reader) -> None:
        self._chain, self.elements = chain, elements
        self.reader = reader
        self._lower: list[execute.Finish] = []
        self._finish = self._started()

    def _started(self) -> execute.Finish:
        chain, halves = self._chain, self._chain.halves
        node = chain.node.parent if halves is None else halves.upper
        at, cuts = _asked(node.length, self.elements, chain.rows)
        leaves = (
            self.reader if halves is None else execute.LowerReader(self.reader, halves, self._lower)
        )
        try:
            return execute.start(node, at, cuts, leaves)
        except Exception as error:  # an error of a selection map has its place in the order, too
            self._leave_plan()
            return functools.partial(_raised, error)

    def _leave_plan(self) -> bool:
        planned = self.reader.prefetcher is not None
        if self.reader.prefetcher is not None:
            self.reader.prefetcher.drop(self.reader.read_batch)
            self.reader.prefetcher = None
        return planned

    def _task(self, given: tuple[Any, ...]) -> ReadBatchTask:
        chain, noted = self._chain, tuple(self.reader.noted)
        allow_nones = chain.node.allow_nones
        return ReadBatchTask(
            chain.number, self.elements, chain.rows, chain.first, allow_nones, given, noted
        )

    @property
    def stage(self) -> ChainStage:
        """The stage that it is a part of."""
        return self._chain.stage

    def result(self, thread_map: ThreadMap | None) -> Result:
        began = time.perf_counter()
        self.reader.noted.clear()  # of a try that failed
        table = self._finish()
        found = _result(self._task(()), table, self._chain.stage.steps, thread_map, began)
        # Slow functions make a read batch small; a slow network does not.
        took_s = found.took_s - self.reader.waited_s
        return dataclasses.replace(found, bytes_read=self.reader.bytes_read, took_s=took_s)

    def request(self) -> StageTask:
        self.reader.noted.clear()
        return self._task(tuple(finish() for finish in self._lower))

    @property
    def is_whole(self) -> bool:
        return len(self.elements) < 2

    def halves(self, error: Exception) -> Sequence[WorkItem]:
        elements, rows = self.elements, self._chain.rows
        if self._leave_plan():
            # Read by itself, since the planned read that failed may serve other read batches.
            return (ReadBatch(self._chain, elements, self.reader),)
        if self.is_whole:
            return ()
        middle = len(elements) // 2
        is_group = elements[0] // rows == elements[-1] // rows
        if is_group and stages.is_of_group(error):
            return ()  # fewer rows at a time would hide that the function does not fit its rows
        if not is_group and rows > 1:
            bound = int(elements[middle]) // rows * rows
            bound = bound if bound > elements[0] else bound + rows
            middle = bisect.bisect_left(elements, bound)
        return [
            ReadBatch(self._chain, e, self.reader) for e in (elements[:middle], elements[middle:])
        ]

    def where(self) -> str:
        first, last = self.elements[0], self.elements[-1]
        shown = f"element{'' if first == last else f's {first} to'} {last}"
        records = record_trace.records_of(self._chain.node.parent, self.elements)
        return f"{shown}, made of {records}" if records else shown

    def records_of(self, number: int, elements: Sequence[int]) -> str:
        halves = self._chain.halves
        if number == record_trace.OWN_CHAIN or halves is None:
            return record_trace.records_of(self._chain.node.parent, elements)
        return record_trace.records_of(halves.lower[number], elements)


def _raised(error: Exception) -> Table:
    raise error


def _as_block(table: Table, elements: Elements, *, allow_nones: bool) -> Block:
    # Not arange(start + 1, stop + 1): that is not an int64 at the end of an endless dataset.
    marks = (as_array(elements) + 1).reshape(-1, 1)
    if allow_nones:
        return Block(Listed(tables.elements(table)), marks)
    dense, kept = tables.without_absent(table)
    return Block(dense, marks if kept is None else marks[kept])
