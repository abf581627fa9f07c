"""Refusals of the chain: each has its class of error, before anything runs."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import windrow
from windrow import errors
from windrow.core import absent_names
from windrow.errors import ArgumentError, ElementError, PlanError, RecordIndexError, WindrowError

M = windrow.MapDataset
I = windrow.IterDataset  # noqa: E741 - pairs with M
TEN = M.range(10)
STREAM = TEN.to_iter_dataset()
DICTS = ({"a": STREAM, "b": STREAM}, {"a": 1.0, "c": 1.0})


class _Selection:
    def __init__(self, dataset: int) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self._dataset, index


class _Picks:
    """A selection map that holds one thing everywhere."""

    def __init__(self, picked: Any) -> None:
        self._picked = picked

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self._picked


class _Flat:
    """A kind that `apply` does not know."""

    def __repr__(self) -> str:
        return "Flat()"


PLAN: dict[str, Callable[[], Any]] = {
    "range step": lambda: M.range(0, 5, 0),
    "range size": lambda: M.range(2**62),
    "no seed": TEN.shuffle,
    "seed range": lambda: TEN.shuffle(2**32),
    "seed negative": lambda: TEN.seed(-1),
    "window": lambda: TEN.window_shuffle(0, 1),
    "window stream": lambda: STREAM.window_shuffle(0, 1),
    "slice of step 0": lambda: TEN[::0],
    "repeat": lambda: TEN.repeat(0),
    "repeat stream": lambda: STREAM.repeat(-1),
    "repeat endless": lambda: TEN.repeat().repeat(2),
    "repeat batches": lambda: TEN.repeat().batch(2).repeat(2),
    "limit": lambda: STREAM.limit(0),
    "batch stream": lambda: STREAM.batch(-3),
    "concatenate none": lambda: M.concatenate([]),
    "concatenate endless": lambda: M.concatenate([TEN, TEN.repeat()]),
    "concatenate long": lambda: M.concatenate([M.range(2**61)] * 4),
    "mix none": lambda: M.mix([]),
    "mix weights": lambda: M.mix([TEN], [1, 2]),
    "mix empty": lambda: M.mix([TEN, M.range(0)]),
    "mix zero": lambda: I.mix([STREAM, STREAM], [1, 0]),
    "mix nan": lambda: M.mix([TEN, TEN], [1, float("nan")]),
    "mix names": lambda: I.mix(*DICTS),
    "select none": lambda: M.select_from_datasets([], _Selection(0)),
    "select empty": lambda: M.select_from_datasets([TEN, TEN[:0]], _Selection(0)),
    "select unknown": lambda: M.select_from_datasets([TEN], _Selection(1))[2],
    "select negative": lambda: M.select_from_datasets([TEN], _Selection(-1)).read([2]),
    "select no pair": lambda: M.select_from_datasets([TEN], _Picks(3))[2],
    "select three": lambda: M.select_from_datasets([TEN], _Picks((0, 1, 2)))[0],
    "select float": lambda: M.select_from_datasets([TEN], _Picks((0, 1.5)))[0],
    "select far": lambda: M.select_from_datasets([TEN], _Picks((0, 2**63)))[0],
    "zip none": lambda: M.zip([]),
    "zip lengths": lambda: M.zip([TEN, TEN[:3]]),
    "threads": lambda: windrow.ReadOptions(-1),
    "buffer": lambda: windrow.ReadOptions(1, -2),
    "bytes": lambda: windrow.ReadOptions(memory_bytes=0),
    "workers": lambda: windrow.multiprocessing.MultiprocessingOptions(-1),
}


ARGUMENT: dict[str, Callable[[], Any]] = {
    "shuffle": lambda: TEN.shuffle(1.5),  # type: ignore[arg-type]
    "bool": lambda: TEN.batch(True),
    "range": lambda: M.range(2.0),  # type: ignore[arg-type]
    "repeat": lambda: TEN.repeat(1.0),  # type: ignore[arg-type]
    "index float": lambda: TEN[1.0],  # type: ignore[call-overload]
    "slice float": lambda: TEN[1.0:],
    "slice 2d": lambda: TEN.slice(np.zeros((2, 2), int)),
    "read": lambda: TEN.read([0.5]),  # type: ignore[list-item]
    "read huge": lambda: TEN.read([2**70]),
    "limit": lambda: STREAM.limit(2.0),  # type: ignore[arg-type]
    "block": lambda: windrow.ReadOptions(memory_bytes=1e6),  # type: ignore[arg-type]
    "workers": lambda: windrow.multiprocessing.MultiprocessingOptions("a"),  # type: ignore[arg-type]
    "concatenate one": lambda: M.concatenate(TEN.repeat()),  # type: ignore[arg-type]
    "mix none": lambda: M.mix(None),  # type: ignore[arg-type]
    "mix weight": lambda: M.mix([TEN], 3),  # type: ignore[arg-type]
    "mix weight kind": lambda: M.mix([TEN], ["a"]),  # type: ignore[list-item]
    "selection": lambda: M.select_from_datasets([TEN], 3),  # type: ignore[arg-type]
    "map": lambda: TEN.map(3),  # type: ignore[call-overload]
    "filter": lambda: TEN.filter(None),  # type: ignore[arg-type]
    "wrong kind": lambda: TEN.map(windrow.transforms.Batch(3)),  # type: ignore[call-overload]
    "random_map": lambda: STREAM.random_map(3, seed=1),  # type: ignore[call-overload]
    "map_with_index": lambda: STREAM.map_with_index(3),  # type: ignore[arg-type]
    "apply": lambda: TEN.apply([_Flat()]),  # type: ignore[list-item]
    "mix kinds": lambda: M.mix([TEN, STREAM]),  # type: ignore[list-item]
    "concatenate": lambda: M.concatenate([3]),  # type: ignore[list-item]
    "mix names": lambda: I.mix(DICTS[0], [1, 1]),
    "mix named": lambda: I.mix([STREAM], {"a": 1}),
    "options": lambda: TEN.to_iter_dataset({"num_threads": 3}),  # type: ignore[call-overload]
    "source": lambda: M.source(3),  # type: ignore[call-overload]
}


@pytest.mark.parametrize("name", PLAN)
def test_plans_that_cannot_be(name: str) -> None:
    with pytest.raises(PlanError):
        PLAN[name]()


@pytest.mark.parametrize("name", ARGUMENT)
def test_arguments_of_the_wrong_type(name: str) -> None:
    with pytest.raises(ArgumentError):
        ARGUMENT[name]()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TEN[2**63], "index 9223372036854775808 is too large; choose one below"),
        (lambda: TEN[-(2**63) - 1], "index -9223372036854775809 is too large"),
        (lambda: TEN.read(np.array([2**63], np.uint64)), "index 9223372036854775808 is too large"),
        (
            lambda: M.mix([TEN.repeat(), TEN.repeat()])[::2][-(2**63)],
            "mix: index .* beyond 64 bits",
        ),
    ],
)
def test_indices_out_of_reach(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(RecordIndexError, match=message):
        call()


def empty() -> dict[str, Any]:
    base = M.range(0)
    return {
        "range": base,
        "list": M.source([]),
        "slice": TEN[5:5],
        "reindex": TEN.slice([]),
        "repeat": base.repeat(),
        "batched": base.map(abs, batched=True),
        "batch": base.batch(3),
        "remainder": TEN[:2].batch(3, drop_remainder=True),
        "select": M.select_from_datasets([TEN], []),
    }


@pytest.mark.parametrize("name", empty())
def test_empty_datasets(name: str) -> None:
    dataset = empty()[name]
    assert len(dataset) == 0
    assert list(dataset) == []
    assert dataset.__getitems__([]) == []
    assert dataset.read([]) == []
    for index in (0, -1, 7):
        with pytest.raises(RecordIndexError, match=f"is empty, so it has no element {index}: Map"):
            dataset[index]
        with pytest.raises(IndexError, match="the dataset is empty"):
            dataset.read([index])
    iterator = iter(dataset)
    iterator.set_state(iterator.get_state())
    assert list(iterator) == []
    stream = dataset.to_iter_dataset().map(abs).window_shuffle(3, 1).batch(2).repeat(3)
    assert list(stream) == []
    assert list(I.mix([stream, stream])) == list(I.zip([stream, stream])) == []


CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, WindrowError)]
BUILTIN = {
    "PlanError": ValueError,
    "ArgumentError": TypeError,
    "SourceError": ValueError,
    "NotFoundError": FileNotFoundError,
    "RecordIndexError": IndexError,
    "ReadError": OSError,
    "ElementError": ValueError,
    "StateError": ValueError,
    "ClosedError": ValueError,
    "ConversionError": RuntimeError,
    "WorkerError": RuntimeError,
    "MissingExtraError": ImportError,
    "WindrowError": Exception,
    "ArgumentValueError": (TypeError, ValueError),
    "EmptyPathsError": (FileNotFoundError, ValueError),
    "StateIndexError": (ValueError, IndexError),
    "UnsupportedTransformError": (TypeError, NotImplementedError),
}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_errors_survive_pickling_and_are_builtins_too(kind: type[WindrowError]) -> None:
    builtins = BUILTIN[kind.__name__]
    for builtin in builtins if isinstance(builtins, tuple) else (builtins,):
        assert issubclass(kind, builtin)
    error = kind("what, which value, what is allowed")
    error.add_note("and where")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert again.__notes__ == ["and where"]
    assert kind.__name__ in (errors.__doc__ or "")


def test_the_error_for_a_missing_extra_says_what_to_install() -> None:
    error = errors.missing_extra("the handler", "jax")
    assert str(error).endswith("run: pip install '.[jax]'")
    # An extra that is made of others names their packages, and never this one.
    whole = str(errors.missing_extra("the program", "examples"))
    packages = "cftime grain jax matplotlib orbax-checkpoint pandas scikit-learn tokenizers xarray"
    assert f"run: pip install {packages}; or" in whole
    assert type(pickle.loads(pickle.dumps(error))) is errors.MissingExtraError


def test_a_stop_iteration_never_ends_the_data() -> None:
    def stop(*_: Any) -> Any:
        raise StopIteration

    class Selection(_Selection):
        def __getitem__(self, index: int) -> tuple[int, int]:
            raise StopIteration

    for dataset in (
        TEN.map(stop),
        TEN.map(stop, batched=True),
        TEN.filter(stop),
        TEN.random_map(stop, seed=1),
        TEN.batch(2, batch_fn=stop),
        M.select_from_datasets([TEN], Selection(0)),
    ):
        with pytest.raises(ElementError, match="raised StopIteration"):
            dataset[1]
        with pytest.raises(ElementError, match="raised StopIteration"):
            list(dataset)
    for stream in (
        STREAM.map(stop),
        STREAM.map(stop, batched=True),
        STREAM.batch(2, batch_fn=stop),
    ):
        with pytest.raises(ElementError, match="raised StopIteration"):
            list(stream)


@pytest.mark.parametrize("size", [2**63 - 1, 2**63, 2**200])
def test_sizes_beyond_64_bits_are_the_whole(size: int) -> None:
    whole = list(range(10))
    assert [batch.tolist() for batch in TEN.batch(size)] == [whole]
    assert TEN.batch(size).read([7]).tolist() == [whole]
    assert len(TEN.batch(size, drop_remainder=True)) == 0
    assert [batch.tolist() for batch in STREAM.batch(size)] == [whole]
    assert sorted(TEN.window_shuffle(size, 1)) == sorted(STREAM.window_shuffle(size, 1)) == whole
    assert list(STREAM.limit(size)) == list(STREAM.repeat(size).limit(10)) == whole


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "mix by name": (
        lambda: M.mix({"a": TEN}),  # type: ignore[arg-type]
        r"mix: needs a list of MapDataset, .*: mix\(list\(datasets.values\(\)\)\); .* IterDataset.mix",
    ),
    "zip by name": (
        lambda: I.zip({"a": STREAM}),  # type: ignore[call-overload]
        r"zip: needs a list of IterDataset, got a mapping; .*: zip\(list\(datasets.values\(\)\)\)$",
    ),
    "class itself": (lambda: M([1]), r"MapDataset: write MapDataset.source\(source\)"),  # type: ignore[list-item]
    "class of streams": (lambda: I([1]), r"IterDataset: write .*\.to_iter_dataset\(\)"),  # type: ignore[list-item]
    "class of iterators": (
        lambda: windrow.DatasetIterator(TEN),  # type: ignore[arg-type]
        r"DatasetIterator: write iter\(dataset\)",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_meant_otherwise_says_what_to_write(name: str) -> None:
    call, message = CALLS[name]
    with pytest.raises(ArgumentError, match=message) as caught:
        call()
    assert caught.value.__context__ is None


@pytest.mark.parametrize("dataset", [TEN, STREAM])
def test_what_iterators_have_is_named_where_a_dataset_is_asked(dataset: Any) -> None:
    public = {name for name in dir(windrow.DatasetIterator) if not name.startswith("_")}
    assert public - set(dir(dataset)) == set(absent_names.OF_ITERATORS)
    with pytest.raises(AttributeError, match=r"'get_state': .*: write iterator = iter\(dataset\)"):
        dataset.get_state()


def test_steps_of_a_chain_are_named_where_an_iterator_is_asked() -> None:
    iterator: Any = iter(TEN)
    for name in absent_names.OF_DATASETS:
        assert hasattr(TEN, name) or hasattr(STREAM, name)
        with pytest.raises(AttributeError, match=rf"write dataset.{name} before iter\(dataset\)"):
            getattr(iterator, name)
    with pytest.raises(AttributeError, match=r"^'DatasetIterator' object has no attribute 'abc'$"):
        _ = iterator.abc


@pytest.mark.parametrize("owner", [TEN, STREAM, iter(TEN), windrow])
def test_python_can_suggest_a_name_that_is_near(owner: Any) -> None:
    with pytest.raises(AttributeError) as caught:
        owner.mapp  # noqa: B018
    # By these two it prints "Did you mean: 'map'?".
    assert caught.value.obj is owner
    assert caught.value.name == "mapp"
