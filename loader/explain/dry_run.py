"""A dry run plans and prefetches a stream as an iterator does, and reads nothing.

A dry run has the same planner, prefetchers and stream nodes as every iterator. Only the work is
replaced: reads fill no memory and end at once, functions are not called, filters keep everything, and
blocks have rows and bytes but no data. The clock stands still, so read batches are as long as their
bytes allow. The counters of `DatasetIterator.stats` count the reads and bytes.

Invariant: no record is read, no thread or process is started, and no function of the user's is
called but selection maps.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final, NamedTuple

import numpy as np

from windrow.engine import streams as stream
from windrow.engine.budgets import PartRoom
from windrow.engine.chunk_cache import ChunkCache, ChunkPlace, WantedChunks, WantedRecords
from windrow.engine.chunk_prefetch import ChunkPrefetcher
from windrow.engine.context import RunContext
from windrow.engine.execute import Finish, Reader
from windrow.engine.executors import Executors, Found, StageExecutor, W
from windrow.engine.prefetch import Prefetcher, cache_of
from windrow.engine.read_batches import ReadBatch, as_array
from windrow.engine.stages import BlockItem, ChainStage, Result, WorkItem
from windrow.errors import ElementError, PlanError
from windrow.sources.base import IntArray
from windrow.sources.chunks import LaidOutSource, Part
from windrow.sources.part_sizes import ragged_bytes
from windrow.sources.ragged_column import PiecePlaces
from windrow.stats.profiler import Profiler
from windrow.transforms.columns import SizedColumn
from windrow.transforms.nodes import (
    ENDLESS,
    STREAM,
    Node,
    ToStreamNode,
    as_chain,
    chains_of,
    origin,
    sources_of,
    walk,
)
from windrow.transforms.nodes.dealing import dealing_of
from windrow.transforms.nodes.following import JoinsLanes, group_size, over
from windrow.transforms.nodes.metadata import element_bytes
from windrow.transforms.nodes.reading import ORDER, POSITION_S, most_records, order_cost
from windrow.transforms.nodes.regroup import BatchNode
from windrow.transforms.nodes.split import Halves
from windrow.transforms.nodes.streams import passes
from windrow.transforms.options import ReadOptions
from windrow.transforms.record_sizes import MADE, record_bytes
from windrow.transforms.row_blocks import Block
from windrow.transforms.tables import Columnar, Table, nbytes

# Seconds that a usual machine takes to plan a read batch, each of its records, and each chunk that
# it wants, without the order. They decide where a long run is cut, on every machine alike.
_BATCH_S: Final = 300e-6
_RECORD_S: Final = 0.24e-6
_CHUNK_S: Final = 4e-6
MOST_S: Final = 0.4
"""Where a run is cut."""

# An element of more records than this is not planned.
_MOST_RECORDS: Final = 1 << 17
# Two uses of a chunk that lie in this many of the shortest read batches are always planned together.
_SURE_BATCHES: Final = 64


class _Enough(BaseException):
    """Ends a run at its limit; no `except Exception` of the engine catches it."""


class PlannedPart(NamedTuple):
    """A part of a source that one pass over a stream reads through a prefetcher."""

    stream: ToStreamNode
    whole: Prefetcher
    ahead: ChunkPrefetcher
    uses: ChunkUses

    @property
    def is_once(self) -> bool:
        """Whether every run reads each chunk once, however short its read batches are."""
        if self.ahead.entered > len(self.uses.last):
            return False
        return self.is_kept or self.uses.lie_close(self.whole.batches_per_plan)

    @property
    def is_kept(self) -> bool:
        """Whether all chunks stay in memory from the start."""
        return self.ahead.room.keeps


class DryRun(RunContext):
    """State that the streams of a dry run share, and its results.

    Attributes:
        streams: The streams with the number of elements of each in all passes over it, by `id`.
        made: Elements of each stream that were made.
        open: How many passes over each stream were not followed to their end.
        delivered: Elements that the loop got.
        largest: The most bytes of a read batch of each stream.
        largest_block: The most bytes of a block that the loop got.
        parts: The parts that were read through a prefetcher.
        is_whole: Whether the run came to its end.
        varies: Whether a read batch was longer than the first one.
    """

    has_values = False

    def __init__(self, node: Node, most_s: float) -> None:
        """Begin a run: see `dry_run`."""
        self._most_s, self._spent_s = most_s, 0.0
        # An order of an epoch, however short the epoch is.
        epochs = sum(
            ORDER / each.length for each in walk(node) if each.shuffles and each.length > 0
        )
        self._record_s = _RECORD_S + (order_cost(node).each + epochs) * POSITION_S
        self.streams: dict[int, tuple[ToStreamNode, int]] = {}
        _totals(node, 1, self.streams)
        self.made: dict[int, int] = {}
        self.open = collections.Counter[int]()
        self.delivered = 0
        self.largest: dict[int, int] = {}
        self.largest_block = 0
        self.parts: list[PlannedPart] = []
        self.is_whole, self.varies = True, False
        self._shortest = 0
        self._caches: list[NullCache] = []
        self._bytes: dict[int, float] = {}
        self.meter = Profiler(node, lambda: 0.0)
        super().__init__(node, Executors(node, NullWorkers), self.meter, lambda: 0.0)

    # --- in place of what a run gives ---

    def executor_of(self, stage: ChainStage) -> StageExecutor:
        return NullExecutor(self, self._executors.of(stage, self._here), stage)

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
        self._caches = []
        found = super().prefetcher(node)
        if found is not None:
            self.parts += (
                PlannedPart(node, found, ahead, cache.uses)
                for ahead, cache in zip(found.parts, self._caches, strict=True)
            )
        return found

    def new_cache(self, room: PartRoom) -> ChunkCache:
        self._caches.append(NullCache(room, self))
        return self._caches[-1]

    # --- what happens ---

    def asked(self, records: int) -> None:
        """Count planned records of a source."""
        self.spend(self._record_s * records)

    def planned(self, chunks: int) -> None:
        """Count chunks that a read batch wants."""
        self.spend(_CHUNK_S * chunks)

    def spend(self, seconds: float) -> None:
        """Add seconds of planning; end the run if the sum is above its limit."""
        self._spent_s += seconds
        if self._spent_s > self._most_s:
            raise _Enough

    def result(self, work: WorkItem) -> Result:
        """The result of some work, without its values."""
        self.spend(_BATCH_S)
        if isinstance(work, ReadBatch):
            return self._made(work)
        if isinstance(work, BlockItem):
            return Result(self._mapped(work), None, len(work.task.block), 0.0)
        raise TypeError(f"a dry run knows no {type(work).__name__}")

    def _made(self, work: ReadBatch) -> Result:
        reader, stage, rows = work.reader, work.stage, len(work.elements)
        if not isinstance(reader, NullReader) or stage.chain is None:
            raise TypeError("a dry run makes its own read batches of streams")
        expected_bytes = reader.expected_bytes()
        for finish in reader.finishes:
            finish()
        node = stage.chain
        if not sources_of(node):  # otherwise it was counted when it was planned
            self.spend(self._record_s * rows * most_records(node.parent))
        self.made[id(node)] = self.made.get(id(node), 0) + rows
        self._shortest = self._shortest or rows
        self.varies = self.varies or rows > self._shortest
        block = self._block(stage.top, as_array(work.elements)[:, None] + 1)
        size_bytes = max(reader.bytes_read, expected_bytes, nbytes(block.table))
        self.largest[id(node)] = max(self.largest.get(id(node), 0), size_bytes)
        return Result(block, None, rows, 0.0, reader.bytes_read)

    def _mapped(self, work: BlockItem) -> Block:
        task = work.task
        marks = task.block.marks[task.skip :]
        for number, step in enumerate(work.stage.steps):
            size = group_size(step)
            if size is not None:
                ends = np.arange(size, len(marks) + size, size)
                marks = marks[np.minimum(ends, len(marks)) - 1]
            elif number == 0 and work.stage.counts and not step.drops:
                marks = np.column_stack([marks, np.arange(len(marks)) + task.seen + 1])
        return self._block(work.stage.top, marks)

    def _block(self, node: Node, marks: IntArray) -> Block:
        rows = len(marks)
        return Block(Columnar(SizedColumn(rows, self.bytes_of(node)), rows), marks)

    def parts_of(self, source: Any, part: Part) -> list[PlannedPart]:
        """The passes that read a part of a source through a prefetcher."""
        rooms = ((own, own.ahead.room) for own in self.parts)
        return [own for own, room in rooms if room.source is source and room.part.name == part.name]

    # --- bytes ---

    def bytes_of(self, node: Node) -> float:
        """The most bytes of an element of a node."""
        found = self._bytes.get(id(node))
        if found is None:
            size = element_bytes(node)
            found = self._bytes[id(node)] = (
                MADE * most_records(node) * max(map(mean_bytes, sources_of(node)), default=8.0)
                if size is None
                else size.high
            )
        return found

    # --- to the end ---

    def finish(self, node: Node) -> None:
        """Run the stream to its end, or up to the limit of planning."""
        blocks = stream.blocks(node, origin(node), self, None)
        # Rows that are kept and given again, or taken out of batches one by one, take no planning.
        is_unplanned = any(hasattr(each, "takes_no_planning") for each in walk(node))
        try:
            for block in blocks:
                self.delivered += len(block)
                self.largest_block = max(self.largest_block, nbytes(block.table))
                if is_unplanned:
                    self.spend(_BATCH_S)
        except _Enough:
            self.is_whole = False
        # Streams of one chain may differ in length; a lane may have no row, if filters keep nothing.
        except (ElementError, PlanError):
            pass
        finally:
            blocks.close()
            self.end_threads()


def dry_run(node: Node, most_s: float = MOST_S) -> DryRun:
    """Run a stream to its end, or up to a limit: seconds that planning takes on a usual machine."""
    run = DryRun(node, most_s)
    run.finish(node)
    return run


def mean_bytes(source: Any) -> float:
    """Bytes of a record of a source, by an estimate where its size differs or is not known."""
    size = record_bytes(source)
    return 64.0 if size is None else math.sqrt(size.low * size.high)


# --- chains --------------------------------------------------------------------------------------


def _totals(
    node: Node,
    times: int,
    found: dict[int, tuple[ToStreamNode, int]],
    lanes: tuple[Sequence[int], int] | None = None,
) -> None:
    """The number of elements of each stream of a chain, in all passes over it."""
    chain = as_chain(node)
    lanes = node.run_lanes if isinstance(node, JoinsLanes) else lanes
    if chain is not None:
        before = found.get(id(chain), (chain, 0))[1]
        count = int(min(ENDLESS, chain.parent.elements().high))
        if lanes is not None:
            count = sum(dealing_of(chain.parent).lane_elements(lane, lanes[1]) for lane in lanes[0])
        found[id(chain)] = chain, before + times * count
        return
    for parent in node.parents:
        _totals(parent, times * (passes(node) or 1), found, lanes)


def in_small_batches(node: Node) -> Node:
    """The stream with its huge batches in parts, since a batch is planned as a whole; else itself."""
    most = max(most_records(each.parent) for each in chains_of(node))
    return _parted(node) if most > _MOST_RECORDS else node


def _parted(node: Node) -> Node:
    changed = over(node, tuple(map(_parted, node.parents)))
    if node.length == STREAM or (group_size(changed) or 0) <= _MOST_RECORDS:
        return changed
    return BatchNode(changed.parents, _MOST_RECORDS, False, None)


# --- readers that read nothing -------------------------------------------------------------------

_DONE: Final[Future[Any]] = Future()
_DONE.set_result(())


class ChunkUses:
    """Where a stream uses each chunk of a part: how far a plan must reach to read it once."""

    def __init__(self) -> None:
        """Start with no uses."""
        self.last: dict[int, int] = {}  # the record that used a chunk last, by chunk
        self.records = self.fragments = self.most_fragments = 0  # at most of a read batch
        self._unit = 0  # records of the shortest read batch, which is the first one
        self._farthest = 0  # records between two uses
        self._needed = 0.0  # read batches to plan for each one that is made

    def add(self, records: int, chunks: WantedChunks) -> None:
        """Add the chunks of the next read batch."""
        which, before = chunks.which, self.records
        self.records += records
        self.fragments += len(which)
        self.most_fragments = max(self.most_fragments, len(which))
        self._unit = self._unit or max(1, records)
        if not len(which):
            return
        order = np.argsort(which, kind="stable")
        places = before + order * records // len(which)
        ends = np.flatnonzero(np.diff(which[order], append=-1))
        begins = np.append(0, ends[:-1] + 1)
        gaps, since = np.diff(places), places[:-1]
        within = np.delete(np.arange(len(gaps)), ends[:-1])
        if len(within):
            self._note(int(gaps[within].max()), float(self._per_made(gaps, since)[within].max()))
        firsts, lasts = places[begins].tolist(), places[ends].tolist()
        for chunk, first, last in zip(chunks.numbers, firsts, lasts, strict=True):
            used = self.last.get(chunk)
            if used is not None:
                self._note(first - used, float(self._per_made(first - used, used)))
            self.last[chunk] = last

    @property
    def batches(self) -> int:
        """The most read batches that there can be."""
        return -(-self.records // max(1, self._unit))

    def _per_made(self, gap: Any, since: Any) -> Any:
        return gap / (self._unit + since)

    def _note(self, gap: int, needed: float) -> None:
        self._farthest, self._needed = max(self._farthest, gap), max(self._needed, needed)

    def lie_close(self, batches_per_plan: int) -> bool:
        """Whether the next use of a chunk is planned before the last one is over.

        Args:
            batches_per_plan: Read batches that are planned more for each one that is made.
        """
        return self._needed <= batches_per_plan and self._farthest <= _SURE_BATCHES * self._unit


class NullPool(Executor):
    """Calls nothing."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A future that is done."""
        return _DONE


class NullCache(ChunkCache):
    """Plans where chunks go as a chunk cache does, and has no memory."""

    def __init__(self, room: PartRoom, run: DryRun) -> None:
        """Take the room of a chunk cache."""
        self._cache = cache_of(dataclasses.replace(room, slots=0))
        self._run = run
        self.uses = ChunkUses()

    def fragments(
        self, indices: IntArray, places: PiecePlaces | None = None
    ) -> tuple[Any, WantedChunks]:
        found, chunks = self._cache.fragments(indices, places)
        self._run.planned(len(chunks.numbers))
        self.uses.add(len(indices), chunks)
        return found, chunks

    def start(self, places: Sequence[ChunkPlace], pool: Executor) -> Future[Any]:
        return _DONE

    def arrived(self, slots: Sequence[int], future: Future[Any]) -> Mapping[int, Exception]:
        """Do nothing: the read has no data."""
        return {}

    def targets(self, wanted: WantedRecords) -> Any:
        return ()

    def empty(self, count: int, fragments: Any) -> Any:
        return ()

    def fill(self, out: Any, fragments: Any, slots: IntArray) -> None:
        """Do nothing: there is no data to copy."""

    def gather(self, count: int, fragments: Any, slots: IntArray) -> Any:
        return ()

    def finished(self, out: Any, fragments: Any) -> Any:
        return ()


@dataclasses.dataclass(slots=True)
class NullReader(Reader):
    """Plans the reads of a read batch and counts them; its results have no data."""

    run: DryRun | None = None
    finishes: list[Finish] = dataclasses.field(default_factory=list)

    def start(self, source: Any, records: IntArray, places: PiecePlaces | None = None) -> Finish:
        """Plan reading records of a source, or parts of them."""
        if self.run is not None:
            self.run.asked(len(records))
        finish = super(NullReader, self).start(source, records, places)
        self.finishes.append(finish)
        return finish

    def _assembled(self, source: LaidOutSource, columns: list[Any], records: IntArray) -> Any:
        return ()

    def _table(
        self, source: Any, found: Any, records: IntArray, places: PiecePlaces | None
    ) -> Table:
        size = ragged_bytes(source, records, None if places is None else places.lengths)
        each = mean_bytes(source) if size is None else size / max(1, len(records))
        return Columnar(SizedColumn(len(records), each), len(records))


class NullWorkers:
    """Stands for worker processes."""

    def __init__(self, handler: Any, options: Any, init: Any) -> None:
        """Start nothing."""
        self.options = options


class NullExecutor:
    """An executor that does no work: its results have the rows and bytes of real ones."""

    def __init__(self, run: DryRun, executor: StageExecutor, stage: ChainStage) -> None:
        """Take the work of a stage from `executor`."""
        self._run, self._executor, self._stage = run, executor, stage
        self.is_here = executor.is_here

    def part_of(self, stage: ChainStage) -> tuple[int, Halves | None]:
        return 0, None

    def bounded(self, batch_bytes: int) -> int:
        return self._executor.bounded(batch_bytes)

    def wants_more_rows(self) -> bool:
        return False

    def begun(self, work: WorkItem) -> Found:
        return lambda: self._run.result(work)

    def in_order(self, works: Iterable[W]) -> Iterator[tuple[W, Found]]:
        if self._stage.chain is not None:
            self._run.open[id(self._stage.chain)] += 1
        for work in works:
            yield work, self.begun(work)
        if self._stage.chain is not None:
            self._run.open[id(self._stage.chain)] -= 1
