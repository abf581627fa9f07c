"""What `explain` predicts against what is counted: reads, bytes and buffers, over every kind of chain."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from tests.explained_chains import CASES, SHORT, SMALL, Dataset, Stores, nodes_of, write_stores
from tests.range_server import RangeServer
from windrow import DatasetIterator, Explanation, MapDataset, Stats
from windrow.costs import Amount, SourceCosts
from windrow.sources import ZarrDataSource
from windrow.transforms import block_nodes, nodes, streams

COLUMNS = ("records", "pieces", "reads", "stored_bytes", "decoded_bytes", "delivered_bytes", "hits")


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    folder = tmp_path_factory.mktemp("stores")
    write_stores(folder)
    with RangeServer(folder) as server:
        yield Stores(folder, server)


def short_queue(dataset: Dataset) -> Dataset:
    if isinstance(dataset, MapDataset):
        return dataset.to_iter_dataset(SHORT)
    return dataset


def counted(dataset: Dataset) -> Stats:
    """The stats of an epoch whose consumer is slower than the loader."""
    with iter(dataset) as iterator:
        for number, _ in enumerate(iterator):
            if number % 8 == 0:
                _wait_for_full_queue(iterator)
        return iterator.stats()


def _wait_for_full_queue(iterator: DatasetIterator[Any]) -> None:
    """Until the loader waits for room; it never does when all is made, so not for ever."""
    before_s = iterator.stats().blocked_s
    for _ in range(100):
        if iterator.stats().blocked_s > before_s:
            return


def misses(predicted: SourceCosts, found: SourceCosts, explanation: Explanation) -> list[str]:
    """The columns in which what was counted is not what was told."""
    wrong = []
    for name in COLUMNS:
        told, was = getattr(predicted, name), getattr(found, name)
        unknown = any(
            f"bytes of the records of {predicted.source}" in u for u in explanation.unknown
        )
        if unknown and name in ("delivered_bytes", "decoded_bytes") and not told.high:
            continue
        if (told is None) != (was is None) or (told is not None and was.low not in told):
            wrong.append(f"{name}: told {told}, counted {was}")
    return wrong


@pytest.mark.parametrize("name", CASES)
def test_what_is_told_happens(stores: Stores, name: str) -> None:
    case = CASES[name]
    dataset = short_queue(case.make(stores))
    explanation, stats = dataset.explain(), counted(dataset)
    assert len(explanation.epoch) == len(stats.sources)
    for predicted, found in zip(explanation.epoch, stats.sources, strict=True):
        assert predicted.source == found.source
        assert misses(predicted, found, explanation) == []
    are_exact = [p.reads.is_exact and p.decoded_bytes.is_exact for p in explanation.epoch]
    assert all(are_exact) == case.exact
    assert stats.elements in explanation.batches
    if case.knows_bytes:
        told = explanation.buffers
        near = Amount(0.8 * told.low, 1.2 * told.high)
        assert stats.peak_buffers_bytes in near, (explanation.buffers_by, stats.peak_by)
        pieces = explanation.buffers_by["pieces"].low
        assert 0.8 * pieces <= stats.peak_by.get("pieces", 0) <= 1.2 * pieces


def test_intervals_are_worth_telling(stores: Stores) -> None:
    # A shuffle over a store that does not fit: within a third of the middle, and more than once.
    for name in ("chunks shuffled, little room", "ArrayRecord in groups, shuffled, little room"):
        (costs,) = CASES[name].make(stores).explain().epoch
        assert costs.pieces.high < costs.reads.low
        assert costs.reads.high - costs.reads.low < 2 / 3 * costs.reads.middle


def test_a_store_over_a_network(stores: Stores) -> None:
    with RangeServer(stores / "chunks") as server:
        source = ZarrDataSource(server.url(""))
        dataset = MapDataset.source(source).block_shuffle(seed=1).batch(32)
        before = server.counts().requests
        explanation = dataset.explain()
        assert server.counts().requests == before  # what tells the layout was read when it opened
        stats = counted(short_queue(dataset))
        (predicted,), (found,) = explanation.epoch, stats.sources
        assert predicted.reads.is_exact
        assert predicted.reads == found.reads == Amount.exactly(100)
        assert predicted.decoded_bytes == found.decoded_bytes
        asked = server.counts().requests - before
        assert 100 / 8 <= asked <= 100  # neighbours in one request


def test_later_epochs_of_what_fits_are_kept(stores: Stores) -> None:
    chain = MapDataset.source(ZarrDataSource(stores / "chunks")).shuffle(seed=1)
    explanation = chain.repeat().batch(30).explain()
    assert explanation.is_endless
    assert explanation.length is None
    assert explanation.epoch[0].reads == Amount.exactly(100)
    assert explanation.later_epoch[0].reads == Amount.exactly(0)
    little = chain.repeat().batch(30).to_iter_dataset(SMALL).explain()
    assert little.later_epoch[0].reads.low > 100


def test_the_same_pieces_in_several_passes(stores: Stores) -> None:
    chain = MapDataset.source(ZarrDataSource(stores / "chunks")).batch(40)
    dataset = chain.to_iter_dataset(SMALL).repeat(3)
    (costs,) = dataset.explain().epoch
    assert (costs.pieces.low, costs.reads.low, costs.records.low) == (100, 300, 12_000)
    (found,) = counted(dataset).sources
    assert found.reads == costs.reads
    assert found.decoded_bytes == costs.decoded_bytes


def test_an_epoch_in_batches(stores: Stores) -> None:
    explanation = CASES["chunks by blocks, little room"].make(stores).explain()
    (epoch,), (batch,) = explanation.epoch, explanation.batch
    assert explanation.batches == Amount.exactly(250)
    assert batch.reads.low == pytest.approx(epoch.reads.low / 250)
    assert batch == dataclasses.replace(epoch.times(1 / 250))


def _classes(*modules: Any) -> set[type]:
    """The public classes of nodes that are written in modules, but for abstract ones."""
    return {
        value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, nodes.Node)
        and value.__module__ == module.__name__
        and not name.startswith("_")
        and not inspect.isabstract(value)
    }


def test_every_node_is_in_a_chain(stores: Stores) -> None:
    met = {type(node) for case in CASES.values() for node in nodes_of(case.make(stores))}
    known = _classes(nodes, streams, block_nodes)
    assert len(known) > 20
    assert known - met == set()
