"""Damaged shards of local Zarr: the error names the file and the records that are lost."""

from __future__ import annotations

import os
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from tests.zarr_layouts import Layout, reader_of, same, written
from windrow.core.native import native
from windrow.errors import ReadError


@pytest.mark.parametrize("location", ["start", "end"])
def test_a_wrong_checksum_of_an_index_names_file_and_records(tmp_path: Path, location: str) -> None:
    values = written(tmp_path, Layout((20, 3), (1, 3), (8, 1), location=location))
    path = tmp_path / "c" / "2" / "0"
    data = bytearray(path.read_bytes())
    data[3 if location == "start" else len(data) - 20] ^= 1
    path.write_bytes(data)
    reader = reader_of(tmp_path)
    with pytest.raises(ReadError, match=r"array 'x' in .*records 16 to 19 .*c/2/0") as caught:
        reader.read(np.array([0, 17]))
    assert (caught.value.file, caught.value.offset) == (str(path), None)
    assert caught.value.records == (16, 20)
    same(reader.read(np.array([0])), values[:1])


@pytest.mark.skipif(native() is None, reason="TensorStore then refuses all chunks of the shard")
def test_a_range_past_the_end_fails_only_for_its_record(tmp_path: Path) -> None:
    values = written(tmp_path, Layout((8, 3), (1, 3), (4, 1)))
    path = tmp_path / "c" / "1" / "0"
    data = path.read_bytes()
    index = np.frombuffer(data, "<u8", 8, len(data) - 68).copy()
    index[2] = 2**64 - 4  # the end of it overflows to a small number
    said = index.tobytes()
    path.write_bytes(data[:-68] + said + google_crc32c.value(said).to_bytes(4, "little"))
    reader = reader_of(tmp_path)
    same(reader.read(np.array([4, 6, 7])), values[[4, 6, 7]])
    with pytest.raises(ReadError, match=r"holds record 5 .*c/1/0"):
        reader.read(np.array([4, 5]))


def test_a_shard_shorter_than_its_index_is_refused(tmp_path: Path) -> None:
    written(tmp_path, Layout((8, 3), (1, 3), (4, 1)))
    os.truncate(tmp_path / "c" / "0" / "0", 60)
    with pytest.raises(ReadError, match=r"records 0 to 3 .*c/0/0"):
        reader_of(tmp_path).read(np.array([0]))
