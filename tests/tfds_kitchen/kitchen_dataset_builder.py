"""A dataset with every type of feature that tfds has: small, the same every time, from no network.

Built by `tfds build kitchen_dataset_builder.py --file_format=array_record --num_shards=3`, or by
`download_and_prepare`. What it yields is `kitchen_examples(split)`.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import tensorflow_datasets as tfds

SIZES = {"train": 20, "test": 5}
COLOURS = ["red", "green", "blue"]
WHOLE = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")


class Kitchen(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
    """Every type of feature."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar = {"1.0.0": "The first."}

    def _info(self) -> Any:
        return tfds.core.DatasetInfo(
            builder=self,
            description="Every type of feature.",
            features=tfds.features.FeaturesDict(kitchen_features()),
            supervised_keys=("image", "label"),
            homepage="https://example.org",
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {split: self._generate_examples(split) for split in SIZES}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        yield from enumerate(kitchen_examples(split))


def kitchen_features() -> dict[str, Any]:
    """The features by name."""
    f = tfds.features
    return {
        "id": np.int64,
        "label": f.ClassLabel(names=COLOURS),
        "rank": f.ClassLabel(num_classes=5),
        "text": f.Text(),
        "scalar": f.Scalar(np.float32),
        "scalars": {name: f.Scalar(np.dtype(name).type) for name in (*WHOLE, *FLOATS)},
        "tensors": {
            name: f.Tensor(shape=(2, 3), dtype=np.dtype(name).type) for name in (*WHOLE, *FLOATS)
        },
        "raw": {
            name: f.Tensor(shape=(2, 3), dtype=np.dtype(name).type, encoding="bytes")
            for name in (*WHOLE, *FLOATS, *COMPLEX)
        },
        "packed": {
            name: f.Tensor(shape=(2, 3), dtype=np.dtype(name).type, encoding="zlib")
            for name in (*WHOLE, *FLOATS, *COMPLEX)
        },
        "words": f.Tensor(shape=(2, 2), dtype=np.object_),
        "line": f.Tensor(shape=(None, 2), dtype=np.float32),
        "wide": f.Tensor(shape=(2, None), dtype=np.int32),
        "raw_line": f.Tensor(shape=(None, 2), dtype=np.int16, encoding="bytes"),
        "plane": f.Tensor(shape=(None, None), dtype=np.uint8, encoding="bytes"),
        "packed_plane": f.Tensor(shape=(None, 2, None), dtype=np.float32, encoding="zlib"),
        "maybe": {
            "number": f.Scalar(np.int32, optional=True),
            "float": f.Tensor(shape=(2,), dtype=np.float32, optional=True),
            "flag": f.Scalar(np.bool_, optional=True),
            "text": f.Text(optional=True),
        },
        "image": f.Image(shape=(4, 5, 3), encoding_format="png"),
        "photo": f.Image(encoding_format="jpeg"),
        "grey": f.Image(shape=(None, 4, 1)),
        "alpha": f.Image(shape=(3, 3, 4), encoding_format="png"),
        "deep": f.Image(shape=(None, None, 1), dtype=np.uint16, encoding_format="png"),
        "depth": f.Image(shape=(3, 4, 1), dtype=np.float32),
        "mask": f.LabeledImage(labels=COLOURS, shape=(None, None, 1)),
        "box": f.BBoxFeature(),
        "sound": f.Audio(shape=(None,), dtype=np.int16, sample_rate=8000),
        "stereo": f.Audio(shape=(None, 2), dtype=np.int32),
        "lazy_sound": f.Audio(file_format="wav", dtype=np.int32, lazy_decode=True),
        "film": f.Video(shape=(None, 3, 4, 3)),
        "numbers": f.Sequence(np.int32),
        "three": f.Sequence(np.float32, length=3),
        "texts": f.Sequence(f.Text()),
        "labels": f.Sequence(f.ClassLabel(names=COLOURS)),
        "images": f.Sequence(f.Image(shape=(2, 3, 3))),
        "points": f.Sequence(f.Tensor(shape=(2,), dtype=np.float32)),
        "raw_points": f.Sequence(f.Tensor(shape=(2,), dtype=np.uint16, encoding="bytes")),
        "objects": f.Sequence({"box": f.BBoxFeature(), "name": f.Text(), "label": np.uint8}),
        "nested": f.Sequence(f.Sequence(np.int64)),
        "deeper": f.Sequence(f.Sequence(f.Sequence(np.float32))),
        "nested_texts": f.Sequence(f.Sequence(f.Text())),
        "nested_points": f.Sequence(f.Sequence(f.Tensor(shape=(2,), dtype=np.int16))),
        "nested_raw": f.Sequence(
            f.Sequence(f.Tensor(shape=(2,), dtype=np.int16, encoding="bytes"))
        ),
        "steps": f.Dataset(
            {"reward": np.float32, "view": f.Image(shape=(2, 2, 3)), "said": f.Sequence(f.Text())}
        ),
        "inner": {"a": {"b": np.int32}, "c": f.Text()},
        "translation": f.Translation(languages=["de", "en"]),
        "translations": f.TranslationVariableLanguages(languages=["de", "en", "fr"]),
    }


def kitchen_examples(split: str) -> Iterator[dict[str, Any]]:
    """What the builder yields; None is what an optional feature is without."""
    for number in range(SIZES[split]):
        yield _example(number, np.random.default_rng([number, len(split)]))


def _example(i: int, rng: np.random.Generator) -> dict[str, Any]:
    def pixels(*shape: int, dtype: Any = np.uint8) -> Any:
        return rng.choice(np.array([7, 255], dtype), shape)

    def text(most: int = 6) -> str:
        return "".join(rng.choice(list("abcü \0"), rng.integers(0, most)))

    n = i % 4
    return {
        "id": i,
        "label": COLOURS[i % 3],
        "rank": i % 5 if i % 7 else -1,
        "text": text(20),
        "scalar": i / 3,
        "scalars": {name: _values(name, (), rng)[()] for name in (*WHOLE, *FLOATS)},
        "tensors": {name: _values(name, (2, 3), rng) for name in (*WHOLE, *FLOATS)},
        "raw": {name: _values(name, (2, 3), rng) for name in (*WHOLE, *FLOATS, *COMPLEX)},
        "packed": {name: _values(name, (2, 3), rng) for name in (*WHOLE, *FLOATS, *COMPLEX)},
        "words": np.array([[text(), text()], [text(), text()]], object),
        "line": _values("float32", (n, 2), rng),
        "wide": _values("int32", (2, n), rng),
        "raw_line": _values("int16", (n, 2), rng),
        "plane": pixels(i % 3, n + 1),
        "packed_plane": _values("float32", (n, 2, i % 3 + 1), rng),
        "maybe": {
            "number": int(rng.integers(100)) if i % 2 else None,
            "float": _values("float32", 2, rng) if i % 3 else None,
            "flag": bool(i % 5 == 0) if i % 2 else None,
            "text": text() if i % 4 else None,
        },
        "image": pixels(4, 5, 3),
        "photo": pixels(3 + n, 4, 3),
        "grey": pixels(n + 1, 4, 1),
        "alpha": pixels(3, 3, 4),
        "deep": _values("uint16", (n + 1, 2, 1), rng),
        "depth": _values("float32", (3, 4, 1), rng),
        "mask": rng.integers(0, 3, (n + 1, 3, 1)).astype(np.uint8),
        "box": tfds.features.BBox(ymin=0.25, xmin=0.1, ymax=0.5, xmax=1 - n / 10),
        "sound": _values("int16", (n,), rng),
        "stereo": _values("int32", (n, 2), rng),
        "lazy_sound": _wav(n, rng),
        "film": pixels(n, 3, 4, 3),
        "numbers": _values("int32", (n,), rng),
        "three": _values("float32", 3, rng),
        "texts": [text() for _ in range(n)],
        "labels": [COLOURS[k] for k in range(n)],
        "images": [pixels(2, 3, 3) for _ in range(n)],
        "points": _values("float32", (n, 2), rng),
        "raw_points": [_values("uint16", (2,), rng) for _ in range(n)],
        "objects": [
            {"box": tfds.features.BBox(0.0, 0.1, k / 4, 1.0), "name": text(), "label": k}
            for k in range(n)
        ],
        "nested": [list(range(k)) for k in range(n)],
        "deeper": [[[float(k)] * j for j in range(k)] for k in range(n)],
        "nested_texts": [[text() for _ in range(k)] for k in range(n)],
        "nested_points": [[[k, j] for j in range(k)] for k in range(n)],
        "nested_raw": [[np.array([k, j], np.int16) for j in range(k)] for k in range(n)],
        "steps": [
            {"reward": k / 3, "view": pixels(2, 2, 3), "said": [text() for _ in range(k)]}
            for k in range(n)
        ],
        "inner": {"a": {"b": i * i}, "c": text()},
        "translation": {"de": text(), "en": text()},
        "translations": {"en": text(), "fr": [text(), text()]} if n else {"de": text()},
    }


def _values(name: str, shape: int | tuple[int, ...], rng: np.random.Generator) -> Any:
    """Telling values of a dtype: of float64 those that an Example, which keeps float32, holds.

    They are few, so that files of them pack well.
    """
    dtype = np.dtype(name)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        # tfds' reading by NumPy knows no uint64 from 2**63 up.
        some: list[Any] = [0, 1, int(info.min), min(int(info.max), 2**63 - 1)]
    else:
        some = [0.0, 1.0] if dtype.kind == "b" else [0.5, -0.0, float("nan"), float("-inf")]
    if dtype.kind == "c":
        some[1] = 1.5 - 2j
    return rng.choice(np.array(some, dtype), shape)


def _wav(frames: int, rng: np.random.Generator) -> io.BytesIO:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(rng.choice([-99, 99], frames).astype("<i2").tobytes())
    return io.BytesIO(out.getvalue())
