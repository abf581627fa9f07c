"""Decodes values stored by the CF conventions: packed numbers, missing values, times.

Invariants: nothing stored is evaluated. Values decode as in xarray, which chooses the dtype and decodes
times; NumPy decodes windows, in one copy. An attribute that makes no sense raises an error that names it.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import math
import re
import struct
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.core.optional_imports import optional
from windrow.core.text import shortened
from windrow.errors import SourceError, missing_extra
from windrow.sources.base import AnyArray

_NAMED: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_PACKING: Final = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
_MIXED: Final = ("standard", "gregorian")  # Julian before the reform
_STANDARD: Final = (*_MIXED, "proleptic_gregorian")
_WEEKS: Final = re.compile("^weeks?(?= since |$)", re.IGNORECASE)  # xarray has none
_REFORM: Final = np.datetime64("1582-10-15")


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
            out[self.absent(seen)] = np.nan
        if self.scale is not None:
            np.multiply(out, self.scale, out=out)
        if self.offset is not None:
            np.add(out, self.offset, out=out)
        return out

    def absent(self, seen: AnyArray) -> npt.NDArray[np.bool_]:
        """Which values are missing, of values in the dtype `seen_as`."""
        absent = np.zeros(seen.shape, np.bool_)
        for value in self.missing:
            absent |= seen == value
        return absent


def decoding_of(
    attributes: Mapping[str, Any], stored_dtype: npt.DTypeLike, fill_value: Any = None
) -> Decoding | None:
    """The decoding of an array by its attributes; None where values are delivered as stored.

    Times are left as their numbers: see `times_of`. xarray is asked only where it is needed.

    Args:
        attributes: Attributes of the array.
        stored_dtype: Dtype of its values.
        fill_value: Fill value of a Zarr v2 array, which serves as its `_FillValue`, as in the
            metadata; None without a fill value, and for Zarr v3.

    Raises:
        MissingExtraError: If xarray is needed, and not installed.
        SourceError: If an attribute is not a number, or not one that the array's dtype can hold.
    """
    stored = np.dtype(stored_dtype)
    if not _is_number(stored):
        return None
    if attributes.get("dtype") == "bool":
        return Decoding(np.dtype(np.bool_))
    scale, offset = _factor(attributes, "scale_factor"), _factor(attributes, "add_offset")
    own = attributes.get("_FillValue") if fill_value is None else fill_value
    fills = _fills("_FillValue", own, stored)
    fills += _fills("missing_value", attributes.get("missing_value"), stored)
    valued = [value for value in fills if value == value]  # a NaN need not be replaced
    native, whole = stored.newbyteorder("="), stored.kind in "iu"
    packing = {"_Unsigned": attributes.get("_Unsigned")} if whole else {}
    seen = _dtype_by_xarray(stored, packing)
    packing |= {"scale_factor": scale, "add_offset": offset}
    if valued:
        packing["_FillValue"] = 0  # which value it is does not matter to the dtype
    if isinstance(scale, int) and offset is None and (valued or not whole):
        packing["scale_factor"] = float(scale)  # only whole multiples of whole numbers stay whole
    only_nan = bool(fills) and not valued and not whole
    dtype = native if only_nan else _dtype_by_xarray(stored, packing)
    if dtype == native and not valued and scale is None and offset is None:
        return None
    missing = _matching(valued, seen, native)
    return Decoding(dtype, None if seen == native else seen, missing, scale, offset)


def _dtype_by_xarray(stored: np.dtype[Any], attributes: Mapping[str, Any]) -> np.dtype[Any]:
    """The dtype that xarray gives to values with these attributes; complex numbers stay as they are."""
    given = {name: value for name, value in attributes.items() if value is not None}
    if not given or stored.kind == "c":
        return stored.newbyteorder("=")
    xarray = optional("xarray", "decoding values by their attributes", "xarray")
    # xarray does not know the small floats of ml_dtypes.
    values = np.empty(0, np.float32 if stored.isbuiltin == 2 else stored)
    variable = xarray.Variable(("cell",), values, given)
    decoded = xarray.conventions.decode_cf_variable("values", variable, decode_times=False)
    found: np.dtype[Any] = decoded.dtype.newbyteorder("=")
    return found


def times_of(
    values: AnyArray, attributes: Mapping[str, Any], decoding: Decoding | None, name: str
) -> AnyArray | None:
    """The times or durations that stored numbers stand for, as xarray decodes them.

    Args:
        values: The numbers, as they are stored.
        attributes: Their attributes.
        decoding: Their decoding as plain numbers.
        name: Name of the array, for messages.

    Returns:
        datetime64[ns], or timedelta64[ns]; in us where the times are out of the range of ns. None if the
        attributes have no units of time, or datetime64 cannot represent the calendar or a time.

    Raises:
        MissingExtraError: If xarray, or cftime where it is needed, is not installed.
    """
    units, calendar = attributes.get("units"), str(attributes.get("calendar", "standard")).lower()
    duration = str(attributes.get("dtype")).startswith("timedelta64")
    if not isinstance(units, str) or values.dtype.kind not in "iuf":
        return None
    if not duration and (" since " not in units or calendar not in _STANDARD):
        return None
    whole = values.dtype.kind in "iu"
    present = np.asarray(values != np.iinfo(np.int64).min if whole else values == values)
    given: dict[str, Any] = {"dtype": attributes["dtype"]} if duration else {"calendar": calendar}
    given["units"] = _WEEKS.sub("days", units)
    days = 1 if given["units"] == units else 7
    if decoding is not None:
        values = values if decoding.seen_as is None else values.astype(decoding.seen_as)
        present &= ~decoding.absent(values)
        packing = {"scale_factor": decoding.scale, "add_offset": decoding.offset}
        given |= {key: value for key, value in packing.items() if value is not None}
    counts = values[present]  # cftime would make dates of NaN
    if days > 1:
        counts = counts.astype(np.int64 if whole else np.float64) * days
        given |= {"add_offset": given["add_offset"] * days} if "add_offset" in given else {}
    decoded = _decoded_times(counts, given, name)
    if decoded is None:
        return None
    found = np.full(values.shape, "NaT", decoded.dtype)
    found[present] = decoded
    return found


def _decoded_times(numbers: AnyArray, attributes: Mapping[str, Any], name: str) -> AnyArray | None:
    """Times or durations in ns, else in us; None if xarray has none for them."""
    if not numbers.size:
        return np.empty(0, "m8[ns]" if "dtype" in attributes else "M8[ns]")
    what = f"decoding the times of {name!r}"
    xarray = optional("xarray", what, "xarray")
    variable = xarray.Variable(("cell",), numbers, attributes)
    for unit in ("ns", "us"):
        times = xarray.coders.CFDatetimeCoder(time_unit=unit)
        spans = xarray.coders.CFTimedeltaCoder(unit, decode_via_units=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some times stay numbers
            try:
                found: AnyArray = xarray.conventions.decode_cf_variable(
                    name, variable, decode_times=times, decode_timedelta=spans
                ).values
            except (ValueError, OverflowError) as error:
                if isinstance(error.__cause__, ImportError):
                    raise missing_extra(what, "xarray") from error
                continue
        mixed = attributes.get("calendar") in _MIXED
        if found.dtype.kind == "M" and mixed and found.min().astype("M8[D]") < _REFORM:
            return None  # xarray takes these dates for Gregorian ones
        if found.dtype.kind in "mM":
            return found
    return None


def dates_of(numbers: AnyArray, attributes: Mapping[str, Any], name: str) -> Any:
    """Decoded numbers that count times as dates of their calendar, an index of xarray.

    Raises:
        MissingExtraError: If cftime is not installed.
        ValueError: If cftime does not count such times.
    """
    given = {key: attributes[key] for key in ("units", "calendar") if key in attributes}
    held = " of the calendar ".join(map(repr, given.values()))
    what = f"a date among the numbers of {name!r} (in {held}; labels may be such numbers)"
    xarray = optional("xarray", what, "xarray")
    coder = xarray.coders.CFDatetimeCoder(use_cftime=True)
    variable = xarray.Variable(("cell",), numbers, given)
    try:
        decoded = xarray.conventions.decode_cf_variable(name, variable, decode_times=coder)
        return xarray.CFTimeIndex(decoded.values)
    except ValueError as error:
        if isinstance(error.__cause__, ImportError):
            raise missing_extra(what, "xarray") from error
        raise


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
        found["_FillValue"] = shown_fill(fill, stored_dtype)
    return found


def shown_fill(value: Any, dtype: npt.DTypeLike) -> Any:
    """Return the number of an attribute `_FillValue`, which xarray may write as base64; else `value`."""
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
    return SourceError(
        f"the attribute {name} is {shortened(repr(value))}; it must be {allowed}. Correct the attribute,"
        " or leave the values as they are stored"
    )


def _factor(attributes: Mapping[str, Any], name: str) -> Any:
    value = number = attributes.get(name)
    if value is None:
        return None
    if isinstance(value, list | tuple | np.ndarray) and np.size(value) == 1:
        number = np.asarray(value).item()
    if isinstance(number, bool) or not isinstance(number, int | float | np.integer | np.floating):
        raise _wrong(name, value, "one number")
    if not -sys.float_info.max <= number <= sys.float_info.max:
        raise _wrong(name, value, "finite")
    return float(number) if isinstance(number, int) and abs(number) >= 2**63 else number


def _fills(name: str, value: Any, stored: np.dtype[Any]) -> list[Any]:
    """The missing values in an attribute, as Python numbers, which may be NaN."""
    if value is None:
        return []
    if stored.kind == "c":
        pair = value if isinstance(value, list | tuple) and len(value) == 2 else [value, 0.0]
        if isinstance(value, complex | np.complexfloating):
            pair = [value.real, value.imag]
        return [complex(*(_fill(name, value, one, is_whole=False) for one in pair))]
    several = np.ravel(value).tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(several, list | tuple):
        several = [several]
    return [_fill(name, value, one, is_whole=stored.kind in "iu") for one in several]


def _fill(name: str, value: Any, one: Any, *, is_whole: bool) -> Any:
    number = one.item() if isinstance(one, np.generic) else one
    if isinstance(one, str):
        number = _NAMED.get(one)
        if number is None and not is_whole:
            number = _from_base64(one)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise _wrong(name, value, "a number that the array can hold")
    return number


def _from_base64(text: str) -> float | None:
    """The number that xarray writes as the base64 of a little-endian float64."""
    try:
        found: float = struct.unpack("<d", base64.b64decode(text, validate=True))[0]
    except (binascii.Error, ValueError, struct.error):
        return None
    return found


def _matching(values: Sequence[Any], seen: np.dtype[Any], stored: np.dtype[Any]) -> tuple[Any, ...]:
    """The values that the dtype `seen` can hold, converted to it, each once.

    Integers whose sign `_Unsigned` changes may be given as they are stored.
    """
    found: dict[Any, Any] = {}
    for value in values:
        if seen.kind in "iu" and not -(2**63) <= value < 2**64:
            continue
        with np.errstate(all="ignore"):
            held = np.asarray(value).astype(seen)
        if seen.kind not in "iu" or value in (held.item(), held.astype(stored).item()):
            found[held.item()] = held[()]
    return tuple(found.values())
