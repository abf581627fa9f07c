"""Files that other writers and versions made (see tests/data/README.md), read value by value."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from windrow.sources import ArrayRecordDataSource, ZarrDataSource

DATA = Path(__file__).parents[1] / "data"
PACKED = sorted(DATA.glob("*.array_record.gz"))


def test_the_files_are_there_and_few() -> None:
    assert [path.name.split("-")[0] for path in PACKED] == ["v0.5.1"] * 3 + ["v0.8.6"] * 3
    assert sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file()) < 300_000


@pytest.mark.parametrize("packed", PACKED, ids=lambda path: path.name)
def test_array_record_files_of_several_versions(packed: Path, tmp_path: Path) -> None:
    path = tmp_path / packed.stem
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    expected = [b"%d " % number * (number % 7) for number in range(20)]
    source = ArrayRecordDataSource(path)
    assert source.read(np.arange(20)) == expected
    assert source.__getitems__([19, 0, 8, 7, 7]) == [expected[i] for i in (19, 0, 8, 7, 7)]


def test_a_group_of_zarr_python_2() -> None:
    source = ZarrDataSource(DATA / "v2-group.zarr")
    squares = np.arange(40).reshape(20, 2) ** 2
    assert source.fingerprint == (
        "zarr(inner/big_endian: float64 [20, 2] chunks [20, 1]; inner/flag: bool [20] chunks [7];"
        " sparse: float32 [20] chunks [5]; squares: int32 [20, 2] chunks [6, 2])"
    )
    for wanted in (np.arange(20), np.array([19, 3, 7, 3])):
        got = source.read(wanted)
        np.testing.assert_array_equal(got["squares"], squares[wanted])
        np.testing.assert_array_equal(got["inner"]["big_endian"], squares[wanted])
        np.testing.assert_array_equal(got["inner"]["flag"], squares[wanted, 0] % 3 == 0)
        np.testing.assert_array_equal(got["sparse"], np.where(wanted // 5 == 1, 1, -1))


def test_a_sharded_array_of_zarr_python_3() -> None:
    source = ZarrDataSource(DATA / "v3-sharded.zarr")
    expected = np.full((50, 3), 7, "u2")
    expected[:42] = np.arange(42 * 3).reshape(42, 3)
    np.testing.assert_array_equal(source.read(np.arange(50)), expected)
    np.testing.assert_array_equal(source.read(np.array([49, 41, 0, 20])), expected[[49, 41, 0, 20]])


def test_an_excerpt_of_era5() -> None:
    source = ZarrDataSource(DATA / "era5-uk-t2m.zarr/t2m")
    # Expected values and checksum: of the NetCDF file, by h5py.
    rows = source.read(np.arange(48))
    assert rows.shape == (48, 11, 17)
    assert rows.dtype == np.float32
    assert rows.mean(dtype="f8") == pytest.approx(281.36417756106124, rel=1e-12)
    assert (rows.min(), rows.max()) == (np.float32(275.6294), np.float32(286.35168))
    digest = "d844268b92ca0cc3eeb18054d8e99b343697b54ea7f4c13ac8a354a7ef547a06"
    assert hashlib.sha256(rows.tobytes()).hexdigest() == digest
    assert source[47][10, 16] == np.float32(283.49414)
    order = np.random.default_rng(0).permutation(48)
    np.testing.assert_array_equal(source.read(order), rows[order])
