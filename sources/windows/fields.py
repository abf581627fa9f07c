"""The fields of windows: the cells of an array that each record has, along every axis.

Invariant: along an axis a field takes runs of cells. They are counted from the window's origin where
windows move along the axis, and from the array's first cell elsewhere. Together the runs fill the
field without a gap.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from windrow.errors import SourceError
from windrow.sources.base import IntArray
from windrow.sources.boxes import BoxField, Cut
from windrow.sources.cells import Box, Cells
from windrow.sources.windows.declared import Dim
from windrow.sources.windows.origins import Run

_WHAT: Final = "WindowDataSource"
_MOST_CUTS: Final = 4_096


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Matched:
    """Cells that are found by their times.

    Args:
        cells: The cell at each offset from each cell of the axis, int64 `(offsets, cells)`; -1
            where no cell has that time.
    """

    cells: IntArray

    def _ahead(self) -> IntArray:
        """The cells of windows that have them all, counted from their origins."""
        whole = np.flatnonzero((self.cells >= 0).all(axis=0))
        return self.cells[:, whole] - whole

    @property
    def first(self) -> int:
        """The cell at the first offset, counted from the origin: the median."""
        return int(np.median(self._ahead()[0]))

    @property
    def reach(self) -> Run:
        """The cells from the first to the last one of all windows, counted from their origins."""
        ahead = self._ahead()
        return int(ahead.min()), int(ahead.max()) + 1

    @property
    def label(self) -> str:
        """The cells as a string for states."""
        return hashlib.sha256(self.cells.astype("<i8").tobytes()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True, slots=True)
class Along:
    """The cells that a field takes along one axis of its array.

    Args:
        dim: The dimension.
        runs: Cells `[first, stop)` one after the other, counted from the origin or, where windows do
            not move along the axis, from the array's first cell. With `matched`, rows of its table.
        moves: Whether windows move along the axis.
        dropped: Whether the field takes one cell and is delivered without the axis.
        matched: The cells by offset and origin, where they lie at different distances from different
            origins; else None.
    """

    dim: Dim
    runs: tuple[Run, ...]
    moves: bool
    dropped: bool
    matched: Matched | None = None

    @property
    def length(self) -> int:
        """Cells in all runs."""
        return sum(stop - first for first, stop in self.runs)

    def is_whole(self, cells: int) -> bool:
        """Whether the field takes all cells of an axis of this length."""
        return not self.moves and not self.dropped and self.runs == ((0, cells),)

    def within(self, cells: Cells) -> Along:
        """Some of the cells, counted from the first cell of the first run."""
        found: list[Run] = []
        for start, stop in cells.slices:
            before = 0
            for first, end in self.runs:
                low, high = max(start - before, 0), min(stop - before, end - first)
                if low < high:
                    found.append((first + low, first + high))
                before += end - first
        return dataclasses.replace(self, runs=tuple(found))

    def cells(self) -> IntArray:
        """All cells of the runs, `(length,)`."""
        return np.concatenate([np.arange(first, stop) for first, stop in self.runs])

    def at(self, origins: IntArray) -> IntArray:
        """The cells of windows that begin at `origins` `(n,)`, counted from the array's first cell.

        Returns:
            int64 `(n, length)`.
        """
        if self.matched is not None:
            return self.matched.cells[self.cells()[:, None], origins].T
        return origins[:, None] + self.cells()

    @property
    def first(self) -> int:
        """The cell at the first offset, counted from the origin; the usual one if that differs."""
        return self.runs[0][0] if self.matched is None else self.matched.first

    @property
    def reach(self) -> Run:
        """The cells from the first to the last one of all windows, counted from their origins."""
        if self.matched is None:
            return min(first for first, _ in self.runs), max(stop for _, stop in self.runs)
        return self.matched.reach


@dataclasses.dataclass(frozen=True, slots=True)
class TakenField:
    """A field with the cells that it takes from its array.

    Args:
        name: Its name in a record, nested names joined by `/`; '' for the record itself.
        number: Number of its array.
        along: The cells along each axis of the array.
    """

    name: str
    number: int
    along: tuple[Along, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the field as delivered."""
        return tuple(axis.length for axis in self.along if not axis.dropped)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """Names of the axes, as delivered."""
        return tuple(axis.dim for axis in self.along if not axis.dropped)

    @property
    def moves(self) -> bool:
        """Whether the field differs between records."""
        return any(axis.moves for axis in self.along)

    @property
    def label(self) -> str:
        """The field as a string for states."""
        axes = [
            f"{axis.dim}{'+' if axis.moves else ''}{list(map(list, axis.runs))}"
            + ("!" if axis.dropped else "")
            + ("" if axis.matched is None else f" of {axis.matched.label}")
            for axis in self.along
        ]
        return f"{self.name}={self.number}({', '.join(axes)})"

    def within(self, box: Box | None) -> TakenField:
        """A box of the field, which counts axes and cells as delivered; None for all of it."""
        if box is None:
            return self
        cells = iter(box)
        along = [axis if axis.dropped else axis.within(next(cells)) for axis in self.along]
        return dataclasses.replace(self, along=tuple(along))

    def box_field(self) -> BoxField:
        """The boxes that make up the field, with all axes of the array.

        Raises:
            SourceError: If it needs too many boxes.
        """
        pieces = [len(axis.runs) if axis.matched is None else axis.length for axis in self.along]
        if math.prod(pieces) > _MOST_CUTS:
            raise SourceError(
                f"{_WHAT}: field {self.name!r} would consist of more than {_MOST_CUTS:,} boxes;"
                " select ranges of neighbours, with slices, in place of lists"
            )
        parts: list[list[tuple[int, int, int]]] = []
        for axis in self.along:
            if axis.matched is not None:  # the part's origins say where each cell is
                parts.append([(0, place, 1) for place in range(axis.length)])
                continue
            sizes = [stop - first for first, stop in axis.runs]
            targets = itertools.accumulate(sizes[:-1], initial=0)
            firsts = [first for first, _ in axis.runs]
            parts.append(list(zip(firsts, targets, sizes, strict=True)))
        cuts = []
        for combination in itertools.product(*parts):
            offset, target, shape = zip(*combination, strict=True)
            cuts.append(Cut(offset, target, shape))
        return BoxField(tuple(axis.length for axis in self.along), tuple(cuts))


def runs_of_cells(firsts: Sequence[int], cells: int = 1) -> tuple[Run, ...]:
    """Joins pieces of some cells each, which begin at `firsts` in this order, to runs of neighbours."""
    runs: list[Run] = []
    for first in firsts:
        if runs and runs[-1][1] == first:
            runs[-1] = runs[-1][0], first + cells
        else:
            runs.append((first, first + cells))
    return tuple(runs)


def runs_along(taken: Sequence[TakenField], dim: Dim) -> list[Run]:
    """The runs of fields along a dimension that follow the origins of windows, each once."""
    along = [axis for field in taken for axis in field.along if axis.dim == dim]
    return sorted({run for axis in along if axis.matched is None for run in axis.runs})
