"""An array that TensorStore reads: its layout, single reads of it, and their errors.

Invariant: an error of a read names the rows that are lost.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from windrow.errors import ReadError
from windrow.sources.base import IntArray
from windrow.sources.zarr.error_text import file_in, is_about_index, reason
from windrow.sources.zarr.in_flight import kind_of
from windrow.sources.zarr.local.metadata import damaged, held_records
from windrow.sources.zarr.local.presence import PresenceCheck, presence_of
from windrow.sources.zarr.remote import RemoteArray, unreachable

# The size of one read of an array whose chunks are unknown.
_UNKNOWN_BYTES: Final = 2**20


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StoreArray:
    """An array that TensorStore reads; `chunk_rows` is 0 if its chunks are unknown.

    `offset_of` gives the byte of its file at which the chunk of a row begins, where that is known. `holds`
    says whether the chunk at some coordinates is stored, where TensorStore does not.
    """

    store: Any = dataclasses.field(repr=False)  # its spec may hold credentials
    name: str
    where: str
    length: int
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    origins: tuple[int, ...]  # the first cell of its domain
    chunk_rows: int
    chunk_origin: int
    presence: PresenceCheck | None
    remote: RemoteArray | None = None  # set if reads wait for a network
    offset_of: Callable[[int], int | None] | None = None
    holds: Callable[[tuple[int, ...]], bool] | None = None

    @property
    def origin(self) -> int:
        """The first row of its domain."""
        return self.origins[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return (self.length, *self.row_shape)

    @property
    def is_remote_source(self) -> bool:
        """Whether it is read over a network."""
        return self.remote is not None

    @property
    def fill_value(self) -> Any:
        """The value of cells that are not stored; None if it is unknown."""
        return self.store.fill_value

    @property
    def knows_chunks(self) -> bool:
        """Whether its chunks are known along all axes, so that a failed read says which are lost."""
        layout = self.store.chunk_layout
        known = (*(layout.read_chunk.shape or (None,)), *(layout.grid_origin or (None,)))
        return None not in known

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in memory."""
        return int(np.prod(self.row_shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def read_rows(self) -> int:
        """Rows that one read takes."""
        return self.chunk_rows or max(1, _UNKNOWN_BYTES // max(1, self.row_bytes))

    @property
    def object_rows(self) -> int:
        """Rows of one stored object, which is a shard or a chunk; 0 if that is unknown."""
        whole = self.store.chunk_layout.write_chunk.shape if self.chunk_rows else None
        return int(whole[0]) if whole and whole[0] is not None else 0

    @property
    def shift(self) -> int:
        """Rows of the first chunk that lie before row 0."""
        return (self.origin - self.chunk_origin) % self.chunk_rows if self.chunk_rows else 0

    def cells(self, first: Sequence[int], stop: Sequence[int]) -> Any:
        """A view of the store on the cells `[first, stop)`, which count from 0 along each axis."""
        axes = zip(self.origins, first, stop, strict=True)
        return self.store[tuple(slice(o + a, o + b) for o, a, b in axes)]

    def start(self, rows: slice | IntArray) -> Any:
        """Start reading `rows`, counted from 0, of a remote array a slice; a future of an array."""
        if isinstance(rows, slice):
            cells = self.store[self.origin + rows.start : self.origin + rows.stop]
            return self.begin(cells, (rows.start, rows.stop))
        return self.store.oindex[rows + self.origin].read()

    def begin(self, cells: Any, records: tuple[int, int]) -> Any:
        """Start reading a view of the store; a future of an array, in memory of its own.

        Args:
            cells: The view.
            records: The rows `[first, stop)` that it lies in, for an error.
        """
        if self.remote is None:
            return cells.read()
        return self.remote.start(cells, functools.partial(refused_rows, self, records))

    def reason(self, error: BaseException) -> str:
        """The reason of an error, for people."""
        return reason(error) if self.remote is None else self.remote.access.reason(error)

    def chunk_of(self, rows: IntArray) -> IntArray:
        """Number of the chunk that holds each row; the row itself if chunks are unknown."""
        chunk: IntArray = (rows + self.origin - self.chunk_origin) // max(1, self.chunk_rows)
        return chunk


def store_array(store: Any, name: str, where: str, remote: RemoteArray | None = None) -> StoreArray:
    """An open `store` as an array; its domain may begin anywhere.

    Args:
        store: The open store.
        name: Name of the array in the source.
        where: Its place, for messages.
        remote: Reads it, if that needs a network.
    """
    shape = tuple(int(n) for n in store.shape)
    chunk = store.chunk_layout.read_chunk.shape
    origins = store.chunk_layout.grid_origin
    dtype = np.dtype(store.dtype.numpy_dtype)
    known = bool(chunk) and chunk[0] is not None and bool(origins) and origins[0] is not None
    return StoreArray(
        store=store,
        name=name,
        where=where,
        length=shape[0],
        row_shape=shape[1:],
        dtype=dtype,
        origins=tuple(map(int, store.domain.inclusive_min)),
        chunk_rows=int(chunk[0]) if known else 0,
        chunk_origin=int(origins[0]) if known else 0,
        presence=presence_of(store, dtype),
        remote=remote,
    )


def refused_rows(array: StoreArray, records: tuple[int, int], error: BaseException) -> ReadError:
    """The error of a read of rows, from the error of TensorStore."""
    asked, records = records, _lost_records(array, records, error)
    held, file = held_records(*records), file_in(error)
    why = array.reason(error)
    if array.remote is not None and kind_of(error) != "other":
        return unreachable(array.name, array.where, held, why, records)
    offset = None
    if array.offset_of is not None and file is not None and records == asked:
        offset = array.offset_of(records[0])
    return damaged(array.name, array.where, held, why, file=file, offset=offset, records=records)


def chunk_of_row(array: StoreArray, row: int) -> tuple[int, int]:
    """The rows `[first, stop)` of the chunk that holds `row`."""
    return _block_of(array, row, array.chunk_rows) if array.chunk_rows else (row, row + 1)


def _lost_records(
    array: StoreArray, records: tuple[int, int], error: BaseException
) -> tuple[int, int]:
    """The rows that an error is about: `records`, or with a damaged index all of the shard."""
    is_known = array.remote is None and array.object_rows > array.chunk_rows
    if not is_known or not is_about_index(error):
        return records
    return _block_of(array, records[0], array.object_rows)


def _block_of(array: StoreArray, row: int, size: int) -> tuple[int, int]:
    """The rows `[first, stop)` of the block of `size` rows of storage that holds `row`."""
    block = (row + array.origin - array.chunk_origin) // size
    first = block * size + array.chunk_origin - array.origin
    return max(first, 0), min(first + size, array.length)
