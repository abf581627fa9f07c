"""Chunks whose rows go straight to all planned read batches that want them, and into no slot."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hypothesis_profiles import examples
from tests.room import room_for
from windrow import IterDataset, MapDataset, ReadOptions
from windrow.core.native import native
from windrow.errors import ReadError
from windrow.sources import ZarrDataSource

pytestmark = pytest.mark.skipif(native() is None, reason="the native core copies the rows")

ROWS, CHUNK, ROW_BYTES = 8_000, 40, 1_024
CHUNKS = ROWS // CHUNK
WIDTH = ROW_BYTES // 4


def written(folder: Path, rows: int = ROWS, chunk: int = CHUNK) -> Path:
    """Rows that are all different, in chunks."""
    values = np.arange(rows * ROW_BYTES // 4, dtype="f4").reshape(rows, -1)
    zarr.create_array(str(folder / "rows"), data=values, chunks=(chunk, values.shape[1]))
    return folder / "rows"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("store"))


def room(chunks: float) -> ReadOptions:
    """Room for the records of so many chunks."""
    return room_for(chunks * CHUNK * ROW_BYTES)


def blocks(store: Path, window: int) -> MapDataset[Any]:
    return MapDataset.source(ZarrDataSource(store)).block_shuffle(seed=1, window_blocks=window)


def read(dataset: IterDataset[Any]) -> tuple[list[Any], float, int]:
    """The elements of a stream, the reads of chunks, and the most bytes of chunks that were held."""
    with iter(dataset) as iterator:
        found = list(iterator)
        stats = iterator.stats()
        return found, stats.sources[0].reads.low, int(stats.peak_by["chunks"])


def batches_of(chain: MapDataset[Any]) -> list[Any]:
    """The batches of a chain, each read by itself."""
    return [chain[k] for k in range(len(chain))]


def are_equal(found: Iterable[Any], expected: Sequence[Any]) -> bool:
    pairs = list(zip(found, expected, strict=True))
    return all(np.array_equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("batch", [7, 40, 64])
def test_chunks_in_order_are_read_once(store: Path, batch: int) -> None:
    chain = MapDataset.source(ZarrDataSource(store)).repeat(2).batch(batch)
    found, reads, _ = read(chain.to_iter_dataset(room(16)))
    assert reads <= 2 * CHUNKS
    assert np.array_equal(np.concatenate(found)[:, 0] // WIDTH, np.tile(np.arange(ROWS), 2))


def decoded(dataset: IterDataset[Any]) -> int:
    """The chunks that the core decodes for all elements of a stream."""
    core: Any = native()
    before: int = core.tasks_begun()
    read(dataset)
    after: int = core.tasks_begun()
    return after - before


@pytest.mark.parametrize("batch", [7, 64])
def test_the_core_decodes_each_chunk_once_per_horizon(store: Path, batch: int) -> None:
    in_order = MapDataset.source(ZarrDataSource(store))
    assert CHUNKS <= decoded(in_order.batch(batch).to_iter_dataset(room(16))) <= CHUNKS + 16
    windows = blocks(store, 17).repeat(3).batch(batch)
    # Windows of two epochs share chunks.
    assert 2 * CHUNKS < decoded(windows.to_iter_dataset(room(34))) <= 3 * CHUNKS + 17
    # All chunks fit, and some are begun before all of the horizon is planned.
    shuffled = in_order.shuffle(seed=1).repeat(3).batch(batch)
    assert decoded(shuffled.to_iter_dataset(room(2 * CHUNKS))) <= CHUNKS + 8


def test_a_read_of_a_global_shuffle_serves_all_that_is_planned(store: Path) -> None:
    chain = MapDataset.source(ZarrDataSource(store)).shuffle(seed=1).batch(32)
    found, reads, _ = read(chain.to_iter_dataset(room(CHUNKS / 4)))
    # Each chunk about once for each quarter of the epoch, and once more where it was begun early.
    assert 3 * CHUNKS < reads < 6 * CHUNKS
    assert sorted(np.concatenate(found)[:, 0].tolist()) == list(range(0, WIDTH * ROWS, WIDTH))


def test_little_room_keeps_chunks_in_slots(store: Path) -> None:
    # Read batches are shorter than chunks here, which would be read once for each.
    chain = MapDataset.source(ZarrDataSource(store)).batch(4)
    _, reads, held_bytes = read(chain.to_iter_dataset(room(2)))
    assert reads == CHUNKS
    assert held_bytes > 0


def test_a_damaged_chunk_is_an_error_of_its_own_batches(tmp_path: Path) -> None:
    store = written(tmp_path)
    chain = blocks(store, 8).batch(16)
    batches = batches_of(chain)
    (store / "c" / "77" / "0").write_bytes(b"damaged")
    bad = [bool(np.any(each[:, 0] // WIDTH // CHUNK == 77)) for each in batches]
    with iter(chain.to_iter_dataset(room(16))) as iterator:
        for k in range(bad.index(True)):
            assert np.array_equal(next(iterator), batches[k])
        with pytest.raises(ReadError, match=r"records 3080 to 3119 cannot be read: .*c/77/0"):
            next(iterator)
    # After the last batch that wants it the stream is as before.
    after = len(bad) - bad[::-1].index(True)
    with iter(chain[after:].to_iter_dataset(room(16))) as iterator:
        assert are_equal(iterator, batches[after:])


@given(data=st.data())
@settings(max_examples=examples(30))
def test_the_stream_is_the_same_with_any_room(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 400), "rows")
    chunk = data.draw(st.integers(1, 30), "rows of a chunk")
    resident = data.draw(st.integers(1, rows), "rows that may be held")
    with tempfile.TemporaryDirectory() as folder:
        chain = MapDataset.source(ZarrDataSource(written(Path(folder), rows, chunk)))
        order = data.draw(st.sampled_from(["in order", "blocks", "shuffle", "strides"]), "order")
        if order == "blocks":
            chain = chain.block_shuffle(
                seed=2, window_blocks=data.draw(st.integers(1, 9), "window")
            )
        elif order == "shuffle":
            chain = chain.shuffle(seed=2)
        elif order == "strides":
            chain = chain[:: data.draw(st.integers(1, 7), "step")]
        chain = chain.repeat(data.draw(st.integers(1, 3), "epochs"))
        batched = chain.batch(data.draw(st.integers(1, 50), "batch"))
        buffer = data.draw(st.integers(1, 40), "buffer")
        options = room_for(resident * ROW_BYTES, prefetch_buffer_size=buffer)
        assert are_equal(batched.to_iter_dataset(options), batches_of(batched))
