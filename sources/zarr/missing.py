"""Readers that refuse chunks which are not stored, in place of their fill values.

They stand around the reader of any format. After a read they look for chunks whose cells are all the fill
value, and ask the store for these alone.

Invariant: a read ends without an error only if every chunk that it touches is stored.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from windrow.errors import ReadError, SourceError
from windrow.sources.base import AnyArray, IntArray
from windrow.sources.chunks import Box, Span, partly_read
from windrow.sources.scan import Checkable, Checks
from windrow.sources.zarr.error_text import held_cells, held_records
from windrow.sources.zarr.names import Found
from windrow.sources.zarr.reads import as_boxes

Missing: TypeAlias = Literal["fill", "error"]

_WAY: Final = (
    "is not stored, and missing='error'. Copy or write it again; if it is meant to read as the fill"
    " value, leave missing='error' out; a chain leaves these records out by .on_bad(\"skip\")"
)


class _StoredChunks:
    """Which chunks of an array are stored. Thread-safe."""

    def __init__(self, found: Found, reader: Any, fill: Any, dtype: np.dtype[Any]) -> None:
        """Ask the checks of `reader`.

        Raises:
            SourceError: If no reader of the array knows which chunks are stored.
        """
        checks = reader.checks() if isinstance(reader, Checkable) else None
        if checks is None or not checks.knows_stored:
            raise _unknown(found)
        # What a user opened may lie in a store that does not say.
        if found.shape is None and 0 not in checks.grid and checks.is_stored(0) is None:
            raise _unknown(found)
        self._found, self.checks, self._stored = found, checks, set[int]()
        self._fill = np.zeros((), dtype) if fill is None else np.asarray(fill, dtype)

    def lost(self, first: Sequence[int], shape: Sequence[int], cells: AnyArray) -> ReadError | None:
        """The error of the first chunk in a box of the array that is not stored; None if all are.

        Args:
            first: The first cell of the box.
            shape: Its cells along each axis.
            cells: Its values; along the first axis also others of the same chunk.
        """
        checks = self.checks
        low = checks.coords_of(first)
        high = checks.coords_of([f + n - 1 for f, n in zip(first, shape, strict=True)])
        for at in itertools.product(*(range(a, b + 1) for a, b in zip(low, high, strict=True))):
            number = int(np.ravel_multi_index(at, checks.grid))
            begin, end = checks.bounds(number)
            inside = [
                slice(max(0, b - f), e - f) for b, e, f in zip(begin, end, first, strict=True)
            ]
            if low[0] == high[0]:
                inside[0] = slice(None)
            if number not in self._stored and self._may_be_fill(cells[tuple(inside)]):
                stored = checks.is_stored(number)
                if stored is None:
                    raise _unknown(self._found)
                if not stored:
                    return self._error(number, at)
                self._stored.add(number)
        return None

    def _may_be_fill(self, cells: AnyArray) -> bool:
        # Most chunks hold other values, which their first cells show.
        return self._are_fill(cells[(slice(0, 1),) * cells.ndim]) and self._are_fill(cells)

    def _are_fill(self, cells: AnyArray) -> bool:
        fill = self._fill
        same = cells == fill
        if bool(fill != fill):  # NaN, and NaT
            same = same | (cells != cells)
        return bool(same.all())

    def _error(self, number: int, at: Sequence[int]) -> ReadError:
        found, file = self._found, self.checks.file(number)
        bounds = list(zip(*self.checks.bounds(number), strict=True))
        held = held_records(*bounds[0]) if len(bounds) == 1 else held_cells(bounds)
        place = file or f"chunk {', '.join(map(str, at))} of its grid"
        if file is not None and os.path.exists(file):  # a shard
            place = f"chunk {', '.join(map(str, at))} of its grid, in {file},"
        return ReadError(
            f"{found.named} in {found.where}: the chunk that holds {held} cannot be read: {place} {_WAY}",
            file=file,
            records=bounds[0],
            why="it is not stored",
        )


def _unknown(found: Found) -> SourceError:
    return SourceError(
        f"{found.what}: missing='error' is not for {found.named} in {found.where}: nothing shows which of"
        " its chunks are stored; leave missing='error' out"
    )


class StoredReader:
    """Reads rows or boxes of chunks that are all stored; a `RowReader` and a `BoxReader`."""

    def __init__(self, inner: Any, found: Found, fill: Any, dtype: np.dtype[Any]) -> None:
        """Read by `inner`. Raises SourceError if nothing shows which chunks are stored."""
        self.inner, self.is_slow = inner, getattr(inner, "is_slow", False)
        self._chunks = _StoredChunks(found, inner, fill, dtype)

    def checks(self) -> Checks:
        """The chunks of the array."""
        return self._chunks.checks

    def start(self, wanted: Sequence[Span] | Sequence[Box], pool: Executor) -> Future[None]:
        """Start reading spans or boxes; the future has a ReadError if one of them fails."""
        read = self.inner.start(wanted, pool)
        return pool.submit(_checked, self._chunks, read, as_boxes(wanted))

    def read(self, rows: IntArray) -> AnyArray:
        """Rows `(n, ...)` in new memory. Waits; raises ReadError."""
        errors = dict[int, ReadError]()
        try:
            found: AnyArray = self.inner.read(rows)
        except ReadError as error:
            if error.rest is None:
                raise
            found, errors = error.rest.found, dict(error.rest.errors)
        chunk_of: IntArray = self.checks().coords_of([rows])[0]
        for chunk in np.unique(chunk_of).tolist():
            mine = np.flatnonzero(chunk_of == chunk)
            mine = mine[[place not in errors for place in mine.tolist()]]
            if not len(mine):
                continue
            first = (int(rows[mine[0]]), *(0 for _ in found.shape[1:]))
            lost = self._chunks.lost(first, (1, *found.shape[1:]), found[mine])
            if lost is not None:
                errors.update(dict.fromkeys(mine.tolist(), lost))
        if errors:
            raise partly_read(found, errors)
        return found

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        """As of the reader inside."""
        found: IntArray = self.inner.stored_bytes(chunks)
        return found


def _checked(chunks: _StoredChunks, read: Future[None], boxes: Sequence[Box]) -> None:
    """Wait for a read of boxes. Raises ReadError if it failed, or a chunk is not stored."""
    errors = dict[int, ReadError]()
    try:
        read.result()
    except ReadError as error:
        if error.rest is None:
            raise
        errors.update(error.rest.errors)
    for place, box in enumerate(boxes):
        if place not in errors and box.out.size:
            lost = chunks.lost(box.first, box.out.shape, box.out)
            if lost is not None:
                errors[place] = lost
    if errors:
        raise partly_read(None, errors)
