"""Records that tfds writes: what is read of them is what was yielded, and what tfds reads."""

from __future__ import annotations

import importlib
import io
import json
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kitchen import plain
from windrow.cli.main import main
from windrow.converters.tfds.conversions import read_split
from windrow.sources import TFDSDataSource
from windrow.sources.base import row
from windrow.sources.tf_example.features import Ragged
from windrow.sources.tfds.columns import decode_records
from windrow.sources.tfds.features import TfdsFeatures

pytestmark = pytest.mark.tfds

ROOT = pathlib.Path(__file__).parents[3]

WHOLE = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
# An Example holds these in bytes alone.
IN_BYTES = ("complex64", "complex128", "bfloat16")
SLOW = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module")
def tfds() -> Any:
    return pytest.importorskip("tensorflow_datasets")


def read_as(feature: Any) -> TfdsFeatures:
    """The feature as it is read back from the JSON that tfds writes of it."""
    json_format = importlib.import_module("google.protobuf.json_format")

    text = json.dumps(json_format.MessageToDict(feature.to_proto()))
    return TfdsFeatures.from_json(json.loads(text), where="features.json")


def numbers(dtype: str, shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """Arrays of a dtype: of floats those that float32 holds, as an Example does."""
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if dtype == "bool":
        items: Any = st.booleans()
    elif kind.kind in "iu":
        items = st.integers(int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    elif kind.kind == "c":
        items = st.complex_numbers(allow_nan=False, width=64)
    else:
        items = st.floats(width=16 if dtype == "float16" else 32)
        items = items.filter(
            lambda x: bool(np.isinf(x) or np.isfinite(kind.type(x)) or np.isnan(x))
        )
    count = int(np.prod(shape, dtype=int))

    def array(found: list[Any]) -> Any:
        with np.errstate(all="ignore"):
            return (
                np.array(found, "complex128" if kind.kind == "c" else None)
                .astype(kind)
                .reshape(shape)
            )

    if kind.kind in "iu" or dtype == "bool":
        return st.lists(items, min_size=count, max_size=count).map(
            lambda found: np.array(found, kind).reshape(shape)
        )
    return st.lists(items, min_size=count, max_size=count).map(array)


@st.composite
def base(draw: Any, tfds: Any) -> tuple[Any, Any]:
    """A feature that holds values, and a strategy of them."""
    f = tfds.features
    kind = draw(st.sampled_from(["tensor", "encoded", "text", "label", "box", "strings"]))
    if kind == "text":
        return f.Text(), st.one_of(st.binary(max_size=5), st.text(max_size=5).map(str.encode))
    if kind == "label":
        return f.ClassLabel(num_classes=300), st.integers(-1, 299).map(np.int64)
    if kind == "box":
        return f.BBoxFeature(bbox_format=None), numbers("float32", (4,)).map(
            lambda found: np.nan_to_num(found, posinf=1, neginf=0)
        )
    sizes = draw(st.lists(st.integers(1, 3), max_size=3))
    if kind == "strings":
        count = int(np.prod(sizes, dtype=int))
        values = st.lists(st.binary(max_size=4), min_size=count, max_size=count)
        return f.Tensor(shape=sizes, dtype=np.object_), values.map(
            lambda found: objects(found, tuple(sizes))
        )
    import tensorflow as tf

    encoding = draw(st.sampled_from(["bytes", "zlib"])) if kind == "encoded" else "none"
    dtypes = ("bool", *WHOLE, *FLOATS, *(IN_BYTES if kind == "encoded" else ()))
    dtype = draw(st.sampled_from(dtypes))
    known = tf.dtypes.as_dtype(dtype).as_numpy_dtype
    return f.Tensor(shape=tuple(sizes), dtype=known, encoding=encoding), numbers(
        dtype, tuple(sizes)
    )


def objects(found: list[bytes], shape: tuple[int, ...]) -> Any:
    out = np.empty(len(found), object)
    out[:] = found
    return out.reshape(shape) if shape else found[0]


@st.composite
def feature(draw: Any, tfds: Any) -> tuple[Any, Any]:
    """A feature in up to three sequences, and a strategy of values."""
    inner, values = draw(base(tfds))
    for _ in range(draw(st.integers(0, 3))):
        length = draw(st.one_of(st.none(), st.integers(1, 3)))
        inner = tfds.features.Sequence(inner, length=length)
        values = st.lists(values, min_size=length or 0, max_size=3 if length is None else length)
    return inner, values


@SLOW
@given(data=st.data())
def test_values_are_those_that_were_yielded(tfds: Any, data: st.DataObject) -> None:
    kind, values = data.draw(feature(tfds))
    features = tfds.features.FeaturesDict({"a": kind, "in": {"b": kind}})
    yielded = data.draw(st.lists(values, min_size=1, max_size=4))
    # Sixteen and more of one layout are cut up by another way.
    yielded = yielded * data.draw(st.sampled_from([1, 20]))
    records = [features.serialize_example({"a": one, "in": {"b": one}}) for one in yielded]
    columns = decode_records(records, read_as(features))
    for at, one in enumerate(yielded):
        found = row(columns, at)
        assert plain(found["a"]) == plain(one)
        assert plain(found["in"]["b"]) == plain(one)


@SLOW
@given(data=st.data())
def test_shapes_that_differ(tfds: Any, data: st.DataObject) -> None:
    f = tfds.features
    rank = data.draw(st.integers(1, 3))
    loose = data.draw(st.lists(st.booleans(), min_size=rank, max_size=rank).filter(any))
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    shape = tuple(None if free else size for free, size in zip(loose, sizes, strict=True))
    encoding = data.draw(st.sampled_from(["bytes", "zlib", "none"][: 2 if sum(loose) > 1 else 3]))
    levels = data.draw(st.integers(0, 2)) if encoding != "none" else 0
    dtype = data.draw(st.sampled_from(("bool", *WHOLE, *FLOATS)))
    kind = f.Tensor(shape=shape, dtype=np.dtype(dtype).type, encoding=encoding)
    one = st.tuples(*[st.integers(0, 3) if s is None else st.just(s) for s in shape]).flatmap(
        lambda found: numbers(dtype, found)
    )
    values: Any = one
    for _ in range(levels):
        kind, values = f.Sequence(kind), st.lists(values, max_size=3)
    features = f.FeaturesDict({"a": kind})
    yielded = data.draw(st.lists(values, min_size=1, max_size=4)) * data.draw(
        st.sampled_from([1, 20])
    )
    records = [features.serialize_example({"a": value}) for value in yielded]
    found = decode_records(records, read_as(features))["a"]
    for at, value in enumerate(yielded):
        assert plain(found[at]) == plain(value)
        if not levels:
            assert found[at].shape == value.shape


def test_every_type_as_it_was_yielded(
    tfds: Any, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every example of a built dataset, its records and its Zarr, equals the generator's."""
    kitchen = importlib.import_module("tests.tfds_kitchen.kitchen_dataset_builder")
    code = ROOT / "tests" / "tfds_kitchen" / "kitchen_dataset_builder.py"
    command = ["tfds-build", str(code), f"--data_dir={tmp_path}", "--also=zarr", "--images"]
    assert main(command) == 0, capfd.readouterr().err
    folder = tmp_path / "kitchen" / "1.0.0"
    names = {path.name for path in folder.glob("*.labels.txt")}
    assert names == {"label.labels.txt", "labels.labels.txt", "mask.labels.txt"}
    kinds = tfds.builder_from_directory(folder).info.features
    for split in kitchen.SIZES:
        source = TFDSDataSource(folder, split=split, images=True)
        yielded = list(kitchen.kitchen_examples(split))
        for columns in (source.read(np.arange(len(source))), read_split(folder / "zarr" / split)):
            assert sorted(columns["id"].tolist()) == list(range(len(yielded)))
            for at, number in enumerate(columns["id"].tolist()):
                found = row(columns, at)
                compare(found, yielded[number], kitchen.COLOURS)
                compare_dtypes(found, kinds)


def compare_dtypes(found: Any, kind: Any, name: str = "") -> None:
    """The dtype of values is the dtype of their feature, and of its inner ones."""
    if isinstance(found, dict):
        inner = getattr(kind, "feature", kind)
        for key, value in found.items():
            compare_dtypes(value, inner[key], f"{name}/{key}")
    elif isinstance(found, Ragged):
        compare_dtypes(found.values, kind.feature, name)
    elif isinstance(found, np.ndarray) and found.dtype == object:
        for value in found.reshape(-1):
            compare_dtypes(value, kind, name)
    elif isinstance(found, np.ndarray | np.generic):
        while type(kind).__name__ in ("Sequence", "Video"):
            kind = kind.feature
        assert found.dtype == kind.np_dtype, name
    else:
        assert isinstance(found, bytes | None), name


LOSSY = ("photo", "translations")


def compare(found: Any, one: Any, colours: list[str], name: str = "") -> None:
    """One value and what was yielded for it, as far as tfds keeps that."""
    if name in LOSSY:  # JPEG; and languages that tfds sorts
        return
    if isinstance(found, dict):
        for key in found:
            inner = [step[key] for step in one] if isinstance(one, list) else one[key]
            compare(found[key], inner, colours, key)
    elif name in ("label", "labels") and not isinstance(one, list | int):
        assert int(found) == colours.index(one)
    elif name == "labels":
        assert found.tolist() == [colours.index(colour) for colour in one]
    elif name == "box":
        boxes = one if isinstance(one, list) else [one]
        expected = np.array([[b.ymin, b.xmin, b.ymax, b.xmax] for b in boxes], np.float32)
        assert np.array_equal(np.reshape(found, (-1, 4)), expected.reshape(-1, 4))
    elif name == "lazy_sound":
        assert found == one.getvalue()
    else:
        assert plain(found, values_only=True) == plain(one, values_only=True), name


@pytest.mark.parametrize(
    ("mode", "channels", "dtype"),
    [
        *[("RGB", 3, "uint8"), ("RGB", 4, "uint8"), ("RGBA", 3, "uint8"), ("RGBA", 4, "uint8")],
        *[("L", 1, "uint8"), ("L", 3, "uint8"), ("P", 3, "uint8"), ("1", 1, "uint8")],
        *[("I;16", 1, "uint16"), ("L", 1, "uint16"), ("I;16", 1, "uint8")],
        *[("I;16", 3, "uint16"), ("1", 3, "uint8")],
        *[("I;16", 4, "uint16"), ("I;16", 4, "uint8"), ("L", 4, "uint16")],
    ],
)
def test_pictures_that_are_converted(tfds: Any, mode: str, channels: int, dtype: str) -> None:
    """Files without the feature's channels or depth are converted as in TensorFlow."""
    image_module = importlib.import_module("PIL.Image")
    rng = np.random.default_rng(1)
    if mode == "I;16":
        image = image_module.fromarray(rng.integers(0, 2**16, (4, 5)).astype(np.uint16))
    else:
        image = image_module.fromarray(rng.integers(0, 256, (4, 5, 3)).astype(np.uint8))
        image = image.convert("RGBA").convert(mode) if mode != "P" else image.convert("P")
    out = io.BytesIO()
    image.save(out, "PNG")
    kind = tfds.features.Image(shape=(None, None, channels), dtype=np.dtype(dtype).type)
    features = tfds.features.FeaturesDict({"a": kind})
    record = features.serialize_example({"a": out.getvalue()})
    (found,) = decode_records([record], read_as(features), images=True)["a"]
    expected = features.deserialize_example(record)["a"].numpy()
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)


def photo(mode: str, file_format: str) -> bytes:
    """A file of smooth colours with some noise."""
    image_module = importlib.import_module("PIL.Image")
    rng = np.random.default_rng(1)
    smooth = np.add.outer(np.arange(24), np.arange(32))[..., None] * [4, 2, 3]
    pixels = (smooth + rng.integers(0, 20, (24, 32, 3))).clip(0, 255).astype(np.uint8)
    out = io.BytesIO()
    image_module.fromarray(pixels).convert(mode).save(out, file_format)
    return out.getvalue()


@pytest.mark.parametrize(
    ("mode", "file_format", "channels", "within"),
    [
        ("RGB", "JPEG", 3, 12),
        ("L", "JPEG", 1, 12),
        ("RGB", "PNG", 3, 0),
        ("RGBA", "PNG", 4, 0),
        ("P", "PNG", 1, 255),  # which TensorFlow makes grey of, and tfds.data_source does not
    ],
)
def test_pictures_are_those_of_the_data_source(
    tfds: Any, mode: str, file_format: str, channels: int, within: int
) -> None:
    """Without OpenCV tfds decodes by Pillow; TensorFlow's pixels are within `within` of those."""
    image_feature = importlib.import_module("tensorflow_datasets.core.features.image_feature")
    assert image_feature.cv2 is None
    features = tfds.features.FeaturesDict({"a": tfds.features.Image(shape=(None, None, channels))})
    record = features.serialize_example({"a": io.BytesIO(photo(mode, file_format))})
    (found,) = decode_records([record], read_as(features), images=True)["a"]
    assert np.array_equal(found, features.deserialize_example_np(record)["a"])
    other = features.deserialize_example(record)["a"].numpy()
    assert np.abs(found.astype(int) - other).max() <= within
