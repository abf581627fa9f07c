"""Zarr arrays to make for tests of reading single records: layouts, their stores and their values."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorstore as ts

from windrow.core.native import native
from windrow.sources import ZarrDataSource
from windrow.sources.chunks import ArrayPart, RowReader

AnyArray = npt.NDArray[Any]

DIRECTLY = "decoded directly" if native() else "read by TensorStore (without the native core)"
ZSTD = {"name": "zstd", "configuration": {"level": 1}}
BLOSC = {
    "name": "blosc",
    "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4},
}
CODECS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "zstd": [ZSTD],
    "zstd crc32c": [ZSTD, {"name": "crc32c"}],
    "crc32c": [{"name": "crc32c"}],
    "blosc": [BLOSC],
    "gzip": [{"name": "gzip", "configuration": {"level": 1}}],
}
DTYPES = ("uint8", "bool", "int16", "float32", "float64", "complex64", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Layout:
    """An array to make; `shard` in chunks along each axis, None for chunks in files of their own."""

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    shard: tuple[int, ...] | None = None
    dtype: str = "uint8"
    codecs: str = "zstd"
    location: str = "end"
    version: int = 3


def make(folder: str, layout: Layout) -> Any:
    """A store of `layout`, nothing stored in it."""
    if layout.version == 2:
        return _make_v2(folder, layout)
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    codecs: list[dict[str, Any]] = [little, *CODECS[layout.codecs]]
    outer = list(layout.chunk)
    if layout.shard is not None:
        outer = [c * k for c, k in zip(layout.chunk, layout.shard, strict=True)]
        inner = {
            "chunk_shape": list(layout.chunk),
            "codecs": codecs,
            "index_location": layout.location,
            "index_codecs": [little, {"name": "crc32c"}],
        }
        codecs = [{"name": "sharding_indexed", "configuration": inner}]
    metadata = {
        "shape": list(layout.shape),
        "data_type": layout.dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": outer}},
        "codecs": codecs,
    }
    spec = {"driver": "zarr3", "kvstore": f"file://{folder}/", "metadata": metadata}
    return ts.open(spec, create=True).result()


def _make_v2(folder: str, layout: Layout) -> Any:
    assert layout.codecs == "none", "arrays of version 2 are made raw"
    metadata = {
        "shape": list(layout.shape),
        "chunks": list(layout.chunk),
        "dtype": np.dtype(layout.dtype).str,
        "compressor": None,
    }
    spec = {"driver": "zarr", "kvstore": f"file://{folder}/", "metadata": metadata}
    return ts.open(spec, create=True).result()


def rectilinear(path: Path, values: AnyArray, shapes: list[Any], codecs: Any = None) -> None:
    """An array in chunks of unequal size, which TensorStore writes one by one."""
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    grid = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": shapes}}
    meta = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(values.shape),
        "data_type": values.dtype.name,
        "chunk_grid": grid,
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": codecs or [little],
        "attributes": {},
    }
    path.mkdir()
    (path / "zarr.json").write_text(json.dumps(meta))
    edges = [_sizes_along(shape, size) for shape, size in zip(shapes, values.shape, strict=True)]
    whole = np.zeros([sum(sizes) for sizes in edges], values.dtype)
    whole[tuple(map(slice, values.shape))] = values
    for at in np.ndindex(*map(len, edges)):
        begin = [sum(sizes[:k]) for sizes, k in zip(edges, at, strict=True)]
        size = [sizes[k] for sizes, k in zip(edges, at, strict=True)]
        cells = whole[tuple(slice(b, b + n) for b, n in zip(begin, size, strict=True))]
        if not cells.any():
            continue
        one = {"name": "regular", "configuration": {"chunk_shape": size}}
        alone = {**meta, "chunk_grid": one, "shape": size}
        spec = {"driver": "zarr3", "kvstore": f"file://{path}/../one/", "metadata": alone}
        ts.open(spec, create=True, delete_existing=True).result()[...] = cells
        to = path.joinpath("c", *map(str, at))
        to.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "one" / "c" / "0" / "0").rename(to)


def _sizes_along(shape: Any, size: int) -> list[int]:
    """The sizes of chunks along an axis: all of one size, or sizes and pairs of size and count."""
    if isinstance(shape, int):
        return [shape] * -(-size // shape)
    pairs = (one if isinstance(one, list) else (one, 1) for one in shape)
    return [cells for cells, count in pairs for _ in range(count)]


def reader_of(folder: str | Path) -> RowReader:
    """The reader of an array with the name x."""
    (part,) = ZarrDataSource({"x": folder}, direct=True).parts
    assert isinstance(part, ArrayPart)
    return part.reader


def written(folder: Path, layout: Layout) -> AnyArray:
    """Make a store of values none of which is the fill value; returns the values."""
    values = np.random.default_rng(3).integers(2, 100, layout.shape).astype(layout.dtype)
    make(str(folder), layout).write(values).result()
    return values


def same(got: AnyArray, wanted: AnyArray) -> None:
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    assert got.tobytes() == wanted.tobytes()
    assert got.flags.c_contiguous
    assert got.flags.writeable
