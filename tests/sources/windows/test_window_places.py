"""Levels of images without a resolution, values in memory, and tolerances."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import xarray

from tests.range_server import RangeServer
from tests.volumes import ome, scale, space, translation
from windrow.errors import SourceError
from windrow.sources import Field, WindowDataSource, ZarrDataSource

AnyArray = npt.NDArray[Any]
FINE = np.arange(40 * 40).reshape(40, 40).astype("u2")
COARSE = FINE[::2, ::2]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An OME-Zarr image of two levels, of 40 and of 20 cells."""
    levels = {
        "0": (FINE, [scale(1, 1), translation(0.5, 0.5)]),
        "1": (COARSE, [scale(2, 2), translation(1, 1)]),
    }
    return ome(tmp_path_factory.mktemp("places") / "image", levels, space("y", "x"))


# --- levels without a resolution -----------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_an_image_of_one_level_is_as_one_of_two(tmp_path: Path, version: str) -> None:
    places = {"x": 4, "y": 2}
    one = {"s0": (FINE, [scale(2, 2)])}
    for levels in (one, {**one, "s1": (COARSE, [scale(4, 4)])}):
        path = ome(tmp_path / str(len(levels)), levels, space("y", "x"), version)
        if version == "0.5":  # the axes of OME-Zarr are the only ones
            meta = json.loads((path / "s0" / "zarr.json").read_text())
            (path / "s0" / "zarr.json").write_text(json.dumps({**meta, "dimension_names": None}))
        assert np.array_equal(WindowDataSource(path, places)[1], FINE[:2, 4:8])


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_levels_with_nested_paths_that_are_not_listed(tmp_path: Path, version: str) -> None:
    levels = {
        "scale0/image": (FINE, [scale(2, 2)]),
        "scale1/image": (FINE[::2, ::2], [scale(4, 4)]),
    }
    path = ome(tmp_path / "image", levels, space("y", "x"), version)
    with RangeServer(tmp_path) as server:
        for where in (path, server.url("image")):
            source = WindowDataSource(where, {"x": 4, "y": 4}, resolution={"x": "4um"})
            assert np.array_equal(source[1], FINE[::2, ::2][:4, 4:8])
            both = ZarrDataSource(where, names=["scale1/image"])
            assert np.array_equal(both[3]["scale1"]["image"], FINE[6, ::2])


def test_levels_by_name(image: Path) -> None:
    source = WindowDataSource(image, {"x": 4, "y": 4}, fields={"far": Field("1")})
    assert np.array_equal(source[1]["far"], COARSE[:4, 4:8])
    fields = {"near": Field("0"), "far": Field("1")}
    with pytest.raises(SourceError, match="the arrays differ in length along 'y'"):
        WindowDataSource(image, {"x": 4}, fields=fields)


# --- labels --------------------------------------------------------------------------------------


def test_values_in_memory_are_not_decoded_again() -> None:
    attributes = {"scale_factor": 0.5, "_FillValue": 3, "units": "K"}
    data = xarray.DataArray(np.arange(6, dtype="i2"), dims=("x",), attrs=attributes)
    source = WindowDataSource(data, {"x": 6}, decode=True)
    for each in (source, pickle.loads(pickle.dumps(source))):
        assert each[0].dtype == np.int16
        assert each[0].tolist() == list(range(6))
    assert source.to_xarray(source[0])["values"].attrs["units"] == "K"


# --- tolerances ----------------------------------------------------------------------------------


def test_m_is_minutes_in_a_tolerance(tmp_path: Path) -> None:
    times = np.datetime64("2019-03-01", "ns") + np.arange(48) * np.timedelta64(1, "h")
    data = xarray.Dataset({"t": (("time",), np.zeros(48, "f4"))}, {"time": times})
    data.to_zarr(tmp_path / "weather.zarr", consolidated=False)
    fields = {"a": Field("t", offsets={"time": ["-6h", "90min"]})}
    source = WindowDataSource(tmp_path / "weather.zarr", fields=fields, tolerance="30m")
    assert source[0]["a"].shape[0] == 2
