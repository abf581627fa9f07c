"""Places windows of one array around the middles of windows of another one, in the world.

Arrays of one volume at several resolutions have other cells. Windows are placed on the cells of one of
them, the reference. A window of another array has its middle at the same point of the world, rounded to
a whole cell: the nearest one, the later one of two.

Invariant: where a window begins is an exact function of integers, the same on every machine.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from windrow.sources.base import IntArray
from windrow.sources.windows.origins import Home, Run
from windrow.sources.zarr.spacing import SLACK, Spacing

# Steps and positions are rounded to such fractions; products with numbers of cells fit int64.
_FINEST: Final = 10**6


@dataclasses.dataclass(frozen=True, slots=True)
class Aligned:
    """Where windows of an array begin, for origins that count cells of the reference.

    An origin `o` belongs to the cell nearest to `(up * o + shift) / down`.

    Args:
        up: Cells of the array in `down` cells of the reference.
        shift: `down` times the place at which the window of origin 0 begins.
        down: At least 1.
        cells: The cells of the array that may be read.
        around: About the cells of the reference that a window covers, counted from its origin.
    """

    up: int
    shift: int
    down: int
    cells: range
    around: Run

    def starts(self, origins: IntArray) -> IntArray:
        """The first cells of windows."""
        found: IntArray = (2 * (self.up * origins + self.shift) + self.down) // (2 * self.down)
        return found

    def off(self, origins: IntArray) -> npt.NDArray[np.float64]:
        """How far the middles of windows are off, in cells of the array."""
        rest = self.up * origins + self.shift - self.starts(origins) * self.down
        found: npt.NDArray[np.float64] = np.abs(rest) / self.down
        return found

    def origins(self, size: int) -> Run:
        """The first and the last origin whose windows of `size` cells lie in `cells`."""
        low, high = self.cells.start, self.cells.stop - size
        half = self.down + 2 * self.shift
        first = -((half - 2 * self.down * low) // (2 * self.up))
        last = -((half - 2 * self.down * (high + 1)) // (2 * self.up)) - 1
        return first, last

    def home(self, chunk: int, shift: int, length: int) -> Home:
        """About the chunks of the array, as chunks of the reference."""
        ratio = Fraction(self.down, self.up)
        return Home(
            chunk=max(1, round(chunk * ratio)),
            shift=round(shift * ratio),
            offset=round(Fraction(self.shift, self.up)),
            length=max(1, round(length * ratio)),
        )

    @property
    def label(self) -> str:
        """The rule as a string for states."""
        return (
            f"({self.up}o + {self.shift}) / {self.down} in [{self.cells.start}, {self.cells.stop})"
        )


def aligned(reference: Spacing, own: Spacing, middle: Fraction, size: int, cells: range) -> Aligned:
    """The windows of an array around the windows of the reference.

    Args:
        reference: The cells that origins count.
        own: The cells of the array.
        middle: Cells of the reference from an origin to the middle of its window.
        size: Cells of a window of the array.
        cells: The cells of the array that may be read.
    """
    ratio = (Fraction(reference.step) / Fraction(own.step)).limit_denominator(_FINEST)
    # Twice, so that halves of cells are exact.
    down = ratio.denominator * 2 * max(1, _FINEST // (2 * ratio.denominator))
    edges = [Fraction(each.first) - Fraction(each.step) / 2 for each in (reference, own)]
    begin = (edges[0] - edges[1]) / Fraction(own.step) + middle * ratio - Fraction(size, 2)
    half = size / ratio / 2
    return Aligned(
        up=ratio.numerator * (down // ratio.denominator),
        shift=round(begin * down),
        down=down,
        cells=cells,
        around=(math.floor(middle - half), math.ceil(middle + half)),
    )


def cells_inside(reference: Spacing, own: Spacing, cells: range, length: int) -> range:
    """The cells of an array that lie wholly in some cells of the reference.

    Args:
        reference: The cells of the reference.
        own: The cells of the array.
        cells: Cells of the reference.
        length: Cells of the array.
    """
    low = reference.first + (cells.start - 0.5) * reference.step
    high = reference.first + (cells.stop - 0.5) * reference.step
    edge = own.first - own.step / 2
    first = max(0, math.ceil((low - edge) / own.step - SLACK))
    stop = min(length, math.floor((high - edge) / own.step + SLACK))
    return range(first, max(first, stop))
