"""Small chunks of several rows of local Zarr, decoded many at a call: TensorStore's values."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.zarr_layouts import CODECS, DTYPES, Layout, make, same, values_of, written
from windrow.core.native import native
from windrow.errors import ReadError
from windrow.sources import ZarrDataSource

CODED = sorted(set(CODECS) - {"none"})
ORDERS = ("order", "block", "global")


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
def layouts(draw: st.DrawFn) -> Layout:
    rank = draw(st.integers(1, 3))
    shape = (draw(st.integers(1, 60)), *(draw(st.integers(1, 4)) for _ in range(rank - 1)))
    # A last chunk may be short, and a chunk reach over the end of any axis.
    chunk = (draw(st.integers(2, 9)), *(draw(st.integers(n, n + 1)) for n in shape[1:]))
    return Layout(
        shape=shape,
        chunk=chunk,
        shard=draw(st.none() | st.tuples(st.integers(1, 4), *[st.just(1)] * (rank - 1))),
        dtype=draw(st.sampled_from(DTYPES)),
        codecs=draw(st.sampled_from(CODED)),
        endian=draw(st.sampled_from(("little", "big"))),
        order=draw(st.none() | st.permutations(range(rank)).map(tuple)),
        location=draw(st.sampled_from(("start", "end"))),
        fill=draw(st.integers(0, 1)),
    )


@settings(max_examples=60, deadline=None)
@given(layouts(), st.sampled_from(ORDERS), st.data())
def test_records_equal_those_of_tensorstore(
    layout: Layout, order: str, data: st.DataObject
) -> None:
    folder = tempfile.mkdtemp()
    try:
        store, values = make(folder, layout), values_of(layout)
        rows = st.integers(0, layout.shape[0] - 1)
        for row in data.draw(st.sets(rows, max_size=6)):  # the other chunks are not stored
            store[row].write(values[row]).result()
        expected = store.read().result()
        source = ZarrDataSource(folder, direct=True)
        some = np.array(data.draw(st.lists(rows, max_size=30)), np.int64)
        same(source.read(some), expected[some])
        got = np.concatenate(list(in_order(source, order).batch(7)))
        wanted = expected[numbered(source, order)]
        assert got.dtype == wanted.dtype
        assert got.tobytes() == wanted.tobytes()
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("codecs", ["zstd", "blosc"])
@pytest.mark.parametrize("order", ORDERS)
def test_many_rounds_read_the_same(tmp_path: Path, codecs: str, order: str) -> None:
    layout = Layout((4_001, 400), (2, 400), (128, 1), codecs=codecs)
    values = written(tmp_path, layout)
    source = ZarrDataSource(tmp_path, direct=True)
    got = np.concatenate(list(in_order(source, order).batch(100)))
    np.testing.assert_array_equal(got, values[numbered(source, order)])
    some = np.random.default_rng(0).integers(0, 4_001, 6_000)
    same(source.read(some), values[some])


@pytest.mark.parametrize("codecs", ["zstd", "zstd crc32c", "gzip", "blosc"])
@pytest.mark.parametrize("sharded", [True, False])
def test_a_damaged_chunk_is_named_and_the_others_are_read(
    tmp_path: Path, codecs: str, sharded: bool
) -> None:
    shard = (10, 1) if sharded else None
    values = written(tmp_path, Layout((39, 50), (2, 50), shard, codecs=codecs))
    path = tmp_path / "c" / ("1" if sharded else "14") / "0"
    content = bytearray(path.read_bytes())
    at = int(np.frombuffer(content[-164:-4], "<u8").reshape(10, 2)[4, 0]) if sharded else 0
    content[at : at + 16] = bytes(16)
    path.write_bytes(content)
    source = ZarrDataSource(tmp_path, direct=True)
    told = rf"the chunk that holds records 28 to 29 cannot be read: .*{path}"
    for order in ORDERS:
        with pytest.raises(ReadError, match=told) as caught:
            list(in_order(source, order).batch(4))
        assert caught.value.file == str(path)
        assert caught.value.records == (28, 30)
        assert caught.value.offset == at
    with pytest.raises(ReadError, match=told):
        source.read(np.arange(39))
    others = np.delete(np.arange(39), (28, 29))
    same(source.read(others), values[others])


@pytest.mark.skipif(native() is None, reason="TensorStore ignores such bytes")
def test_bytes_after_the_end_of_a_chunk_are_damage(tmp_path: Path) -> None:
    written(tmp_path, Layout((40, 50), (2, 50), (10, 1)))
    path = tmp_path / "c" / "1" / "0"
    content = path.read_bytes()
    index = np.frombuffer(content[-164:-4], "<u8").reshape(10, 2).copy()
    index[4, 1] += 1
    checksum = google_crc32c.value(index.tobytes()).to_bytes(4, "little")
    path.write_bytes(content[:-164] + index.tobytes() + checksum)
    source = ZarrDataSource(tmp_path, direct=True)
    for order in ORDERS:
        with pytest.raises(ReadError, match="records 28 to 29 cannot be read"):
            list(in_order(source, order).batch(4))


def test_a_byte_that_is_no_bool_is_damage(tmp_path: Path) -> None:
    values = written(tmp_path, Layout((40, 50), (2, 50), (4, 1)))
    assert values.max() > 1
    metadata = (tmp_path / "zarr.json").read_text()
    bools = metadata.replace('"uint8"', '"bool"').replace('"fill_value":0', '"fill_value":false')
    (tmp_path / "zarr.json").write_text(bools)
    source = ZarrDataSource(tmp_path, direct=True)
    for order in ORDERS:
        with pytest.raises(ReadError, match=r"records \d+ to \d+ cannot be read.*bool"):
            list(in_order(source, order).batch(4))
