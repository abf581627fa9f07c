"""`python -m benchmarks.slow_requests`: what second requests gain where 1% of the requests take 2 s.

One file of ArrayRecord on the server of `far_server`, read in a global shuffle with a request per record,
at 20 ms a request but for the slow ones: without second requests (`hedge=0`) and with them, in turns. The
floor is the same server without slow requests: on few cores it, too, is what bounds the gain. Bytes are those
that the server was asked for. The figures go to stdout as a table.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from array_record.python import array_record_module

import windrow
from benchmarks.far import Server
from windrow.sources import ArrayRecordDataSource, RemoteOptions

RECORD_BYTES = 3_000
BATCH = 32
LATENCY_MS = 20.0
SLOW_SHARE = 0.01
HEDGE = 0.02
_SEED = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """An epoch."""

    records_per_s: float
    bytes: int
    requests: int
    hedged: int


def write(path: Path, records: int) -> None:
    """A file of random records."""
    draw = np.random.default_rng(_SEED)
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for _ in range(records):
        writer.write(draw.bytes(RECORD_BYTES))
    writer.close()


def epoch(server: Server, name: str, hedge: float, seed: int) -> Run:
    """Read an epoch."""
    options = RemoteOptions(hedge=hedge, merge_gap_bytes=0)
    source = ArrayRecordDataSource(f"{server.url}/{name}", remote=options)
    chain = windrow.MapDataset.source(source).shuffle(seed=seed).batch(BATCH)
    server.reset()
    start_s = time.perf_counter()
    records = sum(len(batch) for batch in chain.to_iter_dataset())
    took_s = time.perf_counter() - start_s
    if records != len(source):
        raise RuntimeError(f"benchmark: {records:,} records of {len(source):,}")
    served, counts = server.served(), source.stats()
    return Run(records / took_s, served.bytes, served.requests, counts.get("hedged", 0))


def table(runs: dict[str, list[Run]]) -> str:
    """The medians as lines of Markdown, and their ratios."""
    lines = [
        "| second requests | records/s | bytes | requests | second ones |",
        "|---|---:|---:|---:|---:|",
    ]
    middle = {
        name: [
            statistics.median(getattr(run, f.name) for run in each) for f in dataclasses.fields(Run)
        ]
        for name, each in runs.items()
    }
    for name, values in middle.items():
        lines.append(f"| {name} | " + " | ".join(f"{value:,.0f}" for value in values) + " |")
    (off, off_bytes, *_), (on, on_bytes, *_) = middle["off"], middle["on"]
    of_floor = on / middle["none slow"][0]
    lines.append(
        f"{on / off:.2f} times the records/s, {on_bytes / off_bytes:.3f} times the bytes;"
        f" {of_floor:.2f} of the records/s where no request is slow."
    )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_requests")
    parser.add_argument("--small", action="store_true", help="a tiny run; its figures say nothing")
    parser.add_argument("--repeats", type=int, default=3, help="epochs of each [3]")
    parser.add_argument("--records", type=int, default=20_000, help="of the file [20,000]")
    args = parser.parse_args(argv)
    if min(args.repeats, args.records) < 1:
        parser.error("--repeats and --records must be at least 1")
    records, slow_ms = (400, 200.0) if args.small else (args.records, 2_000.0)
    with tempfile.TemporaryDirectory(prefix="windrow-slow-") as folder:
        write(Path(folder, "a.array_record"), records)
        server, floor = Server(folder, LATENCY_MS, SLOW_SHARE, slow_ms), Server(folder, LATENCY_MS)
        try:
            settings = {"off": (server, 0.0), "on": (server, HEDGE), "none slow": (floor, 0.0)}
            runs: dict[str, list[Run]] = {name: [] for name in settings}
            for seed in range(args.repeats):
                for name, (asked, hedge) in settings.items():
                    runs[name].append(epoch(asked, "a.array_record", hedge, seed))
        finally:
            server.close()
            floor.close()
    print(table(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
