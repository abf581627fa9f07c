"""Reads record groups from the cache on disk through the native core, as it reads local files.

A segment of the cache has the bytes of a file at the same place in blocks of 64 KiB, as the format
needs it, so to the core it is a file with an index of its own.

Invariant: the core verifies the hashes of what it reads, also where another process has deleted or
damaged a segment meanwhile. Groups that it refuses are left out.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.core.native import native
from windrow.core.native_read import NativeRead
from windrow.sources.array_record.decode import Verify
from windrow.sources.array_record.files import IndexedFile
from windrow.sources.base import IntArray
from windrow.sources.remote.cache_segments import HEAD_BYTES, CacheSegment
from windrow.sources.remote.fetcher import Fetcher

FoundGroups = Sequence[tuple[int, IntArray, CacheSegment]]


class CachedGroups:
    """The groups of files that the cache on disk keeps."""

    def __init__(self, files: Sequence[IndexedFile], fetcher: Fetcher, *, verify: Verify) -> None:
        """Open nothing yet; `fetcher` has the cache."""
        self._files, self._fetcher, self._everything = files, fetcher, verify == "all"
        self._spans: dict[int, tuple[IntArray, IntArray]] = {}
        self._located: dict[int, LocatedGroups] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        make = functools.partial(CachedGroups, verify="all" if self._everything else "headers")
        return make, (self._files, self._fetcher)

    def decoded(self, found: FoundGroups, chunks: IntArray) -> list[Sequence[bytes]] | None:
        """The records of groups; None without the core, or if it refuses a group.

        Args:
            found: The number of a file, groups, and the segment that has them.
            chunks: The number of each group in its file.
        """
        core: Any = native()
        if core is None:
            return None
        try:
            opened = [self._opened(core, number, segment) for number, _, segment in found]
            at = np.repeat(np.arange(len(found)), [len(groups) for _, groups, _ in found])
            firsts = np.array([first for _, first in opened])[at]
            sizes = np.array([self._files[number].file.group for number, _, _ in found])[at]
            ends = np.array([self._files[number].file.records for number, _, _ in found])[at]
            stops = np.minimum((chunks + 1) * sizes, ends) - firsts * sizes
            files = [file for file, _ in opened]
            begins = (chunks - firsts) * sizes
            reading = core.array_record_start(files, at, begins, stops, self._everything)
            records: list[Sequence[bytes]]
            records, damages = NativeRead(reading, reading.taken).result()
        except OSError:
            return None
        return None if damages else records

    def read(self, files: IntArray, positions: IntArray) -> list[bytes] | None:
        """Records; None without the core, or if the cache lacks one or the core refuses one.

        Args:
            files: The number of the file of each record.
            positions: Its position there.
        """
        core: Any = native()
        if core is None:
            return None
        at, inside, opened, size = np.empty_like(files), positions.copy(), list[Any](), 0
        try:
            for number in np.unique(files).tolist():
                mine = np.flatnonzero(files == number)
                group, spans = self._files[number].file.group, self._spans_of(number)
                chunks = positions[mine] // group
                with self._lock:
                    segments, which = self._segments_of(number, chunks)
                    some = [self._opened(core, number, segment) for segment in segments]
                if (which < 0).any():
                    return None
                at[mine] = which + len(opened)
                inside[mine] -= np.array([first for _, first in some])[which] * group
                opened += [file for file, _ in some]
                distinct = np.unique(chunks)
                size += int((spans[1][distinct] - spans[0][distinct]).sum())
            records: list[bytes]
            records, damages = core.array_record_read(opened, at, inside, self._everything)
        except (OSError, core.ChunkError):
            return None
        if damages:
            return None
        self._fetcher.stats.cached(size)
        return records

    def _segments_of(self, number: int, chunks: IntArray) -> tuple[list[CacheSegment], IntArray]:
        """Segments that have groups of a file, and which of them has each; -1 if none has it."""
        if number not in self._located:
            self._located[number] = LocatedGroups(self._files[number].index.chunks)
        located = self._located[number]
        living = located.living(chunks)
        missing = np.unique(chunks[located.segment_of[chunks] < 0])
        file = self._files[number].remote
        if len(missing) and file is not None:
            begin, end = (bounds[missing] for bounds in self._spans_of(number))
            found = self._fetcher.find_kept(file, begin, end, check=not self._everything)
            for kept in found:
                located.add(missing[kept.places], kept.segment)
            # If all are there, the others are likely to be, and need not be compared before.
            if self._everything and sum(len(kept.places) for kept in found) == len(missing):
                for kept in found:
                    located.add(self._groups_in(number, kept.segment), kept.segment)
        segments = located.segments_of(chunks)
        del living  # until here: others that were opened must not have closed them
        return segments

    def _groups_in(self, number: int, segment: CacheSegment) -> IntArray:
        """The groups of a file that a segment has."""
        rows, (starts, stops) = segment.rows, self._spans_of(number)
        at = np.minimum(np.searchsorted(starts, rows["start"]), len(starts) - 1)
        groups: IntArray = at[(starts[at] == rows["start"]) & (stops[at] == rows["stop"])]
        return groups

    def _opened(self, core: Any, number: int, segment: CacheSegment) -> tuple[Any, int]:
        """A segment opened by the core, and the first group that it may hold."""
        if segment.opened is None:
            index = self._files[number].index
            starts, stops = self._spans_of(number)
            first, last = np.searchsorted(starts, [segment.base, segment.base + segment.size])
            some, shift = slice(first, last), HEAD_BYTES - segment.base
            records = min(int(last) * index.group, index.records) - int(first) * index.group
            parts = starts[some] + shift, stops[some] + shift, index.chunk_bytes[some]
            file = core.ArrayRecordFile(segment.path, *parts, index.group, records)
            segment.opened = file, int(first)
        opened: tuple[Any, int] = segment.opened
        return opened

    def _spans_of(self, number: int) -> tuple[IntArray, IntArray]:
        """The begin and the end of each group of a file."""
        if number not in self._spans:
            index = self._files[number].index
            self._spans[number] = index.spans(np.arange(index.chunks))
        return self._spans[number]


class LocatedGroups:
    """Which segments have the groups of a file, as far as it was found out. Keeps none of them open."""

    def __init__(self, groups: int) -> None:
        """Nothing is found out yet."""
        self._segments: list[weakref.ref[CacheSegment] | None] = []
        self._spans: list[tuple[int, int]] = []  # their first groups, and the ones after their last
        self._places: dict[tuple[int, int], int] = {}  # by the bytes of the file that they are for
        self.segment_of: npt.NDArray[np.int32] = np.full(groups, -1, np.int32)
        """For each group the place of its segment, or -1."""

    def living(self, groups: IntArray) -> list[CacheSegment]:
        """The segments of groups that are still there; forgets those that were closed or deleted."""
        now_s, found = time.monotonic(), list[CacheSegment]()
        for place in self._places_of(groups):
            segment = self._at(place)
            if segment is None or not segment.file.is_used(now_s):
                self._forget(place)
            else:
                found.append(segment)
        return found

    def add(self, groups: IntArray, segment: CacheSegment) -> None:
        """Note that a segment has groups."""
        if not len(groups):
            return
        first, stop = int(groups.min()), int(groups.max()) + 1
        place = self._places.setdefault((segment.base, segment.size), len(self._segments))
        if place == len(self._segments):
            self._segments.append(None)
            self._spans.append((first, stop))
        if self._at(place) is not segment:
            self._forget(place)
            self._segments[place] = weakref.ref(segment)
        begin, end = self._spans[place]
        self._spans[place] = min(begin, first), max(end, stop)
        self.segment_of[groups] = place

    def segments_of(self, groups: IntArray) -> tuple[list[CacheSegment], IntArray]:
        """The segments of groups, and which of these has each; -1 where it is not known."""
        segments = list[CacheSegment]()
        renumbered = np.full(len(self._segments) + 1, -1)  # the last one is for -1
        for place in self._places_of(groups):
            segment = self._at(place)
            if segment is not None:
                renumbered[place] = len(segments)
                segments.append(segment)
        return segments, renumbered[self.segment_of[groups]]

    def _forget(self, place: int) -> None:
        own = self.segment_of[slice(*self._spans[place])]
        own[own == place] = -1
        self._segments[place] = None

    def _places_of(self, groups: IntArray) -> list[int]:
        places: list[int] = np.flatnonzero(np.bincount(self.segment_of[groups] + 1)[1:]).tolist()
        return places

    def _at(self, place: int) -> CacheSegment | None:
        found = self._segments[place]
        return None if found is None else found()


def picked(decoded: Sequence[Sequence[bytes]], which: IntArray, places: IntArray) -> list[bytes]:
    """Make records of groups that the core has decoded, of group `which[k]` the one at `places[k]`."""
    core: Any = native()
    records: list[bytes] = core.array_record_take(list(decoded), which, places)
    return records
