"""Functions on threads: as many as pay, the same results, and none left behind."""

from __future__ import annotations

import collections
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.engine.thread_map import ThreadMap

WAIT_S = 20


class World:
    """A clock that passes by the work done, and a function of rows that knows how it gains.

    Attributes:
        row_s: Seconds that a row takes on one thread.
        gain: By how much a number of threads is quicker than one.
        rows_on: Rows done on each number of threads.
    """

    def __init__(self, most_threads: int, row_s: float = 1e-3) -> None:
        self.row_s = row_s
        self.gain: Callable[[int], float] = lambda threads: 1.0
        self.key = object()
        self.rows_on: collections.Counter[int] = collections.Counter()
        self._lock = threading.Lock()
        self.passed_s = 0.0
        self.map = ThreadMap(most_threads, clock=lambda: self.passed_s)

    def work(self, start: int, stop: int) -> list[int]:
        threads = self.map.threads(self.key)
        with self._lock:
            self.passed_s += (stop - start) * self.row_s / self.gain(threads)
            self.rows_on[threads] += stop - start
        return list(range(start, stop))

    def run(self, rows: int = 1000) -> list[int]:
        parts = self.map.run(self.key, self.work, rows)
        return [row for part in parts for row in part]

    def run_for(self, seconds: float) -> None:
        end = self.passed_s + seconds
        while self.passed_s < end:
            assert self.run(100) == list(range(100))

    @property
    def threads(self) -> int:
        return self.map.threads(self.key)


@pytest.fixture
def world() -> Iterator[World]:
    world = World(most_threads=16)
    yield world
    world.map.close()


@pytest.fixture(scope="module", autouse=True)
def no_earlier_threads(frozen: None) -> None:
    """End the threads of other tests' iterators: those that were garbage only after `frozen`."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def map_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("windrow-map")]


@pytest.fixture
def on_4() -> Iterator[World]:
    """A world whose function has been found to gain from four threads."""
    world = settled_on_4()
    yield world
    world.map.close()


def settled_on_4() -> World:
    world = World(most_threads=4)
    world.gain = float
    world.run()
    assert world.threads == 4
    return world


class TestNumberOfThreads:
    def test_a_function_that_gains_nothing_stays_on_one(self, world: World) -> None:
        world.run_for(0.9)
        assert set(world.rows_on) == {1, 2}
        assert world.rows_on[2] < 100
        assert world.threads == 1

    def test_a_function_that_gains_gets_all_threads_in_its_first_call(self, world: World) -> None:
        world.gain = float
        assert world.run() == list(range(1000))
        assert set(world.rows_on) == {1, 2, 4, 8, 16}
        assert world.threads == 16

    def test_rows_that_cost_little_are_never_handed_over(self) -> None:
        world = World(most_threads=16, row_s=5e-6)
        world.gain = float
        world.run_for(5)
        assert set(world.rows_on) == {1}
        assert not map_threads()

    def test_it_is_tried_again(self, world: World) -> None:
        world.gain = float
        world.run_for(0.5)
        assert world.threads == 16
        world.gain = lambda threads: 1
        world.run_for(12)
        assert world.threads == 1

    def test_a_number_that_goes_on_to_pay_is_kept(self, world: World) -> None:
        world.gain = lambda threads: min(threads, 4)
        world.run_for(30)
        assert world.rows_on[4] > 0.9 * world.rows_on.total()

    def test_a_gain_that_a_busy_consumer_pays_for_does_not_count(self, world: World) -> None:
        world.gain = lambda threads: 2 * threads / (threads + 1)
        world.run_for(0.9)
        assert set(world.rows_on) == {1, 2}
        assert world.threads == 1


class TestRows:
    @given(
        rows=st.lists(st.integers(0, 400), max_size=30),
        row_s=st.sampled_from([1e-6, 1e-4, 1e-3, 0.1]),
        gains=st.lists(st.floats(0.3, 8), min_size=9, max_size=9),
        most=st.integers(0, 8),
    )
    def test_each_row_comes_once_and_in_order(
        self, rows: list[int], row_s: float, gains: list[float], most: int
    ) -> None:
        world = World(most, row_s)
        world.gain = gains.__getitem__
        for count in rows:
            assert world.run(count) == list(range(count))
        world.map.close()

    def test_parts_run_at_the_same_time(self, on_4: World) -> None:
        together = threading.Barrier(4)

        def work(start: int, stop: int) -> tuple[int, int]:
            together.wait(WAIT_S)  # breaks unless four calls are waiting
            return start, stop

        found = on_4.map.run(on_4.key, work, 160)
        assert found == [(start, start + 10) for start in range(0, 160, 10)]


class Failing:
    """Fails for some rows; the first of them waits until the last has failed."""

    def __init__(self, errors: dict[int, BaseException]) -> None:
        self.running = 0
        self.begun: set[int] = set()
        self._errors = errors
        self._last = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, start: int, stop: int) -> int:
        with self._lock:
            self.running += 1
            self.begun.add(start)
        try:
            for row in range(start, stop):
                if row in self._errors:
                    if row == max(self._errors):
                        self._last.set()
                    elif row == min(self._errors):
                        assert self._last.wait(WAIT_S)
                    raise self._errors[row]
            return start
        finally:
            with self._lock:
                self.running -= 1


class TestErrors:
    def test_the_first_in_order_of_rows_is_raised(self, on_4: World) -> None:
        work = Failing({1: ValueError("row 1"), 11: ValueError("row 11")})
        with pytest.raises(ValueError, match=r"^row 1$"):
            on_4.map.run(on_4.key, work, 160)
        assert work.running == 0

    def test_an_error_is_freed_without_the_garbage_collector(self, on_4: World) -> None:

        class OwnError(Exception):
            pass

        def work(start: int, stop: int) -> None:
            raise OwnError

        def died() -> weakref.ref[BaseException]:
            try:
                on_4.map.run(on_4.key, work, 160)
            except OwnError as error:
                return weakref.ref(error)
            raise AssertionError("nothing was raised")

        gc.disable()
        try:
            died_of = died()
            on_4.map.close()  # the threads have left their frames
            assert died_of() is None
        finally:
            gc.enable()


class TestThreads:
    def test_they_end_with_their_owner(self) -> None:
        world = settled_on_4()
        threads = map_threads()
        assert threads
        del world
        deadline = time.monotonic() + WAIT_S
        while map_threads() and time.monotonic() < deadline:
            gc.collect()  # again: a thread may have been about to let its last part go
            threads[0].join(0.01)
        assert not map_threads()
