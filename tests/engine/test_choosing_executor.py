"""The workers of `mp_prefetch("auto")`: what is measured, who is started, and who gets work."""

from __future__ import annotations

import pytest

from windrow.engine.choosing_executor import ChosenTeam, WorkClocks
from windrow.errors import WorkerError
from windrow.stats.profiler import WORKERS, ActivityClock


class FakeTeam:
    """Workers that are ready when a test says so, and that note what is asked of them."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.ready_count = 0
        self.refuses = 100
        self.ends = False

    def start(self, count: int) -> None:
        self.calls.append(f"start {count}")
        if count >= self.refuses:
            raise WorkerError("no more processes")

    def end(self) -> None:
        self.calls.append("end")

    def ready(self) -> int:
        if self.ends:
            raise WorkerError("3 workers in a row ended")
        return self.ready_count


class Rig:
    """Workers whose number is decided under a clock, on a machine with four cores."""

    def __init__(self, *, fewest: int = 0, cores: int = 4) -> None:
        self.now_s = self.computed_s = 0.0
        self.team = FakeTeam()
        clocks = WorkClocks(lambda: self.now_s, lambda: self.computed_s)
        self.chosen = ChosenTeam(self.team, cores=cores, fewest=fewest, number=3, clocks=clocks)
        self.maker = ActivityClock(lambda: self.now_s)
        self.chosen.start()
        self.chosen.begin(self.maker, None)

    @property
    def told(self) -> str:
        """What stats have."""
        return str(self.maker.chosen[3])

    def does(self, seconds: float = 0.25, *, share: float = 1.0, wait_s: float = 0.0) -> int:
        """A result of ten rows, whose functions took a share of the time; who was to do it."""
        workers = self.chosen.workers
        with self.maker.working(), self.maker.at(WORKERS):
            self.now_s += wait_s
        self.now_s += seconds - wait_s
        self.computed_s += seconds - wait_s
        self.chosen.took(10, share * seconds)
        return workers

    def decides(self) -> None:
        """As many results as it takes."""
        for _ in range(5):
            self.does()


def test_a_second_is_measured_after_the_first_results() -> None:
    rig = Rig()
    assert rig.told == "this process: the loop has waited for too few elements to measure them"
    rig.does(0.1875, share=0.0)
    rig.does(0.1875, share=0.0)  # the sizes of work items settle
    for _ in range(3):
        rig.does(0.25, share=0.8)
    assert rig.team.calls == []
    rig.does(0.25, share=0.8)
    assert rig.team.calls == ["start 4"]
    assert "functions take 80% of the time, 20,000.0 us for an element" in rig.told
    assert rig.told.startswith("4 worker processes: ")


def test_elements_that_the_loop_did_not_wait_for_do_not_count() -> None:
    rig = Rig()
    rig.maker.is_ahead = True
    for _ in range(100):
        rig.does()
    assert rig.team.calls == []
    rig.maker.is_ahead = False
    rig.decides()
    assert rig.team.calls == ["start 4"]


def test_workers_get_work_once_all_are_ready() -> None:
    rig = Rig()
    rig.decides()
    rig.team.ready_count = 3
    assert {rig.does() for _ in range(20)} == {0}
    rig.team.ready_count = 4
    assert rig.does() == 4
    rig.team.ready_count = 0  # one that died is replaced
    assert {rig.does(share=0.0) for _ in range(20)} == {4}
    assert rig.team.calls == ["start 4"]


def test_functions_that_need_a_worker_are_measured_in_one() -> None:
    rig = Rig(fewest=1)
    assert rig.team.calls == ["start 1"]
    rig.team.ready_count = 1
    assert rig.does() == 1
    for _ in range(4):
        assert rig.does(wait_s=0.125) == 1
    assert rig.team.calls == ["start 1", "start 3"]  # it reads and sends half of the time
    rig.team.ready_count = 3
    assert rig.does() == 3


def test_without_workers_that_start_functions_stay_here(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.team.refuses = 2
    rig.decides()
    rig.decides()
    assert (rig.chosen.workers, rig.team.calls) == (0, ["start 4", "end"])
    assert rig.told == "this process: workers cannot be started: no more processes"
    assert "since workers cannot be started: no more processes" in caplog.text
    rig = Rig()
    rig.decides()
    rig.team.ends = True
    assert {rig.does() for _ in range(3)} == {0}
    assert rig.told == "this process: workers cannot be started: 3 workers in a row ended"


def test_where_more_workers_cannot_be_started_the_first_stays() -> None:
    rig = Rig(fewest=1)
    rig.team.ready_count, rig.team.refuses = 1, 2
    for _ in range(6):
        assert rig.does(wait_s=0.25) == 1
    assert rig.told == "1 worker process: more workers cannot be started: no more processes"
    rig = Rig(fewest=1)
    rig.team.ready_count = 1
    for _ in range(5):
        rig.does(wait_s=0.25)
    rig.team.ends = True
    with pytest.raises(WorkerError, match="3 workers in a row ended"):
        rig.does()
