"""Rows of small encoded chunks in shards of a local Zarr array, many chunks decoded at a call.

Invariant: what is filled are rows of whole chunks, or the fill value where nothing is stored; where
that can not be, there is an error that names nothing, and what was to be filled holds anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.sources.base import IntArray
from windrow.sources.pieces import Span
from windrow.sources.zarr_codecs import refuse_bools
from windrow.sources.zarr_frames import CodedChunks, coded_chunks
from windrow.sources.zarr_plain import PlainArray

AnyArray = npt.NDArray[Any]

# Of chunks of 8 KB this takes half the time or less, of 24 KB a tenth less; those of 48 KB are decoded
# as well one by one, straight to where they are wanted.
MOST_BYTES: Final = 32 * 2**10
# What is decoded at a call stays in a core's cache until it is copied.
_ROUND_BYTES: Final = 256 * 2**10
# Beyond so many a call costs nothing any more, and what Python takes for each chunk counts.
_MOST_AT_ONCE: Final = 1024


def small_chunks(plain: PlainArray) -> SmallChunks | None:
    """The chunks of an array; None where they are better decoded one by one."""
    # Chunks in files of their own would all be in memory at a time, whatever sizes these have.
    if not plain.codecs or plain.shard_shape is None or math.prod(plain.grid[1:]) != 1:
        return None
    if not 0 < plain.chunk_bytes <= MOST_BYTES:
        return None
    return SmallChunks(plain, coded_chunks(plain, plain.name, plain.folder))


class SmallChunks:
    """Chunks that hold whole rows. Thread-safe."""

    def __init__(self, plain: PlainArray, chunks: CodedChunks) -> None:
        """Read nothing yet."""
        self._plain, self._chunks = plain, chunks
        self._rows = plain.chunk_shape[0]
        self._order = (0, *(1 + int(axis) for axis in np.argsort(plain.axes)))
        self._inside = (slice(None), slice(None), *(slice(0, n) for n in plain.shape[1:]))
        self.at_once = min(_MOST_AT_ONCE, _ROUND_BYTES // plain.chunk_bytes)
        """Chunks that are decoded at a call."""

    def fill(self, spans: Sequence[Span]) -> bool:
        """Fill spans, each of one chunk; whether one of their chunks is not stored.

        Raises:
            OSError: If a file can not be read.
            DamageError: If a chunk is damaged.
        """
        missed = False
        for at in range(0, len(spans), self.at_once):
            group = spans[at : at + self.at_once]
            chunks = np.array([span.first for span in group]) // self._rows
            blocks, missing = self._decoded(chunks)
            missed |= missing
            for span, block, chunk in zip(group, blocks, chunks.tolist(), strict=True):
                begin = chunk * self._rows
                span.out[...] = block[span.first - begin : span.stop - begin]
        return missed

    def rounds(self, rows: IntArray) -> list[IntArray]:
        """Which of `rows` to `take` together, by chunk, so that each chunk is decoded once."""
        order = np.argsort(rows, kind="stable")
        begins = np.flatnonzero(_is_new(rows[order] // self._rows))
        found: list[IntArray] = np.split(order, begins[self.at_once :: self.at_once])
        return found

    def take(self, rows: IntArray) -> tuple[AnyArray, bool]:
        """Rows `(n, ...)`, those of one chunk one after the other; and whether one is not stored.

        Raises:
            OSError: If a file can not be read.
            DamageError: If a chunk is damaged.
        """
        chunks, within = np.divmod(rows, self._rows)
        new = _is_new(chunks)
        blocks, missing = self._decoded(chunks[new])
        return blocks[np.cumsum(new) - 1, within], missing

    def _decoded(self, chunks: IntArray) -> tuple[AnyArray, bool]:
        """Values `(chunks, rows of each, ...)`, and whether a chunk is not stored."""
        plain = self._plain
        found, missing = self._chunks.fetch(chunks, 0, whole=True)
        if plain.dtype == np.bool_:
            refuse_bools(found)
        values: AnyArray = found.view(plain.stored_dtype)
        values = values.reshape(len(chunks), *plain.stored_shape).transpose(self._order)
        return values[self._inside], missing


def _is_new(chunks: IntArray) -> npt.NDArray[np.bool_]:
    """Whether each is another one than that before it."""
    new = np.ones(len(chunks), np.bool_)
    new[1:] = chunks[1:] != chunks[:-1]
    return new
