"""ArrayRecord to Zarr: ours, and the floor of it, writing the same columns from memory.

Both floors write the layout that ours has chosen: by the encoder that ours uses, a shard on each of
two threads, and by TensorStore, a shard to a transaction. Files are flushed to the disk in all three.
Every measurement is in a process of its own.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import multiprocessing
import os
import pathlib
import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorstore as ts
from array_record.python import array_record_module

from windrow.converters import array_record_to_zarr, encode_example
from windrow.converters.zarr.layout import ArrayLayout, encode_rows, metadata_files
from windrow.converters.zarr.rows import Storage, shard_index
from windrow.sources.tf_example.features import Feature

_SIDE = 32
_FEATURES = {
    "image": Feature("uint8", (_SIDE, _SIDE, 3), raw=True),
    "label": Feature("int64"),
}
_FILES = 4
_THREADS = 2

Columns = Mapping[str, npt.NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class Case:
    """Records of 3 KB: a picture and a label each, as tf.train.Examples in ArrayRecord files."""

    records: int = 100_000
    writer_options: str = "group_size:1,zstd:3"

    def columns(self) -> Columns:
        """The records in memory: pictures that compress a little, all different."""
        rng = np.random.default_rng(0)
        steps = rng.integers(-2, 3, (min(self.records, 1000), _SIDE * _SIDE * 3))
        base = steps.cumsum(axis=1).astype(np.uint8).reshape(-1, _SIDE, _SIDE, 3)
        shifts = np.arange(-(-self.records // len(base)), dtype=np.uint8)
        images = (base[None] + shifts[:, None, None, None, None]).reshape(-1, _SIDE, _SIDE, 3)
        labels = np.arange(self.records, dtype=np.int64) % 10
        return {"image": images[: self.records], "label": labels}

    def layouts(self) -> tuple[ArrayLayout, ...]:
        """The layout that ours chooses."""
        return Storage().layouts(_FEATURES, 0, self.records)


def make_source(folder: pathlib.Path, case: Case) -> None:
    """Write the ArrayRecord files of a case. They are in the page cache afterwards."""
    columns = case.columns()
    folder.mkdir(parents=True)
    for number, rows in enumerate(np.array_split(np.arange(case.records), _FILES)):
        path = folder / f"x.array_record-{number:05}-of-{_FILES:05}"
        writer = array_record_module.ArrayRecordWriter(str(path), case.writer_options)
        for row in rows.tolist():
            image, label = columns["image"][row], columns["label"][row]
            writer.write(encode_example({"image": image.tobytes(), "label": int(label)}))
        writer.close()


def ours(source: pathlib.Path, output: pathlib.Path, case: Case) -> float:
    """Seconds that the conversion takes."""
    start_s = time.perf_counter()
    array_record_to_zarr(source, output, features=_FEATURES, progress=False)
    return time.perf_counter() - start_s


def encoder_alone(source: pathlib.Path, output: pathlib.Path, case: Case) -> float:
    """Seconds to write the columns from memory by the encoder that ours uses."""
    columns, layouts = case.columns(), case.layouts()
    start_s = time.perf_counter()
    for name, data in metadata_files(layouts).items():
        _store(output / name, data)
    shards = [
        (layout, first)
        for first in range(0, case.records, layouts[0].file_shape[0])
        for layout in layouts
    ]

    def write(shard: tuple[ArrayLayout, int]) -> None:
        layout, first = shard
        rows = columns[layout.name][first : first + layout.file_shape[0]]
        parts = list(encode_rows(layout, rows))
        lengths = [length for some, _ in parts for length in some]
        index = shard_index(lengths, layout.file_shape[0] // layout.chunk_shape[0])
        at = (first // layout.file_shape[0], *(0 for _ in layout.shape[1:]))
        _store(output / layout.key(at), b"".join([*(data for _, data in parts), index]))

    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(write, shards))
    return time.perf_counter() - start_s


def tensorstore_alone(source: pathlib.Path, output: pathlib.Path, case: Case) -> float:
    """Seconds to write the columns from memory by TensorStore."""
    columns, layouts = case.columns(), case.layouts()
    start_s = time.perf_counter()
    for name, data in metadata_files(layouts).items():
        _store(output / name, data)
    arrays = [
        ts.open(
            {
                "driver": "zarr3",
                "kvstore": f"file://{output / layout.name}/",
                "store_data_equal_to_fill_value": True,
            },
            open=True,
        ).result()
        for layout in layouts
    ]
    flying: list[Any] = []
    for first in range(0, case.records, layouts[0].file_shape[0]):
        for layout, array in zip(layouts, arrays, strict=True):
            if len(flying) == _THREADS:
                flying.pop(0).result()
            # In a transaction each shard is written once, not once per chunk.
            transaction = ts.Transaction()
            cut = slice(first, min(first + layout.file_shape[0], case.records))
            array.with_transaction(transaction)[cut].write(columns[layout.name][cut]).result()
            flying.append(transaction.commit_async())
    for future in flying:
        future.result()
    return time.perf_counter() - start_s


def _store(path: pathlib.Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


SIDES: Mapping[str, Callable[[pathlib.Path, pathlib.Path, Case], float]] = {
    "ours": ours,
    "encoder alone": encoder_alone,
    "tensorstore alone": tensorstore_alone,
}


def run_alone(
    side: str, source: pathlib.Path, output: pathlib.Path, case: Case
) -> dict[str, float]:
    """One run of one side in a process of its own: seconds, processor seconds, peak bytes."""
    shutil.rmtree(output, ignore_errors=True)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_run, args=(side, source, output, case, there))
    process.start()
    there.close()
    found: dict[str, float] = here.recv()
    process.join()
    return found


def _run(side: str, source: pathlib.Path, output: pathlib.Path, case: Case, told: Any) -> None:
    begin = time.process_time()
    took_s = SIDES[side](source, output, case)
    status = pathlib.Path("/proc/self/status").read_text()
    peak_kb = next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]
    peak = int(peak_kb) << 10
    told.send({"s": took_s, "cpu_s": time.process_time() - begin, "peak_bytes": peak})


def measured(folder: pathlib.Path, case: Case, *, rounds: int = 3) -> dict[str, Any]:
    """Medians of some rounds of all sides in turn, as a line of JSON.

    The source is made if it is not there. A ratio above 1 says that ours is faster.
    """
    name = case.writer_options.replace(":", "").replace(",", "-")
    source = folder / f"source-{case.records}-{name}"
    if not source.exists():
        make_source(source, case)
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(rounds):
        for side, runs in found.items():
            runs.append(run_alone(side, source, folder / "output", case))
    seconds = {side: statistics.median(run["s"] for run in runs) for side, runs in found.items()}
    return {
        "case": "array_record_to_zarr, fixed shapes",
        **dataclasses.asdict(case),
        "seconds": seconds,
        "cpu_seconds": {
            side: statistics.median(run["cpu_s"] for run in runs) for side, runs in found.items()
        },
        "peak_bytes": max(run["peak_bytes"] for run in found["ours"]),
        "ratio_to_encoder": seconds["encoder alone"] / seconds["ours"],
        "ratio_to_tensorstore": seconds["tensorstore alone"] / seconds["ours"],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--records", type=int, default=Case.records)
    parser.add_argument("--writer-options", default=Case.writer_options)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    case = Case(given.records, given.writer_options)
    print(json.dumps(measured(given.folder, case, rounds=given.rounds)))
