"""Ways to read what tfds built, each in a process of its own.

    python -m benchmarks.tfds_side WAY ARRAY_RECORD_FOLDER TFRECORD_FOLDER EPOCHS

prints one line of JSON: records/s of the best setting, of each epoch after the first, and the most
memory that the process had. All give the same batches but for their order: raw pictures as uint8
`(256, 32, 32, 3)` and labels as int64, globally shuffled.

- `ours`: `TFDSDataSource` with `shuffle` and `batch`, all as it is by default.
- `grain`: `tfds.data_source` under Grain, with the best of some settings of its threads.
- `tf_data`: TFRecord files, a shuffle buffer that holds all of it, parsing, `decode_raw`, batches and
  prefetch; the better of two orders: parsed one by one and then shuffled, or shuffled as bytes and then
  parsed in batches.
- `floor`: array_record's reader gives the same records in a random order, as bytes.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

BATCH: Final = 256
_SEED: Final = 7
_PIXELS: Final = (32, 32, 3)
# Reading by records of Python's is slow enough that this many tell which setting is best.
_TRIED_BATCHES: Final = 40
_AT_ONCE: Final = 2048

Batches = Callable[[], Iterator[Mapping[str, Any]]]
Settings = Mapping[str, Batches]


def ours(records: str, tfrecords: str) -> Settings:
    """A chain over `TFDSDataSource`."""
    import windrow
    from windrow.sources import TFDSDataSource

    source = TFDSDataSource(records, split="train")
    chain = windrow.MapDataset.source(source).shuffle(seed=_SEED).batch(BATCH)
    return {"default": lambda: iter(chain)}


def grain(records: str, tfrecords: str) -> Settings:
    """`tfds.data_source` under Grain, which shuffles and batches."""
    import grain
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(records)
    shuffled = grain.MapDataset.source(builder.as_data_source(split="train")).shuffle(seed=_SEED)

    def batches(threads: int, ahead: int, in_threads: bool = True) -> Iterator[Mapping[str, Any]]:
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)
        if in_threads:
            return iter(shuffled.batch(BATCH).to_iter_dataset(options))
        return iter(shuffled.to_iter_dataset(options).batch(BATCH))

    return {
        "default": functools.partial(batches, 16, 500),
        "default, batches of its stream": functools.partial(batches, 16, 500, False),
        "no threads": functools.partial(batches, 0, 0),
        "2 threads": functools.partial(batches, 2, 8),
        "4 threads": functools.partial(batches, 4, 16),
    }


def tf_data(records: str, tfrecords: str) -> Settings:
    """TensorFlow's own input, over TFRecord files of the same examples."""
    import tensorflow as tf

    files = sorted(str(path) for path in Path(tfrecords).glob("*.tfrecord-*"))
    many = int(sum(1 for _ in tf.data.TFRecordDataset(files)))
    auto = tf.data.AUTOTUNE
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def decoded(found: Any, shape: tuple[int, ...]) -> dict[str, Any]:
        image = tf.reshape(tf.io.decode_raw(found["image"], tf.uint8), shape)
        return {"image": image, "label": found["label"]}

    def parse_single(record: Any) -> dict[str, Any]:
        return decoded(tf.io.parse_single_example(record, features), _PIXELS)

    def parse_batch(batch: Any) -> dict[str, Any]:
        return decoded(tf.io.parse_example(batch, features), (-1, *_PIXELS))

    def read() -> Any:
        return tf.data.TFRecordDataset(files, num_parallel_reads=auto)

    def by_record() -> Iterator[Mapping[str, Any]]:
        parsed = read().map(parse_single, num_parallel_calls=auto)
        batches = parsed.shuffle(many, seed=_SEED).batch(BATCH).prefetch(auto)
        return iter(batches.as_numpy_iterator())

    def by_batch() -> Iterator[Mapping[str, Any]]:
        batches = read().shuffle(many, seed=_SEED).batch(BATCH)
        parsed = batches.map(parse_batch, num_parallel_calls=auto).prefetch(auto)
        return iter(parsed.as_numpy_iterator())

    return {"parse_single_example, shuffle": by_record, "shuffle, parse_example": by_batch}


def floor(records: str, tfrecords: str) -> Settings:
    """Records in a random order and nothing else, many at a call."""
    from array_record.python.array_record_module import ArrayRecordReader

    readers = [ArrayRecordReader(str(path)) for path in sorted(Path(records).glob("*.array_rec*"))]

    def batches() -> Iterator[Mapping[str, Any]]:
        rng = np.random.default_rng(_SEED)
        for reader in readers:
            order = rng.permutation(reader.num_records())
            for start in range(0, len(order), _AT_ONCE):
                yield {"label": reader.read(order[start : start + _AT_ONCE].tolist())}

    return {"default": batches}


WAYS: Final[Mapping[str, Callable[[str, str], Settings]]] = {
    "ours": ours,
    "grain": grain,
    "tf_data": tf_data,
    "floor": floor,
}


def measured(way: str, records: str, tfrecords: str, *, epochs: int) -> dict[str, Any]:
    """Records/s of each epoch by the best setting; the first epoch warms up and is not told."""
    settings = WAYS[way](records, tfrecords)
    best = next(iter(settings))
    if len(settings) > 1:
        limit = None if way == "tf_data" else _TRIED_BATCHES  # its buffer fills before a batch
        rates = {name: _epoch(batches, limit)["per_s"] for name, batches in settings.items()}
        best = max(rates, key=lambda name: rates[name])
    found = [_epoch(settings[best], None) for _ in range(epochs + 1)]
    seen = {(one["examples"], one["labels"]) for one in found}
    if len(seen) != 1:
        raise RuntimeError(f"benchmark: {way}: epochs differ: {sorted(seen)}")
    examples, labels = seen.pop()
    return {
        "way": way,
        "setting": best,
        "examples": examples,
        "labels": labels,
        "records_per_s": [round(one["per_s"]) for one in found[1:]],
        "peak_mb": round(peak_bytes() / 1e6),
    }


def _epoch(batches: Batches, limit: int | None) -> dict[str, Any]:
    """Time of one pass, from its first step to its end; `labels` is the sum of all labels."""
    start_s = time.perf_counter()
    examples = labels = 0
    iterator = batches()
    for number, batch in enumerate(iterator):
        examples += len(batch["label"])
        if isinstance(batch["label"], np.ndarray):
            labels += int(batch["label"].sum())
            _check(batch)
        if number + 1 == limit:
            iterator.close()  # type: ignore[attr-defined] # else Grain's threads go on
            break
    return {
        "examples": examples,
        "labels": labels,
        "per_s": examples / (time.perf_counter() - start_s),
    }


def _check(batch: Mapping[str, Any]) -> None:
    image, label = batch["image"], batch["label"]
    if image.shape != (len(label), *_PIXELS) or (image.dtype, label.dtype) != ("u1", "i8"):
        raise RuntimeError(f"benchmark: a batch of {image.dtype} {image.shape}, {label.dtype}")


def peak_bytes() -> int:
    """The most memory that this process has had."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak_kb = next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]
    return int(peak_kb) << 10


def main() -> int:
    """Print the line; what libraries print on stdout goes to stderr."""
    way, records, tfrecords, epochs = sys.argv[1:]
    told = os.dup(1)
    os.dup2(2, 1)
    line = json.dumps(measured(way, records, tfrecords, epochs=int(epochs)))
    os.write(told, f"{line}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
