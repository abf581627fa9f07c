"""The example of sharded training: its parts of batches are the batch. `make sharded` runs the program."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, SingleDeviceSharding

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


def test_checksums_of_parts_are_joined(folder: Path) -> None:
    batch = next(iter(example.era5_batches(folder).to_jax(SingleDeviceSharding(jax.devices()[0]))))
    sums = example.checksums(batch)
    assert len(sums) == 4
    first, rest = dict(list(sums.items())[:2]), dict(list(sums.items())[1:])
    assert example.joined((sums,)) == example.joined((rest, first))
    place = next(iter(rest))
    assert example.joined((sums,)) != example.joined(({**sums, place: 0},))
    with pytest.raises(SystemExit, match="two processes have other values at"):
        example.joined((sums, {place: 0}))


def test_a_step_of_training_moves_the_state() -> None:
    case = dataclasses.replace(
        example.CASES["era5"],
        initial=lambda: {"weight": jax.numpy.zeros(4), "bias": jax.numpy.zeros(())},
        loss_of=lambda params, batch: ((params["weight"] + params["bias"] - batch) ** 2).mean(),
        rate=0.1,
    )
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), case.axes)
    state, losses = example.sharded_state(case, mesh), []
    step = example.step_of(case, mesh, state)
    for _ in range(3):
        state, loss = step(state, np.arange(4, dtype=np.float32))
        losses.append(float(loss))
    assert losses[0] == 3.5
    assert losses == sorted(losses, reverse=True)
    assert int(state["step"]) == 3
    assert all(isinstance(leaf.sharding, NamedSharding) for leaf in jax.tree.leaves(state))
