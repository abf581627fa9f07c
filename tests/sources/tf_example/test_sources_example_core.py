"""The native core and protobuf: equal columns and errors, and which records the core takes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.example_bytes import Stored, Style, example, field, mutated, varint
from tests.hypothesis_profiles import examples
from windrow.converters.zarr import example_encode
from windrow.converters.zarr.example_encode import encode_examples
from windrow.core.native import native
from windrow.errors import ReadError
from windrow.sources.tf_example import rows as example_rows
from windrow.sources.tf_example.columns import decode_examples
from windrow.sources.tf_example.features import Column, Feature, Ragged
from windrow.sources.tf_example.rows import ExampleRows

pytestmark = pytest.mark.skipif(native() is None, reason="there is no native core")

# Every form, width and kind of row that the core knows, and floats that are cast after it.
FEATURES = {
    "a": Feature("int64", (None,)),
    "b": Feature("bytes"),
    "c": Feature("float32", (2,)),
    "d": Feature("uint8"),
    "e": Feature("float16", (None, 2)),
    "f": Feature("bool", (None,), raw=True),
    "g": Feature("int16", (None,)),
    "h": Feature("uint32", (0, 2)),
    "i": Feature("float64", (None,)),
    "j": Feature("bool", (None,)),
    "k": Feature("uint64", (None,)),
    "l": Feature("bfloat16", (None,), raw=True),
}
HALVES = np.array([0.5, -0.0, 3, np.inf, 65504, 2**-24, np.nan, 0.1, 70000], np.float32)


def any_row(draw: random.Random) -> dict[str, Stored]:
    """Values that the features mostly take."""

    def ints(count: int, bits: int, *, signed: bool = True) -> np.ndarray:
        shift = draw.randrange(bits)
        low = -(1 << bits - 1 >> shift) if signed else 0
        numbers = [draw.randint(low, (1 << bits - 1 >> shift) - 1) for _ in range(count)]
        return np.array(numbers, np.int64)

    good = 6 if draw.random() < 0.8 else len(HALVES)
    some = draw.randrange(3)
    out: dict[str, Stored] = {
        "a": ints(some, 64),
        "b": [draw.randbytes(draw.randrange(200))],
        "c": np.frombuffer(draw.randbytes(8), np.float32),
        "d": ints(1, 9, signed=draw.random() < 0.05),
        "e": np.array(draw.choices(HALVES[:good].tolist(), k=2 * some), np.float32),
        "f": [bytes(draw.choices([0, 1, 2], [9, 9, 1], k=some))],
        "g": ints(some, 17 if draw.random() < 0.05 else 16),
        "h": np.empty(0, np.int64),
        "i": np.frombuffer(draw.randbytes(4 * some), np.float32),
        "j": ints(some, 2, signed=False),
        "k": ints(some, 64, signed=draw.random() < 0.05),
        "l": [draw.randbytes(2 * some + (draw.random() < 0.05))],
    }
    for name in [name for name in out if FEATURES[name].may_be_missing and draw.random() < 0.2]:
        del out[name]
    if draw.random() < 0.1:
        out["other"] = ints(some, 64)
    return out


def outcome(
    records: Sequence[bytes], features: Mapping[str, Feature], *, exact: bool
) -> tuple[object, ...]:
    """All that a caller sees, in bytes and text."""
    bad: list[ReadError] = []
    found = decode_examples(records, features, exact=exact, bad=bad)
    first = None
    try:
        decode_examples(records, features, exact=exact)
    except ReadError as error:
        first = str(error), error.records, error.why
    columns = []
    for name, column in found.items():
        offsets = column.offsets.tolist() if isinstance(column, Ragged) else None
        values = column.values if isinstance(column, Ragged) else column
        columns.append((name, offsets, values.dtype.name, values.shape, values.tobytes()))
    return columns, [(str(e), e.records, e.why) for e in bad], first


def agree(records: Sequence[bytes], features: Mapping[str, Feature], *, exact: bool) -> int:
    """Both ways give the same; returns how many records are good."""
    found = outcome(records, features, exact=exact)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(example_rows, "native", lambda: None)
        expected = outcome(records, features, exact=exact)
    assert found == expected
    return len(records) - len(found[1])  # type: ignore[arg-type]


@settings(max_examples=examples(80), deadline=None)
@given(st.integers(0, 2**32))
def test_records_are_what_protobuf_says(seed: int) -> None:
    draw = random.Random(seed)
    records = [
        example(any_row(draw), draw.choice([Style(), Style.drawn(draw)]), draw) for _ in range(30)
    ]
    records += [mutated(record, draw) for record in draw.choices(records, k=10)]
    names = draw.sample(list(FEATURES), draw.randint(1, len(FEATURES)))
    features = {name: FEATURES[name] for name in names}
    assert agree(records, features, exact=draw.random() < 0.3) >= 0


# Every wire type of fields 0, 1, 2, 3 and 15, and the first tags of two bytes.
TAGS = [bytes([number << 3 | kind]) for number in (0, 1, 2, 3, 15) for kind in range(8)]
TAGS += [b"\x82\x01", b"\x8a\x00", b"\x92\x80\x00"]


def wild(draw: random.Random, depth: int) -> bytes:
    """Fields of a message, `depth` messages deep: the right ones mostly, and any other."""
    out = b""
    for _ in range(draw.choice([0, 1, 1, 1, 2, 2, 3])):
        if depth == 0:
            inside = draw.choice([b"a", b"b", b"d", b"", b"\x05", b"\x80\x01", draw.randbytes(4)])
        else:
            inside = wild(draw, depth - 1)
        tag = (
            draw.choice(TAGS) if draw.random() < 0.15 else bytes([draw.choice(b"\x0a\x0a\x12\x1a")])
        )
        length = varint(len(inside), too_long=draw.choice([0, 0, 0, 0, 1, 3, 4, 5]))
        match tag[0] & 7:
            case 0:
                out += tag + varint(draw.getrandbits(draw.choice([3, 30, 64])))
            case 1 | 5:
                out += tag + draw.randbytes(8 if tag[0] & 7 == 1 else 4)
            case _:
                out += tag + length + inside
    return out


def wild_example(draw: random.Random) -> bytes:
    """An Example with an entry, something in which is wild."""
    depth = draw.randrange(5)
    one = wild(draw, max(3 - depth, 0))
    if depth >= 3:  # the list's fields
        tag = draw.choice(b"\x0a\x12\x1a")
        one = field(tag, one if draw.random() < 0.5 else b"\x08\x07" + one)
    if depth >= 2:  # the feature's fields
        name = draw.choice([b"a", b"b", b"c", b"d", b"other", b"\xff"])
        one = field(0x0A, name) + field(0x12, one)
        one += draw.choice([b"", b"", field(0x0A, name), field(0x12, b""), b"\x78\x05"])
    if depth >= 1:  # the entry's fields
        one = field(0x0A, one) * draw.choice([1, 1, 2])
    return field(0x0A, one) + (one if depth == 0 else b"")


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 2**32))
def test_fields_of_any_kind_are_what_protobuf_says(seed: int) -> None:
    draw = random.Random(seed)
    features = {"a": FEATURES["a"], "f": FEATURES["f"], "i": FEATURES["i"]}
    records = [wild_example(draw) for _ in range(40)]
    agree(records, features, exact=draw.random() < 0.3)
    agree(records, {draw.choice("abcd"): FEATURES[draw.choice("abd")]}, exact=False)


ROW: dict[str, Stored] = {
    "a": np.array([1, -2, 300], np.int64),
    "b": [b"bytes"],
    "c": np.array([1.5, np.nan], np.float32),
    "d": np.array([200], np.int64),
    "other": np.array([5, 2**40], np.int64),
}
SOME = {name: FEATURES[name] for name in "abcd"}


def test_core_leaves_records_that_it_does_not_take() -> None:
    fine = example(ROW, Style(), random.Random(0))
    wrong = {
        "cut": fine[:-1],
        "not a name": fine.replace(b"other", b"oth\xff\xff"),
        "a group": b"\x0b\x0c" + fine,
        "out of range": example({**ROW, "d": np.array([256])}, Style(), random.Random(0)),
        "missing": example({"a": ROW["a"]}, Style(), random.Random(0)),
        "not bytes": bytearray(fine),
    }
    records: list[Any] = [fine, *wrong.values(), fine]
    rows = ExampleRows(records, SOME, exact=False)
    assert rows.taken.tolist() == [True, *[False] * len(wrong), True]
    assert agree(records, SOME, exact=False) == 4
    assert not ExampleRows([fine], SOME, exact=True).taken.any()


def test_many_records_are_decoded_by_several_threads() -> None:
    numbers = np.random.default_rng(0).integers(0, 2**40, 30_000)
    names = [b"%d" % number for number in numbers]
    features = {"b": FEATURES["b"], "a": FEATURES["a"]}
    columns: dict[str, Column] = {
        "b": Ragged(np.frombuffer(b"".join(names), "u1"), np.cumsum([0, *map(len, names)])),
        "a": Ragged(np.repeat(numbers, numbers % 3), np.cumsum(np.r_[0, numbers % 3])),
    }
    records = encode_examples(columns, features)
    records[20_000] = b"\xff"
    core = native()
    assert core is not None
    begun = core.tasks_begun()
    bad: list[ReadError] = []
    found = decode_examples(records, features, bad=bad)
    assert core.tasks_begun() > begun + 10
    assert [error.records for error in bad] == [(20_000, 20_001)]
    numbers = np.delete(numbers, 20_000)
    del names[20_000]
    assert [row.tobytes() for row in found["b"]] == names
    assert [row.tolist() for row in found["a"]] == [[n] * (n % 3) for n in numbers.tolist()]


def test_many_rows_are_encoded_as_they_are_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 9000
    features = {"n": Feature("int64", (None,)), "x": Feature("float32", (80,))}
    draw = np.random.default_rng(0)
    offsets = np.cumsum(np.r_[0, draw.integers(0, 9, rows)])
    whole = draw.integers(-(2**62), 2**62, int(offsets[-1])) >> draw.integers(0, 62, offsets[-1])
    columns: dict[str, Column] = {
        "n": Ragged(whole, offsets),
        "x": draw.random((rows, 80), np.float32),
    }
    found = encode_examples(columns, features)
    monkeypatch.setattr(example_encode, "native", lambda: None)
    assert found == encode_examples(columns, features)


PROGRAM = """
import sys
sys.modules["google.protobuf"] = None
import numpy as np
from windrow.converters.zarr.example_encode import encode_examples
from windrow.errors import MissingExtraError
from windrow.sources.tf_example.columns import decode_examples
from windrow.sources.tf_example.features import Feature
features = {"label": Feature("int64"), "box": Feature("float32", (4,))}
columns = {"label": np.arange(3), "box": np.ones((3, 4), np.float32)}
records = encode_examples(columns, features)
for some in (records, [*records, records[0][:-1]]):
    try:
        print(np.asarray(decode_examples(some, features)["label"]).tolist())
    except MissingExtraError as error:
        print(error)
"""


def test_core_needs_no_protobuf() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "WINDROW_NATIVE": ""},
    )
    first, second = done.stdout.splitlines()
    assert first == "[0, 1, 2]"
    assert second.startswith("tf.train.Example needs protobuf, which is not installed")
