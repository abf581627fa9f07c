"""Several processes with `jax.distributed` on this machine: each reads only what its devices hold."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 150
CHUNKS = 32


def free_port() -> int:
    with contextlib.closing(socket.socket()) as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def running(
    folder: Path, count: int, devices: int, what: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start processes of some devices each."""
    port = free_port()
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.devices.program", str(folder)]
            + [str(n) for n in (index, count, devices, port, what)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(count)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def run(folder: Path, count: int, devices: int, what: str = "all") -> list[dict[str, Any]]:
    """What `count` processes of some devices each have found."""
    with running(folder, count, devices, what) as started:
        said = [process.communicate(timeout=LIMIT_S)[0] for process in started]
    assert [process.returncode for process in started] == [0] * count, "\n".join(said)
    return [json.loads((folder / f"{n}-of-{count}.json").read_text()) for n in range(count)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    array = zarr.create_array(
        tmp_path / "rows.zarr", shape=(CHUNKS * 4, 8), chunks=(4, 8), dtype="f4", compressors=None
    )
    array[:] = np.arange(CHUNKS * 4 * 8).reshape(-1, 8)
    fields = zarr.create_array(
        tmp_path / "fields.zarr",
        shape=(8, 32, 6),
        chunks=(1, 4, 6),
        dtype="f4",
        dimension_names=("time", "lat", "lon"),
    )
    fields[:] = np.random.default_rng(0).normal(size=(8, 32, 6))
    return tmp_path


def check(folder: Path, count: int, devices: int, step: int) -> None:
    found, rows = run(folder, count, devices), list(range(64))
    cases = ("rows", "permuted", "replicated", "another axis", "stream", "chunks", "boxes", "host")
    for name in (*cases, "colocated", "some of each"):
        assert [each[name]["same"] for each in found] == [True] * count, name
    for each in found:
        assert [case["what"] for case in each["drawn"] if not case["same"]] == []
    assert sorted(n for each in found for n in each["evaluation"]["real"]) == rows[:-3]
    assert {each["evaluation"]["batches"] for each in found} == {4}
    for name in ("rows", "permuted", "some of each"):
        read = [each[name]["read"] for each in found]
        assert [len(own) for own in read] == [64 // count] * count
        assert sorted(n for own in read for n in own) == rows
    for name in ("replicated", "another axis"):  # once in each process, whatever its devices
        assert [each[name]["read"] for each in found] == [rows] * count
    # 8 chunks of latitudes lie in each of 8 fields; whole fields are read as 8 rows.
    expected = 64 // count if count > 1 else 8
    assert [each["boxes"]["chunks"] for each in found] == [expected] * count
    assert [each["boxes"]["explained"] for each in found] == [[expected] * count] * count
    check_streams(found, sum(path.stat().st_size for path in folder.glob("rows.zarr/c/*/*")))
    parts = [each["part"] for each in found]
    assert parts[0] == "True"
    assert all("none of the" in part and "belongs to this process" in part for part in parts[1:])
    check_step(found, step)


def check_step(found: list[dict[str, Any]], step: int) -> None:
    """All processes continued with the batches, the parameters and the lanes of a step."""
    steps = [each["checkpoint"] for each in found]
    assert [(each["same"], each["step"]) for each in steps] == [(True, step)] * len(found)
    assert [each.get("params", True) for each in steps] == [True] * len(found)
    assert all(("params" in each) == (step > 0) for each in steps)
    for index, each in enumerate(steps):
        assert each["lanes"] == lanes_of(index, len(found))


def lanes_of(index: int, count: int) -> list[int]:
    """The lanes of a process, of 8."""
    return list(range(index * 8 // count, (index + 1) * 8 // count))


def check_streams(found: list[dict[str, Any]], stored_bytes: int) -> None:
    count = len(found)
    ends = [each["stream"] for each in found]
    assert len({(end["batches"], end["end"], end["after"]) for end in ends}) == 1
    assert (ends[0]["end"], ends[0]["after"]) == (8 * ends[0]["batches"], 0)
    # Alone, processes would end at different batches: see `is_kept` of the program.
    kept = [sum(n % 8 == lane and (lane < 4 or n % 3 > 0) for n in range(64)) for lane in range(8)]
    alone = [min(kept[lane] for lane in lanes_of(index, count)) for index in range(count)]
    assert ends[0]["batches"] == min(kept)
    assert count == 1 or len(set(alone)) > 1
    for index, end in enumerate(ends):
        assert {n % 8 for n in end["read"]} == set(lanes_of(index, count))
    assert sum(each["chunks"]["chunks"] for each in found) == CHUNKS
    read = [each["chunks"]["bytes"] for each in found]
    assert sum(read) == stored_bytes  # each chunk by one process, once
    assert max(read) <= 1.1 * stored_bytes / count


@pytest.mark.jobs  # a part of `make test-brief`
def test_two_processes_and_then_one(folder: Path) -> None:
    check(folder, 2, 2, step=0)
    check(folder, 1, 4, step=1)


@pytest.mark.jobs
def test_four_processes_then_one_four_and_two(folder: Path) -> None:
    for step, (count, devices) in enumerate([(4, 2), (1, 2), (4, 1), (2, 4)]):
        check(folder, count, devices, step)


@pytest.mark.jobs
def test_eight_processes_after_one_of_four_died_in_a_save(folder: Path) -> None:
    check_step(run(folder, 4, 1, "checkpoint"), 0)
    with running(folder, 4, 1, "death") as started:
        assert started[-1].wait(LIMIT_S) == -signal.SIGKILL
    complete, *others = sorted(path.name for path in (folder / "steps").iterdir())
    assert complete == "1"
    assert len(others) == 1
    assert others[0].startswith("2.orbax-checkpoint-tmp")
    check_step(run(folder, 8, 1, "checkpoint"), 1)
