"""A plain array as it is stored: where its chunks lie, and what TensorStore says of those that fail.

Invariant: `SecondLook` fills all of the requested memory or has a `ReadError`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from windrow.core import buffer_pool
from windrow.core.threads import InlineExecutor
from windrow.errors import ReadError, SourceError
from windrow.sources.base import IntArray
from windrow.sources.chunks import AnyArray, Box
from windrow.sources.zarr.box_readers import StoreBoxReader
from windrow.sources.zarr.local.metadata import (
    PlainArray,
    damaged,
    held_cells,
    held_records,
)
from windrow.sources.zarr.local.native_chunks import (
    NativeChunks,
)
from windrow.sources.zarr.store_array import StoreArray, store_array
from windrow.sources.zarr.tensorstore import StoreReader

Cells = tuple[int, ...]
_ENTRY_BYTES: Final = 16
_CHECKSUM_BYTES: Final = 4
_SLACK_BYTES: Final = 2**20
_WRONG_SIZE: Final = "it has {:,} bytes, and a chunk must have {:,}"
_WRONG_SIZE_OF_ROWS: Final = "it has {:,} bytes, not the {:,} of a chunk"


class PlainStore:
    """A plain array, and the same array in TensorStore once it is needed. Thread-safe."""

    def __init__(self, plain: PlainArray, opened: Callable[[], Any]) -> None:
        """Open nothing yet; `opened` returns the open store, or the SourceError if that fails."""
        self.plain = plain
        self._opened = opened
        self._array: StoreArray | None = None
        self._lock = threading.Lock()
        self._object_bytes: int | None = None

    def array(self) -> StoreArray | None:
        """The array in TensorStore; None if TensorStore cannot open it.

        Raises:
            ReadError: If the array is gone.
        """
        plain = self.plain
        with self._lock:
            if self._array is None:
                plain.presence.refuse_gone(plain.folder)
                store = self._opened()
                if isinstance(store, SourceError):
                    return None
                array = store_array(store, plain.name, plain.folder)
                one = math.prod(plain.grid[1:]) == 1
                self._array = dataclasses.replace(
                    array, presence=plain.presence, offset_of=self._offset_of_row if one else None
                )
            return self._array

    def must_open(self) -> StoreArray:
        """The array in TensorStore.

        Raises:
            ReadError: If the array is gone, or TensorStore cannot open it.
        """
        array = self.array()
        if array is None:
            raise ReadError(f"the array in {self.plain.folder} cannot be opened by TensorStore")
        return array

    def boxes(self, array: StoreArray) -> StoreBoxReader:
        """A reader of boxes through TensorStore, in the chunks of the plain array."""
        return StoreBoxReader(array, box_chunk(self.plain), (0,) * len(self.plain.shape))

    def stored_bytes(self, chunks: int, *, single: bool = False) -> int:
        """Bytes of some chunks in storage, estimated from the first stored object.

        Args:
            chunks: Their number.
            single: Whether to round down, as for chunks of single records.
        """
        if self._object_bytes is None:
            try:
                self._object_bytes = os.stat(self.file((0,) * len(self.plain.shape))).st_size
            except OSError:
                self._object_bytes = self.plain.chunk_bytes * math.prod(self.plain.shard_grid)
        per_object = math.prod(self.plain.shard_grid)
        up = 0 if single else per_object - 1
        return (self._object_bytes * chunks + up) // per_object

    def file(self, at: Cells) -> str:
        """Path of the stored object that the chunk at coordinates `at` belongs in."""
        sizes = zip(at, self.plain.shard_grid, strict=True)
        return os.path.join(self.plain.folder, self.plain.key([k // n for k, n in sizes]))

    def size(self, at: Cells) -> tuple[int, int] | None:
        """Bytes of the file of a chunk and the bytes that it must have; None if it may have any size."""
        plain = self.plain
        if plain.shard_shape is not None or any(codec.name != "crc32c" for codec in plain.codecs):
            return None
        try:
            found = os.stat(self.file(at))
        except OSError:
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return found.st_size, plain.chunk_bytes + _CHECKSUM_BYTES * len(plain.codecs)

    def _offset_of_row(self, row: int) -> int | None:
        return self.offset((row // self.plain.chunk_shape[0], *(0 for _ in self.plain.shape[1:])))

    def offset(self, at: Cells) -> int | None:
        """The byte of its file at which a chunk begins; None if the index of its shard has none."""
        if self.plain.shard_shape is None:
            return 0 if os.path.isfile(self.file(at)) else None
        place = self._place(at)
        return None if place is None else place[0]

    def obstacle(self, at: Cells) -> str | None:
        """Why TensorStore must not read a chunk; None if it may, or if nothing is stored.

        To TensorStore a folder is a chunk that is not stored. It opens a pipe and waits for ever, and
        ends the process where it has no memory for as many bytes as a file has.
        """
        try:
            found = os.stat(self.file(at))
        except OSError:
            return None
        if not stat.S_ISREG(found.st_mode):
            return "it is not a regular file"
        most = 4 * self.plain.chunk_bytes + _SLACK_BYTES
        place = self._place(at) if found.st_size > most else None
        # TensorStore refuses what would lie past the end of the file.
        if place is None or place[1] <= most or sum(place) > found.st_size:
            return None
        return f"it has {place[1]} bytes, far more than a chunk can have"

    def refuse(self, coords: Iterable[Cells], *, cells: bool = False) -> None:
        """Refuse chunks that TensorStore must not read; `cells` as for `damaged`. Raises ReadError."""
        for at in coords:
            why = self.obstacle(at)
            if why is not None:
                raise self.damaged(at, why, cells=cells)

    def damaged(self, at: Cells, why: str, *, cells: bool, offset: int | None = None) -> ReadError:
        """The error for a chunk at coordinates `at`, which names its records, or its cells.

        Its `offset` is found if it is not given.
        """
        plain, file = self.plain, self.file(at)
        sizes = zip(at, plain.chunk_shape, plain.shape, strict=True)
        spans = [(k * c, min((k + 1) * c, n)) for k, c, n in sizes]
        return damaged(
            plain.name,
            plain.folder,
            held_cells(spans) if cells else held_records(*spans[0]),
            f"{file}: {why}",
            file=file,
            offset=self.offset(at) if offset is None else offset,
            records=None if cells else spans[0],
        )

    def _place(self, at: Cells) -> tuple[int, int] | None:
        """Offset and stored bytes of a chunk, as its file or the index of its shard has them."""
        plain = self.plain
        if not os.path.isfile(self.file(at)):  # to open a pipe would wait for ever
            return None
        within = 0
        for k, count in zip(at, plain.shard_grid, strict=True):
            within = within * count + k % count
        length = _ENTRY_BYTES * math.prod(plain.shard_grid)
        length += _CHECKSUM_BYTES if plain.index_codecs else 0
        try:
            with open(self.file(at), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if plain.shard_shape is None:
                    return 0, size
                begin = 0 if plain.index_location == "start" else size - length
                file.seek(max(0, begin) + _ENTRY_BYTES * within)
                offset, stored = (int.from_bytes(file.read(8), "little") for _ in range(2))
        except OSError:
            return None
        return (offset, stored) if offset <= size else None


class SecondLook:
    """Reads again what the core refused; TensorStore says what is wrong with what it refuses twice."""

    def __init__(self, store: PlainStore, chunks: NativeChunks) -> None:
        """Read the array of `store`, whose `chunks` the core reads."""
        self._store, self._plain, self._chunks = store, store.plain, chunks

    def rows(self, rows: IntArray) -> AnyArray:
        """Rows `(n, ...)` of one row of chunks, in new memory. Waits; raises ReadError."""
        plain = self._plain
        first = int(rows[0]) // plain.chunk_shape[0]
        coords = itertools.product((first,), *map(range, plain.grid[1:]))
        self.refuse(coords, wrong_size=_WRONG_SIZE_OF_ROWS)
        found = np.empty((len(rows), *plain.shape[1:]), plain.dtype)
        if self._chunks.gather(rows, 1, found)[0]:
            raise self._changing(held_records(int(rows.min()), int(rows.max()) + 1))
        return found

    def boxes(self, boxes: Sequence[Box]) -> None:
        """Fill boxes. Waits; raises ReadError."""
        self.refuse(chunks_of_boxes(self._plain, boxes), cells=True)
        if self._chunks.read_boxes(boxes)[0]:
            raise self._changing("some cells")

    def refuse(
        self, coords: Iterable[Cells], *, cells: bool = False, wrong_size: str = _WRONG_SIZE
    ) -> None:
        """Read chunks again.

        Args:
            coords: Coordinates of the chunks.
            cells: Whether the message names cells instead of records.
            wrong_size: The reason for a file of another size than a chunk has.

        Raises:
            ReadError: If the core refuses one of them: TensorStore's error, or with the core's reason
                if TensorStore accepts the chunk, cannot open the array or must not read so much.
        """
        for at in coords:
            found, wanted = self._store.size(at) or (0, 0)
            if found != wanted:
                why = wrong_size.format(found, wanted)
                raise self._store.damaged(at, why, cells=cells, offset=0)
            box = whole_chunk(self._plain, at)
            failures, missing = self._chunks.read_boxes([box])
            if failures:
                if self._store.obstacle(at) is None:
                    self._ask_store(at, box, cells=cells)
                raise self._store.damaged(at, failures[0], cells=cells)
            check_presence(self._plain, missing)

    def _ask_store(self, at: Cells, box: Box, *, cells: bool) -> None:
        array = self._store.array()
        if array is not None and cells:
            self._store.boxes(array).start([box], InlineExecutor()).result()
        elif array is not None:
            number = int(np.ravel_multi_index(at, self._plain.grid))
            StoreReader(array).checks().check(number)

    def _changing(self, held: str) -> ReadError:
        plain = self._plain
        return damaged(plain.name, plain.folder, held, "it changes while it is read")


def box_chunk(plain: PlainArray) -> Cells:
    """The shape of the chunks that boxes are read in."""
    sizes = zip(plain.chunk_shape, plain.shape, strict=True)
    return tuple(max(1, min(c, n)) for c, n in sizes)


def chunks_of_rows(plain: PlainArray, rows: IntArray) -> Iterator[Cells]:
    """The coordinates of the chunks that hold rows."""
    first = np.unique(rows // plain.chunk_shape[0]).tolist()
    return itertools.product(first, *map(range, plain.grid[1:]))


def chunks_of_boxes(plain: PlainArray, boxes: Iterable[Box]) -> list[Cells]:
    """The coordinates of the chunks that hold boxes, each in one chunk."""
    sizes = plain.chunk_shape
    return list(dict.fromkeys(tuple(map(int.__floordiv__, box.first, sizes)) for box in boxes))


def whole_chunk(plain: PlainArray, at: Cells) -> Box:
    """A request to read all cells of the array in the chunk at coordinates `at`, to new memory."""
    first = tuple(k * c for k, c in zip(at, plain.chunk_shape, strict=True))
    sizes = zip(first, plain.chunk_shape, plain.shape, strict=True)
    return Box(first, buffer_pool.empty(tuple(min(c, n - f) for f, c, n in sizes), plain.dtype))


def check_presence(plain: PlainArray, missing: bool) -> None:
    """Check that the array is still there; `missing` says that some chunk was not stored.

    Raises:
        ReadError: If it is gone.
    """
    # Shards stay open, and can still be read after the array was replaced.
    if missing or plain.shard_shape is not None:
        plain.presence.refuse_gone(plain.folder)
