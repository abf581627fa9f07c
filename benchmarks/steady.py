"""Steady state: epochs repeat, and the store is larger than the memory that may keep it.

    python -m benchmarks.steady               every case, sides in turn, medians
    python -m benchmarks.steady --small       tiny data, to see that it runs
    python -m benchmarks.steady --cases NAME  cases whose names hold this

Each round runs all sides of a case for a while, one after the other, so a machine that is busy with
other work slows all of them. A side's figure is its bytes per second as a share of the floor of the
same round, and its CPU time per byte as a multiple of the floor's. Memory is the most that a process
of its own holds while it runs the side, less what it held before. The sides:

- floor: two threads that only decompress the same bytes from memory
- expert: a loop of thirty lines over TensorStore or the ArrayRecord reader, with as much memory
- ours, and ours without the native core
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import memory, steady_loop, steady_records, steady_zarr
from benchmarks.steady_sides import Batches, Case, Side, closed

CASES: Final[tuple[Case, ...]] = (*steady_zarr.CASES, *steady_records.CASES)
MIB: Final = 2**20


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


def _grown(number: int, name: str, path: Path, seconds: float, answer: Any) -> None:
    side, watch = CASES[number].sides(path)[name], memory.Watch()
    with closed(side()) as batches:
        timed(batches, seconds)
    answer.put(watch.stop())


def grown_mib(number: int, name: str, path: Path, seconds: float) -> float:
    """The memory that a side of a case adds to a process of its own."""
    context = multiprocessing.get_context("spawn")
    answer = context.SimpleQueue()
    child = context.Process(target=_grown, args=(number, name, path, seconds, answer))
    child.start()
    child.join()
    if child.exitcode:
        raise RuntimeError(f"steady: {name} ended with {child.exitcode}")
    return float(answer.get()) / MIB


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table per case."""
    parser = argparse.ArgumentParser(prog="steady", description=__doc__)
    parser.add_argument("--small", action="store_true", help="tiny data, one short round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--cases", default="", help="only cases whose names hold this")
    asked = parser.parse_args(argv)
    rounds, seconds = (1, 0.1) if asked.small else (asked.rounds, asked.seconds)
    with tempfile.TemporaryDirectory() as folder:
        paths: dict[str, Path] = {}
        for number, case in enumerate(CASES):
            if asked.cases not in case.name:
                continue
            if case.store not in paths:
                paths[case.store] = case.written(Path(folder) / case.store, asked.small)
            path = paths[case.store]
            print(f"\n{case.name}\n{'':<24} GB/s  of floor  CPU   MiB")
            for name, (speed, share, cpu) in measured(case.sides(path), rounds, seconds).items():
                # The floor has all frames in memory.
                grown = "" if name == "floor" else f"{grown_mib(number, name, path, seconds):.0f}"
                print(f"{name:<24} {speed:4.2f}  {share:8.2f}  {cpu:4.2f}  {grown:>4}", flush=True)
        if asked.cases in steady_loop.NAME:
            path = paths.get("rows") or steady_zarr.written_rows(Path(folder) / "rows", asked.small)
            print(f"\n{steady_loop.table(path, asked.small)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
