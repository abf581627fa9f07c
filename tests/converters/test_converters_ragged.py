"""Ragged columns on their way: what is lost is made again, and how they are laid out."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

import pytest

from windrow.converters.job.folder import FinishedPart, OutputFolder
from windrow.converters.job.stages import part_stage
from windrow.converters.job.targets import LocalTarget
from windrow.converters.zarr.layout import rows_layout
from windrow.converters.zarr.ragged import Spooled, ragged_files
from windrow.converters.zarr.rows import (
    Storage,
)
from windrow.errors import ArgumentError, ConversionError
from windrow.sources.tf_example.features import Feature
from windrow.sources.zarr.names import VALUES


@contextlib.contextmanager
def opened() -> Iterator[OutputFolder]:
    with tempfile.TemporaryDirectory() as folder:
        yield OutputFolder(LocalTarget(folder), "plan")


WRITE = part_stage(
    "ragged", lambda folder, results: [], lambda folder, item, steps: item.write(folder, steps)
).work


def test_a_data_file_that_is_gone_makes_its_rows_be_written_again() -> None:
    layout = rows_layout("x/values", "int64", (3,), chunk_rows=2, shard_rows=None)
    with opened() as folder:
        spooled = Spooled("rows-0-3", "rows-0-3.0", 1, 3)
        folder.finished(FinishedPart("rows-0-3", 3, ()))
        (item,) = ragged_files(VALUES, layout, [spooled])
        with pytest.raises(ConversionError, match=r"rows-0-3\.0\.values: is gone, or cut short"):
            WRITE(folder, item, lambda records, size: None)
        assert folder.parts() == []


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
