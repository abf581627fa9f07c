"""Runs the stages of a conversion on threads of this process, or on worker processes.

Invariant: when an item fails, the others stop at their next report, no further one begins, and the
first error is raised; worker processes end with the process that started them.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from typing import Any, Final

from windrow.converters.job.folder import OutputFolder
from windrow.converters.job.stages import Conversion, ConversionStage, Report
from windrow.core.machine import usable_cores
from windrow.core.progress import ProgressMeter, ShowProgress
from windrow.core.threads import DaemonPool
from windrow.errors import ArgumentError, ConversionError, WorkerError
from windrow.transforms.options import MultiprocessingOptions
from windrow.workers import child
from windrow.workers.by_value import pickled_by_value
from windrow.workers.child import StoppedError
from windrow.workers.messages import Message, MessageBuffer, failure_of
from windrow.workers.pool import WorkerPool
from windrow.workers.process import Job

# Time for workers to stop their items and to remove unfinished files. Killing them is safe at any
# moment, but leaves these files.
_LEAVE_S: Final = 2.0
# Seconds between two reports of a worker on an item.
_REPORT_S: Final = 0.1


def run_here(
    conversion: Conversion, folder: OutputFolder, *, processes: int, show: ShowProgress
) -> None:
    """Carry out `conversion` on this machine.

    Args:
        conversion: The conversion.
        folder: The folder, ready to be written.
        processes: 1 to work on threads of this process; otherwise the number of worker processes.
        show: As for `ProgressMeter`.

    Raises:
        WindrowError: An error of the work.
        ConversionError: If a worker process died.
        WorkerError: If worker processes cannot be started.
        ArgumentError: If the work cannot be sent to worker processes.
    """
    # No process starts before it has an item.
    options = MultiprocessingOptions(processes, shared_bytes=0)
    pool = WorkerPool(None, options, replaces=False) if processes > 1 else None
    try:
        results: list[Any] = []
        for stage in conversion.stages:
            items = stage.items(folder, results)
            results = []  # no longer needed, and may be large
            with ProgressMeter(stage.name, sum(map(stage.weigh, items)) or None, show) as meter:
                if pool is not None:
                    results = _done_by_pool(pool, processes, stage, folder, items, meter)
                else:
                    results = _done_by_threads(stage, folder, items, meter)
    finally:
        if pool is not None:
            pool.stop(_LEAVE_S)
    conversion.finish(folder, results)


# --- threads -------------------------------------------------------------------------------------


def _done_by_threads(
    stage: ConversionStage, folder: OutputFolder, items: Sequence[Any], meter: ProgressMeter
) -> list[Any]:
    """Work on `items` on threads; return the results in their order, or raise the first error."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def report(records: int, done_bytes: int) -> None:
        if stop.is_set():
            raise StoppedError
        if records or done_bytes:
            meter.add(records, done_bytes)

    def work(item: Any) -> Any:
        report(0, 0)
        try:
            return stage.work(folder, item, report)
        except BaseException as error:
            if not isinstance(error, StoppedError):
                errors.append(error)
            stop.set()
            raise

    # Daemons, so that a second Ctrl-C need not wait for work that does not report.
    pool = DaemonPool(min(stage.at_once or usable_cores(), len(items)), "windrow-convert")
    answers = [pool.submit(work, item) for item in items]
    try:
        wait(answers, return_when=FIRST_EXCEPTION)
    except BaseException:  # Ctrl-C
        stop.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    if not errors:
        return [answer.result() for answer in answers]
    # An error refers to the frames that it passed, and they to the results.
    answers.clear()
    first = errors[0]
    errors.clear()
    try:
        raise first
    finally:
        del first


# --- processes -----------------------------------------------------------------------------------


def _done_by_pool(
    pool: WorkerPool,
    processes: int,
    stage: ConversionStage,
    folder: OutputFolder,
    items: Sequence[Any],
    meter: ProgressMeter,
) -> list[Any]:
    """Work on `items` with the workers of a pool, which stay for the next stage.

    Each worker has one item at a time, since items differ much in time and memory.
    """
    try:
        program = pickled_by_value((functools.partial(work_on_item, stage.work, folder), None))
    except Exception as error:  # a type's own way of pickling may raise anything
        raise ArgumentError(
            f"{stage.name}: cannot be sent to worker processes: {type(error).__name__}:"
            f" {error}; have functions open what cannot be pickled (files, locks, connections)"
            " themselves, or leave out processes"
        ) from error
    pool.load(program)
    workers = min(processes, len(items))
    results: list[Any] = [None] * len(items)
    waiting = enumerate(items)
    jobs: dict[Job, int] = {}
    try:
        pool.start(workers)
        while True:
            for number, item in itertools.islice(waiting, workers - len(jobs)):
                jobs[pool.submit(item, tries=1)] = number
            if not jobs:
                return results
            for job in pool.wait_any(jobs):
                while job.reports:
                    meter.add(*job.reports.popleft())
                if pool.is_done(job):
                    results[jobs.pop(job)], counts = pool.wait(job)
                    meter.add(*counts)
    except BaseException as error:
        results.clear()  # the error refers to this frame
        if isinstance(error, WorkerError) and pool.death:
            raise ConversionError(
                f"{stage.name}: a worker process died ({pool.death}), perhaps for want of memory;"
                " run it again, with fewer processes if need be: what is finished is kept"
            ) from error
        raise


def work_on_item(
    work: Callable[[OutputFolder, Any, Report], Any],
    folder: OutputFolder,
    item: Any,
    buffer: MessageBuffer,
) -> Message:
    """Work on an item in a worker process; the reply has its result and its last counts."""
    counts = _ItemProgress()
    try:
        result = work(folder, item, counts.add)
        return Message.of((result, counts.taken()))
    except StoppedError:
        raise
    except BaseException as error:  # the parent raises it
        failure = failure_of(error)
        if failure.pickled is None:
            raise ConversionError(failure.summary) from error
        raise


class _ItemProgress:
    """Counts of records and bytes of an item, which a worker reports now and then."""

    def __init__(self) -> None:
        self._records = self._done_bytes = 0
        self._reported_s = time.monotonic()

    def add(self, records: int, done_bytes: int) -> None:
        """Count; raises a StoppedError if the item is to be stopped."""
        self._records += records
        self._done_bytes += done_bytes
        now_s = time.monotonic()
        if now_s - self._reported_s >= _REPORT_S:
            self._reported_s = now_s
            child.report(self.taken())

    def taken(self) -> tuple[int, int]:
        """The counts since the last report."""
        counts = self._records, self._done_bytes
        self._records = self._done_bytes = 0
        return counts
