"""Stored objects of a local Zarr array: files mapped into memory, and the indices of shards.

A file that is cut shorter while it is mapped kills the process that reads the lost part (SIGBUS);
no program can turn that into an error. So a file's size is checked when it is mapped, and a store
must not be written to while it is read, neither on local disks nor on network mounts. A map of a
file on a network mount is read page by page over the network, which works but is slow.

Invariants: this module maps at most half of the files that the process may open, over all arrays
(`mapped_files` counts its own). A file that was seen keeps its size. An index is used only after
its checksum was compared.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
import os
import threading
import weakref
from collections.abc import Iterable
from typing import Final, NoReturn, TypeAlias

import google_crc32c
import numpy as np

from windrow.errors import ReadError
from windrow.sources.base import IntArray
from windrow.sources.zarr.local.codecs import CHECKSUM_BYTES
from windrow.sources.zarr.local.metadata import PlainArray, damaged, held_cells, held_records

try:
    import resource
except ImportError:  # Windows has no such limit
    _MOST_OPEN = 4096
else:
    _soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    _MOST_OPEN = 2**16 if _soft == resource.RLIM_INFINITY else min(_soft, 2**16)

MISSING: Final = -1
INDEX_BYTES: Final = 256 * 2**20
INDEX_ENTRY_BYTES: Final = 16
_PAST_END: Final = -2
_NO_CHUNK: Final = np.uint64(2**64 - 1)
# A map costs about three times as much as opening a file and reading one record from it.
_WORTH_RECORDS: Final = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Unmapped:
    """A file that is opened for every slice, because there are too many files to map them all."""

    path: str
    size: int

    def __getitem__(self, span: slice) -> bytes:
        file = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            if os.fstat(file).st_size != self.size:
                raise OSError("its size changed while it was read")
            got, at = [], span.start
            while at < span.stop:
                data = os.pread(file, span.stop - at, at)
                if not data:
                    raise OSError(f"it ends at byte {at:,}")
                got.append(data)
                at += len(data)
        finally:
            os.close(file)
        return got[0] if len(got) == 1 else b"".join(got)


Bytes: TypeAlias = memoryview | Unmapped


class StoredFiles:
    """The stored objects of one array, chunks or shards, by number in C order of their grid.

    Thread-safe. Maps are kept and the oldest one is dropped first, so that a hit costs only a dict
    lookup; with random orders no other choice does better.
    """

    def __init__(
        self, plain: PlainArray, *, size_bytes: int | None = None, most_open: int | None = None
    ) -> None:
        """Open nothing yet.

        Args:
            plain: The array.
            size_bytes: The size that every file must have; None if they differ.
            most_open: Files to keep mapped, together with the files of all other arrays; None for
                half of what this process may open. With 0 files are read instead of mapped, which
                is slower, but pages count as memory of the process only while they are mapped.
        """
        whole = plain.shard_shape or plain.chunk_shape
        self.grid = tuple(-(-n // c) for n, c in zip(plain.shape, whole, strict=True))
        self._plain = plain
        self._size_bytes = size_bytes
        self._most = _MOST_OPEN // 2 if most_open is None else max(0, most_open)
        self._views: dict[int, memoryview] = {}
        self._sizes: dict[int, int] = {}  # of files that were seen; MISSING if there was no file
        with _lock:
            _all_files.add(self)

    def path(self, number: int) -> str:
        """Path of the stored object."""
        coords = []
        for count in reversed(self.grid):
            number, at = divmod(number, count)
            coords.append(at)
        return f"{self._plain.folder}{os.sep}{self._plain.key(coords[::-1])}"

    def mapped(self) -> dict[int, memoryview]:
        """The bytes of all files that are mapped at this moment."""
        return self._views.copy()

    def hold(self, files: Iterable[int]) -> dict[int, Bytes | None]:
        """The bytes of each file of `files`, one entry per record; None where nothing is stored.

        Raises:
            OSError: If a file cannot be opened or has the wrong size. The message may not name the
                file.
        """
        asked = files if isinstance(files, list) else list(files)
        views = self._views
        held: dict[int, Bytes | None] = {number: views.get(number) for number in set(asked)}
        absent = [number for number, view in held.items() if view is None]
        if absent:
            self._find(absent, asked, held)
        return held

    def size(self, number: int) -> int:
        """Bytes of a file when it was first seen; MISSING if nothing is stored.

        Raises:
            OSError: If it has the wrong size, or its size cannot be read.
        """
        if self._size_bytes is not None:
            return self._measured(number)  # nothing to remember
        size = self._sizes.get(number)
        if size is None:
            size = self._sizes.setdefault(number, self._measured(number))
        return size

    def _find(self, absent: list[int], asked: list[int], held: dict[int, Bytes | None]) -> None:
        sizes = {number: self.size(number) for number in absent}
        there = [number for number in absent if sizes[number] != MISSING]
        if not there:
            return
        lacking = set(there)
        records = sum(number in lacking for number in asked)
        with _lock:
            room = self._most - sum(len(files._views) for files in _all_files)
        most = self._most if records >= _WORTH_RECORDS * len(there) else max(0, room)
        for number in there[:most]:
            held[number] = self._mapped(number, sizes[number])
        for number in there[most:]:
            held[number] = Unmapped(self.path(number), sizes[number])

    def _measured(self, number: int) -> int:
        path = self.path(number)
        try:
            size = os.stat(path).st_size
        except (FileNotFoundError, NotADirectoryError):
            return MISSING
        if self._size_bytes is not None and size != self._size_bytes:
            raise OSError(f"it has {size:,} bytes, not the {self._size_bytes:,} of a chunk")
        return size

    def _mapped(self, number: int, size: int) -> memoryview:
        with open(self.path(number), "rb") as file:
            now = os.fstat(file.fileno()).st_size
            if now != size:
                raise OSError(f"it had {size:,} bytes and has {now:,} now")
            # An empty file cannot be mapped.
            view = memoryview(
                mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
            )
        with _lock:
            while sum(len(files._views) for files in _all_files) >= self._most:
                # The array with the most maps gives one up, so that every array keeps some.
                largest = max(_all_files, key=lambda files: len(files._views))
                largest._views.pop(next(iter(largest._views)))
            return self._views.setdefault(number, view)


_lock: Final = threading.Lock()
_all_files: Final[weakref.WeakSet[StoredFiles]] = weakref.WeakSet()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Located:
    """Where chunks are stored: int64 `(n,)` each; `offsets` is MISSING where nothing is stored."""

    shards: IntArray
    offsets: IntArray
    sizes: IntArray


@dataclasses.dataclass(frozen=True, slots=True)
class _ShardAxis:
    """Converts the number of a chunk to its shard and its place in the shard, along one axis."""

    stride: int
    count: int
    per_shard: int
    shard_stride: int
    within_stride: int


class ShardIndex:
    """Finds where the inner chunks of a sharded array are stored. Thread-safe.

    Each index is read once and kept, with 16 bytes per inner chunk, in a table of at most
    `limit_bytes` (or one index). When the table is full, the least recently used index is dropped.
    """

    def __init__(
        self,
        plain: PlainArray,
        files: StoredFiles,
        *,
        name: str,
        where: str,
        cells: bool = False,
        limit_bytes: int = INDEX_BYTES,
    ) -> None:
        """Read nothing yet.

        Args:
            plain: A sharded array.
            files: Its shards.
            name: Name of the array in the source, for messages.
            where: Place of the array, for messages.
            cells: Whether messages name cells instead of records, for rows that are not records.
            limit_bytes: Bytes of all indices kept.
        """
        self._plain, self._files = plain, files
        self._name, self._where, self._cells = name, where, cells
        self._axes = _axes(plain, files.grid)
        self._per_shard = math.prod(plain.shard_grid)
        shards = math.prod(files.grid)
        slots = max(1, min(shards, limit_bytes // (INDEX_ENTRY_BYTES * self._per_shard)))
        # Pages of the table take memory only after the first write to them.
        self._table = np.empty((slots, self._per_shard, 2), np.int64)
        self._slot_of = np.zeros(shards, np.int64)  # slot plus one; zeros take no memory either
        self._shard_of = np.full(slots, -1, np.int64)
        self._used = np.zeros(slots, np.int64)
        self._clock = 0
        self._lock = threading.Lock()

    def locate(self, chunks: IntArray) -> Located:
        """Where inner chunks are stored.

        Args:
            chunks: Their numbers, int64 `(n,)`: C order of the array's grid of inner chunks.

        Raises:
            ReadError: If an index is damaged, or places one of `chunks` past the end of the file.
                It names file, shard and records.
        """
        shards, within = self._places(chunks)
        with self._lock:
            self._clock += 1
            slots = self._slot_of[shards] - 1
            unknown = slots < 0
            entries = self._table[slots, within]
            self._used[slots[~unknown]] = self._clock
        if unknown.any():
            for shard in set(shards[unknown].tolist()):
                index = self._read(shard)
                rows = np.flatnonzero(unknown & (shards == shard))
                entries[rows] = index[within[rows]]
                self._keep(shard, index)
        offsets, sizes = entries[:, 0], entries[:, 1]
        if offsets.size and offsets.min() <= _PAST_END:
            at = int(np.argmin(offsets))
            self._refuse_range(int(shards[at]), int(chunks[at]))
        return Located(shards, offsets, sizes)

    def _places(self, chunks: IntArray) -> tuple[IntArray, IntArray]:
        """Number of the shard of each chunk, and number of the chunk in it."""
        shards, within = np.zeros_like(chunks), np.zeros_like(chunks)
        for axis in self._axes:
            coords = (chunks if axis.stride == 1 else chunks // axis.stride) % axis.count
            outer = coords // axis.per_shard
            shards += outer * axis.shard_stride
            within += (coords - outer * axis.per_shard) * axis.within_stride
        return shards, within

    def _keep(self, shard: int, entries: IntArray) -> None:
        with self._lock:
            if self._slot_of[shard]:
                return
            slot = int(np.argmin(self._used))
            if self._shard_of[slot] >= 0:
                self._slot_of[self._shard_of[slot]] = 0
            self._table[slot] = entries
            self._shard_of[slot] = shard
            self._slot_of[shard] = slot + 1
            self._used[slot] = self._clock

    def _read(self, shard: int) -> IntArray:
        """Offset and size of each inner chunk of a shard, after all checks."""
        length = INDEX_ENTRY_BYTES * self._per_shard
        checked = bool(self._plain.index_codecs)
        stored = length + CHECKSUM_BYTES * checked
        try:
            size = self._files.size(shard)
            if size == MISSING:
                return np.broadcast_to(np.array([MISSING, 0]), (self._per_shard, 2))
            if size < stored:
                self._refuse(
                    shard, f"it has {size:,} bytes, fewer than the {stored:,} of its index"
                )
            held = self._files.hold([shard])[shard]
            start = 0 if self._plain.index_location == "start" else size - stored
            data = b"" if held is None else bytes(held[start : start + stored])
        except ReadError:
            raise
        except OSError as error:
            self._refuse(shard, error.strerror or str(error), error)
        if checked:
            wanted = int.from_bytes(data[length:], "little")
            if google_crc32c.value(data[:length]) != wanted:
                self._refuse(shard, "the checksum of its index does not match")
        return _entries(np.frombuffer(data, "<u8", 2 * self._per_shard).reshape(-1, 2), size)

    def _refuse(self, shard: int, why: str, cause: Exception | None = None) -> NoReturn:
        self._raise(shard, shard, self._plain.shard_shape or self._plain.chunk_shape, why, cause)

    def _refuse_range(self, shard: int, chunk: int) -> NoReturn:
        why = "its index points past the end of the file"
        self._raise(shard, chunk, self._plain.chunk_shape, why, None)

    def _raise(
        self, shard: int, number: int, size: tuple[int, ...], why: str, cause: Exception | None
    ) -> NoReturn:
        """Raise for the lost cells: block `number` of the grid of blocks of this size."""
        shape = self._plain.shape
        spans = []
        for n, cells in zip(reversed(shape), reversed(size), strict=True):
            number, at = divmod(number, -(-n // cells))
            spans.append((at * cells, min((at + 1) * cells, n)))
        spans.reverse()
        file = self._files.path(shard)
        raise damaged(
            self._name,
            self._where,
            held_cells(spans) if self._cells else held_records(*spans[0]),
            f"{file}, shard {shard}: {why}",
            file=file,
            records=None if self._cells else spans[0],
        ) from cause


def _axes(plain: PlainArray, grid: tuple[int, ...]) -> tuple[_ShardAxis, ...]:
    return tuple(
        _ShardAxis(
            stride=math.prod(plain.grid[k + 1 :]),
            count=count,
            per_shard=plain.shard_grid[k],
            shard_stride=math.prod(grid[k + 1 :]),
            within_stride=math.prod(plain.shard_grid[k + 1 :]),
        )
        for k, count in enumerate(plain.grid)
        if count > 1
    )


def _entries(stored: np.ndarray[tuple[int, ...], np.dtype[np.uint64]], size: int) -> IntArray:
    offsets, sizes = stored[:, 0], stored[:, 1]
    missing = (offsets == _NO_CHUNK) & (sizes == _NO_CHUNK)
    end = np.uint64(size)
    past = ~missing & ((offsets > end) | (sizes > end - np.minimum(offsets, end)))
    entries: IntArray = stored.astype(np.int64)
    entries[missing] = (MISSING, 0)
    entries[past] = (_PAST_END, 0)
    return entries
