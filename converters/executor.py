"""Executor: the stages of a conversion on threads of this process, or on several processes.

Invariant: when an item fails, the others are stopped at their next report, none is begun any more,
and the first error is raised; worker processes end with the process that started them.
"""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Final

import cloudpickle

from windrow.converters.folder import OutputFolder
from windrow.converters.stages import Conversion, Stage
from windrow.errors import ConversionError
from windrow.progress import Meter, ShowProgress
from windrow.sources.process import cores

# How often the counts of worker processes are looked at.
_POLL_S: Final = 0.2


class _StoppedError(Exception):
    """Raised by a report, to end work that nobody waits for any more."""


def run_here(
    conversion: Conversion, folder: OutputFolder, *, processes: int, show: ShowProgress
) -> None:
    """Carry out `conversion` on this machine.

    Args:
        conversion: What is to be done.
        folder: Ready to be written.
        processes: 1 to work on threads of this process, else the number of worker processes.
        show: As for `Meter`.

    Raises:
        WindrowError: What the work raised.
        ConversionError: If a worker process died.
    """
    with _Processes(processes) if processes > 1 else _Threads() as workers:
        results: list[Any] = []
        for stage in conversion.stages:
            items = stage.items(folder, results)
            with Meter(stage.name, sum(map(stage.weigh, items)) or None, show) as meter:
                results = workers.run(stage, folder, items, meter)
    conversion.finish(folder, results)


class _Threads:
    """Works on threads of this process."""

    def __enter__(self) -> _Threads:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def run(
        self, stage: Stage, folder: OutputFolder, items: Sequence[Any], meter: Meter
    ) -> list[Any]:
        stop = threading.Event()

        def report(records: int, done_bytes: int) -> None:
            if stop.is_set():
                raise _StoppedError
            meter.add(records, done_bytes)

        def work(item: Any) -> Any:
            if stop.is_set():
                raise _StoppedError
            return stage.work(folder, item, report)

        pool = ThreadPoolExecutor(stage.at_once or cores(), thread_name_prefix="windrow-convert")
        try:
            return _results(pool, work, items)
        except BaseException:
            stop.set()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


class _Processes:
    """Works on processes, which are started once for all stages."""

    def __init__(self, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._processes = processes
        # Counts of records and bytes, a pair per worker, written by it alone: a lock or a queue
        # would stay blocked behind a worker that was killed.
        self._counts = context.RawArray("q", 2 * processes)
        self._numbers = context.Value("i", 0)
        self._pool = ProcessPoolExecutor(
            processes, context, initializer=_begin, initargs=(self._counts, self._numbers)
        )

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def run(
        self, stage: Stage, folder: OutputFolder, items: Sequence[Any], meter: Meter
    ) -> list[Any]:
        job = cloudpickle.dumps((stage.work, folder))
        try:
            with self._metered(meter):
                work = functools.partial(_work_in_process, job)
                return _results(self._pool, work, items)
        except BrokenProcessPool as error:
            raise ConversionError(
                f"{stage.name}: a worker process died, perhaps for want of memory or since a script"
                " lacks its 'if __name__ == \"__main__\":'; run it again, with fewer processes if"
                " need be: what is finished is kept"
            ) from error

    @contextmanager
    def _metered(self, meter: Meter) -> Iterator[None]:
        """Tell `meter` what the workers count, meanwhile and at the end."""
        over = threading.Event()
        told = self._sums()

        def tell() -> None:
            nonlocal told
            now = self._sums()
            if now != told:
                meter.add(now[0] - told[0], now[1] - told[1])
                told = now

        def watch() -> None:
            while not over.wait(_POLL_S):
                tell()

        thread = threading.Thread(target=watch, name="windrow-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        tell()

    def _sums(self) -> tuple[int, int]:
        counts = list(self._counts)
        return sum(counts[::2]), sum(counts[1::2])


def _results(pool: Executor, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """The results for `items` in their order; the first error that comes is raised at once."""
    futures: list[Future[Any]] = [pool.submit(work, item) for item in items]
    try:
        for future in concurrent.futures.as_completed(futures):
            future.result()
        return [future.result() for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()
        raise


# In a worker process.

_mine: memoryview | None = None


def _begin(counts: Any, numbers: Any) -> None:
    """Take a pair of counts, and see to it that this process ends with its parent."""
    global _mine
    with numbers.get_lock():
        at = numbers.value % (len(counts) // 2)
        numbers.value += 1
    _mine = memoryview(counts).cast("B").cast("q")[2 * at : 2 * at + 2]
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def _work_in_process(job: bytes, item: Any) -> Any:
    work, folder = _loaded(job)
    return work(folder, item, _report)


@functools.lru_cache(maxsize=2)
def _loaded(job: bytes) -> Any:
    return cloudpickle.loads(job)


def _report(records: int, done_bytes: int) -> None:
    if _mine is not None:
        _mine[0] += records
        _mine[1] += done_bytes
