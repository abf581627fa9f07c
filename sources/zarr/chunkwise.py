"""Arrays whose chunks TensorStore decodes one by one, from bytes that are read here.

TensorStore opens neither arrays with chunks of unequal size (the rectilinear grid of Zarr v3) nor volumes
whose chunk files were compressed once more. So each chunk is given to it in memory, as the one chunk of an
array of its own.

Invariants: a chunk is decoded by TensorStore's codecs alone. A chunk that is not stored reads as the fill
value.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import tensorstore as ts

from windrow.errors import SourceError
from windrow.sources.chunks import AnyArray
from windrow.sources.zarr.codecs import ChunkDamageError
from windrow.sources.zarr.error_text import reason
from windrow.sources.zarr.metadata import keys_of, sizes_of
from windrow.sources.zarr.names import Found
from windrow.sources.zarr.precomputed import PrecomputedChunks, check_ending
from windrow.sources.zarr.stores import bare
from windrow.sources.zarr.zarr_python import PythonArray, presence_of_stored, stored_metadata

Cells = tuple[int, ...]

_LIBRARY: Final = "TensorStore, chunk by chunk"
_SLACK_BYTES: Final = 2**20
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
        decode=functools.partial(_checked, decode),
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
        decode=functools.partial(_checked, decode),
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
