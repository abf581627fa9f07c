"""Packing of a stream: rows per second of first fit and best fit, as multiples of Grain's.

    python -m benchmarks.packing --documents 20000

Documents have log-normal lengths, and rows 2,048 cells; 64 rows are open. Both sides get documents that
are in memory, and take turns.
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

CELLS: Final = 2_048
OPEN_ROWS: Final = 64


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
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(argv)
    made = documents(given.documents)
    for method in ("first_fit", "best_fit"):
        took: dict[str, list[float]] = {"ours": [], "Grain": []}
        for _ in range(given.rounds):
            for name, side in sides(made, method).items():
                begun = time.perf_counter()
                rows = sum(1 for _ in side())
                took[name].append(time.perf_counter() - begun)
        ours, grains = (statistics.median(took[name]) for name in ("ours", "Grain"))
        print(
            f"{method}: {rows:,} rows of {CELLS:,}; ours {given.documents / ours:,.0f} documents/s,"
            f" Grain {given.documents / grains:,.0f}; {grains / ours:.2f} times"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
