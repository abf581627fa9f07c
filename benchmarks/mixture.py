"""A mixture of many small stores: threads, memory and first batch, for 1 component and for 100.

Run `python -m benchmarks.mixture`; it prints one JSON line per case, each from a process of its own.
Shuffled stores of 2,000 records of 256 bytes are repeated and mixed by a `MapDataset` or an
`IterDataset`, with weights 1, 2, 3, ..., and batched by 64. `memory_mb` is the most resident memory
over what the process had once the stores were open; `threads` counts the threads of the operating system
while batches are made; `mb_per_component` and `more_threads` compare with the line of 1 component.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil

import windrow
from windrow import IterDataset, MapDataset

MIB = 1 << 20
_WIDTH = 64  # int32 of a record


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A mixture of `components` stores of one format, of `records` records each."""

    stored: Literal["zarr", "array_record"]
    mixed: Literal["map", "iter"]
    components: int = 100
    records: int = 2_000
    batches: int = 1_500


CASES = (
    # Streams: each has a planner of its own, and they share the budget.
    Case("zarr", "iter"),
    Case("array_record", "iter"),
    # Random access: one planner for all stores.
    Case("zarr", "map"),
    Case("array_record", "map"),
)
SMALL_CASES = (Case("zarr", "iter", components=3, records=20, batches=5),)


def run(cases: Sequence[Case] = CASES) -> list[dict[str, Any]]:
    """The facts of each case with 1 component and with all of them."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            paths = write_stores(Path(folder), case)
            one, many = (_in_a_process(case, paths[:n]) for n in (1, case.components))
            more = {
                "mb_per_component": round(
                    (many["memory_mb"] - one["memory_mb"]) / max(1, case.components - 1), 2
                ),
                "more_threads": many["threads"] - one["threads"],
            }
            found += [{**one, "components": 1}, {**many, **more}]
    return found


def write_stores(folder: Path, case: Case) -> list[str]:
    """Write the stores of a case, with 20 chunks or groups of records each."""
    import zarr
    from array_record.python.array_record_module import ArrayRecordWriter

    paths = []
    for number in range(case.components):
        path = str(folder / f"{case.stored}-{case.records}-{number}")
        paths.append(path)
        if Path(path).exists():
            continue
        rows = np.arange(case.records * _WIDTH, dtype=np.int32).reshape(-1, _WIDTH) + number
        if case.stored == "zarr":
            zarr.create_array(path, data=rows, chunks=(max(1, case.records // 20), _WIDTH))
            continue
        writer = ArrayRecordWriter(path, f"group_size:{max(1, case.records // 20)}")
        for row in rows:
            writer.write(row.tobytes())
        writer.close()
    return paths


def dataset(case: Case, paths: Sequence[str]) -> IterDataset[Any]:
    """The mixture of a case over some of its stores."""
    open_store: Any = windrow.sources.ZarrDataSource
    if case.stored == "array_record":
        open_store = windrow.sources.ArrayRecordDataSource
    parts = [MapDataset.source(open_store(path)).shuffle(seed=1).repeat() for path in paths]
    weights = list(range(1, len(parts) + 1))
    if case.mixed == "map":
        return MapDataset.mix(parts, weights).batch(64).to_iter_dataset()
    return IterDataset.mix([part.to_iter_dataset() for part in parts], weights).batch(64)


def measured(case: Case, paths: Sequence[str]) -> dict[str, Any]:
    """Iterate a mixture in this process, and return its facts."""
    process = psutil.Process()
    chain = dataset(case, paths)
    idle_bytes = most_bytes = process.memory_info().rss
    threads = 0
    began_s = time.perf_counter()
    with iter(chain) as iterator:
        next(iterator)
        first_s = time.perf_counter() - began_s
        for number in range(case.batches):
            next(iterator)
            if number % 50 == 0 or number == case.batches - 1:
                most_bytes = max(most_bytes, process.memory_info().rss)
                threads = max(threads, process.num_threads())
    return {
        **dataclasses.asdict(case),
        "first_batch_s": round(first_s, 3),
        "batches_per_s": round(case.batches / (time.perf_counter() - began_s - first_s)),
        "memory_mb": round((most_bytes - idle_bytes) / MIB, 1),
        "threads": threads,
    }


def _in_a_process(case: Case, paths: Sequence[str]) -> dict[str, Any]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measured, (case, paths))


def main() -> None:
    """Print the facts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mixture")
    parser.add_argument("--small", action="store_true", help="a few records, for the tests")
    for facts in run(SMALL_CASES if parser.parse_args().small else CASES):
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
