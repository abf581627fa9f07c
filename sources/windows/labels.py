"""Converts labels of a coordinate to intervals among its values.

Values of a coordinate are compared as keys: integers for integers and times, the coordinate's own
dtype for floats and strings. A label becomes a closed interval of keys: one key for a number or an
instant, the whole month for a string such as "2019-03", an empty interval for 1.5 among integers.

Invariant: comparisons are exact. They do not depend on the order of the coordinate's values.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import numbers
import re
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.core.text import with_article
from windrow.errors import ArgumentError, SourceError

AnyArray = npt.NDArray[Any]

NS: Final = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "D": 24 * 3600 * 10**9,
}
DATE_PARTS: Final = ("year", "month", "day", "hour", "minute", "second", "microsecond")
_TIME: Final = re.compile(
    r"(?P<year>\d{4})(?:-?(?P<month>\d{2})-?(?P<day>\d{2})|-(?P<only>\d{1,2})"
    r"|-(?P<month1>\d{1,2})-(?P<day1>\d{1,2}))?"
    r"(?:(?<=\d)[T ](?P<hour>\d{1,2})(?::(?P<minute>\d{2})(?::(?P<second>\d{2})"
    r"(?:\.(?P<fraction>\d{1,9}))?)?)?)?"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """Keys from `first` to `last`, both included; empty if `last < first`.

    Distances are measured from `at`.
    """

    first: Any
    last: Any
    at: Any


def keys_of(values: AnyArray) -> AnyArray:
    """The keys by which values are compared, one for each value."""
    if values.dtype.kind == "b":
        return values.view(np.uint8)
    if values.dtype.kind in "mM":
        return values.astype(f"{values.dtype.kind}8[{unit_of(values.dtype)}]").view(np.int64)
    return values


def interval_of(label: Any, dtype: np.dtype[Any], what: str) -> Interval:
    """The interval that `label` stands for among the keys of values of `dtype`.

    Args:
        label: A number, a string, a time or a duration.
        dtype: Dtype of the coordinate's values.
        what: The coordinate, for messages.

    Raises:
        ArgumentError: If the type of the label does not fit the values.
        SourceError: If it is a string that is not a time, NaN or NaT.
    """
    if isinstance(label, np.ndarray) and label.ndim == 0:
        label = label[()]
    if dtype.kind == "M":
        return _of_time(label, dtype, what)
    if dtype.kind == "m":
        return _instant(_duration_ns(label, what), dtype)
    if dtype.kind in "UO":
        return _of_text(label, what)
    if dtype.kind == "S":
        if not isinstance(label, str | bytes):
            raise _wrong_type(label, what, "bytes")
        raw = label.encode() if isinstance(label, str) else bytes(label)
        return Interval(raw, raw, raw)
    return _of_number(label, dtype, what)


def below(keys: AnyArray, key: Any) -> int:
    """The number of ascending `keys` that are less than `key`."""
    return _count(keys, key, "left")


def up_to(keys: AnyArray, key: Any) -> int:
    """The number of ascending `keys` that are `key` or less."""
    return _count(keys, key, "right")


def _count(keys: AnyArray, key: Any, side: Any) -> int:
    if keys.dtype.kind in "iu":
        bounds = np.iinfo(keys.dtype)
        if key > bounds.max:
            return len(keys)
        if key < bounds.min:
            return 0
        key = keys.dtype.type(key)
    return int(np.searchsorted(keys, key, side=side))


def _of_number(label: Any, dtype: np.dtype[Any], what: str) -> Interval:
    if isinstance(label, np.generic):
        label = label.item()
    if isinstance(label, bool) and dtype.kind != "b":
        raise _wrong_type(label, what, "numbers")
    if not isinstance(label, numbers.Real):
        raise _wrong_type(label, what, "numbers")
    if label != label:
        raise SourceError(f"{what}: the label is NaN, which no value equals; give a number")
    if dtype.kind == "f":
        # 0.1 is stored as the nearest value of the coordinate's own dtype.
        with np.errstate(over="ignore"):
            key = dtype.type(label)
        return Interval(key, key, key)
    if isinstance(label, float) and math.isinf(label):
        return Interval(label, label, label)
    return Interval(math.ceil(label), math.floor(label), label)


def _of_text(label: Any, what: str) -> Interval:
    if isinstance(label, bytes):
        try:
            label = label.decode()
        except UnicodeDecodeError as error:
            raise SourceError(f"{what}: the label {label!r} is not UTF-8 text") from error
    if not isinstance(label, str):
        raise _wrong_type(label, what, "strings")
    return Interval(str(label), str(label), str(label))


def _of_time(label: Any, dtype: np.dtype[Any], what: str) -> Interval:
    if isinstance(label, str):
        start = _parsed(label, what)
        size = NS[unit_of(dtype)]
        first, after = _ns(start), _ns(start + 1)
        return Interval(-(-first // size), -(-after // size) - 1, Fraction(first, size))
    if isinstance(label, datetime.datetime):
        if label.tzinfo is not None:
            raise _zoned(label, what)
        label = np.datetime64(label)
    elif isinstance(label, datetime.date):
        label = np.datetime64(label)
    if not isinstance(label, np.datetime64):
        raise _wrong_type(label, what, "times")
    if np.isnat(label):
        raise SourceError(f"{what}: the label is NaT, which no value equals; give a time")
    return _instant(_ns(label), dtype)


def _instant(ns: int, dtype: np.dtype[Any]) -> Interval:
    size = NS[unit_of(dtype)]
    return Interval(-(-ns // size), ns // size, Fraction(ns, size))


def _parsed(text: str, what: str) -> np.datetime64:
    """The start of the time span that an ISO string covers, with its unit."""
    found = _TIME.fullmatch(text.strip())
    if found is not None:
        part = found.groupdict()
        month, day = part["month"] or part["month1"] or part["only"], part["day"] or part["day1"]
        written = part["year"] + "".join(f"-{int(one):02d}" for one in (month, day) if one)
        if part["hour"]:
            written += f"T{int(part['hour']):02d}"
            written += "".join(f":{part[name]}" for name in ("minute", "second") if part[name])
        if part["fraction"]:
            digits = part["fraction"]
            written += "." + digits.ljust(-(-len(digits) // 3) * 3, "0")
        try:
            if day or not part["hour"]:
                return np.datetime64(written)
        except ValueError:
            pass
    raise _not_a_time(text, what)


def _not_a_time(text: str, what: str) -> SourceError:
    return SourceError(
        f"{what}: the label {text!r} is not a time; give it as 2019, 2019-03, 2019-03-01 or"
        " 2019-03-01T12:30:00, without a zone"
    )


def date_in(label: Any, what: str) -> dict[str, int]:
    """The parts of a date that a label names, from its year on; its calendar may be any.

    Raises:
        SourceError: If the label is not a time, or has a zone.
    """
    if isinstance(label, np.datetime64):
        if np.isnat(label):
            raise SourceError(f"{what}: the label is NaT, which no value equals; give a time")
        label = label.astype("M8[us]").item()
    if isinstance(label, datetime.date):
        if getattr(label, "tzinfo", None) is not None:
            raise _zoned(label, what)
        return {name: getattr(label, name) for name in DATE_PARTS if hasattr(label, name)}
    found = _TIME.fullmatch(label.strip()) if isinstance(label, str) else None
    if found is None:
        raise _not_a_time(str(label), what)
    part = found.groupdict()
    part["month"] = part["month"] or part["month1"] or part["only"]
    part["day"] = part["day"] or part["day1"]
    part["microsecond"] = part["fraction"] and part["fraction"][:6].ljust(6, "0")
    return {name: int(part[name]) for name in DATE_PARTS if part[name]}


def _zoned(label: Any, what: str) -> SourceError:
    return SourceError(
        f"{what}: the label {label!r} has a time zone, and the coordinate has none; give"
        " the time in UTC, without a zone"
    )


def _duration_ns(label: Any, what: str) -> int:
    if isinstance(label, datetime.timedelta):
        label = np.timedelta64(label)
    if not isinstance(label, np.timedelta64):
        raise _wrong_type(label, what, "durations")
    if np.isnat(label):
        raise SourceError(f"{what}: the label is NaT, which no value equals; give a duration")
    if np.datetime_data(label.dtype)[0] in ("Y", "M", "generic"):
        raise SourceError(f"{what}: {label!r} has no fixed length; give it in days or hours")
    return _ns(label)


def _ns(time: Any) -> int:
    unit, count = np.datetime_data(time.dtype)
    if unit not in NS:
        unit, count = unit_of(time.dtype), 1
        time = time.astype(f"{time.dtype.kind}8[{unit}]")
    return int(time.astype(np.int64)) * count * NS[unit]


def unit_of(dtype: np.dtype[Any]) -> str:
    """The unit of keys: the unit of the dtype itself, if that is days or shorter."""
    unit = np.datetime_data(dtype)[0]
    if unit in NS:
        return unit
    return "D" if unit in ("Y", "M", "W") else "ns"


def _wrong_type(label: object, what: str, holds: str) -> ArgumentError:
    named = {
        "times": "an ISO string, a datetime or a numpy.datetime64",
        "durations": "a datetime.timedelta or a numpy.timedelta64",
        "strings": "a string",
        "bytes": "bytes or a string",
        "numbers": "a number",
    }[holds]
    return ArgumentError(
        f"{what} holds {holds}, and {label!r} is {with_article(type(label).__name__)}; give {named}"
    )
