"""`python -m benchmarks.cached_epochs`: second epochs from the cache on disk, beside the same files on a local disk.

A file of ArrayRecord and an array of Zarr, in a global shuffle over the server of `far_server`, at 20 ms a
request. Each round begins with an empty cache, which the first epoch fills. Then the second epoch, which compares
checksums where the format has none, and an epoch over the local files are timed, in turns. Ratios are of one round;
the table has the medians. Bytes from the network are those that the server was asked for in the second epoch.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts
from array_record.python import array_record_module

import windrow
from benchmarks.far import Server
from windrow.sources import ArrayRecordDataSource, RemoteOptions, ZarrDataSource

RECORD_BYTES = 3_000
ROW_FLOATS = 2_048
CHUNK_ROWS = 32
BATCH = 32
LATENCY_MS = 20.0
_SEED = 7

Opened = Callable[[str, RemoteOptions | None], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class CachedRound:
    """A second epoch from the cache, and an epoch over local files."""

    cached_per_s: float
    local_per_s: float
    network_bytes: int

    @property
    def ratio(self) -> float:
        """Records per second from the cache, per record per second from local files."""
        return self.cached_per_s / self.local_per_s


def write_records(path: Path, records: int) -> None:
    """A file of ArrayRecord with random records."""
    draw = np.random.default_rng(_SEED)
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1,zstd:3")
    for _ in range(records):
        writer.write(draw.bytes(RECORD_BYTES))
    writer.close()


def write_rows(path: Path, rows: int) -> None:
    """An array of Zarr with random rows, in chunks of 256 KiB."""
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
    store = ts.open(
        spec,
        create=True,
        dtype=np.float32,
        shape=(rows, ROW_FLOATS),
        chunk_layout=ts.ChunkLayout(write_chunk_shape=(CHUNK_ROWS, ROW_FLOATS)),
        codec=ts.CodecSpec({"driver": "zarr3", "codecs": ["zstd"]}),
    ).result()
    store[...] = np.random.default_rng(_SEED).random((rows, ROW_FLOATS), np.float32)


def epoch(source: Any, seed: int) -> float:
    """Read an epoch in a global shuffle; return records per second."""
    chain = windrow.MapDataset.source(source).shuffle(seed=seed).batch(BATCH).to_iter_dataset()
    began_s = time.perf_counter()
    records = sum(len(batch) for batch in chain)
    took_s = time.perf_counter() - began_s
    if records != len(source):
        raise RuntimeError(f"benchmark: {records:,} records of {len(source):,}")
    return records / took_s


def one_round(server: Server, folder: Path, name: str, opened: Opened, number: int) -> CachedRound:
    """Fill a cache, then time a second epoch and a local one."""
    options = RemoteOptions(cache_dir=folder / f"cache-{name}-{number}")
    cached, local = opened(f"{server.url}/{name}", options), opened(str(folder / name), None)
    epoch(cached, 2 * number)
    epoch(local, 2 * number)
    server.settle()
    server.reset()
    sides = [("cached", cached), ("local", local)]
    per_s = {
        side: epoch(source, 2 * number + 1)
        for side, source in (sides if number % 2 else sides[::-1])
    }
    return CachedRound(per_s["cached"], per_s["local"], server.served().bytes)


def table(rounds: dict[str, list[CachedRound]]) -> str:
    """The medians as lines of Markdown."""
    lines = [
        "| data | cached, records/s | local, records/s | ratio | bytes from the network |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, each in rounds.items():
        cached, local, ratio = (
            statistics.median(getattr(one, field) for one in each)
            for field in ("cached_per_s", "local_per_s", "ratio")
        )
        most = max(one.network_bytes for one in each)
        lines.append(f"| {name} | {cached:,.0f} | {local:,.0f} | {ratio:.2f} | {most:,} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cached_epochs")
    parser.add_argument("--small", action="store_true", help="a tiny run; its figures say nothing")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each format [5]")
    parser.add_argument("--records", type=int, default=60_000, help="of ArrayRecord [60,000]")
    parser.add_argument("--rows", type=int, default=16_384, help="of Zarr [16,384]")
    args = parser.parse_args(argv)
    if min(args.rounds, args.records, args.rows) < 1:
        parser.error("--rounds, --records and --rows must be at least 1")
    records, rows = (600, 128) if args.small else (args.records, args.rows)
    opened: dict[str, Opened] = {
        "ArrayRecord": lambda where, remote: ArrayRecordDataSource(where, remote=remote),
        "Zarr": lambda where, remote: ZarrDataSource(where, remote=remote),
    }
    with tempfile.TemporaryDirectory(prefix="windrow-cached-") as text:
        folder = Path(text)
        write_records(folder / "ArrayRecord", records)
        write_rows(folder / "Zarr", rows)
        server = Server(text, LATENCY_MS)
        try:
            rounds = {
                name: [one_round(server, folder, name, way, at) for at in range(args.rounds)]
                for name, way in opened.items()
            }
        finally:
            server.close()
    print(table(rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
