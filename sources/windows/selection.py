"""Selects cells along a dimension by labels, as xarray's `sel`, or by their numbers, as its `isel`.

xarray finds labels. A string such as "2019-03" covers all of March, and both ends of a slice
are included. Labels that descend are searched from their end, which xarray cannot do with strings.

Invariant: nothing is read. What is selected is one cell, cells in the given order, or a range of
neighbours, and is never empty.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.core.optional_imports import optional
from windrow.errors import ArgumentError, SourceError, WindrowError
from windrow.sources.base import AnyArray, IntArray
from windrow.sources.windows.cf import dates_of
from windrow.sources.windows.declared import Dim, Window, is_list, is_mask

_WHAT: Final = "WindowDataSource"
_SHOWN_CHARACTERS: Final = 40
_CLOCK: Final = r"([T ]\d{2}(:\d{2}(:\d{2}(\.\d{1,9})?)?)?)?"
# pandas also takes "today", and "3/2/2019" as the second of March.
_TIME: Final = re.compile(rf"\d{{4}}(-\d{{1,2}}|-\d{{1,2}}-\d{{1,2}}{_CLOCK}|\d{{4}}{_CLOCK})?")

_NEAR: Final = (np.datetime64("1678"), np.datetime64("2262"))  # in nanoseconds
_DIM: Final = "cell"

Picked: TypeAlias = int | tuple[int, ...] | range  # a single cell drops the axis


@dataclasses.dataclass(frozen=True, eq=False)
class Coordinate:
    """Labels of the cells along one dimension.

    Args:
        name: Name of the array that holds them.
        dims: The dimension.
        values: One per cell: numbers, datetime64, timedelta64 or strings, without a fill value.
        attributes: Attributes of the array.
    """

    name: str
    dims: tuple[str, ...]
    values: AnyArray
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def what(self) -> str:
        """The coordinate, for messages."""
        return f"coordinate {self.name!r}"

    @property
    def counts_times(self) -> bool:
        """Whether its numbers count times that NumPy cannot represent."""
        return " since " in str(self.attributes.get("units")) and self.values.dtype.kind in "iuf"

    @property
    def is_of_times(self) -> bool:
        """Whether it holds times, which may be numbers that count them."""
        return self.values.dtype.kind == "M" or self.counts_times

    @functools.cached_property
    def _cells(self) -> Any:
        """The cells by label, an array of xarray; from the last cell on where labels descend."""
        xarray = optional("xarray", f"the labels of {self.what}", "xarray")
        cells = np.arange(len(self))
        labels = self.values.astype(self.values.dtype.newbyteorder("="), copy=False)
        if labels.dtype.kind in "fmM":
            cells = cells[labels == labels]
        if labels.dtype.kind in "iu" and labels.max(initial=0) <= np.iinfo(np.int64).max:
            labels = labels.astype(np.int64)  # differences of unsigned integers would wrap around
        elif labels.dtype == np.float16:
            labels = labels.astype(np.float32)  # pandas has no index of these
        found = xarray.DataArray(cells, {_DIM: labels[cells]}, [_DIM])
        index = found.indexes[_DIM]
        falls = index.is_monotonic_decreasing and not index.is_monotonic_increasing
        return found[::-1] if falls else found

    @property
    def order(self) -> IntArray:
        """The cells that have a label; from the last one on where labels descend."""
        found: IntArray = self._cells.values
        return found

    @property
    def falls(self) -> bool:
        """Whether its labels descend."""
        return len(self.order) > 1 and bool(self.order[0] > self.order[-1])

    @property
    def is_sorted(self) -> bool:
        """Whether each cell has a label, and labels ascend or descend."""
        index = self._cells.indexes[_DIM]
        return len(index) == len(self) and bool(index.is_monotonic_increasing)

    @functools.cached_property
    def dates(self) -> Any:
        """The labels at `order` as dates of their calendar, an index of xarray.

        Raises:
            ArgumentError: If cftime does not count such times.
            MissingExtraError: If cftime is not installed.
        """
        if not self.counts_times:
            dated = self._cells.convert_calendar("proleptic_gregorian", _DIM, use_cftime=True)
            return dated.indexes[_DIM]
        try:
            return dates_of(self.values[self.order], self.attributes, self.name)
        except ValueError as error:
            raise ArgumentError(
                f"{self._held}, and cftime does not count these ({error.__cause__ or error}); give numbers in"
                f" these units: {self.range}"
            ) from error

    @functools.cached_property
    def _is_far(self) -> bool:
        """Whether its times are compared as dates of cftime: pandas compares strings with near ones."""
        if self.values.dtype.kind != "M" or not len(self.order):
            return self.counts_times and len(self.order) > 0
        known = self.values[self.order]
        return bool(known.min() < _NEAR[0] or known.max() >= _NEAR[1])

    @property
    def _held(self) -> str:
        """The coordinate, and what it counts if it counts times, for messages."""
        if not self.counts_times:
            return self.what
        units, calendar = (self.attributes.get(key, "standard") for key in ("units", "calendar"))
        return f"{self.what} holds numbers in {units!r} of the calendar {calendar!r}"

    def cells_of(self, label: Any, method: str | None = None) -> Picked:
        """Find the cells of a label, of a slice or a list of labels, by xarray's `sel`.

        Args:
            label: The labels. Ends of a slice are in the order of the coordinate.
            method: None for the label itself, 'nearest' for the nearest one; not for slices.

        Raises:
            ArgumentError: If such labels cannot be compared with its own.
            SourceError: If it does not have a label, or has it in several cells, or is not sorted and
                a slice is given.
        """
        if isinstance(label, slice):
            return self.cells_between(label)
        if is_list(label) and not (self.is_of_times and any(map(_is_date, label))):
            return tuple(self._sought(label, method).tolist())
        if is_list(label):  # one by one, as a string may cover several cells
            return tuple(self._cell_of(one, method) for one in label)
        if isinstance(label, str) and self.is_of_times and self.is_sorted:
            covered = self.cells_between(slice(label, label))
            if len(covered) > 1:
                return covered
        return self._cell_of(label, method)

    def _cell_of(self, label: Any, method: str | None) -> int:
        cells = self._sought(label, method)
        if cells.size == 1:
            return int(cells.item())
        if not cells.size:
            raise self._absent(label, "nearest")
        raise SourceError(
            f"{self.what}: the label {label!r} names {cells.size:,} cells; give"
            f" slice({label!r}, {label!r}) for all of them, or select by cells="
        )

    def cells_between(self, label: slice) -> range:
        """Find the cells from one label to another, both included.

        Raises:
            ArgumentError, SourceError: As `cells_of` raises them.
        """
        if label.step is not None:
            raise SourceError(
                f"{self.what}: a slice of labels has no step, got {label!r}; give the ends only"
            )
        if label.start is None and label.stop is None:
            return range(len(self))
        if not self.is_sorted:
            raise SourceError(
                f"{self.what} neither ascends nor descends, so that a slice from {label.start!r} to"
                f" {label.stop!r} has no meaning; give a list of labels, or sort the array along it"
            )
        ends = [label.stop, label.start] if self.falls else [label.start, label.stop]
        if self.values.dtype.kind == "f":
            # As in lists, where xarray compares in the dtype of the coordinate.
            own = self.values.dtype.type
            ends = [own(end) if isinstance(end, int | float) else end for end in ends]
        cells = self._sought(slice(*ends), None)
        return range(int(cells.min()), int(cells.max()) + 1) if cells.size else range(0)

    def _sought(self, label: Any, method: str | None) -> IntArray:
        """The cells that xarray selects by a label, a list, or a slice in the order of `order`."""
        labels = label if is_list(label) else [label]
        if isinstance(label, slice):
            labels = [end for end in (label.start, label.stop) if end is not None]
        if self.is_of_times:
            self._check_times(labels)
        try:
            cells, wanted = self._cells, label
            if self._is_far and any(map(_is_date, labels)):
                cells = cells.assign_coords({_DIM: self.dates})
                wanted = _as_dates(label, self.dates.calendar, method)
            found: IntArray = cells.sel({_DIM: wanted}, method=method).values
        except KeyError as error:
            raise self._absent(label, method) from error
        except WindrowError:
            raise
        except (TypeError, ValueError, OverflowError, _not_unique()) as error:
            raise ArgumentError(
                f"{self._held}, which does not have {label!r} ({error}); {self.range}; give such labels, or"
                " select by cells="
            ) from error
        return found

    def _check_times(self, labels: Sequence[Any]) -> None:
        for label in labels:
            if isinstance(label, str) and not _TIME.fullmatch(label):
                raise SourceError(
                    f"{self.what}: the label {label!r} is not a time; give it as 2019, 2019-03, 2019-03-01"
                    " or 2019-03-01T12:30:00, without a zone"
                )

    def _absent(self, label: Any, method: str | None) -> SourceError:
        text = f"{self.what} has no label {label!r}; {self.range}"
        if method is None and not isinstance(label, slice) and not is_list(label):
            with contextlib.suppress(WindrowError):
                nearest = shown_label(self.values[self.cells_of(label, "nearest")])
                return SourceError(
                    f'{text}, the nearest is {nearest}; give method="nearest" to take that one'
                )
        return SourceError(f"{text}; give a label that it has")

    @property
    def range(self) -> str:
        """The first and the last label, as text for the user."""
        if len(self) == 0:
            return "it has no values"
        first, last = (shown_label(self.values[cell]) for cell in (0, -1))
        count = f"{len(self):,} value{'s' if len(self) > 1 else ''}"
        if not self.is_sorted:
            return f"it has {count} in no order, from {first} to {last}"
        return f"it goes from {first} to {last} ({count})"


def _not_unique() -> type[Exception]:
    """What pandas raises where labels of a list are sought among labels that come twice."""
    found: type[Exception] = optional("pandas", "labels", "xarray").errors.InvalidIndexError
    return found


def _is_date(label: Any) -> bool:
    of_cftime = type(label).__module__.partition(".")[0] == "cftime"
    return of_cftime or isinstance(label, str | datetime.date | np.datetime64)


def _as_dates(label: Any, calendar: str, method: str | None) -> Any:
    """Labels as dates of a calendar that NumPy has not; dates of cftime as they are.

    Strings stay strings, which cover a span of time; the nearest date is sought from its start.
    """
    if isinstance(label, slice):
        return slice(*(_as_dates(end, calendar, method) for end in (label.start, label.stop)))
    if isinstance(label, str) and method is not None:
        xarray = optional("xarray", "dates", "xarray")
        return xarray.date_range(label, periods=1, calendar=calendar, use_cftime=True)[0]
    if not isinstance(label, datetime.date | np.datetime64):
        return label
    time = optional("pandas", "dates", "xarray").Timestamp(label)
    parts = (time.year, time.month, time.day, time.hour, time.minute, time.second)
    cftime = optional("cftime", "dates", "xarray")
    return cftime.datetime(*parts, time.microsecond, calendar=calendar)


def shown_label(value: Any) -> str:
    """A value as text for the user; times without trailing zeros."""
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value, unit="auto"))
    text = str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def picked(dim: Dim, window: Window, coordinate: Coordinate | None, length: int) -> Picked:
    """Return the cells that a window selects along a dimension.

    Args:
        dim: The dimension.
        window: What it selects: cells if the dimension has no coordinate, as in xarray.
        coordinate: The labels of the dimension; None where cells are selected.
        length: Cells of the dimension.

    Raises:
        ArgumentError: If a label is of a wrong kind.
        SourceError: If a label does not exist, or nothing is selected.
    """
    given = window.chosen
    if not _is_several(given):
        return _picked(dim, given, coordinate, length, window.method)
    cells: set[int] = set()
    for one in given:
        part = _picked(dim, one, coordinate, length, None)
        cells.update((part,) if isinstance(part, int) else part)
    whole = range(min(cells), max(cells) + 1)
    return whole if len(whole) == len(cells) else tuple(sorted(cells))


def readable(
    dim: Dim, window: Window, coordinate: Coordinate | None, length: int
) -> tuple[range, npt.NDArray[np.bool_] | None]:
    """Return the cells that windows may read which move along a dimension.

    Arguments are as for `picked`.

    Returns:
        The range of cells from the first to the last one, and for each cell of the dimension whether
        it may be read; None for all of the range. A mask is of the whole dimension.

    Raises:
        ArgumentError, SourceError: As `picked` raises them, or if cells are selected one by one.
    """
    given = window.chosen
    found = picked(dim, window, coordinate, length)
    if isinstance(found, int) and isinstance(given, str):
        found = range(found, found + 1)
    if isinstance(found, range):
        return found, None
    if isinstance(found, int) or not (_is_several(given) or is_mask(given)):
        raise ArgumentError(
            f"{_WHAT}: windows move along {dim!r}, so that a slice, a list of slices or a mask selects"
            f" cells there, got {given!r}; to list origins, give Window(anchors=...)"
        )
    hull = range(length) if is_mask(given) else range(found[0], found[-1] + 1)
    allowed = np.ones(length, np.bool_)
    allowed[hull.start : hull.stop] = False  # cells around the hull are padding
    allowed[list(found)] = True
    return hull, allowed


def _is_several(given: Any) -> bool:
    return is_list(given) and any(isinstance(one, slice) for one in given)


def _picked(
    dim: Dim, label: Any, coordinate: Coordinate | None, length: int, method: str | None
) -> Picked:
    found: Picked
    if is_mask(label):
        if np.shape(label) != (length,):
            raise SourceError(
                f"{_WHAT}: the mask of {dim!r} has {np.size(label):,} values, and there are {length:,}"
                " cells; give one for each"
            )
        found = tuple(np.flatnonzero(label).tolist())
    elif coordinate is None:
        found = _by_cell(dim, label, length)
    else:
        found = coordinate.cells_of(label, method)
    if not isinstance(found, int) and not len(found):
        held = f" coordinates: {coordinate.range}" if coordinate else f" cells of {dim!r}"
        raise SourceError(
            f"{_WHAT}: the selection {label} along {dim!r} holds none of the {length:,}{held}"
            + _turned(label, coordinate)
        )
    return found


def _turned(label: Any, coordinate: Coordinate | None) -> str:
    """The end of a message for a slice against the order of its coordinate; '' for others."""
    if coordinate is None or not isinstance(label, slice):
        return ""
    other = slice(label.stop, label.start)
    way = "fall" if coordinate.falls else "rise"
    return f"; they {way}, so write {other}" if len(coordinate.cells_between(other)) else ""


def _by_cell(dim: Dim, given: Any, length: int) -> Picked:
    cells = range(length)
    try:
        if isinstance(given, slice):
            found = cells[given]
            return found if found.step == 1 else tuple(found)
        if is_list(given):
            return tuple(cells[operator.index(cell)] for cell in given)
        return cells[operator.index(given)]
    except (IndexError, TypeError, ValueError) as error:
        raise SourceError(
            f"{_WHAT}: the selection {given!r} along {dim!r} is not among its {length:,} cells ({error});"
            f" without a coordinate, give cells, -{length} <= cell < {length}"
        ) from error
