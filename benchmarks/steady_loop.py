"""A training loop of pure Python beside its batches: what the loader takes of its time."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any, Final

import windrow
from windrow.sources import ZarrDataSource

NAME: Final = "a training loop of 3 ms of Python per step"
STEP_S: Final = 3e-3
# Bytes of rows that a step takes: 0.25 GB/s.
_STEP_BYTES: Final = 750_000
_ROW_BYTES: Final = 3_024


def counted_for(seconds: float) -> int:
    """How far this machine counts in so many seconds: the same work in each step."""
    number, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < 0.5:
        for _ in range(1_000):
            number = number + 1
    return int(number * seconds / 0.5)


def step(count: int) -> None:
    """Pure Python that counts."""
    number = 0
    for _ in range(count):
        number = number + 1


def looped(batches: Any, count: int, steps: int) -> tuple[list[float], list[float]]:
    """The seconds of each step with the wait for its batch, and of the wait alone."""
    taken, waits = [], []
    for _ in range(steps):
        begun = time.perf_counter()
        if batches is not None:
            next(batches)
        waits.append(time.perf_counter() - begun)
        step(count)
        taken.append(time.perf_counter() - begun)
    return taken, waits


def table(path: Path, small: bool) -> str:
    """Steps alone and beside batches of rows in order, taking turns."""
    steps, rounds = (20, 1) if small else (400, 5)
    options = windrow.ReadOptions(resident_bytes=16 * 2**20)
    chain = windrow.MapDataset.source(ZarrDataSource(str(path))).repeat()
    count = counted_for(STEP_S)
    alone: list[float] = []
    beside: list[float] = []
    waits: list[float] = []
    with iter(chain.to_iter_dataset(options).batch(_STEP_BYTES // _ROW_BYTES)) as batches:
        looped(batches, count, 20)
        for _ in range(rounds):
            alone.append(statistics.mean(looped(None, count, steps)[0]))
            taken, waited = looped(batches, count, steps)
            beside.append(statistics.mean(taken))
            waits += waited
    more = statistics.median(b / a - 1 for a, b in zip(alone, beside, strict=True))
    last = statistics.quantiles(waits, n=20)[-1]
    return (
        f"#### {NAME}\n\nalone {statistics.median(alone) * 1e3:.2f} ms,"
        f" with batches {statistics.median(beside) * 1e3:.2f} ms ({more:+.1%});"
        f" 95 of 100 waits are below {last * 1e3:.2f} ms"
    )
