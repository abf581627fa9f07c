"""What packed rows read: shards read their own rows, and a restored stream the next ones.

The rows of all shards of a batch are the rows of the batch.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests import strategies as make
from tests.hypothesis_profiles import examples
from windrow.errors import PlanError
from windrow.transforms.nodes import packing

IntArray = npt.NDArray[np.int64]
M = windrow.MapDataset


class Counted:
    """Documents in memory that note the bytes that are read of them, and whether lengths were."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = np.array(lengths, np.int64)
        self.read_bytes = 0

    def __len__(self) -> int:
        return len(self._lengths)

    def __repr__(self) -> str:
        return "Counted()"

    def lengths(self) -> IntArray:
        return self._lengths

    def __getitem__(self, index: int) -> IntArray:
        found = np.arange(self._lengths[index]) + 1000 * int(index)
        self.read_bytes += found.nbytes
        return found


@pytest.fixture(autouse=True)
def small_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few documents make several plans."""
    monkeypatch.setattr(packing, "ENOUGH", 20)


ALONE = windrow.ReadOptions(num_threads=0, prefetch_buffer_size=0)


def packed(source: Any, epochs: int = 1, **more: Any) -> Any:
    chain = M.source(source).shuffle(seed=2).repeat(epochs)
    return chain.pack(16, window=20, read_options=ALONE, **more)


def joined(parts: Sequence[Any]) -> Any:
    """The batches of all shards as one batch."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def same(one: Any, other: Any) -> bool:
    return make.differences(one, other) == []


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=70),
    epochs=st.integers(1, 3),
    size=st.sampled_from([4, 8, 12]),
    remainder=st.sampled_from(["keep", "drop", "pad"]),
    cuts=st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(0, 3)), max_size=3),
)
@settings(max_examples=examples(50), deadline=None)
def test_any_number_of_shards_gives_the_same_batches(
    lengths: list[int], epochs: int, size: int, remainder: Any, cuts: list[tuple[int, int]]
) -> None:
    stream = packed(Counted(lengths), epochs).batch(size, remainder=remainder)
    whole, states = [], []
    with iter(stream) as iterator:
        for batch in iterator:
            whole.append(batch)
            states.append(iterator.get_state()["rows"])
    done, state = 0, None
    for count, batches in [*cuts, (4, len(whole) + 1)]:
        iterators = [iter(stream.shard(index, count)) for index in range(count)]
        for iterator in iterators:
            if state is not None:
                iterator.set_state(json.loads(json.dumps(state)))
        found = list(itertools.islice(zip(*iterators, strict=True), batches))
        assert same([joined(parts) for parts in found], whole[done : done + len(found)])
        done += len(found)
        state = windrow.merge_states([iterator.get_state() for iterator in iterators])
        assert state["rows"] == (states[done - 1] if done else 0)
    assert done == len(whole)


def test_a_shard_reads_its_own_documents_only() -> None:
    lengths = np.random.default_rng(0).integers(1, 17, 300).tolist()
    source = Counted(lengths)
    stream = packed(source).batch(8)
    found = []
    for index in range(4):
        source.read_bytes = 0
        rows = list(stream.shard(index, 4))
        ids = np.concatenate([row["tokens_segment_ids"] for row in rows])
        assert source.read_bytes == 8 * np.count_nonzero(ids)
        found.append(source.read_bytes)
    assert sum(found) == 8 * sum(lengths)
    assert max(found) < sum(found) / 3


@pytest.mark.parametrize("shards", [1, 2])
def test_a_restored_stream_reads_one_batch_and_plans_one_window(shards: int) -> None:
    lengths = np.random.default_rng(3).integers(1, 17, 400).tolist()
    iterator = iter(packed(Counted(lengths)).batch(4).shard(0, shards))
    for _ in range(20):
        next(iterator)
    state = json.loads(json.dumps(iterator.get_state()))
    wanted = next(iterator)
    source = Counted(lengths)  # as in another process: nothing is planned or read there yet
    fresh = iter(packed(source).batch(4).shard(0, shards))
    fresh.set_state(state)
    assert source.read_bytes == 0
    assert same(next(fresh), wanted)
    assert source.read_bytes == 8 * np.count_nonzero(wanted["tokens_segment_ids"])
    planned = fresh.stats().packing
    assert planned is not None
    assert planned.documents == 20


def test_a_row_of_a_shard_names_its_documents() -> None:
    source = Counted([10, 6, 9, 7, 16, 8, 8, 3, 13])
    stream = packed(source).batch(4)
    named = 0
    for index in range(2):
        iterator = iter(stream.shard(index, 2))
        for batch in iterator:
            rows = iterator.records_of_last()
            for row, tokens, ids in zip(
                rows, batch["tokens"], batch["tokens_segment_ids"], strict=True
            ):
                first = np.flatnonzero(np.diff(ids, prepend=0) > 0)
                assert [each.record for each in row] == (tokens[first] // 1000).tolist()
                named += len(row)
    assert named == len(source)


def test_a_document_that_is_too_long_ends_all_shards_at_the_same_batch() -> None:
    lengths = [16] * 24 + [17] + [16] * 30
    chain = M.source(Counted(lengths)).pack(16, window=8, too_long="error", read_options=ALONE)
    for index in range(2):
        iterator = iter(chain.batch(4).shard(index, 2))
        rows = [len(next(iterator)["tokens"]) for _ in range(4)]
        assert rows == [2] * 4
        with pytest.raises(PlanError, match="element 24"):
            next(iterator)
