"""Windows of Zarr arrays, read chunk by chunk: how often each chunk is read."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorstore as ts

from windrow import MapDataset, ReadOptions
from windrow.sources import WindowDataSource

AnyArray = npt.NDArray[Any]


def bounds_of(source: WindowDataSource) -> list[int]:
    """The bounds of blocks of consecutive windows."""
    found = source.blocks()
    assert isinstance(found, np.ndarray)
    return [int(bound) for bound in found]


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
