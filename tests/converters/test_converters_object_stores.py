"""Conversions from and to object stores: S3 as moto has it, through faults, and fsspec's memory."""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import random
import signal
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.conversion_cases import (
    BY_NAME,
    CASES,
    Case,
    StoppedError,
    contents,
    planned,
    reference,
    state_of,
    stopped_behind,
)
from tests.object_store import ObjectStore
from tests.processes import Program, until
from tests.range_server import RangeServer, s3_error, stall
from windrow import converters
from windrow.converters.job.job import describe
from windrow.converters.job.locks import LEASE
from windrow.converters.job.manifest import MANIFEST_NAME, UNFINISHED, Manifest
from windrow.core.progress import Progress
from windrow.errors import (
    ConversionError,
    ReadError,
    WindrowError,
)

pytestmark = pytest.mark.jobs

SECRETS = ("AKIDNOTTOBESEEN", "secret-not-to-be-seen")
METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE")
CASE = BY_NAME["tfrecord_to_array_record"]
all_cases = pytest.mark.parametrize("case", CASES, ids=str)


class Place:
    """A folder of an object store, to write to and to look into."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.url, self.options = url, dict(options)

    def files(self) -> dict[str, bytes]:
        """All objects, by name; asked anew."""
        options = {**self.options, "skip_instance_cache": True}
        fs, root = fsspec.core.url_to_fs(self.url, **options)
        fs.invalidate_cache()
        found = {name: fs.cat_file(name) for name in fs.find(root)}
        return {name.removeprefix(f"{root}/"): data for name, data in found.items()}

    def convert(self, case: Case, inputs: str, **run: Any) -> Manifest:
        return case.convert(inputs, self.url, output_options=self.options, **run)

    def state(self, case: Case) -> str:
        """As `conversion_cases.state_of`."""
        options = self.options
        return state_of(case, self.url, self.files(), storage_options=options)


@pytest.fixture(params=["s3", "memory"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "memory":
        yield Place(f"memory://{abs(hash(request.node.name))}/out", {})
        return
    with ObjectStore() as store:
        yield Place(store.url("deep/out"), store.storage_options)


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with ObjectStore() as running:
        yield running


@all_cases
def test_the_same_files_as_on_a_disk_and_read_back(
    case: Case, store: ObjectStore, tmp_path: Path
) -> None:
    place = Place(store.url("deep/out"), store.storage_options)
    manifest = place.convert(case, reference(case).inputs)
    assert place.files() == reference(case).whole
    assert Manifest.read(place.url, storage_options=place.options) == manifest
    case.convert(reference(case).inputs, tmp_path / "here")
    far = contents(case.opened(place.url, storage_options=place.options))
    assert far == contents(case.opened(tmp_path / "here"))
    # A finished one is not done again.
    assert place.convert(case, reference(case).inputs, progress=_never) == manifest


def _never(progress: Progress) -> None:
    raise StoppedError


def test_an_unfinished_folder_is_refused_and_gone_on_with(place: Place) -> None:
    inputs, whole = reference(CASE).inputs, reference(CASE).whole
    stopped_behind(CASE, inputs, place.url, 1, output_options=place.options)
    begun = place.files()
    assert UNFINISHED in begun
    assert MANIFEST_NAME not in begun
    assert LEASE not in begun
    if place.url.startswith("s3"):
        assert place.state(CASE) == "unfinished"
    told = describe(planned(CASE, inputs), place.url, output_options=place.options)
    assert told["state"] == "unfinished"
    assert told["done"]["files"] == len(set(begun) & set(whole)) == 1
    assert place.files() == begun
    place.convert(CASE, inputs)
    assert place.files() == whole


@all_cases
def test_overwriting_leaves_nothing_old(case: Case, place: Place) -> None:
    inputs = reference(case).inputs
    place.convert(case, inputs)
    with pytest.raises(ConversionError, match=r"(?s)was written with other settings.*asked for"):
        place.convert(case, inputs, **case.others)
    place.convert(case, inputs, **case.others, overwrite=True)
    assert place.files() == reference(case).other


def test_files_that_no_conversion_wrote(place: Place) -> None:
    fs, root = fsspec.core.url_to_fs(place.url, **place.options)
    fs.pipe_file(f"{root}/mine", b"precious")
    with pytest.raises(ConversionError, match=r"holds files that no conversion wrote.*'mine'"):
        place.convert(CASE, reference(CASE).inputs, overwrite=True)
    with pytest.raises(ConversionError, match=r"mine: is a file; name a folder"):
        CASE.convert(reference(CASE).inputs, f"{place.url}/mine", output_options=place.options)
    assert place.files() == {"mine": b"precious"}


def test_what_others_have_removed_is_seen(place: Place) -> None:
    """Listings are kept by file systems of fsspec; what is decided here is asked anew."""
    manifest = place.convert(CASE, reference(CASE).inputs)
    options = {**place.options, "skip_instance_cache": True}
    other, root = fsspec.core.url_to_fs(place.url, **options)
    other.rm_file(f"{root}/{manifest.files[1].name}")
    with pytest.raises(ConversionError, match=rf"{manifest.files[1].name} is missing or is not of"):
        place.convert(CASE, reference(CASE).inputs)
    assert place.convert(CASE, reference(CASE).inputs, overwrite=True) == manifest
    for name in other.find(root):
        other.rm_file(name)
    assert place.convert(CASE, reference(CASE).inputs) == manifest
    assert place.files() == reference(CASE).whole


def test_many_sizes_are_asked_for_at_once(store: ObjectStore) -> None:
    """A rerun of a finished conversion of many files asks for a list and not for each."""
    case = BY_NAME["zarr_to_zarr"]
    place = Place(store.url("out"), store.storage_options)
    manifest = place.convert(case, reference(case).inputs)
    assert len(manifest.files) > 10
    store.faults.reset_counts()
    place.convert(case, reference(case).inputs)
    assert store.faults.counts().requests <= 12


# kill -9


_PROGRAM = """
import ast, sys, tempfile
from tests.conversion_cases import BY_NAME
name, inputs, output, options, apart = sys.argv[1:]
tempfile.tempdir = apart  # kill -9 leaves temporary files
BY_NAME[name].convert(inputs, output, output_options=ast.literal_eval(options))
"""


@contextlib.contextmanager
def running(case: Case, place: Place, folder: Path) -> Iterator[Program]:
    folder.mkdir(exist_ok=True)
    (folder / "apart").mkdir(exist_ok=True)
    root = str(Path(__file__).resolve().parents[2])
    inputs, options = reference(case).inputs, repr(place.options)
    assert ast.literal_eval(options) == place.options
    command = ["-c", _PROGRAM, case.name, inputs, place.url, options, str(folder / "apart")]
    with Program(folder, command, environment={"PYTHONPATH": root}) as program:
        yield program


@functools.cache
def requests(case: Case) -> int:
    """How many requests an undisturbed run makes."""
    with ObjectStore() as store:
        Place(store.url("out"), store.storage_options).convert(case, reference(case).inputs)
        return store.faults.counts().requests


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES[:2], ids=str)
def test_killed_in_the_middle_of_a_request(
    case: Case, store: ObjectStore, tmp_path: Path, moments: random.Random
) -> None:
    """The server never answers the n-th request, which it does not carry out: then comes the kill."""
    place = Place(store.url("out"), store.storage_options)
    number = moments.randint(requests(case) // 4, requests(case) - 6)
    store.faults.methods = METHODS
    store.faults.plan([None] * number + [stall()])
    with running(case, place, tmp_path / "program") as program:
        assert until(lambda: store.faults.counts().faults.get("stall") == 1)
        program.send(signal.SIGKILL)
        program.ends(-signal.SIGKILL)
    store.faults.heal()
    begun = place.files()
    for name, data in begun.items():
        assert not any(secret.encode() in data for secret in SECRETS), name
    assert place.state(case) in ("nothing", "unfinished", "finished")
    # What has its name is whole.
    whole = reference(case).whole
    assert all(data == whole[name] for name, data in begun.items() if name in whole)
    if LEASE in begun:
        if UNFINISHED in begun or MANIFEST_NAME not in begun:
            with pytest.raises(
                ConversionError, match=r"another run is writing it \(process \d+ on"
            ):
                place.convert(case, reference(case).inputs)
        place.convert(case, reference(case).inputs, take_over=True)
    place.convert(case, reference(case).inputs)
    assert place.files() == whole


# Faults


def test_errors_of_a_store_are_ours_and_tell_no_secret(store: ObjectStore) -> None:
    place = Place(store.url("out"), store.storage_options)
    store.faults.methods = METHODS
    total = requests(CASE)
    for number in (0, 3, 8, total // 3, total // 2, total - 12):
        store.faults.plan([None] * number)
        store.faults.chance(1.0, [s3_error(403, "AccessDenied", f"no {SECRETS[1]} for you")])
        with pytest.raises(WindrowError) as caught:
            place.convert(CASE, reference(CASE).inputs)
        told = "".join(traceback.format_exception(caught.value))
        assert not any(secret in told for secret in SECRETS), told
        assert "s3://" in str(caught.value)
        store.faults.heal()
        for name, data in place.files().items():
            assert not any(secret.encode() in data for secret in SECRETS), name
    # What the last of them could not remove is a lease.
    place.convert(CASE, reference(CASE).inputs, take_over=True)
    assert place.files() == reference(CASE).whole


# Inputs


def _upload(store: ObjectStore, case: Case, folder: str) -> None:
    base = Path(reference(case).inputs).parent
    for path in sorted(base.glob("x.*")):
        store.put(f"{folder}/{path.name}", path.read_bytes())


def test_inputs_of_a_store(store: ObjectStore, tmp_path: Path) -> None:
    _upload(store, CASE, "in")
    store.put("in/notes.txt", b"no records")
    options = store.storage_options
    names = [f"x.tfrecord-{k:05}-of-00003" for k in range(3)]
    for number, inputs in enumerate(
        (
            store.url("in/x.tfrecord-*"),
            store.url("in"),
            store.url("in/"),
            [store.url(f"in/{name}") for name in names],
        )
    ):
        out = tmp_path / f"out{number}"
        manifest = converters.tfrecord_to_array_record(
            inputs, out, storage_options=options, progress=False
        )
        assert [file.name for file in manifest.inputs] == names
        assert all(file.version for file in manifest.inputs)  # its ETag
        for name, data in reference(CASE).whole.items():
            if name != MANIFEST_NAME:
                assert (out / name).read_bytes() == data
    store.put(f"in/{names[0]}", b"")
    with pytest.raises(ConversionError, match=r"(?s)was written with other.*00000-of-00003 of \d+"):
        converters.tfrecord_to_array_record(
            store.url("in"), tmp_path / "out0", storage_options=options
        )


def test_secrets_of_addresses_are_nowhere(tmp_path: Path) -> None:
    """A signed address, and one with a password: not in names, the marker, the manifest or errors."""
    data = {
        name: (Path(reference(CASE).inputs).parent / name).read_bytes()
        for name in (f"x.tfrecord-{k:05}-of-00003" for k in range(3))
    }
    with RangeServer(data) as server:
        signed = [f"{server.url(name)}?X-Amz-Signature=sig-not-to-be-seen&a=b" for name in data]

        def stop(progress: Progress) -> None:
            if progress.records > 5:
                raise StoppedError

        with pytest.raises(StoppedError):
            converters.tfrecord_to_array_record(signed, tmp_path / "out", progress=stop)
        _hold_no("sig-not-to-be-seen", tmp_path / "out")
        with pytest.raises(
            ConversionError, match=r"has not finished.*\n  call windrow\.converters"
        ):
            CASE.opened(tmp_path / "out")
        manifest = converters.tfrecord_to_array_record(signed, tmp_path / "out", progress=False)
        _hold_no("sig-not-to-be-seen", tmp_path / "out")
        assert [file.name for file in manifest.inputs] == list(data)
        assert set(reference(CASE).whole) == {path.name for path in (tmp_path / "out").iterdir()}
        server.put(next(iter(data)), data[next(iter(data))][:-3])
        with pytest.raises(ReadError) as caught:
            converters.tfrecord_to_array_record(signed, tmp_path / "other", progress=False)
        assert "sig-not-to-be-seen" not in "".join(traceback.format_exception(caught.value))


def _hold_no(secret: str, folder: Path) -> None:
    for path in folder.rglob("*"):
        assert secret not in path.name
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


def test_options_are_in_no_text(store: ObjectStore) -> None:
    """Plans, conversions and targets pickle with their options, and do not show them."""
    from windrow.converters.job.targets import target_of

    _upload(store, CASE, "in")
    build = functools.partial(planned, CASE, store.url("in"))
    conversion = build(storage_options=store.storage_options)
    target = target_of("s3://user:pass-not-to-be-seen@bucket/x", store.storage_options)
    told = [repr(conversion), str(conversion.plan), conversion.resume("s3://b/x"), repr(target)]
    told += [target.shown("a"), json.dumps(describe(conversion, "memory://nothing-there"))]
    for text in told:
        assert not any(secret in text for secret in (*SECRETS, "pass-not-to-be-seen")), text
