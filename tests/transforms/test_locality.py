"""Cells of axes, and what a promise of a map makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from windrow import MapDataset
from windrow.errors import ArgumentError, PlanError
from windrow.sources import ZarrDataSource
from windrow.sources.cells import Cells, whole


@pytest.mark.parametrize(
    "arguments",
    [
        {"local": "height"},
        {"local": 3},
        {"local": "lat", "halo": 1},
        {"local": "lat", "halo": {"lat": -1}},
        {"local": "lat", "halo": {"lat": 13}},
        {"local": "lat", "halo": {"lon": 1}},
        {"halo": {"lon": 1}},
        {"local": "lat", "wrap": "lon"},
    ],
)
def test_wrong_promises(fields: str, arguments: dict[str, Any]) -> None:
    dataset = MapDataset.source(ZarrDataSource(fields))
    with pytest.raises((ArgumentError, PlanError)):
        dataset.map(lambda element: element, **arguments)
    with pytest.raises((ArgumentError, PlanError)):
        dataset.to_iter_dataset().map(lambda element: element, **arguments)
    every: dict[str, Any] = {
        "local": ("lat", "lon"),
        "halo": {"lat": 12, "lon": 0},
        "wrap": ["lon"],
    }
    dataset.map(lambda element: element, **every)  # the largest halo


def test_cells_around_a_circle_become_the_whole_axis() -> None:
    around = Cells(10, 14, 12)
    assert around.grown(1, wrap=False) == around.joined(Cells(2, 3, 12)) == whole(12)
