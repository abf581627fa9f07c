"""Boxes: the part of each sample that the devices of a process hold.

A process reads one box of each leaf: along each axis, the cells from the first to the last that one of its devices holds.
So a chunk is read once for all its devices. Devices that are not neighbours in the mesh make the box larger than their
parts; the report on costs counts what is read beyond them.

Invariant: nothing is read, and a box contains all cells of the devices.
"""

from __future__ import annotations

from collections.abc import Iterator

from windrow.devices import trees
from windrow.devices.placement import Placement, Sharding, held
from windrow.errors import ArgumentError, PlanError
from windrow.sources.base import ArraySpec
from windrow.sources.cells import Box, Boxes, Cells, whole
from windrow.transforms.nodes import Node
from windrow.transforms.nodes.values import grid_spec
from windrow.transforms.specs import Spec


def grid_of(node: Node) -> Spec | None:
    """The shapes of a batch, where they are known before one is read; dtypes may be others."""
    try:
        return grid_spec(node)
    except Exception:  # of a method `output_spec`, too: a chain runs without
        return None


def placed(grid: Spec, placement: Placement) -> Iterator[tuple[trees.Path, ArraySpec, Sharding]]:
    """The leaves of a batch that go to devices; none of those whose place the first batch shows."""
    for path, leaf in trees.leaves(grid, is_spec=True):
        if not isinstance(leaf, ArraySpec) or placement.is_kept(path):
            continue
        try:
            yield path, leaf, placement.sharding_of(path)
        except ArgumentError:  # raised for a batch
            continue


def boxes_held(grid: Spec, placement: Placement) -> Boxes:
    """The boxes of the leaves of batches that the devices of a process hold, where axes are cut.

    The first axis is whole here: parts of rows are shares of a batch.
    """
    found: dict[trees.Path, Box] = {}
    for path, leaf, sharding in placed(grid, placement):
        if not leaf.shape or None in leaf.shape[1:]:
            continue
        box = _box(leaf.shape, sharding, placement.process)
        if not all(cells.is_whole for cells in box):
            found[path] = box
    return found


def _box(shape: tuple[int | None, ...], sharding: Sharding, process: int | None) -> Box:
    rows = whole(shape[0] or 0)
    # Any number of rows that divides: the boxes of samples do not depend on it.
    count = len(sharding.device_set)
    sizes = (shape[0] or count, *(size or 0 for size in shape[1:]))
    try:
        indices = held(sizes, sharding, process)
    except (ValueError, IndexError) as error:
        raise PlanError(f"to_jax: {sharding} does not fit the shape {sizes}: {error}") from error
    box = [rows]
    for axis, size in enumerate(sizes[1:], 1):
        runs = [each[axis].indices(size)[:2] for each in indices]
        first, stop = min(run[0] for run in runs), max(run[1] for run in runs)
        box.append(Cells(first, stop, size))
    return tuple(box)
