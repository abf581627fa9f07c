"""A dry run plans, prefetches and queues a stream as an iterator does, and reads nothing.

A dry run has the same planner, prefetcher, stream nodes and queue as every iterator. Only the work
is replaced: reads fill no memory and end at once or when they are waited for, functions are not
called, and blocks have rows and bytes but no data. The clock advances only by the time that a setting
gives to reads and functions. The loop is slow, so that the queue is full. The counters of
`DatasetIterator.stats` count reads and bytes.

Invariant: no record is read, no thread is started, and no function of the user's is called but
selection maps.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.engine import streams as stream
from windrow.engine.budgets import CacheRoom
from windrow.engine.chunk_cache import ChunkCache
from windrow.engine.chunk_prefetch import ChunkPrefetcher
from windrow.engine.context import RunContext
from windrow.engine.executors import Executors, StageExecutor
from windrow.engine.prefetch import Prefetcher
from windrow.engine.prefetch_thread import BlockQueue
from windrow.engine.process_executor import ProcessExecutor
from windrow.engine.read_batches import ReadBatch, as_array
from windrow.engine.stages import BlockItem, ChainStage, Result, WorkItem
from windrow.errors import ElementError, PlanError
from windrow.explain.null_executor import (
    DONE,
    PENDING,
    NullCache,
    NullExecutor,
    NullPool,
    NullReader,
    NullWorkers,
)
from windrow.sources.chunks import LaidOutSource, Part
from windrow.stats.costs import Amount
from windrow.stats.profiler import Profiler
from windrow.transforms.columns import SizedColumn
from windrow.transforms.nodes import (
    STREAM,
    BatchNode,
    Node,
    ToStreamNode,
    as_chain,
    chains_of,
    may_be_absent,
    origin,
)
from windrow.transforms.nodes.dealing import dealing_of
from windrow.transforms.options import ReadOptions
from windrow.transforms.order_costs import ORDER, POSITION_S
from windrow.transforms.positions import Positions
from windrow.transforms.record_sizes import MADE, record_bytes
from windrow.transforms.row_blocks import Block
from windrow.transforms.tables import Columnar, nbytes

IntArray = npt.NDArray[np.int64]
Pace: TypeAlias = Literal["quick", "uneven", "slow storage", "slow functions"]

# Seconds that a usual machine takes to plan a read batch, each of its records, and each chunk that
# it wants, without the order. They decide where a long run is cut, on every machine alike.
_BATCH_S: Final = 300e-6
_RECORD_S: Final = 0.24e-6
_CHUNK_S: Final = 4e-6
# Where a run is cut.
MOST_S: Final = 0.4
# Slow storage: bytes decoded in a second, seconds for each read, and seconds of each read batch in
# which others have the cores.
_SLOW_BYTES_PER_S: Final = 100e6
_SLOW_READ_S: Final = 0.0005
_STOPPED_S: Final = 0.025
# The least advance of the clock while reads are waited for, and the duration of slow functions.
_TICK_S: Final = 1.1e-3
_LONG_S: Final = 1e6
# The shares of read batches that other work delays, in runs with even and with odd seeds, and by how
# many seconds.
_STOPPED_SHARES: Final = (0.3, 1.0)
_STOPS_S: Final = (0.001, 0.1)
# The most records of an element that are computed.
MOST_RECORDS: Final = 1 << 17


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """The speed of reads and functions, and assumptions where a chain leaves something open.

    Args:
        pace: Read batches are as long as their bytes allow where functions and storage are 'quick';
            as long as 0.1 s allow of 'slow storage'; now longer and now shorter where the machine
            does other work as well, 'uneven'; and as short as can be with 'slow functions'.
        waits: Whether reads and workers end only when the run waits for them; otherwise they end at
            once.
        keeps: Whether filters keep all elements; otherwise they keep none.
        is_large: Whether elements have the most bytes that they may have; otherwise they have the
            fewest.
        seed: Chooses how many read batches are stopped, and for how long, where they are 'uneven'.
    """

    pace: Pace = "quick"
    waits: bool = False
    keeps: bool = True
    is_large: bool = False
    seed: int = 0


class _Enough(BaseException):
    """Ends a run at its limit; no `except Exception` of the engine catches it."""


class DryRun(RunContext):
    """State that the streams of a dry run share, and its results."""

    def __init__(
        self,
        node: Node,
        setting: Setting,
        most_s: float = MOST_S,
        at_half: Callable[[DryRun], None] = lambda run: None,
    ) -> None:
        """Begin a run: see `dry_run`."""
        self.setting, self._most_s = setting, most_s
        self.may_end_early = may_end_early(node)
        chains = sum(each.order_cost().each for each in chains_of(node))
        # An order of an epoch, however short the epoch is.
        epochs = sum(
            ORDER / each.length for each in node.walk() if each.shuffles and each.length > 0
        )
        self._record_s = _RECORD_S + (chains + epochs) * POSITION_S
        self._row_s = (node.order_cost().each - chains) * POSITION_S
        self.streams: dict[int, tuple[ToStreamNode, int]] = {}
        _totals(node, 1, self.streams)
        self.now_s = 0.0
        self.meter = Profiler(node, lambda: self.now_s)
        self.aheads: list[tuple[ToStreamNode, Prefetcher]] = []
        self.made: dict[int, int] = {}  # elements of each stream, in all passes over it
        self._at_half, self._is_half = at_half, False
        self.delivered = 0  # elements of the stream that the loop got
        self.is_whole = True  # whether it came to its end
        self.was_full = False  # whether the queue was full once
        self.varies = False  # whether a read batch was longer than the first one
        self._shortest = 0
        self._spent_s = self._took_s = 0.0
        self._random = random.Random(setting.seed)
        self._stopped_share = _STOPPED_SHARES[setting.seed % 2]
        self._null_executors: dict[int, NullExecutor] = {}
        # The chunks of parts that were planned, and those that finished read batches used.
        self.wanted: dict[int, set[int]] = collections.defaultdict(set)
        self.used: dict[int, set[int]] = collections.defaultdict(set)
        self.longest_s = 0.0  # that a read batch takes of slow storage
        self._bytes: dict[int, float] = {}
        executors = Executors(node, NullWorkers)
        super().__init__(node, executors, self.meter, lambda: self.now_s)

    # --- in place of what a run gives ---

    has_values = False

    def executor_of(self, stage: ChainStage) -> StageExecutor:
        executor = self._executors.of(stage, self._here)
        found = self._null_executors.get(id(executor))
        if found is None:
            workers: Any = executor.workers if isinstance(executor, ProcessExecutor) else None
            found = self._null_executors[id(executor)] = NullExecutor(self, executor, workers)
        return found

    def reader(
        self, options: ReadOptions, prefetcher: Prefetcher | None, number: int
    ) -> NullReader:
        return NullReader(
            NullPool(),
            options.num_threads,
            prefetcher=prefetcher,
            read_batch=number,
            read_counters=self._read_counters,
            run=self,
        )

    def prefetcher(self, node: ToStreamNode) -> Prefetcher | None:
        found = super().prefetcher(node)
        if found is not None:
            self.aheads.append((node, found))
        return found

    def new_cache(self, room: CacheRoom) -> ChunkCache:
        return NullCache(room, self)

    def prefetched(self, source: Any, part: Part) -> list[tuple[ChunkPrefetcher, Prefetcher]]:
        """The prefetchers of a part, each with the prefetcher of its stream."""
        found = ((whole.of(source, part), whole) for _, whole in self.aheads)
        return [(own, whole) for own, whole in found if own is not None]

    # --- what happens ---

    @property
    def waits(self) -> bool:
        return self.setting.waits

    def asked(self, records: int) -> None:
        self.spend(self._record_s * records)

    def planned(self, part: Part, chunks: Sequence[int]) -> None:
        self.spend(_CHUNK_S * len(chunks))
        self.wanted[id(part)].update(chunks)

    @property
    def spent_s(self) -> float:
        """Seconds of planning so far, on a usual machine."""
        return self._spent_s

    def spend(self, seconds: float) -> None:
        """Add seconds of planning; end the run if the sum is above its limit."""
        self._spent_s += seconds
        if self._spent_s > self._most_s:
            raise _Enough

    def started(self, part: Part, chunks: IntArray) -> Future[Any]:
        self._took_s += float(part.memory_bytes(chunks).sum()) / _SLOW_BYTES_PER_S
        return PENDING if self.setting.waits else DONE

    def arrived(self, source: Any, parts: Sequence[Part], records: IntArray) -> None:
        laid_out = source.parts if isinstance(source, LaidOutSource) else ()
        for part in laid_out if self.may_end_early else ():
            self.used[id(part)].update(np.unique(part.needs(records).chunks).tolist())
        for part in parts:
            if self.setting.pace == "slow storage" and not part.alone:
                chunks = np.unique(part.needs(records).chunks)
                decoded_bytes = float(part.memory_bytes(chunks).sum())
                self._took_s += _SLOW_READ_S * len(chunks) + decoded_bytes / _SLOW_BYTES_PER_S

    def result(self, work: WorkItem) -> Result:
        self.spend(_BATCH_S)
        if not self._is_half and self._spent_s > self._most_s / 2:
            self._is_half = True
            self._at_half(self)
        if isinstance(work, ReadBatch):
            block, bytes_read = self._made(work)
            rows = len(work.elements)
        elif isinstance(work, BlockItem):
            block, bytes_read = self._mapped(work), 0
            rows = len(work.task.block)
        else:
            raise TypeError(f"a dry run knows no {type(work).__name__}")
        took_s = self._round_s(bytes_read)
        self.now_s += max(took_s, _TICK_S)
        return Result(block, None, rows, took_s, bytes_read)

    def _round_s(self, bytes_read: int) -> float:
        took_s, self._took_s = max(self._took_s, bytes_read / _SLOW_BYTES_PER_S), 0.0
        self.longest_s = max(self.longest_s, took_s)
        match self.setting.pace:
            case "quick":
                return 0.0
            case "slow storage":
                return took_s if self.aheads else _STOPPED_S + took_s
            case "uneven":
                return self._stop_s()
            case _:
                return _LONG_S

    def _stop_s(self) -> float:
        if self._random.random() >= self._stopped_share:
            return 0.0
        return math.exp(self._random.uniform(*map(math.log, _STOPS_S)))

    def _made(self, work: ReadBatch) -> tuple[Block, int]:
        reader, stage, elements = work.reader, work.stage, work.elements
        if not isinstance(reader, NullReader) or stage.chain is None:
            raise TypeError("a dry run makes its own read batches of streams")
        for finish in reader.finishes:
            finish()
        node, rows = stage.chain, len(elements)
        self.spend(self._row_s * rows)
        if not node.sources():  # otherwise it was counted when it was planned
            self.spend(self._record_s * rows * min(node.parent.most_records(), MOST_RECORDS))
        self.made[id(node)] = self.made.get(id(node), 0) + rows
        self._shortest = self._shortest or rows
        self.varies = self.varies or rows > self._shortest
        drops = not stage.keeps_rows
        drops = drops or (may_be_absent(node.parent) and not node.allow_nones)
        kept = 0 if drops and not self.setting.keeps else rows
        marks = as_array(elements)[:kept, None] + 1
        return self._block(stage.top, marks), reader.bytes_read

    def _mapped(self, work: BlockItem) -> Block:
        task, steps = work.task, work.stage.steps
        marks = task.block.marks[task.skip :]
        for number, step in enumerate(steps):
            size = step.group_size
            if size is not None:
                ends = np.arange(size, len(marks) + size, size)
                marks = marks[np.minimum(ends, len(marks)) - 1]
            elif step.drops:
                marks = marks if self.setting.keeps else marks[:0]
            elif number == 0 and work.stage.counts:
                marks = np.column_stack([marks, np.arange(len(marks)) + task.seen + 1])
        return self._block(work.stage.top, marks)

    def _block(self, node: Node, marks: IntArray) -> Block:
        rows = len(marks)
        return Block(Columnar(SizedColumn(rows, self.bytes_of(node)), rows), marks)

    # --- bytes ---

    def bytes_of(self, node: Node) -> float:
        """Bytes of an element of a node."""
        found = self._bytes.get(id(node))
        if found is None:
            size = node.element_bytes()
            if size is None:
                found = MADE * self._read_bytes(node) if self.setting.is_large else 0.0
            else:
                found = size.high if self.setting.is_large else size.low
            self._bytes[id(node)] = found
        return found

    def _read_bytes(self, node: Node) -> float:
        """Bytes of the records that an element of a node is made of."""
        return node.most_records() * max(map(self.record_bytes, node.sources()), default=8.0)

    def record_bytes(self, source: Any) -> float:
        found = self._bytes.get(id(source))
        if found is None:
            size = record_bytes(source)
            if size is None:
                size = Amount.exactly(64)
            found = self._bytes[id(source)] = size.high if self.setting.is_large else size.low
        return found


class _SlowLoop(BlockQueue):
    """The queue of a loop that takes a block when there is no room for another one."""

    def __init__(self, run: DryRun) -> None:
        super().__init__(run)
        self._meter = run.meter
        self.was_full = False

    def _wait_for_room(self, rows: int, size_bytes: int) -> None:
        self.was_full = True
        while not self._ready.has_room(rows, size_bytes):
            self.take()

    def take(self) -> None:
        """The loop takes a block."""
        block, size_bytes, made = self.get()
        self._meter.took(len(block), size_bytes, made)


def dry_run(
    node: Node, setting: Setting, most_s: float, at_half: Callable[[DryRun], None]
) -> DryRun:
    """Run a stream to its end, or up to a limit of planning.

    Args:
        node: The stream.
        setting: The speeds and assumptions of the run.
        most_s: The limit: seconds that planning may take on a usual machine.
        at_half: Called when half of the limit was used.
    """
    run = DryRun(node, setting, most_s, at_half)
    loop = _SlowLoop(run)
    blocks = stream.blocks(node, origin(node), run, None)
    run.maker.watch(loop)
    # Rows that are kept and given again, or taken out of batches one by one, take no planning.
    is_unplanned = any(hasattr(each, "takes_no_planning") for each in node.walk())
    try:
        for block in blocks:
            run.delivered += len(block)
            if is_unplanned:
                run.spend(_BATCH_S)
            if run.ahead:
                loop.put(block)
            else:
                run.meter.took(len(block), nbytes(block.table), None)
                run.maker.weigh(always=True)
    except _Enough:
        run.is_whole = False
    # Streams of one chain may differ in length; a lane may have no row, if filters keep nothing.
    except (ElementError, PlanError):
        pass
    finally:
        blocks.close()
        run.end_threads()
    run.was_full = loop.was_full or not run.ahead
    return run


# --- chains --------------------------------------------------------------------------------------


def _totals(
    node: Node,
    times: int,
    found: dict[int, tuple[ToStreamNode, int]],
    lanes: tuple[Sequence[int], int] | None = None,
) -> None:
    """The number of elements of each stream of a chain, in all passes over it."""
    chain, lanes = as_chain(node), node.run_lanes or lanes
    if chain is not None:
        before, count = found.get(id(chain), (chain, 0))[1], chain.parent.index_count
        if lanes is not None:
            count = sum(dealing_of(chain.parent).lane_elements(lane, lanes[1]) for lane in lanes[0])
        found[id(chain)] = chain, before + times * count
        return
    for parent in node.parents:
        _totals(parent, times * (node.passes or 1), found, lanes)


def may_end_early(node: Node) -> bool:
    """Whether a stream may end before one that it is made of."""
    return any(each.length == STREAM and each.may_end_early for each in node.walk())


def streams_of(node: Node) -> list[ToStreamNode]:
    """The streams that a stream is made of, each once."""
    return list({id(each): each for each in chains_of(node)}.values())


def rooms_of(node: Node, stream: ToStreamNode) -> list[CacheRoom]:
    """The budgets of one of the streams of a chain."""
    found = DryRun(node, Setting()).prefetcher(stream)
    return [] if found is None else [ahead.room for ahead in found.parts]


@dataclasses.dataclass(frozen=True, eq=False)
class PartOfBatch(BatchNode):
    """Batches that make only their first rows."""

    share: float = 1.0

    def to_rows(self, at: Positions) -> tuple[Positions, IntArray]:
        """As of all of them, and no more than the share of each batch."""
        size = min(self.size, self.parent.length)
        starts = at.offsets * size
        counts = np.minimum(math.ceil(size * self.share), self.parent.length - starts)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        if bounds[-1] > 4 * MOST_RECORDS:
            raise _Enough
        inside = np.arange(bounds[-1]) - np.repeat(bounds[:-1], counts)
        rows = Positions(np.repeat(at.epochs, counts), np.repeat(starts, counts) + inside)
        return rows, bounds
