"""The dataset of tests/tfds_kitchen as tfds wrote it, and what tfds reads of it, without tfds."""

from __future__ import annotations

import json
import pathlib
import zipfile
from typing import Any

import numpy as np

from windrow.sources.tf_example.features import Ragged

_ZIP = pathlib.Path(__file__).parent / "data" / "tfds-kitchen.zip"


def kitchen_folder(into: pathlib.Path) -> pathlib.Path:
    """The folder kitchen/1.0.0 of the dataset, unpacked in `into`."""
    with zipfile.ZipFile(_ZIP) as packed:
        packed.extractall(into, [name for name in packed.namelist() if name.startswith("kitchen/")])
    return into / "kitchen" / "1.0.0"


def kitchen_features() -> Any:
    """What its features.json holds."""
    with zipfile.ZipFile(_ZIP) as packed:
        return json.loads(packed.read("kitchen/1.0.0/features.json"))


def kitchen_expected(split: str) -> list[dict[str, Any]]:
    """By record of a split, in order: by the name of a leaf, as "inner/a/b", its value.

    Those of pictures are their encoded bytes; "pictures" has them decoded, by name. Values are
    bytes, arrays (with axes, or of none), lists of values, or None where there is none.
    """
    with zipfile.ZipFile(_ZIP) as packed:
        expected = json.loads(packed.read("expected.json"))[split]
    return [{name: _value(value) for name, value in row.items()} for row in expected]


def _value(coded: Any) -> Any:
    if coded is None:
        return None
    if "bytes" in coded:
        return bytes.fromhex(coded["bytes"])
    if "list" in coded:
        items = [_value(item) for item in coded["list"]]
        if "shape" not in coded:
            return items
        out = np.empty(len(items), object)
        out[:] = items
        return out.reshape(coded["shape"])
    if "dtype" in coded:
        data = bytes.fromhex(coded["data"])
        return np.frombuffer(data, coded["dtype"]).reshape(coded["shape"])
    return {name: _value(value) for name, value in coded.items()}


def plain(value: Any, *, values_only: bool = False) -> Any:
    """A value, or sequence of them, as lists in lists of what can be compared: dtype and bits.

    Args:
        value: Of a column, of tfds, or as a generator yields it.
        values_only: Whether dtypes do not matter, and text may be str: then numbers are compared by
            value, as float64 where they are floats of float32.
    """
    if isinstance(value, str):
        return value.encode()
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, list | tuple | Ragged) or (np.ndim(value) and len(np.shape(value))):
        return [plain(item, values_only=values_only) for item in value]
    array = np.asarray(value)
    if array.dtype == object:
        return plain(array.item(), values_only=values_only)
    if values_only:
        return str(np.float32(array) if array.dtype.kind == "f" else array.item() + 0)
    return array.dtype.name, "nan" if np.isnan(array) else array.tobytes()
