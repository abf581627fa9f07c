"""The number of workers that is chosen, in a world whose speeds are known."""

from __future__ import annotations

import dataclasses

from hypothesis import example, given
from hypothesis import strategies as st

from windrow import MultiprocessingOptions
from windrow.engine.worker_choice import WorkerChooser, choose_workers
from windrow.stats.profiler import ActivityClock
from windrow.transforms.nodes import WorkerSettings

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

    def choice(self) -> tuple[int, str]:
        """What is chosen after a second."""
        row_s = self.row_s(0)
        rows = round(1 / row_s)
        computed_s = rows * (self.reads_s + self.calls_s)
        functions_s = rows * self.calls_s / self.threads
        limits = {"cores": self.cores, "room": self.room}
        return choose_workers(rows, rows * row_s, functions_s, computed_s, **limits)


def test_slow_python_gets_all_cores() -> None:
    workers, reason = World(calls_s=1e-3).choice()
    assert workers == CORES
    assert reason == (
        "functions take 100% of the time, 1,000.0 us for an element;"
        " workers make it at most 8.0 times as fast"
    )


def test_memory_bounds_the_number() -> None:
    assert World(room=3).choice()[0] == 3
    assert World(room=0).choice() == (0, "there is no memory for workers")


@given(
    reads_s=st.floats(0, 2e-3),
    calls_s=st.floats(1e-7, 2e-3),
    sends_s=st.floats(1e-6, 1e-5),
    threads=st.floats(1, 4),
    cores=st.integers(2, 16),
)
@example(reads_s=1.9e-3, calls_s=1.9e-3, sends_s=1e-5, threads=1, cores=2)
@example(reads_s=7.7e-4, calls_s=1.9e-3, sends_s=1e-5, threads=3, cores=3)
@example(reads_s=0, calls_s=1e-5, sends_s=1e-6, threads=2, cores=4)
def test_the_choice_is_about_as_good_as_the_best(
    reads_s: float, calls_s: float, sends_s: float, threads: float, cores: int
) -> None:
    world = World(reads_s, calls_s, sends_s, min(threads, cores), cores)
    chosen, _ = world.choice()
    best_s = min(map(world.row_s, range(cores + 1)))
    # What an element takes to be sent is not known better than this.
    assert 0.75 * (world.row_s(chosen) - 1e-5) <= best_s


def test_the_first_second_that_the_loop_waits_for_is_measured() -> None:
    now_s = [0.0]

    def made(share: float, seconds: float = 0.25) -> None:
        now_s[0] += seconds
        chooser.took(10, share * seconds)

    settings = WorkerSettings(MultiprocessingOptions("auto"), None)
    clock = lambda: now_s[0]  # noqa: E731
    chooser = WorkerChooser(settings, 3, cores=4, passed=clock, computed=clock)
    maker = ActivityClock(clock)
    chooser.begin(maker, None)
    assert "waited for too few elements" in str(maker.chosen[3])
    made(0.0, 0.1875)
    made(0.0, 0.1875)  # the sizes of work items settle
    maker.is_ahead = True
    for _ in range(100):
        made(0.0)
    maker.is_ahead = False
    for _ in range(3):
        made(0.8)
    assert chooser.workers == 0
    made(0.8)
    assert chooser.workers == 4
    text = "4 worker processes: functions take 80% of the time, 20,000.0 us for an element"
    assert str(maker.chosen[3]).startswith(text)
    for _ in range(100):
        made(0.0)
    assert chooser.workers == 4
