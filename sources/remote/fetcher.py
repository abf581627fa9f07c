"""Fetches bytes of files at URLs with many concurrent requests, and retries transient faults.

1. A range's bytes come from the version of the file that was opened, or an error names the URL,
   what was tried and the way out. Versions are never mixed, and bytes are never missing.
2. A fetcher has at most `max_requests` requests in flight, over all its calls. All its `fetch` calls
   together have at most `in_flight_bytes` requested and not yet taken, or one range. A caller that
   takes from one of them must not wait for another.
3. Each range is one request, as it was given; the caller has merged neighbours.
4. A fault that may pass is followed by a pause and another attempt, at most `retries` times; any
   other fault ends the request. An attempt ends after `timeout_s` and a pause after `max_backoff_s`,
   so a request never takes longer than `RemoteOptions.longest_s`, plus the wait for a free slot. Once
   `expect_answers` was called, a request waits for `outage_s` more for a store that is away.
5. With a cache on disk, `kept` reads from it and `keep` writes to it; both wait for the disk, and
   never run on the event loop.
6. An error that is raised has no other error as its cause or context. No error, repr or pickled
   state shows a credential, except that the pickle itself holds the storage options.
7. Requests run on fsspec's event loop, in its thread, as fsspec's file systems need it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
import queue
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from windrow.core.bounded_tasks import ByteSemaphore, Share, run_bounded
from windrow.core.cancellation import cancel_with_scope
from windrow.core.process import refuse_forked
from windrow.core.redaction import Redaction
from windrow.errors import NotFoundError, ReadError
from windrow.sources.remote.attempts import Attempts
from windrow.sources.remote.file_systems import FileSystems
from windrow.sources.remote.options import RemoteOptions
from windrow.sources.remote.outages import Outages
from windrow.sources.remote.remote_file import ByteRange, FileTail, RemoteFile
from windrow.sources.remote.request_counts import RemoteStats
from windrow.sources.remote.transports import Transport, same

if TYPE_CHECKING:
    from windrow.sources.remote.disk_cache import DiskCache, IntArray

__all__ = ["LIBRARY", "ByteRange", "Fetcher", "FileTail", "RemoteFile"]

T = TypeVar("T")
LIBRARY: Final = "fsspec"


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
    """Reads bytes of files at URLs. Thread-safe; it pickles its settings alone."""

    def __init__(
        self,
        what: str,
        storage_options: Mapping[str, Any] | None,
        options: RemoteOptions,
        stats: RemoteStats | None = None,
        *,
        expected: bool = False,
    ) -> None:
        """Open nothing yet.

        Args:
            what: The name of the reader, for errors.
            storage_options: Settings of fsspec's file systems.
            options: Limits.
            stats: Counts the requests; None for counts of its own.
            expected: As after `expect_answers`.
        """
        self._what, self.options = what, options
        self._storage_options = dict(storage_options or {})
        self.redaction = Redaction(self._storage_options)
        self.stats = stats or RemoteStats()
        self._outages = Outages(what, options, self.stats, self.redaction)
        self._outages.expected = expected
        self._attempts = self._fresh_attempts(options)
        self._budget = ByteSemaphore(options.in_flight_bytes)
        self._in_turn: dict[Transport, Attempts] = {}
        self._systems = FileSystems(what, self._storage_options, options, redaction=self.redaction)
        self._cache: DiskCache | None = None
        if options.cache_dir is not None:
            from windrow.sources.remote.disk_cache import DiskCache

            folder, most = os.fspath(options.cache_dir), options.cache_bytes
            self._cache = DiskCache(folder, most, settings=self._storage_options)
            self.stats.cached(0)

    def __reduce__(self) -> tuple[Any, ...]:
        expected = self._outages.expected
        make = functools.partial(Fetcher, expected=expected) if expected else Fetcher
        return make, (self._what, self._storage_options, self.options)

    def __repr__(self) -> str:
        return f"Fetcher({self._what!r}, {self.options!r})"

    def expect_answers(self) -> None:
        """Wait for stores that are away from now on, also in copies."""
        self._outages.expect()

    # ---- bytes

    def tails(self, urls: Sequence[str], size_bytes: int) -> list[FileTail]:
        """Read the last `size_bytes` of each file, or all of it.

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
        """Whether each answer states its version; else `fetch` asks at its end."""
        return self._open(url)[0].confirms

    def start(self, wanted: Sequence[ByteRange]) -> Future[list[bytes]]:
        """Start to read all ranges; the future has their bytes.

        Its `cancel` cancels the requests. It also holds errors, the same as `tails` raises.

        Raises:
            ReadError: If a range does not lie within its file.
        """
        return self._submit(self._all(self._jobs(wanted), len(wanted)))

    def fetch(self, wanted: Sequence[ByteRange]) -> Iterator[tuple[int, bytes]]:
        """Yield the place and the bytes of each range as they arrive.

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

    # ---- bytes of the cache on disk

    @property
    def has_cache(self) -> bool:
        """Whether there is a cache on disk."""
        return self._cache is not None

    def kept(self, file: RemoteFile, begin: IntArray, end: IntArray) -> Sequence[bytes | None]:
        """Return ranges `[begin, end)` from the cache on disk; None for others."""
        if self._cache is None:
            return [None] * len(begin)
        refuse_forked(LIBRARY, self._what)
        found = self._cache.get(file, begin, end)
        self.stats.cached(sum(len(data) for data in found if data is not None))
        return found

    def keep(
        self, file: RemoteFile, begin: IntArray, end: IntArray, start: int, data: bytes
    ) -> None:
        """Put ranges `[begin, end)`, in order, into the cache on disk.

        Args:
            file: The file, whose version is confirmed.
            begin: The first byte of each range.
            end: The end of each range.
            start: The first byte of `data`.
            data: Bytes that hold all ranges.
        """
        if self._cache is not None:
            refuse_forked(LIBRARY, self._what)
            self._cache.put(file, begin, end, start, data)

    def read_kept(self, one: ByteRange) -> bytes:
        """Read a range from the cache on disk, or fetch it."""
        begin, end = np.array([one.start]), np.array([one.stop])
        (data,) = self.kept(one.file, begin, end)
        if data is None:
            (data,) = self.start([one]).result()
            self.keep(one.file, begin, end, one.start, data)
        return data

    def read_whole(self, url: str) -> tuple[RemoteFile, bytes] | None:
        """Read all of a file, from the cache or fetched, or None.

        The store is always asked for the version of the file.

        Raises:
            ReadError: If it cannot be read.
        """
        refuse_forked(LIBRARY, self._what)
        try:
            if self._cache is not None and self._cache.knows(url):
                size, version = self._ask(url, lambda transport, path: transport.state(path))
                file = RemoteFile(url, size, version)
                return file, self.read_kept(ByteRange(file, 0, size))
            found = self._ask(url, lambda transport, path: transport.whole_version(path))
        except NotFoundError:
            return None
        if found is None:
            return None
        data, version = found
        self.stats.received(len(data))
        file = RemoteFile(url, len(data), version)
        self.keep(file, np.array([0]), np.array([len(data)]), 0, data)
        return file, data

    # ---- names

    def is_file(self, url: str) -> bool:
        """Whether the URL names a file."""
        return self._ask(url, lambda transport, path: transport.what(path)) == "file"

    def is_folder(self, url: str) -> bool:
        """Whether the URL names a folder; over HTTP, a page of links."""
        return self._ask(url, lambda transport, path: transport.what(path)) == "folder"

    def names_in(self, url: str) -> list[str]:
        """List the names in a folder, sorted; folders end in a slash.

        Raises:
            NotFoundError: If the folder does not exist.
            ReadError: If it cannot be listed.
        """
        return self._ask(url, lambda transport, path: transport.names(path))

    def glob(self, url: str) -> list[str]:
        """List the URLs that match the pattern, sorted.

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
        """Read all of a file; None if it does not exist.

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
            is_range=job.transport.confirms,
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

    def _fresh_attempts(self, options: RemoteOptions) -> Attempts:
        return Attempts(
            self._what,
            options,
            stats=self.stats,
            redaction=self.redaction,
            outages=self._outages,
        )

    def _attempts_of(self, transport: Transport) -> Attempts:
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


def _loop() -> asyncio.AbstractEventLoop:
    from fsspec.asyn import get_loop

    loop: asyncio.AbstractEventLoop = get_loop()
    return loop


async def _check_version(transport: Transport, path: str, file: RemoteFile) -> None:
    same(file, *await transport.state(path))
