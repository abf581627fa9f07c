"""Sources of others: how they are asked, and what becomes of what they raise."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest

from windrow import MapDataset
from windrow.errors import ArgumentError, PlanError, ReadError, SourceError
from windrow.sources import (
    ArraySpec,
    Blocks,
    ForeignDataSource,
    RandomAccessDataSource,
    as_source,
)

pandas: Any = pytest.importorskip("pandas")
pyarrow: Any = pytest.importorskip("pyarrow")


class Counting:
    """Squares; notes every index it is asked for, and how often for its length."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.asked: list[Any] = []
        self.lengths = 0
        self.threads: set[str] = set()

    def __len__(self) -> int:
        self.lengths += 1
        return self.length

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        self.threads.add(threading.current_thread().name)
        return index * index


class Batched(Counting):
    fingerprint = "squares v1"

    def __getitems__(self, indices: list[int]) -> Any:
        self.asked.append(list(indices))
        answer = [i * i for i in indices]
        indices.clear()
        return answer


class GrainLike(Counting):
    def _getitems(self, indices: list[int]) -> list[int]:
        self.asked.append(indices)
        return [i * i for i in indices]


class Raising(Counting):
    def __init__(self, error: BaseException) -> None:
        super().__init__(10)
        self.error = error

    def __getitem__(self, index: int) -> int:
        if index == 7:
            raise self.error
        return index


class RaisingBatched(Raising):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[i] for i in indices]


def test_record_by_record_with_python_ints_and_one_len() -> None:
    theirs = Counting(10)
    source = ForeignDataSource(theirs)
    assert not source.batched
    assert source.read(np.array([3, -1, 3])) == [9, 81, 9]
    assert theirs.asked == [3, 9, 3]
    assert all(type(i) is int for i in theirs.asked)
    assert (len(source), len(source), theirs.lengths) == (10, 10, 1)
    assert source.source is theirs


def test_a_batch_is_one_call() -> None:
    theirs = Batched(10)
    source = ForeignDataSource(theirs)
    assert source.batched
    assert source.read(np.array([3, -1, 3])) == [9, 81, 9]
    assert theirs.asked == [[3, 9, 3]]
    assert source.read(np.array([], np.int64)) == []
    assert len(theirs.asked) == 1


class Told(Counting):
    @property
    def spec(self) -> ArraySpec:
        return ArraySpec((), np.int64)

    def blocks(self) -> Blocks:
        return Blocks(np.array([0, 5, 10]), lambda places: places % 5 * 2 + places // 5)


def test_spec_and_blocks_of_ones_own_source() -> None:
    dataset = MapDataset.source(Told(10))
    assert dataset.element_spec == ArraySpec((), np.int64)
    order = [round(x**0.5) for x in dataset.block_shuffle(seed=1, window_blocks=1)]
    assert sorted(order[:5]) in ([0, 2, 4, 6, 8], [1, 3, 5, 7, 9])
    assert sorted(order) == list(range(10))


def test_what_is_called_spec_or_blocks_and_is_none() -> None:
    class Other(Counting):
        blocks = 3

        def spec(self) -> str:
            return "a method of another kind"

    dataset = MapDataset.source(Other(10))
    with pytest.raises(PlanError, match="does not declare what its records are"):
        _ = dataset.element_spec
    with pytest.raises(PlanError, match="does not declare which records lie together"):
        dataset.block_shuffle(seed=1)


def test_grains_batch_method_is_used() -> None:
    theirs = GrainLike(10)
    assert ForeignDataSource(theirs).__getitems__([1, 2]) == [1, 4]
    assert theirs.asked == [[1, 2]]


@pytest.mark.parametrize("kind", [Raising, RaisingBatched])
def test_errors_keep_their_type_and_name_the_record(kind: Any) -> None:
    source = ForeignDataSource(kind(ZeroDivisionError("inside")))
    with pytest.raises(ZeroDivisionError, match="inside") as caught:
        source.read(np.array([7, 2]))
    assert f"record{'s, the first of them' if source.batched else ''} 7" in " ".join(
        caught.value.__notes__
    )


@pytest.mark.parametrize("kind", [Raising, RaisingBatched])
def test_stop_iteration_ends_nothing(kind: Any) -> None:
    source = ForeignDataSource(kind(StopIteration()))
    with pytest.raises(ReadError, match="raised StopIteration for"):
        list(map(source.read, [np.array([7])] * 3))


def test_a_batch_of_the_wrong_length_is_refused() -> None:
    class Short(Batched):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [1]

    with pytest.raises(SourceError, match="returned 1 record for 2 indices"):
        ForeignDataSource(Short(5)).read(np.array([0, 1]))


def test_an_array_like_without_len_counts_by_its_shape() -> None:
    class ArrayLike:
        shape = (5, 2)

        def __getitem__(self, index: int) -> Any:
            return np.full(2, 7 if index == 3 else 0)

    source = as_source(ArrayLike())
    assert isinstance(source, ForeignDataSource)
    assert len(source) == 5
    assert source[3].tolist() == [7, 7]


def test_what_is_no_source_is_refused() -> None:
    class NoLength:
        def __getitem__(self, index: int) -> int:
            return index

    with pytest.raises(ArgumentError, match="NoLength has no length"):
        ForeignDataSource(NoLength())
    with pytest.raises(ArgumentError, match="int has no __getitem__"):
        ForeignDataSource(3)
    with pytest.raises(ArgumentError, match="class Counting itself is not a source"):
        ForeignDataSource(Counting)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        # With columns 0, 1, ..., the first columns would come as records.
        (
            pandas.DataFrame(np.zeros((2, 5))),
            r"a pandas.DataFrame is not a .* give a dict of its columns: {name: frame\[name\].to_num",
        ),
        (
            pandas.Series([1, 2], index=[1, 0]),
            r"pandas.Series .*; give its values: series.to_numpy",
        ),
        (
            pyarrow.table({"a": [1, 2]}),
            r"pyarrow.Table is .*: {name: table\[name\].to_numpy\(\) for name in table.column_names}",
        ),
    ],
    ids=["frame", "series", "table"],
)
def test_tables_whose_items_are_not_rows_are_refused(table: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        as_source(table)
    frame = pandas.DataFrame({"a": [1, 2], "b": [3.0, 4.0]})
    columns = {name: frame[name].to_numpy() for name in frame.columns}
    assert as_source(columns)[1] == {"a": 2, "b": 4.0}
    # The labels of a series are the numbers of its records, unless it was given others.
    assert as_source(pandas.Series([7, 8]))[1] == 8
    assert as_source(pandas.Series([7, 8], index=[1, 0]).sort_index())[1] == 7
    assert as_source(Rows({"a": [1, 2]}))[1] == {"a": 2}


class Rows(pandas.DataFrame):  # type: ignore[misc]
    """A table that gives its rows as records."""

    def __getitem__(self, index: Any) -> Any:
        return {name: self.at[index, name] for name in self.columns}


def test_records_are_the_callers_own() -> None:
    class Views(Counting):
        data = np.zeros((10, 3))

        def __getitem__(self, index: int) -> Any:
            return {"row": self.data[index]}

    source = ForeignDataSource(Views(10))
    source[2]["row"][:] = 5
    assert not Views.data.any()


def test_fingerprint_pickle_and_protocol() -> None:
    source = ForeignDataSource(Batched(10))
    assert source.fingerprint.endswith("Batched(10 records, squares v1)")
    assert ForeignDataSource(Counting(3)).fingerprint.endswith("Counting(3 records)")
    again = pickle.loads(pickle.dumps(source))
    assert again[3] == 9
    assert isinstance(Counting(1), RandomAccessDataSource)
    assert not isinstance(3, RandomAccessDataSource)
