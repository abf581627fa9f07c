"""Metrics: the numbers of stats in one flat dict."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.laid_out import pieced
from windrow import DatasetIterator, MapDataset
from windrow.errors import PlanError

RECORDS, CHUNK = 100, 10


def test_metrics_are_the_numbers_of_the_stats() -> None:
    iterator = iter(MapDataset.source(pieced(RECORDS, CHUNK)).map(np.negative).batch(10))
    before = iterator.metrics()
    assert before["elements"] == before["waited_share"] == 0.0
    list(iterator)
    stats, found = iterator.stats(), iterator.metrics()
    assert found["elements"] == 10
    assert found["records"] == RECORDS
    assert found["reads"] == RECORDS / CHUNK
    assert found["waited_s"] == stats.waited_s
    assert found["waited_share"] == stats.waited_s / stats.passed_s
    assert found["mapping_s"] == sum(stats.mapping_s.values()) > 0
    assert all(type(value) is float and math.isfinite(value) for value in found.values())


def test_no_sources_have_no_costs() -> None:
    iterator = iter(MapDataset.range(3))
    list(iterator)
    assert "reads" not in iterator.metrics()


def test_bad_records_are_counted_where_they_may_be() -> None:
    numbers = MapDataset.source(["1", "two", "3", "four"]).map(int)
    found = []
    for dataset in (numbers.on_bad("skip"), numbers.slice([0])):
        with iter(dataset) as iterator:
            list(iterator)
            found.append(iterator.metrics().get("bad_records"))
    assert found == [2, None]


class _Own(DatasetIterator[int]):
    def __next__(self) -> int:
        raise StopIteration

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> Any: ...


def test_iterators_of_users_have_none() -> None:
    with pytest.raises(PlanError, match="metrics: _Own is an iterator of your own"):
        _Own([iter(MapDataset.range(3))]).metrics()
