"""Arrays that change or are damaged while a source reads them: an error or the fill value, by any reader."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.far_arrays import PATIENT, AnyArray, objects, values, write_ways
from tests.range_server import RangeServer
from windrow import MapDataset
from windrow.errors import NotFoundError, ReadError
from windrow.sources import Window, WindowDataSource, ZarrDataSource
from windrow.sources.zarr import remote

NEAR = ("core", "core shard", "tensorstore", "tensorstore shard", "zarr-python")
FAR = ("http", "http shard", "fsspec", "fsspec shard", "cache", "cache shard")
# The object that holds row 32, and the first row that it does not hold.
HELD = {"plain": ("c/8/0", 36), "shard": ("c/2/0", 48), "filter": ("8.0", 36)}


@dataclasses.dataclass(frozen=True)
class Store:
    """An array whose objects tests replace and remove."""

    name: str
    place: str | Path
    settings: dict[str, Any]
    server: RangeServer | None = None

    def opened(self) -> ZarrDataSource:
        return ZarrDataSource(self.place, **self.settings)

    def put(self, key: str, data: bytes) -> None:
        if self.server is None:
            Path(self.place, key).write_bytes(data)
        else:
            self.server.put(f"{self.name}/{key}", data)

    def remove(self, key: str) -> None:
        if self.server is None:
            Path(self.place, key).unlink()
        else:
            self.server.remove(f"{self.name}/{key}")

    def describe(self, written: Path, **changed: Any) -> None:
        """Replace some of the metadata."""
        key = ".zarray" if self.name == "filter" else "zarr.json"
        meta = json.loads((written / self.name / key).read_text())
        self.put(key, json.dumps({**meta, **changed}).encode())


@pytest.fixture(scope="module")
def data() -> AnyArray:
    return values(96, 6)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, data: AnyArray) -> Path:
    top = tmp_path_factory.mktemp("changes")
    write_ways(top, data)
    return top


def store_of(reader: str, written: Path, tmp_path: Path) -> Iterator[Store]:
    name = "shard" if reader.endswith("shard") else "plain"
    name = "filter" if reader in ("zarr-python", "fsspec") else name
    if reader in NEAR:
        path = shutil.copytree(written / name, tmp_path / name)
        yield Store(name, path, {"direct": False if "tensorstore" in reader else None})
        return
    settings: dict[str, Any] = {"remote": PATIENT}
    if reader == "fsspec shard":  # TensorStore does not take cookies
        settings["storage_options"] = {"cookies": {"a": "b"}}
    if reader.startswith("cache"):
        settings["remote"] = dataclasses.replace(PATIENT, cache_dir=tmp_path / "cache")
    with RangeServer(objects(written / name, f"{name}/")) as server:
        yield Store(name, server.url(name), settings, server)


@pytest.fixture(params=NEAR + FAR)
def store(request: pytest.FixtureRequest, written: Path, tmp_path: Path) -> Iterator[Store]:
    yield from store_of(request.param, written, tmp_path)


@pytest.fixture(params=FAR)
def far(request: pytest.FixtureRequest, written: Path, tmp_path: Path) -> Iterator[Store]:
    yield from store_of(request.param, written, tmp_path)


def test_an_array_that_is_removed(store: Store, written: Path) -> None:
    source = store.opened()
    lazy = pickle.loads(pickle.dumps(source))
    source.read(np.arange(4))
    for key in objects(written / store.name):
        store.remove(key)
    for wanted in (np.arange(32, 64), np.array([90, 37, 50])):
        with pytest.raises(ReadError, match=r"was removed or replaced since .* is gone"):
            source.read(wanted)
    with pytest.raises(ReadError, match=r"since .* is gone|was not found"):
        list(MapDataset.source(source))
    for read in (store.opened, lambda: lazy[0]):
        with pytest.raises(NotFoundError):
            read()


def test_a_chunk_that_is_not_stored_is_the_fill_value(store: Store, data: AnyArray) -> None:
    key, stop = HELD[store.name]
    store.remove(key)
    expected = data.copy()
    expected[32:stop] = 0
    source = store.opened()
    for _ in range(2):
        np.testing.assert_array_equal(source.read(np.arange(96)), expected)
    windows = WindowDataSource(store.place, {0: Window(3, 1)}, **store.settings)
    np.testing.assert_array_equal(windows.read(np.arange(94))[:, 0], expected[:94])


def test_an_array_that_is_cut_shorter_is_no_fill_value(store: Store, written: Path) -> None:
    source = store.opened()
    store.describe(written, shape=[20, 6])
    store.remove(HELD[store.name][0])
    for wanted in (np.arange(60), np.array([3, 33, 3])):
        with pytest.raises(ReadError, match=r"was removed or replaced since .* another array"):
            source.read(wanted)


def test_an_array_that_grows_is_the_same(
    store: Store, written: Path, data: AnyArray, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = store.opened()
    monkeypatch.setattr(remote, "LOOK_EVERY_S", 0.0)
    # The attributes of version 2 lie in another file.
    attributes = {} if store.name == "filter" else {"attributes": {"units": "K"}}
    store.describe(written, shape=[192, 6], **attributes)
    for _ in range(10):
        np.testing.assert_array_equal(source.read(np.array([9])), data[[9]])


def test_a_chunk_that_is_damaged(store: Store, data: AnyArray) -> None:
    key, stop = HELD[store.name]
    store.put(key, b"not what was written" * 40)
    source, held = store.opened(), r"holds records? (3[2-9]|4[0-7])"
    for order in (np.arange(96), np.random.default_rng(0).permutation(96)):
        with pytest.raises(ReadError, match=rf"/{store.name}.* {held} ") as caught:
            source.read(order)
        first, last = caught.value.records or (32, 36)
        assert 32 <= first < last <= stop
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(ReadError, match=held):
        list(MapDataset.source(source).batch(7))
    windows = WindowDataSource(store.place, {0: 2}, **store.settings)
    with pytest.raises(ReadError, match=r"(cells \[|records? )(3[2-9]|4[0-7])"):
        windows.read(np.arange(48))
    np.testing.assert_array_equal(windows[3], data[6:8])
    others = np.delete(np.arange(96), range(32, stop))
    np.testing.assert_array_equal(source.read(others), data[others])


def test_an_array_that_is_replaced(
    far: Store, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = far.opened()
    source.read(np.arange(4))
    monkeypatch.setattr(remote, "LOOK_EVERY_S", 0.0)
    another = {"dtype": "<i4"} if far.name == "filter" else {"data_type": "int32"}
    far.describe(written, **another)

    def read_until_noticed() -> None:
        for _ in range(50):  # the metadata are asked for beside the reads
            source.read(np.array([9]))

    with pytest.raises(ReadError, match=r"replaced since .* describes another array"):
        read_until_noticed()
