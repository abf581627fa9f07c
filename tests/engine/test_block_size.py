"""How long rounds and blocks get."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from windrow.engine.read_batches import BlockSize

# Rows, bytes and seconds of the outcomes that come before the next block is begun.
_OUTCOMES = st.lists(
    st.tuples(st.integers(1, 1000), st.integers(0, 1 << 30), st.floats(0, 10)), max_size=5
)


@given(
    unit=st.integers(1, 50),
    most=st.integers(0, 5000),
    bursts=st.lists(_OUTCOMES, min_size=1, max_size=10),
)
def test_rows_grow_four_times_at_most_however_outcomes_come(
    unit: int, most: int, bursts: list[list[tuple[int, int, float]]]
) -> None:
    size = BlockSize(1 << 20, unit, most)
    given_rows = [size.next_rows()]
    for outcomes in bursts:
        for rows, size_bytes, took_s in outcomes:
            size.saw(rows, size_bytes, took_s)
        given_rows.append(size.next_rows())
    assert given_rows[0] == unit
    assert all(rows % unit == 0 for rows in given_rows)
    assert max(given_rows) <= max(unit, most)
    assert all(after <= 4 * before for before, after in itertools.pairwise(given_rows))


def test_rows_are_as_many_as_bytes_and_time_allow() -> None:
    size = BlockSize(1000, 1, 100_000)
    found = []
    for _ in range(6):
        found.append(rows := size.next_rows())
        for _ in range(3):
            size.saw(rows, 4 * rows, 0.0)
    assert found == [1, 4, 16, 64, 250, 250]
    size.saw(250, 0, 1.0)  # 0.1 s is what the loop waits at most
    assert size.next_rows() == 25
