"""Ragged columns: values and offsets are as if all rows were written at once."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hypothesis_profiles import examples
from windrow.converters.job.folder import FinishedPart, OutputFolder
from windrow.converters.job.stages import part_stage
from windrow.converters.job.targets import LocalTarget
from windrow.converters.zarr import ragged
from windrow.converters.zarr.layout import encode, rows_layout
from windrow.converters.zarr.ragged import Spool, Spooled, ragged_files
from windrow.converters.zarr.rows import (
    Storage,
)
from windrow.errors import ArgumentError, ConversionError
from windrow.sources.tf_example.features import Feature, Ragged
from windrow.sources.zarr.names import OFFSETS, VALUES


@contextlib.contextmanager
def opened() -> Iterator[OutputFolder]:
    with tempfile.TemporaryDirectory() as folder:
        yield OutputFolder(LocalTarget(folder), "plan")


def staged(folder: OutputFolder) -> dict[str, bytes]:
    root = Path(str(folder.target.local)) / folder.work / "store"
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def parts(draw: st.DrawFn, total: int) -> list[tuple[int, int]]:
    """`[0, total)` cut anywhere, also into empty parts."""
    cuts = sorted(draw(st.lists(st.integers(0, total), max_size=5)))
    return list(itertools.pairwise([0, *cuts, total]))


WRITE = part_stage(
    "ragged", lambda folder, results: [], lambda folder, item, steps: item.write(folder, steps)
).work


@pytest.mark.jobs
@settings(max_examples=examples(24))
@given(data=st.data())
def test_values_and_offsets_do_not_depend_on_pieces_and_blocks(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 9), max_size=30))
    shape = data.draw(st.sampled_from([(), (2,)]))
    ends = np.cumsum([0, *lengths])
    values = np.arange(ends[-1] * int(np.prod(shape)), dtype="f4").reshape(-1, *shape)
    storage = Storage(data.draw(st.none() | st.just(3)), data.draw(st.sampled_from([None, 0])))
    feature = Feature("float32", (None, *shape))
    block_bytes = data.draw(st.sampled_from([1, 40, 8 << 20]))
    spooled = []
    with opened() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged, "BLOCK_BYTES", block_bytes)
        for number, (start, stop) in enumerate(data.draw(st.composite(parts)(len(lengths)))):
            with Spool(folder, f"p{number}", f"p{number}.0") as spool:
                for a, b in data.draw(st.composite(parts)(stop - start)):
                    offsets = ends[start + a : start + b + 1]
                    spool.add(Ragged(values[offsets[0] : offsets[-1]], offsets - offsets[0]))
                spooled.append(spool.close())
        layouts = {
            VALUES: storage.values_layout(f"x/{VALUES}", feature, len(values), len(lengths)),
            OFFSETS: storage.offsets_layout(f"x/{OFFSETS}", len(lengths)),
        }
        told: list[int] = []
        items = [item for w, one in layouts.items() for item in ragged_files(w, one, spooled)]
        for item in items:
            WRITE(folder, item, lambda records, size: told.append(size))
        found = staged(folder)
    wanted = encode(layouts[VALUES], (0,) * values.ndim, values)
    wanted |= encode(layouts[OFFSETS], (0,), ends.astype(np.int64))
    assert found == wanted
    assert sum(told) == sum(item.size_bytes for item in items)


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
