"""What every conversion keeps to: temporary names, a marker, a manifest last, and what a rerun keeps."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from tests.conversion_cases import (
    BY_NAME,
    CASES,
    Case,
    StoppedError,
    contents,
    planned,
    reference,
    state,
    stopped,
    tree,
)
from tests.conversions import written
from windrow.converters.job.folder import FinishedPart, OutputFolder, begin
from windrow.converters.job.job import describe
from windrow.converters.job.manifest import (
    MANIFEST_NAME,
    UNFINISHED,
    ConversionPlan,
    InputId,
    Manifest,
)
from windrow.converters.job.targets import WORK, LocalTarget
from windrow.core.progress import Progress
from windrow.errors import ArgumentError, ConversionError

pytestmark = pytest.mark.jobs

all_cases = pytest.mark.parametrize("case", CASES, ids=str)


def stop(progress: Progress) -> None:
    raise StoppedError


@all_cases
def test_a_manifest_of_all_that_is_there(case: Case, tmp_path: Path) -> None:
    inputs, out = reference(case).inputs, tmp_path / "out"
    manifest = case.convert(inputs, out)
    found = tree(out)
    assert json.loads(found.pop(MANIFEST_NAME)) == manifest.to_json()
    assert Manifest.read(out) == manifest
    assert {file.name for file in manifest.files} == set(found)
    for file in manifest.files:
        data = found[file.name]
        assert (file.size_bytes, file.crc32c) == (len(data), f"{google_crc32c.value(data):08x}")
    assert state(case, out) == "finished"
    assert manifest.versions.keys() >= {"windrow", "numpy"}
    assert manifest.records == len(contents(case.opened(out)))


@all_cases
def test_what_is_finished_is_not_done_again(case: Case, tmp_path: Path) -> None:
    inputs, out = reference(case).inputs, tmp_path / "out"
    first = case.convert(inputs, out)
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in out.rglob("*")}
    assert case.convert(inputs, out, progress=stop) == first
    assert before == {
        path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in out.rglob("*")
    }


@all_cases
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_rerun_does_the_rest(case: Case, share: float, tmp_path: Path) -> None:
    inputs, out = reference(case).inputs, tmp_path / "out"
    stopped(case, inputs, out, share=share)
    begun = _finished_files(out)
    case.convert(inputs, out)
    assert tree(out) == reference(case).whole
    kept = {stat.st_ino: stat.st_mtime_ns for stat in begun}
    now = {path.stat().st_ino: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    assert {inode: now.get(inode) for inode in kept} == kept
    assert kept or share < 1.0


def _finished_files(out: Path) -> list[os.stat_result]:
    """The files of all parts in the journal, wherever they lie, which a rerun is to keep."""
    (journal,) = (out / WORK).glob("*/journal")
    plan = journal.parent
    names = {
        file["name"]
        for entry in journal.iterdir()
        for file in json.loads(entry.read_text())["files"]
        if not file["name"].startswith(WORK)
    }
    places = [place / name for name in names for place in (out, plan / "store")]
    return [place.stat() for place in places if place.exists()]


@all_cases
def test_other_settings_are_refused(case: Case, tmp_path: Path) -> None:
    inputs, out = reference(case).inputs, tmp_path / "out"
    name = next(iter(case.others))
    stopped(case, inputs, out)
    with pytest.raises(
        ConversionError, match=rf"(?s)was begun with other.*{name}: .* asked for.*overwrite=True"
    ):
        case.convert(inputs, out, **case.others)
    case.convert(inputs, out)
    before = tree(out)
    with pytest.raises(ConversionError, match=rf"(?s)was written with other.*{name}: .* asked for"):
        case.convert(inputs, out, **case.others)
    assert tree(out) == before

    # And the new output has no old files in its folder.
    case.convert(inputs, out, **case.others, overwrite=True)
    assert tree(out) == reference(case).other


@all_cases
def test_files_without_an_entry_are_found_by_their_claim(case: Case, tmp_path: Path) -> None:
    inputs, out = reference(case).inputs, tmp_path / "out"
    stopped(case, inputs, out)
    for entry in (out / WORK).glob("*/journal/*"):
        entry.unlink()  # as if killed after each file had its name and before this was noted
    case.convert(inputs, out, **case.others, overwrite=True)
    assert tree(out) == reference(case).other


@all_cases
def test_damaged_files_of_an_earlier_run_are_made_again(case: Case, tmp_path: Path) -> None:
    inputs, out = reference(case).inputs, tmp_path / "out"
    stopped(case, inputs, out)
    places = [path for path in out.rglob("*") if path.is_file() and _is_data(path, out)]
    assert places
    for path in places:
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    case.convert(inputs, out)
    assert tree(out) == reference(case).whole


def _is_data(path: Path, out: Path) -> bool:
    parts = path.relative_to(out).parts
    return parts[0] not in (WORK, UNFINISHED) or (len(parts) > 2 and parts[2] == "store")


@all_cases
def test_files_that_no_conversion_wrote_are_never_touched(case: Case, tmp_path: Path) -> None:
    inputs, out = reference(case).inputs, tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(ConversionError, match=r"holds files that no conversion wrote.*'mine'"):
            case.convert(inputs, out, overwrite=overwrite)
    assert tree(out) == {"mine": b"precious"}
    (out / "mine").unlink()
    manifest = case.convert(inputs, out)
    (out / "mine").write_text("precious")

    # Nor where one of them is in the way: another plan's file of the same name.
    shutil.rmtree(out)
    case.convert(inputs, out, **case.others)
    top = next(file.name.partition("/")[0] for file in manifest.files)
    for path in (out / top,):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        path.write_text("precious")
    known = Manifest.read(out).to_json()
    known["files"] = [file for file in known["files"] if not file["name"].startswith(top)]
    (out / MANIFEST_NAME).write_text(json.dumps(known))
    with pytest.raises(ConversionError, match=rf"{top}: is in the way, and no conversion that is"):
        case.convert(inputs, out, overwrite=True)
    assert (out / top).read_text() == "precious"


class Stuck(LocalTarget):
    """A folder whose files cannot be removed."""

    def remove(self, names: Iterable[str]) -> None:
        raise ConversionError("stuck")


@all_cases
def test_a_killed_overwrite_goes_on_with_overwriting(case: Case, tmp_path: Path) -> None:
    """Else a rerun of the command in the marker would take the old files for the new ones."""
    inputs, out = reference(case).inputs, tmp_path / "out"
    case.convert(inputs, out)
    whole = tree(out)
    with pytest.raises(ConversionError, match="stuck"):
        begin(Stuck(str(out)), planned(case, inputs).plan, resume="", overwrite=True, lease=None)
    assert tree(out).keys() == {UNFINISHED, *whole}
    told: list[Progress] = []
    case.convert(inputs, out, progress=told.append)
    assert told
    assert tree(out) == whole


def test_what_was_made_of_an_input_before_it_was_mended_vouches_for_nothing(tmp_path: Path) -> None:
    def plan(version: str) -> ConversionPlan:
        return ConversionPlan("f", (InputId("a", 1, version), InputId("b", 1)), {}, per_file=True)

    def folder(version: str) -> OutputFolder:
        return begin(
            LocalTarget(str(tmp_path)), plan(version), resume="", overwrite=False, lease=None
        )

    def part(folder: OutputFolder, key: str, data: bytes) -> bytes:
        def make() -> FinishedPart:
            file = written(folder, "a.out", data)
            return FinishedPart(f"{name}@{found.key}", 1, (file,))

        name, _, version = key.partition(" ")
        found = InputId("a", 1, version) if version else InputId("b", 1)
        folder.part(f"{name}@{found.key}", make)
        return (tmp_path / "a.out").read_bytes()

    assert part(folder("1"), "a.out 1", b"one") == b"one"
    assert part(folder("1"), "a.out 1", b"not made again") == b"one"
    assert part(folder("2"), "a.out 2", b"two") == b"two"
    assert not any("a.out@" in entry.key and "one" in entry.key for entry in folder("2").parts())
    # The same size as before, and on an object store only the size is checked.
    assert len(folder("1").parts()) == 0
    assert not (tmp_path / "a.out").exists()


@all_cases
def test_a_folder_that_is_gone_from_the_end(case: Case, tmp_path: Path) -> None:
    """Killed after the manifest, at each step of clearing up: a rerun only clears up."""
    inputs, out = reference(case).inputs, tmp_path / "out"
    manifest = case.convert(inputs, out)
    whole = tree(out)
    marker = {"note": "", "resume": "windrow convert a b", **manifest.plan.to_json()}
    marker["per_file"] = case.name in ("tfrecord_to_array_record",)
    (out / WORK / "0123456789abcdef" / "journal").mkdir(parents=True)
    (out / UNFINISHED).write_text(json.dumps(marker))
    assert state(case, out) == "unfinished"
    assert case.convert(inputs, out, progress=stop) == manifest
    assert tree(out) == whole
    assert not (out / WORK).exists()
    (out / WORK).mkdir()
    (out / WORK / "lock").touch()
    assert state(case, out) == "finished"
    assert case.convert(inputs, out, progress=stop) == manifest
    assert not (out / WORK).exists()


@all_cases
def test_lost_files_of_a_finished_folder(case: Case, tmp_path: Path) -> None:
    inputs, out = reference(case).inputs, tmp_path / "out"
    manifest = case.convert(inputs, out)
    (out / manifest.files[-1].name).unlink()
    with pytest.raises(ConversionError, match=r"is missing or is not of \d+ bytes, as the manif"):
        case.convert(inputs, out)
    assert case.convert(inputs, out, overwrite=True) == manifest


# What a dry run reports.


@all_cases
def test_describe_tells_what_would_be_done_and_writes_nothing(case: Case, tmp_path: Path) -> None:
    inputs, out = reference(case).inputs, tmp_path / "out"

    def told(**others: Any) -> dict[str, Any]:
        before = tree(tmp_path)
        found = describe(planned(case, inputs, **others), out)
        assert tree(tmp_path) == before
        assert json.loads(json.dumps(found)) == found
        return found

    new = told()
    assert not out.exists()
    assert (new["state"], new["differences"], new["done"]["parts"]) == ("new", [], 0)
    assert (new["conversion"], new["output"]) == (case.name, str(out))
    assert new["inputs"] == len(json.loads(reference(case).whole[MANIFEST_NAME])["inputs"])
    assert new["input_bytes"] > 0
    stopped(case, inputs, out)
    unfinished = told()
    assert unfinished["state"] == "unfinished"
    assert unfinished["done"]["parts"] >= 1
    other = told(**case.others)
    assert other["state"] == "other"
    assert any(line.startswith(next(iter(case.others))) for line in other["differences"])
    manifest = case.convert(inputs, out)
    finished = told()
    assert (finished["state"], finished["differences"]) == ("finished", [])
    assert finished["done"]["files"] == len(manifest.files)
    assert finished["done"]["bytes"] == sum(file.size_bytes for file in manifest.files)
    assert told(**case.others)["state"] == "other"
    shutil.rmtree(out)
    out.mkdir()
    (out / "mine").touch()
    assert told()["state"] == "foreign"


def test_wrong_arguments(tmp_path: Path) -> None:
    case = BY_NAME["tfrecord_to_array_record"]
    inputs, out = reference(case).inputs, tmp_path / "out"
    for run, text in (
        ({"overwrite": 1}, "overwrite must be a bool, got 1"),
        ({"take_over": "no"}, "take_over must be a bool, got 'no'"),
        ({"output_options": ["key"]}, "output_options must be a dict of settings"),
        ({"processes": 0}, "processes must be an integer of at least 1, got 0"),
        ({"processes": True}, "processes must be an integer of at least 1, got True"),
        ({"progress": 3}, "progress must be a bool or a function, got 3"),
        ({"nonsense": 3}, "'nonsense' is not an argument of a conversion; there are overwrite"),
    ):
        with pytest.raises(ArgumentError, match=text):
            case.convert(inputs, out, **run)
    with pytest.raises(ArgumentError, match="output 3 is int"):
        case.convert(inputs, 3)  # type: ignore[arg-type]
    assert not out.exists()
