"""Reading a dataset of TensorFlow Datasets, beside what others do.

Needs an environment with TensorFlow, TensorFlow Datasets and Grain, which `make test-tfds` makes:
`.venv-tfds/bin/python -m benchmarks tfds`. All ways to read give the same batches but for their order:
raw pictures as uint8 `(256, 32, 32, 3)`, globally shuffled.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import loops
from benchmarks.harness import FLOOR, OURS, Bound, Case, Place, Regime, Side
from benchmarks.loops import Grain

BATCH: Final = 256
_BUILDER: Final = Path(__file__).with_name("tfds_pictures.py")
_EXAMPLES_VARIABLE: Final = "WINDROW_BENCHMARK_EXAMPLES"  # that of tfds_pictures
_NEEDS: Final = ("tensorflow_datasets", "tensorflow")
_PIXELS: Final = (32, 32, 3)

_part = functools.partial


def built(place: Place, path: Path, *, form: str) -> None:
    """Examples of a raw picture of 3 KB and a label."""
    words = ("windrow", "tfds-build", str(_BUILDER), "--data_dir", str(path), "--file_format", form)
    subprocess.run(
        [sys.executable, "-m", *words],
        cwd=Path(__file__).parents[1],
        env={**os.environ, _EXAMPLES_VARIABLE: str(place.size(50_000, 512))},
        stdin=subprocess.DEVNULL,
        check=True,
    )


# --- reading -------------------------------------------------------------------------------------


def _dataset(place: Place, form: str) -> str:
    (found,) = place.path(form).glob("*/*/dataset_info.json")
    return str(found.parent)


def _again_and_again(epoch: Callable[[], Any]) -> Iterator[Any]:
    """The pictures of batches, epoch after epoch."""
    while True:
        for batch in epoch():
            image = batch["image"]
            if image.shape[1:] != _PIXELS or image.dtype != "u1":
                raise RuntimeError(f"benchmarks: a batch of {image.dtype} {image.shape}")
            yield image


def ours(place: Place) -> Iterator[Any]:
    """A chain over `TFDSDataSource`, all as it is by default."""
    import windrow
    from windrow.sources import TFDSDataSource

    source = TFDSDataSource(_dataset(place, "array_record"), split="train")
    return _again_and_again(lambda: windrow.MapDataset.source(source).shuffle(seed=7).batch(BATCH))


def grain(place: Place, way: Grain) -> Iterator[Any]:
    """`tfds.data_source` under Grain, which shuffles and batches."""
    import grain
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(_dataset(place, "array_record"))
    chain = grain.MapDataset.source(builder.as_data_source(split="train")).shuffle(seed=7)
    return _again_and_again(lambda: way.stream(chain.batch(BATCH)))


def tf_data(place: Place, by_record: bool) -> Iterator[Any]:
    """TFRecord files and a shuffle buffer that holds all; parsed before the shuffle, or in batches."""
    import tensorflow as tf

    folder = Path(_dataset(place, "tfrecord"))
    files = sorted(str(path) for path in folder.glob("*.tfrecord-*"))
    many = int(sum(1 for _ in tf.data.TFRecordDataset(files)))
    auto = tf.data.AUTOTUNE
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def decoded(found: Any, shape: tuple[int, ...]) -> dict[str, Any]:
        image = tf.reshape(tf.io.decode_raw(found["image"], tf.uint8), shape)
        return {"image": image, "label": found["label"]}

    def epoch() -> Any:
        records = tf.data.TFRecordDataset(files, num_parallel_reads=auto)
        if by_record:
            parsed = records.map(
                lambda one: decoded(tf.io.parse_single_example(one, features), _PIXELS),
                num_parallel_calls=auto,
            )
            batches = parsed.shuffle(many, seed=7).batch(BATCH)
        else:
            batches = (
                records.shuffle(many, seed=7)
                .batch(BATCH)
                .map(
                    lambda some: decoded(tf.io.parse_example(some, features), (-1, *_PIXELS)),
                    num_parallel_calls=auto,
                )
            )
        return batches.prefetch(auto).as_numpy_iterator()

    return _again_and_again(epoch)


def floor(place: Place) -> Iterator[Any]:
    """array_record's reader: 2,048 records per call in a random order, and nothing decoded."""
    from array_record.python.array_record_module import ArrayRecordReader

    folder = Path(_dataset(place, "array_record"))
    readers = [ArrayRecordReader(str(path)) for path in sorted(folder.glob("*.array_rec*"))]
    while True:
        for reader in readers:
            counts = loops.shuffled(reader.num_records(), forever=False)
            for part in loops.in_parts(counts, 2_048):
                yield np.array(reader.read(part.tolist()), object)


CASES: Final = (
    Case(
        "tfds.reading",
        "50,000 examples in batches of 256, globally shuffled",
        (
            Side(OURS, ours, needs=_NEEDS[:1]),
            Side("tfds.data_source under Grain", grain, loops.GRAIN_ALONE, (*_NEEDS, "grain")),
            Side(
                "tf.data over TFRecord",
                tf_data,
                {"parsed, shuffled": True, "shuffled, parsed": False},
                _NEEDS,
            ),
            Side(FLOOR, floor, needs=_NEEDS[:1]),
        ),
        Regime.STEADY,
        {
            "array_record": _part(built, form="array_record"),
            "tfrecord": _part(built, form="tfrecord"),
        },
        (
            Bound(
                "times tfds.data_source under Grain",
                over="tfds.data_source under Grain",
                at_least=5,
            ),
            Bound("of tf.data over TFRecord", over="tf.data over TFRecord", at_least=0.5),
        ),
        seconds=3,
        warm=200,
    ),
)
