"""tf.train.Example without TensorFlow: the wire format, the types, and clear refusals."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.converters import decode_example, encode_example
from windrow.errors import ArgumentError, ReadError, SourceError
from windrow.sources.tf_example.features import (
    Feature,
    cast,
    features_from_json,
    features_to_json,
    numpy_dtype,
)


def entry(name: bytes, feature: bytes) -> bytes:
    body = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(feature)]) + feature
    return b"\x0a" + bytes([len(body)]) + body


def message(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return b"\x0a" + bytes([len(body)]) + body


def test_golden_bytes() -> None:
    golden = message(
        entry(b"b", b"\x0a\x06" + b"\x0a\x01\x00" + b"\x0a\x01x"),
        entry(b"f", b"\x12\x0a" + b"\x0a\x08" + b"\x00\x00\x80\x3f" + b"\x00\x00\x00\xbf"),
        entry(b"i", b"\x1a\x0d" + b"\x0a\x0b" + b"\x01" + b"\xff" * 9 + b"\x01"),
    )
    assert encode_example({"i": [1, -1], "f": [1.0, -0.5], "b": [b"\x00", b"x"]}) == golden
    decoded = decode_example(golden)
    assert list(decoded) == ["b", "f", "i"]
    assert decoded["b"] == [b"\x00", b"x"]
    floats, integers = decoded["f"], decoded["i"]
    assert isinstance(floats, np.ndarray)
    assert isinstance(integers, np.ndarray)
    assert floats.dtype == np.float32
    assert floats.tolist() == [1.0, -0.5]
    assert integers.dtype == np.int64
    assert integers.tolist() == [1, -1]


def test_scalars_strings_and_shapes() -> None:
    decoded = decode_example(
        encode_example(
            {"s": "é", "n": np.uint8(7), "t": True, "m": np.eye(2), "h": np.float16(0.5)}
        )
    )
    assert decoded["s"] == ["é".encode()]
    assert np.array_equal(decoded["n"], [7])
    assert np.array_equal(decoded["t"], [1])
    assert np.array_equal(decoded["m"], [1, 0, 0, 1])
    assert np.array_equal(decoded["h"], [0.5])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "is NoneType"),
        ([], "an empty list"),
        ([b"a", 1], "a list of bytes with int in it"),
        ([[1], [1, 2]], "a list of unequal parts"),
        (2**64, "is int"),
        (np.array([2**63], np.uint64), "does not fit int64: 9223372036854775808"),
        (np.array([b"a"]), "an array of strings"),
        (1j, "is complex"),
    ],
)
def test_what_an_example_cannot_hold(value: object, words: str) -> None:
    with pytest.raises(ArgumentError, match=f"feature 'x' .*{words}"):
        encode_example({"x": value})


def test_missing_and_unknown_features() -> None:
    record = encode_example({"a": 1, "b": 2})
    assert list(decode_example(record, features=["b"])) == ["b"]
    with pytest.raises(SourceError, match=r"has no feature 'c'; it has \['a', 'b'\]"):
        decode_example(record, features=["a", "c"])
    for feature in (b"", b"\x22\x03\x0a\x01\x05"):  # no kind, and a field of number 4
        odd = message(entry(b"odd", feature), entry(b"ok", b"\x1a\x03\x0a\x01\x05"))
        with pytest.raises(SourceError, match="feature 'odd' is of no known kind"):
            decode_example(odd)
        assert list(decode_example(odd, features=["ok"])) == ["ok"]


def test_the_default_pool_stays_free_and_nothing_is_imported_early() -> None:
    program = """
import sys
import windrow.converters as converters
early = {"apache_beam", "google.protobuf", "tensorflow"} & set(sys.modules)
assert not early, early
converters.encode_example({"a": 1})
from google.protobuf import descriptor_pool
try:
    descriptor_pool.Default().FindFileByName("windrow/example.proto")
except KeyError:
    raise SystemExit(0)
raise SystemExit("our descriptors are in the default pool")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("features", [{"\ud800": 1}, {"x": "\ud800"}, {"x": [b"a", "\ud800"]}])
def test_text_that_is_not_utf_8(features: dict[str, object]) -> None:
    with pytest.raises(ArgumentError, match=r"^encode_example: feature '.*surrogates not allowed"):
        encode_example(features)


# --- features -------------------------------------------------------------------------------------


def test_json_is_frozen() -> None:
    # Manifests hold it.
    assert features_to_json({"a": Feature("bfloat16", (None, 2), raw=True)}) == {
        "a": {"dtype": "bfloat16", "shape": [None, 2], "raw": True}
    }


@pytest.mark.parametrize(
    ("dtype", "shape", "raw", "words"),
    [
        ("string", (), False, "dtype 'string' is unknown; choose one of bytes, bool, int8"),
        (["int8"], (), False, r"dtype \['int8'\] is unknown; choose one of"),
        ("int8", (), 1, "raw is True or False, got 1"),
        ("int8", [3], False, r"shape is a tuple of sizes.* got \[3\]"),
        ("int8", (3, None), False, "sizes, the first may be None"),
        ("int8", (-1,), False, "shape is a tuple of sizes"),
        ("int8", (2**30, 2**30), False, "has more than 1,099,511,627,776 items"),
        ("int8", (None, 0), False, "rows of empty items have no length"),
        ("bytes", (3,), False, "'bytes' has neither shape nor raw"),
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
