"""What a stream reads next, and who wants to know: a cache on disk keeps what is needed soon."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Final, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from windrow.sources.remote.remote_file import RemoteFile

IntArray = npt.NDArray[np.int64]
NEVER: Final = np.iinfo(np.int64).max
# The share of the expected segments whose next uses need not be known is one of this: more are deleted at a time.
_LEFT: Final = 8


class ComingReads(Protocol):
    """The records of a source that a stream reads next. Any thread may ask."""

    def sampled(self, count: int) -> Iterator[tuple[IntArray, IntArray]]:
        """Indices of records, the near ones first, and how many elements come before each of them.

        There is a record at least each time. Far ones are a sample: about `count` records for a distance
        that doubles each time.
        """
        ...

    def __hash__(self) -> int: ...


@runtime_checkable
class KeepsOnDisk(Protocol):
    """A source that may keep what it reads in a bounded folder."""

    def foresee(self, coming: ComingReads) -> None:
        """Keep what a stream reads soon rather than what it reads later, as long as `coming` exists."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ComingRanges:
    """Bytes of remote files that a stream reads next.

    Args:
        nearest: At least this many elements of the stream come before what is named later.
        files: The files.
        which: int64 `(n,)`, the number of the file of each range.
        begin: int64 `(n,)`, the first byte of each range.
        end: int64 `(n,)`, the end of each range.
        distances: int64 `(n,)`, how many elements of the stream come before the range is read.
    """

    nearest: int
    files: Sequence[RemoteFile]
    which: IntArray
    begin: IntArray
    end: IntArray
    distances: IntArray


RangesOf: TypeAlias = Callable[
    [Iterator[tuple[IntArray, IntArray]], Container[str]], Iterator[ComingRanges]
]
"""Where records lie that `ComingReads` names; files with other URLs than these may be left out."""


class SegmentUses:
    """The distances of the next uses of stored segments."""

    def __init__(self, names: Iterable[str]) -> None:
        """Take the names of the segments; none is used yet."""
        self._rows = {name: row for row, name in enumerate(names)}
        self._of_file = collections.defaultdict[str, list[int]](list)
        for name, row in self._rows.items():
            self._of_file[name.rsplit("-", 2)[0]].append(row)
        self._distances = np.full(len(self._rows), NEVER)
        self._is_expected = np.zeros(len(self._rows), np.bool_)

    def expect(self, keys: Iterable[str]) -> set[str]:
        """Expect uses of the segments of files; the files, of these, that have segments."""
        found = self._of_file.keys() & keys
        self._is_expected[[row for key in found for row in self._of_file[key]]] = True
        return found

    def note(
        self,
        keys: Sequence[str],
        which: IntArray,
        bases: IntArray,
        sizes: IntArray,
        distances: IntArray,
    ) -> None:
        """Note a use of each of some segments, which need not be stored.

        Args:
            keys: The keys of files.
            which: The file of each, by its number in `keys`.
            bases: The first byte of each.
            sizes: The bytes that it may hold.
            distances: How many elements come before its use.
        """
        self.expect(keys)
        # The nearest use of each comes first.
        order = np.lexsort((distances, sizes, bases, which))
        columns = np.stack([which, bases, sizes, distances])[:, order]
        same = (columns[:3, 1:] == columns[:3, :-1]).all(axis=0)
        for file, base, size, distance in np.delete(
            columns, 1 + np.flatnonzero(same), 1
        ).T.tolist():
            row = self._rows.get(f"{keys[file]}-{base}-{size}")
            if row is not None and distance < self._distances[row]:
                self._distances[row] = distance

    def suffices(self, nearest: int) -> bool:
        """Whether few of the expected uses are unknown, if those not yet noted are not nearer."""
        expected = self._distances[self._is_expected]
        return bool(np.count_nonzero(expected > nearest) * _LEFT <= len(expected))

    def found(self) -> dict[str, int]:
        """The distances of the segments that are used, by name."""
        found = zip(self._rows, self._distances.tolist(), strict=True)
        return {name: distance for name, distance in found if distance < NEVER}
