"""Segments of the cache on disk: files that hold ranges of one version of a remote file.

A segment is a sparse file, in which each range has its place. Rows at its end say which ranges are
there, with their checksums.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import re
import time
import weakref
import zlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
Bytes = bytes | memoryview

# Bytes of a remote file have the same place in blocks of this size as in the file. The head's facts take
# one block of the disk.
HEAD_BYTES: Final = 1 << 16
# `sum` is the sum of the others. A row lies within a block of the disk, and so is written at once.
_ROW: Final = np.dtype([(name, "<i8") for name in ("start", "stop", "checksum", "sum")])
_FAN: Final = re.compile(r"[0-9a-f]{3}")
_NAME: Final = re.compile(r"([0-9a-f]{24})-([0-9a-f]{24})-(\d+)-(\d+)")
# A segment that is being made: under its own name it would be used before it is complete.
_NEW: Final = re.compile(r"new-[0-9a-f]{32}")
BLOCK_BYTES: Final = 4096
_STALE_S: Final = 3600.0
_WRITE_S: Final = 10.0
TOUCH_S: Final = 30.0


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LocatedRanges:
    """Ranges of one segment, for a caller that compares their checksums.

    Args:
        places: Their places in the request.
        file: The file of the segment.
        offsets: Where they begin in the file.
        seeds: What `zlib.crc32` begins with.
        checksums: What it must return.
    """

    places: IntArray
    file: SegmentFile
    offsets: IntArray
    seeds: IntArray
    checksums: IntArray


class SegmentFile:
    """The file of a segment, which a caller opens by its path. Thread-safe."""

    __slots__ = ("_inode", "_touched_s", "path", "size_bytes")

    def __init__(self, path: str, inode: int) -> None:
        """Open nothing."""
        self.path: Final = os.fsencode(path)
        self.size_bytes = 0
        """Its size when its rows were last read."""
        self._inode, self._touched_s = inode, -math.inf

    def is_used(self, now_s: float) -> bool:
        """Note that it is used, and return whether it is still there and whole."""
        try:
            stat = os.stat(self.path)
        except OSError:
            return False
        if stat.st_ino != self._inode or stat.st_size < self.size_bytes:
            return False
        self.touch(now_s)
        return True

    def touch(self, now_s: float) -> None:
        """Note that it is used."""
        if now_s - self._touched_s >= TOUCH_S:
            self._touched_s = now_s
            with contextlib.suppress(OSError):  # such as a disk that is mounted for reading only
                os.utime(self.path)


class CacheSegment:
    """An open segment. Not thread-safe."""

    def __init__(self, path: str) -> None:
        """Open the segment at `path`. Raises OSError."""
        place, version, base, size = os.path.basename(path).split("-")
        self.path, self.base = path, int(base)
        self.size, self._rows_at = int(size), rows_at(int(size))
        self.opened: Any = None
        """What a reader of the format keeps of it."""
        self._seed = zlib.crc32(f"{place}-{version}".encode())
        self._number = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.file = SegmentFile(path, os.fstat(self._number).st_ino)
        # A cache is not closed: its segments are closed when it is dropped.
        self._close = weakref.finalize(self, os.close, self._number)
        self._read = 0  # bytes of rows
        self.rows: npt.NDArray[Any] = np.zeros(0, _ROW)
        """Its ranges in the order of their starts, which all differ."""
        self.checked: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)

    def close(self) -> None:
        """Close it."""
        self._close()

    @property
    def is_deleted(self) -> bool:
        """Whether its file was deleted; there may be another one at its path."""
        return not os.fstat(self._number).st_nlink

    def delete(self) -> None:
        """Delete its file."""
        if not self.is_deleted:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)

    def refresh(self) -> bool:
        """Read the rows that were added; whether the segment is whole."""
        stat = os.fstat(self._number)
        added = stat.st_size - self._rows_at - self._read
        if added < 0:
            return False
        self.file.size_bytes = stat.st_size
        # A part of a row is being written, or was left by a process that was killed.
        if added % _ROW.itemsize and time.time() - stat.st_mtime > _WRITE_S:
            return False
        if added >= _ROW.itemsize:
            raw = os.pread(self._number, added, self._rows_at + self._read)
            new = np.frombuffer(raw[: len(raw) // _ROW.itemsize * _ROW.itemsize], _ROW)
            self._read += new.nbytes
            new = new[new["start"] + new["stop"] + new["checksum"] == new["sum"]]
            # The last row of a start counts: it came after the bytes of an earlier one were damaged.
            both = np.concatenate([self.rows, new])[::-1]
            checked = np.concatenate([self.checked, np.zeros(len(new), np.bool_)])[::-1]
            if len(both) > 1:  # often it is one: a whole object
                _, first = np.unique(both["start"], return_index=True)
                both, checked = both[first], checked[first]
            self.rows, self.checked = both, checked
        return True

    def bytes_of(self, start: int, stop: int) -> bytes:
        """Bytes of the remote file; fewer if the segment is cut short."""
        return os.pread(self._number, stop - start, HEAD_BYTES + start - self.base)

    def find(self, begin: IntArray, end: IntArray) -> IntArray:
        """The rows of ranges; -1 for a range that is not kept."""
        if not len(self.rows):
            return np.full(len(begin), -1, np.int64)
        at = np.minimum(np.searchsorted(self.rows["start"], begin), len(self.rows) - 1)
        hit = (self.rows["start"][at] == begin) & (self.rows["stop"][at] == end)
        return np.where(hit, at, -1)

    def damaged(self, rows: IntArray) -> list[int]:
        """Rows whose bytes are not as they were kept; each is compared once."""
        bad = []
        for row in rows[~self.checked[rows]].tolist():
            start, stop, checksum, _ = self.rows[row].item()
            data = self.bytes_of(start, stop)
            if len(data) == stop - start and _checksum(self._seed, start, stop, data) == checksum:
                self.checked[row] = True
            else:
                bad.append(row)
        return bad

    def located(self, places: IntArray, begin: IntArray, end: IntArray) -> LocatedRanges:
        """Where the ranges at `places` are that are kept."""
        found = self.find(begin[places], end[places])
        places, rows = places[found >= 0], self.rows[found[found >= 0]]
        seeds = (self._seed + rows["start"] + rows["stop"]) & 0xFFFFFFFF
        offsets = HEAD_BYTES + rows["start"] - self.base
        return LocatedRanges(places, self.file, offsets, seeds, rows["checksum"])

    def forget(self, rows: list[int]) -> None:
        """Count ranges as not kept."""
        keep = np.ones(len(self.rows), np.bool_)
        keep[rows] = False
        self.rows, self.checked = self.rows[keep], self.checked[keep]

    def add(self, begin: IntArray, end: IntArray, start: int, data: memoryview) -> int:
        """Write ranges, from `data` that begins at `start`; the bytes of the disk that this took.

        Raises:
            OSError: If they cannot be written.
        """
        first, last = int(begin[0]), int(end.max())
        write_at(self._number, data[first - start : last - start], HEAD_BYTES + first - self.base)
        rows = np.empty(len(begin), _ROW)
        rows["start"], rows["stop"] = begin, end
        rows["checksum"] = [
            _checksum(self._seed, b, e, data[b - start : e - start])
            for b, e in zip(begin.tolist(), end.tolist(), strict=True)
        ]
        rows["sum"] = rows["start"] + rows["stop"] + rows["checksum"]
        number = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            raw = rows.tobytes()
            if os.write(number, raw) < len(raw):
                # A part of a row: no later row could be found.
                self.delete()
        finally:
            os.close(number)
        return last - first + len(raw) + 2 * BLOCK_BYTES

    def touch(self) -> None:
        """Note that it is used."""
        self.file.touch(time.monotonic())


@dataclasses.dataclass(frozen=True, slots=True)
class StoredSegment:
    """The file of a segment."""

    path: str
    used_s: float
    disk_bytes: int

    @property
    def name(self) -> str:
        """The name of its file."""
        return os.path.basename(self.path)

    def url(self) -> str:
        """The URL that it holds ranges of, without secrets; empty if that cannot be read."""
        try:
            with open(self.path, "rb") as file:
                return str(json.loads(file.read(BLOCK_BYTES))["url"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""


def stored_segments(folder: str) -> Iterator[StoredSegment]:
    """The segments in a cache's folder; what a killed process left behind is deleted.

    Raises:
        OSError: If the folder cannot be listed.
    """
    fans = [entry.path for entry in os.scandir(folder) if _FAN.fullmatch(entry.name)]
    for entry in (entry for fan in fans for entry in os.scandir(fan)):
        with contextlib.suppress(FileNotFoundError):
            stat = entry.stat(follow_symlinks=False)
            if _NAME.fullmatch(entry.name):
                size = max(BLOCK_BYTES, 512 * stat.st_blocks)
                yield StoredSegment(entry.path, stat.st_mtime, size)
            elif _NEW.fullmatch(entry.name) and time.time() - stat.st_mtime > _STALE_S:
                os.unlink(entry.path)


def rows_at(size: int) -> int:
    """Where the rows of a segment for `size` bytes begin."""
    return HEAD_BYTES + -(-size // BLOCK_BYTES) * BLOCK_BYTES


def _checksum(seed: int, start: int, stop: int, data: Bytes) -> int:
    return zlib.crc32(data, (seed + start + stop) & 0xFFFFFFFF)


def write_at(number: int, data: memoryview, at: int) -> None:
    """Write bytes to a file at a place. Raises OSError."""
    while len(data):
        count = os.pwrite(number, data, at)
        data, at = data[count:], at + count
