"""Lanes and shards: the same global rows in the same places, for any number of hosts."""

from __future__ import annotations

import itertools
import json
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.chain.test_chain_laws import Counting
from tests.hypothesis_profiles import examples
from windrow import IterDataset, MapDataset, ReadOptions
from windrow.errors import ArgumentError, PlanError, StateError

M = MapDataset
SYNCHRONOUS = ReadOptions(num_threads=0, prefetch_buffer_size=0)
OPTIONS = [SYNCHRONOUS, ReadOptions(), ReadOptions(2, 7)]
SIZES = [24, 48, 72]
SHARDS = [1, 2, 3, 4, 8]


def not_of_three(number: int) -> bool:
    return number % 3 != 0


def ten_more(number: int) -> int:
    return number + 10


def with_row(row: int, number: int) -> int:
    return row * 10_000 + number


def noisy(number: int, generator: np.random.Generator) -> int:
    return number + 3 * int(generator.integers(10**6))


def some(number: int) -> list[int]:
    return [number * 10 + n for n in range(number % 4)]


def as_tokens(number: int) -> dict[str, Any]:
    return {"tokens": np.full(number % 5 + 1, number)}


def as_number(row: dict[str, Any]) -> int:
    """A number that differs for rows of other tokens."""
    return zlib.crc32(row["tokens"].tobytes() + row["tokens_segment_ids"].tobytes())


def packed(stream: IterDataset[int], method: str) -> IterDataset[int]:
    if method == "concat":
        rows = stream.map(as_tokens).pack({"tokens": 8}, "concat_then_split")
    else:
        rows = stream.map(as_tokens).pack({"tokens": 8}, num_packing_bins=3, seed=4)
    return rows.map(as_number)


def drawn_stream(data: st.DataObject, options: ReadOptions) -> IterDataset[Any]:
    """A stream of 8 lanes, with stateful nodes."""
    chain: MapDataset[int] = M.range(data.draw(st.integers(64, 230), "length"))
    if data.draw(st.booleans(), "blocks"):
        chain = chain.block_shuffle(seed=3, block=data.draw(st.sampled_from([1, 3, 7])))
    stream = chain.map(ten_more).to_iter_dataset(options, lanes=8)
    steps = data.draw(st.lists(st.sampled_from("fwmlinrtpc"), max_size=4), "steps")
    for place, step in enumerate(steps):
        match step:
            case "f":
                stream = stream.filter(not_of_three)
            case "w":
                stream = stream.window_shuffle(5, seed=2)
            case "m":
                other = M.range(1000, 1500).to_iter_dataset(options, lanes=8)
                stream = IterDataset.mix([stream, other], [2, 1])
            case "l" if not {*steps[:place]} & {*"ftpc"}:  # else the first elements are not known
                stream = stream.limit(150)
            case "i":
                stream = stream.map_with_index(with_row)
            case "n":
                stream = stream.random_map(noisy, seed=7)
            case "r":
                stream = stream.repeat(2)
            case "t":
                stream = stream.flat_map(some)
            case "p":
                stream = packed(stream, "first_fit")
            case "c":
                stream = packed(stream, "concat")
    return stream


def rows(batches: Any) -> list[int]:
    return [row for batch in batches for row in batch.tolist()]


def run(
    dataset: IterDataset[Any], size: int, shards: int, state: Any, most: int
) -> tuple[list[list[int]], dict[str, Any]]:
    """The global batches of some shards from a state on, and the state after them."""
    parts, states = [], []
    for shard in range(shards):
        with iter(dataset.batch(size).shard(shard, shards)) as iterator:
            if state is not None:
                iterator.set_state(json.loads(json.dumps(state)))
            parts.append([batch.tolist() for batch in itertools.islice(iterator, most)])
            states.append(iterator.get_state())
    batches = [list(itertools.chain.from_iterable(b)) for b in zip(*parts, strict=True)]
    return batches, windrow.merge_states(states)


def has_rows(stream: IterDataset[Any]) -> bool:
    """Whether each lane has a row: else all refuse the stream."""
    try:
        with iter(stream.batch(8)) as iterator:
            next(iterator)
    except PlanError as error:
        if "has no row" not in str(error):
            raise
        return False
    return True


@given(data=st.data())
@settings(max_examples=examples(20))
def test_another_number_of_hosts_goes_on_with_the_next_row(data: st.DataObject) -> None:
    options = data.draw(st.sampled_from(OPTIONS), "options")
    stream = drawn_stream(data, options).repeat()
    if not has_rows(stream):
        return
    with iter(stream.batch(24)) as iterator:
        expected = rows(itertools.islice(iterator, 18))
    whole = np.array(expected).reshape(18, 8, 3).transpose(0, 2, 1).reshape(-1, 8)
    at, state, got = 0, None, list[list[int]]()
    for _ in range(3):
        size = data.draw(st.sampled_from(SIZES), "size")
        most = data.draw(st.integers(0, 2), "batches")
        batches, state = run(
            stream, size, data.draw(st.sampled_from(SHARDS), "shards"), state, most
        )
        for batch in batches:
            # A batch has the next rows of each lane, lane after lane.
            got += np.array(batch).reshape(8, size // 8).T.tolist()
        at += len(batches) * size
        assert state["rows"] == at
    assert got == whole[: at // 8].tolist()


def test_an_error_comes_after_the_rows_before_it() -> None:
    def fail(number: int) -> int:
        if number == 41:
            raise ValueError("41")
        return number

    stream = M.range(100).to_iter_dataset(lanes=4).map(fail)
    iterator = iter(stream)
    assert list(itertools.islice(iterator, 41)) == list(range(41))
    with pytest.raises(ValueError, match="41"):
        next(iterator)
    listed = M.range(100).to_iter_dataset(lanes=4).flat_map(lambda n: [fail(n)])
    for dataset in (stream.batch(8), stream.batch(8).shard(0, 2), listed.batch(8)):
        batches = iter(dataset)
        assert len(list(itertools.islice(batches, 5))) == 5
        with pytest.raises(ValueError, match="41"):
            next(batches)


# --- blocks ----------------------------------------------------------------------------------------


@given(
    length=st.integers(1, 90),
    block=st.integers(1, 12),
    window=st.integers(1, 5),
    lanes=st.integers(1, 6),
    epochs=st.integers(1, 3),
)
def test_blocks_are_dealt_to_lanes(
    length: int, block: int, window: int, lanes: int, epochs: int
) -> None:
    if lanes > -(-length // block):
        with pytest.raises(PlanError, match=r"lanes=\d are more than the \d+ blocks"):
            M.range(length).block_shuffle(1, block=block).to_iter_dataset(lanes=lanes)
        return
    chain = M.range(length).block_shuffle(1, block=block, window_blocks=window).repeat(epochs)
    found = sorted(chain.to_iter_dataset(SYNCHRONOUS, lanes=lanes))
    assert found == sorted([*range(length)] * epochs)
    if lanes == 1:
        assert list(chain.to_iter_dataset(SYNCHRONOUS, lanes=1)) == list(chain)


def test_no_block_is_in_two_shards() -> None:
    chain = M.range(160).block_shuffle(1, block=10, window_blocks=4)
    stream = chain.to_iter_dataset(lanes=4).batch(8)
    parts = [rows(stream.shard(shard, 4)) for shard in range(4)]
    blocks = [{row // 10 for row in part} for part in parts]
    assert sum(map(len, blocks)) == len(set.union(*blocks)) == 16


@pytest.mark.parametrize("lanes", [1, 2, 4, 8])
def test_a_lane_shuffles_windows_of_its_share_of_the_blocks(lanes: int) -> None:
    chain = M.range(320).block_shuffle(1, block=10, window_blocks=4)
    share = max(1, 4 // lanes)
    for lane in range(lanes):
        own = rows(chain.to_iter_dataset(lanes=lanes).batch(lanes).shard(lane, lanes))
        for first in range(0, len(own), 10 * share):
            window = own[first : first + 10 * share]
            assert len({row // 10 for row in window}) == share
            assert window != sorted(window)


def test_all_lanes_are_read_in_one_plan() -> None:
    calls = []
    for lanes in (1, 64):
        source = Counting(6_400)
        list(M.source(source).to_iter_dataset(SYNCHRONOUS, lanes=lanes).batch(64))
        assert source.records == 6_400
        calls.append(source.calls)
    assert calls[1] <= calls[0]


def test_a_shard_reads_its_own_rows_only() -> None:
    for lanes in (1, 4):
        source = Counting(1000)
        chain = M.source(source)
        streams = {
            1: chain.batch(40).to_iter_dataset(SYNCHRONOUS),
            4: chain.to_iter_dataset(SYNCHRONOUS, lanes=4).batch(40),
        }
        assert len(rows(streams[lanes].shard(1, 4))) == 250
        assert source.records == 250


# --- what is refused -------------------------------------------------------------------------------


def stream(lanes: int = 4) -> IterDataset[int]:
    return M.range(100).to_iter_dataset(lanes=lanes).filter(not_of_three)


class Twice(IterDataset[Any]):
    def __iter__(self) -> Any:
        return iter(self._parent)


@pytest.mark.parametrize(
    "make",
    [
        lambda: iter(stream().batch(10)),
        lambda: M.range(9).to_iter_dataset(lanes=0),
        lambda: IterDataset.mix([stream(2), stream(4)]),
        lambda: stream().shard(0, 2),
        lambda: M.range(9).batch(8).shard(0, 3),
        lambda: M.range(9).batch(8).map(len).shard(0, 2),
        lambda: M.zip([M.range(2), M.range(9).batch(8).shard(0, 2)]),
        lambda: IterDataset.mix([stream(1).repeat().batch(8).shard(0, 2)] * 2).map(len),
        lambda: Twice(M.range(9).to_iter_dataset().batch(8).shard(0, 2)),
        lambda: stream().batch(8).shard(0, 2),
    ],
)
def test_what_does_not_fit_is_refused(make: Any) -> None:
    with pytest.raises(PlanError):
        make()


@pytest.mark.parametrize("numbers", [(2, 2), (-1, 2), (0, 0)])
def test_shards_outside_their_range_are_refused(numbers: tuple[int, int]) -> None:
    with pytest.raises(ArgumentError, match="0 <= index < count"):
        M.range(9).batch(8).shard(*numbers)


@pytest.mark.parametrize("drop", [False, True])
def test_shards_with_a_lane_without_a_row_refuse_an_endless_stream(drop: bool) -> None:
    odd = M.range(12).to_iter_dataset(SYNCHRONOUS, lanes=2).filter(lambda n: n % 2).repeat()
    batches = odd.batch(4, drop_remainder=drop)
    for dataset in (batches, batches.shard(0, 2), batches.shard(1, 4)):
        with pytest.raises(PlanError, match=r"lane 0 of 2 has no row: .*choose another lanes="):
            next(iter(dataset))
    assert next(iter(batches.shard(1, 2))).tolist() == [1, 3]


class Asked(Counting):
    """A source that notes which lanes of 4 its records are in."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.lanes: set[int] = set()

    def read(self, indices: Any) -> Any:
        self.lanes |= set((indices % 4).tolist())
        return super().read(indices)


@pytest.mark.parametrize("drops", [False, True])
def test_nothing_is_read_of_other_lanes(drops: bool) -> None:
    source = Asked(1000)
    stream = M.source(source).to_iter_dataset(SYNCHRONOUS, lanes=4)
    stream = (stream.filter(not_of_three) if drops else stream).repeat()
    with iter(stream.batch(8).shard(1, 4)) as iterator:
        next(iterator)
    assert source.lanes == {1}


def test_shards_that_agree_end_at_the_first_batch_that_one_lacks() -> None:
    asked: list[bool] = []

    def agree(has_batch: bool) -> bool:
        asked.append(has_batch)
        return len(asked) <= 3

    shard = stream().batch(8, drop_remainder=True).shard(0, 2, agree=agree)
    iterator = iter(shard)
    assert len(list(iterator)) == 3
    assert list(iterator) == []
    assert asked == [True] * 4
    assert iterator.get_state()["rows"] == 24


# --- states ----------------------------------------------------------------------------------------


def states() -> list[dict[str, Any]]:
    found = []
    for shard in range(2):
        iterator = iter(stream().repeat().batch(8).shard(shard, 2))
        next(iterator)
        found.append(iterator.get_state())
    return found


def test_states_of_shards_are_merged() -> None:
    first, second = states()
    whole = windrow.merge_states([second, first, first])
    # States of 0.2 have counts of bad records, each shard its own.
    of_before = [{**second, "bad": {"0": [1]}}, {**first, "bad": {"0": [2]}}]
    assert windrow.merge_states(of_before) == whole
    iterator = iter(stream().repeat().batch(8))
    next(iterator)
    assert whole == iterator.get_state()
    assert windrow.merge_states([whole, whole]) == whole


def test_states_that_do_not_belong_together_are_refused() -> None:
    first, second = states()
    with pytest.raises(StateError, match=r"have no position of lanes 2, 3 of 4"):
        windrow.merge_states([first])
    with pytest.raises(StateError, match=r"different steps: rows is 8 .* 16 in state 1"):
        windrow.merge_states([first, {**second, "rows": 16}])
    with pytest.raises(StateError, match="different chains or data"):
        windrow.merge_states([first, {**second, "fingerprint": "0"}])
    with pytest.raises(StateError, match="lane 0 is at"):
        windrow.merge_states([first, {**first, "lanes": [[1, 1], None, None, None]}])
    with pytest.raises(ArgumentError, match="at least one state"):
        windrow.merge_states([])
    with pytest.raises(StateError, match="no position of lanes 2, 3, which this iterator runs"):
        iter(stream().repeat().batch(8).shard(1, 2)).set_state(first)
    with pytest.raises(StateError, match=r"(?s)another chain.*lanes=4.*lanes=2"):
        iter(stream(2).repeat().batch(8)).set_state(windrow.merge_states([first, second]))
