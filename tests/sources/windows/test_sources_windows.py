"""Windows of Zarr arrays: rows as NumPy's sliding windows have them, read chunk by chunk."""

from __future__ import annotations

import collections
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorstore as ts
import zarr

from tests.core.test_sources_fork import in_forked_child
from windrow import MapDataset, ReadOptions
from windrow.errors import NotFoundError, ReadError, SourceError
from windrow.sources import WindowDataSource

AnyArray = npt.NDArray[Any]

WAYS = pytest.mark.parametrize("direct", [True, False])


def write(path: Path, array: AnyArray, chunk_rows: int, **more: Any) -> Path:
    chunks = (chunk_rows, *(max(1, n) for n in array.shape[1:]))
    store = zarr.create_array(
        str(path), shape=array.shape, dtype=array.dtype, chunks=chunks, **more
    )
    store[...] = array
    return path


def values(rows: int, row_shape: tuple[int, ...] = (), dtype: str = "u2") -> AnyArray:
    count = rows * int(np.prod(row_shape))
    return np.arange(count).reshape(rows, *row_shape).astype(dtype)


def windows_of(array: AnyArray, size: int, stride: int) -> AnyArray:
    """All windows of an array in memory, `(n, size, ...)`."""
    slid = np.lib.stride_tricks.sliding_window_view(array, size, axis=0)[::stride]
    return np.moveaxis(slid, -1, 1)


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return write(tmp_path / "tokens", values(1_000), 64)


# --- records -------------------------------------------------------------------------------------


def bounds_of(source: WindowDataSource) -> list[int]:
    """The bounds of blocks of consecutive windows."""
    found = source.blocks()
    assert isinstance(found, np.ndarray)
    return [int(bound) for bound in found]


@WAYS
def test_arrays_of_a_group_give_the_same_windows(tmp_path: Path, direct: bool) -> None:
    group = zarr.create_group(str(tmp_path / "g"))
    x, y = values(100, (4,), "f4"), values(100, (), "i8")
    group.create_array("x", data=x, chunks=(8, 4))
    group.create_array("deep/y", data=y, chunks=(30,))
    source = WindowDataSource(tmp_path / "g", {0: 12}, {0: 7}, direct=direct)
    found = source.read(np.array([3, 0, 3]))
    np.testing.assert_array_equal(found["x"], windows_of(x, 12, 7)[[3, 0, 3]])
    np.testing.assert_array_equal(found["deep"]["y"], windows_of(y, 12, 7)[[3, 0, 3]])
    # By chunks of y, which are the longer: windows begin at 0, 7, ..., 28 | 35, ..., 56 | 63, ...
    assert bounds_of(source) == [0, 5, 9, 13]
    batches = list(MapDataset.source(source).shuffle(seed=1).batch(4))
    order = np.concatenate([batch["deep"]["y"][:, 0] // 7 for batch in batches])
    assert sorted(order.tolist()) == list(range(13))
    in_batches = np.concatenate([batch["x"] for batch in batches])
    np.testing.assert_array_equal(in_batches, windows_of(x, 12, 7)[order])


def test_an_open_store_and_a_view_that_begins_in_a_chunk(tokens: Path) -> None:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tokens}/"}}
    store = ts.open(spec).result()
    source = WindowDataSource(store[100:], {0: 50}, {0: 40})
    wanted = windows_of(values(1_000)[100:], 50, 40)
    np.testing.assert_array_equal(source.read(np.arange(len(source))), wanted)
    np.testing.assert_array_equal(np.concatenate(list(MapDataset.source(source).batch(5))), wanted)
    # Chunks of 64 rows begin 28, 92, 156, ... rows into the view.
    assert bounds_of(source)[:4] == [0, 1, 3, 4]


# --- how often chunks are read -------------------------------------------------------------------


class Counted:
    """A store of 16-bit numbers whose chunks are counted as they are read."""

    def __init__(self, rows: int, chunk_rows: int) -> None:
        self.reads: collections.Counter[int] = collections.Counter()
        self._chunk_rows = chunk_rows
        self.store = ts.virtual_chunked(
            self._read,
            dtype=ts.uint16,
            shape=[rows],
            chunk_layout=ts.ChunkLayout(read_chunk_shape=[chunk_rows]),
        )

    def _read(self, domain: Any, out: AnyArray, parameters: Any) -> None:
        first, stop = domain.inclusive_min[0], domain.exclusive_max[0]
        self.reads[first // self._chunk_rows] += 1
        out[...] = np.arange(first, stop)


def options(rows: int) -> ReadOptions:
    """Budgets with room for `rows` rows in the chunk cache."""
    return ReadOptions(resident_bytes=4 * rows * 2, in_flight_bytes=2 * 64 * 2)


@pytest.mark.parametrize(("size", "stride"), [(16, 16), (50, 50), (50, 7), (200, 200), (200, 30)])
def test_in_order_each_chunk_is_read_once(size: int, stride: int) -> None:
    counted = Counted(64 * 40, 64)
    source = WindowDataSource(counted.store, {0: size}, {0: stride})
    dataset = MapDataset.source(source).batch(8)
    got = np.concatenate(list(dataset.to_iter_dataset(options(64 * 16))))
    np.testing.assert_array_equal(got[:, 0], np.arange(len(source)) * stride)
    last = ((len(source) - 1) * stride + size - 1) // 64
    assert counted.reads == dict.fromkeys(range(last + 1), 1)


def test_block_shuffled_a_chunk_that_windows_reach_into_is_read_for_two_blocks_at_most() -> None:
    counted = Counted(64 * 50, 64)
    source = WindowDataSource(counted.store, {0: 20}, {0: 9})
    dataset = MapDataset.source(source).block_shuffle(seed=1, window_blocks=4).batch(8)
    got = np.concatenate(list(dataset.to_iter_dataset(options(64 * 16))))
    assert sorted(got[:, 0].tolist()) == list(range(0, 64 * 50 - 19, 9))
    assert sorted(counted.reads) == list(range(50))
    assert max(counted.reads.values()) <= 2


def test_block_shuffled_windows_longer_than_chunks_share_nearly_all_reads() -> None:
    counted = Counted(24 * 20 + 2, 1)
    source = WindowDataSource(counted.store, {0: 3}, {0: 1})
    assert bounds_of(source) == [*range(0, 24 * 20, 24), 24 * 20]  # 8 windows side by side
    dataset = MapDataset.source(source).block_shuffle(seed=1, window_blocks=4).batch(8)
    got = np.concatenate(list(dataset.to_iter_dataset(options(4 * 64))))
    assert sorted(got[:, 0].tolist()) == list(range(24 * 20))
    # Once, and the two chunks behind each block, which the next one begins with, once more.
    assert max(counted.reads.values()) <= 2
    assert sum(counted.reads.values()) <= (24 + 2) * 20


# --- errors --------------------------------------------------------------------------------------


def test_stores_that_can_not_be(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nothing"):
        WindowDataSource(tmp_path / "nothing", {0: 2})
    empty = write(tmp_path / "empty", values(0), 4)
    with pytest.raises(SourceError, match=r"there are no cells along axis 0, and a window has 2"):
        WindowDataSource(empty, {0: 2})


@WAYS
def test_damage_is_named_by_array_and_records_and_hurts_no_other_windows(
    tokens: Path, direct: bool
) -> None:
    (tokens / "c" / "3").write_bytes(b"no chunk")
    source = WindowDataSource(tokens, {0: 32}, direct=direct)
    assert source[5][0] == 160
    with pytest.raises(ReadError, match=r"(?s)tokens.*192.*255"):
        source[6]
    iterator = iter(MapDataset.source(source).batch(2))
    assert [next(iterator)[0, 0] for _ in range(3)] == [0, 64, 128]
    with pytest.raises(ReadError, match=r"(?s)tokens.*192.*255"):
        next(iterator)
    iterator.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_child_is_told(tokens: Path) -> None:
    source = WindowDataSource(tokens, {0: 32})
    source.read(np.array([0]))
    for read in (lambda: source.read(np.array([0])), lambda: source.parts):
        assert "forked" in str(in_forked_child(read))
