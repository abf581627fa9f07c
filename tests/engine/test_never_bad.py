"""Errors that are never of a record: `on_bad` leaves out nothing where the store or the machine fails."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chain.test_on_bad import DAMAGED
from tests.engine.test_some_rows import FAR, FAR_KINDS, LOCAL
from tests.far_arrays import TWICE
from tests.range_server import RangeServer
from windrow import MapDataset
from windrow.core import system_errors
from windrow.core.native import native
from windrow.errors import ReadError, SourceError
from windrow.sources import ArrayRecordDataSource
from windrow.sources.array_record import decode
from windrow.sources.array_record.core_reader import CoreReader
from windrow.sources.tfds import images
from windrow.sources.zarr.error_text import damaged


def _of(made: Callable[[Path], tuple[Any, set[int]]], folder: Path) -> Any:
    return made(folder)[0]


# Every kind of local source that reads files.
SOURCES: dict[str, Callable[[Path], Any]] = {
    **{kind: functools.partial(_of, made) for kind, made in DAMAGED.items()},
    **LOCAL,
}


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """The process can open no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("kind", SOURCES)
def test_a_process_that_can_open_no_file_loses_no_record(kind: str, tmp_path: Path) -> None:
    def opened(name: str) -> Any:
        (tmp_path / name).mkdir()
        return MapDataset.source(SOURCES[kind](tmp_path / name)).on_bad("skip")

    assert len(list(opened("first"))) > 0  # all modules are loaded now
    with (
        iter(opened("second")) as iterator,
        no_descriptors(),
        pytest.raises((OSError, SourceError), match="Too many open files"),
    ):
        next(iterator)


@pytest.mark.parametrize("kind", FAR_KINDS)
def test_a_store_that_is_away_loses_no_record(kind: str, tmp_path: Path) -> None:
    write, opened, _ = FAR[kind]
    write(tmp_path)
    with RangeServer(tmp_path) as server:
        dataset = MapDataset.source(opened(server.url("rows"), TWICE)).on_bad("skip")
        assert dataset[0] is not None  # offsets of ragged rows are known now
        server.close()
        with pytest.raises(ReadError) as caught:
            dataset.read([len(dataset) - 1])
        assert caught.value.is_unanswered


@pytest.mark.parametrize("kind", SOURCES)
def test_data_that_are_gone_are_no_bad_records(kind: str, tmp_path: Path) -> None:
    dataset = MapDataset.source(SOURCES[kind](tmp_path)).on_bad("skip")
    shutil.rmtree(tmp_path)
    with pytest.raises(OSError, match=r"gone|removed"):
        list(dataset)


def test_a_file_that_is_replaced_is_no_bad_record(tmp_path: Path) -> None:
    source = DAMAGED["records"](tmp_path)[0]
    assert isinstance(source, ArrayRecordDataSource)
    with open(tmp_path / "one.array_record", "ab") as file:
        file.write(b"more")
    with pytest.raises(ReadError, match="changed since the source was made"):
        list(MapDataset.source(source).on_bad("skip"))


def test_an_image_that_memory_does_not_hold_is_no_bad_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def decoded(*_: Any) -> Any:
        raise MemoryError("short of memory")

    monkeypatch.setattr(images, "_decoded", decoded)
    with pytest.raises(MemoryError, match="short of memory"):
        images.decode_images([b""], Any)  # type: ignore[arg-type]


@pytest.mark.skipif(native() is None, reason="the native core says so")
@pytest.mark.parametrize("kind", ["records", "groups"])
def test_records_that_memory_does_not_hold_are_no_bad_records(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = "it asks for more memory than there is: 4,096 bytes"
    asked = CoreReader._asked

    def short_of_memory(*given: Any) -> Any:
        records, damages = asked(*given)
        return records, [(number, short) for number, _ in damages]

    monkeypatch.setattr(CoreReader, "_asked", short_of_memory)
    dataset = MapDataset.source(DAMAGED[kind](tmp_path)[0]).on_bad("skip")
    with pytest.raises(MemoryError, match=r"record \d+ of .*: it asks for more memory"):
        list(dataset)


@pytest.mark.skipif(native() is None, reason="the native core decodes")
def test_chunks_that_memory_does_not_hold_are_not_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    core: Any = native()

    class Short:
        ChunkError = core.ChunkError

        @staticmethod
        def array_record_decode(*_: Any) -> Any:
            raise core.ChunkError(3, "it asks for more memory than there is: 4,096 bytes")

    monkeypatch.setattr("windrow.core.native.needed", lambda _what: Short)
    with pytest.raises(MemoryError, match="chunk 3: it asks for more memory"):
        decode.decode([])


@pytest.mark.parametrize("code", ["EMFILE", "ENOSPC", "ENOMEM"])
def test_what_the_machine_lacks_is_raised_of_functions_too(code: str) -> None:
    def function(number: int) -> int:
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    for dataset in (MapDataset.range(3), MapDataset.range(3).to_iter_dataset()):
        with pytest.raises(OSError, match=os.strerror(getattr(errno, code))):
            list(dataset.map(function).on_bad("skip", Exception))


@pytest.mark.parametrize(
    ("why", "is_unanswered"),
    [
        (f"x: Stale file handle (os error {errno.ESTALE})", True),
        ("x: Permission denied (os error 13)", True),
        ("Failed to open: x: Too many open files [os_error_code='24']", True),
        ("no memory for 4096 bytes", True),
        ("UNAUTHENTICATED: Error reading a/c/0: no token", True),
        ("DATA_LOSS: Error reading a/c/0: the checksum is wrong", False),
        ("x: Input/output error (os error 5)", False),  # a bad sector
        ("it ends before byte 24", False),
    ],
)
def test_messages_of_the_system(why: str, is_unanswered: bool) -> None:
    assert system_errors.says_unanswered(why) is is_unanswered
    error = damaged("a", "x.zarr", "record 1", why)
    assert error.is_unanswered is is_unanswered
    assert ('on_bad("skip")' in str(error)) is not is_unanswered
