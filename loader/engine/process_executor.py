"""Sends the work of stages to worker processes: the executor of an `mp_prefetch`.

Contract, in addition to the one of `windrow.engine.executors`, where the number of workers is chosen:
1. Work is done here until the workers that were chosen are ready: each work item where it is decided
   when it is begun. A stream does not depend on where its work items are done.
2. If workers cannot be started, or elements cannot be sent to them, all work is done here.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from windrow.core.machine import shared_bytes_of
from windrow.engine.stages import ChainStage, Result, StageTask, WorkItem, stage_of
from windrow.engine.thread_map import NO_THREADS, StageThreads
from windrow.errors import WorkerError
from windrow.sources.foreign import ForeignDataSource
from windrow.stats.profiler import OTHER, WORKERS, ActivityClock, doing
from windrow.transforms import columns, pytrees, record_sizes
from windrow.transforms.nodes import Node, WorkerSettings, source_of, walk
from windrow.transforms.nodes.split import Halves, halved
from windrow.transforms.row_blocks import Block
from windrow.transforms.tables import Columnar, Listed, Table, elements
from windrow.workers.by_value import pickled_by_value
from windrow.workers.messages import UNSENT_RESULT, Failure, MessageBuffer, failure_of
from windrow.workers.pool import WorkerPool
from windrow.workers.process import Job
from windrow.workers.stacking import is_exact, stacked

if TYPE_CHECKING:
    from windrow.engine.worker_choice import WorkerChooser

W = TypeVar("W", bound=WorkItem)
_log = logging.getLogger("windrow.workers")

# Rows up to this size are joined to columns on their way, larger ones travel by themselves.
_SMALL_ROW_BYTES = 64 * 1024

# The most workers that a work item may end if it cannot be split.
_TRIES = 3


class ProcessExecutor:
    """Sends work to worker processes.

    Attributes:
        workers: They; None if there is no work for them, or if they cannot be started.
        chooser: Decides how many workers there are; None for a number that the user gave.
    """

    is_here = False

    def __init__(
        self,
        node: Node,
        settings: WorkerSettings,
        workers: Callable[..., WorkerPool] | None = None,
        chooser: WorkerChooser | None = None,
    ) -> None:
        """Find the stages of a chain that ends with `node`, without starting a process."""
        self.chooser, self._threads = chooser, NO_THREADS
        self._halves: list[Halves | None] = []
        self._numbers: dict[int, int] = {}
        self._parts: list[_StagePart] = []
        for stage in _stages(node):
            halves = _halved(stage)
            if stage.steps or halves is not None:
                self._numbers[id(stage.top)] = len(self._parts)
                self._parts.append(_StagePart(stage.steps, halves.upper if halves else None))
                self._halves.append(halves)
        most = settings.options.most_workers
        self._options = dataclasses.replace(settings.options, num_workers=most)
        self.workers: WorkerPool | None = None
        if not self._parts:
            return
        handler = _Handler(tuple(self._parts), "jax" in sys.modules)
        try:
            self.workers = (workers or WorkerPool)(handler, self._options, settings.init)
        except Exception as error:
            for unsent in _unsendable(self._parts):
                error.add_note(f"windrow: what cannot be pickled belongs to {unsent.written}")
            raise

    def does(self, stage: ChainStage) -> bool:
        """Whether there is anything in the stage for workers to do."""
        return id(stage.top) in self._numbers

    def part_of(self, stage: ChainStage) -> tuple[int, Halves | None]:
        number = self._numbers[id(stage.top)]
        return number, self._halves[number]

    def bounded(self, batch_bytes: int) -> int:
        most = self._options.most_workers * (1 + self._options.per_worker_buffer_size)
        # Requests and replies of all work items under way, in half of the memory.
        room: int = shared_bytes_of(self._options.shared_bytes) // (4 * most)
        return max(1, min(batch_bytes, room))

    def wants_more_rows(self) -> bool:
        thread_map = self._threads.thread_map
        return self.chooser is not None and thread_map is not None and thread_map.was_starved()

    def start(self) -> None:
        """Start the workers whose number is known.

        Raises:
            WorkerError: If one cannot be started.
        """
        if self.workers is not None and (self.chooser is None or self.chooser.is_used):
            self.workers.start()

    def begin(self, threads: StageThreads, maker: ActivityClock) -> None:
        """Begin a run, whose times `maker` counts; `threads` do work in this process."""
        self._threads = threads
        if self.chooser is not None and self.workers is not None:
            self.chooser.begin(maker, threads.thread_map)

    def begun(self, work: WorkItem) -> Begun:
        try:
            task = work.request()
        except Exception as error:
            return Begun(functools.partial(_raised, error))
        pool = self._ready_workers()
        if pool is None:
            return Begun(functools.partial(self._here, task))
        try:
            with doing(WORKERS):
                job = pool.submit(task, _TRIES if work.is_whole else 1)
        except Exception as error:
            if self.chooser is not None and self.chooser.stays_here(error):
                return Begun(functools.partial(self._here, task))
            return Begun(functools.partial(_raised, error))
        kept = None if self.chooser is None else task  # its arrays may be large
        return Begun(functools.partial(self._away, pool, job, kept, work.stage), pool, job)

    def in_order(self, works: Iterable[W]) -> Iterator[tuple[W, Begun]]:
        waiting: collections.deque[tuple[W, Begun]] = collections.deque()
        coming: Iterator[W] | None = iter(works)
        failed: Exception | None = None
        try:
            while True:
                while coming is not None and self._wants_more(waiting):
                    try:
                        work = next(coming)
                    except StopIteration:
                        coming = None
                    except Exception as error:  # raised after the work items before it
                        coming, failed = None, error
                    else:
                        waiting.append((work, self.begun(work)))
                if not waiting:
                    break
                yield waiting.popleft()
            if failed is not None:
                raise failed
        finally:
            # An error holds on to this frame: the frame must not hold on to the error.
            failed = None
            for _, each in waiting:  # the consumer does not take the rest
                each.drop()

    def _wants_more(self, waiting: Sequence[tuple[WorkItem, Begun]]) -> bool:
        """Whether to begin another work item before the first one under way is taken."""
        if not waiting:  # without one a stage could wait forever for room that another stage has
            return True
        # Work is done here when its turn comes: there is no gain in beginning more of it.
        pool = waiting[-1][1].pool
        return pool is not None and pool.wants_jobs and not waiting[0][1].is_done()

    def _ready_workers(self) -> WorkerPool | None:
        """The workers, if the next work item goes to them."""
        pool, chooser = self.workers, self.chooser
        if pool is None or chooser is None or chooser.is_used:
            return pool
        if not chooser.workers:
            return None
        try:
            pool.start(chooser.workers)
            chooser.is_used = pool.ready() >= chooser.workers
        except WorkerError as error:
            pool.kill()
            self.workers = None
            reason = f"workers cannot be started: {error}"
            _log.warning("functions run in this process, since %s", reason)
            chooser.decide(0, reason)
        return pool if chooser.is_used else None

    def _here(self, task: StageTask) -> Result:
        """Do a work item in this process."""
        part, began = self._parts[task.stage], time.perf_counter()
        result = task.result(part.steps, part.upper, self._threads)
        if self.chooser is not None:
            self.chooser.took(result.rows, time.perf_counter() - began)
        return result

    def _away(
        self, pool: WorkerPool, job: Job, task: StageTask | None, stage: ChainStage
    ) -> Result:
        """Wait for the result of a worker; do the task here if the result cannot be sent."""
        with doing(WORKERS):
            try:
                reply: _Reply = pool.wait(job)
            except Exception as error:
                if UNSENT_RESULT not in getattr(error, "__notes__", ()):
                    raise
                if task is None or self.chooser is None or not self.chooser.stays_here(error):
                    _name_maker(error, stage)
                    raise
            else:
                return reply.opened()
        return self._here(task)


class Begun:
    """A work item that is begun. A call returns its result, or raises its error.

    Attributes:
        pool: The workers that do it; None if the call does it, or raises.
    """

    def __init__(
        self,
        result: Callable[[], Result],
        pool: WorkerPool | None = None,
        job: Job | None = None,
    ) -> None:
        self._result, self.pool, self._job = result, pool, job

    def is_done(self) -> bool:
        """Whether the call does not wait for a worker."""
        return self.pool is None or self._job is None or self.pool.is_done(self._job)

    def drop(self) -> None:
        """Note that its result is not wanted."""
        if self.pool is not None and self._job is not None:
            self.pool.drop(self._job)

    def __call__(self) -> Result:
        return self._result()


def _raised(error: Exception) -> Result:
    raise error


def _name_maker(error: Exception, stage: ChainStage) -> None:
    """Name the function that made what cannot be sent."""
    calling = (each for each in walk(stage.top) if each.functions)
    for node in itertools.islice(calling, 1):
        error.add_note(f"windrow: what cannot be pickled was made by {node.written}")


# --- what workers do -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _StagePart:
    """A stage, as workers know it: its steps, and the upper half of its chain."""

    steps: tuple[Node, ...]
    upper: Node | None


@dataclasses.dataclass(frozen=True, slots=True)
class _Handler:
    """Does the work items of a worker; `has_trees` says whether the process that takes results may know trees of JAX."""

    parts: tuple[_StagePart, ...]
    has_trees: bool

    def __call__(self, task: StageTask, buffer: MessageBuffer) -> _Reply:
        part, maker, began_s = self.parts[task.stage], ActivityClock(), time.perf_counter()
        noting = pytrees.noting_unstacked() if self.has_trees else contextlib.nullcontext()
        with maker.working(), noting as unknown:
            result = task.result(part.steps, part.upper, NO_THREADS)
            failure = None if result.error is None else failure_of(result.error)
            block, small = _packed(result.block, buffer)
        worked_s = maker.spent_s()
        worked_s[OTHER] = time.perf_counter() - began_s - sum(worked_s.values())
        sent = dataclasses.replace(result, block=block, error=None, worked_s=worked_s)
        return _Reply(sent, small, failure, bool(unknown))


@dataclasses.dataclass(frozen=True, slots=True)
class _Reply:
    """A result on its way back from a worker, without its error.

    Args:
        result: The result. Its table is empty if its elements are `small`.
        small: The elements of a listed table that are small, as columns.
        failure: Its error.
        has_unstacked: Whether elements may hold trees that this worker does not know.
    """

    result: Result
    small: Any
    failure: Failure | None
    has_unstacked: bool

    def opened(self) -> Result:
        """Return the result as the worker made it."""
        error = None if self.failure is None else self.failure.raised()
        if error is not None and not isinstance(error, Exception):
            raise error  # SystemExit and the like end the stream where they are
        block = self.result.block
        if self.small is not None:
            block = dataclasses.replace(block, table=_unpacked(self.small, len(block)))
        if self.has_unstacked:
            restacked = Listed([columns.restacked(each) for each in elements(block.table)])
            block = dataclasses.replace(block, table=restacked)
        return dataclasses.replace(self.result, block=block, error=error)


def _packed(block: Block, buffer: MessageBuffer) -> tuple[Block, Any]:
    """The block, and its elements as columns if they are small, which takes fewer messages."""
    table = block.table
    if not isinstance(table, Listed) or table.rows < 2:
        return block, None
    if record_sizes.nbytes(table.elements[0]) > _SMALL_ROW_BYTES:
        return block, None
    return dataclasses.replace(block, table=Listed([])), stacked(table.elements, buffer)


def _unpacked(found: Any, rows: int) -> Table:
    return Columnar(found, rows) if is_exact(found) else Listed(columns.split(found, rows))


# --- what is to be done --------------------------------------------------------------------------


def _unsendable(parts: Sequence[_StagePart]) -> Iterator[Node]:
    """The nodes whose functions or source cannot be sent to a worker."""
    for part in parts:
        for node in (*part.steps, *(walk(part.upper) if part.upper is not None else ())):
            try:
                pickled_by_value((node.functions, source_of(node)))
            except Exception:  # of any type
                yield node


def _stages(node: Node) -> Iterator[ChainStage]:
    """The stages of a stream, down to its sources."""
    stage = stage_of(node)
    yield stage
    if stage.chain is not None:
        if stage.is_apart:
            yield stage_of(stage.chain)
    elif stage.below.is_unseen:  # it has an executor of its own
        return
    elif stage.steps:  # earlier nodes may be steps of another stage
        yield from _stages(stage.below)
    else:
        for parent in stage.below.parents:
            yield from _stages(parent)


def _halved(stage: ChainStage) -> Halves | None:
    """The two halves of a stage's chain; None if the chain has no functions of its own."""
    if stage.chain is None or stage.is_apart:
        return None
    halves = halved(stage.chain.parent, _read_by_workers)
    return halves if halves.travels or stage.steps else None


def _read_by_workers(source: Any) -> bool:
    """Whether reading a source is Python code, which should run where the functions run."""
    return isinstance(source, ForeignDataSource) and not source.batched
