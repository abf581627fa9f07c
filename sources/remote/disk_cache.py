"""A cache of bytes of remote files in a folder of a local disk, shared by all processes of a host.

Ranges lie in segments (`cache_segments.py`), each at its place, so that neighbours are read at once.

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
import threading
import time
import uuid
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from windrow.core.redaction import shown_url, without_secrets
from windrow.sources.remote.cache_segments import (
    BLOCK_BYTES,
    HEAD_BYTES,
    TOUCH_S,
    Bytes,
    CacheSegment,
    IntArray,
    LocatedRanges,
    StoredSegment,
    rows_at,
    stored_segments,
    write_at,
)
from windrow.sources.remote.coming_reads import ComingReads, RangesOf, SegmentUses
from windrow.sources.remote.remote_file import RemoteFile

SEGMENT_BYTES: Final = 16 << 20
_LOCK: Final = "lock"
_FORMAT: Final = "windrow cache 1"
_LONGEST_URL: Final = 2000
_MOST_OPEN: Final = 128
_MOST_KEYS: Final = 100_000
_PAUSE_S: Final = 10.0
# Records of a stream that are looked up for a distance that doubles each time.
_SAMPLED: Final = 1 << 14
_SAMPLED_PER_SEGMENT: Final = 8
_log = logging.getLogger("windrow.remote")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class KeptRanges:
    """Ranges of one segment: their places in the request."""

    places: IntArray
    segment: CacheSegment


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
        self._lock, self._making_room = threading.Lock(), threading.Lock()
        self._open: collections.OrderedDict[str, CacheSegment] = collections.OrderedDict()
        self._names_used: set[str] = set()  # of segments
        self._coming = weakref.WeakKeyDictionary[ComingReads, RangesOf]()
        self._keys: dict[RemoteFile, str] = {}
        self._written = most_bytes  # since the folder was measured
        self._is_made = self._warned = self._is_full = False
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

    def locate(self, file: RemoteFile, begin: IntArray, end: IntArray) -> list[LocatedRanges]:
        """As `find`, for a caller that compares the checksums of what it reads."""
        with self._lock, self._guard("get"):
            now_s = time.monotonic()
            return [
                segment.located(places, begin, end)
                for places, segment in self._used(file, begin, end)
                if segment.file.is_used(now_s)  # its path may lead nowhere while it is open
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
        if time.monotonic() - self._looked_s > TOUCH_S:
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
            if self._is_full and self._written > self._most_bytes // 16:
                return  # another thread makes room
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
        with self._lock:
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
        length = self._segment_bytes
        if len(begin) == 1 and end[0] - begin[0] <= length:  # often: it is not worth sorting
            base = int(begin[0]) // length * length
            yield np.zeros(1, np.int64), base, min(2 * length, file.size_bytes - base)
            return
        bases, sizes = self._segments_of(file.size_bytes, begin, end)
        keys = 2 * bases + (end - begin > length)
        for at in np.unique(keys, return_index=True)[1].tolist():
            yield np.flatnonzero(keys == keys[at]), int(bases[at]), int(sizes[at])

    def _segments_of(
        self, file_bytes: int | IntArray, begin: IntArray, end: IntArray
    ) -> tuple[IntArray, IntArray]:
        """The first byte that the segment of each range may hold, and how many."""
        length = self._segment_bytes
        large = end - begin > length
        bases = np.where(large, begin // HEAD_BYTES * HEAD_BYTES, begin // length * length)
        return bases, np.where(large, end - bases, np.minimum(2 * length, file_bytes - bases))

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
        self._names_used.add(name)
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
            write_at(number, memoryview(json.dumps(facts).encode().ljust(BLOCK_BYTES)), 0)
            os.ftruncate(number, rows_at(size))
            with contextlib.suppress(FileExistsError):
                os.link(new, os.path.join(self._fan(name), name))
        finally:
            os.close(number)
            os.unlink(new)

    def _make_room(self) -> None:
        """Delete segments if all take too much of the disk, unless another thread does so now."""
        if not self._making_room.acquire(blocking=False):
            return
        try:
            names = set[str]()
            with self._lock, self._guard("put"):
                self._written = 0
                found = list(stored_segments(self._folder))
                if sum(one.disk_bytes for one in found) > self._most_bytes // 8 * 7:
                    names, self._is_full = {one.name for one in found}, True
                self._close_deleted()
            if names:
                due = self._next_uses(names)  # which may call functions of the user
                with self._lock, self._guard("put"):
                    self._evict(due, names)
        finally:
            self._is_full = False
            self._making_room.release()

    def _evict(self, due: Mapping[str, int], names: set[str]) -> None:
        """Delete some of the segments `names`, by the distances `due` of their next uses."""
        with contextlib.suppress(BlockingIOError), _locked(self._folder):
            found = sorted(stored_segments(self._folder), key=lambda one: one.used_s)
            self._names_used &= {one.name for one in found}
            before = left = sum(one.disk_bytes for one in found)
            if left <= self._most_bytes // 8 * 7:  # another process has made room
                return
            known = [one for one in found if one.name in names]  # of others, `due` says nothing
            for one in _in_turn(known, due, self._names_used):
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
        if not self._coming:
            return {}
        uses = SegmentUses(names)
        with self._lock:
            streams = list(self._coming.items())
            stored = uses.expect(self._keys.values())
            urls = {file.url for file, key in self._keys.items() if key in stored}
        count = max(_SAMPLED, _SAMPLED_PER_SEGMENT * len(names))
        try:
            for coming, ranges in streams:
                for found in ranges(coming.sampled(count), urls):
                    with self._lock:
                        keys = [self._key(file) for file in found.files]
                    sizes = np.array([one.size_bytes for one in found.files], np.int64)[found.which]
                    segments = self._segments_of(sizes, found.begin, found.end)
                    uses.note(keys, found.which, *segments, found.distances)
                    if uses.suffices(found.nearest):
                        break
        except Exception as error:  # such as one by a function of the user
            _log.debug("the next uses of the cache in %s are not known: %s", self._folder, error)
            return {}
        return uses.found()

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


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Hold the lock of a folder. Raises BlockingIOError if another process holds it."""
    number = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(number)
