"""Executors do the work of stages, in this process or in worker processes.

Contract, of both kinds:
1. Results come in the order of the work items, also if a later one was ready first.
2. When a work item fails, all rows before the failure are yielded, then the error is raised. To
   find those rows, the work item is done again in halves.
3. A stream made elsewhere is the stream made here.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from windrow.engine import execute, record_trace
from windrow.engine.stages import ChainStage, Result, WorkItem
from windrow.engine.thread_map import StageThreads, ThreadMap
from windrow.errors import ClosedError, ReadError
from windrow.transforms.nodes import Node, WorkerSettings
from windrow.transforms.nodes.split import Halves
from windrow.transforms.nodes.streams import workers_of

if TYPE_CHECKING:
    from windrow.engine.process_executor import ProcessExecutor
    from windrow.stats.profiler import ActivityClock
    from windrow.workers.pool import WorkerPool

W = TypeVar("W", bound=WorkItem)
Found = Callable[[], Result]
Count = Callable[[Result], None]
"""Counts the bad rows of a result, or raises if there are too many: see `bad_records.BadRecords`."""

# Matches notes that state a place. A batched map only knows its number of rows.
_PLACED = re.compile(r"windrow: .*\b(element (\d|before)|when a worker started)")


class StageExecutor(Protocol):
    """Where the work of stages is done."""

    @property
    def is_here(self) -> bool:
        """Whether it is done in this process."""
        ...

    def part_of(self, stage: ChainStage) -> tuple[int, Halves | None]:
        """The number of a stage for `WorkItem`, and the two halves of its chain if it is split."""
        ...

    def bounded(self, batch_bytes: int) -> int:
        """Bytes of a read batch, no more than the executor has room for."""
        ...

    def wants_more_rows(self) -> bool:
        """Whether the last work items had fewer rows than the executor could do at a time."""
        ...

    def begun(self, work: WorkItem) -> Found:
        """Begin a work item; the function returned waits for the result."""
        ...

    def in_order(self, works: Iterable[W]) -> Iterator[tuple[W, Found]]:
        """Work items, each with a function that waits for its result, in order."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Does all work in this process, when its result is asked for."""

    thread_map: ThreadMap | None = None
    is_here: bool = True

    def part_of(self, stage: ChainStage) -> tuple[int, Halves | None]:
        return 0, None

    def bounded(self, batch_bytes: int) -> int:
        return batch_bytes

    def wants_more_rows(self) -> bool:
        return self.thread_map is not None and self.thread_map.was_starved()

    def begun(self, work: WorkItem) -> Found:
        return lambda: work.result(self.thread_map)

    def in_order(self, works: Iterable[W]) -> Iterator[tuple[W, Found]]:
        for work in works:
            yield work, self.begun(work)


def results(
    executor: StageExecutor, work: WorkItem, found: Found, count: Count | None = None
) -> Iterator[Result]:
    """The result of a work item; after a failure the results of ever smaller parts of it."""
    parts: Sequence[WorkItem] = ()
    try:
        result = found()
        if count is not None:
            count(result)
    except ClosedError:
        raise
    except Exception as error:
        parts = work.halves(error)
        if not parts:
            _name_records(error, work)
            if not executor.is_here and not _is_placed(error):
                error.add_note(f"windrow: raised for {work.where()}")
            raise
    else:
        yield result
        if result.error is not None:
            _name_records(result.error, work)
            raise result.error
    # Not while the error is handled: each error of a part would have it as its context.
    for part in parts:
        yield from results(executor, part, executor.begun(part), count)


def _is_placed(error: Exception) -> bool:
    """Whether an error names its element or its records, or concerns neither."""
    notes = getattr(error, "__notes__", ())
    return isinstance(error, ReadError) or any(map(_PLACED.search, notes))


def _name_records(error: Exception, work: WorkItem) -> None:
    """Name the records in a note of an error, where only the whole chain knows them."""
    error.__dict__.pop(execute.OF_GROUP, None)
    unknown: record_trace.Unknown = error.__dict__.pop("windrow_unknown", [])
    found = [work.records_of(number, elements) for number, elements in unknown]
    if any(found):
        error.add_note(f"windrow: made of {'; '.join(filter(None, found))}")


class Executors:
    """The executors of an iterator: one for each `mp_prefetch` in its chain, kept from run to run."""

    def __init__(self, node: Node, workers: Callable[..., Any] | None = None) -> None:
        """Make the executors of a chain, with `workers(handler, options, init)` to do their work.

        By default that is a `WorkerPool`.
        """
        self._make = workers
        self._all: list[ProcessExecutor] = []
        self._of: dict[int, ProcessExecutor] = {}
        self._find(node, None)

    def _find(self, node: Node, executor: ProcessExecutor | None) -> None:
        settings = workers_of(node)
        if settings is not None:
            executor = self._executor(node, settings)
            self._all.append(executor)
        elif executor is not None:
            self._of[id(node)] = executor
        for parent in node.parents:
            self._find(parent, executor)

    def _executor(self, node: Node, settings: WorkerSettings) -> ProcessExecutor:
        # Most chains have no workers, and do not load what only these need.
        from windrow.engine.process_executor import ProcessExecutor

        chooser = None
        if settings.options.num_workers == "auto":
            from windrow.engine.worker_choice import WorkerChooser

            chooser = WorkerChooser(settings, len(self._all))
        return ProcessExecutor(node.parent, settings, self._make, chooser)

    def __bool__(self) -> bool:
        return bool(self._all)

    def of(self, stage: ChainStage, here: LocalExecutor) -> StageExecutor:
        """The executor of a stage's work; `here` if no other executor does it."""
        executor = self._of.get(id(stage.top))
        return executor if executor is not None and executor.does(stage) else here

    def begin(self, threads: StageThreads, maker: ActivityClock) -> None:
        """Begin a run, whose times `maker` counts; `threads` do work in this process."""
        for executor in self._all:
            executor.begin(threads, maker)

    def start(self) -> None:
        """Start all workers, but those whose number is not chosen yet."""
        for executor in self._all:
            executor.start()

    def _pools(self) -> list[WorkerPool]:
        # Any thread may ask, while another one ends them.
        found = [executor.workers for executor in self._all]
        return [pool for pool in found if pool is not None]

    def interrupt(self) -> None:
        """Make every wait for workers return, with a ClosedError."""
        for pool in self._pools():
            pool.interrupt()

    def bytes_by(self) -> dict[str, int]:
        """Bytes of the arrays that are under way to workers."""
        sizes = [pool.request_bytes for pool in self._pools()]
        return {"workers": sum(sizes)} if self._all else {}

    def forget(self) -> None:
        """What is under way is not wanted any more."""
        for pool in self._pools():
            pool.forget()

    def kill(self) -> None:
        """End all workers."""
        for pool in self._pools():
            pool.kill()
