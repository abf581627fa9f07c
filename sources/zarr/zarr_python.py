"""Arrays that zarr-python reads, since TensorStore lacks a filter, codec or dtype of theirs.

Safety: metadata decide which code runs on stored data, so they are checked before zarr-python sees
them, and zarr-python gets the very metadata that were checked. Codecs and dtypes must be on lists of
known ones, and none of these unpickles or evaluates anything. No Python objects are made, except
strings and bytes of any length.

Invariants: filling memory waits on the pool's thread. A chunk that cannot be read is a `ReadError`
that names the records.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import warnings
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Final, Protocol

import numpy as np

from windrow.core.system_errors import is_unanswered, is_unsupported, refused_bytes
from windrow.core.threads import InlineExecutor, then
from windrow.errors import ReadError, SourceError, WindrowError, missing_extra
from windrow.sources.base import AnyArray, IntArray
from windrow.sources.chunks import Box, Span
from windrow.sources.remote.faults import as_fault
from windrow.sources.scan import Checks
from windrow.sources.zarr.codecs import (
    ChunkDamageError,
    RefusedError,
    check,
    checked_sizes,
    compressor_of,
    index_of_shards,
    most_chunk_bytes,
    refuse_larger,
    stand_in,
)
from windrow.sources.zarr.error_text import damaged, held_records, reason, single, unreachable
from windrow.sources.zarr.folders import StoredObjects
from windrow.sources.zarr.metadata import version_of, why_python
from windrow.sources.zarr.names import Found
from windrow.sources.zarr.presence import PresenceCheck, presence_of_file
from windrow.sources.zarr.reads import as_boxes, filled, rows_read
from windrow.sources.zarr.remote import RemotePresence
from windrow.sources.zarr.stores import Access, bare

Cells = tuple[int, ...]

LIBRARY: Final = "zarr-python"
_KEYS: Final = {2: ".zarray", 3: "zarr.json"}


class CellArray(Protocol):
    """Gives the cells of an array, by chunks that it knows."""

    @property
    def shape(self) -> Cells:
        """The shape in its own metadata."""
        ...

    @property
    def object_rows(self) -> int:
        """Rows of one stored object, which is a shard or a chunk."""
        ...

    @property
    def refuse_missing(self) -> bool:
        """Whether chunks that are not stored cannot be read."""
        ...

    def __getitem__(self, place: tuple[slice, ...]) -> AnyArray:
        """The cells of a box. Waits; may raise anything."""
        ...

    def holds(self, chunk: Cells) -> bool:
        """Whether a chunk is stored, by its coordinates. Waits.

        Raises:
            ChunkDamageError: If what holds it is damaged.
            OSError, RuntimeError, ValueError: If it cannot be read.
        """
        ...

    def file(self, chunk: Cells) -> str | None:
        """The local file that a chunk belongs in; None without one."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PythonArray:
    """An array that zarr-python reads.

    Args:
        array: Gives its cells.
        name: Name of the array in the source, for messages.
        where: Its place, for messages.
        why: The reason why TensorStore does not read it.
        shape: Rows first; at least one axis.
        dtype: As delivered: in this machine's byte order; of objects for strings of any length.
        chunk_shape: Shape of the cells that are decoded together; the inner chunk of a sharded
            array.
        fill_bytes: A cell that is not stored, in memory; empty for strings of any length.
        most_bytes: The most bytes that a chunk may decompress to.
        presence: Checks whether the array is still there; None if nothing can.
        access: How it is reached, if it is remote.
        library: What reads it, for messages.
        misplaced: As for `Checks.misplaced`.
    """

    array: CellArray
    name: str
    where: str
    why: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_shape: tuple[int, ...]
    fill_bytes: bytes
    most_bytes: int
    presence: PresenceCheck | RemotePresence | None
    access: Access | None = None
    library: str = LIBRARY
    misplaced: str = ""

    @property
    def variable(self) -> bool:
        """Whether its values are strings or bytes of any length, as objects."""
        return self.dtype == np.dtype(object)

    @property
    def is_remote_source(self) -> bool:
        """Whether it is read over a network."""
        return self.access is not None

    @property
    def refuses_missing(self) -> bool:
        """Whether its cells can be read only where all their chunks are stored."""
        return self.array.refuse_missing

    @property
    def way(self) -> str:
        """How it is read, for people."""
        return f"read by {self.library}"

    @property
    def fill_value(self) -> Any:
        """The value of cells that are not stored; None for strings of any length."""
        return np.frombuffer(self.fill_bytes, self.dtype)[0] if self.fill_bytes else None

    def cells(
        self, first: Sequence[int], shape: Sequence[int], file: str | None = None
    ) -> AnyArray:
        """The cells that begin at `first`, in new memory. Waits.

        Args:
            first: The first cell.
            shape: Cells along each axis.
            file: The file that holds all of these cells, if it is known.

        Raises:
            ReadError: If a chunk cannot be read, or the array is gone.
        """
        return (
            self._read(first, shape, file)
            if self.access is None
            else self.begin(first, shape).result()
        )

    def _read(
        self, first: Sequence[int], shape: Sequence[int], file: str | None = None
    ) -> AnyArray:
        try:
            cells = self._values(first, shape)
        except Exception as raised:  # codecs may raise anything for damaged data
            error = single(raised)
            cause = error if self.access is None else None
            raise self.failed(first[0], shape[0], error, file) from cause
        if self.presence is not None and not self.variable:
            self.presence.check(np.ascontiguousarray(cells), range(len(cells)), self.where)
        return cells

    def begin(self, first: Sequence[int], shape: Sequence[int]) -> Future[AnyArray]:
        """Start reading cells of a remote array, into memory of their own.

        The future has a ReadError if that fails.
        """
        access = self.access
        if access is None:
            raise TypeError("only a remote array is read in the background")

        def ended(read: Future[AnyArray]) -> AnyArray:
            error = read.exception()
            if error is not None and not isinstance(error, ReadError):
                raise self.failed(first[0], shape[0], error)
            return read.result()

        sizes = zip(first, shape, self.chunk_shape, strict=True)
        chunks = math.prod((f + n - 1) // c - f // c + 1 for f, n, c in sizes)
        weight = chunks * math.prod(self.chunk_shape) * self.dtype.itemsize
        read = access.fetches.start(partial(self._read, first, shape), chunks, weight_bytes=weight)
        return then(read, ended)

    def _values(self, first: Sequence[int], shape: Sequence[int]) -> AnyArray:
        place = tuple(slice(f, f + n) for f, n in zip(first, shape, strict=True))
        cells: AnyArray = np.asarray(self.array[place], self.dtype).reshape(shape)
        return cells

    def failed(
        self, first: int, count: int, error: BaseException, file: str | None = None
    ) -> ReadError:
        """The error of reading `count` rows from `first` on, from the error that was raised."""
        records = self._chunk_rows(first, first + count)
        held = held_records(*records)
        if self.access is None:
            why = reason(error)
        else:
            why = self.access.reason(error)
            if isinstance(error, WindrowError | TimeoutError):
                return unreachable(self.name, self.where, held, why, records)
        if not isinstance(error, ChunkDamageError) and self.library == LIBRARY:
            why = f"{LIBRARY} says {type(error).__name__}: {why}"
        fault = as_fault(error) if isinstance(error, Exception) else None
        unanswered = is_unanswered(error) or (
            fault is not None and (fault.is_outage or fault.cause == "denied")
        )
        if refused_bytes(error) > self._allowed_bytes(count):  # a size in the chunk is damaged
            unanswered = False
        return damaged(
            *(self.name, self.where, held, why),
            file=file,
            unanswered=unanswered,
            unsupported=is_unsupported(error),
        )

    def _allowed_bytes(self, count: int) -> int:
        """The most bytes of an array in memory that reading `count` rows may need."""
        rows = max(count, self.array.object_rows, self.chunk_shape[0])
        cells = rows * math.prod(map(max, self.shape[1:], self.chunk_shape[1:]))
        return max(self.most_bytes, cells * max(8, self.dtype.itemsize))

    def _chunk_rows(self, first: int, stop: int) -> tuple[int, int]:
        rows = self.chunk_shape[0]
        return first // rows * rows, min(-(-stop // rows) * rows, self.shape[0])


class PythonReader:
    """Reads rows or boxes through zarr-python; a `RowReader` and a `BoxReader`."""

    is_slow = True  # a chunk takes milliseconds, however small it is

    def __init__(self, array: PythonArray, chunk_shape: Sequence[int] | None = None) -> None:
        """Read boxes of chunks of `chunk_shape`; None for whole rows of the array's chunks."""
        self._array = array
        self._chunk = chunk_shape or (array.chunk_shape[0], *array.shape[1:])

    def checks(self) -> Checks:
        """The chunks of the array."""
        return PythonChecks(self._array)

    def start(self, wanted: Sequence[Span] | Sequence[Box], pool: Executor) -> Future[None]:
        """Fill spans or boxes on `pool`, or concurrently if the array is remote.

        The future has a ReadError if that fails.
        """
        groups = [list(group) for _, group in itertools.groupby(as_boxes(wanted), self._corner)]
        array = self._array

        def begun(boxes: Sequence[Box]) -> tuple[Cells, Future[AnyArray]]:
            first, shape = self._around(boxes)
            if array.access is None:
                return first, pool.submit(array.cells, first, shape)
            return first, array.begin(first, shape)

        return filled(groups, begun, again=array.access is not None)

    def read(self, rows: IntArray) -> AnyArray:
        """Rows `(n, ...)` in new memory, each chunk decoded once. Waits; raises ReadError."""
        array = self._array
        start = partial(self.start, pool=InlineExecutor())
        chunk_rows = array.chunk_shape[0]
        return rows_read(
            *(rows, lambda rows: rows // chunk_rows, start, array.shape[1:], array.dtype),
            apart=not self.is_slow,
        )

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        """Bytes of chunks in memory; their bytes in storage are not known."""
        size = math.prod(self._chunk) * self._array.dtype.itemsize
        return np.full(len(chunks), size, np.int64)

    def _around(self, boxes: Sequence[Box]) -> tuple[Cells, Cells]:
        """The first cell and the shape to read for boxes of one chunk."""
        if len(boxes) == 1:
            return boxes[0].first, boxes[0].out.shape
        # Any box costs its whole chunk, so several boxes of one chunk are cut from it.
        corner = self._corner(boxes[0])
        sizes = zip(self._chunk, self._array.shape, corner, strict=True)
        return corner, tuple(min(c, n - f) for c, n, f in sizes)

    def _corner(self, box: Box) -> Cells:
        """The first cell of the chunk that a box lies in."""
        return tuple(f // max(1, c) * c for f, c in zip(box.first, self._chunk, strict=True))


class PythonChecks(Checks):
    """The chunks of an array that zarr-python reads."""

    def __init__(self, array: PythonArray) -> None:
        """Open nothing."""
        shape, itemsize = array.shape, array.dtype.itemsize
        super().__init__(shape, array.chunk_shape, (0,) * len(shape), itemsize)
        self._array = array
        self._across = math.prod(self.grid[1:])

    @property
    def waits(self) -> bool:
        return True

    @property
    def misplaced(self) -> str:
        return self._array.misplaced

    def check_run(self, first: int, stop: int) -> tuple[int, int] | None:
        if self._across != 1:
            return None
        begin, end = self.bounds(first)[0], self.bounds(stop - 1)[1]
        rows = self._array.chunk_shape[0]
        try:
            block = self._array.cells(begin, np.subtract(end, begin).tolist())
            chunks = (block[at : at + rows] for at in range(0, len(block), rows))
            stored = [self._is_chunk_stored(first + k, chunk) for k, chunk in enumerate(chunks)]
        except OSError:
            return None  # check one by one, so that the error names the chunk
        return stored.count(False), 0

    def check(self, number: int) -> bool:
        begin, end = self.bounds(number)
        block = self._array.cells(begin, np.subtract(end, begin).tolist(), self.file(number))
        return self._is_chunk_stored(number, block)

    def is_stored(self, number: int) -> bool:
        array = self._array
        try:
            return array.array.holds(self.coords(number))
        except (ChunkDamageError, OSError, RuntimeError, ValueError) as error:
            held = held_records(*(bounds[0] for bounds in self.bounds(number)))
            file = self.file(number)
            raise damaged(array.name, array.where, held, reason(error), file=file) from error

    def file(self, number: int) -> str | None:
        return self._array.array.file(self.coords(number))

    def orphans(self) -> list[str]:
        return []

    def _is_chunk_stored(self, number: int, block: AnyArray) -> bool:
        """Whether a chunk is stored that reads as `block`; other values than the fill value are."""
        if self._array.variable:
            return self.is_stored(number)
        fill = np.frombuffer(self._array.fill_bytes, np.uint8)
        cells = np.ascontiguousarray(block).reshape(-1).view(np.uint8).reshape(-1, len(fill))
        return bool((cells != fill).any()) or self.is_stored(number)


def why_by_python(found: Found) -> str:
    """The reason why zarr-python reads an array; '' if TensorStore does.

    Raises:
        SourceError: If neither reads it.
    """
    if why := why_python(found.metadata or {}):
        return why
    if found.opened is not None:
        return f"the store is {found.opened.shown}"
    if found.spec is not None:
        return ""
    if found.access is None or found.url is None:
        why = "only TensorStore reads its format, and it does not open such URLs"
        if found.access is not None and found.access.options.cache_dir is not None:
            why += " if RemoteOptions has a cache_dir; leave that out"
        raise found.unread(why)
    return found.access.route(found.url).why


@bare
def open_python(found: Found, why: str) -> PythonArray:
    """The array, opened by zarr-python after its metadata were checked.

    Args:
        found: An array of Zarr that was found by a path or URL.
        why: The reason why TensorStore does not read it, as from `why_python`.

    Raises:
        MissingExtraError: If zarr-python is not installed.
        NotFoundError: If the array is gone.
        SourceError: If it cannot be opened, or has an unsupported codec or dtype.
    """
    try:
        from windrow.sources.zarr.python_store import CheckedStore, ZarrCells, open_array
    except ImportError as error:
        # An array that would be refused with the extra, too, does not need it.
        _checked(found, dict(found.metadata or {}))
        raise missing_extra(
            f"{found.what}: {found.named} in {found.where} ({why})", "zarr"
        ) from error
    objects = found.objects()
    key, raw = stored_metadata(found, objects)
    try:
        meta = json.loads(raw)
    except ValueError as error:
        raise found.unread(str(error)) from error
    stands_for, given = stand_in(meta)
    packed, most = _checked(found, given)
    agreed = found.agreed_shape(meta)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they address the writers of such arrays
            measure = None if packed is None else partial(refuse_larger, packed, most=most)
            checked = raw if stands_for is None else json.dumps(given).encode()
            store = CheckedStore(objects, {key: checked}, measure)
            array = open_array(store, version_of(given))
            cells = ZarrCells(array, stands_for)
            if array.shards is not None:
                store.sharded(cells.per_shard, **index_of_shards(given))
        shape, chunk = tuple(map(int, array.shape)), tuple(map(int, array.chunks))
        dtype = np.dtype(object) if array.dtype.kind in "OT" else array.dtype.newbyteorder("=")
        fill, dtype = _fill_bytes(array.fill_value, dtype), stands_for or dtype
    except Exception as error:  # zarr-python may raise anything for such metadata
        said, cause = found.reason(single(error))
        raise found.unread(f"{why}; {LIBRARY} says {said}") from cause
    if agreed is not None:
        shape = agreed
    presence = presence_of_stored(found, objects, key, raw, fill) if fill else None
    return PythonArray(
        *(cells, found.name, found.where, why, shape, dtype, chunk, fill, most),
        presence,
        found.access,
    )


def _checked(found: Found, meta: Any) -> tuple[str | None, int]:
    """The compressor of checked metadata, and the most bytes that a chunk may decompress to.

    Raises:
        SourceError: If zarr-python must not see them, or sizes are absurd.
    """
    try:
        if not isinstance(meta, dict):
            raise RefusedError("its metadata are not a JSON object")
        check(meta)
        shape, chunk, shard, item_bytes = checked_sizes(meta)
        found.refuse_absurd(shape, chunk, item_bytes, shard)
        return compressor_of(meta), most_chunk_bytes(meta, chunk, item_bytes)
    except SourceError:
        raise
    except (RefusedError, ValueError, TypeError, LookupError, AttributeError) as error:
        # Metadata may have any form; a form that the checks do not expect is refused.
        raise found.unread(str(error)) from error


def _fill_bytes(value: Any, dtype: np.dtype[Any]) -> bytes:
    """The bytes of a cell that is not stored; empty if it is an object."""
    if dtype.kind == "O":
        return b""
    if value is None:
        value = "NaT" if dtype.kind in "mM" else np.zeros((), dtype)
    return np.asarray(value, dtype).tobytes()


def stored_metadata(found: Found, objects: StoredObjects) -> tuple[str, bytes]:
    """Key and bytes of an array's own metadata.

    Raises:
        NotFoundError: If they are gone.
        SourceError: If they cannot be read.
    """
    key = _KEYS[2 if "dtype" in (found.metadata or {}) else 3]
    try:
        raw = objects.whole(key)
    except SourceError:
        raise
    except (ValueError, RuntimeError, OSError) as error:
        why, cause = found.reason(error)
        raise SourceError(f"{found.what}: {found.where} cannot be read: {why}") from cause
    if raw is None:
        raise found.gone(f"it has no {key}")
    return key, raw


def presence_of_stored(
    found: Found, objects: StoredObjects, key: str, raw: bytes, fill: bytes
) -> PresenceCheck | RemotePresence | None:
    """The check whether an array is still there, by its own metadata, with the bytes of its fill value."""
    if found.folder is not None:
        return dataclasses.replace(presence_of_file(os.path.join(found.folder, key)), fill=fill)
    if found.access is None:
        return None
    return RemotePresence(lambda: objects.whole(key), found.where + key, raw, fill)
