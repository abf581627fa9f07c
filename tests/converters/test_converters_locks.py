"""One run at a time writes a folder: file locks here, leases on object stores."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.conversion_cases import BY_NAME, reference, tree
from tests.conversions import written
from tests.processes import Program, until
from windrow.converters.job.folder import FinishedPart, OutputFolder, begin
from windrow.converters.job.locks import LEASE, check_lease, locked
from windrow.converters.job.manifest import ConversionPlan, InputId
from windrow.converters.job.targets import WORK, Target, target_of
from windrow.core.progress import Progress
from windrow.errors import ConversionError

ROOT = Path(__file__).resolve().parents[2]
CASE = BY_NAME["tfrecord_to_array_record"]


_HELD = """
import sys, time
from windrow.converters.job.locks import locked
from windrow.converters.job.targets import target_of
with locked(target_of(sys.argv[1]), take_over=False):
    print("held", flush=True)
    time.sleep(1000)
"""


@pytest.mark.jobs
def test_the_lock_of_a_killed_process_is_gone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Program(tmp_path, ["-c", _HELD, str(out)]) as program:
        program.says("held")
        with pytest.raises(ConversionError, match="another run is writing this folder"):
            CASE.convert(reference(CASE).inputs, out, overwrite=True)
        program.send(signal.SIGKILL)
        program.ends(-signal.SIGKILL)
    assert (out / WORK / "lock").exists()
    CASE.convert(reference(CASE).inputs, out)
    assert tree(out) == reference(CASE).whole


_TRIES = """
import os, sys
from windrow.converters.job.locks import locked
from windrow.converters.job.targets import target_of
from windrow.errors import ConversionError
target, inside = target_of(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
held = 0
for _ in range(40):
    try:
        with locked(target, take_over=False):
            os.mkdir(inside)  # fails if another process is inside
            held += 1
            os.rmdir(inside)
    except ConversionError as error:
        assert "another run is writing" in str(error), error
print(held)
"""


@pytest.mark.jobs
def test_many_processes_at_the_same_instant(tmp_path: Path) -> None:
    """The file of the lock is removed each time, which is where two could come to hold it."""
    command = [sys.executable, "-c", _TRIES, str(tmp_path / "out"), str(tmp_path / "inside")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    programs = [
        subprocess.Popen(command, cwd=ROOT, text=True, stderr=subprocess.PIPE, **pipes)
        for _ in range(3)
    ]
    for program in programs:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
    told = [program.communicate("go\n") for program in programs]
    assert [error for _, error in told] == ["", "", ""]
    assert sum(int(out) for out, _ in told) >= 40
    assert not (tmp_path / "out" / WORK).exists()


def test_a_run_waits_for_nobody_and_harms_nobody(tmp_path: Path) -> None:
    """A second run, from within the first at each of its reports, is refused; the first continues."""
    inputs, out = reference(CASE).inputs, tmp_path / "out"
    refused = []

    def again(progress: Progress) -> None:
        for overwrite in (False, True):
            with pytest.raises(ConversionError, match="another run is writing this folder"):
                CASE.convert(inputs, out, overwrite=overwrite)
            refused.append(progress)

    CASE.convert(inputs, out, progress=again)
    assert refused
    assert tree(out) == reference(CASE).whole


# Leases


@pytest.fixture
def far(request: pytest.FixtureRequest) -> Target:
    target = target_of(f"memory://{request.node.name}")
    assert isinstance(target, Target)
    return target


def lease_of(target: Target) -> Any:
    data = target.read(LEASE)
    return None if data is None else json.loads(data)


def test_a_lease_that_was_taken_over_is_not_removed_by_its_first_holder(far: Target) -> None:
    with locked(far, take_over=False) as first:
        with locked(far, take_over=True) as second:
            assert first != second
            check_lease(far, str(second))
            with pytest.raises(ConversionError, match=r"another run has taken it over \(process"):
                check_lease(far, str(first))
        assert lease_of(far) is None
        with locked(far, take_over=False) as third:
            pass
        with pytest.raises(ConversionError, match="another run has taken it over"):
            check_lease(far, str(third))


def test_a_damaged_lease_is_that_of_another_run(far: Target) -> None:
    for text in (b"", b"{", b"[1]", b'{"token": 1}', b"\xff"):
        far.write(LEASE, text)
        with (
            pytest.raises(ConversionError, match="another run is writing it"),
            locked(far, take_over=False),
        ):
            pass
        with locked(far, take_over=True):
            pass
        assert lease_of(far) is None


class Forgetful(Target):
    """A store that knows no way to create only what is not there."""

    def create(self, name: str, data: bytes) -> bool:
        self.write(name, data)
        if self.rival is not None:
            self.write(name, self.rival)
        return True

    rival: bytes | None = None


def test_a_store_without_conditional_writes(far: Target) -> None:
    """What another run writes at the same instant is seen when the lease is read back."""
    forgetful = Forgetful(far.url, {})
    with locked(forgetful, take_over=False):
        pass
    Forgetful.rival = b'{"token": "other"}'
    try:
        with (
            pytest.raises(ConversionError, match="another run is writing it"),
            locked(forgetful, take_over=False),
        ):
            pass
    finally:
        Forgetful.rival = None


def test_a_run_whose_lease_was_taken_over_publishes_nothing_more(far: Target) -> None:
    plan = ConversionPlan("f", (InputId("a", 1),), {})

    def begun(lease: str | None) -> OutputFolder:
        return begin(far, plan, resume="", overwrite=False, lease=lease)

    def part(folder: OutputFolder, key: str) -> FinishedPart:
        return folder.part(
            key, lambda: FinishedPart(key, 1, (written(folder, f"{key}.out", b"x"),))
        )

    with locked(far, take_over=False) as first:
        old = begun(first)
        part(old, "one")
        with locked(far, take_over=True) as second:
            new = begun(second)
            with pytest.raises(ConversionError, match="another run has taken it over"):
                part(old, "two")
            assert far.size("two.out") is None
            with pytest.raises(ConversionError, match="another run has taken it over"):
                old.finished(FinishedPart("three", 0, ()))
            with pytest.raises(ConversionError, match="another run has taken it over"):
                old.finish(None)  # type: ignore[arg-type]  # it does not come to that
            part(new, "two")
            assert {kept.key for kept in new.parts()} == {"one", "two"}


def test_a_conversion_ends_when_its_lease_is_taken_over(far: Target) -> None:
    inputs = reference(CASE).inputs
    taken = threading.Event()

    def take(progress: Progress) -> None:
        if not taken.is_set():
            taken.set()
            far.write(LEASE, b'{"token": "another", "host": "h", "process": 7, "since": "now"}')

    with pytest.raises(ConversionError, match=r"taken it over \(process 7 on h, since now\); this"):
        CASE.convert(inputs, far.url, progress=take)
    assert far.size("windrow_manifest.json") is None
    assert lease_of(far)["token"] == "another"
    with pytest.raises(ConversionError, match=r"another run is writing it \(process 7 on h"):
        CASE.convert(inputs, far.url)
    CASE.convert(inputs, far.url, take_over=True)
    fs = fsspec.filesystem("memory")
    found = {
        name.removeprefix(f"/{far.url.removeprefix('memory://')}/"): fs.cat_file(name)
        for name in fs.find(far.url)
    }
    assert found == reference(CASE).whole


def test_who_was_refused_leaves_the_lease_of_the_other(far: Target) -> None:
    with locked(far, take_over=False) as token:
        for _ in range(3):
            with pytest.raises(ConversionError, match="another run is writing it"):
                CASE.convert(reference(CASE).inputs, far.url)
        assert lease_of(far)["token"] == token
        assert far.listed() == [WORK]
    assert until(lambda: far.listed() == [])
