"""A real field as xarray writes it, in Zarr v2 and v3: windows and rows against xarray itself."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import xarray

import windrow
from windrow.sources import Field, WindowDataSource

STORE = Path(__file__).resolve().parents[3] / "examples/data/era5_uk_t2m_2019_03.zarr"
HOURS = 121  # five days and an hour: chunks that divide a day leave a short one
MISSING = [(0, 0, 0), (7, 3, 5), (120, 32, 48)]


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """How xarray writes the field; each of these shows something else."""

    name: str
    zarr_format: Literal[2, 3]
    consolidated: bool
    chunks: tuple[int, int, int]
    packed: bool = False
    shards: tuple[int, int, int] | None = None


LAYOUTS = [
    Layout("v2-time", 2, True, (24, 33, 49)),
    Layout("v2-space-packed", 2, False, (121, 8, 10), packed=True),
    Layout("v3-time-packed", 3, True, (1, 33, 49), packed=True),
    Layout("v3-both-shards", 3, False, (12, 11, 49), shards=(48, 33, 49)),
]


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """A store, with what xarray reads from it, decoded and as it is stored."""

    layout: Layout
    path: Path
    decoded: xarray.Dataset
    raw: xarray.Dataset


def with_more(field: xarray.Dataset) -> xarray.Dataset:
    """Some days of the field, with missing values, a static field, and coordinates of other kinds.

    `run` and `station` are a date and a string for each latitude.
    """
    field = field.isel(time=slice(0, HOURS)).copy(deep=True)
    for place in MISSING:
        field["t2m"][place] = np.nan
    latitudes = field.sizes["latitude"]
    height = np.arange(latitudes * field.sizes["longitude"], dtype="f4").reshape(latitudes, -1)
    field["height"] = ("latitude", "longitude"), height
    days = np.datetime64("2019-02-01", "ns") + np.arange(latitudes) * np.timedelta64(1, "D")
    return field.assign_coords(
        station=("latitude", np.array([f"row {k}, " + "ü" * (k % 3) for k in range(latitudes)])),
        run=("latitude", days),
    )


def write(layout: Layout, path: Path) -> Written:
    field = with_more(xarray.load_dataset(STORE, engine="zarr", consolidated=False))
    for variable in field.variables.values():
        variable.encoding = {}
    stored: dict[str, Any] = {"chunks": layout.chunks}
    if layout.shards is not None:
        stored["shards"] = layout.shards
    if layout.packed:
        stored |= {"dtype": "int16", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -9999}
    with warnings.catch_warnings():
        # Strings and consolidated metadata have no specification in v3; xarray writes them anyway.
        warnings.simplefilter("ignore")
        field.to_zarr(
            path,
            zarr_format=layout.zarr_format,
            consolidated=layout.consolidated,
            encoding={"t2m": stored},
        )
        options: dict[str, Any] = {"engine": "zarr", "consolidated": layout.consolidated}
        decoded = xarray.load_dataset(path, **options)
        raw = xarray.load_dataset(path, mask_and_scale=False, **options)
    return Written(layout, path, decoded, raw)


@pytest.fixture(scope="module", params=LAYOUTS, ids=lambda layout: layout.name)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write(request.param, tmp_path_factory.mktemp("era5") / "store.zarr")


def same(got: Any, expected: xarray.DataArray) -> None:
    """The same values, shape and dtype; NaN where NaN is."""
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected.values)


# --- windows -------------------------------------------------------------------------------------


def test_select_by_label_with_coordinates(written: Written) -> None:
    area: dict[str, Any] = {"latitude": slice(56, 53), "longitude": slice(-4.1, 0)}
    days = slice("2019-03-02", "2019-03-04T11")
    source = WindowDataSource(
        written.path,
        {"time": 5},
        {"time": 7},
        names=["t2m"],
        select={"time": days, **area},
        coordinates=True,
        decode=True,
    )
    expected = written.decoded["t2m"].sel(time=days, **area)
    assert expected.shape == (60, 13, 17)
    assert len(source) == (60 - 5) // 7 + 1
    for index in (0, 3, len(source) - 1):
        record = source[index]
        window = expected.isel(time=slice(index * 7, index * 7 + 5))
        same(record["t2m"], window)
        for dim in ("time", "latitude", "longitude"):
            same(record[dim], window[dim])


@pytest.mark.parametrize("method", [None, "nearest"])
def test_single_labels_drop_their_axis(written: Written, method: Any) -> None:
    place = {"latitude": 54.3 if method else 54.25, "longitude": -4.0}
    source = WindowDataSource(
        written.path,
        fields={"t2m": Field("t2m", {"time": [0, 24]})},
        select=place,
        method=method,
        decode=True,
    )
    expected = written.decoded["t2m"].sel(place, method=method)
    assert len(source) == HOURS - 24
    same(source[3]["t2m"], expected.isel(time=[3, 27]))


def test_a_chain_over_windows(written: Written) -> None:
    fields = {"x": Field("t2m", {"time": [-6, 0]}), "y": Field("t2m", {"time": 6})}
    source = WindowDataSource(written.path, fields=fields, coordinates=["time"], decode=True)
    chain = windrow.MapDataset.source(source).shuffle(seed=5).batch(16)
    seen = []
    with iter(chain) as batches:
        for batch in batches:
            for x, y, times in zip(batch["x"], batch["y"], batch["y_time"], strict=True):
                now = np.ravel(times)[0] - np.timedelta64(6, "h")
                seen.append(now)
                wanted = [now - np.timedelta64(6, "h"), now]
                same(x, written.decoded["t2m"].sel(time=wanted))
                same(y, written.decoded["t2m"].sel(time=np.ravel(times)[0]))
    np.testing.assert_array_equal(np.sort(seen), written.decoded["time"].values[6:-6])
