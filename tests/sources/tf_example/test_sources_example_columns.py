"""Columns of Examples: the same bits as protobuf's, whatever way a record goes, and back again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.example_bytes import Stored, Style, example, signalling_nan
from tests.hypothesis_profiles import examples
from tests.sources.tf_example.test_sources_example_core import agree
from windrow.converters import decode_example, encode_example
from windrow.converters.zarr import example_encode
from windrow.converters.zarr.example_encode import encode_examples
from windrow.errors import ArgumentError, ConversionError, ReadError
from windrow.sources.tf_example import rows as example_rows
from windrow.sources.tf_example.columns import decode_examples, infer_features
from windrow.sources.tf_example.features import DTYPES, Array, Column, Feature, Ragged

SEEDS = st.integers(0, 2**32)
MANY = 24


@st.composite
def any_features(draw: st.DrawFn) -> dict[str, Feature]:
    features = {}
    for name in draw(st.lists(st.text(max_size=3), min_size=1, max_size=4, unique=True)):
        dtype = draw(st.sampled_from(["bytes", "int64", "float32", *DTYPES]))
        raw = dtype != "bytes" and (dtype.startswith("complex") or draw(st.booleans()))
        shapes: list[Any] = [(), (1,), (2, 3), (0, 2), (70,), (None,), (None, 2)]
        features[name] = Feature(
            dtype, () if dtype == "bytes" else draw(st.sampled_from(shapes)), raw
        )
    return features


def values(feature: Feature, items: int, draw: np.random.Generator) -> Array:
    """Any bits that the feature holds, and that come back."""
    dtype = feature.numpy_dtype
    count = items * feature.items
    if dtype.name == "bool":
        return draw.integers(0, 2, count, np.uint8).view(bool)
    out = np.frombuffer(draw.bytes(count * dtype.itemsize), dtype).copy()
    if not feature.in_bytes and dtype.kind in "iu":
        # Numbers of all lengths that varints have, within int64.
        shift = draw.integers(1, 8 * dtype.itemsize, count).astype(dtype)
        out >>= shift
        return out
    if not feature.in_bytes and dtype.name != "float32":
        with np.errstate(all="ignore"):
            out = out.astype(np.float32)
        out[np.isnan(out) | np.isinf(out)] = 0
        out = out.astype(dtype)
        out[out.astype(np.float32).astype(dtype) != out] = 0
    if not feature.in_bytes and dtype.name == "float64":
        return out.astype(np.float32).astype(dtype)
    return out


def column(feature: Feature, rows: int, draw: np.random.Generator) -> Column:
    if not feature.ragged:
        return values(feature, rows, draw).reshape(rows, *feature.item_shape)
    # Few lengths, so that many records are of one.
    offsets = np.concatenate([[0], np.cumsum(draw.integers(0, 3, rows))])
    flat = values(feature, int(offsets[-1]), draw)
    return Ragged(flat.reshape(-1, *feature.item_shape), offsets)


def stored(feature: Feature, row: Array) -> Stored:
    """What an Example holds of a row."""
    if feature.in_bytes:
        return [row.tobytes()]
    if row.dtype.kind in "iub":
        return row.reshape(-1).astype(np.int64)
    return row.reshape(-1).astype(np.float32)


def same(found: Mapping[str, Column], expected: Mapping[str, Column]) -> bool:
    assert list(found) == list(expected)
    for name, want in expected.items():
        got = found[name]
        if isinstance(want, Ragged):
            assert isinstance(got, Ragged)
            assert got.offsets.dtype == np.int64
            assert got.offsets.tolist() == want.offsets.tolist()
            got, want = got.values, want.values
        assert isinstance(got, np.ndarray)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        assert got.flags.c_contiguous
        assert got.flags.aligned
        assert got.flags.writeable
        assert got.tobytes() == want.tobytes()
    return True


@pytest.fixture(scope="module", params=["core", "protobuf"])
def decoders(request: pytest.FixtureRequest) -> Iterator[None]:
    """The core encodes, and decodes what it takes; or protobuf decodes every record."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "protobuf":
            patch.setattr(example_rows, "native", lambda: None)
            patch.setattr(example_encode, "native", lambda: None)
        yield


@pytest.mark.usefixtures("decoders")
@settings(max_examples=examples(100))
@given(any_features(), SEEDS, st.sampled_from([0, 1, 7, MANY, 90]))
def test_round_trip_bit_for_bit(features: dict[str, Feature], seed: int, rows: int) -> None:
    draw = np.random.default_rng(seed)
    columns = {name: column(feature, rows, draw) for name, feature in features.items()}
    records = encode_examples(columns, features)
    assert len(records) == rows
    assert same(decode_examples(records, features, exact=True), columns)
    for number, record in enumerate(records):
        row = {
            name: stored(feature, np.asarray(columns[name][number]))
            for name, feature in features.items()
        }
        assert record == encode_example(row)
        assert record == example(row, Style(), random.Random(0))


def test_nans_that_signal_keep_their_bits() -> None:
    nan = np.full((MANY, 2), signalling_nan())
    features = {"x": Feature("float32", (2,)), "y": Feature("float32", (2,), raw=True)}
    records = encode_examples({"x": nan, "y": nan}, features)
    for some in (records, records[:1]):
        assert same(decode_examples(some, features), {"x": nan[: len(some)], "y": nan[: len(some)]})
    found = decode_example(records[0], features=["x"])["x"]
    assert isinstance(found, np.ndarray)
    assert found.tobytes() == nan[0].tobytes()
    unknown = example({"x": nan[0]}, Style(unknown=True, unpacked=True), random.Random(3))
    found = decode_example(unknown)["x"]
    assert isinstance(found, np.ndarray)
    assert found.tobytes() == nan[0].tobytes()


FIXED = {"pixels": Feature("uint8", (4,), raw=True), "label": Feature("int8")}


def row(number: int, **others: object) -> dict[str, object]:
    return {"pixels": bytes([number] * 4), "label": number, **others}


@pytest.mark.parametrize(
    ("feature", "values", "words"),
    [
        (Feature("int8"), 128, "has the number 128, and int8 () cannot hold it"),
        (Feature("uint64"), -1, "has the number -1, and uint64 () cannot hold it"),
        (Feature("float16"), 0.1, "has the number 0.1, and float16 () cannot hold it"),
        (Feature("int64"), [1, 2], "has 2 numbers, and int64 () takes 1"),
        (Feature("float32", (2,)), [1.0], "has 1 numbers, and float32 (2,) takes 2"),
        (Feature("float32", (None, 2)), [1.0], "takes a multiple of 2"),
        (Feature("int64"), 1.0, "is of float32, and int64 () takes int64"),
        (Feature("float32"), b"1", "is of bytes, and float32 () takes float32"),
        (Feature("bytes"), 1, "is of int64, and bytes takes one value of bytes"),
        (Feature("bytes"), [b"a", b"b"], "has 2 values of bytes, and bytes takes one value"),
        (Feature("int16", (2,), raw=True), b"abc", "has 3 bytes, and int16 (2,) raw takes 4"),
        (Feature("bool", (2,), raw=True), b"\1\2", "has a byte other than 0 and 1"),
        (Feature("int64"), None, "is missing, and int64 () has to be in every record"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("times", [1, MANY])
def test_records_that_a_feature_does_not_take(
    feature: Feature, values: object, words: str, times: int
) -> None:
    wrong = encode_example({"here": 1} if values is None else {"here": 1, "x": values})
    good = feature if feature.ragged else Feature(feature.dtype, feature.shape, feature.raw)
    fine = encode_examples({"x": column(good, 3, np.random.default_rng(0))}, {"x": good})
    records = [*fine, *[wrong] * times]
    with pytest.raises(ReadError, match=r"^record 3: feature 'x' ") as caught:
        decode_examples(records, {"x": feature})
    assert words in str(caught.value)
    assert str(caught.value).endswith("give features= that fit all records")
    assert caught.value.records == (3, 4)
    assert caught.value.why == str(caught.value).removeprefix("record 3: ")
    bad: list[ReadError] = []
    found = decode_examples(records, {"x": feature}, bad=bad)
    assert same(found, decode_examples(fine, {"x": feature}))
    assert [error.records for error in bad] == [(n, n + 1) for n in range(3, 3 + times)]


def test_bad_records_among_many_are_left_out_in_order() -> None:
    records = [encode_example(row(n)) for n in range(100)]
    records[70] = records[70][:-1]
    records[31] = encode_example(row(31, label=128))
    records[5] = encode_example(row(5, pixels=b"123"))
    with pytest.raises(ReadError, match=r"^record 5: feature 'pixels' has 3 bytes"):
        decode_examples(records, FIXED)
    bad: list[ReadError] = []
    found = decode_examples(records, FIXED, bad=bad)
    left = [n for n in range(100) if n not in (5, 31, 70)]
    assert np.asarray(found["label"]).tolist() == left
    assert np.asarray(found["pixels"])[:, 0].tolist() == left
    assert [error.records for error in bad] == [(5, 6), (31, 32), (70, 71)]
    assert "that are not a tf.train.Example" in str(bad[2])


@pytest.mark.parametrize("times", [1, MANY])
def test_features_beside_those_named(times: int) -> None:
    records = [encode_example(row(n)) for n in range(times)]
    more = [encode_example(row(n, more=b"x")) for n in range(times)]
    features = {name: FIXED[name] for name in ("label", "pixels")}
    found = decode_examples([*records, *more], features)
    assert list(found) == ["label", "pixels"]
    assert len(found["label"]) == 2 * times
    with pytest.raises(ReadError, match=rf"^record {times}: has the features \['more'\] too"):
        decode_examples([*records, *more], features, exact=True)
    # One that has no value is one all the same.
    empty = [example({"more": []}, Style(), random.Random(0)) + record for record in records]
    with pytest.raises(ReadError, match=r"^record 0: has the features \['more'\] too"):
        decode_examples(empty, features, exact=True)


def test_kinds_are_found_out() -> None:
    records = [
        encode_example(
            {
                "label": n,
                "box": [0.0] * 4,
                "tokens": np.arange(n),
                "sometimes": np.arange(2.0) if n else np.arange(0.0),
                "never": np.arange(0),
                "image": bytes(12),
                "text": b"a" * n,
                "flag": b"x",
                **({"rare": 1} if n == 2 else {}),
            }
        )
        for n in range(4)
    ]
    found = infer_features(records)
    assert found == {
        "box": Feature("float32", (4,)),
        "flag": Feature("bytes"),
        "image": Feature("uint8", (12,), raw=True),
        "label": Feature("int64"),
        "never": Feature("int64", (None,)),
        "rare": Feature("int64", (None,)),
        "sometimes": Feature("float32", (None,)),
        "text": Feature("bytes"),
        "tokens": Feature("int64", (None,)),
    }
    assert list(found) == sorted(found)
    assert agree(records, found, exact=True) == 4
    assert infer_features(records[:1])["image"] == Feature("bytes")


@settings(max_examples=50)
@given(any_features(), SEEDS)
def test_what_is_found_out_takes_all_records(features: dict[str, Feature], seed: int) -> None:
    draw = np.random.default_rng(seed)
    columns = {name: column(feature, 5, draw) for name, feature in features.items()}
    records = encode_examples(columns, features)
    found = infer_features(records)
    assert found.keys() == features.keys()
    assert agree(records, found, exact=True) == 5


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "no features to infer in 0 records; give features="),
        ([{}], "no features to infer in 1 record;"),
        ([{"a": 1}, {"a": 1.0}], "'a' is of int64 in record 0, of float32 in record 1"),
        ([{"a": b"x"}, {}, {"a": 1}], "'a' is of bytes in record 0, of int64 in record 2"),
        ([{"a": 1}, {"a": 1, "b": [b"x", b"y"]}], "'b' has 2 values of bytes in record 1"),
        ([{"a": 1}, {"a": 1, "b": b"x"}], "'b', of bytes, is in 1 of 2 records"),
    ],
)
def test_what_cannot_be_found_out(rows: list[dict[str, object]], words: str) -> None:
    with pytest.raises(ConversionError, match=f"^features: {words}"):
        infer_features([encode_example(row) for row in rows])


def test_inference_names_the_record_that_is_none() -> None:
    with pytest.raises(
        ReadError, match=r"^record 1: 1 bytes that are not a tf\.train\.Example"
    ) as e:
        infer_features([encode_example({"a": 1}), b"\xff"])
    assert e.value.records == (1, 2)


@pytest.mark.parametrize(
    ("columns", "feature", "words"),
    [
        ({"x": np.arange(3.0)}, Feature("int64"), r"'x' is float64 \(\) by row, and its feature int64"),
        ({"x": Ragged(np.arange(3), np.array([0, 2]))}, Feature("int64", (None,)), "that do not ascend"),
        ({"x": np.array([2**63], "uint64")}, Feature("uint64"), "'x' has the number 9223372036854775808, which int64 cannot hold; give"),
        ({"x": np.array([0.1])}, Feature("float64"), "'x' has the number 0.1, which float32 cannot hold"),
    ],
)  # fmt: skip
def test_columns_that_cannot_be_written(columns: Any, feature: Feature, words: str) -> None:
    with pytest.raises(ArgumentError, match=f"^encode_examples: .*{words}"):
        encode_examples(columns, {"x": feature})


def test_columns_in_any_order_of_memory_and_bytes() -> None:
    values = np.arange(MANY * 6, dtype=">i4").reshape(6, MANY).T
    feature = Feature("int32", (6,), raw=True)
    found = decode_examples(encode_examples({"x": values}, {"x": feature}), {"x": feature})
    assert same(found, {"x": np.ascontiguousarray(values, "int32")})
