"""Steering: `skip` and `seek` continue a stream exactly where it would have been."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests import strategies as make
from windrow import IterDataset, MapDataset
from windrow.sources.base import BatchedSource

M = MapDataset


class Counted(BatchedSource):
    """Numbers that count how many of them are read."""

    def __init__(self, length: int) -> None:
        self.length, self.read_records = length, 0

    def __len__(self) -> int:
        return self.length

    def read(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        self.read_records += len(indices)
        return indices.copy()

    @property
    def fingerprint(self) -> str:
        return f"counted:{self.length}"


def rest(iterator: Any) -> list[str]:
    return [repr(element) for element in iterator]


# --- skip ----------------------------------------------------------------------------------------


@given(drawn=make.streams(ours=True), start=st.integers(0, 5), count=st.integers(0, 30))
def test_the_rest_after_skip_is_the_rest_after_next(
    drawn: make.Drawn, start: int, count: int
) -> None:
    plain, skipped = iter(make.build(drawn.recipe)), iter(make.build(drawn.recipe))
    for _ in range(start):
        next(plain, None)
    skipped.set_state(json.loads(json.dumps(plain.get_state())))
    passed = 0
    for _ in range(count):
        if next(plain, plain) is plain:
            break
        passed += 1
    assert skipped.skip(count) == passed
    restored = iter(make.build(drawn.recipe))
    restored.set_state(json.loads(json.dumps(skipped.get_state())))
    if passed == count:
        assert skipped.get_state() == plain.get_state()
    expected = rest(plain)
    assert rest(skipped) == expected
    assert rest(restored) == expected


def check_skip(stream: Any, start: int, count: int) -> None:
    """Check that `skip` after some elements goes where making them goes, and makes none."""
    plain, skipped = iter(stream), iter(stream)
    for _ in range(start):
        next(plain, None)
    skipped.set_state(plain.get_state())
    passed = sum(next(plain, plain) is not plain for _ in range(count))
    assert skipped.skip(count) == passed
    assert skipped.stats().elements == 0
    if passed == count:
        assert skipped.get_state() == plain.get_state()
    assert rest(skipped) == rest(plain)


@pytest.mark.parametrize("shard", [0, 1, 2])
@pytest.mark.parametrize("drop", [False, True])
def test_shards_skip_whole_batches(shard: int, drop: bool) -> None:
    source = Counted(50)
    stream = M.source(source).shuffle(seed=1).to_iter_dataset(lanes=3).window_shuffle(4, seed=2)
    batches = stream.batch(12, drop_remainder=drop).shard(shard, 3)
    expected = rest(batches)
    for count in range(len(expected) + 2):
        source.read_records, iterator = 0, iter(batches)
        assert iterator.skip(count) == min(count, len(expected))
        assert source.read_records == 0
        assert iterator.get_state()["rows"] == 12 * min(count, len(expected))
        assert rest(iterator) == expected[count:]


def test_a_batch_that_begins_at_a_row_of_a_state_is_skipped_and_seeked() -> None:
    numbers = M.range(20)
    before = iter(numbers.batch(5))
    next(before)
    iterator = iter(numbers.batch(8))
    iterator.set_state(before.get_state())
    assert iterator.skip(1) == 1
    assert iterator.get_state()["rows"] == 13
    assert next(iterator).tolist() == [*range(13, 20)]
    iterator.set_state(before.get_state())
    iterator.seek(1)
    assert next(iterator).tolist() == [*range(8, 16)]


@given(
    lengths=st.lists(st.integers(1, 9), max_size=30),
    window=st.integers(1, 8),
    start=st.integers(0, 4),
    count=st.integers(0, 20),
)
def test_packed_rows_are_skipped_by_plans(
    lengths: list[int], window: int, start: int, count: int
) -> None:
    stream = M.source([np.arange(n) for n in lengths]).pack(10, window=window)
    check_skip(stream, start, count)


def over_random_access(source: Any) -> dict[str, IterDataset[Any]]:
    """Chains whose positions follow from metadata."""
    numbers = M.source(source)
    stream = numbers.shuffle(seed=1).to_iter_dataset()
    return {
        "map": numbers.shuffle(seed=2).repeat().map(int).batch(7).to_iter_dataset(),
        "window": stream.map(int).window_shuffle(10, seed=3).batch(4, drop_remainder=True),
        "group": stream.map(lambda n: n + 1, batched=True).map_with_index(lambda i, n: n),
        "repeat": stream.repeat().batch(3).limit(10**6),
        "zip": IterDataset.zip([stream, stream.repeat()], strict=False).batch(5),
        "workers": numbers.map(int).mp_prefetch(1).batch(6),
        "interleave": IterDataset.interleave([stream, stream.limit(7), stream], 2).batch(3),
        "rebatch": stream.repeat().batch(8).rebatch(5),
        "lanes": numbers.repeat().to_iter_dataset(lanes=2).batch(4).rebatch(3),
    }


@pytest.mark.parametrize("name", over_random_access(Counted(100)))
def test_nothing_is_read_for_what_metadata_shows(name: str) -> None:
    source = Counted(100)
    plain, moved = iter(over_random_access(source)[name]), iter(over_random_access(source)[name])
    expected = [next(plain) for _ in range(14)][11:]
    plain.close()
    source.read_records = 0
    assert moved.skip(3) == 3
    assert moved.skip(8) == 8
    assert source.read_records == 0
    assert repr([next(moved) for _ in range(3)]) == repr(expected)
    assert source.read_records > 0
    moved.seek(2)
    moved.close()


def test_skipping_far_takes_no_longer_than_skipping_one() -> None:
    source = Counted(10**9)
    iterator = iter(
        M.source(source).shuffle(seed=1).to_iter_dataset().repeat().window_shuffle(100, 5).batch(8)
    )
    assert iterator.skip(10**12) == 10**12
    assert source.read_records == 0
    # The end of the 8,000th epoch, after as many whole windows.
    state = iterator.get_state()
    assert state["lanes"] == [[10**9, 7_999, 8 * 10**10, 0]]
    assert state["rows"] == 8 * 10**12


def test_a_filter_runs_and_what_follows_it_does_not() -> None:
    source, called = Counted(100), list[int]()

    def note(n: int) -> int:
        called.append(n)
        return n

    options = windrow.ReadOptions(num_threads=0)
    stream = M.source(source).to_iter_dataset(options).filter(lambda n: n % 3 == 0).map(note)
    iterator = iter(stream.batch(4))
    assert iterator.skip(5) == 5
    assert called == []
    assert source.read_records >= 58
    assert iterator.stats().elements == 0
    assert next(iterator).tolist() == [60, 63, 66, 69]
    assert called[:4] == [60, 63, 66, 69]


@pytest.mark.parametrize("kind", ["flat_map", "first_fit", "concat_then_split", "rebatch"])
def test_only_what_decides_positions_runs(kind: Any) -> None:
    called = {"before": 0, "after": 0}

    def noting(name: str, value: Any) -> Any:
        called[name] += 1
        return value

    reading = windrow.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    numbers: Any = M.range(1, 40).to_iter_dataset(reading).map(lambda n: noting("before", n))
    if kind == "flat_map":
        decided: Any = numbers.flat_map(lambda n: [n] * (n % 3))
    elif kind == "rebatch":
        decided = numbers.batch(4).map(lambda rows: rows[: rows[0] % 5 + 1]).rebatch(2)
        decided = decided.map(lambda rows: rows[:1])
    else:
        options = {} if kind == "concat_then_split" else {"num_packing_bins": 2}
        documents = numbers.map(lambda n: {"x": np.full(n % 7 + 1, n)})
        decided = documents.pack({"x": 8}, method=kind, **options)
    stream = decided.map(lambda element: noting("after", element)).batch(2)
    expected = rest(iter(stream))
    called.update(before=0, after=0)
    iterator = iter(stream)
    assert iterator.skip(4) == 4
    assert called["before"] > 0
    assert called["after"] == 0
    assert iterator.stats().elements == 0
    iterator.seek(3)
    assert called["after"] == 0
    assert rest(iterator) == expected[3:]


@pytest.mark.parametrize("method", ["skip", "seek"])
def test_wrong_counts_are_refused(method: str) -> None:
    iterator = iter(M.range(10))
    with pytest.raises(windrow.errors.PlanError, match=f"{method}: .* at least 0, got -1"):
        getattr(iterator, method)(-1)
    with pytest.raises(windrow.errors.ArgumentError, match=r"must be an integer, got 1\.5"):
        getattr(iterator, method)(1.5)
    iterator.close()
    with pytest.raises(windrow.errors.ClosedError, match="was closed"):
        getattr(iterator, method)(1)
