"""A store of zarr-python over the objects of one array, for reading only.

It needs zarr-python, so it is imported where an array needs that.

Invariant: metadata come from memory, as they were checked; nothing is written or listed.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final

from windrow.errors import missing_extra
from windrow.sources.daemons import DaemonThreads
from windrow.sources.zarr_blobs import Blobs
from windrow.sources.zarr_codecs import DamageError

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
    raise missing_extra("windrow.sources.zarr_store", "zarr") from error

# The entry in a shard's index of a chunk that is not in it.
_NOT_STORED: Final = b"\xff" * 16


class CheckedStore(Store):
    """The keys of one array. It can not be pickled: open the array again."""

    def __init__(
        self,
        blobs: Blobs,
        metadata: Mapping[str, bytes],
        measure: Callable[[bytes], None] | None = None,
    ) -> None:
        """A store of the objects of one array.

        Args:
            blobs: The objects.
            metadata: What metadata files hold; others are taken not to be there.
            measure: Raises on a stored chunk that must not be decoded.
        """
        super().__init__(read_only=True)
        self._measure, self._per_shard, self._at_end, self._after = measure, 0, True, 0
        self._blobs, self._metadata = blobs, dict(metadata)
        self._threads = DaemonThreads()

    def sharded(self, per_shard: int, *, at_end: bool, checksum: bool) -> None:
        """Objects hold `per_shard` chunks, and an index of them at their end or start."""
        self._per_shard, self._at_end, self._after = per_shard, at_end, 4 if checksum else 0

    def file(self, key: str) -> str | None:
        """The local file of `key`; None where it is not one."""
        return self._blobs.file(key)

    def holds(self, key: str, number: int) -> bool:
        """Whether chunk `number` of the object at `key` is stored, as its index tells. Waits.

        Args:
            key: The object; where it is no shard, its only chunk is 0.
            number: Number of the chunk in the shard, in C order.

        Raises:
            DamageError: If the object is too short for its index.
            OSError, RuntimeError, ValueError: If it can not be read.
        """
        if not self._per_shard:
            return self._blobs.tail(key, 1) is not None
        size = 16 * self._per_shard
        if self._at_end:
            size += self._after
            index = self._blobs.tail(key, size)
        else:
            index = self._blobs.part(key, 0, size)
        if index is None:
            return False
        if len(index) < size:
            raise DamageError(f"it has {len(index):,} bytes, too few for the index of a shard")
        return index[16 * number : 16 * number + 16] != _NOT_STORED

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = Store.__hash__

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """What is stored at `key`, or a part of it; None if nothing is."""
        if key in self._metadata or _is_metadata(key):
            found = self._metadata.get(key)
        else:
            found = await self._threads.call(self._measured, key, byte_range)
        return prototype.buffer.from_bytes(found) if found is not None else None

    def _measured(self, key: str, byte_range: ByteRequest | None) -> bytes | None:
        found = self._asked(key, byte_range)
        if found is not None:
            self._check(found, byte_range)
        return found

    def _asked(self, key: str, byte_range: ByteRequest | None) -> bytes | None:
        match byte_range:
            case None:
                return self._blobs.whole(key)
            case RangeByteRequest(start, end):
                return self._blobs.part(key, start, end)
            case OffsetByteRequest(offset):
                return self._blobs.part(key, offset, None)
            case SuffixByteRequest(suffix):
                return self._blobs.tail(key, suffix)

    def _check(self, found: bytes, byte_range: ByteRequest | None) -> None:
        """Measure the chunks in what was read: a chunk, or a whole shard."""
        if self._measure is None:
            return
        if not self._per_shard or byte_range is not None:
            self._measure(found)
            return
        size = 16 * self._per_shard
        # A checksum of 4 bytes follows it, or does not.
        for begin in (len(found) - size - 4, len(found) - size) if self._at_end else (0,):
            index = found[begin : begin + size] if begin >= 0 else b""
            for offset, count in struct.iter_unpack("<QQ", index[: len(index) // 16 * 16]):
                if offset < len(found) and count <= len(found):
                    self._measure(found[offset : offset + count])

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> list[Buffer | None]:
        """Parts of what is stored at several keys."""
        return list(await asyncio.gather(*(self.get(k, prototype, r) for k, r in key_ranges)))

    async def exists(self, key: str) -> bool:
        """Whether something is stored at `key`."""
        if key in self._metadata or _is_metadata(key):
            return key in self._metadata
        return await self._threads.call(self._blobs.tail, key, 1) is not None

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


def open_array(store: CheckedStore, version: int) -> Any:
    """The `zarr.Array` in a store, for reading."""
    return zarr.open_array(store=store, mode="r", zarr_format=2 if version == 2 else 3)


def _is_metadata(key: str) -> bool:
    return key.rpartition("/")[2] in ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")
