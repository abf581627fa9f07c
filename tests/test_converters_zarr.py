"""TFRecord to Zarr: each row is its record, whatever the chunks, the files and the interruptions."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from windrow.converters import (
    Manifest,
    decode_example,
    encode_example,
    tfrecord_to_zarr,
    write_records,
)
from windrow.converters.inputs import Input
from windrow.converters.manifest import MANIFEST_NAME, UNFINISHED
from windrow.converters.rows import (
    STRIDE_RECORDS,
    Counted,
    columns,
    count,
    cut,
    fields_of_first,
)
from windrow.errors import ConversionError, ReadError

COUNTS = (5, 0, 1, 9)
ROWS = sum(COUNTS)
DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64"]


def decode(record: bytes) -> dict[str, object]:
    features = decode_example(record)
    return {"x": np.asarray(features["x"]).reshape(2, 3), "label": features["label"][0]}


def expected() -> dict[str, npt.NDArray[Any]]:
    x = np.arange(ROWS * 6, dtype=np.float32).reshape(ROWS, 2, 3)
    return {"x": x, "label": np.arange(ROWS, dtype=np.int64) % 4}


def shards(folder: Path, suffix: str = "") -> str:
    folder.mkdir()
    rows = expected()
    records = [encode_example({name: rows[name][i] for name in rows}) for i in range(ROWS)]
    start = 0
    for k, size in enumerate(COUNTS):
        path = folder / f"x.tfrecord-{k:05}-of-00004{suffix}"
        write_records(path, records[start : start + size])
        start += size
    return str(folder / "x.tfrecord-*")


def arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """What zarr-python reads, which warns of files that it does not know."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = zarr.open_group(str(path), mode="r")
        return {name: np.asarray(array[...]) for name, array in group.arrays()}


def assert_equal(found: dict[str, npt.NDArray[Any]], wanted: dict[str, npt.NDArray[Any]]) -> None:
    assert sorted(found) == sorted(wanted)
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype
        assert np.array_equal(found[name], value)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of one stored file each, so that little data makes many."""
    monkeypatch.setattr("windrow.converters.zarr._PIECE_BYTES", 1)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    ("suffix", "chunk_rows", "shard_rows", "files"),
    [("", 4, None, 4), (".gz", 1, None, 15), ("", 2, 6, 3), ("", 256, None, 1)],
)
def test_rows_are_the_records_in_order(
    tmp_path: Path, suffix: str, chunk_rows: int, shard_rows: int | None, files: int
) -> None:
    steps: list[tuple[int, int]] = []
    manifest = tfrecord_to_zarr(
        shards(tmp_path / "in", suffix),
        tmp_path / "out",
        decode=decode,
        chunk_rows=chunk_rows,
        shard_rows=shard_rows,
        progress=lambda *step: steps.append(step),
    )
    assert_equal(arrays(tmp_path / "out"), expected())
    array = zarr.open_array(str(tmp_path / "out" / "x"), mode="r")
    assert (array.chunks, array.shards) == (
        (chunk_rows, 2, 3),
        None if shard_rows is None else (shard_rows, 2, 3),
    )
    assert [file.records for file in manifest.inputs] == list(COUNTS)
    assert sum(file.records for file in manifest.files if file.name.startswith("x/c/")) == ROWS
    assert steps == [(k + 1, files) for k in range(files)]
    # The manifest lists all that is there, and nothing else is.
    there = {
        path.relative_to(tmp_path / "out").as_posix(): path.stat().st_size
        for path in (tmp_path / "out").rglob("*")
        if path.is_file() and path.name != MANIFEST_NAME
    }
    assert there == {file.name: file.size_bytes for file in manifest.files}
    assert Manifest.read(tmp_path / "out") == manifest


def test_every_dtype_and_rows_of_zeros(tmp_path: Path) -> None:
    write_records(tmp_path / "x.tfrecord", [b"\x00", b"\x00", b"\x01"])

    def decode_all(record: bytes) -> dict[str, object]:
        values = {dtype: np.full((2,), record[0], dtype=dtype) for dtype in DTYPES}
        return {**values, "big_endian": np.array(record[0], dtype=">i4"), "python": record[0]}

    tfrecord_to_zarr(tmp_path / "x.tfrecord", tmp_path / "out", decode=decode_all, chunk_rows=2)
    wanted = {dtype: np.array([[0, 0], [0, 0], [1, 1]], dtype=dtype) for dtype in DTYPES}
    wanted["big_endian"] = np.array([0, 0, 1], dtype=np.int32)
    wanted["python"] = np.array([0, 0, 1], dtype=np.int64)
    assert_equal(arrays(tmp_path / "out"), wanted)
    assert (tmp_path / "out" / "int8" / "c" / "0" / "0").is_file()  # zeros are stored too


def counted(path: Path) -> Counted:
    return count(Input(str(path), path.name, path.stat().st_size))


def to_size(record: bytes) -> dict[str, object]:
    return {"size": len(record)}


def calls(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def counting(path: Path) -> Callable[[bytes], dict[str, object]]:
    """A decode that counts its calls in a file: it is pickled, and a copy counts."""

    def decode_and_count(record: bytes) -> dict[str, object]:
        with open(path, "ab") as file:
            file.write(b".")
        return decode(record)

    return decode_and_count


@pytest.mark.usefixtures("small_pieces")
def test_a_record_that_does_not_decode_stops_it_and_a_rerun_goes_on(tmp_path: Path) -> None:
    glob, out = shards(tmp_path / "in"), tmp_path / "out"
    words = r"00003-of-00004: record 8: decode raised RuntimeError: only once"

    def once(record: bytes) -> dict[str, object]:
        row = counting(tmp_path / "calls")(record)
        if np.asarray(row["x"]).flat[0] == 84 and not (tmp_path / "fixed").exists():
            raise RuntimeError("only once")
        return row

    with pytest.raises(ConversionError, match=words):
        tfrecord_to_zarr(glob, out, decode=once, chunk_rows=1)
    assert sorted(os.listdir(out)) == [UNFINISHED, "_windrow_work"]
    first = calls(tmp_path / "calls")
    (tmp_path / "fixed").touch()
    manifest = tfrecord_to_zarr(glob, out, decode=once, chunk_rows=1)
    assert_equal(arrays(out), expected())
    # One look at the first record in each run, and of the failed run one record again.
    assert calls(tmp_path / "calls") == 2 + ROWS + 1
    assert first > 2
    undisturbed = tfrecord_to_zarr(glob, tmp_path / "undisturbed", decode=once, chunk_rows=1)
    assert manifest == undisturbed


KILLED = """
import os, signal, sys
import windrow.converters.{module} as module
from tests.test_converters_zarr import decode
real, left = module.{function}, [int(sys.argv[3])]
def kill(*arguments, **settings):
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments, **settings)
module.{function} = kill
import windrow.converters.zarr as converter
converter._PIECE_BYTES = 1
converter.tfrecord_to_zarr(sys.argv[1], sys.argv[2], decode=decode, chunk_rows=4)
"""


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    ("module", "function", "after"),
    [("zarr", "columns", 2), ("zarr", "publish", 1), ("folder", "shutil.rmtree", 1)],
)
def test_killed_anywhere(tmp_path: Path, module: str, function: str, after: int) -> None:
    glob, out = shards(tmp_path / "in"), tmp_path / "out"
    program = KILLED.format(module=module, function=function)
    root = Path(__file__).resolve().parent.parent
    arguments = [sys.executable, "-c", program, glob, str(out), str(after)]
    done = subprocess.run(arguments, check=False, timeout=60, capture_output=True, cwd=root)
    assert done.returncode == -9, done.stderr.decode()
    assert (out / UNFINISHED).exists()
    manifest = tfrecord_to_zarr(glob, out, decode=decode, chunk_rows=4)
    assert_equal(arrays(out), expected())
    assert sorted(os.listdir(out)) == ["label", MANIFEST_NAME, "x", "zarr.json"]
    undisturbed = tfrecord_to_zarr(glob, tmp_path / "undisturbed", decode=decode, chunk_rows=4)
    assert manifest == undisturbed


def test_a_full_disk_is_an_error_and_leaves_no_group(tmp_path: Path) -> None:
    write_records(tmp_path / "x.tfrecord", [os.urandom(1 << 20) for _ in range(3)])
    program = """
import resource, sys
import numpy as np
from windrow.converters import tfrecord_to_zarr
from windrow.errors import ConversionError
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
def decode(record):
    return {"x": np.frombuffer(record, np.uint8)}
try:
    tfrecord_to_zarr(sys.argv[1], sys.argv[2], decode=decode)
except ConversionError as error:
    raise SystemExit(f"refused: {error}")
"""
    arguments = [sys.executable, "-c", program, str(tmp_path / "x.tfrecord"), str(tmp_path / "out")]
    done = subprocess.run(arguments, check=False, timeout=60, capture_output=True, text=True)
    assert "refused: " in done.stderr
    assert "File too large" in done.stderr
    assert sorted(os.listdir(tmp_path / "out")) == [UNFINISHED, "_windrow_work"]


def test_a_finished_group_is_not_done_again_and_overwrite_leaves_nothing(tmp_path: Path) -> None:
    glob, out = shards(tmp_path / "in"), tmp_path / "out"
    decode_and_count = counting(tmp_path / "calls")
    first = tfrecord_to_zarr(glob, out, decode=decode_and_count, chunk_rows=2)
    before = calls(tmp_path / "calls")
    assert tfrecord_to_zarr(glob, out, decode=decode_and_count, chunk_rows=2) == first
    assert calls(tmp_path / "calls") == before
    with pytest.raises(ConversionError, match=r"(?s)chunk_rows: 2 there, 4 asked for.*decode: .*"):
        tfrecord_to_zarr(glob, out, decode=decode, chunk_rows=4)

    def label_only(record: bytes) -> dict[str, object]:
        return {"label": decode(record)["label"]}

    tfrecord_to_zarr(glob, out, decode=label_only, overwrite=True)
    assert sorted(os.listdir(out)) == ["label", MANIFEST_NAME, "zarr.json"]
    assert_equal(arrays(out), {"label": expected()["label"]})


def test_a_rerun_with_another_result_of_decode_is_refused(tmp_path: Path) -> None:
    glob, out = shards(tmp_path / "in"), tmp_path / "out"
    dtype: list[type] = [np.float32]

    def change(record: bytes) -> dict[str, object]:
        row = decode(record)
        if row["label"] == 3:
            raise ValueError("stop")
        return {"x": np.asarray(row["x"], dtype[0])}

    with pytest.raises(ConversionError, match="decode raised ValueError: stop"):
        tfrecord_to_zarr(glob, out, decode=change)
    dtype[0] = np.float64
    with pytest.raises(ConversionError, match=r"(?s)another result of decode.*float32.*float64"):
        tfrecord_to_zarr(glob, out, decode=change)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"a": np.zeros(3)}, r"record 1: field 'a' is float64 \(3,\), and float64 \(2,\) in the"),
        ({"a": np.zeros(2, "f4")}, r"record 1: field 'a' is float32 \(2,\), and float64 \(2,\)"),
        ({"b": np.zeros(2)}, r"record 1: has the fields \['b'\], and the first .* has \['a'\]"),
        ({"a": np.zeros(2), "b": 1}, r"record 1: has the fields \['a', 'b'\]"),
        ({}, "record 1: decode returned dict {}"),
        (None, "record 1: decode returned NoneType None"),
    ],
)
def test_records_that_do_not_agree(tmp_path: Path, second: object, words: str) -> None:
    write_records(tmp_path / "x.tfrecord", [b"1", b"2"])
    rows: dict[bytes, Any] = {b"1": {"a": np.zeros(2)}, b"2": second}
    files = [counted(tmp_path / "x.tfrecord")]
    fields = fields_of_first(files, rows.__getitem__)
    (piece,) = cut(files, rows_per_piece=10)
    with pytest.raises(ConversionError, match=r"x\.tfrecord: " + words):
        columns(piece, fields, rows.__getitem__)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"a/b": 1}, "the field 'a/b' cannot name a Zarr array"),
        ({"_a": 1}, "the field '_a' cannot"),
        ({"zarr.json": 1}, r"the field 'zarr\.json' cannot"),
        ({1: 1}, "the field 1 cannot"),
        ({"a": b"text"}, "field 'a' is of dtype .S4; Zarr rows hold numbers and booleans"),
        ({"a": [b"x", None]}, "field 'a' is of dtype object"),
        ({"a": np.zeros((2, 0))}, r"field 'a' has shape \(2, 0\), without a value"),
    ],
)
def test_what_rows_cannot_hold(tmp_path: Path, row: Any, words: str) -> None:
    write_records(tmp_path / "x.tfrecord", [b"1"])
    with pytest.raises(ConversionError, match=r"x\.tfrecord: record 0: " + words):
        fields_of_first([counted(tmp_path / "x.tfrecord")], lambda record: row)


def test_a_file_that_changes_while_it_is_converted(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    write_records(path, [b"1", b"2"])
    files = [counted(path)]
    (piece,) = cut(files, rows_per_piece=10)
    write_records(path, [b"1"])
    with pytest.raises(ConversionError, match="has 1 records now, and had 2 or more when they"):
        columns(piece, fields_of_first(files, to_size), to_size)


def test_no_records_wrong_rows_and_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    write_records(path, [])
    with pytest.raises(ConversionError, match="no file has a record"):
        tfrecord_to_zarr(path, tmp_path / "none", decode=decode)
    with pytest.raises(ConversionError, match="chunk_rows=0: must be at least 1"):
        tfrecord_to_zarr(path, tmp_path / "rows", decode=decode, chunk_rows=0)
    with pytest.raises(ConversionError, match="multiple of chunk_rows=4, such as 12"):
        tfrecord_to_zarr(path, tmp_path / "rows", decode=decode, chunk_rows=4, shard_rows=10)
    assert not (tmp_path / "rows").exists()
    write_records(path, [b"1" * 50] * 3)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    with pytest.raises(ReadError, match=r"x\.tfrecord: record 2 at byte 132: the file is cut off"):
        tfrecord_to_zarr(path, tmp_path / "cut", decode=to_size)


@given(
    sizes=st.lists(st.integers(0, 3 * STRIDE_RECORDS), min_size=1, max_size=5),
    rows_per_piece=st.integers(1, 1000),
)
def test_pieces_hold_every_record_once_and_in_order(sizes: list[int], rows_per_piece: int) -> None:
    files = [
        # Records of one byte: the offset of a record says its number.
        Counted(Input(str(k), str(k), size), size, tuple(range(0, size, STRIDE_RECORDS)))
        for k, size in enumerate(sizes)
    ]
    pieces = cut(files, rows_per_piece=rows_per_piece)
    spans = [span for piece in pieces for span in piece.spans]
    found = [(span.url, i) for span in spans for i in range(span.start, span.stop)]
    assert found == [(str(k), i) for k, size in enumerate(sizes) for i in range(size)]
    assert [piece.start for piece in pieces] == list(range(0, sum(sizes), rows_per_piece))
    for piece in pieces:
        assert sum(s.stop - s.start for s in piece.spans) == piece.stop - piece.start
    for span in spans:
        assert span.start_byte == span.start_record <= span.start
        assert span.start - span.start_record < STRIDE_RECORDS


def test_counting_remembers_offsets(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    write_records(path, [b"x" * 4] * (2 * STRIDE_RECORDS + 1))
    found = counted(path)
    assert found.records == 2 * STRIDE_RECORDS + 1
    assert found.offsets == (0, 20 * STRIDE_RECORDS, 40 * STRIDE_RECORDS)
