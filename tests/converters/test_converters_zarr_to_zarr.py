"""zarr_to_zarr: the same values bit for bit in other chunks, whatever happens on the way."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import zarr_layouts
from tests.conversion_cases import Counted
from tests.conversions import values_in
from tests.hypothesis_profiles import examples
from windrow.converters import encode_example, tfrecord_to_zarr, write_records
from windrow.converters.job.job import carry_out
from windrow.converters.job.manifest import MANIFEST_NAME, UNFINISHED
from windrow.converters.zarr import layout as zarr_layout
from windrow.converters.zarr import rechunk, rechunk_plan
from windrow.converters.zarr.array_inputs import unfit
from windrow.converters.zarr.rechunk import zarr_to_zarr
from windrow.errors import (
    ArgumentError,
    ConversionError,
)
from windrow.sources import ZarrDataSource
from windrow.sources.tf_example import features

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def no_overhead() -> Iterator[None]:
    """Nothing counts as memory but blocks and chunks, so that tiny arrays need several passes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rechunk, "PROCESS_BYTES", 0)
        patch.setattr(rechunk, "_PART_BYTES", 100)
        patch.setattr(rechunk_plan, "_TURNS_BYTES", 0)
        patch.setattr(zarr_layout, "_TURN_BYTES", 1)
        yield


@pytest.fixture
def tiny() -> Iterator[None]:
    with no_overhead():
        yield


def files_in(folder: Path) -> dict[str, bytes]:
    """Names and bytes of all files, without the manifest."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    names = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    names.pop(MANIFEST_NAME, None)
    return names


def some_bits(dtype: str, shape: tuple[int, ...]) -> Any:
    rng = np.random.default_rng(7)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    found = features.numpy_dtype(dtype)
    raw = rng.integers(0, 256, math.prod(shape) * found.itemsize, dtype=np.uint8)
    return raw.view(found).reshape(shape)


def make(path: Path, values: Any, chunk: tuple[int, ...], **more: Any) -> None:
    """An array of Zarr v3 at `path`."""
    layout = zarr_layouts.Layout(values.shape, chunk, dtype=values.dtype.name, **more)
    zarr_layouts.make(str(path), layout).write(values).result()


# --- values --------------------------------------------------------------------------------------


@st.composite
def conversions(draw: st.DrawFn) -> dict[str, Any]:
    rank = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(0, 12)) for _ in range(rank))

    def sizes() -> tuple[int, ...]:
        return tuple(draw(st.integers(1, 6)) for _ in range(rank))

    version = draw(st.sampled_from((2, 3)))
    source = zarr_layouts.Layout(
        shape,
        sizes(),
        shard=draw(st.none() | st.just(tuple(2 for _ in shape))) if version == 3 else None,
        dtype=draw(st.sampled_from(zarr_layouts.DTYPES if version == 3 else ("int16", "float32"))),
        codecs=draw(st.sampled_from(("none", "zstd", "blosc"))) if version == 3 else "none",
        version=version,
    )
    chunks = sizes()
    shards = draw(st.sampled_from((None, 0, 1, 2)))
    return {
        "source": source,
        "axis": draw(st.none() | st.integers(-rank, rank - 1)),
        "chunks": draw(st.sampled_from((None, 1, 3, list(chunks)))),
        "chunk_sizes": chunks,
        "shards": shards,
        "more_bytes": draw(st.sampled_from((0, 50, 500, 10**6))),
    }


@settings(max_examples=examples(20))
@given(conversions())
def test_values_are_the_same_bit_for_bit(drawn: dict[str, Any]) -> None:
    layout = drawn["source"]
    values = some_bits(layout.dtype, layout.shape)
    shards = drawn["shards"]
    if shards and not isinstance(drawn["chunks"], list):
        shards = shards * (drawn["chunks"] or 4096)
    elif shards:
        shards = [shards * size for size in drawn["chunk_sizes"]]
    asked: dict[str, Any] = {"axes": drawn["axis"], "chunks": drawn["chunks"], "shards": shards}
    with tempfile.TemporaryDirectory() as name, no_overhead():
        source, output = Path(name, "source"), Path(name, "output")
        zarr_layouts.make(str(source), layout).write(values).result()

        def planned(**more: Any) -> rechunk_plan.RechunkPlan:
            steps: Any = zarr_to_zarr.conversion(source, **asked, **more).stages[-1].items
            found: rechunk_plan.RechunkPlan = steps.__self__.jobs[0].plan
            return found

        asked["memory_bytes"] = most = planned().grids.least_bytes + drawn["more_bytes"]
        assert planned().memory_bytes <= most
        manifest = zarr_to_zarr(source, output, **asked, progress=False)
        wanted = np.moveaxis(values, drawn["axis"] or 0, 0)
        assert values_in(output).tobytes() == wanted.tobytes()
        assert ZarrDataSource(output).read(np.arange(len(wanted))).tobytes() == wanted.tobytes()
        assert manifest.records == len(wanted)
        assert {file.name for file in manifest.files} == set(files_in(output))
        if wanted.size:
            assert sum(file.records for file in manifest.files) == len(wanted)


def make_group(folder: Path) -> dict[str, Any]:
    """A group as xarray writes it, with an array of other records, a scalar and an empty one."""
    rng = np.random.default_rng(0)
    wanted = {
        "temperature": (("time", "y", "x"), rng.normal(size=(30, 8, 6)).astype("f4"), (4, 8, 6)),
        "deep/columns": (("x", "time"), rng.integers(0, 9, (6, 30)), (6, 7)),
        "time": (("time",), np.arange(30) * 6, (30,)),
        "y": (("y",), np.linspace(0, 1, 8), (3,)),
        "height": ((), np.array(2.5), ()),
        "nothing": (("empty", "x"), np.zeros((0, 6), "i2"), (1, 6)),
    }
    group = zarr.open_group(str(folder), mode="w", attributes={"title": "weather"})
    for name, (dims, values, chunk) in wanted.items():
        array: Any = group.create_array(
            name, shape=values.shape, chunks=chunk, dtype=values.dtype, dimension_names=dims
        )
        array[...] = values
    group["temperature"].attrs.update({"units": "K", "valid": [0, 400]})
    group["deep"].attrs["note"] = "columns"
    return {name: values for name, (_, values, _) in wanted.items()}


def test_a_group_with_one_dimension_first(tmp_path: Path) -> None:
    wanted = make_group(tmp_path / "source")
    manifest = zarr_to_zarr(
        tmp_path / "source", tmp_path / "out", axes={"time": "records"}, progress=False
    )
    wanted["deep/columns"] = wanted["deep/columns"].T
    for name, values in wanted.items():
        found = values_in(tmp_path / "out", name)
        assert (found.dtype, found.shape) == (values.dtype, values.shape)
        assert found.tobytes() == values.tobytes(), name
    group: Any = zarr.open_group(str(tmp_path / "out"), mode="r")
    assert dict(group.attrs) == {"title": "weather"}
    assert dict(group["deep"].attrs) == {"note": "columns"}
    assert dict(group["temperature"].attrs) == {"units": "K", "valid": [0, 400]}
    assert group["deep/columns"].metadata.dimension_names == ("time", "x")
    # Records of all arrays lie in shards of the same rows; small ones share chunks.
    assert group["temperature"].shards == (512, 8, 6)
    assert group["temperature"].chunks == (32, 8, 6)
    assert group["deep/columns"].shards == (512, 6)
    assert group["time"].chunks == (512,)
    # Others keep their chunks.
    assert (group["y"].chunks, group["y"].shards) == ((3,), (9,))
    assert manifest.records == 30
    assert manifest.settings["record_axis"] == "time"
    source = ZarrDataSource(tmp_path / "out", names=["temperature", "deep/columns"])
    assert np.array_equal(source.read(np.array([29]))["temperature"][0], wanted["temperature"][29])


def test_sizes_for_all_arrays_are_for_those_of_records_and_not_for_coordinates(
    tmp_path: Path,
) -> None:
    make_group(tmp_path / "source")
    asked: dict[str, Any] = {"axes": "time", "progress": False}
    zarr_to_zarr(tmp_path / "source", tmp_path / "out", chunks=1, shards=4, **asked)
    group: Any = zarr.open_group(str(tmp_path / "out"), mode="r")
    assert (group["temperature"].chunks, group["temperature"].shards) == ((1, 8, 6), (4, 8, 6))
    assert (group["deep/columns"].chunks, group["deep/columns"].shards) == ((1, 6), (4, 6))
    # Readers take coordinates as a whole: 30 chunks of 8 bytes would be a waste.
    assert group["time"].chunks == (512,)
    assert (group["y"].chunks, group["y"].shards) == ((3,), (9,))
    zarr_to_zarr(tmp_path / "source", tmp_path / "by", chunks={"time": [5], "y": [2]}, **asked)
    named: Any = zarr.open_group(str(tmp_path / "by"), mode="r")
    assert (named["time"].chunks, named["y"].chunks) == ((5,), (2,))
    # A store of coordinates alone has records all the same.
    zarr_to_zarr(
        tmp_path / "source", tmp_path / "t", arrays=["time"], chunks=5, shards=0, progress=False
    )
    assert zarr.open_array(str(tmp_path / "t" / "time")).chunks == (5,)


def test_a_number_for_a_dimension_is_its_size_in_all_arrays_that_have_it(tmp_path: Path) -> None:
    make_group(tmp_path / "source")
    sizes: dict[str, Any] = {"chunks": {"time": 5, "y": 2}, "shards": {"time": 20}}
    zarr_to_zarr(tmp_path / "source", tmp_path / "out", **sizes, progress=False)
    group: Any = zarr.open_group(str(tmp_path / "out"), mode="r")
    array, columns = group["temperature"], group["deep/columns"]
    assert (array.chunks, array.shards) == ((5, 2, 6), (20, 8, 6))
    # This array has other records, and keeps the chunks of its other axis.
    assert (columns.chunks, columns.shards) == ((6, 5), (510, 20))
    # Coordinates have the names of dimensions, and are not meant.
    assert (group["time"].chunks, group["y"].chunks) == ((512,), (3,))
    mixed: dict[str, Any] = {"time": 6, "temperature": 2, "y": [4]}
    zarr_to_zarr(tmp_path / "source", tmp_path / "mixed", chunks=mixed, progress=False)
    group = zarr.open_group(str(tmp_path / "mixed"), mode="r")
    assert [group[name].chunks for name in ("temperature", "deep/columns", "y")] == [
        *((2, 8, 6), (6, 6), (4,))
    ]
    # Without other arrays the coordinate is what has the dimension.
    asked: dict[str, Any] = {"arrays": ["time"], "chunks": {"time": 5}, "shards": 0}
    zarr_to_zarr(tmp_path / "source", tmp_path / "time", **asked, progress=False)
    assert zarr.open_array(str(tmp_path / "time" / "time")).chunks == (5,)


def test_some_arrays_by_new_names(tmp_path: Path) -> None:
    wanted = make_group(tmp_path / "source")
    zarr_to_zarr(
        tmp_path / "source", tmp_path / "out", arrays={"t2m": "temperature"}, progress=False
    )
    names = ["t2m", "time", MANIFEST_NAME, "y", "zarr.json"]
    assert sorted(os.listdir(tmp_path / "out")) == names
    assert np.array_equal(values_in(tmp_path / "out", "t2m"), wanted["temperature"])
    zarr_to_zarr(tmp_path / "source", tmp_path / "two", arrays=["deep", "time"], progress=False)
    assert sorted(os.listdir(tmp_path / "two")) == ["deep", "time", MANIFEST_NAME, "zarr.json"]


def test_a_part_along_an_axis(tmp_path: Path) -> None:
    wanted = make_group(tmp_path / "source")
    part: dict[str | int, Any] = {"time": slice(5, 28), "x": slice(1, None)}
    zarr_to_zarr(tmp_path / "source", tmp_path / "out", axes=part, progress=False)
    found = values_in(tmp_path / "out", "temperature")
    assert np.array_equal(found, wanted["temperature"][5:28, :, 1:])
    assert np.array_equal(values_in(tmp_path / "out", "time"), wanted["time"][5:28])
    assert np.array_equal(
        values_in(tmp_path / "out", "deep/columns"), wanted["deep/columns"][1:, 5:28]
    )


def test_records_are_those_of_the_axis_that_is_named(tmp_path: Path) -> None:
    group = zarr.open_group(str(tmp_path / "source"), mode="w")
    for name, dims, shape in (("still", ("y", "x"), (100, 100)), ("a", ("t", "x"), (7, 100))):
        group.create_array(name, shape=shape, chunks=shape, dtype="f4", dimension_names=dims)
    asked: dict[str, Any] = {"axes": {"t": "records"}, "progress": False}
    assert zarr_to_zarr(tmp_path / "source", tmp_path / "out", **asked).records == 7
    found: Any = zarr.open_group(str(tmp_path / "out"), mode="r")
    assert (found["a"].chunks, found["still"].chunks) == ((16, 100), (100, 100))
    # Shards asked for by name hold for arrays without records too, and so does 0, for no shards.
    zarr_to_zarr(tmp_path / "source", tmp_path / "by", shards={"still": 200}, **asked)
    zarr_to_zarr(tmp_path / "source", tmp_path / "no", shards=0, **asked)
    assert zarr.open_array(str(tmp_path / "by" / "still")).shards == (200, 100)
    assert zarr.open_array(str(tmp_path / "no" / "a")).shards is None


def test_values_of_ragged_features_are_no_records(tmp_path: Path) -> None:
    rows = [encode_example({"x": np.arange(i % 5), "y": i}) for i in range(20)]
    write_records(str(tmp_path / "a.tfrecord"), rows)
    tfrecord_to_zarr(tmp_path / "a.tfrecord", tmp_path / "source", progress=False)
    manifest = zarr_to_zarr(tmp_path / "source", tmp_path / "out", progress=False)
    assert manifest.records == 20
    for name in ("x/values", "x/offsets", "y"):
        assert np.array_equal(
            values_in(tmp_path / "out", name), values_in(tmp_path / "source", name)
        )


def test_attributes_that_json_lacks_are_kept_as_texts(tmp_path: Path) -> None:
    group = zarr.open_group(str(tmp_path / "source"), mode="w", zarr_format=2)
    array: Any = group.create_array("a", shape=(3,), chunks=(3,), dtype="f4")
    array.attrs.update({"range": [0.5, math.inf], "missing_value": math.nan})
    zarr_to_zarr(tmp_path / "source", tmp_path / "out", progress=False)
    stored = (tmp_path / "out" / "a" / "zarr.json").read_text()
    found = json.loads(stored, parse_constant=pytest.fail)["attributes"]
    assert found == {"range": [0.5, "Infinity"], "missing_value": "NaN"}


@pytest.mark.usefixtures("tiny")
def test_settings_of_single_arrays(tmp_path: Path) -> None:
    make_group(tmp_path / "source")
    zarr_to_zarr(
        tmp_path / "source",
        tmp_path / "out",
        arrays=["temperature", "time"],
        chunks={"temperature": (2, 4, 6)},
        shards={"temperature": (4, 8, 6), "time": 0},
        codecs={"temperature": "blosc:zstd:3", "time": "none"},
        dtype={"time": "int32"},
        progress=False,
    )
    group: Any = zarr.open_group(str(tmp_path / "out"), mode="r")
    array = group["temperature"]
    assert (array.chunks, array.shards) == ((2, 4, 6), (4, 8, 6))
    assert array.compressors[0].to_dict()["configuration"]["typesize"] == 4
    assert (group["time"].dtype, group["time"].shards) == (np.dtype("i4"), None)
    assert np.array_equal(group["time"][...], np.arange(30) * 6)


# --- other dtypes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        ("float64", 1e300, "float32"),
        ("float64", 1.5, "int16"),
        ("float64", math.nan, "int16"),
        ("int64", 2**40, "int32"),
        ("int64", -1, "uint64"),
        ("uint64", 2**63, "int64"),
        ("float32", 1e30, "float16"),
        ("float64", 2.0**63, "int64"),
        ("float64", 2.0**64, "uint64"),
        ("float32", 2.0**32, "uint32"),
        ("float32", math.inf, "float8_e4m3fn"),
    ],
)
def test_a_value_that_does_not_fit_is_named(
    tmp_path: Path, before: str, value: float, after: str
) -> None:
    values = np.zeros((5, 4), before)
    values[3, 2] = value
    make(tmp_path / "source", values, (2, 2))
    asked: dict[str, Any] = {"dtype": {"": after}, "progress": False}
    with pytest.raises(ConversionError, match=rf"the value .* at \[3, 2\] does not fit {after}"):
        zarr_to_zarr(tmp_path / "source", tmp_path / "out", **asked)
    assert (tmp_path / "out" / UNFINISHED).exists()
    asked["dtype"] = {"": f"{after}:unsafe"}
    zarr_to_zarr(tmp_path / "source", tmp_path / "any", **asked)
    with np.errstate(all="ignore"):
        assert np.array_equal(
            values_in(tmp_path / "any").astype("f8"),
            values.astype(features.numpy_dtype(after)).astype("f8"),
            equal_nan=True,
        )


def test_the_end_of_a_range_does_not_fit_where_it_is_what_the_processor_gives() -> None:
    # Casts of what is out of range differ by processor: some take the end of the range.
    values = np.array([2.0**32, 2.0**31, -1.0, 2.0**32 - 512], "f4")
    cast = np.array([2**32 - 1, 2**31, 0, 2**32 - 512], "u4")
    assert unfit(values, cast).tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    ("before", "after"),
    [("float64", "float32"), ("float32", "bfloat16"), ("int64", "int8"), ("bool", "uint8")],
)
def test_values_that_fit_are_cast(tmp_path: Path, before: str, after: str) -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2 if before == "bool" else 100, (7, 5)).astype(before)
    if before == "float64":
        values = values + 1e-12  # rounding is not an error
        values[0, :3] = np.nan, np.inf, -np.inf
    make(tmp_path / "source", values, (2, 5))
    zarr_to_zarr(tmp_path / "source", tmp_path / "out", dtype={"": after}, progress=False)
    found = values_in(tmp_path / "out")
    assert found.dtype.name == after
    assert found.tobytes() == values.astype(found.dtype).tobytes()


def test_one_dtype_for_all_is_for_those_of_its_kind(tmp_path: Path) -> None:
    wanted = make_group(tmp_path / "source")
    zarr_to_zarr(tmp_path / "source", tmp_path / "out", dtype="float16", progress=False)
    assert values_in(tmp_path / "out", "temperature").dtype == np.float16
    for name in ("time", "deep/columns", "nothing"):
        assert values_in(tmp_path / "out", name).dtype == wanted[name].dtype


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tiny")
def test_two_passes_leave_nothing_behind(tmp_path: Path) -> None:
    values = some_bits("float32", (64, 16, 16))
    make(tmp_path / "source", values, (64, 2, 2))
    asked: dict[str, Any] = {"chunks": 1, "shards": 4, "memory_bytes": 20_000}
    conversion = zarr_to_zarr.conversion(tmp_path / "source", **asked)
    assert [stage.name for stage in conversion.stages] == ["read", "write"]
    assert "two passes through files between" in conversion.expected.lines[0]
    zarr_to_zarr(tmp_path / "source", tmp_path / "out", **asked, progress=False)
    assert values_in(tmp_path / "out").tobytes() == values.tobytes()
    assert sorted(os.listdir(tmp_path / "out")) == ["c", MANIFEST_NAME, "zarr.json"]
    # The budget does not change what comes out.
    zarr_to_zarr(tmp_path / "source", tmp_path / "one", chunks=1, shards=4, progress=False)
    assert files_in(tmp_path / "one") == files_in(tmp_path / "out")


def test_planning_takes_no_longer_for_a_large_array() -> None:
    # 100 TB, and more chunks along an axis than could be inspected one by one.
    shape, chunk, files = (25_000_000_000, 1000), (1000, 1000), (64, 1000)
    grids = rechunk_plan.Grids(shape, chunk, (0, 0), files, 4, 4, 2 << 20)
    plan = rechunk_plan.plan_rechunk(grids, 350 << 20, name="x")
    assert plan.amplification == pytest.approx(1.0, abs=0.1)


def test_too_little_memory_says_how_much_is_enough(tmp_path: Path) -> None:
    make(tmp_path / "source", np.zeros((64, 1 << 18), "f4"), (64, 1 << 18))
    with pytest.raises(
        ConversionError, match=r"memory_bytes=200,000,000 .* at least ([\d,]+)"
    ) as e:
        zarr_to_zarr(tmp_path / "source", tmp_path / "out", memory_bytes=200_000_000)
    enough = int(str(e.value).partition("at least ")[2].partition(", or")[0].replace(",", ""))
    zarr_to_zarr.conversion(tmp_path / "source", memory_bytes=enough)


PEAK = """
import sys
from windrow.converters.zarr.rechunk import zarr_to_zarr
zarr_to_zarr(sys.argv[1], sys.argv[2], memory_bytes=int(sys.argv[3]), progress=False)
line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(line.split()[1]) << 10)
"""


@pytest.mark.jobs
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("chunk", [(8, 256, 256), (512, 16, 16)])
def test_peak_memory_is_under_the_budget(tmp_path: Path, chunk: tuple[int, ...]) -> None:
    # 256 MB of values that take no time to compress.
    values = np.broadcast_to(np.arange(1024, dtype="f4")[:, None, None], (1024, 256, 256))
    spec = zarr_layouts.Layout(values.shape, chunk, dtype="float32")
    array = zarr_layouts.make(str(tmp_path / "source"), spec)
    for first in range(0, 1024, 512):
        array[first : first + 512].write(values[first : first + 512]).result()
    budget = 336 << 20
    arguments = [str(tmp_path / "source"), str(tmp_path / "out"), str(budget)]
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert int(done.stdout) < budget
    source = ZarrDataSource(tmp_path / "out")
    assert np.array_equal(source.read(np.array([0, 777, 1023])), values[[0, 777, 1023]])


# --- faults --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tiny")
def test_a_run_that_was_stopped_in_either_pass_goes_on(tmp_path: Path) -> None:
    values = some_bits("float32", (64, 16, 16))
    make(tmp_path / "source", values, (64, 2, 2))
    asked: dict[str, Any] = {"chunks": 1, "shards": 4, "memory_bytes": 20_000}
    conversion = zarr_to_zarr.conversion(tmp_path / "source", **asked)
    undisturbed = carry_out(conversion, tmp_path / "whole", progress=False)
    items = Counted(conversion).run(tmp_path / "counted")
    for share in (1, 3, 5, 7):
        out = tmp_path / f"out{share}"
        Counted(conversion, share * items // 8).run(out)
        with pytest.raises(ConversionError, match="has not finished"):
            ZarrDataSource(out)
        assert carry_out(conversion, out, progress=False) == undisturbed
        assert files_in(out) == files_in(tmp_path / "whole")


# --- elsewhere -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("tiny")
def test_two_passes_in_another_file_system(tmp_path: Path) -> None:
    values = some_bits("float32", (16, 4, 4))
    make(tmp_path / "source", values, (16, 2, 2))
    asked: dict[str, Any] = {"chunks": 1, "shards": 4, "memory_bytes": 900}
    conversion = zarr_to_zarr.conversion(tmp_path / "source", **asked)
    assert [stage.name for stage in conversion.stages] == ["read", "write"]
    carry_out(conversion, "memory://two/out", progress=False)
    zarr_to_zarr(tmp_path / "source", tmp_path / "out", **asked, progress=False)
    memory = fsspec.filesystem("memory")
    found = {name.removeprefix("/two/out/"): memory.cat_file(name) for name in memory.find("two")}
    found.pop(MANIFEST_NAME)
    assert found == files_in(tmp_path / "out")
    memory.rm("/two", recursive=True)


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"arrays": "temperature"}, "arrays must be a list of names"),
        ({"arrays": []}, "arrays must be a list of names"),
        ({"arrays": {"x": "deep"}}, "'deep' is not an array; a dict renames arrays"),
        ({"arrays": {"../x": "time"}}, "'../x' cannot be the name"),
        ({"arrays": {"x": "time", "x/y": "y"}}, "'x/y' would lie in an array"),
        ({"axes": "tme"}, "dimension 'tme' is not there; there are empty, time, x, y"),
        ({"axes": 1.5}, "1.5 is neither a number nor a name of an axis"),
        ({"axes": {7: "records"}}, "axes: 7 is not an axis of any array"),
        ({"axes": {"x": "records", "y": "records"}}, "one axis counts records, got 'x', 'y'"),
        ({"chunks": {"tme": 1}}, "chunks names 'tme', which is not there"),
        ({"chunks": {"temperature": (1, 2)}}, r"chunks: \(1, 2\) does not fit array 'temperature'"),
        ({"chunks": -1}, "chunks: -1 does not fit array 'temperature' of shape"),
        ({"chunks": [1]}, r"chunks: \[1\] fits no array of records: temperature \(3 axes\)"),
        ({"chunks": "1"}, "chunks: '1' is neither a number of records nor a list of sizes"),
        (
            {"chunks": 3, "shards": {"temperature": 4}},
            r"shards of \[4, 8, 6\] are not a whole number of chunks",
        ),
        ({"codecs": "lzma"}, "codecs 'lzma' are not known"),
        ({"codecs": "zstd:x"}, "codecs 'zstd:x': 'x' is not a level"),
        ({"codecs": "zstd:99"}, 'codec .*"level": 99.* is not known'),
        ({"codecs": "blosc:lz5"}, "codec .*lz5.* is not known"),
        ({"dtype": "float31"}, "dtype 'float31' is not one of"),
        ({"axes": {"time": slice(0, 9, 2)}}, "'time' must be .* a slice without a step"),
        ({"axes": {"tme": slice(3)}}, "axes: dimension 'tme' is not there"),
        ({"axes": {"time": slice("1")}}, "has bounds that are not integers"),
        ({"arrays": 5}, "arrays must be a list of names"),
        ({"arrays": {"a/zarr.json": "time"}}, "'a/zarr.json' cannot be the name of an array"),
        ({"arrays": {"a\0": "time"}}, "cannot be the name of an array"),
        (
            {"dtype": "complex64"},
            "'complex64' is for arrays of its kind, and the source has no such array",
        ),
        ({"dtype": np.dtype("float32")}, "is not one of bool, int8"),
        ({"codecs": ["zstd"]}, r"codecs must be a string .* got \['zstd'\]"),
        ({"memory_bytes": "1GB"}, "memory_bytes must be an integer, got '1GB'"),
        ({"proceses": 2}, "'proceses' is not an argument"),
    ],
)
def test_arguments_that_do_not_fit(tmp_path: Path, asked: dict[str, Any], words: str) -> None:
    make_group(tmp_path / "source")
    with pytest.raises(ArgumentError, match=words):
        zarr_to_zarr(tmp_path / "source", tmp_path / "out", **asked)
    assert not (tmp_path / "out").exists()


def test_a_dry_run_reads_no_values(tmp_path: Path) -> None:
    values = some_bits("int32", (8, 4))
    make(tmp_path / "source", values, (2, 4))
    for chunk in (tmp_path / "source" / "c").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(b"damaged")
    expected = zarr_to_zarr.conversion(tmp_path / "source", chunks=2, shards=0).expected
    assert (expected.records, expected.files, expected.output_bytes) == (8, 4, values.nbytes)
    assert expected.lines == (
        "the array: int32 [8, 4], chunks of [2, 4]; one pass in blocks of [8, 4], each value"
        " decoded 1.00 times",
    )
