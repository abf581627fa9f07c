"""Stored objects and shard indices: where chunks are, what is refused, and what is bounded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import tensorstore as ts

from windrow.errors import ReadError
from windrow.sources.zarr.local.metadata import PlainArray, plain_array
from windrow.sources.zarr.local.shards import MISSING, ShardIndex, StoredFiles, Unmapped


def made(
    folder: Path,
    values: np.ndarray[Any, Any],
    chunk: Sequence[int],
    shard: Sequence[int],
    *,
    location: str = "end",
) -> PlainArray:
    """`values` in shards, zstd inside."""
    inner = {
        "chunk_shape": list(chunk),
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd"}],
        "index_location": location,
        "index_codecs": [
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "crc32c"},
        ],
    }
    grid = {"name": "regular", "configuration": {"chunk_shape": list(shard)}}
    metadata = {
        "shape": list(values.shape),
        "data_type": values.dtype.name,
        "fill_value": 0,
        "chunk_grid": grid,
        "codecs": [{"name": "sharding_indexed", "configuration": inner}],
    }
    spec = {"driver": "zarr3", "kvstore": f"file://{folder}/", "metadata": metadata}
    ts.open(spec, create=True).result().write(values).result()
    found = plain_array(str(folder))
    assert isinstance(found, PlainArray), found
    return found


def index_of(plain: PlainArray, **options: Any) -> ShardIndex:
    return ShardIndex(plain, StoredFiles(plain), name="x", where="/data", **options)


def entry(plain: PlainArray, shard: int, within: int) -> tuple[int, int]:
    """Offset and size as they stand in the file."""
    data = Path(StoredFiles(plain).path(shard)).read_bytes()
    count = int(np.prod(plain.shard_grid))
    start = 0 if plain.index_location == "start" else len(data) - 16 * count - 4
    offset, size = np.frombuffer(data, "<u8", 2, start + 16 * within)
    return int(offset), int(size)


@pytest.mark.parametrize("location", ["start", "end"])
def test_chunks_are_located_by_their_number_in_the_grid_of_the_array(
    tmp_path: Path, location: str
) -> None:
    # 7 x 5 x 1 chunks in shards of 4 x 2 x 3, so both last shards reach over the end.
    values = np.arange(1, 14 * 15 * 2 + 1, dtype=np.int32).reshape(14, 15, 2)
    plain = made(tmp_path, values, (2, 3, 2), (8, 6, 6), location=location)
    chunks = np.random.default_rng(0).permutation(35)
    found = index_of(plain).locate(chunks)
    for k, chunk in enumerate(chunks.tolist()):
        row, column = divmod(chunk, 5)
        shard = row // 4 * 3 + column // 2
        within = (row % 4 * 2 + column % 2) * 3
        assert found.shards[k] == shard
        assert (found.offsets[k], found.sizes[k]) == entry(plain, shard, within)


def test_what_is_not_stored_is_marked(tmp_path: Path) -> None:
    values = np.zeros((12, 4), np.uint8)
    values[1] = 7  # the other inner chunks of shard 0, and the other shards, are the fill value
    plain = made(tmp_path, values, (1, 4), (4, 4))
    found = index_of(plain).locate(np.arange(12))
    assert found.shards.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert np.flatnonzero(found.offsets != MISSING).tolist() == [1]


@pytest.mark.parametrize("limit_bytes", [1, 2 * 4 * 16, 2**20])
def test_indices_are_read_once_while_they_fit(tmp_path: Path, limit_bytes: int) -> None:
    values = np.arange(1, 41, dtype=np.uint8).reshape(20, 2)
    plain = made(tmp_path, values, (1, 2), (4, 2))
    index = index_of(plain, limit_bytes=limit_bytes)
    rng = np.random.default_rng(1)
    whole = index_of(plain).locate(np.arange(20))
    for _ in range(20):
        chunks = rng.integers(0, 20, 30)
        found = index.locate(chunks)
        assert (found.offsets == whole.offsets[chunks]).all()
        assert (found.sizes == whole.sizes[chunks]).all()
    # Now the indices are spoiled: only those that were kept can answer.
    for shard in range(5):
        path = StoredFiles(plain).path(shard)
        data = bytearray(Path(path).read_bytes())
        data[-1] ^= 1
        with open(path, "r+b") as file:
            file.write(data)
    answered = 0
    for shard in range(5):
        try:
            index.locate(np.array([4 * shard]))
            answered += 1
        except ReadError:
            pass
    assert answered == min(5, max(1, limit_bytes // 64))


@pytest.mark.parametrize("location", ["start", "end"])
def test_a_wrong_checksum_of_an_index_names_shard_file_and_records(
    tmp_path: Path, location: str
) -> None:
    plain = made(
        tmp_path, np.arange(1, 21, dtype=np.uint8)[:, None], (1, 1), (8, 1), location=location
    )
    path = Path(StoredFiles(plain).path(2))
    data = bytearray(path.read_bytes())
    data[3 if location == "start" else len(data) - 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(ReadError, match=r"array 'x' in /data.*records 16 to 19.*c/2/0, shard 2: t"):
        index_of(plain).locate(np.array([0, 17]))
    assert index_of(plain).locate(np.array([0])).offsets[0] != MISSING


def test_a_range_past_the_end_fails_only_for_its_record(tmp_path: Path) -> None:
    plain = made(tmp_path, np.arange(1, 9, dtype=np.uint8)[:, None], (1, 1), (4, 1))
    path = Path(StoredFiles(plain).path(1))
    data = path.read_bytes()
    index = np.frombuffer(data, "<u8", 8, len(data) - 68).copy()
    index[2] = 2**64 - 4  # the end of it overflows to a small number
    said = index.tobytes()
    path.write_bytes(data[:-68] + said + google_crc32c.value(said).to_bytes(4, "little"))
    located = index_of(plain)
    assert (located.locate(np.array([4, 6, 7])).offsets >= 0).all()
    with pytest.raises(ReadError, match=r"holds record 5 .*c/1/0, shard 1: .* past the end"):
        located.locate(np.array([4, 5]))


def test_a_shard_shorter_than_its_index_is_refused(tmp_path: Path) -> None:
    plain = made(tmp_path, np.arange(1, 9, dtype=np.uint8)[:, None], (1, 1), (4, 1))
    os.truncate(StoredFiles(plain).path(0), 60)
    with pytest.raises(ReadError, match=r"records 0 to 3 .*shard 0: it has 60 bytes, fewer than"):
        index_of(plain).locate(np.array([0]))


def test_at_most_so_many_files_are_mapped(tmp_path: Path) -> None:
    plain = made(tmp_path, np.arange(1, 33, dtype=np.uint8)[:, None], (1, 1), (2, 1))
    files = StoredFiles(plain, most_open=4)
    held = files.hold(range(16))
    kinds = [isinstance(file, Unmapped) for file in held.values()]
    assert kinds.count(False) == 4
    assert len(files.mapped()) == 4
    # Many records of files that are not mapped: the oldest give way.
    files.hold([12, 13, 14, 15] * 4)
    assert sorted(files.mapped()) == [12, 13, 14, 15]
    for number, file in held.items():
        assert file is not None
        data = Path(files.path(number)).read_bytes()
        assert bytes(file[1 : len(data)]) == data[1:]


def test_arrays_share_what_may_be_open(tmp_path: Path) -> None:
    values = np.arange(1, 17, dtype=np.uint8)[:, None]
    first = StoredFiles(made(tmp_path / "a", values, (1, 1), (2, 1)), most_open=6)
    second = StoredFiles(made(tmp_path / "b", values, (1, 1), (2, 1)), most_open=6)
    first.hold([*range(8)] * 3)
    assert len(first.mapped()) == 6
    second.hold([*range(4)] * 3)
    # Who had the most gave up as many as were needed.
    assert len(first.mapped()) + len(second.mapped()) == 6
    assert len(second.mapped()) >= 3


def test_a_file_that_changes_its_size_is_refused(tmp_path: Path) -> None:
    plain = made(tmp_path, np.arange(1, 9, dtype=np.uint8)[:, None], (1, 1), (4, 1))
    files = StoredFiles(plain, most_open=1)
    first, second = files.hold([0, 0, 0])[0], files.hold([1, 1, 1])[1]
    assert isinstance(first, memoryview)
    assert isinstance(second, memoryview)
    with open(files.path(0), "ab") as file:
        file.write(b"more")
    with pytest.raises(OSError, match=r"had \d+ bytes and has \d+ now"):
        files.hold([0, 0, 0])
