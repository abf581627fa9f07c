"""Workers answer every request once, with what the function returned or raised."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import handlers
from tests.teams import LIMIT_S, MIB, ask, children, descriptors, script, until, workers
from windrow.core.machine import usable_cores
from windrow.errors import ArgumentError, ClosedError, PlanError, WorkerError
from windrow.multiprocessing import MultiprocessingOptions, as_multiprocessing_options
from windrow.workers.by_value import pickled_by_value
from windrow.workers.pool import WorkerPool

# --- requests and replies ------------------------------------------------------------------------


@pytest.mark.jobs
@pytest.mark.parametrize("shared_bytes", [None, 0, 2 * MIB])
def test_replies_come_back_for_their_requests(shared_bytes: int | None) -> None:
    with workers(handlers.doubled, shared_bytes=shared_bytes) as team:
        for size in (0, 1, 1000, 3 * MIB):
            requests = [np.arange(size) + start for start in range(6)]
            tickets = [team.submit(request) for request in requests]
            for request, ticket in zip(requests, tickets, strict=True):
                np.testing.assert_array_equal(team.wait(ticket), request * 2)


def test_large_messages_both_ways_do_not_block_one_another() -> None:
    request = b"0123456789abcdef" * (MIB // 2)
    with workers(handlers.returned, ahead=4, shared_bytes=0) as team:
        tickets = [team.submit(request) for _ in range(10)]
        assert all(team.wait(ticket) == request for ticket in tickets)


def test_replies_stay_as_they_are_as_long_as_they_are_held() -> None:
    with workers(handlers.returned, shared_bytes=8 * MIB) as team:
        held = [ask(team, np.full(MIB // 8, number)) for number in range(40)]
        assert [int(array[0]) for array in held] == list(range(40))
        assert all((array == array[0]).all() for array in held)
    held[3][:] = 5  # after the workers are gone, too
    assert held[3].sum() == 5 * (MIB // 8)


# --- what functions keep -------------------------------------------------------------------------


def test_what_a_function_keeps_of_its_requests_does_not_change() -> None:
    with workers(handlers.keeps_its_request) as team:
        seen: dict[int, list[int]] = {}
        for number in range(30):
            process, sums = ask(team, np.full(1000, number))
            seen.setdefault(process, []).append(number * 1000)
            assert sums == seen[process]


@pytest.mark.jobs
@pytest.mark.parametrize("shared_bytes", [0, None])
def test_what_a_function_keeps_and_returns_is_as_it_was_then(shared_bytes: int | None) -> None:
    with workers(handlers.keeps_and_returns, count=1, shared_bytes=shared_bytes) as team:
        tickets = [team.submit(np.zeros(5000)) for _ in range(6)]
        got = [team.wait(ticket) for ticket in tickets]
    for calls, array in enumerate(got, start=1):
        np.testing.assert_array_equal(array, np.full(5000, calls))


@pytest.mark.jobs
@pytest.mark.parametrize("shared_bytes", [0, None])
def test_an_array_of_the_room_that_is_used_again_is_no_trap(shared_bytes: int | None) -> None:
    with workers(handlers.keeps_its_reply, count=1, shared_bytes=shared_bytes) as team:
        tickets = [team.submit(np.full(5000, number)) for number in range(8)]
        got = [team.wait(ticket) for ticket in tickets]
    assert [(int(array.min()), int(array.max())) for array in got] == [(n, n) for n in range(8)]


# --- errors --------------------------------------------------------------------------------------


def test_functions_that_cannot_be_loaded_are_an_error_of_every_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here_alone.py").write_text("def handler(request, room): return request\n")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        module = __import__("here_alone")
    with workers(module.handler) as team:
        for _ in range(2):
            with pytest.raises(ModuleNotFoundError, match="here_alone"):
                ask(team, 5)


# --- start ---------------------------------------------------------------------------------------


def test_workers_leave_accelerators_alone_and_import_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WINDROW_SOMETHING", "x")
    names = ["JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "WINDROW_SOMETHING"]
    with workers(handlers.about_this_process, count=1) as team:
        found = ask(team, names)
    assert list(found["environment"].values()) == ["cpu", "", "x"]
    assert not {"jax", "grain", "torch", "pytest"} & set(found["modules"])
    assert found["threads"] == 2  # its own and the one that watches the parent
    assert found["argv"] == sys.argv
    assert found["path"] == sys.path


@pytest.mark.jobs
def test_options_of_the_interpreter_travel() -> None:
    text = (
        "def look(request, room):\n"
        "    return sys.flags.optimize, sys._xoptions, sys.warnoptions, sys.flags.isolated\n"
        "workers = WorkerPool(look, MultiprocessingOptions(1))\n"
        "print(workers.wait(workers.submit(None)) == look(None, None), look(None, None)[0])\n"
    )
    flags = ["-I", "-O", "-X", "utf8=1", "-X", "dev", "-W", "ignore"]
    assert script(text, *flags) == (0, "True 1\n", "")


# --- programs, reports and the end ----------------------------------------------------------------


def as_program(handler: Any, init: Any = None) -> bytes:
    return pickled_by_value((handler, init))


def test_a_pool_takes_one_program_after_the_other() -> None:
    with workers(handlers.doubled, count=2) as team:
        before = [team.submit(np.arange(3)) for _ in range(5)]
        team.load(as_program(handlers.returned))
        after = [team.submit(np.arange(3)) for _ in range(5)]
        team.load(as_program(handlers.number, handlers.write_number))
        last = [team.submit(None) for _ in range(5)]
        assert [team.wait(job).tolist() for job in before] == [[0, 2, 4]] * 5
        assert [team.wait(job).tolist() for job in after] == [[0, 1, 2]] * 5
        assert {team.wait(job) for job in last} <= {(0, 2), (1, 2)}


def test_reports_come_before_the_reply_in_order() -> None:
    with workers(handlers.reports, count=2) as team:
        jobs = {team.submit(count): count for count in (0, 3, 500)}
        found: dict[int, list[int]] = {count: [] for count in jobs.values()}
        while jobs:
            for job in team.wait_any(jobs):
                while job.reports:
                    found[jobs[job]].append(job.reports.popleft())
                if team.is_done(job):
                    found[jobs[job]] += job.reports  # between the two calls
                    assert team.wait(job) == jobs.pop(job)
    assert found == {count: list(range(count)) for count in (0, 3, 500)}


def test_workers_that_are_not_replaced_are_an_error_of_every_call() -> None:
    pool = WorkerPool(handlers.called, MultiprocessingOptions(2), replaces=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ask(pool, (abs, 1))
            assert pool.death == ""
            jobs = [pool.submit((handlers.ended, "kill"), 1), pool.submit((time.sleep, 1000), 1)]
            with pytest.raises(WorkerError, match="SIGKILL"):
                pool.wait(jobs[0])
            assert pool.death == "killed by SIGKILL"
            for call in (lambda: pool.wait(jobs[1]), lambda: pool.submit(1)):
                with pytest.raises(
                    WorkerError, match=r"a worker process ended \(killed by SIGKILL"
                ):
                    call()
    finally:
        pool.kill()


def test_stop_lets_jobs_end_at_their_next_report(tmp_path: Path) -> None:
    before, open_before = children(), descriptors()
    with workers(handlers.reports_until_stopped, count=2) as team:
        jobs = [team.submit(tmp_path / str(number)) for number in range(2)]
        while not all(job.reports for job in jobs):
            team.wait_any(jobs)
        began_s = time.monotonic()
        team.stop(LIMIT_S)
        assert time.monotonic() - began_s < LIMIT_S
        assert children() == before
    assert descriptors() <= open_before  # connections of earlier tests may close meanwhile
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["0", "1"]


def test_stop_kills_workers_that_do_not_end() -> None:
    before, open_before = children(), descriptors()
    with workers(handlers.called, count=2) as team:
        ask(team, (abs, 1))
        team.submit((time.sleep, 1000))
        team.stop(0.2)
        assert children() == before
        with pytest.raises(ClosedError):
            team.submit(1)
    assert descriptors() <= open_before  # connections of earlier tests may close meanwhile


# --- workers that die ---------------------------------------------------------------------------


def test_a_worker_that_closes_its_socket_is_replaced_and_its_work_done_again(
    tmp_path: Path,
) -> None:
    with workers(handlers.called) as team:
        good = [team.submit((len, "abc")) for _ in range(3)]
        ticket = team.submit((handlers.once, tmp_path / "marker", "closed", np.ones(1000)))
        good += [team.submit((len, "abc")) for _ in range(3)]
        with pytest.warns(RuntimeWarning, match="killed by SIGKILL") as caught:
            # Written to by the worker that died, and yet as it was.
            assert team.wait(ticket).sum() == 1000
        assert len(caught) == 1
        assert [team.wait(other) for other in good] == [3] * 6


def test_an_idle_worker_that_is_killed_is_replaced() -> None:
    with workers(handlers.process_id, count=1) as team:
        process = ask(team, None)
        os.kill(process, signal.SIGKILL)
        with pytest.warns(RuntimeWarning, match=f"process {process}.*SIGKILL"):
            assert until(lambda: ask(team, None) != process)


@pytest.mark.jobs
def test_time_with_the_consumer_is_not_the_workers() -> None:
    with workers(handlers.called, count=1, timeout_s=0.3) as team, warnings.catch_warnings():
        warnings.simplefilter("error")
        ask(team, (abs, 1))
        tickets = [team.submit((time.sleep, 0.05)) for _ in range(2)]
        threading.Event().wait(0.5)
        assert [team.wait(ticket) for ticket in tickets] == [None, None]


@pytest.mark.jobs
def test_a_warning_that_is_an_error_harms_nothing(tmp_path: Path) -> None:
    with workers(handlers.called) as team, warnings.catch_warnings():
        warnings.simplefilter("error")
        ticket = team.submit((handlers.once, tmp_path / "marker", "kill", np.ones(4)))
        with pytest.raises(RuntimeWarning, match="SIGKILL"):
            until(lambda: team.is_done(ticket))
        assert team.wait(ticket).sum() == 4


def test_what_is_forgotten_gives_its_memory_back() -> None:
    with workers(handlers.returned, shared_bytes=16 * MIB, ahead=3) as team:
        for number in range(20):
            for _ in range(3):
                team.submit(np.full(MIB, number, np.uint8))
            team.forget()
        room = 0
        while team.wants_jobs and room < 8:
            team.submit(np.zeros(MIB // 2, np.uint8))
            room += 1
        assert room == 8
        assert ask(team, 5) == 5


def test_whoever_waits_comes_back() -> None:
    open_before = descriptors()
    with workers(handlers.called) as team:
        ask(team, (abs, 1))
        ticket = team.submit((time.sleep, 1000))
        found: list[BaseException] = []
        waits = threading.Event()

        def wait() -> None:
            waits.set()
            try:
                team.wait(ticket)
            except BaseException as error:
                found.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        assert waits.wait(LIMIT_S)
        team.interrupt()
        thread.join(LIMIT_S)
        assert [type(error) for error in found] == [ClosedError]
        with pytest.raises(ClosedError, match="new state"):
            team.wait(ticket)
        team.forget()
        assert ask(team, (abs, -2)) == 2
    assert descriptors() <= open_before  # connections of earlier tests may close meanwhile


# --- options -------------------------------------------------------------------------------------


def test_what_mp_prefetch_takes_as_options() -> None:
    ours = MultiprocessingOptions(3, 2, shared_bytes=5, timeout_s=0.5)
    assert as_multiprocessing_options(ours) is ours
    assert as_multiprocessing_options(4) == MultiprocessingOptions(4)
    assert as_multiprocessing_options(None) == MultiprocessingOptions(usable_cores())
    grain = pytest.importorskip("grain").multiprocessing.MultiprocessingOptions(3, 2)
    assert as_multiprocessing_options(grain) == MultiprocessingOptions(3, 2)
    for wrong in ("2", 2.0, True, [2]):
        with pytest.raises(ArgumentError, match=r"needs a number of workers.*got"):
            as_multiprocessing_options(wrong)
    with pytest.raises(PlanError, match="num_workers must be at least 0, got -1"):
        as_multiprocessing_options(-1)


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"shared_bytes": -1}, PlanError, "shared_bytes must be at least 0, got -1"),
        ({"shared_bytes": "x"}, ArgumentError, "shared_bytes must be an integer"),
        ({"timeout_s": 0}, PlanError, r"timeout_s must be a finite number above 0.*None"),
        ({"timeout_s": float("nan")}, PlanError, "timeout_s must be a finite number"),
        ({"timeout_s": float("inf")}, PlanError, "timeout_s must be a finite number"),
        ({"timeout_s": "1"}, ArgumentError, "timeout_s must be a number of seconds, got '1'"),
    ],
)
def test_options_out_of_range_are_refused(
    given: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        MultiprocessingOptions(1, **given)
