"""Memory of a process and its children together, looked at from a process beside them.

`python -m benchmarks.memory PID` prints a line with the bytes now, and one with the most that there
were once its stdin ends.

Invariant: a page that several of them have in memory counts once: it is the sum of their
proportional shares (PSS). Where the system does not tell these, resident pages count for each.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from pathlib import Path

import psutil

_LOOK_S = 0.05


class Watch:
    """Looks at this process and its children until `stop`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.memory", str(os.getpid())],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._idle_bytes = self._answer()

    def stop(self) -> int:
        """The most bytes since the beginning, over those at the beginning."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        peak_bytes = self._answer()
        self._process.wait()
        return peak_bytes - self._idle_bytes

    def _answer(self) -> int:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise RuntimeError("benchmark: the process that looks at memory has failed")
        return int(line)


def bytes_of(process: psutil.Process) -> int:
    """Bytes of a process and its children, without those of this one."""
    found = 0
    for one in (process, *process.children(recursive=True)):
        if one.pid != os.getpid():
            with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                facts = one.memory_full_info()
                found += int(getattr(facts, "pss", facts.rss))
    return found


def main() -> int:
    """Look until nobody wants it any more."""
    process = psutil.Process(int(sys.argv[1]))
    peak_bytes = bytes_of(process)
    print(peak_bytes, flush=True)
    is_over = False
    while not is_over:
        is_over = bool(select.select([sys.stdin], [], [], _LOOK_S)[0])
        peak_bytes = max(peak_bytes, bytes_of(process))
    print(peak_bytes, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
