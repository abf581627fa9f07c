"""Workers answer every request once, with what the function returned or raised."""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import handlers
from tests.teams import LIMIT_S, MIB, ask, ask_all, children, descriptors, script, until, workers
from windrow.core.machine import usable_cores
from windrow.errors import ArgumentError, ClosedError, ElementError, PlanError, WorkerError
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


def test_any_order_of_taking_and_any_object() -> None:
    requests: list[Any] = ["a", b"b", None, {"x": [1, (2.5,)]}, {3}, float("inf"), range(4), 10**30]
    with workers(handlers.returned) as team:
        tickets = [team.submit(request) for request in requests]
        got = [team.wait(ticket) for ticket in reversed(tickets)]
    assert got[::-1] == requests


@pytest.mark.jobs
def test_all_workers_are_used() -> None:
    with workers(handlers.process_id, count=3) as team:
        ask(team, None)
        assert until(lambda: len(set(ask_all(team, 6))) == 3)
        found = set(ask_all(team, 30))
        assert len(found) == 3
        assert found <= children()


@pytest.mark.parametrize("shared_bytes", [0, 4 * MIB])
def test_large_messages_both_ways_do_not_block_one_another(shared_bytes: int) -> None:
    request = b"0123456789abcdef" * (MIB // 2)
    with workers(handlers.returned, ahead=4, shared_bytes=shared_bytes) as team:
        tickets = [team.submit(request) for _ in range(10)]
        assert all(team.wait(ticket) == request for ticket in tickets)


def test_replies_stay_as_they_are_as_long_as_they_are_held() -> None:
    with workers(handlers.returned, shared_bytes=8 * MIB) as team:
        held = [ask(team, np.full(MIB // 8, number)) for number in range(40)]
        assert [int(array[0]) for array in held] == list(range(40))
        assert all((array == array[0]).all() for array in held)
    held[3][:] = 5  # after the workers are gone, too
    assert held[3].sum() == 5 * (MIB // 8)


@pytest.mark.jobs
def test_a_reply_outlives_the_workers_and_may_be_freed_on_any_thread() -> None:
    with workers(handlers.doubled) as team:
        held = [ask(team, np.arange(100_000)) for _ in range(2)]
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        last = ask(team, np.arange(100_000))
    gc.collect()
    np.testing.assert_array_equal(last, np.arange(100_000) * 2)


def test_is_done_and_wants_jobs_do_not_wait(tmp_path: Path) -> None:
    with workers(handlers.called, count=1, ahead=2) as team:
        assert team.wants_jobs
        hanging = team.submit((time.sleep, 1000))
        assert not team.is_done(hanging)
        tickets = [team.submit((str, number)) for number in range(2)]
        assert not team.wants_jobs
        assert not any(team.is_done(ticket) for ticket in tickets)
        team.forget()
        assert team.wants_jobs
    with workers(handlers.called) as team:
        ticket = team.submit((str, 5))
        assert until(lambda: team.is_done(ticket))
        assert team.wait(ticket) == "5"


def test_half_of_the_memory_is_enough_to_be_under_way() -> None:
    with workers(handlers.returned, ahead=50, shared_bytes=8 * MIB) as team:
        started = 0
        while team.wants_jobs:
            team.submit(np.zeros(MIB, np.uint8))
            started += 1
        assert 2 <= started <= 5


# --- what functions keep -------------------------------------------------------------------------


def test_what_a_function_keeps_of_its_requests_does_not_change() -> None:
    with workers(handlers.keeps_its_request) as team:
        seen: dict[int, list[int]] = {}
        for number in range(30):
            process, sums = ask(team, np.full(1000, number))
            seen.setdefault(process, []).append(number * 1000)
            assert sums == seen[process]


@pytest.mark.parametrize("shared_bytes", [0, None])
def test_what_a_function_keeps_and_returns_is_as_it_was_then(shared_bytes: int | None) -> None:
    with workers(handlers.keeps_and_returns, count=1, shared_bytes=shared_bytes) as team:
        tickets = [team.submit(np.zeros(5000)) for _ in range(6)]
        got = [team.wait(ticket) for ticket in tickets]
    for calls, array in enumerate(got, start=1):
        np.testing.assert_array_equal(array, np.full(5000, calls))


@pytest.mark.parametrize("shared_bytes", [0, None])
def test_an_array_of_the_room_that_is_used_again_is_no_trap(shared_bytes: int | None) -> None:
    with workers(handlers.keeps_its_reply, count=1, shared_bytes=shared_bytes) as team:
        tickets = [team.submit(np.full(5000, number)) for number in range(8)]
        got = [team.wait(ticket) for ticket in tickets]
    assert [(int(array.min()), int(array.max())) for array in got] == [(n, n) for n in range(8)]


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("error", "kind", "match"),
    [
        (KeyError("k"), KeyError, "k"),
        (ElementError("e"), ElementError, "e"),
        (StopIteration(5), StopIteration, "5"),
        (MemoryError("m"), MemoryError, "m"),
        (SystemExit(3), WorkerError, "exit code 3"),
        (KeyboardInterrupt("now"), KeyboardInterrupt, "now"),
    ],
)
def test_errors_come_back_as_they_are(
    error: BaseException, kind: type[BaseException], match: str
) -> None:
    with workers(handlers.called, count=1) as team:
        before = ask(team, (os.getpid,))
        error.add_note("record 5")
        with pytest.raises(kind, match=match) as caught:
            ask(team, (handlers.raising, error))
        assert "in raising" in str(caught.value.__cause__)
        assert caught.value.__notes__ == ["record 5"]
        assert ask(team, (os.getpid,)) == before


def test_a_reply_that_cannot_be_pickled_names_its_type() -> None:
    with workers(handlers.called) as team:
        with pytest.raises(TypeError, match=r"(?s)lock.*cannot be sent .* can be pickled"):
            ask(team, (threading.Lock,))
        assert ask(team, (len, "abc")) == 3


def test_a_request_that_cannot_be_pickled_is_refused() -> None:
    with workers(handlers.returned) as team:
        with pytest.raises(TypeError, match="lock"):
            team.submit(threading.Lock())
        assert ask(team, 5) == 5


def test_functions_that_cannot_be_sent_are_refused_at_once() -> None:
    class Reader:
        def __init__(self) -> None:
            self.presence = threading.Lock()

    reader, threads = Reader(), threading.local()
    with pytest.raises(
        TypeError,
        match=r"cannot be sent .*lock.*attribute 'presence' of a 'Reader' object, of variable 'reader'"
        r" of function .*(.|\n)*worker_init_fn",
    ):
        WorkerPool(lambda request, room: reader, MultiprocessingOptions(1))
    with pytest.raises(TypeError, match=r"an argument of a partial(.|\n)*worker_init_fn"):
        WorkerPool(functools.partial(max, threads), MultiprocessingOptions(1))


def test_functions_may_hold_much() -> None:
    held = np.arange(MIB)
    with workers(lambda request, room: int(held[request])) as team:
        assert [ask(team, number) for number in (5, MIB - 1)] == [5, MIB - 1]


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


def test_no_worker_at_all_is_refused() -> None:
    with pytest.raises(PlanError, match="num_workers must be at least 1, got 0"):
        WorkerPool(handlers.returned, MultiprocessingOptions(0))


def test_a_reply_is_taken_once() -> None:
    with workers(handlers.returned) as team:
        ticket = team.submit(1)
        assert team.wait(ticket) == 1
        with pytest.raises(ClosedError, match="taken or discarded before"):
            team.wait(ticket)


# --- start ---------------------------------------------------------------------------------------


def test_init_gets_the_number_of_each_worker() -> None:
    with workers(handlers.number, handlers.write_number, count=3) as team:
        assert until(lambda: set(ask_all(team, 6)) == {(0, 3), (1, 3), (2, 3)})


def test_an_error_of_init_is_raised() -> None:
    with workers(handlers.returned, handlers.fail_at_start, count=1) as team:
        ticket = team.submit(1)
        with pytest.raises(LookupError, match="no data for worker 0 of 1") as caught:
            team.wait(ticket)
        assert "in fail_at_start" in str(caught.value.__cause__)
        with pytest.raises(LookupError, match="no data"):
            team.submit(1)


@pytest.mark.jobs
def test_workers_that_end_at_the_start_are_an_error() -> None:
    with workers(handlers.returned, handlers.end_at_start) as team:
        ticket = team.submit(1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with pytest.raises(WorkerError, match=r"3 workers in a row .* exit code 7\. What they"):
                team.wait(ticket)
        texts = [str(warning.message) for warning in caught]
        assert len(texts) == 2
        assert all("ended (exit code 7); a new one takes its place" in text for text in texts)
        with pytest.raises(WorkerError, match="3 workers in a row"):
            team.submit(1)


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


@pytest.mark.parametrize("standard_input", [False, True])
def test_functions_of_main_work_and_main_is_not_run_again(standard_input: bool) -> None:
    text = (
        "print('main')\n"
        "offset = 5\n"
        "class Pair:\n"
        "    def __init__(self, a): self.a = a\n"
        "def add(request, room): return Pair(request.a + offset)\n"
        "workers = WorkerPool(add, MultiprocessingOptions(2))\n"
        "reply = workers.wait(workers.submit(Pair(2)))\n"
        "print(type(reply) is Pair, reply.a)\n"
    )
    assert script(text, standard_input=standard_input) == (0, "main\nTrue 7\n", "")


def test_a_script_in_a_file_and_its_module_are_found(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text("def handler(request, room): return request + 1\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import helpers\n"
        "from windrow.workers.pool import WorkerPool\n"
        "from windrow.multiprocessing import MultiprocessingOptions\n"
        "workers = WorkerPool(helpers.handler, MultiprocessingOptions(1))\n"
        "print(workers.wait(workers.submit(1)))\n"
    )
    command = [sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd="/")
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


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


def test_a_program_that_cannot_be_loaded_later_is_an_error_of_every_call() -> None:
    with workers(handlers.returned, count=1) as team:
        assert ask(team, 5) == 5
        team.load(as_program(handlers.returned, handlers.fail_at_start))
        for _ in range(2):
            with pytest.raises(LookupError, match="no data for worker 0 of 1"):
                ask(team, 5)


def test_processes_start_as_they_are_asked_for() -> None:
    before = children()
    with workers(handlers.process_id, count=5) as team:
        team.start(1)
        assert len(children() - before) == 1
        first = ask(team, None)
        team.start(2)
        assert len(children() - before) == 2
        assert first in children()
        team.start(1)
        assert len(children() - before) == 2
        team.start()
        assert len(children() - before) == 5


def test_where_more_processes_cannot_be_started_the_first_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*args: object) -> Any:
        raise OSError("no more processes")

    with workers(handlers.returned, count=2) as team:
        team.start(1)
        monkeypatch.setattr("windrow.workers.pool.WorkerProcess", refused)
        with pytest.raises(WorkerError, match="worker 1 of 2 cannot be started: no more processes"):
            team.start(2)
        assert ask(team, 5) == 5
        assert team.ready() == 1


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
    assert descriptors() == open_before
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
    assert descriptors() == open_before


def test_a_report_needs_a_worker() -> None:
    text = (
        "from windrow.workers.child import report\n"
        "try: report(1)\n"
        "except RuntimeError as error: print(error)\n"
    )
    assert script(text) == (0, "report: this process is not a worker at work\n", "")


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
