"""Regroupings of streams: the same elements as a plain model, and the rest after any state."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests import strategies as make
from tests.hypothesis_profiles import examples
from windrow.errors import ArgumentError, ElementError, PlanError, StateError

M, Streams = windrow.MapDataset, windrow.IterDataset


def several(number: int) -> list[int]:
    """0 to 3 items."""
    return [number * 10 + item for item in range(number % 4)]


def is_odd(number: int) -> bool:
    return number % 2 == 1


def noise(element: Any, rng: np.random.Generator) -> Any:
    return int(element) + int(rng.integers(1000))


def noises(columns: Any, rngs: Sequence[np.random.Generator]) -> Any:
    return columns + np.array([rng.integers(1000) for rng in rngs])


def stream(count: int = 12) -> windrow.IterDataset[int]:
    return M.range(count).to_iter_dataset(make.SYNCHRONOUS)


def resumed(dataset: Any, state: Any) -> Any:
    iterator = iter(dataset)
    iterator.set_state(json.loads(json.dumps(state)))
    return iterator


def check_states(dataset: Any, most: int = 60) -> list[Any]:
    """The elements, after checking that each state resumes with the rest of them."""
    whole = list(itertools.islice(dataset, most))
    with iter(dataset) as iterator:
        for step in range(len(whole) + 1):
            with resumed(dataset, iterator.get_state()) as again:
                rest = list(itertools.islice(again, len(whole) - step))
                assert make.differences(rest, whole[step:]) == [], step
            if step < len(whole):
                next(iterator)
    return whole


# --- flat_map ------------------------------------------------------------------------------------


def test_a_restore_calls_the_function_for_one_element_again() -> None:
    called: list[int] = []

    def noted(number: int) -> list[int]:
        called.append(number)
        return [number] * 3

    dataset = stream(6).flat_map(noted)
    iterator = iter(dataset)
    assert list(itertools.islice(iterator, 7)) == [0, 0, 0, 1, 1, 1, 2]
    state = iterator.get_state()
    called.clear()
    assert next(resumed(dataset, state)) == 2
    assert called[0] == 2


class Repeated(windrow.transforms.FlatMap):
    """Each element as often as it says."""

    max_fan_out = 4

    def flat_map(self, element: int) -> list[int]:
        return [element] * (element % 4)


def test_a_flat_map_is_applied() -> None:
    assert list(stream(7).apply(Repeated())) == [1, 2, 2, 3, 3, 3, 5, 6, 6]
    assert list(M.range(7).apply([Repeated()])) == [1, 2, 2, 3, 3, 3, 5, 6, 6]


def test_a_function_is_called_once_for_neighbouring_slots() -> None:
    called: list[int] = []

    def noted(number: int) -> list[int]:
        called.append(number)
        return [number] * 4

    M.range(3).flat_map(noted, max_fan_out=4).__getitems__(range(12))
    assert called == [0, 1, 2]


def test_what_a_flat_map_refuses() -> None:
    with pytest.raises(ElementError, match=r"flat_map\(abs\) returned int, which is not iterable"):
        list(stream(3).flat_map(abs))  # type: ignore[arg-type]
    with pytest.raises(ElementError, match="made 3 elements of element 3, more than max_fan_out=2"):
        list(M.range(4).flat_map(several, 2))
    with pytest.raises(ArgumentError, match="random access needs max_fan_out"):
        M.range(4).flat_map(several)  # type: ignore[call-overload]
    with pytest.raises(PlanError, match="max_fan_out must be at least 1, got 0"):
        M.range(4).flat_map(several, 0)
    with pytest.raises(ArgumentError, match="flat_map: needs a function or a windrow"):
        stream(3).flat_map(3)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="leaves gaps"):
        M.range(4).flat_map(several, 3).batch(2)
    iterator = iter(stream(6).flat_map(several))
    state = {**iterator.get_state(), "rows": 1, "lanes": [[1, 2]]}
    iterator.set_state(state)
    with pytest.raises(StateError, match="element 2 of a group of 1"):
        next(iterator)


# --- batches -------------------------------------------------------------------------------------


RAGGED = [np.arange(n, dtype=np.int32) for n in (3, 0, 2, 4)]


@pytest.mark.parametrize("as_dict", [False, True])
def test_ragged_rows_are_padded(as_dict: bool) -> None:
    expected = np.full((4, 5), -1)
    for row, values in enumerate(RAGGED):
        expected[row, : len(values)] = values
    records = [{"t": row, "n": len(row)} for row in RAGGED] if as_dict else RAGGED
    base = M.source(records)
    for dataset in (base, base.to_iter_dataset()):
        for pad_to in (5, {"t": 5}) if as_dict else (5,):
            batches = list(dataset.batch(4, pad_to=pad_to, pad_value=-1))
            found = batches[0]["t"] if as_dict else batches[0]
            assert found.dtype == np.int32
            assert np.array_equal(found, expected)
            if as_dict:
                assert batches[0]["n"].tolist() == [3, 0, 2, 4]
    both: Any = base.batch(3, pad_to=5, remainder="pad")
    last = list(both)[1]
    assert (last["mask"] if as_dict else last[1]).tolist() == [True, False, False]


def test_what_batch_refuses() -> None:
    base = M.source([{"t": row} for row in RAGGED])
    with pytest.raises(
        ElementError, match="leaf 't' of element 3 of the batch has length 4, which"
    ):
        list(base.batch(4, pad_to=3))
    with pytest.raises(ElementError, match=r"pad_to names the keys \['x'\], but elements have"):
        list(base.batch(4, pad_to={"x": 9}))
    with pytest.raises(ElementError, match=r"pad_value=0\.5 is not a value of dtype int32"):
        list(base.batch(4, pad_to=9, pad_value=0.5))
    with pytest.raises(ElementError, match="pad_value=-1 is not a value of dtype uint8"):
        list(M.source([np.zeros(2, np.uint8)]).batch(1, pad_to=3, pad_value=-1))
    with pytest.raises(PlanError, match="pad_to must be at least 1, got 0"):
        base.batch(4, pad_to=0)
    with pytest.raises(ArgumentError, match="pad_value must be a number"):
        base.batch(4, pad_to=3, pad_value="0")  # type: ignore[call-overload]
    with pytest.raises(
        ArgumentError, match="remainder must be 'keep', 'drop' or 'pad', got 'lose'"
    ):
        base.batch(4, remainder="lose")  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match="drop_remainder=True contradicts remainder='pad'"):
        base.batch(4, remainder="pad", drop_remainder=True)
    with pytest.raises(PlanError, match=r"total makes the batches, so they are not padded"):
        base.batch(4, remainder="pad", batch_fn=make.total)  # type: ignore[call-overload]
    with pytest.raises(ElementError, match="elements have the key 't', which would be the mask"):
        list(base.batch(4, pad_to=4, remainder="pad", mask="t"))
    with pytest.raises(ElementError, match="elements differ in structure"):
        list(M.source([{"a": 1}, {"b": 1}]).batch(2, remainder="pad"))


# --- rebatch and interleave ----------------------------------------------------------------------


def test_rebatched_states_strings_and_specs() -> None:
    batches = M.source(list("abcdefghijk")).batch(4).to_iter_dataset()
    assert check_states(batches.rebatch(3)) == [list("abc"), list("def"), list("ghi"), list("jk")]
    chain = M.source({"x": np.zeros((10, 2))}).batch(4).to_iter_dataset()
    assert chain.rebatch(5, drop_remainder=True).element_spec["x"].shape == (5, 2)
    with pytest.raises(ElementError, match="rebatch: int is not a batch"):
        list(stream(3).rebatch(2))
    uneven = [{"a": np.zeros(2), "b": np.zeros(3)}]
    with pytest.raises(ElementError, match="whose leaves have one number of rows"):
        list(M.source(uneven).to_iter_dataset().rebatch(2))
    with pytest.raises(PlanError, match="batch_size must be at least 1"):
        batches.rebatch(0)


def test_empty_batches_have_no_rows() -> None:
    batches = M.source([np.zeros(0), np.ones(3), np.zeros(0)]).to_iter_dataset()
    assert [batch.tolist() for batch in batches.rebatch(2)] == [[1, 1], [1]]


def test_interleaved_endless_streams_and_refusals() -> None:
    both = Streams.interleave([stream(3).repeat(), stream(2)], 2)
    assert list(itertools.islice(both, 7)) == [0, 0, 1, 1, 2, 0, 1]
    assert both.explain().is_endless
    with pytest.raises(PlanError, match="needs at least one dataset"):
        Streams.interleave([], 1)
    with pytest.raises(PlanError, match="cycle_length must be at least 1, got 0"):
        Streams.interleave([stream()], 0)
    with pytest.raises(PlanError, match="interleave: streams with 1 and 2 lanes"):
        Streams.interleave([stream(), M.range(4).to_iter_dataset(lanes=2)], 2)


# --- random_map ----------------------------------------------------------------------------------


@given(count=st.integers(1, 30), seed=make.SEEDS, epoch=st.integers(-2, 2))
@settings(max_examples=examples(40), deadline=None)
def test_batched_random_maps_have_the_generators_of_single_ones(
    count: int, seed: int, epoch: int
) -> None:
    base = M.range(count)
    one, many = base.random_map(noise, seed=seed), base.random_map(noises, seed=seed, batched=True)
    indices = np.arange(epoch * count, (epoch + 2) * count)
    assert many.read(indices).tolist() == one.read(indices).tolist()
    single, columns = (
        stream(count).filter(is_odd).random_map(function, seed=seed, batched=batched)
        for function, batched in ((noise, False), (noises, True))
    )
    assert [int(value) for value in check_states(columns)] == list(single)
