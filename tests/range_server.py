"""A real HTTP/1.1 server on loopback, for tests: byte ranges, latency, counts and faults as planned.

It runs in a thread of its own and serves bytes from memory, files of a folder, or what another
server answers (`upstream`: then it is a proxy, through which faults reach any protocol on HTTP).

1. Faults come as `plan` lists them, one entry per request of `methods`; None is a good answer.
2. After the list, `chance` draws them, from its own seed.
3. Every count is of requests that reached the server; `most_in_flight` of those at the same time.
4. After `gather`, answers wait until so many requests are there, whatever keeps the machine busy.
5. `close` breaks what is in flight; nothing waits for a stalled answer.
6. On Linux each server has a loopback address of its own, so that clients of a closed one never reach
   another; with `port=` it is 127.0.0.1, where it can be opened again.

    with RangeServer({"a.bin": data}, latency_s=0.02) as server:
        server.plan([status(503), None, cut()])
        requests.get(server.url("a.bin"), headers={"Range": "bytes=0-9"})
        assert server.counts().requests == 1
"""

from __future__ import annotations

import asyncio
import base64
import collections
import contextlib
import dataclasses
import hashlib
import html
import itertools
import os
import random
import re
import socket
import struct
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

Kind = Literal[
    "status",  # an answer of that status, with these headers and this body
    "reset",  # the connection is reset in the middle of the body
    "close",  # the connection is closed before a byte of an answer
    "cut",  # fewer bytes than Content-Length says, then the connection is closed
    "stall",  # no byte of an answer, without end
    "stall_body",  # half of the body, then nothing, without end
    "drip",  # the body, one byte every `pause_s`
    "late",  # a good answer, `pause_s` later
    "ignore_range",  # status 200 and the whole file
    "wrong_range",  # a Content-Range that begins elsewhere
    "replace",  # the file becomes `body`, then is served
]


_GATHER_S: Final = 60.0
_servers: Final = itertools.count()  # of this process


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one request."""

    kind: Kind
    code: int = 503
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    pause_s: float = 0.05


def status(code: int, *, body: bytes = b"", **headers: str) -> Fault:
    """An answer of status `code`; `Retry_After="1"` is the header Retry-After."""
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Fault("status", code, named, body)


def s3_error(code: int, name: str, message: str = "injected") -> Fault:
    """An error as S3 answers it: `s3_error(503, "SlowDown")`."""
    text = f"<Error><Code>{name}</Code><Message>{message}</Message><RequestId>1</RequestId></Error>"
    head = '<?xml version="1.0" encoding="UTF-8"?>'
    return status(code, body=(head + text).encode(), Content_Type="application/xml")


def reset() -> Fault:
    """The connection is reset in the middle of the body."""
    return Fault("reset")


def cut() -> Fault:
    """A body cut short."""
    return Fault("cut")


def stall(*, body: bool = False) -> Fault:
    """A stall without end: before the answer, or in the middle of its body."""
    return Fault("stall_body" if body else "stall")


def drip(pause_s: float = 0.05) -> Fault:
    """One byte of the body every `pause_s`."""
    return Fault("drip", pause_s=pause_s)


def late(pause_s: float) -> Fault:
    """A good answer, so much later."""
    return Fault("late", pause_s=pause_s)


def replace(data: bytes) -> Fault:
    """The file becomes `data` before it is served."""
    return Fault("replace", body=data)


@dataclasses.dataclass(frozen=True, slots=True)
class Counts:
    """What a server has seen. `asked` has (method, path, value of the header Range) per request."""

    requests: int
    body_bytes: int
    most_in_flight: int
    faults: dict[str, int]
    asked: tuple[tuple[str, str, str], ...]


@dataclasses.dataclass(slots=True)
class _Request:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urllib.parse.unquote(self.target.partition("?")[0]).lstrip("/")


@dataclasses.dataclass(slots=True)
class _Answer:
    status: int
    headers: dict[str, str]
    body: bytes


class RangeServer:
    """Files over HTTP with ranges, counts and faults. A context manager; see the module."""

    def __init__(
        self,
        files: Mapping[str, bytes] | Path | str | None = None,
        *,
        upstream: str | None = None,
        latency_s: float = 0.0,
        ranges: bool = True,
        etags: bool = True,
        listings: bool = True,
        user: tuple[str, str] | None = None,
        need_header: tuple[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        methods: Sequence[str] = ("GET",),
        port: int | None = None,
    ) -> None:
        """Serve `files`: bytes by path, or a folder. Nothing runs before `start` or `with`.

        Args:
            files: Bytes by path without a leading slash, or the folder they lie in.
            upstream: Address `http://host:port` of the server whose answers are passed on, instead.
            latency_s: Seconds from a request to the first byte of its answer.
            ranges: Whether the header Range is heard.
            etags: Whether answers have an ETag; they have Last-Modified either way.
            listings: Whether a folder is an HTML page of links.
            user: Name and password for basic authentication; status 401 without.
            need_header: A header and its value; status 403 without.
            headers: What answers with a file have beside the usual; '' leaves a header out.
            methods: Requests that faults are for.
            port: A port of 127.0.0.1, or 0 for a free one there; else one of an address of its own.
        """
        self._files: dict[str, bytes] = {}
        self._folder: Path | None = None
        if isinstance(files, Mapping):
            self._files.update({path.lstrip("/"): bytes(data) for path, data in files.items()})
        elif files is not None:
            self._folder = Path(files)
        self._upstream = upstream
        self.latency_s = latency_s
        self.ranges, self.etags, self.listings = ranges, etags, listings
        self.headers = dict(headers or {})
        self.user, self.need_header, self.methods = user, need_header, tuple(methods)
        self._etags: dict[str, tuple[bytes, str]] = {}
        self._lock = threading.Lock()
        self._planned: collections.deque[Fault | None] = collections.deque()
        self._drawn: Callable[[], Fault | None] = lambda: None
        self.reset_counts()
        self._in_flight = self._wanted_in_flight = 0
        self._gathered = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        self.host = _own_host() if port is None else "127.0.0.1"
        self.port = port or 0

    # ---- running

    def start(self) -> RangeServer:
        """Listen on loopback, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="range-server", daemon=True)
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def close(self) -> None:
        """Break what is in flight and end the thread."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._thread = None

    def __enter__(self) -> RangeServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """`http://host:port`."""
        return f"http://{self.host}:{self.port}"

    def url(self, path: str = "") -> str:
        """The URL of a file."""
        return f"{self.address}/{urllib.parse.quote(path.lstrip('/'))}"

    # ---- what it serves, and what goes wrong

    def put(self, path: str, data: bytes) -> None:
        """A new file, or another one in its place: its ETag changes with its bytes."""
        if self._folder is not None:
            (self._folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self._folder / path).write_bytes(data)
        else:
            self._files[path.lstrip("/")] = data

    def remove(self, path: str) -> None:
        """The file is there no more."""
        if self._folder is not None:
            (self._folder / path).unlink()
        else:
            del self._files[path.lstrip("/")]

    def plan(self, faults: Iterable[Fault | None]) -> None:
        """The faults of the next requests, one each; None is a good answer."""
        with self._lock:
            self._planned = collections.deque(faults)

    def chance(self, probability: float, faults: Sequence[Fault], *, seed: int = 0) -> None:
        """After the plan, a request fails with `probability`, in one of the ways of `faults`."""
        draw = random.Random(seed)
        with self._lock:
            self._drawn = lambda: draw.choice(faults) if draw.random() < probability else None

    def heal(self) -> None:
        """No faults any more."""
        with self._lock:
            self._planned.clear()
            self._drawn = lambda: None

    def gather(self, requests: int) -> None:
        """The next answers wait until so many requests are in flight, or for a minute in all."""
        self._gathered, self._wanted_in_flight = asyncio.Event(), requests

    def counts(self) -> Counts:
        """Everything counted since the start or `reset_counts`."""
        with self._lock:
            return Counts(
                requests=len(self._asked),
                body_bytes=self._body_bytes,
                most_in_flight=self._most_in_flight,
                faults=dict(self._faults),
                asked=tuple(self._asked),
            )

    def reset_counts(self) -> None:
        """Count from nothing."""
        with self._lock:
            self._asked: list[tuple[str, str, str]] = []
            self._body_bytes = self._most_in_flight = 0
            self._faults: collections.Counter[str] = collections.Counter()

    # ---- connections

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._connected, self.host, self.port, backlog=1024)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        for (
            listening
        ) in server.sockets:  # what is accepted already becomes a connection, and no more come
            self._loop.remove_reader(listening)
        while asyncio.all_tasks(self._loop):
            for task in self._tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
        server.close()
        if sys.version_info >= (3, 13):
            server.abort_clients()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while (request := await _next_request(reader, writer)) is not None:
                if not await self._answered(request, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client, or the server's end
        finally:
            self._tasks.discard(task)
            with contextlib.suppress(Exception):
                writer.close()

    async def _answered(self, request: _Request, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        fault = self._counted(request)
        self._in_flight += 1
        self._most_in_flight = max(self._most_in_flight, self._in_flight)
        try:
            await self._all_there(request)
            if self.latency_s:
                await asyncio.sleep(self.latency_s)
            return await self._served(request, fault, writer)
        finally:
            self._in_flight -= 1

    async def _all_there(self, request: _Request) -> None:
        if self._data(request.path) is None:
            return  # of a client of an earlier server at this port
        gathered = self._gathered
        if self._in_flight < self._wanted_in_flight:
            with contextlib.suppress(TimeoutError):  # the count of a test will tell
                await asyncio.wait_for(gathered.wait(), _GATHER_S)
        self._wanted_in_flight = 0
        gathered.set()

    def _counted(self, request: _Request) -> Fault | None:
        with self._lock:
            self._asked.append((request.method, request.path, request.headers.get("range", "")))
            if request.method not in self.methods:
                return None
            fault = self._planned.popleft() if self._planned else self._drawn()
            if fault is not None:
                self._faults[fault.kind] += 1
            return fault

    async def _served(
        self, request: _Request, fault: Fault | None, writer: asyncio.StreamWriter
    ) -> bool:
        kind = None if fault is None else fault.kind
        if kind == "stall":
            await asyncio.Event().wait()
        if kind == "close":
            return False
        if fault is not None and kind == "late":
            await asyncio.sleep(fault.pause_s)
        if fault is not None and kind == "replace":
            self.put(request.path, fault.body)
        if kind == "ignore_range":
            request.headers.pop("range", None)
        if fault is not None and kind == "status":
            answer = _Answer(fault.code, dict(fault.headers), fault.body)
        elif self._upstream is not None:
            answer = await _passed_on(self._upstream, request)
        else:
            answer = self._answer(request)
        if kind == "wrong_range" and "Content-Range" in answer.headers:
            was = answer.headers["Content-Range"]
            answer.headers["Content-Range"] = re.sub(
                r"(\d+)-", lambda found: f"{int(found[1]) + 1}-", was, count=1
            )
        return await self._sent(request, answer, fault, writer)

    async def _sent(
        self, request: _Request, answer: _Answer, fault: Fault | None, writer: asyncio.StreamWriter
    ) -> bool:
        body = b"" if request.method == "HEAD" else answer.body
        head = [f"HTTP/1.1 {answer.status} Said"]
        answer.headers.setdefault("Content-Length", str(len(answer.body)))
        head += [f"{name}: {value}" for name, value in answer.headers.items()]
        writer.write(("\r\n".join(head) + "\r\n\r\n").encode("latin-1"))
        kind = None if fault is None else fault.kind
        broken = kind in ("reset", "cut", "stall_body")
        if broken:
            body = body[: len(body) // 2]
        if fault is not None and kind == "drip":
            for at in range(len(body)):
                self._sends(1)
                writer.write(body[at : at + 1])
                await writer.drain()
                await asyncio.sleep(fault.pause_s)
            return True
        self._sends(len(body))
        writer.write(body)
        await writer.drain()
        if kind == "stall_body":
            await asyncio.Event().wait()
        if kind == "reset":
            _reset(writer)
        return not broken and request.headers.get("connection", "").lower() != "close"

    def _sends(self, size_bytes: int) -> None:
        """Count bytes before they are sent: a client that has its answer may ask for the counts at once."""
        with self._lock:
            self._body_bytes += size_bytes

    # ---- answers

    def _answer(self, request: _Request) -> _Answer:
        refused = self._refused(request)
        if refused is not None:
            return refused
        if request.method not in ("GET", "HEAD"):
            return _Answer(405, {"Allow": "GET, HEAD"}, b"")
        data = self._data(request.path)
        if data is None:
            return self._listing(request.path)
        headers = {
            "Content-Type": "application/octet-stream",
            "Last-Modified": "Sat, 01 Jan 2000 00:00:00 GMT",
            **self.headers,
        }
        headers = {name: value for name, value in headers.items() if value}
        etag = self._etag(request.path, data)
        if self.etags:
            headers["ETag"] = etag
        if request.headers.get("if-match", etag) not in (etag, "*"):
            return _Answer(412, {}, b"")
        if request.headers.get("if-none-match") == etag:
            return _Answer(304, headers, b"")
        if self.ranges:
            headers["Accept-Ranges"] = "bytes"
            asked = request.headers.get("range")
            if asked is not None:
                return _part(data, asked, headers)
        return _Answer(200, headers, data)

    def _refused(self, request: _Request) -> _Answer | None:
        if self.user is not None:
            token = base64.b64encode(":".join(self.user).encode()).decode()
            if request.headers.get("authorization") != f"Basic {token}":
                return _Answer(401, {"WWW-Authenticate": 'Basic realm="tests"'}, b"who are you?")
        if self.need_header is not None:
            name, value = self.need_header
            if request.headers.get(name.lower()) != value:
                return _Answer(403, {}, b"a header is missing")
        return None

    def _data(self, path: str) -> bytes | None:
        if self._folder is None:
            return self._files.get(path)
        found = self._folder / path
        return found.read_bytes() if path and found.is_file() else None

    def _etag(self, path: str, data: bytes) -> str:
        made_of, etag = self._etags.get(path, (None, ""))
        if made_of is not data:
            etag = f'"{hashlib.md5(data).hexdigest()}"'
            self._etags[path] = data, etag
        return etag

    def _listing(self, path: str) -> _Answer:
        folder = path.rstrip("/") + "/" if path.strip("/") else ""
        names = set(self._names(folder)) if self.listings else set()
        if not names:
            return _Answer(404, {"Content-Type": "text/plain"}, b"there is no such file")
        links = (
            f'<li><a href="{urllib.parse.quote(name)}">{html.escape(name)}</a></li>'
            for name in sorted(names)
        )
        page = f"<html><body><ul>{''.join(links)}</ul></body></html>"
        return _Answer(200, {"Content-Type": "text/html"}, page.encode())

    def _names(self, folder: str) -> Iterator[str]:
        if self._folder is not None:
            root = self._folder / folder
            for found in root.iterdir() if root.is_dir() else ():
                yield found.name + "/" * found.is_dir()
            return
        for path in list(self._files):
            if path.startswith(folder):
                first, slash, _ = path.removeprefix(folder).partition("/")
                yield first + slash


def _own_host() -> str:
    """A loopback address that no other server of these tests has."""
    if sys.platform != "linux":
        return "127.0.0.1"
    server, process = next(_servers), os.getpid()
    return f"127.{1 + process % 254}.{server // 254 % 254}.{1 + server % 254}"


async def _next_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> _Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    if headers.pop("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return _Request(method, target, headers, body)


def _part(data: bytes, asked: str, headers: dict[str, str]) -> _Answer:
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", asked)
    size = len(data)
    if found is None or not (found[1] or found[2]):
        return _Answer(200, headers, data)
    if found[1]:
        start = int(found[1])
        stop = min(size, int(found[2]) + 1) if found[2] else size
    else:
        start, stop = max(0, size - int(found[2])), size
    if start >= size or stop <= start:
        return _Answer(416, headers | {"Content-Range": f"bytes */{size}"}, b"")
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    return _Answer(206, headers, data[start:stop])


async def _passed_on(upstream: str, request: _Request) -> _Answer:
    """What the upstream server answers. Asked in HTTP/1.0: then it is not chunked."""
    parts = urllib.parse.urlsplit(upstream)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    lines = [f"{request.method} {request.target} HTTP/1.0"]
    sent = {**request.headers, "connection": "close", "content-length": str(len(request.body))}
    lines += [f"{name}: {value}" for name, value in sent.items()]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + request.body)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    first, *rest = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in rest:
        name, _, value = line.partition(":")
        if name.lower() not in ("connection", "server", "date"):
            headers[name.title() if name.lower() == "content-range" else name] = value.strip()
    headers.pop("Transfer-Encoding", None)
    return _Answer(int(first.split(" ")[1]), headers, body)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close so that the other side sees a reset: what is not sent is thrown away."""
    sock: Any = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
