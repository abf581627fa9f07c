"""Dtypes that zarr-python lacks, where it reads: fsspec's protocols, caches on disk, open stores."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts
import zarr

from tests.far_arrays import in_memory
from windrow import MapDataset
from windrow.errors import SourceError
from windrow.sources import WindowDataSource, ZarrDataSource

DTYPES = (
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e3m4",
    "float4_e2m1fn",
    "int4",
    "int2",
)


def write(path: Path, driver: str, dtype: str, *, sharded: bool = False) -> Any:
    """Small numbers of a dtype, of which the last chunk is not stored; returns them as TensorStore has them."""
    layout = ts.ChunkLayout(
        read_chunk_shape=[2, 3], write_chunk_shape=[4, 3] if sharded else [2, 3]
    )
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/"}}
    store = ts.open(
        spec, create=True, dtype=dtype, shape=[8, 3], chunk_layout=layout, fill_value=-1
    ).result()
    values = np.resize([0, 1, -1, 0.5, -2], (6, 3)).astype(getattr(ml_dtypes, dtype))
    store[:6] = values
    return store.read().result()


def check(source: ZarrDataSource, expected: Any) -> None:
    wanted = np.array([7, 0, 3, 3, 5])
    for again in (source, pickle.loads(pickle.dumps(source))):
        got = again.read(wanted)
        assert got.dtype == expected.dtype
        assert got.astype("f4").tolist() == expected[wanted].astype("f4").tolist()
    rows = list(MapDataset.source(source).batch(3).to_iter_dataset())
    assert np.concatenate(rows).astype("f4").tolist() == expected.astype("f4").tolist()


@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_the_same_everywhere(tmp_path: Path, dtype: str, driver: str) -> None:
    expected = write(tmp_path / "a", driver, dtype, sharded=driver == "zarr3")
    check(ZarrDataSource(tmp_path / "a"), expected)
    far = in_memory(tmp_path / "a", f"small/{driver}/{dtype}")
    check(ZarrDataSource(far), expected)
    window = WindowDataSource(far, {0: 3, 1: 2})[1]
    assert window.astype("f4").tolist() == expected[3:6, :2].astype("f4").tolist()
    check(ZarrDataSource(zarr.storage.FsspecStore.from_url(far)), expected)


@pytest.mark.parametrize("fill", ["NaN", "0x7fc0", 1.5])
def test_fill_values(tmp_path: Path, fill: Any) -> None:
    write(tmp_path / "a", "zarr3", "bfloat16")
    file = tmp_path / "a" / "zarr.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "fill_value": fill}))
    here = ZarrDataSource(tmp_path / "a")[7]
    far = ZarrDataSource(in_memory(tmp_path / "a", f"small/fill/{fill}"))[7]
    assert far.tobytes() == here.tobytes()


def test_dtypes_that_nothing_reads_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", "zarr3", "bfloat16")
    file = tmp_path / "a" / "zarr.json"
    file.write_text(file.read_text().replace("bfloat16", "float6_e2m3fn"))
    for place in (tmp_path / "a", in_memory(tmp_path / "a", "small/refused")):
        with pytest.raises(SourceError, match="float6_e2m3fn"):
            ZarrDataSource(place)
