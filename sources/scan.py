"""Scans the storage of one array chunk by chunk; each chunk is read once and dropped.

A reader that supports this has a method `checks`; see `Checkable`.

Invariant: a scan holds one chunk in memory at a time, and nothing afterwards.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, final, runtime_checkable

import numpy as np

from windrow.sources.base import IntArray
from windrow.sources.chunks import Part

Cells = tuple[int, ...]


class Checks(abc.ABC):
    """The chunks of an array, by number: C order of their grid. Thread-safe.

    Args:
        shape: Shape of the array.
        chunk_shape: Cells of a chunk along each axis.
        shift: Cells of the first chunk that lie before cell 0, along each axis.
        itemsize: Bytes of a cell in memory.
    """

    def __init__(self, shape: Cells, chunk_shape: Cells, shift: Cells, itemsize: int) -> None:
        self._shape, self._chunk, self._shift = shape, chunk_shape, shift
        axes = zip(shape, shift, chunk_shape, strict=True)
        self.grid: Cells = tuple(-(-(n + s) // c) for n, s, c in axes)
        self.chunk_bytes = math.prod(chunk_shape) * itemsize
        """Bytes of a whole chunk in memory."""
        self._itemsize = itemsize

    @property
    def misplaced(self) -> str:
        """What is wrong with the places of chunks that are found all the same; '' if nothing is."""
        return ""

    @property
    def knows_stored(self) -> bool:
        """Whether `is_stored` has an answer."""
        return True

    @property
    @abc.abstractmethod
    def waits(self) -> bool:
        """Whether a check may wait for a disk or a network, not only for this machine's cores."""

    @abc.abstractmethod
    def check_run(self, first: int, stop: int) -> tuple[int, int] | None:
        """Reads the chunks `[first, stop)` together, if that costs less than one by one.

        Returns:
            The number of chunks that are not stored, and the number of chunks for which that is
            unknown. None if the caller must check one by one: a chunk is bad, or it costs no less.
        """

    @abc.abstractmethod
    def check(self, number: int) -> bool | None:
        """Reads a chunk, decodes it and drops it.

        Returns:
            Whether it is stored; None where that is unknown.

        Raises:
            ReadError: If it cannot be read.
        """

    @abc.abstractmethod
    def is_stored(self, number: int) -> bool | None:
        """Whether a chunk is stored, without reading it; None where that is unknown.

        Raises:
            ReadError: If the store cannot be asked.
        """

    @abc.abstractmethod
    def file(self, number: int) -> str | None:
        """The local file of a chunk; None if it is unknown."""

    @abc.abstractmethod
    def orphans(self) -> list[str]:
        """Files of chunks outside of the array's grid, as far as they can be recognised.

        Raises:
            OSError: If a folder cannot be listed.
        """

    @final
    def coords(self, number: int) -> Cells:
        """Coordinates of a chunk in the grid."""
        found = []
        for count in reversed(self.grid):
            number, at = divmod(number, count)
            found.append(at)
        return tuple(found[::-1])

    @final
    def coords_of(self, cell: Sequence[Any]) -> tuple[Any, ...]:
        """Coordinates of the chunk that holds a cell, or the first axes of both; of arrays of cells too."""
        axes = zip(cell, self._shift, self._chunk, strict=False)
        return tuple((at + shift) // size for at, shift, size in axes)

    @final
    def bounds(self, number: int) -> tuple[Cells, Cells]:
        """The cells `[first, stop)` of the array in a chunk, along each axis."""
        first, stop = [], []
        axes = zip(self.coords(number), self._chunk, self._shift, self._shape, strict=True)
        for at, size, shift, length in axes:
            begin = at * size - shift
            first.append(max(0, begin))
            stop.append(min(length, begin + size))
        return tuple(first), tuple(stop)

    @final
    def cell_bytes(self, number: int) -> int:
        """Bytes in memory of the cells of the array in a chunk."""
        cells = (stop - first for first, stop in zip(*self.bounds(number), strict=True))
        return math.prod(cells) * self._itemsize

    @final
    def run_bytes(self, first: int, stop: int) -> int:
        """Bytes in memory of the cells of the array in the chunks `[first, stop)`."""
        cells = np.full(stop - first, self._itemsize, np.int64)
        axes = zip(self._chunk, self._shift, self._shape, self.grid, strict=True)
        stride = math.prod(self.grid)
        for size, shift, length, count in axes:
            stride //= count
            begin = np.arange(first, stop) // stride % count * size - shift
            cells *= np.minimum(begin + size, length) - np.maximum(begin, 0)
        return int(cells.sum())


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The places of stored chunks, one entry per chunk; -1 in the arrays for unknown numbers.

    Args:
        files: File of each chunk.
        offsets: Byte of the file at which the chunk begins, int64 `(n,)`.
        stored_bytes: Stored bytes by the chunk's own header, int64 `(n,)`.
        decoded_bytes: Bytes in memory by the chunk's own header, int64 `(n,)`.
    """

    files: list[str]
    offsets: IntArray
    stored_bytes: IntArray
    decoded_bytes: IntArray


@runtime_checkable
class GroupChecker(Protocol):
    """A part that can check groups of records without making objects of the records."""

    def checker(self) -> Callable[[Sequence[int]], int] | None:
        """Return a function that decodes chunks and drops them; None if this part cannot.

        It returns the bytes of their records in memory, and raises ReadError for a bad chunk.
        """
        ...


@runtime_checkable
class ChunkLocator(Protocol):
    """A part that knows where its chunks are stored."""

    def places_of_chunks(self) -> Callable[[IntArray], Places]:
        """A function that finds where chunks are stored. It may read headers, and keep them."""
        ...


@runtime_checkable
class Repeating(Protocol):
    """A source with arrays whose cells are the same in every record and are read once."""

    def still_parts(self) -> Sequence[Part]:
        """The arrays that are the same in all records, which are not among the `parts`."""
        ...


@runtime_checkable
class Checkable(Protocol):
    """A reader whose storage can be scanned chunk by chunk."""

    def checks(self) -> Checks:
        """Checks of its chunks, with the numbers of the part's chunks, or of pieces of those."""
        ...
