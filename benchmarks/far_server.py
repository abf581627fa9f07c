"""An HTTP server of byte ranges with latency, in a process of its own: what is read over a network.

`python -m benchmarks.far_server FOLDER --latency-ms 20` prints its port and serves the files of the
folder on loopback until its stdin ends. It takes little of the machine for itself, since its clients
are measured on the same cores: one thread, and long ranges go to the sockets without a copy.

1. Each request waits for the latency, whatever else is under way, and is then answered as fast as its
   connection takes it. Connections are kept; one request of a connection is answered at a time.
2. `GET /-/stats` says without the latency what was served since `GET /-/reset`, as JSON: requests,
   requests for files that are not there, bytes of bodies, and connections made.
3. Files do not change while it runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import math
import os
import re
import resource
import sys
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

STATS, RESET = "/-/stats", "/-/reset"
_RANGE = re.compile(rb"\r\nrange:\s*bytes=(\d*)-(\d*)\s*\r\n", re.IGNORECASE)
_MATCH = re.compile(rb"\r\nif-(none-)?match:\s*([^\r]*)\r\n", re.IGNORECASE)
_END = b"\r\n\r\n"
_BACKLOG = 1_024
_OPEN_FILES = 8_192
_COPIED_BYTES = 1 << 16  # of small ranges a copy is cheaper


@dataclasses.dataclass(frozen=True, slots=True)
class _File:
    data: BinaryIO
    size_bytes: int
    version: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class _Answer:
    """What is sent: `head`, then `[start, stop)` of `file`."""

    head: bytes
    file: _File | None = None
    start: int = 0
    stop: int = 0


class Server:
    """Serves a folder on loopback until stdin has ended."""

    def __init__(self, folder: str, *, latency_s: float) -> None:
        self._folder, self._latency_s = folder, latency_s
        self._files: dict[str, _File | None] = {}
        self._reset()

    async def run(self) -> None:
        """Print the port, and serve."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=_BACKLOG)
        print(server.sockets[0].getsockname()[1], flush=True)
        loop.add_reader(sys.stdin, ended.set)
        await ended.wait()

    def _reset(self) -> None:
        self._requests = self._missing = self._bytes = self._connections = 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                line, _, fields = (await reader.readuntil(_END)).partition(b"\r\n")
                words = line.split(b" ")
                if len(words) != 3:
                    break
                method, path = words[0], words[1].decode("latin-1")
                if path.startswith("/-/"):
                    writer.write(self._control(path))
                    continue
                self._requests += 1
                answer = self._answer(method, path, b"\r\n" + fields)
                self._bytes += answer.stop - answer.start
                if self._latency_s:
                    await asyncio.sleep(self._latency_s)
                if answer.file is None:
                    writer.write(answer.head)
                    continue
                count = answer.stop - answer.start
                if count <= _COPIED_BYTES:
                    data = os.pread(answer.file.data.fileno(), count, answer.start)
                    writer.write(answer.head + data)
                    continue
                writer.write(answer.head)
                await writer.drain()
                await loop.sendfile(writer.transport, answer.file.data, answer.start, count)
        writer.close()

    def _control(self, path: str) -> bytes:
        found = {
            "requests": self._requests,
            "missing": self._missing,
            "bytes": self._bytes,
            "connections": self._connections,
        }
        if path == RESET:
            self._reset()
        body = json.dumps(found).encode()
        return _head("200 OK", len(body)) + body

    def _answer(self, method: bytes, path: str, fields: bytes) -> _Answer:
        file = self._file(path)
        if file is None:
            self._missing += 1
            return _Answer(_head("404 Not Found", 0))
        match = _MATCH.search(fields)
        if match is not None:
            is_same = match[2].strip() in (b"*", file.version)
            if is_same == bool(match[1]):
                status = "304 Not Modified" if match[1] else "412 Precondition Failed"
                return _Answer(_head(status, 0, file))
        start, stop, status, also = 0, file.size_bytes, "200 OK", ""
        asked = _RANGE.search(fields)
        if asked is not None:
            first, last = asked[1], asked[2]
            if first:
                start = int(first)
                stop = min(int(last) + 1, stop) if last else stop
            else:
                start = max(0, stop - int(last or 0))
            if start >= stop:
                also = f"Content-Range: bytes */{file.size_bytes}\r\n"
                return _Answer(_head("416 Range Not Satisfiable", 0, file, also))
            status = "206 Partial Content"
            also = f"Content-Range: bytes {start}-{stop - 1}/{file.size_bytes}\r\n"
        head = _head(status, stop - start, file, also)
        is_empty = method == b"HEAD" or start == stop
        return _Answer(head) if is_empty else _Answer(head, file, start, stop)

    def _file(self, path: str) -> _File | None:
        if path not in self._files:
            self._files[path] = self._opened(path)
        return self._files[path]

    def _opened(self, path: str) -> _File | None:
        name = urllib.parse.unquote(path.partition("?")[0]).lstrip("/")
        found = Path(self._folder, name)
        if ".." in name.split("/") or not found.is_file():
            return None
        facts = found.stat()
        version = f'"{facts.st_size:x}-{facts.st_mtime_ns:x}"'.encode()
        return _File(found.open("rb", buffering=0), facts.st_size, version)


def _head(status: str, length: int, file: _File | None = None, also: str = "") -> bytes:
    version = "" if file is None else f"ETag: {file.version.decode()}\r\nAccept-Ranges: bytes\r\n"
    return (
        f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n"
        f"Content-Type: application/octet-stream\r\n{version}{also}\r\n"
    ).encode()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until stdin ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.far_server")
    parser.add_argument("folder", help="the files that are served")
    parser.add_argument(
        "--latency-ms", type=float, default=0.0, help="wait before each answer, in ms [0]"
    )
    args = parser.parse_args(argv)
    if not 0 <= args.latency_ms < math.inf:
        parser.error(f"--latency-ms must be at least 0 and finite, got {args.latency_ms}")
    # Every file stays open.
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < _OPEN_FILES <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, hard))
    asyncio.run(Server(args.folder, latency_s=args.latency_ms / 1e3).run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
