"""Rows of local Zarr arrays that are not encoded: the values of TensorStore, in any order."""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.zarr_layouts import Layout, make, reader_of, same, values_of, written
from windrow.errors import ReadError
from windrow.sources.chunks import RowReader, Span

AnyArray = npt.NDArray[Any]


def raw(
    shape: tuple[int, ...],
    chunk: tuple[int, ...],
    shard: tuple[int, ...] | None = None,
    dtype: str = "uint8",
    **more: Any,
) -> Layout:
    """A layout without compression."""
    return Layout(shape, chunk, shard, dtype, "none", **more)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    # Rows from a byte to several pages, chunks that are a multiple of a page and others.
    shape = (draw(st.integers(1, 40)), *draw(st.sampled_from([(), (1,), (7,), (2048,), (3, 900)])))
    # No more than nine cells in a row.
    chunk = (draw(st.integers(1, 9)), *(draw(st.integers(-(-n // 3), n)) for n in shape[1:]))
    version = draw(st.sampled_from([2, 3]))
    shards = st.tuples(*(st.integers(1, 3) for _ in shape))
    return raw(
        shape=shape,
        chunk=chunk,
        shard=draw(st.none() | shards) if version == 3 else None,
        dtype=draw(st.sampled_from(("uint8", "bool", "int16", "float32", "int64"))),
        endian=draw(st.sampled_from(("little", "big"))),
        location=draw(st.sampled_from(("start", "end"))),
        version=version,
        fill=draw(st.integers(0, 1)),
    )


@settings(max_examples=80, deadline=None)
@given(layouts(), st.data())
def test_rows_equal_those_of_tensorstore(layout: Layout, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = make(folder, layout)
        values = values_of(layout)
        rows = st.integers(0, layout.shape[0] - 1)
        if data.draw(st.booleans()):
            store.write(values).result()
        for row in data.draw(st.sets(rows, max_size=4)):
            store[row].write(values[row]).result()
        expected = store.read().result()
        reader = reader_of(folder)
        orders = [np.array(data.draw(st.lists(rows, max_size=30)), np.int64) for _ in range(2)]
        for wanted in (*orders, np.arange(layout.shape[0])):
            same(reader.read(wanted), expected[wanted])
        out = np.full_like(expected, 55)
        chunks = range(0, len(out), layout.chunk[0])
        cuts = sorted({*chunks, len(out), *data.draw(st.lists(rows, max_size=3))})
        spans = [Span(a, b, out[a:b]) for a, b in itertools.pairwise(cuts)]
        with ThreadPoolExecutor(1) as pool:
            reader.start(spans, pool).result()
        same(out, expected)


@pytest.mark.parametrize("shard", [None, (5, 1)])
def test_threads_that_read_the_same_files_read_the_same(
    tmp_path: Path, shard: tuple[int, int] | None
) -> None:
    layout = raw((900, 3000), (3, 3000), shard)
    values = written(tmp_path, layout)
    rng = np.random.default_rng(0)
    for _ in range(3):
        reader = reader_of(tmp_path)
        orders = [rng.permutation(900)[:400] for _ in range(8)]
        together = threading.Barrier(4)

        def read(order: AnyArray, reader: RowReader = reader, at: Any = together) -> AnyArray:
            at.wait(60)
            return reader.read(order)

        with ThreadPoolExecutor(4) as pool:
            for order, got in zip(orders, pool.map(read, orders), strict=True):
                same(got, values[order])


def test_missing_chunks_are_the_fill_value_beside_others(tmp_path: Path) -> None:
    values = written(tmp_path, raw((60, 500), (4, 500), fill=9))
    for number in (0, 3, 14):
        (tmp_path / "c" / str(number) / "0").unlink()
    missing = np.isin(np.arange(60) // 4, (0, 3, 14))
    expected = np.where(missing[:, None], 9, values).astype(np.uint8)
    reader = reader_of(tmp_path)
    for wanted in (np.arange(60), np.random.default_rng(0).permutation(60), np.arange(4)):
        same(reader.read(wanted), expected[wanted])
    # A chunk that is written later is read.
    (tmp_path / "c" / "3" / "0").write_bytes(values[12:16].tobytes())
    same(reader.read(np.array([13, 0])), np.stack([values[13], expected[0]]))


def test_a_file_cut_short_is_an_error(tmp_path: Path) -> None:
    values = written(tmp_path, raw((60, 500), (4, 500)))
    os.truncate(tmp_path / "c" / "7" / "0", 1999)
    reader = reader_of(tmp_path)
    order = np.random.default_rng(0).permutation(60)
    wrong = r"records 28 to 31 cannot be read: .*c/7/0"
    with pytest.raises(ReadError, match=wrong):
        reader.read(order)
    others = order[order // 4 != 7]
    same(reader.read(others), values[others])


def test_a_shard_that_is_larger_than_its_records_is_read(tmp_path: Path) -> None:
    # Bytes that no index entry points to, as other writers may leave.
    values = written(tmp_path, raw((60, 500), (4, 500), (5, 1), location="start"))
    for number in (0, 2):
        with open(tmp_path / "c" / str(number) / "0", "ab") as file:
            file.write(bytes(10**6))
    order = np.random.default_rng(0).permutation(60)
    same(reader_of(tmp_path).read(order), values[order])
