"""Which Zarr arrays are plain, and the codecs of their chunks: whole, or refused."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zstandard
from numcodecs import blosc, lz4, zstd

from windrow.core.native import native
from windrow.errors import ReadError
from windrow.sources import ZarrDataSource
from windrow.sources.zarr.local.metadata import PlainArray, plain_array

PLAIN = bytes(range(64))
needs_core = pytest.mark.skipif(
    native() is None, reason="TensorStore does not read checksums that follow the values of gzip"
)


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def without_size(data: bytes) -> bytes:
    compressor = zstandard.ZstdCompressor(write_content_size=False)
    return compressor.compress(data)


DECODED: list[tuple[str, bytes, bytes]] = [
    ("zstd", zstd.compress(PLAIN, 1), zstd.compress(PLAIN[:60], 1)),
    ("zstd", without_size(PLAIN), zstd.compress(PLAIN + b"x", 1)),
    ("zstd", zstd.compress(PLAIN, 9), without_size(PLAIN + b"x")),
    ("zstd", zstd.compress(PLAIN, 9), without_size(PLAIN[1:])),
    ("zstd", zstd.compress(PLAIN, 9), zstd.compress(PLAIN, 1) + b"x"),
    ("zstd", zstd.compress(PLAIN, 9), zstd.compress(PLAIN[:32], 1) * 2),
    ("lz4", lz4.compress(PLAIN), lz4.compress(PLAIN[:60])),
    ("lz4", lz4.compress(PLAIN), b"\x40\0\0\0" + lz4.compress(PLAIN[:60])[4:]),
    ("lz4", lz4.compress(PLAIN), b"\x40\0"),
    ("blosc", blosc.compress(PLAIN, b"lz4", 5, 1), blosc.compress(PLAIN + b"x", b"lz4", 5, 1)),
    ("blosc", blosc.compress(PLAIN, b"zlib", 5, 2), blosc.compress(PLAIN, b"lz4", 5, 1) + b"x"),
    ("blosc", blosc.compress(PLAIN, b"zstd", 5, 0), b"\x02"),
    ("gzip", gzip.compress(PLAIN, mtime=0), gzip.compress(PLAIN[1:], mtime=0)),
    ("gzip", gzip.compress(PLAIN, mtime=0), gzip.compress(PLAIN, mtime=0) + b"x"),
    ("gzip", gzip.compress(PLAIN, mtime=0), gzip.compress(PLAIN, mtime=0)[:-2]),
    ("gzip", gzip.compress(PLAIN, mtime=0), flipped(gzip.compress(PLAIN, mtime=0), -6)),
    ("gzip", gzip.compress(PLAIN, mtime=0), gzip.compress(bytes(10**6), mtime=0)),
    ("zlib", zlib.compress(PLAIN), gzip.compress(PLAIN, mtime=0)),
    ("zlib", zlib.compress(PLAIN), flipped(zlib.compress(PLAIN), -1)),
    ("crc32c", numcodecs.CRC32C().encode(PLAIN).tobytes(), flipped(PLAIN + bytes(4), 3)),
    ("crc32c", numcodecs.CRC32C().encode(PLAIN).tobytes(), b"abc"),
    (
        "crc32c",
        numcodecs.CRC32C().encode(PLAIN).tobytes(),
        bytes(numcodecs.CRC32C().encode(PLAIN[1:])),
    ),
]


V2: dict[str, Any] = {
    "zarr_format": 2,
    "shape": [40, 3],
    "chunks": [8, 3],
    "dtype": "<f4",
    "compressor": None,
    "fill_value": 0.0,
    "order": "C",
    "filters": None,
}
V3: dict[str, Any] = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [40, 3],
    "data_type": "float32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 3]}},
    "chunk_key_encoding": {"name": "default"},
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    "fill_value": 0.0,
}
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


INDEX = {"index_codecs": [LITTLE], "index_location": "end"}
SHARDED = {
    "name": "sharding_indexed",
    "configuration": {"chunk_shape": [1], "codecs": [LITTLE], **INDEX},
}


def described(path: Path, meta: dict[str, Any]) -> PlainArray | str:
    file = path / (".zarray" if meta["zarr_format"] == 2 else "zarr.json")
    file.write_text(json.dumps(meta))
    return plain_array(str(path))


def reading(folder: Path, codec: str, stored: bytes, size: int) -> bytes:
    """The values that a chunk of `size` bytes has, by a source that reads it."""
    meta = {**V2, "shape": [size], "chunks": [size], "dtype": "|u1", "fill_value": 0}
    meta["compressor"] = {"id": codec}
    if codec == "crc32c":
        grid = {"name": "regular", "configuration": {"chunk_shape": [size]}}
        meta = {**V3, "shape": [size], "data_type": "uint8", "chunk_grid": grid, "fill_value": 0}
        meta["codecs"] = [LITTLE, {"name": codec}]
    assert isinstance(described(folder, meta), PlainArray)
    chunk = folder / ("c/0" if codec == "crc32c" else "0")
    chunk.parent.mkdir(exist_ok=True)
    chunk.write_bytes(stored)
    values = ZarrDataSource(folder).read(np.arange(size))
    assert isinstance(values, np.ndarray)
    return values.tobytes()


@needs_core
@pytest.mark.parametrize(("name", "right", "wrong"), DECODED)
def test_a_codec_fills_the_memory_or_refuses(
    tmp_path: Path, name: str, right: bytes, wrong: bytes
) -> None:
    assert reading(tmp_path, name, right, len(PLAIN)) == PLAIN
    with pytest.raises(ReadError, match=r"records 0 to 63 cannot be read"):
        reading(tmp_path, name, wrong, len(PLAIN))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (V2 | {"compressor": {"id": "bz2", "level": 1}}, "codec 'bz2'"),
        (V2 | {"compressor": {"id": "zstd", "dictionary": "x"}}, "'zstd' with 'dictionary'"),
        (V2 | {"filters": [{"id": "delta"}]}, "it has filters"),
        (V2 | {"dtype": [["a", "<f4"]]}, "dtype"),
        (V2 | {"dimension_separator": "-"}, "dimension_separator '-'"),
        (V2 | {"zarr_format": 2, "new": 1}, "it has 'new' in its metadata"),
        (V3 | {"codecs": [LITTLE, {"name": "packbits"}]}, "codec 'packbits'"),
        (V3 | {"codecs": [LITTLE, {"name": "zstd"}, {"name": "gzip"}]}, "compressed twice"),
        (V3 | {"codecs": [{"name": "transpose", "configuration": {"order": "C"}}, LITTLE]}, "tra"),
        (V3 | {"storage_transformers": [{"name": "x"}]}, "storage transformers"),
        (V3 | {"chunk_grid": {"name": "rectilinear"}}, "chunk_grid 'rectilinear'"),
        (V3 | {"chunk_key_encoding": {"name": "odd"}}, "chunk_key_encoding 'odd'"),
        (V3 | {"data_type": "int4"}, "data_type 'int4'"),
        (V3 | {"data_type": "uint8", "fill_value": 256}, "fill_value 256"),
        (V3 | {"fill_value": 1e300}, "fill_value 1e.300"),
        (V3 | {"fill_value": float("nan")}, "fill_value nan"),
        (V3 | {"codecs": [SHARDED, {"name": "zstd"}]}, "codec 'sharding_indexed'"),
    ],
)
def test_what_is_not_plain(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    assert not isinstance(described(tmp_path, V2), str)
    (tmp_path / ".zarray").unlink()
    found = described(tmp_path, change)
    assert isinstance(found, str)
    assert re.search(why, found)
