"""Features of tfds as their JSON says them, and folders of records of them, written without tfds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.array_record_bytes import write
from windrow.converters import encode_example
from windrow.sources.tfds.features import TfdsFeatures

MODULE = "tensorflow_datasets.core.features."


def one(kind: str, field: str, content: Any) -> dict[str, Any]:
    """A feature of a type, as "text_feature.Text", with its content under the name of a field."""
    return {"pythonClassName": MODULE + kind, field: content}


def tree(**features: Any) -> dict[str, Any]:
    """A dict of features."""
    return one("features_dict.FeaturesDict", "featuresDict", {"features": features})


def tensor(dtype: str, *shape: int, **others: Any) -> dict[str, Any]:
    """A tensor; -1 for an axis that differs."""
    sizes = {"dimensions": [str(size) for size in shape]}
    return one("tensor_feature.Tensor", "tensor", {"dtype": dtype, "shape": sizes, **others})


def sequence(feature: Any, length: int = -1) -> dict[str, Any]:
    """A sequence of a feature."""
    content = {"feature": feature, "length": str(length)}
    return one("sequence_feature.Sequence", "sequence", content)


def picture(*shape: int, dtype: str = "uint8") -> dict[str, Any]:
    """An image."""
    sizes = {"dimensions": [str(size) for size in shape]}
    return one("image_feature.Image", "image", {"dtype": dtype, "shape": sizes})


TEXT = one("text_feature.Text", "text", {})


def features_of(**features: Any) -> TfdsFeatures:
    """The features of a dataset."""
    return TfdsFeatures.from_json(tree(**features), where="features.json")


def write_dataset(
    folder: Path, features: Any, records: Sequence[Any], *, name: str = "odd"
) -> Path:
    """A folder of these features, with one split, `train`, of one file.

    Args:
        folder: Where; it does not exist.
        features: By name.
        records: Their values as an Example keeps them, by name; or bytes as they are.
        name: Of the dataset.
    """
    folder.mkdir(parents=True)
    split = {"name": "train", "shardLengths": [str(len(records))]}
    info = {"name": name, "version": "1.0.0", "fileFormat": "array_record", "splits": [split]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "features.json").write_text(json.dumps(tree(**features)))
    file = folder / f"{name}-train.array_record-00000-of-00001"
    write(file, (one if isinstance(one, bytes) else encode_example(one) for one in records))
    return folder
