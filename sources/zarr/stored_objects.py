"""The objects of one array, by key. For reading only. Folders give them, or byte ranges of a URL.

Invariants: nothing is written or listed. Every read waits, no longer than its limits allow, and returns
None for an object that is not there.
"""

from __future__ import annotations

import abc
import collections
import threading
from typing import TYPE_CHECKING, Final, TypeGuard

from windrow.errors import NotFoundError, ReadError
from windrow.sources.remote.paths import joined
from windrow.sources.remote.remote_file import ByteRange, RemoteFile
from windrow.sources.zarr.stores import Access

if TYPE_CHECKING:
    from windrow.sources.remote.fetcher import Fetcher

# Limits of the remembered shards: their number, and the bytes of their indices.
_MOST_FILES: Final = 1 << 16
_MOST_BYTES: Final = 32 << 20
_LOCKS: Final = 256


class StoredObjects(abc.ABC):
    """The objects of one array, by key."""

    @abc.abstractmethod
    def whole(self, key: str) -> bytes | None:
        """A whole object."""

    @abc.abstractmethod
    def part(self, key: str, start: int, stop: int | None) -> bytes | None:
        """The bytes `[start, stop)` of an object, or fewer if it is shorter; None is its end.

        A negative `start` counts from the end.
        """

    def tail(self, key: str, size_bytes: int) -> bytes | None:
        """The last `size_bytes` of an object, or all of a shorter one."""
        return self.part(key, -size_bytes, None)

    def file(self, key: str) -> str | None:
        """The local file of an object; None if it is remote."""
        return None


class RangeObjects(StoredObjects):
    """Objects at a URL, by byte ranges of fsspec. Thread-safe.

    The end of a shard is read once. Later ranges must have the same version, so that a shard that
    is written again is an error and never a mixture. With a cache on disk this holds for every object
    but metadata: the store is asked for its version once.
    """

    def __init__(self, access: Access, url: str) -> None:
        self._access, self._url = access, url
        self._lock = threading.Lock()
        self._by_key = tuple(threading.Lock() for _ in range(_LOCKS))
        self._files: collections.OrderedDict[str, RemoteFile] = collections.OrderedDict()
        self._ends: collections.OrderedDict[str, bytes] = collections.OrderedDict()
        self._bytes = 0  # of the ends

    def whole(self, key: str) -> bytes | None:
        fetcher, url = self._access.fetcher, joined(self._url, key)
        # Metadata are read again to find out whether they have changed.
        if not fetcher.has_cache or is_metadata(key):
            return fetcher.read_small(url)
        file = self._files.get(key)
        if file is not None:
            return fetcher.read_kept(ByteRange(file, 0, file.size_bytes))
        found = fetcher.read_whole(url)
        if found is None:
            return None
        self._remember(key, found[0], b"")
        return found[1]

    @property
    def fetcher(self) -> Fetcher:
        """Reads the ranges."""
        return self._access.fetcher

    def known(self, key: str) -> RemoteFile | None:
        """An object whose version is known already."""
        return self._files.get(key)

    def known_tail(self, key: str, size_bytes: int) -> bytes | None:
        """As `tail`, if that is known already; else None."""
        with self._lock:
            file, end = self._files.get(key), self._ends.get(key)
            if file is None or end is None or len(end) < min(size_bytes, file.size_bytes):
                return None
            self._ends.move_to_end(key)
            return end[len(end) - min(size_bytes, len(end)) :]

    def part(self, key: str, start: int, stop: int | None) -> bytes | None:
        file = self._files.get(key)
        if file is None:
            if self.tail(key, 1) is None:
                return None
            file = self._files[key]
        end = file.size_bytes if stop is None else min(stop, file.size_bytes)
        wanted = ByteRange(file, min(start, end), end)
        return self._access.fetcher.read_kept(wanted)

    def tail(self, key: str, size_bytes: int) -> bytes | None:
        # Many chunks of a shard are read at once, and only one of these reads fetches its end.
        with self._by_key[hash(key) % len(self._by_key)]:
            return self._tail(key, size_bytes)

    def _tail(self, key: str, size_bytes: int) -> bytes | None:
        known = self.known_tail(key, size_bytes)
        if known is not None:
            return known
        try:
            (tail,) = self._access.fetcher.tails([joined(self._url, key)], size_bytes)
        except NotFoundError:
            return None
        self._remember(key, tail.file, tail.data)
        return tail.data

    def _remember(self, key: str, file: RemoteFile, end: bytes) -> None:
        with self._lock:
            known = self._files.setdefault(key, file)
            if known != file:
                raise ReadError(
                    f"{self._access.what}: {file.shown} has changed since it was first read: it was"
                    f" {known.version or 'without a version'} and is {file.version or 'without one'}"
                    ". Make the source again",
                    is_unanswered=True,
                )
            self._bytes += len(end) - len(self._ends.pop(key, b""))
            self._ends[key] = end
            while self._bytes > _MOST_BYTES and len(self._ends) > 1:
                self._bytes -= len(self._ends.popitem(last=False)[1])
            while len(self._files) > _MOST_FILES:
                self._files.popitem(last=False)


def has_cache(objects: StoredObjects) -> TypeGuard[RangeObjects]:
    """Whether what is fetched is kept in a cache on disk."""
    return isinstance(objects, RangeObjects) and objects.fetcher.has_cache


def is_metadata(key: str) -> bool:
    """Whether the key of an object names metadata."""
    return key.rpartition("/")[2] in ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")
