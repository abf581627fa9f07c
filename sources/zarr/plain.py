"""Plain arrays: their chunks, read and decoded by the native core without the interpreter's lock.

The core reads what is well-formed. A chunk that it refuses is read once more, as it may be written again at
that moment. What is then refused is an error with the core's reason, which names the file and the records.

Invariants: a read fills all of the requested memory or has a `ReadError`. A chunk that is not stored
reads as the fill value only while the array is there.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from windrow.core import buffer_pool
from windrow.core.native import buffer_of, native
from windrow.core.native_read import NativeRead
from windrow.core.threads import InlineExecutor
from windrow.errors import ReadError
from windrow.sources.base import AnyArray, IntArray
from windrow.sources.chunks import Box, Scattered, Span, partly_read
from windrow.sources.scan import Checks
from windrow.sources.zarr.error_text import damaged, held_cells, held_records
from windrow.sources.zarr.metadata import PlainLayout, plain_layout
from windrow.sources.zarr.presence import PresenceCheck, orphan_chunks, presence_of_file
from windrow.sources.zarr.reads import rows_read

Cells = tuple[int, ...]
Failures: TypeAlias = list[int]
# The stored bytes of a chunk; None if it is not stored.
StoredChunk: TypeAlias = bytes | None

_MOST_METADATA_BYTES: Final = 64 * 2**20
# A record in more chunks than this costs much more than its bytes.
_MOST_CELLS: Final = 16
_ENTRY_BYTES: Final = 16
_CHECKSUM_BYTES: Final = 4


def native_read(
    reading: Any, finish: Callable[[Failures, bool], None], *, inline: bool = False
) -> NativeRead[None]:
    """Wait for `reading`; then call `finish` with the failed items and whether one is missing.

    With `inline` this thread reads, now.
    """

    def end() -> None:
        finish(sorted({item for item, _ in reading.failures()}), reading.missing())

    return NativeRead(reading, end, inline=inline)


class NativeChunks:
    """The chunks of a plain array, by the core."""

    def __init__(self, plain: PlainLayout, core: Any, folder: str | None) -> None:
        """Open nothing yet. Without a folder each read is given the stored bytes."""
        number_bytes = plain.dtype.itemsize // (2 if plain.dtype.kind == "c" else 1)
        swaps = plain.stored_dtype != plain.dtype
        indexed = plain.index_location == "start", bool(plain.index_codecs)
        self._core = core
        self._array = core.ZarrArray(
            base=None if folder is None else os.fsencode(os.path.join(folder, plain.prefix)),
            separator=ord(plain.separator),
            shape=plain.shape,
            chunk=plain.chunk_shape,
            axes=plain.axes,
            per_object=plain.shard_grid,
            index=indexed if plain.shard_shape is not None else None,
            codecs=list(plain.codecs),
            itemsize=plain.dtype.itemsize,
            swap=number_bytes if swaps else 1,
            bools=plain.dtype == np.bool_,
            fill=plain.fill_bytes,
        )

    def start(
        self,
        wanted: Sequence[Span | Scattered],
        stored: Mapping[int, StoredChunk] | None = None,
        *,
        inline: bool = False,
    ) -> Any:
        """Start reading rows, each span in one row of chunks.

        Args:
            wanted: The rows.
            stored: Their chunks by number, in C order; None if they lie in the folder.
            inline: Whether the thread that waits reads them.
        """
        items = [
            (item.first, item.stop, buffer_of(item.out))
            if isinstance(item, Span)
            else (item.chunk, item.outputs)
            for item in wanted
        ]
        return self._array.start(items, stored=stored, inline=inline)

    def output(self, out: AnyArray, *where: Any) -> Any:
        """As for `ScatterReader.output`."""
        return self._core.Batch(buffer_of(out), *where)

    def start_boxes(
        self,
        boxes: Sequence[Box | Scattered],
        stored: Mapping[int, StoredChunk] | None = None,
        *,
        inline: bool = False,
    ) -> Any:
        """As `start`, of boxes, each in one chunk; neighbours in the list share its decoding."""
        wanted = [
            (box.first, buffer_of(box.out)) if isinstance(box, Box) else (box.chunk, box.outputs)
            for box in boxes
        ]
        return self._array.start_boxes(wanted, stored=stored, inline=inline)

    def output_of_boxes(
        self, out: Sequence[AnyArray], chunks: int, which: IntArray, *columns: IntArray
    ) -> Any:
        """As for `BoxScatterReader.output`."""
        return self._core.Boxes([buffer_of(field) for field in out], *columns, which, chunks)

    def read_boxes(self, boxes: Sequence[Box]) -> tuple[list[str], bool]:
        """Read boxes, each in one chunk. Waits.

        Returns why chunks could not be read, and whether some chunk is not stored.
        """
        reading = self.start_boxes(boxes, inline=len(boxes) == 1)
        reading.wait(help=True)
        return [why for _, why in reading.failures()], reading.missing()

    def gather(self, first: IntArray, size: int, out: AnyArray) -> tuple[Failures, bool]:
        """Read rows `[first[k], first[k] + size)` into `out`, one after the other, each chunk once.

        Returns which of the rows of chunks, ascending, could not be read, and whether some chunk is not
        stored.
        """
        reading = self._array.start_gather(
            np.ascontiguousarray(first, np.int64), size, buffer_of(out)
        )
        reading.wait(help=True)
        return sorted({item for item, _ in reading.failures()}), reading.missing()


def native_chunks(plain: PlainLayout, folder: str | None = None) -> NativeChunks | None:
    """The chunks of an array by the core; None without the core, or if it cannot read the array.

    Args:
        plain: How they are stored.
        folder: Where they are; None if each read is given the stored bytes.
    """
    core = native()
    if core is None or not plain.dtype.itemsize:
        return None
    try:
        return NativeChunks(plain, core, folder)
    except (ValueError, OverflowError):
        return None


@dataclasses.dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PlainArray(PlainLayout):
    """A local array that the native core decodes.

    Args:
        folder: The folder of its metadata; an absolute path.
        presence: Checks whether the array is still there.
        name: Name of the array in the source, for messages.
    """

    folder: str
    presence: PresenceCheck
    name: str = ""


def plain_array(folder: str, name: str = "") -> PlainArray | str:
    """The array in a local `folder`, or a string with the reason why TensorStore must read it."""
    known = {os.path.join(folder, "zarr.json"): 3, os.path.join(folder, ".zarray"): 2}
    path = next(filter(os.path.isfile, known), None)
    if path is None:
        return "it has neither zarr.json nor .zarray"
    try:
        if os.path.getsize(path) > _MOST_METADATA_BYTES:
            return "its metadata is very large"
        presence = presence_of_file(path)
    except (OSError, ValueError, RecursionError) as error:
        return f"its metadata cannot be read ({error})"
    layout = plain_layout(presence.metadata, known[path])
    if isinstance(layout, str):
        return layout
    presence = dataclasses.replace(presence, fill=layout.fill_bytes)
    return PlainArray(folder=folder, name=name, presence=presence, **vars(layout))


class PlainStore:
    """The chunks of a plain array: where they lie, and whether they can be read."""

    is_remote_source = False

    def __init__(self, plain: PlainArray, chunks: NativeChunks) -> None:
        """Open nothing yet."""
        self.plain, self.chunks = plain, chunks
        self._object_bytes: int | None = None

    def checks(self) -> Checks:
        """The chunks of the array."""
        return PlainChecks(self)

    def started(
        self, reader: PlainReader, wanted: Sequence[Span | Box | Scattered], *, inline: bool
    ) -> Future[None]:
        """Start reading items by `reader`; the future has a ReadError if one fails."""
        return reader.started(wanted, inline=inline)

    def stored_bytes(self, chunks: int, *, single: bool = False) -> int:
        """Bytes of some chunks in storage, estimated from the first stored object.

        Args:
            chunks: Their number.
            single: Whether to round down, as for chunks of single records.
        """
        per_object = math.prod(self.plain.shard_grid)
        if self._object_bytes is None:
            try:
                self._object_bytes = os.stat(self.file((0,) * len(self.plain.shape))).st_size
            except OSError:
                self._object_bytes = self.plain.chunk_bytes * per_object
        up = 0 if single else per_object - 1
        return (self._object_bytes * chunks + up) // per_object

    def file(self, at: Cells) -> str:
        """Path of the stored object that the chunk at coordinates `at` belongs in."""
        sizes = zip(at, self.plain.shard_grid, strict=True)
        return os.path.join(self.plain.folder, self.plain.key([k // n for k, n in sizes]))

    def offset(self, at: Cells) -> int | None:
        """The byte of its file at which a chunk begins; None if it is not stored."""
        plain, path = self.plain, self.file(at)
        if not os.path.isfile(path):  # to open a pipe would wait for ever
            return None
        if plain.shard_shape is None:
            return 0
        within = 0
        for k, count in zip(at, plain.shard_grid, strict=True):
            within = within * count + k % count
        length = _ENTRY_BYTES * math.prod(plain.shard_grid)
        length += _CHECKSUM_BYTES if plain.index_codecs else 0
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                begin = 0 if plain.index_location == "start" else max(0, size - length)
                file.seek(begin + _ENTRY_BYTES * within)
                offset = int.from_bytes(file.read(8), "little")
        except OSError:
            return None
        return offset if offset <= size else None

    def whole(self, at: Cells) -> Box:
        """A request to read all cells of the array in the chunk at coordinates `at`, to new memory."""
        plain = self.plain
        first = tuple(k * c for k, c in zip(at, plain.chunk_shape, strict=True))
        sizes = zip(first, plain.chunk_shape, plain.shape, strict=True)
        shape = tuple(min(c, n - f) for f, c, n in sizes)
        return Box(first, buffer_pool.empty(shape, plain.dtype))

    def look_again(self, coords: Iterable[Cells], *, cells: bool = False) -> bool:
        """Read chunks that the core refused once more, and return whether all are stored.

        Args:
            coords: Coordinates of the chunks.
            cells: Whether an error names cells instead of records.

        Raises:
            ReadError: If one of them cannot be read, or the array is gone.
        """
        is_stored = True
        for at in coords:
            failures, missing = self.chunks.read_boxes([self.whole(at)])
            if failures:
                raise self.damaged(at, failures[0], cells=cells)
            self.check_presence(missing)
            is_stored = is_stored and not missing
        return is_stored

    def damaged(self, at: Cells, why: str, *, cells: bool) -> ReadError:
        """The error for a chunk at coordinates `at`, which names its records, or its cells."""
        plain, file = self.plain, self.file(at)
        sizes = zip(at, plain.chunk_shape, plain.shape, strict=True)
        spans = [(k * c, min((k + 1) * c, n)) for k, c, n in sizes]
        return damaged(
            plain.name,
            plain.folder,
            held_cells(spans) if cells else held_records(*spans[0]),
            f"{file}: {why}",
            file=file,
            offset=self.offset(at),
            records=None if cells else spans[0],
        )

    def check_presence(self, missing: bool) -> None:
        """Check that the array is still there; `missing` says that some chunk was not stored.

        Raises:
            ReadError: If it is gone.
        """
        # Shards stay open, and can still be read after the array was replaced.
        if missing or self.plain.shard_shape is not None:
            self.plain.presence.refuse_gone(self.plain.folder)


class PlainReader(abc.ABC):
    """Reads items: rows of a row of chunks, or boxes of a chunk."""

    names_cells: bool
    """Whether items are boxes, and an error names cells instead of records."""

    def __init__(self, store: PlainStore) -> None:
        """Read the array of `store`."""
        self._store, self._plain, self._chunks = store, store.plain, store.chunks

    def checks(self) -> Checks:
        """The chunks of the array."""
        return self._store.checks()

    def start(self, wanted: Sequence[Any], pool: Executor) -> Future[None]:
        """Start reading items on the core's threads; the future has a ReadError if one fails."""
        return self._store.started(self, wanted, inline=isinstance(pool, InlineExecutor))

    def start_scattered(self, wanted: Sequence[Any]) -> Future[None]:
        """Start reading on the core's threads; the future has a ReadError if a chunk fails."""
        return self._store.started(self, wanted, inline=False)

    def begin(
        self,
        items: Sequence[Any],
        stored: Mapping[int, StoredChunk] | None = None,
        *,
        inline: bool = False,
    ) -> Any:
        """Begin to read items by the core; `stored` are their chunks, if they lie in no folder."""
        start = self._chunks.start_boxes if self.names_cells else self._chunks.start
        return start(items, stored, inline=inline)

    @abc.abstractmethod
    def coords(self, item: Any) -> list[Cells]:
        """The coordinates of the chunks of an item."""

    def started(self, wanted: Sequence[Span | Box | Scattered], *, inline: bool) -> Future[None]:
        """Start reading items of local files; the future has a ReadError if one fails."""
        items = [
            (number, item)
            for number, item in enumerate(wanted)
            if isinstance(item, Scattered) or item.out.size
        ]

        def finish(failed: Failures, missing: bool) -> None:
            errors = dict[int, ReadError]()
            for at in failed:
                same = self._of_same_chunks(items, at)
                try:
                    self._read_again([item for _, item in same])
                except ReadError as error:
                    errors |= dict.fromkeys((number for number, _ in same), error)
            self._store.check_presence(missing)
            if errors:
                raise partly_read(None, errors)

        reading = self.begin([item for _, item in items], inline=inline)
        return native_read(reading, finish, inline=inline)

    def _of_same_chunks(
        self, items: Sequence[tuple[int, Any]], at: int
    ) -> Sequence[tuple[int, Any]]:
        """An item that failed, and those after it of the same chunks, which the core reads with it."""
        coords, stop = self.coords(items[at][1]), at + 1
        while stop < len(items) and self.coords(items[stop][1]) == coords:
            stop += 1
        return items[at:stop]

    def _read_again(self, items: Sequence[Any]) -> None:
        coords = self.coords(items[0])
        self._store.look_again(coords, cells=self.names_cells)
        reading = self.begin(items, inline=True)
        reading.wait(help=True)
        for _, why in reading.failures():
            why = f"it changes while it is read ({why})"
            raise self._store.damaged(coords[0], why, cells=self.names_cells)


class PlainRowReader(PlainReader):
    """Reads rows; a `ScatterReader` and a `RunReader`."""

    names_cells = False

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

    def read(self, rows: IntArray) -> AnyArray:
        """Rows `(n, ...)` in new memory, each chunk decoded once. Waits; raises ReadError."""
        return self._gathered(rows, 1)

    def read_runs(self, first: IntArray, size: int) -> AnyArray:
        """Runs `(n, size, ...)` of rows in new memory. Waits; raises ReadError."""
        shape = (len(first), size, *self._plain.shape[1:])
        try:
            return self._gathered(first, size).reshape(shape)
        except ReadError as error:
            failed = error
        if failed.rest is None:
            raise failed
        found, errors = failed.rest.found, failed.rest.errors
        raise partly_read(found.reshape(shape), {row // size: errors[row] for row in errors})

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        """Bytes of chunks in storage, estimated from the first stored object."""
        single = self._plain.chunk_shape[0] == 1
        size = self._store.stored_bytes(math.prod(self._plain.grid[1:]), single=single)
        return np.full(len(chunks), size, np.int64)

    def coords(self, item: Span | Scattered) -> list[Cells]:
        size = self._plain.chunk_shape[0]
        return self._across(item.chunk if isinstance(item, Scattered) else item.first // size)

    def _across(self, row: int) -> list[Cells]:
        """The coordinates of the chunks in a row of chunks."""
        return list(itertools.product((row,), *map(range, self._plain.grid[1:])))

    def _gathered(self, first: IntArray, size: int) -> AnyArray:
        """Runs of `size` rows, end to end in new memory."""
        plain = self._plain
        if not self._store.is_remote_source:
            out = buffer_pool.empty((len(first) * size, *plain.shape[1:]), plain.dtype)
            if not out.size:
                return out
            failed, missing = self._chunks.gather(first, size, out)
            if not failed:
                self._store.check_presence(missing)
                return out
        rows, chunk_rows = (first[:, None] + np.arange(size)).ravel(), plain.chunk_shape[0]
        start = partial(self.start, pool=InlineExecutor())
        return rows_read(rows, lambda rows: rows // chunk_rows, start, plain.shape[1:], plain.dtype)


class PlainBoxReader(PlainReader):
    """Reads boxes; a `BoxScatterReader`."""

    names_cells = True

    def output(
        self, out: Sequence[AnyArray], chunks: int, which: IntArray, *columns: IntArray
    ) -> Any:
        """Describe where cells of chunks go in `out`; see `BoxScatterReader`."""
        return self._chunks.output_of_boxes(out, chunks, which, *columns)

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        """Bytes of chunks in storage, estimated from the first stored object."""
        return np.full(len(chunks), self._store.stored_bytes(1), np.int64)

    def coords(self, item: Box | Scattered) -> list[Cells]:
        if isinstance(item, Box):
            return [tuple(map(int.__floordiv__, item.first, self._plain.chunk_shape))]
        return [tuple(map(int, np.unravel_index(item.chunk, self._plain.grid)))]


class PlainChecks(Checks):
    """The chunks of a plain array."""

    def __init__(self, store: PlainStore) -> None:
        """Read nothing yet."""
        plain = store.plain
        rest = (0,) * len(plain.shape)
        super().__init__(plain.shape, plain.chunk_shape, rest, plain.dtype.itemsize)
        self._store, self._plain = store, plain

    @property
    def waits(self) -> bool:
        return False

    def check_run(self, first: int, stop: int) -> tuple[int, int] | None:
        if not self._is_run_whole(first, stop):
            return None
        self._store.check_presence(missing=False)
        return 0, 0

    def _is_run_whole(self, first: int, stop: int) -> bool:
        """Whether the chunks `[first, stop)` are all stored and can be read."""
        chunks = self._store.chunks
        if math.prod(self.grid[1:]) > 1:
            wanted = [self._store.whole(self.coords(at)) for at in range(first, stop)]
            failures, missing = chunks.read_boxes(wanted)
            return not failures and not missing
        begin, end = self.bounds(first)[0], self.bounds(stop - 1)[1]
        size = end[0] - begin[0]
        rows = buffer_pool.empty((size, *self._plain.shape[1:]), self._plain.dtype)
        failed, missing = chunks.gather(np.array([begin[0]]), size, rows)
        return not failed and not missing

    def check(self, number: int) -> bool | None:
        at = self.coords(number)
        failures, missing = self._store.chunks.read_boxes([self._store.whole(at)])
        if failures:
            return self._store.look_again([at])
        self._store.check_presence(missing)
        return not missing

    def is_stored(self, number: int) -> bool | None:
        at = self.coords(number)
        if self._plain.shard_shape is None:
            stored = os.path.lexists(self._store.file(at))
        else:
            stored = self._store.offset(at) is not None
        self._store.check_presence(not stored)
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


def is_read_by_row(plain: PlainArray) -> bool:
    """Whether the core reads a single record of chunks that are not encoded for its bytes alone."""
    if plain.codecs or not plain.row_bytes or math.prod(plain.grid[1:]) > _MOST_CELLS:
        return False
    return plain.shape[0] > 0 and (plain.chunk_shape[0] == 1 or plain.axes[0] == 0)
