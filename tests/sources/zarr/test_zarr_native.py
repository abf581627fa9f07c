"""The native core: what it reads and what it leaves, its threads and files, and its codecs."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
import zstandard
from numcodecs import blosc, lz4, zstd
from zarr import codecs

from windrow.core import native
from windrow.errors import ReadError
from windrow.sources import Window, WindowDataSource, ZarrDataSource
from windrow.sources.chunks import Span
from windrow.sources.zarr.plain import PlainArray, native_chunks, plain_array

needs_core = pytest.mark.skipif(native.native() is None, reason="there is no native core")


def rows_of(folder: Path, values: Any, **named: Any) -> PlainArray:
    array = zarr.create_array(folder, shape=values.shape, dtype=values.dtype, fill_value=0, **named)
    array[...] = values
    plain = plain_array(str(folder))
    assert isinstance(plain, PlainArray), plain
    return plain


@needs_core
def test_reads_that_are_dropped_end_first(tmp_path: Path) -> None:
    values = np.zeros((4_000, 500), "u2")
    plain = rows_of(
        tmp_path / "a", values, chunks=(20, 500), compressors=[codecs.GzipCodec(level=1)]
    )
    chunks = native_chunks(plain, plain.folder)
    assert chunks is not None
    for _ in range(20):
        outs = [np.ones((20, 500), "u2") for _ in range(200)]
        reading = chunks.start([Span(20 * k, 20 * k + 20, o) for k, o in enumerate(outs)])
        del reading
        was = [out.tobytes() for out in outs]
        assert was == [out.tobytes() for out in outs]


def ran(program: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *argv],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "WINDROW_NATIVE": ""},
    )


ENDED = """
import sys, numpy as np
from windrow.sources.zarr.plain import native_chunks, plain_array
from windrow.sources.chunks import Span
chunks = native_chunks(plain_array(sys.argv[1]), sys.argv[1])
spans = [Span(20 * k, 20 * k + 20, np.empty((20, 500), "u2")) for k in range(200)] * 5
reading = chunks.start(spans)
print("ends now")
"""


@needs_core
def test_the_interpreter_ends_while_chunks_are_read(tmp_path: Path) -> None:
    values = np.zeros((4_000, 500), "u2")
    rows_of(tmp_path / "a", values, chunks=(20, 500), compressors=[codecs.GzipCodec(level=1)])
    for _ in range(2):
        done = ran(ENDED, str(tmp_path / "a"))
        assert (done.returncode, done.stdout, done.stderr) == (0, "ends now\n", "")


def large_chunks(path: Path, codec: codecs.ZstdCodec) -> np.ndarray[Any, Any]:
    """Numbers in two chunks of 1 MB, and the last bytes of the second one damaged."""
    values = np.random.default_rng(0).integers(0, 200, 500_000).astype("u4")
    zarr.create_array(str(path), data=values, chunks=(250_000,), compressors=[codec])
    file = path / "c" / "1"
    data = bytearray(file.read_bytes())
    data[-100:-20] = bytes(80)
    file.write_bytes(data)
    return values


@needs_core
def test_the_rest_of_a_chunk_is_not_decoded_for_its_first_rows(tmp_path: Path) -> None:
    values = large_chunks(tmp_path / "x", codecs.ZstdCodec(level=1))
    windows = WindowDataSource(tmp_path / "x", {0: Window(1_000, 500)})
    # One window lies on both sides of the border, and one begins at it.
    for number in (499, 500, 501):
        expected = values[500 * number :][:1_000]
        np.testing.assert_array_equal(windows.read(np.array([number]))[0], expected)
    with pytest.raises(ReadError, match="c/1"):
        windows.read(np.array([900]))
    with pytest.raises(ReadError, match="c/1"):
        windows.read(np.array([500, 900]))


@needs_core
def test_a_chunk_with_a_checksum_is_decoded_to_its_end(tmp_path: Path) -> None:
    values = large_chunks(tmp_path / "x", codecs.ZstdCodec(level=1, checksum=True))
    windows = WindowDataSource(tmp_path / "x", {0: Window(1_000, 500)})
    np.testing.assert_array_equal(windows.read(np.array([3]))[0], values[1_500:2_500])
    with pytest.raises(ReadError, match="c/1"):
        windows.read(np.array([500]))


# --- which arrays are plain, and the codecs of their chunks: whole, or refused ---------------------


PLAIN = bytes(range(64))


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
