"""Fetching: bytes of files at URLs, many requests at a time, through faults that pass.

1. A range's bytes are exactly those of the version of the file that was opened, or an error names
   the URL, what was tried and the way out: never a mixture of two versions, never fewer bytes.
2. At most `max_requests` requests of a fetcher are in flight, over all its calls; of all `fetch` at
   most `in_flight_bytes` are asked for and not taken yet, or one range. Who takes from one of them
   must not wait for another.
3. Ranges are asked for as they are given, one request each; who calls has merged them.
4. No wait is longer than `RemoteOptions.longest_s` per request; no error, repr or pickled state
   shows a credential, but that the pickle itself holds the storage options.
5. Everything runs on fsspec's event loop, in its thread, as fsspec's file systems need it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import queue
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar, TypeVarTuple

from windrow.errors import ReadError
from windrow.sources.attempts import Attempts
from windrow.sources.crews import Budget, Share, run_crew
from windrow.sources.far_files import ByteRange, FarFile, Tail
from windrow.sources.file_systems import FileSystems
from windrow.sources.halts import cancel_with_halt
from windrow.sources.process import refuse_forked
from windrow.sources.remote import RemoteOptions, RemoteStats
from windrow.sources.secrets import Secrets
from windrow.sources.transports import Transport, same

__all__ = ["LIBRARY", "ByteRange", "FarFile", "Fetcher", "Tail"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
LIBRARY: Final = "fsspec"


@dataclasses.dataclass(frozen=True, slots=True)
class _Asked:
    """A range, its place among those wanted, and what reads it."""

    place: int
    wanted: ByteRange
    transport: Transport
    path: str

    def where(self) -> str:
        return f"bytes [{self.wanted.start:,}, {self.wanted.stop:,})"


class Fetcher:
    """Bytes of files at URLs. Thread-safe; pickles with its settings and opens anew elsewhere."""

    def __init__(
        self, what: str, storage_options: Mapping[str, Any] | None, options: RemoteOptions
    ) -> None:
        """Open nothing yet.

        Args:
            what: Who reads, for errors.
            storage_options: For fsspec's file systems.
            options: Limits.
        """
        self._what, self._options = what, options
        self._storage_options = dict(storage_options or {})
        self.secrets = Secrets(self._storage_options)
        self.stats = RemoteStats()
        self._attempts = self._fresh_attempts(options)
        self._budget = Budget(options.in_flight_bytes)
        self._in_turn: dict[Transport, Attempts] = {}
        self._systems = FileSystems(what, self._storage_options, options, secrets=self.secrets)

    def __reduce__(self) -> tuple[Any, ...]:
        return Fetcher, (self._what, self._storage_options, self._options)

    def __repr__(self) -> str:
        return f"Fetcher({self._what!r}, {self._options!r})"

    @property
    def options(self) -> RemoteOptions:
        """The limits."""
        return self._options

    # ---- bytes

    def tails(self, urls: Sequence[str], size_bytes: int) -> list[Tail]:
        """The last `size_bytes` of each file, or all of it; a URL that comes twice is asked once.

        Raises:
            NotFoundError: If a URL names no file.
            ReadError: If one can not be read.
            SourceError: If a server serves no parts of files.
        """
        size_bytes = max(1, size_bytes)
        found: dict[str, Tail] = {}
        opened = [(url, *self._open(url)) for url in dict.fromkeys(urls)]

        async def one(job: tuple[str, Transport, str]) -> None:
            url, transport, path = job
            data, size, version = await self._attempts_of(transport).make(
                url, lambda: f"the last {size_bytes:,} bytes", transport.tail, path, size_bytes
            )
            self.stats.received(len(data))
            found[url] = Tail(FarFile(url, size, version), data)

        if opened:
            self._wait(run_crew(iter(opened), one, at_once=self._at_once(len(opened))))
        return [found[url] for url in urls]

    def confirms(self, url: str) -> bool:
        """Whether each answer says which version of a file it is of; else `fetch` asks at its end."""
        return self._open(url)[0].confirms

    def start(self, wanted: Sequence[ByteRange]) -> Future[list[bytes]]:
        """The bytes of all ranges, in their order, once all are there. Does not wait for them.

        Raises:
            ReadError: If a range does not lie within its file. The future holds the other errors,
                those of `tails`, and is cancelled by its `cancel`.
        """
        return self._submit(self._all(self._asked(wanted), len(wanted)))

    def fetch(self, wanted: Sequence[ByteRange]) -> Iterator[tuple[int, bytes]]:
        """The place and the bytes of each range, as they come, in any order.

        Closing the iterator cancels what is in flight. Where a file system does not say which
        version an answer is of, that the file has changed is raised after the last range.

        Raises:
            NotFoundError: If a file is no longer there.
            ReadError: If one can not be read, has changed, or does not reach as far.
            SourceError: If a server serves no parts of files.
        """
        asked = self._asked(wanted)
        for place, one in enumerate(wanted):
            if not one.size_bytes:
                yield place, b""
        if not asked:
            return
        come: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        share = Share(self._budget)
        running = self._submit(self._flow(asked, share, come.put))
        running.add_done_callback(lambda _: come.put(None))
        loop = _loop()
        try:
            for _ in asked:
                got = come.get()
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
        return self._about(url, _what) == "file"

    def is_folder(self, url: str) -> bool:
        """Whether the URL names a folder: for HTTP, a page of links to what lies in it."""
        return self._about(url, _what) == "folder"

    def names_in(self, url: str) -> list[str]:
        """What lies in a folder, sorted; names of folders end in a slash.

        Raises:
            NotFoundError: If there is no such folder.
            ReadError: If it can not be listed.
        """
        return self._about(url, _names)

    def glob(self, url: str) -> list[str]:
        """The URLs that fit the pattern, sorted.

        Raises:
            ReadError: If folders can not be listed.
        """
        pattern = self._open(url)[1]
        paths = self._about(url, _glob)
        parts = url.split("::")
        # A cache that is chained before a URL has no names of its own.
        named = next((at for at, part in enumerate(parts) if "://" in part), 0)
        before = "".join(part + "::" for part in parts[:named])
        first, after = parts[named], "".join("::" + part for part in parts[named + 1 :])
        bare = pattern.lstrip("/")
        if not first.endswith(bare):  # nothing that fsspec's protocols do
            head = first.partition("://")[0] + "://"
        elif first.endswith(pattern):
            head = first[: len(first) - len(pattern)]
        else:
            head, paths = first[: len(first) - len(bare)], [path.lstrip("/") for path in paths]
        return [before + head + path + after for path in paths]

    def read_small(self, url: str) -> bytes | None:
        """All of a file; None where there is none.

        Raises:
            ReadError: If it can not be read.
        """
        data = self._about(url, _whole)
        self.stats.received(len(data or b""))
        return data

    # ---- on the loop

    async def _all(self, asked: list[_Asked], count: int) -> list[bytes]:
        parts = [b""] * count

        async def one(job: _Asked) -> None:
            parts[job.place] = await self._part(job)

        await run_crew(iter(asked), one, at_once=self._at_once(len(asked)))
        await self._confirm(asked)
        return parts

    async def _flow(
        self, asked: list[_Asked], share: Share, put: Callable[[tuple[int, bytes]], None]
    ) -> None:
        async def one(job: _Asked) -> None:
            await share.take(job.wanted.size_bytes)
            put((job.place, await self._part(job)))

        await run_crew(iter(asked), one, at_once=self._at_once(len(asked)))
        await self._confirm(asked)

    async def _part(self, job: _Asked) -> bytes:
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

    async def _confirm(self, asked: list[_Asked]) -> None:
        """Ask again for the version of files whose parts did not say it."""
        files = {job.wanted.file: job for job in asked if not job.transport.confirms}

        async def one(job: _Asked) -> None:
            file = job.wanted.file
            await self._attempts_of(job.transport).make(
                file.url, lambda: "", _confirmed, job.transport, job.path, file
            )

        if files:
            await run_crew(iter(files.values()), one, at_once=self._at_once(len(files)))

    # ---- between the caller's thread and the loop

    def _asked(self, wanted: Sequence[ByteRange]) -> list[_Asked]:
        asked = []
        for place, one in enumerate(wanted):
            if not 0 <= one.start <= one.stop <= one.file.size_bytes:
                raise ReadError(
                    f"{self._what}: {one.file.shown} has {one.file.size_bytes:,} bytes, and bytes"
                    f" [{one.start:,}, {one.stop:,}) of it are asked for; the file is damaged or"
                    " cut short",
                    file=one.file.shown,
                    offset=one.start,
                )
            if one.start < one.stop:
                asked.append(_Asked(place, one, *self._open(one.file.url)))
        return asked

    def _open(self, url: str) -> tuple[Transport, str]:
        known = self._systems.known(url)
        if known is not None:
            return known
        refuse_forked(LIBRARY, self._what)
        if self._systems.is_quiet(url):
            return self._systems.open(url)
        # It may connect, or read a list of names: with a limit, and again where that may help.
        call = functools.partial(self._systems.threads.call, self._systems.open, url)
        opened: tuple[Transport, str] = self._wait(self._attempts.make(url, lambda: "", call))
        return opened

    def _about(self, url: str, ask: Callable[[Transport, str], Awaitable[T]]) -> T:
        transport, path = self._open(url)
        attempts = self._attempts_of(transport)
        return self._wait(attempts.make(url, lambda: "", ask, transport, path))

    def _fresh_attempts(self, options: RemoteOptions) -> Attempts:
        return Attempts(self._what, options, stats=self.stats, secrets=self.secrets)

    def _attempts_of(self, transport: Transport) -> Attempts:
        """Attempts with slots of their own for one that is asked one by one.

        The time that a request waits for its turn must not count as the request's.
        """
        if not transport.serial:
            return self._attempts
        if transport not in self._in_turn:
            alone = self._fresh_attempts(dataclasses.replace(self._options, max_requests=1))
            self._in_turn.setdefault(transport, alone)
        return self._in_turn[transport]

    def _at_once(self, jobs: int) -> int:
        return min(jobs, self._options.max_requests)

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            refuse_forked(LIBRARY, self._what)
        except ReadError:
            work.close()
            raise
        running = asyncio.run_coroutine_threadsafe(work, _loop())
        cancel_with_halt(running)
        return running

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        running = self._submit(work)
        try:
            return running.result()
        finally:
            running.cancel()  # where a signal ended the wait


def _loop() -> asyncio.AbstractEventLoop:
    from fsspec.asyn import get_loop

    loop: asyncio.AbstractEventLoop = get_loop()
    return loop


async def _confirmed(transport: Transport, path: str, file: FarFile) -> None:
    same(file, *await transport.state(path))


async def _what(transport: Transport, path: str) -> str:
    return await transport.what(path)


async def _names(transport: Transport, path: str) -> list[str]:
    return await transport.names(path)


async def _glob(transport: Transport, path: str) -> list[str]:
    return await transport.glob(path)


async def _whole(transport: Transport, path: str) -> bytes | None:
    return await transport.whole(path)
