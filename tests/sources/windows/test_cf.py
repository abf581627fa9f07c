"""CF decoding, against xarray."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.hypothesis_profiles import examples
from windrow.errors import SourceError
from windrow.sources.windows.cf import decoding_of, times_of

AnyArray = npt.NDArray[Any]

pytestmark = pytest.mark.filterwarnings("ignore")  # xarray's, on several fill values

INTEGERS = ("i1", "u1", "i2", "u2", ">i2", "i4", "u4")
FLOATS = ("f2", "f4", "f8", ">f4")


def by_xarray(values: AnyArray, attributes: dict[str, Any]) -> AnyArray:
    variable = xr.Variable(("x",), values, dict(attributes))
    decoded = xr.conventions.decode_cf_variable("v", variable, decode_times=False)
    found: AnyArray = decoded.values
    return found


def by_us(values: AnyArray, attributes: dict[str, Any], fill_value: Any = None) -> AnyArray:
    decoding = decoding_of(attributes, values.dtype, fill_value)
    if decoding is None:
        return values.astype(values.dtype.newbyteorder("="))
    return decoding.apply(values)


def assert_same(got: AnyArray, expected: AnyArray) -> None:
    assert got.dtype == expected.dtype.newbyteorder("=")
    np.testing.assert_array_equal(got, expected)


@st.composite
def packed(draw: st.DrawFn) -> tuple[AnyArray, dict[str, Any]]:
    dtype = np.dtype(draw(st.sampled_from(INTEGERS + FLOATS)))
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        numbers: st.SearchStrategy[Any] = st.integers(int(bounds.min), int(bounds.max))
    else:
        numbers = st.integers(-100, 100).map(lambda n: n / 4) | st.just(float("nan"))
    fills = draw(st.lists(numbers, max_size=3))
    values = draw(st.lists(numbers | st.sampled_from(fills or [0]), max_size=12))
    attributes: dict[str, Any] = {}
    if fills:
        attributes["_FillValue"] = fills[0]
    if len(fills) > 1:
        attributes["missing_value"] = fills[1] if len(fills) == 2 else fills[1:]
    if draw(st.booleans()):
        attributes["scale_factor"] = draw(st.floats(-1e3, 1e3))
    elif dtype.kind in "iu" and not fills and draw(st.booleans()):
        attributes["scale_factor"] = draw(st.integers(-9, 9))
    if draw(st.booleans()):
        attributes["add_offset"] = draw(st.floats(-1e3, 1e3) | st.integers(-99, 99))
    if dtype.kind == "u" and dtype.isnative and draw(st.booleans()):
        attributes["_Unsigned"] = draw(st.sampled_from(["true", "False", 1]))
    # xarray swaps the bytes of fill values that are not of this machine's order.
    if dtype.kind == "i" and dtype.isnative and len(fills) < 2 and draw(st.booleans()):
        attributes["_Unsigned"] = draw(st.sampled_from(["true", "false"]))
    return np.array(values, dtype), attributes


@settings(max_examples=examples(120), deadline=None)
@example((np.array([1, 0, 2, -1], np.int8), {"dtype": "bool"}))
@given(packed())
def test_values_decode_as_by_xarray(case: tuple[AnyArray, dict[str, Any]]) -> None:
    values, attributes = case
    before = values.copy()
    assert_same(by_us(values, attributes), by_xarray(values, attributes))
    np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"scale_factor": "0.1"}, r"attribute scale_factor is '0.1'; it must be one number"),
        ({"add_offset": float("inf")}, r"attribute add_offset is inf; it must be finite"),
        ({"add_offset": [1.0, 2.0]}, r"attribute add_offset is \[1.0, 2.0\]; it must be one"),
        ({"_FillValue": "__import__('os')"}, r"attribute _FillValue is \"__import__"),
        ({"_FillValue": "x" * 5000}, r"attribute _FillValue is 'x{60,80}\.\.\.; it must"),
        ({"scale_factor": 10**400}, r"attribute scale_factor is 1000.*finite"),
    ],
)
def test_wrong_attributes_are_named(attributes: dict[str, Any], message: str) -> None:
    for dtype in ("i2", "f4"):
        with pytest.raises(SourceError, match=message):
            decoding_of(attributes, dtype)


def test_the_fill_value_of_version_2_is_missing() -> None:
    values = np.array([0, 1, 2], np.int16)
    assert_same(by_us(values, {}, 0), np.array([np.nan, 1, 2], np.float32))
    assert_same(by_us(values, {}, np.asarray(0, np.int16)), np.array([np.nan, 1, 2], np.float32))
    floats = values.astype(np.float32)
    assert decoding_of({}, floats.dtype, "NaN") is None
    assert_same(by_us(floats, {}, "AAAAAAAA8D8="), np.array([0, np.nan, 2], np.float32))


def test_fill_values_are_compared_in_the_dtype_of_the_values() -> None:
    values = np.array([1e20, 0.1, 1.0], np.float32)
    assert np.isnan(by_us(values, {"missing_value": [1e20, 0.1]})).tolist() == [True, True, False]
    large = np.array([2**53, 2**53 + 1], np.int64)
    assert np.isnan(by_us(large, {"_FillValue": 2**53 + 1})).tolist() == [False, True]
    unsigned = np.array([255, 1], np.uint8)
    assert_same(by_us(unsigned, {"missing_value": -1}), unsigned.astype(np.float32))
    signed = {"_Unsigned": "true", "missing_value": -1}
    assert np.isnan(by_us(unsigned.view(np.int8), signed)).tolist() == [True, False]
    # No value of int8 is 300 or 1.5: nothing is missing, but the dtype is the one for missing values.
    got = by_us(np.array([44, 1], np.int8), {"_FillValue": 300, "missing_value": 1.5})
    assert_same(got, np.array([44, 1], np.float32))


def test_small_floats_and_complex_numbers_decode() -> None:
    small = np.array([1, 2, 3], ml_dtypes.bfloat16)
    got = by_us(small, {"_FillValue": 2.0})
    assert_same(got, np.array([1, np.nan, 3], np.float32))
    pair = np.array([1 + 2j, 3j], np.complex64)
    got = by_us(pair, {"_FillValue": ["AAAAAAAA8D8=", "AAAAAAAAAEA="]})
    assert np.isnan(got).tolist() == [True, False]
    got = by_us(pair, {"_FillValue": 3j, "scale_factor": 2.0}, np.complex64(3j))
    assert got.dtype == np.complex64
    assert got[0] == 2 + 4j
    assert np.isnan(got[1])


def times(values: Any, units: str, calendar: str | None = None, **more: Any) -> AnyArray | None:
    attributes = {"units": units, **({} if calendar is None else {"calendar": calendar}), **more}
    numbers = np.array(values)
    return times_of(numbers, attributes, decoding_of(attributes, numbers.dtype), "time")


@pytest.mark.parametrize(
    ("value", "units", "calendar", "expected"),
    [
        (6, "Hours since 2000-01-01T06:00:00-0100", None, "2000-01-01T13"),
        (0.25, "days since 1970-01-01", "proleptic_gregorian", "1970-01-01T06"),
        (2, "weeks since 2000-01-01", None, "2000-01-15"),
        # The reanalysis of NCEP counts from the year 1, before the calendar's reform.
        (17067072, "hours since 1-1-1 00:00:0.0", None, "1948-01-01"),
        (17067078.5, "hours since 1-1-1 00:00:0.0", "gregorian", "1948-01-01T06:30"),
        (711126, "days since 0001-01-01", "proleptic_gregorian", "1948-01-01"),
        (1, "days since 1582-10-04", "standard", "1582-10-15"),
        (-(2**63), "days since 2000-01-01", None, "NaT"),
        (float("nan"), "hours since 1-1-1 00:00:0.0", None, "NaT"),
        (1_000_000, "days since 2000-01-01", None, "4737-11-28"),
    ],
)
def test_times_are_those_of_xarray(
    value: Any, units: str, calendar: str | None, expected: str
) -> None:
    got = times([value], units, calendar)
    assert got is not None
    assert got.dtype == np.dtype("M8[us]" if expected[:4] in ("1582", "4737") else "M8[ns]")
    np.testing.assert_array_equal(got, np.array([expected], got.dtype))


@pytest.mark.parametrize(
    ("value", "units", "calendar"),
    [
        (1, "days since 2000-01-01", "noleap"),
        (1, "days since 1500-01-01", "standard"),
        (-1, "days since 1582-10-15", None),  # xarray takes it for the day before, which is the 4th
        (1, "months since 2000-01-01", None),
        (1, "days since yesterday", None),
        (2**62, "days since 2000-01-01", None),
        (True, "days since 2000-01-01", None),
        (1, "hours", None),
    ],
)
def test_other_times_stay_numbers(value: Any, units: str, calendar: str | None) -> None:
    assert times([value], units, calendar) is None


@pytest.mark.parametrize(
    ("attributes", "dtype"),
    [
        ({}, "i2"),
        ({"units": "K"}, "f4"),
        ({"_FillValue": "AAAAAAAA+H8="}, "f8"),  # NaN, as xarray writes it
        ({"_FillValue": "NaN"}, "f4"),
        ({"_FillValue": float("nan")}, "i2"),  # an integer cannot be that
        ({"scale_factor": 2.0}, "<U3"),
        ({"_FillValue": 0}, "bool"),
        ({"_FillValue": 0}, "M8[ns]"),
    ],
)
def test_nothing_is_decoded_where_nothing_is_told(attributes: dict[str, Any], dtype: str) -> None:
    assert decoding_of(attributes, dtype) is None


def test_missing_times_are_none() -> None:
    got = times([5, -1, 7], "hours since 1-1-1 00:00:0.0", None, _FillValue=-1)
    assert got is None  # two thousand years ago
    got = times([17067072, -1, 7], "hours since 1900-01-01", None, missing_value=[-1, 7])
    assert got is not None
    assert np.isnat(got).tolist() == [False, True, True]
    nothing = times([-1], "days since 2000-01-01", "standard", _FillValue=-1)
    assert nothing is not None
    assert np.isnat(nothing).all()
