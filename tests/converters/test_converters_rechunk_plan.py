"""The plan of a rechunking: never more memory than given, and no long search for it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.converters.zarr.rechunk_plan import Grids, plan_rechunk
from windrow.errors import ConversionError

MIB = 1 << 20


@st.composite
def grids(draw: st.DrawFn) -> Grids:
    rank = draw(st.integers(0, 3))

    def sizes(most: int, least: int = 1) -> tuple[int, ...]:
        return tuple(draw(st.integers(least, most)) for _ in range(rank))

    chunk = sizes(9)
    shift = tuple(draw(st.integers(0, c - 1)) for c in chunk)
    itemsizes = st.sampled_from((1, 4, 100_000))
    encoding = draw(st.sampled_from((1, 2 * MIB, 50 * MIB)))
    return Grids(sizes(20, 0), chunk, shift, sizes(9), draw(itemsizes), draw(itemsizes), encoding)


@given(grids(), st.integers(0, 100 * MIB))
def test_a_plan_stays_within_its_memory(grids: Grids, memory_bytes: int) -> None:
    try:
        plan = plan_rechunk(grids, memory_bytes, name="x")
    except ConversionError as error:
        assert memory_bytes < grids.least_bytes
        assert f"array 'x': {memory_bytes:,} bytes" in str(error)  # noqa: PT017
        assert f"at least {grids.least_bytes:,} bytes" in str(error)  # noqa: PT017
        return
    assert plan.memory_bytes <= memory_bytes
    sides = (plan.block, plan.between or plan.block)
    assert max(math.prod(side) for side in sides) * grids.itemsize <= plan.memory_bytes
    assert plan.decoders >= 1


def flat(shape: Any, chunk: Any, files: Any, itemsize: int = 4) -> Grids:
    return Grids(shape, chunk, (0,) * len(shape), files, itemsize, itemsize, 2 * MIB)


def test_planning_takes_no_longer_for_a_large_array() -> None:
    # 100 TB, and more chunks along an axis than could be inspected one by one.
    plan = plan_rechunk(flat((25_000_000_000, 1000), (1000, 1000), (64, 1000)), 350 * MIB)
    assert plan.amplification == pytest.approx(1.0, abs=0.1)
