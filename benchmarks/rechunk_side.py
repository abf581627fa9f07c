"""Rechunking: ours, and the floor of it, reading alone and writing alone.

Reading alone decodes every chunk of the source once; writing alone encodes and stores the same target
from values in memory. Both are TensorStore's, on all cores. Ours does both, in a process of its own
whose peak memory is measured.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import multiprocessing
import pathlib
import shutil
import sys
import time
from typing import Any

import numpy as np
import tensorstore as ts

from windrow.converters.zarr.layout import ArrayLayout
from windrow.converters.zarr.rechunk import zarr_to_zarr

_SLAB_BYTES = 64 << 20
_MEMORY_BYTES = 512 << 20


@dataclasses.dataclass(frozen=True)
class Case:
    """A source to rechunk for training: float32, chunks compressed by zstd."""

    name: str
    shape: tuple[int, ...]
    chunk: tuple[int, ...]

    def scaled(self, share: float) -> Case:
        """The same case with fewer records."""
        records = max(1, int(self.shape[0] * share))
        chunk = (min(self.chunk[0], records), *self.chunk[1:])
        return Case(self.name, (records, *self.shape[1:]), chunk)


CASES = (
    # Runs of time steps: a block of whole shards is a block of whole chunks.
    Case("one pass", (2048, 512, 512), (16, 512, 512)),
    # Columns of all time steps: any block of whole records touches every chunk.
    Case("two passes", (2048, 512, 512), (2048, 16, 16)),
)


def make_source(folder: pathlib.Path, case: Case) -> None:
    """Write the source of a case: values as of a measurement, which compress by half."""
    rng = np.random.default_rng(0)
    steps = rng.normal(size=(16, *case.shape[1:])).cumsum(axis=1)
    field = (np.round(steps * 8) / 64).astype(np.float32)
    values = np.empty(case.shape, np.float32)
    for first in range(0, case.shape[0], len(field)):
        part = values[first : first + len(field)]
        part[...] = field[: len(part)] + np.float32(first / 64)
    layout = ArrayLayout("", "float32", case.shape, case.chunk)
    _write(folder, layout, values)


def read_alone(source: pathlib.Path, case: Case) -> float:
    """Seconds to decode every chunk once."""
    start_s = time.perf_counter()
    array = ts.open({"driver": "zarr3", "kvstore": f"file://{source}/"}, open=True).result()
    lines = [range(0, n, c) for n, c in zip(case.shape, case.chunk, strict=True)]
    flying: list[Any] = []
    most = max(2, _SLAB_BYTES // (math.prod(case.chunk) * 4))
    for first in itertools.product(*lines):
        if len(flying) == most:
            flying.pop(0).result()
        cut = tuple(
            slice(f, min(f + c, n)) for f, c, n in zip(first, case.chunk, case.shape, strict=True)
        )
        flying.append(array[cut].read())
    for future in flying:
        future.result()
    return time.perf_counter() - start_s


def write_alone(source: pathlib.Path, output: pathlib.Path) -> float:
    """Seconds to encode and store the target from memory."""
    array = ts.open({"driver": "zarr3", "kvstore": f"file://{source}/"}, open=True).result()
    values = array.read().result()
    layout = target_layout(source)
    start_s = time.perf_counter()
    _write(output, layout, values)
    return time.perf_counter() - start_s


def target_layout(source: pathlib.Path) -> ArrayLayout:
    """The layout that ours chooses."""
    conversion = zarr_to_zarr.conversion(source, memory_bytes=_MEMORY_BYTES)
    work: Any = conversion.stages[-1].items
    found: ArrayLayout = work.__self__.jobs[0].converted.layout
    return found


def ours(source: pathlib.Path, output: pathlib.Path) -> tuple[float, int]:
    """Seconds to rechunk in a process of its own, and the most memory that it took."""
    context = multiprocessing.get_context("spawn")
    ours_end, theirs = context.Pipe()
    process = context.Process(target=_ours, args=(str(source), str(output), theirs))
    process.start()
    theirs.close()
    took_s, peak_bytes = ours_end.recv()
    process.join()
    return took_s, peak_bytes


def _ours(source: str, output: str, told: Any) -> None:
    start_s = time.perf_counter()
    zarr_to_zarr(source, output, memory_bytes=_MEMORY_BYTES, progress=False)
    took_s = time.perf_counter() - start_s
    status = pathlib.Path("/proc/self/status").read_text()
    peak_kb = next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]
    told.send((took_s, int(peak_kb) << 10))


def _write(folder: pathlib.Path, layout: ArrayLayout, values: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "zarr.json").write_text(json.dumps(layout.metadata()))
    spec = {
        "driver": "zarr3",
        "kvstore": f"file://{folder}/",
        "store_data_equal_to_fill_value": True,
    }
    array = ts.open(spec, open=True).result()
    rows = layout.file_shape[0]
    flying: list[Any] = []
    for first in range(0, layout.shape[0], rows):
        if len(flying) == 2:
            flying.pop(0).result()
        # In a transaction each shard is written once, not once per chunk.
        transaction = ts.Transaction()
        cut = slice(first, min(first + rows, layout.shape[0]))
        array.with_transaction(transaction)[cut].write(values[cut]).result()
        flying.append(transaction.commit_async())
    for future in flying:
        future.result()


def measured(folder: pathlib.Path, case: Case) -> dict[str, Any]:
    """One run of a case, as a line of JSON; the source is made if it is not there."""
    source = folder / f"source-{case.name.replace(' ', '-')}-{case.shape[0]}"
    if not source.exists():
        make_source(source, case)
    output, floor = folder / "ours", folder / "floor"
    for old in (output, floor):
        shutil.rmtree(old, ignore_errors=True)
    read_s = read_alone(source, case)
    write_s = write_alone(source, floor)
    took_s, peak_bytes = ours(source, output)
    return {
        "case": case.name,
        "megabytes": round(math.prod(case.shape) * 4 / 1e6),
        "read_alone_s": round(read_s, 2),
        "write_alone_s": round(write_s, 2),
        "ours_s": round(took_s, 2),
        "ratio": round((read_s + write_s) / took_s, 3),
        "peak_mb": round(peak_bytes / 2**20),
        "budget_mb": _MEMORY_BYTES >> 20,
    }


def main() -> None:
    """Run all cases in the folder given, at the share of the size given."""
    folder = pathlib.Path(sys.argv[1])
    share = float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
    for case in CASES:
        print(json.dumps(measured(folder, case.scaled(share))), flush=True)


if __name__ == "__main__":
    main()
