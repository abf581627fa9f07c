"""Makes indexes of pandas of the values of coordinates, and keys of labels, which these look up.

A string among times stays a string, since pandas and xarray know how much of the time it covers: all of a
month, for "2019-03". The dates of calendars that NumPy has not are indexes of xarray.

Invariant: comparisons are exact. Floats are compared in the coordinate's own dtype, as xarray does.
"""

from __future__ import annotations

import contextlib
import datetime
import numbers
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from windrow.core.optional_imports import optional
from windrow.core.text import with_article
from windrow.errors import ArgumentError, SourceError
from windrow.sources.base import AnyArray

_CLOCK: Final = r"([T ]\d{2}(:\d{2}(:\d{2}(\.\d{1,9})?)?)?)?"
# pandas also takes "today", and "3/2/2019" as the second of March.
_TIME: Final = re.compile(rf"\d{{4}}(-\d{{1,2}}|-\d{{1,2}}-\d{{1,2}}{_CLOCK}|\d{{4}}{_CLOCK})?")

_NUMBERS: Final = ("numbers", (numbers.Real, np.bool_), "a number")
_STRINGS: Final = ("strings", (str, bytes), "a string")
# By the kind of dtype: what a coordinate holds, the types of its labels, and what to give.
_TAKEN: Final[Mapping[str, tuple[str, tuple[type, ...], str]]] = {
    "M": (
        "times",
        (str, datetime.date, np.datetime64),
        "an ISO string, a datetime or a numpy.datetime64",
    ),
    "m": (
        "durations",
        (datetime.timedelta, np.timedelta64),
        "a datetime.timedelta or a numpy.timedelta64",
    ),
    "U": _STRINGS,
    "O": _STRINGS,
    "S": ("bytes", (str, bytes), "bytes or a string"),
}


def index_of(values: AnyArray, what: str) -> Any:
    """The values of a coordinate as an index of pandas; `what` is the coordinate, for messages."""
    pandas = optional("pandas", f"the labels of {what}", "xarray")
    dtype = values.dtype
    if dtype.kind in "USO":
        return pandas.Index(values.astype(object), dtype=object)
    if dtype.kind == "f" and dtype.itemsize == 2:
        values = values.astype(np.float32)
    if dtype.kind in "biu" and values.max(initial=0) <= np.iinfo(np.int64).max:
        values = values.astype(np.int64)
    index = pandas.Index(values)
    if dtype.kind in "mM":  # so that no finer label is rounded
        errors = pandas.errors.OutOfBoundsDatetime, pandas.errors.OutOfBoundsTimedelta
        with contextlib.suppress(*errors):
            return index.as_unit("ns")
    return index


def key_of(label: Any, dtype: np.dtype[Any], what: str) -> Any:
    """A label as it compares with the index of values of `dtype`.

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
    holds, types, way = _TAKEN.get(dtype.kind, _NUMBERS)
    boolean, fits = isinstance(label, bool | np.bool_), isinstance(label, types)
    if not fits or (boolean and dtype.kind != "b"):
        raise ArgumentError(
            f"{what} holds {holds}, and {label!r} is {with_article(type(label).__name__)}; give {way}"
        )
    if label != label:
        raise SourceError(f"{what}: the label is {label}, which no value equals; give {way}")
    if dtype.kind in "mM":
        return _time(label, what) if dtype.kind == "M" else _duration(label, what)
    if dtype.kind in "UOS":
        return _text(label, what, raw=dtype.kind == "S")
    if dtype.kind != "f":
        return int(label) if boolean else label.item() if isinstance(label, np.generic) else label
    with np.errstate(over="ignore"):
        # 0.1 is stored as the nearest value of the coordinate's own dtype.
        key = dtype.type(label)
    return np.float32(key) if dtype.itemsize == 2 else key


def is_date(label: Any) -> bool:
    """Whether a label is a date and not a number."""
    return isinstance(label, str | datetime.date | np.datetime64) or _is_of_cftime(label)


def date_key(label: Any, calendar: str, what: str) -> Any:
    """A label, as `is_date` takes it, as it compares with dates of a calendar that NumPy has not.

    Raises:
        SourceError: If the label is not a time.
        ValueError: If the calendar does not have it.
    """
    if _is_of_cftime(label):
        if label.calendar != calendar:
            raise ValueError(f"it is a date of the calendar {label.calendar!r}")
        return label
    if isinstance(label, str):
        start_of(label, what, calendar)
        return label.strip()
    return start_of(_time(label, what).isoformat(timespec="microseconds"), what, calendar)


def start_of(text: str, what: str, calendar: str | None = None) -> Any:
    """The time at which a string among times begins; `calendar` is one that NumPy has not.

    Raises:
        SourceError: If it is not a time.
        ValueError: If the calendar does not have it.
    """
    wrong = SourceError(
        f"{what}: the label {text!r} is not a time; give it as 2019, 2019-03, 2019-03-01 or"
        " 2019-03-01T12:30:00, without a zone"
    )
    text = text.strip()
    if not _TIME.fullmatch(text):
        raise wrong
    if calendar is not None:
        xarray = optional("xarray", what, "xarray")
        return xarray.date_range(text, periods=1, freq="D", calendar=calendar, use_cftime=True)[0]
    try:
        return optional("pandas", what, "xarray").Timestamp(text)
    except ValueError as error:
        raise wrong from error


def _is_of_cftime(label: Any) -> bool:
    return type(label).__module__.partition(".")[0] == "cftime"


def _time(label: Any, what: str) -> Any:
    """A string as it is, and any other time as a timestamp of pandas."""
    if isinstance(label, str):
        start_of(label, what)
        return label.strip()
    if getattr(label, "tzinfo", None) is not None:
        raise SourceError(
            f"{what}: the label {label!r} has a time zone, and the coordinate has none; give"
            " the time in UTC, without a zone"
        )
    key = optional("pandas", what, "xarray").Timestamp(label)
    if key != key:
        raise SourceError(f"{what}: the label is NaT, which no value equals; give a time")
    return key


def _duration(label: Any, what: str) -> Any:
    try:
        return optional("pandas", what, "xarray").Timedelta(label)
    except ValueError as error:
        raise SourceError(
            f"{what}: {label!r} has no fixed length; give it in days or hours"
        ) from error


def _text(label: str | bytes, what: str, *, raw: bool) -> str | bytes:
    """A label among strings, or among bytes if `raw`."""
    if isinstance(label, bytes) == raw:
        return label
    try:
        return label.decode() if isinstance(label, bytes) else label.encode()
    except UnicodeDecodeError as error:
        raise SourceError(f"{what}: the label {label!r} is not UTF-8 text") from error
