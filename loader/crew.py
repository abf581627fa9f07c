"""Crews: where the work of stages is done, here or in worker processes.

Contract, of both kinds:
1. Outcomes come in the order of the works, whoever was ready first.
2. When a work fails, all rows before the failure are yielded, then the error is raised; for that the
   work is done again in halves.
3. A stream made elsewhere is the stream made here.
"""

from __future__ import annotations

import collections
import dataclasses
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from windrow import execute
from windrow.errors import ClosedError, ReadError
from windrow.handover import Failure, Room, failure_of
from windrow.memory import shared_bytes_of
from windrow.meter import OTHER, WORKERS, Maker, doing
from windrow.multiprocessing import MultiprocessingOptions
from windrow.sources import ForeignDataSource
from windrow.spread import Spread
from windrow.stacking import as_tree, stacked, unstacked
from windrow.steps import Block, Outcome, Stage, Task, Work, stage_of
from windrow.transforms import columns
from windrow.transforms.halves import Halves, halved
from windrow.transforms.nodes import Node, SourceNode
from windrow.transforms.options import ReadOptions
from windrow.transforms.streams import ProcessNode, ToStreamNode
from windrow.transforms.tables import Columnar, Listed, Table
from windrow.worker_process import Ticket
from windrow.workers import Workers

W = TypeVar("W", bound=Work)
Found = Callable[[], Outcome]

# Rows up to this size are joined to columns on their way, larger ones travel by themselves.
_SMALL_ROW_BYTES = 64 * 1024

# What notes with a place have; a batched map can only tell how many rows it was called with.
_PLACED = re.compile(r"windrow: .*\b(element (\d|before)|when a worker started)")

# Workers that a work which can not be parted may end.
_TRIES = 3


class Crew(Protocol):
    """Where the work of stages is done."""

    @property
    def is_here(self) -> bool:
        """Whether it is done in this process."""
        ...

    def part_of(self, stage: Stage) -> tuple[int, Halves | None]:
        """The number of a stage for `Work`, and its chain in two where that is parted."""
        ...

    def bounded(self, options: ReadOptions) -> ReadOptions:
        """The options, with rounds no larger than the crew has room for."""
        ...

    def wants_more_rows(self) -> bool:
        """Whether the last works had fewer rows than could have been done at a time."""
        ...

    def begun(self, work: Work) -> Found:
        """Begin a work; the function returned waits for the outcome."""
        ...

    def in_order(self, works: Iterable[W]) -> Iterator[tuple[W, Found]]:
        """Works and what to wait for, in order."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Here:
    """Does all work in this process, when its outcome is asked for."""

    spread: Spread | None = None
    is_here: bool = True

    def part_of(self, stage: Stage) -> tuple[int, Halves | None]:
        return 0, None

    def bounded(self, options: ReadOptions) -> ReadOptions:
        return options

    def wants_more_rows(self) -> bool:
        return self.spread is not None and self.spread.was_starved()

    def begun(self, work: Work) -> Found:
        return lambda: work.outcome(self.spread)

    def in_order(self, works: Iterable[W]) -> Iterator[tuple[W, Found]]:
        for work in works:
            yield work, self.begun(work)


class WorkerCrew:
    """Sends work to worker processes."""

    is_here = False

    def __init__(self, node: ProcessNode, workers: Callable[..., Workers]) -> None:
        """Find the stages below `node`; no process is started yet."""
        self._halves: list[Halves | None] = []
        self._numbers: dict[int, int] = {}
        parts: list[_Part] = []
        for stage in _stages(node.parent):
            halves = _halved(stage)
            if stage.steps or halves is not None:
                self._numbers[id(stage.top)] = len(parts)
                parts.append(_Part(stage.steps, halves.upper if halves else None))
                self._halves.append(halves)
        self._options: MultiprocessingOptions = node.options
        handler = _Handler(tuple(parts))
        self._workers = workers(handler, self._options, node.init) if parts else None

    def does(self, stage: Stage) -> bool:
        """Whether there is anything in the stage for workers to do."""
        return id(stage.top) in self._numbers

    def part_of(self, stage: Stage) -> tuple[int, Halves | None]:
        number = self._numbers[id(stage.top)]
        return number, self._halves[number]

    def bounded(self, options: ReadOptions) -> ReadOptions:
        most = self._options.num_workers * (1 + self._options.per_worker_buffer_size)
        # Requests and replies of all works under way, in half of the memory.
        room = shared_bytes_of(self._options.shared_bytes) // (4 * most)
        return dataclasses.replace(options, block_bytes=max(1, min(options.block_bytes, room)))

    def wants_more_rows(self) -> bool:
        return False

    @property
    def _team(self) -> Workers:
        if self._workers is None:
            raise TypeError("this crew has no work, so it has no workers")
        return self._workers

    def begun(self, work: Work) -> _Begun:
        try:
            tries = _TRIES if work.is_whole else 1
            request = work.request()
            with doing(WORKERS):
                return _Begun(self._team, self._team.submit(request, tries))
        except Exception as error:
            return _Begun(self._team, error)

    def in_order(self, works: Iterable[W]) -> Iterator[tuple[W, Found]]:
        waiting: collections.deque[tuple[W, _Begun]] = collections.deque()
        coming: Iterator[W] | None = iter(works)
        failed: Exception | None = None
        try:
            while True:
                while coming is not None and self._wants_more(waiting):
                    try:
                        work = next(coming)
                    except StopIteration:
                        coming = None
                    except Exception as error:  # its place is behind the works before it
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
            for _, begun in waiting:  # of a stream that is not asked for the rest
                begun.drop()

    def _wants_more(self, waiting: Sequence[tuple[Work, _Begun]]) -> bool:
        """Whether to begin another work before the first of those under way is taken."""
        if not waiting:
            return True  # else a stage could wait for ever for room that another one has taken
        return self._team.has_room and not waiting[0][1].is_done()

    def start(self) -> None:
        """Start the workers now."""
        if self._workers is not None:
            self._workers.start()

    @property
    def under_way_bytes(self) -> int:
        """Bytes of the arrays of works that are not done."""
        return 0 if self._workers is None else self._workers.under_way_bytes

    def interrupt(self) -> None:
        """Have whoever waits for a worker come back, with a ClosedError."""
        if self._workers is not None:
            self._workers.interrupt()

    def forget(self) -> None:
        """What is under way is not wanted any more."""
        if self._workers is not None:
            self._workers.forget()

    def kill(self) -> None:
        """End the workers."""
        if self._workers is not None:
            self._workers.kill()


class _Begun:
    """A work that was sent, or why it could not be."""

    def __init__(self, team: Workers, sent: Ticket | Exception) -> None:
        self._team, self._sent = team, sent

    def is_done(self) -> bool:
        return isinstance(self._sent, Exception) or self._team.is_done(self._sent)

    def drop(self) -> None:
        if not isinstance(self._sent, Exception):
            self._team.drop(self._sent)

    def __call__(self) -> Outcome:
        if isinstance(self._sent, Exception):
            raise self._sent
        with doing(WORKERS):
            reply: _Reply = self._team.wait(self._sent)
            return reply.outcome()


def resolved(crew: Crew, work: Work, found: Found) -> Iterator[Outcome]:
    """The outcome of a work; of ever smaller parts of it after a failure."""
    parts: Sequence[Work] = ()
    try:
        outcome = found()
    except ClosedError:
        raise
    except Exception as error:
        parts = work.halves()
        if not parts:
            _name_records(error, work)
            if not crew.is_here and not _is_placed(error):
                error.add_note(f"windrow: raised for {work.where()}")
            raise
    else:
        yield outcome
        if outcome.error is not None:
            _name_records(outcome.error, work)
            raise outcome.error
    # Not while the error is handled: each error of a part would have it as its context.
    for part in parts:
        yield from resolved(crew, part, crew.begun(part))


def _is_placed(error: Exception) -> bool:
    """Whether an error tells which element it is about, which records, or that it is about none."""
    notes = getattr(error, "__notes__", ())
    return isinstance(error, ReadError) or any(map(_PLACED.search, notes))


def _name_records(error: Exception, work: Work) -> None:
    """Name the records in a note of an error, where only the whole chain can tell them."""
    unknown: execute.Unknown = error.__dict__.pop("windrow_unknown", [])
    found = [work.records_of(number, elements) for number, elements in unknown]
    if any(found):
        error.add_note(f"windrow: made of {'; '.join(filter(None, found))}")


# --- what workers do -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A stage, as workers know it: its steps, and the upper half of its chain."""

    steps: tuple[Node, ...]
    upper: Node | None


@dataclasses.dataclass(frozen=True, slots=True)
class _Handler:
    """Does in a worker what is asked for."""

    parts: tuple[_Part, ...]

    def __call__(self, task: Task, room: Room) -> _Reply:
        part, maker, began_s = self.parts[task.stage], Maker(), time.perf_counter()
        with maker.working():
            outcome = task.outcome(part.steps, part.upper)
            failure = None if outcome.error is None else failure_of(outcome.error)
            table, small = _packed(outcome.block.table, room)
        worked_s = maker.spent_s()
        worked_s[OTHER] = time.perf_counter() - began_s - sum(worked_s.values())
        return _Reply(
            table,
            small,
            outcome.block.marks,
            failure,
            outcome.rows,
            outcome.took_s,
            outcome.bytes_read,
            worked_s,
            outcome.arrived,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Reply:
    """An outcome on its way back."""

    table: Table | None
    stacked: Any  # the elements of a listed table that are small, as columns
    marks: npt.NDArray[np.int64]
    failure: Failure | None
    rows: int
    took_s: float
    bytes_read: int
    worked_s: Mapping[str, float]
    arrived: tuple[tuple[int, int], ...]

    def outcome(self) -> Outcome:
        error = None if self.failure is None else self.failure.raised()
        if error is not None and not isinstance(error, Exception):
            raise error  # SystemExit and the like end the stream where they are
        table = _unpacked(self.stacked, len(self.marks)) if self.table is None else self.table
        return Outcome(
            Block(table, self.marks),
            error,
            self.rows,
            self.took_s,
            self.bytes_read,
            self.worked_s,
            self.arrived,
        )


def _packed(table: Table, room: Room) -> tuple[Table | None, Any]:
    """The table, or its elements as columns where they are small: each array by itself costs more."""
    if not isinstance(table, Listed) or table.rows < 2:
        return table, None
    if columns.nbytes(table.elements[0]) > _SMALL_ROW_BYTES:
        return table, None
    return None, stacked(table.elements, room)


def _unpacked(found: Any, rows: int) -> Table:
    tree = as_tree(found)
    return Listed(unstacked(found)) if tree is None else Columnar(tree, rows)


# --- what is to be done --------------------------------------------------------------------------


def _stages(node: Node) -> Iterator[Stage]:
    """The stages of a stream, down to its sources."""
    stage = stage_of(node)
    yield stage
    if isinstance(stage.below, ToStreamNode):
        if stage.is_apart:
            yield stage_of(stage.below)
    elif isinstance(stage.below, ProcessNode):  # that has a crew of its own
        return
    elif stage.steps:  # what is below may be a step of another stage
        yield from _stages(stage.below)
    else:
        for parent in stage.below.parents:
            yield from _stages(parent)


def _halved(stage: Stage) -> Halves | None:
    """The chain of a stage in two; None where its functions are none, or not its own."""
    if not isinstance(stage.below, ToStreamNode) or stage.is_apart:
        return None
    halves = halved(stage.below.parent, _read_by_workers)
    return halves if halves.travels or stage.steps else None


def _read_by_workers(node: SourceNode) -> bool:
    """Whether reading a source is Python itself, so that it belongs where the functions run."""
    return isinstance(node.source, ForeignDataSource) and not node.source.batched


class Crews:
    """The crews of an iterator: one for each `mp_prefetch` in its chain, kept from run to run."""

    def __init__(self, node: Node, workers: Callable[..., Workers] = Workers) -> None:
        """Make the crews of a chain, with `workers(handler, options, init)` to do their work."""
        self._make = workers
        self._all: list[WorkerCrew] = []
        self._of: dict[int, WorkerCrew] = {}
        self._find(node, None)

    def _find(self, node: Node, crew: WorkerCrew | None) -> None:
        if isinstance(node, ProcessNode) and node.options.num_workers:
            crew = WorkerCrew(node, self._make)
            self._all.append(crew)
        elif crew is not None:
            self._of[id(node)] = crew
        for parent in node.parents:
            self._find(parent, crew)

    def __bool__(self) -> bool:
        return bool(self._all)

    def of(self, stage: Stage, here: Here) -> Crew:
        """Who does the work of a stage; `here` where nobody else does."""
        crew = self._of.get(id(stage.top))
        return crew if crew is not None and crew.does(stage) else here

    def start(self) -> None:
        """Start all workers."""
        for crew in self._all:
            crew.start()

    def interrupt(self) -> None:
        """Have whoever waits for workers come back."""
        for crew in self._all:
            crew.interrupt()

    def bytes_by(self) -> dict[str, int]:
        """Bytes of the arrays that are under way to workers."""
        return {"workers": sum(crew.under_way_bytes for crew in self._all)} if self._all else {}

    def forget(self) -> None:
        """What is under way is not wanted any more."""
        for crew in self._all:
            crew.forget()

    def kill(self) -> None:
        """End all workers."""
        for crew in self._all:
            crew.kill()
