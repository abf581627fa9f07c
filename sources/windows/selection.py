"""Selects cells along a dimension by labels or, without coordinates, by cells.

Labels select as in xarray's `sel`: both ends of a slice are included, and a string such as "2019-03"
covers all of March.

Invariant: nothing is read. What `picked` selects is one cell, cells in the given order, or a range of
neighbours, and is never empty.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from windrow.errors import ArgumentError, SourceError
from windrow.sources.base import AnyArray, IntArray
from windrow.sources.windows.cf import dates_of
from windrow.sources.windows.fields import integer
from windrow.sources.windows.labels import date_key, index_of, is_date, key_of, start_of
from windrow.sources.windows.origins import Dim

_WHAT: Final = "WindowDataSource"
_SHOWN_CHARACTERS: Final = 40

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
    def index(self) -> Any:
        """The values as an index of pandas."""
        return index_of(self.values, self.what)

    @functools.cached_property
    def direction(self) -> int:
        """1 if the values ascend, -1 if they descend, 0 otherwise; equal neighbours are allowed."""
        if len(self) > 1 and self.index.hasnans:
            return 0
        if self.index.is_monotonic_increasing:
            return 1
        return -1 if self.index.is_monotonic_decreasing else 0

    @functools.cached_property
    def cells(self) -> IntArray:
        """The cells that have a value, by ascending value."""
        order = np.arange(len(self))[:: self.direction] if self.direction else self.index.argsort()
        found: IntArray = order[self.index.notna()[order]]
        return found

    @functools.cached_property
    def ascending(self) -> Any:
        """The values as an ascending index of pandas."""
        return self.index[self.cells]

    @functools.cached_property
    def dates(self) -> Any:
        """The ascending values as dates, an index of xarray, if they count times.

        Raises:
            ArgumentError: If cftime does not count such times.
            MissingExtraError: If cftime is not installed.
        """
        try:
            return dates_of(self.values[self.cells], self.attributes, self.name)
        except ValueError as error:
            raise ArgumentError(
                f"{self._held}, and cftime does not count these ({error.__cause__ or error}); give numbers in"
                f" these units: {self.range}"
            ) from error

    @property
    def _held(self) -> str:
        """What it holds where it counts times, for messages."""
        units, calendar = (self.attributes.get(key, "standard") for key in ("units", "calendar"))
        return f"{self.what} holds numbers in {units!r} of the calendar {calendar!r}"

    def _sought(self, label: Any) -> tuple[Any, Any]:
        """The index that has labels of this kind, and the label as it compares with them."""
        if not (self.counts_times and is_date(label) and len(self.cells)):
            return self.ascending, key_of(label, self.values.dtype, self.what)
        try:
            return self.dates, date_key(label, self.dates.calendar, self.what)
        except ValueError as error:
            raise ArgumentError(
                f"{self._held}, which does not have {label!r} ({error}); give a date of this calendar, or"
                f" numbers in these units: {self.range}"
            ) from error

    def places(self, low: Any, high: Any) -> tuple[int, int]:
        """The places `[start, stop)` of the ascending values from a label to another; None for no bound."""
        first = None if low is None else self._sought(low)
        last = None if high is None else self._sought(high)
        try:
            start = 0 if first is None else int(first[0].slice_indexer(first[1], None).start)
            if last is None:
                return start, len(self.cells)
            return start, int(last[0].slice_indexer(None, last[1]).stop)
        except (ValueError, KeyError) as error:
            # The unit of the index is too fine for such times.
            raise SourceError(
                f"{self.what}: a label from {low!r} to {high!r} is too far from its times to compare;"
                f" {self.range}"
            ) from error

    def nearest(self, label: Any) -> int | None:
        """The first place of the nearest of the ascending values, the greater of two; None without any."""
        index, key = self._sought(label)
        if isinstance(key, str) and self.is_of_times:
            # The distance is measured from the start of the time that it covers.
            key = start_of(key, self.what, index.calendar if self.counts_times else None)
        if index.dtype == np.uint64 or isinstance(key, float):  # differences would wrap around
            index, key = index.astype(np.float64), float(key)
        known = index.unique()
        at = int(known.get_indexer([key], method="nearest")[0])
        return None if at < 0 else int(index.slice_indexer(known[at], None).start)

    @property
    def range(self) -> str:
        """The first and the last label, as text for the user."""
        if len(self) == 0:
            return "it has no values"
        count = f"{len(self):,} value{'s' if len(self) > 1 else ''}"
        if self.direction == 0 and len(self.cells):
            low, high = (shown_label(self.values[self.cells[at]]) for at in (0, -1))
            return f"it has {count} from {low} to {high} in no order"
        return f"it goes from {shown_label(self.values[0])} to {shown_label(self.values[-1])} ({count})"


def range_of(coordinate: Coordinate, wanted: slice) -> slice:
    """The cells whose labels lie in `wanted`, both ends included.

    Ends are in the order of the coordinate: `slice(high, low)` for one that descends. An end need
    not be one of its labels. A string covers all times that begin with it.

    Returns:
        A slice with `start <= stop`, empty if it holds no label.

    Raises:
        ArgumentError: If the type of an end does not fit the coordinate.
        SourceError: If the coordinate neither ascends nor descends, or the slice has a step.
    """
    if wanted.step is not None:
        raise SourceError(
            f"{coordinate.what}: a slice of labels has no step, got {wanted!r}; give the ends only"
        )
    count, descends = len(coordinate), coordinate.direction < 0
    low, high = (wanted.stop, wanted.start) if descends else (wanted.start, wanted.stop)
    if low is None and high is None:
        return slice(0, count)
    start, stop = coordinate.places(low, high)
    if coordinate.direction == 0:
        raise SourceError(
            f"{coordinate.what} neither ascends nor descends, so that a slice from {wanted.start!r} to"
            f" {wanted.stop!r} has no meaning; give a list of labels, or sort the array along it"
        )
    stop = max(start, stop)
    return slice(count - stop, count - start) if descends else slice(start, stop)


def position_of(coordinate: Coordinate, label: Any, *, method: str | None = None) -> int:
    """The cell of one label.

    Floats must be equal, in the coordinate's own dtype. A string stands for the only time that
    begins with it.

    Args:
        coordinate: The coordinate to search.
        label: A number, a string, a time or a duration.
        method: None for the label itself, `"nearest"` for the nearest one, the greater one of two.

    Raises:
        ArgumentError: If an argument is of a wrong type, or `method` has another value.
        SourceError: If the coordinate does not have the label, or has it in several cells.
    """
    if method not in (None, "nearest"):
        raise ArgumentError(f'{coordinate.what}: method must be None or "nearest", got {method!r}')
    if label is None:
        key_of(label, coordinate.values.dtype, coordinate.what)  # raises
    first, stop = coordinate.places(label, label)
    if method is not None:
        first, stop = _nearest(coordinate, label)
    if first == stop:
        raise _absent(coordinate, label)
    if stop - first > 1:
        way = (
            f"give slice({label!r}, {label!r}) for all of them, or one of them in full"
            if isinstance(label, str) and coordinate.is_of_times
            else "select by position"
        )
        raise SourceError(
            f"{coordinate.what}: the label {label!r} names {stop - first:,} cells; {way}"
        )
    return int(coordinate.cells[first])


def positions_of(coordinate: Coordinate, labels: Any, *, method: str | None = None) -> IntArray:
    """The cells of several labels, in their order: int64 `(n,)`.

    An array of booleans, one per cell, selects the cells with True.

    Raises:
        ArgumentError, SourceError: As `position_of` raises them.
    """
    what, own = coordinate.what, coordinate.values.dtype
    given = labels if isinstance(labels, np.ndarray) else None
    if given is None and (isinstance(labels, str | bytes) or not isinstance(labels, Sequence)):
        raise ArgumentError(f"{what}: labels must be a list or an array, got {labels!r}")
    if given is not None and given.ndim != 1:
        raise ArgumentError(f"{what}: labels must have one axis, got shape {given.shape}")
    if given is None and labels and all(isinstance(one, bool | np.bool_) for one in labels):
        given = np.asarray(labels)
    if given is not None and given.dtype.kind == "b" and own.kind != "b":
        if len(given) != len(coordinate):
            raise SourceError(
                f"{what}: a mask has one value per cell, got {len(given):,} for {len(coordinate):,}"
            )
        return np.flatnonzero(given).astype(np.int64)
    alike = given is not None and (given.dtype == own or given.dtype.kind == own.kind in "fU")
    if given is not None and alike and method is None and coordinate.ascending.is_unique:
        wanted = given.astype(own) if own.kind == "f" else given
        places = coordinate.ascending.get_indexer(index_of(wanted, what))
        for at in np.flatnonzero(places < 0)[:1]:
            position_of(coordinate, given[at])  # raises the error for the first that is missing
        cells: IntArray = coordinate.cells[places].astype(np.int64)
        return cells
    found = (position_of(coordinate, one, method=method) for one in labels)
    return np.fromiter(found, np.int64, len(labels))


def _nearest(coordinate: Coordinate, label: Any) -> tuple[int, int]:
    """The places `[first, stop)` of the nearest value; none if the coordinate is empty."""
    if coordinate.values.dtype.kind not in "biufmM":
        raise ArgumentError(
            f'{coordinate.what}: method="nearest" is for numbers and times; give None'
        )
    if coordinate.direction == 0:
        raise SourceError(
            f'{coordinate.what} neither ascends nor descends, but method="nearest" needs a sorted one;'
            " give a label that it has, or sort the array along it"
        )
    first = coordinate.nearest(label)
    if first is None:
        return 0, 0
    value = coordinate.values[coordinate.cells[first]]
    return coordinate.places(value, value)


def _absent(coordinate: Coordinate, label: Any) -> SourceError:
    what = f"{coordinate.what} has no label {label!r}; {coordinate.range}"
    if coordinate.direction == 0 or coordinate.values.dtype.kind not in "biufmM":
        return SourceError(f"{what}; give a label that it has")
    place = coordinate.nearest(label)
    if place is None:
        return SourceError(what)
    nearest = shown_label(coordinate.values[coordinate.cells[place]])
    return SourceError(f'{what}, the nearest is {nearest}; give method="nearest" to take that one')


def shown_label(value: Any) -> str:
    """A value as text for the user; times without trailing zeros."""
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value, unit="auto"))
    text = str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


# What `select` takes along one dimension: labels or, without coordinates, cells.


def picked(
    dim: Dim,
    label: Any,
    coordinate: Coordinate | None,
    length: int,
    *,
    moves: bool,
    method: str | None,
) -> Picked:
    """The cells that a label, a list of labels or a slice of labels selects.

    Args:
        dim: The dimension.
        label: The labels to select; cells if the dimension has no coordinate, as in xarray.
        coordinate: Coordinate of the dimension; None without one.
        length: Cells of the dimension.
        moves: Whether windows move along it, so that only neighbours can be selected.
        method: As for `WindowDataSource`.

    Raises:
        ArgumentError: If `label` is of a wrong kind.
        SourceError: If a label does not exist, or nothing is selected.
    """
    if coordinate is None:
        found = _by_cell(dim, label, length)
    else:
        found = _by_label(label, coordinate, moves=moves, method=method)
    if moves and not isinstance(found, range):
        raise ArgumentError(
            f"{_WHAT}: windows move along {dim!r}, so select takes a slice there, got {label!r};"
            " to list origins, give anchors"
        )
    if not isinstance(found, int) and not len(found):
        held = f" coordinates: {coordinate.range}" if coordinate else f" cells of {dim!r}"
        raise SourceError(
            f"{_WHAT}: select[{dim!r}] = {label} holds none of the {length:,}{held}"
            + _turned(label, coordinate)
        )
    return found


def _turned(label: Any, coordinate: Coordinate | None) -> str:
    """The end of a message for a slice against the order of its coordinate; '' for others."""
    if coordinate is None or not isinstance(label, slice):
        return ""
    other = slice(label.stop, label.start)
    found = range_of(coordinate, other)
    way = "rise" if coordinate.direction > 0 else "fall"
    return f"; they {way}, so write {other}" if found.stop > found.start else ""


def _is_list(label: Any) -> bool:
    return isinstance(label, list | tuple | np.ndarray) and np.ndim(label) > 0


def _by_label(label: Any, coordinate: Coordinate, *, moves: bool, method: str | None) -> Picked:
    if isinstance(label, str) and coordinate.is_of_times and coordinate.direction:
        # A string may cover many times, such as all of a month.
        covered = range_of(coordinate, slice(label, label))
        if moves or covered.stop - covered.start > 1:
            return range(covered.start, covered.stop)
    if isinstance(label, slice):
        found = range_of(coordinate, label)
        return range(found.start, found.stop)
    if _is_list(label):
        return tuple(int(cell) for cell in positions_of(coordinate, label, method=method))
    return position_of(coordinate, label, method=method)


def _by_cell(dim: Dim, label: Any, length: int) -> Picked:
    parts = [label.start, label.stop, label.step] if isinstance(label, slice) else [label]
    if any(isinstance(part, str) for part in parts):
        raise SourceError(
            f"{_WHAT}: the store has no coordinates of {dim!r}, so that the label {label!r} cannot"
            " be found; give cells, counted from 0"
        )
    if isinstance(label, slice):
        what = f"{_WHAT}: select[{dim!r}]"
        bounds = [None if part is None else integer(part, what) for part in parts]
        cells = range(length)[slice(*bounds)]
        return cells if cells.step == 1 else tuple(cells)
    if _is_list(label):
        return tuple(_cell(dim, cell, length) for cell in label)
    return _cell(dim, label, length)


def _cell(dim: Dim, given: Any, length: int) -> int:
    cell = integer(given, f"{_WHAT}: select[{dim!r}], which has no coordinates,")
    if not -length <= cell < length:
        raise SourceError(
            f"{_WHAT}: select[{dim!r}] is {cell}, and there are {length:,} cells; choose"
            f" -{length} <= cell < {length}"
        )
    return cell % length
