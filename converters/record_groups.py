"""ArrayRecord files that are open, and how many of their records fit into so much memory.

Records of one file may be of 10 bytes and of 100 MB. The index at the end of a file tells how much
each record group takes, so that no batch is far larger than it was meant to be.

Invariant: what is read at once is one group, or groups that take no more than was asked for, as if
all groups of a file compressed alike.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.converters.inputs import Input
from windrow.errors import WindrowError
from windrow.sources import ArrayRecordDataSource
from windrow.sources.array_record_parts import File
from windrow.sources.highway_hash import is_native

_MOST_OPENED: Final = 8


class OpenFiles:
    """ArrayRecord files as one source, and what their groups take in memory."""

    def __init__(self, files: Sequence[Input]) -> None:
        self.options = files[0].options
        # By byte ranges records in order take half of what the package takes of the cores, if hashes
        # are native code.
        self._direct = is_native()
        self.source = ArrayRecordDataSource(
            [file.url for file in files],
            storage_options=self.options,
            direct=True if self._direct else None,
        )
        ends = np.cumsum([file.records for file in self.source.files], dtype=np.int64)
        self._numbers = {_key(file): at for at, file in enumerate(files)}
        self._firsts = [
            int(end) - file.records for end, file in zip(ends, self.source.files, strict=True)
        ]
        self._ends: dict[int, npt.NDArray[np.float64]] = {}

    def has(self, files: Sequence[Input]) -> bool:
        """Whether files are among these, as they are now."""
        known = all(_key(file) in self._numbers for file in files)
        return known and self.options == files[0].options

    @property
    def count(self) -> int:
        """Number of files."""
        return len(self._firsts)

    def file(self, file: Input) -> File:
        """What is known of a file."""
        return self.source.files[self._numbers[_key(file)]]

    def first(self, file: Input) -> int:
        """The number, among the records of all files, of the first one of `file`."""
        return self._firsts[self._numbers[_key(file)]]

    def fitting(self, file: Input, start: int, stop: int, room_bytes: int) -> int:
        """Where to stop reading records `[start, stop)` of a file, behind a group or at `stop`."""
        at = self._numbers[_key(file)]
        ends, size = self._sizes(at), self.source.files[at].group
        first = start // size
        if first + 1 >= len(ends):
            return stop
        fit = int(np.searchsorted(ends, ends[first] + room_bytes, side="right")) - 1
        return min(max(first + 1, fit) * size, stop)

    def nbytes(self, file: Input, start: int, stop: int) -> int:
        """Bytes in memory of the groups that records `[start, stop)` of a file lie in."""
        at = self._numbers[_key(file)]
        ends, size = self._sizes(at), self.source.files[at].group
        last = min(-(-stop // size), len(ends) - 1)
        return int(ends[last] - ends[min(start // size, last)])

    def _sizes(self, at: int) -> npt.NDArray[np.float64]:
        """Bytes in memory of all groups of a file before each one, and in the end of all."""
        found = self._ends.get(at)
        if found is None:
            file = self.source.files[at]
            groups = -(-file.records // file.group)
            stored = self._stored(at, groups)
            found = np.zeros(groups + 1)
            np.cumsum(stored, out=found[1:])
            found *= file.decoded_bytes_each * file.records / max(1.0, float(found[-1]))
            self._ends[at] = found
        return found

    def _stored(self, at: int, groups: int) -> npt.NDArray[Any]:
        """The stored bytes of each group of a file; all alike where they are not told."""
        source, first = self.source, 0
        if self._direct:
            first = sum(-(-file.records // file.group) for file in source.files[:at])
        stored = np.ones(groups, np.int64)
        with contextlib.suppress(WindrowError):  # they are told by what reads the records
            if not self._direct:
                # What reads by byte ranges has the index; the package does not show its own.
                source = ArrayRecordDataSource(
                    source.files[at].path, storage_options=self.options, direct=True
                )
            (part,) = source.parts
            if part.piece_count >= first + groups:
                stored = part.places_of_pieces()(np.arange(first, first + groups)).stored_bytes
        return stored


def _key(file: Input) -> tuple[Any, ...]:
    return file.url, file.size_bytes, file.version


# Those that were opened last, since a large file is read in many parts.
_opened: Final[collections.deque[OpenFiles]] = collections.deque(maxlen=_MOST_OPENED)
_lock: Final = threading.Lock()


def opened(files: Sequence[Input], *, among: bool = False) -> OpenFiles:
    """Files, opened now or a while ago; with `among` there may be others with them.

    Raises:
        NotFoundError, SourceError, ReadError: As for `ArrayRecordDataSource`.
    """
    with _lock:
        for held in _opened:
            if held.has(files) and (among or held.count == len(files)):
                _opened.remove(held)
                _opened.append(held)
                return held
    found = OpenFiles(files)
    with _lock:
        _opened.append(found)
    return found
