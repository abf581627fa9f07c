"""`windrow inspect` of JSON Lines and Parquet; and folders of them as inputs of `windrow convert`."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

import windrow
from tests.texts import lines_of, texts, write_lines
from windrow.cli.main import main
from windrow.errors import ReadError
from windrow.inspection import records as inspection


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    write_lines(tmp_path / "a.jsonl", texts(10))
    write_lines(tmp_path / "b.jsonl.zst", texts(5))
    return tmp_path


def test_json_lines(lines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = windrow.inspect(lines / "a.jsonl")
    assert (found.format, found.records) == ("json_lines", None)
    (files,) = found.files
    assert files.first is not None
    assert files.sample is not None
    assert files.first.looks_like.startswith('text: {"id": 0, "text": "a row of cut')
    sizes = [len(line) for line in lines_of(texts(10)).splitlines()]
    assert (files.sample.records, files.sample.most_bytes) == (10, max(sizes))
    both = windrow.inspect(lines)
    assert both.files[0].options == ("compressed",)
    assert both.files[0].files == 2
    assert main(["inspect", str(lines)]) == 0
    said = capsys.readouterr().out
    assert "JSON Lines folder, 2 files" in said
    assert "not counted" in said
    assert main(["verify", str(lines / "a.jsonl")]) == 2
    assert "convert it first: windrow convert SRC DST" in capsys.readouterr().err


def test_empty_and_broken_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    assert windrow.inspect(tmp_path / "a.jsonl").records == 0
    (tmp_path / "b.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(ReadError, match=r"b\.jsonl\.gz: cannot be read after byte 0"):
        windrow.inspect(tmp_path / "b.jsonl.gz")
    (tmp_path / "c.parquet").write_bytes(b"PAR1")
    with pytest.raises(ReadError, match=r"c\.parquet: cannot be read as Parquet"):
        windrow.inspect(tmp_path / "c.parquet")


def test_parquet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pyarrow.table({"id": range(10), "text": texts(10)})
    for name in ("a.parquet", "b.parquet"):
        pyarrow.parquet.write_table(table, tmp_path / name, row_group_size=4)
    found = windrow.inspect(tmp_path)
    assert (found.format, found.records) == ("parquet", 20)
    assert found.files[0].group_records == (2, 4)
    assert found.attributes["features"] == {"id": "int64", "text": "string"}
    assert main(["inspect", str(tmp_path)]) == 0
    assert "feature text  string" in capsys.readouterr().out
    monkeypatch.setattr(inspection, "_MOST_FOOTERS", 1)
    assert windrow.inspect(tmp_path).records is None


def test_a_folder_is_an_input(lines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["convert", str(lines), str(lines / "out"), "--to", "array_record", "--field", "text"]
    assert main(argv) == 0
    assert "15 records in 2 files" in capsys.readouterr().err
