"""Cost of a shuffled index: ours, Grain's one call per index, and the floor of a plain copy.

Run `python -m benchmarks.orders`; it prints one JSON line per case. Each case takes the offsets of
an epoch in blocks, as a reader that looks ahead does. `ratio_to_grain` is Grain's time over ours.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from grain.experimental import index_shuffle

from windrow.transforms import orders

_GRAIN_INDICES = 2_000


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """One epoch of `length` records, asked for in blocks of `block` offsets."""

    length: int
    block: int
    indices: int


CASES = (
    # The order is a table, made once per epoch: shows its cost over a short epoch.
    Case(length=50_000, block=65_536, indices=50_000),
    # The main case: the block of the network is nearly full, one pass suffices.
    Case(length=10**6, block=65_536, indices=10**6),
    # The same asked for in single batches: shows the cost of a call.
    Case(length=10**6, block=256, indices=65_536),
    # The network has 1.7 and 3.5 times as many states as there are records: cycles are walked.
    Case(length=10**7, block=65_536, indices=10**6),
    Case(length=300_000, block=65_536, indices=300_000),
    # Halves of 32 bits, twice as many states as records.
    Case(length=2**63 - 1, block=65_536, indices=10**6),
)
SMALL_CASES = (Case(length=1_000, block=256, indices=1_000), Case(10**6, 256, 1_000))


def run(*, small: bool = False, repeats: int = 5) -> list[dict[str, object]]:
    """Medians over `repeats` interleaved runs, each with another seed, after one warm-up."""
    return [_measure(case, repeats) for case in (SMALL_CASES if small else CASES)]


def _measure(case: Case, repeats: int) -> dict[str, object]:
    offsets = np.arange(case.indices, dtype=np.int64)
    blocks = [offsets[i : i + case.block] for i in range(0, case.indices, case.block)]
    few = offsets[:_GRAIN_INDICES].tolist()
    ours: list[float] = []
    theirs: list[float] = []
    floor: list[float] = []
    for seed in range(repeats + 1):
        ours.append(_seconds(functools.partial(_shuffle, blocks, case.length, seed)))
        theirs.append(_seconds(functools.partial(_grain_shuffle, few, case.length, seed)))
        floor.append(_seconds(functools.partial(_copy, blocks)))
    ours_ns = statistics.median(ours[1:]) / case.indices * 1e9
    grain_ns = statistics.median(theirs[1:]) / len(few) * 1e9
    floor_ns = statistics.median(floor[1:]) / case.indices * 1e9
    return {
        **dataclasses.asdict(case),
        "ns_per_index": round(ours_ns, 2),
        "grain_ns_per_index": round(grain_ns, 2),
        "ratio_to_grain": round(grain_ns / ours_ns, 1),
        "floor_ns_per_index": round(floor_ns, 3),
        "ratio_to_floor": round(ours_ns / floor_ns, 1),
    }


def _shuffle(blocks: list[npt.NDArray[np.int64]], length: int, seed: int) -> None:
    for block in blocks:
        orders.shuffled(block, length, seed)


def _grain_shuffle(offsets: list[int], length: int, seed: int) -> None:
    for offset in offsets:
        index_shuffle(offset, max_index=length - 1, seed=seed, rounds=4)


def _copy(blocks: list[npt.NDArray[np.int64]]) -> None:
    for block in blocks:
        block.copy()


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    for result in run():
        print(json.dumps(result))


if __name__ == "__main__":
    main()
