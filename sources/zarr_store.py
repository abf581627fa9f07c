"""A store of zarr-python over a key-value store of TensorStore, for reading only.

It needs zarr-python, so it is imported where an array needs that.

Invariant: metadata come from memory, as they were checked; nothing is written or listed.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from windrow.errors import missing_extra
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
        kvstore: Any,
        folder: str | None,
        metadata: Mapping[str, bytes],
        measure: Callable[[bytes], None] | None = None,
    ) -> None:
        """A store of what lies in `kvstore`.

        Args:
            kvstore: An open `ts.KvStore`.
            folder: The same place, where it is a folder of a local disk.
            metadata: What metadata files hold; others are taken not to be there.
            measure: Raises on a stored chunk that must not be decoded.
        """
        super().__init__(read_only=True)
        self._measure, self._per_shard, self._at_end, self._after = measure, 0, True, 0
        self._kvstore, self._folder, self._metadata = kvstore, folder, dict(metadata)

    def sharded(self, per_shard: int, *, at_end: bool, checksum: bool) -> None:
        """Objects hold `per_shard` chunks, and an index of them at their end or start."""
        self._per_shard, self._at_end, self._after = per_shard, at_end, 4 if checksum else 0

    def file(self, key: str) -> str | None:
        """The local file of `key`; None where it is not one."""
        return None if self._folder is None else os.path.join(self._folder, *key.split("/"))

    def holds(self, key: str, number: int) -> bool:
        """Whether chunk `number` of the object at `key` is stored, as its index tells. Waits.

        Args:
            key: The object; where it is no shard, its only chunk is 0.
            number: Number of the chunk in the shard, in C order.

        Raises:
            DamageError: If the object is too short for its index.
            OSError, RuntimeError, ValueError: If it can not be read.
        """

        def entry(size: int) -> tuple[int, int]:
            if not self._per_shard:
                return 0, 0
            begin = size - 16 * self._per_shard - self._after if self._at_end else 0
            begin += 16 * number
            if not 0 <= begin <= size - 16:
                raise DamageError(f"it has {size:,} bytes, too few for the index of a shard")
            return begin, begin + 16

        found = self._part(key, entry)
        return found is not None and found != _NOT_STORED

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = Store.__hash__

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """What is stored at `key`, or a part of it; None if nothing is."""
        if key in self._metadata or _is_metadata(key):
            found = self._metadata.get(key)
        elif self._folder is not None:
            found = await asyncio.to_thread(self._measured, key, byte_range)
        else:
            answer = await self._kvstore.read(key)
            found = bytes(answer.value) if answer.state == "value" else None
            if found is not None:
                start, stop = _bounds(byte_range, len(found))
                found = found[start:stop]
                await asyncio.to_thread(self._check, found, byte_range)
        return prototype.buffer.from_bytes(found) if found is not None else None

    def _measured(self, key: str, byte_range: ByteRequest | None) -> bytes | None:
        found = self._part(key, partial(_bounds, byte_range))
        if found is not None:
            self._check(found, byte_range)
        return found

    def _part(self, key: str, bounds: Callable[[int], tuple[int, int]]) -> bytes | None:
        """The bytes of an object that `bounds` chooses by its size; None if there is none."""
        path = self.file(key)
        if path is None:
            answer = self._kvstore.read(key).result()
            whole = bytes(answer.value)
            return whole[slice(*bounds(len(whole)))] if answer.state == "value" else None
        try:
            with open(path, "rb") as file:
                start, stop = bounds(os.fstat(file.fileno()).st_size)
                file.seek(start)
                return file.read(stop - start)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

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
        answer = await self._kvstore.read(key)
        return bool(answer.state == "value")

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


def _bounds(byte_range: ByteRequest | None, size: int) -> tuple[int, int]:
    match byte_range:
        case None:
            return 0, size
        case RangeByteRequest(start, end):
            return min(start, size), max(start, min(end, size))
        case OffsetByteRequest(offset):
            return min(offset, size), size
        case SuffixByteRequest(suffix):
            return max(0, size - suffix), size
