"""A cache of bytes of remote files in a folder of a local disk, shared by all processes of a host.

A segment is a sparse file that holds ranges of one version of a remote file, each at its place, so that
neighbours are read at once. Rows at its end say which ranges are there, with their checksums.

1. Bytes are kept under the URL, the settings that lead to another store, the version and size of the
   file, and their place in it. A file without a version is not kept.
2. Bytes are compared with the checksum with which they were kept, which covers their key, when a
   process first uses them. Damaged bytes count as not kept. A caller that compares checksums itself, or
   verifies hashes of the format, needs no second comparison.
3. Bytes are written before their row. So a killed process leaves at most bytes without a row, or a
   part of a row, which makes the segment useless; two processes may write the same range.
4. The segments take at most `most_bytes` of the disk. Those that were used least recently are deleted; in
   the places of those that this process has used or will use, the ones that its streams need last. An open
   segment that is deleted is not used any more.
5. No method raises an error of the disk. The cache then warns once, and pauses.
6. No secret is stored: names are hashes, and URLs are stored as they are shown to people.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import logging
import math
import os
import re
import threading
import time
import uuid
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.core.redaction import shown_url, without_secrets
from windrow.sources.remote.coming_reads import ComingReads, RangesOf
from windrow.sources.remote.remote_file import RemoteFile

IntArray = npt.NDArray[np.int64]
Bytes = bytes | memoryview

SEGMENT_BYTES: Final = 16 << 20
# Bytes of a remote file have the same place in blocks of this size as in the file. The head's facts take
# one block of the disk.
HEAD_BYTES: Final = 1 << 16
# `sum` is the sum of the others. A row lies within a block of the disk, and so is written at once.
_ROW: Final = np.dtype([(name, "<i8") for name in ("start", "stop", "checksum", "sum")])
_FAN: Final = re.compile(r"[0-9a-f]{3}")
_NAME: Final = re.compile(r"([0-9a-f]{24})-([0-9a-f]{24})-(\d+)-(\d+)")
# A segment that is being made: under its own name it would be used before it is complete.
_NEW: Final = re.compile(r"new-[0-9a-f]{32}")
_BLOCK_BYTES: Final = 4096
_STALE_S: Final = 3600.0
_WRITE_S: Final = 10.0
_LOCK: Final = "lock"
_FORMAT: Final = "windrow cache 1"
_LONGEST_URL: Final = 2000
_MOST_OPEN: Final = 128
_MOST_KEYS: Final = 100_000
_PAUSE_S: Final = 10.0
_TOUCH_S: Final = 30.0
_log = logging.getLogger("windrow.remote")


class CacheSegment:
    """An open segment. Not thread-safe."""

    def __init__(self, path: str) -> None:
        """Open the segment at `path`. Raises OSError."""
        place, version, base, size = os.path.basename(path).split("-")
        self.path, self.base = path, int(base)
        self.size, self._rows_at = int(size), _rows_at(int(size))
        self.opened: Any = None
        """What a reader of the format keeps of it."""
        self._seed = zlib.crc32(f"{place}-{version}".encode())
        self._number = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        # A cache is not closed: its segments are closed when it is dropped.
        self._close = weakref.finalize(self, os.close, self._number)
        self._read = 0  # bytes of rows
        self.rows: npt.NDArray[Any] = np.zeros(0, _ROW)
        """Its ranges in the order of their starts, which all differ."""
        self.checked: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._touched_s = -math.inf

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

    def located(
        self, places: IntArray, begin: IntArray, end: IntArray, opener: Callable[[int], Any]
    ) -> LocatedRanges:
        """Where the ranges at `places` are that are kept; `opener` opens the file's number."""
        found = self.find(begin[places], end[places])
        places, rows = places[found >= 0], self.rows[found[found >= 0]]
        if self.opened is None:
            self.opened = opener(self._number)
        seeds = (self._seed + rows["start"] + rows["stop"]) & 0xFFFFFFFF
        offsets = HEAD_BYTES + rows["start"] - self.base
        return LocatedRanges(places, self.opened, offsets, seeds, rows["checksum"])

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
        _write(self._number, data[first - start : last - start], HEAD_BYTES + first - self.base)
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
        return last - first + len(raw) + 2 * _BLOCK_BYTES

    def touch(self) -> None:
        """Note that it is used."""
        now_s = time.monotonic()
        if now_s - self._touched_s >= _TOUCH_S:
            self._touched_s = now_s
            with contextlib.suppress(OSError):  # such as a disk that is mounted for reading only
                os.utime(self._number)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class KeptRanges:
    """Ranges of one segment: their places in the request."""

    places: IntArray
    segment: CacheSegment


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LocatedRanges:
    """Ranges of one segment, for a caller that compares their checksums.

    Args:
        places: Their places in the request.
        file: The file of the segment, as it was opened for the caller.
        offsets: Where they begin in the file.
        seeds: What `zlib.crc32` begins with.
        checksums: What it must return.
    """

    places: IntArray
    file: Any
    offsets: IntArray
    seeds: IntArray
    checksums: IntArray


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class KeptRun:
    """Neighbouring ranges: their places in the request, and their bytes."""

    places: IntArray
    start: int
    data: bytes


class _PausedError(Exception):
    """The cache is not used for a while."""


class DiskCache:
    """Keeps byte ranges of remote files in a folder. Thread-safe."""

    def __init__(
        self, folder: str, most_bytes: int, settings: Mapping[str, Any] | None = None
    ) -> None:
        """Open nothing yet.

        Args:
            folder: The folder; it is made when it is first needed.
            most_bytes: The most bytes of the disk that segments take.
            settings: Storage options; those that may lead to another store are part of the keys.
        """
        self._folder, self._most_bytes = folder, most_bytes
        self._settings = json.dumps(without_secrets(settings or {}))
        self._segment_bytes = min(
            SEGMENT_BYTES, max(1, most_bytes // 64 // HEAD_BYTES) * HEAD_BYTES
        )
        self._lock = threading.Lock()
        self._open: collections.OrderedDict[str, CacheSegment] = collections.OrderedDict()
        self._used: set[str] = set()  # names of segments
        self._coming = weakref.WeakKeyDictionary[ComingReads, RangesOf]()
        self._keys: dict[RemoteFile, str] = {}
        self._written = most_bytes  # since the folder was measured
        self._is_made = self._warned = False
        self._looked_s = time.monotonic()
        self._pause_until_s = {"get": 0.0, "put": 0.0}

    def find(
        self, file: RemoteFile, begin: IntArray, end: IntArray, *, check: bool = True
    ) -> list[KeptRanges]:
        """The ranges `[begin, end)` of a file, in order, that are kept and not damaged.

        Without `check` they may be damaged: the caller has checksums of its own.
        """
        with self._lock, self._guard("get"):
            return list(self._found(file, begin, end, check=check))
        return []

    def get(self, file: RemoteFile, begin: IntArray, end: IntArray) -> list[KeptRun]:
        """As `find`, with their bytes."""
        runs: list[KeptRun] = []
        with self._lock, self._guard("get"):
            for kept in self._found(file, begin, end):
                runs += _runs(kept.segment, kept.places, begin, end)
        return runs

    def locate(
        self, file: RemoteFile, begin: IntArray, end: IntArray, opener: Callable[[int], Any]
    ) -> list[LocatedRanges]:
        """As `find`, for a caller that compares the checksums of what it reads.

        `opener` opens the file with a number; raises OSError if it cannot.
        """
        with self._lock, self._guard("get"):
            return [
                segment.located(places, begin, end, opener)
                for places, segment in self._used(file, begin, end)
            ]
        return []

    def doubt(self, file: RemoteFile, begin: IntArray, end: IntArray) -> None:
        """Compare ranges once more when they are used next: a caller that compares found damage."""
        with self._lock, self._guard("get"):
            for places, segment in self._used(file, begin, end):
                rows = segment.find(begin[places], end[places])
                segment.checked[rows[rows >= 0]] = False

    def _found(
        self, file: RemoteFile, begin: IntArray, end: IntArray, *, check: bool = True
    ) -> Iterator[KeptRanges]:
        for places, segment in self._used(file, begin, end):
            yield KeptRanges(_kept(segment, places, begin, end, check=check), segment)

    def _used(
        self, file: RemoteFile, begin: IntArray, end: IntArray
    ) -> Iterator[tuple[IntArray, CacheSegment]]:
        """Places of the ranges, and the segment that has them if they are kept."""
        if not file.version:
            return
        self._check_pause("get")
        key = self._key(file)
        for places, base, size in self._placed(file, begin, end):
            segment = self._segment(f"{key}-{base}-{size}")
            if segment is None:
                continue
            # Not before a write: many writes may follow one another.
            if segment.refresh():
                yield places, segment
                segment.touch()
            else:
                segment.delete()
        if time.monotonic() - self._looked_s > _TOUCH_S:
            self._close_deleted()

    def put(
        self, file: RemoteFile, begin: IntArray, end: IntArray, start: int, data: Bytes
    ) -> None:
        """Keep the ranges `[begin, end)` of a file, in order, from `data`, which begins at `start`."""
        if not file.version or not 0 < len(data) <= self._most_bytes // 4:
            return
        with self._lock:
            key, placed = self._key(file), list(self._placed(file, begin, end))
        for places, base, size in placed:
            with self._lock, self._guard("put"):
                self._check_pause("put")
                name = f"{key}-{base}-{size}"
                segment = self._segment(name)
                if segment is None:
                    self._make(name, file, size)
                    segment = self._segment(name)
                if segment is None:  # another process has deleted it
                    continue
                part = begin[places], end[places], start, memoryview(data)
                self._written += segment.add(*part)
            if self._written > self._most_bytes // 32:
                self._make_room()

    def foresee(self, coming: ComingReads, ranges: RangesOf) -> None:
        """Delete what a stream needs last, rather than what it needs soon, as long as `coming` exists.

        Args:
            coming: The records that the stream reads next.
            ranges: Where these records lie.
        """
        with self._lock:
            self._coming[coming] = ranges

    def knows(self, url: str) -> bool:
        """Whether bytes of the URL may be kept, of any version."""
        place = self._key(RemoteFile(url, 0)).partition("-")[0]
        with contextlib.suppress(OSError), os.scandir(self._fan(place)) as entries:
            return any(entry.name.startswith(place) for entry in entries)
        return False

    # ---- segments

    @contextlib.contextmanager
    def _guard(self, call: str) -> Iterator[None]:
        """An error of the disk ends the block and begins a pause of such calls.

        When a disk is full, what is kept can still be read.
        """
        try:
            yield
        except _PausedError:
            pass
        except OSError as error:
            self._pause_until_s[call] = time.monotonic() + _PAUSE_S
            self._failed(error)

    def _check_pause(self, call: str) -> None:
        if time.monotonic() < self._pause_until_s[call]:
            raise _PausedError

    def _failed(self, error: OSError) -> None:
        while self._open:
            self._open.popitem()[1].close()
        if not self._warned:
            self._warned = True
            _log.warning(
                "the cache in %s failed (%s); reading continues without it, and it is tried again"
                " every %.0f s",
                *(self._folder, error, _PAUSE_S),
            )

    def _key(self, file: RemoteFile) -> str:
        """The start of the names of a file's segments."""
        known = self._keys.get(file)
        if known is None:
            place = hashlib.sha256(json.dumps([file.url, self._settings]).encode()).hexdigest()
            version = json.dumps([place, file.version, file.size_bytes])
            digest = hashlib.sha256(version.encode()).hexdigest()
            known = f"{place[:24]}-{digest[:24]}"
            if len(self._keys) >= _MOST_KEYS:
                self._keys.clear()
            self._keys[file] = known
        return known

    def _placed(
        self, file: RemoteFile, begin: IntArray, end: IntArray
    ) -> Iterator[tuple[IntArray, int, int]]:
        """The places of ranges of each segment, the first byte that it may hold, and how many."""
        bases, sizes = self._segments_of(file, begin, end)
        keys = 2 * bases + (end - begin > self._segment_bytes)
        for at in np.unique(keys, return_index=True)[1].tolist():
            yield np.flatnonzero(keys == keys[at]), int(bases[at]), int(sizes[at])

    def _segments_of(
        self, file: RemoteFile, begin: IntArray, end: IntArray
    ) -> tuple[IntArray, IntArray]:
        """The first byte that the segment of each range may hold, and how many."""
        length = self._segment_bytes
        if len(begin) == 1 and end[0] - begin[0] <= length:  # often: it is not worth sorting
            base = int(begin[0]) // length * length
            yield np.zeros(1, np.int64), base, min(2 * length, file.size_bytes - base)
            return
        large = end - begin > length
        bases = np.where(large, begin // HEAD_BYTES * HEAD_BYTES, begin // length * length)
        return bases, np.where(large, end - bases, np.minimum(2 * length, file.size_bytes - bases))

    def _fan(self, name: str) -> str:
        return os.path.join(self._folder, name[:3])

    def _segment(self, name: str) -> CacheSegment | None:
        """The open segment; None if it does not exist."""
        segment = self._open.pop(name, None)
        if segment is not None and segment.is_deleted:
            segment.close()
            segment = None
        try:
            if segment is None:
                segment = CacheSegment(os.path.join(self._fan(name), name))
        except FileNotFoundError:
            return None
        self._open[name] = segment
        self._used.add(name)
        while len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)[1].close()
        return segment

    def _make(self, name: str, file: RemoteFile, size: int) -> None:
        """Make an empty segment, unless another process has made it."""
        if not self._is_made:
            # Only once: a folder that vanished may be a disk that is not mounted any more.
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            self._is_made = True
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._fan(name), mode=0o700)
        facts = {"format": _FORMAT, "url": shown_url(file.url)[:_LONGEST_URL]}
        new = os.path.join(self._fan(name), f"new-{uuid.uuid4().hex}")
        number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write(number, memoryview(json.dumps(facts).encode().ljust(_BLOCK_BYTES)), 0)
            os.ftruncate(number, _rows_at(size))
            with contextlib.suppress(FileExistsError):
                os.link(new, os.path.join(self._fan(name), name))
        finally:
            os.close(number)
            os.unlink(new)

    def _make_room(self) -> None:
        """Delete segments if all take too much of the disk."""
        names = set[str]()
        with self._lock, self._guard("put"):
            self._written = 0
            found = list(stored_segments(self._folder))
            if sum(one.disk_bytes for one in found) > self._most_bytes // 8 * 7:
                names = {one.name for one in found}
            self._close_deleted()
        if names:
            due = self._next_uses(names)  # which may call functions of the user
            with self._lock, self._guard("put"):
                self._evict(due)

    def _evict(self, due: Mapping[str, int]) -> None:
        with contextlib.suppress(BlockingIOError), _locked(self._folder):
            found = sorted(stored_segments(self._folder), key=lambda one: one.used_s)
            self._used &= {one.name for one in found}
            before = left = sum(one.disk_bytes for one in found)
            if left <= self._most_bytes // 8 * 7:  # another process has made room
                return
            for one in _in_turn(found, due, self._used):
                if left <= self._most_bytes // 4 * 3:
                    break
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(one.path)
                left -= one.disk_bytes
            if left < before and _log.isEnabledFor(logging.DEBUG):
                from windrow.core.debug_log import debug

                debug(_log, "the cache in %s: %d bytes evicted", self._folder, before - left)
        self._close_deleted()

    def _next_uses(self, names: set[str]) -> dict[str, int]:
        """The distances of the next uses of segments, by name, as far as streams of this process say."""
        with self._lock:
            streams = list(self._coming.items())
        due: dict[str, int] = {}
        for coming, ranges in streams:
            for records, distances in coming:
                for file, at, begin, end in ranges(records):
                    bases, sizes = self._segments_of(file, begin, end)
                    order = np.argsort(distances[at], kind="stable")
                    _, first = np.unique(bases[order], return_index=True)
                    for k in order[first].tolist():
                        name = f"{self._key(file)}-{bases[k]}-{sizes[k]}"
                        distance = int(distances[at[k]])
                        due[name] = min(distance, due.get(name, distance))
                if names <= due.keys():
                    break
        return due

    def _close_deleted(self) -> None:
        """Close deleted segments, so that they take no more of the disk."""
        self._looked_s = time.monotonic()
        for name in [name for name, one in self._open.items() if one.is_deleted]:
            self._open.pop(name).close()


def _kept(
    segment: CacheSegment, places: IntArray, begin: IntArray, end: IntArray, *, check: bool
) -> IntArray:
    """The ranges at `places` that a segment has; with `check` it forgets damaged ones."""
    rows = segment.find(begin[places], end[places])
    places, rows = places[rows >= 0], rows[rows >= 0]
    bad = segment.damaged(rows) if check else []
    if bad:
        places = places[~np.isin(rows, bad)]
        segment.forget(bad)
    return places


def _in_turn(
    found: list[StoredSegment], due: Mapping[str, int], used: set[str]
) -> list[StoredSegment]:
    """The segments in the order in which they are deleted.

    Other processes may need what this one knows nothing of, so that keeps its place by last use.

    Args:
        found: All segments, those that were used least recently first.
        due: The distance of the next use of segments, by name.
        used: The names of those that this process has used.
    """
    own = [k for k, one in enumerate(found) if one.name in due or one.name in used]
    last = sorted((found[k] for k in own), key=lambda one: -due.get(one.name, math.inf))
    in_turn = list(found)
    for k, one in zip(own, last, strict=True):
        in_turn[k] = one
    return in_turn


def _runs(
    segment: CacheSegment, places: IntArray, begin: IntArray, end: IntArray
) -> Iterator[KeptRun]:
    cuts = np.flatnonzero(begin[places[1:]] != end[places[:-1]]) + 1
    for at in np.split(places, cuts) if len(places) else ():
        start, stop = int(begin[at[0]]), int(end[at[-1]])
        data = segment.bytes_of(start, stop)
        if len(data) == stop - start:
            yield KeptRun(at, start, data)


def _rows_at(size: int) -> int:
    """Where the rows of a segment for `size` bytes begin."""
    return HEAD_BYTES + -(-size // _BLOCK_BYTES) * _BLOCK_BYTES


def _checksum(seed: int, start: int, stop: int, data: Bytes) -> int:
    return zlib.crc32(data, (seed + start + stop) & 0xFFFFFFFF)


def _write(number: int, data: memoryview, at: int) -> None:
    while len(data):
        count = os.pwrite(number, data, at)
        data, at = data[count:], at + count


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Hold the lock of a folder. Raises BlockingIOError if another process holds it."""
    number = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(number)


# ---- a folder, for eviction and for the command line


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
                return str(json.loads(file.read(_BLOCK_BYTES))["url"])
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
                size = max(_BLOCK_BYTES, 512 * stat.st_blocks)
                yield StoredSegment(entry.path, stat.st_mtime, size)
            elif _NEW.fullmatch(entry.name) and time.time() - stat.st_mtime > _STALE_S:
                os.unlink(entry.path)
