"""Chunks of a plain remote array as they are stored: in the cache on disk, or fetched.

The native core decodes them.

Invariants: a chunk that is in the cache is found without waiting for the store. A chunk counts as not
stored only after the array's metadata were read again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from windrow.core.native import native
from windrow.sources.zarr.codecs import ChunkDamageError
from windrow.sources.zarr.metadata import PlainLayout, plain_layout, version_of
from windrow.sources.zarr.plain import NativeChunks, native_chunks
from windrow.sources.zarr.presence import metadata_in

if TYPE_CHECKING:
    from windrow.sources.remote.remote_file import RemoteFile
    from windrow.sources.zarr.remote import RemotePresence
    from windrow.sources.zarr.remote_folders import RangeObjects

_ENTRY_BYTES: Final = 16
_CHECKSUM_BYTES: Final = 4


class CachedChunks:
    """The chunks of an array, by their numbers in C order."""

    def __init__(
        self,
        layout: PlainLayout,
        chunks: NativeChunks,
        objects: RangeObjects,
        presence: RemotePresence,
    ) -> None:
        """Open nothing yet.

        Args:
            layout: How they are stored.
            chunks: Decodes them.
            objects: Fetches the objects that hold them.
            presence: Checks whether the array is still there.
        """
        core: Any = native()
        self.layout, self.chunks, self.presence = layout, chunks, presence
        self._objects, self._fetcher = objects, objects.fetcher
        self._places_in = core.zarr_places
        # Chunks of the array and of an object along each axis, the last one first.
        self._sizes = tuple(zip(reversed(layout.grid), reversed(layout.shard_grid), strict=True))
        self._per_shard = math.prod(layout.shard_grid)
        self._has_sum = bool(layout.index_codecs)
        self._index_bytes = _ENTRY_BYTES * self._per_shard + _CHECKSUM_BYTES * self._has_sum

    def in_cache(self, numbers: Iterable[int]) -> Mapping[int, bytes]:
        """Return the chunks that are in the cache. Does not wait for the store."""
        found: dict[int, bytes] = {}
        for file, places in self._known(numbers):
            begin, end = (np.array([place[k] for place in places]) for k in (1, 2))
            kept = self._fetcher.kept(file, begin, end)
            for (number, _, _), data in zip(places, kept, strict=True):
                if data is not None:
                    found[number] = data
        return found

    def fetch(self, number: int, where: str) -> bytes | None:
        """The stored bytes of a chunk, from the cache or fetched; None if it is not stored. Waits.

        Args:
            number: The chunk.
            where: Place of the array, for messages.

        Raises:
            ChunkDamageError: If the index of its shard is damaged.
            ReadError: If it cannot be fetched, or the array is gone.
        """
        key, within = self._place(number)
        data = self._objects.whole(key) if within is None else self._part(key, within)
        if data is None:
            self.presence.refuse_gone(where)
        return data

    def _part(self, key: str, within: int) -> bytes | None:
        if self.layout.index_location == "start":
            index = self._objects.part(key, 0, self._index_bytes)
        else:
            index = self._objects.tail(key, self._index_bytes)
        file = self._objects.known(key)
        if index is None or file is None:
            return None
        (place,) = self._in_shard(index, file, [within])
        return None if place is None else self._objects.part(key, place[0], sum(place))

    def _known(
        self, numbers: Iterable[int]
    ) -> Iterator[tuple[RemoteFile, list[tuple[int, int, int]]]]:
        """Objects that are known, and of chunks in them number, begin and end, in their order."""
        by_key: dict[str, list[tuple[int, int | None]]] = {}
        for number in numbers:
            key, within = self._place(number)
            by_key.setdefault(key, []).append((number, within))
        for key, held in by_key.items():
            file = self._objects.known(key)
            if file is None:
                continue
            if self.layout.shard_shape is None:
                yield file, [(held[0][0], 0, file.size_bytes)]
                continue
            places = self._known_in_shard(key, file, [within or 0 for _, within in held])
            known = zip(held, places, strict=True)
            found = [(number, at[0], sum(at)) for (number, _), at in known if at is not None]
            if found:
                yield file, sorted(found, key=lambda place: place[1:])

    def _known_in_shard(
        self, key: str, file: RemoteFile, within: list[int]
    ) -> list[tuple[int, int] | None]:
        index = None
        if self.layout.index_location == "end":
            index = self._objects.known_tail(key, self._index_bytes)
        if index is None:
            return [None] * len(within)
        try:
            return self._in_shard(index, file, within)
        except ChunkDamageError:
            return [None] * len(within)

    def _in_shard(
        self, index: bytes, file: RemoteFile, within: list[int]
    ) -> list[tuple[int, int] | None]:
        """Offset and size of chunks in a shard; None for those that are not stored."""
        try:
            places: list[tuple[int, int] | None] = self._places_in(
                index, self._per_shard, self._has_sum, file.size_bytes, within
            )
        except ValueError as error:
            raise ChunkDamageError(str(error)) from error
        return places

    def _place(self, number: int) -> tuple[str, int | None]:
        """Key of the object that holds a chunk, and its number there; None if that has no others."""
        layout = self.layout
        at: list[int] = []
        within, step = 0, 1
        for count, per in self._sizes:
            number, k = divmod(number, count)
            at.append(k // per)
            within += step * (k % per)
            step *= per
        return layout.key(at[::-1]), None if layout.shard_shape is None else within


def cached_chunks(
    raw: bytes, objects: RangeObjects, presence: RemotePresence, expected: Mapping[str, Any]
) -> CachedChunks | None:
    """The chunks of an array; None if the native core does not decode it, or it is not there.

    Args:
        raw: Its metadata.
        objects: Fetches its objects.
        presence: Checks whether it is still there.
        expected: Its shape, chunk shape, dtype and fill value as zarr-python has them.
    """
    metadata = metadata_in(raw)
    layout = plain_layout(metadata, version_of(metadata))
    if isinstance(layout, str) or expected != {
        "shape": layout.shape,
        "chunk_shape": layout.chunk_shape,
        "dtype": layout.dtype,
        "fill": layout.fill_bytes,
    }:
        return None
    chunks = native_chunks(layout)
    return None if chunks is None else CachedChunks(layout, chunks, objects, presence)
