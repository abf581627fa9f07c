"""Knowing: the records of any element, without reading."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests import strategies as make
from tests.chain.test_steering import Counted
from windrow import IterDataset, MapDataset, ReadOptions, RecordOf

M = MapDataset
SYNCHRONOUS = ReadOptions(num_threads=0, prefetch_buffer_size=0)


def leaves(element: Any) -> list[int]:
    """The numbers of an element, row by row."""
    if isinstance(element, tuple):
        parts = [leaves(part) for part in element]
        return [n for row in itertools.zip_longest(*parts) for n in row if n is not None]
    if isinstance(element, list):
        return [n for part in element for n in leaves(part)]
    return [int(n) for n in np.ravel(element)]


def names(element: Any) -> list[RecordOf]:
    return [RecordOf(n // 1000, n % 1000) for n in leaves(element)]


PACKERS = ["planned", "first_fit", "best_fit", "concat_then_split"]


@given(drawn=make.streams(ours=True))
def test_the_records_after_any_state_are_those_of_the_next_element(drawn: make.Drawn) -> None:
    stream = make.build(drawn.recipe)
    iterator = iter(stream)
    for _ in range(12):
        state = iterator.get_state()
        if next(iterator, iterator) is iterator:
            message = "the stream ends at this state|is empty"
            with pytest.raises(windrow.errors.RecordIndexError, match=message):
                stream.records_of(state)
            break
        assert stream.records_of(state) == iterator.records_of_last() != []


def test_no_record_is_read_to_name_those_after_a_state_of_another_batch_size() -> None:
    source = Counted(40)
    rows = M.source(source).shuffle(seed=1)
    iterator = iter(rows.batch(3).to_iter_dataset(SYNCHRONOUS))
    next(iterator)
    state, read = iterator.get_state(), source.read_records
    streams = (
        rows.batch(8).to_iter_dataset(SYNCHRONOUS),
        rows.to_iter_dataset(SYNCHRONOUS).batch(8),
    )
    for stream in streams:
        found = stream.records_of(state)
        assert source.read_records == read
        assert [record for _, record in found] == next(iter(stream).set_state(state)).tolist()
        source.read_records = read


def test_an_element_that_is_made_to_be_named_leaves_no_trace(tmp_path: Path) -> None:
    numbers = M.source(["one", "2", "3"]).map(int).to_iter_dataset()
    stream = numbers.on_bad("skip", log=tmp_path / "bad.jsonl")
    assert stream.records_of(iter(stream).get_state()) == [RecordOf(0, 1)]
    assert not (tmp_path / "bad.jsonl").exists()
    assert list(stream) == [2, 3]
    assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == 1


def test_shards_name_the_records_after_their_states() -> None:
    stream = M.source(np.arange(60)).shuffle(seed=1).to_iter_dataset(lanes=2)
    for rows in (stream, stream.filter(lambda n: n % 3 > 0).repeat()):
        shards = [rows.batch(8).shard(shard, 2) for shard in range(2)]
        iterators = [iter(shard) for shard in shards]
        for _ in range(3):
            states = [iterator.get_state() for iterator in iterators]
            whole = windrow.merge_states(states)
            for shard, state, element in zip(shards, states, map(next, iterators), strict=True):
                assert shard.records_of(state) == shard.records_of(whole) == names(element)


@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=25), kind=st.sampled_from(PACKERS))
def test_packed_rows_name_the_records_of_their_tokens(lengths: list[int], kind: Any) -> None:
    # The tokens of record `n` are `n + 1`.
    documents = [{"x": np.full(length, n + 1)} for n, length in enumerate(lengths)]
    numbers = M.source(documents).shuffle(seed=4)
    if kind == "planned":
        stream: Any = numbers.pack(6, lengths=[np.array(lengths)], window=5)
    else:
        options = {} if kind == "concat_then_split" else {"num_packing_bins": 3}
        stream = numbers.to_iter_dataset().pack({"x": 6}, method=kind, **options)
    first, iterator = iter(stream.batch(2)), iter(stream.batch(2))
    next(first)
    iterator.set_state(first.get_state())
    for batch in iterator:
        rows = [list(dict.fromkeys(row[row > 0].tolist())) for row in batch["x"]]
        found = iterator.records_of_last()
        assert [list(dict.fromkeys(record + 1 for _, record in row)) for row in found] == rows


# --- chains with random access -------------------------------------------------------------------


@given(
    lengths=st.lists(st.integers(0, 8), min_size=1, max_size=25),
    kind=st.sampled_from(["pack", "bucket"]),
)
def test_any_planned_row_names_its_records(lengths: list[int], kind: str) -> None:
    source = Counted(len(lengths))
    documents: Any = M.source(source).shuffle(seed=4).repeat(2).map(_Repeated(lengths))
    counts = [np.array(lengths)]
    if kind == "pack":
        stream: Any = documents.pack(6, lengths=counts, window=5, seed=1).batch(2)
    else:
        stream = documents.bucket([3, 6, 8], [2, 2, 1], lengths=counts, window=9, seed=1)
    named = []
    with contextlib.suppress(windrow.errors.RecordIndexError):
        for number in itertools.count():
            named.append(stream.records_of(number))  # noqa: PERF401
    assert source.read_records == 0
    iterator = iter(stream)
    assert named == [iterator.records_of_last() for _ in iterator]


class _Repeated:
    """The document of a number: that number, as often as its length says."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __call__(self, number: int) -> Any:
        return np.full(self.lengths[number], number)


@pytest.mark.parametrize("remainder", ["keep", "drop", "pad"])
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("shards", [1, 3])
def test_no_function_runs_to_name_the_records_of_rows_of_shards(
    lanes: int, shards: int, remainder: Any
) -> None:
    def fail(_: Any) -> Any:
        raise AssertionError("a function was called")

    def stream(function: Any, *, own: bool) -> IterDataset[Any]:
        part = M.source(np.arange(34)).shuffle(seed=1).map(function).to_iter_dataset(lanes=lanes)
        inner = part.batch(2 * lanes, drop_remainder=True, batch_fn=function).map_with_index(
            lambda i, n: function(n)
        )
        zipped = IterDataset.zip([inner, inner.window_shuffle(3, seed=1)]).map(function)
        rows = part.map(function, batched=True) if own else zipped
        return rows.batch(6, remainder=remainder).shard(shards - 1, shards)

    for own in (False, True):
        # A batch of a list or a tuple has the rows of its parts.
        iterator = iter(stream(_same, own=own))
        expected = [iterator.records_of_last() for _ in iterator]
        refused = stream(fail, own=own)
        assert [refused.records_of(n) for n in range(len(expected))] == expected
        with pytest.raises(windrow.errors.RecordIndexError, match=f"has {len(expected)} elements"):
            refused.records_of(len(expected))


def _same(value: Any) -> Any:
    return np.array(value) if isinstance(value, list) else value


def test_far_elements_are_named_at_once() -> None:
    source = Counted(10**9)
    numbers = M.source(source).shuffle(seed=1).to_iter_dataset()
    both = IterDataset.interleave([numbers, numbers.repeat(), numbers], cycle_length=2)
    rows = both.batch(8).rebatch(5)
    assert len(rows.records_of(10**9)) == 5
    iterator = iter(rows)
    assert iterator.skip(10**9) == 10**9
    assert source.read_records == 0
    next(iterator)
    assert iterator.records_of_last() == rows.records_of(10**9)


def test_nothing_is_read_to_name_records() -> None:
    source = Counted(10**6)
    dataset = M.source(source).shuffle(seed=1).batch(64)
    expected = dataset[10]
    source.read_records = 0
    assert expected is not None
    assert [record for _, record in dataset.records_of(10)] == expected.tolist()
    stream = dataset.to_iter_dataset().repeat().map(abs).mp_prefetch(1)
    assert stream.records_of(10 + 2 * len(dataset)) == dataset.records_of(10)
    assert source.read_records == 0


def test_workers_give_rows_that_name_their_records() -> None:
    chain = M.source(np.arange(40)).shuffle(seed=3).to_iter_dataset()
    chain = chain.window_shuffle(7, seed=1).map(lambda n: n, batched=True)
    chain = chain.filter(lambda n: n % 3 != 0).batch(4, batch_fn=list).mp_prefetch(1)
    with iter(chain) as iterator:
        for element in iterator:
            assert iterator.records_of_last() == names(element)


# --- what is refused -----------------------------------------------------------------------------


def test_the_last_records_are_unknown_before_the_first_and_after_a_move() -> None:
    iterator = iter(M.range(10))
    message = "no element was given since"
    with pytest.raises(windrow.errors.StateError, match=message):
        iterator.records_of_last()
    next(iterator)
    assert iterator.records_of_last() == [RecordOf(0, 0)]
    for move in (lambda: iterator.skip(1), lambda: iterator.set_state(iterator.get_state())):
        move()
        with pytest.raises(windrow.errors.StateError, match=message):
            iterator.records_of_last()
        next(iterator)
    iterator.close()
    assert iterator.records_of_last() == [RecordOf(0, 3)]


def test_streams_that_values_decide_are_refused() -> None:
    chain = M.range(10).filter(lambda n: n % 2)
    with pytest.raises(windrow.errors.PlanError, match="records_of: filter decides by values"):
        chain.to_iter_dataset().records_of(0)
    numbers = M.range(10).to_iter_dataset()
    for stream in (
        numbers.filter(bool).batch(2),
        numbers.flat_map(lambda n: [n] * n),
        numbers.map(lambda n: {"x": np.zeros(n)}).pack({"x": 12}, num_packing_bins=2),
    ):
        with pytest.raises(windrow.errors.PlanError, match=r"decides by values.*records_of_last"):
            stream.records_of(0)
    assert chain.to_iter_dataset(allow_nones=True).records_of(4) == [RecordOf(0, 4)]


def test_wrong_indices_are_refused() -> None:
    error = windrow.errors.RecordIndexError
    with pytest.raises(error, match=r"element 4 is out of range; .* 0 <= index < 4"):
        M.range(10).batch(3).to_iter_dataset().records_of(4)
    with pytest.raises(error, match="element -1 is out of range"):
        M.range(10).to_iter_dataset().records_of(-1)
    with pytest.raises(error, match="the dataset is empty, so it has no element 0"):
        M.range(0).records_of(0)
    with pytest.raises(error, match="below 2"):
        M.range(10).records_of(2**63)
    with pytest.raises(windrow.errors.ArgumentError, match="records_of: index must be an integer"):
        M.range(10).records_of(1.0)  # type: ignore[arg-type]
