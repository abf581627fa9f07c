"""Zarr files of our own: fill values, encoded chunks, how arrays are laid out, and rows that are lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from windrow.converters.job.folder import FinishedPart, OutputFolder
from windrow.converters.job.stages import part_stage
from windrow.converters.job.targets import LocalTarget
from windrow.converters.zarr import chunk_codecs
from windrow.converters.zarr.chunk_codecs import codecs_of, steps_of
from windrow.converters.zarr.layout import fill_scalar, rows_layout, stored_fill
from windrow.converters.zarr.ragged import Spooled, ragged_files
from windrow.converters.zarr.rows import Storage
from windrow.core.native import native
from windrow.errors import ArgumentError, ConversionError
from windrow.sources.tf_example.features import DTYPES, Feature, numpy_dtype
from windrow.sources.zarr.names import VALUES


@pytest.mark.parametrize("dtype", DTYPES)
def test_fill_values_keep_their_bits(dtype: str) -> None:
    kind = numpy_dtype(dtype)
    for seed in range(20):
        raw = np.random.default_rng(seed).bytes(kind.itemsize)
        raw = bytes([raw[0] & 1]) if dtype == "bool" else raw
        value = np.frombuffer(raw, kind)[0]
        found = fill_scalar(json.loads(json.dumps(stored_fill(value))), kind)
        # A number other than NaN may be stored as its value.
        assert found.tobytes() == value.tobytes() or found == value


@pytest.mark.skipif(native() is None, reason="the native core is not built here")
@pytest.mark.parametrize("text", ["zstd:3", "blosc:lz4:5", "blosc:zstd:1"])
def test_the_bytes_of_chunks_are_those_of_the_packages(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text.startswith("zstd") and zstandard.ZSTD_VERSION != (1, 5, 7):
        pytest.skip(f"the core has zstd 1.5.7, and Python has {zstandard.ZSTD_VERSION}")
    values = np.random.default_rng(0).integers(0, 9, 100_000).astype("<i4").tobytes()
    codecs = (*codecs_of(text, itemsize=4), {"name": "crc32c"})
    data: list[Any] = [values, values[:1_001]]
    (step,) = steps_of(codecs, "x")
    found = step([np.frombuffer(part, np.uint8) for part in data])
    monkeypatch.setattr(chunk_codecs, "native", lambda: None)
    for step in steps_of(codecs, "x"):
        data = step(data)
    assert found == data


def test_shards_have_the_same_rows_and_about_128_mib() -> None:
    features = {
        "image": Feature("uint8", (64, 64), raw=True),
        "label": Feature("int64"),
        "text": Feature("bytes"),
    }
    image, label = Storage().layouts(features, 0, 10**6)
    assert (image.chunk_shape[0], label.chunk_shape[0]) == (1, 512)
    assert image.file_shape[0] == label.file_shape[0] == 32256
    with_text, _ = Storage().layouts(features, 40_000, 10**6)
    assert with_text.file_shape[0] == 2560
    given, _ = Storage(chunk_rows=7).layouts(features, 0, 10**6)
    assert (given.chunk_shape[0], given.file_shape[0]) == (7, 32704)
    small, _ = Storage().layouts(features, 0, 10)
    assert small.file_shape[0] == 512
    with pytest.raises(ArgumentError, match="multiple of the 512 rows of a chunk, such as 1024"):
        Storage(shard_rows=1000).layouts(features, 0, 10)


def test_a_data_file_that_is_gone_makes_its_rows_be_written_again(tmp_path: Path) -> None:
    layout = rows_layout("x/values", "int64", (3,), chunk_rows=2, shard_rows=None)
    folder = OutputFolder(LocalTarget(str(tmp_path)), "plan")
    spooled = Spooled("rows-0-3", "rows-0-3.0", 1, 3)
    folder.finished(FinishedPart("rows-0-3", 3, ()))
    (item,) = ragged_files(VALUES, layout, [spooled])
    stage = part_stage(
        "ragged", lambda folder, results: [], lambda folder, item, steps: item.write(folder, steps)
    )
    with pytest.raises(ConversionError, match=r"rows-0-3\.0\.values: is gone, or cut short"):
        stage.work(folder, item, lambda records, size: None)
    assert folder.parts() == []
