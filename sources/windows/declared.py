"""Declares windows: what a record has along each dimension, and the fields that it consists of.

Invariant: a duration is exact, a whole number of nanoseconds. What has no fixed length, such as a month,
is not a duration.
"""

from __future__ import annotations

import dataclasses
import datetime
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from windrow.core.optional_imports import optional
from windrow.errors import ArgumentError, SourceError

Dim: TypeAlias = str | int
Offset: TypeAlias = int | datetime.timedelta  # cells, or a duration of pandas

_PADS: Final = ("constant", "edge", "reflect", "symmetric", "wrap")
# Sums of a few such numbers of cells still fit int64.
_MOST_CELLS: Final = 2**60
# pandas also takes "6", as nanoseconds, and "1,5h", as 15 hours.
_DURATION: Final = re.compile(r"\s*[+-]?\s*(\d+(\.\d+)?\s*[A-Za-z]+\s*)+")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Declare what windows have along one dimension.

    Args:
        size: Cells of a window; along times that are evenly spaced also its duration, such as
            `"1D"`, a whole number of cells. None where fields have offsets, for single cells at
            `anchors`, and for the whole dimension.
        stride: Cells, or the duration, from one window's origin to the next one's; by default the
            size, so that windows do not overlap, and 1 where offsets or anchors alone name the
            dimension.
        select: Labels of the dimension's coordinate as for xarray's `sel`; cells if it has none. A
            slice, both ends included, bounds the cells that windows read. A list of slices, such as
            years with holes, or a mask, one bool for each cell, leaves out the windows that would
            read any other cell. Where windows do not move, a single label takes that cell and drops
            the axis, and a list takes several.
        cells: In place of `select`, cells by their numbers, as for xarray's `isel`.
        anchors: Integers, the origins themselves: the cell at offset 0, or the first cell in a grid.
        pad: How windows may reach out of the cells that are read, as by `numpy.pad`: 'constant',
            'edge', 'reflect', 'symmetric', or 'wrap', where a grid has a window at each stride. By
            default windows that do not fit are left out.
        method: None, or 'nearest' for labels that need not be exact, except in slices.
        tolerance: A duration such as `"30min"`, for offsets in time where times are not evenly
            spaced, or lie between the steps. Each offset takes the cell with the nearest time, if
            it is that near, and windows without such a cell are left out; `"0h"` takes only the
            time itself. By default such times are an error that says where they are.

    Raises:
        ArgumentError: If an argument is of a wrong kind.
        SourceError: If a size or stride is below 1.

    Example:
        >>> from windrow.sources import Window
        >>> days = Window("1D", "6h", select=[slice("1979", "2015"), slice("2018", "2020")])
        >>> around = Window(64, pad="wrap")
    """

    size: Any = None
    stride: Any = None
    _: dataclasses.KW_ONLY
    select: Any = None
    cells: Any = None
    anchors: Any = None
    pad: str | None = None
    method: str | None = None
    tolerance: Any = None

    def __post_init__(self) -> None:
        for name in ("size", "stride"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, size_of(given, f"Window: {name}"))
        if self.select is not None and self.cells is not None:
            raise ArgumentError("Window: select and cells both choose cells; give one of them")
        if self.pad is not None and self.pad not in _PADS:
            raise ArgumentError(f"Window: pad must be one of {_PADS} or None, got {self.pad!r}")
        if self.method not in (None, "nearest"):
            raise ArgumentError(f'Window: method must be None or "nearest", got {self.method!r}')
        if self.tolerance is not None:
            found = duration(self.tolerance, "Window: tolerance")
            if found is None or found < datetime.timedelta(0):
                raise ArgumentError(
                    "Window: tolerance must be a duration such as '30min' or '0h', got"
                    f" {self.tolerance!r}"
                )
            object.__setattr__(self, "tolerance", found)

    @property
    def chosen(self) -> Any:
        """The labels or cells that it selects; None for all."""
        return self.select if self.cells is None else self.cells

    @property
    def seeks_labels(self) -> bool:
        """Whether it selects by labels, and not by cells or a mask."""
        return self.select is not None and not is_mask(self.select)


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """Declare one array of a record: its array in the store, and its cells of that array.

    Args:
        array: Name of the array; None if the store has only one.
        offsets: By dimension, cells from the window's origin: an integer or a list of them. An
            integer takes one cell and drops the axis, unless there is a size along the dimension; a
            list keeps the axis, with the cells (or windows) of all offsets one after the other.
            Along a dimension with times, durations too: `"-12h"`, a `numpy.timedelta64`, a
            `datetime.timedelta` or a `pandas.Timedelta`.
        sizes: By dimension, cells of this field's window or its duration, in place of the size of
            the `Window`.
        select: Labels that this field takes along dimensions without moving windows, in place of
            the labels of the `Window`: `{"level": 500}`.

    Example:
        >>> from windrow.sources import Field
        >>> inputs = Field("t2m", {"time": [-12, -6, 0]})
        >>> target = Field("t2m", {"time": "6h"})
        >>> height = Field("z", {"time": 0}, select={"level": 500})
    """

    array: str | None = None
    offsets: Mapping[Any, Any] = dataclasses.field(default_factory=dict)
    sizes: Mapping[Any, Any] = dataclasses.field(default_factory=dict)
    select: Mapping[Any, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.array is not None and not isinstance(self.array, str):
            raise ArgumentError(f"Field: array must be the name of one, got {self.array!r}")
        offsets = {
            dim: _offsets(given, f"Field: offsets[{dim!r}]")
            for dim, given in by_dim(self.offsets, "Field: offsets")
        }
        sizes = {
            dim: size_of(given, f"Field: sizes[{dim!r}]")
            for dim, given in by_dim(self.sizes, "Field: sizes")
        }
        object.__setattr__(self, "offsets", offsets)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "select", dict(by_dim(self.select, "Field: select")))

    @property
    def timed_dims(self) -> list[Dim]:
        """The dimensions along which it has offsets in time."""
        return [
            dim
            for dim, given in self.offsets.items()
            if isinstance(given[0] if isinstance(given, tuple) else given, datetime.timedelta)
        ]


def window_of(given: Any, what: str) -> Window:
    """Make the `Window` of what a user gives for a dimension: one, a size, a slice, or slices.

    Raises:
        ArgumentError: If it is nothing of these.
        SourceError: If it is a size below 1.
    """
    if isinstance(given, Window):
        return given
    if isinstance(given, slice):
        return Window(select=given)
    if is_list(given) and len(given) and all(isinstance(one, slice) for one in given):
        return Window(select=given)
    if not is_list(given):
        try:
            return Window(size_of(given, what))
        except ArgumentError as error:
            raise ArgumentError(f"{error}; a label is Window(select=...)") from error
    raise ArgumentError(
        f"{what} must be a size, a slice, a list of slices or a Window, got {given!r}; a list of labels"
        " is Window(select=...), and a Field has offsets"
    )


def is_list(given: Any) -> bool:
    """Whether a value is a list, a tuple or an array with an axis."""
    return isinstance(given, list | tuple) or (isinstance(given, np.ndarray) and given.ndim > 0)


def is_mask(given: Any) -> bool:
    """Whether a value is a list of booleans, one per cell."""
    if isinstance(given, np.ndarray):
        return bool(given.dtype.kind == "b")
    return is_list(given) and all(isinstance(one, bool | np.bool_) for one in given)


def by_dim(given: Any, what: str) -> list[tuple[Dim, Any]]:
    """List the items of a mapping by dimension; none for None.

    Raises:
        ArgumentError: If it is not a mapping by names or positions.
    """
    if given is None:
        return []
    if not isinstance(given, Mapping):
        raise ArgumentError(
            f"{what} must be a dict by dimension, such as {{'time': 3}} or {{0: 3}}, got {given!r}"
        )
    return [(_dim(dim, what), value) for dim, value in given.items()]


def _dim(given: Any, what: str) -> Dim:
    if isinstance(given, str):
        return given
    try:
        if not isinstance(given, bool | np.bool_):
            return operator.index(given)
    except TypeError:
        pass
    raise ArgumentError(f"{what} has the dimension {given!r}; give a name or the number of an axis")


def _offsets(given: Any, what: str) -> Offset | tuple[Offset, ...]:
    several = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    if not several and not getattr(given, "ndim", 0):  # an index of pandas is not a Sequence
        return _offset(given, what)
    found = tuple(_offset(item, what) for item in given)
    if not found:
        raise ArgumentError(f"{what} is empty; give at least one offset")
    timed = [isinstance(item, datetime.timedelta) for item in found]
    if any(timed) and not all(timed):
        raise ArgumentError(
            f"{what} has cells and durations, {list(given)}; give one kind, such as '0h' in place of 0"
        )
    return found


def _offset(given: Any, what: str) -> Offset:
    found = duration(given, what)
    return integer(given, what) if found is None else found


def integer(value: Any, what: str) -> int:
    """Return `value` as an int.

    Raises:
        ArgumentError: If it is not an integer, or is too large.
    """
    try:
        found = operator.index(value)
    except TypeError:
        found = None
    if found is None or isinstance(value, bool | np.bool_):
        raise ArgumentError(f"{what} must be an integer, got {value!r}")
    if not -_MOST_CELLS <= found <= _MOST_CELLS:
        raise ArgumentError(f"{what} must be within {_MOST_CELLS:,} of 0, got {found:,}")
    return found


def size_of(value: Any, what: str) -> Offset:
    """Return a size or a stride: cells, or a duration.

    Raises:
        ArgumentError: If it is neither an integer nor a duration.
        SourceError: If it is below 1 cell, or not above 0.
    """
    found = duration(value, what)
    if found is not None:
        if found <= datetime.timedelta(0):
            raise SourceError(f"{what} must be above 0, got {value!r}")
        return found
    cells = integer(value, what)
    if cells < 1:
        raise SourceError(f"{what} must be at least 1, got {cells}")
    return cells


def duration(given: Any, what: str) -> datetime.timedelta | None:
    """Return a duration as a `pandas.Timedelta`; None for what is of no such type.

    Raises:
        ArgumentError: If it is of a type of durations and has no fixed length, or is out of range.
        MissingExtraError: If pandas is not installed.
    """
    if isinstance(given, np.ndarray) and given.ndim == 0:
        given = given[()]
    if not isinstance(given, str | np.timedelta64 | datetime.timedelta):
        return None
    pandas = optional("pandas", f"{what}: a duration", "xarray")
    try:
        if isinstance(given, str) and not _DURATION.fullmatch(given):
            raise ValueError("a number with a unit is needed")
        if (found := pandas.Timedelta(given)) is pandas.NaT:
            raise ValueError("it is NaT")
        exact: datetime.timedelta = found.as_unit("ns")
    except (ValueError, OverflowError) as error:
        raise ArgumentError(
            f"{what} is {given!r}, which is not a duration ({error}); write it as '-12h', '30min' or '1D',"
            " or give cells"
        ) from error
    return exact
