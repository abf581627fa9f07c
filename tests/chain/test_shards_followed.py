"""What follows a shard, and a batch of lanes: the rows of the whole chain's batches, or a PlanError."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import windrow
from tests.chain.test_chain_laws import Counting
from windrow import DatasetIterator, IterDataset, MapDataset, ReadOptions
from windrow.errors import ElementError, PlanError, StateError

M = MapDataset
SYNCHRONOUS = ReadOptions(num_threads=0, prefetch_buffer_size=0)
MOST = 12
Share = tuple[int, int] | None
Make = Callable[[Share], Any]


def not_of_five(number: int) -> bool:
    return number % 5 != 0


def of(dataset: Any, share: Share) -> Any:
    return dataset if share is None else dataset.shard(*share)


def lanes_of(count: int) -> Make:
    def make(share: Share) -> Any:
        return of(M.range(100).to_iter_dataset(SYNCHRONOUS, lanes=count).batch(24), share)

    return make


def filtered(share: Share) -> Any:
    numbers = M.range(50).shuffle(1).to_iter_dataset(SYNCHRONOUS, lanes=4)
    return of(numbers.window_shuffle(5, 2).filter(not_of_five).repeat().batch(16), share)


def mixed(share: Share) -> Any:
    parts = [M.range(n, n + 40).to_iter_dataset(SYNCHRONOUS, lanes=2) for n in (0, 100)]
    return of(IterDataset.mix(parts, [2, 1]).batch(8), share)


def random_access(share: Share) -> Any:
    return of(M.range(43).shuffle(1).batch(8), share).to_iter_dataset(SYNCHRONOUS)


def packed(share: Share) -> Any:
    documents = [np.full(length, length) for length in (3, 6, 2, 5, 4, 7, 1) * 8]
    rows = M.source(documents).shuffle(0).pack(8, read_options=SYNCHRONOUS).batch(8)
    return of(rows, share)


STREAMS: dict[str, Make] = {
    "a lane": lanes_of(1),
    "two lanes": lanes_of(2),
    "three lanes": lanes_of(3),
    "eight lanes": lanes_of(8),
    "filtered": filtered,
    "mixed": mixed,
    "random access": random_access,
    "packed": packed,
}
FOLLOWED: dict[str, Callable[[Any], Any]] = {
    "limit": lambda s: s.limit(3),
    "cache, repeat": lambda s: s.limit(3).cache().repeat(3),
    "window_shuffle": lambda s: s.limit(5).window_shuffle(3, seed=4),
    "mix": lambda s: IterDataset.mix([s, s.limit(4)], [2, 1], at_end="drop"),
}


def rows_of(element: Any) -> list[Any]:
    if isinstance(element, dict):
        return [tuple(map(tuple, row)) for row in zip(*element.values(), strict=True)]
    found: list[Any] = element.tolist()
    return found


def taken(iterators: list[DatasetIterator[Any]], most: int = MOST) -> list[list[Any]]:
    """The batches of all shards together."""
    parts = [[rows_of(batch) for batch in itertools.islice(each, most)] for each in iterators]
    return [list(itertools.chain.from_iterable(batch)) for batch in zip(*parts, strict=True)]


def opened(make: Make, count: int) -> list[DatasetIterator[Any]]:
    shares = [None] if count == 1 else [(index, count) for index in range(count)]
    return [iter(make(share)) for share in shares]


def merged(iterators: list[DatasetIterator[Any]]) -> dict[str, Any]:
    return windrow.merge_states([json.loads(json.dumps(each.get_state())) for each in iterators])


@pytest.mark.parametrize("follows", FOLLOWED)
@pytest.mark.parametrize("name", ["a lane", "three lanes", "filtered", "random access", "packed"])
def test_a_state_of_shards_resumes_on_any_number(name: str, follows: str) -> None:
    def make(share: Share) -> Any:
        return FOLLOWED[follows](STREAMS[name](share))

    whole = taken(opened(make, 1))
    runs = [opened(make, count) for count in (1, 2, 4)]
    for step in range(len(whole) + 1):
        states = [merged(run) for run in runs]
        assert all(state["rows"] == step for state in states)
        assert all(state["lanes"] == states[0]["lanes"] for state in states)
        count = (1, 2, 4, 8)[step % 4]
        resumed = opened(make, count)
        for each in resumed:
            each.set_state(states[step % 3])
        assert taken(resumed, MOST - step) == whole[step:]
        for each in itertools.chain.from_iterable(runs):
            next(each, None)


@pytest.mark.parametrize("name", ["a lane", "two lanes", "eight lanes", "mixed", "random access"])
def test_shards_skip_and_name_their_records(name: str) -> None:
    def make(share: Share) -> Any:
        return STREAMS[name](share).limit(3).repeat(2)

    for share in ((0, 4), (3, 4)):
        stream = make(share)
        batches = [batch.tolist() for batch in stream]
        for step in range(len(batches)):
            iterator = iter(stream)
            assert iterator.skip(step) == step
            assert next(iterator).tolist() == batches[step]
            iterator.seek(step)
            assert next(iterator).tolist() == batches[step]
            named = stream.records_of(step)
            assert iterator.records_of_last() == named
            if name not in ("mixed", "random access"):
                assert [record for _, record in named] == batches[step]
        explanation = stream.explain()
        assert explanation.length == len(batches)


def test_a_state_of_one_shard_lacks_the_lanes_of_others() -> None:
    def make(share: Share) -> Any:
        return lanes_of(4)(share).limit(3)

    first, second = opened(make, 2)
    assert (next(first).tolist(), next(second).tolist())[0][:2] == [0, 4]
    state = first.get_state()
    assert state["lanes"] == [[21, 22, None, None, 24, 1]]
    assert first.has_lanes_of(state)
    assert not second.has_lanes_of(state)
    with pytest.raises(StateError, match="no position of lanes 2, 3"):
        second.set_state(state)
    with pytest.raises(StateError, match="some lanes that a batch joins"):
        windrow.merge_states([state])
    with pytest.raises(StateError, match="lane 0 is at"):
        windrow.merge_states([state, {**state, "lanes": [[20, *state["lanes"][0][1:]]]}])
    assert first.has_lanes_of(merged([first, second]))


def test_what_follows_an_agreement_on_the_end_is_refused() -> None:
    stream = M.range(40).to_iter_dataset().filter(not_of_five).batch(8, drop_remainder=True)
    shard = stream.shard(0, 2, agree=bool)
    assert shard.read_spec().shape == (4,)
    with pytest.raises(PlanError, match=r"limit.* comes after shard.*agree"):
        shard.limit(2)
    with pytest.raises(PlanError, match=r"rebatch comes after shard.*agree"):
        shard.rebatch(4)


# --- a batch of lanes ------------------------------------------------------------------------------


def whole_lanes() -> IterDataset[Any]:
    return M.range(26).to_iter_dataset(SYNCHRONOUS, lanes=2).batch(8)


def test_lanes_that_do_not_divide_a_batch_are_refused_where_it_is_followed() -> None:
    with pytest.raises(PlanError, match="9 rows cannot be taken equally from 2 lanes"):
        M.range(9).to_iter_dataset(lanes=2).batch(9).cache()
    with pytest.raises(PlanError, match="streams with 1 and 2 lanes"):
        IterDataset.mix([whole_lanes(), M.range(9).to_iter_dataset(lanes=2)])
    stream = M.range(8).to_iter_dataset(lanes=2).batch(4, batch_fn=sum)
    assert list(stream.cache()) == list(stream)
    with pytest.raises(PlanError, match=r"on_bad: .*2 lanes by a function"):
        stream.on_bad("skip")


@pytest.mark.parametrize("count", [1, 5, 8, 9, 11, 12, 20])
def test_limit_gives_the_first_elements_of_lanes_that_end_apart(count: int) -> None:
    long = M.range(12).to_iter_dataset(SYNCHRONOUS, lanes=3)
    parts = [M.range(n).to_iter_dataset(SYNCHRONOUS, lanes=3) for n in (2, 10)]
    uneven = IterDataset.interleave([M.range(4).to_iter_dataset(SYNCHRONOUS, lanes=3)] * 3, 3)
    for stream in (long, IterDataset.interleave(parts, 2), long.limit(10), uneven):
        whole = list(stream)
        assert list(stream.limit(count)) == whole[:count]
        assert stream.limit(count).explain().length == len(whole[:count])
        iterator = iter(stream.limit(count))
        assert iterator.skip(7) == len(whole[:count][:7])
        assert list(iterator) == whole[:count][7:]


# --- limit, and lanes that end -----------------------------------------------------------------------


def test_a_limit_of_lanes_of_unknown_lengths_is_refused() -> None:
    stream = M.range(40).to_iter_dataset(lanes=4).filter(not_of_five)
    with pytest.raises(PlanError, match=r"limit: how many elements filter.* each of 4 lanes"):
        stream.limit(7)
    assert list(stream.limit(40)) == list(stream)  # there are no more
    with pytest.raises(PlanError, match="limit: how many elements"):
        M.range(40).to_iter_dataset(lanes=4).map(float).limit(7).on_bad("skip")
    assert len(list(stream.repeat().limit(70))) == 70
    assert len(next(iter(stream.read_spec() and stream.batch(4).limit(2)))) == 4
    even = M.range(12).to_iter_dataset(lanes=2).filter(lambda n: n % 2 == 0).repeat()
    with pytest.raises(PlanError, match="lane 1 of 2 has no row"):
        list(even.limit(8))


def below(count: int) -> Callable[[int], int | None]:
    """A function that makes all but the first elements absent."""
    return lambda n: n if n < count else None


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_a_shard_of_lanes_says_that_it_cannot_know_the_end(drop_remainder: bool) -> None:
    lanes = M.range(8).map(below(5)).to_iter_dataset(SYNCHRONOUS, lanes=2)
    batches = iter(lanes.batch(4, drop_remainder=drop_remainder).shard(1, 2))
    assert next(batches).tolist() == [1, 3]
    with pytest.raises(
        ElementError, match=r"lane 1 of 2 ended after 2 of 4 .* returned None .* filter"
    ):
        next(batches)


@pytest.mark.parametrize("remainder", ["keep", "pad", "drop"])
def test_a_stream_with_fewer_elements_than_lanes_has_shards(remainder: Any) -> None:
    source = Counting(2)
    stream = M.source(source).map(float).to_iter_dataset(SYNCHRONOUS, lanes=8)
    batches = stream.batch(8, remainder=remainder)
    parts = [list(batches.shard(index, 4)) for index in range(4)]
    assert {len(part) for part in parts} == {0 if remainder == "drop" else 1}
    if remainder == "keep":
        assert [part[0].tolist() for part in parts] == [[0.0, 10.0], [], [], []]
        assert {part[0].dtype for part in parts} == {np.dtype(np.float64)}
    if remainder == "pad":
        assert [part[0][1].tolist() for part in parts] == [[True, True], *[[False] * 2] * 3]
    assert batches.shard(3, 4).explain().length == len(parts[0])
    assert [list(M.range(0).to_iter_dataset(lanes=2).batch(2).shard(n, 2)) for n in (0, 1)] == [
        [],
        [],
    ]


def test_a_batch_without_rows_has_the_tree_of_others() -> None:
    def element(number: int) -> Any:
        return {"list": [number, str(number)], "nested": ([np.ones(2)], "text")}

    empty: Any = {
        "list": [np.zeros(0, np.int64), []],
        "nested": ([np.zeros((0, 2))], []),
    }
    rows = M.range(3).map(element)
    chains = [rows.batch(8).shard(3, 4), rows.to_iter_dataset(lanes=8).batch(8).shard(3, 4)]
    for chain in chains:
        (batch,) = list(chain)
        assert repr(batch) == repr(empty)


# --- records of batches without rows ------------------------------------------------------------------


@pytest.mark.parametrize(("length", "size", "count"), [(22, 4, 2), (9, 8, 4), (9, 8, 8)])
def test_a_batch_without_rows_is_made_of_no_records(length: int, size: int, count: int) -> None:
    for index in range(count):
        dataset = M.range(length).batch(size).shard(index, count)
        chains: list[Any] = [dataset, dataset.to_iter_dataset().limit(9), M.zip([dataset] * 2)]
        for chain in chains:
            iterator = iter(chain)
            for number, batch in enumerate(iterator):
                own = batch[0].tolist() * 2 if isinstance(batch, tuple) else batch.tolist()
                assert sorted(r for _, r in iterator.records_of_last()) == sorted(own)
                assert sorted(r for _, r in chain.records_of(number)) == sorted(own)
