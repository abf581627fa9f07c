"""Parts of batches: any of the equal parts of each batch, as a process with some devices takes them."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hypothesis_profiles import examples
from windrow import DatasetIterator, IterDataset, MapDataset, ReadOptions
from windrow.errors import PlanError
from windrow.transforms.nodes import BatchParts, shared

OPTIONS = [ReadOptions(num_threads=0, prefetch_buffer_size=0), ReadOptions()]


def parts_of(dataset: IterDataset[Any], parts: tuple[int, ...], count: int, *, even: bool) -> Any:
    """An iterator over some parts of each batch."""
    return DatasetIterator[Any](shared(dataset._node, BatchParts(parts, count, None, is_even=even)))


def taken(batch: list[int], parts: tuple[int, ...], count: int, rows: int) -> list[int]:
    """The rows of a batch that parts of `rows` rows have."""
    return [n for part in parts for n in batch[part * rows : (part + 1) * rows]]


def drawn_parts(data: st.DataObject, count: int) -> tuple[int, ...]:
    chosen = data.draw(st.sets(st.integers(0, count - 1), min_size=1), "parts")
    return tuple(sorted(chosen))


@given(data=st.data())
@settings(max_examples=examples(60))
def test_parts_with_random_access(data: st.DataObject) -> None:
    count = data.draw(st.sampled_from([1, 2, 3, 4, 6]), "count")
    size = count * data.draw(st.integers(1, 4), "rows")
    parts, is_even = drawn_parts(data, count), data.draw(st.booleans(), "even")
    length = data.draw(st.integers(1, 50), "length")
    length += -length % count if is_even else 0
    options = data.draw(st.sampled_from(OPTIONS), "options")
    dataset = MapDataset.range(length).shuffle(seed=1).batch(size).to_iter_dataset(options)
    whole = [batch.tolist() for batch in dataset]
    expected = [
        taken(batch, parts, count, len(batch) // count if is_even else size // count)
        for batch in whole
    ]
    iterator = parts_of(dataset, parts, count, even=is_even)
    cut = data.draw(st.integers(0, len(whole)), "cut")
    assert [next(iterator).tolist() for _ in range(cut)] == expected[:cut]
    again = parts_of(dataset, parts, count, even=is_even)
    again.set_state(json.loads(json.dumps(iterator.get_state())))
    assert [batch.tolist() for batch in again] == expected[cut:]


@given(data=st.data())
@settings(max_examples=examples(40))
def test_parts_of_lanes(data: st.DataObject) -> None:
    lanes = data.draw(st.sampled_from([1, 2, 4, 8]), "lanes")
    count = data.draw(st.sampled_from([1, 2, 4, 8, 16]), "count")
    parts, size = drawn_parts(data, count), 16
    options = data.draw(st.sampled_from(OPTIONS), "options")
    stream = MapDataset.range(100).to_iter_dataset(options, lanes=lanes).filter(lambda n: n % 3)
    if data.draw(st.booleans(), "window"):
        stream = stream.window_shuffle(5, seed=2)
    dataset = stream.repeat().batch(size)
    whole = [batch.tolist() for batch in itertools.islice(dataset, 6)]
    iterator = parts_of(dataset, parts, count, even=True)
    found = [batch.tolist() for batch in itertools.islice(iterator, 6)]
    assert found == [taken(batch, parts, count, size // count) for batch in whole]


@pytest.mark.parametrize("remainder", ["keep", "pad", "drop"])
@pytest.mark.parametrize("parts", [(0, 2), (1, 3), (0, 3), (0, 1, 3)])
def test_parts_of_a_finite_stream(parts: tuple[int, ...], remainder: Any) -> None:
    stream = MapDataset.range(27).to_iter_dataset(lanes=4).batch(8, remainder=remainder)
    singles = [parts_of(stream, (part,), 4, even=False) for part in parts]
    expected = []
    for batches in zip(*singles, strict=True):
        rows = [batch if remainder == "pad" else (batch,) for batch in batches]
        expected.append([np.concatenate(leaf).tolist() for leaf in zip(*rows, strict=True)])
    found = [
        [leaf.tolist() for leaf in (batch if remainder == "pad" else (batch,))]
        for batch in parts_of(stream, parts, 4, even=False)
    ]
    assert found == expected
    assert len(found) == (3 if remainder == "drop" else 4)


def test_a_last_batch_without_equal_parts_is_refused() -> None:
    dataset = MapDataset.range(21).batch(8).to_iter_dataset()
    with pytest.raises(PlanError, match=r"last batch has 5 rows, .* no equal parts for 4"):
        parts_of(dataset, (0,), 4, even=True)
