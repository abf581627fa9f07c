"""Planned packing: how full rows are, and how fast they are planned, beside Grain's best fit.

    python -m benchmarks.planned_packing            every case
    python -m benchmarks.planned_packing --small    tiny data, to see that it runs

It prints one JSON line per case, and a table of what is wanted of them. Lengths are log-normal,
with a median of 665 tokens and a mean of 1,096. Both sides get the documents in pieces of at most a
row. Grain packs with 64 open rows, and its rows have their tokens. `bound` is the fill that no plan of
such plans can exceed: the last row of a plan is not full. The last case is the time of `records_of`
and `records_of_last` for a batch of 64 packed rows, in milliseconds: the median of 20 batches.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import grain
import numpy as np
import numpy.typing as npt
from grain.experimental import BestFitPackIterDataset

import windrow
from benchmarks.figures import Figure, markdown
from windrow.transforms.amounts import PackCounts
from windrow.transforms.nodes.packing import ENOUGH
from windrow.transforms.packing import TooLong, plan_rows

IntArray = npt.NDArray[np.int64]

_OPEN_ROWS = 64
_ROW, _BATCH = 2048, 64
_RECORDS: Final = f"a batch of {_BATCH} rows of {_ROW:,}"
_MEDIAN_LOG, _SPREAD = 6.5, 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """Windows of `window` documents in rows of `row_length` tokens, `rows` rows or more.

    Windows are planned together, up to `together` documents.
    """

    row_length: int
    window: int
    rows: int = 2000
    together: int = ENOUGH

    def __str__(self) -> str:
        return f"rows of {self.row_length:,}, windows of {self.window:,}"


CASES = (
    # Short rows: documents longer than a row are common.
    Case(2048, 1024),
    Case(2048, 16_384),
    # Long rows: the last row of a small window matters.
    Case(8192, 1024),
    Case(8192, 16_384),
)
SMALL_CASES = (Case(256, 64, 100, together=128), Case(2048, 128, 50, together=128))


def windows_of(case: Case) -> list[IntArray]:
    """Lengths of documents that are planned together, for as many rows as the case wants."""
    rng = np.random.default_rng(0)
    found: list[IntArray] = []
    tokens = 0
    while tokens < case.rows * case.row_length:
        count = case.window * max(1, case.together // case.window)
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


@dataclasses.dataclass(frozen=True, slots=True)
class _Documents:
    """Documents of zeros, made when they are asked for."""

    of_lengths: IntArray

    def __len__(self) -> int:
        return len(self.of_lengths)

    def __repr__(self) -> str:
        return "Documents()"

    def lengths(self) -> IntArray:
        return self.of_lengths

    def __getitem__(self, index: int) -> npt.NDArray[np.uint16]:
        return np.zeros(self.of_lengths[index], np.uint16)


def records_of(*, small: bool = False, batches: int = 20) -> dict[str, float]:
    """Milliseconds until the records of a batch of packed rows are known."""
    random = np.random.default_rng(0)
    count = 2_000 if small else 40_000
    lengths = np.maximum(1, random.lognormal(_MEDIAN_LOG, _SPREAD, count)).astype(np.int64)
    chain = windrow.MapDataset.source(_Documents(lengths)).shuffle(seed=1).repeat()
    stream = chain.pack(_ROW, window=ENOUGH).batch(_BATCH)
    stream.records_of(0)  # reads lengths, and imports
    of_index = [_ms(functools.partial(stream.records_of, number)) for number in range(batches)]
    of_last = []
    with iter(stream) as iterator:
        for _ in range(batches):
            next(iterator)
            of_last.append(_ms(iterator.records_of_last))
    return {
        "records_of_ms": round(statistics.median(of_index), 3),
        "records_of_last_ms": round(statistics.median(of_last), 3),
    }


def _ms(call: Callable[[], Sequence[Any]]) -> float:
    """The time of a call that names the records of a batch."""
    began = time.perf_counter()
    if len(call()) != _BATCH:
        raise RuntimeError("planned_packing: records_of named other records than the batch has")
    return 1000 * (time.perf_counter() - began)


def figures(cases: Sequence[Case]) -> list[Figure]:
    """What is wanted of the cases, and of `records_of`."""
    found = []
    for case in map(str, cases):
        found += [
            Figure(case, "fill", "fill", 0.995),
            Figure(case, "padding, of Grain's", "padding_of_grains", 0.333, most=True),
            Figure(case, "documents/s", "documents_per_s", 1e6),
            Figure(case, "documents/s, of Grain's", "ratio_to_grain", 20),
        ]
    for name in ("records_of", "records_of_last"):
        found.append(Figure(_RECORDS, f"{name}, ms", f"{name}_ms", 1, most=True))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print one JSON line per case, and the table."""
    parser = argparse.ArgumentParser(prog="benchmarks.planned_packing", description=__doc__)
    parser.add_argument("--small", action="store_true", help="a tiny run; its figures say nothing")
    given = parser.parse_args(argv)
    cases = SMALL_CASES if given.small else CASES
    found: dict[str, list[Mapping[str, Any]]] = {}
    for case, line in zip(cases, run(small=given.small), strict=True):
        print(json.dumps(line), flush=True)
        found[str(case)] = [line]
    times = records_of(small=given.small)
    print(json.dumps(times))
    print(markdown(figures(cases), {**found, _RECORDS: [times]}))
    if given.small:
        print("A tiny run: its figures say nothing.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
