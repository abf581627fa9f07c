"""Zarr to ArrayRecord, and back: the same bits, names and attributes, however they are cut."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conversions import encode, store
from windrow.converters import (
    Feature,
    Manifest,
    array_record_to_zarr,
    decode_example,
    decode_examples,
    encode_example,
    encode_examples,
    tfrecord_to_zarr,
    write_records,
    zarr_to_array_record,
)
from windrow.converters.job.manifest import MANIFEST_NAME
from windrow.converters.zarr.layout import ArrayLayout, metadata_files
from windrow.core.progress import Progress
from windrow.errors import ArgumentError, ConversionError, ReadError, SourceError
from windrow.sources import ArrayRecordDataSource
from windrow.sources.tf_example.features import Ragged, features_from_json, numpy_dtype

SMALL = 1 << 18


def stored(
    folder: Path,
    arrays: Sequence[tuple[ArrayLayout, Any]],
    attributes: Mapping[str, Any] | None = None,
) -> None:
    """A Zarr group, or one array without one."""
    for layout, values in arrays:
        store(folder, encode(layout, (0,) * values.ndim, values))
    store(folder, metadata_files([layout for layout, _ in arrays], attributes))


def bits(rng: np.random.Generator, dtype: str, shape: Sequence[int]) -> Any:
    """Values of any bits: all kinds of NaNs too."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    kind = numpy_dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(rng.bytes(count * kind.itemsize), kind).reshape(shape)


def pair(folder: Path, *, records: int = 20, chunk: int = 3, **attributes: Any) -> dict[str, Any]:
    """A group of an array "x" float32 (4, 2), and its times and labels; the values."""
    rng = np.random.default_rng(0)
    values = {"x": bits(rng, "float32", (records, 4, 2)), "time": np.arange(records) * 6}
    x = ArrayLayout(
        "x",
        "float32",
        (records, 4, 2),
        (chunk, 2, 2),
        (2 * chunk, 4, 2),
        dimension_names=("time", "lat", None),
        attributes={"units": "K", **attributes},
        fill_value="NaN",
    )
    time = ArrayLayout(
        "time",
        "int64",
        (records,),
        (8,),
        dimension_names=("time",),
        attributes={"units": "hours since 2000-01-01", "calendar": "proleptic_gregorian"},
    )
    lat = ArrayLayout("lat", "float64", (4,), (4,), dimension_names=("lat",))
    height = ArrayLayout("height", "int64", (), ())
    stored(
        folder,
        [(x, values["x"]), (time, values["time"]), (lat, np.arange(4.0)), (height, np.array(2))],
        {"title": "a pair"},
    )
    return values


def read(folder: Path) -> list[bytes]:
    source = ArrayRecordDataSource(str(folder))
    return source.read(np.arange(len(source)))


def columns(folder: Path) -> dict[str, Any]:
    """What the records hold, as their manifest says."""
    features = Manifest.read(folder).settings["features"]
    return decode_examples(read(folder), features_from_json(features, where=""))


def metadata(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name / "zarr.json").read_text())
    return found


def test_rows_become_examples_in_order(tmp_path: Path) -> None:
    values = pair(tmp_path / "a.zarr")
    steps: list[Progress] = []
    manifest = zarr_to_array_record(
        tmp_path / "a.zarr", tmp_path / "out", files=3, progress=steps.append
    )
    names = [f"a.array_record-{k:05}-of-00003" for k in range(3)]
    assert [file.name for file in manifest.files] == names
    assert [file.records for file in manifest.files] == [6, 7, 7]
    assert [(file.name, file.records) for file in manifest.inputs] == [("a.zarr", 20)]
    # Labels of the records come along; labels of other axes, and scalars, do not.
    records = [decode_example(record) for record in read(tmp_path / "out")]
    assert [sorted(record) for record in records] == [["time", "x"]] * 20
    assert b"".join(record["x"][0] for record in records) == values["x"].tobytes()
    assert b"".join(record["time"][0] for record in records) == values["time"].tobytes()
    assert (steps[-1].records, steps[-1].done_bytes) == (20, 20 * (32 + 8))
    assert steps[-1].total_bytes == 20 * (32 + 8)


@pytest.mark.jobs
@settings(max_examples=8, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=40),
    item=st.sampled_from([(), (2,)]),
    dtype=st.sampled_from(["float32", "bfloat16", "uint8", "int64"]),
    files=st.integers(1, 4),
)
def test_ragged_features_come_back(
    lengths: list[int], item: tuple[int, ...], dtype: str, files: int
) -> None:
    rng = np.random.default_rng(len(lengths))
    values = bits(rng, dtype, (sum(lengths), *item))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    texts = [b"\0" * (n % 3) + b"x" * n for n in lengths]
    ends = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
    features = {
        "points": Feature(dtype, (None, *item), raw=True),
        "text": Feature("bytes"),
        "label": Feature("int64", raw=True),
    }
    given_columns: dict[str, Any] = {
        "points": Ragged(values, offsets),
        "text": Ragged(np.frombuffer(b"".join(texts), np.uint8), ends),
        "label": np.arange(len(lengths)),
    }
    records = encode_examples(given_columns, features)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        write_records(here / "x.tfrecord", records)
        tfrecord_to_zarr(here / "x.tfrecord", here / "a.zarr", features=features, progress=False)
        manifest = zarr_to_array_record(
            here / "a.zarr", here / "out", files=files, memory_bytes=SMALL, progress=False
        )
        assert features_from_json(manifest.settings["features"], where="") == features
        assert read(here / "out") == records
        array_record_to_zarr(here / "out", here / "back", progress=False)
        for name in ("points/values", "points/offsets", "text/values", "text/offsets", "label"):
            assert metadata(here / "back", name) == metadata(here / "a.zarr", name)
        group = json.loads((here / "back" / "zarr.json").read_text())
        assert group == json.loads((here / "a.zarr" / "zarr.json").read_text())


def test_names_choose_arrays(tmp_path: Path) -> None:
    values = pair(tmp_path / "a.zarr")
    zarr_to_array_record(tmp_path / "a.zarr", tmp_path / "x", arrays=["x"])
    assert list(columns(tmp_path / "x")) == ["x"]
    zarr_to_array_record(tmp_path / "a.zarr", tmp_path / "lat", arrays=["lat"])
    assert columns(tmp_path / "lat")["lat"].tolist() == [0, 1, 2, 3]
    with pytest.raises(SourceError, match=r"(?s)arrays differ in length.*lat: 4.*x: 20.*arrays="):
        zarr_to_array_record(tmp_path / "a.zarr", tmp_path / "out", arrays=["x", "lat"])
    with pytest.raises(SourceError, match=r"array 'height' has shape \(\), and the first axis"):
        zarr_to_array_record(tmp_path / "a.zarr", tmp_path / "out", arrays=["height"])
    with pytest.raises(
        ArgumentError, match=r"^zarr_to_array_record: there is no array 'y'; there are height"
    ):
        zarr_to_array_record(tmp_path / "a.zarr", tmp_path / "out", arrays=["y"])
    for wrong in ("x", [], [3]):
        with pytest.raises(ArgumentError, match="arrays must be a list of names such as"):
            zarr_to_array_record(tmp_path / "a.zarr", tmp_path / "out", arrays=wrong)  # type: ignore[arg-type]
    assert values["x"].shape == (20, 4, 2)


def test_a_function_makes_the_records(tmp_path: Path) -> None:
    values = pair(tmp_path / "a.zarr")

    def encoded(row: dict[str, Any]) -> bytes:
        return encode_example({"sum": float(row["x"].size), "at": int(row["time"])})

    manifest = zarr_to_array_record(tmp_path / "a.zarr", tmp_path / "out", encode=encoded)
    assert [decode_example(record)["at"][0] for record in read(tmp_path / "out")] == values[
        "time"
    ].tolist()
    assert "features" not in manifest.settings  # the records are not Examples
    assert manifest.settings["encode"].endswith("encoded")
    with pytest.raises(ConversionError, match=r"row 3: encode raised ZeroDivisionError"):
        zarr_to_array_record(
            tmp_path / "a.zarr",
            tmp_path / "no",
            encode=lambda row: b"%d" % (1 // (int(row["time"]) - 18)),
        )
    with pytest.raises(ConversionError, match=r"row 0: encode returned str; a record is bytes"):
        zarr_to_array_record(tmp_path / "a.zarr", tmp_path / "not", encode=lambda row: "")  # type: ignore[arg-type, return-value]


def test_how_many_files(tmp_path: Path) -> None:
    pair(tmp_path / "a.zarr")

    def counts(out: str, **more: Any) -> list[int]:
        manifest = zarr_to_array_record(tmp_path / "a.zarr", tmp_path / out, **more)
        return [file.records for file in manifest.files]

    assert counts("one") == [20]
    assert counts("per", records_per_file=8) == [8, 8, 4]
    assert counts("many", files=30).count(1) == 20
    with pytest.raises(ArgumentError, match="say the same; give one of them"):
        counts("both", files=1, records_per_file=3)
    with pytest.raises(ArgumentError, match="records_per_file must be an integer from 1"):
        counts("none", records_per_file=0)


def test_damaged_chunks_and_offsets(tmp_path: Path) -> None:
    pair(tmp_path / "a.zarr")
    path = tmp_path / "a.zarr" / "x" / "c" / "1" / "0" / "0"
    whole = path.read_bytes()
    path.write_bytes(b"#" + whole[1:])
    with pytest.raises(ReadError, match=r"array 'x'"):
        zarr_to_array_record(tmp_path / "a.zarr", tmp_path / "out")
    assert MANIFEST_NAME not in os.listdir(tmp_path / "out")
    path.write_bytes(whole)

    told = {"windrow_ragged": {"r": {"dtype": "int64", "shape": [None]}}}
    offsets = ArrayLayout("r/offsets", "int64", (4,), (4,))
    items = ArrayLayout("r/values", "int64", (5,), (5,))
    for number, wrong in enumerate(([0, 3, 2, 5], [0, 1, 2, 6], [-1, 0, 1, 5])):
        folder = tmp_path / f"r{number}.zarr"
        stored(folder, [(offsets, np.array(wrong)), (items, np.arange(5))], told)
        with pytest.raises(
            ReadError, match=r"array 'r/offsets': the offsets of rows 0 to 2 do not"
        ):
            zarr_to_array_record(folder, tmp_path / f"out{number}")
