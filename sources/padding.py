"""The values of cells outside of an array, as `np.pad` defines them.

Invariant: the cells that give the values of a box lie together, and are no more than the box has. With
the mode 'wrap' that holds for boxes that lie within the array, into which others are cut first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from windrow.sources.base import AnyArray, IntArray

Mode: TypeAlias = Literal["constant", "edge", "reflect", "symmetric", "wrap"]


@dataclasses.dataclass(frozen=True, slots=True)
class Padding:
    """The values of cells outside of those that may be read, as by `np.pad`.

    Args:
        modes: The mode of `np.pad` along each axis; None where no box reaches out.
        value: Value of the cells outside for the mode 'constant'.
    """

    modes: tuple[Mode | None, ...]
    value: Any = 0


def inside(
    modes: Sequence[Mode | None], first: IntArray, stop: IntArray, shape: IntArray
) -> tuple[IntArray, IntArray]:
    """The cells `[low, high)` of an array that give the values of boxes, along each axis."""
    along = [
        _inside_axis(mode, *cells)
        for mode, *cells in zip(modes, first.T, stop.T, shape, strict=True)
    ]
    low, high = (np.stack(ends, axis=1) for ends in zip(*along, strict=True))
    return low, high


def _inside_axis(
    mode: Mode | None, first: IntArray, stop: IntArray, length: IntArray
) -> tuple[IntArray, IntArray]:
    if mode is None or mode == "wrap":  # all boxes lie within the array
        return first, stop
    if mode == "constant":
        low = np.minimum(np.maximum(first, 0), length)
        return low, np.maximum(np.minimum(stop, length), low)
    if mode == "edge":
        return np.clip(first, 0, length - 1), np.clip(stop - 1, 0, length - 1) + 1
    # Reflected cells run back and forth. They reach an end of the array if the box holds a cell that
    # is mirrored there. Otherwise the ends of the box give the ends of the core.
    period = _period(mode, length)
    one, other = _mirrored(mode, first, length), _mirrored(mode, stop - 1, length)
    bottom = -(-first // period) * period < stop
    top = -(-(first - (length - 1)) // period) * period + length - 1 < stop
    low = np.where(bottom, 0, np.minimum(one, other))
    return low, np.where(top, length - 1, np.maximum(one, other)) + 1


def _period(mode: Mode, length: IntArray) -> IntArray:
    """Cells after which a mirrored array begins again."""
    return np.maximum(2 * length if mode == "symmetric" else 2 * (length - 1), 1)


def _mirrored(mode: Mode, cells: IntArray, length: IntArray) -> IntArray:
    """The cell of the array whose mirror image each cell is."""
    period = _period(mode, length)
    ahead = cells % period
    back = period - 1 - ahead if mode == "symmetric" else period - ahead
    found: IntArray = np.minimum(ahead, np.where(length > 1, back, 0))
    return found


def surround(
    box: AnyArray, along: Sequence[bool], first: Sequence[int], stop: Sequence[int], value: Any
) -> None:
    """Fills all of `box` except its cells `[first, stop)`, along some axes."""
    if any(a >= b for a, b in zip(first, stop, strict=True)):
        box[...] = value
        return
    for chosen, a, b in zip(along, first, stop, strict=True):
        if chosen:
            box[:a] = value
            box[b:] = value
            box = box[a:b]
        box = np.moveaxis(box, 0, -1)


def extend(
    box: AnyArray, modes: Sequence[Mode | None], first: IntArray, shape: IntArray, shift: IntArray
) -> None:
    """Fills `box` from its core: cell `c` of the array lies at cell `c + shift` of the box."""
    for axis, mode in enumerate(modes):
        if mode is None or mode in ("constant", "wrap"):
            continue
        cells = first[axis] + np.arange(box.shape[axis])
        if mode == "edge":
            cells = np.clip(cells, 0, shape[axis] - 1)
        else:
            cells = _mirrored(mode, cells, shape[axis])
        cells = cells + shift[axis]
        if not (cells == np.arange(len(cells))).all():
            # Cells not filled yet are copied too; a later axis fills them.
            box[...] = np.take(box, cells, axis=axis)
