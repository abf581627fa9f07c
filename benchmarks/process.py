"""A process per side, so that its peak memory is its own and nothing of another side is imported.

Protocol: the parent writes a line per round, the process answers each with a line of JSON; the end
of its input ends it. The parent asks the sides in turn, so that a busy moment of the machine meets
all of them; rounds that warm up are not counted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.setting import Setting
from benchmarks.timing import Metrics, Round

_MB = 10**6
_WATCH_S = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """One way to do the work of a case.

    Args:
        name: What it is called in results.
        module: The module of this folder that holds its function.
        function: Takes a setting, and `options` too where they are not None.
        options: A key of `SETTINGS` of the module.
        workers: Whether it has worker processes, whose memory counts too.
    """

    name: str
    module: str
    function: str
    options: str | None = None
    workers: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """What came out for a side: medians over the rounds, and its memory in MB (10**6 bytes).

    `peak_mb` is of the process and its workers; `above_imports_mb` is what of it came after the
    imports of that side.
    """

    medians: Metrics
    spreads: Metrics
    peak_mb: float
    above_imports_mb: float


class _Running:
    """The process of a side."""

    def __init__(self, side: Side, setting: Setting) -> None:
        self._side = side
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.process"],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._send(json.dumps({"side": dataclasses.asdict(side), "setting": setting.dumps()}))

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        # A side that failed has closed its end; what it said is shown when it is read from.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def round(self) -> Metrics:
        """One more round."""
        self._send("round")
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            self._errors.seek(0)
            raise RuntimeError(f"benchmark side {self._side} failed:\n{self._errors.read()}")
        metrics: Metrics = json.loads(answer)
        return metrics

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()


def measure(
    sides: Sequence[Side],
    setting: Setting,
    *,
    repeats: int,
    warm_ups: int = 1,
    said: Callable[[str], None],
) -> dict[str, Measured]:
    """Rounds of all sides in turn, those that warm up and `repeats` that count, by side's name."""
    running = {side.name: _Running(side, setting) for side in sides}
    rounds: dict[str, list[Metrics]] = {side.name: [] for side in sides}
    try:
        for number in range(1 - warm_ups, repeats + 1):
            for name, process in running.items():
                said(f"round {number} of {repeats}, {name}")
                rounds[name].append(process.round())
    finally:
        for process in running.values():
            process.close()
    return {name: _summed(found[warm_ups:]) for name, found in rounds.items()}


def _summed(rounds: Sequence[Metrics]) -> Measured:
    names = [name for name in rounds[0] if name not in ("peak_mb", "above_imports_mb")]
    medians = {name: statistics.median(metrics[name] for metrics in rounds) for name in names}
    spreads = {name: _spread([metrics[name] for metrics in rounds]) for name in names}
    return Measured(
        medians,
        spreads,
        max(metrics["peak_mb"] for metrics in rounds),
        max(metrics["above_imports_mb"] for metrics in rounds),
    )


def _spread(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / statistics.median(values)


# --- in the process of a side --------------------------------------------------------------------


def peak_bytes(pid: int | None = None) -> int:
    """Most memory that a process has had resident so far.

    On Linux the kernel's mark of this program: `ru_maxrss` would begin with the memory of the
    process that started it.

    Args:
        pid: Another process than this one; where its mark can not be had, the answer is 0.
    """
    status = Path(f"/proc/{pid or 'self'}/status")
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
    except (FileNotFoundError, ProcessLookupError):
        found = None
    if found is not None:
        return int(found[1]) * 1024
    if pid is not None:
        return 0
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class _Workers:
    """Peaks of this process's children, looked at while they live; a thread of its own."""

    def __init__(self) -> None:
        self.peaks: dict[int, int] = {}
        self._stop = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        this = psutil.Process()
        while not self._stop.wait(_WATCH_S):
            for child in this.children():
                self.peaks[child.pid] = max(self.peaks.get(child.pid, 0), peak_bytes(child.pid))

    def stop(self) -> list[int]:
        """Peak bytes of each child seen."""
        self._stop.set()
        return list(self.peaks.values())


def _serve() -> int:
    order = json.loads(sys.stdin.readline())
    side = Side(**order["side"])
    module = importlib.import_module(f"benchmarks.{side.module}")
    imported = peak_bytes()
    one_round = _opened(module, side, Setting.loads(order["setting"]))
    for _ in sys.stdin:
        gc.collect()  # else caches of the round before count too
        watched = _Workers() if side.workers else None
        metrics = one_round()
        peaks = [peak_bytes(), *(watched.stop() if watched else ())]
        metrics["peak_mb"] = sum(peaks) / _MB
        metrics["above_imports_mb"] = sum(max(0, peak - imported) for peak in peaks) / _MB
        print(json.dumps(metrics), flush=True)
    return 0


def _opened(module: types.ModuleType, side: Side, setting: Setting) -> Round:
    function: Callable[..., Round] = getattr(module, side.function)
    if side.options is None:
        return function(setting)
    settings: Mapping[str, object] = module.SETTINGS
    return function(setting, settings[side.options])


if __name__ == "__main__":
    sys.exit(_serve())
