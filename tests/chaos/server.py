"""The store behind HTTP, in a process of its own: `python -m tests.chaos.server FOLDER PORT`.

Prints its port. Each line of the standard input sets how often requests fail, and is answered by a line
with the faults since the last one. It ends with its standard input.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.range_server import Fault, RangeServer, cut, drip, late, reset, stall, status

# Every kind but those after which a read must fail: a file that is replaced, or not found.
ANSWERS: Final[tuple[Fault, ...]] = (
    *(status(code) for code in (408, 429, 500, 502, 503, 504)),
    status(503, Retry_After="1"),
    *(reset(), Fault("close"), cut(), cut()),
    *(stall(), stall(body=True), drip(0.01), late(0.5)),
    *(Fault("wrong_range"), Fault("ignore_range")),
)


class StoreServer:
    """The process, as the one that starts, stops and kills it sees it."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder, self._environment, self.port = folder, environment, 0
        self.faults: Counter[str] = Counter()
        """Answers that were faults, by kind."""
        self._settings: dict[str, Any] = {"share": 0.0, "seed": 0}
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, at the port that it had before, with the faults that it had."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.server", str(self._folder), str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment,
            start_new_session=True,
        )
        self.port = int(self._line())
        self.fail(**self._settings)

    def fail(self, share: float, seed: int) -> None:
        """From now on, requests fail with this probability, in ways that the seed draws."""
        self._settings = {"share": share, "seed": seed}
        process = self._running()
        assert process.stdin is not None
        process.stdin.write(json.dumps(self._settings) + "\n")
        process.stdin.flush()
        self.faults.update(json.loads(self._line()))

    def count(self) -> None:
        """Add what it has counted to `faults`."""
        self.fail(**self._settings)

    def send(self, number: signal.Signals) -> None:
        """A signal."""
        self._running().send_signal(number)

    def kill(self) -> None:
        """End it as by kill -9."""
        process, self._process = self._running(), None
        process.kill()
        process.communicate()

    def close(self) -> None:
        """End it if it runs."""
        if self._process is not None:
            self.kill()

    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "the server does not run"
        return self._process

    def _line(self) -> str:
        out = self._running().stdout
        assert out is not None
        line = out.readline()
        assert line, "the server has ended"
        return line


def main(folder: str, port: str) -> None:
    """Serve until the standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    # From memory: hashing a file for each answer would keep the server too busy to answer in time.
    files = {
        str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()
    }
    server = RangeServer(files, port=int(port))
    with server, contextlib.suppress(BrokenPipeError):
        print(server.port, flush=True)
        for line in sys.stdin:
            found = server.counts().faults
            server.reset_counts()
            orders = json.loads(line)
            server.chance(orders["share"], ANSWERS, seed=orders["seed"])
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
