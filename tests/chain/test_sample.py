"""`sample` draws elements anew in each epoch, by a frozen rule, in proportion to weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import example, given
from hypothesis import strategies as st

from windrow import MapDataset
from windrow.errors import ArgumentError, PlanError
from windrow.sources import Window, WindowDataSource

M = MapDataset
MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15


def mixed(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def folded(key: int, word: int) -> int:
    return mixed((key ^ word) + GAMMA & MASK)


def drawn(seed: int, epoch: int, offset: int) -> int:
    """The rule in Python's integers."""
    key = folded(folded(0, seed), epoch % 2**32)
    return mixed(key + (offset + 1) * GAMMA & MASK)


@given(
    length=st.integers(1, 2**62 - 1),
    size=st.integers(1, 30),
    seed=st.integers(0, 2**32 - 1),
    index=st.integers(-(2**62), 2**62),
)
@example(length=2**62 - 1, size=1, seed=0, index=0)  # the longest range
def test_the_rule_is_frozen(length: int, size: int, seed: int, index: int) -> None:
    # People restore year-old checkpoints. Another rule needs another name.
    dataset = M.range(length).sample(size, seed)
    epoch, offset = divmod(index, size)
    assert dataset[index] == drawn(seed, epoch, offset) % length
    assert len(dataset) == size


@given(st.data())
def test_weights_are_proportions(data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.sampled_from([0, 1, 2, 0.1, 7.5]), min_size=1))
    if not any(weights):
        weights.append(1)
    found = M.range(len(weights)).sample(40, seed=5, weights=weights)
    sums = np.cumsum(weights, dtype="f8")
    for offset, element in enumerate(found):
        share = (drawn(5, 0, offset) >> 11) / 2**53 * sums[-1]
        assert element == next(k for k, top in enumerate(sums) if top > share)


def test_random_crops_of_a_volume(tmp_path: Path) -> None:
    volume = np.arange(16 * 12 * 12, dtype="i4").reshape(16, 12, 12)
    zarr.create_array(str(tmp_path / "v"), data=volume, chunks=(4, 4, 4))
    size = (4, 3, 3)
    places = WindowDataSource(tmp_path / "v", {k: Window(cells, 1) for k, cells in enumerate(size)})
    inside = np.zeros((13, 10, 10), np.bool_)
    inside[3:9, 2:5, 6:] = True
    crops = M.source(places).sample(50, seed=4, weights=inside)
    firsts = set()
    for batch in crops.repeat(2).batch(10):
        for crop in batch:
            z, y, x = np.unravel_index(int(crop[0, 0, 0]), volume.shape)
            assert inside[z, y, x]
            assert np.array_equal(crop, volume[z : z + 4, y : y + 3, x : x + 3])
            firsts.add((z, y, x))
    assert len(firsts) > 40
    with iter(crops.repeat(4).batch(50)) as batches:
        for _ in batches:
            pass
        (costs,) = batches.stats().sources
    assert costs.reads.high <= 48  # a chunk is read once for all crops that are planned together


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: M.range(3).sample(0, seed=1), PlanError),
        (lambda: M.range(3).sample(2), PlanError),
        (lambda: M.range(3).sample(2, seed=-1), PlanError),
        (lambda: M.range(0).sample(2, seed=1), PlanError),
        (lambda: M.range(3).repeat().sample(2, seed=1), PlanError),
        (lambda: M.range(3).sample(2, 1, weights=[1, 2]), ArgumentError),
        (lambda: M.range(2).sample(2, 1, weights=["a", "b"]), ArgumentError),
        (lambda: M.range(2).sample(2, 1, weights=[1, -2]), PlanError),
        (lambda: M.range(2).sample(2, 1, weights=[1, np.nan]), PlanError),
        (lambda: M.range(2).sample(2, 1, weights=[0, 0]), PlanError),
        (lambda: M.range(2).sample(2, 1, weights=[False] * 2), PlanError),
        (lambda: M.range(4).sample(2, seed=1).block_shuffle(seed=1), PlanError),
    ],
)
def test_errors(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call()
