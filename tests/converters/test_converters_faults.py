"""Conversions that are killed, run out of room, or find that their inputs or folders are bad."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conversion_cases import (
    BY_NAME,
    CASES,
    Case,
    StoppedError,
    moments_of,
    reference,
    running,
    state,
    stopped,
    tree,
)
from tests.processes import until
from windrow import converters
from windrow.converters import write_records
from windrow.converters.job.manifest import MANIFEST_NAME, UNFINISHED, Manifest
from windrow.converters.job.targets import WORK
from windrow.core.progress import Progress
from windrow.errors import ConversionError, ReadError, WindrowError

pytestmark = pytest.mark.jobs

all_cases = pytest.mark.parametrize("case", CASES, ids=str)


# kill -9


@functools.cache
def _moments(case: Case, folder: Path) -> int:
    """How many calls on its output an undisturbed run makes."""
    with running(case, reference(case).inputs, folder / "out", folder) as program:
        program.ends()
        return moments_of(program)


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("apart")


def kills(request: pytest.FixtureRequest) -> int:
    """How many kills a test of one seed makes: a few in CI, where there is one seed."""
    return 3 if request.config.getoption("soak") == 1 else 1


@pytest.mark.soak
@all_cases
def test_killed_at_any_moment(
    case: Case,
    apart: Path,
    tmp_path: Path,
    moments: random.Random,
    request: pytest.FixtureRequest,
) -> None:
    inputs = reference(case).inputs
    folder = apart / case.name
    folder.mkdir(exist_ok=True)
    last = _moments(case, folder)
    for number in range(kills(request)):
        out = tmp_path / f"out{number}"
        # Also a rerun may be killed.
        for _ in range(moments.choice([1, 1, 2])):
            with running(
                case, inputs, out, tmp_path / "program", moment=moments.randint(1, last)
            ) as program:
                assert program.code() in (0, -9), program.errors
            if state(case, out) == "finished":
                assert {**tree(out), f"{WORK}/lock": b""} == {
                    **reference(case).whole,
                    f"{WORK}/lock": b"",
                }
        case.convert(inputs, out)
        assert tree(out) == reference(case).whole
        assert not (out / WORK).exists()


@pytest.mark.soak
@pytest.mark.parametrize("who", ["parent", "worker", "worker kills parent"])
def test_killed_while_processes_are_at_work(
    who: str, tmp_path: Path, moments: random.Random, apart: Path
) -> None:
    case = moments.choice(CASES)
    inputs, out = reference(case).inputs, tmp_path / "out"
    folder = apart / case.name
    folder.mkdir(exist_ok=True)
    moment = moments.randint(1, max(1, _moments(case, folder) // 3))
    # As a context it also ensures that nothing of it keeps running.
    with running(
        case, inputs, out, tmp_path / "program", moment=moment, who=who, processes=2
    ) as program:
        code = program.code()
        assert code in ((0, 1) if who == "worker" else (0, -9)), program.errors
        if code == 1:
            assert (
                "a worker process died (killed by SIGKILL), perhaps for want of" in program.errors
            )
        assert until(lambda: not program.processes(), 20.0)
    if code == 0:
        assert state(case, out) == "finished"
    else:
        assert state(case, out) in ("nothing", "unfinished", "finished")
    case.convert(inputs, out)
    assert tree(out) == reference(case).whole


_OBSERVED = """
import sys, threading
from pathlib import Path
from tests.conversion_cases import BY_NAME, contents
from windrow.converters.job.manifest import UNFINISHED
from windrow.errors import WindrowError
import tests.conversion_cases as cases

name, inputs, output, first = sys.argv[1:]
case, out = BY_NAME[name], Path(output)
new = contents(case.opened(first))
case.convert(inputs, out, **case.others)
old = contents(case.opened(out))
looking, seen, wrong, refused = threading.Lock(), set(), [], []

def look():
    try:
        found = contents(case.opened(out))
    except (WindrowError, OSError) as error:
        seen.add("refused" if "has not finished" in str(error) else "nothing")
        return
    seen.add("opened")
    # One moment later it may be refused; what has been opened must be all of the old or the new.
    if found not in (old, new):
        wrong.append(found)

def hook(event, arguments):
    if event not in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"):
        return
    if not any(isinstance(a, str) and a.startswith(output) for a in arguments):
        return
    # Not what the look itself does, in whatever thread.
    if looking.acquire(blocking=False):
        try:
            look()
            refused.append("refused" in seen)
        finally:
            looking.release()

sys.addaudithook(hook)
case.convert(inputs, out, overwrite=True)
looking.acquire()
assert not wrong, wrong
assert seen == {"opened", "refused"}, seen
print(sum(refused), "of", len(refused))
"""


@all_cases
def test_at_no_moment_half_of_it_is_seen(case: Case, tmp_path: Path) -> None:
    """A dataset is converted anew, and read before every call that changes the folder."""
    inputs = reference(case).inputs
    case.convert(inputs, tmp_path / "first")
    command = [
        *(sys.executable, "-c", _OBSERVED, case.name, inputs),
        *(str(tmp_path / "out"), str(tmp_path / "first")),
    ]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, done.stderr
    refused = done.stdout.split()[0]
    assert int(refused) > 10
    assert tree(tmp_path / "out") == reference(case).whole


# No room, no rights


_LIMITED = """
import resource, sys
from tests.conversion_cases import BY_NAME
from windrow.errors import ConversionError
case = BY_NAME[sys.argv[1]]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), resource.RLIM_INFINITY))
try:
    case.convert(sys.argv[2], sys.argv[3], processes=int(sys.argv[5]))
except ConversionError as error:
    raise SystemExit(f"refused: {error}")
"""


@pytest.mark.parametrize(
    ("case", "processes"), [*((case, 1) for case in CASES), (CASES[0], 2)], ids=str
)
def test_a_full_disk(case: Case, processes: int, tmp_path: Path) -> None:
    inputs, out = reference(case).inputs, tmp_path / "out"
    largest = max(len(data) for data in reference(case).whole.values())
    # ArrayRecord files are padded to 64 KiB; a smaller one is written to try the options.
    limits = (16, largest // 2) if case.is_zarr else (largest // 2 + 4096,)
    names = {name for name in reference(case).whole if name != MANIFEST_NAME}
    command = [sys.executable, "-c", _LIMITED, case.name, inputs, str(out)]
    root = Path(__file__).resolve().parents[2]
    for limit in limits:
        done = subprocess.run(
            [*command, str(limit), str(processes)],
            capture_output=True,
            text=True,
            cwd=root,
            check=False,
        )
        assert "refused: " in done.stderr, done.stderr
        assert "File too large" in done.stderr
        assert "make room" in done.stderr
        assert "what is finished is kept" in done.stderr
        assert state(case, out) in ("nothing", "unfinished")
        left = {name for name in tree(out) if not name.startswith((WORK, UNFINISHED))}
        assert left <= names
        assert all(reference(case).whole[name] == (out / name).read_bytes() for name in left)
        incoming = out / WORK / "incoming"
        assert not incoming.exists() or list(incoming.iterdir()) == []
    case.convert(inputs, out)
    assert tree(out) == reference(case).whole


@all_cases
def test_a_target_that_cannot_be_written(case: Case, tmp_path: Path) -> None:
    """Root may write whatever the mode, so these are places that no user can write to."""
    inputs = reference(case).inputs
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConversionError, match=r"file: is a file; name a folder"):
        case.convert(inputs, tmp_path / "file")
    with pytest.raises(ConversionError, match=r"file/out: cannot be written: Not a directory"):
        case.convert(inputs, tmp_path / "file" / "out")
    with pytest.raises(ConversionError, match=r"/proc/out: cannot be written: No such file"):
        case.convert(inputs, "/proc/out")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / WORK).write_text("in the way")
    with pytest.raises(ConversionError, match=r"cannot be written: (File exists|Not a directory)"):
        case.convert(inputs, tmp_path / "out")
    assert (tmp_path / "file").read_text() == "mine"


# Inputs that change


@all_cases
def test_an_input_that_changed_between_run_and_rerun(case: Case, tmp_path: Path) -> None:
    inputs, out = case.give(tmp_path / "in"), tmp_path / "out"
    stopped(case, inputs, out, share=0.5)
    shutil.rmtree(tmp_path / "in")
    case.give(tmp_path / "in")
    if case.name == "tfrecord_to_array_record":
        # One file to one file: its own part is done again, and no other's.
        case.convert(inputs, out)
    else:
        with pytest.raises(ConversionError, match=r"(?s)was begun with other.*inputs: .* there, "):
            case.convert(inputs, out)
        case.convert(inputs, out, overwrite=True)
    case.convert(inputs, tmp_path / "undisturbed")
    assert tree(out) == tree(tmp_path / "undisturbed")
    shutil.rmtree(tmp_path / "in")
    case.give(tmp_path / "in")
    (tmp_path / "in" / case.first).write_bytes((tmp_path / "in" / case.first).read_bytes())
    with pytest.raises(ConversionError, match=r"(?s)was written with other.*inputs: .* there, "):
        case.convert(inputs, out)


@all_cases
def test_an_input_that_changes_meanwhile(case: Case, tmp_path: Path) -> None:
    inputs, out = case.give(tmp_path / "in"), tmp_path / "out"
    first = tmp_path / "in" / case.first

    def touch(progress: Progress) -> None:
        for path in (tmp_path / "in").rglob("*"):
            os.utime(path, ns=(1, 1))

    with pytest.raises(ConversionError, match=r"was written anew while it was converted"):
        case.convert(inputs, out, progress=touch)
    assert state(case, out) == "unfinished"
    assert first.exists()


# Damaged inputs


@all_cases
def test_damaged_and_truncated_inputs(case: Case, tmp_path: Path) -> None:
    inputs = case.give(tmp_path / "in")
    first = tmp_path / "in" / case.first
    whole = first.read_bytes()
    at = case.spoil_at
    spoilt = whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :]
    for number, damaged in enumerate((spoilt, whole[: len(whole) // 2], b"")):
        if damaged == b"" and case.name.startswith(("tfrecord_to", "json_lines_to")):
            continue  # one without records
        first.write_bytes(damaged)
        out = tmp_path / f"out{number}"
        with pytest.raises(WindrowError) as caught:
            case.convert(inputs, out)
        assert isinstance(caught.value, OSError | ValueError), caught.value
        assert first.name in str(caught.value) or "a/c/0" in str(caught.value), caught.value
        assert state(case, out) in ("nothing", "unfinished")


# Hostile folders


NAMES = ["../victim", "a/../../victim", "..", "..\\victim", "", ".", "/", "a//b", "a\0b", "\ud800"]
NAMES += [UNFINISHED, MANIFEST_NAME, WORK, f"{WORK}/lock", "./x"]


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_a_manifest_that_points_outside_is_refused(name: str, tmp_path: Path) -> None:
    case = BY_NAME["tfrecord_to_array_record"]
    inputs, out = reference(case).inputs, tmp_path / "out"
    case.convert(inputs, out)
    (tmp_path / "victim").write_text("precious")
    value = json.loads((out / MANIFEST_NAME).read_text())
    for target in (name, str(tmp_path / "victim")):
        value["files"][0]["name"] = target
        (out / MANIFEST_NAME).write_text(json.dumps(value))
        before = tree(out)
        for overwrite in (False, True):
            with pytest.raises(ReadError, match="outside its own folder: do not trust it"):
                case.convert(inputs, out, overwrite=overwrite)
        with pytest.raises(ReadError, match="outside its own folder"):
            Manifest.read(out)
        assert {name: data for name, data in tree(out).items() if name in before} == before
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_a_journal_and_a_claim_that_point_outside_count_for_nothing(
    name: str, tmp_path: Path
) -> None:
    case = BY_NAME["tfrecord_to_array_record"]
    inputs, out = reference(case).inputs, tmp_path / "out"
    (tmp_path / "victim").write_text("precious")
    for settings in ({}, {**case.others, "overwrite": True}):
        stopped(case, inputs, out)
        for target in (name, str(tmp_path / "victim")):
            for entry in (out / WORK).glob("*/journal/*"):
                value = json.loads(entry.read_text())
                value["files"][0]["name"] = target
                entry.write_text(json.dumps(value))
            for claim in (out / WORK).glob("*/claims"):
                (claim / "hostile.json").write_text(json.dumps(target))
        case.convert(inputs, out, **settings)
        expected = reference(case).other if settings else reference(case).whole
        assert expected.items() <= tree(out).items()
        shutil.rmtree(out)
    assert (tmp_path / "victim").read_text() == "precious"


def test_links_lead_nowhere(tmp_path: Path) -> None:
    """Nothing is written or removed behind a link that leads out; links themselves are replaced."""
    case = BY_NAME["zarr_to_zarr"]
    inputs, out = reference(case).inputs, tmp_path / "out"
    case.convert(inputs, out)
    shutil.move(out / "a", tmp_path / "elsewhere")
    (out / "a").symlink_to(tmp_path / "elsewhere")
    before = tree(tmp_path / "elsewhere")
    assert state(case, out) == "finished"  # reading through it is the user's own wish
    with pytest.raises(ConversionError, match=r"a/.* lies behind a link to .*elsewhere, outside"):
        case.convert(inputs, out, overwrite=True)
    assert tree(tmp_path / "elsewhere") == before

    shutil.rmtree(out)
    out.mkdir()
    (out / WORK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        ConversionError, match=r"lies behind a link to .*elsewhere.*, outside of it"
    ):
        case.convert(inputs, out)
    assert tree(tmp_path / "elsewhere") == before

    # A file that is a link is replaced, and what it led to stays.
    (out / WORK).unlink()
    shutil.rmtree(out)
    case.convert(inputs, out)
    file = next(path for path in out.rglob("c/*") if path.is_file() or path.is_dir())
    leaf = next(path for path in [file, *file.rglob("*")] if path.is_file())
    shutil.move(leaf, tmp_path / "leaf")
    leaf.symlink_to(tmp_path / "leaf")
    kept = (tmp_path / "leaf").read_bytes()
    case.convert(inputs, out, overwrite=True)
    assert not leaf.is_symlink()
    assert (tmp_path / "leaf").read_bytes() == kept
    assert tree(out) == reference(case).whole


def _hostile(value: Any) -> Iterator[Any]:
    """Yield `value` with each of its parts replaced by something that Windrow never writes."""
    wrong: Any
    for wrong in (None, True, -1, 10**400, 1e400, float("nan"), "x" * 9, [], {}, [[[]]]):
        yield wrong
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {other: item for other, item in value.items() if other != key}
            for wrong in _hostile(inner):
                yield {**value, key: wrong}
    elif isinstance(value, list) and value:
        for wrong in _hostile(value[0]):
            yield [wrong, *value[1:]]


DEEP = "[" * 100_000, '{"a":' * 5_000 + "1" + "}" * 5_000, "[" * 500 + "]" * 500
TEXTS = [
    b"",
    b"\xff\xfe",
    b"{",
    b"nul",
    b"1" * 5_000,
    b"\0" * 64,
    *(deep.encode() for deep in DEEP),
]


@pytest.mark.parametrize("name", [MANIFEST_NAME, UNFINISHED])
def test_hostile_manifests_and_markers(name: str, tmp_path: Path) -> None:
    """None of them is another error than ours, and none of them is taken for a finished folder."""
    case = BY_NAME["tfrecord_to_array_record"]
    inputs, out = reference(case).inputs, tmp_path / "out"
    if name == MANIFEST_NAME:
        case.convert(inputs, out)
    else:
        stopped(case, inputs, out)
    path = out / name
    good = json.loads(path.read_text())
    texts = [*TEXTS, *(json.dumps(value).encode() for value in _hostile(good))]
    deep = json.dumps(good).replace('"zstd', '"zstd').encode()
    texts.append(
        deep.replace(b'"settings": {', b'"settings": {"deep": ' + DEEP[2].encode() + b", ")
    )
    assert len(texts) > 100
    for text in texts:
        path.write_bytes(text)
        with contextlib.suppress(WindrowError):
            case.opened(out)
        with contextlib.suppress(WindrowError):
            Manifest.read(out)
        with contextlib.suppress(WindrowError, StoppedError):
            case.convert(inputs, out, progress=_never)


def _never(progress: Progress) -> None:
    raise StoppedError


def test_overwrite_is_the_way_out_of_a_damaged_marker(tmp_path: Path) -> None:
    case = BY_NAME["tfrecord_to_array_record"]
    inputs, out = reference(case).inputs, tmp_path / "out"
    for text in TEXTS:
        stopped(case, inputs, out)
        (out / UNFINISHED).write_bytes(text)
        with pytest.raises(WindrowError, match=r"_WINDROW_UNFINISHED: "):
            case.convert(inputs, out)
        case.convert(inputs, out, overwrite=True)
        assert tree(out) == reference(case).whole
        shutil.rmtree(out)


def test_files_of_an_unfinished_folder_are_no_inputs(tmp_path: Path) -> None:
    case = BY_NAME["tfrecord_to_array_record"]
    out = tmp_path / "out"
    stopped(case, reference(case).inputs, out)
    write_records(out / "y.tfrecord", [b"1"])
    for inputs in (out, str(out / "*.tfrecord"), out / "y.tfrecord"):
        with pytest.raises(
            ConversionError, match=r"inputs: the conversion that writes .*out has no"
        ):
            converters.tfrecord_to_array_record(inputs, tmp_path / "other")
    assert not (tmp_path / "other").exists()
