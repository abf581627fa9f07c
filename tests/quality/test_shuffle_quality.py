"""Shuffle quality: three numbers, against plain counting, closed forms and whole orders."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from windrow import MapDataset
from windrow.engine.record_trace import Trace, trace
from windrow.quality import batch_sample
from windrow.quality.shuffle_quality import quality_of
from windrow.sources.chunks import Blocks
from windrow.transforms.nodes.random_access import with_random_access

Array = npt.NDArray[Any]


def quality(dataset: Any, batch_size: Any = None, **blocks: Any) -> windrow.ShuffleQuality:
    return windrow.shuffle_quality(dataset, batch_size, **blocks)


def in_order(records: int, batch: int) -> float:
    """The ratio of records that come in order, where batches part them evenly.

    The means of batches are spread evenly: their variance is `b^2 (J^2 - 1) / 12` for `J` of them.
    """
    return batch * (records + batch) / (records + 1)


def by_hand(order: list[int], batch: int, block: int) -> tuple[float, float, float]:
    """The ratio, blocks in a batch and blocks in a batch of a global shuffle, in plain Python."""
    records = len(order)
    mean = sum(order) / records
    variance = sum((rank - mean) ** 2 for rank in order) / records
    ratios, different, expected = [], [], []
    sizes = [
        len(list(group)) for _, group in itertools.groupby(sorted(order), lambda r: r // block)
    ]
    for at in range(0, records, batch):
        rows = order[at : at + batch]
        size = len(rows)
        allowed = variance / size * (records - size) / (records - 1)
        ratios.append((sum(rows) / size - mean) ** 2 / allowed)
        different.append(len({rank // block for rank in rows}))
        none = [math.comb(records - n, size) / math.comb(records, size) for n in sizes]
        expected.append(sum(1 - p for p in none))
    return tuple(sum(values) / len(values) for values in (ratios, different, expected))  # type: ignore[return-value]


def check(found: windrow.ShuffleQuality, by_hand: tuple[float, float, float]) -> None:
    """The first and the third are counted, and the second comes from shuffles."""
    ratio, different, expected = by_hand
    assert found.is_exact
    assert found.variance_ratio == pytest.approx(ratio)
    assert found.blocks_per_batch == pytest.approx(different)
    assert found.blocks_per_batch_shuffled == pytest.approx(expected, rel=0.05, abs=0.5)


# --- orders that are known -----------------------------------------------------------------------


@given(data=st.data(), records=st.integers(2, 60))
def test_any_order_is_what_counting_by_hand_gives(data: st.DataObject, records: int) -> None:
    order = data.draw(st.permutations(range(records)))
    batch = data.draw(st.integers(1, records - 1))
    block = data.draw(st.integers(1, records))
    found = quality(order, batch, block=block)
    check(found, by_hand(order, batch, block))
    assert found.blocks == -(-records // block)


@given(data=st.data(), records=st.integers(4, 50))
def test_a_part_of_the_records_is_compared_with_a_shuffle_of_that_part(
    data: st.DataObject, records: int
) -> None:
    part = data.draw(st.lists(st.integers(0, records - 1), min_size=3, unique=True))
    chain = MapDataset.range(records).slice(part).batch(2)
    check(quality(chain, block=4), by_hand(part, 2, 4))


def test_ten_million_records_take_about_a_second() -> None:
    data = MapDataset.range(10_000_000)
    before_s = time.process_time()
    plain = quality(data.batch(50), block=100)
    blocks = quality(data.block_shuffle(1, block=100, window_blocks=16).batch(50), block=100)
    assert time.process_time() - before_s < 8  # 0.5 s on a machine without other work
    assert plain.variance_ratio == pytest.approx(in_order(10_000_000, 50), rel=0.01)
    assert plain.blocks_per_batch == 1
    assert blocks.variance_ratio == pytest.approx(1 + 49 / 16, rel=0.25)
    expected = 16 * (1 - math.comb(1_500, 50) / math.comb(1_600, 50))
    assert blocks.blocks_per_batch == pytest.approx(expected, rel=0.02)
    assert blocks.blocks_per_batch_shuffled == pytest.approx(50, rel=0.01)


# --- samples against whole orders ----------------------------------------------------------------


def exact(orders: Array, batch: int, block: int) -> tuple[float, float]:
    """The ratio and the blocks in a batch of whole epochs, by brute force.

    Args:
        orders: int64 `(epochs, records)`, indices of records.
        batch: Records in a batch, which divide an epoch.
        block: Consecutive records in a block.
    """
    count = orders.shape[1]
    rows = orders.reshape(-1, batch)
    expected = orders.var() / batch * (count - batch) / (count - 1)
    ratio = np.mean((rows.mean(axis=1) - orders.mean()) ** 2) / expected
    blocks = np.sort(rows // block, axis=1)
    return float(ratio), float(np.mean(1 + (np.diff(blocks, axis=1) > 0).sum(axis=1)))


def in_rows(found: Trace) -> Array:
    """The one record of each row."""
    records = np.full(int(found.counts.sum()), -1)
    for taken in found.taken:
        assert (records[taken.rows] == -1).all()
        records[taken.rows] = taken.records
    return records


LONG, MANY = 24_000, 12
LONG_ORDERS: dict[str, Callable[[Any], Any]] = {
    "in order": lambda data: data,
    "shuffle": lambda data: data.shuffle(1),
    "block_shuffle": lambda data: data.block_shuffle(1, block=20, window_blocks=8),
    "window_shuffle": lambda data: data.window_shuffle(1_000, 1),
    "stream window": lambda data: data.to_iter_dataset().window_shuffle(1_000, seed=1),
    "filter": lambda data: data.shuffle(1).to_iter_dataset().filter(bool),
    "mix": lambda data: MapDataset.mix([data[:8_000].shuffle(1), data[8_000:]], [1, 2]),
    "select": lambda data: MapDataset.select_from_datasets([data.shuffle(1)], InOrder(LONG)),
}


@pytest.mark.parametrize("make", LONG_ORDERS.values(), ids=LONG_ORDERS.keys())
def test_a_sample_agrees_with_whole_epochs(
    make: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = make(MapDataset.range(LONG))
    node = with_random_access(chain._node)
    length = node.length
    orders = in_rows(trace(node, np.arange(MANY * length))).reshape(MANY, length)
    ratio, blocks = exact(orders, 50, 40)
    whole = quality(chain, 50, block=40)
    monkeypatch.setattr(
        batch_sample, "MOST_POSITIONS", 400_000 if "window" in node.label else 100_000
    )
    monkeypatch.setattr(batch_sample, "MOST_ROWS", 20_000)
    found = quality(chain, 50, block=40)
    assert not found.is_exact
    assert found.variance_ratio == pytest.approx(ratio, rel=0.3)
    assert whole.variance_ratio == pytest.approx(ratio, rel=0.25)
    assert found.blocks_per_batch == pytest.approx(blocks, rel=0.05)
    shuffled = whole.blocks_per_batch_shuffled
    assert found.blocks_per_batch_shuffled == pytest.approx(shuffled, rel=0.02)
    assert found == quality(chain, 50, block=40)


class InOrder:
    """A selection map of one dataset."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, int]:
        return 0, index


# --- chains --------------------------------------------------------------------------------------


class Unreadable:
    """A source that declares its blocks and cannot be read."""

    fingerprint = "unreadable"

    def __init__(self, blocks: Any) -> None:
        self._blocks = blocks

    def __len__(self) -> int:
        return 1_000

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("nothing is to be read")

    def blocks(self) -> Any:
        return self._blocks


def not_called(*_: Any) -> Any:
    raise AssertionError("no function is to be called")


def test_nothing_is_read_and_no_function_is_called() -> None:
    data = MapDataset.source(Unreadable(np.arange(0, 1_001, 20)))
    chain = data.map(not_called).map(not_called, batched=True).shuffle(1)
    stream = chain.random_map(not_called, seed=1).map_with_index(not_called).to_iter_dataset()
    found = quality(stream.filter(not_called).batch(25).map(not_called))
    assert found.blocks == 50
    assert found.blocks_per_batch == pytest.approx(found.blocks_per_batch_shuffled, rel=0.02)
    assert found.notes == ("filters are assumed to drop nothing",)


def test_blocks_whose_records_are_not_consecutive() -> None:
    # Block k has the records k, k + 10, k + 20, ...: in order a batch of 10 has one of each.
    places = np.arange(1_000).reshape(100, 10).T.ravel()
    source = Unreadable(Blocks(np.arange(0, 1_001, 100), lambda at: places[at]))
    found = quality(MapDataset.source(source).batch(10))
    assert (found.blocks, found.blocks_per_batch) == (10, 10)


def test_bounds_of_blocks_may_be_given() -> None:
    found = quality(range(100), 10, block=[0, 5, 50, 100])
    assert (found.blocks, found.blocks_per_batch) == (3, 1.1)


def test_a_zip_has_the_quality_of_its_datasets() -> None:
    images, labels = np.zeros((640, 2)), np.zeros(640)
    both = MapDataset.zip([MapDataset.source(images), MapDataset.source(labels)])
    found = quality(both.batch(32), block=32)
    assert (found.records, found.batch_size, found.blocks) == (640, 32, 40)
    assert found.blocks_per_batch == 2
    assert found.variance_ratio == pytest.approx(in_order(640, 32))


def test_ranks_run_on_over_several_sources() -> None:
    parts = [MapDataset.source(np.arange(n)) for n in (20, 10)]
    found = quality(MapDataset.concatenate(parts).batch(5), block=5)
    assert found.variance_ratio == quality(MapDataset.range(30).batch(5)).variance_ratio
    assert found.notes == ("ranks run on over 2 sources, one after the other",)


@pytest.mark.parametrize("times", [None, 3])
def test_a_repeat_is_looked_at_by_its_epochs(times: int | None) -> None:
    chain = MapDataset.range(640).batch(32)
    assert quality(chain.repeat(times), block=10) == quality(chain, block=10)
    shuffled = MapDataset.range(640).shuffle(1).to_iter_dataset().repeat(times).batch(32)
    assert quality(shuffled).variance_ratio == pytest.approx(1, rel=0.15)


@pytest.mark.parametrize("batch", [7, 10, 30, 99])
def test_batches_that_go_over_epochs_are_looked_at_until_one_ends_with_an_epoch(batch: int) -> None:
    found = quality(MapDataset.range(100).repeat().batch(batch), block=10)
    epochs = batch // math.gcd(batch, 100)
    assert found.records == 100
    ratio, different, _ = by_hand(list(range(100)) * epochs, batch, 10)
    # By hand the records of all these epochs are shuffled, and here the records of one.
    ratio *= (100 * epochs - batch) / (100 * epochs - 1) / ((100 - batch) / 99)
    check(found, (ratio, different, 10 * (1 - math.comb(90, batch) / math.comb(100, batch))))


def test_a_batch_of_more_than_an_epoch_has_no_ratio() -> None:
    found = quality(MapDataset.range(30).shuffle(1).repeat().batch(70), block=10)
    assert (found.records, found.batch_size, found.variance_ratio) == (30, 70, None)
    assert "a batch is more than an epoch, in any order" in str(found)
    assert (found.blocks_per_batch, found.blocks_per_batch_shuffled) == (3, 3)


@pytest.mark.parametrize("records", [1, 10])
def test_an_epoch_of_one_batch_has_no_ratio(records: int) -> None:
    found = quality(MapDataset.range(records).batch(10), records, block=2)
    assert (found.variance_ratio, found.worth) == (None, None)
    assert found.blocks_per_batch == found.blocks_per_batch_shuffled == -(-records // 2)
    assert "an epoch is one batch, in any order" in str(found)


@pytest.mark.parametrize("order", [[0] * 10, [7, 7, 7]])
def test_one_record_over_and_over_has_no_ratio(order: list[int]) -> None:
    found = quality(order, 2)
    assert (found.variance_ratio, found.worth, found.records) == (None, None, len(order))
    assert "all records have the same rank, so all batches have the same mean" in str(found)
    assert "one batch" not in str(found)


def test_a_chain_without_a_batch_is_looked_at_as_if_it_had_one() -> None:
    chain = MapDataset.range(640).block_shuffle(1, block=10, window_blocks=8)
    found = quality_of(chain.map(not_called)._node)
    assert found is not None
    asked = quality(chain, 64)
    assert asked.notes[:-1] == ()
    assert found == dataclasses.replace(
        asked, notes=("the chain has no batch: as if .batch(64) were put on top", *asked.notes)
    )
    assert quality_of(chain._node, batch_size=16) == quality(chain, 16)


# --- as JSON and as text -------------------------------------------------------------------------


def test_json_and_text() -> None:
    found = quality(MapDataset.range(1_000).shuffle(1).batch(50), block=10)
    plain = json.loads(json.dumps(found.to_json()))
    assert plain["variance_ratio"] == found.variance_ratio
    assert (plain["batch_size"], plain["is_exact"], plain["notes"]) == (50, False, [])
    assert str(found).splitlines() == [
        "batches of 50 of 1,000 records",
        f"  blocks in a batch: ≈{found.blocks_per_batch:.3g} of 100; under a global shuffle"
        f" ≈{found.blocks_per_batch_shuffled:.3g}",
        f"  variance of batch means on sorted data: ≈{found.variance_ratio:.3g} times the variance of"
        " a global shuffle",
        f"  so a batch is worth ≈{found.worth:.3g} records drawn at random from the epoch",
    ]
    plain_order = str(quality(MapDataset.range(100_000).batch(2_000), block=10)).splitlines()
    assert plain_order[2].startswith("  variance of batch means on sorted data: 2,040 times")


def test_without_blocks_the_text_says_so() -> None:
    found = quality(MapDataset.range(1_000).batch(50))
    assert (found.blocks, found.blocks_per_batch, found.blocks_per_batch_shuffled) == (None,) * 3
    assert "blocks are not counted: a source declares no blocks, or too many" in str(found)
    assert quality(MapDataset.source(Unreadable(None)).batch(50)).blocks is None


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: quality(MapDataset.range(9)), windrow.errors.PlanError),
        (lambda: quality([], 2), windrow.errors.PlanError),
        (lambda: quality(range(9), 0), windrow.errors.PlanError),
        (lambda: quality(range(9), 2.5), windrow.errors.ArgumentError),
        (lambda: quality(range(9), 2, block=0), windrow.errors.PlanError),
        (lambda: quality("abc", 2), windrow.errors.ArgumentError),
        (lambda: quality([1.5], 2), windrow.errors.ArgumentError),
        (lambda: quality([-1, 2], 2), windrow.errors.RecordIndexError),
        (lambda: quality(range(9), 2, block=[0, 8]), windrow.errors.PlanError),
        (lambda: quality(range(9), 2, block=[1, 9]), windrow.errors.PlanError),
        (lambda: quality(range(9), 2, block=[0.5, 9]), windrow.errors.ArgumentError),
        (lambda: quality(MapDataset.range(9), 2, block=[0, 8]), windrow.errors.PlanError),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


def test_a_huge_batch_is_refused() -> None:
    chain = MapDataset.range(10**12).batch(10**5).batch(10**5)
    with pytest.raises(windrow.errors.PlanError, match="a batch has 10000000000 records"):
        quality(chain)
    assert quality_of(chain._node) is None


def test_a_zip_of_batches_that_differ_in_size_has_no_quality() -> None:
    data = MapDataset.range(12)
    zipped = MapDataset.zip([data.batch(4), data.repeat(2).batch(8)])
    with pytest.raises(windrow.errors.PlanError, match="batches of different sizes"):
        quality(zipped)
    assert quality_of(zipped._node) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: MapDataset.range(0),
        lambda: MapDataset.range(0).batch(2),
        lambda: MapDataset.range(1).batch(2, drop_remainder=True),
        lambda: MapDataset.concatenate([MapDataset.range(9), MapDataset.range(9).batch(2)]),
    ],
)
def test_a_chain_without_elements_that_are_batches_has_no_quality(make: Callable[[], Any]) -> None:
    assert quality_of(make()._node) is None
