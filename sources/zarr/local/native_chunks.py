"""Chunks of plain arrays, read and decoded by the native core without the interpreter's lock.

The core reads what is well-formed. What it refuses the caller reads again by another library, whose
error names file and records.

Invariant: a read fills all of the requested memory or has an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from windrow.core.native import buffer_of, native
from windrow.core.native_read import NativeRead
from windrow.sources.base import AnyArray, IntArray
from windrow.sources.chunks import Box, Scattered, Span
from windrow.sources.zarr.local.metadata import PlainLayout

Failures: TypeAlias = list[int]
# The stored bytes of a chunk; None if it is not stored.
StoredChunk: TypeAlias = bytes | None


def native_read(
    reading: Any, finish: Callable[[Failures, bool], None], *, inline: bool = False
) -> NativeRead[None]:
    """Wait for `reading`; then call `finish` with the failed items and whether one is missing.

    With `inline` this thread reads, now.
    """

    def end() -> None:
        finish(sorted({item for item, _ in reading.failures()}), reading.missing())

    return NativeRead(reading, end, inline=inline)


class NativeChunks:
    """The chunks of a plain array, by the core."""

    def __init__(self, plain: PlainLayout, core: Any, folder: str | None) -> None:
        """Open nothing yet. Without a folder each read is given the stored bytes."""
        number_bytes = plain.dtype.itemsize // (2 if plain.dtype.kind == "c" else 1)
        swaps = plain.stored_dtype != plain.dtype
        indexed = plain.index_location == "start", bool(plain.index_codecs)
        self._core = core
        self._array = core.ZarrArray(
            base=None if folder is None else os.fsencode(os.path.join(folder, plain.prefix)),
            separator=ord(plain.separator),
            shape=plain.shape,
            chunk=plain.chunk_shape,
            axes=plain.axes,
            per_object=plain.shard_grid,
            index=indexed if plain.shard_shape is not None else None,
            codecs=[codec.name for codec in plain.codecs],
            itemsize=plain.dtype.itemsize,
            swap=number_bytes if swaps else 1,
            bools=plain.dtype == np.bool_,
            fill=np.asarray(plain.fill, plain.dtype).tobytes(),
        )

    def start(
        self,
        wanted: Sequence[Span | Scattered],
        stored: Mapping[int, StoredChunk] | None = None,
        *,
        inline: bool = False,
    ) -> Any:
        """Start reading rows, each span in one row of chunks.

        Args:
            wanted: The rows.
            stored: Their chunks by number, in C order; None if they lie in the folder.
            inline: Whether the thread that waits reads them.
        """
        items = [
            (item.first, item.stop, buffer_of(item.out))
            if isinstance(item, Span)
            else (item.chunk, item.outputs)
            for item in wanted
        ]
        return self._array.start(items, stored=stored, inline=inline)

    def output(self, out: AnyArray, *where: Any) -> Any:
        """As for `ScatterReader.output`."""
        return self._core.Batch(buffer_of(out), *where)

    def start_boxes(
        self,
        boxes: Sequence[Box | Scattered],
        stored: Mapping[int, StoredChunk] | None = None,
        *,
        inline: bool = False,
    ) -> Any:
        """As `start`, of boxes, each in one chunk; neighbours in the list share its decoding."""
        wanted = [
            (box.first, buffer_of(box.out)) if isinstance(box, Box) else (box.chunk, box.outputs)
            for box in boxes
        ]
        return self._array.start_boxes(wanted, stored=stored, inline=inline)

    def output_of_boxes(
        self, out: Sequence[AnyArray], chunks: int, which: IntArray, *columns: IntArray
    ) -> Any:
        """As for `BoxScatterReader.output`."""
        return self._core.Boxes([buffer_of(field) for field in out], *columns, which, chunks)

    def read_boxes(self, boxes: Sequence[Box]) -> tuple[list[str], bool]:
        """Read boxes, each in one chunk. Waits.

        Returns why chunks could not be read, and whether some chunk is not stored.
        """
        reading = self.start_boxes(boxes, inline=len(boxes) == 1)
        reading.wait(help=True)
        return [why for _, why in reading.failures()], reading.missing()

    def gather(self, first: IntArray, size: int, out: AnyArray) -> tuple[Failures, bool]:
        """Read rows `[first[k], first[k] + size)` into `out`, one after the other, each chunk once.

        Returns which of the rows of chunks, ascending, could not be read, and whether some chunk is not
        stored.
        """
        reading = self._array.start_gather(
            np.ascontiguousarray(first, np.int64), size, buffer_of(out)
        )
        reading.wait(help=True)
        return sorted({item for item, _ in reading.failures()}), reading.missing()


def native_chunks(plain: PlainLayout, folder: str | None = None) -> NativeChunks | None:
    """The chunks of an array by the core; None without the core, or if it cannot read the array.

    Args:
        plain: How they are stored.
        folder: Where they are; None if each read is given the stored bytes.
    """
    core = native()
    if core is None or not plain.dtype.itemsize:
        return None
    try:
        return NativeChunks(plain, core, folder)
    except (ValueError, OverflowError):
        return None
