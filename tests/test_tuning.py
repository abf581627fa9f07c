"""`windrow.tune`: the number of workers, from rates that are known, and of a chain that runs."""

from __future__ import annotations

import itertools
import re
import types
from typing import Any

import pytest

import windrow
from windrow import MapDataset
from windrow.core.machine import usable_cores
from windrow.errors import ArgumentError, PlanError
from windrow.tuning import Measured, measured, tuned


def rates(*per_s: float) -> Any:
    """A function that measures so many elements per second, in the order of the calls."""
    left = list(per_s)
    return lambda workers, limit_s: Measured(round(left.pop(0) * limit_s), limit_s, is_over=False)


def test_the_smallest_number_that_is_nearly_the_best_is_chosen() -> None:
    found = tuned(rates(100, 98, 190, 390, 400), cores=8, seconds=50)
    assert (found.workers, dict(found.rates)) == (4, {0: 100, 1: 98, 2: 190, 4: 390, 8: 400})
    assert repr(found) == (
        "mp_prefetch(4): 3.9 times as fast as without workers\n"
        "  no workers: 100.0 elements/s\n"
        "  1 worker: 98.0 elements/s\n"
        "  2 workers: 190.0 elements/s\n"
        "  4 workers: 390.0 elements/s\n"
        "  8 workers: 400.0 elements/s"
    )


@pytest.mark.parametrize(
    ("cores", "numbers"), [(1, [0]), (2, [0, 1, 2]), (3, [0, 1, 2, 3]), (6, [0, 1, 2, 4, 6])]
)
def test_numbers_up_to_the_cores_share_the_time(cores: int, numbers: list[int]) -> None:
    asked: list[tuple[int, float]] = []

    def measure(workers: int, limit_s: float) -> Measured:
        asked.append((workers, limit_s))
        return Measured(10, 1.0, is_over=False)

    found = tuned(measure, cores, 12.0)
    assert asked == [(workers, 12.0 / len(numbers)) for workers in numbers]
    reason = "workers bring no more than a tenth" if cores > 1 else "this process may use one core"
    assert (found.workers, found.reason) == (0, reason)


@pytest.mark.parametrize("length", [0, 1, 30])
def test_a_short_dataset_needs_no_workers(length: int) -> None:
    found = windrow.tune(MapDataset.range(length).map(abs), seconds=60)
    assert (found.workers, list(found.rates)) == (0, [0])
    assert re.fullmatch(
        r"all elements came within [\d.]+ s; for many epochs tune dataset\.repeat\(\)", found.reason
    )


def test_data_that_ends_early_is_measured_from_its_first_element(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = itertools.count()
    clock = types.SimpleNamespace(perf_counter=lambda: next(seconds))
    monkeypatch.setattr("windrow.tuning.time", clock)
    # It has settled after 5 s, and 4 elements come later.
    assert measured(MapDataset.range(10), 0, 20.0) == Measured(9, 10, is_over=True)


def test_the_reason_says_that_the_data_ended_early() -> None:
    def measure(workers: int, limit_s: float) -> Measured:
        return Measured(10 + 30 * workers, 1.0, is_over=workers == 2)

    found = tuned(measure, 2, 12.0)
    assert found.workers == 2
    assert found.reason == (
        "7.0 times as fast as without workers; the data ended early with 2 workers, so tune"
        " dataset.repeat()"
    )


@pytest.mark.jobs
def test_a_chain_is_run_with_every_number() -> None:
    stream = MapDataset.range(1 << 40).map(lambda n: n + 1).to_iter_dataset()
    found = windrow.tune(stream, seconds=1.5)
    most = usable_cores()
    assert max(found.rates) == (most if most > 1 else 0)
    assert min(found.rates.values()) > 0
    assert found.workers in found.rates
    assert sum(stream.limit(10).mp_prefetch(found.workers)) == 55


def test_what_cannot_be_tuned_is_refused() -> None:
    dataset: Any = MapDataset.range(3)
    with pytest.raises(
        ArgumentError, match="tune: needs a MapDataset or an IterDataset, got a list"
    ):
        windrow.tune([1, 2])
    with pytest.raises(PlanError, match="tune: the chain has an mp_prefetch; give the dataset"):
        windrow.tune(dataset.map(abs).mp_prefetch("auto").batch(2))
    refused: tuple[Any, ...] = (0, -1.0, float("inf"), "10", True)
    for seconds in refused:
        with pytest.raises(ArgumentError, match="tune: seconds must be a number above 0, got"):
            windrow.tune(dataset, seconds)
