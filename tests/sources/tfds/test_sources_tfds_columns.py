"""Columns of tfds' records without tfds: its own files, odd records, and damaged ones."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kitchen import kitchen_expected, kitchen_features, kitchen_folder, plain
from tests.tfds_json import TEXT, features_of, picture, sequence, tensor
from windrow.converters import encode_example
from windrow.errors import MissingExtraError, ReadError
from windrow.sources import ArrayRecordDataSource, ArraySpec
from windrow.sources.base import row
from windrow.sources.tfds.columns import decode_records
from windrow.sources.tfds.features import IMAGE, TfdsFeatures

FEATURES = TfdsFeatures.from_json(kitchen_features(), where="features.json")


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[bytes]]:
    """The records of each split, as tfds wrote them."""
    folder = kitchen_folder(tmp_path_factory.mktemp("kitchen"))
    out = {}
    for split in ("train", "test"):
        source = ArrayRecordDataSource([str(path) for path in sorted(folder.glob(f"*-{split}.*"))])
        out[split] = [source[index] for index in range(len(source))]
    return out


def leaf_of(tree: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        tree = tree[name]
    return tree


@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("split", ["train", "test"])
def test_values_are_those_that_tfds_reads(
    kitchen: dict[str, list[bytes]], split: str, images: bool
) -> None:
    columns = decode_records(kitchen[split], FEATURES, images=images)
    expected = kitchen_expected(split)
    assert len(expected) == len(kitchen[split])
    assert set(expected[0]) == {leaf.name for leaf in FEATURES.leaves} | {"pictures"}
    for leaf in FEATURES.leaves:
        column = leaf_of(columns, leaf.path)
        decoded = images and leaf.kind == IMAGE
        for at, record in enumerate(expected):
            wanted = record["pictures"][leaf.name] if decoded else record[leaf.name]
            assert plain(column[at]) == plain(wanted), leaf.name


@pytest.mark.parametrize("images", [False, True])
def test_columns_are_what_the_specification_says(
    kitchen: dict[str, list[bytes]], images: bool
) -> None:
    columns = decode_records(kitchen["train"], FEATURES, images=images)
    nothing = decode_records([], FEATURES, images=images)
    for leaf in FEATURES.leaves:
        spec = leaf_of(FEATURES.spec(images), leaf.path)
        column, empty = leaf_of(columns, leaf.path), leaf_of(nothing, leaf.path)
        assert len(empty) == 0
        assert type(empty) is type(column)
        if isinstance(column, np.ndarray):
            assert (empty.dtype, empty.shape[1:]) == (column.dtype, column.shape[1:])
        for value in column:
            if isinstance(spec, ArraySpec):
                assert np.asarray(value).dtype == spec.dtype, leaf.name
                sizes = zip(spec.shape, np.shape(value), strict=True)
                assert all(size in (None, found) for size, found in sizes), leaf.name
            elif leaf.name != "maybe/text":  # tfds does not keep that it may be absent
                assert isinstance(value, spec), leaf.name


def test_inner_sequences_of_one_length_are_axes() -> None:
    features = features_of(
        a=sequence(sequence(tensor("int32"), 2)), b=sequence(sequence(tensor("int32"), 2), 3)
    )
    numbers = np.arange(6)
    record = encode_example(
        {
            "a/ragged_flat_values": numbers[:4],
            "a/ragged_row_lengths_0": [2, 2],
            "b/ragged_flat_values": numbers,
            "b/ragged_row_lengths_0": [2, 2, 2],
        }
    )
    columns = decode_records([record], features)
    assert columns["a"][0].tolist() == [[0, 1], [2, 3]]
    assert columns["b"].tolist() == [[[0, 1], [2, 3], [4, 5]]]


@pytest.mark.parametrize("count", [4, 40])
def test_what_may_be_absent_is_none(count: int) -> None:
    features = features_of(
        text=TEXT,
        number=tensor("uint8", optional=True),
        line=tensor("float32", -1, optional=True),
        words=tensor("string", 2, optional=True),
        plane=tensor("int16", -1, -1, encoding="zlib", optional=True),
        raw=tensor("int16", 2, encoding="bytes", optional=True),
        label=tensor("int64"),
    )
    whole: dict[str, Any] = {
        "text": b"",
        "number": 0,
        "line": np.empty(0, np.float32),
        "words": [b"a", b"b"],
        "plane/value": zlib.compress(b""),
        "plane/shape": [0, 3],
        "raw": b"\1\0\2\0",
    }
    records = [
        encode_example({**(whole if number % 3 else {}), "label": number})
        for number in range(count)
    ]
    columns = decode_records(records, features)
    assert columns["label"].tolist() == list(range(count))
    for number in range(count):
        found = row(columns, number)
        if number % 3 == 0:
            assert {name for name, value in found.items() if value is None} == set(found) - {
                "label"
            }
            continue
        assert (found["text"], found["number"], found["words"].tolist()) == (b"", 0, [b"a", b"b"])
        assert (found["line"].shape, found["plane"].shape) == ((0,), (0, 3))
        assert found["raw"].tolist() == [1, 2]


def encoded(mode: str, size: tuple[int, int], format: str = "PNG", **options: Any) -> bytes:
    from PIL import Image

    rng = np.random.default_rng(1)
    bands = len(Image.new(mode, (1, 1)).getbands())
    values = rng.integers(0, 256, (size[1], size[0], bands)).astype(np.uint8)
    image = Image.fromarray(values[..., 0] if bands == 1 else values, "L" if mode == "P" else mode)
    out = io.BytesIO()
    image.convert(mode).save(out, format, **options)
    return out.getvalue()


def bad_records() -> dict[str, tuple[TfdsFeatures, dict[str, Any], str]]:
    number = tensor("int64")
    nested = features_of(x=sequence(sequence(number)))
    flat, lengths = "x/ragged_flat_values", "x/ragged_row_lengths_0"
    deep = features_of(x=sequence(sequence(sequence(number))))
    plane = features_of(x=tensor("int16", -1, 2, -1, encoding="bytes"))
    packed = features_of(x=tensor("int16", 2, encoding="zlib"))
    return {
        "missing": (features_of(x=number), {}, "feature 'x' is missing"),
        "kind": (features_of(x=number), {"x": 1.5}, "feature 'x' is of float32"),
        "range": (features_of(x=tensor("int8")), {"x": 128}, "has the number 128"),
        "size": (features_of(x=tensor("int64", 2)), {"x": [1, 2, 3]}, "has 3 numbers"),
        "loose": (features_of(x=tensor("int64", -1, 2)), {"x": [1, 2, 3]}, "a number of values"),
        "length": (
            features_of(x=sequence(number, 2)),
            {"x": [1]},
            "number of values|length than 2",
        ),
        "no text": (features_of(x=sequence(TEXT)), {"x": [1]}, "is of int64, and takes bytes"),
        "strings": (features_of(x=tensor("string", 2)), {"x": [b"a"]}, "a number of values"),
        "nested": (nested, {flat: [1, 2], lengths: [1, 2]}, "a number of values"),
        "negative": (nested, {flat: [1, 2], lengths: [-1, 3]}, "an impossible length"),
        "deep": (
            deep,
            {flat: [1], lengths: [1], "x/ragged_row_lengths_1": [1, 0]},
            "do not add up",
        ),
        "fixed": (
            features_of(x=sequence(sequence(number, 2))),
            {flat: [1, 2, 3], lengths: [1, 2]},
            "another length than 2",
        ),
        "raw": (features_of(x=tensor("int16", 2, encoding="bytes")), {"x": b"123"}, "has 3 bytes"),
        "flag": (features_of(x=tensor("bool", -1, encoding="bytes")), {"x": b"\2"}, "0 and 1"),
        "shape": (
            plane,
            {"x/value": b"1234", "x/shape": [1, 1, 2]},
            r"has the shape \(1, 1, 2\), which int16 \(None, 2, None\) does not take",
        ),
        "too few": (plane, {"x/value": b"1234", "x/shape": [1, 2, 2]}, "has 4 bytes.*takes 8"),
        "no shape": (plane, {"x/value": b"1234"}, "feature 'x/shape' is missing"),
        "zlib": (packed, {"x": b"no zlib"}, "incorrect header"),
        "cut": (packed, {"x": zlib.compress(b"1234")[:-2]}, "ends early, after 4 bytes"),
        "bomb": (packed, {"x": zlib.compress(bytes(10**6))}, "has 5 bytes, and .* takes 4"),
        "picture": (
            features_of(x=picture(-1, -1, 3)),
            {"x": b"no picture"},
            "is not an image that",
        ),
        "size of a picture": (
            features_of(x=picture(2, 2, 3)),
            {"x": encoded("RGB", (5, 4))},
            r"'x' is an image of shape \(4, 5, 3\), .* \(2, 2, 3\)",
        ),
    }


@pytest.mark.parametrize("case", bad_records())
@pytest.mark.parametrize("count", [3, 40])
def test_bad_records_are_named(case: str, count: int) -> None:
    features, damage, match = bad_records()[case]
    record = encode_example(damage)
    good = good_record(features)
    records = [good] * count
    records[1] = records[-1] = record
    with pytest.raises(ReadError, match=rf"^record 1: .*{match}") as raised:
        decode_records(records, features, images=True)
    assert raised.value.records == (1, 2)
    bad: list[ReadError] = []
    columns = decode_records(records, features, images=True, bad=bad)
    assert [error.records for error in bad] == [(1, 2), (count - 1, count)]
    assert len(columns["x"]) == count - 2


def good_record(features: TfdsFeatures) -> bytes:
    """A record of one leaf x, with as little in it as may be."""
    (leaf,) = features.leaves
    if leaf.kind == IMAGE:
        return encode_example({"x": encoded("RGB", (2, 2))})
    shape = [1 if size is None else size for size in leaf.shape]
    data: Any = np.zeros(shape, np.int64 if leaf.dtype != "bytes" else object)
    if leaf.dtype == "bytes":
        return encode_example({"x": [b""] * data.size})
    if leaf.encoding != "none":
        raw = data.astype(leaf.dtype).tobytes()
        raw = zlib.compress(raw) if leaf.encoding == "zlib" else raw
        if leaf.dynamic:
            return encode_example({"x/value": raw, "x/shape": shape})
        return encode_example({"x": raw})
    if not leaf.nested:
        return encode_example({"x": np.zeros(shape if not leaf.lengths else 2, np.int64)})
    flat: dict[str, Any] = {"x/ragged_flat_values": np.zeros(0, np.int64)}
    for level in range(len(leaf.lengths) - 1):
        flat[f"x/ragged_row_lengths_{level}"] = np.zeros(0, np.int64)
    return encode_example(flat)


def test_a_record_that_is_no_example() -> None:
    for kind in (TEXT, sequence(TEXT)):
        features = features_of(x=kind)
        records = [encode_example({"x": b"good"}), b"\xff\xff bad"]
        bad: list[ReadError] = []
        assert len(decode_records(records, features, bad=bad)["x"]) == 1
        assert "not a tf.train.Example" in str(bad[0])


@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_damage_is_a_bad_record_or_none(
    kitchen: dict[str, list[bytes]], data: st.DataObject
) -> None:
    """Whatever bytes there are, decoding ends with columns of the good records."""
    records = []
    for record in kitchen["test"]:
        changed = bytearray(record)
        for _ in range(data.draw(st.integers(0, 3))):
            at = data.draw(st.integers(0, len(changed) - 1))
            changed[at] = data.draw(st.integers(0, 255))
        stop = data.draw(st.one_of(st.just(len(changed)), st.integers(0, len(changed))))
        records.append(bytes(changed[:stop]))
    bad: list[ReadError] = []
    columns = decode_records(records, FEATURES, images=True, bad=bad)
    assert len(columns["id"]) == len(records) - len(bad)
    for error in bad:
        assert error.records is not None
        with pytest.raises(ReadError) as raised:
            decode_records([records[error.records[0]]], FEATURES, images=True)
        assert raised.value.why == error.why


def png(depth: int, colour: int, data: bytes) -> bytes:
    """A PNG file of one line of one pixel."""
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", 1, 1, depth, colour, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"\0" + data)),
        (b"IEND", b""),
    ]
    packed = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def test_deep_colours_are_not_cut_to_eight_bits() -> None:
    record = encode_example({"x": png(16, 2, bytes(range(1, 7)))})
    features = features_of(x=picture(1, 1, 3, dtype="uint16"))
    with pytest.raises(
        ReadError, match="'x' has 16 bits in each of several channels, which Pillow"
    ):
        decode_records([record], features, images=True)
    shallow = decode_records([record], features_of(x=picture(1, 1, 3)), images=True)
    assert shallow["x"].tolist() == [[[[1, 3, 5]]]]


def test_a_palette_of_one_channel_is_its_numbers() -> None:
    from PIL import Image

    image = Image.fromarray(np.array([[0, 1], [2, 1]], np.uint8), "P")
    image.putpalette([9, 9, 9, 200, 0, 0, 0, 200, 0])
    out = io.BytesIO()
    image.save(out, "PNG")
    columns = decode_records(
        [encode_example({"x": out.getvalue()})], features_of(x=picture(2, 2, 1)), images=True
    )
    assert columns["x"][0, ..., 0].tolist() == [[0, 1], [2, 1]]


def test_formats_that_run_programs_are_no_pictures() -> None:
    record = encode_example({"x": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 2 2\n%%EOF\n"})
    with pytest.raises(ReadError, match="is not an image that Pillow decodes: not one of PNG"):
        decode_records([record], features_of(x=picture(-1, -1, 3)), images=True)


def test_frames_of_a_gif() -> None:
    from PIL import Image

    frames = [Image.new("RGB", (3, 2), colour) for colour in ("red", "lime", "blue")]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    features = features_of(x=picture(-1, 2, 3, 3))
    (found,) = decode_records([encode_example({"x": out.getvalue()})], features, images=True)["x"]
    assert found.shape == (3, 2, 3, 3)
    assert found[:, 0, 0].tolist() == [[255, 0, 0], [0, 255, 0], [0, 0, 255]]


def test_pillow_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    features = features_of(x=picture(2, 2, 3))
    record = encode_example({"x": b"whatever"})
    with pytest.raises(
        MissingExtraError, match=r"images=True needs the packages of windrow-data\[images"
    ):
        decode_records([record], features, images=True)
    assert decode_records([record], features)["x"] == [b"whatever"]
