"""Lanes: what a stream of 64 lanes costs, as a multiple of the same stream of one lane.

    python -m benchmarks.lanes            ten rounds over a store of 400 MB
    python -m benchmarks.lanes --small    tiny data, to see that it runs

Rows of a Zarr array, shuffled in windows of 64 blocks, in batches of 256. Both streams take turns in one process,
each first in every other round. The CPU time is of the whole process: the loop, the reads and the
threads that decode. Every turn first delivers a quarter of an epoch that does not count.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import zarr
from zarr.codecs import ZstdCodec

import windrow
from benchmarks.figures import Figure, markdown
from benchmarks.steady_sides import noise
from windrow.sources import ZarrDataSource

MANY: Final = 64
BATCH: Final = 256
WINDOW_BLOCKS: Final = 64
NAME: Final = "64 lanes over 1"
FIGURES: Final = (
    Figure(NAME, "CPU time per GB, of one lane's", "cpu", 1.05, most=True),
    Figure(NAME, "GB/s, of one lane's", "speed", 0.95),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """A store of `chunks` chunks, of `chunk_rows` rows of `row_bytes` bytes each."""

    chunks: int
    chunk_rows: int
    row_bytes: int

    @property
    def batches(self) -> int:
        """Batches of an epoch."""
        return self.chunks * self.chunk_rows // BATCH


FULL: Final = Size(chunks=640, chunk_rows=256, row_bytes=2_560)
SMALL: Final = Size(chunks=128, chunk_rows=16, row_bytes=256)


def written(path: Path, size: Size) -> Path:
    """Rows that compress to about half."""
    rows, numbers = size.chunk_rows, size.row_bytes // 2
    array = zarr.create_array(
        path,
        shape=(size.chunks * rows, numbers),
        chunks=(rows, numbers),
        dtype="uint16",
        compressors=[ZstdCodec(level=1)],
    )
    for chunk in range(size.chunks):
        array[chunk * rows : (chunk + 1) * rows] = noise(rows, numbers, chunk)
    return path


def stream(path: Path, lanes: int) -> windrow.IterDataset[Any]:
    """Shuffled batches for ever."""
    chain = windrow.MapDataset.source(ZarrDataSource(path)).seed(1)
    return (
        chain.block_shuffle(window_blocks=WINDOW_BLOCKS)
        .repeat()
        .to_iter_dataset(lanes=lanes)
        .batch(BATCH)
    )


def timed(path: Path, lanes: int, batches: int) -> tuple[float, float]:
    """GB per second, and CPU seconds per GB, of some batches."""
    with iter(stream(path, lanes)) as iterator:
        for _ in itertools.islice(iterator, max(1, batches // 4)):
            pass  # threads and memory are there then
        begun, cpu = time.perf_counter(), time.process_time()
        gigabytes = sum(batch.nbytes for batch in itertools.islice(iterator, batches)) / 1e9
        took, used = time.perf_counter() - begun, time.process_time() - cpu
    return gigabytes / took, used / gigabytes


def measured(path: Path, batches: int, rounds: int) -> list[Mapping[str, float]]:
    """Round by round: what 64 lanes took as multiples of what one lane took, and both."""
    found: list[Mapping[str, float]] = []
    for number in range(rounds):
        order = (1, MANY) if number % 2 == 0 else (MANY, 1)
        took = {lanes: timed(path, lanes, batches) for lanes in order}
        (speed, cpu), (speed_of_one, cpu_of_one) = took[MANY], took[1]
        found.append(
            {
                "cpu": cpu / cpu_of_one,
                "speed": speed / speed_of_one,
                "cpu_s_per_gb": cpu,
                "cpu_s_per_gb_of_one": cpu_of_one,
                "gb_per_s": speed,
                "gb_per_s_of_one": speed_of_one,
            }
        )
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the ratios with their bounds."""
    parser = argparse.ArgumentParser(prog="benchmarks.lanes", description=__doc__)
    parser.add_argument("--small", action="store_true", help="a tiny run; its figures say nothing")
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args(argv)
    size, rounds = (SMALL, 2) if given.small else (FULL, given.rounds)
    with tempfile.TemporaryDirectory(prefix="windrow-lanes-") as folder:
        path = written(Path(folder) / "rows.zarr", size)
        timed(path, 1, size.batches)  # the file system has the store in memory then
        found = measured(path, size.batches, rounds)
    print(markdown(FIGURES, {NAME: found}))
    names = ("cpu_s_per_gb", "cpu_s_per_gb_of_one", "gb_per_s", "gb_per_s_of_one")
    many_cpu, one_cpu, many, one = (statistics.median(run[name] for run in found) for name in names)
    print(f"64 lanes: {many:.2f} GB/s, {many_cpu:.2f} CPU s per GB; one: {one:.2f}, {one_cpu:.2f}.")
    if given.small:
        print("A tiny run: its figures say nothing.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
