"""Fetches bytes of files at URLs with many concurrent requests, made again after transient faults.

1. A range's bytes come from the version of the file that was opened, or an error names the URL,
   what was tried and the way out. Versions are never mixed, and bytes are never missing.
2. To one host or bucket a fetcher has at most `max_requests` requests in flight, over all its calls. All
   its `fetch` calls together have at most `in_flight_bytes` requested and not yet taken, or one range. A
   caller that takes from one of them must not wait for another.
3. Each range is one request, as it was given; the caller has merged neighbours.
4. The native core makes the requests (`core_store.py`) where it has a setting for every storage option,
   else fsspec does (`fsspec_store.py`). Once `expect_answers` was called, a request waits up to
   `outage_s` for a store that is away.
5. With a cache on disk, `kept` reads from it and `keep` writes to it; both wait for the disk.
6. An error that is raised has no other error as its cause or context. No error, repr or pickled
   state shows a credential, except that the pickle itself holds the storage options.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from windrow.core.cancellation import cancel_with_scope
from windrow.core.native import native
from windrow.core.process import refuse_forked
from windrow.core.redaction import Redaction, shown_url
from windrow.core.threads import DaemonPool
from windrow.errors import MissingExtraError, NotFoundError, ReadError, WindrowError
from windrow.sources.remote.core_store import CoreStore, WebStore
from windrow.sources.remote.faults import RequestError, as_fault, failure
from windrow.sources.remote.fsspec_store import FileSystems, FsspecStore
from windrow.sources.remote.options import RemoteOptions
from windrow.sources.remote.remote_file import ByteRange, FileTail, RemoteFile
from windrow.sources.remote.request_counts import RemoteStats
from windrow.sources.remote.settings import CoreSettings, UntranslatedError, core_settings
from windrow.sources.remote.stores import Arrivals, Fetched, Part, Store, What, glob

if TYPE_CHECKING:
    from windrow.sources.remote.disk_cache import DiskCache, IntArray

__all__ = ["LIBRARY", "ByteRange", "Fetcher", "FileTail", "RemoteFile", "is_absent"]

T = TypeVar("T")
_log = logging.getLogger("windrow.remote")
LIBRARY: Final = "the remote reader"
# The most URLs whose stores are remembered.
_MOST_URLS: Final = 100_000


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
        self._expected = expected
        self._lock = threading.Lock()
        self._threads = DaemonPool(None, "windrow-fetch")
        self._by_core: dict[CoreSettings, CoreStore] = {}
        self._by_url: dict[str, tuple[Store, str]] = {}
        self._systems = FileSystems(
            what, self._storage_options, options, stats=self.stats, redaction=self.redaction
        )
        self._cache: DiskCache | None = None
        if options.cache_dir is not None:
            from windrow.sources.remote.disk_cache import DiskCache

            folder, most = os.fspath(options.cache_dir), options.cache_bytes
            self._cache = DiskCache(folder, most, settings=self._storage_options)
            self.stats.cached(0)

    def __reduce__(self) -> tuple[Any, ...]:
        make = functools.partial(Fetcher, expected=True) if self._expected else Fetcher
        return make, (self._what, self._storage_options, self.options)

    def __repr__(self) -> str:
        return f"Fetcher({self._what!r}, {self.options!r})"

    def expect_answers(self) -> None:
        """Wait for stores that are away from now on, also in copies."""
        self._expected = True

    # ---- bytes

    def tails(self, urls: Sequence[str], size_bytes: int) -> list[FileTail]:
        """Read the last `size_bytes` of each file, or all of it.

        Raises:
            NotFoundError: If a URL names no file.
            ReadError: If a file cannot be read.
            SourceError: If a server cannot serve parts of files.
        """
        distinct = list(dict.fromkeys(urls))
        parts = [Part(url, None, max(1, size_bytes)) for url in distinct]
        tails = {}
        for place, found in self._all(parts):
            file = RemoteFile(distinct[place], found.size_bytes, found.version)
            tails[file.url] = FileTail(file, found.data)
        return [tails[url] for url in urls]

    def confirms(self, url: str) -> bool:
        """Whether each answer states its version; else `fetch` asks at its end."""
        return self._open(url)[0].confirms

    def start(self, wanted: Sequence[ByteRange]) -> Future[list[bytes]]:
        """Start to read all ranges in a thread; the future has what `read` returns or raises."""
        refuse_forked(LIBRARY, self._what)
        running = self._threads.submit(contextvars.copy_context().run, self.read, wanted)
        cancel_with_scope(running)
        return running

    def read(self, wanted: Sequence[ByteRange]) -> list[bytes]:
        """Read all ranges. Raises what `fetch` raises."""
        parts = [b""] * len(wanted)
        for place, data in self._ranges(wanted, weigh=False):
            parts[place] = data
        return parts

    def fetch(self, wanted: Sequence[ByteRange]) -> Iterator[tuple[int, bytes]]:
        """Yield the place and the bytes of each range as they arrive.

        Closing the iterator cancels the requests in flight. If a file system does not state the
        version in each answer, a change of the file is raised after the last range.

        Raises:
            NotFoundError: If a file no longer exists.
            ReadError: If a file cannot be read, has changed, or is shorter than a range.
            SourceError: If a server cannot serve parts of files.
        """
        return self._ranges(wanted, weigh=True)

    def _ranges(self, wanted: Sequence[ByteRange], *, weigh: bool) -> Iterator[tuple[int, bytes]]:
        parts, places = [], []
        for place, one in enumerate(wanted):
            file = one.file
            if not 0 <= one.start <= one.stop <= file.size_bytes:
                raise ReadError(
                    f"{self._what}: {file.shown} has {file.size_bytes:,} bytes, and bytes"
                    f" [{one.start:,}, {one.stop:,}) were requested; the file is damaged or cut short",
                    file=file.shown,
                    offset=one.start,
                )
            if one.size_bytes:
                weight = one.size_bytes if weigh else 0
                parts.append(Part(file.url, one.start, one.stop, file.version, weight))
                places.append(place)
            else:
                yield place, b""
        for place, found in self._all(parts):
            yield places[place], found.data

    def _all(self, parts: Sequence[Part]) -> Iterator[tuple[int, Fetched]]:
        """Yield the place and bytes of each part; raise the error of the first that fails."""
        error = None
        for arrivals in self.each(parts):
            for place, found in arrivals:
                if isinstance(found, Fetched):
                    yield place, found
                else:
                    error = found
                    break
            if error is not None:
                break
        if error is not None:
            raise error

    def each(self, parts: Sequence[Part]) -> Iterator[list[tuple[int, Fetched | WindrowError]]]:
        """Yield parts as they arrive, all that are there at a time: places, and bytes or errors.

        Args:
            parts: The parts; their paths are URLs.

        Raises:
            ReadError: If the scope of this thread is cancelled.
        """
        refuse_forked(LIBRARY, self._what)
        patient, of_store = self._expected, dict[Store, list[tuple[int, Part]]]()
        for place, part in enumerate(parts):
            store, path = self._open(part.path)
            own = dataclasses.replace(part, path=path)
            of_store.setdefault(store, []).append((place, own))
        for arrivals in _arrivals(of_store, patient):
            fetched = [found for _, found in arrivals if isinstance(found, Fetched)]
            self.stats.received(sum(len(found.data) for found in fetched))
            if len(fetched) == len(arrivals):
                yield arrivals  # type: ignore[misc]
            else:
                yield [
                    (place, self._failed(parts[place], found, patient))
                    if isinstance(found, RequestError)
                    else (place, found)
                    for place, found in arrivals
                ]

    # ---- bytes of the cache on disk

    @property
    def has_cache(self) -> bool:
        """Whether there is a cache on disk."""
        return self._cache is not None

    def knows(self, url: str) -> bool:
        """Whether the cache on disk may have bytes of a URL, of any version."""
        return self._cache is not None and self._cache.knows(url)

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
            (data,) = self.read([one])
            self.keep(one.file, begin, end, one.start, data)
        return data

    def read_whole(self, url: str) -> tuple[RemoteFile, bytes] | None:
        """Read all of a file, from the cache or fetched, or None.

        The store is always asked for the version of the file.

        Raises:
            ReadError: If it cannot be read.
        """
        if self.knows(url):
            try:
                (tail,) = self.tails([url], 1)
            except NotFoundError:
                return None
            return tail.file, self.read_kept(ByteRange(tail.file, 0, tail.file.size_bytes))
        found = self._whole(url, versioned=True)
        if found is None:
            return None
        file = RemoteFile(url, found.size_bytes, found.version)
        self.keep(file, np.array([0]), np.array([file.size_bytes]), 0, found.data)
        return file, found.data

    def read_small(self, url: str) -> bytes | None:
        """Read all of a file; None if it does not exist.

        Raises:
            ReadError: If it cannot be read.
        """
        found = self._whole(url, versioned=False)
        return None if found is None else found.data

    def _whole(self, url: str, *, versioned: bool) -> Fetched | None:
        try:
            ((_, found),) = self._all([Part(url, versioned=versioned)])
        except (NotFoundError, ReadError) as error:
            if is_absent(error):
                return None
            raise
        return found

    # ---- names

    def is_file(self, url: str) -> bool:
        """Whether the URL names a file."""
        return self._what_is(url) == "file"

    def is_folder(self, url: str) -> bool:
        """Whether the URL names a folder; over HTTP, a page of links."""
        return self._what_is(url) == "folder"

    def names_in(self, url: str) -> list[str]:
        """List the names in a folder, sorted; folders end in a slash.

        Raises:
            NotFoundError: If the folder does not exist.
            ReadError: If it cannot be listed.
        """
        return self._ask(url, lambda store, path: store.names(path))

    def glob(self, url: str) -> list[str]:
        """List the URLs that match the pattern, sorted.

        Raises:
            ReadError: If folders cannot be listed.
        """

        def ask(store: Store, path: str) -> list[str]:
            return store.glob(path) if isinstance(store, FsspecStore) else glob(store, path)

        pattern = self._open(url)[1]
        paths = self._ask(url, ask)
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

    def _what_is(self, url: str) -> What:
        return self._ask(url, lambda store, path: store.what(path))

    # ---- stores

    def _open(self, url: str) -> tuple[Store, str]:
        known = self._by_url.get(url)
        if known is not None:
            return known
        refuse_forked(LIBRARY, self._what)
        why, opened = "no native core", None
        try:
            if native() is not None:
                opened = self._opened_by_core(core_settings(url, self._storage_options))
        except UntranslatedError as reason:
            why = str(reason)
        if opened is None:
            opened = self._opened_by_fsspec(url, why)
        if len(self._by_url) >= _MOST_URLS:
            self._by_url.clear()
        return self._by_url.setdefault(url, opened)

    def _opened_by_core(self, settings: CoreSettings) -> tuple[Store, str]:
        path = settings.path
        settings = CoreSettings(settings.url, "", settings.options, settings.headers)
        with self._lock:
            store = self._by_core.get(settings)
            if store is None:
                kind = WebStore if settings.is_web else CoreStore
                try:
                    store = self._by_core[settings] = kind(self._what, settings, self.options)
                except ValueError as error:
                    raise UntranslatedError(self.redaction.hide(str(error))) from None
                self.stats.add_core(store.counts)
        return store, path

    def _opened_by_fsspec(self, url: str, why: str) -> tuple[Store, str]:
        # Opening may connect, so it has a time limit.
        opening = self._threads.submit(self._systems.open, url)
        try:
            store, path = opening.result(self.options.longest_s)
        except MissingExtraError as error:
            if url.partition("://")[0] in ("http", "https", "s3", "gs"):
                error.args = (f"{error} (fsspec is needed for {why})", *error.args[1:])
            raise
        except WindrowError:
            raise
        except Exception as error:
            fault = as_fault(error, self.redaction)
        else:
            if why:
                _log.debug("%s: %s is read through fsspec: %s", self._what, shown_url(url), why)
            return store, path
        raise self._failed(Part(url), fault, False)

    def _ask(self, url: str, ask: Callable[[Store, str], T]) -> T:
        store, path = self._open(url)
        try:
            return ask(store, path)
        except RequestError as error:
            fault = error
        raise self._failed(Part(url), fault, False)

    def _failed(self, part: Part, fault: RequestError, patient: bool) -> WindrowError:
        if fault.cause == "changed":
            self.stats.fault("changed")
        where = ""
        if part.stop is not None:
            start, stop = part.start, part.stop
            where = f"the last {stop:,} bytes" if start is None else f"bytes [{start:,}, {stop:,})"
        outage_s = self.options.outage_s if patient else 0.0
        return failure(self._what, part.path, where, fault, self.redaction, outage_s=outage_s)


def is_absent(error: WindrowError) -> bool:
    """Whether a file does not exist: a store says so with 403 if the caller may not list names."""
    return isinstance(error, NotFoundError) or getattr(error, "why", "").endswith(" AccessDenied")


def _arrivals(
    of_store: Mapping[Store, list[tuple[int, Part]]], patient: bool
) -> Iterator[Arrivals]:
    """Yield what arrives from several stores, by place."""
    if len(of_store) <= 1:
        for store, wanted in of_store.items():
            yield from store.fetch([part for _, part in wanted], patient=patient)
        return
    arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
    ended = threading.Event()

    def take(store: Store, wanted: list[tuple[int, Part]]) -> None:
        try:
            for arrivals in store.fetch([part for _, part in wanted], patient=patient):
                arrived.put([(wanted[place][0], found) for place, found in arrivals])
                if ended.is_set():
                    break
            arrived.put(None)
        except BaseException as error:
            arrived.put(error)

    pool = DaemonPool(None, "windrow-fetch")
    for store, wanted in of_store.items():
        pool.submit(contextvars.copy_context().run, take, store, wanted)
    left = len(of_store)
    try:
        while left:
            found = arrived.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                left -= 1
            else:
                yield found
    finally:
        ended.set()
        pool.shutdown(wait=False)
