"""Writes ../data/tfds-kitchen.zip: the dataset that tfds builds here, and what tfds reads of it.

Run in an environment with tfds, after `tfds build kitchen_dataset_builder.py
--file_format=array_record --num_shards=3 --data_dir=DIR`: `python make_fixture.py DIR`. In the zip
are the files that tfds wrote, and expected.json: by split, one JSON object a record by the names of
leaves, as `kitchen.Kitchen` reads them; "pictures" has those that are pictures, decoded.
"""

from __future__ import annotations

import json
import pathlib
import sys
import zipfile
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

# What tfds reads with TensorFlow alone.
BY_TENSORFLOW = ("nested_raw",)
PICTURES_BY_TENSORFLOW = ("deep",)
OUT = pathlib.Path(__file__).parents[1] / "data" / "tfds-kitchen.zip"


def main(data_dir: str) -> None:
    """Write the zip file."""
    folder = pathlib.Path(data_dir) / "kitchen" / "1.0.0"
    builder = tfds.builder_from_directory(folder)
    expected = {split: records(builder, split) for split in builder.info.splits}
    with zipfile.ZipFile(OUT, "w") as out:
        for path in sorted(folder.iterdir()):
            out.writestr(
                zipfile.ZipInfo(f"kitchen/1.0.0/{path.name}"), path.read_bytes(), zipfile.ZIP_LZMA
            )
        text = json.dumps(expected).encode()
        out.writestr(zipfile.ZipInfo("expected.json"), text, zipfile.ZIP_LZMA)


def records(builder: Any, split: str) -> list[dict[str, Any]]:
    """Each record's values by the name of the leaf, and its decoded pictures."""
    features = builder.info.features
    serialized = []
    for shard in builder.info.splits[split].filepaths:
        module = __import__("array_record.python.array_record_module", fromlist=["x"])
        reader = module.ArrayRecordReader(str(shard))
        serialized += [reader.read([i])[0] for i in range(reader.num_records())]
    out = []
    for record in serialized:
        row: dict[str, Any] = {"pictures": {}}
        parsed = features._example_parser_np.parse_example(record)
        for name, feature in features.items():
            read(record, parsed, name, feature, row)
        out.append(row)
    return out


def read(record: bytes, parsed: Any, name: str, feature: Any, row: dict[str, Any]) -> None:
    """Put the values of one feature of the record into `row`."""
    alone = tfds.features.FeaturesDict({name: feature})
    with_pictures = pictures(feature)

    def by_numpy() -> Any:
        try:
            return alone.decode_example_np({name: parsed[name]})[name]
        except (ValueError, NotImplementedError) as error:  # some are read by TensorFlow alone
            print(name, repr(error)[:90])
            return alone.deserialize_example(record)[name].numpy()

    if name in BY_TENSORFLOW:
        value = alone.deserialize_example(record)[name]
        value = value.to_list()
        put(row, name, feature, [[np.asarray(x, np.int16) for x in y] for y in value])
        return
    if isinstance(feature, tfds.features.Dataset):
        steps = by_numpy()
        row["pictures"][name + "/view"] = coded(
            np.stack([s["view"] for s in steps]) if len(steps) else np.zeros((0, 2, 2, 3), np.uint8)
        )
        row[name + "/reward"] = coded(np.array([s["reward"] for s in steps], np.float32))
        row[name + "/view"] = coded(list(parsed[name]["view"]))
        row[name + "/said"] = coded([list(s["said"]) for s in steps])
        return
    put(row, name, feature, parsed[name] if with_pictures else by_numpy())
    if with_pictures:
        if name in PICTURES_BY_TENSORFLOW:
            value = alone.deserialize_example(record)[name].numpy()
        else:
            value = by_numpy()
        row["pictures"][name] = coded(np.asarray(value))


def pictures(feature: Any) -> bool:
    """Whether the feature, or what it is a sequence of, is a picture."""
    while isinstance(feature, tfds.features.Sequence):
        feature = feature.feature
    return isinstance(feature, tfds.features.Image)


def put(row: dict[str, Any], name: str, feature: Any, value: Any) -> None:
    """Put a value, or those of a dict, into `row`."""
    inner = feature.feature if type(feature) is tfds.features.Sequence else feature
    if isinstance(value, dict):
        for key in value:
            put(row, f"{name}/{key}", inner[key], value[key])
        return
    scalar = not isinstance(value, (bytes, list, np.ndarray)) and value is not None
    row[name] = coded(np.asarray(value, feature.np_dtype) if scalar else value)


def coded(value: Any) -> Any:
    """A value as JSON; `tests.kitchen` has the way back."""
    if value is None:
        return None
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, (list, tuple)) or (value.dtype == object and value.ndim == 1):
        return {"list": [coded(item) for item in value]}
    if value.dtype == object:
        return {"list": [coded(item) for item in value.reshape(-1)], "shape": value.shape}
    data = np.ascontiguousarray(value).tobytes().hex()
    return {"dtype": value.dtype.name, "shape": value.shape, "data": data}


if __name__ == "__main__":
    main(sys.argv[1])
