"""Cells of axes, and what a promise of a map makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow import MapDataset
from windrow.errors import ArgumentError, PlanError
from windrow.sources import ZarrDataSource
from windrow.sources.cells import Cells, cut, whole


@st.composite
def some_cells(draw: st.DrawFn) -> Cells:
    size = draw(st.integers(1, 12))
    count = draw(st.integers(1, size))
    start = draw(st.integers(0, size - count))
    cells = Cells(start, start + count, size)
    return cells.grown(draw(st.integers(0, 3)), wrap=draw(st.booleans()))


@given(cells=some_cells(), halo=st.integers(0, 5), wrap=st.booleans())
def test_grown_cells_hold_the_cells(cells: Cells, halo: int, wrap: bool) -> None:
    values = np.arange(cells.size)
    own = cut(values, [cells], [whole(cells.size)])
    assert own.tolist() == [n % cells.size for n in range(cells.start, cells.stop)]
    grown = cells.grown(halo, wrap=wrap)
    assert len(grown) <= cells.size
    around = cut(values, [grown], [whole(cells.size)])
    assert cut(around, [cells], [grown]).tolist() == own.tolist()
    if not wrap and not cells.wraps:
        assert grown.start == max(0, cells.start - halo)
        assert grown.stop == min(cells.size, cells.stop + halo)


@given(one=some_cells(), data=st.data())
def test_joined_cells_hold_both(one: Cells, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, one.size - 1))
    other = Cells(start, data.draw(st.integers(start + 1, one.size)), one.size)
    joined = one.joined(other)
    values = cut(np.arange(one.size), [joined], [whole(one.size)])
    for each in (one, other):
        found = cut(values, [each], [joined])
        assert found.tolist() == [n % one.size for n in range(each.start, each.stop)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"local": "height"},
            r"local names 'height', and the elements have .*'lat', 'level', 'lon'",
        ),
        ({"local": 3}, r"local must be names of dimensions, got 3"),
        ({"local": "lat", "halo": 1}, r"halo must be a dict of cells by dimension"),
        ({"local": "lat", "halo": {"lat": -1}}, r"halo\['lat'\] must be at least 0, got -1"),
        ({"local": "lat", "halo": {"lat": 13}}, r"halo\['lat'\] is 13, and the axis has 12 cells"),
        (
            {"local": "lat", "halo": {"lon": 1}},
            r"halo names 'lon', which is not in local=\('lat',\)",
        ),
        ({"halo": {"lon": 1}}, r"halo names 'lon', which is not in local=\(\)"),
        ({"local": "lat", "wrap": "lon"}, r"wrap names 'lon', which is not in local"),
    ],
)
def test_wrong_promises(fields: str, arguments: dict[str, Any], message: str) -> None:
    dataset = MapDataset.source(ZarrDataSource(fields))
    with pytest.raises((ArgumentError, PlanError), match=message):
        dataset.map(lambda element: element, **arguments)
    with pytest.raises((ArgumentError, PlanError), match=message):
        dataset.to_iter_dataset().map(lambda element: element, **arguments)
    every: dict[str, Any] = {
        "local": ("lat", "lon"),
        "halo": {"lat": 12, "lon": 0},
        "wrap": ["lon"],
    }
    dataset.map(lambda element: element, **every)  # the largest halo
