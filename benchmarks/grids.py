"""Arrays whose records are windows: their sizes, where the windows lie, and what is in them.

Invariant: the same sizes give the same values and the same windows, in any process.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

AnyArray = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]

_SEED = 20
_PLACES_SEED = 11


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """An array in chunks, and the windows that are its records.

    Args:
        shape: Cells of the array along each axis.
        chunk: Cells of a chunk.
        size: Cells of a window.
        batch_size: Windows of a batch.
        strides: From one window to the next one, of a grid; empty where there are `located` ones.
        located: How many windows lie anywhere in the array, at random.
    """

    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    size: tuple[int, ...]
    batch_size: int
    strides: tuple[int, ...] = ()
    located: int = 0

    @property
    def counts(self) -> tuple[int, ...]:
        """Windows of the grid along each axis."""
        axes = zip(self.shape, self.size, self.strides, strict=True)
        return tuple((cells - size) // stride + 1 for cells, size, stride in axes)

    @property
    def records(self) -> int:
        """Number of windows."""
        return self.located or math.prod(self.counts)

    @property
    def first_cells(self) -> IntArray:
        """The first cell of each window: int64 `(records, rank)`."""
        if not self.located:
            places = np.unravel_index(np.arange(self.records), self.counts)
            found: IntArray = np.stack(places, axis=1) * np.asarray(self.strides)
            return found
        most = np.subtract(self.shape, self.size)
        random = np.random.default_rng(_PLACES_SEED)
        found = random.integers(0, most, (self.located, len(most)), endpoint=True)
        return found

    @property
    def centers(self) -> IntArray:
        """The cell in the middle of each window, behind the middle where the size is even."""
        found: IntArray = self.first_cells + np.asarray(self.size) // 2
        return found


def box(first: list[int], size: tuple[int, ...]) -> tuple[slice, ...]:
    """The index of a window, from its first cell."""
    return tuple(slice(at, at + cells) for at, cells in zip(first, size, strict=True))


FIELDS = Grid(
    (386, 4, 181, 360),
    (1, 4, 181, 360),
    (3, 4, 181, 360),
    batch_size=8,
    strides=(1, 4, 181, 360),
)
PATCHES = Grid((512,) * 3, (64,) * 3, (64,) * 3, batch_size=8, located=4_096)


def slabs(layout: str, grid: Grid) -> Iterator[AnyArray]:
    """The values of an array, in runs of whole chunks along its first axis."""
    random = np.random.default_rng(_SEED)
    step = grid.chunk[0]
    fill = _CONTENT[layout]
    for start in range(0, grid.shape[0], step):
        shape = (min(step, grid.shape[0] - start), *grid.shape[1:])
        yield fill(random, start, shape)


def _fields(random: np.random.Generator, start: int, shape: tuple[int, ...]) -> AnyArray:
    """Smooth in space, with steps of 1/256 as packed data has: float32."""
    noise = random.standard_normal(shape, np.float32)
    noise = np.cumsum(np.cumsum(noise, axis=-1), axis=-2) * np.float32(0.05)
    steps = np.arange(start, start + shape[0], dtype=np.float32)
    noise += 280 + 10 * np.sin(steps / 4).reshape(-1, *(1,) * (len(shape) - 1))
    found: AnyArray = np.divide(np.round(noise * 256), 256, dtype=np.float32)
    return found


def _patches(random: np.random.Generator, start: int, shape: tuple[int, ...]) -> AnyArray:
    """Slow waves under noise of two bits, as of a camera: uint8."""
    waves = np.zeros(shape, np.float32)
    for axis, cells in enumerate(shape):
        at = np.arange(cells, dtype=np.float32) + (start if axis == 0 else 0)
        wave = 12 * np.sin(at / (43 + 8 * axis))
        waves += wave.reshape([-1 if k == axis else 1 for k in range(len(shape))])
    noise = random.integers(0, 4, shape, np.uint8)
    noise += (waves + 120).astype(np.uint8)
    found: AnyArray = noise
    return found


_CONTENT: dict[str, Callable[[np.random.Generator, int, tuple[int, ...]], AnyArray]] = {
    "fields": _fields,
    "patches": _patches,
}
DTYPES = {"fields": "float32", "patches": "uint8"}
