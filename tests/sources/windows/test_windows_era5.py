"""A real field as xarray writes it, in Zarr v2 and v3: windows and rows against xarray itself."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import xarray
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.hypothesis_profiles import examples
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


@settings(max_examples=examples(50))
@given(data=st.data())
def test_grid_windows_by_names(written: Written, data: st.DataObject) -> None:
    field = written.raw["t2m"]
    lengths = {str(dim): length for dim, length in field.sizes.items()}
    dims = data.draw(st.lists(st.sampled_from(list(lengths)), min_size=1, unique=True))
    sizes = {dim: data.draw(st.integers(1, lengths[dim]), label=f"size {dim}") for dim in dims}
    strides = {dim: data.draw(st.integers(1, 20), label=f"stride {dim}") for dim in dims}
    source = WindowDataSource(written.path, sizes, strides, names=["t2m"])
    counts = [
        (lengths[dim] - sizes[dim]) // strides[dim] + 1 if dim in sizes else 1 for dim in lengths
    ]
    assert len(source) == np.prod(counts)
    indices = data.draw(st.lists(st.integers(0, len(source) - 1), min_size=1, max_size=4))
    got = source.read(np.array(indices))["t2m"]
    for window, index in zip(got, indices, strict=True):
        places = dict(zip(lengths, np.unravel_index(index, counts), strict=True))
        cells = {
            dim: slice(int(places[dim]) * strides[dim], int(places[dim]) * strides[dim] + size)
            for dim, size in sizes.items()
        }
        same(window, field.isel(cells))


@pytest.mark.parametrize("decode", [False, True])
def test_offsets_beside_a_static_field(written: Written, decode: bool) -> None:
    expected = written.decoded if decode else written.raw
    source = WindowDataSource(
        written.path,
        fields={
            "x": Field("t2m", {"time": [-12, -6, 0]}),
            "y": Field("t2m", {"time": 6}),
            "height": Field("height"),
        },
        decode=decode,
    )
    assert len(source) == HOURS - 18
    indices = np.array([0, 50, len(source) - 1])
    got = source.read(indices)
    for k, now in enumerate(indices + 12):
        same(got["x"][k], expected["t2m"].isel(time=[now - 12, now - 6, now]))
        same(got["y"][k], expected["t2m"].isel(time=now + 6))
        same(got["height"][k], expected["height"])


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
