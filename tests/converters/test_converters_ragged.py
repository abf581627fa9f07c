"""Ragged columns: values and offsets are as if all rows were written at once, for any blocks."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hypothesis_profiles import examples
from windrow.converters.job import folder as folder_module
from windrow.converters.job.folder import BUFFER_BYTES, FinishedPart, OutputFolder
from windrow.converters.job.stages import part_stage
from windrow.converters.job.targets import LocalTarget
from windrow.converters.zarr import ragged
from windrow.converters.zarr.chunk_codecs import codecs_of
from windrow.converters.zarr.layout import ArrayLayout, encode, rows_layout
from windrow.converters.zarr.ragged import Spool, Spooled, block_files, ragged_files
from windrow.converters.zarr.rows import (
    RowFiles,
    Storage,
)
from windrow.errors import ArgumentError, ConversionError
from windrow.sources.tf_example.features import Feature, Ragged
from windrow.sources.zarr.names import BLOCK_VALUES, OFFSETS, VALUES


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


@st.composite
def stored_rows(draw: st.DrawFn) -> tuple[ArrayLayout, list[list[tuple[int, int]]]]:
    """A layout, and its rows in pieces of whole files, each in blocks."""
    chunk = draw(st.integers(1, 5))
    shard = draw(st.none() | st.integers(1, 4).map(lambda n: n * chunk))
    rows = draw(st.integers(0, 40))
    layout = rows_layout(
        "x",
        draw(st.sampled_from(["int16", "bool", "bfloat16"])),
        (rows, *draw(st.sampled_from([(), (2,), (0, 3)]))),
        chunk_rows=chunk,
        shard_rows=shard,
        codecs=codecs_of(draw(st.sampled_from(["zstd:1", "none"]))),
    )
    step = layout.file_shape[0] * draw(st.integers(1, 3))
    bounds = [*range(0, rows, step), rows]
    return layout, [
        [(a + first, b + first) for a, b in parts(draw, stop - first)]
        for first, stop in itertools.pairwise(bounds)
    ]


@settings(max_examples=examples(24))
@given(stored_rows(), st.sampled_from([1, 100, BUFFER_BYTES]))
def test_files_made_block_by_block_are_those_made_at_once(given: Any, buffer_bytes: int) -> None:
    layout, pieces = given
    values = np.arange(np.prod(layout.shape)).astype(layout.numpy_dtype).reshape(layout.shape)
    with opened() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setattr(folder_module, "BUFFER_BYTES", buffer_bytes)
        files = []
        for blocks in pieces:
            with RowFiles(folder, layout, blocks[0][0], blocks[-1][1], counted=True) as out:
                for start, stop in blocks:
                    out.add(values[start:stop])
            files += out.files
        found = staged(folder)
    assert found == encode(layout, (0,) * values.ndim, values)
    assert {file.name: file.size_bytes for file in files} == {k: len(v) for k, v in found.items()}
    if layout.shape[1:] != (0, 3):
        assert sum(file.records for file in files) == layout.shape[0]


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


@settings(max_examples=examples(16))
@given(data=st.data())
def test_the_index_does_not_depend_on_pieces_and_blocks(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 9) | st.just(30), min_size=1, max_size=30))
    ends, size = np.cumsum([0, *lengths]), data.draw(st.integers(1, 7))
    edges = np.arange(0, ends[-1], size)
    layout = rows_layout(
        "x/blocks",
        "int64",
        edges.shape,
        chunk_rows=data.draw(st.sampled_from([1, 3, 64])),
        shard_rows=None,
        attributes={BLOCK_VALUES: size},
    )
    spooled = []
    with opened() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged, "BLOCK_BYTES", 8 * data.draw(st.integers(1, 5)))
        for number, (start, stop) in enumerate(data.draw(st.composite(parts)(len(lengths)))):
            with Spool(folder, f"p{number}", f"p{number}.0") as spool:
                offsets = ends[start : stop + 1]
                spool.add(Ragged(np.zeros(offsets[-1] - offsets[0], "u1"), offsets - offsets[0]))
                spooled.append(spool.close())
        for item in block_files(layout, spooled):
            WRITE(folder, item, lambda records, size: None)
        assert staged(folder) == encode(layout, (0,), np.searchsorted(ends, edges))


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
