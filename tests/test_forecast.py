"""Forecasts of reads over orders and budgets, against what the look-ahead does; plans of rounds."""

from __future__ import annotations

import dataclasses
import json
import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import advice
from windrow import IterDataset, MapDataset, ReadOptions, shuffle_quality
from windrow.asked import Asked, asked_for
from windrow.budget import Room
from windrow.costs import Amount, SourceCosts, known
from windrow.part_forecast import Uses, part_forecast
from windrow.round_plan import round_plan
from windrow.shuffle_sample import added_up
from windrow.sources import ArrayPart, ZarrDataSource
from windrow.stream_facts import stream_facts
from windrow.stretches import stretch_of

ROWS, CHUNK, ROW_BYTES = 4_000, 20, 64


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "rows"
    rows = np.arange(ROWS * 16).reshape(ROWS, 16) % 9
    zarr.create_array(str(path), data=rows.astype("f4"), chunks=(CHUNK, 16))
    return path


ORDERS: dict[str, Callable[[MapDataset[Any]], MapDataset[Any]]] = {
    "in order": lambda chain: chain,
    "shuffle": lambda chain: chain.shuffle(seed=1),
    "block_shuffle": lambda chain: chain.block_shuffle(seed=1, window_blocks=8),
    "window_shuffle": lambda chain: chain.window_shuffle(300, seed=1),
    "strides": lambda chain: chain[::3],
    "twice": lambda chain: chain.shuffle(seed=1).repeat(2),
}


def told_and_found(dataset: IterDataset[Any]) -> tuple[SourceCosts, SourceCosts]:
    """What is told of a chain's only source, and what a run counts, which lies in it."""
    (told,) = dataset.explain().epoch
    with iter(dataset) as iterator:
        for _ in iterator:
            pass
        (found,) = iterator.stats().sources
    assert found.reads.low in told.reads
    assert known(found.decoded_bytes).low in known(told.decoded_bytes)
    return told, found


@pytest.mark.parametrize("resident", [0.05, 0.3, 0.6, 0.9, 1.2, 2.0])
@pytest.mark.parametrize("order", ORDERS)
def test_reads_lie_in_what_is_told(store: Path, order: str, resident: float) -> None:
    # `resident` is the part of the store that may be held.
    store_bytes = ROWS * ROW_BYTES
    options = ReadOptions(
        resident_bytes=int(store_bytes * resident), in_flight_bytes=4 * CHUNK * ROW_BYTES
    )
    chain = ORDERS[order](MapDataset.source(ZarrDataSource(store)))
    dataset = chain.batch(8).to_iter_dataset(options)
    told, found = told_and_found(dataset)
    assert found.pieces == told.pieces
    assert told.reads.is_exact or order != "in order"


def little(resident: float = 0.8) -> ReadOptions:
    """Room for the records that a part of the store has, and for a quarter of it in pieces."""
    return ReadOptions(
        prefetch_buffer_size=16,
        resident_bytes=int(ROWS * ROW_BYTES * resident),
        in_flight_bytes=8 * CHUNK * ROW_BYTES,
    )


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
def test_pieces_that_come_back_are_told_within_an_interval(
    store: Path, order: str, resident: float
) -> None:
    chain = COMING_BACK[order](MapDataset.source(ZarrDataSource(store)))
    dataset = chain.to_iter_dataset(little(resident))
    told, _ = told_and_found(dataset)
    if "beside" not in order:
        assert told.reads.high <= 1.5 * told.reads.low


# Rounds are of one batch, of which two are planned.
NO_CACHE = ReadOptions(resident_bytes=1, in_flight_bytes=1)
# A batch is read when it is asked for.
NOT_AHEAD = ReadOptions(prefetch_buffer_size=0)


@pytest.mark.parametrize("options", [NO_CACHE, NOT_AHEAD], ids=["no cache", "not ahead"])
@pytest.mark.parametrize(
    ("order", "is_number"),
    [
        ("in order", True),
        ("shuffle", True),
        ("strides", True),
        ("block_shuffle", False),
        ("twice", True),
    ],
)
def test_reads_without_a_cache(
    store: Path, options: ReadOptions, order: str, is_number: bool
) -> None:
    dataset = ORDERS[order](MapDataset.source(ZarrDataSource(store)))[:2_000].batch(16)
    told, _ = told_and_found(dataset.to_iter_dataset(options))
    # Which of a window's last pieces are there for a third round depends on what took their slots.
    assert told.reads.is_exact == (is_number or options is NOT_AHEAD)
    assert told.reads.high - told.reads.low <= 0.1 * told.reads.low


@pytest.mark.parametrize("last", [1, 7, CHUNK - 1])
@pytest.mark.parametrize("resident_bytes", [None, 1, 100 * ROW_BYTES])
def test_a_short_last_chunk_is_read_less_often(
    tmp_path: Path, last: int, resident_bytes: int | None
) -> None:
    rows = np.zeros((20 * CHUNK + last, 16), "f4")
    zarr.create_array(str(tmp_path / "rows"), data=rows, chunks=(CHUNK, 16))
    options = NOT_AHEAD
    if resident_bytes is not None:
        options = ReadOptions(resident_bytes=resident_bytes, in_flight_bytes=1)
    dataset = MapDataset.source(ZarrDataSource(tmp_path / "rows")).shuffle(seed=1).batch(4)
    told_and_found(dataset.to_iter_dataset(options))


@pytest.mark.parametrize("order", ["in order", "block_shuffle", "shuffle"])
def test_reads_of_rounds_without_threads(store: Path, order: str) -> None:
    # How long rounds are depends on how long they take: reads are told for all that is likely.
    chain = ORDERS[order](MapDataset.source(ZarrDataSource(store))).batch(16)
    options = ReadOptions(num_threads=0)
    (told,) = chain.to_iter_dataset(options).explain().epoch
    (slow,) = chain.map(kept).to_iter_dataset(options).explain().epoch
    (single,) = chain.to_iter_dataset(NOT_AHEAD).explain().epoch
    assert not told.reads.is_exact
    assert told.reads.low == slow.reads.low < told.reads.high < slow.reads.high
    assert slow.reads.high == single.reads.high  # of functions it is not known how long they take
    if order == "in order":
        assert told.reads.high <= 1.1 * told.reads.low


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
    for amount in (found.blocks_per_batch, found.blocks_per_batch_shuffled):
        assert amount.low == pytest.approx(64, abs=0.02)


@given(
    numbers=st.lists(st.integers(0, 9) | st.integers(0, 10**17), min_size=1, max_size=40),
    times=st.integers(1, 3),
)
def test_numbers_of_blocks_are_added_up(numbers: list[int], times: int) -> None:
    found, counts = added_up(np.array(numbers), np.full(len(numbers), times))
    assert found.tolist() == sorted(set(numbers))
    assert counts.tolist() == [times * numbers.count(number) for number in found.tolist()]


def test_windows_take_no_longer_than_they_may() -> None:
    # Whoever shuffles all of 10 million records in windows of 50 is at it for minutes.
    chain = MapDataset.source(np.broadcast_to(np.int8(0), 10**7)).window_shuffle(50, seed=1)
    (facts,) = stream_facts(chain.batch(32).to_iter_dataset()._node).values()
    stretch = stretch_of(facts, 10**7 // 32)
    (asked,) = stretch.asked.values()
    assert 1_000 < len(asked.records) < 100_000
    above = chain.shuffle(seed=1).batch(32).to_iter_dataset()._node
    (facts,) = stream_facts(above).values()
    (asked,) = stretch_of(facts, 10**7 // 32).asked.values()
    assert len(asked.records) < 1_000


@given(size=st.integers(1, 40), stop=st.integers(1, 5), share=st.floats(0.01, 1))
def test_a_part_of_each_batch_is_its_start(size: int, stop: int, share: float) -> None:
    chain = MapDataset.source(np.arange(100)).shuffle(seed=3).batch(size)
    stop = min(stop, len(chain))
    (all_of_it,) = asked_for(chain._node, 0, stop).values()
    (some,) = asked_for(chain._node, 0, stop, share=share).values()
    for element in range(stop):
        rows = all_of_it.records[all_of_it.elements == element]
        part = some.records[some.elements == element]
        assert part.tolist() == rows[: math.ceil(min(size, 100) * share)].tolist()


def test_later_epochs_of_an_endless_chain(store: Path) -> None:
    chain = blocks(MapDataset.source(ZarrDataSource(store))).repeat().batch(20)
    dataset = chain.to_iter_dataset(little())
    explanation = dataset.explain()
    first, later, epochs = explanation.epoch[0].reads, explanation.later_epoch[0].reads, 6
    with iter(dataset) as iterator:
        for _ in range(epochs * ROWS // 20):
            next(iterator)
        (found,) = iterator.stats().sources
    # What is read ahead is of the next epoch.
    assert first.low + (epochs - 1) * later.low <= found.reads.low
    assert found.reads.low <= first.high + epochs * later.high
    assert 0 < later.low < later.high < first.low


class NoRows:
    """A reader of rows that must not be asked for any."""

    def start(self, spans: Any, pool: Any) -> Any:
        raise AssertionError("a forecast reads nothing")

    def read(self, rows: Any) -> Any:
        raise AssertionError("a forecast reads nothing")

    def stored_bytes(self, pieces: Any) -> Any:
        return pieces


def room(*, pieces: int, slots: int) -> Room:
    part = ArrayPart("", pieces * 4, (1,), np.dtype("i1"), 4, NoRows())
    return Room(None, part, 4, 1, 64, 2, slots, keeps=False)  # type: ignore[arg-type]


@given(
    records=st.lists(st.integers(0, 39), min_size=1, max_size=60),
    slots=st.integers(1, 10),
    full=st.integers(1, 40),
)
def test_bounds_of_any_order(records: list[int], slots: int, full: int) -> None:
    own = room(pieces=10, slots=slots)
    wanted = np.array(records)
    uses = Uses.of(own.part, Asked(np.arange(len(wanted)), wanted))
    plan = round_plan(len(wanted), unit=1, most_rows=4, full=full, at_once=16, is_ahead=True)
    found = part_forecast(uses, own, plan, plan)
    distinct = len(set((wanted // 4).tolist()))
    assert distinct <= found.reads.low <= found.reads.high
    if not own.fits:
        assert found.reads.high <= uses.rounds(plan)
    # Whoever plans everything at once reads each piece once.
    whole = round_plan(
        len(wanted), unit=len(wanted), most_rows=60, full=1, at_once=16, is_ahead=True
    )
    assert part_forecast(uses, own, whole, whole).reads == Amount.exactly(distinct)


@given(
    stop=st.integers(0, 3_000),
    unit=st.integers(1, 40),
    most_rows=st.integers(1, 200),
    full=st.floats(1, 2_000) | st.just(math.inf),
    at_once=st.integers(0, 20),
    is_ahead=st.booleans(),
)
def test_plans_of_rounds(
    stop: int, unit: int, most_rows: int, full: float, at_once: int, is_ahead: bool
) -> None:
    plan = round_plan(
        stop, unit=unit, most_rows=most_rows, full=full, at_once=at_once, is_ahead=is_ahead
    )
    sizes = np.diff(plan.bounds)
    assert plan.bounds[0] == 0
    assert plan.bounds[-1] == stop
    assert len(plan.ends) == len(sizes)
    assert (sizes > 0).all()
    assert (sizes <= max(unit, most_rows)).all()
    assert (sizes[:-1] % unit == 0).all()
    assert (plan.ends >= plan.bounds[1:]).all()  # a round is planned when it is made
    assert (np.diff(plan.ends) >= 0).all()
    assert np.array_equal(plan.bounds[plan.round_of], np.repeat(plan.bounds[:-1], sizes))


def kept(element: Any) -> bool:
    return True


def endless(records: int) -> IterDataset[Any]:
    return MapDataset.source(np.arange(records)).repeat().to_iter_dataset()


MORE: dict[str, Callable[[IterDataset[Any]], IterDataset[Any]]] = {
    "filter": lambda stream: stream.filter(kept),
    "batch": lambda stream: stream.batch(3, batch_fn=len),
    "limit": lambda stream: stream.limit(40),
    "repeat": lambda stream: stream.repeat(2),
    "repeat for ever": lambda stream: stream.repeat(),
    "window_shuffle": lambda stream: stream.window_shuffle(4, seed=1),
    "mix with endless": lambda stream: IterDataset.mix([stream, endless(7).filter(kept)], [1, 2]),
    "mix": lambda stream: IterDataset.mix([stream, endless(9).limit(30)]),
    "zip": lambda stream: IterDataset.zip([stream, endless(8)], strict=False),
    "workers": lambda stream: stream.mp_prefetch(1),
}


@given(names=st.lists(st.sampled_from(sorted(MORE)), max_size=4))
def test_endless_streams_with_filters(names: list[str]) -> None:
    stream = endless(5).filter(kept)
    for name in names:
        stream = MORE[name](stream)
    explanation = stream.explain()
    assert json.dumps(explanation.to_json(), allow_nan=False)
    assert explanation.is_endless == _is_endless(names)
    if explanation.is_endless or "workers" in names:
        return
    with iter(stream) as iterator:
        assert sum(1 for _ in iterator) in explanation.batches
        found = iterator.stats().sources
    for told, was in zip(explanation.epoch, found, strict=True):
        assert told.records.low <= was.records.low
        assert any("goes through" in line for line in explanation.unknown)


def _is_endless(names: list[str]) -> bool:
    # The last of those that begin or end a stream for good.
    decides = [name for name in names if name in ("limit", "mix", "repeat for ever")]
    return not decides or decides[-1] == "repeat for ever"


def test_an_epoch_of_an_endless_stream_is_a_pass() -> None:
    for stream, count in (
        (endless(5).repeat(3), 5),
        (endless(5).repeat(), 5),
        (IterDataset.zip([endless(5), endless(7)], strict=False), 5),
    ):
        explanation = stream.explain()
        assert explanation.is_endless
        assert explanation.batches == Amount.exactly(count)
        assert explanation.epoch[0].records.low == count
    beside = IterDataset.zip([endless(5), endless(7).limit(30)], strict=False)
    assert beside.explain().batches == Amount.exactly(len(list(beside))) == Amount.exactly(30)


def test_every_piece_of_advice_pays_in_bytes() -> None:
    rows = advice.run(dataclasses.replace(advice.SMALL, records=1_000), 1)
    assert {row["kind"] for row in rows} == {
        "global-shuffle",
        "resident-bytes",
        "window-room",
        "strides",
        "no-threads",
        "record-by-record",
    }
    for row in rows:
        for side in ("before", "after"):
            low, high = row[f"{side}_told_bytes"]
            assert low <= row[f"{side}_bytes"] <= high
        if row["kind"] != "record-by-record":  # which reads as much, in fewer calls
            assert row["after_bytes"] < row["before_bytes"]
    assert "records/s" in advice.markdown(rows)
