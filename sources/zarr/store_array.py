"""Arrays that TensorStore reads: opens them; their layout, single reads of them, and their errors.

Invariant: an error of a read names the rows that are lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import tensorstore as ts

from windrow.errors import ReadError, SourceError
from windrow.sources.base import IntArray
from windrow.sources.zarr.chunkwise import PrecomputedChunks
from windrow.sources.zarr.error_text import (
    damaged,
    file_in,
    held_records,
    reason,
    unreachable,
)
from windrow.sources.zarr.names import Found
from windrow.sources.zarr.objects import HeldArray
from windrow.sources.zarr.presence import presence_of, refuse_misplaced, spec_of
from windrow.sources.zarr.remote import RemoteArray
from windrow.sources.zarr.remote_reads import kind_of
from windrow.sources.zarr.stores import bare
from windrow.sources.zarr.urls import is_remote_spec

# The size of one read of an array whose chunks are unknown.
_UNKNOWN_BYTES: Final = 2**20
_NOT_NUMBERS: Final = ("char", "byte", "string", "ustring", "json")
_STRING_DTYPE: Final = r"r\d+|[|<>]?[SUVO]\d*"


class StoreArray:
    """An array that TensorStore reads; `chunk_rows` is 0 if its chunks are unknown."""

    def __init__(
        self, store: Any, name: str, where: str, remote: RemoteArray | None = None
    ) -> None:
        """Describe an open store, whose domain may begin anywhere.

        Args:
            store: The open store.
            name: Name of the array in the source.
            where: Its place, for messages.
            remote: Reads it, if that needs a network.
        """
        chunk, origins = store.chunk_layout.read_chunk.shape, store.chunk_layout.grid_origin
        known = bool(chunk) and chunk[0] is not None and bool(origins) and origins[0] is not None
        self.store, self.name, self.where, self.remote = store, name, where, remote
        self.shape: tuple[int, ...] = tuple(map(int, store.shape))
        self.dtype: np.dtype[Any] = np.dtype(store.dtype.numpy_dtype)
        self.origins: tuple[int, ...] = tuple(map(int, store.domain.inclusive_min))
        """The first cell of its domain."""
        self.chunk_rows = int(chunk[0]) if known else 0
        self.chunk_origin = int(origins[0]) if known else 0
        self.presence = presence_of(store, self.dtype)
        self.holds: Callable[[tuple[int, ...]], bool] | None = None
        """Says whether the chunk at some coordinates is stored, where TensorStore does not."""

    @property
    def origin(self) -> int:
        """The first row of its domain."""
        return self.origins[0]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.shape[1:]

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
    def shift(self) -> int:
        """Rows of the first chunk that lie before row 0."""
        return (self.origin - self.chunk_origin) % self.chunk_rows if self.chunk_rows else 0

    def cells(self, first: Sequence[int], stop: Sequence[int]) -> Any:
        """A view of the store on the cells `[first, stop)`, which count from 0 along each axis."""
        axes = zip(self.origins, first, stop, strict=True)
        return self.store[tuple(slice(o + a, o + b) for o, a, b in axes)]

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


def refused_rows(array: StoreArray, records: tuple[int, int], error: BaseException) -> ReadError:
    """The error of a read of rows, from the error of TensorStore."""
    return refused_chunk(array, held_records(*records), error, records)


def refused_chunk(
    array: StoreArray,
    held: str,
    error: BaseException,
    records: tuple[int, int] | None = None,
) -> ReadError:
    """The error of a read of a chunk, from the error of TensorStore; arguments as for `damaged`."""
    why = array.reason(error)
    if array.remote is not None and kind_of(error) != "other":
        return unreachable(array.name, array.where, held, why, records)
    return damaged(array.name, array.where, held, why, file=file_in(error), records=records)


# --- opening -------------------------------------------------------------------------------------


@bare
def open_each(found: list[Found], *, refuse: bool = False) -> list[Any]:
    """The open stores, opened concurrently; a SourceError in place of one that cannot be opened.

    Args:
        found: The arrays.
        refuse: Whether to raise the first of these errors instead.

    Raises:
        SourceError: If a dtype is not supported, or a spec cannot be used.
        NotFoundError: If there is nothing at a URL.
    """
    for item in found:
        meta = item.metadata or {}
        dtype = meta.get("dtype", meta.get("data_type"))
        if isinstance(dtype, str) and re.fullmatch(_STRING_DTYPE, dtype):
            # Refuse these before opening: TensorStore aborts the process on some of them.
            raise item.unread(f"dtype {dtype!r}")
    futures = [_open(item) for item in found]
    stores = []
    for item, future in zip(found, futures, strict=True):
        try:
            stores.append(_opened(item, future))
        except SourceError as error:
            bare_n5 = item.without_attributes()
            if bare_n5 is not None:
                with contextlib.suppress(SourceError):
                    stores.append(_opened(item, _open(bare_n5, assumed=True)))
                    continue
            if refuse:
                raise
            stores.append(error)
    return stores


def _open(item: Found, assumed: bool | None = None) -> Any:
    """The open store, or a future of it; `assumed` says that the spec has the metadata."""
    if isinstance(item.spec, ts.TensorStore):
        return item.spec
    if isinstance(item.spec, HeldArray):
        return item.spec.open(item)
    if isinstance(item.spec, dict):
        try:
            ts.Spec(item.spec)
        except (ValueError, TypeError) as error:
            why, cause = item.reason(error)
            raise SourceError(
                f"{item.what}: the spec of array {item.name!r} cannot be used: {why}"
            ) from cause
    access = item.access
    if access is None:
        return ts.open(item.spec, open=True, read=True, assume_metadata=assumed)
    return access.in_flight.start(
        lambda: ts.open(
            item.spec, open=True, read=True, context=access.context, assume_metadata=assumed
        ),
    )


def _opened(item: Found, future: Any) -> Any:
    named = item.named
    try:
        store = future if isinstance(future, ts.TensorStore) else future.result()
    except (ValueError, RuntimeError, OSError) as error:
        why, cause = item.reason(error)
        if "NOT_FOUND" in why or "Failed to detect format" in why:
            raise item.gone(why) from cause
        if fields := re.search(r'Must specify a "field" that is one of: \[(.*)\]', why):
            names = fields[1].replace('"', "").replace(",", ", ")
            raise SourceError(
                f"{item.what}: records of {named} in {item.where} have the fields {names}, and such"
                " arrays are not read: write each field to an array of its own; or give one field by"
                ' a spec of TensorStore: {"driver": ..., "kvstore": ..., "field": "..."}'
            ) from cause
        raise SourceError(
            f"{item.what}: {named} in {item.where} cannot be opened: {why}. If its dtype or"
            " codec is the reason, write the array with another one, or choose other arrays of a"
            " group: names=['image', ...]"
        ) from cause
    if store.dtype.name in _NOT_NUMBERS:
        raise item.unread(f"dtype {store.dtype.name!r}")
    if store.rank == 0:
        raise SourceError(
            f"{item.what}: {named} in {item.where} has shape (), and the first axis counts records;"
            " in a group, choose the arrays to read: names=['image', ...]"
        )
    if not store.readable:
        raise SourceError(
            f"{item.what}: {named} was opened for writing only; open it with read=True"
        )
    shape = item.agreed_shape(spec_of(store).get("metadata", {})) if item.listing else None
    if shape is not None and shape != tuple(store.shape):  # without the cells that were not shown
        store = store[tuple(slice(0, size) for size in shape)]
    layout, unknown = store.chunk_layout, (None,) * store.rank
    chunk = tuple(layout.read_chunk.shape or unknown)
    shard = tuple(layout.write_chunk.shape or unknown)
    item.refuse_absurd(store.shape, chunk, store.dtype.numpy_dtype.itemsize, shard)
    return store


def with_remotes(
    found: Sequence[Found], stores: Sequence[Any]
) -> list[tuple[Any, RemoteArray | None]]:
    """The stores, with a `RemoteArray` for remote ones, whose metadata are read concurrently."""
    pairs: list[tuple[Any, RemoteArray | None]] = []
    for item, store in zip(found, stores, strict=True):
        # The spec of an array in memory has all its values.
        held = isinstance(item.spec, HeldArray)
        is_remote = (
            not held and isinstance(store, ts.TensorStore) and is_remote_spec(spec_of(store))
        )
        access = item.access if is_remote else None
        pairs.append((store, RemoteArray(access, store, item.where) if access else None))
    for item, (_, remote) in zip(found, pairs, strict=True):
        try:
            if remote is not None:
                remote.wait()
        except (ValueError, RuntimeError, OSError) as error:
            why, _ = item.reason(error)
            raise SourceError(
                f"{item.what}: the metadata of {item.named} in {item.where} cannot be read: {why}"
            ) from None
    return pairs


def refuse_misplaced_store(found: Found, store: Any) -> None:
    """As `refuse_misplaced`, of an array that was given as a spec or an open TensorStore.

    Raises:
        SourceError: If files lie in a local folder, and no chunk where the metadata say; or if chunk files
            of a precomputed volume were compressed once more.
    """
    if found.folder is not None or found.is_n5 or found.is_precomputed:
        return
    spec = spec_of(store)
    while isinstance(spec.get("base"), dict):  # such as a cast
        spec = spec["base"]
    kvstore, metadata = spec.get("kvstore"), spec.get("metadata") or {}
    is_local = isinstance(kvstore, dict) and kvstore.get("driver") == "file"
    own = dataclasses.replace(found, spec=spec, metadata=metadata)
    if is_local:
        own = dataclasses.replace(own, access=None)
    match spec.get("driver"):
        case "zarr" | "zarr3" if is_local:
            folder = spec["kvstore"]["path"].rstrip("/")
            refuse_misplaced(dataclasses.replace(own, folder=folder, shape=metadata["shape"]))
        case "n5" if is_local:
            shape = metadata["dimensions"]
            refuse_misplaced(dataclasses.replace(own, attributes=metadata, shape=shape))
        case "neuroglancer_precomputed" if is_local or isinstance(found.spec, dict):
            _refuse_compressed(dataclasses.replace(own, attributes=spec["scale_metadata"]), spec)


def _refuse_compressed(found: Found, spec: dict[str, Any]) -> None:
    """Check that no chunk file of a volume was compressed once more, which TensorStore does not find."""
    # A view of the volume has no chunks of its own.
    whole = {key: spec[key] for key in ("driver", "kvstore", "scale_index")}
    (volume,) = open_each([dataclasses.replace(found, spec=whole)], refuse=True)
    if ending := PrecomputedChunks(found, volume).ending():
        raise SourceError(
            f"{found.what}: chunk files of the volume in {found.where} end in {ending}; TensorStore does not"
            " find them, and would give 0 for their cells. Give the path or URL of the volume, by which they"
            " are read, or decompress them"
        )
