"""Coordinates and selection by label, against xarray."""

from __future__ import annotations

import datetime
import json
import pathlib
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorstore as ts
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hypothesis_profiles import examples
from windrow.errors import ArgumentError, SourceError
from windrow.sources.windows.coordinates import Coordinates, coordinate_of
from windrow.sources.windows.selection import Coordinate, Picked
from windrow.sources.zarr.find import find_all
from windrow.sources.zarr.names import Found

AnyArray = npt.NDArray[Any]

pytestmark = pytest.mark.filterwarnings("ignore")  # zarr-python's, on strings in version 3

DAYS = np.arange("2019-02-26", "2019-04-03", dtype="M8[D]").astype("M8[ns]")
HOURS = np.arange("2019-02-27T00", "2019-03-03T05", 6, dtype="M8[h]").astype("M8[ns]")


def labelled(values: Any, name: str = "x") -> Coordinate:
    return Coordinate(name, (name,), np.asarray(values))


def found_at(place: Any) -> Found:
    found = find_all("source", place)
    assert isinstance(found, Found)
    return found


def read(place: Any, dim: str) -> Coordinate:
    coordinate = coordinate_of(found_at(place), dim)
    assert coordinate is not None
    return coordinate


def cells_by_xarray(values: AnyArray, wanted: Any, **options: Any) -> AnyArray:
    """The cells that xarray takes; KeyError and others as it raises them."""
    array = xr.DataArray(np.arange(len(values)), dims="x", coords={"x": values})
    found: AnyArray = array.sel(x=wanted, **options).values
    return found


def cells(found: Picked) -> AnyArray:
    return np.asarray(found, np.int64)


# Labels


@st.composite
def sorted_numbers(draw: st.DrawFn) -> AnyArray:
    dtype = np.dtype(draw(st.sampled_from(["i1", "i8", "u1", "u8", "f4", "f8"])))
    low = 0 if dtype.kind == "u" else -20
    drawn = draw(st.lists(st.integers(low, 20), max_size=12))
    values = np.sort(np.array(drawn, np.float64 if dtype.kind == "f" else dtype))
    if dtype.kind == "f":
        # pandas compares some labels as float64 if a float32 comes twice.
        values = np.unique((values / 10).astype(dtype))
    return values[::-1] if draw(st.booleans()) else values


@settings(max_examples=examples(200), deadline=None)
@given(values=sorted_numbers(), data=st.data())
def test_numbers_are_found_as_by_xarray(values: AnyArray, data: st.DataObject) -> None:
    tenth = values.dtype.kind == "f"
    end = st.integers(-25, 25).map(lambda n: n / 10 if tenth else n) | st.none()
    if not tenth:
        end = end | st.integers(-250, 250).map(lambda n: n / 10)
    elif len(values):
        end = end | st.sampled_from(list(values))
    wanted = slice(data.draw(end), data.draw(end))
    expected = cells_by_xarray(values, wanted)
    np.testing.assert_array_equal(cells(labelled(values).cells_of(wanted)), expected)

    values = values[np.sort(np.unique(values, return_index=True)[1])]
    label = data.draw(st.integers(-22, 22).map(lambda n: n / 10) | st.integers(-25, 25))
    coordinate = labelled(values)
    try:
        one = int(cells_by_xarray(values, label))
    except KeyError:
        with pytest.raises(SourceError, match="has no label"):
            coordinate.cells_of(label)
    else:
        assert coordinate.cells_of(label) == one
    if len(values):
        if values.dtype.kind != "u":  # the differences of xarray wrap around
            nearest = int(cells_by_xarray(values, label, method="nearest"))
            assert coordinate.cells_of(label, "nearest") == nearest
        labels = data.draw(st.lists(st.sampled_from(list(values)), min_size=1, max_size=6))
        several = cells(coordinate.cells_of(labels))
        np.testing.assert_array_equal(several, cells_by_xarray(values, labels))


TIMES = st.one_of(
    st.sampled_from(
        ["2019", "2019-03", "2019-02", "2018-12", "2020-01", "2019-03-01", "20190305", "2019-3-2"]
    ),
    st.sampled_from(["2019-03-01 12:00", "2019-03-01T06", "2019-03-01T06:00:00.0", "2019-04-02"]),
    st.sampled_from(list(DAYS[::5]) + list(HOURS[::3])),
    st.integers(0, 40).map(lambda n: datetime.datetime(2019, 2, 25, 13) + datetime.timedelta(n)),
    st.integers(0, 40).map(lambda n: datetime.date(2019, 2, 25) + datetime.timedelta(n)),
)


@settings(max_examples=examples(150), deadline=None)
@given(
    values=st.sampled_from([DAYS, HOURS, HOURS[:1], HOURS[:0], np.repeat(DAYS, 2)]),
    unit=st.sampled_from(["ns", "us", "s"]),
    start=TIMES | st.none(),
    stop=TIMES | st.none(),
    label=TIMES,
)
def test_times_are_found_as_by_xarray(
    values: AnyArray, unit: str, start: Any, stop: Any, label: Any
) -> None:
    times = values.astype(f"M8[{unit}]")
    expected = cells_by_xarray(times, slice(start, stop))
    found = labelled(times).cells_of(slice(start, stop))
    np.testing.assert_array_equal(cells(found), expected)
    if len(times) > 1:  # xarray refuses strings on descending times
        descending = cells(labelled(times[::-1]).cells_of(slice(stop, start)))
        np.testing.assert_array_equal(descending[::-1], len(times) - 1 - expected)
    for sorted_times in (HOURS, HOURS[::-1]):
        nearest = labelled(sorted_times).cells_of(label, "nearest")
        if isinstance(nearest, int):  # and not all cells that a string covers
            assert nearest == int(cells_by_xarray(sorted_times, label, method="nearest"))


@pytest.mark.parametrize(
    ("values", "label", "method", "expected"),
    [
        # Ends beyond the dtype are beyond all labels, and nothing wraps around.
        (np.array([0, 100, 255], "u1"), slice(-5, 300), None, range(3)),
        (np.array([0, 100, 255], "u1"), 256, "nearest", 2),
        (np.array([2**63 - 2, 2**63 - 1]), slice(2**63 - 1, None), None, range(1, 2)),
        # Floats are compared in the dtype of the coordinate, also if one comes twice.
        (np.array([0.1, 0.1, 0.3, 0.3], "f4"), slice(0.1, 0.3), None, range(4)),
        (np.array([1.5, 2.5], ">f4"), 2.5, None, 1),
        # Labels in no order, and missing ones.
        (["t850", "z500", "msl"], ["msl", "t850"], None, (2, 0)),
        ([7, -2, 5], np.array([5, 7, -2]), None, (2, 0, 1)),
        ([2.0, np.nan, 1.0], 1.0, None, 2),
        ([True, False], False, None, 1),
        (HOURS, "2019-03-01", None, range(8, 12)),
        (HOURS, "2019-03-01", "nearest", range(8, 12)),
        (HOURS, "2019-03-01T07", "nearest", 9),
        (HOURS, ["2019-03-02T12", "2019-02-27T00"], None, (14, 0)),
        (HOURS, ["2019-03-01T07", "2019-03-01T10"], "nearest", (9, 10)),
        (HOURS, HOURS[[3, 1]].astype("M8[s]"), None, (3, 1)),
    ],
)
def test_labels_that_are_found(values: Any, label: Any, method: Any, expected: Any) -> None:
    assert labelled(values).cells_of(label, method) == expected


@pytest.mark.parametrize(
    ("values", "wanted", "message"),
    [
        (
            [3, 1, 2],
            slice(1, 2),
            r"'x' neither ascends nor descends.*from 1 to 2 has no meaning; give a list",
        ),
        (DAYS, slice("yesterday", None), r"'yesterday' is not a time; give it as 2019,"),
        (DAYS, "3/2/2019", r"'3/2/2019' is not a time"),
        (
            DAYS,
            slice(datetime.datetime(2019, 1, 1, tzinfo=datetime.UTC), None),
            "tz-naive and tz-aw",
        ),
        (
            [90.0, 89.75, -90.0],
            89.8,
            r"coordinate 'x' has no label 89.8; it goes from 90.0 to -90.0 \(3 values\), the"
            r' nearest is 89.75; give method="nearest" to take that one',
        ),
        ([5, 1, 3], 4, r"no label 4; it has 3 values in no order, from 5 to 3; give a label"),
        ([], 1.0, r"no label 1.0; it has no values"),
        ([1, 1, 2], 1, r"the label 1 names 2 cells"),
        ([1, 1, 2], [2], r"does not have \[2\] \(Reindexing only valid with uniquely valued"),
        ([1.0, 2.0], "warm", r"does not have 'warm' \(could not convert string to float"),
        (["a"], slice("a", 1), r"does not have slice\('a', 1, None\)"),
        (HOURS, "2019-03-01T03", r"from 2019-02-27 to .* nearest is 2019-03-01T06:00;"),
        ([1, 2, 3], np.array([2, 9]), r"has no label .*9.*from 1 to 3"),
    ],
)
def test_labels_that_are_not_found_name_the_way_out(values: Any, wanted: Any, message: str) -> None:
    with pytest.raises((ArgumentError, SourceError), match=message):
        labelled(values).cells_of(wanted)


# Reading


def weather() -> xr.Dataset:
    time = HOURS[:5]
    return xr.Dataset(
        {"t2m": (("time", "lat", "station"), np.zeros((5, 3, 4), np.float32))},
        coords={
            "time": time,
            "lat": np.array([60.0, 59.75, 59.5], np.float32),
            "station": np.array(["Oslo", "Bergen", "Å", ""], dtype=object),
            "valid_time": ("time", time + np.timedelta64(6, "h")),
            "code": ("station", np.array(["a", "bb", "ccc", "d"])),
            "short": ("station", np.array([b"a", b"bb", b"", b"d"])),
            "level": ("lat", np.array([1, 2, 3], np.int16)),
            "step": 3,
            "mask": (("lat", "station"), np.ones((3, 4))),
        },
    )


@pytest.mark.parametrize("place", ["path", "kvstore", "array", "spec", "url"])
@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_coordinates_of_xarray_are_read(
    tmp_path: pathlib.Path, zarr_format: Any, consolidated: bool, place: str
) -> None:
    store = tmp_path / "weather.zarr"
    weather().to_zarr(store, zarr_format=zarr_format, consolidated=consolidated)
    at: Any = str(store / "t2m")
    if place == "kvstore":
        at = ts.KvStore.open(f"file://{at}/").result()
    elif place == "url":
        at = f"file://{at}/|zarr{zarr_format}:"
    elif place != "path":
        spec = {"driver": "zarr" if zarr_format == 2 else "zarr3", "kvstore": f"file://{at}/"}
        at = ts.open(spec).result() if place == "array" else spec
    found = find_all("source", at)
    assert isinstance(found, Found)
    expected = xr.open_zarr(store, consolidated=consolidated)
    for dim in ("time", "lat", "station"):
        coordinate = coordinate_of(found, dim)
        assert coordinate is not None
        assert (coordinate.name, coordinate.dims) == (dim, (dim,))
        np.testing.assert_array_equal(
            coordinate.values, expected[dim].values.astype(coordinate.values.dtype)
        )
    assert coordinate_of(found, "nowhere") is None
    if place in ("array", "spec", "url"):
        return  # these have no names
    dims = {"valid_time": "time", "code": "station", "short": "station", "level": "lat"}
    known = Coordinates()
    assert known.extra_dims(found) == dims
    for name, dim in dims.items():
        coordinate = known.extra(found, name)
        assert coordinate.dims == (dim,)
        texts = coordinate.values.dtype.kind == "U"
        values = expected[name].values.astype(np.str_ if texts else expected[name].dtype)
        np.testing.assert_array_equal(coordinate.values, values)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    ("values", "encoding"),
    [
        (HOURS, {"units": "hours since 1900-01-01 00:00:00.0", "dtype": "i4"}),
        (HOURS, {"units": "days since 2000-01-01", "dtype": "f8", "calendar": "standard"}),
        (HOURS, {"units": "minutes since 2019-03-01", "dtype": "i2", "_FillValue": -32768}),
        (np.arange(4).astype("m8[h]").astype("m8[ns]"), {}),
        (np.array([0.0, 0.5, 1.0]), {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}),
        (np.array([False, True]), {}),
        (np.array([0, 1, 2**40]), {}),
        (np.empty(0), {}),
    ],
)
def test_values_are_decoded_as_by_xarray(
    tmp_path: pathlib.Path, values: AnyArray, encoding: dict[str, Any], zarr_format: Any
) -> None:
    store = tmp_path / "a.zarr"
    data = xr.Dataset({"a": ("x", np.zeros(len(values)))}, coords={"x": values})
    data.to_zarr(store, zarr_format=zarr_format, encoding={"x": encoding})
    expected = xr.open_zarr(store)["x"].values
    coordinate = read(str(store / "a"), "x")
    assert coordinate.values.dtype == expected.dtype
    np.testing.assert_array_equal(coordinate.values, expected)


def group_of(path: pathlib.Path, zarr_format: Any) -> Any:
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    array_in(group, "a", np.zeros(3), ["x"])
    return group


def array_in(group: Any, name: str, values: AnyArray, dims: list[str] | None, **more: Any) -> Any:
    modern = group.metadata.zarr_format == 3
    named = {"dimension_names": dims} if modern and dims else {}
    array = group.create_array(name, shape=values.shape, dtype=values.dtype, **named, **more)
    array[...] = values
    if not modern and dims:
        array.attrs["_ARRAY_DIMENSIONS"] = dims
    return array


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_coordinates_of_groups_above_are_inherited(
    tmp_path: pathlib.Path, zarr_format: Any
) -> None:
    group = zarr.open_group(tmp_path / "g", mode="w", zarr_format=zarr_format)
    array_in(group, "x", np.array([5, 6, 7]), ["x"])
    array_in(group, "y", np.array([1, 2]), ["y"])
    inner = group.create_group("inner").create_group("most")
    array_in(inner, "a", np.zeros((3, 2)), ["x", "y"])
    array_in(inner, "y", np.array([8, 9]), ["y"])
    at = str(tmp_path / "g" / "inner" / "most" / "a")
    assert read(at, "x").values.tolist() == [5, 6, 7]
    assert read(at, "y").values.tolist() == [8, 9]
    # An array next to the store does not belong to it.
    array_in(zarr.open_group(tmp_path / "g2", mode="w"), "z", np.zeros(1), ["z"])
    assert coordinate_of(found_at(at), "z") is None


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_only_arrays_of_the_dimension_itself_are_its_coordinate(
    tmp_path: pathlib.Path, zarr_format: Any
) -> None:
    group = group_of(tmp_path, zarr_format)
    array_in(group, "x", np.zeros((3, 2)), ["x", "y"])
    array_in(group, "y", np.zeros(3), ["x"])
    array_in(group, "z", np.arange(3), None)
    group.create_group("g")
    found = found_at(str(tmp_path / "a"))
    for dim in ("x", "y", "g", "", ".", "..", "../a", "a\0"):
        assert coordinate_of(found, dim) is None
    unnamed = coordinate_of(found, "z")  # named by the user where the store has no names
    assert unnamed is not None
    assert unnamed.values.tolist() == [0, 1, 2]


def test_the_default_fill_value_of_version_2_is_a_label(tmp_path: pathlib.Path) -> None:
    array_in(group_of(tmp_path, 2), "x", np.array([0, 10, 20]), ["x"], fill_value=0)
    assert read(str(tmp_path / "a"), "x").values.tolist() == [0, 10, 20]


def test_bytes_are_texts(tmp_path: pathlib.Path) -> None:
    values = np.array(["å".encode(), b"\xff", b""])  # the second is not UTF-8
    array_in(group_of(tmp_path, 2), "x", values, ["x"])
    assert read(str(tmp_path / "a"), "x").values.tolist() == ["å", "ÿ", ""]


def edited(path: pathlib.Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("filters", [[{"id": "pickle", "protocol": 5}], [], None])
def test_python_objects_are_refused(tmp_path: pathlib.Path, filters: Any) -> None:
    array_in(group_of(tmp_path, 2), "x", np.array(["a", "b", "c"]), ["x"])
    edited(tmp_path / "x" / ".zarray", dtype="|O", filters=filters, compressor=None)
    written = tmp_path / "harm"

    class Harm:
        def __reduce__(self) -> Any:
            return pathlib.Path.touch, (written,)

    (tmp_path / "x" / "0").write_bytes(pickle.dumps(Harm()))
    message = "filter 'pickle'" if filters else r"dtype '\|O'"
    with pytest.raises(SourceError, match=f"coordinate 'x' cannot be read: .*{message}"):
        read(str(tmp_path / "a"), "x")
    assert not written.exists()


@pytest.mark.parametrize(
    ("values", "changes", "message"),
    [
        (np.arange(3), {"shape": [2**40]}, r"declares 1,099,511,627,776 values; at most 134,"),
        (np.array(["a"]), {"chunks": [2**40]}, r"a chunk has 4,398,046,511,104 bytes"),
        (
            np.array(["a"]),
            {"dtype": "<U9999", "shape": [99999]},
            r"of <U9999, more than 1,073,741,824",
        ),
        (np.array(["a"]), {"dtype": "<U1x"}, r"'x' cannot be read: .*dtype '<U1x'"),
    ],
)
def test_absurd_metadata_is_refused(
    tmp_path: pathlib.Path, values: AnyArray, changes: dict[str, Any], message: str
) -> None:
    array_in(group_of(tmp_path, 2), "x", values, ["x"])
    edited(tmp_path / "x" / ".zarray", **changes)
    with pytest.raises(SourceError, match=message):
        read(str(tmp_path / "a"), "x")


def test_one_long_text_does_not_widen_all(tmp_path: pathlib.Path) -> None:
    texts = ["a"] * 99 + ["b" * 10**6]
    group = group_of(tmp_path, 3)
    array = group.create_array("x", shape=(100,), dtype="string", dimension_names=["x"])
    array[:] = np.array(texts, dtype=object)
    coordinate = read(str(tmp_path / "a"), "x")
    assert coordinate.values.dtype == object
    assert coordinate.cells_of("b" * 10**6) == 99
    assert coordinate.values.tolist() == texts
