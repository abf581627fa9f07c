"""What iterators measure of reads, memory and workers: by sources and functions that count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.hypothesis_profiles import examples
from tests.laid_out import pieced
from tests.processes import until
from tests.workers.test_workers_stream import spread
from windrow import ReadOptions
from windrow.stats.costs import Amount, SourceCosts
from windrow.stats.profiler import WORKERS

M = windrow.MapDataset
IN_TURN = ReadOptions(num_threads=0)


def exactly(*numbers: float) -> tuple[Amount, ...]:
    return tuple(map(Amount.exactly, numbers))


def counted(iterator: windrow.DatasetIterator[Any]) -> SourceCosts:
    """The costs of the only source, once all elements were taken."""
    for _ in iterator:
        pass
    (costs,) = iterator.stats().sources
    return costs


# --- reads ---------------------------------------------------------------------------------------


@given(
    resident=st.integers(1, 200),
    in_flight=st.integers(1, 60),
    epochs=st.integers(1, 3),
    order=st.sampled_from(["in order", "shuffle", "every third"]),
    batch=st.integers(1, 40),
)
@settings(max_examples=examples(40))
def test_reads_are_those_that_the_source_sees(
    resident: int, in_flight: int, epochs: int, order: str, batch: int
) -> None:
    source = pieced(90, 7, shift=3)
    options = ReadOptions(memory_bytes=32 * resident)
    rows: Any = M.source(source)
    rows = {"in order": rows, "shuffle": rows.shuffle(seed=3), "every third": rows[::3]}[order]
    dataset = rows.repeat(epochs)
    costs = counted(iter(dataset.to_iter_dataset(options).batch(batch)))
    assert costs.records == Amount.exactly(len(dataset))
    assert costs.reads == Amount.exactly(len(source.started))
    assert costs.chunks == Amount.exactly(len(set(source.started)))
    sizes = [min(first - (first + 3) % 7 + 7, 90) - first for first in source.started]
    assert costs.decoded_bytes == Amount.exactly(32 * sum(sizes))
    assert costs.delivered_bytes == Amount.exactly(32 * len(dataset))


def test_without_threads_each_call_decodes_its_chunks() -> None:
    source = pieced(64, 16)
    dataset = M.source(source).batch(8).to_iter_dataset(IN_TURN)
    iterator = iter(dataset)
    next(iterator)
    (costs,) = iterator.stats().sources
    assert (costs.records, costs.chunks, costs.reads) == exactly(8, 1, 1)
    assert (costs.decoded_bytes, costs.delivered_bytes) == exactly(512, 256)
    assert counted(iterator).chunks == Amount.exactly(4)


class Squares:
    """A foreign source."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return np.full(4, index * index)


@pytest.mark.parametrize("options", [ReadOptions(), IN_TURN])
def test_records_of_others_are_reads(options: ReadOptions) -> None:
    costs = counted(iter(M.source(Squares()).to_iter_dataset(options)))
    assert (costs.records, costs.chunks, costs.reads) == exactly(20, 0, 20)
    assert costs.decoded_bytes == costs.delivered_bytes == Amount.exactly(640)
    assert costs.stored_bytes is None


def test_what_is_in_memory_is_not_read() -> None:
    costs = counted(iter(M.source(np.arange(20)).shuffle(seed=1).batch(4)))
    assert (costs.records, costs.chunks, costs.reads, costs.hits) == exactly(20, 0, 0, 0)
    assert (costs.decoded_bytes, costs.delivered_bytes) == exactly(0, 160)


def test_sources_come_once_from_the_top_of_the_chain() -> None:
    first, second = pieced(40, 8), pieced(40, 4)
    parts = [M.source(second), M.source(first), M.source(second)]
    iterator = iter(M.concatenate(parts).batch(10))
    for _ in iterator:
        pass
    costs = iterator.stats().sources
    assert [c.records for c in costs] == list(exactly(80, 40))
    assert [c.chunks for c in costs] == list(exactly(10, 5))


# --- memory --------------------------------------------------------------------------------------


def test_a_loop_that_is_slower_finds_the_queue_full() -> None:
    options = ReadOptions(prefetch_buffer_size=4, num_threads=1)
    rows = M.source(pieced(4_000, 16)).batch(8)
    with iter(rows.to_iter_dataset(options)) as iterator:
        next(iterator)
        assert until(lambda: iterator.stats().blocked_s > 0)
        # The thread that reads fills the queue, then sleeps until half of it is taken: here one
        # batch was taken, before or after the thread went to sleep.
        full = 4 * 8 * 32
        assert until(lambda: iterator.stats().buffers_by["queue"] in (full - 8 * 32, full))
        stats = iterator.stats()
        assert stats.buffers_by["chunks"] % (16 * 32) == 0
        assert stats.buffers_by["chunks"] > 0
        assert stats.buffers_bytes == sum(stats.buffers_by.values())
        assert stats.peak_buffers_bytes <= sum(stats.peak_by.values())
        assert set(stats.buffers_by) == {"chunks", "planned", "rounds", "queue"}
    closed = iterator.stats()
    assert closed.buffers_bytes == 0
    assert closed.peak_by["queue"] == 4 * 8 * 32


# --- workers -------------------------------------------------------------------------------------


def test_the_time_of_functions_in_workers_is_theirs() -> None:
    iterator = spread(M.source(pieced(60, 8)).map(np.sum).batch(4), workers=3)
    assert len(list(iterator)) == 15
    stats = iterator.stats()
    assert {"map(sum)"} <= set(stats.mapping_s)
    assert stats.mapping_s["map(sum)"] > 0
    (costs,) = stats.sources
    assert (costs.records, costs.reads) == exactly(60, 8)


def test_sources_that_workers_read_are_counted_there() -> None:
    iterator = spread(M.source(Squares()).map(np.sum), workers=2)
    costs = counted(iterator)
    assert (costs.records, costs.reads, costs.delivered_bytes) == exactly(20, 20, 640)
    assert iterator.stats().reading_s > 0


def test_a_worker_process_tells_its_time() -> None:
    dataset = M.range(8).map(abs).mp_prefetch(1)
    with iter(dataset) as iterator:
        assert list(iterator) == list(range(8))
        stats = iterator.stats()
    assert stats.mapping_s["map(abs)"] > 0
    assert stats.waited_for[WORKERS] > 0  # until it has started


# --- what is held --------------------------------------------------------------------------------


def test_chunks_held_are_those_of_each_source() -> None:
    little = ReadOptions(memory_bytes=4_000, prefetch_buffer_size=4)
    one, other = pieced(320, 16), pieced(200, 8)
    chain = M.mix([M.source(one).shuffle(seed=1), M.source(other).shuffle(seed=2)])
    dataset = chain.batch(8).to_iter_dataset(little)
    explanation = dataset.explain()
    with iter(dataset) as iterator:
        for _ in iterator:
            pass
        stats = iterator.stats()
    assert len(stats.sources) == 2
    for predicted, found in zip(explanation.epoch, stats.sources, strict=True):
        assert found.held_bytes.low > 0
        assert found.held_bytes.low <= predicted.held_bytes.high
        assert predicted.times(0.5).held_bytes == predicted.held_bytes
    held = sum(costs.held_bytes.low for costs in stats.sources)
    assert held == stats.peak_by["chunks"]
    assert "held of its chunks, at most" in explanation.details()
    assert "held bytes" in str(stats)
