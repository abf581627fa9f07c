"""A user's own subclasses of datasets: the same elements as with Grain, and exact states."""

from __future__ import annotations

import collections
import functools
import json
import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import grain
import numpy as np
import pytest

import windrow
from tests import own_datasets
from windrow import IterDataset, MapDataset
from windrow.errors import ArgumentError, ElementError, PlanError, StateError
from windrow.transforms.row_blocks import OwnStates

WINDROW, GRAIN = own_datasets.of(windrow), own_datasets.of(grain)
Chain = Callable[[Any, Any], Any]


def odd(number: int) -> bool:
    return bool(number % 2)


def plus(number: int) -> int:
    return number + 100


def _orders(lib: Any) -> Any:
    return lib.MapDataset.range(11).seed(5).shuffle()


CHAINS: dict[str, Chain] = {
    "unbatch": lambda lib, own: own.Unbatch(_orders(lib).batch(4).to_iter_dataset()),
    "unbatch, map, batch": lambda lib, own: (
        own.Unbatch(_orders(lib).batch(4).to_iter_dataset()).map(plus).batch(3)
    ),
    "unbatch, filter": lambda lib, own: own.Unbatch(
        _orders(lib).repeat(2).batch(4).to_iter_dataset()
    ).filter(odd),
    "unbatch, random_map": lambda lib, own: own.Unbatch(
        _orders(lib).batch(4).to_iter_dataset()
    ).random_map(lambda n, rng: int(n) + int(rng.integers(1000))),
    "ramp": lambda lib, own: own.Ramp(_orders(lib).to_iter_dataset(), 4).map(np.sum),
    "unbatch of ramp": lambda lib, own: own.Unbatch(
        own.Ramp(_orders(lib).to_iter_dataset(), 4)
    ).batch(2),
    "padded": lambda lib, own: own.Padded(_orders(lib), 13).map(plus).batch(4).to_iter_dataset(),
    "padded, shuffled, in epochs": lambda lib, own: (
        own.Padded(_orders(lib), 13).shuffle().repeat(2).batch(4).to_iter_dataset()
    ),
    "doubled": lambda lib, own: own.Doubled(_orders(lib)).shuffle(seed=3).to_iter_dataset(),
    "doubled, ramp": lambda lib, own: own.Ramp(own.Doubled(_orders(lib)).to_iter_dataset(), 5).map(
        np.sum
    ),
    "doubled of none": lambda lib, own: own.Doubled(lib.MapDataset.range(0)).to_iter_dataset(),
}


def plain(elements: Any) -> list[Any]:
    return [np.asarray(element).tolist() for element in elements]


@pytest.mark.parametrize("name", CHAINS)
def test_elements_are_those_of_grain(name: str) -> None:
    ours, theirs = CHAINS[name](windrow, WINDROW), CHAINS[name](grain, GRAIN)
    assert plain(ours) == plain(theirs)


def _restored_at_each_step(chain: Any) -> None:
    whole, first = plain(chain), iter(chain)
    for step in range(len(whole) + 1):
        state = json.loads(json.dumps(first.get_state()))
        other = iter(chain)
        other.set_state(state)
        assert other.get_state() == state
        assert plain(other) == whole[step:]
        if step < len(whole):
            next(first)


@pytest.mark.parametrize("name", CHAINS)
def test_a_restored_iterator_yields_the_rest(name: str) -> None:
    _restored_at_each_step(CHAINS[name](windrow, WINDROW))


STREAMS: dict[str, Callable[[Any], Any]] = {
    "window_shuffle": lambda ds: ds.window_shuffle(5, seed=1),
    "repeat": lambda ds: ds.repeat(3),
    "flat_map": lambda ds: ds.flat_map(lambda n: [n] * (n % 3)),
    "mix with itself": lambda ds: IterDataset.mix([ds.repeat(2), ds.map(plus)], [2, 1]),
    "interleave": lambda ds: IterDataset.interleave([ds, ds, ds.filter(odd)], 2),
    "zip": lambda ds: IterDataset.zip([ds, ds.map(plus)]),
    "limit, batch": lambda ds: ds.limit(7).batch(2),
    "cache": lambda ds: ds.cache().repeat(3),
    "cache in a mix": lambda ds: IterDataset.mix([ds.cache().repeat(2), ds.map(plus)], [2, 1]),
    "cache in a zip": lambda ds: IterDataset.zip([ds.cache().repeat(2), ds.repeat(2)]),
    "own after a cache": lambda ds: WINDROW.Ramp(ds.cache().repeat(2), 3).map(np.sum),
    "rebatch": lambda ds: ds.batch(3).rebatch(2),
    "pad": lambda ds: ds.batch(5, remainder="pad", mask="real"),
    "random_map": lambda ds: ds.seed(1).random_map(lambda n, rng: n + rng.integers(9)),
    "own after own": lambda ds: WINDROW.Ramp(ds.window_shuffle(3, seed=2), 3).map(np.sum),
}


@pytest.mark.parametrize("name", STREAMS)
def test_other_nodes_follow_with_exact_states(name: str) -> None:
    own = WINDROW.Unbatch(_orders(windrow).batch(4).to_iter_dataset())
    _restored_at_each_step(STREAMS[name](own))


def test_a_mix_keeps_no_states_for_a_node_that_rests() -> None:
    own, rests = (
        WINDROW.Unbatch(MapDataset.range(16).batch(4).to_iter_dataset().repeat()) for _ in range(2)
    )
    with iter(IterDataset.mix([own, rests], [1, 1e-9])) as iterator:
        for _ in range(3999):
            next(iterator)
        assert len(iterator._own_states._kept) < 3000


def test_an_iterator_is_pickled_skipped_and_sought() -> None:
    chain = WINDROW.Unbatch(MapDataset.range(40).batch(4).to_iter_dataset()).map(plus)
    iterator = iter(chain)
    assert iterator.skip(9) == 9
    assert next(iterator) == 109
    iterator.seek(3)
    assert [next(iterator) for _ in range(2)] == [103, 104]
    state = iterator.get_state()
    assert state["own"]["0"]["next"] == 1


def test_what_an_own_iterator_has_not_is_said() -> None:
    iterator = iter(WINDROW.Unbatch(MapDataset.range(4).batch(2).to_iter_dataset()))
    assert next(iterator) == 0
    with pytest.raises(PlanError, match="skip: UnbatchIterator is an iterator of your own"):
        iterator.skip(1)
    with pytest.raises(PlanError, match="stats: UnbatchIterator"):
        iterator.stats()
    with pytest.raises(PlanError, match="metrics: UnbatchIterator is an iterator of your own"):
        iterator.metrics()
    following = iter(WINDROW.Unbatch(MapDataset.range(4).batch(2).to_iter_dataset()).map(plus))
    next(following)
    with pytest.raises(PlanError, match="does not say"):
        following.records_of_last()


def test_explain_and_repr_name_the_class() -> None:
    own = WINDROW.Unbatch(WINDROW.Doubled(MapDataset.range(8)).batch(2).to_iter_dataset())
    for shown in (repr(own.map(plus)), own.map(plus).explain().details()):
        assert "Unbatch" in shown
        assert "Doubled" in shown


def test_parents_and_seeds_are_seen_through() -> None:
    parent = MapDataset.range(8).seed(3)
    own = WINDROW.Doubled(parent, MapDataset.range(2))
    assert own.parents == own._parents
    assert own._parents[0] is parent
    assert own.map(plus).parents[0].parents
    with pytest.raises(ArgumentError, match="_parent is for one parent, and this has 2"):
        _ = own._parent
    assert own.shuffle()._node.label == GRAIN_SEED_OF_DEPTH_2


GRAIN_SEED_OF_DEPTH_2 = (
    "shuffle(seed=" + str(int(np.random.SeedSequence([3, 2]).generate_state(1, np.uint32)[0])) + ")"
)


# --- refused -------------------------------------------------------------------------------------


class Generator(IterDataset[Any]):
    def __iter__(self) -> Any:
        yield from self._parent


class Wrapped(IterDataset[Any]):
    def __iter__(self) -> Any:
        return map(plus, self._parent)


class NoState(windrow.DatasetIterator[Any]):
    def __next__(self) -> Any:
        return next(self._parent)


class Over(IterDataset[Any]):
    def __init__(self, parents: Any, iterator: Any) -> None:
        super().__init__(parents)
        self._iterator = iterator

    def __iter__(self) -> Any:
        return self._iterator(iter(self._parent))


class Forgot(IterDataset[Any]):
    def __init__(self) -> None:
        pass

    def __iter__(self) -> Any:
        return iter(MapDataset.range(3))


class Arrays(NoState):
    def get_state(self) -> Any:
        return {"rows": np.arange(3)}

    def set_state(self, state: Any) -> Any:
        raise AssertionError


class Whole(NoState):
    def get_state(self) -> Any:
        return self._parent.get_state()

    def set_state(self, state: Any) -> Any:
        self._parent.set_state(state)


class NoSuper(Whole):
    def __init__(self, parent: Any) -> None:
        self._own = parent

    @property
    def _parent(self) -> Any:
        return self._own


class NumberedStates(Whole):
    def get_state(self) -> Any:
        return {"rows": [{3: self._parent.get_state()}]}


class Plain:
    """An iterator with a state that is not a windrow.DatasetIterator."""

    def __init__(self, parent: Any) -> None:
        self._parent = parent

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return next(self._parent)

    def get_state(self) -> Any:
        return self._parent.get_state()

    def set_state(self, state: Any) -> Any:
        self._parent.set_state(state)


def _with(base: type[Any], **methods: Any) -> Any:
    """A subclass with other methods, over a dataset with the methods that work."""
    works = {"__len__": lambda self: 3, "__getitem__": lambda self, index: index}
    whole = works if base is MapDataset else {}
    return type("Wrong", (base,), {**whole, **methods})(MapDataset.range(3))


def _yielding(self: Any, index: Any) -> Any:
    yield index


async def _asynchronous(self: Any) -> Any:
    return iter(self._parent)


class Failing(NoState):
    def __next__(self) -> Any:
        found = next(self._parent)
        if found == 2:
            raise OSError("no such row")
        return found

    def get_state(self) -> Any:
        return self._parent.get_state()

    def set_state(self, state: Any) -> Any:
        self._parent.set_state(state)


def _stream() -> Any:
    return MapDataset.range(4).to_iter_dataset()


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Generator(_stream()), ArgumentError),
        (lambda: Over([1], None), ArgumentError),
        (lambda: Forgot().map(plus), ArgumentError),
        (lambda: next(iter(Over(_stream(), NoState))), ArgumentError),
        (lambda: list(Wrapped(_stream()).map(plus)), ElementError),
        (lambda: list(Over(_stream(), Arrays).map(plus)), StateError),
        (lambda: WINDROW.Doubled(_stream()), ArgumentError),
        (lambda: WINDROW.Ramp(MapDataset.range(8).to_iter_dataset(lanes=2), 3), PlanError),
        (lambda: _with(MapDataset, __getitem__=_yielding), ArgumentError),
        (lambda: _with(MapDataset, __getitem__=lambda self: 0), ArgumentError),
        (lambda: _with(MapDataset, __len__=lambda self, epoch: 3), ArgumentError),
        (lambda: _with(MapDataset, __len__=3), ArgumentError),
        (lambda: _with(IterDataset), ArgumentError),
        (lambda: _with(IterDataset, __iter__=_asynchronous), ArgumentError),
        (lambda: _with(MapDataset, __len__=lambda self: -1).map(plus), ArgumentError),
        (lambda: _with(MapDataset, __len__=lambda self: 2.5).map(plus), ArgumentError),
        (lambda: list(_with(IterDataset, __iter__=lambda self: None).map(plus)), ElementError),
        (lambda: list(Over(_stream(), NoSuper).map(plus)), ElementError),
        (lambda: list(Over(_stream(), NumberedStates).map(plus)), StateError),
    ],
)
def test_what_cannot_work_is_refused(make: Callable[[], Any], error: Any) -> None:
    with pytest.raises(error):
        make()


def test_an_iterator_of_another_class_with_a_state_is_taken() -> None:
    _restored_at_each_step(Over(_stream(), Plain).map(plus))


def test_methods_of_other_kinds_are_taken() -> None:
    made = _with(
        MapDataset,
        __len__=staticmethod(lambda *args: 3),
        __getitem__=functools.partialmethod(lambda self, by, index: index * by, 2),
    )
    assert list(made.map(plus)) == [100, 102, 104]


def test_an_error_names_the_node_and_comes_again() -> None:
    iterator: Iterator[Any] = iter(Over(_stream(), Failing).map(plus))
    assert [next(iterator), next(iterator)] == [100, 101]
    for _ in range(2):
        with pytest.raises(OSError, match="no such row") as caught:
            next(iterator)
        assert "raised in Over for its element 2" in caught.value.__notes__[0]


def test_a_state_without_its_own_part_is_refused() -> None:
    chain = Over(_stream(), Failing).map(plus)
    iterator = iter(chain)
    next(iterator)
    state = iterator.get_state()
    del state["own"]
    with pytest.raises(StateError, match="no own state of your node number 0"):
        iter(chain).set_state(state)


def test_a_pickled_iterator_continues() -> None:
    iterator = iter(Over(_stream(), Failing).map(plus))
    assert next(iterator) == 100
    assert next(pickle.loads(pickle.dumps(iterator))) == 101


class GrowsAsItIsIterated(dict[int, Any]):
    """A dict to which another thread adds at the worst moment."""

    def __iter__(self) -> Iterator[int]:
        found = super().__iter__()
        self[len(self) + 1] = None
        return found


def test_states_are_forgotten_while_a_thread_adds_others() -> None:
    states = OwnStates()
    states._kept = GrowsAsItIsIterated()
    numbers = [states.add(count, "0", collections.deque()) for count in range(5)]
    states.forget_before(numbers[2:])
    states.forget_before([numbers[1], numbers[4]])
    assert states.of(numbers[2]).elements == 2
    with pytest.raises(KeyError):
        states.of(numbers[1])


def _in_workers(chain: Any, workers: int) -> Any:
    options = windrow.MultiprocessingOptions(num_workers=workers)
    return chain.mp_prefetch(options) if workers else chain


@pytest.mark.jobs
def test_a_state_of_some_workers_continues_with_another_number() -> None:
    own = WINDROW.Unbatch(_orders(windrow).repeat(2).batch(4).to_iter_dataset())
    chain = WINDROW.Ramp(own, 3).map(_with_process).filter(_is_long)
    whole = [rows for rows, _ in map(_split, chain)]
    states, processes = list[Any](), set[int]()
    with iter(_in_workers(chain, 2)) as iterator:
        for step in range(len(whole)):
            states.append(json.loads(json.dumps(iterator.get_state())))
            rows, process = _split(next(iterator))
            assert rows == whole[step]
            processes.add(process)
    assert os.getpid() not in processes
    for workers in (0, 1, 3):
        with iter(_in_workers(chain, workers)) as iterator:
            for step in (len(whole) - 1, 0, len(whole) // 2):  # the workers stay the same
                iterator.set_state(states[step])
                assert _split(next(iterator))[0] == whole[step]
            assert [_split(found)[0] for found in iterator] == whole[len(whole) // 2 + 1 :]


def _with_process(rows: Any) -> Any:
    return {"rows": rows, "process": os.getpid()}


def _is_long(element: Any) -> bool:
    return len(element["rows"]) > 1


def _split(element: Any) -> tuple[list[int], int]:
    return element["rows"].tolist(), element["process"]
