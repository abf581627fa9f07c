"""What dry runs predict of reads over orders and budgets, against what the prefetcher does."""

from __future__ import annotations

import dataclasses
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zarr
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks import explaining
from benchmarks.harness import Place
from tests.laid_out import pieced
from tests.room import room_for
from windrow import IterDataset, MapDataset, ReadOptions, shuffle_quality
from windrow.engine.read_batches import GOAL_S, BlockSize
from windrow.sources import ZarrDataSource
from windrow.stats.costs import Amount, SourceCosts, known

# Runs are compared with predictions, which takes long. A part of `make test-brief`.
pytestmark = pytest.mark.jobs

ROWS, CHUNK, ROW_BYTES = 4_000, 20, 64


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "rows"
    rows = np.arange(ROWS * 16).reshape(ROWS, 16) % 9
    zarr.create_array(str(path), data=rows.astype("f4"), chunks=(CHUNK, 16))
    return path


def counted(dataset: IterDataset[Any]) -> SourceCosts:
    """The counted costs of a chain's only source."""
    with iter(dataset) as iterator:
        for _ in iterator:
            pass
        (found,) = iterator.stats().sources
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("resident", [0.6, 0.9, 1.2])
def test_reads_of_a_machine_that_stops_lie_in_what_is_told(
    store: Path, resident: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each fifth read batch takes up to four times as long as one may, so later ones are shorter.
    rng, saw = random.Random(seed), BlockSize.saw

    def stops(self: BlockSize, rows: int, size_bytes: int, took_s: float, **more: Any) -> None:
        stopped_s = rng.uniform(1, 4) * GOAL_S if rng.random() < 0.2 else 0.0
        saw(self, rows, size_bytes, took_s + stopped_s, **more)

    options = room_for(ROWS * ROW_BYTES * resident)
    chain = MapDataset.source(ZarrDataSource(store)).shuffle(seed=1)
    dataset = chain.batch(8).to_iter_dataset(options)
    (told,) = dataset.explain().epoch
    monkeypatch.setattr(BlockSize, "saw", stops)
    assert counted(dataset).reads.low in told.reads


def little(resident: float = 0.8) -> ReadOptions:
    """Room for the records that a part of the store has."""
    return room_for(ROWS * ROW_BYTES * resident, prefetch_buffer_size=16)


def blocks(chain: MapDataset[Any], seed: int = 1) -> MapDataset[Any]:
    return chain.block_shuffle(seed=seed, window_blocks=2)


COMING_BACK: dict[str, Callable[[MapDataset[Any]], MapDataset[Any]]] = {
    "two epochs by blocks": lambda chain: blocks(chain).repeat(2).batch(20),
    "two orders of blocks": lambda chain: MapDataset.concatenate(
        [blocks(chain), blocks(chain, 2)]
    ).batch(8),
    "in order beside blocks": lambda chain: MapDataset.zip([chain, blocks(chain)]).batch(8),
    "three epochs in order": lambda chain: chain.repeat(3).batch(25),
}


@pytest.mark.parametrize("order", COMING_BACK)
@pytest.mark.parametrize("resident", [0.8, 4.0])
def test_chunks_that_come_back_are_told_within_an_interval(
    store: Path, order: str, resident: float
) -> None:
    chain = COMING_BACK[order](MapDataset.source(ZarrDataSource(store)))
    dataset = chain.to_iter_dataset(little(resident))
    (told,), found = dataset.explain().epoch, counted(dataset)
    assert found.reads.low in told.reads
    assert known(found.decoded_bytes).low in known(told.decoded_bytes)


def test_huge_batches_take_no_memory() -> None:
    records = 10**9
    source = np.broadcast_to(np.int8(0), records)
    tracemalloc.start()
    try:
        whole = MapDataset.source(source).batch(records).explain()
        endless = MapDataset.range(records).repeat().batch(records).map(kept).explain()
        parts = MapDataset.source(source).shuffle(seed=1).batch(10**8).explain()
        (_, peak_bytes) = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 300e6
    assert endless.is_endless
    assert endless.batches == Amount.exactly(1)
    assert parts.batches == Amount.exactly(10)
    for explanation in (whole, parts):
        assert explanation.epoch[0].records == Amount.exactly(records)
    assert whole.batch_bytes == Amount.exactly(records)


def test_quality_of_huge_numbers_of_blocks() -> None:
    found = shuffle_quality(MapDataset.range(10**18).shuffle(seed=1), 64, block=100)
    assert found.blocks_per_batch is not None
    assert found.blocks_per_batch_shuffled is not None
    for blocks in (found.blocks_per_batch, found.blocks_per_batch_shuffled):
        assert blocks == pytest.approx(64, abs=0.02)


@pytest.mark.parametrize("above", [False, True])
def test_orders_take_no_longer_than_they_may(above: bool) -> None:
    # All of 10 million records in windows of 50 would take minutes to shuffle.
    chain = MapDataset.source(np.broadcast_to(np.int8(0), 10**7)).window_shuffle(50, seed=1)
    chain = chain.shuffle(seed=1) if above else chain
    before_s = time.process_time()
    explanation = chain.batch(32).explain()
    assert time.process_time() - before_s < 20
    (costs,) = explanation.epoch
    assert costs.records == Amount.exactly(10**7)
    assert any("were worked out" in line for line in explanation.unknown)


@pytest.mark.parametrize(
    "picked",
    [
        lambda source: source.sample(4 * 10**5, seed=1),
        lambda source: source.slice(np.arange(4 * 10**5)),
        lambda source: source[: 4 * 10**5],
    ],
)
def test_huge_batches_of_some_records_count_these_records(picked: Any) -> None:
    chain = picked(MapDataset.source(np.broadcast_to(np.int8(0), 2 * 10**6)))
    (costs,) = chain.batch(2 * 10**5).explain().epoch
    assert costs.records == Amount.exactly(4 * 10**5)


def test_a_limit_of_an_endless_stream_is_not_cut_at_an_epoch() -> None:
    chain = MapDataset.source(np.broadcast_to(np.int8(0), 10**6)).repeat().to_iter_dataset()
    (costs,) = chain.limit(3 * 10**6).explain().epoch
    assert costs.records.low <= 3 * 10**6 <= costs.records.high


def test_rows_of_batches_of_an_endless_chain_are_counted() -> None:
    stream = MapDataset.range(1600).repeat().batch(16).to_iter_dataset().rebatch(10)
    assert stream.explain().batches == Amount.exactly(160)


def kept(element: Any) -> bool:
    return True


@pytest.mark.parametrize("kind", explaining.PAIRS)
def test_every_piece_of_advice_pays_in_bytes(kind: str, tmp_path: Path) -> None:
    place = Place(tmp_path, small=True)
    explaining.write(place, place.path("advice"))
    before, after = (explaining.followed(place, kind=kind, after=which) for which in (False, True))
    for side in (before, after):
        assert side["least_predicted_mb"] <= side["decoded_mb"] <= side["most_predicted_mb"]
    if kind != "record-by-record":  # which reads as much, in fewer calls
        assert after["decoded_mb"] < before["decoded_mb"]


# --- any chain -----------------------------------------------------------------------------------

COLUMNS = ("records", "chunks", "reads", "stored_bytes", "decoded_bytes", "delivered_bytes", "hits")


@dataclasses.dataclass(frozen=True)
class AnyChain:
    """A chain over a source in memory that is read in chunks."""

    source: dict[str, Any]
    order: str
    seed: int
    batch: int
    options: ReadOptions
    above: str

    def make(self) -> IterDataset[Any]:
        chain = ANY_ORDER[self.order](MapDataset.source(pieced(**self.source)), self.seed)
        if self.above in ("a map", "passes", "batches"):
            chain = chain.map(kept) if self.above == "a map" else chain
            stream = chain.batch(self.batch).to_iter_dataset(self.options)
            return stream.repeat(2) if self.above == "passes" else stream
        stream = chain.to_iter_dataset(self.options)
        if self.above == "windows":
            stream = stream.window_shuffle(30, seed=self.seed)
        batches = stream.batch(self.batch)
        return batches.limit(9) if self.above == "a limit" else batches


ANY_ORDER: dict[str, Callable[[MapDataset[Any], int], MapDataset[Any]]] = {
    "in order": lambda chain, seed: chain,
    "shuffle": lambda chain, seed: chain.shuffle(seed=seed),
    "block_shuffle": lambda chain, seed: chain.block_shuffle(
        seed=seed, block=7, window_blocks=2 + seed
    ),
    "window_shuffle": lambda chain, seed: chain.window_shuffle(37, seed=seed),
    "strides": lambda chain, seed: chain[:: 2 + seed],
    "twice": lambda chain, seed: chain.shuffle(seed=seed).repeat(2),
}


@st.composite
def any_chains(draw: st.DrawFn) -> AnyChain:
    size = draw(st.none() | st.integers(1, 30))
    options = ReadOptions(
        num_threads=draw(st.sampled_from([0, 2, 16])),
        prefetch_buffer_size=draw(st.sampled_from([0, 1, 8, 500])),
        memory_bytes=draw(st.integers(1, 100_000)),
    )
    return AnyChain(
        source={
            "records": draw(st.integers(1, 1_500)) + (size or 0),
            "chunk_rows": draw(st.integers(2, 60)),
            "width": draw(st.integers(1, 8)),
            "size": size,
        },
        order=draw(st.sampled_from(sorted(ANY_ORDER))),
        seed=draw(st.integers(0, 9)),
        batch=draw(st.integers(1, 40)),
        options=options,
        above=draw(
            st.sampled_from(["batches", "a map", "passes", "a stream", "windows", "a limit"])
        ),
    )


@example(  # a loop that is slow to take the first block finds two
    is_slow=False,
    chain=AnyChain(
        source={"records": 3, "chunk_rows": 2, "width": 1, "size": None},
        order="block_shuffle",
        seed=0,
        batch=2,
        options=ReadOptions(num_threads=2, prefetch_buffer_size=1, memory_bytes=1),
        above="windows",
    ),
)
@settings(max_examples=25)
@given(chain=any_chains(), is_slow=st.booleans())
def test_what_is_exact_is_counted_and_no_more_is_held(chain: AnyChain, *, is_slow: bool) -> None:
    dataset = chain.make()
    explanation = dataset.explain()
    # Read batches of a slow machine are as short as they can be.
    saw: Any = BlockSize.saw if not is_slow else lambda *_, **__: None
    with mock.patch.object(BlockSize, "saw", saw), iter(dataset) as iterator:
        count = sum(1 for _ in iterator)
        stats = iterator.stats()
    assert count in explanation.batches
    for told, found in zip(explanation.epoch, stats.sources, strict=True):
        for name in COLUMNS:
            said = getattr(told, name)
            assert getattr(found, name).low in said or (is_slow and not said.is_exact), name
        assert found.held_bytes.low <= told.held_bytes.high
    assert stats.peak_buffers_bytes <= explanation.buffers.high
    lines = str(explanation).splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 80


def zeros_in_zarr(folder: Path, rows: int, chunk: int) -> MapDataset[Any]:
    zarr.create_array(folder, shape=(rows, 16), chunks=(chunk, 16), dtype="f4", fill_value=0)
    return MapDataset.source(ZarrDataSource(folder))


def test_sources_that_a_cut_run_does_not_meet_are_estimated(tmp_path: Path) -> None:
    rows = 5_000_000
    one, other = (zeros_in_zarr(tmp_path / name, rows, 5_000) for name in ("one", "other"))
    few = zeros_in_zarr(tmp_path / "few", 4_000, 50)
    chain = MapDataset.concatenate([few, one, other])
    for dataset in (chain.batch(64), chain.to_iter_dataset(lanes=4).batch(64)):
        lengths = (4_000, rows, rows)
        for costs, length in zip(dataset.explain().epoch, lengths, strict=True):
            assert costs.records.low < length < costs.records.high
            assert costs.reads.low < costs.chunks.middle < costs.reads.high
    mixed = IterDataset.mix([one.to_iter_dataset(), other.to_iter_dataset()], [0.9, 0.1])
    rarely = mixed.batch(64).explain().epoch[1].records
    assert rarely.low < rows / 9 < rarely.high
    limited = one.batch(6400).to_iter_dataset().limit(700).explain().epoch[0].records
    assert limited.low < 700 * 6400 < limited.high


def test_a_limit_of_lanes_holds_no_more_than_is_told() -> None:
    records = MapDataset.source(np.zeros((300, 100_000), np.uint8))
    for lanes, count in ((8, 10), (64, 64)):
        stream = records.to_iter_dataset(lanes=lanes).limit(count)
        told = stream.explain()
        with iter(stream) as iterator:
            assert sum(1 for _ in iterator) == count
            stats = iterator.stats()
        assert stats.peak_buffers_bytes <= told.buffers.high
        assert stats.sources[0].records.high <= told.epoch[0].records.high
