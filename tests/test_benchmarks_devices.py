"""The benchmark of processes with devices: its data, and that what it counts is within the bounds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import devices, measure
from benchmarks.harness import Case, Measured, Place, judged


def test_patches_share_no_chunk(tmp_path: Path) -> None:
    devices.write(Place(tmp_path, small=True), tmp_path / "devices")
    stored = devices.chunk_bytes(tmp_path / "devices" / "fields.zarr")
    assert len(stored) == 8 * 8
    assert min(stored.values()) > 0
    sizes = devices.SMALL
    for kind in ("bounds", "random"):
        first = np.load(tmp_path / "devices" / f"{kind}.npy") - sizes.patch // 2
        assert len(np.unique(first // 32, axis=0)) == 8
        assert first.min() >= 0
        # Chunks of 32 cells: the last one of a patch is in its own half of the volume.
        half = sizes.cells // 2
        assert np.array_equal(first // half, (first + sizes.patch - 1) // half)


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
