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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tests import handlers
from tests.teams import LIMIT_S, MIB, ask, children, descriptors, script, until, workers
from windrow.errors import ClosedError, WorkerError
from windrow.multiprocessing import MultiprocessingOptions
from windrow.workers.pool import WorkerPool

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning"),
]


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
            lambda: team.wants_jobs,
        ]
        for call in calls:
            with pytest.raises(ClosedError, match="ended by close"):
                call()
        team.interrupt()  # without any worker


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
        while team.wants_jobs and room < 8:
            team.submit(np.zeros(MIB // 2, np.uint8))
            room += 1
        assert room == 8
        assert ask(team, 5) == 5


def test_many_are_made_and_dropped_without_growth() -> None:
    def make(starts: bool) -> None:
        team = WorkerPool(handlers.doubled, MultiprocessingOptions(2))
        if starts:
            assert ask(team, np.ones(MIB // 8)).sum() == 2 * (MIB // 8)

    make(True)
    gc.collect()
    process = psutil.Process()
    before = children(), descriptors(), threading.active_count()
    before_bytes = process.memory_info().rss
    for number in range(1000):
        make(starts=number % 200 == 0)
    gc.collect()
    assert (children(), descriptors(), threading.active_count()) == before
    assert process.memory_info().rss - before_bytes < 8 * MIB


def test_the_end_of_the_interpreter_is_quiet_and_quick() -> None:
    text = (
        "import time\n"
        "workers = WorkerPool(lambda request, room: time.sleep(request), MultiprocessingOptions(2))\n"
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
        "workers = WorkerPool(lambda request, room: time.sleep(request), MultiprocessingOptions(2))\n"
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
from windrow.workers.pool import WorkerPool

folder, how = Path(sys.argv[1]), sys.argv[2]
workers = WorkerPool(handlers.process_id_in_file, MultiprocessingOptions(2))
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
            # Only files that these three have open are counted, not other programs' files.
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
                lambda: team.wants_jobs,
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
        "workers = WorkerPool(lambda request, room: request, MultiprocessingOptions(2))\n"
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
        "workers = WorkerPool(lambda request, room: request, MultiprocessingOptions(5))\n"
        "try: workers.start()\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    code, output, errors = script(text)
    assert code == 0
    assert "WorkerError" in output
    assert os.strerror(errno.EMFILE) in output
    assert errors == ""
