"""ArrayRecord to Zarr: rows are the records, wherever they lie; round trips give the same arrays."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import hypothesis_profiles
from tests.array_record_bytes import write
from tests.conversions import encode, store, values_in
from windrow.converters import Manifest, array_record_to_zarr, encode_example
from windrow.converters.job.inputs import find_inputs
from windrow.converters.job.manifest import MANIFEST_NAME
from windrow.converters.records.record_files import cut, files_of
from windrow.converters.zarr.layout import ArrayLayout, metadata_files
from windrow.converters.zarr.to_records import zarr_to_array_record
from windrow.errors import NotFoundError, ReadError, SourceError
from windrow.sources.tf_example.features import DTYPES, Feature, numpy_dtype


def examples(rows: range) -> list[bytes]:
    return [encode_example({"a": [i, -i], "text": b"t" * (i % 4)}) for i in rows]


def check(folder: Path, rows: list[int] | range) -> None:
    assert values_in(folder, "a").tolist() == [[row, -row] for row in rows]
    offsets, values = values_in(folder, "text/offsets"), values_in(folder, "text/values")
    assert np.diff(offsets).tolist() == [row % 4 for row in rows]
    assert values.tobytes() == b"t" * len(values)


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row ranges of two stored files or two groups each, and blocks of few records."""
    monkeypatch.setattr("windrow.converters.zarr.records_work._PIECE_BYTES", 1)
    monkeypatch.setattr("windrow.converters.zarr.records_work.BLOCK_BYTES", 200)


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("group", [1, 4, 1000])
@pytest.mark.parametrize(("chunk_rows", "shard_rows"), [(1, 0), (3, 6), (None, None)])
def test_rows_are_the_records_of_all_files_in_order(
    tmp_path: Path, group: int, chunk_rows: int | None, shard_rows: int | None
) -> None:
    bounds = (0, 7, 7, 8, 33)
    for k, (start, stop) in enumerate(itertools.pairwise(bounds)):
        path = tmp_path / "in" / f"x.array_record-{k:05}-of-00004"
        write(path, examples(range(start, stop)), f"group_size:{group}")
    storage: dict[str, Any] = {"chunk_rows": chunk_rows, "shard_rows": shard_rows}
    manifest = array_record_to_zarr(tmp_path / "in", tmp_path / "out", **storage)
    check(tmp_path / "out", range(33))
    assert [file.records for file in manifest.inputs] == [7, 0, 1, 25]
    planned = array_record_to_zarr.conversion(tmp_path / "in").expected
    assert planned.records == 33


def test_no_records_and_no_files(tmp_path: Path) -> None:
    write(tmp_path / "in" / "x.array_record", [])
    manifest = array_record_to_zarr(tmp_path / "in", tmp_path / "out")
    assert (manifest.records, [file.name for file in manifest.files]) == (0, ["zarr.json"])
    given = {"x": Feature("int8", (3,), raw=True)}
    array_record_to_zarr(tmp_path / "in", tmp_path / "given", features=given)
    assert values_in(tmp_path / "given", "x").shape == (0, 3)
    with pytest.raises(NotFoundError, match="does not exist"):
        array_record_to_zarr(tmp_path / "none", tmp_path / "out")
    (tmp_path / "bad.array_record").write_bytes(b"no such file" * 10)
    with pytest.raises(SourceError, match=r"bad\.array_record is not an ArrayRecord file"):
        array_record_to_zarr(tmp_path / "bad.array_record", tmp_path / "out2")


@pytest.mark.usefixtures("small_ranges")
def test_the_records_of_a_damaged_group_are_left_out_up_to_a_limit(tmp_path: Path) -> None:
    needle = encode_example({"a": [13, 10**9], "text": b"needle"})
    records = examples(range(20))
    records[13] = needle
    path = write(tmp_path / "in" / "x.array_record", records, "group_size:4,uncompressed")
    write(tmp_path / "in" / "y.array_record", examples(range(20, 25)))
    data = bytearray(path.read_bytes())
    data[data.index(b"needle")] ^= 1
    path.write_bytes(data)
    with pytest.raises(ReadError, match=r"record 1[2-5] of .*x\.array_record .*cannot be read"):
        array_record_to_zarr(tmp_path / "in", tmp_path / "out")
    with pytest.raises(ReadError, match="with it more than max_bad_records=3 are bad"):
        array_record_to_zarr(tmp_path / "in", tmp_path / "out", max_bad_records=3)
    manifest = array_record_to_zarr(tmp_path / "in", tmp_path / "out", max_bad_records=4)
    check(tmp_path / "out", [row for row in range(25) if row not in range(12, 16)])
    assert [(one.file, one.record) for one in manifest.skipped] == [
        ("x.array_record", row) for row in range(12, 16)
    ]
    assert [(file.records, file.skipped) for file in manifest.inputs] == [(16, 4), (5, 0)]


# Round trips.

CODECS = ["none", "zstd:1", "zstd:-3", "gzip:5"]
CODECS += [f"blosc:{name}:5" for name in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")]
BLOSC = {"cname": "lz4", "clevel": 9, "typesize": 3, "blocksize": 0}
CODECS += [
    json.dumps(
        [{"name": "blosc", "configuration": {**BLOSC, "shuffle": shuffle}}, {"name": "crc32c"}]
    )
    for shuffle in ("noshuffle", "shuffle", "bitshuffle")
]
SHAPES = st.sampled_from([(), (3,), (2, 3), (1, 1, 5), (2, 0)])
TO_EDGES = st.sampled_from([0, 1, 2, 3, 17, 33])


@st.composite
def groups(draw: st.DrawFn) -> tuple[int, dict[str, tuple[str, tuple[int, ...]]]]:
    """The number of rows of some arrays, and dtype and shape of a row of each, by name."""
    names = draw(st.lists(st.sampled_from(["a", "b/c", "b/d", "é"]), min_size=1, unique=True))
    return draw(TO_EDGES), {
        name: (draw(st.sampled_from(sorted(DTYPES))), draw(SHAPES)) for name in names
    }


@pytest.mark.jobs
@settings(max_examples=hypothesis_profiles.examples(25))
@given(
    group=groups(),
    files=st.integers(1, 3),
    layout=st.sampled_from([(1, 0), (2, 4), (5, 0), (None, None), (None, 0)]),
    codecs=st.sampled_from(CODECS),
    limit=st.sampled_from([0, 3]),
)
def test_zarr_to_array_record_and_back_is_bit_for_bit(
    group: Any, files: int, layout: Any, codecs: str, limit: int
) -> None:
    rows, fields = group
    rng = np.random.default_rng(rows)
    layouts, values = [], {}
    for name, (dtype, shape) in fields.items():
        data = rng.bytes(rows * int(np.prod(shape)) * numpy_dtype(dtype).itemsize)
        if dtype == "bool":
            data = bytes(byte & 1 for byte in data)
        values[name] = np.frombuffer(data, numpy_dtype(dtype)).reshape(rows, *shape)
        layouts.append(
            ArrayLayout(
                name,
                dtype,
                values[name].shape,
                (3, *(max(1, n) for n in shape)),
                attributes={"units": f"days since {dtype}"},
                dimension_names=("time", *(None for _ in shape)),
                fill_value=True if dtype == "bool" else None,
            )
        )
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        groups = {"b": {"of": "b"}}
        heads = metadata_files(layouts, {"title": "ours"}, group_attributes=groups)
        store(folder / "in.zarr", heads)
        for one in layouts:
            store(folder / "in.zarr", encode(one, (0,) * len(one.shape), values[one.name]))
        zarr_to_array_record(folder / "in.zarr", folder / "records", files=files, progress=False)
        chunk_rows, shard_rows = layout
        manifest = array_record_to_zarr(
            folder / "records",
            folder / "out",
            chunk_rows=chunk_rows,
            shard_rows=shard_rows,
            codecs=codecs,
            max_bad_records=limit,
            progress=False,
        )
        assert manifest.records == rows
        for one in layouts:
            found = values_in(folder / "out", one.name)
            assert (found.dtype, found.shape) == (one.numpy_dtype, one.shape)
            assert found.tobytes() == values[one.name].tobytes()
            if not one.dtype.startswith(("bfloat", "float8")):  # which zarr-python lacks
                array: Any = zarr.open_array(str(folder / "out" / one.name), mode="r")
                assert np.asarray(array[...]).tobytes() == found.tobytes()
            head = json.loads((folder / "out" / one.name / "zarr.json").read_text())
            for key in ("attributes", "dimension_names", "fill_value", "data_type"):
                assert head[key] == one.metadata()[key]
        head = json.loads((folder / "out" / "zarr.json").read_text())
        assert head["attributes"] == {"title": "ours"}
        assert Manifest.read(folder / "out") == manifest


def test_what_a_manifest_tells_wrongly_is_refused(tmp_path: Path) -> None:
    values = np.arange(6, dtype="f4").reshape(3, 2)
    layout = ArrayLayout("a", "float32", (3, 2), (3, 2))
    store(tmp_path / "in", {**metadata_files([layout]), **encode(layout, (0, 0), values)})
    zarr_to_array_record(tmp_path / "in", tmp_path / "records")
    place = tmp_path / "records" / MANIFEST_NAME
    whole = json.loads(place.read_text())
    for key, wrong, words in (
        ("features", {"a": 3}, "features: feature 'a': a feature has"),
        ("arrays", {"a": 3}, "must be objects by name"),
        ("arrays", {"a": {"attributes": {}}}, "the settings of array 'a' do not fit it"),
        ("attributes", [1], "must be objects by name"),
    ):
        changed = {**whole, "settings": {**whole["settings"], key: wrong}}
        place.write_text(json.dumps(changed))
        with pytest.raises(ReadError, match=words):
            array_record_to_zarr(tmp_path / "records", tmp_path / "out")
    # The manifest says nothing of another file in the folder.
    place.write_text(json.dumps(whole))
    write(tmp_path / "records" / "y.array_record", examples(range(2)))
    array_record_to_zarr(tmp_path / "records" / "y.array_record", tmp_path / "other")
    check(tmp_path / "other", range(2))


# Row ranges.


def test_no_batch_holds_many_large_records_among_small_ones(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    records = [rng.bytes(10)] * 2000 + [rng.bytes(200_000) for _ in range(8)] + [b"end"] * 7
    path = write(tmp_path / "x.array_record", records)
    files = files_of("array_record")
    (counted,) = files.count(find_inputs(path))
    (row_range,) = cut([counted], [0, 2015])
    batches = [block.records for block in files.blocks(row_range.spans, 300_000)]
    assert [one for batch in batches for one in batch] == records
    # Small ones together, and never two of the large ones.
    assert max(sum(map(len, batch)) for batch in batches) < 300_000
    assert len(batches) < 20
