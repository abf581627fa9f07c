"""An HTTP server of byte ranges with latency, in a process of its own: what is read over a network.

`python -m benchmarks.far_server FOLDER --latency-ms 20` prints its port and serves the files of the
folder on loopback until its stdin ends. It takes little of the machine for itself, since its clients
are measured on the same cores: one thread, and files go to the sockets without a copy.

1. Each request waits for the latency (a share of them, drawn from a seed, for a longer one), whatever
   else is under way, and is then answered as fast as its connection takes it. Connections are kept; one request of a connection is answered at a time.
2. `GET /-/stats` tells at once what was served since `GET /-/reset`, as JSON: requests, those of
   which no file was found, bytes of bodies, and connections made.
3. Files do not change while it runs.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import math
import os
import random
import re
import resource
import selectors
import socket
import stat
import sys
import time
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

STATS, RESET = "/-/stats", "/-/reset"
_RANGE = re.compile(rb"\r\nrange:\s*bytes=(\d*)-(\d*)\s*\r\n", re.IGNORECASE)
_MATCH = re.compile(rb"\r\nif-(none-)?match:\s*([^\r]*)\r\n", re.IGNORECASE)
_END = b"\r\n\r\n"
_READ_BYTES = 1 << 16
_SEND_BYTES = 1 << 22
_BACKLOG = 1_024
_OPEN_FILES = 8_192
_SEED = 3


@dataclasses.dataclass(frozen=True, slots=True)
class _File:
    number: int
    size_bytes: int
    version: bytes


@dataclasses.dataclass(slots=True)
class _Answer:
    """What is still to be sent: `head`, then `[start, stop)` of `file`."""

    head: bytes
    file: int = -1
    start: int = 0
    stop: int = 0


class _Connection:
    """A client's connection: bytes that have come, and the answer that is under way."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.came = b""
        self.answer: _Answer | None = None
        self.is_open = True

    def send(self) -> bool:
        """Send what the connection takes now; whether that was all of the answer."""
        answer = self.answer
        if answer is None:
            return True
        try:
            if answer.head:
                answer.head = answer.head[self.client.send(answer.head) :]
            while not answer.head and answer.start < answer.stop:
                count = min(_SEND_BYTES, answer.stop - answer.start)
                sent = os.sendfile(self.client.fileno(), answer.file, answer.start, count)
                if not sent:
                    raise ConnectionError("the file is shorter than it was")
                answer.start += sent
        except BlockingIOError:
            return False
        return not answer.head and answer.start == answer.stop


_Queue: TypeAlias = collections.deque[tuple[float, _Connection, _Answer]]


class Server:
    """Serves a folder on loopback; `run` returns once stdin has ended."""

    def __init__(
        self, folder: str, *, latency_s: float, slow_share: float = 0.0, slow_s: float = 0.0
    ) -> None:
        self._folder = folder
        self._latency_s = latency_s
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self._listener.setblocking(False)
        self._files: dict[str, _File | None] = {}
        self._slow_share, self._slow_s = slow_share, slow_s
        self._draw = random.Random(_SEED)
        # All of a queue wait equally long, so that the first to come is the first to be due.
        self._waiting: _Queue = collections.deque()
        self._slow: _Queue = collections.deque()
        self._selector = selectors.DefaultSelector()
        self._reset()

    @property
    def port(self) -> int:
        """The port it listens at."""
        port: int = self._listener.getsockname()[1]
        return port

    def run(self) -> None:
        """Serve."""
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            wait_s = None
            if due := [queue[0][0] for queue in (self._waiting, self._slow) if queue]:
                wait_s = max(0.0, min(due) - time.monotonic())
            for key, events in self._selector.select(wait_s):
                if key.fileobj is sys.stdin:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif events & selectors.EVENT_WRITE:
                    self._send(key.data)
                else:
                    self._receive(key.data)
            for queue in (self._waiting, self._slow):
                self._answer_due(queue)

    def _answer_due(self, queue: _Queue) -> None:
        now_s = time.monotonic()
        while queue and queue[0][0] <= now_s:
            _, connection, answer = queue.popleft()
            if connection.is_open:
                connection.answer = answer
                self._send(connection)

    def _reset(self) -> None:
        self._requests = self._missing = self._bytes = self._connections = 0

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:  # it went away before it was taken
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections += 1
        self._selector.register(client, selectors.EVENT_READ, _Connection(client))

    def _close(self, connection: _Connection) -> None:
        connection.is_open = False
        self._selector.unregister(connection.client)
        connection.client.close()

    def _receive(self, connection: _Connection) -> None:
        try:
            came = connection.client.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            came = b""
        if not came:
            self._close(connection)
            return
        connection.came += came
        if _END in connection.came:
            request, _, connection.came = connection.came.partition(_END)
            self._ask(connection, request + b"\r\n")

    def _ask(self, connection: _Connection, request: bytes) -> None:
        line, _, fields = request.partition(b"\r\n")
        words = line.split(b" ")
        if len(words) != 3:
            self._close(connection)
            return
        method, path = words[0], words[1].decode("latin-1")
        if path.startswith("/-/"):
            connection.answer = self._control(path)
            self._send(connection)
            return
        self._requests += 1
        answer = self._answer(method, path, b"\r\n" + fields)
        self._bytes += answer.stop - answer.start
        is_slow = self._slow_share and self._draw.random() < self._slow_share
        queue, wait_s = (self._slow, self._slow_s) if is_slow else (self._waiting, self._latency_s)
        queue.append((time.monotonic() + wait_s, connection, answer))

    def _send(self, connection: _Connection) -> None:
        try:
            is_done = connection.send()
        except OSError:
            self._close(connection)
            return
        events = selectors.EVENT_READ if is_done else selectors.EVENT_WRITE
        if self._selector.get_key(connection.client).events != events:
            self._selector.modify(connection.client, events, connection)
        if is_done and connection.answer is not None:
            connection.answer = None
            if _END in connection.came:
                request, _, connection.came = connection.came.partition(_END)
                self._ask(connection, request + b"\r\n")

    def _control(self, path: str) -> _Answer:
        found = {
            "requests": self._requests,
            "missing": self._missing,
            "bytes": self._bytes,
            "connections": self._connections,
        }
        if path == RESET:
            self._reset()
        body = json.dumps(found).encode()
        return _Answer(_head("200 OK", len(body)) + body)

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
        return _Answer(head) if method == b"HEAD" else _Answer(head, file.number, start, stop)

    def _file(self, path: str) -> _File | None:
        if path not in self._files:
            self._files[path] = self._opened(path)
        return self._files[path]

    def _opened(self, path: str) -> _File | None:
        name = urllib.parse.unquote(path.partition("?")[0]).lstrip("/")
        if ".." in name.split("/"):
            return None
        try:
            number = os.open(Path(self._folder, name), os.O_RDONLY)
        except OSError:
            return None
        facts = os.fstat(number)
        if not stat.S_ISREG(facts.st_mode):
            os.close(number)
            return None
        version = f'"{facts.st_size:x}-{facts.st_mtime_ns:x}"'.encode()
        return _File(number, facts.st_size, version)


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
    parser.add_argument(
        "--slow-share", type=float, default=0.0, help="requests that wait longer, as a share [0]"
    )
    parser.add_argument("--slow-ms", type=float, default=0.0, help="wait before these, in ms [0]")
    args = parser.parse_args(argv)
    if not 0 <= args.latency_ms < math.inf:
        parser.error(f"--latency-ms must be at least 0 and finite, got {args.latency_ms}")
    # Every file stays open.
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < _OPEN_FILES <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (_OPEN_FILES, hard))
    server = Server(
        args.folder,
        latency_s=args.latency_ms / 1e3,
        slow_share=args.slow_share,
        slow_s=args.slow_ms / 1e3,
    )
    print(server.port, flush=True)
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
