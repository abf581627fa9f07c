"""Dates among times that stay numbers, since NumPy does not have their calendar; cftime counts them.

Invariant: a date is never taken for one of another calendar. cftime is imported only where a label is a date.
"""

from __future__ import annotations

import datetime
import importlib
import math
from typing import Any, Final

import numpy as np

from windrow.errors import ArgumentError, MissingExtraError
from windrow.sources.windows.cf import unit_ns
from windrow.sources.windows.labels import DATE_PARTS, Interval, date_in

_LEAST: Final = {"month": 1, "day": 1}


def is_date(label: Any) -> bool:
    """Whether a label is a date and not a number."""
    return isinstance(label, str | datetime.date | np.datetime64) or _is_of_cftime(label)


def _is_of_cftime(label: Any) -> bool:
    return type(label).__module__.partition(".")[0] == "cftime"


def interval_among(
    label: Any, dtype: np.dtype[Any], units: str, calendar: str, what: str, held: str
) -> Interval:
    """The interval that a date stands for among numbers in `units`, such as `days since 1850-01-01`.

    Args:
        label: As `is_date` takes it; a string covers all times that begin with it.
        dtype: Dtype of the numbers.
        units: Their units.
        calendar: Their calendar.
        what: The coordinate, for messages.
        held: The numbers that it has, for messages.

    Raises:
        ArgumentError: If cftime does not count such units, or the calendar does not have the date.
        MissingExtraError: If cftime is not installed.
        SourceError: If the label is not a time.
    """
    holds = f"{what} holds numbers in {units!r} of the calendar {calendar!r}"
    unit = units.partition(" since ")[0].strip().lower()
    if unit_ns(unit) is None and (calendar != "360_day" or unit not in ("month", "months")):
        raise ArgumentError(
            f"{holds}, a unit without a fixed length, and {label!r} is a date; give numbers in these"
            f" units: {held}"
        )
    try:
        cftime = importlib.import_module("cftime")
    except ImportError as error:
        raise MissingExtraError(
            f"{holds}, and {label!r} is a date: to give dates, pip install cftime; or give numbers in"
            f" these units: {held}"
        ) from error
    own = _is_of_cftime(label)
    given = {} if own else date_in(label, what)
    try:
        if own:
            start = label
            if label.calendar != cftime.datetime(2000, 1, 1, calendar=calendar).calendar:
                raise ValueError(f"it is a date of the calendar {label.calendar!r}")
        else:
            parts = {name: given.get(name, _LEAST.get(name, 0)) for name in DATE_PARTS}
            start = cftime.datetime(**parts, calendar=calendar)
        first = last = cftime.date2num(start, units, calendar)
        if isinstance(label, str) and "microsecond" not in given:
            last = cftime.date2num(_after(start, list(given)[-1]), units, calendar)
    except (ValueError, OverflowError) as error:
        raise ArgumentError(
            f"{holds}, and cftime cannot count {label!r} in them ({error}); give a date of this calendar,"
            f" or numbers in these units: {held}"
        ) from error
    if dtype.kind == "f":
        stop = dtype.type(last)
        return Interval(
            dtype.type(first), np.nextafter(stop, -np.inf) if last > first else stop, first
        )
    return Interval(
        math.ceil(first), math.ceil(last) - 1 if last > first else math.floor(last), first
    )


def _after(start: Any, part: str) -> Any:
    """The end of the time that begins at `start` and is named down to its year, month, day, ..."""
    if part not in ("year", "month"):
        return start + datetime.timedelta(**{f"{part}s": 1})
    months = start.year * 12 + start.month - 1 + (12 if part == "year" else 1)
    return start.replace(year=months // 12, month=months % 12 + 1)
