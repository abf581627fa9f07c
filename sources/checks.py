"""Checks: going through the storage of one array chunk by chunk, each read once and dropped.

A reader that can do so says it with a method `checks`; see `Checkable`.

Invariant: a check holds the memory of one chunk at a time, and none of it afterwards.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Protocol, final, runtime_checkable

import numpy as np

from windrow.sources.base import IntArray
from windrow.sources.pieces import Part

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
    @abc.abstractmethod
    def waits(self) -> bool:
        """Whether a check may wait for something else than this machine's cores."""

    @abc.abstractmethod
    def check_run(self, first: int, stop: int) -> tuple[int, int] | None:
        """Read the chunks `[first, stop)` together, where that costs less than one by one.

        Returns:
            How many of them are not stored, and of how many that can not be told. None where they
            are to be checked one by one: something is wrong, or it would cost no less.
        """

    @abc.abstractmethod
    def check(self, number: int) -> bool | None:
        """Read a chunk, decode it, drop it.

        Returns:
            Whether it is stored; None where that can not be told.

        Raises:
            ReadError: If it can not be read.
        """

    @abc.abstractmethod
    def is_stored(self, number: int) -> bool | None:
        """Whether a chunk is stored, without reading it; None where that can not be told.

        Raises:
            ReadError: If that can not be looked up.
        """

    @abc.abstractmethod
    def file(self, number: int) -> str | None:
        """The local file that a chunk belongs in; None where that is not known."""

    @abc.abstractmethod
    def strays(self) -> list[str]:
        """Files of chunks that the array has no place for, as far as they can be told.

        Raises:
            OSError: If a folder can not be listed.
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
    """Where pieces are stored: one entry per piece; in the arrays, -1 where it is not known.

    Args:
        files: The file.
        offsets: The byte of the file at which it begins, int64 `(n,)`.
        stored_bytes: Its bytes there, as it says itself, int64 `(n,)`.
        decoded_bytes: Its bytes in memory, as it says itself, int64 `(n,)`.
    """

    files: list[str]
    offsets: IntArray
    stored_bytes: IntArray
    decoded_bytes: IntArray


@runtime_checkable
class Placed(Protocol):
    """A part that knows where its pieces are stored."""

    def places_of_pieces(self) -> Callable[[IntArray], Places]:
        """Tells where pieces are stored. It may read headers, and keep them."""
        ...


@runtime_checkable
class Repeating(Protocol):
    """A source that has read of some arrays once what stands in every record."""

    def still_parts(self) -> Sequence[Part]:
        """These arrays, which are none of its `parts`: each record has all that record 0 has."""
        ...


@runtime_checkable
class Checkable(Protocol):
    """A reader whose storage can be gone through chunk by chunk."""

    def checks(self) -> Checks:
        """Its chunks, numbered as the pieces of its part, or as parts of them along other axes."""
        ...
