"""Features: what goes together, JSON both ways, and what is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.errors import ArgumentError, ReadError
from windrow.sources.tf_example.features import (
    DTYPES,
    Feature,
    cast,
    features_from_json,
    features_to_json,
    numpy_dtype,
)


def test_json_is_frozen() -> None:
    # Manifests hold it.
    assert features_to_json({"a": Feature("bfloat16", (None, 2), raw=True)}) == {
        "a": {"dtype": "bfloat16", "shape": [None, 2], "raw": True}
    }


@pytest.mark.parametrize(
    ("dtype", "shape", "raw", "words"),
    [
        ("string", (), False, "dtype 'string' is unknown; choose one of bytes, bool, int8"),
        (7, (), False, "dtype 7 is unknown; choose one of"),
        (["int8"], (), False, r"dtype \['int8'\] is unknown; choose one of"),
        ("int8", (), 1, "raw is True or False, got 1"),
        ("int8", [3], False, r"shape is a tuple of sizes.* got \[3\]"),
        ("int8", (True,), False, "shape is a tuple of sizes"),
        ("int8", (3, None), False, "sizes, the first may be None"),
        ("int8", (None, None), False, "sizes, the first may be None"),
        ("int8", (-1,), False, "shape is a tuple of sizes"),
        ("int8", (2**30, 2**30), False, "has more than 1,099,511,627,776 items"),
        ("int8", (0, 2**62), False, "has more than 1,099,511,627,776 items"),
        ("int8", (None, 0), False, "rows of empty items have no length"),
        ("bytes", (3,), False, "'bytes' has neither shape nor raw"),
        ("bytes", (), True, "'bytes' has neither shape nor raw"),
        ("complex64", (), False, "needs raw=True"),
    ],
)
def test_what_does_not_go_together(dtype: Any, shape: Any, raw: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=f"^feature: .*{words}"):
        Feature(dtype, shape, raw)
    value = {"dtype": dtype, "shape": list(shape) if shape != [3] else "3", "raw": raw}
    words = words.replace(r"got \[3\]", "got '3'")
    with pytest.raises(ReadError, match=f"^f.json: feature 'a': .*{words}"):
        features_from_json({"a": value}, where="f.json")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "f.json: features are a JSON object by name, got None"),
        ([], "f.json: features are"),
        ({"a": 3}, "f.json: feature 'a': a feature has dtype, and may have shape and raw, got 3"),
        ({"a": {"shape": []}}, "a feature has dtype, and may have shape and raw, got {'shape'"),
        (
            {"a": {**Feature("int8").to_json(), "more": 1}},
            "a feature has dtype, and may have shape",
        ),
    ],
)
def test_json_that_is_none(value: object, words: str) -> None:
    with pytest.raises(ReadError, match=words):
        features_from_json(value, where="f.json")


@given(st.sampled_from(DTYPES), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6))
def test_whole_numbers_fit_if_python_says_so(name: str, numbers: list[int]) -> None:
    dtype = numpy_dtype(name)
    if dtype.kind not in "iub":
        return
    numbers += [0, 1, 2, 255, 256, -1, 2**31, 2**63 - 1]
    low, high = (0, 1) if name == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    out, fits = cast(np.array(numbers, np.int64), dtype)
    held = [low <= number <= high for number in numbers]
    assert (held if fits is None else fits.tolist()) == held or (fits is None and all(held))
    assert [int(x) for x, h in zip(out, held, strict=True) if h] == [
        x for x, h in zip(numbers, held, strict=True) if h
    ]


@given(
    st.sampled_from(["float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2fnuz"]),
    st.integers(0, 2**32 - 1),
)
def test_floats_fit_if_they_come_back_as_they_were(name: str, bits: int) -> None:
    value = np.array([bits], np.uint32).view(np.float32)
    out, fits = cast(value, numpy_dtype(name))
    assert fits is not None
    back = out.astype(np.float32)
    same = back.tobytes() == value.tobytes() or bool(np.isnan(back) & np.isnan(value))
    assert fits.tolist() == [same]


@pytest.mark.parametrize(("name", "both"), [("float8_e5m2fnuz", False), ("float16", True)])
def test_the_zeros_are_two(name: str, both: bool) -> None:
    # A dtype without a negative zero would make it positive.
    _, fits = cast(np.array([0.0, -0.0], np.float32), numpy_dtype(name))
    assert fits is not None
    assert fits.tolist() == [True, both]
