"""What processes leave behind: processes, threads, descriptors, shared memory and temporary files."""

from __future__ import annotations

import gc
import os
import re
import shutil
import socket
import stat
import tempfile
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from tests.processes import MARK, left, left_in_memory, marked, names_in_memory, until

# Nothing takes so long on any machine.
LIMIT_S: Final = 180.0


class Traces:
    """The processes that are started with `environment`, and the files that they leave."""

    def __init__(self) -> None:
        self._mark = uuid.uuid4().hex
        # Sockets lie in it, whose paths must be short.
        self._temporary = Path(tempfile.mkdtemp(prefix="w"))
        self._in_memory = names_in_memory()

    @property
    def environment(self) -> dict[str, str]:
        """What names their processes, and the place of their temporary files."""
        return {MARK: self._mark, "TMPDIR": str(self._temporary)}

    def processes(self) -> list[psutil.Process]:
        """Those that run."""
        return marked(self._mark)

    def left(self, limit_s: float = LIMIT_S) -> list[str]:
        """What is still there after a long time; nothing if all is well."""
        until(lambda: not self.processes(), limit_s)
        return [
            *(f"process {each.pid}: {_command(each)}" for each in self.processes()),
            *(f"temporary file {path}" for path in sorted(self._temporary.iterdir())),
            *(f"shared memory {name}" for name in sorted(left_in_memory(self._in_memory))),
        ]

    def clear(self) -> None:
        """End their processes and remove their files."""
        for process in self.processes():
            process.kill()
        until(lambda: not self.processes(), LIMIT_S)
        shutil.rmtree(self._temporary, ignore_errors=True)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return "?"


def of_this_process() -> dict[str, list[str]]:
    """This process's workers, threads of Windrow, and descriptors.

    Connections to servers are left out: they are kept for the next request.
    """
    gc.collect()
    found = left()
    found["descriptors"] = [
        re.sub(r":\[\d+\]", "", target)
        for number, _, target in (text.partition(" ") for text in found["descriptors"])
        if not _is_connection(int(number))
    ]
    return found


def more(before: Mapping[str, list[str]], limit_s: float = LIMIT_S) -> list[str]:
    """What this process has more than before, also after a long time."""

    def found() -> list[str]:
        now = of_this_process()
        return [
            f"{kind}: {what}"
            for kind in now
            for what in (Counter(now[kind]) - Counter(before[kind])).elements()
        ]

    until(lambda: not found(), limit_s)
    return found()


def _is_connection(number: int) -> bool:
    """Whether a descriptor is a connection over the network."""
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return False
        with socket.socket(fileno=os.dup(number)) as found:
            return found.family in (socket.AF_INET, socket.AF_INET6)
    except OSError:  # it is closed now
        return False
