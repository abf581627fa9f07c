"""Turns offsets and sizes in time into cells, by the times of an axis.

Where the times are evenly spaced, an offset is a number of cells. Elsewhere each cell has cells of
its own at an offset: those whose times are near enough to the time wanted, as an index of pandas finds them.

Invariant: no offset is rounded to another time in silence. Times that are not evenly spaced, and
offsets between two times, are errors unless the user says how far off a time may be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.core.optional_imports import optional
from windrow.errors import ArgumentError, SourceError
from windrow.sources.base import IntArray
from windrow.sources.windows.declared import Dim
from windrow.sources.windows.fields import Matched
from windrow.sources.windows.origins import OriginAxis, chosen, named
from windrow.sources.windows.selection import Coordinate, shown_label

Offsets: TypeAlias = tuple[Any, ...]  # durations of pandas

_WHAT: Final = "WindowDataSource"
# Times that are stored as floats are off by less than this part of a step.
_SLACK: Final = 0.01
_WAYS: Final = (
    "Give cells; or, for offsets, Window(tolerance='0h') to leave out windows that lack a time, or a"
    " longer one to take the nearest time within it."
)


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

    def cells_at(self, offsets: Offsets, cells: range, tolerance: Any) -> tuple[int, ...] | Matched:
        """Return offsets as cells, or else the cell at each of them from each cell of the axis.

        Args:
            offsets: Offsets in time.
            cells: Cells that may be read; the times of others do not matter.
            tolerance: How far off a time may be; None if times must be evenly spaced.

        Raises:
            SourceError: If they cannot be counted in cells, and there is no tolerance.
        """
        inside = slice(cells.start, cells.stop)
        some = dataclasses.replace(self, at=self.at[inside], known=self.known[inside])
        steps = some._steps(offsets)
        if steps is not None:
            return steps
        if tolerance is None:
            raise some._uneven("the offset", offsets, cells.start)
        return self._matched(offsets, tolerance)

    def size_of(self, given: Any, name: str) -> int:
        """Return a size in time, or a stride, as a number of cells.

        Raises:
            SourceError: If it is not one.
        """
        cells = self._steps((given,))
        if cells is None or not cells[0]:
            raise self._uneven(f"the {name}", (given,), 0)
        return abs(cells[0])

    def _step(self) -> float | None:
        """The ticks from one cell to the next; None if they differ."""
        count = len(self.at)
        if count < 2 or not self.known.all():
            return None
        step = (int(self.at[-1]) - int(self.at[0])) / (count - 1)
        uneven = np.abs(np.diff(self.at) - step) > abs(step) * _SLACK
        return None if not step or uneven.any() else step

    def _steps(self, offsets: Offsets) -> tuple[int, ...] | None:
        """Offsets as numbers of cells; None if they are not."""
        step = self._step()
        if step is None:
            return None
        counts = [offset.value / self.tick_ns / step for offset in offsets]
        whole = tuple(round(count) for count in counts)
        fits = all(abs(a - b) <= _SLACK for a, b in zip(counts, whole, strict=True))
        return whole if fits else None

    def _uneven(self, what: str, given: Offsets, first: int) -> SourceError:
        """The error for durations between cells; `first` is the number of cell 0."""
        step, dim = self._step(), named(self.dim)
        if step is not None:
            wrong = next((one for one in given if self._steps((one,)) is None), given[0])
            return SourceError(
                f"{_WHAT}: the times along {dim} are {_shown(abs(step) * self.tick_ns)} apart, and {what}"
                f" {_shown(wrong.value)} lies between two of them; choose a multiple, or give cells, or for"
                " offsets Window(tolerance=...), which takes the nearest time"
            )
        text = f"{_WHAT}: {what} is in time, and the times along {dim} are not evenly spaced"
        if not self.known.all():
            cell = first + int(np.argmin(self.known))
            return SourceError(f"{text}: cell {cell:,} has none\n{_WAYS}")
        if len(self.at) < 2:
            return SourceError(f"{text}: there are {len(self.at)}\n{_WAYS}")
        gaps = np.diff(self.at)
        usual = float(np.median(gaps))
        place = int(np.argmax(np.abs(gaps - usual) > abs(usual) * _SLACK))
        cell = first + place
        before, after = (shown_label(self.labels.values[at]) for at in (cell, cell + 1))
        return SourceError(
            f"{text}\n  most are {_shown(abs(usual) * self.tick_ns)} apart\n"
            f"  {before} (cell {cell:,}) and {after} are"
            f" {_shown(abs(float(gaps[place])) * self.tick_ns)} apart\n{_WAYS}"
        )

    def _matched(self, offsets: Offsets, tolerance: Any) -> Matched:
        """The nearest cell within `tolerance` of each offset from each cell; the later one of two."""
        pandas = optional("pandas", f"{_WHAT}: offsets in time", "xarray")
        known = np.flatnonzero(self.known)
        order = known[np.argsort(self.at[known], kind="stable")]
        index = pandas.Index(self.at[order])
        first = ~index.duplicated()
        most = tolerance.value // self.tick_ns
        found = np.full((len(offsets), len(self.at)), -1, np.int64)
        for row, offset in enumerate(offsets):
            wanted = self.at[known] + round(offset.value / self.tick_ns)
            place = index[first].get_indexer(wanted, method="nearest", tolerance=most)
            found[row, known[place >= 0]] = order[first][place[place >= 0]]
        return Matched(found)


def with_times(
    axis: OriginAxis, matched: Sequence[Matched], allowed: npt.NDArray[np.bool_]
) -> OriginAxis:
    """Keep the origins of `axis` that have a cell at every offset in time.

    Args:
        axis: The origins without regard to times.
        matched: The cells at the offsets of each field.
        allowed: Whether a cell may be read, `(cells,)`.

    Raises:
        SourceError: If no origin has.
    """
    inside = np.append(allowed, False)  # the last one is for -1, no cell
    complete = np.ones(len(allowed) + 1, np.bool_)
    for each in matched:
        complete[:-1] &= inside[each.cells].all(axis=0)
    complete[-1] = False
    origins = axis.at(np.arange(axis.count))
    outside = (origins < 0) | (origins >= len(allowed))
    good = complete[np.where(outside, -1, origins)]
    if not good.any():
        raise SourceError(
            f"{_WHAT}: none of the {axis.count:,} origins along {named(axis.dim)} has a time at each"
            " offset, within the tolerance; choose other offsets, or a longer tolerance"
        )
    return chosen(axis, origins, good, "without a time at each offset")


def times_along(dim: Dim, labels: Coordinate | None) -> Times:
    """Return the times of an axis.

    Raises:
        ArgumentError: If it has no coordinate, or one that is not of times.
    """
    if labels is None:
        raise ArgumentError(
            f"{_WHAT}: durations need the times along {named(dim)}, and the store has no coordinate of"
            " it; give cells"
        )
    values = labels.values
    if values.dtype.kind in "mM":
        tick = np.array(1, f"m8{values.dtype.str[3:]}")
        tick_ns = int(tick.astype("m8[ns]").astype(np.int64))
        return Times(dim, values.astype(np.int64), ~np.isnat(values), tick_ns, labels)
    if not labels.counts_times:
        raise ArgumentError(
            f"{_WHAT}: durations need the times along {named(dim)}, and its coordinate holds"
            f" {values.dtype} without a unit of time; give cells"
        )
    known, at = np.zeros(len(labels), np.bool_), np.zeros(len(labels), np.int64)
    known[labels.order] = True
    at[labels.order] = labels.dates.asi8
    return Times(dim, at, known, 1_000, labels)


def _shown(ns: float) -> str:
    """A time span as text for the user, such as `6h` or `90min`."""
    pandas = optional("pandas", "a duration", "xarray")
    whole = pandas.Timedelta(round(ns), "ns")
    unit = whole.resolution_string if ns else "h"
    return f"{whole // pandas.Timedelta(1, unit):,}{unit}"
