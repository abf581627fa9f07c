"""Mistakes that would end in an empty stream, in a stream that never gives an element, or in lost data."""

from __future__ import annotations

import logging
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import windrow
from windrow.errors import ArgumentError, ElementError, PlanError
from windrow.experimental import DatasetOptions, WithOptionsIterDataset

MapDataset, IterDataset = windrow.MapDataset, windrow.IterDataset


def forgets(_: Any) -> Any:
    """A function without a return."""


ENDLESS: dict[str, Callable[[windrow.MapDataset[Any]], Any]] = {
    "random access": lambda ds: ds.repeat(),
    "stream": lambda ds: ds.repeat().to_iter_dataset().batch(4),
    "workers": lambda ds: ds.repeat().mp_prefetch(1),
    "lanes": lambda ds: ds.repeat().to_iter_dataset(lanes=2).batch(4),
    "joined lanes": lambda ds: ds.repeat().to_iter_dataset(lanes=2),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_function_without_a_return_ends_an_endless_stream(name: str) -> None:
    chain = ENDLESS[name](MapDataset.range(100).map(forgets))
    with pytest.raises(
        PlanError, match=r"has no row: map\(forgets\) returned None for all .*no return"
    ):
        next(iter(chain))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("length", [1, 100, 4000])
def test_a_function_without_a_return_is_warned_of(
    workers: int, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    chain: Any = MapDataset.range(length).map(forgets)
    with caplog.at_level(logging.WARNING, "windrow"):
        assert list(chain.mp_prefetch(1) if workers else chain) == []
    (record,) = caplog.records
    assert "map(forgets) returned None for 100.00% of the last" in record.getMessage()
    assert "lack a return" in record.getMessage()


def test_none_for_some_elements_is_not_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "windrow"):
        assert list(MapDataset.range(4000).map(lambda x: x if x % 2 else None)) == [
            *range(1, 4000, 2)
        ]
        assert (
            list(MapDataset.range(3).map(forgets).to_iter_dataset(allow_nones=True)) == [None] * 3
        )
        silent = DatasetOptions(filter_warn_threshold_ratio=None)
        stream = MapDataset.range(3).map(forgets).to_iter_dataset()
        assert list(WithOptionsIterDataset(stream, silent)) == []
        strict = DatasetOptions(filter_raise_threshold_ratio=0.1)
        rare = MapDataset.range(4000).map(lambda x: x if x < 10 else None).to_iter_dataset()
        assert list(WithOptionsIterDataset(rare, strict)) == [*range(10)]
        iterator = iter(rare)
        iterator.skip(10)
        state = iterator.get_state()
        iterator = iter(MapDataset.range(100).map(lambda x: x if x < 10 else None))
        iterator.set_state(state | {"fingerprint": iterator.get_state()["fingerprint"]})
        assert list(iterator) == []
    assert not caplog.records


def test_a_rare_element_of_a_function_is_waited_for() -> None:
    def rarely(x: int, rng: Any) -> int | None:
        return x if rng.random() < 1e-3 else None

    assert next(iter(MapDataset.range(3).seed(1).random_map(rarely).repeat())) in range(3)


def test_a_batch_of_absent_elements_asks_for_the_return() -> None:
    with pytest.raises(ElementError, match=r"a function returned None; does it lack a return\?"):
        MapDataset.range(8).map(forgets).batch(4)[0]


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "MapDataset.concatenate": lambda a, b: a.concatenate([b]),
    "MapDataset.mix": lambda a, b: a.mix([b]),
    "MapDataset.zip": lambda a, b: a.zip([b]),
    "MapDataset.range": lambda a, _: a.range(3),
    "MapDataset.source": lambda a, _: a.shuffle(seed=1).source([1]),
    "IterDataset.mix": lambda a, b: a.to_iter_dataset().mix([b.to_iter_dataset()]),
    "IterDataset.zip": lambda a, b: a.to_iter_dataset().zip([b.to_iter_dataset()]),
    "IterDataset.interleave": lambda a, b: a.to_iter_dataset().interleave(
        [b.to_iter_dataset()], cycle_length=1
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_class_method_of_an_instance_is_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match=rf"{name} is of the class, .*write {name}\(\.\.\.\)"):
        CALLS[name](MapDataset.range(3), MapDataset.range(3, 6))


def test_endless_epochs_without_a_batch_are_refused() -> None:
    batches = MapDataset.range(10).batch(32, drop_remainder=True)
    assert list(batches) == []
    assert list(batches.repeat(2)) == []
    with pytest.raises(PlanError, match=r"nothing to repeat, since batch\(32.* of 10 elements"):
        batches.repeat()
    assert list(MapDataset.range(0).batch(32, drop_remainder=True).repeat()) == []


LARGE = 2**53 + 1  # no float64
IDS: dict[str, list[Any]] = {
    "scalars": [np.int64(LARGE), np.uint64(5)],
    "arrays": [np.array([LARGE]), np.array([5], np.uint64)],
    "Python's ints": [5, 2**63],
}
BATCHES: dict[str, Callable[[Any], Any]] = {
    "batch": lambda ds: ds.batch(2),
    "columns": lambda ds: ds.map(lambda column: column, batched=True).batch(2),
    "stream": lambda ds: ds.to_iter_dataset().batch(2),
    "padded": lambda ds: ds.batch(3, remainder="pad"),
    "rebatched": lambda ds: ds.batch(1).to_iter_dataset().rebatch(2),
    "batch_and_pad": lambda ds: ds.batch(
        2, batch_fn=lambda rows: windrow.experimental.batch_and_pad(rows, batch_size=3)
    ),
}


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_integers_do_not_become_floats(ids: list[Any], name: str) -> None:
    dataset = MapDataset.source([{"id": each} for each in ids])
    with pytest.raises(ElementError, match=r"int64 and uint64 would become float64.* in a map"):
        next(iter(BATCHES[name](dataset)))


def test_mixed_sources_of_signed_and_unsigned_ids_are_refused() -> None:
    signed, unsigned = (MapDataset.source(np.arange(4, dtype=kind)) for kind in ("i8", "u8"))
    for joined in (MapDataset.mix, MapDataset.concatenate):
        with pytest.raises(ElementError, match="would become float64"):
            list(joined([signed, unsigned]).batch(3))
    rows = [{"x": np.arange(2)}, {"x": np.arange(3, dtype=np.uint64)}]
    with pytest.raises(ElementError, match=r"leaf 'x' of int64 and uint64 would become float64"):
        list(MapDataset.source(rows).batch(2, pad_to=4))


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("other", [1, 0.5, np.arange(2), np.int8(3)])
@pytest.mark.parametrize("text", ["a", b"a"])
def test_strings_and_numbers_have_no_column_together(
    text: str | bytes, other: Any, name: str
) -> None:
    for rows in ([text, other], [other, text]):
        with pytest.raises(ElementError, match="convert"):
            next(iter(BATCHES[name](MapDataset.source([{"id": each} for each in rows]))))


def test_numbers_do_not_become_strings_and_others_are_promoted() -> None:
    with pytest.raises(ElementError, match="<U1 and int64 have no dtype together"):
        list(MapDataset.source([np.array("a"), np.array(1)]).batch(2))
    several: list[list[Any]] = [[1, 0.5], [True, np.int64(3)], [np.int32(-1), np.uint32(2**31)]]
    for given in several:
        batch: Any = MapDataset.source(given).batch(2)[0]
        assert batch.tolist() == given


def test_padding_that_a_dtype_does_not_hold_is_refused() -> None:
    rows = MapDataset.source([{"x": np.arange(3, dtype=np.uint16)}])
    for value in (-1, 0.5, 70_000):
        with pytest.raises(ElementError, match=r"pad_value=.* is not a value of dtype uint16"):
            next(iter(rows.bucket([4], [1], lengths=[3], pad_value=value)))  # type: ignore[arg-type]
        with pytest.raises(ElementError, match=r"pad_value=.* is not a value of dtype uint16"):
            windrow.experimental.batch_and_pad([rows[0]], batch_size=2, pad_value=value)


SHUFFLED: dict[str, Callable[[windrow.MapDataset[Any]], Any]] = {
    "shuffle": lambda ds: ds.shuffle(seed=1),
    "stream": lambda ds: ds.shuffle(seed=1).to_iter_dataset().batch(2),
    "window_shuffle": lambda ds: ds.window_shuffle(2, seed=1).map(abs),
    "window_shuffle of a stream": lambda ds: ds.to_iter_dataset().window_shuffle(2, seed=1),
    "sample": lambda ds: ds.sample(4, seed=1),
    "mixture": lambda ds: MapDataset.mix([ds.shuffle(seed=1), ds]),
    "one epoch": lambda ds: ds.shuffle(seed=1).repeat(1),
    "load": lambda ds: windrow.load(ds, shuffle=True, seed=1, num_epochs=1),
    "load a shard": lambda ds: windrow.load(
        ds,
        shuffle=True,
        seed=1,
        num_epochs=1,
        batch_size=2,
        shard_options=windrow.sharding.ShardOptions(0, 4),
    ),
}


@pytest.mark.parametrize("name", SHUFFLED)
def test_epochs_of_one_order_are_warned_of_once(name: str) -> None:
    dataset = SHUFFLED[name](MapDataset.range(6))
    next(iter(dataset))  # which does not end
    epochs = []
    for epoch in range(3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            epochs.append([np.asarray(element).tolist() for element in dataset])
        assert [str(each.message)[:33] for each in caught] == (
            ["this dataset was iterated to its "] if epoch == 1 else []
        )
        assert all(".repeat(" in str(each.message) for each in caught)
        assert all(each.filename == __file__ for each in caught)
    assert epochs[0] == epochs[1] == epochs[2]


@pytest.mark.parametrize(
    "dataset",
    [
        MapDataset.range(6),
        MapDataset.range(6).shuffle(seed=1).repeat(2),
        MapDataset.range(6).to_iter_dataset().window_shuffle(2, seed=1).repeat(2),
        windrow.load(range(6), shuffle=True, seed=1, num_epochs=2),
    ],
)
def test_other_epochs_are_not_warned_of(dataset: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            list(dataset)
        again = pickle.loads(pickle.dumps(dataset))
        assert list(again) == list(dataset)


def test_a_state_that_is_restored_after_the_end_is_not_warned_of() -> None:
    dataset = MapDataset.range(6).shuffle(seed=1)
    iterator = iter(dataset)
    next(iterator)
    state, rest = iterator.get_state(), list(iterator)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(iter(dataset).set_state(state)) == rest
    with pytest.warns(UserWarning, match=r"the same order again.*\.repeat\("):
        list(dataset)
