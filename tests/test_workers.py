"""Workers answer every request once, whatever dies, and leave nothing behind."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pytest

from tests import handlers
from windrow.errors import ArgumentError, ClosedError, ElementError, PlanError, WorkerError
from windrow.multiprocessing import MultiprocessingOptions, as_multiprocessing_options
from windrow.sources.process import cores
from windrow.workers import Workers

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning"),
]

MIB = 1 << 20
LIMIT_S = 30
Numbers = npt.NDArray[np.int64]


@contextlib.contextmanager
def workers(
    handler: Any, init: Any = None, *, count: int = 2, ahead: int = 1, **options: Any
) -> Iterator[Workers]:
    made = Workers(handler, MultiprocessingOptions(count, ahead, **options), init)
    try:
        yield made
    finally:
        made.kill()


def ask(team: Workers, request: Any, tries: int = 3) -> Any:
    return team.wait(team.submit(request, tries))


def ask_all(team: Workers, count: int) -> list[Any]:
    return [team.wait(ticket) for ticket in [team.submit(None) for _ in range(count)]]


def until(holds: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    """Whether it holds within the limit."""
    end = time.monotonic() + limit_s
    pause = threading.Event()
    while not holds():
        if time.monotonic() > end:
            return False
        pause.wait(0.005)
    return True


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def descriptors() -> int:
    return int(psutil.Process().num_fds())


# --- requests and replies ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 1000, 3 * MIB])
@pytest.mark.parametrize("shared_bytes", [None, 0, 2 * MIB])
def test_replies_come_back_for_their_requests(size: int, shared_bytes: int | None) -> None:
    with workers(handlers.doubled, shared_bytes=shared_bytes) as team:
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


def test_all_workers_are_used() -> None:
    with workers(handlers.process_id, count=3) as team:
        ask(team, None)
        assert until(lambda: len(set(ask_all(team, 6))) == 3)
        assert set(ask_all(team, 30)) == children()


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


def test_a_reply_outlives_the_workers_and_may_be_freed_on_any_thread() -> None:
    with workers(handlers.doubled) as team:
        held = [ask(team, np.arange(100_000)) for _ in range(2)]
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        last = ask(team, np.arange(100_000))
    gc.collect()
    np.testing.assert_array_equal(last, np.arange(100_000) * 2)


def test_is_done_and_has_room_do_not_wait(tmp_path: Path) -> None:
    with workers(handlers.called, count=1, ahead=2) as team:
        assert team.has_room
        hanging = team.submit((time.sleep, 1000))
        assert not team.is_done(hanging)
        tickets = [team.submit((str, number)) for number in range(2)]
        assert not team.has_room
        assert not any(team.is_done(ticket) for ticket in tickets)
        team.forget()
        assert team.has_room
    with workers(handlers.called) as team:
        ticket = team.submit((str, 5))
        assert until(lambda: team.is_done(ticket))
        assert team.wait(ticket) == "5"


def test_half_of_the_memory_is_enough_to_be_under_way() -> None:
    with workers(handlers.returned, ahead=50, shared_bytes=8 * MIB) as team:
        started = 0
        while team.has_room:
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


@pytest.mark.parametrize(
    ("error", "kind", "match"),
    [
        (KeyError("k"), KeyError, "k"),
        (ElementError("e"), ElementError, "e"),
        (StopIteration(5), StopIteration, "5"),
        (MemoryError("m"), MemoryError, "m"),
        (SystemExit(3), SystemExit, "3"),
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
        with pytest.raises(ElementError, match=r"of type lock, cannot be sent .* can be pickled"):
            ask(team, (threading.Lock,))
        assert ask(team, (len, "abc")) == 3


def test_a_request_that_cannot_be_pickled_is_refused() -> None:
    with workers(handlers.returned) as team:
        with pytest.raises(TypeError, match="lock"):
            team.submit(threading.Lock())
        assert ask(team, 5) == 5


def test_functions_that_cannot_be_sent_are_refused_at_once() -> None:
    lock = threading.Lock()
    with pytest.raises(ArgumentError, match=r"cannot be sent .*lock(.|\n)*worker_init_fn"):
        Workers(lambda request, room: lock, MultiprocessingOptions(1))


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
        Workers(handlers.returned, MultiprocessingOptions(0))


def test_a_reply_is_taken_once() -> None:
    with workers(handlers.returned) as team:
        ticket = team.submit(1)
        assert team.wait(ticket) == 1
        with pytest.raises(ClosedError, match="taken before"):
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


def script(text: str, *flags: str, standard_input: bool = False) -> tuple[int, str, str]:
    """Exit code and streams of a program, run as a user would."""
    text = (
        "import numpy as np, os, signal, sys, threading\n"
        "from windrow.workers import Workers\n"
        "from windrow.multiprocessing import MultiprocessingOptions\n" + text
    )
    source = ["-"] if standard_input else ["-c", text]
    done = subprocess.run(
        [sys.executable, *flags, *source],
        input=text if standard_input else None,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("standard_input", [False, True])
def test_functions_of_main_work_and_main_is_not_run_again(standard_input: bool) -> None:
    text = (
        "print('main')\n"
        "offset = 5\n"
        "class Pair:\n"
        "    def __init__(self, a): self.a = a\n"
        "def add(request, room): return Pair(request.a + offset)\n"
        "workers = Workers(add, MultiprocessingOptions(2))\n"
        "reply = workers.wait(workers.submit(Pair(2)))\n"
        "print(type(reply) is Pair, reply.a)\n"
    )
    assert script(text, standard_input=standard_input) == (0, "main\nTrue 7\n", "")


def test_a_script_in_a_file_and_its_module_are_found(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("def handler(request, room): return request + 1\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import beside\n"
        "from windrow.workers import Workers\n"
        "from windrow.multiprocessing import MultiprocessingOptions\n"
        "workers = Workers(beside.handler, MultiprocessingOptions(1))\n"
        "print(workers.wait(workers.submit(1)))\n"
    )
    command = [sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd="/")
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


def test_options_of_the_interpreter_travel() -> None:
    text = (
        "def look(request, room):\n"
        "    return sys.flags.optimize, sys._xoptions, sys.warnoptions, sys.flags.isolated\n"
        "workers = Workers(look, MultiprocessingOptions(1))\n"
        "print(workers.wait(workers.submit(None)) == look(None, None), look(None, None)[0])\n"
    )
    flags = ["-I", "-O", "-X", "utf8=1", "-X", "dev", "-W", "ignore"]
    assert script(text, *flags) == (0, "True 1\n", "")


# --- workers that die ----------------------------------------------------------------------------


ENDS = {"kill": "killed by SIGKILL", "exit": "exit code 3", "closed": "killed by SIGKILL"}


@pytest.mark.parametrize("end", ENDS)
def test_a_worker_that_dies_is_replaced_and_its_work_done_again(tmp_path: Path, end: str) -> None:
    with workers(handlers.called) as team:
        good = [team.submit((len, "abc")) for _ in range(3)]
        ticket = team.submit((handlers.once, tmp_path / "marker", end, np.ones(1000)))
        good += [team.submit((len, "abc")) for _ in range(3)]
        with pytest.warns(RuntimeWarning, match=re.escape(ENDS[end])) as caught:
            # Written to by the worker that died, and yet as it was.
            assert team.wait(ticket).sum() == 1000
        assert len(caught) == 1
        assert [team.wait(other) for other in good] == [3] * 6
        assert len(children()) >= 2


def test_work_that_ends_every_worker_is_an_error_and_other_work_goes_on() -> None:
    with workers(handlers.called) as team, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        good = [team.submit((abs, -5)) for _ in range(2)]
        bad = team.submit((handlers.ended, "kill"))
        good += [team.submit((abs, -5)) for _ in range(4)]
        with pytest.raises(
            WorkerError, match=r"3 workers ended over the same work \(.*SIGKILL, .*memory"
        ):
            team.wait(bad)
        assert [team.wait(ticket) for ticket in good] == [5] * 6
        with pytest.raises(WorkerError, match=r"a worker ended over its work \(exit code 3\)"):
            ask(team, (handlers.ended, "exit"), tries=1)
        assert ask(team, (abs, -1)) == 1


def test_an_idle_worker_that_is_killed_is_replaced() -> None:
    with workers(handlers.process_id, count=1) as team:
        process = ask(team, None)
        os.kill(process, signal.SIGKILL)
        with pytest.warns(RuntimeWarning, match=f"process {process}.*SIGKILL"):
            assert until(lambda: ask(team, None) != process)


def test_a_worker_that_hangs_is_ended(tmp_path: Path) -> None:
    with workers(handlers.called, timeout_s=0.2) as team, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ticket = team.submit((handlers.once, tmp_path / "marker", "hang", np.ones(4)))
        assert team.wait(ticket).sum() == 4
        with pytest.raises(WorkerError, match=r"ran longer than timeout_s=0.2\).*set a larger"):
            ask(team, (handlers.ended, "hang"), tries=1)
        assert ask(team, (abs, -1)) == 1


def test_time_with_the_consumer_is_not_the_workers() -> None:
    with workers(handlers.called, count=1, timeout_s=0.3) as team, warnings.catch_warnings():
        warnings.simplefilter("error")
        ask(team, (abs, 1))
        tickets = [team.submit((time.sleep, 0.05)) for _ in range(2)]
        threading.Event().wait(0.5)
        assert [team.wait(ticket) for ticket in tickets] == [None, None]


def test_a_warning_that_is_an_error_harms_nothing(tmp_path: Path) -> None:
    with workers(handlers.called) as team, warnings.catch_warnings():
        warnings.simplefilter("error")
        ticket = team.submit((handlers.once, tmp_path / "marker", "kill", np.ones(4)))
        with pytest.raises(RuntimeWarning, match="SIGKILL"):
            until(lambda: team.is_done(ticket))
        assert team.wait(ticket).sum() == 4


# --- ending --------------------------------------------------------------------------------------


def test_kill_leaves_nothing_and_ends_every_call() -> None:
    before, open_before = children(), descriptors()
    with workers(handlers.called) as team:
        ticket = team.submit((time.sleep, 1000))
        ask(team, (abs, 1))
        team.kill()
        assert children() == before
        assert descriptors() == open_before
        team.kill()
        calls: list[Callable[[], Any]] = [
            team.start,
            team.forget,
            lambda: team.submit(1),
            lambda: team.wait(ticket),
            lambda: team.is_done(ticket),
            lambda: team.has_room,
        ]
        for call in calls:
            with pytest.raises(ClosedError, match="ended by close"):
                call()
        team.interrupt()  # of nobody


@pytest.mark.parametrize("end", ["kill", "interrupt"])
def test_whoever_waits_comes_back(end: str) -> None:
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
        getattr(team, end)()
        thread.join(LIMIT_S)
        assert [type(error) for error in found] == [ClosedError]
        if end == "interrupt":
            with pytest.raises(ClosedError, match="new state"):
                team.wait(ticket)
            team.forget()
            assert ask(team, (abs, -2)) == 2
    assert descriptors() == open_before


def test_what_is_forgotten_gives_its_memory_back() -> None:
    with workers(handlers.returned, shared_bytes=16 * MIB, ahead=3) as team:
        for number in range(20):
            for _ in range(3):
                team.submit(np.full(MIB, number, np.uint8))
            team.forget()
        room = 0
        while team.has_room and room < 8:
            team.submit(np.zeros(MIB // 2, np.uint8))
            room += 1
        assert room == 8
        assert ask(team, 5) == 5


def test_many_are_made_and_dropped_without_growth() -> None:
    def make(starts: bool) -> None:
        team = Workers(handlers.doubled, MultiprocessingOptions(2))
        if starts:
            assert ask(team, np.ones(MIB // 8)).sum() == 2 * (MIB // 8)

    make(True)
    gc.collect()
    process = psutil.Process()
    before = children(), descriptors(), threading.active_count()
    before_bytes = process.memory_info().rss
    for number in range(1000):
        make(starts=number % 50 == 0)
    gc.collect()
    assert (children(), descriptors(), threading.active_count()) == before
    assert process.memory_info().rss - before_bytes < 8 * MIB


def test_the_end_of_the_interpreter_is_quiet_and_quick() -> None:
    text = (
        "import time\n"
        "workers = Workers(lambda request, room: time.sleep(request), MultiprocessingOptions(2))\n"
        "workers.wait(workers.submit(0))\n"
        "tickets = [workers.submit(1000) for _ in range(4)]\n"
        "processes = __import__('psutil').Process().children()\n"
        "print(*[process.pid for process in processes], time.time(), flush=True)\n"
    )
    code, output, errors = script(text)
    took_s = time.time() - float(output.split()[-1])
    assert (code, errors) == (0, "")
    assert took_s < 1
    assert not any(psutil.pid_exists(int(process)) for process in output.split()[:-1])


def test_ctrl_c_is_quiet() -> None:
    text = (
        "import time\n"
        "workers = Workers(lambda request, room: time.sleep(request), MultiprocessingOptions(2))\n"
        "workers.wait(workers.submit(0))\n"
        "tickets = [workers.submit(1000) for _ in range(4)]\n"
        "for child in __import__('psutil').Process().children():\n"
        "    os.kill(child.pid, signal.SIGINT)\n"
        "threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try:\n"
        "    workers.wait(tickets[0])\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    assert script(text) == (0, "interrupted\n", "")


# --- the death of the parent ---------------------------------------------------------------------


def named_memory(process: psutil.Process) -> list[str]:
    """Files in the folder of shared memory that a process has open or mapped (Linux)."""
    paths = [str(link) for link in map(readlink, Path(f"/proc/{process.pid}/fd").glob("*"))]
    paths += [found.path for found in process.memory_maps()]
    return [path for path in paths if path.startswith("/dev/shm") and "(deleted)" not in path]


def readlink(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs: not if it only waits for the system to take note of its end."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


PARENT = """
import os, sys, threading, time
from pathlib import Path
from tests import handlers
from windrow.multiprocessing import MultiprocessingOptions
from windrow.workers import Workers

folder, how = Path(sys.argv[1]), sys.argv[2]
workers = Workers(handlers.process_id_in_file, MultiprocessingOptions(2))
workers.start()
if how != "start":
    tickets = [workers.submit((folder / str(number), how)) for number in range(2)]
    threading.Thread(target=workers.wait, args=tickets[:1], daemon=True).start()
if how == "fork":
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    (folder / "child").write_text(str(child))
if how != "start":
    while len(list(folder.glob("[01]"))) < 2:
        time.sleep(0.01)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["start", "python", "fork", "native"])
def test_workers_end_when_their_parent_is_killed(tmp_path: Path, how: str) -> None:
    if how == "native" and sys.platform != "linux":
        pytest.skip("only Linux ends a process that never lets its interpreter go")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-W", "ignore", "-c", PARENT, str(tmp_path), how]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        found = psutil.Process(parent.pid).children()
        if how == "fork":
            forked = int((tmp_path / "child").read_text())
            found = [process for process in found if process.pid != forked]
        assert len(found) == 2
        if sys.platform == "linux":
            # No other program's files are counted by looking at what these three have open.
            assert [named_memory(p) for p in (psutil.Process(parent.pid), *found)] == [[]] * 3
        parent.kill()
        ended = until(lambda: not any(is_alive(process) for process in found), 2)
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if how == "fork":
            os.kill(forked, signal.SIGKILL)
    assert ended
    assert not list(temporary.iterdir())


def test_a_forked_child_is_refused_and_its_parent_unharmed() -> None:
    receiver, sender = os.pipe()
    with workers(handlers.doubled) as team:
        ticket = team.submit(np.arange(5))
        child = os.fork()
        if not child:
            texts = []
            for call in (
                lambda: team.wait(ticket),
                lambda: team.submit(1),
                lambda: team.has_room,
                team.start,
                team.kill,
                team.interrupt,
            ):
                try:
                    call()
                    texts.append("nothing")
                except BaseException as error:
                    texts.append(f"{type(error).__name__}: {error}")
            os.write(sender, "\n".join(texts).encode())
            os._exit(0)
        os.close(sender)
        with open(receiver) as file:
            lines = file.read().splitlines()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert lines[4:] == ["nothing"] * 2
        for line in lines[:4]:
            assert line.startswith("WorkerError: workers of process")
            assert "multiprocessing_context='spawn'" in line
        np.testing.assert_array_equal(team.wait(ticket), np.arange(5) * 2)


def test_a_forked_child_that_exits_leaves_the_workers_alone() -> None:
    text = (
        "workers = Workers(lambda request, room: request, MultiprocessingOptions(2))\n"
        "workers.wait(workers.submit(0))\n"
        "if not os.fork(): sys.exit(0)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]), workers.wait(workers.submit(5)))\n"
    )
    assert script(text, "-W", "ignore") == (0, "0 5\n", "")


def test_no_more_descriptors_are_an_error_that_says_so(tmp_path: Path) -> None:
    text = (
        "import resource\n"
        "limit = len(os.listdir('/dev/fd')) + 6\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))\n"
        "workers = Workers(lambda request, room: request, MultiprocessingOptions(5))\n"
        "try: workers.start()\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    code, output, errors = script(text)
    assert code == 0
    assert "WorkerError" in output
    assert os.strerror(errno.EMFILE) in output
    assert errors == ""


# --- options -------------------------------------------------------------------------------------


def test_what_mp_prefetch_takes_as_options() -> None:
    ours = MultiprocessingOptions(3, 2, shared_bytes=5, timeout_s=0.5)
    assert as_multiprocessing_options(ours) is ours
    assert as_multiprocessing_options(4) == MultiprocessingOptions(4)
    assert as_multiprocessing_options(None) == MultiprocessingOptions(cores())
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
