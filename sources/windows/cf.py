"""Decodes values stored by the CF conventions: packed numbers, missing values, times.

Invariants: nothing stored is evaluated. Values decode as in xarray. An attribute that makes no sense
raises an error that names it; nothing is guessed.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import math
import numbers
import re
import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.errors import SourceError

AnyArray = npt.NDArray[Any]

_SHOWN_CHARACTERS: Final = 80
_NAMED: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_PACKING: Final = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
_FLIPPED: Final = {("i", "true"): "u", ("u", "false"): "i"}
_LONGEST_FLOAT: Final = np.dtype(np.float64)

_DAY_NS: Final = 24 * 3600 * 10**9
_UNIT_NS: Final = {
    **dict.fromkeys(("nanosecond", "nanosec", "nsec", "ns"), 1),
    **dict.fromkeys(("microsecond", "microsec", "usec", "us"), 10**3),
    **dict.fromkeys(("millisecond", "millisec", "msec", "ms"), 10**6),
    **dict.fromkeys(("second", "sec", "s"), 10**9),
    **dict.fromkeys(("minute", "min"), 60 * 10**9),
    **dict.fromkeys(("hour", "hr", "h"), 3600 * 10**9),
    **dict.fromkeys(("day", "d"), _DAY_NS),
    "week": 7 * _DAY_NS,
}
_MIXED: Final = ("standard", "gregorian")  # Julian before 1582-10-15
_EXACT: Final = (*_MIXED, "proleptic_gregorian")
_REFORM: Final = int(np.datetime64("1582-10-15", "D").astype(np.int64))
_JULIAN_DAY_OF_1970: Final = 2_440_588
_NAT: Final = int(np.iinfo(np.int64).min)
_LARGEST: Final = int(np.iinfo(np.int64).max)
_DATE: Final = re.compile(
    r"(?P<year>[+-]?\d{1,5})-(?P<month>\d{1,2})(?:-(?P<day>\d{1,2}))?"
    r"(?:(?:\s+|T)(?P<hour>\d{1,2})(?::(?P<minute>\d{1,2})(?::(?P<second>\d{1,2})"
    r"(?:\.(?P<fraction>\d*))?)?)?"
    r"\s*(?P<zone>[+-]\d{1,2}(?::?\d{2})?)?)?(?:\s*(?:Z|UTC|GMT))?"
)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Decoding:
    """How stored values are decoded.

    Args:
        dtype: The dtype delivered.
        seen_as: Integers are converted to this dtype first; None for the stored dtype.
        missing: Values, in the dtype `seen_as`, that mark a missing value: they become NaN.
        scale: Factor; None without a factor.
        offset: Added after the factor; None without an offset.
    """

    dtype: np.dtype[Any]
    seen_as: np.dtype[Any] | None = None
    missing: tuple[Any, ...] = ()
    scale: float | None = None
    offset: float | None = None

    @property
    def label(self) -> str:
        """The decoding as a string for states, the same in every version of NumPy."""
        missing = [np.asarray(value).item() for value in self.missing]
        return f"{self.dtype} of {self.seen_as} without {missing}, * {self.scale} + {self.offset}"

    def apply(self, values: AnyArray) -> AnyArray:
        """Decodes values into new memory; `values` do not change."""
        seen = values if self.seen_as is None else values.astype(self.seen_as)
        out: AnyArray = np.array(seen, dtype=self.dtype, order="C", copy=True)
        if self.missing:
            out[self._absent(seen)] = np.nan
        if self.scale is not None:
            np.multiply(out, self.scale, out=out)
        if self.offset is not None:
            np.add(out, self.offset, out=out)
        return out

    def absent(self, values: AnyArray) -> npt.NDArray[np.bool_]:
        """Which stored values are missing values."""
        return self._absent(values if self.seen_as is None else values.astype(self.seen_as))

    def _absent(self, seen: AnyArray) -> npt.NDArray[np.bool_]:
        first, *others = self.missing or (None,)
        absent = np.asarray(seen == first) if self.missing else np.zeros(seen.shape, np.bool_)
        for value in others:
            absent |= seen == value
        return absent


def decoding_of(
    attributes: Mapping[str, Any], stored_dtype: npt.DTypeLike, fill_value: Any = None
) -> Decoding | None:
    """The decoding of an array by its attributes; None where values are delivered as stored.

    Times are left as their numbers: see `times_of`.

    Args:
        attributes: Attributes of the array.
        stored_dtype: Dtype of its values.
        fill_value: Fill value of a Zarr v2 array, which serves as its `_FillValue`, as in the
            metadata; None without a fill value, and for Zarr v3.

    Raises:
        SourceError: If an attribute is not a number, or not one that the array's dtype can hold.
    """
    stored = np.dtype(stored_dtype)
    if not _is_number(stored):
        return None
    if attributes.get("dtype") == "bool":
        return Decoding(np.dtype(np.bool_))
    scale = _factor(attributes, "scale_factor")
    offset = _factor(attributes, "add_offset")
    seen = _seen(attributes, stored)
    own = attributes.get("_FillValue") if fill_value is None else fill_value
    fills = _fills("_FillValue", own, stored)
    fills += _fills("missing_value", attributes.get("missing_value"), stored)
    valued = [value for value in fills if value == value]  # a NaN need not be replaced
    if stored.kind in "iu" and not valued:
        fills = []
    if scale is None and offset is None:
        dtype = _holding_nan(seen) if valued else seen
    elif fills and not valued:
        dtype = seen
    else:
        dtype = _unpacked(seen, scale, offset, masked=bool(valued))
    decoding = Decoding(
        dtype=dtype.newbyteorder("="),
        seen_as=None if seen == stored else seen,
        missing=_matching(valued, seen, flipped=seen != stored),
        scale=scale,
        offset=offset,
    )
    plain = not decoding.missing and scale is None and offset is None
    return None if plain and dtype.newbyteorder("=") == stored.newbyteorder("=") else decoding


def described(
    attributes: Mapping[str, Any], stored_dtype: npt.DTypeLike, fill_value: Any, *, decoded: bool
) -> dict[str, Any]:
    """The attributes of an array as xarray shows them; arguments are as for `decoding_of`.

    Those that say how values are packed belong to stored values, not to decoded ones.
    """
    left_out = {"_ARRAY_DIMENSIONS", "coordinates", *(_PACKING if decoded else ())}
    found = {name: value for name, value in attributes.items() if name not in left_out}
    fill = found.get("_FillValue") if fill_value is None else fill_value
    if not decoded and fill is not None:
        try:
            found["_FillValue"] = _fills("_FillValue", fill, np.dtype(stored_dtype))[0]
        except SourceError:
            found["_FillValue"] = fill
    return found


def shown_fill(value: Any, dtype: str) -> Any:
    """The number of an attribute `_FillValue`, which xarray may write as base64; else `value`."""
    try:
        stored = np.dtype(dtype)
        fills = _fills("_FillValue", value, stored) if _is_number(stored) else []
    except (SourceError, TypeError):
        return value
    return fills[0] if len(fills) == 1 else value


def _is_number(dtype: np.dtype[Any]) -> bool:
    # Kinds of ml_dtypes, such as bfloat16, are "V" or "f".
    return dtype.kind in "iufc" or (dtype.kind == "V" and np.can_cast(dtype, np.float64))


def _wrong(name: str, value: object, allowed: str) -> SourceError:
    shown = repr(value)
    if len(shown) > _SHOWN_CHARACTERS:
        shown = shown[: _SHOWN_CHARACTERS - 1] + "…"
    return SourceError(
        f"the attribute {name} is {shown}; it must be {allowed}. Correct the attribute, or leave"
        " the values as they are stored"
    )


def _factor(attributes: Mapping[str, Any], name: str) -> Any:
    value = attributes.get(name)
    if value is None:
        return None
    number = value
    if isinstance(number, list | tuple | np.ndarray) and np.size(number) == 1:
        number = np.asarray(number).item()
    if isinstance(number, bool) or not isinstance(number, numbers.Real):
        raise _wrong(name, value, "one number")
    try:
        finite = math.isfinite(number)
    except OverflowError:
        finite = False
    if not finite:
        raise _wrong(name, value, "finite")
    if isinstance(number, int) and not -(2**63) <= number < 2**63:
        return float(number)
    return number


def _seen(attributes: Mapping[str, Any], stored: np.dtype[Any]) -> np.dtype[Any]:
    kind = _FLIPPED.get((stored.kind, str(attributes.get("_Unsigned"))))
    return stored if kind is None else np.dtype(f"{kind}{stored.itemsize}")


def _fills(name: str, value: Any, stored: np.dtype[Any]) -> list[Any]:
    """The missing values in an attribute, as Python numbers, which may be NaN."""
    if value is None:
        return []
    if stored.kind == "c":
        return [_complex(name, value)]
    several = np.ravel(value).tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(several, list | tuple):
        several = [several]
    return [_fill(name, value, one, stored) for one in several]


def _fill(name: str, value: Any, one: Any, stored: np.dtype[Any]) -> Any:
    if isinstance(one, str) and (stored.kind not in "iu" or one in _NAMED):
        if one in _NAMED:
            return _NAMED[one]
        number = _from_base64(one)
        if number is not None:
            return number
    if isinstance(one, np.generic):
        one = one.item()
    if isinstance(one, bool) or not isinstance(one, int | float):
        raise _wrong(name, value, f"a number that an array of {stored} can hold")
    return one


def _complex(name: str, value: Any) -> complex:
    pair = value if isinstance(value, list | tuple) and len(value) == 2 else (value, 0.0)
    if isinstance(value, complex | np.complexfloating):
        pair = value.real, value.imag
    parts = [_fill(name, value, one, _LONGEST_FLOAT) for one in pair]
    return complex(*parts)


def _from_base64(text: str) -> float | None:
    """The number that xarray writes as the base64 of a little-endian float64."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return float(struct.unpack("<d", raw)[0]) if len(raw) == 8 else None


def _holding_nan(seen: np.dtype[Any]) -> np.dtype[Any]:
    if seen.kind in "iu":
        return np.dtype(np.float32 if seen.itemsize <= 2 else np.float64)
    return np.dtype(np.float32) if seen.kind == "V" else seen


def _unpacked(seen: np.dtype[Any], scale: Any, offset: Any, *, masked: bool) -> np.dtype[Any]:
    """The dtype of values times `scale` plus `offset`, by the rules of xarray."""
    if seen.kind == "c":
        return seen
    types = {np.dtype(type(value)) for value in (scale, offset) if value is not None}
    one = types.pop() if len(types) == 1 else _LONGEST_FLOAT
    if scale is not None and offset is not None:
        wide = seen.kind in "iu" and seen.itemsize == 4
        return one if one == np.float32 and not wide else _LONGEST_FLOAT
    if offset is not None:
        return _LONGEST_FLOAT
    # Whole multiples of whole numbers stay whole.
    whole = one.kind in "iu" and (masked or seen.kind not in "iu")
    return _LONGEST_FLOAT if whole else one


def _matching(values: list[Any], seen: np.dtype[Any], *, flipped: bool) -> tuple[Any, ...]:
    """The values that the dtype `seen` can hold, converted to it, each once."""
    found: dict[Any, Any] = {}
    for value in values:
        if seen.kind not in "iu":
            with np.errstate(over="ignore"):
                cast = np.asarray(value).astype(seen)[()]
            found[cast.item()] = cast
            continue
        if isinstance(value, float) and not value.is_integer():
            continue
        number, bounds = int(value), np.iinfo(seen)
        if flipped and not bounds.min <= number <= bounds.max:
            # The attribute has the stored number, of the other sign.
            number += 2 ** (8 * seen.itemsize) * (1 if seen.kind == "u" else -1)
        if bounds.min <= number <= bounds.max:
            found[number] = seen.type(number)
    return tuple(found.values())


def times_of(values: AnyArray, units: str, calendar: str | None) -> AnyArray:
    """Converts numbers to times: integers exactly, floats rounded as in xarray, NaN to NaT.

    Args:
        values: Numbers, of any shape.
        units: `"hours since 1900-01-01 00:00:00.0"`, or `"hours"` alone for durations.
        calendar: `standard`, `gregorian`, `proleptic_gregorian`, or None for `standard`.

    Returns:
        datetime64[ns], or timedelta64[ns], of the shape of `values`; in us where the times are out
        of the range of ns.

    Raises:
        SourceError: If the units are unknown, or datetime64 cannot represent the calendar or a
            time. The numbers themselves can then be used.
    """
    unit, since, reference = str(units).partition(" since ")
    step = _step_ns(unit, units)
    zero, kind, earliest = 0, "m8", None
    if since:
        name = "standard" if calendar is None else str(calendar).lower()
        if name not in _EXACT:
            raise SourceError(
                f"datetime64 has no times of the calendar {calendar!r}, only of"
                f" {', '.join(_EXACT)}; the numbers themselves ({units}) can be used"
            )
        zero, kind = _reference_ns(reference, units, mixed=name in _MIXED), "M8"
        earliest = _REFORM * _DAY_NS if name in _MIXED else None
    if values.dtype.kind not in "iuf":
        raise SourceError(f"times in {units!r} must be numbers, got {values.dtype}")
    present = np.asarray(~np.isnan(values) if values.dtype.kind == "f" else values != _NAT)
    some = values[present]
    if some.size == 0:
        return np.full(values.shape, "NaT", f"{kind}[ns]")
    ends = [_exact_ns(some.min(), step) + zero, _exact_ns(some.max(), step) + zero]
    if earliest is not None and ends[0] < earliest:
        raise SourceError(
            f"datetime64 has no times before 1582-10-15 of the calendar {calendar or 'standard'!r};"
            f" the numbers themselves ({units}) can be used"
        )
    for name, size in (("ns", 1), ("us", 1000)):
        fits = all(-_LARGEST <= end // size < _LARGEST for end in ends)
        if fits:
            moved = _moved(values.ravel(), present.ravel(), step, zero, size)
            return moved.astype(f"{kind}[{name}]").reshape(values.shape)
    raise SourceError(
        f"times from {some.min()} to {some.max()} {units} are beyond datetime64; the numbers"
        " themselves can be used"
    )


def _moved(
    values: AnyArray, present: npt.NDArray[np.bool_], step: int, zero: int, size: int
) -> AnyArray:
    """`values * step + zero` in units of `size` ns, as int64; the results fit int64."""
    counts = np.where(present, values, 0)
    # Product and date may each exceed int64 although the sum fits: wrapping undoes itself.
    with np.errstate(over="ignore"):
        if step < size:
            whole = (counts // (size // step)).astype(np.int64)
        elif values.dtype.kind != "f":
            whole = counts.astype(np.int64) * np.int64(step // size)
        else:
            whole = _product(counts.astype(np.float64), step // size)
        whole += _wrapped(zero // size)
    whole[~present] = _NAT
    return whole


def _product(counts: AnyArray, step: int) -> AnyArray:
    products = counts * step
    if np.all(np.abs(products) < _LARGEST):
        return products.astype(np.int64)
    whole = np.floor(counts)
    found: AnyArray = whole.astype(np.int64) * np.int64(step)
    found += ((counts - whole) * step).astype(np.int64)
    return found


def _wrapped(number: int) -> np.int64:
    return np.int64((number + 2**63) % 2**64 - 2**63)


def _exact_ns(value: Any, step: int) -> int:
    if isinstance(value, np.floating):
        product = float(value) * step
        return int(product) if math.isfinite(product) else 2**80 * (1 if product > 0 else -1)
    return int(value) * step


def unit_ns(unit: str) -> int | None:
    """The nanoseconds of a unit of time such as `hours`; None if it is unknown or has no fixed length."""
    text = unit.strip().lower()
    return _UNIT_NS.get(text) or _UNIT_NS.get(text.removesuffix("s"))


def _step_ns(unit: str, units: str) -> int:
    step = unit_ns(unit)
    if step is None:
        raise SourceError(
            f"times in {units!r} have a unit that is not known; weeks, days, hours, minutes,"
            " seconds, milliseconds, microseconds and nanoseconds are. The numbers themselves can"
            " be used"
        )
    return step


def _reference_ns(text: str, units: str, *, mixed: bool) -> int:
    """Nanoseconds from 1970 to a reference date, UTC."""
    date = text.strip()
    if re.fullmatch(r"\d{8}", date):
        date = f"{date[:4]}-{date[4:6]}-{date[6:]}"
    elif re.fullmatch(r"\d{4}", date):
        date = f"{date}-1"
    found = _DATE.fullmatch(date)
    wrong = SourceError(
        f"times in {units!r} count from {text!r}, which is not a date; give it as"
        " 1900-01-01 00:00:00, or use the numbers themselves"
    )
    if found is None:
        raise wrong
    part = found.groupdict()
    year, month, day = int(part["year"]), int(part["month"]), int(part["day"] or 1)
    hour, minute, second = (int(part[name] or 0) for name in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:
        raise wrong
    days = _days(year, month, day, julian=mixed and (year, month, day) < (1582, 10, 15))
    if days is None:
        raise wrong
    fraction = int((part["fraction"] or "0")[:9].ljust(9, "0"))
    clock = ((hour * 60 + minute) * 60 + second) * 10**9 + fraction
    return days * _DAY_NS + clock - _zone_ns(part["zone"])


def _days(year: int, month: int, day: int, *, julian: bool) -> int | None:
    """Days from 1970-01-01 to a date; None if the calendar does not have it."""
    leap = year % 4 == 0 and (julian or year % 100 != 0 or year % 400 == 0)
    lengths = (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    if not (1 <= month <= 12 and 1 <= day <= lengths[month - 1]):
        return None
    # Years that begin in March have their leap day last.
    late = (14 - month) // 12
    years, months = year + 4800 - late, month + 12 * late - 3
    days = day + (153 * months + 2) // 5 + 365 * years + years // 4
    days += -32083 if julian else -(years // 100) + years // 400 - 32045
    return days - _JULIAN_DAY_OF_1970


def _zone_ns(zone: str | None) -> int:
    if zone is None:
        return 0
    digits = zone[1:].replace(":", "")
    hours, minutes = (digits[:-2], digits[-2:]) if len(digits) > 2 else (digits, "0")
    ahead = (int(hours) * 60 + int(minutes)) * 60 * 10**9
    return -ahead if zone[0] == "-" else ahead
