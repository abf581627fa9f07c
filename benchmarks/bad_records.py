"""`python -m benchmarks.bad_records`: how fast data are read of which 5% of the records are damaged.

Pictures of 64 x 64 in two copies of each store, one of them damaged, in a global shuffle: with `on_bad`,
a function that decodes, and batches. Epochs over both copies alternate. The speed counts all records of
the store, damaged or not. The figures go to stdout as a table, with the median of the ratios.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zarr
from array_record.python import array_record_module

import windrow
from windrow.sources import ArrayRecordDataSource, ZarrDataSource
from windrow.sources.array_record.files import index_local_file

SHAPE = 64, 64, 3
BATCH = 32
SHARE = 0.05
_SEED = 7


def _pictures(records: int) -> Any:
    draw = np.random.default_rng(_SEED)
    return (draw.integers(0, 256, SHAPE, np.uint8) for _ in range(records))


def _damaged(count: int) -> list[int]:
    """The numbers of damaged chunks, of `count`."""
    draw = np.random.default_rng(_SEED)
    return sorted(draw.choice(count, max(1, round(SHARE * count)), replace=False).tolist())


def array_record(folder: Path, records: int, group: int, *, damaged: bool) -> tuple[Any, int]:
    """A file of groups of records, and how many of them are lost."""
    path = folder / f"{group}-{damaged}.array_record"
    writer = array_record_module.ArrayRecordWriter(str(path), f"group_size:{group},uncompressed")
    for picture in _pictures(records):
        writer.write(picture.tobytes())
    writer.close()
    if not damaged:
        return ArrayRecordDataSource(str(path)), 0
    index = index_local_file(str(path)).index
    starts, stops = index.spans(np.arange(index.chunks))
    bad = _damaged(index.chunks)
    with open(path, "r+b") as file:
        for chunk in bad:
            middle = (int(starts[chunk]) + int(stops[chunk])) // 2
            file.seek(middle)
            byte = file.read(1)[0]
            file.seek(middle)
            file.write(bytes([byte ^ 0xFF]))
    lost = sum(min(group, records - chunk * group) for chunk in bad)
    return ArrayRecordDataSource(str(path)), lost


def zarr_array(folder: Path, records: int, rows: int, *, damaged: bool) -> tuple[Any, int]:
    """An array of chunks of rows, and how many of these are lost."""
    path = folder / f"{rows}-{damaged}.zarr"
    array = zarr.create_array(
        str(path), shape=(records, *SHAPE), chunks=(rows, *SHAPE), dtype="u1", compressors=None
    )
    array[:] = np.stack([*_pictures(records)])
    if not damaged:
        return ZarrDataSource(str(path)), 0
    bad = _damaged(-(-records // rows))
    for chunk in bad:
        stored = path / "c" / str(chunk) / "0" / "0" / "0"
        stored.write_bytes(stored.read_bytes()[:-7])
    return ZarrDataSource(str(path)), sum(min(rows, records - chunk * rows) for chunk in bad)


def decoded(record: Any) -> Any:
    """A picture as numbers."""
    picture = np.frombuffer(record, np.uint8).reshape(SHAPE) if type(record) is bytes else record
    return np.flip(picture.astype(np.float32) / 255, 1).copy()


STORES: dict[str, tuple[Callable[..., tuple[Any, int]], int]] = {
    "ArrayRecord, records alone": (array_record, 1),
    "ArrayRecord, groups of 4": (array_record, 4),
    "Zarr, chunks of a record": (zarr_array, 1),
    "Zarr, chunks of 4": (zarr_array, 4),
}


def epoch(
    source: Any, lost: int, action: Literal["skip", "replace"], workers: int, seed: int
) -> float:
    """Read an epoch; returns seconds."""
    chain = windrow.MapDataset.source(source).shuffle(seed=seed).map(decoded).on_bad(action)
    stream = chain.to_iter_dataset()
    if workers:
        stream = stream.mp_prefetch(workers)
    with iter(stream.batch(BATCH)) as iterator:
        iterator.start_prefetch()
        records = len(next(iterator))  # workers have started
        start_s = time.perf_counter()
        records += sum(map(len, iterator))
        took_s = time.perf_counter() - start_s
    if records != len(source) - (lost if action == "skip" else 0):
        raise RuntimeError(f"benchmark: {records:,} records of {len(source):,}, {lost:,} damaged")
    return took_s


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bad_records")
    parser.add_argument("--small", action="store_true", help="a tiny run; its figures say nothing")
    parser.add_argument("--repeats", type=int, default=7, help="epochs of each [7]")
    parser.add_argument("--records", type=int, default=20_000, help="of each store [20,000]")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2], help="processes [0 2]")
    args = parser.parse_args(argv)
    if min(args.repeats, args.records) < 1:
        parser.error("--repeats and --records must be at least 1")
    records, repeats, workers = args.records, args.repeats, args.workers
    if args.small:
        records, repeats, workers = 200, 1, [0]
    logging.getLogger("windrow.bad_records").setLevel(logging.ERROR)
    print("| store | on_bad | workers | records/s | of them 5% damaged | ratio |")
    print("|---|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(prefix="windrow-bad-") as folder:
        for name, (make, size) in STORES.items():
            copies = [make(Path(folder), records, size, damaged=d) for d in (False, True)]
            for action in ("skip", "replace"):
                for processes in workers:
                    took: list[list[float]] = [[], []]
                    for seed in range(repeats):
                        for which in (0, 1) if seed % 2 else (1, 0):
                            source, lost = copies[which]
                            took[which].append(epoch(source, lost, action, processes, seed))
                    speeds = [records / statistics.median(each) for each in took]
                    ratio = statistics.median(g / b for g, b in zip(*took, strict=True))
                    shown = " | ".join(f"{speed:,.0f}" for speed in speeds)
                    print(
                        f"| {name} | {action} | {processes} | {shown} | {ratio:.3f} |", flush=True
                    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
