"""The example of sharded training: its parts of batches are the batch. `make sharded` runs the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples import train_sharded as example
from windrow import IterDataset
from windrow.sources.cells import Boxes, Cells, whole
from windrow.transforms.nodes import narrowed

pytestmark = pytest.mark.jobs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sharded")
    example.write_era5(made)
    return made


def test_a_part_of_a_batch_is_read_and_scaled_alone(folder: Path) -> None:
    batches = example.era5_batches(folder)
    fields = ("x", "day_before", "y")
    grid = batches.element_spec
    boxes: Boxes = {
        (name,): (whole(16), whole(grid[name].shape[1]), Cells(16, 32, 32), whole(49))
        for name in fields
    }
    part: Any = IterDataset(narrowed(batches.to_iter_dataset()._node, boxes))
    with iter(batches) as expected, iter(part) as found:
        batch, south = next(expected), next(found)
        (costs,) = found.stats().sources
    for name in fields:
        np.testing.assert_array_equal(south[name], batch[name][:, :, 16:])
    np.testing.assert_array_equal(south["day"], batch["day"])
    assert costs.chunks.high <= 744 / 24 * 2  # 2 of 4 along latitude
