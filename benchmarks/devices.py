"""What processes with JAX devices read and hold.

A case runs one, two or four processes with virtual CPU devices on this machine. Bytes are those that
the system counts per process for reads of files, so the figures are the same on a busy machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.harness import OURS, Bound, Case, Metrics, Place, Regime, Side

ROOT: Final = Path(__file__).parents[1]
ROW: Final = 768  # cells of a row of 3 KB
_LIMIT_S: Final = 280
_part = functools.partial


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """How much is stored and read.

    Args:
        times, levels: Fields are `(times, levels, 720, 1440)` float32 in chunks of (1, 1, 91, 180).
        cells: Cells of the volume along each axis, uint8 in chunks of 32^3.
        patch: Cells of a patch along each axis, at most half of `cells`.
        rows: Rows of 3 KB, in chunks of 100.
    """

    times: int = 8
    levels: int = 4
    cells: int = 512
    patch: int = 128
    rows: int = 40_960


SMALL: Final = Sizes(times=1, levels=1, cells=128, patch=64, rows=8_192)


# --- data ----------------------------------------------------------------------------------------


def write(place: Place, folder: Path) -> None:
    """Write the stores of all cases."""
    import zarr

    folder.mkdir()
    sizes = SMALL if place.small else Sizes()
    rng = np.random.default_rng(0)
    (folder / "sizes.json").write_text(json.dumps(dataclasses.asdict(sizes)))
    shape = (sizes.times, sizes.levels, 720, 1440)
    fields = zarr.create_array(
        folder / "fields.zarr", shape=shape, chunks=(1, 1, 91, 180), dtype="f4"
    )
    for time in range(sizes.times):
        fields[time] = rng.integers(0, 1000, shape[1:]).astype("f4")
    volume = zarr.create_array(
        folder / "volume.zarr",
        shape=(sizes.cells,) * 3,
        chunks=(32,) * 3,
        dtype="u1",
        dimension_names=list("zyx"),
    )
    for first in range(0, sizes.cells, 32):
        volume[first : first + 32] = rng.integers(0, 16, (32, sizes.cells, sizes.cells), "u1")
    half = sizes.cells // 2
    corners = half * np.stack(np.meshgrid(*[[0, 1]] * 3, indexing="ij"), -1).reshape(-1, 3)
    # No chunk has cells of two patches, so that no patch finds chunks of another one.
    np.save(folder / "bounds.npy", corners + sizes.patch // 2)
    moved = rng.integers(0, half - sizes.patch + 1, corners.shape)
    np.save(folder / "random.npy", corners + moved + sizes.patch // 2)
    rows = np.round(rng.random((sizes.rows, ROW), "f4"), 2)
    zarr.create_array(folder / "rows.zarr", data=rows, chunks=(100, ROW))


def chunk_bytes(store: Path) -> dict[tuple[int, ...], int]:
    """Bytes of each stored chunk."""
    folder = store / "c"
    return {
        tuple(map(int, path.relative_to(folder).parts)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file()
    }


# --- processes -----------------------------------------------------------------------------------


def run(case: str, place: Place, count: int, devices: int) -> list[dict[str, Any]]:
    """The figures of each process of a case.

    Raises:
        RuntimeError: If one of them fails.
    """
    with contextlib.closing(socket.socket()) as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.devices_side", case, str(_folder(place))]
    started = [
        subprocess.Popen(
            [*command, *map(str, (index, count, devices, port))],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]
    try:
        ended = [process.communicate(timeout=_LIMIT_S) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, errors) in zip(started, ended, strict=True):
        if process.returncode:
            raise RuntimeError(f"benchmarks: a process of {case} failed:\n{errors[-3000:]}")
    return [json.loads(output.splitlines()[-1]) for output, _ in ended]


def _folder(place: Place) -> Path:
    return place.path("devices")


def of_fields(place: Place) -> Metrics:
    """4-D fields with latitude over two processes."""
    found, stored = run("fields", place, 2, 1), chunk_bytes(_folder(place) / "fields.zarr")
    touched = [
        [size for at, size in stored.items() if at[2] * 91 < stop and (at[2] + 1) * 91 > start]
        for start, stop in ((0, 360), (360, 720))
    ]
    pairs = list(zip(found, touched, strict=True))
    return {
        "bytes_of_those_touched": max(each["bytes"] / sum(own) for each, own in pairs),
        "other_chunks": max(each["chunks"] - len(own) for each, own in pairs),
    }


def of_volume(place: Place, *, kind: str) -> Metrics:
    """Patches of a volume, split over four processes."""
    (alone,) = run(f"volume:{kind}", place, 1, 4)
    found = [each["bytes"] / alone["bytes"] for each in run(f"volume:{kind}", place, 4, 1)]
    return {"bytes_of_all": sum(found), "bytes_of_one": max(found)}


def of_rows(place: Place, *, kind: str) -> Metrics:
    """Rows over four processes, by random access or in lanes."""
    sizes = json.loads((_folder(place) / "sizes.json").read_text())
    found = run(f"rows:{kind}", place, 4, 1)
    return {
        "reads_of_a_chunk": sum(each["reads"] for each in found) / -(-sizes["rows"] // 100),
        "explained": max(found[0]["explained"]),
        "lanes_advised": float("lanes" in found[0]["advice"]),
        "memory_of_allowed": max(each["peak_bytes"] / each["allowed_bytes"] for each in found),
    }


# --- cases ---------------------------------------------------------------------------------------


def _case(name: str, shows: str, side: Callable[[Place], Metrics], *bounds: Bound) -> Case:
    return Case(
        f"devices.{name}",
        shows,
        (Side(OURS, side, needs=("jax",)),),
        Regime.FIGURES,
        {"devices": write},
        bounds,
        rounds=1,
    )


def _volume(kind: str, most_all: float, most_own: float) -> Case:
    # Metadata and messages are bytes, too.
    return _case(
        f"volume, {kind}",
        f"patches of a volume, 2 x 2 over z and y in 4 processes, at {kind}",
        _part(of_volume, kind=kind),
        Bound("bytes of all, of one process alone", "bytes_of_all", at_most=1.01 * most_all),
        Bound("bytes of one, of one process alone", "bytes_of_one", at_most=1.01 * most_own),
    )


CASES: Final = (
    _case(
        "fields",
        "fields, latitude over 2 processes",
        of_fields,
        Bound("bytes read, of the chunks touched", "bytes_of_those_touched", at_most=1.05),
        Bound("other chunks", "other_chunks", at_most=0),
    ),
    _volume("bounds", 1.0, 0.25),
    _volume("random", 1.45, 0.37),
    _case(
        "rows",
        "rows of a block_shuffle over 4 processes, random access",
        _part(of_rows, kind="plain"),
        Bound("memory, of what is allowed", "memory_of_allowed", at_most=1),
        Bound("lanes advised", "lanes_advised", at_least=1),
    ),
    _case(
        "lanes",
        "the same in 8 lanes",
        _part(of_rows, kind="lanes"),
        Bound("reads of a chunk", "reads_of_a_chunk", at_most=1),
        Bound("memory, of what is allowed", "memory_of_allowed", at_most=1),
    ),
)
