"""Programs in processes of their own, and the processes that they and tests leave behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

import psutil

LIMIT_S = 60.0

MARK = "WINDROW_TEST_PROGRAM"
_MEMORY = Path("/dev/shm")


def until(found: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
    """Whether something comes true in time."""
    end_s = time.monotonic() + limit_s
    while not found():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.005)
    return True


def workers(parent: int | None = None) -> list[psutil.Process]:
    """Worker processes that run, of the process `parent` or of this one."""
    return [child for child in psutil.Process(parent).children() if _is_worker(child)]


def marked(mark: str) -> list[psutil.Process]:
    """All processes that run with this value of `MARK` in their environment."""

    def is_marked(process: psutil.Process) -> bool:
        try:
            return _runs(process) and process.environ().get(MARK) == mark
        except (psutil.Error, OSError):
            return False

    return [process for process in psutil.process_iter() if is_marked(process)]


def _is_worker(process: psutil.Process) -> bool:
    try:
        return _runs(process) and any("windrow.worker" in word for word in process.cmdline())
    except psutil.Error:
        return False


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def left() -> dict[str, list[str]]:
    """What this process has now: its workers, Windrow's threads, and descriptors."""
    return {
        "workers": [str(worker.pid) for worker in workers()],
        "threads": sorted(t.name for t in threading.enumerate() if t.name.startswith("windrow")),
        "descriptors": sorted(_descriptors()),
    }


def is_left(before: dict[str, list[str]]) -> bool:
    """Whether this process has more than `before`. What earlier tests left may go meanwhile."""
    now = left()
    more = any(Counter(now[kind]) - Counter(before[kind]) for kind in ("workers", "threads"))
    return more or len(now["descriptors"]) > len(before["descriptors"])


def _descriptors() -> Iterator[str]:
    folder = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):  # the one of this listing
            os.fstat(int(name))
            yield f"{name} {os.readlink(folder / name) if sys.platform == 'linux' else ''}"


def names_in_memory() -> set[str]:
    """Names of shared memory, where the system has a folder for it; not those of semaphores."""
    with contextlib.suppress(FileNotFoundError):
        return {name for name in os.listdir(_MEMORY) if not name.startswith("sem.")}
    return set()


def left_in_memory(before: set[str]) -> set[str]:
    """New names of shared memory that no other process uses, after some time to remove them."""

    def new() -> set[str]:
        return {name for name in names_in_memory() - before if not _is_used_elsewhere(name)}

    until(lambda: not new(), 5.0)
    return new()


def _is_used_elsewhere(name: str) -> bool:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            if process.pid != os.getpid() and str(_MEMORY / name) in maps:
                return True
    return False


class Program:
    """A Python program in a session of its own, with a folder of its own for temporary files.

    As a context, it checks at its end that no process and no file is left, and ends what is.
    """

    def __init__(
        self,
        folder: Path,
        command: list[str],
        stdin: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        # Not in `folder`: a socket's path must be short.
        self._temporary = Path(tempfile.mkdtemp(prefix="w"))
        self._mark = uuid.uuid4().hex
        self._named_before = names_in_memory()
        self._out, self._errors = folder / "out.txt", folder / "errors.txt"
        given = folder / "in.txt"
        given.write_text(stdin)
        # Python 3.12 and later warn of any fork beside threads, which some programs try on purpose.
        quiet = "ignore:This process:DeprecationWarning"
        own = {MARK: self._mark, "TMPDIR": str(self._temporary), "PYTHONWARNINGS": quiet}
        with given.open() as source, self._out.open("w") as out, self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, *command],
                stdin=source,
                stdout=out,
                stderr=errors,
                env={**os.environ, **(environment or {}), **own},
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def says(self, text: str) -> None:
        """Wait until it has written `text`."""
        until(lambda: text in self.out or self._process.poll() is not None)
        assert text in self.out, self.errors

    def ends(self, code: int = 0) -> None:
        """Wait for its end, with this exit code or signal."""
        found = self.code()
        assert found == code, f"exit code {found}: {self.errors}"

    def code(self) -> int:
        """Wait for its end; its exit code, or the signal that ended it, negative."""
        return self._process.wait(LIMIT_S)

    def send(self, number: signal.Signals) -> None:
        """A signal to the program alone."""
        self._process.send_signal(number)

    def send_all(self, number: signal.Signals) -> None:
        """A signal to the program and its workers, as the terminal sends it."""
        os.killpg(self._process.pid, number)

    def processes(self) -> list[psutil.Process]:
        """All processes that come from it and run, itself among them."""
        return marked(self._mark)

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        gone = until(lambda: not self.processes(), 2.0 if error is None else 0.0)
        left = [process.cmdline() for process in self.processes()] if not gone else []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._process.wait(LIMIT_S)
        files = sorted(self._temporary.iterdir())
        shutil.rmtree(self._temporary)
        if error is None:
            assert left == []
            assert files == []
            assert left_in_memory(self._named_before) == set()
