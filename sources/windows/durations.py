"""Reads durations that a user gives: "-12h", numpy.timedelta64, datetime.timedelta, pandas.Timedelta.

Invariant: a duration is exact, a whole number of nanoseconds. What has no fixed length, such as a
month, is not a duration.
"""

from __future__ import annotations

import datetime
import re
from fractions import Fraction
from typing import Any, Final

import numpy as np

from windrow.errors import ArgumentError
from windrow.sources.windows.cf import unit_ns
from windrow.sources.windows.labels import NS

_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")
_WHOLE: Final = re.compile(rf"\s*([+-]?)\s*((?:{_PART.pattern})+)")
_WRITTEN: Final = "write it as '-12h', '30min' or '1D', or give cells"
_NAMES: Final = {"m": "min"}


def duration(given: Any, what: str) -> np.timedelta64 | None:
    """`given` as a duration in the largest unit that holds it exactly; None if it is of no such type.

    Raises:
        ArgumentError: If it is of a type of durations and has no fixed length, or is out of range.
    """
    if isinstance(given, np.ndarray) and given.ndim == 0:
        given = given[()]
    if isinstance(given, str):
        ns = _parsed(given, what)
    elif isinstance(given, np.timedelta64):
        ns = _of_numpy(given, what)
    elif isinstance(given, datetime.timedelta):
        seconds = given.days * 86_400 + given.seconds
        # pandas counts on where the standard library ends.
        ns = (seconds * 10**6 + given.microseconds) * 1_000 + getattr(given, "nanoseconds", 0)
    else:
        return None
    if abs(ns) >= 2**63:
        raise ArgumentError(f"{what} is {given!r}, longer than 292 years; give a shorter one")
    unit = next(unit for unit in reversed(NS) if ns % NS[unit] == 0)
    return np.timedelta64(ns // NS[unit], unit)  # type: ignore[call-overload,no-any-return]


def ns_of(given: np.timedelta64) -> int:
    """The nanoseconds of what `duration` returned."""
    return int(given.astype(np.int64)) * NS[np.datetime_data(given.dtype)[0]]


def shown(given: np.timedelta64) -> str:
    """What `duration` returned, as text for the user."""
    if not given:
        return "0h"
    unit = np.datetime_data(given.dtype)[0]
    return f"{int(given.astype(np.int64)):,}{_NAMES.get(unit, unit)}"


def _parsed(text: str, what: str) -> int:
    found = _WHOLE.fullmatch(text)
    if found is None:
        raise ArgumentError(f"{what} is {text!r}, which is not a duration; {_WRITTEN}")
    total = Fraction(0)
    for count, unit in _PART.findall(found[2]):
        total += Fraction(count) * _unit(unit, text, what)
    if total.denominator != 1:
        raise ArgumentError(f"{what} is {text!r}, which is not a whole number of ns; {_WRITTEN}")
    return int(-total if found[1] == "-" else total)


def _unit(name: str, text: str, what: str) -> int:
    if name in ("M", "Y", "y") or name.lower().rstrip("s") in ("month", "year"):
        raise ArgumentError(
            f"{what} is {text!r}, and months and years have no fixed length; give days, or cells"
        )
    size = NS["m"] if name == "m" else NS["D"] * 7 if name.lower() == "w" else unit_ns(name)
    if size is None:
        raise ArgumentError(f"{what} is {text!r}, with the unknown unit {name!r}; {_WRITTEN}")
    return size


def _of_numpy(given: np.timedelta64, what: str) -> int:
    unit, count = np.datetime_data(given.dtype)
    if np.isnat(given):
        raise ArgumentError(f"{what} is NaT; give a duration, such as '-12h'")
    sizes = {**NS, "W": 7 * NS["D"]}
    if unit in sizes:
        return int(given.astype(np.int64)) * count * sizes[unit]
    if unit in ("Y", "M", "generic"):
        raise ArgumentError(f"{what} is {given!r}, which has no fixed length; give days or hours")
    return int(given.astype("m8[ns]").astype(np.int64))
