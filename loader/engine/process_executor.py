"""Sends the work of stages to worker processes: the executor of an `mp_prefetch`.

The contract is the one of `windrow.engine.executors`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from windrow.core.machine import shared_bytes_of
from windrow.engine.stages import ChainStage, Result, StageTask, WorkItem, stage_of
from windrow.engine.thread_map import NO_THREADS
from windrow.sources.foreign import ForeignDataSource
from windrow.stats.profiler import OTHER, WORKERS, ActivityClock, doing
from windrow.transforms import columns, pytrees, record_sizes
from windrow.transforms.made_of import MadeOf
from windrow.transforms.nodes import Node, WorkerSettings, source_of, walk
from windrow.transforms.nodes.split import Halves, halved
from windrow.transforms.options import MultiprocessingOptions, ReadOptions
from windrow.transforms.row_blocks import Block
from windrow.transforms.tables import Columnar, Listed, Table, elements
from windrow.workers.by_value import pickled_by_value
from windrow.workers.messages import UNSENT_RESULT, Failure, MessageBuffer, failure_of
from windrow.workers.pool import WorkerPool
from windrow.workers.process import Job
from windrow.workers.stacking import as_tree, stacked, unstacked

if TYPE_CHECKING:
    from windrow.engine.bad_rows import BadRow

W = TypeVar("W", bound=WorkItem)
Found = Callable[[], Result]

# Rows up to this size are joined to columns on their way, larger ones travel by themselves.
_SMALL_ROW_BYTES = 64 * 1024

# Matches notes that state a place. A batched map only knows its number of rows.
_PLACED = re.compile(r"windrow: .*\b(element (\d|before)|when a worker started)")

# The most workers that a work item may end if it cannot be split.
_TRIES = 3


class ProcessExecutor:
    """Sends work to worker processes.

    Attributes:
        workers: They; None if there is no work for them, and after `end`.
        parts: The stages as workers know them.
    """

    is_here = False

    def __init__(
        self,
        node: Node,
        settings: WorkerSettings,
        workers: Callable[..., WorkerPool] | None = None,
    ) -> None:
        """Find the stages of a chain that ends with `node`, without starting a process."""
        self._halves: list[Halves | None] = []
        self._numbers: dict[int, int] = {}
        self.parts: list[StagePart] = []
        parts = self.parts
        for stage in _stages(node):
            halves = _halved(stage)
            if stage.steps or halves is not None:
                self._numbers[id(stage.top)] = len(parts)
                parts.append(StagePart(stage.steps, halves.upper if halves else None))
                self._halves.append(halves)
        options: MultiprocessingOptions = settings.options
        self._options = dataclasses.replace(options, num_workers=options.most_workers)
        handler = _Handler(tuple(parts), "jax" in sys.modules)
        make = workers or WorkerPool
        try:
            self.workers = make(handler, self._options, settings.init) if parts else None
        except Exception as error:
            for node in _unsendable(parts):
                error.add_note(f"windrow: what cannot be pickled belongs to {node.written}")
            raise

    def does(self, stage: ChainStage) -> bool:
        """Whether there is anything in the stage for workers to do."""
        return id(stage.top) in self._numbers

    def part_of(self, stage: ChainStage) -> tuple[int, Halves | None]:
        number = self._numbers[id(stage.top)]
        return number, self._halves[number]

    def bounded(self, options: ReadOptions) -> ReadOptions:
        most = self._options.most_workers * (1 + self._options.per_worker_buffer_size)
        # Requests and replies of all work items under way, in half of the memory.
        room = shared_bytes_of(self._options.shared_bytes) // (4 * most)
        return options.with_block_bytes(room)

    def wants_more_rows(self) -> bool:
        return False

    @property
    def _team(self) -> WorkerPool:
        if self.workers is None:
            raise TypeError("this executor has no work, so it has no workers")
        return self.workers

    def begun(self, work: WorkItem) -> Submitted:
        try:
            request = work.request()
        except Exception as error:
            return Submitted(self._team, error, work)
        return self.submitted(work, request)

    def submitted(self, work: WorkItem, request: StageTask) -> Submitted:
        """Send the request of a work item."""
        tries = _TRIES if work.is_whole else 1
        try:
            with doing(WORKERS):
                return Submitted(self._team, self._team.submit(request, tries), work)
        except Exception as error:
            return Submitted(self._team, error, work)

    def in_order(self, works: Iterable[W]) -> Iterator[tuple[W, Found]]:
        # Looked up each time: a test replaces it while work is under way.
        return pipelined(works, self.begun, lambda waiting: self._wants_more(waiting))

    def _wants_more(self, waiting: Sequence[tuple[WorkItem, Submitted]]) -> bool:
        """Whether to begin another work item before the first one under way is taken."""
        # Without one a stage could wait forever for room that another stage has taken.
        return not waiting or self.wants_more(waiting[0][1])

    def wants_more(self, first: Begun) -> bool:
        """Whether to send more while the result of the first work item under way is not taken."""
        return self._team.wants_jobs and not first.is_done()

    def start(self, count: int | None = None) -> None:
        """Start workers until there are `count`, by default all.

        Raises:
            WorkerError: If one cannot be started.
        """
        if self.workers is not None:
            self.workers.start(count)

    def ready(self) -> int:
        """How many workers are ready."""
        return 0 if self.workers is None else self.workers.ready()

    def end(self) -> None:
        """End the workers, since no work is for them any more; what they have begun is not wanted."""
        self.kill()
        self.workers = None

    @property
    def under_way_bytes(self) -> int:
        """Bytes of the arrays of work items that are not done."""
        workers = self.workers  # another thread may end them
        return 0 if workers is None else workers.request_bytes

    def interrupt(self) -> None:
        """Make every wait for a worker return, with a ClosedError."""
        workers = self.workers  # another thread may end them
        if workers is not None:
            workers.interrupt()

    def forget(self) -> None:
        """What is under way is not wanted any more."""
        if self.workers is not None:
            self.workers.forget()

    def kill(self) -> None:
        """End the workers."""
        workers = self.workers  # another thread may end them
        if workers is not None:
            workers.kill()


class Begun(Protocol):
    """A work item that is under way."""

    def is_done(self) -> bool:
        """Whether the call does not wait for a worker."""
        ...

    def drop(self) -> None:
        """Note that its result is not wanted."""
        ...

    def __call__(self) -> Result:
        """The result."""
        ...


B = TypeVar("B", bound=Begun)


def pipelined(
    works: Iterable[W],
    begun: Callable[[WorkItem], B],
    wants_more: Callable[[Sequence[tuple[WorkItem, B]]], bool],
) -> Iterator[tuple[W, Found]]:
    """Work items in order, each once it is begun.

    Args:
        works: The work items.
        begun: Begins one.
        wants_more: Whether to begin another one before the first of those under way is taken.
    """
    waiting: collections.deque[tuple[W, B]] = collections.deque()
    coming: Iterator[W] | None = iter(works)
    failed: Exception | None = None
    try:
        while True:
            while coming is not None and wants_more(waiting):
                try:
                    work = next(coming)
                except StopIteration:
                    coming = None
                except Exception as error:  # raised after the work items before it
                    coming, failed = None, error
                else:
                    waiting.append((work, begun(work)))
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


class Submitted:
    """A work item that was sent, or the error that prevented it."""

    def __init__(self, team: WorkerPool, sent: Job | Exception, work: WorkItem) -> None:
        self._team, self._sent, self._stage = team, sent, work.stage

    @property
    def failure(self) -> Exception | None:
        """The error that prevented it."""
        return self._sent if isinstance(self._sent, Exception) else None

    def is_done(self) -> bool:
        """Whether the call does not wait."""
        return isinstance(self._sent, Exception) or self._team.is_done(self._sent)

    def drop(self) -> None:
        """Note that its result is not wanted."""
        if not isinstance(self._sent, Exception):
            self._team.drop(self._sent)

    def __call__(self) -> Result:
        if isinstance(self._sent, Exception):
            raise self._sent
        with doing(WORKERS):
            try:
                reply: _Reply = self._team.wait(self._sent)
            except Exception as error:
                if UNSENT_RESULT in getattr(error, "__notes__", ()):
                    calling = (each for each in walk(self._stage.top) if each.functions)
                    for node in itertools.islice(calling, 1):
                        error.add_note(
                            f"windrow: what cannot be pickled was made by {node.written}"
                        )
                raise
            return reply.result()


# --- what workers do -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StagePart:
    """A stage, as workers know it: its steps, and the upper half of its chain."""

    steps: tuple[Node, ...]
    upper: Node | None


@dataclasses.dataclass(frozen=True, slots=True)
class _Handler:
    """Does the work items of a worker; `has_trees` says whether the process that takes results may know trees of JAX."""

    parts: tuple[StagePart, ...]
    has_trees: bool

    def __call__(self, task: StageTask, buffer: MessageBuffer) -> _Reply:
        part, maker, began_s = self.parts[task.stage], ActivityClock(), time.perf_counter()
        noting = pytrees.noting_unstacked() if self.has_trees else contextlib.nullcontext()
        with maker.working(), noting as unknown:
            result = task.result(part.steps, part.upper, NO_THREADS)
            failure = None if result.error is None else failure_of(result.error)
            table, small = _packed(result.block.table, buffer)
        worked_s = maker.spent_s()
        worked_s[OTHER] = time.perf_counter() - began_s - sum(worked_s.values())
        return _Reply(
            table,
            small,
            result.block.marks,
            result.block.made_of,
            failure,
            result.rows,
            result.took_s,
            result.bytes_read,
            worked_s,
            result.arrived,
            result.bad,
            bool(unknown),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Reply:
    """A result on its way back from a worker."""

    table: Table | None
    stacked: Any  # the elements of a listed table that are small, as columns
    marks: npt.NDArray[np.int64]
    made_of: MadeOf | None
    failure: Failure | None
    rows: int
    took_s: float
    bytes_read: int
    worked_s: Mapping[str, float]
    arrived: tuple[tuple[int, int], ...]
    bad: tuple[BadRow, ...]
    has_unstacked: bool

    def result(self) -> Result:
        error = None if self.failure is None else self.failure.raised()
        if error is not None and not isinstance(error, Exception):
            raise error  # SystemExit and the like end the stream where they are
        table = _unpacked(self.stacked, len(self.marks)) if self.table is None else self.table
        if self.has_unstacked:
            table = Listed([columns.restacked(each) for each in elements(table)])
        return Result(
            Block(table, self.marks, self.made_of),
            error,
            self.rows,
            self.took_s,
            self.bytes_read,
            self.worked_s,
            self.arrived,
            self.bad,
        )


def _packed(table: Table, buffer: MessageBuffer) -> tuple[Table | None, Any]:
    """The table, or its elements as columns if they are small, which takes fewer messages."""
    if not isinstance(table, Listed) or table.rows < 2:
        return table, None
    if record_sizes.nbytes(table.elements[0]) > _SMALL_ROW_BYTES:
        return table, None
    return None, stacked(table.elements, buffer)


def _unpacked(found: Any, rows: int) -> Table:
    tree = as_tree(found)
    return Listed(unstacked(found)) if tree is None else Columnar(tree, rows)


# --- what is to be done --------------------------------------------------------------------------


def _unsendable(parts: Sequence[StagePart]) -> Iterator[Node]:
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
