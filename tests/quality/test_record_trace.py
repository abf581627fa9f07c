"""Traces of chains: which records elements are made of, in the order in which they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import windrow
from tests.traces import in_rows
from windrow import MapDataset
from windrow.engine.record_trace import Trace, leaves_of, trace
from windrow.transforms.nodes.random_access import with_random_access

N = 37
STREAMS: dict[str, Callable[[], Any]] = {
    "in order": lambda: MapDataset.range(N),
    "reversed": lambda: MapDataset.range(N)[::-1],
    "block_shuffle": lambda: MapDataset.range(N).block_shuffle(1, block=4, window_blocks=3),
    "batch of batch": lambda: MapDataset.range(36).shuffle(2).batch(4).shuffle(3).batch(2),
    "repeat": lambda: MapDataset.range(N).shuffle(2).repeat(3).batch(5),
    "same repeat": lambda: MapDataset.range(N).shuffle(2).repeat(2, reseed_each_epoch=False),
    "mix": lambda: MapDataset.mix([MapDataset.range(N).shuffle(1), MapDataset.range(N)], [2, 1]),
    "shuffled batches": lambda: MapDataset.range(N).batch(5).shuffle(3),
    "mix of batches": lambda: MapDataset.mix(
        [MapDataset.range(36).batch(4).shuffle(1), MapDataset.range(36)[::-1].batch(3)]
    ).shuffle(2),
    "concatenate": lambda: MapDataset.concatenate(
        [MapDataset.range(20)[::2].batch(3), MapDataset.range(N).shuffle(1).batch(7)]
    ),
    "stream window": lambda: MapDataset.range(N).to_iter_dataset().window_shuffle(5, 3).batch(4),
    "stream repeat": lambda: MapDataset.range(N).shuffle(1).to_iter_dataset().repeat(2).batch(5),
    "stream limit": lambda: MapDataset.range(N).to_iter_dataset().limit(11).window_shuffle(7, 2),
    "endless limit": lambda: MapDataset.range(N).shuffle(1).repeat().to_iter_dataset().limit(90),
    "drop": lambda: MapDataset.range(N).to_iter_dataset().batch(5, drop_remainder=True),
    "workers": lambda: MapDataset.range(N).shuffle(3).to_iter_dataset().batch(4).mp_prefetch(0),
}


def traced(dataset: Any, count: int) -> Trace:
    """What the first elements are made of."""
    return trace(with_random_access(dataset._node), np.arange(count))


def by_leaf(dataset: Any, count: int) -> list[tuple[int, int]]:
    """The number of each leaf in the chain, with the records of each row; of the first elements."""
    node = with_random_access(dataset._node)
    numbers = {key: number for number, key in enumerate(leaves_of(node))}
    rows: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for taken in trace(node, np.arange(count)).taken:
        for row, record in zip(taken.rows.tolist(), taken.records.tolist(), strict=True):
            rows[row].append((numbers[id(taken.leaf)], record))
    return [pair for row in rows for pair in row]


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS.keys())
def test_the_order_is_that_of_the_elements(make: Callable[[], Any]) -> None:
    dataset = make()
    elements = [np.ravel(element).tolist() for element in dataset]
    found = traced(dataset, len(elements))
    ends = np.cumsum(found.counts)[:-1]
    # Elements of a range are their own indices; a mixture takes both from one range.
    assert [part.tolist() for part in np.split(in_rows(found), ends)] == elements


def test_ranks_count_on_over_the_sources() -> None:
    first, second = np.arange(10), np.arange(20)
    data = MapDataset.concatenate([MapDataset.source(second), MapDataset.source(first)])
    places = [(0, k) for k in range(15, 20)] + [(1, k) for k in range(5)]
    assert by_leaf(data[15:25], 10) == places
    # In order, ranks that run on over both have the numbers of one source of 30 records.
    one = windrow.shuffle_quality(MapDataset.range(30).batch(5)).variance_ratio
    assert windrow.shuffle_quality(data.batch(5)).variance_ratio == one
    assert windrow.shuffle_quality(data.batch(5), block=5).notes == (
        "ranks run on over 2 sources, one after the other",
    )


def test_streams_of_streams() -> None:
    streams = [MapDataset.source(np.arange(n)).to_iter_dataset() for n in (12, 9)]
    mixed = windrow.IterDataset.mix(streams)
    assert by_leaf(mixed, 6) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]
    zipped = windrow.IterDataset.zip(streams, strict=False)
    assert with_random_access(zipped._node).length == 9
    assert by_leaf(zipped, 2) == [(0, 0), (1, 0), (0, 1), (1, 1)]
