"""`windrow verify`: what it finds in every kind of dataset, what it prints where, and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarr.codecs

from tests.converted_folders import (
    RECORDS,
    flip,
    record_folder,
    zarr_folder,
)
from windrow import converters
from windrow.cli.main import main
from windrow.converters.job.manifest import MANIFEST_NAME

FIRST = "data.array_record-00000-of-00003"
SECOND = "data.array_record-00001-of-00003"

Ran = tuple[int, str, str]
Run = Callable[..., Ran]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs the command; exit code, stdout and stderr."""

    def ran(*argv: object) -> Ran:
        code = main(["verify", *map(str, argv)])
        return code, *capfd.readouterr()

    return ran


def report(run: Run, *argv: object) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of the command."""
    code, out, err = run(*argv, "--json")
    assert err == ""
    found = json.loads(out)
    assert found["ok"] == (code == 0)
    return code, found


@pytest.fixture
def records(tmp_path: Path) -> Path:
    record_folder(tmp_path / "records")
    return tmp_path / "records"


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    zarr_folder(tmp_path / "arrays")
    return tmp_path / "arrays"


# --- sound ---------------------------------------------------------------------------------------


def test_a_sound_folder_of_records(run: Run, records: Path) -> None:
    code, out, err = run(records)
    lines = out.splitlines()
    assert (code, err, lines[0]) == (0, "", f"{records}: good")
    assert lines[1].startswith("60 chunks, 60 records, 2.4 KB decoded in ")
    assert lines[2].startswith("manifest: 3 files, ")
    assert len(lines) == 3


def test_rows_of_different_lengths_and_coordinates_are_counted_as_records(
    run: Run, tmp_path: Path
) -> None:
    group = zarr.create_group(tmp_path / "a")
    rows = group.create_group("tokens")
    rows.create_array("values", data=np.arange(100, dtype="u2"), chunks=(10,))
    rows.create_array("offsets", data=np.array([0, 5, 40, 90, 100]))
    code, found = report(run, tmp_path / "a")
    assert (code, found["records"], found["chunks"]) == (0, 4, 11)
    (tmp_path / "a" / "tokens" / "values" / "c" / "3").write_bytes(b"cut")
    code, found = report(run, tmp_path / "a")
    (bad,) = found["bad"]
    assert (code, bad["array"], bad["first_record"], bad["stop_record"]) == (1, "tokens", 1, 2)
    grid = zarr.create_group(tmp_path / "b")
    grid.create_array("t", shape=(3, 50), dtype="f4", dimension_names=["time", "lat"])
    grid.create_array("lat", data=np.arange(50.0), dimension_names=["lat"])
    assert report(run, tmp_path / "b")[1]["records"] == 3
    pair = zarr.create_group(tmp_path / "c")  # not rows that differ in length
    pair.create_array("values", data=np.ones((4, 2)))
    pair.create_array("offsets", data=np.ones(4))
    assert report(run, tmp_path / "c")[1]["records"] == 4


def test_arrays_that_are_not_read_are_named(run: Run, tmp_path: Path) -> None:
    group = zarr.create_group(str(tmp_path))
    group.create_array("rows", shape=(3,), dtype="int32")[...] = [1, 2, 3]
    group.create_array("one", shape=(), dtype="int32")[...] = 5
    group.create_array("names", shape=(3,), dtype="str")[...] = np.array(["a", "b", "c"])
    code, found = report(run, tmp_path)
    assert (code, found["chunks"]) == (0, 1)
    left_out = {item["array"]: item["why"] for item in found["left_out"]}
    assert set(left_out) == {"one", "names"}
    assert left_out["one"] == "it has shape ()"
    assert "not read: array 'one': it has shape ()" in run(tmp_path)[1]


@pytest.mark.parametrize("name", [FIRST, "data.array_record-0000?-of-00003", ""])
def test_a_file_and_a_glob_without_a_manifest(run: Run, records: Path, name: str) -> None:
    (records / MANIFEST_NAME).unlink()
    code, found = report(run, records / name)
    assert (code, found["manifest"]) == (0, None)
    assert found["records"] == (20 if name == FIRST else RECORDS)


def tfrecords(folder: Path, *counts: int) -> list[Path]:
    paths = []
    for number, count in enumerate(counts):
        path = folder / f"a.tfrecord-{number:05}-of-{len(counts):05}"
        converters.write_records(path, (bytes([k]) * 50 for k in range(count)))
        paths.append(path)
    return paths


def test_tfrecord_files(run: Run, tmp_path: Path) -> None:
    tfrecords(tmp_path, 5, 0, 7)
    converters.write_records(tmp_path / "b.tfrecord.gz", [b"x" * 90] * 4)
    for place in (tmp_path, tmp_path / "*.tfrecord*"):
        code, found = report(run, place)
        assert (code, found["format"], found["records"]) == (0, "tfrecord", 16)
        assert found["decoded_bytes"] == 12 * 50 + 4 * 90


# --- damaged -------------------------------------------------------------------------------------


def test_a_changed_record_is_told_by_its_file_and_by_its_place(run: Run, records: Path) -> None:
    flip(records / SECOND, 300)
    code, found = report(run, records)
    assert code == 1
    (file,) = found["manifest"]["bad"]
    (chunk,) = found["bad"]
    assert file["name"] == SECOND
    assert chunk["file"] == str(records / SECOND)
    assert 20 <= chunk["first_record"] < chunk["stop_record"] <= 40
    code, out, err = run(records)
    assert (code, err) == (1, "")
    assert out.splitlines()[0] == f"{records}: bad"
    assert sum(line.startswith("bad: ") for line in out.splitlines()) == 2


def test_files_that_can_not_be_opened_hide_no_others(run: Run, records: Path) -> None:
    with (records / FIRST).open("r+b") as file:
        file.truncate(1000)
    (records / SECOND).unlink()
    flip(records / SECOND.replace("00001-", "00002-"), 300)
    for manifest in (True, False):
        if not manifest:
            (records / MANIFEST_NAME).unlink()
        code, found = report(run, records)
        assert code == 1
        assert FIRST in found["unopened"][0]["name"]
        assert len(found["bad"]) == 1
        assert found["records"] == 20
        if manifest:
            assert [bad["name"][:23] for bad in found["manifest"]["bad"]] == [
                f"data.array_record-0000{number}" for number in range(3)
            ]
        else:
            assert "is missing" in found["unopened"][1]["error"]


def test_an_array_whose_metadata_is_damaged_hides_no_others(run: Run, arrays: Path) -> None:
    meta = json.loads((arrays / "label/zarr.json").read_text())
    meta["codecs"][1]["name"] = "none-such"
    (arrays / "label/zarr.json").write_text(json.dumps(meta))
    for manifest in (True, False):
        if not manifest:
            (arrays / MANIFEST_NAME).unlink()
        code, found = report(run, arrays)
        assert code == 1
        assert [bad["name"] for bad in found["unopened"]] == ["label"]
        assert found["chunks"] == RECORDS // 2 + 3


def test_missing_chunks_are_bad_if_asked_for(run: Run, arrays: Path) -> None:
    (arrays / MANIFEST_NAME).unlink()
    (arrays / "label/c/1").unlink()
    code, found = report(run, arrays)
    assert (code, found["missing"]) == (0, 1)
    code, found = report(run, arrays, "--missing", "error")
    assert (code, [bad["array"] for bad in found["bad"]]) == (1, ["label"])


def test_records_of_tfrecord_files_that_are_damaged(run: Run, tmp_path: Path) -> None:
    first, second, third = tfrecords(tmp_path, 5, 6, 7)
    flip(first, 66 * 2 + 20)  # in the data of record 2
    flip(second, 66 * 3)  # the length of record 3: what follows cannot be found
    with third.open("r+b") as file:
        file.truncate(66 * 7 - 1)
    code, found = report(run, tmp_path)
    assert code == 1
    told = [(bad["file"], bad["chunk"], bad["offset"]) for bad in found["bad"]]
    assert told == [
        (str(first), 2, 66 * 2),
        (str(second), 3, 66 * 3),
        (str(third), 6, 66 * 6),
    ]
    assert found["chunks"] == 5 + 4 + 7


# --- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["*.array_record"], "no file matches"),
        (["data", "--threads", "0"], "0 is not in the range x>=1"),
        (["data", "--missing", "skip"], "'skip' is not one of 'fill', 'error'"),
        (["data", "--storage-option", "anon"], "write KEY=VALUE"),
        (["data", "--files-only"], "has no manifest of a conversion"),
        (["a.nc"], "is of format netcdf"),
        (["none-such://a/b"], "none-such"),
    ],
    ids=str,
)
def test_wrong_arguments(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str], why: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "a.nc").write_bytes(b"CDF\x01")
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*argv)
    assert (code, out) == (2, "")
    assert why in err


# --- how -----------------------------------------------------------------------------------------


def test_files_only_decodes_nothing(run: Run, records: Path) -> None:
    code, found = report(run, records, "--files-only")
    assert (code, found["chunks"], found["manifest"]["files"]) == (0, 0, 3)
    flip(records / FIRST, 300)
    code, found = report(run, records, "--files-only")
    assert (code, found["bad"], len(found["manifest"]["bad"])) == (1, [], 1)
