"""TFRecord to Zarr: each row is its record, whatever the chunks, the files and the interruptions."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr

from tests.conversion_cases import tree
from windrow.converters import (
    Manifest,
    decode_example,
    encode_example,
    read_records,
    tfrecord_to_zarr,
    write_records,
)
from windrow.converters.job.manifest import MANIFEST_NAME
from windrow.errors import ArgumentError, ConversionError, ReadError
from windrow.sources.tf_example.features import Feature

COUNTS = (5, 0, 1, 9)
ROWS = sum(COUNTS)
DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64"]

Arrays = dict[str, npt.NDArray[Any]]


def decode(record: bytes) -> dict[str, object]:
    found = decode_example(record)
    x = np.asarray(found["x"]).reshape(2, 3)
    return {"x": x, "label": found["label"][0], "text": found["text"][0], "tokens": found["tokens"]}


def expected() -> Arrays:
    x = np.arange(ROWS * 6, dtype=np.float32).reshape(ROWS, 2, 3)
    return {"x": x, "label": np.arange(ROWS, dtype=np.int64) % 4}


def text(row: int) -> bytes:
    return b"a row" * (row % 3)


def tokens(row: int) -> npt.NDArray[np.int64]:
    return np.arange(row, row + row * 7 % 5)


def record(row: int) -> bytes:
    rows = {name: values[row] for name, values in expected().items()}
    return encode_example({**rows, "text": text(row), "tokens": tokens(row)})


def shards(folder: Path, suffix: str = "") -> str:
    folder.mkdir()
    start = 0
    for k, size in enumerate(COUNTS):
        path = folder / f"x.tfrecord-{k:05}-of-00004{suffix}"
        write_records(path, [record(row) for row in range(start, start + size)])
        start += size
    return str(folder / "x.tfrecord-*")


def arrays(path: Path) -> Arrays:
    """What zarr-python reads, which warns of files that it does not know."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = zarr.open_group(str(path), mode="r")
        members = group.members(max_depth=None)
        return {
            name: np.asarray(array[...]) for name, array in members if isinstance(array, zarr.Array)
        }


def ragged_rows(found: Arrays, name: str) -> list[npt.NDArray[Any]]:
    values, offsets = found[f"{name}/values"], found[f"{name}/offsets"]
    assert offsets.dtype == np.dtype(np.int64)
    assert (offsets[0], offsets[-1]) == (0, len(values))
    return [values[a:b] for a, b in itertools.pairwise(offsets)]


def check_rows(found: Arrays, rows: list[int] | range = range(ROWS)) -> None:
    wanted = {name: values[list(rows)] for name, values in expected().items()}
    beside = {f"{name}/{what}" for name in ("text", "tokens") for what in ("values", "offsets")}
    assert sorted(found) == sorted({*wanted, *beside})
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype
        assert np.array_equal(found[name].reshape(value.shape), value)
    assert [row.tobytes() for row in ragged_rows(found, "text")] == [text(row) for row in rows]
    assert [row.tolist() for row in ragged_rows(found, "tokens")] == [
        tokens(row).tolist() for row in rows
    ]


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row ranges of one stored file each, and blocks of few records: little data makes many."""
    monkeypatch.setattr("windrow.converters.zarr.records_work._PIECE_BYTES", 1)
    monkeypatch.setattr("windrow.converters.zarr.records_work.BLOCK_BYTES", 300)


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("how", ["inferred", "decode"])
@pytest.mark.parametrize(
    ("suffix", "chunk_rows", "shard_rows", "ranges"),
    [("", 4, 0, 4), (".gz", 1, 0, 15), ("", 2, 6, 3), ("", 256, 0, 1), ("", None, None, 1)],
)
def test_rows_are_the_records_in_order(
    tmp_path: Path,
    suffix: str,
    chunk_rows: int | None,
    shard_rows: int | None,
    ranges: int,
    how: str,
) -> None:
    steps: list[Any] = []
    manifest = tfrecord_to_zarr(
        shards(tmp_path / "in", suffix),
        tmp_path / "out",
        decode=decode if how == "decode" else None,
        chunk_rows=chunk_rows,
        shard_rows=shard_rows,
        progress=steps.append,
    )
    found = arrays(tmp_path / "out")
    check_rows(found)
    assert found["x"].shape == ((ROWS, 2, 3) if how == "decode" else (ROWS, 6))
    array = zarr.open_array(str(tmp_path / "out" / "x"), mode="r")
    if chunk_rows:
        assert array.chunks[0] == chunk_rows
        assert array.shards == ((shard_rows, *found["x"].shape[1:]) if shard_rows else None)
    assert [file.records for file in manifest.inputs] == list(COUNTS)
    written = [file for file in manifest.files if file.name.startswith("x/c/")]
    assert sum(file.records for file in written) == ROWS
    assert len(written) == ranges
    assert max(step.records for step in steps if step.stage == "convert") == ROWS
    # The manifest lists all that is there, and nothing else is.
    there = {name: len(data) for name, data in tree(tmp_path / "out").items()}
    del there[MANIFEST_NAME]
    assert there == {file.name: file.size_bytes for file in manifest.files}
    assert Manifest.read(tmp_path / "out") == manifest


def test_features_that_are_given_say_dtypes_and_shapes_and_others_are_left_out(
    tmp_path: Path,
) -> None:
    features: dict[str, Any] = {
        "x": Feature("float64", (3, 2)),
        "label": {"dtype": "uint8", "shape": [], "raw": False},
        "text": Feature("bytes"),
    }
    tfrecord_to_zarr(shards(tmp_path / "in"), tmp_path / "out", features=features)
    found = arrays(tmp_path / "out")
    assert sorted(found) == ["label", "text/offsets", "text/values", "x"]
    assert (str(found["x"].dtype), found["x"].shape) == ("float64", (ROWS, 3, 2))
    assert found["label"].dtype == np.uint8
    assert np.array_equal(found["x"].reshape(-1), np.arange(ROWS * 6))
    # The rule: 128 records of 48 bytes are the first power of two that makes 4 KiB.
    assert zarr.open_array(str(tmp_path / "out" / "x"), mode="r").chunks == (128, 3, 2)
    told = zarr.open_group(str(tmp_path / "out"), mode="r").attrs.asdict()
    assert told == {"windrow_ragged": {"text": {"dtype": "bytes", "shape": [None]}}}


def test_every_dtype_and_rows_of_zeros(tmp_path: Path) -> None:
    write_records(tmp_path / "x.tfrecord", [b"\x00", b"\x00", b"\x01"])

    def decode_all(record: bytes) -> dict[str, object]:
        values = {dtype: np.full((2,), record[0], dtype=dtype) for dtype in DTYPES}
        return {
            **values,
            "none": np.zeros((2, 0)),
            "big_endian": np.array(record[0], dtype=">i4"),
            "python": record[0],
            "group/complex": np.zeros((record[0], 2), "c16"),
            "group/strings": "äö" * record[0],
        }

    tfrecord_to_zarr(
        tmp_path / "x.tfrecord", tmp_path / "out", decode=decode_all, chunk_rows=2, shard_rows=0
    )
    found = arrays(tmp_path / "out")
    for dtype in DTYPES:
        assert found[dtype].tobytes() == np.array([[0, 0], [0, 0], [1, 1]], dtype).tobytes()
    assert found["none"].shape == (3, 2, 0)
    assert found["big_endian"].tobytes() == np.array([0, 0, 1], np.int32).tobytes()
    assert found["python"].tobytes() == np.array([0, 0, 1], np.int64).tobytes()
    assert found["group/complex/values"].shape == (1, 2)
    assert found["group/strings/values"].tobytes().decode() == "äö"
    assert (tmp_path / "out" / "int8" / "c" / "0" / "0").is_file()  # zeros are stored too


# Records that are wrong.


def damage(path: Path, needle: bytes, at: int = 0) -> None:
    """Change one byte of a file, `at` bytes after the first of `needle`."""
    data = bytearray(path.read_bytes())
    data[data.index(needle) + at] ^= 1
    path.write_bytes(data)


@pytest.mark.usefixtures("small_ranges")
def test_a_bad_record_is_an_error_or_left_out_up_to_a_limit(tmp_path: Path) -> None:
    glob, out = shards(tmp_path / "in"), tmp_path / "out"
    last = tmp_path / "in" / "x.tfrecord-00003-of-00004"
    whole = list(read_records(last))
    whole[2] = b"no example"  # row 8, and record 2 of the file
    write_records(last, whole)
    offset = 16 * 2 + len(whole[0]) + len(whole[1])
    with pytest.raises(
        ReadError, match=rf"x\.tfrecord-00003-of-00004: record 2 at byte {offset}: "
    ):
        tfrecord_to_zarr(glob, tmp_path / "refused")
    damage(last, whole[4], 20)  # row 10: its checksum is wrong
    with pytest.raises(
        ReadError, match=r"x\.tfrecord-00003-of-00004: record 4 at byte \d+: the ch"
    ):
        tfrecord_to_zarr(glob, out)
    with pytest.raises(ReadError, match="with it more than max_bad_records=1 are bad") as caught:
        tfrecord_to_zarr(glob, out, max_bad_records=1)
    assert caught.value.records in [(2, 3), (4, 5)]
    # The folder is resumed: what is finished of it stays, what moves up is done again.
    manifest = tfrecord_to_zarr(glob, out, max_bad_records=2)
    rows = [row for row in range(ROWS) if row not in (8, 10)]
    check_rows(arrays(out), rows)
    assert [(file.records, file.skipped) for file in manifest.inputs] == [
        (5, 0),
        (0, 0),
        (1, 0),
        (7, 2),
    ]
    assert [(one.file, one.record) for one in manifest.skipped] == [(last.name, 2), (last.name, 4)]
    assert "not a tf.train.Example" in manifest.skipped[0].error
    assert "checksum of its" in manifest.skipped[1].error
    tfrecord_to_zarr(glob, tmp_path / "undisturbed", max_bad_records=2)
    assert tree(out) == tree(tmp_path / "undisturbed")


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("bad", [[0], [3], [8], [0, 1, 2, 3], [2, 3, 8]])
def test_a_bad_record_next_to_a_row_range_is_not_in_it(tmp_path: Path, bad: list[int]) -> None:
    path, records = tmp_path / "x.tfrecord", [record(row) for row in range(9)]
    write_records(path, records)
    for row in bad:
        damage(path, records[row], 20)
    tfrecord_to_zarr(path, tmp_path / "out", chunk_rows=2, shard_rows=0, max_bad_records=4)
    check_rows(arrays(tmp_path / "out"), [row for row in range(9) if row not in bad])


def test_a_feature_that_the_first_records_did_not_have(tmp_path: Path) -> None:
    records = [encode_example({"a": i}) for i in range(300)]
    write_records(tmp_path / "x.tfrecord", [*records, encode_example({"a": 1, "new": 2})])
    with pytest.raises(ReadError, match=r"record 300 at byte \d+: has the feature.*'new'"):
        tfrecord_to_zarr(tmp_path / "x.tfrecord", tmp_path / "out")
    tfrecord_to_zarr(tmp_path / "x.tfrecord", tmp_path / "out", max_bad_records=1)
    assert arrays(tmp_path / "out")["a"].shape == (300,)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"a": np.zeros(3), "b": 1}, "fields ['a', 'b'], and ['a'] were settled"),
        ({"a": np.zeros(2, "f4")}, "field 'a' is float32 (2,), and float64 (2,) was settled"),
        ({"a": np.zeros((2, 1))}, "field 'a' is float64 (2, 1), and float64 (2,) was settled"),
        ({"a": b"text"}, "field 'a' is bytes, and float64 (2,) was settled"),
        ({"b": np.zeros(2)}, "fields ['b'], and ['a'] were settled"),
        ({}, "decode returned dict {}"),
        (None, "decode returned NoneType None"),
        (RuntimeError("no"), "decode raised RuntimeError: no"),
    ],
)
def test_records_that_do_not_agree(tmp_path: Path, second: Any, words: str) -> None:
    write_records(tmp_path / "x.tfrecord", [b"1"] * 256 + [b"22"])

    def decode_one(record: bytes) -> Any:
        if record == b"1":
            return {"a": np.zeros(2)}
        if isinstance(second, Exception):
            raise second
        return second

    with pytest.raises(ConversionError) as caught:
        tfrecord_to_zarr(tmp_path / "x.tfrecord", tmp_path / "out", decode=decode_one)
    assert f"x.tfrecord: record 256 at byte {256 * 17}: " in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("row", "error", "words"),
    [
        ({"a//b": 1}, ArgumentError, "feature 'a//b' cannot name a Zarr array"),
        ({"../a": 1}, ArgumentError, r"feature '\.\./a' cannot name"),
        ({"zarr.json": 1}, ArgumentError, r"feature 'zarr\.json' cannot"),
        ({"a" * 201: 1}, ArgumentError, "has 1 to 200 bytes"),
        ({"a": 1, "a/b": 1}, ArgumentError, "'a' and 'a/b' cannot both be in one Zarr group"),
        ({"a": [b"x", b"y"]}, ConversionError, r"record 0 at byte 0: field 'a' is of dtype .S1"),
        ({"a": [b"x", None]}, ConversionError, "field 'a' is of dtype object"),
    ],
)
def test_what_rows_cannot_hold(tmp_path: Path, row: Any, error: type, words: str) -> None:
    write_records(tmp_path / "x.tfrecord", [b"1"])
    with pytest.raises(error, match=words):
        tfrecord_to_zarr(tmp_path / "x.tfrecord", tmp_path / "out", decode=lambda record: row)


def test_shards_that_do_not_fit_into_memory_are_refused(tmp_path: Path) -> None:
    write_records(tmp_path / "x.tfrecord", [b"1"] * 3)

    def large(record: bytes) -> dict[str, object]:
        return {"x": np.zeros(1 << 20, np.uint8)}

    with pytest.raises(ConversionError, match=r"memory_bytes=200,000,000 are too few.*at least 2"):
        tfrecord_to_zarr(
            tmp_path / "x.tfrecord",
            tmp_path / "out",
            decode=large,
            shard_rows=40,
            memory_bytes=200_000_000,
        )


# Runs that end, and resume.


def test_a_rerun_with_another_result_of_decode_is_refused(tmp_path: Path) -> None:
    glob, out = shards(tmp_path / "in"), tmp_path / "out"
    dtype: list[type] = [np.float32]
    fails = tmp_path / "fails"

    def change(record: bytes) -> dict[str, object]:
        row = decode(record)
        with open(fails, "ab") as file:
            file.write(b".")
        if fails.stat().st_size > ROWS + 3:
            raise ValueError("stop")
        return {"x": np.asarray(row["x"], dtype[0])}

    with pytest.raises(ConversionError, match="decode raised ValueError: stop"):
        tfrecord_to_zarr(glob, out, decode=change)
    fails.unlink()
    dtype[0] = np.float64
    with pytest.raises(ConversionError, match=r"(?s)another\s+result of decode.*float32.*float64"):
        tfrecord_to_zarr(glob, out, decode=change)
