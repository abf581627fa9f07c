"""Single records from local Zarr: the same as TensorStore's, whatever the layout and the order."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.zarr_layouts import CODECS, DTYPES, Layout, make, reader_of, same, values_of, written
from windrow.core.native import native
from windrow.errors import ReadError
from windrow.sources import ZarrDataSource
from windrow.sources.chunks import Span

AnyArray = npt.NDArray[Any]


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    rank = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 9)) for _ in range(rank))
    codecs = draw(st.sampled_from(sorted(CODECS)))
    first = draw(st.integers(1, 4)) if codecs == "none" else 1
    # At least a third of the axis: no more than nine cells in a row.
    chunk = (first, *(draw(st.integers(-(-n // 3), n + 1)) for n in shape[1:]))
    shard = draw(st.none() | st.tuples(*[st.integers(1, 3)] * rank))
    # A raw chunk whose rows are not its outermost axis is read whole.
    free = first == 1 or rank == 1
    orders = st.permutations(range(rank)) if free else st.permutations(range(1, rank))
    order = draw(st.none() | orders.map(tuple))
    if order is not None and len(order) < rank:
        order = (0, *order)
    return Layout(
        shape=shape,
        chunk=chunk,
        shard=shard,
        dtype=draw(st.sampled_from(DTYPES)),
        codecs=codecs,
        endian=draw(st.sampled_from(("little", "big"))),
        order=order,
        location=draw(st.sampled_from(("start", "end"))),
        fill=draw(st.integers(0, 1)),
    )


@settings(max_examples=60)
@given(layouts(), st.data())
def test_rows_equal_those_of_tensorstore(layout: Layout, data: st.DataObject) -> None:
    folder = tempfile.mkdtemp()
    try:
        store = make(folder, layout)
        values = values_of(layout)
        rows = st.integers(0, layout.shape[0] - 1)
        for row in data.draw(st.sets(rows, max_size=6)):
            store[row].write(values[row]).result()
        wanted = np.array(data.draw(st.lists(rows, max_size=12)), np.int64)
        reader = reader_of(folder)
        expected = store.read().result()
        same(reader.read(wanted), expected[wanted])
        out = np.full_like(expected, 55)
        chunks = range(0, len(out), layout.chunk[0])
        cuts = sorted({*chunks, len(out), *data.draw(st.lists(rows, max_size=4))})
        spans = [Span(a, b, out[a:b]) for a, b in itertools.pairwise(cuts)]
        with ThreadPoolExecutor(1) as pool:
            reader.start(spans, pool).result()
        same(out, expected)
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("codecs", ["none", "zstd", "zstd crc32c", "gzip"])
@pytest.mark.parametrize("sharded", [True, False])
def test_many_rounds_and_threads_read_the_same(tmp_path: Path, codecs: str, sharded: bool) -> None:
    layout = Layout((700, 5000), (1, 5000), (90, 1) if sharded else None, codecs=codecs)
    values = written(tmp_path, layout)
    reader = reader_of(tmp_path)
    rng = np.random.default_rng(0)
    orders = [rng.integers(0, 700, 1500) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for order, got in zip(orders, pool.map(reader.read, orders), strict=True):
            same(got, values[order])


@pytest.mark.parametrize("sharded", [True, False])
def test_runs_of_raw_rows_and_long_rows_are_copied_right(tmp_path: Path, sharded: bool) -> None:
    # Rows of 40 kB: those are copied one by one, and runs of neighbours together.
    layout = Layout((40, 10_000), (8, 10_000), (2, 1) if sharded else None, "int32", "none")
    values = written(tmp_path, layout)
    reader = reader_of(tmp_path)
    for rows in (np.arange(3, 37), np.array([5, 5, 6, 7, 39, 0, 1]), np.arange(40)[::-1]):
        same(reader.read(rows), values[rows])


def test_raw_rows_are_read_alone(tmp_path: Path) -> None:
    layouts = (
        (Layout((8, 6), (2, 6), codecs="none"), native() is not None),
        (Layout((8, 6), (1, 6)), True),
        (Layout((8, 6), (2, 6)), False),  # two records decoded as one
        (Layout((8, 6), (2, 6), (2, 1)), False),
        (Layout((8, 6), (2, 6), codecs="none", order=(1, 0)), False),  # a row's values lie apart
        (Layout((4, 40), (2, 1), codecs="none"), False),  # forty chunks to a record
        (Layout((0, 6), (2, 6), codecs="none"), False),
        (Layout((8, 0), (2, 1), codecs="none"), False),
    )
    for k, (layout, alone) in enumerate(layouts):
        folder = tmp_path / str(k)
        make(str(folder), layout)
        (part,) = ZarrDataSource(folder, direct=True).parts
        assert part.alone == alone, layout


def flipped(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    path.write_bytes(data)


@pytest.mark.parametrize("codecs", ["zstd", "zstd crc32c", "crc32c", "gzip"])
def test_a_damaged_record_is_named_and_the_others_are_read(tmp_path: Path, codecs: str) -> None:
    values = written(tmp_path, Layout((30, 50), (1, 50), (10, 1), codecs=codecs))
    path = tmp_path / "c" / "1" / "0"
    index = np.frombuffer(path.read_bytes()[-164:-4], "<u8").reshape(10, 2)
    # The first byte of a frame of zstd or gzip says what it is; a checksum covers all.
    flipped(path, int(index[4, 0]))
    reader = reader_of(tmp_path)
    order = np.random.default_rng(0).permutation(30)
    pattern = r"array 'x' in .*: the chunk that holds record 14 cannot.*c/1/0"
    with pytest.raises(ReadError, match=pattern):
        reader.read(order)
    out = np.zeros((30, 50), np.uint8)
    with ThreadPoolExecutor(1) as pool, pytest.raises(ReadError, match="holds record 14 cannot"):
        reader.start([Span(k, k + 1, out[k : k + 1]) for k in range(10, 20)], pool).result()
    others = order[order != 14]
    same(reader.read(others), values[others])


@pytest.mark.parametrize("codecs", ["none", "zstd"])
def test_a_record_in_a_file_of_its_own_that_is_cut_short_is_named(
    tmp_path: Path, codecs: str
) -> None:
    values = written(tmp_path, Layout((6, 50), (1, 50), codecs=codecs))
    path = tmp_path / "c" / "3" / "0"
    os.truncate(path, path.stat().st_size - 1)
    reader = reader_of(tmp_path)
    with pytest.raises(ReadError, match=r"holds record 3 cannot be read: .*c/3/0"):
        reader.read(np.array([5, 3, 0]))
    same(reader.read(np.array([5, 0])), values[[5, 0]])


@pytest.mark.parametrize("change", [-1, 1])
def test_a_raw_file_of_another_size_is_refused(tmp_path: Path, change: int) -> None:
    values = written(tmp_path, Layout((20, 50), (8, 50), codecs="none"))
    os.truncate(tmp_path / "c" / "1" / "0", 8 * 50 + change)
    reader = reader_of(tmp_path)
    wrong = r"records 8 to 15 cannot be read: .*c/1/0"
    with pytest.raises(ReadError, match=wrong):
        reader.read(np.array([0, 19, 9]))
    same(reader.read(np.array([0, 19, 0])), values[[0, 19, 0]])


def test_a_raw_chunk_in_a_shard_of_another_size_is_refused(tmp_path: Path) -> None:
    written(tmp_path, Layout((8, 50), (1, 50), (4, 1), codecs="zstd"))
    path = tmp_path / "zarr.json"
    metadata = json.loads(path.read_text())
    inner = metadata["codecs"][0]["configuration"]
    assert inner["codecs"].pop()["name"] == "zstd"
    path.write_text(json.dumps(metadata))
    with pytest.raises(ReadError, match=r"holds record 5 cannot be .*c/1/0"):
        reader_of(tmp_path).read(np.array([5]))


@pytest.mark.skipif(native() is None, reason="to TensorStore a folder is a missing chunk")
def test_a_file_that_can_not_be_opened_is_named(tmp_path: Path) -> None:
    written(tmp_path, Layout((8, 50), (4, 50), codecs="none"))
    path = tmp_path / "c" / "1" / "0"
    path.unlink()
    path.mkdir()
    with pytest.raises(ReadError, match=r"records 4 to 7 cannot be read: .*c/1/0"):
        reader_of(tmp_path).read(np.array([0, 5]))


@pytest.mark.parametrize("codecs", ["none", "zstd"])
@pytest.mark.parametrize("sharded", [True, False])
def test_a_store_that_is_gone_is_no_fill_value(tmp_path: Path, codecs: str, sharded: bool) -> None:
    folder = tmp_path / "store"
    written(folder, Layout((8, 50), (1, 50), (4, 1) if sharded else None, codecs=codecs))
    reader = reader_of(folder)
    shutil.rmtree(folder)
    with pytest.raises(ReadError, match=r"was removed or replaced.*zarr.json is gone"):
        reader.read(np.array([2]))


def test_stored_bytes_are_near_those_of_the_files(tmp_path: Path) -> None:
    for k, (layout, most) in enumerate(
        (
            (Layout((20, 500), (8, 500), codecs="none"), 4000),
            (Layout((20, 500), (1, 500), (4, 1)), 700),
            (Layout((20, 500), (1, 500)), 700),
        )
    ):
        folder = tmp_path / str(k)
        written(folder, layout)
        found = reader_of(folder).stored_bytes(np.array([0, 2, 2]))
        assert found.shape == (3,)
        assert (found == found[0]).all()
        assert 250 <= found[0] <= most
