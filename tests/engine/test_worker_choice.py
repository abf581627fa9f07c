"""The number of workers that is chosen, in a world whose speeds are known."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from windrow.engine.worker_choice import WorkerChoice, WorkSample, choose_workers

CORES = 8


@dataclasses.dataclass
class World:
    """Seconds that a row takes: of reading, in functions, and to be sent to a worker and back.

    Args:
        threads: By how much threads of this process speed functions up.
        cores: Cores that may be kept busy.
    """

    reads_s: float = 0.0
    calls_s: float = 1e-3
    sends_s: float = 5e-6
    threads: float = 1.0
    cores: int = CORES
    room: int = 100

    def row_s(self, workers: int) -> float:
        """Seconds between two rows."""
        sends_s = self.sends_s if workers else 0.0
        computed_s = self.reads_s + sends_s + self.calls_s
        if workers:
            made_s = max(self.reads_s + sends_s, self.calls_s / workers)
        else:
            made_s = self.reads_s + self.calls_s / self.threads
        return max(made_s, computed_s / self.cores)

    def choice(self, fewest: int = 0) -> WorkerChoice:
        """What is chosen after a second."""
        row_s = self.row_s(fewest)
        rows = round(1 / row_s)
        sample = WorkSample(
            rows,
            passed_s=rows * row_s,
            functions_s=rows * (self.calls_s if fewest else self.calls_s / self.threads),
            own_s=rows * (self.reads_s + (self.sends_s if fewest else 0.0)),
            computed_s=0.0 if fewest else rows * (self.reads_s + self.calls_s),
        )
        return choose_workers(sample, cores=self.cores, room=self.room, fewest=fewest)


def test_slow_python_gets_all_cores() -> None:
    chosen = World(calls_s=1e-3).choice()
    assert chosen.workers == CORES
    assert chosen.reason == (
        "functions take 100% of the time, 1,000.0 us for an element;"
        " workers make it at most 8.0 times as fast"
    )


def test_reading_is_left_alone() -> None:
    chosen = World(reads_s=1e-3, calls_s=1e-5).choice()
    assert chosen.workers == 0
    assert chosen.reason.startswith("functions take 1% of the time, 10.0 us for an element;")


def test_functions_on_threads_that_fill_the_cores_are_left_alone() -> None:
    assert World(calls_s=1e-3, threads=7.5).choice().workers == 0


def test_memory_bounds_the_number() -> None:
    assert World(room=3).choice().workers == 3
    assert World(room=0).choice() == WorkerChoice(0, "there is no memory for more workers")
    assert World(room=1).choice(fewest=1).workers == 1


@pytest.mark.parametrize(("reads_s", "workers"), [(0.0, CORES), (5e-4, 3), (2e-3, 1)])
def test_functions_that_only_workers_may_call_are_measured_in_one(
    reads_s: float, workers: int
) -> None:
    assert World(reads_s=reads_s).choice(fewest=1).workers == workers


@given(
    reads_s=st.floats(0, 2e-3),
    calls_s=st.floats(1e-7, 2e-3),
    sends_s=st.floats(1e-6, 1e-5),
    threads=st.floats(1, 4),
    cores=st.integers(2, 16),
    fewest=st.integers(0, 1),
)
@example(reads_s=1.9e-3, calls_s=1.9e-3, sends_s=1e-5, threads=1, cores=2, fewest=0)
@example(reads_s=7.7e-4, calls_s=1.9e-3, sends_s=1e-5, threads=3, cores=3, fewest=0)
@example(reads_s=0, calls_s=1e-5, sends_s=1e-6, threads=2, cores=4, fewest=0)
@example(reads_s=0, calls_s=5e-6, sends_s=1e-6, threads=1, cores=2, fewest=1)
def test_the_choice_is_about_as_good_as_the_best(
    reads_s: float, calls_s: float, sends_s: float, threads: float, cores: int, fewest: int
) -> None:
    world = World(reads_s, calls_s, sends_s, min(threads, cores), cores)
    chosen = world.choice(fewest).workers
    best_s = min(map(world.row_s, range(fewest, cores + 1)))
    # What an element takes to be sent is not known better than this.
    assert 0.75 * (world.row_s(chosen) - 1e-5) <= best_s
