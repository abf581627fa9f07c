"""JSON Lines and Parquet to Zarr: tokens, texts and columns, and what becomes of bad records."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import windrow
from tests.conversion_cases import tree
from tests.texts import (
    END,
    packed,
    rows_of,
    saved,
    texts,
    texts_in,
    tokens_of,
    trained,
    write_lines,
)
from windrow import MapDataset
from windrow.cli.main import main
from windrow.converters import (
    Feature,
    Manifest,
    json_lines_to_zarr,
    parquet_to_zarr,
    zarr_to_array_record,
    zarr_to_zarr,
)
from windrow.converters.job.manifest import MANIFEST_NAME
from windrow.converters.zarr import records_work
from windrow.errors import (
    ArgumentError,
    ConversionError,
    NotFoundError,
    ReadError,
    SourceError,
)
from windrow.sources import RaggedDataSource


def convert(inputs: Any, output: Path, **settings: Any) -> Manifest:
    names = [str(inputs)] if not isinstance(inputs, list) else inputs
    function = parquet_to_zarr if names[0].endswith("parquet") else json_lines_to_zarr
    made: Manifest = function(inputs, output, progress=False, **settings)
    return made


def write_table(path: Path, found: list[str], group: int = 7, **more: Any) -> None:
    table = pa.table({"id": range(len(found)), "text": pa.array(found, pa.string()), **more})
    pq.write_table(table, path, row_group_size=group)


def write(path: Path, found: list[str]) -> None:
    write_table(path, found) if path.suffix == ".parquet" else write_lines(path, found)


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    return saved(tmp_path / "tokenizer.json")


NAMES = ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"]


# None; and one more than the records whose offset is remembered, and than a sample has: in one row
# range and in many.
@pytest.mark.parametrize(("count", "piece"), [(0, 1 << 26), (257, 1 << 26), (257, 1 << 10)])
@pytest.mark.parametrize("name", NAMES)
def test_tokens_of_all_forms(
    name: str,
    count: int,
    piece: int,
    tokenizer: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records_work, "_PIECE_BYTES", piece)
    found = texts(count)
    write(tmp_path / name, found)
    manifest = convert(
        tmp_path / name, tmp_path / "out", field="text", tokenizer=tokenizer, end_token=END
    )
    assert manifest.records == count
    assert rows_of(tmp_path / "out") == tokens_of(found, [trained().token_to_id(END)])
    values = zarr.open_array(str(tmp_path / "out" / "tokens" / "values"), mode="r")
    assert values.dtype == "uint16"
    noted: Any = values.attrs["windrow_tokenizer"]
    assert noted["end_token"] == trained().token_to_id(END)
    assert windrow.inspect(str(tmp_path / "out")).records == count
    assert main(["verify", str(tmp_path / "out")]) == 0


@pytest.fixture
def of_blocks(tmp_path: Path) -> tuple[Path, Any]:
    """A text of three blocks of values, and the ends of its 400 rows."""
    lengths = np.random.default_rng(0).integers(0, 4000, 400)
    write_lines(tmp_path / "a.jsonl", ["x" * int(length) for length in lengths])
    convert(tmp_path / "a.jsonl", tmp_path / "out", field="text")
    return tmp_path / "out", np.cumsum([0, *lengths])


def blocks_of(bounds: Any, size: int = 1 << 18) -> list[int]:
    starts = np.searchsorted(bounds, np.arange(0, bounds[-1], size))
    found: list[int] = np.unique([*starts, len(bounds) - 1]).tolist()
    return found


@pytest.mark.jobs
def test_an_index_has_the_blocks_of_a_text(of_blocks: Any, tmp_path: Path) -> None:
    out, bounds = of_blocks
    source = RaggedDataSource(out)
    stored = zarr.open_array(str(out / "text" / "blocks"), mode="r")
    assert stored[:].tolist() == blocks_of(bounds)[:-1]  # type: ignore[union-attr]
    for at in (out, out / "text"):
        assert RaggedDataSource(at).blocks().tolist() == blocks_of(bounds)
    assert "text/blocks" not in source.fingerprint + repr(source)
    assert windrow.inspect(str(out)).records == 400
    assert main(["verify", str(out)]) == 0
    assert windrow.verify(source).ok
    zarr_to_array_record(out, tmp_path / "records", progress=False)
    assert windrow.inspect(str(tmp_path / "records")).records == 400
    # Of chunks of another size an index does not say where blocks begin.
    chunks = {"text/values": 1 << 11}
    zarr_to_zarr(out, tmp_path / "other", chunks=chunks, shards=0, progress=False)
    other = RaggedDataSource(tmp_path / "other")
    assert other.blocks().tolist() == blocks_of(bounds, 1 << 17)
    # Stores of earlier versions have no index, and the same states and orders.
    with_index = MapDataset.source(RaggedDataSource(out / "text")).block_shuffle(seed=1)
    shutil.rmtree(out / "text" / "blocks")
    without = MapDataset.source(RaggedDataSource(out / "text")).block_shuffle(seed=1)
    assert without._node.label == with_index._node.label
    assert list(without) == list(with_index)


def test_several_files_keep_their_order(tokenizer: str, tmp_path: Path) -> None:
    found = texts(40)
    (tmp_path / "in").mkdir()
    write_lines(tmp_path / "in" / "a.jsonl", found[:10])
    write_lines(tmp_path / "in" / "b.jsonl.gz", found[10:17])
    write_lines(tmp_path / "in" / "c.ndjson", [])
    write_lines(tmp_path / "in" / "d.jsonl.zst", found[17:])
    (tmp_path / "in" / "notes.txt").write_text("not lines")
    manifest = convert(tmp_path / "in", tmp_path / "out", field="text", tokenizer=tokenizer)
    assert [file.records for file in manifest.inputs] == [10, 7, 0, 23]
    assert rows_of(tmp_path / "out") == tokens_of(found)


# Bad records.

BAD = {
    b"{": "is not JSON: ",
    b'"x"': "is a string, not a JSON object",
    b"[1]": "is a list, not a JSON object",
    b"[" * 100_000: "is not JSON: ",
    b'{"text": "\xff"}': "is not UTF-8: ",
    b'{"id": 3}': "has no field 'text'",
    b'{"text": null}': "field 'text' is null, not a string",
    b'{"text": 3}': "field 'text' is a number, not a string",
    b'{"text": ["a"]}': "field 'text' is a list, not a string",
    b'{"text": "\\ud800"}': "field 'text' is not Unicode: ",
}


@pytest.mark.parametrize(
    ("name", "bad"),
    [*(("a.jsonl", bad) for bad in BAD), ("a.jsonl.gz", b"{")],
    ids=lambda text: str(text[:12]),
)
def test_a_bad_line_is_named_or_left_out(
    name: str, bad: bytes, tokenizer: str, tmp_path: Path
) -> None:
    good = b'{"text": "grain"}\n'
    path = tmp_path / name
    path.write_bytes(packed(name, good * 2 + b"\n" + bad + b"\n" + good))
    settings = {"field": "text", "tokenizer": tokenizer}
    at = 2 * len(good) + 1
    message = rf"{re.escape(name)}: record 2 at byte {at}: {re.escape(BAD[bad])}"
    with pytest.raises(ReadError, match=message) as raised:
        convert(path, tmp_path / "out", **settings)
    assert (raised.value.records, raised.value.offset) == ((2, 3), at)
    manifest = convert(path, tmp_path / "out", **settings, max_bad_records=1)
    assert rows_of(tmp_path / "out") == tokens_of(["grain"] * 3)
    (skipped,) = manifest.skipped
    assert (skipped.file, skipped.record) == (name, 2)
    assert skipped.error.startswith(BAD[bad])
    assert (manifest.records, manifest.inputs[0].skipped) == (3, 1)


def test_nulls_and_texts_that_are_not_unicode_in_parquet(tokenizer: str, tmp_path: Path) -> None:
    strange = pa.array([b"a", b"\xff", None, b"c"], pa.binary()).view(pa.string())
    table = pa.table({"text": strange, "more": [[1], [2, None], [3], [4]]})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path)
    with pytest.raises(ReadError, match=r"a\.parquet: record 1: field 'text' is not UTF-8"):
        convert(path, tmp_path / "out", field="text", tokenizer=tokenizer)
    manifest = convert(path, tmp_path / "out", field="text", tokenizer=tokenizer, max_bad_records=2)
    assert [one.record for one in manifest.skipped] == [1, 2]
    assert rows_of(tmp_path / "out") == tokens_of(["a", "c"])
    with pytest.raises(ReadError, match="record 1: field 'more' is null, or has a null in it"):
        convert(path, tmp_path / "more", names=["more"])
    manifest = convert(path, tmp_path / "more", names=["more"], max_bad_records=1)
    assert rows_of(tmp_path / "more", "more") == [[1], [3], [4]]


# Columns.


def test_fields_of_json_become_arrays(tmp_path: Path) -> None:
    rows = [
        {"n": 1, "x": 1.5, "ok": True, "s": "a", "v": [1, 2], "r": [], "m": [[1, 2], [3, 4]]},
        {"n": -2, "x": 2, "ok": False, "s": "", "v": [3, 4], "r": [0.5], "m": [[5, 6], [7, 8]]},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    manifest = convert(path, tmp_path / "out")
    group: Any = zarr.open_group(str(tmp_path / "out"), mode="r")
    for name, dtype in (("n", "int64"), ("x", "float64"), ("ok", "bool"), ("v", "int64")):
        assert group[name].dtype == dtype
        assert group[name][:].tolist() == [row[name] for row in rows]
    assert group["m"][:].tolist() == [row["m"] for row in rows]
    assert rows_of(tmp_path / "out", "r") == [[], [0.5]]
    assert texts_in(tmp_path / "out", "s") == ["a", ""]
    assert manifest.settings["features"]["r"]["shape"] == [None]


def test_tokens_beside_other_fields(tokenizer: str, tmp_path: Path) -> None:
    found = texts(20)
    for name in ("a.jsonl", "a.parquet"):
        write(tmp_path / name, found)
        out = tmp_path / f"{name}.out"
        convert(tmp_path / name, out, field="text", tokenizer=tokenizer, names=["id", "text"])
        assert rows_of(out) == tokens_of(found)
        assert texts_in(out) == found
        group: Any = zarr.open_group(str(out), mode="r")
        assert group["id"][:].tolist() == list(range(20))


def test_features_say_what_fields_are(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": 0.1, "n": 3, "more": null}\n{"x": 2, "n": 255, "more": {}}\n')
    features = {"x": Feature("float32"), "n": Feature("uint8")}
    convert(path, tmp_path / "out", features=features)
    group: Any = zarr.open_group(str(tmp_path / "out"), mode="r")
    assert group["x"][:].tolist() == [np.float32(0.1), 2.0]
    assert group["n"][:].tolist() == [3, 255]
    path.write_text('{"x": 0.1, "n": 256}\n')
    with pytest.raises(
        ReadError, match=r"record 0 at byte 0: field 'n' is 256, which does not fit"
    ):
        convert(path, tmp_path / "other", features=features)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ('{"a": 1.5}', "field 'a' is 1.5, which does not fit int64 .* features= says"),
        ('{"a": true}', "field 'a' is true, which does not fit int64"),
        ('{"a": "x"}', "field 'a' is a string, not int64"),
        ('{"a": [1]}', r"field 'a' is \[1\], which does not fit int64"),
        ('{"a": 1, "b": 2}', "field 'b' is not in the first records; name the fields"),
        ("{}", "has no field 'a'"),
    ],
)
def test_later_records_have_to_agree(second: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n' * 256 + second)
    with pytest.raises(ReadError, match=rf"record 256 at byte 2304: {message}"):
        convert(path, tmp_path / "out")
    assert convert(path, tmp_path / "out", max_bad_records=1).records == 256


@pytest.mark.parametrize("value", ["null", "{}", '["a"]', "[[1], [2, 3]]", "[true, 1]", "[]"])
def test_fields_that_become_no_array(value: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"a": 1, "b": {value}}}\n')
    with pytest.raises(
        ConversionError, match=r"record 0 at byte 0: field 'b' is .*names= \(--name\), or desc"
    ):
        convert(path, tmp_path / "out")
    assert convert(path, tmp_path / "out", names=["a"]).records == 1


def test_fields_of_parquet_become_arrays(tmp_path: Path) -> None:
    columns = {
        "i": pa.array([1, 2, 3], pa.int16()),
        "f": pa.array([0.5, 1, 2], pa.float32()),
        "b": pa.array([True, False, True]),
        "r": pa.array([[1], [], [2, 3]], pa.list_(pa.uint8())),
        "p": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
        "s": pa.array(["x", "", "ä"]).dictionary_encode(),
        "raw": pa.array([b"\xff", b"", b"ab"], pa.large_binary()),
    }
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=2)
    convert(path, tmp_path / "out")
    group: Any = zarr.open_group(str(tmp_path / "out"), mode="r")
    for name, dtype in (("i", "int16"), ("f", "float32"), ("b", "bool"), ("p", "int32")):
        assert group[name].dtype == dtype
        assert group[name][:].tolist() == columns[name].to_pylist()
    assert rows_of(tmp_path / "out", "r") == [[1], [], [2, 3]]
    assert texts_in(tmp_path / "out", "s") == ["x", "", "ä"]
    assert rows_of(tmp_path / "out", "raw") == [[255], [], [97, 98]]


def test_fields_of_parquet_that_are_not_taken(tmp_path: Path) -> None:
    when = pa.array([1], pa.timestamp("s"))
    pq.write_table(pa.table({"when": when, "n": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"when": when, "n": [0.5]}), tmp_path / "b.parquet")
    with pytest.raises(SourceError, match=r"field 'when' is of type timestamp\[ms\]; .* by names="):
        convert(tmp_path / "a.parquet", tmp_path / "out")
    with pytest.raises(NotFoundError, match="has no field 'text'; it has 'when', 'n'"):
        convert(tmp_path / "a.parquet", tmp_path / "out", field="text")
    with pytest.raises(SourceError, match="field 'n' is of type int64, and strings are wanted"):
        convert(tmp_path / "a.parquet", tmp_path / "out", field="n")
    both = [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")]
    with pytest.raises(SourceError, match=r"b\.parquet: field 'n' is of type double, and int64 in"):
        convert(both, tmp_path / "out", names=["n"])


# Arguments, and tokenizers that are of no use.


def test_end_tokens(tokenizer: str, tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["a"])
    settings = {"field": "text", "tokenizer": tokenizer}
    near = r"end_token='<\|endoftex\|>': tokenizer .*tokenizer\.json has no such token; near it are"
    with pytest.raises(ArgumentError, match=rf"{near} '<\|endoftext\|>'"):
        convert(tmp_path / "a.jsonl", tmp_path / "out", **settings, end_token="<|endoftex|>")
    with pytest.raises(
        ArgumentError, match=r"end_token=9999: .*no token of this id; its ids lie in"
    ):
        convert(tmp_path / "a.jsonl", tmp_path / "out", **settings, end_token=9999)
    with pytest.raises(ArgumentError, match="end_token is the name or the id of a token, got True"):
        convert(tmp_path / "a.jsonl", tmp_path / "out", **settings, end_token=True)
    by_id = trained().token_to_id(END)
    convert(tmp_path / "a.jsonl", tmp_path / "id", **settings, end_token=by_id)
    convert(tmp_path / "a.jsonl", tmp_path / "name", **settings, end_token=END)
    assert tree(tmp_path / "id") == tree(tmp_path / "name")


def test_files_that_are_no_tokenizers(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["a"])
    path = tmp_path / "t.json"

    def run(tokenizer: object) -> None:
        convert(tmp_path / "a.jsonl", tmp_path / "out", field="text", tokenizer=tokenizer)

    for data in (b"", b"{}", b"\xff", b'{"model": {"type": "BPE"}}'):
        path.write_bytes(data)
        with pytest.raises(
            ReadError, match=r"t\.json: cannot be read as a tokenizer\.json: .*save"
        ):
            run(path)
    with pytest.raises(NotFoundError, match=r"none\.json: no such file"):
        run(tmp_path / "none.json")
    with pytest.raises(ArgumentError, match=r"is a folder; name the file .*/tokenizer\.json"):
        run(tmp_path)
    assert not (tmp_path / "out").exists()


def made(path: Path, model: dict[str, Any]) -> Path:
    """A tokenizer of a model that is written by hand."""
    none = dict.fromkeys(
        ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    )
    path.write_text(json.dumps({"version": "1.0", **none, "added_tokens": [], "model": model}))
    return path


def test_tokenizers_that_give_nothing(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", ["a", "b"])
    path = tmp_path / "a.jsonl"
    bpe = {"type": "BPE", "vocab": {"z": 0}, "merges": []}
    silent = made(tmp_path / "silent.json", bpe)
    for end in (None, 0):
        out = tmp_path / f"out-{end}"
        with pytest.raises(
            ConversionError, match=r"silent\.json: gave no token for any of 2 documents"
        ):
            convert(path, out, field="text", tokenizer=silent, end_token=end)
        assert not (out / MANIFEST_NAME).exists()
    empty = made(tmp_path / "empty.json", {**bpe, "vocab": {}})
    with pytest.raises(ReadError, match=r"empty\.json: has no tokens; train it"):
        convert(path, tmp_path / "other", field="text", tokenizer=empty)
    # And one that fails at a word that it does not know.
    words = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}
    failing = made(tmp_path / "failing.json", words)
    message = r"record 1 at byte 23: field 'text': the tokenizer fails at it: .*UNK"
    with pytest.raises(ConversionError, match=message):
        convert(path, tmp_path / "other", field="text", tokenizer=failing)


def test_the_smallest_dtype_that_holds_all_ids(tmp_path: Path) -> None:
    for most, dtype in ((255, "uint8"), (256, "uint16"), (65_536, "uint32")):
        vocabulary = {"a": 0, "b": most}  # ids have holes
        model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "a"}
        path = made(tmp_path / "t.json", model)
        write_lines(tmp_path / "a.jsonl", ["b", "a"])
        out = tmp_path / dtype
        convert(tmp_path / "a.jsonl", out, field="text", tokenizer=path)
        assert rows_of(out) == [[most], [0]]
        assert zarr.open_array(str(out / "tokens" / "values"), mode="r").dtype == dtype
