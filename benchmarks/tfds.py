"""`python -m benchmarks.tfds`: reading and building datasets of tfds, beside what others do.

Needs TensorFlow Datasets, TensorFlow and Grain (`make test-tfds` makes an environment that has them:
`.venv-tfds/bin/python -m benchmarks.tfds`). Each side is a process of its own, and they take turns in
every round. The table goes to stdout, and with `--page` between the marks of docs/measurements.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.figures import Figure, Run, command
from benchmarks.memory import bytes_of
from benchmarks.tfds_side import WAYS

_BUILDER: Final = Path(__file__).with_name("tfds_pictures.py")
# That of tfds_pictures, which needs tfds to be imported.
_EXAMPLES_VARIABLE: Final = "WINDROW_BENCHMARK_EXAMPLES"
_TFDS: Final = ("tensorflow_datasets.scripts.cli.main", "build")
_OURS: Final = ("windrow", "tfds-build")
_READ_EXAMPLES: Final = 50_000
_BUILT_EXAMPLES: Final = 200_000
_LOOK_S: Final = 0.1

FIGURES: Final = (
    Figure("reading", "times tfds.data_source under Grain", "times_grain", 5),
    Figure("reading", "of tf.data over TFRecord", "of_tf_data", 0.5),
    Figure("reading", "of reading the records alone", "of_floor", None),
    Figure("building", "times as long as tfds build alone", "times_alone", 1.3, most=True),
    Figure("building", "times as long as our command without Zarr", "times_without", None),
    Figure("building", "MB of memory at most", "peak_mb", 600, most=True),
    Figure("building", "MB of memory of tfds build alone", "alone_peak_mb", None),
)


def build(folder: Path, examples: int, module: Sequence[str], *flags: str) -> dict[str, Any]:
    """Seconds that a build takes, its process with it, and the most memory of it and its children.

    Raises:
        RuntimeError: If it failed; the message has the end of what it said.
    """
    shutil.rmtree(folder, ignore_errors=True)
    name, command = module
    words = (sys.executable, "-m", name, command, str(_BUILDER), "--data_dir", str(folder), *flags)
    environment = {**os.environ, _EXAMPLES_VARIABLE: str(examples), "TF_CPP_MIN_LOG_LEVEL": "2"}
    start_s = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            words,
            cwd=Path(__file__).parents[1],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        peak_bytes, cpu_s = _watched(process)
        took_s = time.perf_counter() - start_s
        if process.returncode:
            said.seek(0)
            end = said.read().decode(errors="replace")[-4000:]
            raise RuntimeError(f"benchmark: {' '.join(words)}: code {process.returncode}\n{end}")
    return {"s": round(took_s, 2), "cpu_s": round(cpu_s, 2), "peak_mb": round(peak_bytes / 1e6)}


def _watched(process: subprocess.Popen[bytes]) -> tuple[int, float]:
    """The most memory that a process and its children have until it ends, and its seconds of cores."""
    looked_at = psutil.Process(process.pid)
    ended = threading.Event()
    peaks = [0]

    def look() -> None:
        while not ended.wait(_LOOK_S):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                peaks.append(bytes_of(looked_at))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        _, status, usage = os.wait4(process.pid, 0)
    finally:
        ended.set()
        thread.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    # Between two looks it may have had more.
    return max(*peaks, usage.ru_maxrss << 10), usage.ru_utime + usage.ru_stime


def _built(folder: Path) -> str:
    """The one dataset under `folder`."""
    (found,) = folder.glob("*/*/dataset_info.json")
    return str(found.parent)


def reading(folder: Path, share: float) -> Mapping[str, Any]:
    """A round of all ways to read; ratios of the medians of their epochs."""
    examples = max(2 * 256, int(_READ_EXAMPLES * share))
    places = {}
    for form in ("array_record", "tfrecord"):
        place = folder / f"{form}-{examples}"
        if not place.exists():
            new = folder / "new"
            build(new, examples, _OURS, "--file_format", form)
            new.rename(place)
        places[form] = _built(place)
    found = {}
    for way in WAYS:
        command = ("benchmarks.tfds_side", way, places["array_record"], places["tfrecord"], "2")
        found[way] = _asked(command)
        if found[way]["examples"] != examples:
            raise RuntimeError(f"benchmark: {way}: {found[way]['examples']} of {examples} examples")
    per_s = {way: statistics.median(one["records_per_s"]) for way, one in found.items()}
    return {
        "examples": examples,
        "records_per_s": per_s,
        "settings": {way: one["setting"] for way, one in found.items()},
        "peak_mb": {way: one["peak_mb"] for way, one in found.items()},
        "times_grain": per_s["ours"] / per_s["grain"],
        "of_tf_data": per_s["ours"] / per_s["tf_data"],
        "of_floor": per_s["ours"] / per_s["floor"],
    }


def _asked(command: Sequence[str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"benchmark: {' '.join(command)}: failed\n{done.stderr[-4000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def building(folder: Path, share: float) -> Mapping[str, Any]:
    """A build by tfds alone, one by our command, and one that writes Zarr too."""
    examples = max(16, int(_BUILT_EXAMPLES * share))
    form = ("--file_format", "array_record")
    new = folder / "new"
    alone = build(new, examples, _TFDS, *form)
    without = build(new, examples, _OURS, *form)
    also = build(new, examples, _OURS, *form, "--also", "zarr")
    _check(_built(new), examples)
    shutil.rmtree(new)
    return {
        "examples": examples,
        "s": {"alone": alone["s"], "without": without["s"], "also zarr": also["s"]},
        "cpu_s": {
            "alone": alone["cpu_s"],
            "without": without["cpu_s"],
            "also zarr": also["cpu_s"],
        },
        "alone_peak_mb": alone["peak_mb"],
        "peak_mb": also["peak_mb"],
        "times_alone": also["s"] / alone["s"],
        "times_without": also["s"] / without["s"],
    }


def _check(folder: str, examples: int) -> None:
    from windrow.sources import TFDSDataSource, ZarrDataSource

    counts = len(TFDSDataSource(folder, split="train")), len(ZarrDataSource(f"{folder}/zarr/train"))
    if counts != (examples, examples):
        raise RuntimeError(f"benchmark: {counts} examples of {examples} in {folder}")


CASES: Final[Mapping[str, Run]] = {
    "reading": reading,
    "building": building,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases and print the table."""
    return command("tfds", __doc__, cases=CASES, figures=FIGURES, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
