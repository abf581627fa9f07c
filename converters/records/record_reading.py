"""ArrayRecord files as input, kept open, and how many of their records a single read takes.

Records of one file may have 10 bytes or 100 MB. The index at the end of a file has the size of each
record group, so that no batch is much larger than it should be.

Invariants: records come in their order, and each record group is decoded once. A damaged record is
an error or is left out by number: it never gives other bytes or a shorter file. A single read is one
group, or groups that take no more than was asked for, as if all groups of a file compressed alike.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.converters.job.inputs import Input
from windrow.core.native import native
from windrow.errors import ReadError, WindrowError
from windrow.sources.array_record.files import ArrayRecordFile
from windrow.sources.array_record.source import ArrayRecordDataSource
from windrow.sources.base import IntArray
from windrow.sources.remote.paths import options_for

_MOST_OPENED: Final = 8


class OpenRecordFiles:
    """ArrayRecord files as one source, and the memory of their groups."""

    def __init__(self, files: Sequence[Input]) -> None:
        self.options = files[0].options
        self.source = ArrayRecordDataSource(
            [file.url for file in files],
            storage_options=options_for([file.url for file in files], self.options),
            direct=True if native() is not None else None,
        )
        ends = np.cumsum([file.records for file in self.source.files], dtype=np.int64)
        self._numbers = {_key(file): at for at, file in enumerate(files)}
        self._firsts = [
            int(end) - file.records for end, file in zip(ends, self.source.files, strict=True)
        ]
        self._ends: dict[int, npt.NDArray[np.float64]] = {}

    def has(self, files: Sequence[Input]) -> bool:
        """Return whether all of `files`, unchanged, are among these."""
        known = all(_key(file) in self._numbers for file in files)
        return known and self.options == files[0].options

    @property
    def count(self) -> int:
        """Number of files."""
        return len(self._firsts)

    def file(self, file: Input) -> ArrayRecordFile:
        """The known facts of a file."""
        return self.source.files[self._numbers[_key(file)]]

    def first(self, file: Input) -> int:
        """The number, among the records of all files, of the first one of `file`."""
        return self._firsts[self._numbers[_key(file)]]

    def fitting(self, file: Input, start: int, stop: int, room_bytes: int) -> int:
        """Return where to stop reading records `[start, stop)` of a file: after a group, or at `stop`."""
        at = self._numbers[_key(file)]
        ends, size = self._sizes(at), self.source.files[at].group
        first = start // size
        if first + 1 >= len(ends):
            return stop
        fit = int(np.searchsorted(ends, ends[first] + room_bytes, side="right")) - 1
        return min(max(first + 1, fit) * size, stop)

    def nbytes(self, file: Input, start: int, stop: int) -> int:
        """Return the bytes in memory of the groups that hold records `[start, stop)` of a file."""
        at = self._numbers[_key(file)]
        ends, size = self._sizes(at), self.source.files[at].group
        last = min(-(-stop // size), len(ends) - 1)
        return int(ends[last] - ends[min(start // size, last)])

    def _sizes(self, at: int) -> npt.NDArray[np.float64]:
        """Return the bytes in memory of the groups of a file before each one, and last of all groups."""
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
        """Return the stored bytes of each group of a file; all equal if they cannot be found."""
        first = sum(-(-file.records // file.group) for file in self.source.files[:at])
        (part,) = self.source.parts
        with contextlib.suppress(WindrowError):  # reading the records raises the error again
            stored = part.places_of_chunks()(np.arange(first, first + groups)).stored_bytes
            if (stored > 0).all():
                return stored
        return np.ones(groups, np.int64)


def _key(file: Input) -> tuple[Any, ...]:
    return file.url, file.size_bytes, file.version


# The files that were opened last, since a large file is read in many parts.
_opened: Final[collections.deque[OpenRecordFiles]] = collections.deque(maxlen=_MOST_OPENED)
_lock: Final = threading.Lock()


def opened(files: Sequence[Input], *, among: bool = False) -> OpenRecordFiles:
    """Return files as one source, kept open for later calls; with `among`, it may have more files.

    Raises:
        NotFoundError, SourceError, ReadError: As for `ArrayRecordDataSource`.
    """
    with _lock:
        for held in _opened:
            if held.has(files) and (among or held.count == len(files)):
                _opened.remove(held)
                _opened.append(held)
                return held
    found = OpenRecordFiles(files)
    with _lock:
        _opened.append(found)
    return found


def read_good(
    source: ArrayRecordDataSource,
    numbers: IntArray,
    lose: Callable[[IntArray, ReadError], None] | None,
) -> tuple[IntArray, list[bytes]]:
    """Return the records of one file that can be read, and their numbers.

    Args:
        source: The file.
        numbers: The numbers of the wanted records.
        lose: Called with the numbers of records that cannot be read, and why; None to raise it.
    """
    while len(numbers):
        try:
            return numbers, source.read(numbers)
        except ReadError as error:
            if lose is None or error.records is None:
                raise
            lost = (numbers >= error.records[0]) & (numbers < error.records[1])
            if not lost.any():
                raise  # it is about other records, and every read would raise it
            lose(numbers[lost], error)
            numbers = numbers[~lost]
    return numbers, []
