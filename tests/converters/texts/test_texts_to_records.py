"""JSON Lines and Parquet to ArrayRecord: lines, texts, tokens and Examples, in files of any number."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

import windrow
from tests.texts import END, lines_of, saved, texts, tokens_of, trained, write_lines
from windrow import converters
from windrow.cli.main import main
from windrow.converters import (
    Manifest,
    json_lines_to_array_record,
    json_lines_to_zarr,
    parquet_to_array_record,
)
from windrow.converters.texts import conversions
from windrow.errors import ConversionError, ReadError
from windrow.sources import ArrayRecordDataSource

COUNTS = [0, 257]


def convert(inputs: Path, output: Path, **settings: Any) -> Manifest:
    function = (
        parquet_to_array_record if inputs.suffix == ".parquet" else json_lines_to_array_record
    )
    manifest: Manifest = function(inputs, output, progress=False, **settings)
    return manifest


def records_in(output: Path) -> list[bytes]:
    source = ArrayRecordDataSource(str(output))
    return [source[at] for at in range(len(source))]


def write(path: Path, found: list[str]) -> None:
    if path.suffix == ".parquet":
        table = pa.table({"id": range(len(found)), "text": pa.array(found, pa.string())})
        pq.write_table(table, path, row_group_size=7)
    else:
        write_lines(path, found)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_texts_and_tokens(name: str, count: int, tmp_path: Path) -> None:
    found = texts(count)
    write(tmp_path / name, found)
    manifest = convert(tmp_path / name, tmp_path / "text", field="text")
    assert records_in(tmp_path / "text") == [text.encode() for text in found]
    assert [file.name for file in manifest.files] == ["a.array_record"]
    tokenizer = saved(tmp_path / "tokenizer.json")
    settings = {"field": "text", "tokenizer": tokenizer, "end_token": END}
    manifest = convert(tmp_path / name, tmp_path / "tokens", **settings, files=3)
    dtype = manifest.settings["dtype"]
    assert dtype == "uint16"
    rows = [np.frombuffer(record, dtype).tolist() for record in records_in(tmp_path / "tokens")]
    assert rows == tokens_of(found, [trained().token_to_id(END)])
    assert [file.name for file in manifest.files] == [
        f"a.array_record-0000{at}-of-00003" for at in range(3)
    ]
    assert main(["verify", str(tmp_path / "tokens")]) == 0
    assert windrow.inspect(str(tmp_path / "tokens")).records == count


def test_rows_of_parquet_become_examples_and_arrays_again(tmp_path: Path) -> None:
    columns = {
        "i": pa.array([1, 2, 3], pa.int16()),
        "u": pa.array([2**64 - 1, 0, 1], pa.uint64()),
        "f": pa.array([0.1, 1, 2], pa.float64()),
        "r": pa.array([[0.1], [], [2, 3]], pa.list_(pa.float64())),
        "s": pa.array(["x", "", "\u00e4"]),
    }
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=2)
    convert(path, tmp_path / "records")
    assert converters.decode_example(records_in(tmp_path / "records")[0])["i"] == [1]
    converters.array_record_to_zarr(tmp_path / "records", tmp_path / "out", progress=False)
    group: Any = zarr.open_group(str(tmp_path / "out"), mode="r")
    for name, dtype in (("i", "int16"), ("u", "uint64"), ("f", "float64")):
        assert group[name].dtype == dtype
        assert group[name][:].tolist() == columns[name].to_pylist()
    assert group["r/values"][:].tolist() == [0.1, 2, 3]
    assert group["s/values"][:].tobytes().decode() == "x\u00e4"
    convert(path, tmp_path / "some", names=["s"])
    assert list(converters.decode_example(records_in(tmp_path / "some")[0])) == ["s"]


def test_a_large_plain_file_becomes_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = texts(257)
    size = len(lines_of(found))
    monkeypatch.setattr(conversions, "FILE_BYTES", size // 4 + 1)
    (tmp_path / "in").mkdir()
    write_lines(tmp_path / "in" / "a.jsonl", found)
    write_lines(tmp_path / "in" / "b.jsonl.gz", found * 9)
    write_lines(tmp_path / "in" / "c.jsonl", found[:9])
    manifest = convert(tmp_path / "in", tmp_path / "out", field="text")
    assert [(file.name, file.records) for file in manifest.files] == [
        *((f"a.array_record-0000{at}-of-00004", 64 + (at == 3)) for at in range(4)),
        ("b.array_record", 9 * 257),
        ("c.array_record", 9),
    ]
    paths = [str(tmp_path / "out" / file.name) for file in manifest.files]
    everything = ArrayRecordDataSource(paths)
    assert [everything[at] for at in range(len(everything))] == [
        text.encode() for text in [*found, *found * 9, *found[:9]]
    ]


@pytest.mark.parametrize("function", [json_lines_to_zarr, json_lines_to_array_record])
def test_another_tokenizer_of_the_same_path_is_refused(function: Any, tmp_path: Path) -> None:
    there, out = tmp_path / "in", tmp_path / "out"
    there.mkdir()
    write_lines(there / "a.jsonl", texts(100))
    write_lines(there / "b.jsonl.gz", texts(40))
    (there / "c.jsonl").write_text('{"text": 3}\n')
    tokenizer = saved(tmp_path / "tokenizer.json")
    convert = functools.partial(
        function, there, out, field="text", progress=False, tokenizer=tokenizer
    )
    with pytest.raises(ReadError, match=r"c\.jsonl: record 0 at byte 0"):
        convert()
    saved(tmp_path / "tokenizer.json", 270)
    message = (
        r"(?s)was begun with other.*tokenizer: .*'sha256': '\w+'} there, .* asked for.*overwrite"
    )
    with pytest.raises(ConversionError, match=message):
        convert()
    # The same content at another place is the same tokenizer.
    (tmp_path / "elsewhere").mkdir()
    again = saved(tmp_path / "elsewhere" / "tokenizer.json")
    assert convert(max_bad_records=1, tokenizer=again).records == 140
    with pytest.raises(ConversionError, match=r"(?s)was written with other.*tokenizer: "):
        convert()
