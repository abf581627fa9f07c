"""Lengths of elements come from lengths of records alone, through whatever permutes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.strategies import lengths_of
from windrow import MapDataset, ReadOptions
from windrow.errors import ArgumentError, PlanError, SourceError
from windrow.sources.base import BatchedSource
from windrow.sources.foreign import ForeignDataSource
from windrow.transforms.positions import Positions, positions

IntArray = npt.NDArray[np.int64]


class Sequences(BatchedSource):
    """Record `r` is an array of `lengths[r]` items; nothing but `read` makes one."""

    def __init__(self, lengths: Any) -> None:
        self.given = lengths

    def __len__(self) -> int:
        return len(self.given)

    def read(self, indices: IntArray) -> list[Any]:
        return [np.full(self.given[i], i) for i in indices.tolist()]

    @property
    def fingerprint(self) -> str:
        return f"sequences({len(self)})"

    def lengths(self) -> Any:
        return np.asarray(self.given)


def all_of(dataset: MapDataset[Any], epochs: int = 1) -> Positions:
    return positions(np.arange(epochs * len(dataset)), len(dataset))


def lengths(dataset: Any, given: Any = None, epochs: int = 1) -> list[int]:
    return list(lengths_of(dataset._node, all_of(dataset, epochs), given).tolist())


def test_foreign_sources_are_asked_too() -> None:
    class Theirs:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> bytes:
            raise AssertionError("a record was read")

        def lengths(self) -> list[int]:
            return [3, 1, 2]

    assert lengths(MapDataset.source(Theirs())[::-1]) == [2, 1, 3]
    assert ForeignDataSource(np.zeros(3)).lengths() is None


class Singly:
    """A source of 1,000 records, which knows how long some are."""

    def __init__(self, answer: Any = lambda records: records % 7) -> None:
        self.answer = answer
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 1_000

    def __getitem__(self, index: int) -> Any:
        return np.zeros(index % 7, np.uint8)

    def lengths_of(self, records: Any) -> Any:
        self.asked += records.tolist()
        return self.answer(records)


class SinglyOrNot(Singly):
    def lengths(self) -> Any:
        return np.arange(1_000) % 7


def test_a_source_is_asked_for_the_lengths_of_some_records() -> None:
    source = Singly()
    reversed_ = MapDataset.source(source)[::-1]
    packed = iter(reversed_.pack(32).batch(2))
    assert source.asked == []
    next(packed)
    assert source.asked == list(range(1_000))[::-1]
    source.asked.clear()
    alone = ReadOptions(num_threads=0, prefetch_buffer_size=0)
    next(iter(MapDataset.source(source).bucket([6], [4], window=100, read_options=alone)))
    assert source.asked == list(range(100))


def test_a_source_that_does_not_know_some_lengths_is_asked_for_all() -> None:
    dataset = MapDataset.source(SinglyOrNot(lambda records: None))
    assert lengths(dataset[:9]) == [0, 1, 2, 3, 4, 5, 6, 0, 1]
    with pytest.raises(PlanError, match="does not know the lengths of its records"):
        MapDataset.source(Singly(lambda records: None)).pack(8)


@pytest.mark.parametrize(
    "answer",
    [
        lambda records: records[1:],
        lambda records: records + 0.5,
        lambda records: 2 - records,
    ],
)
def test_wrong_lengths_of_some_records_are_refused(answer: Any) -> None:
    with pytest.raises(SourceError, match=r"\.lengths_of\(\)"):
        lengths(MapDataset.source(Singly(answer))[:5])


def test_items_in_memory_have_lengths_if_they_are_sequences() -> None:
    assert lengths(MapDataset.source(["ab", b"", np.zeros((3, 2))])) == [2, 0, 3]
    for items in (["ab", 1], [[1, 2]], [{"a": "b"}], [np.float32(3)]):
        with pytest.raises(PlanError, match="SequenceDataSource does not know the lengths"):
            lengths(MapDataset.source(items))
    assert lengths(MapDataset.source([])) == []


@pytest.mark.parametrize("known", [None, [np.array([1, 2, 3, 4])]])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ds: ds.batch(2), r"lengths: batch\(2\) makes elements of unknown length"),
        (lambda ds: ds.filter(len), r"a filter decides by the elements .* ds\.slice\(\[\.\.\.\]\)"),
        (lambda ds: MapDataset.zip([ds, ds]), r"lengths: zip\(2\) makes elements of unknown"),
        (lambda ds: MapDataset.concatenate([MapDataset.range(2), ds]), r"range\(0, 2, 1\) are not"),
    ],
)
def test_nodes_without_lengths_say_what_to_do(change: Any, message: str, known: Any) -> None:
    dataset = change(MapDataset.source(Sequences([1, 2, 3, 4]))).shuffle(seed=0)
    with pytest.raises(PlanError, match=message):
        lengths(dataset, known)
    with pytest.raises(PlanError, match=message):  # also where no position leads there
        lengths_of(dataset._node, Positions(np.zeros(0, np.int64), np.zeros(0, np.int64)), known)


def test_the_promise_of_a_map_is_in_no_fingerprint() -> None:
    dataset = MapDataset.source(Sequences([1, 2]))
    plain, promised = (dataset.map(len, keeps_length=keeps) for keeps in (False, True))
    assert plain.to_iter_dataset()._node.label == promised.to_iter_dataset()._node.label
    assert iter(plain).get_state() == iter(promised).get_state()


def test_one_array_is_too_little_for_two_sources() -> None:
    dataset = MapDataset.concatenate([MapDataset.source(Sequences([1])) for _ in range(2)])
    with pytest.raises(ArgumentError, match=r"each of 2 sources, got one array"):
        lengths(dataset, np.array([1, 2]))
    with pytest.raises(PlanError, match="lengths: 3 arrays for 2 sources"):
        lengths(dataset, [[1], [2], [3]])
    with pytest.raises(PlanError, match=r"lengths\[1\] has 0 lengths for 1 records"):
        lengths(dataset, [[1], []])
