"""Objects of one array as zarr-python asks for them: whole, or parts of them.

Invariant: every call waits, no longer than its limits allow; None is an object that is not there.
"""

from __future__ import annotations

import collections
import os
import threading
from typing import Final, Protocol

import tensorstore as ts

from windrow.errors import NotFoundError, ReadError
from windrow.sources.far_files import ByteRange, FarFile
from windrow.sources.zarr_access import Access
from windrow.sources.zarr_urls import joined_url

# Shards whose version and index are remembered, by number and by bytes.
_MOST_FILES: Final = 1 << 16
_MOST_BYTES: Final = 32 << 20
_LOCKS: Final = 256


class Blobs(Protocol):
    """Objects by key."""

    def whole(self, key: str) -> bytes | None:
        """All of an object."""
        ...

    def part(self, key: str, start: int, stop: int | None) -> bytes | None:
        """The bytes `[start, stop)` of an object, as far as it has them; to its end for None."""
        ...

    def tail(self, key: str, size_bytes: int) -> bytes | None:
        """The last bytes of an object; all of it, where it is no longer."""
        ...

    def file(self, key: str) -> str | None:
        """The local file of an object; None where it is not one."""
        ...


class FolderBlobs:
    """Files of a local folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def whole(self, key: str) -> bytes | None:
        return self.part(key, 0, None)

    def part(self, key: str, start: int, stop: int | None) -> bytes | None:
        return self._read(key, start, stop)

    def tail(self, key: str, size_bytes: int) -> bytes | None:
        return self._read(key, -size_bytes, None)

    def file(self, key: str) -> str:
        return os.path.join(self._folder, *key.split("/"))

    def _read(self, key: str, start: int, stop: int | None) -> bytes | None:
        try:
            with open(self.file(key), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                begin, end, _ = slice(start, stop).indices(size)
                file.seek(begin)
                return file.read(max(0, end - begin))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None


class StoreBlobs:
    """Objects of a key-value store of TensorStore, from Python always read whole."""

    def __init__(self, access: Access, store: ts.KvStore) -> None:
        self._access, self._store = access, store

    def whole(self, key: str) -> bytes | None:
        return self._access.read(self._store, key)

    def part(self, key: str, start: int, stop: int | None) -> bytes | None:
        found = self.whole(key)
        return None if found is None else found[start:stop]

    def tail(self, key: str, size_bytes: int) -> bytes | None:
        found = self.whole(key)
        return None if found is None else found[-size_bytes:]

    def file(self, key: str) -> None:
        return None


class FarBlobs:
    """Objects at a URL, by byte ranges of fsspec.

    Of a shard the end is read once: ranges of it are then asked for in the version that it had, so
    that a shard that was written again is an error, and never a mixture. Thread-safe.
    """

    def __init__(self, access: Access, url: str) -> None:
        self._access, self._url = access, url
        self._lock = threading.Lock()
        self._by_key = tuple(threading.Lock() for _ in range(_LOCKS))
        self._files: collections.OrderedDict[str, FarFile] = collections.OrderedDict()
        self._ends: collections.OrderedDict[str, bytes] = collections.OrderedDict()
        self._bytes = 0  # of the ends

    def whole(self, key: str) -> bytes | None:
        return self._access.fetcher.read_small(joined_url(self._url, key))

    def part(self, key: str, start: int, stop: int | None) -> bytes | None:
        file = self._files.get(key)
        if file is None:
            if self.tail(key, 1) is None:
                return None
            file = self._files[key]
        end = file.size_bytes if stop is None else min(stop, file.size_bytes)
        wanted = ByteRange(file, min(start, end), end)
        return self._access.fetcher.start([wanted]).result()[0]

    def tail(self, key: str, size_bytes: int) -> bytes | None:
        # Many chunks of a shard are asked for at once, and one of them reads its end.
        with self._by_key[hash(key) % len(self._by_key)]:
            return self._tail(key, size_bytes)

    def _tail(self, key: str, size_bytes: int) -> bytes | None:
        with self._lock:
            file, end = self._files.get(key), self._ends.get(key)
            if (
                file is not None
                and end is not None
                and len(end) >= min(size_bytes, file.size_bytes)
            ):
                self._ends.move_to_end(key)
                return end[len(end) - min(size_bytes, len(end)) :]
        try:
            (found,) = self._access.fetcher.tails([joined_url(self._url, key)], size_bytes)
        except NotFoundError:
            return None
        self._remember(key, found.file, found.data)
        return found.data

    def file(self, key: str) -> None:
        return None

    def _remember(self, key: str, file: FarFile, end: bytes) -> None:
        with self._lock:
            known = self._files.setdefault(key, file)
            if known != file:
                raise ReadError(
                    f"{self._access.what}: {file.shown} has changed since it was first read: it was"
                    f" {known.version or 'without a version'} and is {file.version or 'without one'}"
                    ". Make the source again"
                )
            self._bytes += len(end) - len(self._ends.pop(key, b""))
            self._ends[key] = end
            while self._bytes > _MOST_BYTES and len(self._ends) > 1:
                self._bytes -= len(self._ends.popitem(last=False)[1])
            while len(self._files) > _MOST_FILES:
                self._files.popitem(last=False)
