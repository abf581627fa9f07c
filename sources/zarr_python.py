"""Arrays that zarr-python reads: those with a filter, codec or dtype that TensorStore has not.

Safety: metadata decides which code runs on what is stored, so it is checked before zarr-python sees
it, and zarr-python is handed the very bytes that were checked. Codecs and dtypes come from lists of
known ones, of which none unpickles or evaluates anything; objects of Python are never made, but for
texts and bytes of any length.

Invariants: pieces are chunks; to fill memory waits on the pool's thread; what can not be read is a
`ReadError` that names the records.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from windrow.errors import ReadError, SourceError, WindrowError, missing_extra
from windrow.sources.base import IntArray
from windrow.sources.checks import Checks
from windrow.sources.halts import halt_here, stopped
from windrow.sources.pieces import AnyArray, Box, Span
from windrow.sources.threads import Ends
from windrow.sources.zarr_access import Access
from windrow.sources.zarr_blobs import Blobs, FarBlobs, FolderBlobs, StoreBlobs
from windrow.sources.zarr_bounds import refuse_larger
from windrow.sources.zarr_codecs import DamageError
from windrow.sources.zarr_far import FetchedGuard, unreachable
from windrow.sources.zarr_guard import Guard, guard_of_file
from windrow.sources.zarr_names import Found
from windrow.sources.zarr_open import gone, refuse_absurd, sizes_of, unread
from windrow.sources.zarr_plain import damaged, held_records
from windrow.sources.zarr_python_metadata import (
    RefusedError,
    check,
    codecs_of,
    compressor_of,
    index_of_shards,
    is_plain_type,
    of_any_length,
    version_of,
)
from windrow.sources.zarr_reasons import bare, reason
from windrow.sources.zarr_urls import has_file_system

if TYPE_CHECKING:
    from windrow.sources.zarr_store import CheckedStore

_KEYS: Final = {2: ".zarray", 3: "zarr.json"}
_MOST_TEXT_BYTES: Final = 2**30
_WIDEST: Final = 8


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PythonArray:
    """An array that zarr-python reads.

    Args:
        array: The `zarr.Array`.
        name: Name of the array in the source, for messages.
        where: Its place.
        why: Why TensorStore does not read it, in words.
        shape: Rows first; at least one axis.
        dtype: As delivered: in this machine's byte order; of objects for texts of any length.
        chunk_shape: What is decoded as one; the inner chunk of a sharded array.
        fill_bytes: A cell that is not stored, in memory; empty for texts of any length.
        guard: Tells whether the array is there still; None where nothing does.
        access: How it is reached, if it is far away.
    """

    array: Any
    name: str
    where: str
    why: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_shape: tuple[int, ...]
    fill_bytes: bytes
    guard: Guard | FetchedGuard | None
    access: Access | None = None

    @property
    def variable(self) -> bool:
        """Whether its values are texts or bytes of any length, as objects."""
        return self.dtype == np.dtype(object)

    @property
    def store(self) -> CheckedStore:
        """What it lies in."""
        found: CheckedStore = self.array.store
        return found

    def fill(self, first: Sequence[int], out: AnyArray, file: str | None = None) -> None:
        """Fill `out` with the cells from `first` on. Waits.

        Args:
            first: The first cell.
            out: Memory.
            file: Where all of them lie, if that is known.

        Raises:
            ReadError: If a chunk can not be read, or the array is gone.
        """
        if self.access is not None:
            out[...] = self.begin(first, out.shape).result()
            return
        try:
            out[...] = self._values(first, out.shape)
        except Exception as error:  # codecs raise what they like, on what is stored
            raise self._damaged(first[0], len(out), error, file) from error
        if self.guard is not None and not self.variable:
            self.guard.check(np.ascontiguousarray(out), range(len(out)), self.where)

    def begin(self, first: Sequence[int], shape: Sequence[int]) -> Future[AnyArray]:
        """Start reading cells far away, into memory of their own; the future has a ReadError."""
        access = self.access
        if access is None:
            raise TypeError("only an array far away is read beside others")

        def values() -> AnyArray:
            halt = halt_here()
            if halt is not None and halt.is_set:
                raise stopped()
            try:
                found = self._values(first, shape)
            except Exception as error:  # codecs raise what they like, on what is stored
                raise self._damaged(first[0], shape[0], error, None) from None
            if self.guard is not None and not self.variable:
                self.guard.check(np.ascontiguousarray(found), range(len(found)), self.where)
            return found

        answer: Future[AnyArray] = Future()
        answer.set_running_or_notify_cancel()

        def ended(read: Future[AnyArray]) -> None:
            error = read.exception()
            if error is None:
                answer.set_result(read.result())
            elif isinstance(error, ReadError):
                answer.set_exception(error)
            else:
                answer.set_exception(self._damaged(first[0], shape[0], error, None))

        sizes = zip(first, shape, self.chunk_shape, strict=True)
        chunks = math.prod((f + n - 1) // c - f // c + 1 for f, n, c in sizes)
        weight = chunks * math.prod(self.chunk_shape) * self.dtype.itemsize
        begun = partial(access.run, values)
        read = access.fetches.start(begun, chunks, weight_bytes=weight)
        read.add_done_callback(ended)
        return answer

    def _values(self, first: Sequence[int], shape: Sequence[int]) -> AnyArray:
        place = tuple(slice(f, f + n) for f, n in zip(first, shape, strict=True))
        found: AnyArray = np.asarray(self.array[place], self.dtype).reshape(shape)
        return found

    def _damaged(self, first: int, count: int, error: BaseException, file: str | None) -> ReadError:
        records = self._chunk_rows(first, first + count)
        held = held_records(*records)
        if self.access is None:
            why = reason(error)
        else:
            why = self.access.reason(error)
            if isinstance(error, WindrowError | TimeoutError):
                return unreachable(self.name, self.where, held, why, records)
        if not isinstance(error, DamageError):
            why = f"zarr-python says {type(error).__name__}: {why}"
        return damaged(self.name, self.where, held, why, file=file)

    def _chunk_rows(self, first: int, stop: int) -> tuple[int, int]:
        rows = self.chunk_shape[0]
        return first // rows * rows, min(-(-stop // rows) * rows, self.shape[0])


class PythonReader:
    """Reads rows through zarr-python; a `RowReader`."""

    def __init__(self, array: PythonArray) -> None:
        self._array = array

    def checks(self) -> Checks:
        """The chunks of the array."""
        return PythonChecks(self._array)

    def start(self, spans: Sequence[Span], pool: Executor) -> Future[None]:
        """Fill the spans in one task on `pool`, or each beside the others if they are far away.

        The future has a ReadError if that fails.
        """
        if self._array.access is None:
            return pool.submit(self._fill, list(spans))
        rest = (0,) * (len(self._array.shape) - 1)
        boxes = [Box((span.first, *rest), span.out) for span in spans]
        return _filled(self._array, [(box.first, box.out.shape, [box]) for box in boxes])

    def read(self, rows: IntArray) -> AnyArray:
        """Rows `(n, ...)` in new memory. Waits; raises ReadError."""
        array = self._array
        found = np.empty((len(rows), *array.shape[1:]), array.dtype)
        order = np.argsort(rows, kind="stable")
        wanted = rows[order]
        cuts = np.flatnonzero(np.diff(wanted // array.chunk_shape[0])) + 1
        rest = (0,) * (len(array.shape) - 1)
        parts = [
            (part, to, int(part[0]), int(part[-1]) + 1)
            for part, to in zip(np.split(wanted, cuts), np.split(order, cuts), strict=True)
            if len(part)
        ]
        if array.access is not None:
            reads = [array.begin((a, *rest), (b - a, *array.shape[1:])) for _, _, a, b in parts]
            for read, (part, to, first, _) in zip(reads, parts, strict=True):
                found[to] = read.result()[part - first]
            return found
        for part, to, first, stop in parts:
            block = np.empty((stop - first, *array.shape[1:]), array.dtype)
            array.fill((first, *rest), block)
            found[to] = block[part - first]
        return found

    def stored_bytes(self, pieces: IntArray) -> IntArray:
        """Bytes of pieces in memory: what they take in storage is not known."""
        array = self._array
        size = array.chunk_shape[0] * math.prod(array.shape[1:]) * array.dtype.itemsize
        return np.full(len(pieces), size, np.int64)

    def _fill(self, spans: list[Span]) -> None:
        rest = (0,) * (len(self._array.shape) - 1)
        for span in spans:
            self._array.fill((span.first, *rest), span.out)


class PythonBoxReader:
    """Reads boxes through zarr-python; a `BoxReader`."""

    def __init__(self, array: PythonArray) -> None:
        self._array = array

    def checks(self) -> Checks:
        """The chunks of the array."""
        return PythonChecks(self._array)

    def start(self, boxes: Sequence[Box], pool: Executor) -> Future[None]:
        """Fill the boxes in one task on `pool`, or each chunk beside others if they are far away.

        The future has a ReadError if that fails.
        """
        if self._array.access is None:
            return pool.submit(self._fill, list(boxes))
        groups = []
        for corner, group in itertools.groupby(boxes, self._corner):
            together = list(group)
            if len(together) == 1:
                groups.append((together[0].first, together[0].out.shape, together))
            else:
                groups.append((corner, self._chunk_at(corner), together))
        return _filled(self._array, groups)

    def stored_bytes(self, pieces: IntArray) -> IntArray:
        """Bytes of chunks in memory: what they take in storage is not known."""
        size = math.prod(self._array.chunk_shape) * self._array.dtype.itemsize
        return np.full(len(pieces), size, np.int64)

    def _fill(self, boxes: list[Box]) -> None:
        array = self._array
        for corner, group in itertools.groupby(boxes, self._corner):
            together = list(group)
            if len(together) == 1:
                array.fill(together[0].first, together[0].out)
                continue
            # Any box costs its chunk: several of one chunk are cut from it.
            block = np.empty(self._chunk_at(corner), array.dtype)
            array.fill(corner, block)
            for box in together:
                box.fill(block, corner)

    def _chunk_at(self, corner: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the chunk that begins at a cell, as far as it lies in the array."""
        sizes = zip(self._array.chunk_shape, self._array.shape, corner, strict=True)
        return tuple(min(c, n - f) for c, n, f in sizes)

    def _corner(self, box: Box) -> tuple[int, ...]:
        """The first cell of the chunk that a box lies in."""
        return tuple(f // c * c for f, c in zip(box.first, self._array.chunk_shape, strict=True))


def _filled(
    array: PythonArray, groups: Sequence[tuple[tuple[int, ...], tuple[int, ...], list[Box]]]
) -> Future[None]:
    """Start filling boxes far away, each group from one read of a shape from a cell on."""
    if not groups:
        done: Future[None] = Future()
        done.set_result(None)
        return done
    ends = Ends(len(groups))

    def came(place: int, read: Future[AnyArray]) -> None:
        error: Exception | None = None
        try:
            first, _, boxes = groups[place]
            for box in boxes:
                box.fill(read.result(), first)
        except Exception as other:
            error = other
        ends.end(place, error)

    for place, (first, shape, _) in enumerate(groups):
        array.begin(first, shape).add_done_callback(partial(came, place))
    return ends.done


class PythonChecks(Checks):
    """The chunks of an array that zarr-python reads."""

    def __init__(self, array: PythonArray) -> None:
        """Open nothing."""
        shape, itemsize = array.shape, array.dtype.itemsize
        super().__init__(shape, array.chunk_shape, (0,) * len(shape), itemsize)
        self._array = array
        shard = array.array.shards or array.chunk_shape
        self._per_shard = tuple(s // c for s, c in zip(shard, array.chunk_shape, strict=True))
        self._across = math.prod(self.grid[1:])

    @property
    def waits(self) -> bool:
        return True

    def check_run(self, first: int, stop: int) -> tuple[int, int] | None:
        if self._across != 1:
            return None
        begin, end = self.bounds(first)[0], self.bounds(stop - 1)[1]
        block = np.empty([e - b for b, e in zip(begin, end, strict=True)], self._array.dtype)
        rows = self._array.chunk_shape[0]
        try:
            self._array.fill(begin, block)
            chunks = (block[at : at + rows] for at in range(0, len(block), rows))
            stored = [self._told(first + k, chunk) for k, chunk in enumerate(chunks)]
        except OSError:
            return None  # one by one, to tell the chunk
        return stored.count(False), 0

    def check(self, number: int) -> bool:
        begin, end = self.bounds(number)
        block = np.empty([e - b for b, e in zip(begin, end, strict=True)], self._array.dtype)
        self._array.fill(begin, block, self.file(number))
        return self._told(number, block)

    def is_stored(self, number: int) -> bool:
        array = self._array
        try:
            return array.store.holds(*self._place(number))
        except (DamageError, OSError, RuntimeError, ValueError) as error:
            held = held_records(*(bounds[0] for bounds in self.bounds(number)))
            file = self.file(number)
            raise damaged(array.name, array.where, held, reason(error), file=file) from error

    def file(self, number: int) -> str | None:
        return self._array.store.file(self._place(number)[0])

    def strays(self) -> list[str]:
        return []

    def _told(self, number: int, block: AnyArray) -> bool:
        """Whether a chunk is stored that reads as `block`: any value but the fill value tells."""
        if self._array.variable:
            return self.is_stored(number)
        fill = np.frombuffer(self._array.fill_bytes, np.uint8)
        cells = np.ascontiguousarray(block).reshape(-1).view(np.uint8).reshape(-1, len(fill))
        return bool((cells != fill).any()) or self.is_stored(number)

    def _place(self, number: int) -> tuple[str, int]:
        """Key of the object that holds a chunk, and the number of the chunk in it."""
        key, inside = [], 0
        for at, count in zip(self.coords(number), self._per_shard, strict=True):
            key.append(at // count)
            inside = inside * count + at % count
        return self._array.array.metadata.encode_chunk_key(tuple(key)), inside


@bare
def open_python(found: Found, why: str) -> PythonArray:
    """The array, opened by zarr-python after its metadata were checked.

    Args:
        found: An array of Zarr that was found by a path or URL.
        why: As `why_python` says it.

    Raises:
        MissingExtraError: If zarr-python is not installed.
        NotFoundError: If the array is gone.
        SourceError: If it can not be opened, or has a codec or dtype that is not read.
    """
    key, raw, blobs = _stored_metadata(found)
    try:
        meta = json.loads(raw)
        if not isinstance(meta, dict):
            raise RefusedError("its metadata are no JSON object")
        check(meta)
        most = _check_sizes(found, meta)
        packed = compressor_of(meta)
    except SourceError:
        raise
    except (RefusedError, ValueError, TypeError, LookupError, AttributeError) as error:
        # Metadata may be of any form; what is of another one than the checks expect is refused.
        raise unread(found, str(error)) from error
    try:
        from windrow.sources.zarr_store import CheckedStore, open_array
    except ImportError as error:
        raise missing_extra(
            f"{found.what}: {found.named} in {found.where} ({why})", "zarr"
        ) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are for those who write such arrays
            measure = None if packed is None else partial(refuse_larger, packed, most=most)
            store = CheckedStore(blobs, {key: raw}, measure)
            array = open_array(store, version_of(meta))
            if array.shards is not None:
                per_shard = math.prod(
                    s // c for s, c in zip(array.shards, array.chunks, strict=True)
                )
                store.sharded(per_shard, **index_of_shards(meta))
        shape, chunk = tuple(map(int, array.shape)), tuple(map(int, array.chunks))
        dtype = np.dtype(object) if array.dtype.kind in "OT" else array.dtype.newbyteorder("=")
        fill = _fill_bytes(array.fill_value, dtype)
    except Exception as error:  # zarr-python raises what it likes, on what is stored
        if found.access is None:
            raise unread(found, f"{why}; zarr-python says {reason(error)}") from error
        raise unread(found, f"{why}; zarr-python says {found.access.reason(error)}") from None
    guard: Guard | FetchedGuard | None = None
    if found.folder is not None and fill:
        guard = dataclasses.replace(guard_of_file(os.path.join(found.folder, key)), fill=fill)
    elif found.access is not None and fill:
        guard = FetchedGuard(lambda: blobs.whole(key), found.where + key, raw, fill)
    return PythonArray(
        array, found.name, found.where, why, shape, dtype, chunk, fill, guard, found.access
    )


def _fill_bytes(value: Any, dtype: np.dtype[Any]) -> bytes:
    """A cell of zarr-python's that is not stored; empty where it is an object."""
    if dtype.kind == "O":
        return b""
    if value is None:
        value = "NaT" if dtype.kind in "mM" else np.zeros((), dtype)
    return np.asarray(value, dtype).tobytes()


def _stored_metadata(found: Found) -> tuple[str, bytes, Blobs]:
    """Key and bytes of an array's own metadata, and the objects of the array."""
    key = _KEYS[2 if "dtype" in (found.metadata or {}) else 3]
    blobs = _objects(found)
    try:
        raw = blobs.whole(key)
    except SourceError:
        raise
    except (ValueError, RuntimeError, OSError) as error:
        if found.access is None:
            raise SourceError(
                f"{found.what}: {found.where} can not be read: {reason(error)}"
            ) from error
        raise SourceError(
            f"{found.what}: {found.where} can not be read: {found.access.reason(error)}"
        ) from None
    if raw is None:
        raise gone(found, f"it has no {key}")
    return key, raw, blobs


def _objects(found: Found) -> Blobs:
    """The objects of an array: by files, by ranges of fsspec, or by TensorStore's reads."""
    if found.folder is not None:
        return FolderBlobs(found.folder)
    access = found.access
    if access is None:
        raise TypeError("what is not in a local folder is reached by an access")
    if found.url is not None and (found.spec is None or has_file_system(found.url)):
        return FarBlobs(access, found.url)
    kvstore = found.spec["kvstore"] if isinstance(found.spec, dict) else found.spec.kvstore
    try:
        return StoreBlobs(access, access.opened(kvstore))
    except (ValueError, RuntimeError, OSError) as error:
        raise SourceError(
            f"{found.what}: {found.where} can not be read: {access.reason(error)}"
        ) from None


def _check_sizes(found: Found, meta: Mapping[str, Any]) -> int:
    """Raise if sizes are none, or absurd; the most bytes that a chunk is decompressed to."""
    shape = sizes_of(meta.get("shape"))
    if version_of(meta) == 2:
        chunk = shard = sizes_of(meta.get("chunks"))
    else:
        grid = meta.get("chunk_grid")
        chunk = shard = sizes_of(((grid or {}).get("configuration") or {}).get("chunk_shape"))
        for _, name, settings in codecs_of(meta):
            if name == "sharding_indexed":
                chunk = sizes_of(settings.get("chunk_shape"))
    if shape is None or chunk is None or shard is None or not len(shape) == len(chunk):
        raise RefusedError("its shape and chunks are no lists of sizes of one length")
    if not shape:
        raise RefusedError("its shape is (), and the first axis counts records")
    if min(shape) < 0 or min(chunk) < 1 or min(shard) < 1:
        raise RefusedError("a size in its shape or chunks is too small")
    refuse_absurd(found, shape, chunk, _item_bytes(meta), shard)
    if of_any_length(meta):
        return _MOST_TEXT_BYTES
    # Filters may store values wider than they are.
    return _WIDEST * math.prod(chunk) * max(8, _item_bytes(meta)) + 2**16


def _item_bytes(meta: Mapping[str, Any]) -> int:
    """Bytes of one value; of texts of any length, of the reference to it."""
    dtype = meta.get("dtype", meta.get("data_type"))
    if isinstance(dtype, dict):
        length = dtype.get("configuration", {}).get("length_bytes", 8)
        if type(length) is not int or not 0 < length < 2**22:
            raise RefusedError(f"dtype of {length!r} bytes")
        return length
    if isinstance(dtype, str) and is_plain_type(dtype):
        return np.dtype(dtype).itemsize
    return 8
