"""What lies at a place: every command says the same of it, and with the same exit code."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray
import zarr

from tests.tfds_folders import tfrecord_of, write_folder
from windrow.cli.main import main
from windrow.converters import tfrecord_to_array_record, write_records


def store(path: Path) -> None:
    zarr.create_array(str(path), data=np.arange(12).reshape(4, 3), chunks=(2, 3))


def tfrecord(path: Path, count: int = 4) -> None:
    path.parent.mkdir(exist_ok=True)
    write_records(path, [bytes([k]) * 5 for k in range(count)])


def array_record(path: Path) -> None:
    """A file of 4 records."""
    tfrecord(path.parent / "made" / "x.tfrecord")
    folder = path.parent / "made_ar"
    tfrecord_to_array_record(path.parent / "made" / "x.tfrecord", folder, progress=False)
    path.parent.mkdir(exist_ok=True)
    shutil.move(next(folder.glob("x*")), path)
    shutil.rmtree(folder)


def netcdf(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    data = xarray.Dataset({"t": (("time", "x"), np.zeros((4, 3), np.float32))})
    data.to_netcdf(path, engine="h5netcdf")


def folder_with_a_version(path: Path) -> None:
    """Files of records, next to a folder that is named like a version of tfds."""
    (path / "1.0.0").mkdir(parents=True)
    array_record(path / "a.array_record")
    shutil.rmtree(path / "made")


def two_netcdf(path: Path) -> None:
    netcdf(path / "a.nc")
    netcdf(path / "b.nc")


def folder_with_hidden_files(path: Path) -> None:
    tfrecord(path / "b.tfrecord")
    tfrecord(path / ".a.tfrecord.part.tfrecord", 9)
    tfrecord(path / "_c.tfrecord", 9)


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(list(argv))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.parametrize(
    ("name", "make", "kind"),
    [
        ("a.zarr", store, "zarr"),
        ("ü x [1]", store, "zarr"),
        ("dir.tfrecord", store, "zarr"),
        ("dir.array_record", lambda path: tfrecord(path / "a.tfrecord"), "tfrecord"),
        ("a b.tfrecord", tfrecord, "tfrecord"),
        ("without a suffix", tfrecord, "tfrecord"),
        ("hidden", folder_with_hidden_files, "tfrecord"),
        ("a.array_record", array_record, "array_record"),
        ("file", array_record, "array_record"),
        ("versions", folder_with_a_version, "array_record"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_all_commands_see_the_same(
    name: str,
    make: Callable[[Path], None],
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make(tmp_path / name)
    place = str(tmp_path / name)
    code, out, err = said(capsys, "inspect", place, "--json")
    assert (code, err) == (0, "")
    assert (json.loads(out)["format"], json.loads(out)["records"]) == (kind, 4)

    code, out, err = said(capsys, "verify", place, "--json", "--quiet")
    assert (code, err) == (0, "")
    assert (json.loads(out)["format"], json.loads(out)["records"]) == (kind, 4)

    code, out, err = said(capsys, "bench", place, "--json", "-q", "--batches", "1")
    assert code == (2 if kind == "tfrecord" else 0)
    if kind == "tfrecord":
        assert "is TFRecord, which has no random access" in err
    else:
        assert json.loads(out)["records"] == 4

    to = "array_record"
    dry = (place, str(tmp_path / "out"), "--to", to, "--dry-run", "--json")
    code, out, err = said(capsys, "convert", *dry)
    assert (code, err) == (0, "")
    assert (json.loads(out)["conversion"], json.loads(out)["inputs"]) == (f"{kind}_to_{to}", 1)


def test_records_of_a_file_without_an_ending(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    array_record(tmp_path / "file")
    for command in ("inspect", "verify"):
        code, out, _ = said(capsys, command, f"{tmp_path}/file[1:3]", "--json")
        assert (code, json.loads(out)["records"]) == (0, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Path.mkdir, "holds nothing that Windrow reads"),
        (lambda path: tfrecord(path / "train-00000-of-00001"), "holds nothing that Windrow reads"),
        (lambda path: store(path / "a.zarr"), "holds nothing that Windrow reads.*it holds a.zarr"),
        (two_netcdf, "holds 2 NetCDF files"),
        (lambda path: path.write_text("hi"), "begins with b'hi' and is of no format"),
        (lambda path: path.write_bytes(b""), "is empty and is of no format"),
    ],
    ids=["empty", "unnamed", "stores", "netcdf", "text", "empty file"],
)
def test_what_is_not_read_is_bad_data_for_all(
    make: Callable[[Path], object],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = tmp_path / "data"
    make(place)
    for argv in (
        ("inspect", str(place)),
        ("verify", str(place)),
        ("bench", str(place)),
        ("convert", str(place), str(tmp_path / "out"), "--to", "zarr"),
    ):
        code, out, err = said(capsys, *argv)
        assert (code, out) == (1, "")
        assert err.startswith(f"windrow {argv[0]}: {place} "), err
        assert re.search(message, err)
    assert not (tmp_path / "out").exists()


def test_an_unfinished_folder_is_told_by_the_command_that_asks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "begun"
    folder.mkdir()
    (folder / "_WINDROW_UNFINISHED").write_text("{}")
    for argv in (("verify", str(folder)), ("bench", str(folder))):
        code, _, err = said(capsys, *argv)
        assert code == 1
        assert err.startswith(f"windrow {argv[0]}: the conversion that writes {folder}")


def test_a_dataset_of_tfds_without_random_access(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = write_folder(tmp_path / "counts" / "1.0.0", {"train": [5]})
    old = tfrecord_of(dataset, tmp_path / "old" / "1.0.0")
    for path in (old, old.parent):
        code, _, err = said(capsys, "bench", str(path), "--quiet")
        assert code == 1
        found = re.search(r"\(windrow (convert .*) DST --to zarr\)", err)
        assert found is not None
        command = [*found[1].split(), str(tmp_path / "z"), "--to", "zarr", "--quiet"]
        assert said(capsys, *command, "--overwrite")[0] == 0
        assert said(capsys, "bench", str(tmp_path / "z" / "train"), "--array", "id", "-q")[0] == 0
