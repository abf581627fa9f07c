"""Targets and the folders in them: files come whole, under safe names, and what fails says so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.conversion_cases import tree
from tests.conversions import written
from windrow.converters.job.folder import FinishedPart, OutputFolder, begin
from windrow.converters.job.manifest import (
    UNFINISHED,
    ConversionPlan,
    InputId,
)
from windrow.converters.job.targets import WORK, LocalTarget, Target, target_of
from windrow.errors import ArgumentError, ConversionError, ReadError

PLAN = ConversionPlan("f", (InputId("a", 1),), {})


@pytest.fixture(params=["here", "far"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    if request.param == "here":
        return target_of(tmp_path / "out")
    return target_of(f"memory://{tmp_path}/out")


def begun(target: Target, plan: ConversionPlan = PLAN) -> OutputFolder:
    return begin(target, plan, resume="", overwrite=False, lease=None)


def part(folder: OutputFolder, key: str, name: str = "x", data: bytes = b"data") -> FinishedPart:
    return folder.part(key, lambda: FinishedPart(key, 1, (written(folder, name, data),)))


# Both kinds of target


def test_of_many_that_create_one_does(tmp_path: Path) -> None:
    target = target_of(tmp_path / "out")
    start = threading.Barrier(8)

    def create(number: int) -> bool:
        start.wait()
        return target.create("a/b", b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(create, range(8))) == 1


def test_long_names(target: Target) -> None:
    """Names of 255 bytes are all right, and temporary names and journals add nothing to them."""
    folder = begun(target)
    name = "é" * 120 + "abcdefghijklmn"
    assert len(name.encode()) == 254
    part(folder, f"{name}@0123456789abcdef", name)
    with target.incoming(name) as path:
        Path(path).write_bytes(b"again")
        folder.publish(path, name, records=1)
    assert [found.key for found in folder.parts()] == [f"{name}@0123456789abcdef"]
    assert target.read(name) == b"again"
    if isinstance(target, LocalTarget):
        with pytest.raises(ConversionError, match="cannot be written: File name too long"):
            written(folder, "x" * 256, b"")


def test_a_store_that_was_moved_in_part_is_moved_to_its_end(tmp_path: Path) -> None:
    """A kill in the middle of it leaves some files here and some there."""
    folder = begun(target_of(tmp_path / "out"))
    names = [f"a/{at}/{k}" for at in range(3) for k in range(2)] + ["b"]
    for name in names:
        folder.write_staged(name, name.encode(), records=0)
    folder.publish_store(["a"])
    for name in names[:3]:  # written again, as a part that was found damaged
        folder.write_staged(name, b"again", records=0)
    folder.publish_store(["a", "b"])
    folder.publish_store(["a", "b"])
    found = {name: data for name, data in tree(tmp_path / "out").items() if WORK not in name}
    del found[UNFINISHED]
    assert found == {name: b"again" if name in names[:3] else name.encode() for name in names}
    assert tree(tmp_path / "out" / folder.work / "store") == {}


# What does not work


def test_outputs_that_are_none(tmp_path: Path) -> None:
    for wrong in (3, None, b"x", ["x"]):
        with pytest.raises(ArgumentError, match="give a path or a URL as str"):
            target_of(wrong)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="must be a non-empty string"):
        target_of("")
    with pytest.raises(ArgumentError, match="names the host 'elsewhere'"):
        target_of("file://elsewhere/x")
    (tmp_path / "file").touch()
    with pytest.raises(ConversionError, match="file: is a file; name a folder"):
        target_of(tmp_path / "file")
    assert isinstance(target_of(f"file://{tmp_path}/out"), LocalTarget)
    assert isinstance(target_of("memory://x/"), Target)


class Unreachable(fsspec.AbstractFileSystem):  # type: ignore[misc]  # it has no types
    """A file system that fails in its own ways, with a secret in its words."""

    protocol = "unreachable"

    def info(self, path: str, *_: Any, **__: Any) -> Any:
        raise RuntimeError(f"no {self.storage_options['password']} for you")

    ls = cat_file = pipe_file = put_file = rm_file = rm = find = info


@pytest.fixture
def unreachable() -> Target:
    fsspec.register_implementation("unreachable", Unreachable, clobber=True)
    return target_of("unreachable://x", {"password": "pass-not-to-be-seen"})


def test_errors_of_file_systems_are_ours(unreachable: Target, tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    reads: list[Callable[[], object]] = [
        lambda: unreachable.listed(),
        lambda: unreachable.size("a"),
        lambda: unreachable.is_there("a"),
        lambda: unreachable.sizes(map(str, range(20))),
        lambda: unreachable.read("a"),
        lambda: unreachable.create("a", b""),  # it looks first
    ]
    for read in reads:
        with pytest.raises(
            ReadError, match=r"unreachable://x.*: cannot be read: Runt.*no \*\*\* fo"
        ):
            read()
    writes: list[Callable[[], object]] = [
        lambda: unreachable.write("a", b""),
        lambda: unreachable.put(str(tmp_path / "x"), "a"),
        lambda: unreachable.remove(["a"]),
        lambda: unreachable.remove_all("a"),
    ]
    for write in writes:
        with pytest.raises(ConversionError, match=r"x/a: cannot be written: Runt.*no \*\*\* for"):
            write()
