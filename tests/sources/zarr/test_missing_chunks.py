"""Chunks that are not stored: `missing="error"` of the sources, and what `verify` counts."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import tensorstore as ts
import zarr
from zarr.codecs.numcodecs import Delta

import windrow
from tests.far_arrays import TWICE, in_memory
from tests.range_server import RangeServer
from tests.volumes import volume
from tests.zarr_layouts import rectilinear
from windrow import MapDataset
from windrow.errors import ArgumentError, ReadError, SourceError
from windrow.formats.verify import verify_place
from windrow.sources import RaggedDataSource, RemoteOptions, WindowDataSource, ZarrDataSource

DATA = np.arange(1, 49, dtype="u2").reshape(12, 4)
DATA[3:6, 2:] = 0  # one chunk of (3, 2), which is not stored


def zarr_array(version: Any, **settings: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        array = zarr.create_array(
            path, shape=DATA.shape, dtype="u2", zarr_format=version, fill_value=0, **settings
        )
        array[...] = DATA

    return write


def in_tensorstore(**spec: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        whole = {**spec, "kvstore": {"driver": "file", "path": f"{path}/"}}
        ts.open(whole, create=True, dtype="uint16", shape=DATA.shape).result()[...] = DATA

    return write


def n5(path: Path) -> None:
    in_tensorstore(driver="n5", metadata={"blockSize": [3, 2]})(path)
    (path / "1" / "1").unlink(missing_ok=True)


def precomputed(path: Path, **more: Any) -> None:
    volume(path, DATA[:, :, None], chunk_size=[3, 2, 1], voxel_offset=[5, 0, 7], key="s", **more)


def compressed(path: Path) -> None:
    precomputed(path)
    for file in (path / "s").iterdir():
        Path(f"{file}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()


def sharded_precomputed(path: Path) -> None:
    sharding = {"@type": "neuroglancer_uint64_sharded_v1", "preshift_bits": 1, "hash": "identity"}
    precomputed(path, sharding={**sharding, "minishard_bits": 1, "shard_bits": 1})


def unequal(path: Path) -> None:
    """Rows in chunks of 3, 3, 3, 2 and 2, columns in chunks of 1, 1 and 2."""
    big = {"name": "bytes", "configuration": {"endian": "big"}}
    codecs = [big, {"name": "gzip", "configuration": {"level": 1}}]
    rectilinear(path, DATA, [[[3, 3], 2, 2], [[1, 2], 2]], codecs)


STORES: dict[str, Callable[[Path], None]] = {
    "v2": zarr_array(2, chunks=(3, 2)),
    "v3": zarr_array(3, chunks=(3, 2)),
    "shards": zarr_array(3, chunks=(3, 2), shards=(6, 4)),
    "filter": zarr_array(2, chunks=(3, 2), filters=[numcodecs.Delta("u2")]),
    "filter in shards": zarr_array(
        3,
        chunks=(3, 2),
        shards={"shape": (6, 4), "index_location": "start"},
        filters=[Delta(dtype="u2")],
    ),
    "n5": n5,
    "precomputed": precomputed,
    "precomputed in shards": sharded_precomputed,
    "precomputed .gz": compressed,
    "rectilinear": unequal,
}
NOT_STORED = r"(cells \[3:6, 2:4(, 0:1, 0:1)?\]|records 3 to 5) cannot be read.* is not stored, and missing='error'"


def check(place: Any, **settings: Any) -> None:
    """Check every way to read the array at a place."""
    good = np.array([0, 1, 2, 6, 7, 11])
    fine = ZarrDataSource(place, **settings)
    assert fine.read(np.arange(12)).reshape(12, 4).tolist() == DATA.tolist()
    source = pickle.loads(pickle.dumps(ZarrDataSource(place, missing="error", **settings)))
    assert source.read(good).reshape(6, 4).tolist() == DATA[good].tolist()
    for rows in ([4], [0, 5], [11, 3, 3, 0]):
        with pytest.raises(ReadError, match=NOT_STORED):
            source.read(np.array(rows))
    with pytest.raises(ReadError, match=NOT_STORED):
        list(MapDataset.source(source).batch(5))
    kept = list(MapDataset.source(source).on_bad("skip").to_iter_dataset())
    assert np.reshape(kept, (9, 4)).tolist() == [*DATA[:3].tolist(), *DATA[6:].tolist()]
    windows = WindowDataSource(
        place,
        {0: 2, 1: 2},
        missing="error",
        dims=("a", "b", "c", "d")[: len(source.spec.shape) + 1],
        **settings,
    )
    assert windows[0].reshape(2, 2).tolist() == DATA[:2, :2].tolist()
    chain = MapDataset.source(windows).on_bad("skip").shuffle(seed=1)
    assert len(list(chain.to_iter_dataset())) == 10
    with pytest.raises(ReadError, match=NOT_STORED):
        windows.read(np.arange(12))
    report = windrow.verify(fine, progress=False)
    assert (report.missing, report.untold, report.ok) == (1, 0, True)
    report = windrow.verify(source, missing="error", progress=False)
    bad = [(bad.first_record, bad.stop_record) for bad in report.bad if bad.chunk >= 0]
    assert bad == [(3, 6)]


@pytest.mark.parametrize("name", STORES)
def test_on_disk(tmp_path: Path, name: str) -> None:
    STORES[name](tmp_path / "a")
    check(tmp_path / "a")


@pytest.mark.parametrize("name", ["v2", "shards"])
def test_on_disk_by_tensorstore(tmp_path: Path, name: str) -> None:
    STORES[name](tmp_path / "a")
    check(tmp_path / "a", direct=False)


@pytest.mark.parametrize("name", ["v2", "shards", "filter", "precomputed .gz", "rectilinear"])
def test_over_http(tmp_path: Path, name: str) -> None:
    STORES[name](tmp_path / "a")
    with RangeServer(tmp_path) as server:
        check(f"{server.address}/a", remote=TWICE)


@pytest.mark.parametrize("name", ["v3", "shards", "filter"])
def test_over_other_protocols_and_from_a_cache(tmp_path: Path, name: str) -> None:
    STORES[name](tmp_path / "a")
    check(in_memory(tmp_path / "a", f"missing/{name}"))
    with RangeServer(tmp_path) as server:
        options = RemoteOptions(retries=1, cache_dir=str(tmp_path / "cache"))
        check(f"{server.address}/a", remote=options)
        check(f"{server.address}/a", remote=options)


# --- other places, other arguments ---------------------------------------------------------------


def test_shuffled_rows_of_fill_values_that_are_stored(tmp_path: Path) -> None:
    array = zarr.create_array(
        tmp_path / "a", shape=(6, 2), chunks=(2, 2), dtype="f4", fill_value=np.nan,
        config={"write_empty_chunks": True},
    )  # fmt: skip
    array[:4] = np.nan
    source = ZarrDataSource(tmp_path / "a", missing="error")
    assert np.isnan(source.read(np.arange(4))).all()
    with pytest.raises(ReadError, match=r"records 4 to 5|cells \[4:6, 0:2\]"):
        source.read(np.array([5]))


def test_missing_chunks_of_rows_but_not_of_coordinates(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "a")
    values = group.create_array("values", shape=(40,), chunks=(10,), dtype="u2")
    values[:10], values[20:] = 7, 7
    group.create_array("offsets", data=np.array([0, 5, 12, 25, 40]))
    source = RaggedDataSource(tmp_path / "a", missing="error")
    assert source[0].tolist() == [7] * 5
    with pytest.raises(ReadError, match="is not stored, and missing='error'"):
        source[1]
    assert len(list(MapDataset.source(source).on_bad("skip").to_iter_dataset())) == 2
    grid = zarr.create_group(tmp_path / "b")
    grid.create_array("t", data=np.ones((8, 2)), dimension_names=["time", "x"])
    grid.create_array("time", shape=(8,), chunks=(4,), dtype="i8", dimension_names=["time"])
    # A coordinate of which all cells are 0 is nearly never stored.
    windows = WindowDataSource(tmp_path / "b", {"time": 2}, coordinates=True, missing="error")
    assert windows[3]["time"].tolist() == [0, 0]


def test_arguments(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", data=DATA)
    wrong: Any = True
    for source in (ZarrDataSource, WindowDataSource):
        with pytest.raises(ArgumentError, match="missing must be 'fill' or 'error', got True"):
            source(tmp_path / "a", missing=wrong)
    assert ZarrDataSource(np.zeros((3, 2)), missing="error").read(np.arange(3)).sum() == 0
    computed = ts.virtual_chunked(
        lambda *_: None, dtype=ts.uint8, domain=ts.IndexDomain(shape=[8, 8])
    )
    held = zarr.create_array(zarr.storage.MemoryStore(), shape=(6,), chunks=(2,), dtype="f4")
    assert ZarrDataSource(held)[5] == 0
    for unknown in (computed, held):
        with pytest.raises(SourceError, match="nothing shows which of its chunks are stored"):
            ZarrDataSource(unknown, missing="error")
    view = ts.open({"driver": "zarr3", "kvstore": f"file://{tmp_path}/a/"}).result()[2:9]
    assert ZarrDataSource(view, missing="error")[0].tolist() == DATA[2].tolist()


# --- chunks that lie elsewhere -------------------------------------------------------------------


def separated(path: Path, version: Any, name: str, separator: str) -> None:
    """An array whose metadata then say another separator than its chunks have."""
    encoding: Any = {"name": name, "separator": separator}
    zarr.create_array(
        path, data=DATA, chunks=(3, 2), zarr_format=version, chunk_key_encoding=encoding
    )
    file = path / (".zarray" if version == 2 else "zarr.json")
    meta, other = json.loads(file.read_text()), {"/": ".", ".": "/"}[separator]
    if version == 2:
        meta["dimension_separator"] = other
    else:
        meta["chunk_key_encoding"]["configuration"]["separator"] = other
    file.write_text(json.dumps(meta))


def renamed(path: Path, write: Callable[[Path], None]) -> None:
    write(path)
    for file in [*path.rglob("[0-9]*"), *path.rglob("c.*")]:
        if file.is_file():
            file.rename(f"{file}.gz")


MISPLACED: dict[str, Callable[[Path], None]] = {
    "v2 /": lambda path: separated(path, 2, "v2", "/"),
    "v2 .": lambda path: separated(path, 2, "v2", "."),
    "v3 /": lambda path: separated(path, 3, "default", "/"),
    "v3 .": lambda path: separated(path, 3, "default", "."),
    "v2 in v3 .": lambda path: separated(path, 3, "v2", "."),
    "compressed v3": lambda path: renamed(path, STORES["shards"]),
    "compressed filter": lambda path: renamed(path, STORES["filter"]),
    "compressed n5": lambda path: renamed(path, n5),
    "compressed rectilinear": lambda path: renamed(path, unequal),
}


@pytest.mark.parametrize("name", MISPLACED)
def test_no_chunk_where_the_metadata_say(tmp_path: Path, name: str) -> None:
    MISPLACED[name](tmp_path / "a")
    said = "no chunk of the array in .* lies where its metadata say"
    for read in (ZarrDataSource, WindowDataSource, windrow.inspect):
        arguments: Any = ({0: 2},) if read is WindowDataSource else ()
        with pytest.raises(SourceError, match=said):
            read(tmp_path / "a", *arguments)
    report = verify_place(tmp_path / "a", progress=False)
    assert [said[:8] in str(bad) for bad in report.unopened] == [True]


@pytest.mark.parametrize(
    ("driver", "write", "said"),
    [
        ("zarr", MISPLACED["v2 /"], "no chunk of the array in .* lies where its metadata say"),
        ("zarr3", MISPLACED["v3 ."], "no chunk of the array in .* lies where its metadata say"),
        ("n5", MISPLACED["compressed n5"], "no chunk of the array in .* lies where its"),
        ("neuroglancer_precomputed", compressed, r"end in \.gz.* Give the path or URL"),
    ],
)
def test_specs_and_open_stores_of_chunks_elsewhere(
    tmp_path: Path, driver: str, write: Callable[[Path], None], said: str
) -> None:
    spec = {"driver": driver, "kvstore": f"file://{tmp_path}/a/"}
    whole: dict[str, Callable[[Path], None]] = {"n5": n5, "neuroglancer_precomputed": precomputed}
    whole.get(driver, zarr_array(2 if driver == "zarr" else 3))(tmp_path / "a")
    for given in given_by(spec):
        ZarrDataSource(given)
    shutil.rmtree(tmp_path / "a")
    write(tmp_path / "a")
    for given in given_by(spec):
        with pytest.raises(SourceError, match=said):
            ZarrDataSource(given)


def given_by(spec: dict[str, Any]) -> list[Any]:
    store = ts.open(spec, context=ts.Context()).result()
    return [spec, ts.Spec(spec), store, store[::2], ts.cast(store, "int64")]


def test_an_array_without_chunks_is_whole(tmp_path: Path) -> None:
    for version in (2, 3):
        path = tmp_path / f"a{version}"
        zarr.create_array(path, shape=(4, 2), dtype="i4", zarr_format=version, fill_value=3)
        (path / "README.md").write_text("2 rows")
        (path / "2024-notes.txt").write_text("2 rows")
        (path / "0").mkdir()
        (path / "0" / "0.__lock").touch()
        assert ZarrDataSource(path).read(np.arange(4)).tolist() == [[3, 3]] * 4
        assert windrow.inspect(path).records == 4
