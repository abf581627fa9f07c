"""Steady state over windows: fields over time and patches of a volume, in a global shuffle.

Memory holds the whole array, or a quarter of it. Where it holds all, each side reads as many windows as
there are once before it is measured, so that its memory is filled.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorstore as ts
import zarr
from zarr.codecs import ZstdCodec

import windrow
from benchmarks import grids, stores
from benchmarks.grids import Grid
from benchmarks.steady_sides import (
    Batches,
    Case,
    IntArray,
    Side,
    ahead,
    in_parts,
    large_frames,
    ours,
    shuffled_forever,
)
from benchmarks.steady_zarr import frames
from windrow.sources import WindowDataSource

MIB: Final = 2**20
_GRIDS: Final = {"fields": grids.FIELDS, "patches": grids.PATCHES}
_SMALL: Final = {
    "fields": Grid(
        (22, 2, 5, 6), (1, 2, 5, 6), (3, 2, 5, 6), batch_size=4, strides=(1, 2, 5, 6), block=5
    ),
    "patches": Grid((16,) * 3, (8,) * 3, (7,) * 3, batch_size=4, located=50),
}
# As little memory as the loop over TensorStore needs besides its cache.
_IN_FLIGHT_BYTES: Final = 16 * MIB


def written(path: Path, small: bool, layout: str) -> Path:
    """An array of whole chunks: 400 MB of fields, 134 MB of a volume."""
    grid = (_SMALL if small else _GRIDS)[layout]
    array = zarr.create_array(
        path,
        shape=grid.shape,
        chunks=grid.chunk,
        dtype=grids.DTYPES[layout],
        compressors=[ZstdCodec(level=1)],
    )
    start = 0
    for slab in grids.slabs(layout, grid):
        array[start : start + len(slab)] = slab
        start += len(slab)
    return path


def sides(path: Path, layout: str, share: float) -> dict[str, Side]:
    """Windows in a global shuffle, where memory holds this share of the array."""
    array = zarr.open_array(path, mode="r")
    sizes = _GRIDS[layout], _SMALL[layout]
    grid = next(grid for grid in sizes if grid.shape == array.shape)
    batches = -(-grid.records // grid.batch_size) if share >= 1 else 0

    def dataset() -> Any:
        options = windrow.ReadOptions()
        if share < 1:
            options = windrow.ReadOptions(
                resident_bytes=int(array.nbytes * share),
                in_flight_bytes=_IN_FLIGHT_BYTES,
                prefetch_bytes=_IN_FLIGHT_BYTES,
            )
        chain = windrow.MapDataset.source(_source(path, grid)).shuffle(seed=1).repeat()
        return chain.batch(grid.batch_size).to_iter_dataset(options)

    def expert(depth: int) -> Batches:
        # The cache counts what it needs for itself too.
        cache = array.nbytes + array.nbytes // 8 if share >= 1 else int(array.nbytes * share)
        store = stores.zarr(str(path), cache)
        first_cells = grid.first_cells

        def start(numbers: IntArray) -> Callable[[], Any]:
            with ts.Batch() as together:
                places = first_cells[numbers].tolist()
                reads = [
                    store[grids.box(first, grid.size)].read(batch=together) for first in places
                ]
            return lambda: np.stack([read.result() for read in reads])

        parts = in_parts(shuffled_forever(grid.records), grid.batch_size)
        return ahead(map(start, parts), depth)

    chunk_bytes = math.prod(grid.chunk) * array.dtype.itemsize
    found: dict[str, Side] = {"floor": lambda: large_frames(frames(path), chunk_bytes)}
    for depth in (1, 3, 6):
        found[f"expert, cache, {depth} ahead"] = functools.partial(expert, depth)
    found |= ours(dataset)
    return {
        name: side if name == "floor" else functools.partial(_filled, side, batches)
        for name, side in found.items()
    }


def _source(path: Path, grid: Grid) -> WindowDataSource:
    axes = [axis for axis, cells in enumerate(grid.shape) if grid.size[axis] != cells]
    size = {axis: grid.size[axis] for axis in axes}
    if grid.located:
        return WindowDataSource(str(path), size, centers=grid.centers)
    return WindowDataSource(str(path), size, {axis: grid.strides[axis] for axis in axes})


def _filled(side: Side, count: int) -> Batches:
    batches = side()
    for _ in range(count):
        next(batches)
    return batches


def _case(layout: str, share: float) -> Case:
    held = "all in memory" if share >= 1 else "a quarter in memory"
    return Case(
        f"{layout}, {held}, global shuffle",
        layout,
        functools.partial(written, layout=layout),
        functools.partial(sides, layout=layout, share=share),
    )


CASES: Final = tuple(_case(layout, share) for layout in _GRIDS for share in (1, 0.25))
