"""A fresh process for each measurement: nothing of another side is imported, memory is its own.

`python -m benchmarks.process tune|measure JOB` prints one line of JSON: the rates of all settings,
or figures.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import timing
from benchmarks.job import WHOLE, Job, Metrics, Options, Work

_LIMIT_S = 1.5
_TUNE_LIMIT_S = 0.4
_TUNE_PASSES = 2


def ask(what: str, job: Job) -> dict[str, Any]:
    """What a process of its own answers; for a tiny run, what this one does.

    Raises:
        RuntimeError: If it failed; the message has what it said.
    """
    if job.small:
        return _answered(what, job)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.process", what, job.dumps()],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        place = f"{job.module}, {job.layout}, {job.order}, {job.option or 'all settings'}"
        raise RuntimeError(f"benchmark: {place}: failed\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def opened(job: Job) -> Work:
    """What the side does for that job."""
    module = importlib.import_module(f"benchmarks.{job.module}")
    function: Callable[..., Work] = getattr(module, job.layout)
    if not job.option:
        return function(job)
    return function(job, settings(job)[job.option])


def settings(job: Job) -> Options:
    """The settings that the side has for that job, by name."""
    module = importlib.import_module(f"benchmarks.{job.module}")
    found: Options = module.options(job)
    return found


def _tuned(job: Job) -> dict[str, Any]:
    """Records per second of every setting over the first part of an epoch."""
    choices = settings(job)
    tried = dict.fromkeys(choices, 0.0)
    # Frameworks take seconds to start their processes, and what they differ in is not small.
    once = job.small or job.module in ("grain_side", "torch_side", "xbatcher_side")
    for _ in range(1 if once else _TUNE_PASSES):
        for name in choices if len(choices) > 1 else ():
            work = opened(dataclasses.replace(job, option=name))
            found = timing.rate(work, job, limit_s=_TUNE_LIMIT_S * _longer(job))
            tried[name] = max(tried[name], found)
    return {"tried": tried}


def _measured(job: Job) -> Metrics:
    if job.layout in WHOLE:
        module = importlib.import_module(f"benchmarks.{job.module}")
        found: Metrics = getattr(module, job.layout)(job)
        return found
    if job.layout == "start":
        return timing.of_starting(opened(job))
    limit_s = _LIMIT_S * _longer(job) if job.limit_s is None else job.limit_s
    return timing.measure(opened(job), job, limit_s=limit_s)


def _longer(job: Job) -> int:
    """With functions of milliseconds, batches of megabytes and latency it takes longer."""
    if job.is_remote_source:
        return 4
    return 2 if job.in_memory is not None or job.layout in ("fields", "patches") else 1


def _answered(what: str, job: Job) -> dict[str, Any]:
    return _tuned(job) if what == "tune" else {**_measured(job)}


def _main() -> int:
    print(json.dumps(_answered(sys.argv[1], Job.loads(sys.argv[2]))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
