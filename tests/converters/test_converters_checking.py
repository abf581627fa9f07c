"""Converted folders with every kind of damage, checked against their manifests."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.converted_folders import (
    RECORDS,
    flip,
    record_folder,
    write_manifest,
    zarr_folder,
)
from tests.object_store import ObjectStore
from tests.range_server import RangeServer, status
from windrow.converters import BadFile, CheckReport, check
from windrow.converters.job.manifest import MANIFEST_NAME, Manifest, OutputFile
from windrow.core.progress import Progress
from windrow.errors import ConversionError, NotFoundError, ReadError

FIRST = "data.array_record-00000-of-00003"
SECOND = "data.array_record-00001-of-00003"


def checked(folder: Path | str, **more: Any) -> CheckReport:
    report = check(folder, progress=False, **more)
    assert report.ok == (not report.bad)
    assert json.loads(json.dumps(report.to_json()))["ok"] == report.ok
    assert pickle.loads(pickle.dumps(report)) == report
    return report


@pytest.fixture
def records(tmp_path: Path) -> Path:
    record_folder(tmp_path / "records")
    return tmp_path / "records"


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    zarr_folder(tmp_path / "arrays")
    return tmp_path / "arrays"


# --- sound ---------------------------------------------------------------------------------------


def test_a_sound_folder_of_records(records: Path) -> None:
    told: list[Progress] = []
    report = check(records, progress=told.append, threads=1)
    assert (report.ok, report.files, report.records, report.format) == (
        *(True, 3, RECORDS),
        "array_record",
    )
    size = sum(file.size_bytes for file in Manifest.read(records).files)
    assert report.read_bytes == size
    assert told[-1] == Progress("check", RECORDS, size, size)
    report.raise_if_bad()


def test_other_files_are_nobodys_business(records: Path, arrays: Path) -> None:
    for folder in (records, arrays):
        (folder / "README.md").write_text("words")
        (folder / "more").mkdir()
        (folder / "more" / "0").write_text("0")
        (folder / ".DS_Store").write_bytes(b"\0")
        assert checked(folder).ok


# --- damaged -------------------------------------------------------------------------------------


def damage_missing(folder: Path, name: str) -> str:
    (folder / name).unlink()
    return "it is not there"


def damage_flipped(folder: Path, name: str) -> str:
    flip(folder / name)
    return "its CRC-32C is "


def damage_cut_off(folder: Path, name: str) -> str:
    with (folder / name).open("r+b") as file:
        file.truncate((folder / name).stat().st_size - 1)
    return "and the manifest says"


def damage_longer(folder: Path, name: str) -> str:
    with (folder / name).open("ab") as file:
        file.write(b"\0")
    return "and the manifest says"


def damage_empty(folder: Path, name: str) -> str:
    (folder / name).write_bytes(b"")
    return "it has 0 bytes"


def damage_folder(folder: Path, name: str) -> str:
    (folder / name).unlink()
    (folder / name).mkdir()
    return "it cannot be read: Is a directory"


DAMAGES = [
    damage_missing,
    damage_flipped,
    damage_cut_off,
    damage_longer,
    damage_empty,
    damage_folder,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damage_to_a_file(
    arrays: Path, records: Path, damage: Callable[[Path, str], str]
) -> None:
    places = [(arrays, name) for name in ("image/c/1/0/0", "label/zarr.json", "words/values/c/2")]
    for folder, name in (*places, (records, SECOND)):
        whole = (folder / name).read_bytes()
        why = damage(folder, name)
        (bad,) = checked(folder).bad
        assert bad.name == name
        assert why in bad.error
        if (folder / name).is_dir():
            (folder / name).rmdir()
        (folder / name).write_bytes(whole)


LEFT_BESIDE_RECORDS = [
    "old.array_record-00000-of-00002",
    "old.arrayrecord",
    "inside/old.array_record",
    "old.tfrecord.gz",
    "old.tfrecord.gzip",
    "zarr.json",
    ".zgroup",
]
LEFT_BESIDE_ARRAYS = [
    *("image/c/3/0/0", "image/c/0/1/0", "label/7", "label/c/0.0", "words/values/c/3"),
    *("old/zarr.json", "old/.zarray", "image/.zattrs"),
]


def test_data_that_is_left_over(records: Path, arrays: Path) -> None:
    for folder, names in ((records, LEFT_BESIDE_RECORDS), (arrays, LEFT_BESIDE_ARRAYS)):
        for name in names:
            (folder / name).parent.mkdir(exist_ok=True, parents=True)
            (folder / name).write_bytes(b"{}")
            (bad,) = checked(folder).bad
            assert bad.name == name
            assert "the manifest does not list it" in bad.error
            (folder / name).unlink()


def test_all_that_is_bad_is_told(records: Path) -> None:
    for number in range(30):
        (records / f"old{number:02}.array_record").write_bytes(b"")
    damage_missing(records, FIRST)
    report = checked(records)
    assert len(report.bad) == 31
    lines = str(report).splitlines()
    assert lines[0].startswith("31 bad: 3 files, ")
    assert lines[1] == f"  {FIRST}: it is not there"
    assert lines[-1] == "  and 11 more, see `bad` of the report"
    with pytest.raises(ReadError, match="31 bad"):
        report.raise_if_bad()


# --- the manifest itself -------------------------------------------------------------------------


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the JSON of a manifest."""
    value = json.loads((folder / MANIFEST_NAME).read_text())
    change(value)
    (folder / MANIFEST_NAME).write_text(json.dumps(value))


def first_named(name: str) -> Callable[[dict[str, Any]], object]:
    """A change of the name of the first file."""
    return lambda value: value["files"][0].update(name=name)


def test_a_link_that_leads_outside_is_followed_and_does_not_pass(records: Path) -> None:
    (records.parent / "other").write_bytes(b"x")
    (records / FIRST).unlink()
    (records / FIRST).symlink_to(records.parent / "other")
    (bad,) = checked(records).bad
    assert bad.name == FIRST


def test_a_name_that_no_file_can_have_is_bad(records: Path) -> None:
    for name in ("x" * 300, "sub/" * 60 + "x", "\udc80"):
        changed(records, first_named(name))
        bad = checked(records).bad
        assert bad[0].name == name
        assert bad[-1].name == FIRST  # no longer listed


def with_files(manifest: Manifest, files: Iterator[OutputFile] | list[OutputFile]) -> Manifest:
    return dataclasses.replace(manifest, files=tuple(files))


def test_another_number_of_records_is_bad(records: Path) -> None:
    manifest = Manifest.read(records)
    files = [dataclasses.replace(manifest.files[0], records=21), *manifest.files[1:]]
    write_manifest(records, with_files(manifest, files))
    bad = checked(records).bad
    assert bad == (
        BadFile(FIRST, "it holds 20 records, and the manifest says 21"),
        BadFile(MANIFEST_NAME, "its files hold 61 records together, and its inputs gave 60"),
    )


def test_a_file_that_is_listed_twice_is_bad(records: Path) -> None:
    manifest = Manifest.read(records)
    write_manifest(records, with_files(manifest, [*manifest.files, manifest.files[0]]))
    assert BadFile(FIRST, "the manifest lists it twice") in checked(records).bad


def test_a_file_that_is_no_array_record_is_bad_though_it_is_as_listed(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    manifest = record_folder(folder)
    (folder / FIRST).write_bytes(b"words")
    first = OutputFile(FIRST, 5, 20, "682ae172")
    write_manifest(folder, with_files(manifest, [first, *manifest.files[1:]]))
    (bad,) = checked(folder).bad
    assert bad.name == FIRST
    assert "ArrayRecord" in bad.error


# --- not to be checked ---------------------------------------------------------------------------


def test_a_folder_without_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no conversion was finished"):
        check(tmp_path, progress=False)
    with pytest.raises(NotFoundError, match="does not exist"):
        check(tmp_path / "nowhere", progress=False)


# --- remote ------------------------------------------------------------------------------------


def test_a_server_that_refuses_what_is_not_there(records: Path) -> None:
    with RangeServer(records) as server:
        server.plan([status(403)])  # whether there is a marker
        assert checked(server.address).ok
        server.plan([None, status(403)])  # whether there is a manifest
        with pytest.raises(NotFoundError, match="no conversion was finished"):
            check(server.address, progress=False)
        # What is left over is found by a page of links; without one it is not looked for.
        shutil.copy(records / FIRST, records / "old.array_record")
        assert [bad.name for bad in checked(server.address).bad] == ["old.array_record"]
        server.listings = False
        report = checked(server.address)
        assert (report.ok, report.is_listed) == (True, False)
        assert "could not be listed" in str(report)


@pytest.mark.jobs
def test_a_folder_in_an_object_store(records: Path) -> None:
    with ObjectStore() as store:
        for file in records.iterdir():
            store.put(f"out/{file.name}", file.read_bytes())
        options: dict[str, Any] = {"storage_options": store.storage_options, "progress": False}
        report = check(store.url("out"), **options)
        assert (report.ok, report.is_listed, report.files) == (True, True, 3)
        flip(records / FIRST)
        store.put(f"out/{FIRST}", (records / FIRST).read_bytes())
        store.remove(f"out/{SECOND}")
        store.put("out/old.array_record", b"x")
        bad = check(store.url("out"), **options).bad
        assert [one.name for one in bad] == [FIRST, SECOND, "old.array_record"]
        assert "secret" not in repr(bad)
        store.put("out/_WINDROW_UNFINISHED", b'{"resume": "windrow convert a b"}')
        with pytest.raises(ConversionError, match="windrow convert a b"):
            check(store.url("out"), **options)
