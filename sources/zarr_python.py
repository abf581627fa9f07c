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
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from windrow.errors import ReadError, SourceError, WindrowError, missing_extra
from windrow.sources.base import IntArray
from windrow.sources.checks import Checks
from windrow.sources.pieces import AnyArray, Box, Span
from windrow.sources.threads import Ends
from windrow.sources.zarr_access import Access
from windrow.sources.zarr_blobs import Blobs, FarBlobs, FolderBlobs, StoreBlobs
from windrow.sources.zarr_bounds import COMPRESSORS, refuse_larger
from windrow.sources.zarr_codecs import DamageError
from windrow.sources.zarr_far import FetchedGuard, unreachable
from windrow.sources.zarr_guard import Guard, guard_of_file
from windrow.sources.zarr_names import Found
from windrow.sources.zarr_open import gone, refuse_absurd, sizes_of, unread
from windrow.sources.zarr_plain import damaged, held_records
from windrow.sources.zarr_reasons import reason
from windrow.sources.zarr_urls import has_file_system

if TYPE_CHECKING:
    from windrow.sources.zarr_store import CheckedStore

_KEYS: Final = {2: ".zarray", 3: "zarr.json"}
# What TensorStore decodes, as codecs are called in metadata.
_OF_TENSORSTORE: Final = {
    2: ("blosc", "bz2", "zlib", "gzip", "zstd"),
    3: ("bytes", "transpose", "sharding_indexed", "blosc", "gzip", "zstd", "crc32c"),
}
# Not among them: pickle, and json2 and msgpack2, which make any objects.
_NUMCODECS: Final = {
    *("adler32", "astype", "base64", "bitround", "blosc", "bz2", "categorize", "crc32", "crc32c"),
    *("delta", "fixedscaleoffset", "fletcher32", "gzip", "jenkins_lookup3", "lz4", "lzma"),
    *("packbits", "quantize", "shuffle", "vlen-bytes", "vlen-utf8", "zlib", "zstd"),
}
_OBJECT_CODECS: Final = ("vlen-utf8", "vlen-bytes")
_LITTLE: Final = {"name": "bytes", "configuration": {"endian": "little"}}
_INDEX_CODECS: Final = ([_LITTLE], [_LITTLE, {"name": "crc32c"}])
_DTYPE_SETTINGS: Final = ("dtype", "astype", "encode_dtype", "decode_dtype")
_NUMBER_TYPE: Final = r"[|<>=]?(?:b1|\?|[iu][1248]|f[248]|c(?:8|16)|[SU][1-9]\d{0,5})"
_NUMBER_NAME: Final = r"bool|u?int(?:8|16|32|64)|float(?:16|32|64)|complex(?:64|128)"
_TIME_TYPE: Final = r"[<>][mM]8\[\d*[a-zA-Z]+\]"
_MOST_TEXT_BYTES: Final = 2**30
_WIDEST: Final = 8
_V3_TEXTS: Final = ("string", "variable_length_bytes", "bytes")
_V3_NAMED: Final = (
    *("numpy.datetime64", "numpy.timedelta64", "fixed_length_utf32", "null_terminated_bytes"),
)


class _RefusedError(Exception):
    """Why metadata is not handed to zarr-python."""


def why_python(meta: Mapping[str, Any]) -> str:
    """Why TensorStore can not read an array of these metadata, in words; '' where it can."""
    version = _version(meta)
    for what, name, _ in _codecs(meta):
        if what == "filter" or name not in _OF_TENSORSTORE.get(version, (name,)):
            return f"{what} {name!r}"
    dtype = meta.get("dtype" if version == 2 else "data_type")
    if version == 2 and isinstance(dtype, str) and re.fullmatch(r"[|<>][SUOmM].*", dtype):
        return f"dtype {dtype!r}"
    if version == 3 and isinstance(dtype, dict) and dtype.get("name") in _V3_NAMED:
        return f"dtype {dtype['name']!r}"
    if version == 3 and dtype in _V3_TEXTS:
        return f"dtype {dtype!r}"
    dims = meta.get("dimension_names")
    names = [str(name) for name in dims if name] if isinstance(dims, list) else []
    if len(set(names)) < len(names):
        return "two axes have one name"
    return ""


def of_any_length(meta: Mapping[str, Any]) -> bool:
    """Whether values are texts or bytes of any length, which are objects in memory."""
    return meta.get("dtype") == "|O" or meta.get("data_type") in _V3_TEXTS


def _version(meta: Mapping[str, Any]) -> int:
    version = meta.get("zarr_format")
    return version if isinstance(version, int) else 0


def _codecs(meta: Mapping[str, Any]) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """What each codec is for, its name and settings; those inside shards too."""
    if _version(meta) == 2:
        filters = meta.get("filters") or []
        for what, item in (
            *(("filter", item) for item in (filters if isinstance(filters, list) else [filters])),
            ("compressor", meta.get("compressor")),
        ):
            if isinstance(item, dict):
                yield what, item.get("id"), {k: v for k, v in item.items() if k != "id"}
            elif item is not None:
                yield what, item, {}
        return
    yield from _codecs_v3(meta.get("codecs"), 0)


def _codecs_v3(chain: Any, depth: int) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    if not isinstance(chain, list) or depth > 2:
        yield "codec", None, {}
        return
    for item in chain:
        name: Any = item
        settings: Any = {}
        if isinstance(item, dict):
            name, settings = item.get("name"), item.get("configuration") or {}
        if not isinstance(settings, dict):
            name, settings = None, {}
        yield "codec", name, settings
        if name == "sharding_indexed":
            for inner in ("codecs", "index_codecs"):
                yield from _codecs_v3(settings.get(inner), depth + 1)


def _check(meta: Mapping[str, Any]) -> None:
    """Raise if zarr-python must not see these metadata."""
    version = _version(meta)
    if version not in _KEYS:
        raise _RefusedError(f"zarr_format {meta.get('zarr_format')!r}")
    names = []
    for what, name, settings in _codecs(meta):
        plain = name.removeprefix("numcodecs.") if isinstance(name, str) else None
        known = plain in _NUMCODECS
        if not known and not (version == 3 and name in _OF_TENSORSTORE[3]):
            raise _RefusedError(f"{what} {name!r}")
        for key in _DTYPE_SETTINGS:
            value = settings.get(key)
            if value is not None and not _is_plain_type(value):
                raise _RefusedError(f"{what} {name!r} with {key} {value!r}")
        if plain == "lzma" and settings.get("format", 1) not in (0, 1, 2):
            raise _RefusedError(f"{what} 'lzma' with format {settings.get('format')!r}")
        names.append(plain)
    dtype = meta.get("dtype" if version == 2 else "data_type")
    if version == 2:
        objects = dtype == "|O" and sum(name in _OBJECT_CODECS for name in names) == 1
        if not objects and not _is_plain_type(dtype):
            raise _RefusedError(f"dtype {dtype!r}")
    elif isinstance(dtype, dict):
        if dtype.get("name") not in _V3_NAMED:
            raise _RefusedError(f"dtype {dtype.get('name')!r}")
    elif not _is_plain_type(dtype) and dtype not in _V3_TEXTS:
        raise _RefusedError(f"dtype {dtype!r}")


def _compressor(meta: Mapping[str, Any]) -> str | None:
    """The codec that decompresses a stored chunk first of all; None if there is none.

    Raises if there are more of them, or another codec comes before it: such data could not be
    bounded.
    """
    if _version(meta) == 2:
        names = [str(name) for _, name, _ in _codecs(meta)]
    else:
        chain = [item if isinstance(item, dict) else {"name": item} for item in meta["codecs"]]
        if any(item.get("name") == "sharding_indexed" for item in chain):
            settings = chain[0].get("configuration") or {}
            if len(chain) > 1 or settings.get("index_codecs") not in _INDEX_CODECS:
                raise _RefusedError("codec 'sharding_indexed' with others around it")
            chain = [
                item if isinstance(item, dict) else {"name": item} for item in settings["codecs"]
            ]
        names = [str(item.get("name")) for item in chain]
        if "sharding_indexed" in names:
            raise _RefusedError("codec 'sharding_indexed' in shards")
        while names and names[-1] == "crc32c":  # it comes after what is stored
            names.pop()
    plain = [name.removeprefix("numcodecs.") for name in names]
    packed = [k for k, name in enumerate(plain) if name in COMPRESSORS]
    if not packed:
        return None
    if packed != [len(plain) - 1]:
        raise _RefusedError("it is compressed twice, or encoded further after that")
    return plain[-1]


def _is_plain_type(value: Any) -> bool:
    """Whether `value` names numbers, times, or texts of one length: no objects, no fields."""
    return isinstance(value, str) and any(
        re.fullmatch(pattern, value) for pattern in (_NUMBER_TYPE, _NUMBER_NAME, _TIME_TYPE)
    )


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
        size_bytes = math.prod(shape) * self.dtype.itemsize
        read = access.fetches.start(lambda: access.run(values), chunks, size_bytes)
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
            raise _RefusedError("its metadata are no JSON object")
        _check(meta)
        most = _check_sizes(found, meta)
        packed = _compressor(meta)
    except SourceError:
        raise
    except (_RefusedError, ValueError, TypeError, LookupError, AttributeError) as error:
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
            array = open_array(store, _version(meta))
            if array.shards is not None:
                per_shard = math.prod(
                    s // c for s, c in zip(array.shards, array.chunks, strict=True)
                )
                store.sharded(per_shard, **_index_of_shards(meta))
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


def _index_of_shards(meta: Mapping[str, Any]) -> dict[str, bool]:
    """Where the index of a shard is, and whether a checksum follows it."""
    settings = next(s for _, name, s in _codecs(meta) if name == "sharding_indexed")
    return {
        "at_end": settings.get("index_location", "end") == "end",
        "checksum": len(settings["index_codecs"]) > 1,
    }


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
    if _version(meta) == 2:
        chunk = shard = sizes_of(meta.get("chunks"))
    else:
        grid = meta.get("chunk_grid")
        chunk = shard = sizes_of(((grid or {}).get("configuration") or {}).get("chunk_shape"))
        for _, name, settings in _codecs(meta):
            if name == "sharding_indexed":
                chunk = sizes_of(settings.get("chunk_shape"))
    if shape is None or chunk is None or shard is None or not len(shape) == len(chunk):
        raise _RefusedError("its shape and chunks are no lists of sizes of one length")
    if not shape:
        raise _RefusedError("its shape is (), and the first axis counts records")
    if min(shape) < 0 or min(chunk) < 1 or min(shard) < 1:
        raise _RefusedError("a size in its shape or chunks is too small")
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
            raise _RefusedError(f"dtype of {length!r} bytes")
        return length
    if isinstance(dtype, str) and _is_plain_type(dtype):
        return np.dtype(dtype).itemsize
    return 8
