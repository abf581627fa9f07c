"""The benchmark of processes with devices: what it counts is within the bounds."""

from __future__ import annotations

import pytest

from benchmarks import devices, measure
from benchmarks.harness import Case, Measured, Place, judged


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("devices"), small=True)


@pytest.mark.jobs
@pytest.mark.parametrize("case", devices.CASES, ids=lambda case: case.name)
def test_a_tiny_run_of_what_is_counted(case: Case, place: Place) -> None:
    case.write(place)
    found = measure.measured(case, case.side("ours"), "", place, 1)
    results = {"ours": Measured("", {}, (found,))}
    for bound in case.bounds:
        assert bound.is_met(judged(bound, results)[0]), (bound.what, found)
