"""zarr_to_zarr keeps what labels the data: coordinates of chosen arrays, strings, lengths of time."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.range_server import RangeServer
from windrow.cli.main import main
from windrow.converters.zarr import rechunk_layout
from windrow.converters.zarr.from_records import array_record_to_zarr
from windrow.converters.zarr.rechunk import zarr_to_zarr
from windrow.converters.zarr.to_records import zarr_to_array_record
from windrow.errors import ArgumentError, SourceError
from windrow.sources import WindowDataSource

xarray = pytest.importorskip("xarray")

HOUR = np.timedelta64(1, "h")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Hide what zarr-python and xarray say of types that are not those of a specification."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Following pandas")
        warnings.filterwarnings("ignore", module="zarr|xarray|numcodecs")
        yield


def every_kind() -> Any:
    """Data with coordinates of every kind, by dimension and beside them, and of no axis."""
    words = np.array(["t2m", "", "üö", "NaN", "z", "w"])
    beside = {
        "text": words,
        "raw": np.array([b"a", b"", b"\xff", b"NaN", b"z", b"w"]),
        "text_objects": np.array([*words[:5], "long" * 50], dtype=object),
        "empty": np.full(6, ""),
        "flag": np.array([1, 0, 1, 0, 0, 1], bool),
        "lead": np.array([0, "NaT", 12, 18, 24, 30], "m8[h]").astype("m8[ns]"),
        "seconds": (np.arange(6) * HOUR).astype("m8[s]"),
        "when": np.array(["2020-01-01", "NaT", *["2021-03-01T06"] * 4], "M8[ns]"),
        "half": np.array([1, np.nan, np.inf, -np.inf, -0.0, 2], "f2"),
        "number": np.arange(6, dtype="u8"),
    }
    return xarray.Dataset(
        {"t2m": (("name", "y"), np.arange(12.0).reshape(6, 2), {"units": "K"})},
        coords={
            "name": words,
            "y": [np.timedelta64(6, "h"), np.timedelta64(24, "h")],
            **{key: ("name", values, {"long_name": key}) for key, values in beside.items()},
            **{f"one_{key}": ((), values[2]) for key, values in beside.items()},
            "both": (("name", "y"), np.stack([words, words[::-1]], 1)),
        },
        attrs={"title": "of every kind"},
    )


@pytest.mark.parametrize(
    "stored", [pytest.param("v2", marks=pytest.mark.jobs), "v3", "h5netcdf", "scipy"]
)
def test_a_copy_means_what_its_source_does(tmp_path: Path, stored: str) -> None:
    data, path = every_kind(), tmp_path / "source"
    if stored in ("v2", "v3"):
        data.to_zarr(path, zarr_format=int(stored[1]))
        before = xarray.open_zarr(path, consolidated=False).load()
    else:
        pytest.importorskip(stored)
        if stored == "scipy":  # the classic format
            gone = ["flag", "half", "number", "lead", "seconds", "when", "y"]
            data = data.drop_vars([*gone, *(f"one_{name}" for name in gone[:-1])])
        data.to_netcdf(path, engine=stored)
        with xarray.open_dataset(path, engine=stored) as found:
            before = found.load()
    for name, chosen in {"all": None, "chosen": ["t2m"]}.items():
        zarr_to_zarr(path, tmp_path / name, arrays=chosen, progress=False)
        after = xarray.open_zarr(tmp_path / name).load()
        xarray.testing.assert_identical(before, after)
        kinds = {key: (before[key].dtype, after[key].dtype) for key in before.variables}
        # The classic format has no strings, only characters that xarray takes for them.
        assert stored == "scipy" or all(a == b for a, b in kinds.values()), kinds
    labels = WindowDataSource(tmp_path / "chosen", {"name": 1}, names=["t2m"], coordinates=["name"])
    assert [labels[at]["name"].item() for at in range(6)] == data["name"].values.tolist()


@pytest.mark.parametrize("dtype", ["<U3", "string"])
def test_a_string_that_marks_missing_values_still_does(tmp_path: Path, dtype: Any) -> None:
    group = zarr.create_group(str(tmp_path / "source"), zarr_format=2)
    dims: dict[str, Any] = {"_ARRAY_DIMENSIONS": ["n"]}
    names: Any = group.create_array(
        "names", shape=(3,), chunks=(2,), dtype=dtype, fill_value="non", attributes=dims
    )
    names[...] = np.array(["a", "non", ""])
    zarr_to_zarr(tmp_path / "source", tmp_path / "out", progress=False)
    before = xarray.open_zarr(tmp_path / "source", consolidated=False).load()
    xarray.testing.assert_identical(xarray.open_zarr(tmp_path / "out").load(), before)
    assert before["names"].isnull().values.tolist() == [False, True, False]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("unit", ["W", "h", "ns"])
def test_a_length_of_time_stays_one(tmp_path: Path, unit: str, version: Any) -> None:
    group = zarr.create_group(str(tmp_path / "source"), zarr_format=version)
    lead = np.array([0, 6, "NaT", 18], f"m8[{unit}]")
    dims: dict[str, dict[str, Any]] = {"lead": {}, "t": {}, "step": {}}
    for name, names in {"lead": ["lead"], "t": ["lead"], "step": []}.items():
        if version == 3:
            dims[name]["dimension_names"] = names
        else:
            dims[name]["attributes"] = {"_ARRAY_DIMENSIONS": names}
    group.create_array("lead", data=lead, **dims["lead"])
    group.create_array("t", data=np.arange(4.0), **dims["t"])
    group.create_array("step", data=lead[1], **dims["step"])
    zarr_to_zarr(tmp_path / "source", tmp_path / "out", progress=False)
    found: Any = zarr.open_group(str(tmp_path / "out"), mode="r")
    for name, values in {"lead": lead, "step": lead[1]}.items():
        assert found[name].attrs["dtype"] == f"timedelta64[{unit}]"
        assert np.array_equal(found[name][...], values.view("i8"))
    source = WindowDataSource(tmp_path / "out", {"lead": 1}, names=["t"], coordinates=True)
    labels = np.concatenate([source[at]["lead"] for at in range(4)])
    assert np.array_equal(labels, lead.astype("m8[ns]"), equal_nan=True)
    if unit != "W":  # xarray has no weeks
        with xarray.open_zarr(tmp_path / "out") as opened:
            assert np.array_equal(opened["lead"].values, lead, equal_nan=True)
    # The records of ArrayRecord say it too.
    zarr_to_array_record(tmp_path / "source", tmp_path / "records", progress=False)
    array_record_to_zarr(tmp_path / "records", tmp_path / "back", progress=False)
    back: Any = zarr.open_group(str(tmp_path / "back"), mode="r")
    assert back["lead"].attrs["dtype"] == f"timedelta64[{unit}]"


def weather() -> Any:
    """A field with all that may label it by the CF conventions, and another variable."""
    return xarray.Dataset(
        {
            "t": (("time", "y", "x"), np.arange(24.0).reshape(6, 2, 2), {"grid_mapping": "crs: x"}),
            "other": ("time", np.arange(6)),
            "crs": ((), 0, {"grid_mapping_name": "latitude_longitude"}),
            "time_bnds": (("time", "nv"), np.arange(12.0).reshape(6, 2)),
        },
        coords={
            "time": ("time", np.arange(6.0), {"bounds": "time_bnds", "calendar": "noleap"}),
            "lat": (("y", "x"), np.ones((2, 2), "f4")),
            "x": [1, 2],
            "nv": ["first", "last"],
        },
    )


@pytest.mark.parametrize("version", [2, 3])
def test_what_labels_a_chosen_array_comes_with_it(tmp_path: Path, version: Any) -> None:
    data = weather()
    data.to_zarr(tmp_path / "source", zarr_format=version)
    asked: dict[str, Any] = {"arrays": ["t"], "chunks": 2, "dtype": "float16", "progress": False}
    manifest = zarr_to_zarr(tmp_path / "source", tmp_path / "out", **asked)
    after = xarray.open_zarr(tmp_path / "out", decode_times=False).load()
    wanted = data.drop_vars("other").assign(t=data["t"].astype("f2")).set_coords("lat")
    xarray.testing.assert_identical(after, wanted)
    assert sorted(manifest.settings["coordinates"]) == [
        "crs",
        "lat",
        "nv",
        "time",
        "time_bnds",
        "x",
    ]
    # Labels are whole, and keep their dtypes; t lies as it would without them.
    group: Any = zarr.open_group(str(tmp_path / "out"), mode="r")
    assert (group["lat"].dtype, group["lat"].chunks) == (np.dtype("f4"), (2, 2))
    assert group["time_bnds"].shape < group["time_bnds"].chunks
    alone = data[["t"]].drop_vars(["time", "lat", "x"])
    alone.to_zarr(tmp_path / "alone", zarr_format=version)
    zarr_to_zarr(tmp_path / "alone", tmp_path / "out alone", **asked)
    files = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out/t/c").rglob("*")}
    assert files
    for name in files:
        if (tmp_path / "out" / name).is_file():
            both = [(tmp_path / out / name).read_bytes() for out in ("out", "out alone")]
            assert both[0] == both[1]


def test_labels_lie_where_readers_find_them(tmp_path: Path) -> None:
    trees = {
        "/": xarray.Dataset(coords={"time": np.arange(6)}),
        "/a": xarray.Dataset({"t": ("time", np.ones(6))}, {"name": ("time", list("abcdef"))}),
        "/a/b": xarray.Dataset({"u": ("z", np.ones(3))}, {"z": [1, 2, 3]}),
        "/c": xarray.Dataset({"u": ("z", np.ones(2))}, {"z": ["p", "q"]}),
    }
    xarray.DataTree.from_dict(trees).to_zarr(tmp_path / "source")

    def arrays(chosen: Any) -> list[str]:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        zarr_to_zarr(tmp_path / "source", tmp_path / "out", arrays=chosen, progress=False)
        found: Any = zarr.open_group(str(tmp_path / "out"), mode="r")
        return sorted(name for name, item in found.members(None) if isinstance(item, zarr.Array))

    assert arrays(["a/t"]) == ["a/name", "a/t", "time"]
    assert arrays(["a"]) == ["a/b/u", "a/b/z", "a/name", "a/t", "time"]
    assert arrays({"T": "a/t", "a/b/U": "a/b/u"}) == ["T", "a/b/U", "a/b/z", "name", "time"]
    # An array with the name of a label takes its place.
    assert arrays({"t": "a/t", "time": "a/name"}) == ["t", "time"]
    with pytest.raises(ArgumentError, match=r"'a/b/z' and 'c/z', .* would both become 'z'"):
        arrays({"u": "a/b/u", "v": "c/u"})
    with pytest.raises(ArgumentError, match=r"'time/t' would lie in an array of the output"):
        arrays({"time/t": "a/t"})


def test_labels_of_a_store_that_is_not_listed(tmp_path: Path) -> None:
    weather().to_zarr(tmp_path / "source", consolidated=False)
    names = [path for path in (tmp_path / "source").rglob("*") if path.is_file()]
    files = {str(path.relative_to(tmp_path)): path.read_bytes() for path in names}
    with RangeServer(files) as server:
        zarr_to_zarr(server.url("source"), tmp_path / "out", arrays=["t"], progress=False)
    folders = {name.partition("/")[0] for name in os.listdir(tmp_path / "out")}
    assert sorted(folders - {"zarr.json", "windrow_manifest.json"}) == [
        *("crs", "lat", "nv", "t", "time", "time_bnds", "x")
    ]


@pytest.mark.parametrize("codec", ["vlen-utf8", "vlen-bytes"])
def test_strings_of_any_length_in_chunks_and_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    rng = np.random.default_rng(0)
    values = np.array(["x" * n for n in rng.integers(0, 50, 7 * 20)], object).reshape(7, 20)
    group = zarr.create_group(str(tmp_path / "source"))
    dtype: Any = "string"
    if codec == "vlen-bytes":
        dtype, values = "variable_length_bytes", np.vectorize(str.encode, otypes="O")(values)
    names: Any = group.create_array(
        "names", shape=(7, 20), chunks=(3, 4), dtype=dtype, dimension_names=("a", "b")
    )
    names[...] = values
    monkeypatch.setattr(rechunk_layout, "_WHOLE_STRINGS", 0)

    def copied(**asked: Any) -> Any:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        zarr_to_zarr(tmp_path / "source", tmp_path / "out", **asked, progress=False)
        return zarr.open_array(str(tmp_path / "out" / "names"), mode="r")

    found = copied()
    assert (found.chunks, found.shards) == ((3, 4), None)
    assert found[...].tolist() == values.tolist()
    found = copied(axes={"b": "records"}, chunks=2, shards=4, codecs="none")
    assert (found.chunks, found.shards) == ((2, 7), (4, 7))
    assert found[...].tolist() == values.T.tolist()
    found = copied(axes={"a": slice(2, 6), "b": slice(5, None)}, codecs="blosc:zstd:3")
    assert found[...].tolist() == values[2:6, 5:].tolist()
    with pytest.raises(ArgumentError, match="array 'names' holds strings, which are not cast"):
        copied(dtype={"names": "float32"})


def test_labels_without_a_type_are_left_out_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = zarr.create_group(str(tmp_path / "source"), zarr_format=2)
    dims: dict[str, Any] = {"_ARRAY_DIMENSIONS": ["n", "k"]}
    group.create_array("t", data=np.arange(8.0).reshape(4, 2), attributes=dims)
    meta = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|O", "fill_value": None}
    meta |= {"order": "C", "compressor": None, "filters": [{"id": "pickle"}]}
    (tmp_path / "source" / "k").mkdir()
    (tmp_path / "source" / "k" / ".zarray").write_text(json.dumps(meta))
    (tmp_path / "source" / "k" / ".zattrs").write_text('{"_ARRAY_DIMENSIONS": ["k"]}')
    with pytest.raises(SourceError, match=r"array 'k' in .* objects that are not strings, .*--arr"):
        zarr_to_zarr(tmp_path / "source", tmp_path / "out")
    with pytest.warns(UserWarning, match="the output is without coordinate 'k': array 'k' in"):
        zarr_to_zarr(tmp_path / "source", tmp_path / "out", arrays=["t"], progress=False)
    assert not (tmp_path / "out" / "k").exists()
    arguments = ["convert", str(tmp_path / "source"), str(tmp_path / "by command"), "--to", "zarr"]
    assert main([*arguments, "--array", "t", "-q"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("windrow convert: the output is without coordinate 'k': array 'k' in")
    assert said.count("\n") == 1


def test_strings_are_not_records(tmp_path: Path) -> None:
    data = xarray.Dataset(
        {"t": (("n", "k"), np.arange(8.0).reshape(4, 2)), "words": ("n", list("abcd"))},
        coords={"k": ["p", "q"], "n": ["first", "second", "third", "last"]},
    )
    data.drop_vars("n").to_zarr(tmp_path / "source")
    with pytest.raises(SourceError, match="array 'words' holds strings, which are not converted"):
        zarr_to_array_record(tmp_path / "source", tmp_path / "out")
    data.drop_vars("words").to_zarr(tmp_path / "labels")
    with pytest.warns(UserWarning, match="the records are without coordinate 'n': it holds str"):
        manifest = zarr_to_array_record(tmp_path / "labels", tmp_path / "out", progress=False)
    assert (manifest.records, list(manifest.settings["features"])) == (4, ["t"])
