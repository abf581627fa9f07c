"""Fields of several stores in one record: their labels must be the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray

from windrow import MapDataset
from windrow.errors import SourceError
from windrow.sources import Field, WindowDataSource

HOURS = np.datetime64("2019-03-01", "ns") + np.arange(48) * np.timedelta64(1, "h")
LAT = 50 - 0.1 * np.arange(4)
FIELDS = {
    "x": Field("surface/t2m", {"time": ["-6h", "0h"]}),
    "y": Field("upper/z", {"time": "6h"}, select={"level": 500}),
}


def surface(folder: Path, hours: Any = HOURS) -> xarray.Dataset:
    values = np.arange(len(hours) * 4, dtype="f4").reshape(-1, 4)
    stored = xarray.Dataset({"t2m": (("time", "lat"), values)}, {"time": hours, "lat": LAT})
    stored.to_zarr(folder / "surface", consolidated=False)
    return stored


def upper(folder: Path, hours: Any = HOURS, lat: Any = LAT) -> xarray.Dataset:
    values = np.arange(len(hours) * 8, dtype="f4").reshape(-1, 2, 4) / 2
    labels = {"time": hours, "level": [850, 500], "lat": lat}
    stored = xarray.Dataset({"z": (("time", "level", "lat"), values)}, labels)
    stored.to_zarr(folder / "upper", consolidated=False)
    return stored


def both(folder: Path, **more: Any) -> WindowDataSource:
    stores = {"surface": folder / "surface", "upper": folder / "upper"}
    return WindowDataSource(stores, fields=FIELDS, **more)


def test_fields_of_two_stores(tmp_path: Path) -> None:
    t2m, z = surface(tmp_path)["t2m"], upper(tmp_path, lat=LAT.astype("f4"))["z"]
    found: Any = MapDataset.source(both(tmp_path)).batch(5)[1]
    assert np.array_equal(found["x"][0], t2m[[5, 11]])
    assert np.array_equal(found["y"][0], z.sel(level=500)[17])


def test_other_labels_are_refused(tmp_path: Path) -> None:
    surface(tmp_path)
    late = HOURS + np.timedelta64(24, "h")
    upper(tmp_path, late)
    with pytest.raises(SourceError, match="the stores differ in the labels of 'time'\n") as error:
        both(tmp_path)
    text = str(error.value)
    assert "  surface/t2m: it goes from 2019-03-01 to 2019-03-02T23:00 (48 values)\n" in text
    assert "  cell 0 is 2019-03-01 in one and 2019-03-02 in the other\n" in text
    day = {"time": slice("2019-03-02", "2019-03-02")}
    parts = [
        WindowDataSource(tmp_path / name, day, fields={key: field})
        for name, key, field in (
            ("surface", "x", Field("t2m", {"time": 0})),
            ("upper", "y", Field("z", {"time": 0}, select={"level": 500})),
        )
    ]
    left, right = MapDataset.zip([MapDataset.source(part) for part in parts])[3]  # type: ignore[misc]
    assert left["x"][0] == 4 * 27
    assert right["y"][0] == (8 * 3 + 4) / 2


@pytest.mark.parametrize("dtype", ["i8", "f8"])
def test_labels_a_step_apart_are_refused_however_large_they_are(tmp_path: Path, dtype: str) -> None:
    # 150 years of hours of a calendar that NumPy has not, so they stay numbers.
    for name, first in (("surface", 1_400_000), ("upper", 1_400_001)):
        hours = np.arange(first, first + 48).astype(dtype)
        found = (surface if name == "surface" else upper)(tmp_path / "as dates")
        times = xarray.Variable(("time",), hours, {"units": "hours since 1850-01-01"})
        times.attrs["calendar"] = "noleap"
        found.assign_coords(time=times).to_zarr(tmp_path / name, consolidated=False)
    with pytest.raises(SourceError, match="the stores differ in the labels of 'time'\n"):
        both(tmp_path)


def test_a_turned_axis_is_refused_and_may_be_named_apart(tmp_path: Path) -> None:
    surface(tmp_path)
    upper(tmp_path, lat=LAT[::-1])
    with pytest.raises(SourceError, match="the stores differ in the labels of 'lat'"):
        both(tmp_path)
    named = both(tmp_path, dims={"upper/z": ("time", "level", "other")})
    assert named.spec["y"].dims == ("other",)


def test_other_lengths_are_refused_with_a_way_out(tmp_path: Path) -> None:
    surface(tmp_path)
    upper(tmp_path, HOURS[:40])
    with pytest.raises(SourceError, match="select the same labels in a source of each and zip"):
        both(tmp_path)
