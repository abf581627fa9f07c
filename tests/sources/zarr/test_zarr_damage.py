"""Damaged Zarr chunks, read by the native core: the right rows, or an error that names them."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import google_crc32c
import numcodecs
import numpy as np
import pytest
import zarr
from zarr import codecs

from tests.damage import attack
from windrow.core.native import native
from windrow.errors import ReadError
from windrow.sources import ZarrDataSource

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.skipif(native() is None, reason="it is about the native core"),
]

ROWS, CHUNK = 64, 8
VALUES = np.random.default_rng(0).integers(0, 50, (ROWS, 40)).astype("u2")
CRC = codecs.Crc32cCodec()
# Those whose chunks have a checksum, so that damage never gives other values.
CHECKED: dict[str, dict[str, Any]] = {
    "v2 gzip": {"zarr_format": 2, "compressors": numcodecs.GZip(1)},
    "v2 zlib": {"zarr_format": 2, "compressors": numcodecs.Zlib(1)},
    "zstd, checked": {"compressors": [codecs.ZstdCodec(level=1, checksum=True)]},
    "zstd, crc32c": {"compressors": [codecs.ZstdCodec(level=1), CRC]},
    "crc32c, zstd": {"compressors": [CRC, codecs.ZstdCodec(level=1)]},
    "crc32c": {"compressors": [CRC]},
    "gzip": {"compressors": [codecs.GzipCodec(level=1)]},
    "shards": {"shards": (16, 40), "compressors": [codecs.ZstdCodec(level=1), CRC]},
}
OTHERS: dict[str, dict[str, Any]] = {
    "v2 none": {"zarr_format": 2, "compressors": None},
    "v2 zstd": {"zarr_format": 2, "compressors": numcodecs.Zstd(1)},
    "v2 lz4": {"zarr_format": 2, "compressors": numcodecs.LZ4()},
    "v2 blosc lz4": {"zarr_format": 2, "compressors": numcodecs.Blosc("lz4", 5, 1)},
    "v2 blosc zstd": {"zarr_format": 2, "compressors": numcodecs.Blosc("zstd", 3, 2)},
    "v2 blosc zlib": {"zarr_format": 2, "compressors": numcodecs.Blosc("zlib", 1, 0)},
    "v2 blosclz": {"zarr_format": 2, "compressors": numcodecs.Blosc("blosclz", 5, 1)},
    "zstd": {"compressors": [codecs.ZstdCodec(level=1)]},
    "blosc": {"compressors": [codecs.BloscCodec(cname="lz4", clevel=3)]},
    "shards of bytes": {"shards": (16, 40), "compressors": None},
}


def store(folder: Path, name: str) -> tuple[Path, list[Path]]:
    """An array, which is written once, and its stored objects."""
    path = folder / name
    if not path.exists():
        layout = {**CHECKED, **OTHERS}[name]
        settled: Any = {"zarr_format": 3, "chunks": (CHUNK, 40), **layout}
        zarr.create_array(path, shape=VALUES.shape, dtype="u2", **settled)[...] = VALUES
    files = (path / "c").rglob("*") if (path / "c").exists() else path.glob("*.0")
    return path, sorted(file for file in files if file.is_file())


def spoil(data: bytearray, draw: random.Random) -> None:
    at, size = draw.randrange(len(data)), draw.choice((1, 4, 16, 100))
    match draw.randrange(6):
        case 0:
            data[at] ^= 1 << draw.randrange(8)
        case 1:
            data[at : at + size] = draw.randbytes(min(size, len(data) - at))
        case 2:
            del data[at:]
        case 3:
            data += draw.randbytes(size)
        case 4:
            data[at : at + size] = bytes(min(size, len(data) - at))
        case _:
            # Where sizes are stored.
            begin = draw.randrange(min(24, len(data)))
            data[begin : begin + 4] = draw.choice((b"\xff" * 4, bytes(4), draw.randbytes(4)))


def spoil_index(data: bytearray, draw: random.Random) -> None:
    """An index of a shard with any entries and the right checksum."""
    places = (0, 1, len(data), 2**31, 2**63, 2**64 - 2, 2**64 - 1, draw.randrange(len(data)))
    entry = len(data) - 4 - 16 * draw.choice((1, 2))
    struct.pack_into("<QQ", data, entry, draw.choice(places), draw.choice(places))
    data[-4:] = google_crc32c.value(bytes(data[-36:-4])).to_bytes(4, "little")


def damaged_once(draw: random.Random, folder: Path) -> str:
    """What becomes of one damaged chunk or shard."""
    name = draw.choice(sorted({**CHECKED, **OTHERS}))
    path, files = store(folder, name)
    number = draw.randrange(len(files))
    file, whole = files[number], files[number].read_bytes()
    data, is_index = bytearray(whole), name.startswith("shards") and draw.random() < 0.4
    (spoil_index if is_index else spoil)(data, draw)
    file.write_bytes(data)
    try:
        return outcome(
            path, file, number * ROWS // len(files), exact=name in CHECKED and not is_index
        )
    finally:
        file.write_bytes(whole)


def check_error(error: ReadError, file: Path, row: int, spoiled: tuple[int, int]) -> None:
    """Check that the error of reading the chunk at `row` names it; rows `spoiled` lie in its file."""
    assert error.file == str(file), str(error)
    assert str(file) in str(error)
    assert error.records is not None
    assert spoiled[0] <= error.records[0] <= row < error.records[1] <= spoiled[1], str(error)
    # A damaged index has no place for a chunk.
    has_place = error.offset is not None and 0 <= error.offset <= file.stat().st_size
    assert has_place or (error.offset is None and spoiled[1] - spoiled[0] > CHUNK), str(error)


def outcome(path: Path, file: Path, first: int, *, exact: bool) -> str:
    """Read all chunks of an array whose stored object `file`, of row `first` on, has damage."""
    stop = first + ROWS // len(store(path.parent, path.name)[1])
    source = ZarrDataSource(path, direct=True)
    found = "nothing lost"
    for begin in range(0, ROWS, CHUNK):
        rows = np.arange(begin, begin + CHUNK)
        try:
            values = source.read(rows)
        except ReadError as error:
            check_error(error, file, begin, (first, stop))
            found = "lost"
            continue
        if np.array_equal(values, VALUES[rows]):
            continue
        assert first <= begin < stop, "rows of another chunk are wrong"
        assert not exact, "rows are wrong, and their chunk has a checksum"
        found = "other values"
    return found


def test_ten_thousand_damaged_chunks(tmp_path: Path) -> None:
    counts = attack("tests.sources.zarr.test_zarr_damage", tmp_path)
    assert counts["lost"] > 5_000
    assert counts["nothing lost"] + counts["other values"] > 500
