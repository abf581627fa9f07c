"""`DataLoader`, `load` and the samplers against Grain's: elements, order, random values, states."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import grain
import grain.python
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import windrow
from tests.hypothesis_profiles import examples
from windrow.errors import ArgumentError, ClosedError, PlanError, RecordIndexError, StateError


class Double(windrow.transforms.Map):
    def map(self, element: Any) -> Any:
        return element * 2


class Noise(windrow.transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return element + int(rng.integers(1000)) * 1000


class NoiseOfTf(windrow.transforms.TfRandomMap):
    def np_random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return element + int(rng.integers(10)) * 10**7


class NotThrees(windrow.transforms.Filter):
    def filter(self, element: Any) -> bool:
        return bool(np.any(element % 3))


class Twice(windrow.transforms.FlatMap):
    max_fan_out = 2

    def flat_map(self, element: Any) -> Sequence[Any]:
        return [element, -element] if element % 2 == 0 else [element]


class NoiseOrNone(windrow.transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator | None) -> Any:
        return (element, rng is None)


def as_grain(operation: Any) -> Any:
    """The same transform as an object of Grain's class."""
    ours = type(operation)
    if ours is windrow.transforms.Batch:
        return grain.transforms.Batch(operation.batch_size, operation.drop_remainder)
    base = next(
        getattr(grain.transforms, kind.__name__, None) or grain.experimental.FlatMapTransform
        for kind in ours.__mro__[1:]
    )
    return type(ours.__name__, (base,), dict(ours.__dict__))()


def plain(elements: Any) -> list[Any]:
    return [each.tolist() if isinstance(each, np.ndarray) else each for each in elements]


OPERATIONS = st.lists(
    st.sampled_from([Double(), Noise(), NoiseOfTf(), NotThrees()]), max_size=3
).flatmap(
    lambda before: st.sampled_from(
        [
            before,
            [*before, windrow.transforms.Batch(3)],
            [*before, windrow.transforms.Batch(2, drop_remainder=True), Noise(), Double()],
        ]
    )
)


@st.composite
def samplers(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """The name of a sampler, and its arguments; a shard is given by its class, index and count."""
    shards = draw(st.integers(1, 4))
    records = draw(st.integers(shards, 30))
    given: dict[str, Any] = {"num_records": records, "seed": draw(st.integers(0, 2**32 - 1))}
    given["shard"] = (draw(st.integers(0, shards - 1)), shards, draw(st.booleans()))
    if draw(st.booleans()):
        return "SequentialSampler", given
    given["num_epochs"] = draw(st.sampled_from([1, 2, 3, None]))
    given["shuffle"] = draw(st.booleans())
    return "IndexSampler", given


def sampler_of(library: Any, drawn: tuple[str, dict[str, Any]]) -> Any:
    name, given = drawn
    more = {key: value for key, value in given.items() if key != "shard"}
    shard = library.sharding.ShardOptions(*given["shard"])
    return getattr(library.samplers, name)(shard_options=shard, **more)


@given(drawn=samplers(), data=st.data())
@settings(max_examples=examples(60))
def test_samplers_equal_grains(drawn: tuple[str, dict[str, Any]], data: st.DataObject) -> None:
    ours, theirs = sampler_of(windrow, drawn), sampler_of(grain, drawn)
    assert len(ours) == len(theirs)
    assert repr(ours) == repr(theirs)
    for index in data.draw(st.lists(st.integers(0, min(len(ours), 200) - 1), max_size=5)):
        one, other = ours[index], theirs[index]
        assert (one.index, one.record_key) == (other.index, other.record_key)
        assert one.rng.integers(1 << 60) == other.rng.integers(1 << 60)


LAST_OF_THREE = {"num_records": 3, "seed": 0, "shard": (1, 2, False), "shuffle": False}


# The filter drops the only record of the shard: for ever, in Grain.
@example(
    drawn=("IndexSampler", LAST_OF_THREE | {"num_epochs": None}), operations=[NotThrees()], extra=0
)
# Grain gives its only record three times in two epochs.
@example(drawn=("IndexSampler", LAST_OF_THREE | {"num_epochs": 2}), operations=[], extra=0)
@given(drawn=samplers(), operations=OPERATIONS, extra=st.integers(0, 3))
@settings(max_examples=examples(80), deadline=None)
def test_loaders_equal_grains(
    drawn: tuple[str, dict[str, Any]], operations: list[Any], extra: int
) -> None:
    source = list(range(100, 100 + drawn[1]["num_records"] + extra))
    read: dict[str, Any] = {"num_threads": 0, "prefetch_buffer_size": 0}
    ours = windrow.DataLoader(
        data_source=source,
        sampler=sampler_of(windrow, drawn),
        operations=operations,
        read_options=windrow.ReadOptions(**read),
    )

    def grains(drawn: tuple[str, dict[str, Any]]) -> Any:
        return grain.DataLoader(
            data_source=source,
            sampler=sampler_of(grain, drawn),
            operations=[as_grain(operation) for operation in operations],
            read_options=grain.ReadOptions(**read),
        )

    theirs = grains(drawn)
    first, second = iter(ours), iter(theirs)
    if len(ours.sampler) < 1000:  # type: ignore[arg-type]
        found, wanted = plain(first), plain(second)
        if _shares_unevenly(drawn[1]):  # the last batch that both have may be shorter in one
            both = max(0, min(len(found), len(wanted)) - 1)
            assert found[:both] == wanted[:both]
            assert operations or len(found) == _records_of_shard(drawn[1])
        else:
            assert found == wanted
        return
    for _ in range(20):
        element = next_or_none(first)
        if element is None:
            assert plain(grains((drawn[0], {**drawn[1], "num_epochs": 1}))) == []
            return
        assert plain([element]) == plain([next(second)])


def _shares_unevenly(given: dict[str, Any]) -> bool:
    """Whether Grain's loader leaves out records of larger shards, and repeats records of smaller ones."""
    return not given["shard"][2] and bool(given["num_records"] % given["shard"][1])


def _records_of_shard(given: dict[str, Any]) -> int:
    """The records of a shard in all epochs."""
    number, count, _ = given["shard"]
    epochs: int = given.get("num_epochs", 1)
    return len(range(number, given["num_records"], count)) * epochs


def next_or_none(iterator: Any) -> Any:
    """The next element; None where an endless stream has none, for which Grain would search for ever."""
    try:
        return next(iterator)
    except PlanError as error:
        if "the stream has no row" not in str(error):
            raise
        return None


@pytest.mark.parametrize("after", [[], [NoiseOrNone()], [windrow.transforms.Batch(4)]])
def test_a_flat_map_equals_grains(after: list[Any]) -> None:
    operations = [Noise(), Twice(), *after]
    ours = windrow.DataLoader(
        data_source=range(9),
        sampler=windrow.samplers.IndexSampler(9, num_epochs=1, seed=3, shuffle=True),
        operations=operations,
    )
    theirs = grain.DataLoader(
        data_source=list(range(9)),
        sampler=grain.samplers.IndexSampler(9, num_epochs=1, seed=3, shuffle=True),
        operations=[as_grain(operation) for operation in operations],
    )
    assert plain(ours) == plain(theirs)


class EveryOther:
    """A sampler of a user, without a length."""

    _shard_options = windrow.sharding.NoSharding()

    def __getitem__(self, index: int) -> windrow.RecordMetadata:
        if index >= 5:
            raise IndexError(index)
        rng = np.random.Generator(np.random.Philox(key=index))
        return windrow.RecordMetadata(index, 2 * index, rng)

    def __repr__(self) -> str:
        return "EveryOther()"


def test_a_sampler_of_the_user() -> None:
    loader = windrow.DataLoader(data_source=range(100, 110), sampler=EveryOther())
    assert list(loader) == [100, 102, 104, 106, 108]
    noisy = windrow.DataLoader(data_source=range(10), sampler=EveryOther(), operations=[Noise()])
    rngs = [np.random.Generator(np.random.Philox(key=index)) for index in range(5)]
    assert list(noisy) == [2 * k + int(rng.integers(1000)) * 1000 for k, rng in enumerate(rngs)]


class _Keys:
    """The records in order: a sampler of the user."""

    def __init__(self, records: int) -> None:
        self.records = records

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> windrow.RecordMetadata:
        return windrow.RecordMetadata(index, index)


def test_the_shard_of_the_loader_need_not_be_that_of_the_sampler() -> None:
    for index, count in [(0, 2), (1, 2), (2, 3)]:
        found = []
        for library in (windrow, grain):
            sampler = library.samplers.IndexSampler(
                11, library.sharding.NoSharding(), shuffle=True, num_epochs=2, seed=1
            )
            loader = library.DataLoader(
                data_source=list(range(11)),
                sampler=sampler,
                shard_options=library.sharding.ShardOptions(index, count, drop_remainder=True),
            )
            found.append(list(loader))
        assert found[0] == found[1]


@pytest.mark.parametrize(("records", "shards"), [(10, 3), (7, 4), (9, 3)])
@pytest.mark.parametrize("epochs", [1, 2])
def test_no_record_is_lost(records: int, shards: int, epochs: int) -> None:
    each = windrow.samplers.IndexSampler(records, num_epochs=epochs)  # shards of the loader's alone
    samplers: list[Any] = [windrow.samplers.SequentialSampler(records), each, _Keys(records)]
    for index in range(shards):
        shard = windrow.sharding.ShardOptions(index, shards)
        own: Any = windrow.samplers.IndexSampler(records, shard, True, epochs, seed=1)
        loader = windrow.DataLoader(data_source=range(records), sampler=own, operations=[Noise()])
        rows = -(-(records - index) // shards)
        assert len(list(loader)) == rows * epochs
        assert own[shards * (rows * epochs - 1) + index].record_key < records
        with pytest.raises(IndexError):
            own[shards * (rows + 1) * epochs]
    for sampler in samplers:
        found: list[int] = []
        for index in range(shards):
            shard = windrow.sharding.ShardOptions(index, shards)
            found += windrow.DataLoader(
                data_source=range(records), sampler=sampler, shard_options=shard
            )
        times = epochs if sampler is each else 1
        assert sorted(found) == sorted([*range(records)] * times)
        shard = windrow.sharding.ShardOptions(0, shards, drop_remainder=True)
        fewer = windrow.DataLoader(data_source=range(records), sampler=sampler, shard_options=shard)
        assert len(list(fewer)) == records * times // shards


# --- workers and states --------------------------------------------------------------------------


def _noisy(workers: int) -> windrow.DataLoader:
    sampler = windrow.samplers.IndexSampler(40, shuffle=True, num_epochs=2, seed=7)
    return windrow.DataLoader(
        data_source=list(range(40)),
        sampler=sampler,
        operations=[Noise(), NotThrees(), windrow.transforms.Batch(4)],
        worker_count=workers,
    )


def test_elements_do_not_depend_on_workers() -> None:
    expected = plain(_noisy(0))
    with iter(_noisy(1)) as iterator:
        first = [next(iterator).tolist() for _ in range(3)]
        state = iterator.get_state()
    with pytest.raises(ClosedError):
        next(iterator)
    rest = iter(_noisy(0))
    rest.set_state(state)
    assert first + plain(rest) == expected


@pytest.mark.parametrize("at", range(0, 15, 4))
def test_a_restored_loader_yields_the_rest(at: int) -> None:
    expected = plain(_noisy(0))
    iterator = iter(_noisy(0))
    for _ in range(at):
        next(iterator)
    state = iterator.get_state()
    assert json.loads(state)["version"] == 2
    again = windrow.DataLoaderIterator(_noisy(0), state)
    assert again.get_state() == state
    assert plain(again) == expected[at:]


def loaders(workers: int, operations: Sequence[Any], shard: tuple[int, int]) -> tuple[Any, Any]:
    """Our loader without workers, and Grain's with some, over the same records."""
    made = []
    for library, count, mine in [
        (windrow, 0, list(operations)),
        (grain, workers, [as_grain(operation) for operation in operations]),
    ]:
        made.append(
            library.DataLoader(
                data_source=list(range(48)),
                sampler=library.samplers.IndexSampler(
                    48, library.sharding.ShardOptions(*shard), True, 2, seed=5
                ),
                operations=mine,
                worker_count=count,
            )
        )
    return made[0], made[1]


@pytest.mark.parametrize("shard", [(0, 1), (2, 3)])
@pytest.mark.parametrize("operations", [[], [Noise(), windrow.transforms.Batch(4)], [NotThrees()]])
def test_a_state_of_grain_is_read(operations: list[Any], shard: tuple[int, int]) -> None:
    ours, theirs = loaders(0, operations, shard)
    given = iter(theirs)
    for step in range(6):
        restored = iter(ours)
        restored.set_state(given.get_state())
        again = iter(theirs)
        again.set_state(given.get_state())
        assert plain(restored) == plain(again), step
        next(given)


def _grain_state(ours: Any, seen: list[int], **changed: Any) -> bytes:
    state = {
        "version": 2,
        "last_seen_indices": {str(k): n for k, n in enumerate(seen)},
        "last_worker_index": len(seen) - 1,
        "worker_count": len(seen),
        "sampler": repr(ours.sampler),
        "data_source": "<class 'list'>",
    }
    return json.dumps(state | changed).encode()


def test_a_state_of_grains_workers_is_read_where_they_took_consecutive_records() -> None:
    ours, _ = loaders(0, [], (0, 1))
    everything = list(ours)
    # Worker 0 has taken the elements 0, 2 and 4, and worker 1 the elements 1 and 3.
    restored = windrow.DataLoaderIterator(ours, _grain_state(ours, [4, 3]))
    assert list(restored) == everything[5:]
    with pytest.raises(StateError, match=r"between the batches of 2 workers of Grain.* 4, 0 rec"):
        iter(ours).set_state(_grain_state(ours, [6, -1]))


def test_states_of_others_are_refused() -> None:
    ours, _ = loaders(0, [], (1, 3))
    good = _grain_state(ours, [1 + 3 * 4])
    iter(ours).set_state(good)
    with pytest.raises(StateError, match="taken by another shard than 1 of 3"):
        iter(ours).set_state(_grain_state(ours, [2]))
    with pytest.raises(StateError, match=r"another sampler\n.*mine"):
        iter(ours).set_state(_grain_state(ours, [1], sampler="mine"))
    windrow.DataLoaderIterator(ours, _grain_state(ours, [1], sampler="mine"), validate_state=False)
    with pytest.raises(StateError, match="needs version 2"):
        iter(ours).set_state(_grain_state(ours, [1], version=1))
    with pytest.raises(StateError, match="no last seen index of worker 0"):
        iter(ours).set_state(_grain_state(ours, [1], last_seen_indices={}))
    with pytest.raises(StateError, match="not JSON"):
        iter(ours).set_state(b"\xff")
    with pytest.warns(UserWarning, match="its source is mine"):
        iter(ours).set_state(_grain_state(ours, [1], data_source="mine"))
    with pytest.raises(StateError, match="another chain or other data"):
        iter(ours).set_state(iter(_noisy(0)).get_state())


# --- wrong arguments -----------------------------------------------------------------------------


SAMPLERS, SHARDS = windrow.samplers, windrow.sharding
THREE = SAMPLERS.SequentialSampler(3)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: SAMPLERS.SequentialSampler(0), PlanError),
        (lambda: SAMPLERS.IndexSampler(3, num_epochs=0), PlanError),
        (lambda: SAMPLERS.IndexSampler(3, shuffle=True), PlanError),
        (lambda: SAMPLERS.IndexSampler(3, seed=2**32), PlanError),
        (lambda: SAMPLERS.IndexSampler(3, shuffle=True, seed="1"), ArgumentError),  # type: ignore[arg-type]
        (lambda: SAMPLERS.IndexSampler(3, num_epochs=1)[3], RecordIndexError),
        (lambda: THREE[-1], RecordIndexError),
        (lambda: SHARDS.ShardOptions(2, 2), PlanError),
        (lambda: SHARDS.ShardOptions(0, 0), PlanError),
        (lambda: loader_of(2, SAMPLERS.IndexSampler(2, SHARDS.ShardOptions(2, 3))), PlanError),
        (lambda: loader_of(3, THREE, worker_count=-1), PlanError),
        (lambda: loader_of(3, THREE, operations=[lambda it: it]), ArgumentError),
        (lambda: loader_of(3, object()), PlanError),
    ],
)
def test_wrong_arguments_are_refused(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


def loader_of(records: int, sampler: Any, **more: Any) -> windrow.DataLoader:
    return windrow.DataLoader(data_source=range(records), sampler=sampler, **more)
