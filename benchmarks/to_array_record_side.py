"""TFRecord to ArrayRecord: ours, encoding alone, a bare loop, and the pipeline of array_record itself.

Encoding alone writes the same records from memory by the writer that ours uses, two files at a time on
its threads, and flushes each file to the disk as ours does.

The bare loop is our own reader, which checks all checksums, and ArrayRecordWriter, file by file, on
one thread or on as many as ours works on, whichever is faster: the writer holds the GIL. It neither
reads back nor syncs what it wrote; a second one syncs each file, as ours does. array_record's
pipeline is `array_record.beam.pipelines.convert_tf_to_arrayrecord_disk_match_shards`, patched in its
own process so that it runs: it imports TensorFlow and google-cloud-storage without a use for them
here, and gives Beam a number of files that Beam no longer takes.

Each runs in a process of its own, whose peak memory is measured.

    python -m benchmarks.to_array_record_side FOLDER [RECORDS]
"""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import shutil
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from windrow.converters import read_records, tfrecord_to_array_record, write_records
from windrow.converters.records.batch_writer import BatchWriter, options_of
from windrow.core.machine import usable_cores

RECORDS = 200_000
RECORD_BYTES = 3_072
FILES = 8
_WRITER_OPTIONS = "group_size:1,zstd:3"
_BATCH = 1_024


def make_source(folder: pathlib.Path, records: int) -> list[str]:
    """TFRecord files whose values compress by a quarter, unless they are there; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(folder / f"x.tfrecord-{at:05}-of-{FILES:05}") for at in range(FILES)]
    for at, path in enumerate(paths):
        if not os.path.exists(path):
            random = np.random.default_rng(at)
            count = records * (at + 1) // FILES - records * at // FILES
            rows = (random.integers(0, 64, RECORD_BYTES, dtype=np.uint8) for _ in range(count))
            write_records(f"{path}.new", (row.tobytes() for row in rows))
            os.rename(f"{path}.new", path)
    return paths


def ours(paths: list[str], output: pathlib.Path) -> None:
    """`tfrecord_to_array_record`, in process."""
    tfrecord_to_array_record(paths, output, writer_options=_WRITER_OPTIONS, progress=False)


def ours_by_processes(paths: list[str], output: pathlib.Path) -> None:
    """The same on two processes."""
    tfrecord_to_array_record(
        paths, output, writer_options=_WRITER_OPTIONS, progress=False, processes=2
    )


def encoder_alone(paths: list[str], output: pathlib.Path) -> float:
    """Seconds to write the records from memory by the writer that ours uses."""
    options = options_of(_WRITER_OPTIONS)
    if options is None:
        raise RuntimeError(f"benchmark: {_WRITER_OPTIONS!r} needs the package's writer")
    records = [list(read_records(path)) for path in paths]
    output.mkdir()

    def write(at: int) -> None:
        copy = _copied(paths[at], output)
        writer = BatchWriter(copy, options)
        for first in range(0, len(records[at]), _BATCH):
            writer.write(records[at][first : first + _BATCH])
        writer.close()
        with open(copy, "rb") as file:
            os.fsync(file.fileno())

    start_s = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(write, range(len(paths))))
    return time.perf_counter() - start_s


def bare(paths: list[str], output: pathlib.Path) -> None:
    """The loop, one file after the other."""
    output.mkdir()
    for path in paths:
        _copy(path, output)


def bare_synced(paths: list[str], output: pathlib.Path) -> None:
    """The loop, one file after the other, each flushed to the disk."""
    output.mkdir()
    for path in paths:
        with open(_copy(path, output), "rb") as file:
            os.fsync(file.fileno())


def bare_by_threads(paths: list[str], output: pathlib.Path) -> None:
    """The loop, a thread per file, on as many threads as ours works on."""
    output.mkdir()
    with concurrent.futures.ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(lambda path: _copy(path, output), paths))


def _copy(path: str, output: pathlib.Path) -> str:
    copy = _copied(path, output)
    writer = ArrayRecordWriter(copy, _WRITER_OPTIONS)
    for record in read_records(path):
        writer.write(record)
    writer.close()
    return copy


def _copied(path: str, output: pathlib.Path) -> str:
    return str(output / os.path.basename(path).replace("tfrecord", "array_record"))


def by_pipeline(paths: list[str], output: pathlib.Path) -> None:
    """array_record's own pipeline, in process."""
    for name in ("tensorflow", "google.cloud", "google.cloud.storage"):
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["google.cloud"].storage = sys.modules["google.cloud.storage"]  # type: ignore[attr-defined]
    given, sys.argv = sys.argv, sys.argv[:1]  # it parses them when it is imported
    from array_record.beam import pipelines

    sys.argv = given
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.portability.fn_api_runner import fn_runner

    # The number of files as a number: that of the pipeline Beam compares with 0, and fails.
    write = pipelines.arrayrecordio.WriteToArrayRecord
    pipelines.arrayrecordio.WriteToArrayRecord = lambda *given, num_shards, **more: write(
        *given, num_shards=len(paths), **more
    )
    output.mkdir()
    pattern = os.path.join(os.path.dirname(paths[0]), "*.tfrecord-*")
    args = {"input": pattern, "output": str(output / "x")}
    options = PipelineOptions(["--runner", f"{fn_runner.__name__}.FnApiRunner"])
    pipeline = pipelines.convert_tf_to_arrayrecord_disk_match_shards(args, options)
    pipeline.run().wait_until_finish()


# Each returns its seconds, or None if all of its time counts.
WAYS: tuple[Callable[[list[str], pathlib.Path], float | None], ...] = (
    ours,
    encoder_alone,
    ours_by_processes,
    bare,
    bare_synced,
    bare_by_threads,
    by_pipeline,
)


def in_process(way: str, paths: list[str], output: pathlib.Path) -> tuple[float, int]:
    """Seconds that one of `WAYS` takes in a process of its own, and the most memory it took."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_timed, args=(way, paths, str(output), there))
    process.start()
    there.close()
    took_s, peak_bytes = here.recv()
    process.join()
    return took_s, peak_bytes


def _timed(way: str, paths: list[str], output: str, told: Any) -> None:
    function: Callable[[list[str], pathlib.Path], float | None] = globals()[way]
    start_s = time.perf_counter()
    took_s = function(paths, pathlib.Path(output))
    if took_s is None:
        took_s = time.perf_counter() - start_s
    status = pathlib.Path("/proc/self/status").read_text()
    peak_kb = next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]
    told.send((took_s, int(peak_kb) << 10))


def measured(folder: pathlib.Path, records: int, *, repeats: int = 3) -> dict[str, Any]:
    """The best of some runs of each, in turns, as a line of JSON."""
    paths = make_source(folder / f"source-{records}", records)
    took_s: dict[str, float] = {}
    peak_bytes: dict[str, int] = {}
    for turn in range(repeats):
        for way in WAYS:
            if turn and way is by_pipeline:
                continue  # it takes as long as all others together
            output = folder / "output"
            shutil.rmtree(output, ignore_errors=True)
            one_s, peak = in_process(way.__name__, paths, output)
            _check(output, records)
            took_s[way.__name__] = min(one_s, took_s.get(way.__name__, one_s))
            peak_bytes[way.__name__] = max(peak, peak_bytes.get(way.__name__, 0))
    shutil.rmtree(output, ignore_errors=True)
    bare_s = min(took_s["bare"], took_s["bare_by_threads"])
    return {
        "records": records,
        "record_bytes": RECORD_BYTES,
        "records_per_s": {way: round(records / s) for way, s in took_s.items()},
        "peak_mb": {way: round(size / 1e6) for way, size in peak_bytes.items()},
        "of_encoder": round(took_s["encoder_alone"] / took_s["ours"], 3),
        "of_bare_loop": round(bare_s / took_s["ours"], 3),
        "of_synced_loop": round(took_s["bare_synced"] / took_s["ours"], 3),
        "times_pipeline": round(took_s["by_pipeline"] / took_s["ours"], 2),
    }


def _check(output: pathlib.Path, records: int) -> None:
    files = [path for path in output.iterdir() if "record" in path.name]
    found = sum(ArrayRecordReader(str(path)).num_records() for path in files)
    if found != records:
        raise RuntimeError(f"benchmark: {found} of {records} records in {output}")


def main() -> None:
    """Print one line."""
    folder = pathlib.Path(sys.argv[1])
    records = int(sys.argv[2]) if len(sys.argv) > 2 else RECORDS
    print(json.dumps(measured(folder, records)))


if __name__ == "__main__":
    main()
