"""Zarr from the cache on disk by the native core: the arrays as local files have them, whatever happens."""

from __future__ import annotations

import dataclasses
import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr import codecs

from tests.far_arrays import PATIENT, objects, values, write
from tests.range_server import RangeServer
from windrow import MapDataset, ReadOptions
from windrow.core.native import native
from windrow.errors import ReadError
from windrow.sources import (
    RemoteOptions,
    Window,
    WindowDataSource,
    ZarrDataSource,
)
from windrow.sources.zarr.zarr_python import PythonArray

pytestmark = pytest.mark.skipif(native() is None, reason="the native core decodes")

# One of each codec: its settings make no difference to the cache.
V2: dict[str, Any] = {
    "none": None,
    "zstd": numcodecs.Zstd(1),
    "gzip": numcodecs.GZip(1),
    "zlib": numcodecs.Zlib(1),
    "lz4": numcodecs.LZ4(),
    "blosc lz4": numcodecs.Blosc("lz4", 5, numcodecs.Blosc.SHUFFLE),
}
V3: dict[str, list[Any]] = {
    "none": [],
    "zstd": [codecs.ZstdCodec(level=1)],
    "zstd, crc32c": [codecs.ZstdCodec(level=1), codecs.Crc32cCodec()],
    "crc32c": [codecs.Crc32cCodec()],
    "gzip": [codecs.GzipCodec(level=1)],
    "blosc": [codecs.BloscCodec(cname="lz4", clevel=3)],
}
LAYOUTS = {
    **{f"v2 {name}": {"zarr_format": 2, "compressors": V2[name]} for name in V2},
    **{f"v3 {name}": {"compressors": V3[name]} for name in V3},
    **{f"shards {name}": {"compressors": V3[name], "shards": (8, 6)} for name in V3},
    "v2 big": {"zarr_format": 2, "dtype": ">i2", "order": "F", "compressors": V2["zstd"]},
    "v3 big": {"serializer": codecs.BytesCodec(endian="big"), "compressors": V3["zstd"]},
    "v3 turned": {"filters": [codecs.TransposeCodec(order=(1, 0))], "compressors": V3["none"]},
    "v3 bools": {"dtype": "bool", "compressors": V3["blosc"]},
}
ROWS = values(37, 7)
CHUNK = (4, 7)
LITTLE: dict[str, Any] = {"memory_bytes": 3_200}
WINDOWS = {0: Window(2, 1), 1: Window(2, 1)}
# Of all records of a source.
WAYS: list[Callable[[Any], Any]] = [
    lambda source: source.read(np.arange(len(source))).tobytes(),
    lambda source: batches(source, 1),
    lambda source: batches(source, 1, **LITTLE),
]


def _index_at_start() -> Any:
    return codecs.ShardingCodec(
        chunk_shape=(4, 3), codecs=[codecs.BytesCodec()], index_location="start"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Arrays of 37 rows in chunks of 4, whose last chunks are not whole."""
    top = tmp_path_factory.mktemp("arrays")
    odd = np.indices(ROWS.shape).sum(axis=0) % 2
    for name, settings in LAYOUTS.items():
        settings = {"dtype": "f4", **settings}
        array = zarr.create_array(
            top / name, shape=(37, 7), chunks=(4, 3), fill_value=1, **settings
        )
        array[...] = np.round(100 * ROWS * odd).astype(settings["dtype"])
    write(top / "rows", ROWS, CHUNK)
    write(top / "shard", ROWS, (2, 7), (16, 7))
    sharding = _index_at_start()
    zarr.create_array(
        top / "start", shape=(37, 7), chunks=(8, 6), dtype="f4", serializer=sharding, compressors=[]
    )[...] = ROWS
    return top


@pytest.fixture
def server(folder: Path) -> Iterator[RangeServer]:
    with RangeServer(objects(folder)) as running:
        yield running


@pytest.fixture
def cached(tmp_path: Path) -> RemoteOptions:
    return dataclasses.replace(PATIENT, cache_dir=tmp_path / "cache")


@pytest.fixture
def only_core(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise AssertionError("zarr-python reads")

    monkeypatch.setattr(PythonArray, "_values", refused)


def batches(source: Any, seed: int, **options: Any) -> list[bytes]:
    chain = MapDataset.source(source).shuffle(seed=seed).batch(5)
    return [batch.tobytes() for batch in chain.to_iter_dataset(ReadOptions(**options))]


def with_two_members(folder: Path) -> dict[str, bytes]:
    """An array at `a/` with a chunk of two members of gzip, as neither the core nor TensorStore reads it."""
    stored = objects(folder / "v3 gzip", "a/")
    raw = gzip.decompress(stored["a/c/1/1"])
    stored["a/c/1/1"] = gzip.compress(raw[:10]) + gzip.compress(raw[10:])
    return stored


# ---- what local files have


@pytest.mark.parametrize("name", [*LAYOUTS, "rows", "shard", "start"])
def test_the_second_epoch_is_that_of_local_files(
    server: RangeServer, folder: Path, cached: RemoteOptions, only_core: None, name: str
) -> None:
    source, local = ZarrDataSource(server.url(name), remote=cached), ZarrDataSource(folder / name)
    assert "decoded directly" in repr(source)
    order = np.random.default_rng(1).integers(0, len(local), 50)
    wanted = local.read(order)
    for epoch in range(2):
        got = source.read(order)
        assert (got.dtype, got.tobytes()) == (wanted.dtype, wanted.tobytes())
        assert batches(source, epoch) == batches(local, epoch)
        if epoch == 0:
            server.reset_counts()
    assert server.counts().requests == 0
    assert source.stats()["cached_bytes"] > 0


@pytest.mark.parametrize("name", ["v2 none", "v3 zstd", "shards gzip", "v3 turned", "start"])
def test_boxes_and_scattered_rows_are_those_of_local_files(
    server: RangeServer, folder: Path, cached: RemoteOptions, only_core: None, name: str
) -> None:
    local, url = ZarrDataSource(folder / name), server.url(name)
    for epoch in range(2):
        source = ZarrDataSource(url, remote=cached)
        assert batches(source, epoch, **LITTLE) == batches(local, epoch, **LITTLE)
        windows = WindowDataSource(url, WINDOWS, remote=cached)
        here = WindowDataSource(folder / name, WINDOWS)
        for options in ({}, LITTLE):
            assert batches(windows, epoch, **options) == batches(here, epoch, **options)
        order = np.arange(len(here))[::3]
        np.testing.assert_array_equal(windows.read(order), here.read(order))


# ---- damage


@pytest.mark.parametrize("way", WAYS, ids=["read", "stream", "small stream"])
def test_a_chunk_that_the_core_refuses_is_an_error_as_of_local_files(
    folder: Path, cached: RemoteOptions, tmp_path: Path, way: Callable[[Any], Any]
) -> None:
    stored = with_two_members(folder)
    for key, data in stored.items():
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(data)
    told = (
        r"the chunk that holds cells \[4:8, 3:6\] cannot be read: .*c/1/1: \d+ bytes follow its end"
    )
    with pytest.raises(ReadError, match=told):
        way(WindowDataSource(tmp_path / "a", WINDOWS))
    with RangeServer(stored) as server:
        for remote in (None, cached, cached):
            server.reset_counts()
            with pytest.raises(ReadError, match=told):
                way(WindowDataSource(server.url("a"), WINDOWS, remote=remote))
            asked = [path for _, path, _ in server.counts().asked]
            assert asked.count("a/c/1/1") >= 1  # once more, past the cache


def test_of_a_row_of_chunks_the_damaged_one_is_named(
    folder: Path, cached: RemoteOptions, tmp_path: Path
) -> None:
    stored = with_two_members(folder)
    with RangeServer(stored) as server:
        for remote in (None, cached):
            source = ZarrDataSource(server.url("a"), remote=remote)
            with pytest.raises(ReadError, match=r"records 4 to 7 cannot be read: .*a/c/1/1: "):
                source.read(np.arange(4, 6))
            np.testing.assert_array_equal(source.read(np.array([0, 9])).shape, (2, 7))


# ---- the store
