"""Chunks of a plain array at a URL as they are stored: from the cache on disk, or fetched.

Neighbours in a shard are one request. The index of a shard is read once, and later ranges must have its
version, so that a shard that is written again is an error and never a mixture.

Invariant: each chunk that is asked for comes once, as its bytes, as None if it is not stored, or as an error.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from windrow.core.native import native
from windrow.errors import ReadError, WindrowError
from windrow.sources.remote.fetcher import Fetcher, is_absent
from windrow.sources.remote.paths import joined
from windrow.sources.remote.remote_file import RemoteFile
from windrow.sources.remote.stores import Fetched, Part
from windrow.sources.zarr.codecs import ChunkDamageError
from windrow.sources.zarr.metadata import PlainLayout

Chunk: TypeAlias = bytes | WindrowError | ChunkDamageError | None
"""The bytes of a chunk, None if it is not stored, or why it did not come."""

_ENTRY_BYTES: Final = 16
_CHECKSUM_BYTES: Final = 4
# Limits of what is remembered of objects: their number, and the bytes of indices.
_MOST_FILES: Final = 1 << 16
_MOST_BYTES: Final = 32 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class _Shard:
    """A shard with its index."""

    file: RemoteFile
    index: bytes


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class _Place:
    """Where a chunk lies in its shard."""

    start: int
    stop: int
    number: int


class RemoteChunks:
    """Fetches chunks by their numbers in C order. Thread-safe."""

    def __init__(self, layout: PlainLayout, fetcher: Fetcher, url: str) -> None:
        """Request nothing yet."""
        core: Any = native()
        self._layout, self._fetcher, self._url = layout, fetcher, url
        self._places_in = core.zarr_places
        # Chunks of the array and of an object along each axis, the last one first.
        self._sizes = tuple(zip(reversed(layout.grid), reversed(layout.shard_grid), strict=True))
        self._per_shard = math.prod(layout.shard_grid)
        self._has_sum = bool(layout.index_codecs)
        self._index_bytes = _ENTRY_BYTES * self._per_shard + _CHECKSUM_BYTES * self._has_sum
        self._lock = threading.Lock()
        self._shards: collections.OrderedDict[str, _Shard] = collections.OrderedDict()
        self._files: collections.OrderedDict[str, RemoteFile] = collections.OrderedDict()
        self._bytes = 0  # of indices

    def fetched(self, numbers: Iterable[int], *, again: bool = False) -> Iterator[dict[int, Chunk]]:
        """Yield chunks by number as they arrive, some at a time. Waits for them.

        Args:
            numbers: The chunks.
            again: Whether to fetch what is in the cache on disk, too, and indices.
        """
        wanted: dict[str, list[tuple[int, int]]] = {}
        for number in numbers:
            key, within = self._place(number)
            wanted.setdefault(key, []).append((number, within))
        if self._layout.shard_shape is None:
            yield from self._objects({key: held[0][0] for key, held in wanted.items()}, again)
        else:
            yield from self._inner(wanted, again)

    def is_stored(self, number: int) -> bool:
        """Whether a chunk is stored, without reading it. Waits.

        Raises:
            WindrowError, ChunkDamageError: If the store cannot be asked, or an index is damaged.
        """
        key, within = self._place(number)
        if self._layout.shard_shape is None:
            part = Part(joined(self._url, key), None, 1)
            (((_, found),),) = self._fetcher.each([part])
            if isinstance(found, WindrowError) and not is_absent(found):
                raise found
            return isinstance(found, Fetched)
        shards, lost = self._with_indices([key], again=False)
        if (error := lost.get(key)) is not None:
            raise error  # type: ignore[misc]  # bytes are not among what is lost
        return key in shards and self._within(shards[key], within) is not None

    def url_of(self, number: int) -> str:
        """The URL of the object that a chunk belongs in."""
        return joined(self._url, self._place(number)[0])

    # ---- objects of one chunk

    def _objects(self, wanted: dict[str, int], again: bool) -> Iterator[dict[int, Chunk]]:
        fetcher, keys = self._fetcher, list(wanted)
        urls = {key: joined(self._url, key) for key in keys}
        if fetcher.has_cache and not again:
            absent = dict[int, Chunk]()
            unknown = [key for key in keys if key not in self._files and fetcher.knows(urls[key])]
            for some in fetcher.each([Part(urls[key], None, 1) for key in unknown]):
                for at, found in some:
                    if isinstance(found, Fetched):
                        self._remember(unknown[at], urls[unknown[at]], found)
                    else:
                        absent[wanted[unknown[at]]] = None if is_absent(found) else found
            kept: dict[int, Chunk] = {}
            for key in keys:
                if (file := self._files.get(key)) is not None:
                    (data,) = fetcher.kept(file, np.array([0]), np.array([file.size_bytes]))
                    if data is not None:
                        kept[wanted[key]] = data
            yield absent | kept
            keys = [key for key in keys if wanted[key] not in absent and wanted[key] not in kept]
        weight = self._layout.chunk_bytes
        versioned = fetcher.has_cache
        parts = [Part(urls[key], weight_bytes=weight, versioned=versioned) for key in keys]
        for some in fetcher.each(parts):
            came: dict[int, Chunk] = {}
            for at, found in some:
                number = wanted[keys[at]]
                if isinstance(found, WindrowError):
                    came[number] = None if is_absent(found) else found
                    continue
                came[number] = found.data
                if fetcher.has_cache:
                    came[number] = self._kept(keys[at], urls[keys[at]], found)
            yield came

    def _kept(self, key: str, url: str, found: Fetched) -> Chunk:
        """Put an object into the cache on disk; its bytes, or an error if it has changed."""
        file = RemoteFile(url, found.size_bytes, found.version)
        known = self._files.get(key)
        if known is not None and known != file:
            return ReadError(
                f"{file.shown} has changed since it was first read: it was {known.version or 'without a version'}"
                f" and is {file.version or 'without one'}. Make the source again",
                is_unanswered=True,
            )
        self._remember(key, url, found)
        size = np.array([found.size_bytes])
        self._fetcher.keep(file, np.array([0]), size, 0, found.data)
        return found.data

    def _remember(self, key: str, url: str, found: Fetched) -> None:
        with self._lock:
            self._files.setdefault(key, RemoteFile(url, found.size_bytes, found.version))
            while len(self._files) > _MOST_FILES:
                self._files.popitem(last=False)

    # ---- chunks of shards

    def _inner(
        self, wanted: dict[str, list[tuple[int, int]]], again: bool
    ) -> Iterator[dict[int, Chunk]]:
        shards, lost = self._with_indices(list(wanted), again=again)
        yield {number: why for key, why in lost.items() for number, _ in wanted[key]}
        requests: list[tuple[RemoteFile, list[_Place]]] = []
        for key, shard in shards.items():
            came, places = dict[int, Chunk](), list[_Place]()
            for number, within in wanted[key]:
                try:
                    place = self._within(shard, within)
                except ChunkDamageError as error:
                    came[number] = error
                    continue
                if place is None:
                    came[number] = None
                else:
                    places.append(_Place(place[0], sum(place), number))
            places.sort()
            if self._fetcher.has_cache and not again and places:
                begin, end = (np.array([getattr(p, k) for p in places]) for k in ("start", "stop"))
                data = self._fetcher.kept(shard.file, begin, end)
                came |= {p.number: d for p, d in zip(places, data, strict=True) if d is not None}
                places = [place for place in places if place.number not in came]
            requests += [(shard.file, run) for run in self._merged(places)]
            if came:
                yield came
        yield from self._ranges(requests)

    def _ranges(
        self, requests: Sequence[tuple[RemoteFile, list[_Place]]]
    ) -> Iterator[dict[int, Chunk]]:
        parts = [
            Part(file.url, run[0].start, stop := _end(run), file.version, stop - run[0].start)
            for file, run in requests
        ]
        for some in self._fetcher.each(parts):
            came: dict[int, Chunk] = {}
            for at, found in some:
                file, run = requests[at]
                if isinstance(found, WindrowError):
                    came.update((place.number, found) for place in run)
                    continue
                first, view = run[0].start, memoryview(found.data)
                for place in run:
                    came[place.number] = (
                        found.data
                        if len(run) == 1
                        else bytes(view[place.start - first : place.stop - first])
                    )
                if self._fetcher.has_cache:
                    begin, end = (np.array([getattr(p, k) for p in run]) for k in ("start", "stop"))
                    self._fetcher.keep(file, begin, end, first, found.data)
            yield came

    def _merged(self, places: Sequence[_Place]) -> list[list[_Place]]:
        """Chunks of a shard, in order, by requests: over gaps that cost less than a request."""
        options, runs = self._fetcher.options, list[list[_Place]]()
        held = 0
        for place in places:
            size = place.stop - place.start
            if runs:
                gap, whole = place.start - _end(runs[-1]), place.stop - runs[-1][0].start
                if (
                    gap <= options.merge_gap_bytes
                    and whole <= options.max_request_bytes
                    and whole <= options.most_fetched * (held + size)
                ):
                    runs[-1].append(place)
                    held += size
                    continue
            runs.append([place])
            held = size
        return runs

    def _with_indices(
        self, keys: Sequence[str], *, again: bool
    ) -> tuple[dict[str, _Shard], dict[str, Chunk]]:
        """Shards with their indices, fetched where they are not known; None or an error for the others."""
        lost: dict[str, Chunk] = {}
        with self._lock:  # of many reads that begin together, one fetches an index
            unknown = [key for key in keys if again or key not in self._shards]
            start = 0 if self._layout.index_location == "start" else None
            parts = [Part(joined(self._url, key), start, self._index_bytes) for key in unknown]
            for some in self._fetcher.each(parts):
                for at, found in some:
                    key = unknown[at]
                    if isinstance(found, WindrowError):
                        lost[key] = None if is_absent(found) else found
                    else:
                        file = RemoteFile(parts[at].path, found.size_bytes, found.version)
                        self._add(key, _Shard(file, found.data))
            shards = {key: self._shards[key] for key in keys if key not in lost}
            while self._bytes > _MOST_BYTES and len(self._shards) > 1:
                self._bytes -= len(self._shards.popitem(last=False)[1].index)
        return shards, lost

    def _add(self, key: str, shard: _Shard) -> None:
        old = self._shards.pop(key, None)
        self._bytes += len(shard.index) - (0 if old is None else len(old.index))
        self._shards[key] = shard

    def _within(self, shard: _Shard, within: int) -> tuple[int, int] | None:
        """Offset and size of a chunk in a shard; None if it is not stored."""
        of_shard = self._per_shard, self._has_sum, shard.file.size_bytes
        try:
            ((place,)) = self._places_in(shard.index, *of_shard, [within])
        except ValueError as error:
            raise ChunkDamageError(str(error)) from error
        return place  # type: ignore[no-any-return]

    def _place(self, number: int) -> tuple[str, int]:
        """Key of the object that holds a chunk, and its number there."""
        at: list[int] = []
        within, step = 0, 1
        for count, per in self._sizes:
            number, k = divmod(number, count)
            at.append(k // per)
            within += step * (k % per)
            step *= per
        return self._layout.key(at[::-1]), within


def _end(run: Sequence[_Place]) -> int:
    return max(place.stop for place in run)
