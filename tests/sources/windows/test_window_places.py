"""Places of windows in the world that must not be wrong in silence, and labels that differ."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorstore as ts
import xarray
import zarr

from tests.range_server import RangeServer
from tests.volumes import ome, precomputed, scale, space, translation
from windrow.errors import ArgumentError, SourceError
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


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Volumes of equal shape, of which the second one begins 10 cells later along x."""
    folder, values = tmp_path_factory.mktemp("two"), np.zeros((20, 20, 4), "u1")
    return {
        name: precomputed(folder / name, (values, [8, 8, 40], [offset, 0, 0]))
        for name, offset in (("a", 0), ("b", 10))
    }


# --- cells of several resolutions ----------------------------------------------------------------


@pytest.mark.parametrize("label", [10, [10, 12]])
def test_a_field_selects_no_single_cell_at_several_resolutions(image: Path, label: Any) -> None:
    fields = {
        "near": Field(select={"y": label}),
        "far": Field(select={"y": label}, resolution={"x": 2}),
    }
    with pytest.raises(ArgumentError, match="select takes cells of 'y', and the arrays have other"):
        WindowDataSource(image, {"x": 4}, fields=fields)


def test_a_field_selects_a_range_at_its_own_resolution(image: Path) -> None:
    fields = {
        "near": Field(select={"y": slice(10, 21)}),
        "far": Field(select={"y": slice(10, 21)}, resolution={"x": 2}),
    }
    record = WindowDataSource(image, {"x": 4}, {"x": 2}, fields=fields)[0]
    near = FINE[10:21] if len(record["near"]) == 11 else FINE[10:22]  # whether the end is included
    assert np.array_equal(record["near"], near[:, 2:6])
    assert np.array_equal(record["far"], COARSE[5 : (10 + len(near)) // 2, :4])
    fields["far"] = Field(select={"y": slice(11, 12)}, resolution={"x": 2})
    with pytest.raises(SourceError, match=r"no cell of '1' lies wholly in the cells \[11, 1"):
        WindowDataSource(image, {"x": 4}, {"x": 2}, fields=fields)


def test_levels_that_differ_in_length_do_not_wrap(tmp_path: Path) -> None:
    levels = {
        "0": (FINE[0, :39], [scale(1), translation(0.5)]),
        "1": (FINE[0, :39:2], [scale(2), translation(1)]),
    }
    path = ome(tmp_path / "image", levels, space("x"))
    fields = {"near": Field(), "far": Field(resolution={"x": 2})}
    given: dict[str, Any] = {"sizes": {"x": 4}, "strides": {"x": 2}, "fields": fields}
    with pytest.raises(
        SourceError, match="of one length in the world, and '0' is 39um long and '1' 40um"
    ):
        WindowDataSource(path, **given, pad="wrap")
    assert len(WindowDataSource(path, **given, pad="edge")) > 0
    source = WindowDataSource(path, **given, pad="wrap", stop={"x": 38})
    assert source[0]["far"].tolist() == FINE[0, [36, 0, 2, 4]].tolist()


def test_the_cells_left_over_are_those_behind_the_last_window(image: Path) -> None:
    fields = {"near": Field(), "far": Field(sizes={"x": 1}, resolution={"x": 2})}
    source = WindowDataSource(image, {"x": 4, "y": 4}, {"x": 6, "y": 2}, fields=fields)
    assert source[0]["near"][0].tolist() == FINE[2, 1:5].tolist()  # where the middles meet
    assert source[len(source) - 1]["near"][0, -1] % 40 == 34
    assert ", 5 left over at the end of x" in repr(source)


# --- levels without a resolution -----------------------------------------------------------------


def test_a_size_in_the_world_opens_the_finest_level(image: Path, tmp_path: Path) -> None:
    source = WindowDataSource({"em": image}, {"x": "4um", "y": "2um"})
    assert np.array_equal(source[1]["em"], FINE[:2, 4:8])
    for fields in ({"a": Field("em")}, {"a": "em"}):
        source = WindowDataSource({"em": image}, {"x": "4um", "y": "2um"}, fields=fields)
        assert np.array_equal(source[1]["a"], FINE[:2, 4:8])
    one = ome(tmp_path / "one", {"0": (FINE, [scale(2, 2)])}, space("y", "x"))
    in_world, in_cells = (WindowDataSource(one, {"x": size}) for size in ("4um", 2))
    assert in_world.fingerprint == in_cells.fingerprint
    assert np.array_equal(in_world[1], FINE[:, 2:4])


@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.parametrize(
    "places", [{"x": 4, "y": 2}, {"x": "8um", "y": "4um"}], ids=["cells", "um"]
)
def test_an_image_of_one_level_is_as_one_of_two(
    tmp_path: Path, version: str, places: dict[str, Any]
) -> None:
    found = []
    one = {"s0": (FINE, [scale(2, 2)])}
    for levels in (one, {**one, "s1": (COARSE, [scale(4, 4)])}):
        path = ome(tmp_path / str(len(levels)), levels, space("y", "x"), version)
        if version == "0.5":  # the axes of OME-Zarr are the only ones
            meta = json.loads((path / "s0" / "zarr.json").read_text())
            (path / "s0" / "zarr.json").write_text(json.dumps({**meta, "dimension_names": None}))
        found.append(WindowDataSource(path, places, coordinates=["x"])[1])
        assert np.array_equal(WindowDataSource(path, places)[1], FINE[:2, 4:8])
    np.testing.assert_equal(found[0], found[1])
    assert np.array_equal(found[0]["s0"], FINE[:2, 4:8])


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


def test_levels_by_name(image: Path, two: dict[str, Path], tmp_path: Path) -> None:
    source = WindowDataSource(image, {"x": "4um", "y": "4um"}, fields={"far": Field("1")})
    assert np.array_equal(source[1]["far"], COARSE[:2, 2:4])
    fields = {"near": Field("0"), "far": Field("1")}
    record = WindowDataSource(image, {"x": "8um", "y": "8um"}, fields=fields)[1]
    assert np.array_equal(record["near"], FINE[:8, 8:16])
    assert np.array_equal(record["far"], COARSE[:4, 4:8])
    with pytest.raises(SourceError, match="the arrays differ in length along 'y'"):
        WindowDataSource(image, {"x": 4}, fields=fields)  # plain arrays, as they always were
    values = np.arange(8**3).reshape(8, 8, 8).astype("u2")
    half = values[::2, ::2, ::2]
    volume = precomputed(
        tmp_path / "volume", (values, [8, 8, 8], [0, 0, 0]), (half, [16, 16, 16], [0, 0, 0])
    )
    source = WindowDataSource(volume, {"x": 2}, fields={"far": Field("16_16_16")})
    assert np.array_equal(source[1]["far"][..., 0], half[2:4])


def test_the_units_of_a_zarr_array_at_a_path_do_not_count(tmp_path: Path) -> None:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "a")}}
    store = ts.open(spec, create=True, dtype=ts.uint8, shape=[8], dimension_units=["4nm"]).result()
    store[...] = np.arange(8, dtype="u1")
    for direct in (None, False):
        with pytest.raises(ArgumentError, match="does not say where the cells along axis 0 lie"):
            WindowDataSource(tmp_path / "a", {0: "8nm"}, direct=direct)
        assert WindowDataSource(store, {0: "8nm"}, direct=direct)[1].tolist() == [2, 3]


# --- labels --------------------------------------------------------------------------------------


def test_volumes_at_other_places_have_labels_of_their_own(two: dict[str, Path]) -> None:
    source = WindowDataSource(two, {"y": "32nm"}, coordinates=["x", "y"])
    record = source[0]
    assert record["a_x"][:2].tolist() == [4, 12]
    assert record["b_x"][:2].tolist() == [84, 92]
    assert record["y"].tolist() == [4, 12, 20, 28]
    shown = source.to_xarray(record)
    assert shown["a"].dims[:2] == ("a_x", "y")
    assert shown["b_x"][0] == 84
    # Also where windows count cells, whose numbers are equal.
    record = WindowDataSource(two, {"x": 2}, coordinates=["x"])[0]
    assert (record["a_x"][0], record["b_x"][0]) == (4, 84)


def test_labels_that_are_stored_for_one_level_are_not_of_another(tmp_path: Path) -> None:
    path = ome(
        tmp_path / "image",
        {
            "0": (FINE[:1], [scale(1, 1), translation(0, 0.5)]),
            "1": (FINE[:1, ::2], [scale(1, 2), translation(0, 1)]),
        },
        space("y", "x"),
    )
    group = zarr.open_group(path)
    group.create_array("x", data=np.arange(40.0), chunks=(40,), dimension_names=("x",))
    fields = {"near": Field(), "far": Field(resolution={"x": 2})}
    source = WindowDataSource(path, {"x": 2}, {"x": 2}, fields=fields, coordinates=["x"])
    assert source[0]["near_x"].tolist() == [1.5, 2.5]
    assert source[0]["far_x"].tolist() == [1, 3]


def test_labels_in_memory_have_their_unit() -> None:
    lat = xarray.Variable("y", 40.0 - 0.5 * np.arange(12), {"units": "degrees_N"})
    data = xarray.DataArray(np.arange(12), {"y": lat}, ("y",))
    assert len(WindowDataSource(data, {"y": "2deg"})[0]) == 4


def test_values_in_memory_are_not_decoded_again() -> None:
    attributes = {"scale_factor": 0.5, "_FillValue": 3, "units": "K"}
    data = xarray.DataArray(np.arange(6, dtype="i2"), dims=("x",), attrs=attributes)
    source = WindowDataSource(data, {"x": 6}, decode=True)
    for each in (source, pickle.loads(pickle.dumps(source))):
        assert each[0].dtype == np.int16
        assert each[0].tolist() == list(range(6))
    assert source.to_xarray(source[0])["values"].attrs["units"] == "K"


# --- tolerances ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def weather(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weather") / "weather.zarr"
    times = np.datetime64("2019-03-01", "ns") + np.arange(48) * np.timedelta64(1, "h")
    labels = {
        "time": times,
        "lat": 0.25 * np.arange(40),
        "x": ("x", 3.0 * np.arange(5), {"units": "nm"}),
    }
    values = np.zeros((48, 40, 5), "f4")
    data = xarray.Dataset({"t": (("time", "lat", "x"), values)}, labels)
    data.to_zarr(path, consolidated=False)
    return path


def suggested(arrays: Any, sizes: dict[Any, str], **given: Any) -> str:
    with pytest.raises(SourceError, match="tolerance=") as raised:
        WindowDataSource(arrays, sizes, **given)
    return str(raised.value).partition("tolerance='")[2].partition("'")[0]


@pytest.mark.parametrize(
    ("step", "size"),
    [
        (3.0, "100nm"),
        (3.0, "1nm"),
        (4.0, "5.5nm"),
        (0.07, "5.5nm"),
        (1 / 3, "0.0101um"),
        (7, "2um"),
    ],
)
def test_the_tolerance_of_the_message_is_enough(step: float, size: str) -> None:
    x = xarray.Variable("x", step * np.arange(300), {"units": "nm"})
    data = xarray.DataArray(np.zeros(300, "u1"), {"x": x}, ("x",))
    off = suggested(data, {"x": size})
    assert len(WindowDataSource(data, {"x": size}, tolerance=off)[0]) >= 1
    less = f"{float(off.removesuffix('nm')) * 0.98}nm"
    with pytest.raises(SourceError, match="for the nearest number of cells"):
        WindowDataSource(data, {"x": size}, tolerance=less)


def test_sizes_in_time_take_a_duration(weather: Path) -> None:
    assert suggested(weather, {"time": "90min"}) == "1800s"
    for given in ("1800s", "30min", np.timedelta64(30, "m")):
        source = WindowDataSource(weather, {"time": "90min"}, tolerance=given)
        assert source[0]["t"].shape[0] == 2


def test_a_tolerance_is_for_axes_of_its_kind(weather: Path) -> None:
    source = WindowDataSource(weather, {"time": "6h", "lat": "2.1deg"}, tolerance="0.125deg")
    assert source[0]["t"].shape[:2] == (6, 8)
    with pytest.raises(ArgumentError, match="tolerance is '4nm', a length, and the axis counts in"):
        WindowDataSource(weather, {"time": "6h", "lat": "2deg"}, tolerance="4nm")


def test_m_is_minutes_where_offsets_are_times(weather: Path) -> None:
    fields = {"a": Field("t", offsets={"time": ["-6h", "90min"]})}
    source = WindowDataSource(weather, fields=fields, tolerance="30m")
    assert source[0]["a"].shape[0] == 2
    with pytest.raises(ArgumentError, match="all sizes are in cells of one resolution"):
        WindowDataSource(weather, fields=fields, tolerance="30mm")


def test_the_distance_of_middles_is_shown_to_three_digits(tmp_path: Path) -> None:
    levels = {"0": (FINE[0], [scale(4e-9)]), "1": (FINE[0, ::2], [scale(8e-9)])}
    path = ome(tmp_path / "image", levels, space("x", unit="meter"))
    fields = {"near": Field(), "far": Field(resolution={"x": 8e-9})}
    given: dict[str, Any] = {"sizes": {"x": 4}, "strides": {"x": 2}, "fields": fields}
    with pytest.raises(SourceError, match="tolerance='2e-09m'"):
        WindowDataSource(path, **given)
    assert len(WindowDataSource(path, **given, tolerance="2e-09m")) > 0


@pytest.mark.parametrize(
    "unit",
    ["degrees_north", "degree_north", "degrees_N", "degree_N", "degreesN", "degreeE", "degrees_E"],
)
def test_degrees_have_the_names_of_the_conventions(unit: str) -> None:
    y = xarray.Variable("y", 0.5 * np.arange(8), {"units": unit})
    data = xarray.DataArray(np.arange(8), {"y": y}, ("y",))
    assert len(WindowDataSource(data, {"y": "2deg"})[0]) == 4
