"""The benchmark of `from_grain`: a tiny run measures all cases, and both sides give the same batches."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import numpy as np
import pytest

import windrow
from benchmarks import from_grain

ALONE = [case for case in from_grain.CASES if case.make is not from_grain.two_workers]


# Grain's workers are started.
@pytest.mark.jobs
def test_a_tiny_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert from_grain.main(["--small"]) == 0
    found = [ast.literal_eval(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["case"] for each in found] == [case.name for case in from_grain.CASES]
    assert all(each["times"] >= 0 and each["windrow_batches_per_s"] > 0 for each in found)


@pytest.mark.parametrize("case", ALONE, ids=lambda case: case.make.__name__)
def test_both_sides_give_the_same_batches(case: from_grain.Case, tmp_path: Path) -> None:
    made = case.make(tmp_path, from_grain.SMALL_RECORDS)
    ours = list(itertools.islice(windrow.from_grain(made), 3))
    theirs = list(itertools.islice(made, 3))
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_equal(mine, other)
