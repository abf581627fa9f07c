"""Objects of zarr-python, xarray and NumPy as sources: read as their path, or refused."""

from __future__ import annotations

import dataclasses
import pickle
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

from tests.range_server import RangeServer
from windrow import IterDataset, MapDataset
from windrow.errors import ArgumentError
from windrow.sources import Window, WindowDataSource, ZarrDataSource
from windrow.sources.base import Source

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata", "ignore:.*V3 specification")
VALUES = np.arange(40, dtype="f4").reshape(10, 4)
CHUNKS = pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])


def weather() -> xr.Dataset:
    return xr.Dataset(
        {
            "t2m": (("time", "lat"), VALUES),
            "wind": (("time", "lat"), -VALUES),
            "packed": (("time", "lat"), VALUES / 10),
        },
        {
            "time": np.arange("2020-01-01", "2020-01-11", dtype="M8[D]").astype("M8[ns]"),
            "lat": np.arange(4.0),
        },
    )


@pytest.fixture(scope="module", params=[2, 3])
def store(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> str:
    packing = {"dtype": "i2", "scale_factor": 0.1, "_FillValue": -1}
    path = str(tmp_path_factory.mktemp("weather") / "weather.zarr")
    weather().to_zarr(path, encoding={"packed": packing}, zarr_format=request.param)
    return path


def assert_same(opened: Source, by_path: Source) -> None:
    """Records, fingerprints, explain() and states equal what the path gives, also after pickling."""
    indices = np.array([1, 0, 1])
    for source in (opened, pickle.loads(pickle.dumps(opened))):
        assert source.fingerprint == by_path.fingerprint
        np.testing.assert_equal(source.read(indices), by_path.read(indices))
    plans = [_stream(source).explain() for source in (opened, by_path)]
    costs = [[dataclasses.replace(cost, source="") for cost in plan.epoch] for plan in plans]
    assert costs[0] == costs[1] != []
    first = iter(_stream(opened))
    next(first)
    second = iter(_stream(by_path))
    second.set_state(first.get_state())
    np.testing.assert_equal(next(second), next(first))


def _stream(source: Source) -> IterDataset[Any]:
    return MapDataset.source(source).shuffle(seed=1).batch(1).to_iter_dataset()


# --- zarr-python ---------------------------------------------------------------------------------


def test_group_and_array_are_their_paths(store: str) -> None:
    group = zarr.open_group(store, mode="r")
    assert_same(ZarrDataSource(group), ZarrDataSource(store))
    array = group["t2m"]
    assert_same(ZarrDataSource(array, direct=True), ZarrDataSource(f"{store}/t2m"))
    assert_same(MapDataset.source(array)._node.source, ZarrDataSource(f"{store}/t2m"))  # type: ignore[attr-defined]
    taken = {"time": Window(2, select=slice("2020-01-03", "2020-01-07"))}
    assert_same(
        WindowDataSource(array, taken, coordinates=True),
        WindowDataSource(f"{store}/t2m", taken, coordinates=True),
    )
    assert_same(
        ZarrDataSource({"a": array, "b": {"c": group["wind"]}}),
        ZarrDataSource({"a": f"{store}/t2m", "b": {"c": f"{store}/wind"}}),
    )


def test_an_array_of_a_server_brings_its_options(tmp_path: Path) -> None:
    options = {"headers": {"token": "t"}}
    local = zarr.create_array(str(tmp_path / "x"), data=np.arange(3))
    with RangeServer(tmp_path, need_header=("token", "t")) as server:
        url = server.address
        remote = zarr.storage.FsspecStore.from_url(url, storage_options=options)
        opened = ZarrDataSource(zarr.open_array(remote, path="x", mode="r"))
        assert_same(opened, ZarrDataSource(f"{url}/x", storage_options=options))
    with pytest.raises(ArgumentError, match="storage_options are for URLs, and an open array"):
        ZarrDataSource(local, storage_options=options)


def test_arrays_in_memory_are_held() -> None:
    array = zarr.create_array(zarr.storage.MemoryStore(), data=VALUES, chunks=(3, 4))
    source = ZarrDataSource(array)
    np.testing.assert_equal(
        pickle.loads(pickle.dumps(source)).read(np.array([9, 0])), VALUES[[9, 0]]
    )
    group = zarr.create_group(zarr.storage.MemoryStore())
    group.create_array("x", data=np.arange(4))
    assert MapDataset.source(group)[2] == {"x": 2}
    group.create_group("inner")
    with pytest.raises(ArgumentError, match=r"lies in memory and has groups in it; give a dict"):
        ZarrDataSource(group)


def test_an_array_that_was_resized_since_is_refused(store: str, tmp_path: Path) -> None:
    path = shutil.copytree(f"{store}/t2m", tmp_path / "t2m")
    before = zarr.open_array(path, mode="r")
    zarr.open_array(path, mode="r+").resize((12, 4))
    with pytest.raises(ArgumentError, match=r"opened with shape \[10, 4\].* now holds \[12, 4\]"):
        ZarrDataSource(before)


# --- xarray --------------------------------------------------------------------------------------


@CHUNKS
def test_datasets_are_their_stores(store: str, chunks: Any) -> None:
    stored = xr.open_zarr(store, chunks=chunks, mask_and_scale=False)
    assert_same(ZarrDataSource(stored), ZarrDataSource(store))
    shown = xr.open_zarr(store, chunks=chunks)
    assert_same(ZarrDataSource(shown[["t2m"]]), ZarrDataSource(store, names=["t2m"]))
    assert_same(ZarrDataSource(shown.t2m), ZarrDataSource(f"{store}/t2m"))
    assert_same(
        WindowDataSource(shown, {"time": 3}, decode=True),
        WindowDataSource(store, {"time": 3}, decode=True),
    )
    taken = {"time": Window(2, select=slice("2020-01-03", "2020-01-07"))}
    assert_same(
        WindowDataSource(shown.t2m, taken, coordinates=True),
        WindowDataSource(f"{store}/t2m", taken, coordinates=True),
    )
    assert_same(
        ZarrDataSource({"a": shown[["t2m", "wind"]]}),
        ZarrDataSource({"a": {"t2m": f"{store}/t2m", "wind": f"{store}/wind"}}),
    )
    with pytest.raises(ArgumentError, match=r"names has 'wind', which the xarray.Dataset does not"):
        ZarrDataSource(shown[["t2m"]], names=["wind"])


def test_a_dataset_without_consolidated_metadata_is_opened_in_silence(tmp_path: Path) -> None:
    path = str(tmp_path / "weather.zarr")
    weather().to_zarr(path, consolidated=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = ZarrDataSource(xr.open_zarr(path, consolidated=False, chunks=None))
    assert opened.fingerprint == ZarrDataSource(path).fingerprint


def test_an_array_that_was_computed_with_still_has_its_place(store: str) -> None:
    shown = xr.open_zarr(store, chunks=None)[["t2m", "wind"]]
    assert float((shown.t2m + 1).max()) == 40  # now xarray has loaded t2m
    assert_same(ZarrDataSource(shown), ZarrDataSource(store, names=["t2m", "wind"]))


@CHUNKS
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.packed, r"shows decoded values .*decode=True.*mask_and_scale=False"),
        (lambda x: x.t2m[2:5], r"(is a part of|is not) .*array .*WindowDataSource.*"),
        (lambda x: x.t2m.isel(lat=0), r"(is a part of|is not) .*array .*WindowDataSource.*"),
        (lambda x: x.t2m.T, r"transposed.*\.load\(\)"),
        (lambda x: x.t2m.rename("t"), r"in its store the array is named 't2m'"),
        (lambda x: x.t2m.rename(lat="y"), r"dimensions \['time', 'y'\], and in its store .*'lat'"),
        (lambda x: x.t2m.assign_coords(lat=[3, 2, 1, 0]), r"coordinate 'lat' .* is not the one in"),
        (lambda x: x[[]], r"has no data variable with a dimension"),
        (lambda x: x.t2m.variable, r"got an xarray.Variable; give an xarray.Dataset or DataArray"),
    ],
)
def test_changed_objects_are_refused(
    store: str, chunks: Any, change: Callable[[xr.Dataset], Any], message: str
) -> None:
    changed = change(xr.open_zarr(store, chunks=chunks))
    with pytest.raises(ArgumentError, match=message):
        ZarrDataSource(changed)


def test_computed_arrays_of_dask_are_refused(store: str) -> None:
    with pytest.raises(ArgumentError, match=r"dask.Array: computed.*\.to_zarr\(\).*\.load\(\)"):
        MapDataset.source(xr.open_zarr(store, chunks={}).t2m + 1)


def test_datasets_in_memory_are_held_with_their_coordinates() -> None:
    source = WindowDataSource(
        weather(), {"time": Window(2, select=slice("2020-01-03", "2020-01-06"))}, coordinates=True
    )
    for item in (source, pickle.loads(pickle.dumps(source))):
        record = item[1]
        np.testing.assert_equal(record["t2m"], VALUES[4:6])
        assert record["time"][0] == np.datetime64("2020-01-05")
