"""Where conversions run by default: threads and worker processes, their errors and their ends."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from tests.conversions import (
    conversion,
    stage,
    tell,
    told,
    wait_for,
)
from tests.processes import Program, until
from windrow.converters.job.executor import run_here
from windrow.converters.job.folder import OutputFolder
from windrow.converters.job.stages import ConversionStage, Report
from windrow.converters.job.targets import LocalTarget
from windrow.core.progress import Progress
from windrow.errors import ArgumentError, ReadError
from windrow.workers.child import PROGRAM
from windrow.workers.messages import (
    WorkerTraceback,
)

pytestmark = [pytest.mark.jobs, pytest.mark.usefixtures("leaves_nothing", "ends_workers")]
both = pytest.mark.parametrize("processes", [1, 2])


def converting() -> list[psutil.Process]:
    """Worker processes of this process."""
    return [child for child in psutil.Process().children() if PROGRAM in child.cmdline()]


@pytest.fixture
def ends_workers() -> Iterator[None]:
    yield
    assert converting() == []


@pytest.fixture
def folder(tmp_path: Path) -> OutputFolder:
    return OutputFolder(LocalTarget(str(tmp_path / "out")), "key")


def results_of(
    folder: OutputFolder, *stages: ConversionStage, processes: int = 1, show: Any = False
) -> list[Any]:
    """The results of the last of `stages`."""
    found: list[Any] = []
    planned = conversion(*stages, finish=lambda folder, results: found.extend(results))
    run_here(planned, folder, processes=processes, show=show)
    return found


# --- what is done --------------------------------------------------------------------------------


def doubled(folder: OutputFolder, item: int, report: Report) -> tuple[int, int]:
    for _ in range(item):
        report(1, 10)
    return 2 * item, os.getpid()


@both
def test_results_are_in_the_order_of_the_items_and_counts_are_exact(
    folder: OutputFolder, processes: int
) -> None:
    steps: list[Progress] = []
    items = list(range(60, 0, -1))
    found = results_of(folder, stage(items, doubled), processes=processes, show=steps.append)
    assert [value for value, _ in found] == [2 * item for item in items]
    assert os.getpid() not in {process for _, process in found} or processes == 1
    assert (steps[-1].records, steps[-1].done_bytes) == (sum(items), 10 * sum(items))
    assert {step.total_bytes for step in steps} == {60}
    done = [step.done_bytes for step in steps]
    assert done == sorted(done)


def test_workers_are_as_many_as_items_and_stay_for_all_stages(folder: OutputFolder) -> None:
    def together(folder: OutputFolder, item: int, report: Report) -> int:
        tell(folder, "begun", item)
        wait_for(folder, "begun", 2 * (item // 10 + 1))  # both workers are at it
        return os.getpid()

    def next_items(folder: OutputFolder, results: list[int]) -> list[int]:
        first.update(results)
        return [10, 11]

    first: set[int] = set()
    found = results_of(
        folder, stage([0, 1], together), ConversionStage("again", next_items, together), processes=9
    )
    assert len(first) == 2
    assert set(found) == first


def test_no_more_items_at_a_time_than_allowed(folder: OutputFolder) -> None:
    alone = threading.Lock()

    def work(folder: OutputFolder, item: int, report: Report) -> bool:
        if not alone.acquire(blocking=False):
            return False
        time.sleep(0)  # another thread's turn
        alone.release()
        return True

    assert all(results_of(folder, stage(range(500), work, at_once=1)))


# --- what travels to worker processes ------------------------------------------------------------


def test_what_cannot_be_sent_is_an_error_that_says_so(folder: OutputFolder) -> None:
    lock = threading.Lock()

    def work(folder: OutputFolder, item: int, report: Report) -> bool:
        return lock.locked()

    with pytest.raises(ArgumentError, match=r"work: cannot be sent to worker .*'_thread\.lock'"):
        results_of(folder, stage([1], work), processes=2)


# --- errors --------------------------------------------------------------------------------------


def damaged(folder: OutputFolder, item: int, report: Report) -> None:
    if item == 3:
        raise ReadError("x: damaged", file="x", offset=7, records=(1, 2), why="spoilt") from (
            ValueError("beneath")
        )


@both
def test_errors_keep_their_class_message_and_attributes(
    folder: OutputFolder, processes: int
) -> None:
    with pytest.raises(ReadError, match=r"^x: damaged$") as caught:
        results_of(folder, stage(range(9), damaged), processes=processes)
    error = caught.value
    assert (error.file, error.offset, error.records, error.why) == ("x", 7, (1, 2), "spoilt")
    if processes > 1:
        assert isinstance(error.__cause__, WorkerTraceback)
        assert "ValueError: beneath" in str(error.__cause__)
        assert "in damaged" in str(error.__cause__)
    else:
        assert isinstance(error.__cause__, ValueError)


@both
def test_the_first_error_stops_the_others(folder: OutputFolder, processes: int) -> None:
    def work(folder: OutputFolder, item: int, report: Report) -> None:
        tell(folder, "begun", item)
        if item == 0:
            wait_for(folder, "begun", 2)
            raise ReadError("the first")
        try:
            while True:
                report(0, 0)
        except Exception as error:  # a stop passes it
            raise AssertionError("caught") from error
        finally:
            tell(folder, "stopped", item)

    with pytest.raises(ReadError, match=r"^the first$"):
        results_of(folder, stage(range(500), work, at_once=2), processes=processes)
    root = Path(str(folder.target.local))
    assert [number for number, _ in told(root, "begun")] == [0, 1]
    assert [number for number, _ in told(root, "stopped")] == [1]


class Large:
    """Stands for a large result; `alive` shows when it is freed."""

    alive: ClassVar[weakref.WeakSet[Large]] = weakref.WeakSet()

    def __init__(self) -> None:
        self.alive.add(self)


def large(folder: OutputFolder, item: int, report: Report) -> Large:
    return Large()


@pytest.fixture
def no_collection() -> Iterator[None]:
    """No garbage collection: what is in a cycle stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_results_go_when_they_have_been_used(folder: OutputFolder) -> None:
    def alive(folder: OutputFolder, item: int, report: Report) -> int:
        return len(Large.alive)

    after = ConversionStage("after", lambda folder, results: [len(results)] * 3, alive)
    assert results_of(folder, stage(range(5), large), after) == [0, 0, 0]


# --- ends ----------------------------------------------------------------------------------------


HELD = """
import sys, time
from pathlib import Path
from tests.conversions import conversion, stage
from windrow.converters.job.job import carry_out

def work(folder, item, report):
    print("at work\\n", end="", flush=True)
    while True:
        time.sleep(0.01 if REPORTS else 600)
        report(0, 0)

carry_out(conversion(stage(range(9), work, at_once=2)), sys.argv[1], processes=PROCESSES)
"""


def held(tmp_path: Path, processes: int, *, reports: bool) -> Program:
    """A program whose workers are in the middle of an item, and report now and then, or never."""
    text = HELD.replace("REPORTS", str(reports)).replace("PROCESSES", str(processes))
    return Program(tmp_path, ["-c", text, str(tmp_path / "out")])


@pytest.mark.parametrize(("processes", "reports"), [(1, True), (2, True), (2, False)])
def test_ctrl_c_ends_all_of_it(tmp_path: Path, processes: int, reports: bool) -> None:
    with held(tmp_path, processes, reports=reports) as program:
        program.says("at work\nat work")
        program.send_all(signal.SIGINT)  # as a terminal sends it, to the workers too
        program.ends(-signal.SIGINT)
        assert program.processes() == []
        assert program.errors.count("Traceback") == 1
        assert program.errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_the_program(tmp_path: Path, number: signal.Signals) -> None:
    with held(tmp_path, 2, reports=False) as program:
        program.says("at work\nat work")
        assert len(program.processes()) == 3
        program.send(number)
        program.ends(-number)
        assert until(lambda: not program.processes())
