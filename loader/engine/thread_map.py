"""The thread map runs functions on as many threads as make them faster.

A function in pure Python gains nothing from threads and slows down the other threads that need the
interpreter. A function that sleeps, waits for data or releases the interpreter gains much. The code
does not show the kind of a function, so the thread map measures it repeatedly while it works.

Contract:
1. Results never depend on the number of threads. Only the bounds of parts do.
2. When `run` returns or raises, none of its parts is running, unless the caller was interrupted.
3. When something raises, every part before it has been finished, and none is begun any more.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, Future
from typing import Final, Generic, TypeVar

from windrow.core.daemon_threads import DaemonPool
from windrow.errors import ClosedError

T = TypeVar("T")

# A row below this is not worth handing over to another thread.
_WORTH_S = 20e-6

# The gain that more threads must bring to be kept.
_GAIN = 1.25

# Several switch intervals of the interpreter, which is short for the consumer of the rows.
_SAMPLE_S = 0.025

# Parts for each thread, so that no slow row keeps all threads waiting.
_PARTS = 4

# Work until the number of threads is measured again: it doubles while nothing changes.
_LOOK_S = 1.0
_MOST_LOOK_S = 64.0

# Cores that other threads of the process must have lost for a gain to count as taken from them.
_TAKEN_CORES = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class Clocks:
    """Seconds that have passed, that all threads have computed, and that the caller's has."""

    passed: Callable[[], float] = time.perf_counter
    process: Callable[[], float] = time.process_time
    thread: Callable[[], float] = time.thread_time


_CLOCKS = Clocks()


@dataclasses.dataclass(slots=True)
class _PaceSample:
    """The work that a number of threads has done."""

    rows: int = 0
    passed_s: float = 0.0
    own_s: float = 0.0  # computed by these threads
    process_s: float = 0.0  # computed by all threads of the process

    def add(self, more: _PaceSample) -> None:
        """The sum of both."""
        self.rows += more.rows
        self.passed_s += more.passed_s
        self.own_s += more.own_s
        self.process_s += more.process_s

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows / max(self.passed_s, 1e-9)

    @property
    def own_cores(self) -> float:
        return self.own_s / max(self.passed_s, 1e-9)

    @property
    def other_cores(self) -> float:
        return (self.process_s - self.own_s) / max(self.passed_s, 1e-9)


def _pays(fewer: _PaceSample, more: _PaceSample) -> bool:
    """Whether more threads bring enough, without the time that they take from others.

    Two threads of Python alongside a busy consumer get two thirds of the interpreter instead of
    half of it. Such rows are paid for by the consumer and do not count.
    """
    rate = more.rate
    taken = min(fewer.other_cores - more.other_cores, more.own_cores - fewer.own_cores)
    if taken > _TAKEN_CORES:
        rate *= 1 - taken / more.own_cores
    return rate >= _GAIN * fewer.rate


def _look(threads: int, most: int) -> Generator[int, _PaceSample, int]:
    """Yields numbers of threads to sample; returns the one to keep."""
    kept = threads
    here = yield threads
    if threads == 1 and here.rate > 1 / _WORTH_S:
        return 1
    while threads > 1:
        fewer = threads // 2
        below = yield fewer
        if _pays(below, here):
            break
        threads, here = fewer, below
    if threads < kept:
        return threads
    while threads < most:
        more = min(2 * threads, most)
        above = yield more
        if not _pays(here, above):
            break
        threads, here = more, above
    return threads


class _Pace:
    """The measurements of one key: the best number of threads, and the current sample."""

    def __init__(self, key: object, most: int) -> None:
        self.key = key  # kept, so that its id stays its own
        self._most = most
        self._kept = 1
        self._seen = 0  # rows
        self._row_s = 0.0
        self._worked_s = 0.0
        self._look_s = _LOOK_S / 2  # the first look doubles it
        self._begin_look()

    def _begin_look(self) -> None:
        self._looking: Generator[int, _PaceSample, int] | None = _look(self._kept, self._most)
        self.threads = next(self._looking)
        self._sample = _PaceSample()

    def rows(self, left: int) -> int:
        """The number of rows to do next, on `threads` threads."""
        if self._looking is None:
            return left
        if not self._seen:
            return 1
        missing_s = max(_SAMPLE_S - self._sample.passed_s, _SAMPLE_S / 4)
        wanted = math.ceil(missing_s / max(self._row_s, 1e-9))
        # Measurements of a few rows may be wrong for many.
        wanted = max(min(wanted, 4 * self._seen), self._fewest())
        return left if left < 2 * wanted else wanted

    def _fewest(self) -> int:
        return 1 if self.threads == 1 else 2 * self.threads

    def saw(self, sample: _PaceSample) -> None:
        """Learn from rows that were done on `threads` threads."""
        first = not self._seen
        self._seen += sample.rows
        self._row_s = sample.passed_s / sample.rows
        self._worked_s += sample.passed_s
        if self._looking is None:
            if self._worked_s >= self._look_s:
                self._begin_look()
        elif not first:  # the first row may import or compile something
            self._sample.add(sample)
            if self._sample.passed_s >= _SAMPLE_S and self._sample.rows >= self._fewest():
                self._end_sample(self._looking)

    def _end_sample(self, looking: Generator[int, _PaceSample, int]) -> None:
        try:
            self.threads = looking.send(self._sample)
            self._sample = _PaceSample()
        except StopIteration as end:
            changed = end.value != self._kept
            self._look_s = _LOOK_S if changed else min(2 * self._look_s, _MOST_LOOK_S)
            self.threads = self._kept = end.value
            self._looking = None
            self._worked_s = 0.0


class ThreadMap:
    """Does work on rows, on as many threads as pay. For one caller at a time.

    Args:
        most_threads: The most threads that work at a time, with the caller's thread. With less than
            2 the caller does everything.
        clocks: The clocks that measure the work.
    """

    def __init__(self, most_threads: int, *, clocks: Clocks = _CLOCKS) -> None:
        self._most = most_threads
        self._clocks = clocks
        self._paces: dict[int, _Pace] = {}
        self._pool: DaemonPool | None = None
        self._closed = False
        self._is_starved = False

    def run(self, key: object, work: Callable[[int, int], T], rows: int) -> list[T]:
        """Do `work(start, stop)` for contiguous parts that cover `[0, rows)`, each row once.

        Args:
            key: The object that the work belongs to; the measured pace is kept under its identity.
            work: Does rows `[start, stop)`, at least one. Called by several threads at once.
            rows: How many there are. With 1 it is one call; with 0 there is no call.

        Returns:
            The results of the calls, in the order of the rows.

        Raises:
            BaseException: The error of the first call, in the order of the rows, that failed.
            ClosedError: After `close`.
        """
        self._check_open()
        self._is_starved |= self._most > 1 and 0 < rows < 2 * self.threads(key)
        if rows < 2 or self._most < 2:
            return [work(0, rows)] if rows else []
        pace = self._pace(key)
        made: list[T] = []
        start = 0
        while start < rows:
            self._check_open()
            stop = start + pace.rows(rows - start)
            found, sample = self._measured(work, start, stop, pace.threads)
            made += found
            pace.saw(sample)
            start = stop
        return made

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("these threads were closed: make a new iterator to continue")

    def threads(self, key: object) -> int:
        """Threads that the next rows of `key` are done on, if there are as many rows."""
        return self._pace(key).threads if self._most > 1 else 1

    @property
    def most_used(self) -> int:
        """The most threads that any work is done on now. Any thread may ask."""
        return max((pace.threads for pace in list(self._paces.values())), default=1)

    def was_starved(self) -> bool:
        """Whether a `run` since the last check had fewer rows than its threads could do."""
        starved, self._is_starved = self._is_starved, False
        return starved

    def close(self, *, wait: bool = True) -> None:
        """End the threads after the calls in progress, and wait for these if `wait` is set."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown(wait)

    def _pace(self, key: object) -> _Pace:
        pace = self._paces.get(id(key))
        if pace is None:
            pace = self._paces[id(key)] = _Pace(key, self._most)
        return pace

    def _measured(
        self, work: Callable[[int, int], T], start: int, stop: int, threads: int
    ) -> tuple[list[T], _PaceSample]:
        clocks = self._clocks
        rows = stop - start
        passed_s, process_s = clocks.passed(), clocks.process()
        if threads == 1 or rows == 1:
            own_s = clocks.thread()
            made = [work(start, stop)]
            own_s = clocks.thread() - own_s
        else:
            parts = min(rows, _PARTS * threads)
            cuts = [start + rows * number // parts for number in range(parts + 1)]
            made, own_s = self._side_by_side(work, cuts, min(threads, rows))
        sample = _PaceSample(rows, clocks.passed() - passed_s, own_s, clocks.process() - process_s)
        return made, sample

    def _side_by_side(
        self, work: Callable[[int, int], T], cuts: Sequence[int], threads: int
    ) -> tuple[list[T], float]:
        """The results of the parts between `cuts`, and the seconds of computing by threads."""
        if self._pool is None:
            self._pool = DaemonPool(self._most - 1, "windrow-map")
        job = _MapJob(work, cuts, self._clocks)
        helpers: list[Future[None]] = []
        try:
            helpers += (self._pool.submit(job.help) for _ in range(threads - 1))
            job.help()
        finally:
            job.finish(helpers)
        return job.results(), sum(job.own_s)


@dataclasses.dataclass(frozen=True, slots=True)
class StageThreads:
    """Threads of the process that does a task; by default its own thread does everything.

    Args:
        thread_map: Calls functions.
        pool: Reads records of sources without a batched read.
        count: Reads at a time.
    """

    thread_map: ThreadMap | None = None
    pool: Executor | None = None
    count: int = 1


NO_THREADS: Final = StageThreads()
"""The thread of the caller alone."""


class _MapJob(Generic[T]):
    """Parts that several threads take from the front, one after the other."""

    def __init__(self, work: Callable[[int, int], T], cuts: Sequence[int], clocks: Clocks) -> None:
        self._work = work
        self._todo = collections.deque(enumerate(itertools.pairwise(cuts)))
        self._made: dict[int, T] = {}
        self._failed: dict[int, BaseException] = {}
        self._clocks = clocks
        self.own_s: list[float] = []

    def help(self) -> None:
        """Do parts until no part is left; raises nothing."""
        own_s = self._clocks.thread()
        while True:
            try:
                number, (start, stop) = self._todo.popleft()
            except IndexError:
                break
            try:
                self._made[number] = self._work(start, stop)
            except BaseException as error:  # raised where the results are awaited
                self._failed[number] = error
                self._todo.clear()  # parts are taken in order: what is left comes after this one
        self.own_s.append(self._clocks.thread() - own_s)

    def finish(self, helpers: Sequence[Future[None]]) -> None:
        """Wait until no part is running; parts that no thread has begun stay undone."""
        self._todo.clear()
        is_interrupted = any(isinstance(e, KeyboardInterrupt) for e in list(self._failed.values()))
        for helper in helpers:
            if not helper.cancel() and not is_interrupted:
                helper.result()

    def results(self) -> list[T]:
        """The results of the parts, in order; raises the error of the first part that failed."""
        if not self._failed:
            return [self._made[number] for number in range(len(self._made))]
        # Ctrl-C ends everything, also after another error.
        stops = [n for n, error in self._failed.items() if isinstance(error, KeyboardInterrupt)]
        error = self._failed[min(stops or self._failed)]
        # An error holds on to this frame: the frame must not hold on to the error.
        self._failed.clear()
        try:
            raise error
        finally:
            del error
