"""Windows as `xarray.Dataset`: compared with what xarray selects from the store itself."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray

import windrow
from windrow import MapDataset
from windrow.errors import ElementError, MissingExtraError
from windrow.sources import Field, Window, WindowDataSource


@pytest.fixture(params=[2, 3])
def weather(tmp_path: Path, request: pytest.FixtureRequest) -> xarray.Dataset:
    """A store with a packed variable, one on levels and one without time; as xarray shows it."""
    rng = np.random.default_rng(0)
    made = xarray.Dataset(
        {
            "t2m": (("time", "lat", "lon"), rng.normal(280, 9, (40, 6, 8)), {"units": "K"}),
            "z": (("time", "level", "lat"), rng.normal(0, 9, (40, 3, 6)).astype("f4")),
            "height": (("lat", "lon"), rng.integers(0, 900, (6, 8)).astype("f4"), {"units": "m"}),
        },
        {
            "time": np.datetime64("2019-03-01", "ns") + np.arange(40) * np.timedelta64(1, "h"),
            "level": [1000, 850, 500],
            "lat": ("lat", 56 - 0.5 * np.arange(6), {"units": "degrees_north"}),
            "lon": 0.5 * np.arange(8),
        },
    )
    packed = {"dtype": "int16", "scale_factor": 0.5, "_FillValue": -1, "chunks": (7, 6, 8)}
    zarr_format = request.param
    made.to_zarr(
        tmp_path / "w", encoding={"t2m": packed}, consolidated=False, zarr_format=zarr_format
    )
    shown: xarray.Dataset = xarray.open_zarr(tmp_path / "w", chunks=None, consolidated=False)
    return shown.load()


def origins(seed: int, count: int) -> list[int]:
    """Which windows the batches of a shuffle have, in order."""
    return [int(i) for i in MapDataset.range(count).shuffle(seed=seed)]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.jobs)])
def test_shuffled_batches_are_what_xarray_selects(
    weather: xarray.Dataset, tmp_path: Path, workers: int
) -> None:
    windows = WindowDataSource(
        tmp_path / "w", {"time": Window(4, 2), "lat": 3}, coordinates=True, decode=True
    )
    chain: Any = MapDataset.source(windows).shuffle(seed=3).batch(5).map(windows.to_xarray)
    if workers:
        options = windrow.MultiprocessingOptions(num_workers=workers)
        chain = chain.to_iter_dataset().mp_prefetch(options)
    expected = [weather.isel(time=slice(2 * t, 2 * t + 4)) for t in range(19)]
    pieces = [piece.isel(lat=slice(k, k + 3)) for piece in expected for k in (0, 3)]
    wanted = iter(origins(3, len(windows)))
    batches = list(chain)
    assert [batch.sizes["sample"] for batch in batches] == [5] * 7 + [3]
    for batch in batches:
        assert batch["t2m"].dims == ("sample", "time", "lat", "lon")
        assert set(batch.indexes) == {"lon", "level"}  # windows share no other labels
        for at in range(batch.sizes["sample"]):
            piece = pieces[next(wanted)]
            piece = piece.drop_indexes(["time", "lat"])
            xarray.testing.assert_identical(batch.isel(sample=at), piece)


@pytest.mark.parametrize(
    ("labels", "method"),
    [
        ({"time": slice("2019-03-01T05", "2019-03-02T11"), "lat": slice(55.5, 54)}, None),
        ({"time": "2019-03-01", "lon": slice(0.5, 2.9)}, None),
        ({"lat": 54.5, "lon": 1.0}, None),
        ({"lat": 54.3, "lon": [0.9, 3.1]}, "nearest"),
    ],
)
def test_labels_select_what_xarray_selects(
    weather: xarray.Dataset, tmp_path: Path, labels: dict[str, Any], method: Any
) -> None:
    given = {dim: Window(select=label, method=method) for dim, label in labels.items()}
    given["time"] = Window(4, 3, select=labels.get("time"))
    windows = WindowDataSource(
        tmp_path / "w",
        given,
        names=["t2m"],
        decode=True,
        coordinates=True,
    )
    expected = weather["t2m"].sel(labels, method=method)
    assert len(windows) == (expected.sizes["time"] - 4) // 3 + 1
    for index in (0, len(windows) - 1):
        window = expected.isel(time=slice(3 * index, 3 * index + 4))
        record = windows[index]
        np.testing.assert_array_equal(record["t2m"], window, strict=True)
        for dim in window.dims:
            np.testing.assert_array_equal(record[str(dim)], window[dim], strict=True)


def test_fields_that_differ_along_time_have_axes_of_their_own(
    weather: xarray.Dataset, tmp_path: Path
) -> None:
    fields = {
        "x": Field("t2m", {"time": ["-6h", "0h"]}),
        "y": Field("t2m", {"time": "3h"}),
        "z": Field("z", {"time": ["-6h", "0h"]}, select={"level": 500}),
    }
    windows = WindowDataSource(tmp_path / "w", fields=fields, coordinates=True, decode=True)
    batch: Any = MapDataset.source(windows).shuffle(seed=1).batch(4)[0]
    found = windows.to_xarray(batch, dim="batch")
    assert found["x"].dims == ("batch", "x_time", "lat", "lon")
    assert found["z"].dims == ("batch", "z_time", "lat")
    assert found["level"] == 500
    for at, first in enumerate(origins(1, len(windows))[:4]):
        xarray.testing.assert_equal(
            found["x"][at].rename(x_time="time").drop_vars(["y_time", "level"]),
            weather["t2m"][[first, first + 6]],
        )
        assert found["y_time"][at] == weather["time"][first + 9]
        assert np.array_equal(found["y"][at], weather["t2m"][first + 9])
        assert np.array_equal(found["z"][at], weather["z"][[first, first + 6], 2])


def test_padded_windows_have_no_labels_outside(weather: xarray.Dataset, tmp_path: Path) -> None:
    windows = WindowDataSource(
        tmp_path / "w",
        {"lat": Window(4, pad="constant"), "lon": Window(4, pad="wrap")},
        names=["height"],
        fill=np.nan,
        coordinates=True,
        decode=True,
    )
    last = windows.to_xarray(windows[3])  # a record is a Dataset too
    wrapped = weather["height"].isel(lat=slice(4, 6), lon=slice(4, 8))
    xarray.testing.assert_identical(last["height"][:2], wrapped)
    assert last["height"][2:].isnull().all()
    assert np.isnan(last["lat"][2:]).all()


def test_stored_values_keep_what_decodes_them(weather: xarray.Dataset, tmp_path: Path) -> None:
    windows = WindowDataSource(tmp_path / "w", {"time": 40}, names=["t2m"], coordinates=True)
    record = windows[0]
    found = windows.to_xarray(record)
    assert np.shares_memory(found["t2m"].values, record["t2m"])
    raw = xarray.open_zarr(tmp_path / "w", chunks=None, consolidated=False, mask_and_scale=False)
    assert found["t2m"].dtype == np.int16
    assert found["t2m"].attrs == raw["t2m"].attrs
    xarray.testing.assert_equal(xarray.decode_cf(found)["t2m"], weather["t2m"])
    for decode in ("float32", np.float32):
        decoded = WindowDataSource(tmp_path / "w", {"time": 40}, names=["t2m"], decode=decode)[0]
        np.testing.assert_array_equal(decoded["t2m"], weather["t2m"].astype("f4"), strict=True)


def test_a_dataset_in_memory_keeps_its_attributes(weather: xarray.Dataset) -> None:
    windows = WindowDataSource(weather[["height"]], {"lat": 3}, coordinates=True)
    found = windows.to_xarray(windows.read(np.array([1])))
    xarray.testing.assert_identical(found["height"][0], weather["height"][3:].drop_indexes("lat"))


def test_values_in_memory_are_not_decoded_again() -> None:
    attributes = {"scale_factor": 0.5, "_FillValue": 3, "units": "K"}
    data = xarray.DataArray(np.arange(6, dtype="i2"), dims=("x",), attrs=attributes)
    source = WindowDataSource(data, {"x": 6}, decode=True)
    for each in (source, pickle.loads(pickle.dumps(source))):
        assert each[0].dtype == np.int16
        assert each[0].tolist() == list(range(6))
    assert source.to_xarray(source[0])["values"].attrs["units"] == "K"


def test_a_forecast_takes_the_labels_of_its_batch(tmp_path: Path, weather: xarray.Dataset) -> None:
    fields = {"x": Field("t2m", {"time": 0}), "y": Field("t2m", {"time": 6})}
    windows = WindowDataSource(tmp_path / "w", fields=fields, coordinates=["time", "lat"])
    batch = windows.read(np.array([3, 30]))
    forecast = windows.to_xarray({"y": batch["x"].astype("f4"), "y_time": batch["y_time"]})
    assert list(forecast.data_vars) == ["y"]
    assert set(forecast.coords) == {"y_time", "lat"}
    assert forecast["y_time"].values.tolist() == weather["time"].values[[9, 36]].tolist()


def test_an_array_without_names_or_coordinates(tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", np.arange(10))
    windows = WindowDataSource(np.load(tmp_path / "tokens.npy", mmap_mode="r"), {0: 4})
    assert windows.to_xarray(windows.read(np.array([1, 0])))["tokens.npy"].dims == (
        "sample",
        "dim_0",
    )


def test_what_does_not_fit_the_records_is_refused(tmp_path: Path, weather: xarray.Dataset) -> None:
    windows = WindowDataSource(tmp_path / "w", {"time": 4}, names=["t2m"], coordinates=["time"])
    batch = windows.read(np.array([0, 1]))
    for wrong, message in (
        (
            {"t2m": batch["t2m"][..., 1:]},
            r"'t2m' has shape \(2, 4, 6, 7\), and in a record .*\(4, 6,",
        ),
        ({"t2m": batch["t2m"], "time": batch["time"][0]}, r"'t2m' has shape \(2, 4, 6, 8\)"),
        ({**batch, "more": 1}, r"'more' is not in a record of the source, which has t2m, time;"),
        (batch["t2m"], r"got an ndarray, and records of the source are dicts of t2m, time;"),
    ):
        with pytest.raises(ElementError, match=message):
            windows.to_xarray(wrong)


def test_without_xarray_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = WindowDataSource(np.arange(8), {0: 4})
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(MissingExtraError, match=r"to_xarray needs .*windrow-data\[xarray\]"):
        windows.to_xarray(windows[0])
