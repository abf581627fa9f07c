"""The laws of states: an iterator resumes from one exactly, and refuses one that does not fit."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings

import windrow
from tests import strategies as make
from tests.hypothesis_profiles import examples
from tests.strategies import Drawn
from windrow.errors import StateError

M = windrow.MapDataset


def build_short(recipe: make.Recipe) -> Any:
    """A dataset to iterate, not too long."""
    dataset: Any = make.build(recipe)
    if isinstance(dataset, M):
        return dataset[:24].to_iter_dataset(make.SYNCHRONOUS)
    return dataset.limit(24)


# --- restarts ------------------------------------------------------------------------------------


def check_restores(dataset: Any) -> None:
    """Restoring at every step, through JSON, gives the rest; and so does going back."""
    iterator = iter(dataset)
    states, elements = [iterator.get_state()], []
    for element in iterator:
        elements.append(element)
        states.append(json.loads(json.dumps(iterator.get_state())))
    assert len(json.dumps(states[-1])) < 1000
    for at, state in enumerate(states):
        fresh = iter(dataset)
        fresh.set_state(state)
        assert fresh.get_state() == state
        assert make.differences(fresh, elements[at:]) == [], (at, state["lanes"])
    for at in reversed(range(0, len(states), 3)):
        iterator.set_state(states[at])
        assert make.differences(itertools.islice(iterator, 2), elements[at : at + 2]) == []


@given(drawn=make.streams(ours=True, most=5))
@settings(max_examples=examples(100))
def test_streams_are_restored_at_every_step(drawn: Drawn) -> None:
    check_restores(build_short(drawn.recipe))


@given(drawn=make.chains(ours=True, lengths=make.FEW))
@settings(max_examples=examples(50))
def test_chains_are_restored_at_every_step(drawn: Drawn) -> None:
    check_restores(build_short(drawn.recipe))


# --- states --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["k" * 3000, "ключ" * 300, '"\\\n' * 500])
def test_states_are_small_whatever_the_names(name: str) -> None:
    dataset = M.source({name: np.arange(4)})
    for _ in range(30):
        dataset = dataset.map(make.Bump(1)).map_with_index(make.add_index)
    assert len(json.dumps(iter(dataset).get_state())) < 1000


def other_chains() -> dict[str, Any]:
    base = M.range(20)
    return {
        "seed": base.shuffle(seed=2),
        "length": M.range(21).shuffle(seed=1),
        "start": M.range(1, 21).shuffle(seed=1),
        "node": base.shuffle(seed=1).map(make.Bump(1)),
        "window": base.window_shuffle(5, seed=1),
        "data": M.source(np.arange(20)).shuffle(seed=1),
        "dtype": M.source(np.arange(20, dtype=np.int32)).shuffle(seed=1),
        "slice": M.range(40).shuffle(seed=1)[:20],
        "order": base.shuffle(seed=1).repeat(1),
        "stream": base.shuffle(seed=1).to_iter_dataset().filter(bool),
        "batch": base.shuffle(seed=1).batch(1).filter(bool),
        "reindex": base.shuffle(seed=1).slice(range(20)),
        "reindex again": base.shuffle(seed=1).slice([*range(1, 20), 0]),
        "select": M.select_from_datasets([base], make.Zigzag(1, 20)),
    }


@pytest.mark.parametrize("name", other_chains())
def test_a_state_of_another_chain_is_refused_with_both_shown(name: str) -> None:
    state = iter(M.range(20).shuffle(seed=1)).get_state()
    other = iter(other_chains()[name])
    before = other.get_state()
    with pytest.raises(StateError, match="another chain or other data") as caught:
        other.set_state(state)
    message = str(caught.value)
    assert "range(0, 20, 1) > shuffle(seed=1)" in message
    assert before["chain"] in message
    assert state["fingerprint"] in message
    assert before["fingerprint"] in message
    assert other.get_state() == before


class Listed:
    """A selection map that says what it holds."""

    def __init__(self, picks: list[tuple[int, int]], fingerprint: Any) -> None:
        self._picks = picks
        self.fingerprint = fingerprint

    def __len__(self) -> int:
        return len(self._picks)

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self._picks[index % len(self._picks)]


def test_a_state_of_another_selection_is_refused_where_the_map_has_a_fingerprint() -> None:
    def iterator(first: int, fingerprint: Any) -> Any:
        picks = [(0, first), (0, 1)]
        return iter(M.select_from_datasets([M.range(9)], Listed(picks, fingerprint)))

    state = iterator(4, "four, one").get_state()
    assert "select_from_datasets(Listed, length=2, fingerprint=four, one)" in state["chain"]
    same = iterator(4, "four, one")
    same.set_state(state)
    assert list(same) == [4, 1]
    with pytest.raises(StateError, match="fingerprint=five, one"):
        iterator(5, "five, one").set_state(state)
    # Only the class and the length of other sources are known.
    iterator(5, None).set_state(iterator(4, None).get_state())
    assert "fingerprint" not in iterator(4, 17).get_state()["chain"]


def test_all_those_chains_have_fingerprints_of_their_own() -> None:
    prints = [iter(chain).get_state()["fingerprint"] for chain in other_chains().values()]
    assert len(set(prints)) == len(prints)


def test_how_a_stream_is_read_and_where_is_no_part_of_the_chain() -> None:
    def state(source: Any, options: windrow.ReadOptions) -> Any:
        return iter(M.source(source).to_iter_dataset(options)).get_state()

    one = state(np.arange(5), make.READ_OPTIONS[0])
    assert one == state(np.arange(5) + 7, make.READ_OPTIONS[-1])


def test_a_changed_function_warns_and_goes_on() -> None:
    def one(element: int) -> int:
        return element

    def two(element: int) -> int:
        return -element

    iterator = iter(M.range(9).map(one))
    list(itertools.islice(iterator, 4))
    again = iter(M.range(9).map(two))
    with pytest.warns(UserWarning, match="functions of the chain have other names"):
        again.set_state(iterator.get_state())
    assert list(again) == [-4, -5, -6, -7, -8]


def test_a_function_of_the_same_name_does_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    iterator = iter(M.range(9).map(make.Bump(1)).map(lambda x: x).batch(2, batch_fn=make.total))
    again = iter(M.range(9).map(make.Bump(2)).map(lambda x: x).batch(2, batch_fn=make.total))
    again.set_state(iterator.get_state())
    assert not recwarn.list


def but(**changes: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda state: {**state, **changes}


DAMAGED: list[tuple[Any, str]] = [
    (None, "state must be a dict, as get_state.* got NoneType"),
    ([1], "state must be a dict, as get_state.* got list"),
    ("{", "state is not JSON: '{'"),
    (b"\xff", "state is not JSON"),
    ({}, r"not a state of a Windrow iterator: it has the keys \[\]"),
    (
        {"version": 1, "position": [0], "fingerprint": "58c8f394492c39fc"},
        "state has version 1, which another Windrow wrote; this one reads version 2 alone. Start",
    ),
    ({"version": 2, "rows": 0}, r"needs version, rows, lanes and fingerprint"),
    (but(version=3), "state has version 3, which another Windrow wrote"),
    (but(version=True), "state has version True"),
    (but(rows=-1), "at least 0"),
    (but(rows=None), "The state is damaged"),
    (but(lanes=[]), "this chain has 1. The state is damaged"),
    (but(lanes=[[0, 0, 0], [0, 0, 0]]), "this chain has 1. The state is damaged"),
    (but(lanes=None), "this chain has 1. The state is damaged"),
    (but(lanes=[None]), "the state has no position of lanes 0, which this iterator runs"),
    (but(lanes=[[0]]), "a position of this chain is 3 integers"),
    (but(lanes=[[0, 0, -1]]), "at least 0"),
    (but(lanes=[[0, 0, 1.0]]), "The state is damaged"),
    (but(lanes=[[0, 0, True]]), "The state is damaged"),
    (but(lanes=["000"]), "The state is damaged"),
    (but(lanes=[[0, 0, 2**63]]), r"below 2\*\*63"),
    (but(lanes=[[11, 0, 0]]), "state is at element 11 of a dataset of 10"),
    (but(after=[1]), "a position of this chain is 0 integers"),
    (but(fingerprint="0123"), r"\[0123\]"),
    (but(fingerprint=None), "another chain or other data"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGED)
def test_damaged_states_are_refused(damage: Any, message: str) -> None:
    iterator = iter(M.range(10).to_iter_dataset().window_shuffle(4, seed=1))
    expected = next(iterator)
    state = iterator.get_state()
    with pytest.raises(StateError, match=message):
        iterator.set_state(damage(state) if callable(damage) else damage)
    assert iterator.get_state() == state
    iterator.set_state({**state, "lanes": [[0, 0, 0]]})
    assert next(iterator) == expected


@pytest.mark.parametrize("damaged", [[0, 0, 4], [0, 0, 2**62], [8, 2, 2]])
def test_a_place_outside_a_window_is_refused(damaged: list[int]) -> None:
    iterator = iter(M.range(10).to_iter_dataset().window_shuffle(4, seed=1))
    iterator.set_state({**iterator.get_state(), "lanes": [damaged]})
    with pytest.raises(StateError, match="it is damaged: restore another one"):
        next(iterator)


def test_positions_beyond_the_data_are_refused_in_every_part_of_a_mixture() -> None:
    parts = [M.range(5).to_iter_dataset(), M.range(6).to_iter_dataset().map_with_index(max)]
    for many in (windrow.IterDataset.mix(parts), windrow.IterDataset.zip(parts, strict=False)):
        iterator = iter(many)
        state = iterator.get_state()
        wrong = [0, 7, *state["lanes"][0][2:]]
        with pytest.raises(StateError, match="at element 7 of a dataset of 6"):
            iterator.set_state({**state, "lanes": [wrong]})


def test_states_are_taken_as_text_and_as_bytes() -> None:
    dataset = M.range(9).shuffle(1)
    iterator = iter(dataset)
    next(iterator)
    text = json.dumps(iterator.get_state())
    rest = list(iterator)
    for form in (text, text.encode()):
        iterator.set_state(form)  # type: ignore[arg-type]  # what checkpoints hand over
        assert list(iterator) == rest


def _elastic() -> Any:
    shard = windrow.sharding.ShardOptions(0, 2)
    return windrow.experimental.ElasticIterator(M.range(10), 4, shard)


def _jax() -> Any:
    jax = pytest.importorskip("jax")
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return iter(M.source(np.arange(8, dtype=np.int32)).batch(2).to_jax(device))


ITERATORS: dict[str, Callable[[], Any]] = {
    "random access": lambda: iter(M.range(8).shuffle(seed=1)),
    "stream": lambda: iter(M.range(8).to_iter_dataset().batch(2)),
    "global arrays": _jax,
    "DataLoader": lambda: iter(windrow.load(range(8), num_epochs=1, batch_size=2)),
    "ElasticIterator": _elastic,
    "thread": lambda: windrow.experimental.ThreadPrefetchDatasetIterator(
        iter(M.range(8)), prefetch_buffer_size=1
    ),
}


@pytest.mark.parametrize("name", ITERATORS)
def test_set_state_returns_the_iterator(name: str) -> None:
    first = ITERATORS[name]()
    next(first)
    state = first.get_state()
    wanted = np.asarray(next(first)).tolist()
    resumed = ITERATORS[name]().set_state(state)
    assert np.asarray(next(resumed)).tolist() == wanted
    if hasattr(first, "load_state_dict"):  # of torchdata, which returns nothing
        assert first.load_state_dict(state) is None
        assert np.asarray(next(first)).tolist() == wanted


# --- sizes: at most 20 bytes for each lane and each node that counts something ---------------------

NODE_BYTES = 20

Stream: TypeAlias = windrow.IterDataset[Any]


def numbers(lanes: int, first: int = 10**6) -> Stream:
    chain = M.range(first, first + 10**7)
    return chain.to_iter_dataset(make.SYNCHRONOUS, lanes=lanes)


def other(lanes: int) -> Stream:
    return numbers(lanes, 5 * 10**7)


def as_tokens(number: int) -> dict[str, Any]:
    return {"tokens": np.full(number % 5 + 1, number)}


def packed(stream: Stream, method: Any) -> Stream:
    options: Any = {} if method == "concat_then_split" else {"num_packing_bins": 3}
    return stream.map(as_tokens).pack({"tokens": 8}, method, **options)


def twice(number: int) -> list[int]:
    return [number, -number]


def with_row(row: int, number: int) -> int:
    return row + number


def tokens_of(number: int) -> int:
    return number % 5 + 1


# What is added to a stream, and how many of the nodes count: a mixture has another source, too.
NODES: dict[str, tuple[int, Callable[[Stream, int], Stream]]] = {
    "filter": (0, lambda stream, _: stream.map(abs).filter(lambda n: n % 1_000_003 > 0)),
    "flat_map": (1, lambda stream, _: stream.flat_map(twice)),
    "window_shuffle": (1, lambda stream, _: stream.window_shuffle(50, seed=1)),
    "repeat": (1, lambda stream, _: stream.repeat(3)),
    "limit": (1, lambda stream, _: stream.limit(10**7)),
    "map_with_index": (1, lambda stream, _: stream.map_with_index(with_row)),
    "first_fit": (1, lambda stream, _: packed(stream, "first_fit")),
    "best_fit": (1, lambda stream, _: packed(stream, "best_fit")),
    "concat_then_split": (1, lambda stream, _: packed(stream, "concat_then_split")),
    "mix": (2, lambda stream, lanes: windrow.IterDataset.mix([stream, other(lanes)], [2, 1])),
    "mix by tokens": (
        2,
        lambda stream, lanes: windrow.IterDataset.mix(
            [stream, other(lanes)], [2, 1], by="tokens", tokens=tokens_of
        ),
    ),
    "interleave": (
        2,
        lambda stream, lanes: windrow.IterDataset.interleave(
            [stream, other(lanes)], cycle_length=2
        ),
    ),
    "best_fit of a mix": (
        3,
        lambda stream, lanes: packed(windrow.IterDataset.mix([stream, other(lanes)]), "best_fit"),
    ),
}


def state_of(stream: Stream) -> dict[str, Any]:
    """A state in the middle of a stream."""
    iterator = iter(stream.repeat().batch(64))
    iterator.skip(20)
    next(iterator)
    return iterator.get_state()


def lane_bytes(state: dict[str, Any]) -> float:
    return len(json.dumps(state["lanes"])) / len(state["lanes"])


@pytest.mark.parametrize("name", NODES)
def test_a_node_adds_at_most_20_bytes_per_lane(name: str) -> None:
    counting, add = NODES[name]
    lanes = 8
    alone, state = state_of(numbers(lanes)), state_of(add(numbers(lanes), lanes))
    assert len(state["lanes"]) == lanes
    added = lane_bytes(state) - lane_bytes(alone)
    # The positions of the nodes before may have a digit more.
    assert added <= NODE_BYTES * counting + 2
    assert (added >= 2) == (counting > 0)
