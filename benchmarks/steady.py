"""Steady state: epochs repeat, and the store is larger than the memory that may keep it.

    python -m benchmarks.steady               every case, sides in turn, medians
    python -m benchmarks.steady --small       tiny data, to see that it runs

Each round runs all sides of a case for a while, one after the other, so a machine that is busy with other
work slows all of them. A side's figure is its bytes per second as a share of the floor of the same round,
and its CPU time per byte as a multiple of the floor's. The sides:

- floor: two threads that only decompress the same chunks from memory
- expert: a loop of thirty lines over TensorStore with as much memory
- ours, and ours without the native core
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import itertools
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import tensorstore as ts
import zarr
from numcodecs import Zstd
from zarr.codecs import ZstdCodec

import windrow
from windrow.core import native
from windrow.sources import ZarrDataSource

ROW_BYTES: Final = 3_024
CHUNK_ROWS: Final = 240
MIB: Final = 2**20
Batches: TypeAlias = Iterator[Any]
Side: TypeAlias = Callable[[], Batches]


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """An order of rows: in order, or shuffled in windows of some chunks."""

    name: str
    batch: int
    window: int = 0
    default_budget: bool = False

    @property
    def resident_bytes(self) -> int | None:
        """Two windows, or 16 MiB in order; None for the default."""
        if self.default_budget:
            return None
        return 2 * self.window * CHUNK_ROWS * ROW_BYTES if self.window else 16 * MIB


CASES: Final = (
    Case("rows in order, batches of 240", 240),
    Case("rows in order, batches of 256", 256),
    Case("block shuffle, 16 chunks", 256, 16),
    Case("block shuffle, 40 chunks", 256, 40),
    Case("block shuffle, 16 chunks, default budget", 256, 16, default_budget=True),
)


def written(folder: Path, chunks: int) -> Path:
    """An array of rows that compress to about half, in chunks of 240."""
    rows = CHUNK_ROWS * chunks
    array = zarr.create_array(
        folder / "rows",
        shape=(rows, ROW_BYTES // 2),
        chunks=(CHUNK_ROWS, ROW_BYTES // 2),
        dtype="uint16",
        compressors=[ZstdCodec(level=1)],
    )
    random = np.random.default_rng(0)
    for first in range(0, rows, CHUNK_ROWS):
        noise = random.normal(1000, 30, (CHUNK_ROWS, ROW_BYTES // 2))
        array[first : first + CHUNK_ROWS] = noise.astype(np.uint16)
    return folder / "rows"


def floor(path: Path) -> Batches:
    """Chunks decompressed on two threads; what is yielded has their sizes alone."""
    stored = [file.read_bytes() for file in sorted((path / "c").glob("*/0"))]
    results: collections.deque[int] = collections.deque()
    numbers, stop, came = itertools.count(), threading.Event(), threading.Semaphore(0)
    codec = Zstd()

    def work() -> None:
        out = np.empty(CHUNK_ROWS * ROW_BYTES, np.uint8)
        while not stop.is_set():
            codec.decode(stored[next(numbers) % len(stored)], out)
            results.append(out.nbytes)
            came.release()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        while True:
            came.acquire()
            yield np.broadcast_to(np.uint8(0), results.popleft())
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def opened(path: Path) -> ts.TensorStore:
    """The array without a cache of TensorStore's own."""
    spec = {
        "driver": "zarr3",
        "kvstore": f"file://{path}",
        "context": {"cache_pool": {"total_bytes_limit": 0}},
    }
    return ts.open(spec, recheck_cached_data=False, recheck_cached_metadata=False).result()


def joined(reads: Sequence[Any]) -> Any:
    """What some reads of TensorStore gave, as one array."""
    return np.concatenate([read.result() for read in reads])


def expert(path: Path, case: Case, ahead: int) -> Batches:
    """The loop that one would write over TensorStore."""
    store = opened(path)
    rows = store.shape[0]
    random = np.random.default_rng(3)
    waiting: collections.deque[Callable[[], Any]] = collections.deque()

    def spans() -> Iterator[Callable[[], Any]]:
        while True:
            if not case.window:
                for first in range(0, rows - case.batch + 1, case.batch):
                    yield store[first : first + case.batch].read().result
                continue
            chunks = random.permutation(rows // CHUNK_ROWS)
            for at in range(0, len(chunks), case.window):
                starts = (chunks[at : at + case.window] * CHUNK_ROWS).tolist()
                reads = [store[first : first + CHUNK_ROWS].read() for first in starts]
                yield functools.partial(joined, reads)

    for result in spans():
        waiting.append(result)
        if len(waiting) <= ahead:
            continue
        found = waiting.popleft()()
        if not case.window:
            yield found
            continue
        order = random.permutation(len(found))
        for first in range(0, len(found) - case.batch + 1, case.batch):
            yield np.take(found, order[first : first + case.batch], axis=0)


def ours(path: Path, case: Case, *, core: bool) -> Batches:
    """The same by Windrow."""
    os.environ["WINDROW_NATIVE"] = "1" if core else "0"
    native.native.cache_clear()
    source = ZarrDataSource(str(path))
    dataset = windrow.MapDataset.source(source).seed(1)
    if case.window:
        dataset = dataset.block_shuffle(window_blocks=case.window)
    options = windrow.ReadOptions(resident_bytes=case.resident_bytes)
    iterator = iter(dataset.repeat().to_iter_dataset(options).batch(case.batch))
    next(iterator)  # opens the source
    return iterator


def sides(path: Path, case: Case) -> dict[str, Side]:
    """The sides of a case, the floor first."""
    found: dict[str, Side] = {"floor": lambda: floor(path)}
    for ahead in (1, 2) if case.window else (3, 6):
        found[f"expert, {ahead} ahead"] = functools.partial(expert, path, case, ahead)
    found["ours"] = lambda: ours(path, case, core=True)
    found["ours, no core"] = lambda: ours(path, case, core=False)
    return found


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
            batches = side()
            timed(batches, seconds / 4)  # threads and memory are there then
            found = timed(batches, seconds)
            close = getattr(batches, "close", None)
            if close is not None:
                close()
            base = found if name == "floor" else base
            shares[name].append((found[0], found[0] / base[0], found[1] / base[1]))
    return {
        name: (statistics.median(a), statistics.median(b), statistics.median(c))
        for name, runs in shares.items()
        for a, b, c in [tuple(zip(*runs, strict=True))]
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table per case."""
    parser = argparse.ArgumentParser(prog="steady", description=__doc__)
    parser.add_argument("--small", action="store_true", help="tiny data, one short round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--cases", default="", help="only cases whose names hold this")
    asked = parser.parse_args(argv)
    chunks, rounds, seconds = (48, 1, 0.1) if asked.small else (800, asked.rounds, asked.seconds)
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), chunks)
        for case in CASES:
            if asked.cases in case.name:
                print(f"\n{case.name}\n{'':<20} GB/s  of floor  CPU")
                for name, (speed, share, cpu) in measured(
                    sides(path, case), rounds, seconds
                ).items():
                    print(f"{name:<20} {speed:4.2f}  {share:8.2f}  {cpu:4.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
