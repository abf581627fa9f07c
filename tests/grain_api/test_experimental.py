"""The experimental classes and functions against Grain's: elements and, where they mean the same, states."""

from __future__ import annotations

import functools
import itertools
import json
import logging
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest
from grain import experimental as theirs
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.hypothesis_profiles import examples
from windrow import experimental as ours
from windrow.converters import write_records
from windrow.errors import (
    ArgumentError,
    ElementError,
    NotFoundError,
    PlanError,
    ReadError,
    RecordIndexError,
    StateError,
)


def plain(element: Any) -> Any:
    """An element as lists and Python values, for comparing."""
    if isinstance(element, dict):
        return {key: plain(value) for key, value in element.items()}
    if isinstance(element, (list, tuple)):
        return [plain(each) for each in element]
    return element.tolist() if isinstance(element, (np.ndarray, np.generic)) else element


def numbers(library: Any, count: int = 23) -> Any:
    return library.MapDataset.range(count).to_iter_dataset()


def test_map_datasets_equal_grains() -> None:
    (windows, zipped), (windows_of_grain, zipped_of_grain) = (
        [
            list(ex.WindowShuffleMapDataset(lib.MapDataset.range(12), window_size=4, seed=2)),
            list(ex.ZipMapDataset([lib.MapDataset.range(12), lib.MapDataset.range(12)])),
        ]
        for lib, ex in ((windrow, ours), (grain, theirs))
    )
    assert windows == windows_of_grain
    assert zipped == zipped_of_grain


def test_what_is_not_a_dataset_is_refused() -> None:
    ds = windrow.MapDataset.range(3)
    with pytest.raises(ArgumentError, match=r"LimitIterDataset: .*to_iter_dataset\(\) before"):
        ours.LimitIterDataset(ds, 1)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"RepeatIterDataset: .*got a RangeMapDataset"):
        ours.RepeatIterDataset(grain.MapDataset.range(3))
    with pytest.raises(ArgumentError, match=r"WindowShuffleMapDataset: .*got a list"):
        ours.WindowShuffleMapDataset([1], window_size=2, seed=0)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="WithOptionsIterDataset: needs an IterDataset"):
        ours.WithOptionsIterDataset(ds, ours.DatasetOptions())  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"needs a windrow.experimental.DatasetOptions"):
        ours.WithOptionsIterDataset(ds.to_iter_dataset(), None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="so give bos_token_id"):
        ours.ConcatThenSplitIterDataset(
            ds.to_iter_dataset(),
            length_struct={"x": 3},
            bos_handling=ours.BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS,
        )
    with pytest.raises(PlanError, match="iter_buffer_size must be at least 1"):
        ours.InterleaveIterDataset([ds], cycle_length=1, iter_buffer_size=0)
    with pytest.raises(PlanError, match="prefetch_buffer_size must be at least 0"):
        ours.ThreadPrefetchIterDataset(ds.to_iter_dataset(), prefetch_buffer_size=-1)
    with pytest.raises(ArgumentError, match="a IterDataset has no __next__ and no get_state and"):
        ours.ThreadPrefetchDatasetIterator(ds.to_iter_dataset(), 2)  # type: ignore[arg-type]


class Counter:
    """An iterator that no dataset made."""

    def __init__(self) -> None:
        self.count = 0

    def __iter__(self) -> Counter:
        return self

    def __next__(self) -> int:
        if self.count == 9:
            raise StopIteration
        self.count += 1
        return self.count

    def get_state(self) -> dict[str, int]:
        return {"count": self.count}

    def set_state(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class OwnCounter(Counter, windrow.DatasetIterator[int]):  # type: ignore[misc]
    """The same as an own iterator of Windrow."""

    def __init__(self) -> None:
        windrow.DatasetIterator.__init__(self)
        Counter.__init__(self)


@pytest.mark.parametrize("kind", [Counter, OwnCounter])
def test_a_thread_prefetch_iterator_takes_iterators_of_others(kind: type[Counter]) -> None:
    parent = kind()
    next(parent)
    iterator = ours.ThreadPrefetchDatasetIterator(parent, 2)
    states, elements = [iterator.get_state()], []
    for element in iterator:
        elements.append(element)
        states.append(iterator.get_state())
    assert elements == list(range(2, 10))
    for step in (0, 8, 3):
        iterator.set_state(json.loads(json.dumps(states[step])))
        assert list(iterator) == elements[step:]
        assert iterator.get_state() == states[-1]


def test_a_cache_calls_functions_once_and_its_elements_are_the_consumers() -> None:
    calls: list[int] = []

    def element(n: int) -> np.ndarray[Any, Any]:
        calls.append(n)
        return np.full(2, n)

    for lanes in (1, 2):
        calls.clear()
        stream = windrow.MapDataset.range(4).map(element).to_iter_dataset(lanes=lanes)
        found = []
        for each in ours.CacheIterDataset(stream).repeat(3):
            found.append(each.tolist())
            each[:] = -1
        assert found == [[n, n] for n in range(4)] * 3
        assert sorted(calls) == [0, 1, 2, 3]
    # With workers: their functions run once too, in other processes.
    cached = windrow.MapDataset.range(4).map(element).to_iter_dataset().cache().repeat(2)
    assert plain(list(cached.mp_prefetch(1))) == found[:8]
    (found_record,) = ours.CacheIterDataset(numbers(windrow, 4)).repeat(2).records_of(5)
    assert found_record == windrow.RecordOf(0, 1)


# --- elastic -------------------------------------------------------------------------------------


@given(shards=st.integers(1, 4), size=st.integers(1, 4), length=st.integers(1, 50))
@settings(max_examples=examples(30), deadline=None)
def test_elastic_iterators_equal_grains(shards: int, size: int, length: int) -> None:
    for index in range(shards):
        found = []
        for library, more in ((windrow, ours), (grain, theirs)):
            ds = library.MapDataset.range(length).shuffle(seed=3)
            shard = library.sharding.ShardOptions(index, shards)
            read = library.ReadOptions(0, 0)
            elastic = more.ElasticIterator(ds, size * shards, shard, read_options=read)
            first = [batch.tolist() for batch in itertools.islice(elastic, 2)]
            state = elastic.get_state()
            again = more.ElasticIterator(ds, size * shards, shard, read_options=read)
            again.set_state(state)
            found.append((first, state["global_next_index"], [b.tolist() for b in again]))
        assert found[0] == found[1]


def test_an_elastic_state_of_grain_is_read_and_one_of_other_data_is_not() -> None:
    ds, shard = windrow.MapDataset.range(20), windrow.sharding.ShardOptions(1, 2)
    elastic = ours.ElasticIterator(ds, 4, shard)
    elastic.set_state({"global_next_index": 8})
    assert next(elastic).tolist() == [9, 11]
    other = ours.ElasticIterator(ds.shuffle(1), 4, shard)
    with pytest.raises(StateError, match=r"another dataset\n.*\n.*shuffle"):
        other.set_state(elastic.get_state())
    with pytest.raises(StateError, match="global_next_index is None"):
        other.set_state({"next_index": 1})
    with pytest.raises(PlanError, match="global_batch_size=5 cannot be shared equally by 2"):
        ours.ElasticIterator(ds, 5, shard)
    with pytest.raises(PlanError, match=r"write \.on_bad\('replace'\) after"):
        ours.ElasticIterator(ds, 4, shard, read_options=windrow.ReadOptions(on_bad="skip"))
    with pytest.raises(PlanError, match="leaves gaps"):
        ours.ElasticIterator(ds.filter(bool), 4, shard)
    with pytest.raises(ArgumentError, match=r"needs a windrow.MapDataset, got an IterDataset"):
        ours.ElasticIterator(ds.to_iter_dataset(), 4, shard)  # type: ignore[arg-type]


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 5])
def test_tfrecord_equals_grains(tmp_path: Path, count: int) -> None:
    path = str(tmp_path / "a.tfrecord")
    write_records(path, [b"x" * n for n in range(count)])
    dataset = ours.TFRecordIterDataset(path)
    assert list(dataset) == list(theirs.TFRecordIterDataset(path))
    iterator = iter(dataset)
    next(iterator, None)
    again = iter(pickle.loads(pickle.dumps(dataset)))
    again.set_state(iterator.get_state())
    assert list(again) == [b"x" * n for n in range(1, count)]


def test_damaged_tfrecord_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    write_records(path, [b"one", b"two"])
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    with pytest.raises(ReadError, match="record 1 at byte 19: the file is cut off"):
        ours.TFRecordIterDataset(path)
    path.write_bytes(good.replace(b"two", b"owt"))
    iterator = iter(ours.TFRecordIterDataset(path))
    assert next(iterator) == b"one"
    with pytest.raises(
        ReadError, match="record 1 at byte 19: the checksum of its 3 bytes is wrong"
    ):
        next(iterator)
    with pytest.raises(NotFoundError, match=r"nothing.tfrecord does not exist"):
        ours.TFRecordIterDataset(tmp_path / "nothing.tfrecord")
    with pytest.raises(ArgumentError, match="is compressed"):
        ours.TFRecordIterDataset(tmp_path / "a.tfrecord.gz")


@pytest.mark.parametrize("files", [1, 3])
def test_parquet_equals_grains(tmp_path: Path, files: int) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    paths = []
    for number in range(files):
        rows = range(10 * number, 10 * number + 2 + 3 * number)
        table = arrow.table(
            {"n": list(rows), "text": list(map(str, rows)), "list": [[k, k] for k in rows]}
        )
        paths.append(str(tmp_path / f"{number}.parquet"))
        parquet.write_table(table, paths[-1], row_group_size=3)
    given_paths = paths[0] if files == 1 else paths
    dataset = ours.ParquetIterDataset(given_paths)
    expected = plain(list(theirs.ParquetIterDataset(given_paths)))
    assert plain(list(dataset)) == expected
    iterator = iter(dataset)
    next(iterator)["list"][:] = -1  # the caller's own
    again = iter(pickle.loads(pickle.dumps(dataset)))
    again.set_state(iterator.get_state())
    assert plain(list(again)) == expected[1:]
    assert plain(list(dataset)) == expected


def test_wrong_parquet_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"not Parquet at all")
    with pytest.raises(ReadError, match="cannot be read as Parquet"):
        ours.ParquetIterDataset(tmp_path / "a.parquet")
    with pytest.raises(NotFoundError, match="no such file"):
        ours.ParquetIterDataset([tmp_path / "b.parquet"])
    with pytest.raises(ArgumentError, match="at least one path"):
        ours.ParquetIterDataset([])


# --- functions -----------------------------------------------------------------------------------


def test_batch_and_pad_equals_grains() -> None:
    elements = [{"a": n, "b": np.full(2, n, np.float32)} for n in range(5)]
    for more in ({}, {"pad_value": 7}):
        for ours_of, size in itertools.product((ours, theirs), (2, 3, 5)):
            assert ours_of.batch_and_pad is not None
            batches = [
                plain(
                    list(
                        lib.MapDataset.source(elements).batch(
                            size,
                            batch_fn=functools.partial(ex.batch_and_pad, batch_size=size, **more),
                        )
                    )
                )
                for lib, ex in ((windrow, ours), (grain, theirs))
            ]
            assert batches[0] == batches[1]
    assert ours.batch_and_pad([np.float32(1)], batch_size=2).dtype == np.float32
    with pytest.raises(PlanError, match="0 elements do not make a batch of 2"):
        ours.batch_and_pad([], batch_size=2)
    with pytest.raises(PlanError, match="3 elements do not make a batch of 2"):
        ours.batch_and_pad([1, 2, 3], batch_size=2)


@given(
    data=st.data(),
    most=st.integers(0, 2**40),
    seed=st.integers(0, 2**32 - 1),
    rounds=st.sampled_from([4, 6, 8, 40, 70, 630, 1024]),
)
@settings(max_examples=examples(60), deadline=None)
def test_index_shuffle_equals_grains(
    data: st.DataObject, most: int, seed: int, rounds: int
) -> None:
    index = data.draw(st.integers(0, most))
    if most.bit_count() == 1 and most >= 2**16:
        return  # Grain's is not a permutation
    expected = theirs.index_shuffle(index=index, max_index=most, seed=seed, rounds=rounds)
    assert ours.index_shuffle(index, most, seed, rounds) == expected


@given(seed=st.integers(0, 2**64 - 1), index=st.integers(0, 2**63), op=st.integers(0, 2**32))
@settings(max_examples=examples(30))
def test_generators_equal_grains(seed: int, index: int, op: int) -> None:
    pool = pickle.loads(pickle.dumps(ours.RngPool(seed)))
    rng = pool.acquire_rng(index, op_seed=op)
    expected = theirs.RngPool(seed).acquire_rng(index, op_seed=op)
    assert rng.integers(1 << 60, size=5).tolist() == expected.integers(1 << 60, size=5).tolist()
    pool.release_rng(rng)


def test_next_index_equals_grains() -> None:
    chains: list[Callable[[Any, Any], Any]] = [
        lambda lib, ex: lib.MapDataset.range(10),
        lambda lib, ex: lib.MapDataset.range(10).filter(lambda n: n % 3),
        lambda lib, ex: lib.MapDataset.range(10).batch(3),
        lambda lib, ex: lib.MapDataset.range(10).to_iter_dataset().batch(3),
        lambda lib, ex: lib.MapDataset.range(10).to_iter_dataset().map_with_index(max),
        lambda lib, ex: ex.LimitIterDataset(lib.MapDataset.range(10).to_iter_dataset(), 8),
    ]
    for chain in chains:
        found = []
        for lib, ex in ((windrow, ours), (grain, theirs)):
            iterator = chain(lib, ex).__iter__()
            seen = [ex.get_next_index(iterator)]
            for _ in range(3):
                next(iterator)
                seen.append(ex.get_next_index(iterator))
            ex.set_next_index(iterator, 2)
            found.append((seen, ex.get_next_index(iterator), plain(list(iterator))))
        assert found[0] == found[1]
    with pytest.raises(RecordIndexError, match=r"11 is beyond the end.*<= 10"):
        ours.set_next_index(iter(windrow.MapDataset.range(10)), 11)
    with pytest.raises(ArgumentError, match="needs an iterator of Windrow, got a list_iterator"):
        ours.get_next_index(iter([1]))  # type: ignore[arg-type]


def test_a_performance_config_divides_the_memory() -> None:
    data = np.zeros((64, 1 << 20), np.uint8)
    for budget, workers, buffer in [(8, 100, 1000), (1000, 3, 20), (2, 2, 1000)]:
        found = []
        for lib, ex in ((windrow, ours), (grain, theirs)):
            config = ex.pick_performance_config(
                lib.MapDataset.source(data).to_iter_dataset(),
                ram_budget_mb=budget,
                max_workers=workers,
                max_buffer_size=buffer,
            )
            found.append(
                (
                    config.multiprocessing_options.num_workers,
                    config.read_options.prefetch_buffer_size,
                )
            )
        assert found[0] == found[1]
    with pytest.raises(PlanError, match="max_workers must be at least 1"):
        ours.pick_performance_config(
            numbers(windrow), ram_budget_mb=1, max_workers=0, max_buffer_size=1
        )


def test_the_check_of_checkpoints_finds_a_fault() -> None:
    ours.assert_equal_output_after_checkpoint(windrow.MapDataset.range(5).batch(2))

    class Forgets:
        """An iterator whose state is not where it is."""

        def __init__(self) -> None:
            self._at = 0

        def __iter__(self) -> Iterator[int]:
            return Forgets()

        def __next__(self) -> int:
            self._at += 1
            if self._at > 3:
                raise StopIteration
            return self._at

        def get_state(self) -> int:
            return 0

        def set_state(self, state: int) -> None:
            pass

    with pytest.raises(AssertionError, match="restored at step 1"):
        ours.assert_equal_output_after_checkpoint(Forgets())
    with pytest.raises(AssertionError, match="has no elements"):
        ours.assert_equal_output_after_checkpoint(windrow.MapDataset.range(0))


# --- options of a stream -------------------------------------------------------------------------


FILTERS: dict[str, Callable[[windrow.MapDataset[int]], windrow.IterDataset[int]]] = {
    "random access": lambda ds: ds.filter(lambda n: n < 10).to_iter_dataset(),
    "stream": lambda ds: ds.to_iter_dataset().filter(lambda n: n < 10),
    "after a count": lambda ds: ds.to_iter_dataset().map_with_index(max).filter(lambda n: n < 10),
    "workers": lambda ds: ds.filter(lambda n: n < 10).mp_prefetch(1),
}


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_that_drops_nearly_everything_warns_and_raises(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = FILTERS[name](windrow.MapDataset.range(4000))
    with caplog.at_level(logging.WARNING, "windrow"):
        assert list(stream) == list(range(10))
    (record,) = caplog.records  # once a minute
    assert "filter" in record.getMessage()
    assert "left out 9" in record.getMessage()
    caplog.clear()
    strict = ours.DatasetOptions(filter_raise_threshold_ratio=0.95)
    iterator = iter(ours.WithOptionsIterDataset(stream, strict))
    assert [next(iterator) for _ in range(10)] == list(range(10))
    with pytest.raises(ElementError, match=r"left out 9\d.*filter_raise_threshold_ratio"):
        next(iterator)


def test_an_endless_filter_that_drops_everything_can_raise() -> None:
    endless = windrow.MapDataset.range(999).repeat().filter(lambda n: n > 999).to_iter_dataset()
    strict = ours.DatasetOptions(filter_raise_threshold_ratio=1.0)
    with pytest.raises(ElementError, match=r"left out 100.00% of the last"):
        next(iter(ours.WithOptionsIterDataset(endless, strict)))


@pytest.mark.parametrize(
    "stream",
    [
        windrow.MapDataset.range(4000).filter(lambda n: n % 5 == 0).to_iter_dataset(),
        windrow.MapDataset.range(4000).filter(lambda n: n < 10).to_iter_dataset(allow_nones=True),
        windrow.MapDataset.range(200).flat_map(lambda n: [n], max_fan_out=20).to_iter_dataset(),
        ours.WithOptionsIterDataset(
            windrow.MapDataset.range(4000).filter(lambda n: n < 10).to_iter_dataset(),
            ours.DatasetOptions(filter_warn_threshold_ratio=None),
        ),
    ],
)
def test_no_warning_without_need(
    stream: windrow.IterDataset[Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "windrow"):
        list(stream)
    assert caplog.records == []


def test_options_are_in_no_state() -> None:
    stream = windrow.MapDataset.range(50).to_iter_dataset().batch(4)
    plain_iterator = iter(stream)
    next(plain_iterator)
    with_options = iter(ours.WithOptionsIterDataset(stream, ours.DatasetOptions()))
    with_options.set_state(plain_iterator.get_state())
    assert next(with_options).tolist() == [4, 5, 6, 7]
    assert with_options.skip(3) == 3
