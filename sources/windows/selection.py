"""Selects cells along a dimension by labels or, without coordinates, by cells.

Labels select as in xarray's `sel`: both ends of a slice are included, and a string such as "2019-03"
covers all of March.

Invariant: nothing is read. Values of a coordinate and its labels are compared exactly. What `picked`
selects is one cell, cells in the given order, or a range of neighbours, and is never empty.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.errors import ArgumentError, SourceError
from windrow.sources.base import IntArray
from windrow.sources.windows.calendars import interval_among, is_date
from windrow.sources.windows.fields import integer
from windrow.sources.windows.labels import (
    Interval,
    below,
    interval_of,
    keys_of,
    up_to,
)
from windrow.sources.windows.origins import Dim

AnyArray = npt.NDArray[Any]

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
        unit_ns: Nanoseconds of 1 where the values are times as numbers, of a calendar that NumPy has
            not; else None.
        unit: The unit of the values, as it is stored; '' without one.
        attributes: Attributes of the array.
    """

    name: str
    dims: tuple[str, ...]
    values: AnyArray
    unit_ns: int | None = None
    unit: str = ""
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_of_times(self) -> bool:
        """Whether it holds times, which may be numbers of a calendar that NumPy has not."""
        return self.values.dtype.kind == "M" or self._counts_times

    @property
    def _counts_times(self) -> bool:
        return " since " in self.unit and self.values.dtype.kind in "iuf"

    def interval(self, label: Any) -> Interval:
        """The interval that a label stands for among the values.

        Raises:
            ArgumentError, SourceError, MissingExtraError: As `interval_of` and
                `calendars.interval_among` raise them.
        """
        what = f"coordinate {self.name!r}"
        if self._counts_times and is_date(label):
            calendar = str(self.attributes.get("calendar", "standard"))
            dtype, held = self.values.dtype, self.range
            return interval_among(label, dtype, self.unit, calendar, what, held)
        return interval_of(label, self.values.dtype, what)

    @functools.cached_property
    def _keys(self) -> AnyArray:
        return keys_of(self.values)

    @functools.cached_property
    def direction(self) -> int:
        """1 if the values ascend, -1 if they descend, 0 otherwise; equal neighbours are allowed."""
        if len(self) > 1 and _has_gaps(self.values):
            return 0
        before, after = self._keys[:-1], self._keys[1:]
        if bool(np.all(before <= after)):
            return 1
        return -1 if bool(np.all(before >= after)) else 0

    @functools.cached_property
    def _order(self) -> IntArray | None:
        """The indices that sort the values; None if they ascend or descend."""
        return np.argsort(self._keys, kind="stable") if self.direction == 0 else None

    @functools.cached_property
    def _ascending(self) -> AnyArray:
        if self._order is not None:
            return self._keys[self._order]
        return self._keys[:: self.direction]

    def _places(self, interval: Interval) -> tuple[int, int]:
        """The run `[start, stop)` of ascending keys in an interval."""
        if interval.first > interval.last:
            at = below(self._ascending, interval.first)
            return at, at
        return below(self._ascending, interval.first), up_to(self._ascending, interval.last)

    def _position(self, place: int) -> int:
        if self._order is not None:
            return int(self._order[place])
        return place if self.direction == 1 else len(self) - 1 - place

    @property
    def range(self) -> str:
        """The first and the last label, as text for the user."""
        if len(self) == 0:
            return "it has no values"
        count = f"{len(self):,} value{'s' if len(self) > 1 else ''}"
        if self.direction == 0:
            low, high = (self.values[self._position(at)] for at in (0, len(self) - 1))
            return f"it has {count} from {shown_label(low)} to {shown_label(high)} in no order"
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
    what = f"coordinate {coordinate.name!r}"
    if wanted.step is not None:
        raise SourceError(
            f"{what}: a slice of labels has no step, got {wanted!r}; give the ends only"
        )
    ends = [
        None if end is None else coordinate.interval(end) for end in (wanted.start, wanted.stop)
    ]
    count = len(coordinate)
    if ends == [None, None]:
        return slice(0, count)
    if coordinate.direction == 0:
        raise SourceError(
            f"{what} neither ascends nor descends, so that a slice from {wanted.start!r} to"
            f" {wanted.stop!r} has no meaning; give a list of labels, or sort the array along it"
        )
    first, last = ends
    keys = coordinate._ascending
    if coordinate.direction == 1:
        start = 0 if first is None else below(keys, first.first)
        stop = count if last is None else up_to(keys, last.last)
    else:
        start = 0 if first is None else count - up_to(keys, first.last)
        stop = count if last is None else count - below(keys, last.first)
    return slice(start, max(start, stop))


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
    what = f"coordinate {coordinate.name!r}"
    if method not in (None, "nearest"):
        raise ArgumentError(f'{what}: method must be None or "nearest", got {method!r}')
    interval = coordinate.interval(label)
    if method is not None:
        return _nearest(coordinate, label, interval)
    low, high = coordinate._places(interval)
    if low == high:
        raise _absent(coordinate, label, interval)
    return _only(coordinate, label, low, high)


def positions_of(coordinate: Coordinate, labels: Any, *, method: str | None = None) -> IntArray:
    """The cells of several labels, in their order: int64 `(n,)`.

    An array of booleans, one per cell, selects the cells with True.

    Raises:
        ArgumentError, SourceError: As `position_of` raises them.
    """
    what = f"coordinate {coordinate.name!r}"
    given = labels if isinstance(labels, np.ndarray) else None
    if given is None and (isinstance(labels, str | bytes) or not isinstance(labels, Sequence)):
        raise ArgumentError(f"{what}: labels must be a list or an array, got {labels!r}")
    if given is not None and given.ndim != 1:
        raise ArgumentError(f"{what}: labels must have one axis, got shape {given.shape}")
    if given is None and labels and all(isinstance(one, bool | np.bool_) for one in labels):
        given = np.asarray(labels)
    if given is not None and given.dtype.kind == "b" and coordinate.values.dtype.kind != "b":
        if len(given) != len(coordinate):
            raise SourceError(
                f"{what}: a mask has one value per cell, got {len(given):,} for {len(coordinate):,}"
            )
        return np.flatnonzero(given).astype(np.int64)
    if method is None and given is not None:
        own = coordinate.values.dtype
        if given.dtype == own:
            return _positions(coordinate, given)
        if given.dtype.kind == own.kind and own.kind in "fU":
            return _positions(coordinate, given.astype(own) if own.kind == "f" else given)
    found = (position_of(coordinate, one, method=method) for one in labels)
    return np.fromiter(found, np.int64, len(labels))


def _positions(coordinate: Coordinate, labels: AnyArray) -> IntArray:
    """The cells of labels of the coordinate's own dtype."""
    keys, wanted = coordinate._ascending, keys_of(labels)
    low = np.searchsorted(keys, wanted, side="left")
    high = np.searchsorted(keys, wanted, side="right")
    # `position_of` raises the error for the first label that is missing or not unique.
    for at in np.flatnonzero((high - low != 1) | _absent_values(labels))[:1]:
        position_of(coordinate, labels[at])
    places = low.astype(np.int64)
    if coordinate._order is not None:
        found: IntArray = coordinate._order[places]
        return found
    return places if coordinate.direction == 1 else len(coordinate) - 1 - places


def _only(coordinate: Coordinate, label: Any, low: int, high: int) -> int:
    if high - low > 1:
        way = (
            f"give slice({label!r}, {label!r}) for all of them, or one of them in full"
            if isinstance(label, str) and coordinate.is_of_times
            else "select by position"
        )
        raise SourceError(
            f"coordinate {coordinate.name!r}: the label {label!r} names {high - low:,} cells; {way}"
        )
    return coordinate._position(low)


def _nearest(coordinate: Coordinate, label: Any, interval: Interval) -> int:
    what = f"coordinate {coordinate.name!r}"
    if coordinate.values.dtype.kind not in "biufmM":
        raise ArgumentError(f'{what}: method="nearest" is for numbers and times; give None')
    if coordinate.direction == 0:
        raise SourceError(
            f'{what} neither ascends nor descends, but method="nearest" needs a sorted one; give a'
            " label that it has, or sort the array along it"
        )
    place = _nearest_place(coordinate, interval)
    if place is None:
        raise _absent(coordinate, label, interval)
    keys = coordinate._ascending
    return _only(coordinate, label, below(keys, keys[place]), up_to(keys, keys[place]))


def _nearest_place(coordinate: Coordinate, interval: Interval) -> int | None:
    """The place of the nearest key, the greater one of two; None without keys."""
    keys = coordinate._ascending
    if len(keys) == 0:
        return None
    # The distance of a string is measured from the start of the time span that it covers.
    after = below(keys, interval.first)
    if after == len(keys):
        return after - 1
    if after == 0:
        return 0
    before = _distance(keys[after - 1], interval.at)
    return after if _distance(keys[after], interval.at) <= before else after - 1


def _distance(key: Any, at: Any) -> Any:
    # Python's integers do not overflow.
    return abs(int(key) - at) if isinstance(key, np.integer) else abs(key - at)


def _absent(coordinate: Coordinate, label: Any, interval: Interval) -> SourceError:
    what = f"coordinate {coordinate.name!r} has no label {label!r}; {coordinate.range}"
    if coordinate.direction == 0 or coordinate.values.dtype.kind not in "biufmM":
        return SourceError(f"{what}; give a label that it has")
    place = _nearest_place(coordinate, interval)
    if place is None:
        return SourceError(what)
    nearest = shown_label(coordinate.values[coordinate._position(place)])
    return SourceError(f'{what}, the nearest is {nearest}; give method="nearest" to take that one')


def shown_label(value: Any) -> str:
    """A value as text for the user; times without trailing zeros."""
    if isinstance(value, np.datetime64):
        return str(np.datetime_as_string(value, unit="auto"))
    text = str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def _has_gaps(values: AnyArray) -> bool:
    return bool(np.any(_absent_values(values)))


def _absent_values(values: AnyArray) -> npt.NDArray[np.bool_]:
    """Which values are NaN or NaT."""
    if values.dtype.kind in "fc":
        return np.isnan(values)
    return np.isnat(values) if values.dtype.kind in "mM" else np.zeros(values.shape, np.bool_)


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
