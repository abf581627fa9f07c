"""Hostile Examples: each is what protobuf says it is, or a bad record; nothing else ever happens."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from tests.example_bytes import Stored, Style, example, field, varint
from tests.sources.tf_example.test_sources_example_core import agree
from windrow.errors import ConversionError, ReadError
from windrow.sources.tf_example.columns import decode_examples, infer_features
from windrow.sources.tf_example.features import Feature

FEATURES = {
    "box": Feature("float32", (2,)),
    "ids": Feature("int64", (None,)),
    "label": Feature("int8"),
    "mask": Feature("bool", (5,), raw=True),
    "pixels": Feature("int16", (None, 2), raw=True),
    "text": Feature("bytes"),
}
MANY = 24


def row(draw: random.Random) -> dict[str, Stored]:
    """Values of every feature, and one more."""
    return {
        "other": np.array([draw.getrandbits(7), draw.getrandbits(63)], np.int64),
        "box": np.frombuffer(draw.randbytes(8), np.float32),
        "ids": np.array([draw.getrandbits(14), -draw.getrandbits(9)], np.int64),
        "label": np.array([draw.randrange(128)], np.int64),
        "mask": [bytes(draw.choices([0, 1], k=5))],
        "pixels": [draw.randbytes(8)],
        "text": [draw.randbytes(5)],
    }


def check(records: Sequence[bytes]) -> None:
    """The core and protobuf say the same of them, and what is found out about one takes it."""
    agree(records, FEATURES, exact=False)
    for record in records[:3]:
        try:
            inferred = infer_features([record, record])
        except (ReadError, ConversionError):
            continue
        assert len(decode_examples([record] * 2, inferred, exact=True)) == len(inferred)


def whole(features: Mapping[str, Stored], **style: bool) -> bytes:
    return example(features, Style(**style), random.Random(0))


ROW = row(random.Random(0))
FINE = whole(ROW)  # 3 bytes and features


def with_label(stored: bytes, *, tag: int = 0x1A) -> bytes:
    """A record whose label is a list of `stored` bytes."""
    rest = whole({name: values for name, values in ROW.items() if name != "label"})
    entry = field(0x0A, b"label") + field(0x12, field(tag, stored))
    return rest + field(0x0A, field(0x0A, entry))


def twice(before: bytes | None, after: bytes | None) -> bytes:
    """A record in which `label` comes once more, before or after all others, as such a Feature."""
    entries = [
        b"" if stored is None else field(0x0A, field(0x0A, b"label") + field(0x12, stored))
        for stored in (before, after)
    ]
    return field(0x0A, entries[0] + FINE[3:] + entries[1])


OTHER = b"".join(varint(number) for number in np.asarray(ROW["other"]).tolist())
HOSTILE = {
    "nothing": b"",
    "no features": b"\x0a\x00",
    "cut in a tag's length": FINE[:1],
    "cut in the middle": FINE[:-3],
    "more behind it": FINE + b"\x0a",
    "a length past the end": b"\x0a" + varint(2**20) + FINE[2:],
    "a length of 2 GB": b"\x0a\xff\xff\xff\xff\x07" + FINE[2:],
    "a length of 16 EB": b"\x0a" + varint(2**64 - 1) + FINE[2:],
    "a length without an end": b"\x0a" + b"\xff" * 40,
    "a length in five bytes": field(0x0A, FINE[3:], too_long=3),
    "a length in six bytes": field(0x0A, FINE[3:], too_long=4),
    "field number 0": b"\x02\x00" + FINE,
    "wire type 6": b"\x0e" + FINE,
    "wire type 7": b"\x0f" + FINE,
    "features as a varint": b"\x08\x05" + FINE,
    "features as four bytes": b"\x0d\x01\x02\x03\x04" + FINE,
    "a name that is not UTF-8": FINE.replace(b"label", b"lab\xff\xfe"),
    "a name of a surrogate": FINE.replace(b"label", b"la\xed\xa0\x80"),
    "a name with a NUL": FINE.replace(b"label", b"lab\0l"),
    "a group": b"\x0b\x0c" + FINE,
    "a group without an end": FINE + b"\x0b",
    "a group that ends only": b"\x0c" + FINE,
    "a group that ends as another": b"\x0b\x14" + FINE,
    "groups, 50 deep": b"\x7b" * 50 + b"\x7c" * 50 + FINE,
    "groups, 100,000 deep": b"\x7b" * 100_000 + b"\x7c" * 100_000 + FINE,
    "groups in a feature, 100,000 deep": with_label(b"\x7b" * 100_000 + b"\x7c" * 100_000),
    "a label in ten bytes": with_label(field(0x0A, b"\x85" + b"\x80" * 8 + b"\x00")),
    "a label with a bit too many": with_label(field(0x0A, b"\x85" + b"\x80" * 8 + b"\x02")),
    "a label in eleven bytes": with_label(field(0x0A, b"\x85" + b"\x80" * 9 + b"\x00")),
    "a label that is cut": with_label(field(0x0A, b"\x85")),
    "a label without an end": with_label(field(0x0A, b"\xff" * 1000)),
    "a label of four bytes": with_label(b"\x0d\x01\x02\x03\x04"),
    "a label of no list": with_label(b"", tag=0x22),
    "a label and a float": with_label(b"\x08\x05") + with_label(b"\x0d\x00\x00\x00\x00", tag=0x12),
    "half a float": with_label(field(0x0A, b"\x00\x00"), tag=0x12),
    "a label in two lists": with_label(b"") + with_label(b"\x08\x05"),
    "a label said again": twice(None, b"\x1a\x03\x0a\x01\x07"),
    "a label said again without numbers": twice(None, b"\x1a\x00"),
    "a label said again without a list": twice(None, b""),
    "a label said again, the first cut": twice(b"\x1a\x03\x0a\x01\x85", None),
    "a number that no column needs, cut": FINE.replace(
        OTHER, OTHER[:-1] + bytes([OTHER[-1] | 0x80])
    ),
    "100,000 labels": with_label(field(0x0A, b"\x05" * 100_000)),
    "100,000 labels, each by itself": with_label(b"\x08\x05" * 100_000),
    "5,000 names": b"".join(whole({f"n{n}": [b""]}) for n in range(5_000)) + FINE,
    "5,000 times one name": whole({"label": [b""]}) * 5_000 + FINE,
}


@pytest.mark.parametrize("times", [1, MANY])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_records(name: str, times: int) -> None:
    record = HOSTILE[name]
    if len(record) > 50_000 and times > 1:
        times = 17
    check([FINE] * times + [record] * times)


@pytest.mark.parametrize("times", [1, MANY])
def test_what_stands_behind_the_last_value_counts_too(times: int) -> None:
    features = {"a": Feature("int64"), "z": Feature("int64", (None,))}
    fine = whole({"a": np.array([1]), "z": np.empty(0, np.int64)})
    other = whole({"a": np.array([1]), "z": np.empty(0, np.float32)})
    assert len(fine) == len(other)
    bad: list[ReadError] = []
    found = decode_examples([fine] * times + [other] * times, features, bad=bad)
    assert len(found["z"]) == len(bad) == times
    assert bad[0].why is not None
    assert bad[0].why.startswith("feature 'z' is of float32, and int64 (None,) takes int64")


@pytest.mark.parametrize("times", [1, MANY])
@pytest.mark.parametrize(
    "record",
    [
        HOSTILE["a length of 2 GB"],
        HOSTILE["a length of 16 EB"],
        # A packed list that says how long it is.
        with_label(b"\x0a\xff\xff\xff\xff\x07" + b"\x05"),
        FINE.replace(b"label", b"lab\xff\xfe"),
    ],
)
def test_a_length_is_no_reason_to_allocate(record: bytes, times: int) -> None:
    bad: list[ReadError] = []
    decode_examples([FINE], FEATURES)  # imports and makes what is made once
    tracemalloc.start()
    try:
        decode_examples([record] * times, FEATURES, bad=bad)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(bad) == times
    assert peak_bytes < 1_000_000


def test_a_feature_that_asks_for_much_is_not_allocated_before_it_is_there() -> None:
    huge = {"box": Feature("float32", (2**36,)), "text": Feature("uint8", (2**40,), raw=True)}
    bad: list[ReadError] = []
    found = decode_examples([FINE] * MANY, huge, bad=bad)
    assert len(bad) == MANY
    assert "has 2 numbers, and float32 (68719476736,) takes 68719476736" in str(bad[0])
    assert len(found["text"]) == 0
