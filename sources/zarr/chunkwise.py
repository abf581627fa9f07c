"""Arrays whose chunks TensorStore decodes one by one, from bytes that are read here.

TensorStore opens neither arrays with chunks of unequal size (the rectilinear grid of Zarr v3) nor volumes
whose chunk files were compressed once more. So each chunk is given to it in memory, as the one chunk of an
array of its own. CloudVolume writes `x.gz` for the chunk `x` of a volume to a local disk, and can write other
endings; TensorStore looks for `x` alone, and reads what it does not find as zeros.

Invariants: a chunk is decoded by TensorStore's codecs alone. A chunk that is not stored reads as the fill
value. Nothing is read that is larger than one chunk.
"""

from __future__ import annotations

import bz2
import contextlib
import dataclasses
import gzip
import importlib
import io
import itertools
import json
import lzma
import math
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import tensorstore as ts
import zstandard

from windrow.errors import SourceError, missing_package
from windrow.sources.base import AnyArray
from windrow.sources.zarr.codecs import ChunkDamageError
from windrow.sources.zarr.error_text import reason
from windrow.sources.zarr.metadata import keys_of, sizes_of
from windrow.sources.zarr.names import Found
from windrow.sources.zarr.presence import is_whole
from windrow.sources.zarr.stores import bare, side_by_side
from windrow.sources.zarr.zarr_python import PythonArray, presence_of_stored, stored_metadata

Cells = tuple[int, ...]

_LIBRARY: Final = "TensorStore, chunk by chunk"
_SLACK_BYTES: Final = 2**20
ENDINGS: Final = (".gz", ".br", ".zst", ".zstd", ".xz", ".lzma", ".bz2")
_NAME: Final = r"-?\d+--?\d+_-?\d+--?\d+_-?\d+--?\d+"
_SHARD: Final = r"[0-9a-f]+\.(shard|index|data)"
_LIKE_A_CHUNK: Final = r"-?\d|[0-9a-f]+\."
_SHOWN: Final = 3
# Along one axis; metadata may be damaged, and say anything.
_MOST_CHUNKS: Final = 2**22
_RECHUNK: Final = (
    "Open it by zarr-python (3.2 or later, zarr.config.set({'array.rectilinear_chunks': True})), and write"
    " it with chunks of one size: zarr.create_array(path, data=array[:], chunks=(64, 64))"
)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ChunkwiseArray:
    """An array that gives cells, as zarr-python's does.

    Args:
        edges: Along each axis, where chunks begin, and where the last one ends, which may be past the array.
        shape: Shape of the array.
        tile: Shape of the cells that count as one chunk to the engine: the shape of the largest chunk. What is
            read of a tile needs all chunks that have cells in it.
        dtype: As delivered.
        fill: The value of cells that are not stored.
        whole: A function that reads the bytes of the chunk at some coordinates; None if it is not stored.
        decode: A function from these bytes and the shape of the chunk to its cells.
        is_there: A function that says whether a chunk is stored.
        path: A function that returns the local file of a chunk; None if it has none.
        refuse_missing: Whether a chunk must be stored.
    """

    edges: tuple[tuple[int, ...], ...]
    shape: Cells
    tile: Cells
    dtype: np.dtype[Any]
    fill: Any
    whole: Callable[[Cells], bytes | None]
    decode: Callable[[bytes, Cells], AnyArray]
    is_there: Callable[[Cells], bool]
    path: Callable[[Cells], str | None]
    refuse_missing: bool = False

    @property
    def object_rows(self) -> int:
        """Rows of one stored object."""
        return self.tile[0]

    def __getitem__(self, place: tuple[slice, ...]) -> AnyArray:
        """The cells of a box. Waits.

        Raises:
            ChunkDamageError: If a chunk cannot be decoded.
            OSError, ValueError, RuntimeError: If one cannot be read.
        """
        # A record must not depend on what else is read: a tile is read as a whole, or not at all.
        first = [cells.start // t * t for cells, t in zip(place, self.tile, strict=True)]
        sizes = zip(place, self.tile, self.shape, strict=True)
        stop = [min(-(-cells.stop // t) * t, n) for cells, t, n in sizes]
        out = np.full([b - a for a, b in zip(first, stop, strict=True)], self.fill, self.dtype)
        for at in self._chunks(first, stop):
            raw = self.whole(at)
            if raw is None and self.refuse_missing:
                place_of = self.path(at) or f"chunk {', '.join(map(str, at))} of its grid"
                raise ChunkDamageError(f"{place_of} is not stored, and missing='error'")
            if raw is not None:
                self._put(at, raw, first, out)
        return out[tuple(slice(c.start - f, c.stop - f) for c, f in zip(place, first, strict=True))]

    def _put(self, at: Cells, raw: bytes, first: Sequence[int], out: AnyArray) -> None:
        """Copy the cells of a chunk to a box that begins at `first`, as far as they lie in it."""
        begin = [edges[k] for edges, k in zip(self.edges, at, strict=True)]
        shape = tuple(edges[k + 1] - edges[k] for edges, k in zip(self.edges, at, strict=True))
        block, to, of = self.decode(raw, shape), [], []
        for b, n, f, count in zip(begin, shape, first, out.shape, strict=True):
            low, high = max(b, f), min(b + n, f + count)
            to.append(slice(low - f, high - f))
            of.append(slice(low - b, high - b))
        out[tuple(to)] = block[tuple(of)]

    def holds(self, tile: Cells) -> bool:
        """Whether all chunks that have cells in a tile are stored."""
        return all(map(self.is_there, self._in_tile(tile)))

    def file(self, tile: Cells) -> str | None:
        """The local file of the first chunk in a tile; None if it has none."""
        return self.path(next(self._in_tile(tile)))

    def _in_tile(self, tile: Cells) -> Any:
        first = [k * n for k, n in zip(tile, self.tile, strict=True)]
        sizes = zip(first, self.tile, self.shape, strict=True)
        return self._chunks(first, [min(f + n, size) for f, n, size in sizes])

    def _chunks(self, first: Sequence[int], stop: Sequence[int]) -> Any:
        """The coordinates of the chunks that have cells in a box."""
        spans = []
        for edges, low, high in zip(self.edges, first, stop, strict=True):
            begin = int(np.searchsorted(edges, low, side="right")) - 1
            spans.append(range(begin, int(np.searchsorted(edges, high, side="left"))))
        return itertools.product(*spans)


def _decoded(spec: dict[str, Any], entries: dict[str, bytes], read: bool = True) -> Any:
    """An array in memory, opened by a spec over some objects; its cells if `read`."""
    context = ts.Context()
    store = ts.KvStore.open("memory://", context=context).result()
    for key, value in entries.items():
        store.write(key, value).result()
    array = ts.open(
        {**spec, "kvstore": "memory://"},
        open=True,
        read=True,
        context=context,
        assume_metadata=True if "metadata" in spec else None,
    ).result()
    return array.read().result() if read else array


def _checked(decode: Callable[[bytes, Cells], AnyArray], raw: bytes, shape: Cells) -> AnyArray:
    try:
        return decode(raw, shape)
    except (ValueError, RuntimeError) as error:
        raise ChunkDamageError(reason(error)) from error


# --- chunks of unequal size ----------------------------------------------------------------------


@bare
def open_unequal(found: Found) -> PythonArray:
    """Opens an array with the rectilinear chunk grid.

    Raises:
        NotFoundError: If it is gone.
        SourceError: If its metadata are not understood, or TensorStore lacks its codec or dtype.
    """
    objects = found.objects()
    name, raw = stored_metadata(found, objects)
    try:
        meta = json.loads(raw)
        shape = sizes_of(meta["shape"]) or ()
        shapes = meta["chunk_grid"]["configuration"]["chunk_shapes"]
        edges = tuple(_edges(item, size) for item, size in zip(shapes, shape, strict=True))
        if not shape or meta.get("storage_transformers"):
            raise ValueError("it has no axes, or storage transformers")
        tile = tuple(max(map(int, np.diff(axis))) for axis in edges)
        of_one = _spec_of_one(meta, tile)
        one = _decoded(of_one, {}, read=False)
        dtype = np.dtype(one.dtype.numpy_dtype)
        keys = keys_of(meta)
        if keys is None:
            raise ValueError(f"chunk_key_encoding {meta.get('chunk_key_encoding')!r}")
        prefix, separator = keys
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
        why, cause = found.reason(error)
        raise SourceError(
            f"{found.what}: {found.named} in {found.where} has chunks of unequal size (chunk_grid"
            f" 'rectilinear'), and is not read: {why}. {_RECHUNK}"
        ) from cause
    found.refuse_absurd(shape, tile, dtype.itemsize, tile)
    fill = np.zeros((), dtype) if one.fill_value is None else np.asarray(one.fill_value, dtype)

    def key(at: Cells) -> str:
        return prefix + separator.join(map(str, at))

    def decode(stored: bytes, cells: Cells) -> AnyArray:
        name = "/".join(["c", *("0" for _ in cells)])
        decoded: AnyArray = _decoded(_spec_of_one(meta, cells), {name: stored})
        return decoded

    chunkwise = ChunkwiseArray(
        edges=edges,
        shape=shape,
        tile=tuple(max(1, min(t, n)) for t, n in zip(tile, shape, strict=True)),
        dtype=dtype,
        fill=fill,
        whole=lambda at: objects.whole(key(at)),
        decode=partial(_checked, decode),
        is_there=lambda at: objects.tail(key(at), 1) is not None,
        path=lambda at: objects.file(key(at)),
        refuse_missing=found.refuse_missing,
    )
    presence = presence_of_stored(found, objects, name, raw, fill.tobytes())
    array = _opened(found, chunkwise, "its chunks differ in size", presence)
    return dataclasses.replace(array, shape=found.agreed_shape(meta) or shape)


def _edges(item: Any, size: int) -> tuple[int, ...]:
    """Where chunks begin along an axis of `size` cells, and where the last one ends.

    `item` is one size for all, or a list of sizes and of `[size, count]`.
    """
    if isinstance(item, int):
        item = [[item, max(1, -(-size // max(1, item)))]]
    runs = [each if isinstance(each, list) else (each, 1) for each in item]
    if sum(count for _, count in runs) > _MOST_CHUNKS:
        raise ValueError(f"an axis has more than {_MOST_CHUNKS:,} chunks")
    sizes = [one for one, count in runs for _ in range(count)]
    if not all(type(one) is int and one > 0 for one in sizes) or sum(sizes) < size or not sizes:
        raise ValueError(f"the chunk sizes {item} do not make up an axis of {size} cells")
    return (0, *itertools.accumulate(sizes))


def _spec_of_one(meta: dict[str, Any], shape: Cells) -> dict[str, Any]:
    """The spec of an array of one chunk, as the chunks of an array of Zarr v3 are stored."""
    grid = {"name": "regular", "configuration": {"chunk_shape": list(shape)}}
    own = {
        **{key: meta[key] for key in ("data_type", "fill_value", "codecs")},
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "chunk_grid": grid,
        "chunk_key_encoding": {"name": "default"},
    }
    return {"driver": "zarr3", "metadata": own}


# --- volumes whose chunk files were compressed once more -----------------------------------------


class PrecomputedChunks:
    """The chunk files of the scale of an array that was found and opened. Thread-safe."""

    def __init__(self, found: Found, store: Any) -> None:
        """Read nothing yet."""
        self._found, self._objects = found, found.objects()
        self.first = tuple(map(int, store.domain.inclusive_min))
        self.shape = tuple(map(int, store.shape))
        self.chunk_shape = tuple(map(int, store.chunk_layout.read_chunk.shape))
        self.grid = tuple(-(-n // c) for n, c in zip(self.shape, self.chunk_shape, strict=True))
        self._folder = str(found.attributes["key"])
        self._is_sharded = found.attributes.get("sharding") is not None
        self._shards = self._opened_shards() if self._is_sharded else None
        self._endings: tuple[str, ...] = ("",)

    @property
    def knows_stored(self) -> bool:
        """Whether `holds` has an answer."""
        return not self._is_sharded or self._shards is not None

    def _opened_shards(self) -> Any:
        """The chunks in shards; None if the store is one that a user opened, which has no JSON."""
        if not isinstance(self._found.spec, dict):
            return None
        base, sharding = self._found.spec["kvstore"], self._found.attributes["sharding"]
        path = f"{base.get('path', '')}{self._folder}/"
        access = self._found.access
        return ts.KvStore.open(
            {
                "driver": "neuroglancer_uint64_sharded",
                "base": {**base, "path": path},
                "metadata": sharding,
            },
            context=ts.Context() if access is None else access.context,
        ).result()

    def key(self, at: Sequence[int]) -> str:
        """The key of the chunk at coordinates `at`, without an ending."""
        axes = zip(at[:3], self.first, self.shape, self.chunk_shape, strict=False)
        bounds = [(f + k * c, f + min((k + 1) * c, n)) for k, f, n, c in axes]
        return f"{self._folder}/" + "_".join(f"{begin}-{end}" for begin, end in bounds)

    def file(self, at: Sequence[int]) -> str | None:
        """The local file of a chunk; None if it lies elsewhere, or in a shard."""
        return None if self._is_sharded else self._objects.file(self.key(at))

    def holds(self, at: Sequence[int]) -> bool:
        """Whether a chunk is stored, under any ending. Waits.

        Raises:
            OSError, ValueError, RuntimeError: If the store cannot be asked.
        """
        if self._shards is not None:
            key = _morton(at[:3], self.grid[:3]).to_bytes(8, "big")
            if self._found.access is None:
                return bool(self._shards.read(key).result().state == "value")
            return self._found.access.read(self._shards, key) is not None  # type: ignore[arg-type]
        return any(self._objects.tail(self.key(at) + end, 1) is not None for end in self._endings)

    def whole(self, at: Sequence[int], most_bytes: int) -> bytes | None:
        """The bytes of a chunk as TensorStore decodes them; None if it is not stored. Waits.

        Raises:
            ChunkDamageError: If a file cannot be decompressed, or has more than `most_bytes` then.
            OSError, ValueError, RuntimeError: If the store cannot be asked.
        """
        for end in self._endings:
            raw = self._objects.whole(self.key(at) + end)
            if raw is not None:
                return _decompressed(raw, self.key(at) + end, most_bytes) if end else raw
        return None

    def ending(self) -> str:
        """As `_found_ending`; from then on, chunks are looked for under every ending if there is one."""
        found = self._found_ending()
        if found:  # as CloudVolume does, before the plain names
            others = (end for end in ENDINGS if end != found)
            self._endings = (found, "", *others)
        return found

    def _found_ending(self) -> str:
        """The ending of compressed chunk files; '' if no file has one. Waits.

        A local folder is listed once. A remote one is asked for the first chunk and the middle one.

        Raises:
            SourceError: If there are files, and none is a chunk or a shard.
        """
        folder = self._objects.file(self._folder)
        if folder is None:
            return "" if self._is_sharded else self._ending_of_some()
        try:
            names = os.listdir(folder)
        except OSError:
            return ""  # nothing is stored
        pattern = _SHARD if self._is_sharded else _NAME
        if not self._is_sharded:
            for end in ENDINGS:
                if any(name.endswith(end) and re.match(_NAME, name) for name in names):
                    return end
        others = sorted(n for n in names if re.match(_LIKE_A_CHUNK, n) and is_whole(n))
        if others and not any(re.fullmatch(pattern, name) for name in names):
            raise self._misplaced(folder, others)
        return ""

    def _misplaced(self, folder: str, others: Sequence[str]) -> SourceError:
        found = self._found
        wanted = "shards (x.shard)" if self._is_sharded else self.key((0, 0, 0))
        return SourceError(
            f"{found.what}: no chunk of the volume in {found.where} lies where its metadata say"
            f" ({wanted}), though {folder} holds {', '.join(others[:_SHOWN])} and so on, so that all"
            " cells would read as 0. Correct the chunk size, the offset or the sharding in 'info', or"
            " the names of the files"
        )

    def _ending_of_some(self) -> str:
        places = dict.fromkeys([(0, 0, 0), tuple(n // 2 for n in self.grid[:3])])
        if any(self._is_there(self.key(at)) for at in places):
            return ""
        keys = [(self.key(at) + end, end) for at in places for end in ENDINGS]
        there = side_by_side([partial(self._is_there, key) for key, _ in keys], wait=True)
        return next((end for (_, end), is_there in zip(keys, there, strict=True) if is_there), "")

    def _is_there(self, key: str) -> bool:
        # A store may refuse to say that an object is absent.
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            return self._objects.tail(key, 1) is not None
        return False


def _morton(at: Sequence[int], grid: Sequence[int]) -> int:
    """The number of a chunk in shards: the bits of its coordinates in turns, as far as axes have them."""
    bits = [(n - 1).bit_length() for n in grid]
    number = place = 0
    for bit in range(max(bits, default=0)):
        for k, count in zip(at, bits, strict=True):
            if bit < count:
                number |= (k >> bit & 1) << place
                place += 1
    return number


def check_ending(found: Found, ending: str) -> None:
    """Check that files with an ending can be decompressed.

    Raises:
        MissingExtraError: If a package is not installed.
    """
    if ending == ".br":
        try:
            importlib.import_module("brotli")
        except ImportError:
            what = f"{found.what}: {found.where}, whose chunk files end in .br,"
            raise missing_package(what, "brotli") from None


def _decompressed(raw: bytes, key: str, most_bytes: int) -> bytes:
    opened: dict[str, Any] = {
        ".gz": partial(gzip.GzipFile, None, "rb", 9),
        ".bz2": bz2.BZ2File,
        ".xz": lzma.LZMAFile,
        ".lzma": lzma.LZMAFile,
    }
    ending = key[key.rindex(".") :]
    try:
        if ending == ".br":
            found: bytes = importlib.import_module("brotli").decompress(raw)
        elif ending in (".zst", ".zstd"):
            stream = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(raw))
            found = stream.read(most_bytes + 1)
        else:
            found = opened[ending](io.BytesIO(raw)).read(most_bytes + 1)
    except MemoryError:
        raise
    except Exception as error:  # each library has errors of its own
        raise ChunkDamageError(f"{key} cannot be decompressed: {error}") from error
    if len(found) > most_bytes:
        raise ChunkDamageError(f"{key} has more than {most_bytes:,} bytes, decompressed")
    return found


def open_compressed(
    found: Found, store: Any, chunks: PrecomputedChunks, ending: str
) -> PythonArray:
    """Opens a volume some of whose chunk files have an `ending`.

    Args:
        found: The array.
        store: The same in TensorStore, which finds no chunks.
        chunks: Its chunk files.
        ending: How the names of some of these end.

    Raises:
        MissingExtraError: If what decompresses them is not installed.
    """
    check_ending(found, ending)
    dtype = np.dtype(store.dtype.numpy_dtype)
    scale = {k: v for k, v in found.attributes.items() if k not in ("voxel_offset", "chunk_sizes")}
    info: dict[str, Any] = {"@type": "neuroglancer_multiscale_volume", "type": "image"}
    info |= {"data_type": store.dtype.name, "num_channels": chunks.shape[3]}
    most = 4 * math.prod(chunks.chunk_shape) * dtype.itemsize + _SLACK_BYTES

    def decode(raw: bytes, shape: Cells) -> AnyArray:
        sizes = {"key": "s", "size": shape[:3], "chunk_sizes": [shape[:3]]}
        document = json.dumps({**info, "scales": [{**scale, **sizes}]}).encode()
        name = "s/" + "_".join(f"0-{n}" for n in shape[:3])
        spec = {"driver": "neuroglancer_precomputed", "scale_index": 0}
        decoded: AnyArray = _decoded(spec, {"info": document, name: raw})
        return decoded

    chunkwise = ChunkwiseArray(
        edges=tuple(
            (*range(0, n, c), n) for n, c in zip(chunks.shape, chunks.chunk_shape, strict=True)
        ),
        shape=chunks.shape,
        tile=chunks.chunk_shape,
        dtype=dtype,
        fill=np.zeros((), dtype),
        whole=lambda at: chunks.whole(at, most),
        decode=partial(_checked, decode),
        is_there=chunks.holds,
        path=chunks.file,
        refuse_missing=found.refuse_missing,
    )
    misplaced = (
        f"chunk files end in {ending}: Windrow and CloudVolume read them, and TensorStore and Neuroglancer"
        " take their cells for 0; decompress them or, if this is intended, verify with missing='fill'"
    )
    array = _opened(found, chunkwise, f"chunk files end in {ending}", None)
    return dataclasses.replace(array, misplaced=misplaced)


def _opened(found: Found, array: ChunkwiseArray, why: str, presence: Any) -> PythonArray:
    return PythonArray(
        array=array,
        name=found.name,
        where=found.where,
        why=why,
        shape=array.shape,
        dtype=array.dtype,
        chunk_shape=array.tile,
        fill_bytes=np.asarray(array.fill, array.dtype).tobytes(),
        most_bytes=4 * math.prod(array.tile) * array.dtype.itemsize + _SLACK_BYTES,
        presence=presence,
        access=found.access,
        library=_LIBRARY,
    )
