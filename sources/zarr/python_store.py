"""The store of zarr-python over the objects of one array. For reading only.

The module needs zarr-python, so it is imported only for arrays that need it.

Invariants: zarr-python gets the very metadata that were checked, from memory. Nothing is written or
listed.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np

from windrow.core.threads import DaemonPool
from windrow.errors import missing_extra
from windrow.sources.base import AnyArray
from windrow.sources.zarr.codecs import ChunkDamageError
from windrow.sources.zarr.folders import StoredObjects
from windrow.sources.zarr.remote_folders import is_metadata

try:
    import zarr
    from zarr.abc.store import (
        ByteRequest,
        OffsetByteRequest,
        RangeByteRequest,
        Store,
        SuffixByteRequest,
    )
    from zarr.core.buffer import Buffer, BufferPrototype
except ImportError as error:
    raise missing_extra("windrow.sources.zarr.python_store", "zarr") from error

# The entry in a shard's index for a chunk that is not stored.
_NOT_STORED: Final = b"\xff" * 16


class CheckedStore(Store):
    """The objects of one array, with its checked metadata. Pickle the array's place instead."""

    def __init__(
        self,
        objects: StoredObjects,
        metadata: Mapping[str, bytes],
        measure: Callable[[bytes], None] | None = None,
    ) -> None:
        """A store over the objects of one array.

        Args:
            objects: The objects.
            metadata: The contents of metadata files; other metadata files count as absent.
            measure: Raises for a stored chunk that must not be decoded.
        """
        super().__init__(read_only=True)
        self._measure, self._per_shard, self._at_end, self._after = measure, 0, True, 0
        self._objects, self._metadata = objects, dict(metadata)
        self._threads = DaemonPool(None, "windrow-files")

    def sharded(self, per_shard: int, *, at_end: bool, checksum: bool) -> None:
        """Declare that objects hold `per_shard` chunks, with an index at their end or start."""
        self._per_shard, self._at_end, self._after = per_shard, at_end, 4 if checksum else 0

    def file(self, key: str) -> str | None:
        """The local file of `key`; None if it is remote."""
        return self._objects.file(key)

    def holds(self, key: str, number: int) -> bool:
        """Whether chunk `number` of the object at `key` is stored, by the shard's index. Waits.

        Args:
            key: The object; if it is not a shard, its only chunk is 0.
            number: Number of the chunk in the shard, in C order.

        Raises:
            ChunkDamageError: If the object is too short for its index.
            OSError, RuntimeError, ValueError: If it cannot be read.
        """
        if not self._per_shard:
            return self._objects.tail(key, 1) is not None
        size = 16 * self._per_shard
        if self._at_end:
            size += self._after
            index = self._objects.tail(key, size)
        else:
            index = self._objects.part(key, 0, size)
        if index is None:
            return False
        if len(index) < size:
            raise ChunkDamageError(f"it has {len(index):,} bytes, too few for the index of a shard")
        return index[16 * number : 16 * number + 16] != _NOT_STORED

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = Store.__hash__

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """The value at `key`, or a part of it; None if the object is absent."""
        if key in self._metadata or is_metadata(key):
            data = self._metadata.get(key)
        else:
            data = await self._threads.call(self._read_measured, key, byte_range)
        return prototype.buffer.from_bytes(data) if data is not None else None

    def _read_measured(self, key: str, byte_range: ByteRequest | None) -> bytes | None:
        data = self._read(key, byte_range)
        if data is not None:
            self._check(data, byte_range)
        return data

    def _read(self, key: str, byte_range: ByteRequest | None) -> bytes | None:
        match byte_range:
            case None:
                return self._objects.whole(key)
            case RangeByteRequest(start, end):
                return self._objects.part(key, start, end)
            case OffsetByteRequest(offset):
                return self._objects.part(key, offset, None)
            case SuffixByteRequest(suffix):
                return self._objects.tail(key, suffix)

    def _check(self, data: bytes, byte_range: ByteRequest | None) -> None:
        """Measure the chunks in `data`, which is a chunk or a whole shard."""
        if self._measure is None:
            return
        if not self._per_shard or byte_range is not None:
            self._measure(data)
            return
        size = 16 * self._per_shard
        # A checksum of 4 bytes may follow the index.
        for begin in (len(data) - size - 4, len(data) - size) if self._at_end else (0,):
            index = data[begin : begin + size] if begin >= 0 else b""
            for offset, count in struct.iter_unpack("<QQ", index[: len(index) // 16 * 16]):
                if offset < len(data) and count <= len(data):
                    self._measure(data[offset : offset + count])

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> list[Buffer | None]:
        """Parts of the values at several keys."""
        return list(await asyncio.gather(*(self.get(k, prototype, r) for k, r in key_ranges)))

    async def get_ranges(
        self,
        key: str,
        byte_ranges: Iterable[ByteRequest | None],
        *,
        prototype: BufferPrototype,
        **_limits: int,
    ) -> AsyncIterator[list[tuple[int, Buffer]]]:
        """Chunks of a shard. Each is read alone: zarr-python's own would merge what is measured."""
        found = []
        parts = await self.get_partial_values(prototype, [(key, one) for one in byte_ranges])
        for number, part in enumerate(parts):
            if part is None:
                raise FileNotFoundError(f"{key} was removed while it was read")
            found.append((number, part))
        yield found

    async def exists(self, key: str) -> bool:
        """Whether there is a value at `key`."""
        if key in self._metadata or is_metadata(key):
            return key in self._metadata
        return await self._threads.call(self._objects.tail, key, 1) is not None

    @property
    def supports_writes(self) -> bool:
        return False

    @property
    def supports_deletes(self) -> bool:
        return False

    @property
    def supports_listing(self) -> bool:
        return False

    async def set(self, key: str, value: Buffer) -> None:
        raise PermissionError(f"{key} is read only")

    async def delete(self, key: str) -> None:
        raise PermissionError(f"{key} is read only")

    async def list(self) -> AsyncIterator[str]:
        for key in self._metadata:
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for key in self._metadata:
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for key in self._metadata:
            if key.startswith(prefix):
                yield key


class ZarrCells:
    """An array of zarr-python, and the store that it lies in."""

    refuse_missing = False

    def __init__(self, array: Any, stands_for: np.dtype[Any] | None = None) -> None:
        """`stands_for` is the dtype of cells that zarr-python takes for integers of their size."""
        self._array, self._stands_for = array, stands_for
        self.shape = tuple(map(int, array.shape))
        shard = array.shards or array.chunks
        self.object_rows = int(shard[0])
        self._per_shard = tuple(int(s) // int(c) for s, c in zip(shard, array.chunks, strict=True))

    def __getitem__(self, place: tuple[slice, ...]) -> AnyArray:
        """The cells of a box. Waits; codecs may raise anything."""
        cells: AnyArray = np.asarray(self._array[place])
        return cells if self._stands_for is None else cells.view(self._stands_for)

    def holds(self, chunk: tuple[int, ...]) -> bool:
        """Whether a chunk is stored, by its coordinates. Waits; raises as `CheckedStore.holds`."""
        return bool(self._array.store.holds(*self._place(chunk)))

    def file(self, chunk: tuple[int, ...]) -> str | None:
        """The local file of the object that a chunk belongs in; None if it is remote."""
        file: str | None = self._array.store.file(self._place(chunk)[0])
        return file

    def _place(self, chunk: tuple[int, ...]) -> tuple[str, int]:
        """Key of the object that holds a chunk, and the number of the chunk in it."""
        key, inside = [], 0
        for at, count in zip(chunk, self._per_shard, strict=True):
            key.append(at // count)
            inside = inside * count + at % count
        return self._array.metadata.encode_chunk_key(tuple(key)), inside

    @property
    def per_shard(self) -> int:
        """Chunks of one stored object."""
        return math.prod(self._per_shard)


def open_array(store: CheckedStore, version: int) -> Any:
    """The `zarr.Array` in a store, for reading."""
    return zarr.open_array(store=store, mode="r", zarr_format=2 if version == 2 else 3)
