"""Turns offsets and sizes in time into cells, by the times of an axis.

Where the times are evenly spaced, an offset is a number of cells. Elsewhere each cell has cells of
its own at an offset: those whose times are near enough to the time wanted.

Invariant: no offset is rounded to another time in silence. Times that are not evenly spaced, and
offsets between two times, are errors unless the user says how far off a time may be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.core.optional_imports import optional
from windrow.errors import ArgumentError, SourceError
from windrow.sources.base import IntArray
from windrow.sources.windows.durations import ns_of, shown
from windrow.sources.windows.fields import Matched
from windrow.sources.windows.origins import Dim, OriginAxis, chosen, named
from windrow.sources.windows.selection import Coordinate, shown_label

Offsets: TypeAlias = tuple[np.timedelta64, ...]

_WHAT: Final = "WindowDataSource"
# Times that are stored as floats are off by less than this part of a step.
_SLACK: Final = 0.01
_CELLS: Final = "give the offsets in cells"
_TOLERANCE: Final = "give tolerance="


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Times:
    """The times of the cells along one dimension.

    Args:
        dim: The dimension.
        at: The times as integers `(cells,)`.
        known: Whether a cell has a time, `(cells,)`.
        tick_ns: Nanoseconds of 1.
        labels: The times as they are shown to the user.
    """

    dim: Dim
    at: IntArray
    known: npt.NDArray[np.bool_]
    tick_ns: int
    labels: Coordinate

    def cells_at(
        self, offsets: Offsets, cells: range, tolerance: np.timedelta64 | None
    ) -> tuple[int, ...] | Matched:
        """The offsets in cells, or the cell at each of them from each cell of the axis.

        Args:
            offsets: Offsets in time.
            cells: Cells that may be read; the times of others do not matter.
            tolerance: How far off a time may be; None if times must be evenly spaced.

        Raises:
            SourceError: If they cannot be counted in cells, and there is no tolerance.
        """
        some = dataclasses.replace(
            self, at=self.at[cells.start : cells.stop], known=self.known[cells.start : cells.stop]
        )
        steps = some.steps(offsets)
        if steps is not None:
            return steps
        if tolerance is None:
            raise some.why_not(offsets, cells.start)
        return self.matched(offsets, tolerance)

    def steps(self, offsets: Offsets) -> tuple[int, ...] | None:
        """The offsets as numbers of cells; None if they are not."""
        step = self._step()
        if step is None:
            return None
        counts = [ns_of(offset) / self.tick_ns / step for offset in offsets]
        whole = tuple(round(count) for count in counts)
        fits = all(abs(a - b) <= _SLACK for a, b in zip(counts, whole, strict=True))
        return whole if fits else None

    def _step(self) -> float | None:
        """The ticks from one cell to the next; None if they differ."""
        count = len(self.at)
        if count < 2 or not self.known.all():
            return None
        span = int(self.at[-1]) - int(self.at[0])
        step = span / (count - 1)
        uneven = np.abs(np.diff(self.at) - step) > abs(step) * _SLACK
        return None if not step or uneven.any() else step

    def size_of(self, given: np.timedelta64, what: str) -> int:
        """A size in time as a number of cells.

        Raises:
            SourceError: If it is not one.
        """
        step = self._step()
        if step is None:
            raise SourceError(
                f"{_WHAT}: sizes in time need times that are evenly spaced, and those along"
                f" {named(self.dim)} are not; give cells"
            )
        cells = self.steps((given,))
        if cells is None or not cells[0]:
            raise SourceError(
                f"{what} is {shown(ns_of(given))}, and the times along {named(self.dim)} are"
                f" {shown(abs(step) * self.tick_ns)} apart; choose a multiple, or give cells"
            )
        return abs(cells[0])

    def why_not(self, offsets: Offsets, first: int) -> SourceError:
        """The error for offsets that cannot be counted in cells; `first` is the number of cell 0."""
        step, dim = self._step(), named(self.dim)
        if step is not None:
            apart = shown(abs(step) * self.tick_ns)
            wrong = next(offset for offset in offsets if self.steps((offset,)) is None)
            return SourceError(
                f"{_WHAT}: the times along {dim} are {apart} apart, and the offset {shown(ns_of(wrong))} lies"
                f" between two of them; choose a multiple, or {_TOLERANCE}'{apart}' for the nearest time"
            )
        if not self.known.all():
            cell = first + int(np.argmin(self.known))
            return SourceError(
                f"{_WHAT}: offsets in time need the time of every cell along {dim}, and cell {cell:,} has"
                f" none; {_TOLERANCE}'0h' to leave out windows that lack a time, or {_CELLS}"
            )
        if len(self.at) < 2:
            return SourceError(
                f"{_WHAT}: {dim} has {len(self.at)} times, so that there is no step between them for"
                f" offsets in time; {_CELLS}"
            )
        gaps = np.diff(self.at)
        usual = float(np.median(gaps))
        places = np.flatnonzero(np.abs(gaps - usual) > abs(usual) * _SLACK)
        at = int(places[0]) if len(places) else 0
        cell = first + at
        return SourceError(
            f"{_WHAT}: offsets in time need times that are evenly spaced, and those along {dim} are not\n"
            f"  most are {shown(abs(usual) * self.tick_ns)} apart\n"
            f"  {self._time(cell)} (cell {cell:,}) and {self._time(cell + 1)} are"
            f" {shown(abs(float(gaps[at])) * self.tick_ns)} apart, the first of {len(places):,} such places\n"
            f"Give tolerance='0h' to leave out windows that lack a time, a longer one to take the nearest"
            f" time within it, or {_CELLS}."
        )

    def matched(self, offsets: Offsets, tolerance: np.timedelta64) -> Matched:
        """The nearest cell within `tolerance` of each offset from each cell; the later one of two."""
        pandas = optional("pandas", f"{_WHAT}: offsets in time", "xarray")
        known = np.flatnonzero(self.known)
        order = known[np.argsort(self.at[known], kind="stable")]
        index = pandas.Index(self.at[order])
        first = ~index.duplicated()
        most = ns_of(tolerance) // self.tick_ns
        found = np.full((len(offsets), len(self.at)), -1, np.int64)
        for row, offset in enumerate(offsets):
            wanted = self.at[known] + round(ns_of(offset) / self.tick_ns)
            place = index[first].get_indexer(wanted, method="nearest", tolerance=most)
            found[row, known[place >= 0]] = order[first][place[place >= 0]]
        return Matched(found)

    def _time(self, cell: int) -> str:
        return shown_label(self.labels.values[cell])


def with_times(
    axis: OriginAxis,
    matched: Sequence[Matched],
    allowed: npt.NDArray[np.bool_],
    within: np.timedelta64 | None,
) -> OriginAxis:
    """The origins of `axis` that have a cell at every offset in time.

    Args:
        axis: The origins without regard to times.
        matched: The cells at the offsets of each field.
        allowed: Whether a cell may be read, `(cells,)`.
        within: The tolerance, for messages.

    Raises:
        SourceError: If no origin has.
    """
    length = len(allowed)
    inside = np.append(allowed, False)  # the last one is for -1, no cell
    complete = np.ones(length, np.bool_)
    for each in matched:
        complete &= inside[each.cells].all(axis=0)
    origins = axis.at(np.arange(axis.count))
    good = (origins >= 0) & (origins < length) & complete[np.clip(origins, 0, length - 1)]
    if not good.any():
        most = shown(0 if within is None else ns_of(within))
        raise SourceError(
            f"{_WHAT}: none of the {axis.count:,} origins along {named(axis.dim)} has a time at each"
            f" offset, within {most}; choose other offsets, or a longer tolerance"
        )
    return chosen(axis, origins, good, "without a time at each offset")


def times_along(dim: Dim, labels: Coordinate | None) -> Times:
    """The times of an axis.

    Raises:
        ArgumentError: If it has no coordinate, or one that is not of times.
    """
    if labels is None:
        raise ArgumentError(
            f"{_WHAT}: durations need the times along {named(dim)}, and the store has no coordinate of"
            " it; give cells"
        )
    kind = labels.values.dtype.kind
    if kind in "mM":
        index = labels.index
        tick_ns = int(np.timedelta64(1, index.unit) / np.timedelta64(1, "ns"))
        return Times(dim, index.asi8, ~index.isna(), tick_ns, labels)
    if not labels.counts_times:
        raise ArgumentError(
            f"{_WHAT}: durations need the times along {named(dim)}, and its coordinate holds"
            f" {labels.values.dtype} without a unit of time; give cells"
        )
    known, at = np.zeros(len(labels), np.bool_), np.zeros(len(labels), np.int64)
    known[labels.cells] = True
    at[labels.cells] = labels.dates.asi8
    return Times(dim, at, known, 1_000, labels)
