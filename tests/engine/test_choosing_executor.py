"""The workers of `mp_prefetch("auto")`: who is started, who gets work, and what is measured."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from windrow.engine.choosing_executor import ChosenTeam, WorkClocks
from windrow.engine.worker_choice import WorkerChoice, WorkSample
from windrow.errors import WorkerError
from windrow.stats.profiler import ROOM, WORKERS, ActivityClock


class FakeTeam:
    """Workers that are ready when a test says so, and that note what is asked of them."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.ready_count = 0
        self.refuses = 100
        self.ends = False
        self.process_ids: Sequence[int] = ()

    def employ(self, count: int) -> None:
        self.calls.append(f"employ {count}")
        if count >= self.refuses:
            raise WorkerError("no more processes")

    def dismiss(self) -> None:
        self.calls.append("dismiss")

    def ready(self) -> int:
        if self.ends:
            raise WorkerError("3 workers in a row ended")
        return self.ready_count


class Scripted(WorkerChoice):
    """Chooses the given numbers, one after each sample; those below zero are trials."""

    def __init__(self, *numbers: int) -> None:
        super().__init__(0, 8)
        self.numbers = list(numbers)
        self.samples: list[WorkSample] = []
        self.rooms: list[int] = []

    def saw(self, sample: WorkSample, room: int = 0) -> None:
        self.samples.append(sample)
        self.rooms.append(room)
        if self.numbers:
            number = self.numbers.pop(0)
            self.workers, self.is_trial = abs(number), number < 0


class Rig:
    """Chosen workers under a clock."""

    def __init__(self, *numbers: int) -> None:
        self.now_s = 0.0
        self.team, self.choice = FakeTeam(), Scripted(*numbers)
        clocks = WorkClocks(lambda: self.now_s, lambda: self.now_s / 2, lambda ids: 5 + len(ids))
        self.chosen = ChosenTeam(self.team, self.choice, 3, clocks)
        self.maker = ActivityClock(lambda: self.now_s)
        self.chosen.begin(self.maker, None)

    def does(self, seconds: float, *, room_s: float = 0.0, wait_s: float = 0.0) -> None:
        """A result of ten rows, whose functions took the rest of the time."""
        _ = self.chosen.workers  # asked when it is begun
        with self.maker.working():
            for activity, spent_s in ((ROOM, room_s), (WORKERS, wait_s)):
                with self.maker.at(activity):
                    self.now_s += spent_s
        self.now_s += seconds - room_s - wait_s
        self.chosen.took(10, seconds - room_s - wait_s)


def test_a_sample_has_what_was_measured_after_the_first_results() -> None:
    rig = Rig()
    rig.does(0.1)
    rig.does(0.2)  # the sizes of work items settle
    for _ in range(4):
        rig.does(0.25, room_s=0.05, wait_s=0.1)
    (sample,) = rig.choice.samples
    assert (sample.workers, sample.rows) == (0, 40)
    measured = sample.passed_s, sample.ahead_s, sample.waited_s, sample.worked_s, sample.cores
    assert measured == pytest.approx((1.0, 0.2, 0.4, 0.4, 0.5))
    assert rig.choice.rooms == [5]
    assert rig.team.calls == []


def run(rig: Rig, samples: int) -> None:
    wanted = len(rig.choice.samples) + samples
    for _ in range(100):
        rig.does(0.25)
        if len(rig.choice.samples) == wanted:
            return
    raise AssertionError("no sample came to its end")


def test_workers_get_work_once_all_are_ready() -> None:
    rig = Rig(-2)
    run(rig, 1)
    assert rig.team.calls == ["employ 2"]
    rig.team.ready_count = 1
    for _ in range(20):
        rig.does(0.25)
        assert rig.chosen.workers == 0
    assert len(rig.choice.samples) == 1  # nothing is measured while they start
    rig.team.ready_count = 2
    assert rig.chosen.workers == 2
    run(rig, 1)
    assert rig.choice.samples[-1].workers == 2


def test_workers_stay_through_a_trial_and_go_after_it() -> None:
    rig = Rig(4, -2, 4, -2, 2)
    rig.team.ready_count = 4
    run(rig, 3)
    assert rig.team.calls == ["employ 4", "dismiss", "employ 2", "employ 4", "dismiss"]
    run(rig, 2)
    assert rig.team.calls[5:] == ["employ 2", "employ 2", "dismiss"]


def test_a_trial_of_this_process_is_measured_at_once() -> None:
    rig = Rig(2, 0)
    rig.team.ready_count = 2
    run(rig, 2)
    assert rig.chosen.workers == 0
    run(rig, 1)
    assert [sample.workers for sample in rig.choice.samples] == [0, 2, 0]


def test_samples_of_workers_have_two_results_of_each() -> None:
    rig = Rig(4, 4)
    rig.team.ready_count = 4
    run(rig, 1)
    for _ in range(9 + 7):  # two of each worker may be under way, and the one before them
        rig.does(2.0)
    assert len(rig.choice.samples) == 1
    rig.does(2.0)
    assert rig.choice.samples[1].rows == 80


def test_another_run_begins_another_sample() -> None:
    rig = Rig()
    rig.does(0.3)
    rig.does(0.9)
    rig.chosen.begin(ActivityClock(lambda: rig.now_s), None)
    rig.does(0.9)
    assert rig.choice.samples == []


def test_stats_have_what_was_chosen() -> None:
    rig = Rig(2)
    assert rig.maker.chosen[3].reason == "nothing is measured yet"
    rig.choice.reason = "so it is"
    run(rig, 1)
    assert str(rig.maker.chosen[3]) == "2 of at most 8 worker processes: so it is"
    rig.chosen.only_here("no")
    assert str(rig.maker.chosen[3]) == "this process; at most 0 worker processes: no"
    assert rig.team.calls[-2:] == ["employ 0", "dismiss"]


def test_without_workers_that_start_functions_stay_here(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(2)
    rig.team.refuses = 2
    run(rig, 1)
    run(rig, 3)
    assert (rig.chosen.workers, rig.team.calls) == (0, ["employ 2"])
    assert rig.maker.chosen[3].reason == "workers cannot be started: no more processes"
    assert "since workers cannot be started: no more processes" in caplog.text
    rig = Rig(2)
    rig.team.ends = True
    run(rig, 3)
    assert rig.maker.chosen[3].reason == "workers cannot be started: 3 workers in a row ended"


def test_where_more_workers_cannot_be_started_the_others_stay() -> None:
    rig = Rig(2, 4)
    rig.team.ready_count, rig.team.refuses = 2, 4
    run(rig, 3)
    assert (rig.chosen.workers, rig.choice.most) == (2, 2)
    assert rig.maker.chosen[3].reason == "more workers cannot be started: no more processes"
