"""Builders of tfds in folders, and what they yield."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from windrow.converters import check
from windrow.converters.tfds.conversions import read_split
from windrow.errors import WindrowError
from windrow.sources import TFDSDataSource, ZarrDataSource
from windrow.sources.tf_example.features import Ragged

SIZES = {"train": 57, "test": 8}
BUILDER = """
import numpy as np
import tensorflow_datasets as tfds
{imports}


def example(i):
    rng = np.random.default_rng(i)
    return {{
        "image": rng.integers(0, 256, (4, 4, 3), dtype=np.uint8),
        "label": i % 3,
        "text": "text " * (i % 4),
        "numbers": np.arange(i % 5, dtype=np.int32),
        {values}
    }}


class Builder({bases}):
    VERSION = tfds.core.Version("1.0.0")
{settings}

    def _info(self):
        features = tfds.features.FeaturesDict({{
            "image": tfds.features.Tensor(shape=(4, 4, 3), dtype=np.uint8, encoding="bytes"),
            "label": tfds.features.ClassLabel(names=["a", "b", "c"]),
            "text": tfds.features.Text(),
            "numbers": tfds.features.Sequence(np.int32),
            {features}
        }})
        return self.dataset_info_from_configs(features=features)

    def _split_generators(self, dl_manager):
        return {{"train": self._generate_examples(57), "test": self._generate_examples(8)}}

{generate}
"""
BASE = "tfds.core.GeneratorBasedBuilder"
PLAIN = """
    def _generate_examples(self, n):
        for i in range(n):
            yield i, example(i)
"""
BEAM = """
    def _generate_examples(self, n):
        beam = tfds.core.lazy_imports.apache_beam
        return beam.Create(range(n)) | beam.Map(lambda i: (i, example(i)))
"""
FAILING = """
    def _generate_examples(self, n):
        for i in range(n):
            yield i, example(i)
        if n == 8:
            raise RuntimeError("no more of these")
"""
# What makes a builder one that writes Zarr.
MIXED = {"imports": "from windrow.converters.tfds import AlsoZarr", "bases": f"AlsoZarr, {BASE}"}


def write_builder(folder: Path, *, name: str = "small", **changes: str) -> Path:
    """A folder with a builder, for `tfds build`.

    Args:
        folder: Where the folder of the builder is to lie.
        name: Of the dataset. A process that imports builders takes each name once.
        **changes: Lines of the module: `bases`, `imports`, `settings`, `generate`, `features`,
            `values`.
    """
    (folder / name).mkdir(parents=True)
    lines = dict.fromkeys(("imports", "settings", "features", "values"), "")
    text = BUILDER.format(**{**lines, "bases": BASE, "generate": PLAIN, **changes})
    (folder / name / f"{name}_dataset_builder.py").write_text(text)
    return folder / name


def example(i: int) -> dict[str, Any]:
    """What the builders yield."""
    rng = np.random.default_rng(i)
    return {
        "image": rng.integers(0, 256, (4, 4, 3), dtype=np.uint8),
        "label": i % 3,
        "text": ("text " * (i % 4)).encode(),
        "numbers": np.arange(i % 5, dtype=np.int32),
    }


def assert_all_there(folder: Path) -> None:
    """Assert that the records and the arrays have every example of the generator, in one order."""
    for split, size in SIZES.items():
        source = TFDSDataSource(folder, split=split)
        records = source.read(np.arange(len(source)))
        assert_same(read_split(folder / "zarr" / split), records, split)
        found = {row["image"].tobytes(): row for row in rows(records)}
        assert len(records["label"]) == len(found) == size
        for i in range(size):
            wanted = example(i)
            row = found[wanted["image"].tobytes()]
            assert (int(row["label"]), row["text"]) == (wanted["label"], wanted["text"])
            assert_same(row["numbers"], wanted["numbers"])
    assert check(folder / "zarr", progress=False).ok


def assert_nothing_opens(data: Path) -> None:
    """Assert that no dataset and no group under `data` can be opened."""
    for path in [data, *(path for path in data.rglob("*") if path.is_dir())]:
        with pytest.raises((WindrowError, OSError)):
            TFDSDataSource(path, split="train")
        with pytest.raises((WindrowError, OSError)):
            ZarrDataSource(path)


def rows(columns: Any) -> Iterator[dict[str, Any]]:
    """The rows of columns with labels."""
    for at in range(len(columns["label"])):
        yield {name: column[at] for name, column in columns.items()}


def assert_same(found: Any, wanted: Any, where: str = "") -> None:
    """Assert that two trees of columns or values are the same: types, dtypes, shapes and bits."""
    assert type(found) is type(wanted), f"{where}: {type(found)}, and not {type(wanted)}"
    if isinstance(wanted, dict):
        assert list(found) == list(wanted), where
        for name, value in wanted.items():
            assert_same(found[name], value, f"{where}/{name}")
    elif isinstance(wanted, Ragged):
        assert found.offsets.tolist() == wanted.offsets.tolist(), where
        assert_same(found.values, wanted.values, where)
    elif isinstance(wanted, np.ndarray):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), where
        if wanted.dtype == object:
            assert_same(list(found.flat), list(wanted.flat), where)
        else:
            assert found.tobytes() == wanted.tobytes(), where
    elif isinstance(wanted, np.generic):
        assert (found.dtype, found.tobytes()) == (wanted.dtype, wanted.tobytes()), where
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for at, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert_same(one, other, f"{where}[{at}]")
    else:
        assert found == wanted, where
