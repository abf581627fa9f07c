"""Plain arrays at URLs: their chunks are fetched, and decoded by the native core as local chunks are.

Chunks are decoded on the core's threads as they arrive, straight to where they are wanted. A chunk that the
core refuses is fetched once more, past the cache on disk. What is wanted of one chunk is read together.

Invariants: a read fills all of the requested memory or has a `ReadError`. Nothing writes to that memory
after the read has ended. A chunk counts as not stored only after the array's metadata were read again.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np

from windrow.core.native import native
from windrow.errors import ReadError, WindrowError
from windrow.sources.chunks import Box, Scattered, Span, partly_read
from windrow.sources.scan import Checks
from windrow.sources.zarr.codecs import ChunkDamageError
from windrow.sources.zarr.error_text import damaged, held_cells, held_records, unreachable
from windrow.sources.zarr.metadata import plain_layout, version_of
from windrow.sources.zarr.names import Found
from windrow.sources.zarr.plain import (
    Cells,
    NativeChunks,
    PlainArray,
    PlainBoxReader,
    PlainChecks,
    PlainReader,
    PlainStore,
    native_chunks,
)
from windrow.sources.zarr.remote import RemotePresence
from windrow.sources.zarr.remote_chunks import RemoteChunks
from windrow.sources.zarr.stores import Access
from windrow.sources.zarr.zarr_python import stored_metadata


@dataclasses.dataclass(slots=True, eq=False)
class _Group:
    """Requests that need the same chunks, so that these are decoded once.

    Args:
        chunks: The chunks by number.
        items: The requests.
        places: Their places in the call.
        left: Chunks that have not come.
    """

    chunks: Sequence[int]
    items: list[Any]
    places: list[int]
    left: int


class RemotePlain(PlainStore):
    """The chunks of a plain array at a URL."""

    is_remote_source = True

    def __init__(
        self, plain: PlainArray, chunks: NativeChunks, access: Access, fetched: RemoteChunks
    ) -> None:
        """Open nothing yet; the folder of `plain` is its place, for people."""
        super().__init__(plain, chunks)
        self.access, self.fetched = access, fetched

    def checks(self) -> Checks:
        """The chunks of the array."""
        return RemoteChecks(self)

    def stored_bytes(self, chunks: int, *, single: bool = False) -> int:
        """Bytes of some chunks in memory: their bytes in storage are not known."""
        return self.plain.chunk_bytes * chunks

    def _look_sometimes(self) -> None:
        """Check at intervals that the array is still there; raises ReadError."""
        presence: Any = self.plain.presence
        presence.look_sometimes(self.access.run, self.plain.folder)

    def error(self, number: int, why: Exception | str, *, cells: bool) -> ReadError:
        """The error for a chunk: that it did not come, or what the core says about it."""
        plain = self.plain
        at = np.unravel_index(number, plain.grid)
        sizes = zip(at, plain.chunk_shape, plain.shape, strict=True)
        spans = [(int(k) * c, min((int(k) + 1) * c, n)) for k, c, n in sizes]
        held = held_cells(spans) if cells else held_records(*spans[0])
        if isinstance(why, WindrowError):
            return unreachable(plain.name, plain.folder, held, self.access.hide(str(why)), spans[0])
        shown = self.access.hide(self.fetched.url_of(number))
        records = None if cells else spans[0]
        return damaged(plain.name, plain.folder, held, f"{shown}: {why}", records=records)

    # ---- reads

    def started(
        self, reader: PlainReader, wanted: Sequence[Span | Box | Scattered], *, inline: bool
    ) -> Future[None]:
        """Start reading items in a thread; the future has a ReadError if one fails, with a `Rest`."""
        return self.access.run(partial(self._run, reader, wanted))

    def _run(self, reader: PlainReader, wanted: Sequence[Span | Box | Scattered]) -> None:
        self._look_sometimes()
        groups = self._grouped(reader, wanted)
        refused, errors = self._read(reader, groups, again=False)
        if refused:
            again = [dataclasses.replace(group, left=len(group.chunks)) for group in refused]
            refused, others = self._read(reader, again, again=True)
            errors |= others
        for group, why in refused.items():
            number, why = self._damaged_in(group, why)
            error = self.error(number, why, cells=reader.names_cells)
            errors |= dict.fromkeys(group.places, error)
        if errors:
            raise partly_read(None, errors)

    def _damaged_in(self, group: _Group, why: str) -> tuple[int, str]:
        """The first damaged chunk of a group that was refused, and why, by reading each alone."""
        if len(group.chunks) == 1:
            return group.chunks[0], why
        coords = np.transpose(np.unravel_index(group.chunks, self.plain.grid)).tolist()
        alone = [
            _Group([number], [self.whole(tuple(at))], [0], 1)
            for number, at in zip(group.chunks, coords, strict=True)
        ]
        refused, _ = self._read(PlainBoxReader(self), alone, again=True)
        found = {one.chunks[0]: reason for one, reason in refused.items()}
        number = min(found, default=group.chunks[0])
        return number, found.get(number, why)

    def _grouped(
        self, reader: PlainReader, wanted: Sequence[Span | Box | Scattered]
    ) -> list[_Group]:
        """The items by their chunks, without those that need nothing."""
        groups: dict[tuple[Cells, ...], _Group] = {}
        for place, item in enumerate(wanted):
            if not isinstance(item, Scattered) and not item.out.size:
                continue
            coords = tuple(reader.coords(item))
            group = groups.get(coords)
            if group is None:
                chunks = np.ravel_multi_index(np.transpose(coords), self.plain.grid).tolist()
                group = groups[coords] = _Group(chunks, [], [], len(chunks))
            group.items.append(item)
            group.places.append(place)
        return list(groups.values())

    def _read(
        self, reader: PlainReader, groups: Sequence[_Group], *, again: bool
    ) -> tuple[dict[_Group, str], dict[int, ReadError]]:
        """Read groups. Returns why the core refused some, and the errors of items that did not come."""
        of_chunk = {n: group for group in groups for n in group.chunks}
        refused, errors = dict[_Group, str](), dict[int, ReadError]()
        stored: dict[int, bytes | None] = {}
        readings: list[tuple[Any, list[_Group]]] = []
        try:
            for some in self.fetched.fetched(of_chunk, again=again):
                ready, is_missing = list[_Group](), False
                for number, chunk in some.items():
                    group = of_chunk[number]
                    group.left -= 1
                    if isinstance(chunk, ChunkDamageError):
                        refused[group] = str(chunk)
                    elif isinstance(chunk, WindrowError):
                        error = self.error(number, chunk, cells=reader.names_cells)
                        errors |= dict.fromkeys(group.places, error)
                    else:
                        stored[number] = chunk
                        is_missing |= chunk is None
                    if not group.left and all(n in stored for n in group.chunks):
                        ready.append(group)
                if is_missing:
                    self.check_presence(True)
                if ready:
                    items = [item for group in ready for item in group.items]
                    given = {n: stored.pop(n) for group in ready for n in group.chunks}
                    of_items = [group for group in ready for _ in group.items]
                    readings.append((reader.begin(items, given), of_items))
        finally:
            for reading, _ in readings:
                reading.wait(help=True)
        for reading, of_items in readings:
            refused.update((of_items[at], why) for at, why in reading.failures())
        return refused, errors


class RemoteChecks(PlainChecks):
    """The chunks of a plain array at a URL."""

    _store: RemotePlain

    @property
    def waits(self) -> bool:
        return True

    def check_run(self, first: int, stop: int) -> tuple[int, int] | None:
        if stop - first < 2:
            return None
        try:
            return self._missing(range(first, stop)), 0
        except ReadError:
            return None  # check one by one, so that the error names the chunk

    def check(self, number: int) -> bool:
        return not self._missing([number])

    def _missing(self, numbers: Sequence[int]) -> int:
        """The number of chunks that are not stored, of some that are read and decoded. Raises ReadError."""
        reader, missing = PlainBoxReader(self._store), 0
        boxes = [self._store.whole(self.coords(number)) for number in numbers]
        reader.start_scattered(boxes).result()
        for number, box in zip(numbers, boxes, strict=True):
            fill = np.frombuffer(self._plain.fill_bytes, np.uint8)
            cells = box.out.reshape(-1).view(np.uint8).reshape(-1, len(fill))
            missing += not bool((cells != fill).any()) and not self.is_stored(number)
        return missing

    def is_stored(self, number: int) -> bool:
        store = self._store
        try:
            stored = store.fetched.is_stored(number)
        except (WindrowError, ChunkDamageError) as error:
            raise store.error(number, error, cells=False) from None
        store.check_presence(not stored)
        return stored

    def file(self, number: int) -> str | None:  # type: ignore[override]
        return None

    def orphans(self) -> list[str]:
        return []


def remote_plain(found: Found) -> RemotePlain | str:
    """An array at a URL that the native core decodes; or the reason why it does not, '' if that is plain.

    Raises:
        NotFoundError: If the array is gone.
        SourceError: If its metadata cannot be read, or have sizes that no storage has.
    """
    access, url = found.access, found.url
    if access is None or url is None or found.metadata is None or native() is None:
        return ""
    objects = found.objects()
    key, raw = stored_metadata(found, objects)
    try:
        metadata = json.loads(raw)
        layout = plain_layout(metadata, version_of(metadata))
    except (ValueError, RecursionError, AttributeError):
        return "its metadata are not a JSON object"
    if isinstance(layout, str):
        return layout
    shape = found.agreed_shape(metadata)
    layout = layout if shape is None else dataclasses.replace(layout, shape=shape)
    whole = layout.shard_shape or layout.chunk_shape
    found.refuse_absurd(layout.shape, layout.chunk_shape, layout.dtype.itemsize, whole)
    chunks = native_chunks(layout)
    if chunks is None or not math.prod(layout.chunk_shape):
        return "the native core cannot"
    fill = layout.fill_bytes
    presence: Any = RemotePresence(lambda: objects.whole(key), found.where + key, raw, fill)
    settings = {field.name: getattr(layout, field.name) for field in dataclasses.fields(layout)}
    plain = PlainArray(folder=found.where, presence=presence, name=found.name, **settings)
    return RemotePlain(plain, chunks, access, RemoteChunks(layout, access.fetcher, url))
