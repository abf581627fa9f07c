"""Groups of arrays: what is data and what are coordinates, the choice of arrays, ways to list."""

from __future__ import annotations

import json
import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts
import xarray as xr
import zarr

from tests.range_server import RangeServer
from windrow.errors import ArgumentError, NotFoundError, SourceError
from windrow.sources import ZarrDataSource
from windrow.sources.zarr.open_array import OpenArray
from windrow.sources.zarr.source import ArrayTree

FORMATS = pytest.mark.parametrize("zarr_format", [2, 3])
pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata", "ignore:.*V3 specification")

FIELD = np.arange(6 * 3 * 4, dtype="f4").reshape(6, 3, 4)


def field() -> xr.Dataset:
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), FIELD, {"units": "K"}),
            "wind": (("time", "lat", "lon"), -FIELD),
        },
        coords={
            "time": np.arange("2020-01-01", "2020-01-07", dtype="M8[D]").astype("M8[ns]"),
            "lat": [1.0, 2, 3],
            "lon": [1.0, 2, 3, 4],
            "height": 2.0,
            "area": (("lat", "lon"), np.ones((3, 4))),
            "station": ("time", list("abcdef")),
        },
    )


def xarray_store(path: Path, zarr_format: Any, *, consolidated: bool = True) -> Path:
    field().to_zarr(path, zarr_format=zarr_format, consolidated=consolidated)
    return path


def opened(arrays: Any, **settings: Any) -> dict[str, OpenArray]:
    return {array.name: array for array in ArrayTree("source", arrays, **settings).open()}


@FORMATS
@pytest.mark.parametrize("consolidated", [True, False])
def test_what_xarray_wrote_gives_its_data(
    tmp_path: Path, zarr_format: Any, consolidated: bool
) -> None:
    path = xarray_store(tmp_path / "x", zarr_format, consolidated=consolidated)
    source = ZarrDataSource(path)
    assert list(source[2]) == ["t2m", "wind"]
    np.testing.assert_array_equal(source.read(np.array([5, 0]))["wind"], -FIELD[[5, 0]])
    assert "; coordinates: area, height, lat, lon and 2 more" in repr(source)
    assert repr(pickle.loads(pickle.dumps(source))) == repr(source)


def test_coordinates_by_an_attribute_of_the_group(tmp_path: Path) -> None:
    root = zarr.open_group(str(tmp_path / "g"), mode="w", attributes={"coordinates": "b d"})
    for name in "abcd":
        root.create_array(name, shape=(4,), dtype="i4", dimension_names=["x"])
    assert set(opened(tmp_path / "g")) == {"a", "c"}


def test_without_names_of_axes_everything_is_data(tmp_path: Path) -> None:
    root = zarr.open_group(str(tmp_path / "g"), mode="w")
    for name in "ab":
        array = root.create_array(name, shape=(4,), dtype="i4")
        array.attrs["coordinates"] = "b"
    assert set(opened(tmp_path / "g")) == {"a", "b"}


@pytest.mark.parametrize(
    "wrong", [["x"], ["x", "y", "z"], ["x", 3], "xy", {"x": 1}, None, [""] * 2]
)
@pytest.mark.parametrize("direct", [None, False])
def test_names_that_do_not_fit_are_none(tmp_path: Path, wrong: Any, direct: bool | None) -> None:
    array = zarr.create_array(str(tmp_path / "a"), shape=(4, 2), dtype="i4", zarr_format=2)
    array.attrs["_ARRAY_DIMENSIONS"] = wrong
    found = opened(tmp_path / "a", direct=direct)[""]
    assert found.dims == (None, None)
    assert found.attributes["_ARRAY_DIMENSIONS"] == wrong


def test_labels_of_open_stores_and_specs(tmp_path: Path) -> None:
    path = xarray_store(tmp_path / "x", 3) / "t2m"
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    store = ts.open(spec).result()
    for value, dims in (
        (spec, ("time", "lat", "lon")),
        (f"file://{path}/|zarr3:", ("time", "lat", "lon")),
        (store.T, ("lon", "lat", "time")),
        (store[ts.d["lat"].label["y"]], ("time", "y", "lon")),
        (store[ts.d[:].label["", "", "z"]], (None, None, "z")),
        (ts.array(FIELD), (None, None, None)),
    ):
        array = opened(value)[""]
        assert array.dims == dims
        assert array.attributes.get("units") == (None if dims == (None, None, None) else "K")


@FORMATS
@pytest.mark.parametrize("consolidated", [True, False])
def test_a_choice_of_arrays(tmp_path: Path, zarr_format: Any, consolidated: bool) -> None:
    root = zarr.open_group(str(tmp_path / "g"), mode="w", zarr_format=zarr_format)
    for name, length in {"t2m": 6, "u/v": 6, "u/w/deep": 6, "words": 5, "long": 9}.items():
        dtype = "S3" if name == "words" else "i4"
        root.create_array(name, shape=(length,), dtype=dtype)
    if consolidated:
        zarr.consolidate_metadata(str(tmp_path / "g"), zarr_format=zarr_format)
    path = tmp_path / "g"
    assert list(ZarrDataSource(path, names=["u/v", "t2m"])[0]) == ["u", "t2m"]
    assert set(opened(path, names=["u"])) == {"u/v", "u/w/deep"}
    assert set(opened(path, names=("/u/w/deep/", "u/v"))) == {"u/v", "u/w/deep"}
    assert set(opened({"a": path, "b/c": path / "long"}, names=["a/t2m", "b/c"])) == {
        "a/t2m",
        "b/c",
    }
    with pytest.raises(SourceError, match=r"names has 't2n', .* did you mean 't2m'\? There are lo"):
        ZarrDataSource(path, names=["t2n"])
    with pytest.raises(ArgumentError, match=r"names has 'u/v' and 'u'; give one of them"):
        ZarrDataSource(path, names=["u", "u/v"])
    with pytest.raises(SourceError, match=r"by names=\[...\]"):
        ZarrDataSource(path, names=["t2m", "long"])


def test_coordinates_are_taken_where_they_are_chosen(tmp_path: Path) -> None:
    path = xarray_store(tmp_path / "x", 3)
    assert set(opened(path, names=["time", "t2m"])) == {"time", "t2m"}
    with pytest.raises(SourceError, match=r"array 'height' in .* has shape \(\)"):
        ZarrDataSource(path, names=["height"])


def test_only_chosen_arrays_are_opened(tmp_path: Path) -> None:
    path = xarray_store(tmp_path / "x", 2)
    for name in ("wind", "lat"):
        shutil.rmtree(path / name)
    for direct in (None, False):
        source = ZarrDataSource(path, names=["t2m"], direct=direct)
        np.testing.assert_array_equal(source[4]["t2m"], FIELD[4])


def test_consolidated_metadata_lead_nowhere_else(tmp_path: Path) -> None:
    path = xarray_store(tmp_path / "x", 3)
    meta = json.loads((path / "zarr.json").read_text())
    nodes = meta["consolidated_metadata"]["metadata"]
    nodes["../../etc"] = nodes["a/../../b"] = nodes["/"] = nodes[""] = nodes["t2m"]
    nodes["odd"] = 3
    (path / "zarr.json").write_text(json.dumps(meta))
    assert set(opened(path)) == {"t2m", "wind"}


def nested(path: Path, zarr_format: Any) -> Path:
    root = zarr.open_group(str(path), mode="w", zarr_format=zarr_format)
    for name in ("a", "b/c", "b/d/e"):
        root.create_array(name, shape=(6,), dtype="i8", chunks=(4,))[...] = np.arange(6)
    root.create_group("empty/inside")
    return path


@FORMATS
def test_groups_of_key_value_stores(tmp_path: Path, zarr_format: Any) -> None:
    path = nested(tmp_path / "g", zarr_format)
    names = {"a", "b/c", "b/d/e"}
    zipped = shutil.make_archive(str(tmp_path / "g"), "zip", tmp_path, "g")
    url = f"file://{zipped}|zip:g/"
    source = ZarrDataSource(url)
    assert set(source.arrays) == names
    assert pickle.loads(pickle.dumps(source))[3]["b"]["d"]["e"] == 3
    assert set(ZarrDataSource(url, names=["b"]).arrays) == {"b/c", "b/d/e"}
    with pytest.raises(NotFoundError, match="is not a Zarr array or group"):
        ZarrDataSource(f"file://{zipped}|zip:nothing/")
    memory = ts.KvStore.open("memory://top/").result()
    for file in path.rglob("*"):
        if file.is_file():
            memory.write(f"in/{file.relative_to(path)}", file.read_bytes()).result()
    for store in (memory / "in", memory / "in/"):
        inside = ZarrDataSource(store)
        assert set(inside.arrays) == names
        assert inside[5]["b"]["c"] == 5
    assert ZarrDataSource(path.as_uri(), direct=True)[5]["a"] == 5


def test_links_that_lead_back(tmp_path: Path) -> None:
    path = nested(tmp_path / "g", 3)
    (path / "b" / "self").symlink_to(path, target_is_directory=True)
    (path / "b" / "here").symlink_to(path / "b", target_is_directory=True)
    assert set(ZarrDataSource(path).arrays) == {"a", "b/c", "b/d/e"}
    (path / "b" / "other").symlink_to(path / "empty", target_is_directory=True)
    (path / "empty" / "back").symlink_to(path / "b", target_is_directory=True)
    with pytest.raises(SourceError, match="lies in more than 16 nested groups; if a li"):
        ZarrDataSource(path)


@FORMATS
def test_a_remote_group_needs_consolidated_metadata(tmp_path: Path, zarr_format: Any) -> None:
    path = nested(tmp_path / "g", zarr_format)
    with RangeServer(tmp_path) as server:
        url = server.address
        with pytest.raises(SourceError, match="has no consolidated metadata"):
            ZarrDataSource(f"{url}/g")
        chosen = ZarrDataSource({"x": f"{url}/g"}, names=["x/b/d/e", "x/a"])
        assert chosen[4] == {"x": {"b": {"d": {"e": 4}}, "a": 4}}
        assert pickle.loads(pickle.dumps(chosen))[3]["x"]["a"] == 3
        with pytest.raises(SourceError, match="names has 'no', which is not there; there are a"):
            ZarrDataSource(f"{url}/g", names=["a", "no"])
        with pytest.raises(SourceError, match="has no consolidated metadata"):
            ZarrDataSource(f"{url}/g", names=["a", "b"])
        with pytest.raises(SourceError, match=r"'b/no', and the group .* holds no such array"):
            ZarrDataSource(f"{url}/g", names=["b/no"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            zarr.consolidate_metadata(str(path), zarr_format=zarr_format)
        source = ZarrDataSource(f"{url}/g/")
        assert set(source.arrays) == {"a", "b/c", "b/d/e"}
        assert source[5]["b"]["c"] == 5
        assert ZarrDataSource(f"{url}/g/b/c")[5] == 5
