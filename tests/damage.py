"""Damage in large numbers, in a process of its own: an end of it, a hang or a lot of memory is a failure."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES = 10_000
LIMIT_S = 1_800
MOST_BYTES = 1 << 28


def attack(module: str, folder: Path, cases: int = CASES, first: int = 0) -> dict[str, int]:
    """How often each outcome came, of `module.damaged_once` in another process.

    The process may take `LIMIT_S`, and `MOST_BYTES` more memory than its first cases.
    """
    program = (
        f"import pathlib, sys; from tests.damage import counted; from {module} import damaged_once\n"
        f"counted(damaged_once, pathlib.Path(sys.argv[1]), {first}, {cases})"
    )
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-3000:]}"
    found = dict(line.split(": ") for line in done.stdout.splitlines())
    counts = {outcome: int(count) for outcome, count in found.items()}
    assert counts.pop("more bytes") < MOST_BYTES
    assert sum(counts.values()) == cases
    return counts


def counted(
    damaged_once: Callable[[random.Random, Path], str], folder: Path, first: int, cases: int
) -> None:
    """Print how often each outcome came, and by how much the peak of memory grew."""
    counts: dict[str, int] = {}
    before = 0
    for seed in range(first, first + cases):
        try:
            outcome = damaged_once(random.Random(seed), folder)
        except BaseException:
            print(f"seed {seed} of {damaged_once.__module__}", file=sys.stderr)
            raise
        counts[outcome] = counts.get(outcome, 0) + 1
        if seed == first + cases // 100:
            before = _peak_bytes()
    print(f"more bytes: {_peak_bytes() - before}")
    for outcome, count in sorted(counts.items()):
        print(f"{outcome}: {count}")


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
