"""Bad records that the shards of a run count, each its own: their sum is what one process counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chain.test_on_bad import checked, numbers, until_error
from windrow import MapDataset, merge_states
from windrow.errors import ReadError


def replaced(**more: Any) -> MapDataset[int]:
    return numbers().shuffle(seed=1).map(checked).repeat(4).on_bad("replace", **more)


CHAINS: dict[str, Callable[[], Any]] = {
    "random access": lambda: replaced().batch(8),
    "a stream": lambda: replaced().to_iter_dataset().batch(8),
    "lanes that shards share": lambda: replaced().to_iter_dataset(lanes=2).batch(8),
    "lanes that each runs": lambda: (
        replaced().to_iter_dataset(lanes=2).window_shuffle(4, seed=1).batch(8)
    ),
}
# The number of shards, how many batches they make, and whether their states are merged after these.
STAGES = st.lists(
    st.tuples(st.sampled_from([1, 2, 4]), st.integers(0, 3), st.booleans()), min_size=1
)


@given(st.sampled_from(sorted(CHAINS)), STAGES.filter(lambda stages: len(stages) < 5))
@settings(max_examples=25)
def test_merged_states_have_the_counts_of_the_whole_run(
    name: str, stages: list[tuple[int, int, bool]]
) -> None:
    dataset, states = CHAINS[name](), list[Any]()
    for shards, batches, is_merged in stages:
        if states and len(states) != shards:
            states = [merge_states(states)] * shards
        given, states = states, []
        for shard in range(shards):
            with iter(dataset.shard(shard, shards)) as iterator:
                if given:
                    iterator.set_state(given[shard])
                for _ in range(batches):
                    next(iterator)
                states.append(json.loads(json.dumps(iterator.get_state())))
        if is_merged:
            states = [merge_states([*states, states[0]])] * shards
    with iter(dataset) as whole:
        for _, batches, _ in stages:
            for _ in range(batches):
                next(whole)
        wanted = whole.get_state()
    found = merge_states(states[::-1])
    assert (found["rows"], found["bad"]["0"]) == (wanted["rows"], wanted["bad"]["0"])


def test_a_shard_says_what_it_counted() -> None:
    states = []
    for shard in range(2):
        with iter(replaced().batch(8).shard(shard, 2)) as iterator:
            for _ in range(5):
                next(iterator)
            states.append(iterator.get_state())
            assert [*(iterator.stats().bad_records or {}).values()] == states[-1]["bad"]["0"]
    counts = [state["bad"]["0"] for state in states]
    assert [state["bad"] for state in states] == [
        {"0": counts[0], "0@0/2": counts[0]},
        {"0": counts[1], "0@1/2": counts[1]},
    ]
    assert merge_states(states)["bad"] == {"0": [counts[0][0] + counts[1][0]]} == {"0": [7]}


def test_a_limit_counts_what_all_shards_had_counted() -> None:
    def made(most: int) -> Any:
        return replaced(max_bad=most).batch(8).shard(0, 2)

    with iter(made(100)) as first, iter(replaced(max_bad=100).batch(8).shard(1, 2)) as second:
        for _ in range(5):
            next(first)
            next(second)
        state = merge_states([first.get_state(), second.get_state()])
    assert np.sum(state["bad"]["0"]) == 7
    with iter(made(8)) as iterator:
        iterator.set_state(state)
        until_error(iterator, ReadError, "more than max_bad=8 records are bad")
        assert iterator.get_state()["bad"]["0"] <= [8]
