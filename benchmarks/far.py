"""The server that remote stores are read from.

Invariant: it is a process of its own, which ends with the one that asked for it.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from benchmarks import far_server

REQUESTS = 64
"""Requests in flight at a time: what ours has by default, and so has every peer that has several."""

_QUIET_S = 0.2
_SETTLE_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class Served:
    """What a server was asked for since `Server.reset`."""

    requests: int
    missing: int
    bytes: int
    connections: int


class Server:
    """The server of a folder."""

    def __init__(self, folder: str, latency_ms: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", far_server.__name__, folder, f"--latency-ms={latency_ms}"],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise RuntimeError("benchmark: the server of files has failed")
        self.port = int(line)
        self.url = f"http://127.0.0.1:{self.port}"

    def reset(self) -> None:
        """Count from here on."""
        self._ask(far_server.RESET)

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def settle(self, *, quick: bool = False) -> None:
        """Wait until nothing is asked for any more: a closed iterator may have reads under way."""
        if quick:
            return
        before = self.served()
        until_s = time.monotonic() + _SETTLE_S
        while time.monotonic() < until_s:
            time.sleep(_QUIET_S)
            now = self.served()
            if now.requests == before.requests:
                return
            before = now

    def served(self) -> Served:
        """What was asked for."""
        return Served(**json.loads(self._ask(far_server.STATS)))

    def close(self) -> None:
        """End it."""
        self._process.communicate()

    def _ask(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path) as answer:
            found: bytes = answer.read()
        return found


@functools.lru_cache
def serving(folder: str, latency_ms: float) -> Server:
    """The server of that folder, started when it is first asked for."""
    server = Server(folder, latency_ms)
    _pids.add(server.pid)
    atexit.register(server.close)
    return server


_pids: set[int] = set()


def pids() -> set[int]:
    """The processes of the servers that this process has started."""
    return _pids
