"""One measurement of one side of a case, in this process.

    python -m benchmarks.measure MODULE CASE SIDE SETTING SECONDS FOLDER [small]

prints the metrics as one line of JSON, units in their names.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks import far
from benchmarks.harness import Case, Metrics, Place, Regime, Side

_ROOT: Final = Path(__file__).parents[1]
_CPU_TICK_S: Final = 1e-6
_MB, _GB = 10**6, 10**9


def ask(module: str, case: Case, side: str, setting: str, seconds: float, place: Place) -> Metrics:
    """What a process of its own measures; where data are tiny, what this one does.

    Raises:
        RuntimeError: If it failed; the message has the end of what it said.
    """
    if place.small:
        return measured(case, case.side(side), setting, place, seconds)
    words = (module, case.name, side, setting, str(seconds), str(place.folder))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.measure", *words],
        cwd=_ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"it failed\n{done.stderr[-4000:]}")
    answer: Metrics = json.loads(done.stdout.splitlines()[-1])
    return answer


def measured(case: Case, side: Side, setting: str, place: Place, seconds: float) -> Metrics:
    """The metrics of a side."""
    for package in side.needs:
        importlib.import_module(package)
    if not place.small:
        # What the imports left is not looked at again, and its garbage is not counted.
        gc.collect()
        gc.freeze()
    if case.regime is Regime.FIGURES:
        return {**side.opened(place, setting)}
    if case.regime is Regime.WHOLE:
        return _of_whole(side, setting, place)
    return _of_batches(case, side, setting, place, seconds)


def _of_whole(side: Side, setting: str, place: Place) -> Metrics:
    work = side.opened(place, setting)
    idle_bytes, clock = now_bytes(), Clock()
    records = work()
    wall_s, cpu_s = clock.stop()
    peaks = [peak_bytes(), *(peak_bytes(child.pid) for child in _children())]
    return {
        "seconds": wall_s,
        "records_per_s": records / wall_s,
        "cpu_s": cpu_s,
        "memory_mb": sum(max(0, peak - idle_bytes) for peak in peaks) / _MB,
        "peak_mb": peaks[0] / _MB,
    }


def _of_batches(case: Case, side: Side, setting: str, place: Place, seconds: float) -> Metrics:
    idle_bytes, found = now_bytes(), {}
    if case.regime is Regime.EPOCH:
        # Two batches of an epoch of its own load what is loaded on first use.
        begun_s = time.perf_counter()
        with closed(iter(side.opened(place, setting))) as batches:
            next(batches)
            found["first_batch_ms"] = (time.perf_counter() - begun_s) * 1e3
            next(batches, None)
    server = None
    if case.latency_ms is not None:
        server = far.serving(str(place.folder), case.latency_ms)
        server.settle(quick=place.small)
        server.reset()
    iterable = side.opened(place, setting)
    clock = Clock()
    with closed(iter(iterable)) as batches:
        _warm(case, batches, seconds, most=2 if place.small else case.warm)
        if case.warm or case.regime is Regime.STEADY:
            clock = Clock()
        count = records = size = 0
        is_cut = False
        for batch in batches:
            count += 1
            records += len(batch)
            size += size_of(batch)
            if time.perf_counter() - clock.begun_s > seconds:
                is_cut = True
                break
        wall_s, cpu_s = clock.stop()
        peaks = [peak_bytes(), *(peak_bytes(child.pid) for child in _children())]
        if server is not None:
            served = server.served()
            found["requests"] = served.requests
            found["requests_per_batch"] = served.requests / count
            found["received_per_byte"] = served.bytes / size
    if not is_cut:
        found["ended_after"] = records
    return found | {
        "records_per_s": records / wall_s,
        "mb_per_s": size / wall_s / _MB,
        "cpu_s_per_gb": max(cpu_s, _CPU_TICK_S) / max(1, size) * _GB,
        "memory_mb": sum(max(0, peak - idle_bytes) for peak in peaks) / _MB,
    }


def _warm(case: Case, batches: Iterator[Any], seconds: float, most: int) -> None:
    for _ in range(min(case.warm, most)):
        next(batches)
    if case.regime is Regime.STEADY and not case.warm:
        begun_s = time.perf_counter()
        while time.perf_counter() - begun_s < seconds * case.settle:
            next(batches)


def size_of(batch: Any) -> int:
    """Bytes of the values of a batch, which may be a list of numbers or of records."""
    if hasattr(batch, "nbytes"):
        return int(batch.nbytes)
    if isinstance(batch, dict):
        return sum(map(size_of, batch.values()))
    if isinstance(batch, list | tuple):
        return sum(len(each) if isinstance(each, bytes) else size_of(each) for each in batch)
    return 8


@contextlib.contextmanager
def closed(batches: Iterator[Any]) -> Iterator[Iterator[Any]]:
    """The batches, closed at the end where that is possible."""
    try:
        yield batches
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()


# --- what the system counts ----------------------------------------------------------------------


class Clock:
    """Seconds, and seconds of cores of this process and its children, since it was made."""

    def __init__(self) -> None:
        self._children_s = _children_cpu_s()
        self._cpu_s, self.begun_s = time.process_time(), time.perf_counter()

    def stop(self) -> tuple[float, float]:
        """Both. Looking at the children takes time, and comes first or last."""
        wall_s = time.perf_counter() - self.begun_s
        cpu_s = time.process_time() - self._cpu_s
        return wall_s, cpu_s + _children_cpu_s() - self._children_s


def _children_cpu_s() -> float:
    found = 0.0
    for child in _children():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            times = child.cpu_times()
            found += times.user + times.system
    return found


def _children() -> list[psutil.Process]:
    """Child processes that work for this one; the server of `far` stands for another machine."""
    servers = far.pids()
    return [
        child for child in psutil.Process().children(recursive=True) if child.pid not in servers
    ]


def peak_bytes(pid: int | None = None) -> int:
    """Most memory that a process has had resident so far, or since `now_bytes`.

    On Linux the kernel's mark of this program: `ru_maxrss` would begin with the memory of the process
    that started it. The mark of another process that cannot be had is 0.
    """
    try:
        status = Path(f"/proc/{pid or 'self'}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
    except (FileNotFoundError, ProcessLookupError):
        found = None
    if found is not None:
        return int(found[1]) * 1024
    if pid is not None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def now_bytes() -> int:
    """Memory now; the kernel's mark of the peak is set back to it, where that can be done."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return int(psutil.Process().memory_info().rss)


def main() -> int:
    """Print the line; what libraries print on stdout goes to stderr."""
    module, name, side, setting, seconds, folder, *small = sys.argv[1:]
    told = os.dup(1)
    os.dup2(2, 1)
    cases: dict[str, Case] = {c.name: c for c in importlib.import_module(module).CASES}
    case, place = cases[name], Place(Path(folder), bool(small))
    found = measured(case, case.side(side), setting, place, float(seconds))
    os.write(told, f"{json.dumps(found)}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
