"""Reads record groups from the cache on disk through the native core, as it reads local files.

A segment of the cache has the bytes of a file at the same place in blocks of 64 KiB, as the format
needs it, so to the core it is a file with an index of its own.

Invariant: the core verifies the hashes of what it reads, also where another process has deleted or
damaged a segment meanwhile. Groups that it refuses are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from windrow.core.native import native
from windrow.core.native_read import NativeRead
from windrow.sources.array_record.decode import Verify
from windrow.sources.array_record.files import IndexedFile
from windrow.sources.base import IntArray
from windrow.sources.remote.cache_segments import HEAD_BYTES, CacheSegment

FoundGroups = Sequence[tuple[int, IntArray, CacheSegment]]


class CachedGroups:
    """The groups of files that the cache on disk keeps."""

    def __init__(self, files: Sequence[IndexedFile], *, verify: Verify) -> None:
        """Open nothing yet."""
        self._files, self._everything = files, verify == "all"
        self._spans: dict[int, tuple[IntArray, IntArray]] = {}

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

    def records(self, found: FoundGroups, positions: IntArray) -> list[bytes] | None:
        """Records; None without the core, or if it refuses one.

        Args:
            found: The number of a file, some of the records, and the segment that has their groups.
            positions: The position of each of these records in its file.
        """
        core: Any = native()
        if core is None:
            return None
        try:
            opened = [self._opened(core, number, segment) for number, _, segment in found]
            at = np.repeat(np.arange(len(found)), [len(some) for _, some, _ in found])
            shifts = [
                first * self._files[number].file.group
                for (number, _, _), (_, first) in zip(found, opened, strict=True)
            ]
            places = positions - np.array(shifts, np.int64)[at]
            files = [file for file, _ in opened]
            records: list[bytes]
            records, damages = core.array_record_read(files, at, places, self._everything)
        except (OSError, core.ChunkError):
            return None
        return None if damages else records

    def _opened(self, core: Any, number: int, segment: CacheSegment) -> tuple[Any, int]:
        """A segment opened by the core, and the first group that it may hold."""
        if segment.opened is None:
            index = self._files[number].index
            if number not in self._spans:
                self._spans[number] = index.spans(np.arange(index.chunks))
            starts, stops = self._spans[number]
            first, last = np.searchsorted(starts, [segment.base, segment.base + segment.size])
            some, shift = slice(first, last), HEAD_BYTES - segment.base
            records = min(int(last) * index.group, index.records) - int(first) * index.group
            parts = starts[some] + shift, stops[some] + shift, index.chunk_bytes[some]
            file = core.ArrayRecordFile(segment.path, *parts, index.group, records)
            segment.opened = file, int(first)
        opened: tuple[Any, int] = segment.opened
        return opened


def picked(decoded: Sequence[Sequence[bytes]], which: IntArray, places: IntArray) -> list[bytes]:
    """Make records of groups that the core has decoded, of group `which[k]` the one at `places[k]`."""
    core: Any = native()
    records: list[bytes] = core.array_record_take(list(decoded), which, places)
    return records
