"""What lies remote: how much of it there is, and the server that it is read from.

Invariant: the server is a process of its own, which ends with the one that asked for it.
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
class Far:
    """Stores that are read over HTTP.

    Args:
        latency_ms: What every answer takes at least.
        records: Records of the ArrayRecord file.
        chunk_rows: Records of an inner chunk of the Zarr shards.
        files: How many files are opened at once.
        file_records: Records of each of those.
    """

    latency_ms: float = 20.0
    records: int = 50_000
    chunk_rows: int = 32
    files: int = 1_000
    file_records: int = 20

    def file_name(self, number: int) -> str:
        """The name of one of the files that are opened at once."""
        return f"part-{number:05}-of-{self.files:05}.array_record"


FAR = Far()


@dataclasses.dataclass(frozen=True, slots=True)
class Served:
    """What a server was asked for since `Server.reset`."""

    requests: int
    missing: int
    bytes: int
    connections: int


class Server:
    """The server of a folder."""

    def __init__(
        self, folder: str, latency_ms: float, slow_share: float = 0.0, slow_ms: float = 0.0
    ) -> None:
        options = {"latency-ms": latency_ms, "slow-share": slow_share, "slow-ms": slow_ms}
        given = [f"--{name}={value}" for name, value in options.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", far_server.__name__, folder, *given],
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

    def settle(self) -> None:
        """Wait until nothing is asked for any more: a closed iterator may have reads under way."""
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


@functools.lru_cache(maxsize=1)
def serving(folder: str, latency_ms: float) -> Server:
    """The server of that folder, started when it is first asked for."""
    server = Server(folder, latency_ms)
    atexit.register(server.close)
    return server
