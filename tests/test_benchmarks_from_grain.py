"""The benchmark of `from_grain`: both sides give the same batches."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from benchmarks import from_grain
from benchmarks.harness import Case, Place

ALONE = [case for case in from_grain.CASES if "workers" not in case.name]


@pytest.mark.jobs
@pytest.mark.parametrize("case", ALONE, ids=lambda case: case.name)
def test_both_sides_give_the_same_batches(case: Case, tmp_path: Path) -> None:
    place = Place(tmp_path, small=True)
    case.write(place)
    ours, theirs = (list(itertools.islice(side.open(place), 3)) for side in case.sides)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_equal(mine, other)
