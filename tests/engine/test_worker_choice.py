"""The number of workers that is chosen, in a world whose speeds are known."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from windrow.engine.worker_choice import WorkerChoice, WorkSample

CORES = 8


@dataclasses.dataclass
class World:
    """Seconds that a row takes: of reading, in functions, to be sent to a worker and back, and in the loop.

    Args:
        threads: By how much threads of this process speed functions up.
        cores: Cores that workers may keep busy.
    """

    reads_s: float = 0.0
    calls_s: float = 1e-3
    sends_s: float = 1e-5
    loop_s: float = 0.0
    threads: float = 1.0
    cores: int = CORES
    room: int = 100

    def row_s(self, workers: int) -> float:
        """Seconds between two rows, if the loop always waits."""
        if not workers:
            return self.reads_s + self.calls_s / self.threads
        return max(self.reads_s + self.sends_s, self.calls_s / min(workers, self.cores))

    def sample(self, workers: int) -> WorkSample:
        """What is measured in a second."""
        made_s = self.row_s(workers)
        row_s = max(self.loop_s, made_s)
        rows = round(1000 / row_s)
        called_s = self.calls_s if workers else self.calls_s / self.threads
        waited_s = made_s - self.reads_s if workers else 0.0
        return WorkSample(
            workers,
            rows,
            rows * row_s,
            ahead_s=rows * (row_s - made_s),
            waited_s=rows * waited_s,
            worked_s=rows * called_s,
            cores=(self.reads_s + self.calls_s) / row_s,
        )

    def after(self, choice: WorkerChoice, samples: int = 30) -> list[int]:
        """The numbers that were used."""
        used = []
        for _ in range(samples):
            used.append(choice.workers)
            # As long as it takes to be sure; here it is always a second.
            sample = self.sample(choice.workers)
            part = 1 / sample.passed_s
            fields = dataclasses.asdict(sample)
            shares = {name: value * part for name, value in fields.items() if name.endswith("_s")}
            choice.saw(
                dataclasses.replace(sample, rows=round(sample.rows * part), **shares), self.room
            )
        return used


class Cramped(World):
    """A world in which reading and sending need a core, too."""

    def row_s(self, workers: int) -> float:
        sends_s = self.sends_s if workers else 0.0
        computed_s = self.reads_s + sends_s + self.calls_s
        return max(super().row_s(workers), computed_s / self.cores)


def choice(fewest: int = 0, cores: int = CORES) -> WorkerChoice:
    return WorkerChoice(fewest, cores)


def test_slow_python_gets_all_cores_at_once() -> None:
    chosen = choice()
    used = World(calls_s=1e-3).after(chosen, 3)
    assert used == [0, CORES, CORES]
    assert chosen.reason == "8 workers made 8.00 times the elements of this process"
    assert not chosen.is_trial


def test_no_more_start_than_this_process_can_feed() -> None:
    chosen = choice()
    assert World(reads_s=5e-4, calls_s=1.2e-3).after(chosen, 4) == [0, 3, 3, 3]
    assert chosen.workers == 3


def test_reading_is_left_alone() -> None:
    chosen = choice()
    assert set(World(reads_s=1e-3, calls_s=1e-5).after(chosen)) == {0}
    assert chosen.reason == "functions take 1% of the time, reading and gathering the rest"


def test_cheap_functions_are_left_alone() -> None:
    chosen = choice()
    assert set(World(calls_s=1e-6).after(chosen)) == {0}
    assert chosen.reason == "functions take 1.0 us for an element, less than sending it"


def test_functions_on_threads_that_fill_the_cores_are_left_alone() -> None:
    chosen = choice()
    assert set(World(calls_s=1e-3, threads=7.5).after(chosen)) == {0}
    assert chosen.reason == "this process keeps 7.5 of 8 cores busy by itself"


def test_a_slow_loop_starts_no_workers() -> None:
    chosen = choice()
    assert set(World(calls_s=1e-3, loop_s=2e-3).after(chosen)) == {0}
    assert chosen.reason == "the loop is slower than the functions"


def test_workers_that_cost_more_than_they_save_are_tried_once_in_a_while() -> None:
    chosen = choice()
    used = World(calls_s=1e-4, sends_s=2e-4).after(chosen, 200)
    assert used[:3] == [0, CORES, 0]
    assert sum(map(bool, used)) <= 4
    assert chosen.reason == "8 workers made 0.50 times the elements of this process"


def test_workers_that_the_loop_does_not_need_go() -> None:
    chosen = choice()
    World().after(chosen, 3)
    assert chosen.workers == CORES
    World(loop_s=5e-4).after(chosen, 8)
    assert chosen.workers == 3  # 2 are busy all of the time
    assert chosen.reason == "the loop is slower than 3 workers"


def test_workers_come_back_when_the_loop_is_fast_again() -> None:
    chosen = choice()
    World().after(chosen, 3)
    World(loop_s=5e-4).after(chosen, 8)
    World().after(chosen, 12)
    assert chosen.workers == CORES


def test_functions_that_have_become_cheap_come_home() -> None:
    chosen = choice()
    World().after(chosen, 3)
    World(calls_s=2e-6, sends_s=2e-5).after(chosen, 60)
    assert chosen.workers == 0


def test_workers_are_kept_while_this_process_is_tried() -> None:
    chosen = choice()
    used = World().after(chosen, 100)
    tries = [at for at, workers in enumerate(used) if not workers][1:]
    assert len(tries) == 2  # after 30 and 60 seconds, and later more rarely
    assert all(used[at + 1] == CORES for at in tries)


def test_it_is_a_trial_until_it_is_judged() -> None:
    chosen = choice()
    World().after(chosen, 1)
    assert (chosen.workers, chosen.is_trial) == (CORES, True)
    assert chosen.reason == "functions take 100% of the time of this process"


def test_one_core_has_no_workers() -> None:
    chosen = choice(cores=1)
    assert set(World().after(chosen)) == {0}
    assert chosen.reason == "this process may use one core"


def test_memory_bounds_the_number() -> None:
    chosen = choice()
    assert World(room=3).after(chosen, 3) == [0, 3, 3]
    World(room=1).after(chosen, 1)
    assert (chosen.workers, chosen.reason) == (1, "there is no memory for more")
    chosen = choice()
    assert set(World(room=0).after(chosen)) == {0}
    assert chosen.reason == "there is no memory for a worker"


@pytest.mark.parametrize("cores", [1, CORES])
def test_functions_that_only_workers_may_call_have_one(cores: int) -> None:
    chosen = choice(fewest=1, cores=cores)
    assert set(World(room=0).after(chosen, 100)) == {1}
    used = World().after(chosen, 10)
    assert 0 not in used
    assert used[-1] == cores


def test_what_cannot_be_sent_stays_here() -> None:
    chosen = choice()
    World().after(chosen, 3)
    chosen.only_here("elements cannot be sent")
    assert set(World().after(chosen)) == {0}
    assert chosen.reason == "elements cannot be sent"


@given(
    reads_s=st.floats(0, 2e-3),
    calls_s=st.floats(1e-7, 2e-3),
    sends_s=st.floats(1e-6, 1e-3),
    threads=st.floats(1, 4),
    cores=st.integers(2, 16),
)
@example(reads_s=1.953125e-3, calls_s=1.953125e-3, sends_s=3.5e-4, threads=1, cores=2)
@example(reads_s=7.722394755e-4, calls_s=1.953125e-3, sends_s=1e-5, threads=3, cores=3)
@example(reads_s=1.405616666e-4, calls_s=1.402731972e-3, sends_s=1.4e-4, threads=4, cores=5)
@example(reads_s=0, calls_s=1e-5, sends_s=1e-6, threads=2, cores=4)
@example(reads_s=0, calls_s=5e-6, sends_s=1e-6, threads=1, cores=2)
def test_the_choice_is_about_as_good_as_the_best(
    reads_s: float, calls_s: float, sends_s: float, threads: float, cores: int
) -> None:
    world = Cramped(reads_s, calls_s, sends_s, threads=min(threads, cores), cores=cores)
    chosen = choice(cores=cores)
    world.after(chosen, 25)
    best_s = min(map(world.row_s, range(cores + 1)))
    while chosen.is_trial:
        world.after(chosen, 1)
    # Less than a tenth is lost to each of two numbers between which it chose, and what functions
    # take that are not worth a worker.
    assert 0.7 * world.row_s(chosen.workers) <= best_s or world.calls_s / world.threads < 6e-6
