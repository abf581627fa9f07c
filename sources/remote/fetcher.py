"""Fetches bytes of files at URLs with many concurrent requests, and retries transient faults.

1. A range's bytes come from the version of the file that was opened, or an error names the URL,
   what was tried and the way out. Versions are never mixed, and bytes are never missing.
2. A fetcher has at most `max_requests` requests in flight, over all its calls. All its `fetch` calls
   together have at most `in_flight_bytes` requested and not yet taken, or one range. A caller that
   takes from one of them must not wait for another.
3. Each range is one request, as it was given; the caller has merged neighbours.
4. A fault that may pass is followed by a pause and another attempt, at most `retries` times; any
   other fault ends the request. An attempt ends after `timeout_s` and a pause after `max_backoff_s`,
   so a request never takes longer than `RemoteOptions.longest_s`, plus the wait for a free slot.
5. An error that is raised has no other error as its cause or context. No error, repr or pickled
   state shows a credential, except that the pickle itself holds the storage options.
6. Everything runs on fsspec's event loop, in its thread, as fsspec's file systems need it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import queue
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar, TypeVarTuple

from windrow.core.bounded_tasks import ByteSemaphore, Share, run_bounded
from windrow.core.cancellation import cancel_with_scope
from windrow.core.in_flight import InFlight
from windrow.core.process import refuse_forked
from windrow.core.redaction import Redaction, shown_url
from windrow.errors import ReadError, WindrowError
from windrow.sources.remote.faults import RequestError, as_fault, failure
from windrow.sources.remote.file_systems import FileSystems
from windrow.sources.remote.options import RemoteOptions, RemoteStats
from windrow.sources.remote.remote_file import ByteRange, FileTail, RemoteFile
from windrow.sources.remote.transports import Transport, same

__all__ = ["LIBRARY", "ByteRange", "Fetcher", "FileTail", "RemoteFile"]

_log = logging.getLogger("windrow.remote")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
LIBRARY: Final = "fsspec"
# Not the module's own generator: a pause must not change the numbers that a user draws from it.
_draw: Final = random.Random()


@dataclasses.dataclass(frozen=True, slots=True)
class _RangeJob:
    """A range, its place in the list of ranges, and the transport that reads it."""

    place: int
    wanted: ByteRange
    transport: Transport
    path: str

    def where(self) -> str:
        return f"bytes [{self.wanted.start:,}, {self.wanted.stop:,})"


class Fetcher:
    """Reads bytes of files at URLs. Thread-safe. It pickles its settings; a copy opens files anew."""

    def __init__(
        self,
        what: str,
        storage_options: Mapping[str, Any] | None,
        options: RemoteOptions,
        stats: RemoteStats | None = None,
    ) -> None:
        """Open nothing yet.

        Args:
            what: The name of the reader, for errors.
            storage_options: Settings of fsspec's file systems.
            options: Limits.
            stats: Counts the requests; None for counts of its own.
        """
        self._what, self.options = what, options
        self._storage_options = dict(storage_options or {})
        self.redaction = Redaction(self._storage_options)
        self.stats = stats or RemoteStats()
        self._attempts = self._fresh_attempts(options)
        self._budget = ByteSemaphore(options.in_flight_bytes)
        self._in_turn: dict[Transport, _Attempts] = {}
        self._systems = FileSystems(what, self._storage_options, options, redaction=self.redaction)

    def __reduce__(self) -> tuple[Any, ...]:
        return Fetcher, (self._what, self._storage_options, self.options)

    def __repr__(self) -> str:
        return f"Fetcher({self._what!r}, {self.options!r})"

    # ---- bytes

    def tails(self, urls: Sequence[str], size_bytes: int) -> list[FileTail]:
        """The last `size_bytes` of each file, or all of it; a URL that occurs twice is read once.

        Raises:
            NotFoundError: If a URL names no file.
            ReadError: If a file cannot be read.
            SourceError: If a server cannot serve parts of files.
        """
        size_bytes = max(1, size_bytes)
        tails: dict[str, FileTail] = {}
        opened = [(url, *self._open(url)) for url in dict.fromkeys(urls)]

        async def one(job: tuple[str, Transport, str]) -> None:
            url, transport, path = job
            data, size, version = await self._attempts_of(transport).make(
                url, lambda: f"the last {size_bytes:,} bytes", transport.tail, path, size_bytes
            )
            self.stats.received(len(data))
            tails[url] = FileTail(RemoteFile(url, size, version), data)

        if opened:
            self._wait(self._each(opened, one))
        return [tails[url] for url in urls]

    def confirms(self, url: str) -> bool:
        """Whether each answer states its file's version; if not, `fetch` checks the version at its end."""
        return self._open(url)[0].confirms

    def start(self, wanted: Sequence[ByteRange]) -> Future[list[bytes]]:
        """Start to read all ranges; the future holds their bytes, in their order.

        Its `cancel` cancels the requests. It also holds errors, the same as `tails` raises.

        Raises:
            ReadError: If a range does not lie within its file.
        """
        return self._submit(self._all(self._jobs(wanted), len(wanted)))

    def fetch(self, wanted: Sequence[ByteRange]) -> Iterator[tuple[int, bytes]]:
        """The place and the bytes of each range, in the order in which they arrive.

        Closing the iterator cancels the requests in flight. If a file system does not state the
        version in each answer, a change of the file is raised after the last range.

        Raises:
            NotFoundError: If a file no longer exists.
            ReadError: If a file cannot be read, has changed, or is shorter than a range.
            SourceError: If a server cannot serve parts of files.
        """
        jobs = self._jobs(wanted)
        for place, one in enumerate(wanted):
            if not one.size_bytes:
                yield place, b""
        if not jobs:
            return
        arrived: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        share = Share(self._budget)
        running = self._submit(self._flow(jobs, arrived.put, share))
        running.add_done_callback(lambda _: arrived.put(None))
        loop = _loop()
        try:
            for _ in jobs:
                got = arrived.get()
                if got is None:
                    break
                yield got
                loop.call_soon_threadsafe(share.give, len(got[1]))
                del got
            running.result()
        finally:
            running.cancel()
            loop.call_soon_threadsafe(share.end)

    # ---- names

    def is_file(self, url: str) -> bool:
        """Whether the URL names a file."""
        return self._ask(url, lambda transport, path: transport.what(path)) == "file"

    def is_folder(self, url: str) -> bool:
        """Whether the URL names a folder: over HTTP, a page of links to its contents."""
        return self._ask(url, lambda transport, path: transport.what(path)) == "folder"

    def names_in(self, url: str) -> list[str]:
        """The names in a folder, sorted; names of folders end in a slash.

        Raises:
            NotFoundError: If the folder does not exist.
            ReadError: If it cannot be listed.
        """
        return self._ask(url, lambda transport, path: transport.names(path))

    def glob(self, url: str) -> list[str]:
        """The URLs that match the pattern, sorted.

        Raises:
            ReadError: If folders cannot be listed.
        """
        pattern = self._open(url)[1]
        paths = self._ask(url, lambda transport, path: transport.glob(path))
        parts = url.split("::")
        # A cache that is chained before a URL, as `simplecache::`, has no names of its own.
        named = next((at for at, part in enumerate(parts) if "://" in part), 0)
        before = "".join(part + "::" for part in parts[:named])
        first, after = parts[named], "".join("::" + part for part in parts[named + 1 :])
        bare = pattern.lstrip("/")
        if not first.endswith(bare):  # no protocol of fsspec does this
            head = first.partition("://")[0] + "://"
        elif first.endswith(pattern):
            head = first[: len(first) - len(pattern)]
        else:
            head, paths = first[: len(first) - len(bare)], [path.lstrip("/") for path in paths]
        return [before + head + path + after for path in paths]

    def read_small(self, url: str) -> bytes | None:
        """All of a file; None if it does not exist.

        Raises:
            ReadError: If it cannot be read.
        """
        data = self._ask(url, lambda transport, path: transport.whole(path))
        self.stats.received(len(data or b""))
        return data

    # ---- on the loop

    async def _all(self, jobs: list[_RangeJob], count: int) -> list[bytes]:
        parts = [b""] * count
        await self._flow(jobs, lambda got: parts.__setitem__(*got))
        return parts

    async def _flow(
        self,
        jobs: list[_RangeJob],
        put: Callable[[tuple[int, bytes]], None],
        share: Share | None = None,
    ) -> None:
        async def one(job: _RangeJob) -> None:
            if share is not None:
                await share.take(job.wanted.size_bytes)
            put((job.place, await self._part(job)))

        await self._each(jobs, one)
        await self._confirm(jobs)

    async def _each(self, jobs: Sequence[T], do: Callable[[T], Awaitable[None]]) -> None:
        """Run `do` for each job, as many at a time as requests may be made."""
        await run_bounded(iter(jobs), do, at_once=min(len(jobs), self.options.max_requests))

    async def _part(self, job: _RangeJob) -> bytes:
        wanted = job.wanted
        data = await self._attempts_of(job.transport).make(
            wanted.file.url,
            job.where,
            job.transport.part,
            job.path,
            wanted.start,
            wanted.stop,
            wanted.file,
        )
        self.stats.received(len(data))
        return data

    async def _confirm(self, jobs: list[_RangeJob]) -> None:
        """Check the version of files whose parts did not state it."""
        files = {job.wanted.file: job for job in jobs if not job.transport.confirms}

        async def one(job: _RangeJob) -> None:
            file = job.wanted.file
            await self._attempts_of(job.transport).make(
                file.url, lambda: "", _check_version, job.transport, job.path, file
            )

        await self._each(list(files.values()), one)

    # ---- between the caller's thread and the loop

    def _jobs(self, wanted: Sequence[ByteRange]) -> list[_RangeJob]:
        jobs = []
        for place, one in enumerate(wanted):
            if not 0 <= one.start <= one.stop <= one.file.size_bytes:
                raise ReadError(
                    f"{self._what}: {one.file.shown} has {one.file.size_bytes:,} bytes, and bytes"
                    f" [{one.start:,}, {one.stop:,}) were requested; the file is damaged or cut short",
                    file=one.file.shown,
                    offset=one.start,
                )
            if one.start < one.stop:
                jobs.append(_RangeJob(place, one, *self._open(one.file.url)))
        return jobs

    def _open(self, url: str) -> tuple[Transport, str]:
        known = self._systems.known(url)
        if known is not None:
            return known
        refuse_forked(LIBRARY, self._what)
        if self._systems.is_quiet(url):
            return self._systems.open(url)
        # Opening may connect or list names, so it has a time limit and is retried.
        call = functools.partial(self._systems.threads.call, self._systems.open, url)
        opened: tuple[Transport, str] = self._wait(self._attempts.make(url, lambda: "", call))
        return opened

    def _ask(self, url: str, ask: Callable[[Transport, str], Awaitable[T]]) -> T:
        transport, path = self._open(url)
        attempts = self._attempts_of(transport)
        return self._wait(attempts.make(url, lambda: "", ask, transport, path))

    def _fresh_attempts(self, options: RemoteOptions) -> _Attempts:
        return _Attempts(self._what, options, stats=self.stats, redaction=self.redaction)

    def _attempts_of(self, transport: Transport) -> _Attempts:
        """The slots for requests: a transport that takes one request at a time has its own slot.

        The time that a request waits for its turn must not count as the request's time.
        """
        if not transport.serial:
            return self._attempts
        if transport not in self._in_turn:
            serial = self._fresh_attempts(dataclasses.replace(self.options, max_requests=1))
            self._in_turn.setdefault(transport, serial)
        return self._in_turn[transport]

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            refuse_forked(LIBRARY, self._what)
        except ReadError:
            work.close()
            raise
        running = asyncio.run_coroutine_threadsafe(work, _loop())
        cancel_with_scope(running)
        return running

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        running = self._submit(work)
        try:
            return running.result()
        finally:
            running.cancel()  # in case a signal ended the wait


class _Attempts:
    """Makes requests on an event loop, at most `max_requests` at a time, and retries them."""

    def __init__(
        self, what: str, options: RemoteOptions, *, stats: RemoteStats, redaction: Redaction
    ) -> None:
        """Request nothing yet."""
        self._what, self._options, self._stats, self._redaction = what, options, stats, redaction
        self._slots = asyncio.Semaphore(options.max_requests)

    async def make(
        self, url: str, where: Callable[[], str], ask: Callable[[*Ts], Awaitable[T]], *args: *Ts
    ) -> T:
        """The result of `ask(*args)`, which makes one request, after as many attempts as it needs.

        Args:
            url: The URL that is read, for an error.
            where: Names the part of it that is read, for an error.
            ask: Makes the request.
            args: Its arguments.

        Raises:
            NotFoundError: If the URL names nothing.
            SourceError: If the server cannot serve parts of files.
            ReadError: If the URL cannot be read.
        """
        started = time.monotonic()
        faults: list[RequestError] = []
        with InFlight(lambda: self._described(url, where(), faults)):
            while True:
                try:
                    return await self._once(faults, ask, *args)
                except RequestError as fault:
                    if not fault.transient or len(faults) > self._options.retries:
                        break
                pause_s = self._pause_s(faults)
                if _log.isEnabledFor(logging.DEBUG):
                    from windrow.core.debug_log import debug

                    debug(_log, "%s: in %.1f s", self._described(url, where(), faults), pause_s)
                await asyncio.sleep(pause_s)
        took_s = time.monotonic() - started
        raise failure(self._what, url, where(), faults, took_s, self._redaction)

    def _described(self, url: str, where: str, faults: Sequence[RequestError]) -> str:
        shown = ", ".join(filter(None, [self._redaction.hide(shown_url(url)), where]))
        before = f" after {faults[-1].kind}" if faults else ""
        return f"{shown}, attempt {len(faults) + 1}{before}"

    def _pause_s(self, faults: list[RequestError]) -> float:
        """The seconds before the next attempt: a random part of the backoff, or as requested."""
        options = self._options
        most = min(options.max_backoff_s, options.backoff_s * 2.0 ** (len(faults) - 1))
        requested = min(options.max_backoff_s, faults[-1].retry_after_s)
        return max(requested, _draw.uniform(0.0, most))

    async def _once(
        self, faults: list[RequestError], ask: Callable[[*Ts], Awaitable[T]], *args: *Ts
    ) -> T:
        async with self._slots:
            self._stats.request(again=bool(faults))
            try:
                async with asyncio.timeout(self._options.timeout_s):
                    return await ask(*args)
            except WindrowError:
                raise
            except Exception as error:
                fault = as_fault(error, self._redaction)
        faults.append(fault)
        self._stats.fault(fault.kind)
        raise fault


def _loop() -> asyncio.AbstractEventLoop:
    from fsspec.asyn import get_loop

    loop: asyncio.AbstractEventLoop = get_loop()
    return loop


async def _check_version(transport: Transport, path: str, file: RemoteFile) -> None:
    same(file, *await transport.state(path))
