"""Readers of remote arrays with a cache on disk: the native core decodes, as it does for local files.

What the cache has is decoded on the core's threads, straight to where it is wanted. The rest is fetched
first, each chunk by a read of its own, and decoded by the thread that fetched it. What the core refuses
is read again by zarr-python. What is wanted of one chunk is read together, and again together.

Invariants: a read fills all of the requested memory or has a `ReadError`. Nothing writes to that memory
after the read has ended.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from windrow.core.cancellation import current_scope, stopped
from windrow.core.native_read import NativeRead
from windrow.core.threads import Ends
from windrow.errors import ReadError
from windrow.sources.base import AnyArray, IntArray
from windrow.sources.chunks import Box, Scattered, Span, partly_read
from windrow.sources.zarr.codecs import ChunkDamageError
from windrow.sources.zarr.plain import StoredChunk
from windrow.sources.zarr.stores import Access
from windrow.sources.zarr.zarr_python import PythonArray, PythonReader

if TYPE_CHECKING:
    from windrow.sources.zarr.cached_chunks import CachedChunks

Cells = tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Requests that need the same chunks, so that these are decoded once.

    Args:
        chunks: The chunks by number.
        items: The requests.
        places: Their places in the call.
    """

    chunks: Sequence[int]
    items: list[Any]
    places: list[int]


class CachedReads(PythonReader):
    """Reads items: rows of a row of chunks, or boxes of a chunk."""

    is_slow = False  # the core decodes

    def __init__(
        self,
        array: PythonArray,
        cached: CachedChunks,
        access: Access,
        chunk_shape: Sequence[int] | None = None,
    ) -> None:
        """Read an array by its cached chunks; `chunk_shape` as for `PythonReader`."""
        super().__init__(array, chunk_shape)
        self.cached, self._access, self._layout = cached, access, cached.layout

    @abc.abstractmethod
    def _numbers(self, item: Any) -> Sequence[int]:
        """The chunks of an item. Two items need the same ones, or have none in common."""

    @abc.abstractmethod
    def _decoding(
        self, items: Sequence[Any], stored: Mapping[int, StoredChunk], *, inline: bool
    ) -> Any:
        """Start decoding on the core's threads, or prepare it for the thread that waits."""

    def start(self, wanted: Sequence[Any], pool: Executor) -> Future[None]:
        """Start reading spans or boxes; the future has a ReadError if one fails."""
        return self.start_scattered(wanted)

    def start_scattered(self, wanted: Sequence[Span | Box | Scattered]) -> Future[None]:
        """Start reading items; the future has a ReadError if one fails, with a `Rest` of items."""
        try:
            self.cached.presence.look_sometimes(self._access.run, self._array.where)
        except ReadError as error:
            failed: Future[None] = Future()
            failed.set_exception(error)
            return failed
        groups = self._grouped(wanted)
        stored = self.cached.in_cache(n for group in groups for n in group.chunks)
        here, absent = list[_Group](), list[_Group]()
        for group in groups:
            (here if all(n in stored for n in group.chunks) else absent).append(group)
        # The core joins neighbours of one chunk, and reports the first of them alone.
        group_of = [group for group in here for _ in group.items]
        items = [item for group in here for item in group.items]
        reading = self._decoding(items, stored, inline=not here)
        fetched = self._fetched(absent, stored)

        def finish() -> None:
            errors = dict[int, ReadError]()
            failures = sorted(at for at, _ in reading.failures())
            refused = dict.fromkeys(group_of[at] for at in failures)
            for group, again in [(group, self._again(group)) for group in refused]:
                try:
                    self._put(group, again.result())
                except ReadError as error:
                    errors.update(dict.fromkeys(group.places, error))
            if fetched is not None:
                errors.update(_errors_of(fetched))
            if errors:
                raise partly_read(None, errors)

        return NativeRead(reading if fetched is None else _Both(reading, fetched), finish)

    def _grouped(self, wanted: Sequence[Span | Box | Scattered]) -> list[_Group]:
        """The items by their chunks, without those that need nothing."""
        groups: dict[Sequence[int], _Group] = {}
        for place, item in enumerate(wanted):
            if isinstance(item, Scattered) or item.out.size:
                chunks = self._numbers(item)
                group = groups.get(chunks)
                if group is None:
                    group = groups[chunks] = _Group(chunks, [], [])
                group.items.append(item)
                group.places.append(place)
        return list(groups.values())

    def _fetched(
        self, groups: Sequence[_Group], stored: Mapping[int, StoredChunk]
    ) -> Future[None] | None:
        """Start fetching chunks of groups that are not in `stored`, and decode each group then."""
        if not groups:
            return None
        reads = {n: self._fetch(n) for group in groups for n in group.chunks if n not in stored}
        ends = Ends(len(groups), partial(_error_of, groups))
        for place, group in enumerate(groups):
            missing = [number for number in group.chunks if number in reads]
            came = Ends(len(missing), _first)
            for at, number in enumerate(missing):
                reads[number].add_done_callback(partial(_end, came, at))
            given = {number: stored[number] for number in group.chunks if number in stored}
            mine = {number: reads[number] for number in missing}
            # The thread that fetches has no cancel scope.
            again = partial(copy_context().run, self._again, group)
            decode = partial(self._decode, group, given, mine, again, partial(ends.end, place))
            came.done.add_done_callback(decode)
        return ends.done

    def _fetch(self, number: int) -> Future[StoredChunk]:
        """Start fetching a chunk."""

        def fetch() -> StoredChunk:
            scope = current_scope()
            if scope is not None and scope.is_set:
                raise stopped()
            return self.cached.fetch(number, self._array.where)

        run, layout = partial(self._access.run, fetch), self._layout
        return self._access.fetches.start(run, weight_bytes=layout.chunk_bytes)

    def _decode(
        self,
        group: _Group,
        stored: Mapping[int, StoredChunk],
        reads: Mapping[int, Future[StoredChunk]],
        again: Callable[[], Future[AnyArray]],
        end: Callable[[Exception | None], None],
        came: Future[None],
    ) -> None:
        """Decode a group whose chunks came, and call `end` with the error, or None without one."""
        try:
            error = came.exception()
            if error is None:
                whole = {**stored, **{number: read.result() for number, read in reads.items()}}
                reading = self._decoding(group.items, whole, inline=True)
                reading.wait(help=True)
                if not reading.failures():
                    end(None)
                    return
            elif not isinstance(error, ChunkDamageError):
                first, shape = self._cells(group)
                end(self._array.failed(first[0], shape[0], error))
                return
            again().add_done_callback(partial(self._take, group, end))
        except Exception as other:  # otherwise the caller would wait forever
            end(other)

    def _again(self, group: _Group) -> Future[AnyArray]:
        """Start reading a group by zarr-python."""
        return self._array.begin(*self._cells(group))

    def _take(
        self, group: _Group, end: Callable[[Exception | None], None], read: Future[AnyArray]
    ) -> None:
        error: Exception | None = None
        try:
            self._put(group, read.result())
        except Exception as other:
            error = other
        end(error)

    def _cells(self, group: _Group) -> tuple[Cells, Cells]:
        """First cell and shape of what `_put` takes: a single box, or whole chunks."""
        if len(group.items) == 1 and not isinstance(group.items[0], Scattered):
            box = self._box(group.items[0])
            return box.first, box.out.shape
        layout = self._layout
        at = np.unravel_index(group.chunks[0], layout.grid)
        first = tuple(int(k) * c for k, c in zip(at, layout.chunk_shape, strict=True))
        sizes = zip(first, self._chunk, layout.shape, strict=True)
        return first, tuple(min(c, n - f) for f, c, n in sizes)

    def _put(self, group: _Group, values: AnyArray) -> None:
        """Copy values to where the items of a group want them."""
        first, _ = self._cells(group)
        for item in group.items:
            if isinstance(item, Scattered):
                item.put(values)
            else:
                self._box(item).fill(values, first)

    def _box(self, item: Span | Box) -> Box:
        if isinstance(item, Box):
            return item
        return Box((item.first, *(0 for _ in self._layout.shape[1:])), item.out)


class CachedRowReader(CachedReads):
    """Reads rows; a `ScatterReader`."""

    def output(self, out: AnyArray, *where: Any) -> Any:
        """As for `ScatterReader.output`."""
        return self.cached.chunks.output(out, *where)

    def _numbers(self, item: Span | Scattered) -> Sequence[int]:
        across = math.prod(self._layout.grid[1:])
        row = (
            item.chunk if isinstance(item, Scattered) else item.first // self._layout.chunk_shape[0]
        )
        return range(row * across, (row + 1) * across)

    def _decoding(
        self, items: Sequence[Any], stored: Mapping[int, StoredChunk], *, inline: bool
    ) -> Any:
        return self.cached.chunks.start(items, stored, inline=inline)


class CachedBoxReader(CachedReads):
    """Reads boxes; a `BoxScatterReader`."""

    def output(
        self, out: Sequence[AnyArray], chunks: int, which: IntArray, *columns: IntArray
    ) -> Any:
        """As for `BoxScatterReader.output`."""
        return self.cached.chunks.output_of_boxes(out, chunks, which, *columns)

    def _numbers(self, item: Box | Scattered) -> Sequence[int]:
        if isinstance(item, Scattered):
            return (item.chunk,)
        at = tuple(map(int.__floordiv__, item.first, self._layout.chunk_shape))
        return (int(np.ravel_multi_index(at, self._layout.grid)),)

    def _decoding(
        self, items: Sequence[Any], stored: Mapping[int, StoredChunk], *, inline: bool
    ) -> Any:
        return self.cached.chunks.start_boxes(items, stored, inline=inline)


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


def _error_of(groups: Sequence[_Group], errors: Mapping[int, BaseException]) -> BaseException:
    """The error of a read of groups, from the errors of those that failed, by place."""
    each = dict[int, ReadError]()
    for number, error in errors.items():
        if not isinstance(error, ReadError):
            return error
        each.update(dict.fromkeys(groups[number].places, error))
    return partly_read(None, each)


def _errors_of(read: Future[None]) -> Mapping[int, ReadError]:
    """Wait for a read; the errors of its items. Raises the error of a read that failed as a whole."""
    try:
        read.result()
    except ReadError as error:
        if error.rest is None:
            raise
        errors: Mapping[int, ReadError] = error.rest.errors
        return errors
    return {}
