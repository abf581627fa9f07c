"""In forked processes: an error that says what to do, where libraries would hang or abort."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.array_record_bytes import write
from windrow.core.native import native
from windrow.errors import ReadError
from windrow.sources import ArrayRecordDataSource, ZarrDataSource

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning"),
]

LIMIT_S = 60


def records_folder(folder: Path) -> Path:
    for shard in range(3):
        numbers = range(5 * shard, 5 * shard + 5)
        write(folder / f"{shard}.array_record", [b"%d" % number for number in numbers])
    return folder


def zarr_array(path: Path) -> Path:
    zarr.create_array(str(path), shape=(15,), dtype="i4", chunks=(4,))[...] = np.arange(15)
    return path


def in_forked_child(function: Callable[[], Any]) -> Any:
    """What `function` returns in a forked child, or the error that it raises there."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            sender.send(function())
        except BaseException as error:
            sender.send(error)
        finally:
            os._exit(0)
    sender.close()
    try:
        if not receiver.poll(LIMIT_S):
            pytest.fail(f"the forked child gave no answer in {LIMIT_S} s")
        return receiver.recv()  # raises an EOFError where the child was aborted
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[], Any]]:
    folder = tmp_path_factory.mktemp("fork")
    zarr_path, records_path = zarr_array(folder / "z"), records_folder(folder / "r")
    return {
        "TensorStore": lambda: ZarrDataSource(zarr_path),
        "array_record": lambda: ArrayRecordDataSource(records_path, direct=False),
    }


@pytest.mark.parametrize("library", ["TensorStore", "array_record"])
def test_a_source_of_the_parent_is_refused(
    sources: dict[str, Callable[[], Any]], library: str
) -> None:
    source = sources[library]()
    wanted = np.array([1, 14, 7, 2])
    before = source.__getitems__(wanted)
    sent = pickle.dumps(source)
    for read in (
        lambda: source.read(wanted),
        lambda: pickle.loads(sent).read(wanted),
        sources[library],
    ):
        error = in_forked_child(read)
        assert isinstance(error, ReadError)
        assert f"forked after process {os.getpid()} had used {library}" in str(error)
        assert "multiprocessing_context='spawn'" in str(error)
    assert source.__getitems__(wanted) == before


def test_the_native_core_reads_records_in_a_child(tmp_path: Path) -> None:
    if native() is None:
        pytest.skip("without the core a child is refused")
    source = ArrayRecordDataSource(records_folder(tmp_path / "r"))
    wanted = np.array([1, 14, 7, 2])
    expected = source.read(wanted)
    for _ in range(2):
        assert in_forked_child(lambda: source.read(wanted)) == expected
    assert source.read(wanted) == expected == [b"1", b"14", b"7", b"2"]


def test_a_child_forked_before_the_first_use_reads(tmp_path: Path) -> None:
    zarr_array(tmp_path / "z")
    script = (
        "import os, sys\n"
        "from windrow.sources import ZarrDataSource\n"
        "child = os.fork()\n"
        "source = ZarrDataSource(sys.argv[1])\n"
        "assert source.__getitems__([14, 3]) == [14, 3]\n"
        "if child:\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "z")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
