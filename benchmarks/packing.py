"""Packing of a stream: documents per second of first fit and best fit, as multiples of Grain's.

    python -m benchmarks.packing            three rounds over 20,000 documents
    python -m benchmarks.packing --small    tiny data, to see that it runs

Documents have log-normal lengths, and rows 2,048 cells; 64 rows are open. Both sides get documents that
are in memory, and take turns. A ratio is taken within a round; their median is to be 3 or more.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

import windrow
from benchmarks.figures import Figure, markdown

CELLS: Final = 2_048
OPEN_ROWS: Final = 64
METHODS: Final = ("first_fit", "best_fit")
FIGURES: Final = tuple(
    Figure(method, "documents per second, of Grain's", "ratio", 3) for method in METHODS
)


def documents(count: int) -> list[dict[str, Any]]:
    """Documents of tokens, at most as long as a row."""
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(6, 1, count), 1, CELLS).astype(int)
    return [{"tokens": np.full(length, 1, np.int32)} for length in lengths]


def sides(made: Sequence[Any], method: str) -> dict[str, Callable[[], Iterable[Any]]]:
    """The rows of both sides."""
    import grain
    from grain import experimental

    node = {
        "first_fit": experimental.FirstFitPackIterDataset,
        "best_fit": experimental.BestFitPackIterDataset,
    }[method]
    struct = {"tokens": CELLS}

    def grains() -> Iterable[Any]:
        stream = grain.MapDataset.source(made).to_iter_dataset()
        packed: Iterable[Any] = node(stream, length_struct=struct, num_packing_bins=OPEN_ROWS)
        return packed

    def ours() -> Iterable[Any]:
        stream = windrow.MapDataset.source(made).to_iter_dataset()
        return stream.pack(struct, method, num_packing_bins=OPEN_ROWS)  # type: ignore[arg-type]

    return {"ours": ours, "Grain": grains}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="packing", description=__doc__)
    parser.add_argument("--small", action="store_true", help="a tiny run; its figures say nothing")
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(argv)
    count, rounds = (500, 1) if given.small else (given.documents, given.rounds)
    made = documents(count)
    found = {method: [_round(made, method) for _ in range(rounds)] for method in METHODS}
    for method, runs in found.items():
        ours, grains = (statistics.median(run[name] for run in runs) for name in ("ours", "Grain"))
        print(f"{method}: ours {count / ours:,.0f} documents/s, Grain {count / grains:,.0f}")
    print(markdown(FIGURES, found))
    if given.small:
        print("A tiny run: its figures say nothing.")
    return 0


def _round(made: Sequence[Any], method: str) -> dict[str, float]:
    """Seconds of either side, and the ratio."""
    took = {}
    for name, side in sides(made, method).items():
        begun = time.perf_counter()
        for _ in side():
            pass
        took[name] = time.perf_counter() - begun
    return {**took, "ratio": took["Grain"] / took["ours"]}


if __name__ == "__main__":
    sys.exit(main())
