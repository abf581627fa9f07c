"""Streams that never end, or are longer than any run: what explain() reports, and iterating them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.hypothesis_profiles import examples
from windrow import IterDataset, MapDataset
from windrow.stats.costs import Amount

# Runs are compared with predictions, which takes long. A part of `make test-brief`.
pytestmark = pytest.mark.jobs


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


# What is repeated never ends, although a batch or a slice made its length smaller.
@example(names=["batch", "repeat", "window_shuffle"])
@example(names=["batch", "repeat", "repeat", "repeat", "window_shuffle"])
# The dry run is cut after a third of the elements, when most has been read ahead.
@example(names=["mix", "mix", "window_shuffle", "window_shuffle"])
@settings(max_examples=examples(30))
@given(names=st.lists(st.sampled_from(sorted(MORE)), max_size=4))
def test_endless_streams_with_filters(names: list[str]) -> None:
    stream = endless(5).filter(kept)
    for name in names:
        stream = MORE[name](stream)
    explanation = stream.explain()
    assert json.dumps(explanation.to_json(), allow_nan=False)
    assert explanation.is_endless == _is_endless(names)
    if "workers" in names:
        return
    if explanation.is_endless:
        with iter(stream) as iterator:
            assert len(list(itertools.islice(iterator, 12))) == 12
        return
    with iter(stream) as iterator:
        assert sum(1 for _ in iterator) in explanation.batches
        found = iterator.stats().sources
    for told, was in zip(explanation.epoch, found, strict=True):
        assert told.records.low <= was.records.low
        assert any("drops an unknown part" in line for line in explanation.unknown)


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


@pytest.mark.parametrize(
    "make",
    [
        lambda: endless(5).batch(3, batch_fn=len),
        lambda: endless(5).filter(kept).batch(3, batch_fn=len),
        lambda: MapDataset.source(np.arange(5)).repeat()[::2].to_iter_dataset().batch(3),
        lambda: MapDataset.source(np.arange(5)).repeat().batch(3).to_iter_dataset(),
    ],
)
@pytest.mark.parametrize("times", [2, 10**18])
def test_to_repeat_an_endless_stream_changes_nothing(
    make: Callable[[], IterDataset[Any]], times: int
) -> None:
    once = make().window_shuffle(4, seed=1).explain()
    for stream in (make().repeat(times), make().repeat(times).repeat(times)):
        explanation = stream.window_shuffle(4, seed=1).explain()
        assert explanation.is_endless
        assert explanation.batches == once.batches
        assert explanation.quality == once.quality is not None


def test_repeats_may_have_more_records_than_64_bits_count() -> None:
    records = MapDataset.source(np.arange(5)).repeat(10**18).to_iter_dataset()
    stream = records.batch(3, batch_fn=len).repeat(10**18).repeat(10**18).window_shuffle(4, seed=1)
    explanation = stream.explain()
    assert not explanation.is_endless
    assert explanation.batches == Amount.exactly((5 * 10**18 // 3 + 1) * 10**36)
    assert explanation.quality is not None
    with iter(stream) as iterator:
        assert list(itertools.islice(iterator, 30)) == [3] * 30


@pytest.mark.parametrize("size", [1, 7, 8, 20, 21])
def test_an_epoch_of_an_endless_chain_reads_all_records(size: int) -> None:
    endless = MapDataset.source(np.arange(20)).shuffle(seed=1).repeat().batch(size)
    (costs,) = endless.explain().epoch
    assert costs.records == Amount.exactly(size * -(-20 // size))
