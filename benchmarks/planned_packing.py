"""Planned packing: how full rows are, and how fast they are planned, beside Grain's best fit.

Run `python -m benchmarks.planned_packing`; it prints one JSON line per case. Lengths are log-normal,
with a median of 665 tokens and a mean of 1,096. Both sides get the documents in pieces of at most a
row. Grain packs with 64 open rows, and its rows have their tokens. `bound` is the fill that no plan of
such plans can exceed: the last row of a plan is not full.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Iterator

import grain
import numpy as np
import numpy.typing as npt
from grain.experimental import BestFitPackIterDataset

from windrow.transforms.amounts import PackCounts
from windrow.transforms.nodes.packing import ENOUGH
from windrow.transforms.packing import TooLong, plan_rows

IntArray = npt.NDArray[np.int64]

_OPEN_ROWS = 64
_MEDIAN_LOG, _SPREAD = 6.5, 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """Windows of `window` documents in rows of `row_length` tokens, `rows` rows or more."""

    row_length: int
    window: int
    rows: int = 2000


CASES = (
    # Short rows: documents longer than a row are common.
    Case(2048, 1024),
    Case(2048, 16_384),
    # Long rows: the last row of a small window matters.
    Case(8192, 1024),
    Case(8192, 16_384),
)
SMALL_CASES = (Case(256, 64, 100), Case(2048, 128, 50))


def windows_of(case: Case) -> list[IntArray]:
    """Lengths of documents that are planned together, for as many rows as the case wants."""
    rng = np.random.default_rng(0)
    found: list[IntArray] = []
    tokens = 0
    while tokens < case.rows * case.row_length:
        count = case.window * max(1, ENOUGH // case.window)
        lengths = np.maximum(1, rng.lognormal(_MEDIAN_LOG, _SPREAD, count)).astype(np.int64)
        found.append(lengths)
        tokens += int(lengths.sum())
    return found


def run(*, small: bool = False, repeats: int = 5) -> list[dict[str, object]]:
    """Medians over `repeats` runs after one warm-up; Grain runs once."""
    return [_measure(case, repeats) for case in (SMALL_CASES if small else CASES)]


def _measure(case: Case, repeats: int) -> dict[str, object]:
    windows = windows_of(case)
    documents = sum(map(len, windows))
    times = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        ours = _planned(windows, case)
        times.append(time.perf_counter() - began)
    ours_per_s = documents / statistics.median(times[1:])
    began = time.perf_counter()
    theirs = _fill(_grain_rows(windows, case), windows, case)
    grain_per_s = documents / (time.perf_counter() - began)
    needed = sum(-(-int(window.sum()) // case.row_length) for window in windows)
    return {
        **dataclasses.asdict(case),
        "fill": round(ours.fill, 5),
        "bound": round(ours.tokens / (needed * case.row_length), 5),
        "grain_fill": round(theirs, 5),
        "padding_of_grains": round((1 - ours.fill) / (1 - theirs), 3),
        "documents_per_s": round(ours_per_s),
        "grain_documents_per_s": round(grain_per_s),
        "ratio_to_grain": round(ours_per_s / grain_per_s, 1),
    }


def _planned(windows: list[IntArray], case: Case) -> PackCounts:
    counts = PackCounts()
    for number, lengths in enumerate(windows):
        counts += plan_rows(
            lengths,
            case.row_length,
            too_long=TooLong.SPLIT,
            most_pieces=None,
            window=case.window,
            seed=0,
            number=(0, number),
        ).counts
    return counts


def _grain_rows(windows: list[IntArray], case: Case) -> Iterator[npt.NDArray[np.int32]]:
    """Segment ids of the rows that Grain packs."""
    pieces = [
        {"x": np.ones(min(case.row_length, length - start), np.int32)}
        for window in windows
        for length in window.tolist()
        for start in range(0, length, case.row_length)
    ]
    stream = grain.MapDataset.source(pieces).to_iter_dataset(
        grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    )
    packed = BestFitPackIterDataset(
        stream, length_struct={"x": case.row_length}, num_packing_bins=_OPEN_ROWS
    )
    for row in packed:
        yield row["x_segment_ids"]


def _fill(rows: Iterator[npt.NDArray[np.int32]], windows: list[IntArray], case: Case) -> float:
    count = sum(1 for _ in rows)
    return sum(int(window.sum()) for window in windows) / (count * case.row_length)


def main() -> None:
    """Print one JSON line per case."""
    for line in run():
        print(json.dumps(line))


if __name__ == "__main__":
    main()
