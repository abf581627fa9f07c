"""Packing: of a stream, and planned from lengths, beside Grain's first fit and best fit.

Lengths are log-normal. Grain packs with 64 open rows. `fill` is the share of the cells that have a
token, and `bound` the fill that no plan of such windows can exceed, since the last row is not full.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import windrow
from benchmarks.harness import OURS, Bound, Case, Metrics, Place, Regime, Side
from benchmarks.loops import Grain

IntArray = npt.NDArray[np.int64]

_OPEN_ROWS: Final = 64
_MEDIAN_LOG, _SPREAD = 6.5, 1.0
_CELLS: Final = 2_048
_TOGETHER: Final = 16_384  # documents that are planned at once

_part = functools.partial


# --- of a stream ---------------------------------------------------------------------------------


def _documents(place: Place) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(6, 1, place.size(20_000, 500)), 1, _CELLS).astype(int)
    return [{"tokens": np.full(length, 1, np.int32)} for length in lengths]


def our_stream(place: Place, *, method: Any) -> Callable[[], int]:
    """Documents in memory, packed."""
    made = _documents(place)
    stream = windrow.MapDataset.source(made).to_iter_dataset()
    packed = stream.pack({"tokens": _CELLS}, method, num_packing_bins=_OPEN_ROWS)
    return lambda: _done(packed, len(made))


def grain_stream(place: Place, *, node: str) -> Callable[[], int]:
    """The same in Grain."""
    import grain
    from grain import experimental

    made = _documents(place)
    stream = grain.MapDataset.source(made).to_iter_dataset()
    packed = getattr(experimental, node)(
        stream, length_struct={"tokens": _CELLS}, num_packing_bins=_OPEN_ROWS
    )
    return lambda: _done(packed, len(made))


def _done(packed: Any, documents: int) -> int:
    for _ in packed:
        pass
    return documents


def _of_a_stream(method: str, node: str) -> Case:
    sides = (
        Side(OURS, _part(our_stream, method=method)),
        Side("Grain", _part(grain_stream, node=node), needs=("grain",)),
    )
    bound = Bound("documents per second, of Grain's", over="Grain", at_least=3)
    shows = f"a stream, {method}, documents per second"
    return Case(f"packing.{method}", shows, sides, Regime.WHOLE, bounds=(bound,))


# --- planned -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Windows of `window` documents in rows of `row` tokens, 2,000 rows or more."""

    row: int
    window: int

    def lengths(self, place: Place) -> list[IntArray]:
        """Lengths of documents that are planned together."""
        random, found, tokens = np.random.default_rng(0), [], 0
        together = place.size(_TOGETHER, 128)
        window = min(self.window, together)
        while tokens < place.size(2_000, 50) * self.row:
            count = window * (together // window)
            lengths = random.lognormal(_MEDIAN_LOG, _SPREAD, count)
            found.append(np.maximum(1, lengths).astype(np.int64))
            tokens += int(found[-1].sum())
        return found

    def ours(self, place: Place) -> Metrics:
        """Ours."""
        from windrow.transforms.amounts import PackCounts
        from windrow.transforms.packing import TooLong, plan_rows

        windows = self.lengths(place)
        window = min(self.window, len(windows[0]))
        times = []
        for _ in range(place.size(6, 2)):  # the first one loads
            counts, begun_s = PackCounts(), time.perf_counter()
            for number, lengths in enumerate(windows):
                counts += plan_rows(
                    lengths,
                    self.row,
                    too_long=TooLong.SPLIT,
                    most_pieces=None,
                    window=window,
                    seed=0,
                    number=(0, number),
                ).counts
            times.append(time.perf_counter() - begun_s)
        needed = sum(-(-int(lengths.sum()) // self.row) for lengths in windows)
        return {
            "fill": counts.fill,
            "bound": counts.tokens / (needed * self.row),
            "padding": 1 - counts.fill,
            "documents_per_s": sum(map(len, windows)) / statistics.median(times[1:]),
        }

    def grain(self, place: Place) -> Metrics:
        """Grain's best fit, of documents in pieces of at most a row."""
        import grain
        from grain.experimental import BestFitPackIterDataset

        windows = self.lengths(place)
        begun_s = time.perf_counter()
        pieces = [
            {"x": np.ones(min(self.row, length - start), np.int32)}
            for lengths in windows
            for length in lengths.tolist()
            for start in range(0, length, self.row)
        ]
        stream = Grain(0, 0).stream(grain.MapDataset.source(pieces))
        packed = BestFitPackIterDataset(
            stream, length_struct={"x": self.row}, num_packing_bins=_OPEN_ROWS
        )
        rows = sum(1 for _ in packed)
        fill = sum(int(lengths.sum()) for lengths in windows) / (rows * self.row)
        documents_per_s = sum(map(len, windows)) / (time.perf_counter() - begun_s)
        return {"fill": fill, "padding": 1 - fill, "documents_per_s": documents_per_s}


def _planned(row: int, window: int) -> Case:
    plan = Plan(row, window)
    return Case(
        f"planned.{row}, {window}",
        f"rows of {row:,} tokens, windows of {window:,} documents",
        (Side(OURS, plan.ours), Side("Grain", plan.grain, needs=("grain",))),
        Regime.FIGURES,
        bounds=(
            Bound("fill", "fill", at_least=0.995),
            Bound("padding, of Grain's", "padding", "Grain", at_most=0.333),
            Bound("documents/s", "documents_per_s", at_least=1e6),
            Bound("documents/s, of Grain's", "documents_per_s", "Grain", at_least=20),
        ),
        rounds=1,
    )


CASES: Final = (
    _of_a_stream("first_fit", "FirstFitPackIterDataset"),
    _of_a_stream("best_fit", "BestFitPackIterDataset"),
    # Short rows: documents longer than a row are common.
    _planned(2_048, 1_024),
    _planned(2_048, 16_384),
    # Long rows: the last row of a small window matters.
    _planned(8_192, 1_024),
    _planned(8_192, 16_384),
)
