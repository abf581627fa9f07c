"""`windrow.lengths` counts records once, in their own order, and keeps what it counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

import windrow
from tests.strategies import lengths_of
from windrow import MapDataset
from windrow.errors import ArgumentError, ElementError, NotFoundError, PlanError, SourceError
from windrow.lengths_beam import CountLengths
from windrow.transforms.positions import positions

WORDS = ["a", "bb cc", "", "dddd e f"]


def counted(dataset: Any, *more: Any, **options: Any) -> list[list[int]]:
    found = windrow.lengths(dataset, *more, progress=False, **options)
    assert {one.dtype for one in found} <= {np.dtype(np.int64)}
    return [one.tolist() for one in found]


def test_lengths_belong_to_records_in_their_own_order() -> None:
    dataset = MapDataset.source(WORDS).shuffle(seed=0).map(str.split)[1:].repeat()
    assert counted(dataset) == [[1, 2, 0, 3]]
    numbers = MapDataset.source(np.arange(3))
    both = MapDataset.mix([dataset[:3], numbers.map(np.arange), numbers.map(np.arange)])
    found = windrow.lengths(both.seed(3).shuffle(), progress=False)
    assert [one.tolist() for one in found] == [[1, 2, 0, 3], [0, 1, 2], [0, 1, 2]][: len(found)]
    planned = lengths_of(both._node, positions(np.arange(6), len(both)), found)
    assert planned.tolist() == [len(both[i]) for i in range(6)]  # type: ignore[arg-type]


@pytest.mark.parametrize("records", [0, 1, 20_000])
def test_a_pipeline_counts_the_same(tmp_path: Path, records: int) -> None:
    words = MapDataset.source([WORDS[n % 4] for n in range(records)])
    dataset = MapDataset.concatenate([words.map(str.split), MapDataset.source(WORDS)])
    expected, path = windrow.lengths(dataset, progress=False), tmp_path / "lengths.npz"
    for given in (path, path):  # counted and kept, read, counted
        pipeline: Any = beam.Pipeline(runner=FnApiRunner(bundle_repeat=1))
        step: Any = beam.Map  # it has no types
        _ = pipeline | CountLengths(dataset, path=given) | step(lambda each: _write(tmp_path, each))
        pipeline.run().wait_until_finish()
        found = [np.load(tmp_path / f"{n}.npy") for n in range(len(expected))]
        assert [one.tolist() for one in found] == [one.tolist() for one in expected]
        again = windrow.lengths(dataset, path=path, progress=False)
        assert [one.tolist() for one in again] == [one.tolist() for one in expected]
    with pytest.raises(SourceError, match="was made of other data"):
        CountLengths(MapDataset.source(WORDS), path=path)
    with pytest.raises(ArgumentError, match="needs a windrow"):
        CountLengths(WORDS)  # type: ignore[arg-type]


def _write(folder: Path, lengths: list[Any]) -> None:
    for number, each in enumerate(lengths):
        np.save(folder / f"{number}.npy", each)


def test_a_failed_pipeline_leaves_no_file(tmp_path: Path) -> None:
    dataset = MapDataset.source(WORDS).map(lambda word: word or None)
    pipeline: Any = beam.Pipeline(runner=FnApiRunner())
    _ = pipeline | CountLengths(dataset, path=tmp_path / "lengths.npz")
    with pytest.raises(Exception, match=r"record 2 of .* is absent"):
        pipeline.run().wait_until_finish()
    assert list(tmp_path.iterdir()) == []


def test_several_workers_count_in_order() -> None:
    items = ["x" * (n % 7) for n in range(9_000)]
    told: list[int] = []
    found = windrow.lengths(
        MapDataset.source(items), workers=2, progress=lambda now: told.append(now.records)
    )
    assert found[0].tolist() == [len(each) for each in items]
    assert len(told) > 1
    assert told == sorted(told)
    assert told[-1] == 9_000


class Counting:
    """A source that counts its reads."""

    def __init__(self, items: list[str]) -> None:
        self.items, self.calls = items, 0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> str:
        self.calls += 1
        return self.items[index]


def test_a_file_keeps_what_was_counted(tmp_path: Path) -> None:
    source, path = Counting(WORDS), tmp_path / "lengths.npz"
    dataset = MapDataset.source(source)
    first = counted(dataset, path=path)
    assert (source.calls, [file.name for file in tmp_path.iterdir()]) == (4, ["lengths.npz"])
    assert counted(dataset.shuffle(seed=1), path=path) == first == [[1, 5, 0, 8]]
    assert source.calls == 4
    with pytest.raises(SourceError, match=r"other functions\n  there: .*\n  this dataset: .*split"):
        counted(dataset.map(str.split), path=path)
    with pytest.raises(SourceError, match=r"made of other data.*\n.*\n.*\nRemove it to make"):
        counted(MapDataset.source(Counting(WORDS[1:])), path=path)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"text"])
def test_a_damaged_file_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "lengths.npz"
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"lengths\.npz is damaged, or not a file of lengths"):
        counted(MapDataset.source(WORDS), path=path)


def test_nothing_is_written_if_counting_fails(tmp_path: Path) -> None:
    dataset = MapDataset.source(WORDS)
    with pytest.raises(ElementError, match=r"returned -1; it must return an integer of at least 0"):
        counted(dataset, lambda word: -1, path=tmp_path / "lengths.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ds: ds.filter(len), "filter"),
        (lambda ds: ds.batch(2), "batch"),
        (lambda ds: ds.map_with_index(divmod), "map_with_index"),
        (lambda ds: ds.random_map(divmod, seed=0), "random_map"),
        (lambda ds: MapDataset.zip([ds, ds]), "zip"),
        (lambda ds: MapDataset.range(3), "range"),
    ],
)
def test_what_is_not_made_of_single_records_is_refused(change: Any, message: str) -> None:
    message = rf"lengths: {message}.* does not make one element of each record"
    with pytest.raises(PlanError, match=message):
        counted(change(MapDataset.source(WORDS)))


def test_two_ways_to_a_source_need_the_same_functions() -> None:
    dataset = MapDataset.source(WORDS)
    same = [dataset.map(str.upper), dataset.shuffle(seed=0).map(str.upper)]
    assert counted(MapDataset.concatenate(same)) == [[1, 5, 0, 8]]
    with pytest.raises(PlanError, match=r"two ways lead to .*, with different functions"):
        counted(MapDataset.concatenate([dataset, dataset.map(str.split)]))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([WORDS], ArgumentError),
        ([MapDataset.source(WORDS), 3], ArgumentError),
        ([MapDataset.source(WORDS), len, 3], ArgumentError),
        ([MapDataset.source(WORDS), len, "no/x"], NotFoundError),
        ([MapDataset.source([{"a": 1}])], ElementError),
        ([MapDataset.source(WORDS), str], ElementError),
        ([MapDataset.source(WORDS).map(print)], ElementError),
    ],
)
def test_wrong_arguments_and_results(arguments: list[Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        counted(*arguments)
