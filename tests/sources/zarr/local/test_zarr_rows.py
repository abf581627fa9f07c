"""Rows of local Zarr, in chunks of one row, of a few and of bytes as they are: TensorStore's values."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.hypothesis_profiles import examples
from tests.zarr_layouts import CODECS, DTYPES, Layout, make, reader_of, same, values_of, written
from windrow.errors import ReadError
from windrow.sources import WindowDataSource, ZarrDataSource
from windrow.sources.chunks import RowReader, Span

AnyArray = npt.NDArray[Any]

CODED = sorted(set(CODECS) - {"none"})
ORDERS = ("order", "block", "global")
KINDS = ("single", "small", "raw", "pages")


def in_order(source: ZarrDataSource, order: str) -> windrow.MapDataset[Any]:
    records = windrow.MapDataset.source(source)
    if order == "order":
        return records
    return records.block_shuffle(3) if order == "block" else records.shuffle(3)


def numbered(source: ZarrDataSource, order: str) -> list[int]:
    """Which record comes when."""
    numbers = windrow.MapDataset.range(len(source))
    if order == "block":
        bounds = source.blocks()
        assert isinstance(bounds, np.ndarray)
        return list(numbers.block_shuffle(3, block=int(bounds[1])))
    return list(numbers if order == "order" else numbers.shuffle(3))


@st.composite
def shapes(draw: st.DrawFn, kind: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape of an array and of its chunks, of which at most nine make up a row."""
    if kind == "pages":  # rows from a byte to several pages, chunks that are a multiple of a page
        rest = draw(st.sampled_from([(), (1,), (7,), (2048,), (3, 900)]))
    else:
        rest = tuple(draw(st.lists(st.integers(1, 9), max_size=2)))
    first = 1 if kind == "single" else draw(st.integers(1, 9))
    chunk = (first, *(draw(st.integers(-(-n // 3), n + 1)) for n in rest))
    return (draw(st.integers(1, 40)), *rest), chunk


@st.composite
def layouts(draw: st.DrawFn, kind: str) -> Layout:
    shape, chunk = draw(shapes(kind))
    is_raw = kind in ("raw", "pages")
    version = draw(st.sampled_from([2, 3])) if is_raw else 3
    shards = st.tuples(*[st.integers(1, 3)] * len(shape))
    # A raw chunk whose rows are not its outermost axis is read whole.
    orders = st.permutations(range(1, len(shape)) if is_raw else range(len(shape)))
    order = draw(st.none() | orders.map(tuple)) if version == 3 else None
    if order is not None and len(order) < len(shape):
        order = (0, *order)
    return Layout(
        shape=shape,
        chunk=chunk,
        shard=draw(st.none() | shards) if version == 3 else None,
        dtype=draw(st.sampled_from(DTYPES if version == 3 else DTYPES[:5])),
        codecs="none" if is_raw else draw(st.sampled_from(CODED)),
        endian=draw(st.sampled_from(("little", "big"))),
        order=order,
        location=draw(st.sampled_from(("start", "end"))),
        fill=draw(st.integers(0, 1)),
        version=version,
    )


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(80), deadline=None)
@given(data=st.data())
def test_rows_equal_those_of_tensorstore(kind: str, data: st.DataObject) -> None:
    layout = data.draw(layouts(kind))
    with tempfile.TemporaryDirectory() as folder:
        store, values = make(folder, layout), values_of(layout)
        rows = st.integers(0, layout.shape[0] - 1)
        if data.draw(st.booleans()):
            store.write(values).result()
        for row in data.draw(st.sets(rows, max_size=6)):  # else the other chunks are not stored
            store[row].write(values[row]).result()
        expected = store.read().result()
        reader = reader_of(folder)
        for _ in range(2):
            wanted = np.array(data.draw(st.lists(rows, max_size=30)), np.int64)
            same(reader.read(wanted), expected[wanted])
        out = np.full_like(expected, 55)
        chunks = range(0, len(out), layout.chunk[0])
        cuts = sorted({*chunks, len(out), *data.draw(st.lists(rows, max_size=4))})
        spans = [Span(a, b, out[a:b]) for a, b in itertools.pairwise(cuts)]
        with ThreadPoolExecutor(1) as pool:
            reader.start(spans, pool).result()
        same(out, expected)
        source, order = ZarrDataSource(folder, direct=True), data.draw(st.sampled_from(ORDERS))
        got = np.concatenate(list(in_order(source, order).batch(7)))
        assert got.tobytes() == expected[numbered(source, order)].tobytes()


@pytest.mark.parametrize(
    "layout",
    [
        Layout((400, 3000), (3, 3000), codecs="none"),
        Layout((400, 3000), (3, 3000), (5, 1), codecs="none"),
        Layout((400, 3000), (1, 3000), (90, 1), codecs="zstd crc32c"),
        Layout((400, 3000), (1, 3000), codecs="gzip"),
        Layout((400, 3000), (16, 2000), codecs="blosc"),
    ],
    ids=str,
)
def test_many_rounds_and_threads_read_the_same(tmp_path: Path, layout: Layout) -> None:
    values = written(tmp_path, layout)
    reader, rng = reader_of(tmp_path), np.random.default_rng(0)
    orders = [rng.integers(0, 400, 800) for _ in range(4)]
    together = threading.Barrier(4)

    def read(order: AnyArray, reader: RowReader = reader) -> AnyArray:
        together.wait(60)
        return reader.read(order)

    with ThreadPoolExecutor(4) as pool:
        for order, got in zip(orders, pool.map(read, orders), strict=True):
            same(got, values[order])
    source = ZarrDataSource(tmp_path, direct=True)
    for name in ORDERS:
        got = np.concatenate(list(in_order(source, name).batch(100)))
        np.testing.assert_array_equal(got, values[numbered(source, name)])


def test_missing_chunks_are_the_fill_value_beside_others(tmp_path: Path) -> None:
    values = written(tmp_path, Layout((60, 500), (4, 500), codecs="none", fill=9))
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


def test_a_shard_that_is_larger_than_its_records_is_read(tmp_path: Path) -> None:
    # Bytes that no index entry points to, as other writers may leave.
    values = written(tmp_path, Layout((60, 500), (4, 500), (5, 1), codecs="none", location="start"))
    for number in (0, 2):
        with open(tmp_path / "c" / str(number) / "0", "ab") as file:
            file.write(bytes(10**6))
    order = np.random.default_rng(0).permutation(60)
    same(reader_of(tmp_path).read(order), values[order])


# --- damage --------------------------------------------------------------------------------------


def test_a_raw_chunk_of_another_size_is_refused(tmp_path: Path) -> None:
    values = written(tmp_path / "file", Layout((20, 50), (8, 50), codecs="none"))
    os.truncate(tmp_path / "file" / "c" / "1" / "0", 8 * 50 + 1)
    reader = reader_of(tmp_path / "file")
    with pytest.raises(ReadError, match=r"records 8 to 15 cannot be read: .*c/1/0"):
        reader.read(np.array([0, 19, 9]))
    same(reader.read(np.array([0, 19, 0])), values[[0, 19, 0]])
    written(tmp_path / "shard", Layout((8, 50), (1, 50), (4, 1), codecs="zstd"))
    path = tmp_path / "shard" / "zarr.json"
    metadata = json.loads(path.read_text())
    inner = metadata["codecs"][0]["configuration"]
    assert inner["codecs"].pop()["name"] == "zstd"
    path.write_text(json.dumps(metadata))
    with pytest.raises(ReadError, match=r"holds record 5 cannot be .*c/1/0"):
        reader_of(tmp_path / "shard").read(np.array([5]))


@pytest.mark.parametrize("codecs", ["none", "zstd"])
def test_a_byte_that_is_no_bool_is_damage(tmp_path: Path, codecs: str) -> None:
    values = written(tmp_path, Layout((40, 50), (2, 50), (4, 1), codecs=codecs))
    assert values.max() > 1
    metadata = (tmp_path / "zarr.json").read_text()
    bools = metadata.replace('"uint8"', '"bool"').replace('"fill_value":0', '"fill_value":false')
    (tmp_path / "zarr.json").write_text(bools)
    source = ZarrDataSource(tmp_path, direct=True)
    for order in ORDERS:
        with pytest.raises(ReadError, match=r"records \d+ to \d+ cannot be read.*bool"):
            list(in_order(source, order).batch(4))


# --- windows of raw rows --------------------------------------------------------------------------


def raw_array(path: Path, values: AnyArray, chunk: int) -> Path:
    """An array of version 3 whose chunks are the bytes of their rows."""
    zarr.create_array(path, data=values, chunks=(chunk,), compressors=None)
    return path


def test_runs_longer_than_what_is_copied_at_once(tmp_path: Path) -> None:
    values = np.arange(600_000, dtype=np.uint32)
    source = WindowDataSource(raw_array(tmp_path / "a", values, 250_000), {0: 280_000}, {0: 10})
    np.testing.assert_array_equal(
        source.read(np.array([31_999, 0])), [values[319_990:599_990], values[:280_000]]
    )
