"""Readers of plain arrays: the native core reads them, and TensorStore what the core refuses.

TensorStore reads again what the core refuses, and its error says what is wrong. A chunk that TensorStore
accepts and the core refuses twice, such as one with other bytes after its end, is an error with the
core's reason. Without the core TensorStore reads everything but what `PlainStore.obstacle` names. It is
weaker then: bytes after the end of a chunk and a wrong checksum of gzip and zlib at a cut end pass, and
one bad entry of a shard's index fails the whole shard.

Invariants: a read fills all of the requested memory or has a `ReadError`. A chunk that is not stored
reads as the fill value only while the array is there.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any, Final

import numpy as np

from windrow.core import buffer_pool
from windrow.core.threads import InlineExecutor, then
from windrow.errors import ReadError
from windrow.sources.base import IntArray
from windrow.sources.chunks import (
    AnyArray,
    Box,
    BoxReader,
    RowReader,
    Scattered,
    Span,
    partly_read,
)
from windrow.sources.scan import Checks
from windrow.sources.zarr.box_readers import StoreBoxReader
from windrow.sources.zarr.local.metadata import (
    PlainArray,
    plain_array,
)
from windrow.sources.zarr.local.native_chunks import (
    Failures,
    NativeChunks,
    native_chunks,
    native_read,
)
from windrow.sources.zarr.local.presence import orphan_chunks
from windrow.sources.zarr.plain_store import (
    PlainStore,
    SecondLook,
    box_chunk,
    check_presence,
    chunks_of_boxes,
    chunks_of_rows,
    whole_chunk,
)
from windrow.sources.zarr.tensorstore import StoreReader

# A record in more chunks than this costs much more than its bytes.
_MOST_CELLS: Final = 16


class PlainStoreReader(StoreReader):
    """Reads rows of a plain array through TensorStore, where there is no core."""

    def __init__(self, store: PlainStore) -> None:
        """Open the array in TensorStore. Raises ReadError if that fails."""
        super().__init__(store.must_open())
        self._store = store

    def checks(self) -> Checks:
        """The chunks of the array."""
        return PlainChecks(self._store, None)

    def start(self, spans: Sequence[Span], pool: Executor) -> Future[None]:
        """Start reading spans; the future has a ReadError if one fails or the array is gone."""
        store = self._store
        try:
            for span in spans:
                store.refuse(chunks_of_rows(store.plain, np.arange(span.first, span.stop)))
        except ReadError as error:
            return _failed(error)
        return _then_present(super().start(spans, pool), store.plain)

    def read(self, rows: IntArray) -> AnyArray:
        """Rows `(n, ...)` in new memory. Waits; raises ReadError."""
        self._store.refuse(chunks_of_rows(self._store.plain, rows))
        found = super().read(rows)
        if len(rows):
            check_presence(self._store.plain, missing=False)
        return found

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        """Bytes of chunks in storage, estimated from the first stored object."""
        return _stored_rows(self._store, chunks)


class NativeRowReader:
    """Reads rows by the core, and once more by TensorStore if the core refuses them."""

    def __init__(self, store: PlainStore, chunks: NativeChunks) -> None:
        """Read the array of `store` by its `chunks`."""
        self._store, self._plain, self._chunks = store, store.plain, chunks
        self._second = SecondLook(store, chunks)

    def checks(self) -> Checks:
        """The chunks of the array."""
        return PlainChecks(self._store, self._chunks)

    def start(self, spans: Sequence[Span], pool: Executor) -> Future[None]:
        """Start reading spans on the core's threads; the future has a ReadError if one fails."""
        return self.start_scattered(spans)

    def output(
        self,
        out: AnyArray,
        chunks: int,
        which: IntArray,
        sources: IntArray,
        targets: IntArray,
        lengths: IntArray | None,
    ) -> Any:
        """Describe where rows of chunks go in `out`; see `ScatterReader`."""
        return self._chunks.output(out, chunks, which, sources, targets, lengths)

    def start_scattered(self, wanted: Sequence[Span | Scattered]) -> Future[None]:
        """Start reading on the core's threads; the future has a ReadError if a chunk fails."""
        items = list(wanted)

        def finish(failed: Failures, missing: bool) -> None:
            errors = dict[int, ReadError]()
            for item in failed:
                try:
                    self._read_again(items[item])
                except ReadError as error:
                    errors[item] = error
            check_presence(self._plain, missing)
            if errors:
                raise partly_read(None, errors)

        return native_read(self._chunks.start(items), finish)

    def _read_again(self, item: Span | Scattered) -> None:
        if isinstance(item, Span):
            item.out[...] = self._second.rows(np.arange(item.first, item.stop))
            return
        size, rows = self._plain.chunk_shape[0], self._plain.shape[0]
        first = item.chunk * size
        item.put(self._second.rows(np.arange(first, min(first + size, rows))))

    def read(self, rows: IntArray) -> AnyArray:
        """Rows `(n, ...)` in new memory, each chunk decoded once. Waits; raises ReadError."""
        found, failed = self._gathered(rows, 1)
        errors = self._fill_again(found, rows, failed) if failed else None
        if errors:
            raise partly_read(found, errors)
        return found

    def _fill_again(
        self, found: AnyArray, rows: IntArray, failed: Failures
    ) -> dict[int, ReadError]:
        """Read rows of refused chunks again; returns the errors of those that are damaged."""
        errors, chunk_of = dict[int, ReadError](), rows // self._plain.chunk_shape[0]
        for chunk in np.unique(chunk_of)[failed].tolist():
            mine = np.flatnonzero(chunk_of == chunk)
            try:
                found[mine] = self._second.rows(rows[mine])
            except ReadError as error:
                errors.update(dict.fromkeys(mine.tolist(), error))
        return errors

    def read_runs(self, first: IntArray, size: int) -> AnyArray:
        """Runs `(n, size, ...)` of rows in new memory. Waits; raises ReadError."""
        rows, failed = self._gathered(first, size)
        found = rows.reshape(len(first), size, *rows.shape[1:])
        if failed:
            numbers = (first[:, None] + np.arange(size)).ravel()
            errors = self._fill_again(rows, numbers, failed)
            if errors:
                raise partly_read(found, {row // size: each for row, each in errors.items()})
        return found

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        """Bytes of chunks in storage, estimated from the first stored object."""
        return _stored_rows(self._store, chunks)

    def _gathered(self, first: IntArray, size: int) -> tuple[AnyArray, Failures]:
        plain = self._plain
        out = buffer_pool.empty((len(first) * size, *plain.shape[1:]), plain.dtype)
        if not out.size:
            return out, []
        failed, missing = self._chunks.gather(first, size, out)
        if not failed:
            check_presence(plain, missing)
        return out, failed


class PlainStoreBoxReader(StoreBoxReader):
    """Reads boxes of a plain array through TensorStore, where there is no core."""

    def __init__(self, store: PlainStore) -> None:
        """Open the array in TensorStore. Raises ReadError if that fails."""
        plain = store.plain
        super().__init__(store.must_open(), box_chunk(plain), (0,) * len(plain.shape))
        self._store = store

    def checks(self) -> Checks:
        """The chunks of the array."""
        return PlainChecks(self._store, None)

    def start(self, boxes: Sequence[Box], pool: Executor) -> Future[None]:
        """Start reading boxes; the future has a ReadError if one fails or the array is gone."""
        store = self._store
        try:
            wanted = [box for box in boxes if box.out.size]
            store.refuse(chunks_of_boxes(store.plain, wanted), cells=True)
        except ReadError as error:
            return _failed(error)
        return _then_present(super().start(boxes, pool), store.plain)

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        """Bytes of chunks in storage, estimated from the first stored object."""
        return _stored_boxes(self._store, chunks)


class NativeBoxReader:
    """Reads boxes by the core, and once more by TensorStore if the core refuses them."""

    def __init__(self, store: PlainStore, chunks: NativeChunks) -> None:
        """Read the array of `store` by its `chunks`."""
        self._store, self._plain, self._chunks = store, store.plain, chunks
        self._second = SecondLook(store, chunks)

    def checks(self) -> Checks:
        """The chunks of the array."""
        return PlainChecks(self._store, self._chunks)

    def start(self, boxes: Sequence[Box], pool: Executor) -> Future[None]:
        """Start reading boxes on the core's threads; the future has a ReadError if one fails."""
        return self._started(boxes, inline=isinstance(pool, InlineExecutor))

    def output(
        self, out: Sequence[AnyArray], chunks: int, which: IntArray, *columns: IntArray
    ) -> Any:
        """Describe where cells of chunks go in `out`; see `BoxScatterReader`."""
        return self._chunks.output_of_boxes(out, chunks, which, *columns)

    def start_scattered(self, wanted: Sequence[Box | Scattered]) -> Future[None]:
        """Start reading on the core's threads; the future has a ReadError if a chunk fails."""
        return self._started(wanted, inline=False)

    def _started(self, wanted: Sequence[Box | Scattered], *, inline: bool) -> Future[None]:
        items = [
            (number, item)
            for number, item in enumerate(wanted)
            if isinstance(item, Scattered) or item.out.size
        ]

        def finish(failed: Failures, missing: bool) -> None:
            errors = dict[int, ReadError]()
            for at in failed:
                same = self._of_one_chunk(items, at)
                try:
                    self._read_again([item for _, item in same])
                except ReadError as error:
                    errors |= dict.fromkeys((number for number, _ in same), error)
            check_presence(self._plain, missing)
            if errors:
                raise partly_read(None, errors)

        reading = self._chunks.start_boxes([item for _, item in items], inline=inline)
        return native_read(reading, finish, inline=inline)

    def _of_one_chunk(
        self, items: Sequence[tuple[int, Box | Scattered]], at: int
    ) -> Sequence[tuple[int, Box | Scattered]]:
        """An item that failed, and the boxes after it that share its chunk."""
        item, stop = items[at][1], at + 1
        if isinstance(item, Box):
            chunk = chunks_of_boxes(self._plain, [item])
            for _, other in items[stop:]:
                if isinstance(other, Scattered) or chunks_of_boxes(self._plain, [other]) != chunk:
                    break
                stop += 1
        return items[at:stop]

    def _read_again(self, items: Sequence[Box | Scattered]) -> None:
        boxes = [item for item in items if isinstance(item, Box)]
        if boxes:
            self._second.boxes(boxes)
        for item in items:
            if isinstance(item, Scattered):
                at = np.unravel_index(item.chunk, self._plain.grid)
                whole = whole_chunk(self._plain, tuple(map(int, at)))
                self._second.boxes([whole])
                item.put(whole.out)

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        """Bytes of chunks in storage, estimated from the first stored object."""
        return _stored_boxes(self._store, chunks)


class PlainChecks(Checks):
    """The chunks of a plain array."""

    def __init__(self, store: PlainStore, chunks: NativeChunks | None) -> None:
        """Read nothing yet; without `chunks` TensorStore reads."""
        plain = store.plain
        rest = (0,) * len(plain.shape)
        super().__init__(plain.shape, plain.chunk_shape, rest, plain.dtype.itemsize)
        self._store, self._plain, self._chunks = store, plain, chunks

    @property
    def waits(self) -> bool:
        return self._chunks is None

    def check_run(self, first: int, stop: int) -> tuple[int, int] | None:
        if self._chunks is None:
            run = map(self.coords, range(first, stop))
            if any(self._store.obstacle(at) is not None for at in run):
                return None
            return self._in_store().check_run(first, stop)
        if not self._read_run(self._chunks, first, stop):
            return None
        check_presence(self._plain, missing=False)
        return 0, 0

    def _read_run(self, chunks: NativeChunks, first: int, stop: int) -> bool:
        """Whether the chunks `[first, stop)` are all stored and can be read."""
        if math.prod(self.grid[1:]) > 1:
            wanted = [whole_chunk(self._plain, self.coords(at)) for at in range(first, stop)]
            failures, missing = chunks.read_boxes(wanted)
            return not failures and not missing
        begin, end = self.bounds(first)[0], self.bounds(stop - 1)[1]
        size = end[0] - begin[0]
        rows = buffer_pool.empty((size, *self._plain.shape[1:]), self._plain.dtype)
        failed, missing = chunks.gather(np.array([begin[0]]), size, rows)
        return not failed and not missing

    def check(self, number: int) -> bool | None:
        at = self.coords(number)
        try:
            if self._chunks is None:
                self._store.refuse([at])
                return self._in_store().check(number)
            failures, missing = self._chunks.read_boxes([whole_chunk(self._plain, at)])
            if failures:
                SecondLook(self._store, self._chunks).refuse([at])
        except ReadError as error:
            if error.file is not None and error.offset is None:
                error.offset = self._store.offset(at)
            raise
        check_presence(self._plain, missing)
        return not missing

    def is_stored(self, number: int) -> bool | None:
        if self._plain.shard_shape is not None:
            return self._in_store().is_stored(number)
        stored = os.path.lexists(self.file(number))
        check_presence(self._plain, not stored)
        return stored

    def file(self, number: int) -> str:
        return self._store.file(self.coords(number))

    def orphans(self) -> list[str]:
        # An array may grow while it is read.
        now = plain_array(self._plain.folder, self._plain.name)
        if isinstance(now, str) or len(now.shape) != len(self._plain.shape):
            return []
        objects = now.shard_shape or now.chunk_shape
        grid = [-(-n // c) for n, c in zip(now.shape, objects, strict=True)]
        return orphan_chunks(now.folder, now.prefix, now.separator, grid)

    def _in_store(self) -> Checks:
        return StoreReader(self._store.must_open()).checks()


def row_reader(store: PlainStore) -> RowReader:
    """The reader of the rows of a plain array. Raises ReadError without core and TensorStore."""
    chunks = native_chunks(store.plain)
    return PlainStoreReader(store) if chunks is None else NativeRowReader(store, chunks)


def plain_box_reader(store: PlainStore) -> BoxReader:
    """The reader of boxes of a plain array. Raises ReadError without core and TensorStore."""
    chunks = native_chunks(store.plain)
    return PlainStoreBoxReader(store) if chunks is None else NativeBoxReader(store, chunks)


def is_read_by_row(plain: PlainArray) -> bool:
    """Whether the core reads a single record of chunks that are not encoded for its bytes alone."""
    if plain.codecs or not plain.row_bytes or math.prod(plain.grid[1:]) > _MOST_CELLS:
        return False
    return plain.shape[0] > 0 and (plain.chunk_shape[0] == 1 or plain.axes[0] == 0)


def _failed(error: ReadError) -> Future[None]:
    """A read that has failed."""
    read: Future[None] = Future()
    read.set_exception(error)
    return read


def _then_present(read: Future[None], plain: PlainArray) -> Future[None]:
    """The read, and after it the check that the array is still there."""

    def ended(read: Future[None]) -> None:
        read.result()
        check_presence(plain, missing=False)

    return then(read, ended)


def _stored_rows(store: PlainStore, chunks: IntArray) -> IntArray:
    single = store.plain.chunk_shape[0] == 1
    size = store.stored_bytes(math.prod(store.plain.grid[1:]), single=single)
    return np.full(len(chunks), size, np.int64)


def _stored_boxes(store: PlainStore, chunks: IntArray) -> IntArray:
    return np.full(len(chunks), store.stored_bytes(1), np.int64)
