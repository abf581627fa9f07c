"""Reads durations that a user gives, by pandas: "-12h", numpy.timedelta64, datetime.timedelta, pandas.Timedelta.

Invariant: a duration is exact, a whole number of nanoseconds. What has no fixed length, such as a
month, is not a duration.
"""

from __future__ import annotations

import datetime
import re
from typing import Any, Final

import numpy as np

from windrow.core.optional_imports import optional
from windrow.errors import ArgumentError

# pandas also takes "6", as nanoseconds, and "1,5h", as 15 hours.
_WRITTEN: Final = re.compile(r"\s*[+-]?\s*(\d+(\.\d+)?\s*[A-Za-z]+\s*)+")


def duration(given: Any, what: str) -> np.timedelta64 | None:
    """`given` as a duration in the largest unit that holds it exactly; None if it is of no such type.

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
        if isinstance(given, str) and not _WRITTEN.fullmatch(given):
            raise ValueError("a number with a unit is needed")
        if (found := pandas.Timedelta(given)) is pandas.NaT:
            raise ValueError("it is NaT")
        found = found.as_unit("ns")
        exact: np.timedelta64 = found.to_timedelta64().astype(f"m8[{_unit_of(found)}]")
    except (ValueError, OverflowError) as error:
        raise ArgumentError(
            f"{what} is {given!r}, which is not a duration ({error}); write it as '-12h', '30min' or '1D',"
            " or give cells"
        ) from error
    return exact


def ns_of(given: np.timedelta64) -> int:
    """The nanoseconds of what `duration` returned."""
    return int(given.astype("m8[ns]").astype(np.int64))


def shown(ns: float) -> str:
    """A time span as text for the user, such as `6h` or `90min`."""
    pandas = optional("pandas", "a duration", "xarray")
    whole = pandas.Timedelta(round(ns), "ns")
    unit = whole.resolution_string if ns else "h"
    return f"{whole // pandas.Timedelta(1, unit):,}{unit}"


def _unit_of(found: Any) -> str:
    return "m" if found.resolution_string == "min" else str(found.resolution_string)
