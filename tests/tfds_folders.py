"""Folders as tfds writes them, of a few numbers, written without tfds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.array_record_bytes import write
from windrow.converters import encode_example, write_records
from windrow.sources import ArrayRecordDataSource

_KIND = "tensorflow_datasets.core.features."
TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
FEATURES = {
    "pythonClassName": f"{_KIND}features_dict.FeaturesDict",
    "featuresDict": {
        "features": {
            "id": {
                "pythonClassName": f"{_KIND}scalar.Scalar",
                "tensor": {"dtype": "int64", "encoding": "none", "shape": {}},
            },
            "label": {
                "pythonClassName": f"{_KIND}class_label_feature.ClassLabel",
                "classLabel": {"numClasses": "3"},
            },
            "text": {
                "pythonClassName": f"{_KIND}text_feature.Text",
                "text": {},
            },
        }
    },
}
LABELS = ("one", "two", "three")


def example(split: str, at: int) -> dict[str, Any]:
    """The example `at` of a split."""
    number = at if split == "train" else 1000 + at
    return {"id": number, "label": number % 3, "text": f"{split} {at}".encode()}


def write_folder(
    folder: Path,
    splits: Mapping[str, Sequence[int]],
    *,
    name: str = "counts",
    options: str = "group_size:4",
    template: str | None = None,
    **info: Any,
) -> Path:
    """A folder with splits of these lengths of shards; `info` goes into dataset_info.json."""
    folder.mkdir(parents=True)
    told = []
    for split, lengths in splits.items():
        first = 0
        for shard, length in enumerate(lengths):
            numbered = f"{shard:05d}-of-{len(lengths):05d}"
            file = (template or TEMPLATE).format(
                DATASET=name,
                SPLIT=split,
                FILEFORMAT="array_record",
                SHARD_X_OF_Y=numbered,
                SHARD_INDEX=numbered[:5],
                NUM_SHARDS=numbered[-5:],
            )
            some = range(first, first + length)
            write(folder / file, (encode_example(example(split, at)) for at in some), options)
            first += length
        one: dict[str, Any] = {"name": split, "numBytes": "1"}
        one["shardLengths"] = [str(length) for length in lengths]
        if template is not None:
            one["filepathTemplate"] = template
        told.append(one)
    said = {"name": name, "version": "1.0.0", "fileFormat": "array_record", "splits": told, **info}
    (folder / "dataset_info.json").write_text(json.dumps(said))
    (folder / "features.json").write_text(json.dumps(FEATURES))
    (folder / "label.labels.txt").write_text("".join(f"{label}\n" for label in LABELS))
    return folder


def tfrecord_of(folder: Path, into: Path) -> Path:
    """The same dataset in TFRecord form."""
    into.mkdir(parents=True)
    for path in folder.iterdir():
        if ".array_record" in path.name:
            source = ArrayRecordDataSource(str(path))
            name = path.name.replace("array_record", "tfrecord")
            write_records(str(into / name), source.read(np.arange(len(source))))
        else:
            text = path.read_text()
            (into / path.name).write_text(text.replace("array_record", "tfrecord"))
    return into
