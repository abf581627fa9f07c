"""Plans of rows: every token once, no overlap, and the same plan with and without the core."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hypothesis_profiles import examples
from windrow.core import native
from windrow.transforms import packing
from windrow.transforms.amounts import PackCounts
from windrow.transforms.packing import RowPlan, TooLong, plan_rows

IntArray = npt.NDArray[np.int64]


def planned(lengths: IntArray, row_length: int, **given: Any) -> RowPlan:
    settings_of = {"too_long": TooLong.SPLIT, "most_pieces": None, "seed": 3, "number": (0, 0)}
    settings_of["window"] = max(1, len(lengths))
    return plan_rows(lengths, row_length, **(settings_of | given))


def rows_of(plan: RowPlan) -> list[list[tuple[int, int, int, int]]]:
    """For each row its pieces: document, first token, length and place."""
    arrays = plan.documents, plan.starts, plan.lengths, plan.places
    pieces = list(zip(*(array.tolist() for array in arrays), strict=True))
    return [pieces[a:b] for a, b in itertools.pairwise(plan.bounds.tolist())]


# --- the rows ------------------------------------------------------------------------------------


def brute_force(pieces: list[int], row_length: int, most: int) -> list[int]:
    """The row of each piece, found by looking at all rows."""
    rows: list[list[int]] = []
    touched: list[int] = []
    found = [0] * len(pieces)
    for time, index in enumerate(sorted(range(len(pieces)), key=lambda k: -pieces[k])):
        room = [row_length - sum(pieces[k] for k in row) for row in rows]
        fits = [
            (room[r], -touched[r], r)
            for r in range(len(rows))
            if room[r] >= pieces[index] and len(rows[r]) < most
        ]
        row = min(fits)[2] if fits else len(rows)
        if row == len(rows):
            rows.append([])
            touched.append(0)
        rows[row].append(index)
        touched[row] = time
        found[index] = row
    return found


@given(
    pieces=st.lists(st.integers(1, 20), max_size=60),
    row_length=st.integers(20, 50),
    most=st.integers(1, 4) | st.just(2**32 - 1),
)
@settings(max_examples=examples(100))
def test_rows_are_those_of_a_brute_force_packer(
    pieces: list[int], row_length: int, most: int
) -> None:
    lengths = np.array(pieces, np.int64)
    wanted = brute_force(pieces, row_length, most)
    rows, count = packing.best_fit_in_python(lengths, row_length, most)
    assert rows.tolist() == wanted
    assert count == len(set(wanted))
    core = native.native()
    if core is not None:
        own = np.full(len(pieces), -1)
        assert core.pack_best_fit(lengths, row_length, most, own) == count
        assert own.tolist() == wanted


def test_a_window_without_tokens_has_no_rows() -> None:
    for lengths in (np.zeros(0, np.int64), np.zeros(3, np.int64)):
        plan = planned(lengths, 8)
        assert (plan.rows, plan.counts.empty) == (0, len(lengths))


@pytest.mark.parametrize("row_length", [2048, 8192])
@pytest.mark.parametrize("window", [1024, 16_384])
@pytest.mark.parametrize("median", [400, 1000])
def test_rows_are_full(row_length: int, window: int, median: int) -> None:
    rng = np.random.default_rng(0)
    counts = PackCounts()
    while counts.rows < 1000:
        lengths = rng.lognormal(np.log(median), 1.0, 16_384).astype(np.int64)
        counts += planned(lengths, row_length, window=window).counts
    assert counts.fill >= 0.998


def test_windows_come_in_order_and_leave_one_row_each_to_the_last() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 1000)
    windows = [
        {piece[0] // 100 for piece in row} for row in rows_of(planned(lengths, 64, window=100))
    ]
    before_last = windows[: next(k for k, own in enumerate(windows) if 9 in own or len(own) > 1)]
    numbers = [own.pop() for own in before_last]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(9))
    whole = [len(rows_of(planned(lengths[k : k + 100], 64))) for k in range(0, 900, 100)]
    assert [numbers.count(k) for k in range(9)] == [count - 1 for count in whole]


# --- counts --------------------------------------------------------------------------------------


def test_counts_say_what_was_lost() -> None:
    lengths = np.array([4, 0, 25, 12])
    assert planned(lengths, 10).counts.text() == (
        "4 documents of 41 tokens in 5 rows, 82.00% full; 2 split, of 37 tokens; 1 empty"
    )
    assert planned(lengths, 10, too_long=TooLong.TRUNCATE).counts.text() == (
        "4 documents of 41 tokens in 3 rows, 80.00% full; 2 truncated, which lost 17 tokens; 1 empty"
    )
    assert planned(lengths, 10, too_long=TooLong.DROP).counts.text() == (
        "4 documents of 41 tokens in 1 rows, 40.00% full; 2 dropped, of 37 tokens; 1 empty"
    )


# --- the core's own checks -----------------------------------------------------------------------


@pytest.mark.skipif(native.native() is None, reason="a test of the native core")
def test_the_core_refuses_what_would_leave_memory() -> None:
    core: Any = native.native()
    rows = np.zeros(2, np.int64)
    for lengths in ([0, 1], [1, 11], [-1, 1]):
        with pytest.raises(ValueError, match="lengths must be 1 to 10"):
            core.pack_best_fit(np.array(lengths), 10, 9, rows)
    with pytest.raises(ValueError, match="one for each length"):
        core.pack_best_fit(np.array([1, 1, 1]), 10, 9, rows)
    values, out = np.zeros(8, np.uint8), np.zeros(8, np.uint8)
    one = np.ones(1, np.int64)
    for start, place, length in ((0, 0, 9), (-1, 0, 1), (7, 0, 2), (0, 7, 2), (0, 2**62, 2**62)):
        with pytest.raises(ValueError, match="does not lie inside"):
            core.copy_runs(values, 1, one * start, one * place, one * length, out, False)
    twice = np.array([4, 1])
    for places in (twice, twice // 4):
        with pytest.raises(ValueError, match="overlap, or are not in order"):
            core.copy_runs(values, 1, twice * 0, places, twice, out, True)
    ids = np.zeros(4, np.int32)
    with pytest.raises(ValueError, match="does not lie inside"):
        core.number_runs(one * 3, one * 2, one, ids, ids.copy())
