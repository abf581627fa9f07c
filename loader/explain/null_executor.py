"""The null executor takes the work of the planner and the prefetcher in a dry run.

Reads fill no memory. They end at once, or when the run waits for them. Read batches are planned as
usual, and their results have rows and bytes but no data. Functions and worker processes are not
called.

Invariant: no record is read, and no thread or process is started.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from windrow.core.machine import shared_bytes_of
from windrow.engine.budgets import CacheRoom
from windrow.engine.chunk_cache import ChunkCache, ChunkPlace, WantedChunks, WantedRecords
from windrow.engine.execute import Finish, Reader
from windrow.engine.executors import Found, StageExecutor, W
from windrow.engine.prefetch import cache_of
from windrow.engine.stages import ChainStage, Result, WorkItem
from windrow.sources.chunks import LaidOutSource, Part
from windrow.sources.part_sizes import ragged_bytes
from windrow.sources.ragged_column import PiecePlaces
from windrow.transforms.columns import SizedColumn
from windrow.transforms.nodes.split import Halves
from windrow.transforms.options import ReadOptions
from windrow.transforms.tables import Columnar, Table, nbytes

IntArray = npt.NDArray[np.int64]


class Observer(Protocol):
    """Is called for every event of a dry run."""

    @property
    def waits(self) -> bool:
        """Whether reads and workers end at once, or (True) when the run waits for them."""
        ...

    def asked(self, records: int) -> None:
        """Count `records` planned records of a source."""
        ...

    def planned(self, part: Part, chunks: Sequence[int]) -> None:
        """A read batch wants chunks of a part."""
        ...

    def started(self, part: Part, chunks: IntArray) -> Future[Any]:
        """Reads of chunks start."""
        ...

    def arrived(self, source: Any, parts: Sequence[Part], records: IntArray) -> None:
        """Records have arrived; the records of `parts` were read in a call of their own."""
        ...

    def record_bytes(self, source: Any) -> float:
        """Bytes of a record of a source."""
        ...

    def result(self, work: WorkItem) -> Result:
        """The result of some work."""
        ...


DONE: Final[Future[Any]] = Future()
DONE.set_result(())
PENDING: Final[Future[Any]] = Future()


class NullPool(Executor):
    """Calls nothing."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A future that is done."""
        return DONE


class NullCache(ChunkCache):
    """Plans where chunks go as a chunk cache does, and has no memory."""

    def __init__(self, room: CacheRoom, run: Observer) -> None:
        """Take the room of a chunk cache."""
        self._cache = cache_of(dataclasses.replace(room, slots=0))
        self._part, self._run = room.part, run

    def fragments(
        self, indices: IntArray, places: PiecePlaces | None = None
    ) -> tuple[Any, WantedChunks]:
        found, chunks = self._cache.fragments(indices, places)
        self._run.planned(self._part, chunks.numbers)
        return found, chunks

    def start(self, places: Sequence[ChunkPlace], pool: Executor) -> Future[Any]:
        numbers = np.array([place.number for place in places])
        return self._run.started(self._part, numbers)

    def arrived(self, slots: Sequence[int], future: Future[Any]) -> Mapping[int, Exception]:
        """Do nothing: the read has no data."""
        return {}

    def may_skip(self, read_batches: int, *, last: bool) -> bool:
        return self._cache.may_skip(read_batches, last=last)

    def skips(self, number: int, wanted: WantedRecords, at: int, *, last: bool) -> bool:
        return self._cache.skips(number, wanted, at, last=last)

    def targets(self, wanted: WantedRecords) -> Any:
        return ()

    def chosen(self, wanted: WantedRecords, at: int) -> list[Any]:
        return []

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

    run: Observer | None = None
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
        if self.run is None:
            raise TypeError("a dry run has no run")
        self.run.arrived(source, self._unplanned(source), records)
        size = ragged_bytes(source, records, None if places is None else places.lengths)
        each = self.run.record_bytes(source) if size is None else size / max(1, len(records))
        return Columnar(SizedColumn(len(records), each), len(records))

    def _unplanned(self, source: Any) -> Sequence[Part]:
        if not isinstance(source, LaidOutSource):
            return ()
        ahead = self.prefetcher
        return [part for part in source.parts if ahead is None or ahead.of(source, part) is None]


class NullWorkers:
    """Stands for worker processes: it limits the number of requests in progress."""

    def __init__(self, handler: Any, options: Any, init: Any) -> None:
        """Start nothing."""
        self.options = options
        self.request_bytes = 0
        self.under_way = 0
        self._reply_bytes = 0

    @property
    def wants_jobs(self) -> bool:
        """As `WorkerPool.wants_jobs`."""
        if self.under_way < self.options.most_workers:
            return True
        if self.under_way >= self.options.most_workers * (1 + self.options.per_worker_buffer_size):
            return False
        room = shared_bytes_of(self.options.shared_bytes) // 2
        return self.request_bytes + self._reply_bytes * self.under_way < room

    def submit(self, size_bytes: int) -> None:
        """Note a request of `size_bytes` in progress."""
        self.under_way += 1
        self.request_bytes += size_bytes

    def answer(self, size_bytes: int, reply_bytes: int) -> None:
        """It is answered."""
        self.under_way -= 1
        self.request_bytes -= size_bytes
        self._reply_bytes = reply_bytes


class NullExecutor:
    """An executor that does no work: its results have the rows and bytes of real ones."""

    def __init__(self, run: Observer, executor: StageExecutor, workers: NullWorkers | None) -> None:
        """Take the work of `executor`, and of its `workers` if it has any."""
        self._run, self._executor, self._workers = run, executor, workers
        self.is_here = workers is None

    def part_of(self, stage: ChainStage) -> tuple[int, Halves | None]:
        return 0, None

    def bounded(self, options: ReadOptions) -> ReadOptions:
        return self._executor.bounded(options)

    def wants_more_rows(self) -> bool:
        return False

    def begun(self, work: WorkItem) -> Found:
        if self._workers is None:
            return lambda: self._run.result(work)
        result = self._run.result(work)  # its reads are waited for before it is sent
        size_bytes = result.bytes_read
        workers = self._workers
        workers.submit(size_bytes)

        def wait() -> Result:
            workers.answer(size_bytes, nbytes(result.block.table))
            return result

        return wait

    def in_order(self, works: Iterable[W]) -> Iterator[tuple[W, Found]]:
        waiting: collections.deque[tuple[W, Found]] = collections.deque()
        for work in works:
            waiting.append((work, self.begun(work)))
            if not self._wants_more():
                yield waiting.popleft()
        yield from waiting

    def _wants_more(self) -> bool:
        workers = self._workers
        return workers is not None and self._run.waits and workers.wants_jobs
