"""Steady state: epochs repeat, and the store is larger than the memory that may keep it.

    python -m benchmarks.steady               every case, sides in turn, medians
    python -m benchmarks.steady --page        the same, and write the tables into docs/measurements.md
    python -m benchmarks.steady --small       tiny data, to see that it runs
    python -m benchmarks.steady --cases NAME  cases whose names hold this

Each round runs all sides of a case for a while, one after the other, so a machine that is busy with
other work slows all of them. A side's figure is its bytes per second as a share of the floor of the
same round, and its CPU time per byte as a multiple of the floor's. Memory is the most that a process
of its own holds while it runs the side, less what it held before. The sides:

- floor: two threads that only decompress the same bytes from memory
- expert: a loop of thirty lines over TensorStore or the ArrayRecord reader, with as much memory; for
  windows with TensorStore's cache
- ours, and ours without the native core
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import (
    memory,
    steady_loop,
    steady_packed,
    steady_records,
    steady_windows,
    steady_zarr,
)
from benchmarks.figures import PAGE, placed
from benchmarks.report import table
from benchmarks.steady_sides import Batches, Case, Side, closed

CASES: Final[tuple[Case, ...]] = (
    *steady_zarr.CASES,
    *steady_packed.CASES,
    *steady_windows.CASES,
    *steady_records.CASES,
)
MIB: Final = 2**20
OURS: Final = "ours"
DEFAULT, OF_DEFAULT = "Grain, default", 12


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """Bounds of ours: the share of the floor, of the best peer's speed, and of the floor's CPU."""

    of_floor: float | None
    of_peer: float | None
    cpu: float | None


WANTED: Final[Mapping[str, Wanted]] = {
    "rows in order, batches of 240": Wanted(0.85, 1.4, 1.2),
    "rows in order, batches of 256": Wanted(0.85, 1.4, 1.2),
    "block shuffle, 16 chunks": Wanted(0.8, 1.4, 1.25),
    "block shuffle, 40 chunks": Wanted(0.8, 1.4, 1.25),
    "tokens, block shuffle, 4 chunks": Wanted(0.7, 1.4, 1.4),
    "tokens, block shuffle, 16 chunks": Wanted(0.65, 1.4, 1.4),
    # Two threads that decompress have no more CPU time left at 0.6 of their speed.
    "packed rows, block shuffle": Wanted(0.6, 15, 1.67),
    "shards, a row per inner chunk, global shuffle": Wanted(0.9, None, 1.2),
    "fields, all in memory, global shuffle": Wanted(None, 1.1, None),
    "fields, a quarter in memory, global shuffle": Wanted(None, 1.0, None),
    "patches, all in memory, global shuffle": Wanted(None, 1.1, None),
    "patches, a quarter in memory, global shuffle": Wanted(None, 1.0, None),
    "ArrayRecord, single records, global shuffle": Wanted(0.9, 2.5, 1.2),
    "ArrayRecord, a function per record, 30,000 records": Wanted(None, 5, None),
    "ArrayRecord, a function per record, 200,000 records": Wanted(None, 5, None),
    "ArrayRecord, groups of 256, block shuffle": Wanted(0.75, None, 1.35),
}


def timed(batches: Batches, seconds: float) -> tuple[float, float]:
    """GB per second, and CPU seconds per GB, over some seconds."""
    size, begun, cpu = 0, time.perf_counter(), time.process_time()
    while (took := time.perf_counter() - begun) < seconds:
        size += next(batches).nbytes
    return size / took / 1e9, (time.process_time() - cpu) / max(1, size) * 1e9


def measured(
    made: dict[str, Side], rounds: int, seconds: float
) -> dict[str, tuple[float, float, float]]:
    """Per side: GB per second, share of the floor, CPU as a multiple of the floor's."""
    shares: dict[str, list[tuple[float, float, float]]] = {name: [] for name in made}
    for _ in range(rounds):
        base = (0.0, 0.0)
        for name, side in made.items():
            with closed(side()) as batches:
                timed(batches, seconds / 4)  # threads and memory are there then
                found = timed(batches, seconds)
            base = found if name == "floor" else base
            shares[name].append((found[0], found[0] / base[0], found[1] / base[1]))
    return {
        name: (statistics.median(a), statistics.median(b), statistics.median(c))
        for name, runs in shares.items()
        for a, b, c in [tuple(zip(*runs, strict=True))]
    }


def _apart(function: Callable[..., None], *args: object) -> Any:
    """What the function puts into its last argument, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    answer = context.SimpleQueue()
    child = context.Process(target=function, args=(*args, answer))
    child.start()
    child.join()
    if child.exitcode:
        raise RuntimeError(f"steady: {function.__name__}{args} ended with {child.exitcode}")
    return answer.get()


def _grown(number: int, name: str, path: Path, seconds: float, answer: Any) -> None:
    side, watch = CASES[number].sides(path)[name], memory.Watch()
    with closed(side()) as batches:
        timed(batches, seconds)
    answer.put(watch.stop())


def grown_mib(number: int, name: str, path: Path, seconds: float) -> float:
    """The memory that a side of a case adds to a process of its own."""
    return float(_apart(_grown, number, name, path, seconds)) / MIB


def _looped(path: Path, small: bool, answer: Any) -> None:
    answer.put(steady_loop.table(path, small))


def loop_table(path: Path, small: bool) -> str:
    """What the training loop came to, in a process of its own: threads of other sides slow it."""
    return str(_apart(_looped, path, small))


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """What one side of a case came to; `grown_mib` is None for the floor."""

    side: str
    gb_per_s: float
    of_floor: float
    cpu_of_floor: float
    grown_mib: float | None


def rows_of(number: int, path: Path, rounds: int, seconds: float) -> list[Row]:
    """The sides of a case over its store."""
    found = measured(CASES[number].sides(path), rounds, seconds)
    return [
        # The floor has all frames in memory.
        Row(name, *figures, None if name == "floor" else grown_mib(number, name, path, seconds))
        for name, figures in found.items()
    ]


def best_peer(rows: Sequence[Row]) -> Row | None:
    """The quickest side that is neither the floor nor ours."""
    peers = [row for row in rows if row.side != "floor" and not row.side.startswith(OURS)]
    return max(peers, key=lambda row: row.gb_per_s, default=None)


def markdown(name: str, rows: Sequence[Row]) -> str:
    """The table of a case, and a line with what was wanted of ours."""
    cells = [
        (
            row.side,
            f"{row.gb_per_s:.2f}",
            f"{row.of_floor:.2f}",
            f"{row.cpu_of_floor:.2f}",
            "-" if row.grown_mib is None else f"{row.grown_mib:.0f}",
        )
        for row in rows
    ]
    heads = ("side", "GB/s", "of the floor", "CPU, of the floor's", "MiB of memory")
    return f"#### {name}\n\n{table(heads, cells, left=1)}\n{judged(name, rows)}"


def judged(name: str, rows: Sequence[Row]) -> str:
    """What was wanted of ours, and what came."""
    ours = next((row for row in rows if row.side == OURS), None)
    bounds, peer = WANTED.get(name), best_peer(rows)
    if ours is None or bounds is None:
        return ""
    found = []
    if bounds.of_floor is not None:
        found.append(("of the floor", ours.of_floor, bounds.of_floor))
    if peer is not None and bounds.of_peer is not None:
        found.append((f"of '{peer.side}'", ours.gb_per_s / peer.gb_per_s, bounds.of_peer))
    default = next((row for row in rows if row.side == DEFAULT), None)
    if default is not None:
        found.append((f"of '{DEFAULT}'", ours.gb_per_s / default.gb_per_s, OF_DEFAULT))
    lines = [f"{value:.2f} {what} (at least {least:g})" for what, value, least in found]
    if bounds.cpu is not None:
        lines.append(f"{ours.cpu_of_floor:.2f} of its CPU (at most {bounds.cpu:g})")
    if peer is not None and ours.grown_mib is not None and peer.grown_mib:
        lines.append(f"{ours.grown_mib / peer.grown_mib:.2f} of that peer's memory (at most 1.2)")
    return f"\nOurs: {', '.join(lines)}.\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table per case, and write them into the page if asked."""
    parser = argparse.ArgumentParser(prog="steady", description=__doc__)
    parser.add_argument("--small", action="store_true", help="tiny data, one short round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--cases", default="", help="only cases whose names hold this")
    parser.add_argument("--page", action="store_true", help="write into docs/measurements.md")
    asked = parser.parse_args(argv)
    rounds, seconds = (1, 0.1) if asked.small else (asked.rounds, asked.seconds)
    parts: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        paths: dict[str, Path] = {}
        for number, case in enumerate(CASES):
            if asked.cases not in case.name:
                continue
            if case.store not in paths:
                paths[case.store] = case.written(Path(folder) / case.store, asked.small)
            parts.append(markdown(case.name, rows_of(number, paths[case.store], rounds, seconds)))
            print(parts[-1], flush=True)
        if asked.cases in steady_loop.NAME:
            path = paths.get("rows") or steady_zarr.written_rows(Path(folder) / "rows", asked.small)
            parts.append(loop_table(path, asked.small))
            print(parts[-1])
    if asked.page:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(placed("\n".join(parts), page, "steady"), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
