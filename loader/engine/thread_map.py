"""The thread map runs functions on as many threads as make them faster.

A function in pure Python gains nothing from threads and slows down the other threads that need the
interpreter. A function that sleeps, waits for data or releases the interpreter gains much. The code
does not show the kind of a function, so its first rows are tried on one thread, then on twice as many
while that pays. The trial is repeated from time to time, since the first rows may be unlike the others.

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
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Final, Generic, TypeVar

from windrow.core.threads import DaemonPool
from windrow.errors import ClosedError

T = TypeVar("T")

# A row below this is not worth handing over to another thread.
_WORTH_S: Final = 20e-6

# The gain that twice as many threads must bring to be kept. Two threads of Python alongside a busy
# consumer get two thirds of the interpreter instead of half of it: a gain of 1.33 that it pays for.
_GAIN: Final = 1.4

# Several switch intervals of the interpreter, which is short for the consumer of the rows.
_SAMPLE_S: Final = 0.025

# Parts for each thread, so that no slow row keeps all threads waiting.
_PARTS: Final = 4

# The time until the next trial, in times that the last one took.
_WORK_PER_TRIAL: Final = 64


class _Trial:
    """Tries the work of one key on ever more threads, and keeps the number that pays."""

    def __init__(self, key: object, most: int) -> None:
        self.key = key  # kept, so that its id stays its own
        self._most = most
        self._seen = 0  # rows
        self._row_s = 0.0
        self._begin()

    def _begin(self) -> None:
        self.threads, self._fewer, self._rate_of_fewer = 1, 1, 0.0
        self._is_over, self._worked_s, self._next_s = False, 0.0, math.inf
        self._begin_sample()

    def _begin_sample(self) -> None:
        self._rows, self._passed_s = 0, 0.0

    def rows(self, left: int) -> int:
        """The number of rows to do next, on `threads` threads."""
        if self._is_over:
            return left
        if not self._seen:
            return 1
        missing_s = max(_SAMPLE_S - self._passed_s, _SAMPLE_S / 4)
        wanted = math.ceil(missing_s / max(self._row_s, 1e-9))
        # Measurements of a few rows may be wrong for many.
        wanted = max(min(wanted, 4 * self._seen), self._fewest())
        return left if left < 2 * wanted else wanted

    def _fewest(self) -> int:
        return 1 if self.threads == 1 else 2 * self.threads

    def saw(self, rows: int, passed_s: float) -> None:
        """Learn from rows that were done on `threads` threads."""
        is_first = not self._seen
        self._seen += rows
        self._row_s = passed_s / rows
        self._worked_s += passed_s
        if self._is_over:
            if self._worked_s >= self._next_s:
                self._begin()
        elif not is_first:  # the first row may import or compile something
            self._rows += rows
            self._passed_s += passed_s
            if self._passed_s >= _SAMPLE_S and self._rows >= self._fewest():
                self._judge(self._rows / self._passed_s)

    def _judge(self, rate: float) -> None:
        """Continue the trial or end it, after a sample with this rate in rows per second."""
        if rate < _GAIN * self._rate_of_fewer:
            self.threads, self._is_over = self._fewer, True
        elif self.threads == self._most or (self.threads == 1 and rate > 1 / _WORTH_S):
            self._is_over = True
        else:
            self._fewer, self._rate_of_fewer = self.threads, rate
            self.threads = min(2 * self.threads, self._most)
            self._begin_sample()
        self._next_s = (1 + _WORK_PER_TRIAL) * self._worked_s


class ThreadMap:
    """Does work on rows, on as many threads as pay. For one caller at a time.

    Args:
        most_threads: The most threads that work at a time, with the caller's thread. With less than
            2 the caller does everything.
        clock: Seconds that have passed.
    """

    def __init__(
        self, most_threads: int, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._most = most_threads
        self._clock = clock
        self._trials: dict[int, _Trial] = {}
        self._pool: DaemonPool | None = None
        self._closed = False
        self._is_starved = False

    def run(self, key: object, work: Callable[[int, int], T], rows: int) -> list[T]:
        """Do `work(start, stop)` for contiguous parts that cover `[0, rows)`, each row once.

        Args:
            key: The object that the work belongs to; its number of threads is kept under its identity.
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
        trial = self._trial(key)
        made: list[T] = []
        start = 0
        while start < rows:
            self._check_open()
            stop = start + trial.rows(rows - start)
            began_s = self._clock()
            made += self._made(work, start, stop, trial.threads)
            trial.saw(stop - start, self._clock() - began_s)
            start = stop
        return made

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("these threads were closed: make a new iterator to continue")

    def threads(self, key: object) -> int:
        """Threads that the next rows of `key` are done on, if there are as many rows."""
        return self._trial(key).threads if self._most > 1 else 1

    @property
    def most_used(self) -> int:
        """The most threads that any work is done on now. Any thread may ask."""
        return max((trial.threads for trial in list(self._trials.values())), default=1)

    def was_starved(self) -> bool:
        """Whether a `run` since the last check had fewer rows than its threads could do."""
        starved, self._is_starved = self._is_starved, False
        return starved

    def close(self, *, wait: bool = True) -> None:
        """End the threads after the calls in progress, and wait for these if `wait` is set."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown(wait)

    def _trial(self, key: object) -> _Trial:
        trial = self._trials.get(id(key))
        if trial is None:
            trial = self._trials[id(key)] = _Trial(key, self._most)
        return trial

    def _made(self, work: Callable[[int, int], T], start: int, stop: int, threads: int) -> list[T]:
        rows = stop - start
        if threads == 1 or rows == 1:
            return [work(start, stop)]
        if self._pool is None:
            self._pool = DaemonPool(self._most - 1, "windrow-map")
        parts = min(rows, _PARTS * threads)
        job = _MapJob(work, [start + rows * number // parts for number in range(parts + 1)])
        helpers: list[Future[None]] = []
        try:
            helpers += (self._pool.submit(job.help) for _ in range(min(threads, rows) - 1))
            job.help()
        finally:
            job.finish(helpers)
        return job.results()


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

    def __init__(self, work: Callable[[int, int], T], cuts: Sequence[int]) -> None:
        self._work = work
        self._todo = collections.deque(enumerate(itertools.pairwise(cuts)))
        self._made: dict[int, T] = {}
        self._failed: dict[int, BaseException] = {}

    def help(self) -> None:
        """Do parts until no part is left; raises nothing."""
        while True:
            try:
                number, (start, stop) = self._todo.popleft()
            except IndexError:
                return
            try:
                self._made[number] = self._work(start, stop)
            except BaseException as error:  # raised where the results are awaited
                self._failed[number] = error
                self._todo.clear()  # parts are taken in order: what is left comes after this one

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
