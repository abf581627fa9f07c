"""The table of formats: one row is enough for every command, and names and bytes mean one thing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore

from windrow.cli.main import main
from windrow.formats import table as formats
from windrow.inspection.facts import Inspection
from windrow.sources import LaidOutSource, ZarrDataSource, signatures
from windrow.sources.detection import Contents, detect
from windrow.sources.location import location_of
from windrow.verification.targets import ScanTargets

ROWS = 6


def open_toy(path: str, *, storage_options: Mapping[str, Any] | None) -> LaidOutSource:
    (file,) = detect(location_of(path, storage_options, caller="toy")).files
    values = np.frombuffer(file.head(1 << 20)[4:], np.uint8)
    return ZarrDataSource(tensorstore.array(values.copy()))


def inspect_toy(contents: Contents, sizes: bool | None) -> Inspection:
    size = contents.files[0].size_bytes()
    return Inspection(contents.location.shown, "toy", "file", size - 4, size, size - 4)


def scan_toy(contents: Contents) -> ScanTargets:
    return ScanTargets("toy", [open_toy(contents.location.path, storage_options=None)])


TOY = formats.Format(
    "toy",
    signatures.Signature(
        "toy",
        "Toy",
        file_names=r".*\.toy",
        begins=lambda head: head.startswith(b"TOY!"),
        folder_files=frozenset({"toy.index"}),
    ),
    inspect=inspect_toy,
    open=open_toy,
    scan=scan_toy,
)


@pytest.fixture
def toy() -> Iterator[None]:
    formats.register(TOY)
    yield
    formats.unregister("toy")


def write_toy(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"TOY!" + bytes(range(ROWS)))
    return path


def run_json(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, object]:
    code = main([*map(str, argv), "--json"])
    shown = capsys.readouterr()
    assert (code, shown.err) == (0, "")
    found: dict[str, object] = json.loads(shown.out)
    return found


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("place", ["a.toy", "without a suffix", "*.toy", "."])
def test_a_format_is_one_row(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_toy(tmp_path / ("without a suffix" if place == "without a suffix" else "a.toy"))
    url = tmp_path / place
    found = run_json(capsys, "inspect", url)
    assert (found["format"], found["records"]) == ("toy", ROWS)
    found = run_json(capsys, "verify", url, "--quiet")
    assert (found["ok"], found["format"], found["records"]) == (True, "toy", ROWS)
    found = run_json(capsys, "bench", url, "--quiet", "--batches", "1")
    assert found["records"] == ROWS


@pytest.mark.usefixtures("toy")
def test_a_folder_is_known_by_a_file_in_it(tmp_path: Path) -> None:
    (tmp_path / "toy.index").touch()
    contents = detect(location_of(tmp_path, None, caller="test"))
    assert (contents.format, contents.files) == ("toy", ())


@pytest.mark.usefixtures("toy")
def test_what_the_row_lacks_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    formats.register(
        formats.Format("toy", TOY.signature, inspect=inspect_toy, instead="can only be inspected")
    )
    path = write_toy(tmp_path / "a.toy")
    for command in ("verify", "bench"):
        assert main([command, str(path)]) == 2
        assert capsys.readouterr().err == f"windrow {command}: {path} can only be inspected\n"


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.array_record", "array_record"),
        ("a.arrayrecords", "array_record"),
        ("a.ARRAY_RECORD-00000-of-00002", "array_record"),
        ("a.array_record[0:5]", "array_record"),
        ("a.tfrecord", "tfrecord"),
        ("a.tfrec.gz", "tfrecord"),
        ("a.tfrecords-00001-of-00002", "tfrecord"),
        ("a.nc", "netcdf"),
        ("a.jsonl", "json_lines"),
        ("a.ndjson.zst", "json_lines"),
        ("a.jsonl-00000-of-00002.gz", "json_lines"),
        ("a.parquet", "parquet"),
        ("a.zarr", None),
        ("a.tfrecord[0:5]", None),
        ("tfrecord", None),
    ],
)
def test_names(name: str, format: str | None) -> None:
    found = signatures.of_name(name)
    assert (None if found is None else found.name) == format
