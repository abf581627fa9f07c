"""States of mixtures with names: parts that are new, gone, or have other weights."""

from __future__ import annotations

import itertools
import json
import re
import warnings
from collections import Counter
from typing import Any

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.hypothesis_profiles import examples
from windrow.errors import StateError

STARTS = {"a": 0, "b": 1000, "c": 2000, "d": 3000}


def part(library: Any, name: str) -> Any:
    start = STARTS[name]
    return library.MapDataset.range(start, start + 500).to_iter_dataset()


def mixed(library: Any, weights: dict[str, float], **options: Any) -> Any:
    parts = {name: part(library, name) for name in weights}
    return library.IterDataset.mix(parts, weights, **options)


def restored(stream: Any, state: Any) -> Any:
    iterator = iter(stream)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        iterator.set_state(json.loads(json.dumps(state)))
    return iterator


WEIGHTS = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 4), min_size=1).map(
    lambda given: dict(sorted(given.items()))  # Grain sorts them where JAX is installed
)


@given(old=WEIGHTS, new=WEIGHTS, steps=st.integers(0, 40))
@settings(max_examples=examples(60), deadline=None)
def test_parts_are_taken_over_as_by_grain(
    old: dict[str, float], new: dict[str, float], steps: int
) -> None:
    if not set(old) & set(new):
        return
    found = []
    for library in (windrow, grain):
        iterator = mixed(library, old).__iter__()
        for _ in range(steps):
            next(iterator)
        again = restored(mixed(library, new), iterator.get_state())
        found.append([next(again) for _ in range(30)])
    assert found[0] == found[1]


@pytest.mark.parametrize("at_end", ["stop", "drop", "repeat"])
@pytest.mark.parametrize("by", ["elements", "tokens"])
def test_no_part_loses_an_element(at_end: Any, by: Any) -> None:
    def stream(weights: dict[str, float]) -> Any:
        parts = {
            name: windrow.MapDataset.range(STARTS[name], STARTS[name] + 40)
            .map(lambda n: {"n": n, "x": np.zeros(1 + n % 3)})
            .to_iter_dataset()
            for name in weights
        }
        return windrow.IterDataset.mix(
            parts, weights, at_end=at_end, by=by, tokens="x" if by == "tokens" else None
        )

    iterator = iter(stream({"a": 1, "b": 2, "c": 1}))
    before = [next(iterator)["n"] for _ in range(37)]
    again = restored(stream({"d": 1, "c": 3, "a": 2}), iterator.get_state())
    after = [element["n"] for element in itertools.islice(again, 30)]
    for name in "acd":
        both = [n for n in before + after if STARTS[name] <= n < STARTS[name] + 1000]
        assert [n - STARTS[name] for n in both] == [k % 40 for k in range(len(both))]
    assert not any(1000 <= n < 2000 for n in after)
    later = Counter(n // 1000 for n in after)
    assert set(later) == {0, 2, 3}


def test_a_batch_a_map_and_lanes_after_the_mixture() -> None:
    def stream(weights: dict[str, float], size: int) -> Any:
        parts = {
            name: windrow.MapDataset.range(STARTS[name], STARTS[name] + 500).to_iter_dataset(
                lanes=2
            )
            for name in weights
        }
        return windrow.IterDataset.mix(parts, weights).map(lambda n: n + 1).filter(bool).batch(size)

    iterator = iter(stream({"a": 1, "b": 1}, 4))
    before = np.concatenate([next(iterator) for _ in range(3)]).tolist()
    again = restored(stream({"b": 1, "c": 1}, 8), iterator.get_state())
    after = np.concatenate([next(again) for _ in range(2)]).tolist()
    given_of_b = [n for n in before + after if 1000 < n < 2000]
    assert sorted(given_of_b) == list(range(1001, 1001 + len(given_of_b)))
    assert sorted(n for n in after if n > 2000) == list(range(2001, 2009))


def test_elements_held_by_a_window_come_again() -> None:
    def stream(weights: dict[str, float]) -> Any:
        return mixed(windrow, weights).window_shuffle(8, seed=1).limit(60)

    iterator = iter(stream({"a": 1, "b": 1}))
    before = [next(iterator) for _ in range(12)]
    again = iter(stream({"a": 3, "b": 1}))
    with pytest.warns(UserWarning, match=r"weights.*; elements that window_shuffle.* come again"):
        again.set_state(iterator.get_state())
    after = list(again)
    assert len(after) == 48  # the limit still counts
    for start in (0, 1000):
        both = {n for n in before + after if start <= n < start + 1000}
        assert both == set(range(start, start + len(both)))


def test_the_warning_names_what_differs() -> None:
    iterator = iter(mixed(windrow, {"a": 1, "b": 1}))
    next(iterator)
    changes: list[tuple[dict[str, float], str]] = [
        ({"a": 1, "c": 1}, "new, from its beginning: 'c'; gone, and left out: 'b'"),
        ({"a": 1, "b": 3}, "it had other weights, or another order of the parts"),
        ({"b": 1, "a": 1}, "it had other weights, or another order of the parts"),
    ]
    for weights, text in changes:
        with pytest.warns(UserWarning, match=re.escape(text)):
            iter(mixed(windrow, weights)).set_state(iterator.get_state())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        iter(mixed(windrow, {"a": 1, "b": 1})).set_state(iterator.get_state())


def test_other_changes_stay_refused() -> None:
    iterator = iter(mixed(windrow, {"a": 1, "b": 1}))
    next(iterator)
    state = iterator.get_state()
    other = {"a": part(windrow, "a").map(abs), "b": part(windrow, "b")}
    with pytest.raises(StateError, match="'a' has another chain or other data"):
        iter(windrow.IterDataset.mix(other)).set_state(state)
    with pytest.raises(StateError, match="no part of this one is in it"):
        iter(mixed(windrow, {"c": 1, "d": 1})).set_state(state)
    for stream in [
        mixed(windrow, {"a": 1, "b": 2}).window_shuffle(3, 1),
        mixed(windrow, {"a": 1, "b": 2}, at_end="drop"),
        windrow.IterDataset.mix([part(windrow, "a"), part(windrow, "b")], [1, 2]),
    ]:
        with pytest.raises(StateError, match="another chain or other data"):
            iter(stream).set_state(state)
    lists = iter(windrow.IterDataset.mix([part(windrow, "a"), part(windrow, "b")], [1, 2]))
    assert "mixture" not in lists.get_state()
    without = {**state, "mixture": {**state["mixture"], "parts": [["a"]]}}
    with pytest.raises(StateError, match="without the name, fingerprint and width of each"):
        iter(mixed(windrow, {"a": 1, "b": 2})).set_state(without)
    damaged = {**state, "lanes": [[1, 2, 3, 4, 5, 6]]}
    with pytest.raises(StateError, match="damaged"), pytest.warns(UserWarning, match="weights"):
        iter(mixed(windrow, {"a": 1, "b": 2})).set_state(damaged)
