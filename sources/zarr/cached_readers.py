"""Readers of remote arrays with a cache on disk: the native core decodes, as it does for local files.

What the cache has is decoded on the core's threads, straight to where it is wanted. The rest is fetched
first, each chunk by a read of its own, and decoded by the thread that fetched it. What the core refuses
is read again by zarr-python, after the cache has compared its checksum: damaged bytes are then fetched
again.

Invariants: a read fills all of the requested memory or has a `ReadError`. Nothing writes to that memory
after the read has ended.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from windrow.core.cancellation import current_scope, stopped
from windrow.core.native_read import NativeRead
from windrow.core.threads import Ends
from windrow.errors import ReadError
from windrow.sources.base import IntArray
from windrow.sources.chunks import AnyArray, Box, Scattered, Span
from windrow.sources.zarr.local.codecs import ChunkDamageError
from windrow.sources.zarr.local.native_chunks import StoredChunk
from windrow.sources.zarr.stores import Access
from windrow.sources.zarr.zarr_python import PythonArray, PythonReader

if TYPE_CHECKING:
    from windrow.sources.zarr.cached_chunks import CachedChunks

Cells = tuple[int, ...]
Item = TypeVar("Item")


class _CachedReader(PythonReader, Generic[Item]):
    """Reads items; an item needs some chunks."""

    def __init__(
        self,
        array: PythonArray,
        cached: CachedChunks,
        access: Access,
        chunk_shape: Sequence[int] | None = None,
    ) -> None:
        """Read an array by its cached chunks; `chunk_shape` as for `PythonReader`."""
        super().__init__(array, chunk_shape)
        self._cached, self._access, self._layout = cached, access, cached.layout

    @abc.abstractmethod
    def _numbers(self, item: Item) -> Sequence[int]:
        """The chunks of an item."""

    @abc.abstractmethod
    def _cells(self, item: Item) -> tuple[Cells, Cells]:
        """First cell and shape of what `_put` takes."""

    @abc.abstractmethod
    def _put(self, item: Item, values: AnyArray) -> None:
        """Copy values to where an item wants them."""

    @abc.abstractmethod
    def _decoding(
        self, items: Sequence[Item], stored: Mapping[int, StoredChunk], *, inline: bool
    ) -> Any:
        """Start decoding on the core's threads, or prepare it for the thread that waits."""

    def _started(self, items: Sequence[Item]) -> Future[None]:
        """Start reading items; the future has a ReadError if one fails."""
        try:
            self._cached.presence.look_sometimes(self._access.run, self._array.where)
        except ReadError as error:
            failed: Future[None] = Future()
            failed.set_exception(error)
            return failed
        numbers = [self._numbers(item) for item in items]
        stored = self._cached.in_cache(dict.fromkeys(n for some in numbers for n in some))
        is_here = [all(n in stored for n in some) for some in numbers]
        here = [item for item, found in zip(items, is_here, strict=True) if found]
        reading = self._decoding(here, stored, inline=not here)
        wanted = zip(items, numbers, is_here, strict=True)
        absent = [(item, some) for item, some, found in wanted if not found]
        fetched = self._fetched(absent, stored)

        def finish() -> None:
            refused = [here[at] for at in sorted({at for at, _ in reading.failures()})]
            for item, again in [(item, self._again(item)) for item in refused]:
                self._put(item, again.result())
            if fetched is not None:
                fetched.result()

        return NativeRead(reading if fetched is None else _Both(reading, fetched), finish)

    def _fetched(
        self, items: Sequence[tuple[Item, Sequence[int]]], stored: Mapping[int, StoredChunk]
    ) -> Future[None] | None:
        """Start fetching chunks of items that are not in `stored`, and decode each item then."""
        if not items:
            return None
        absent = dict.fromkeys(n for _, some in items for n in some if n not in stored)
        reads = {number: self._fetch(number) for number in absent}
        ends = Ends(len(items), _first)
        for place, (item, some) in enumerate(items):
            missing = [number for number in some if number in reads]
            came = Ends(len(missing), _first)
            for at, number in enumerate(missing):
                reads[number].add_done_callback(partial(_end, came, at))
            given = {number: stored[number] for number in some if number in stored}
            mine = {number: reads[number] for number in missing}
            decode = partial(self._decode, item, given, mine, partial(ends.end, place))
            came.done.add_done_callback(decode)
        return ends.done

    def _fetch(self, number: int) -> Future[StoredChunk]:
        """Start fetching a chunk."""

        def fetch() -> StoredChunk:
            scope = current_scope()
            if scope is not None and scope.is_set:
                raise stopped()
            return self._cached.fetch(number, self._array.where)

        run, layout = partial(self._access.run, fetch), self._layout
        return self._access.fetches.start(run, weight_bytes=layout.chunk_bytes)

    def _decode(
        self,
        item: Item,
        stored: Mapping[int, StoredChunk],
        reads: Mapping[int, Future[StoredChunk]],
        end: Callable[[Exception | None], None],
        came: Future[None],
    ) -> None:
        """Decode an item whose chunks came, and call `end` with the error, or None without one."""
        try:
            error = came.exception()
            if error is None:
                whole = {**stored, **{number: read.result() for number, read in reads.items()}}
                reading = self._decoding([item], whole, inline=True)
                reading.wait(help=True)
                if not reading.failures():
                    end(None)
                    return
            elif not isinstance(error, ChunkDamageError):
                first, shape = self._cells(item)
                end(self._array.failed(first[0], shape[0], error))
                return
            self._again(item).add_done_callback(partial(self._take, item, end))
        except Exception as other:  # otherwise the caller would wait forever
            end(other)

    def _again(self, item: Item) -> Future[AnyArray]:
        """Start reading an item by zarr-python."""
        self._cached.doubt(self._numbers(item))
        return self._array.begin(*self._cells(item))

    def _take(
        self, item: Item, end: Callable[[Exception | None], None], read: Future[AnyArray]
    ) -> None:
        error: Exception | None = None
        try:
            self._put(item, read.result())
        except Exception as other:
            error = other
        end(error)


class CachedRowReader(_CachedReader[Span | Scattered]):
    """Reads rows; a `ScatterReader`."""

    def start(self, spans: Sequence[Any], pool: Executor) -> Future[None]:
        """Start reading spans; the future has a ReadError if one fails."""
        return self._started(spans)

    def output(self, out: AnyArray, *where: Any) -> Any:
        """As for `ScatterReader.output`."""
        return self._cached.chunks.output(out, *where)

    def start_scattered(self, wanted: Sequence[Span | Scattered]) -> Future[None]:
        """Start reading; the future has a ReadError if a chunk fails."""
        return self._started(list(wanted))

    def read(self, rows: IntArray) -> AnyArray:
        """Rows `(n, ...)` in new memory, each chunk decoded once. Waits; raises ReadError."""
        size, out = (
            self._layout.chunk_shape[0],
            np.empty((len(rows), *self._array.shape[1:]), self._array.dtype),
        )
        if not out.size:
            return out
        chunks, which = np.unique(rows // size, return_inverse=True)
        output = self.output(
            out, len(chunks), which, rows % size, np.arange(len(rows), dtype=np.int64), None
        )

        def put(at: int, values: AnyArray) -> None:
            mine = which == at
            out[mine] = values[rows[mine] % size]

        self.start_scattered(
            [Scattered(int(n), [(output, at)], partial(put, at)) for at, n in enumerate(chunks)]
        ).result()
        return out

    def _numbers(self, item: Span | Scattered) -> Sequence[int]:
        across = int(np.prod(self._layout.grid[1:], dtype=np.int64))
        row = (
            item.chunk if isinstance(item, Scattered) else item.first // self._layout.chunk_shape[0]
        )
        return range(row * across, (row + 1) * across)

    def _cells(self, item: Span | Scattered) -> tuple[Cells, Cells]:
        size, shape = self._layout.chunk_shape[0], self._layout.shape
        if isinstance(item, Span):
            first, stop = item.first, item.stop
        else:
            first, stop = item.chunk * size, min((item.chunk + 1) * size, shape[0])
        return (first, *(0 for _ in shape[1:])), (stop - first, *shape[1:])

    def _put(self, item: Span | Scattered, values: AnyArray) -> None:
        if isinstance(item, Span):
            item.out[...] = values
        else:
            item.put(values)

    def _decoding(
        self,
        items: Sequence[Span | Scattered],
        stored: Mapping[int, StoredChunk],
        *,
        inline: bool,
    ) -> Any:
        return self._cached.chunks.start(items, stored, inline=inline)


class CachedBoxReader(_CachedReader[Box | Scattered]):
    """Reads boxes; a `BoxScatterReader`."""

    def start(self, boxes: Sequence[Any], pool: Executor) -> Future[None]:
        """Start reading boxes; the future has a ReadError if one fails."""
        return self._started([box for box in boxes if box.out.size])

    def output(
        self, out: Sequence[AnyArray], chunks: int, which: IntArray, *columns: IntArray
    ) -> Any:
        """As for `BoxScatterReader.output`."""
        return self._cached.chunks.output_of_boxes(out, chunks, which, *columns)

    def start_scattered(self, wanted: Sequence[Box | Scattered]) -> Future[None]:
        """Start reading; the future has a ReadError if a chunk fails."""
        return self._started(
            [item for item in wanted if isinstance(item, Scattered) or item.out.size]
        )

    def _numbers(self, item: Box | Scattered) -> Sequence[int]:
        if isinstance(item, Scattered):
            return (item.chunk,)
        at = tuple(map(int.__floordiv__, item.first, self._layout.chunk_shape))
        return (int(np.ravel_multi_index(at, self._layout.grid)),)

    def _cells(self, item: Box | Scattered) -> tuple[Cells, Cells]:
        if isinstance(item, Box):
            return item.first, item.out.shape
        layout = self._layout
        at = np.unravel_index(item.chunk, layout.grid)
        first = tuple(int(k) * c for k, c in zip(at, layout.chunk_shape, strict=True))
        sizes = zip(first, layout.chunk_shape, layout.shape, strict=True)
        return first, tuple(min(c, n - f) for f, c, n in sizes)

    def _put(self, item: Box | Scattered, values: AnyArray) -> None:
        if isinstance(item, Box):
            item.out[...] = values
        else:
            item.put(values)

    def _decoding(
        self, items: Sequence[Box | Scattered], stored: Mapping[int, StoredChunk], *, inline: bool
    ) -> Any:
        return self._cached.chunks.start_boxes(items, stored, inline=inline)


class _Both:
    """A reading of the core and other reads, as the one reading that `NativeRead` waits for."""

    def __init__(self, reading: Any, others: Future[None]) -> None:
        self._reading, self._others = reading, others

    def done(self) -> bool:
        return bool(self._reading.done()) and self._others.done()

    def wait(self, timeout: float | None = None, *, help: bool = False) -> bool:
        began_s = time.monotonic()
        if not self._reading.wait(timeout, help=help):
            return False
        try:
            left_s = None if timeout is None else max(0.0, began_s + timeout - time.monotonic())
            self._others.exception(left_s)
        except TimeoutError:
            return False
        return True


def _end(ends: Ends, place: int, read: Future[StoredChunk]) -> None:
    error = read.exception()
    ends.end(place, error if error is None or isinstance(error, Exception) else stopped())


def _first(errors: Mapping[int, BaseException]) -> BaseException:
    return next(iter(errors.values()))
