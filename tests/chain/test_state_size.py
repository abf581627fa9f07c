"""States of streams are small: at most 20 bytes for each lane and each node that counts something."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

from windrow import IterDataset, MapDataset, ReadOptions

SYNCHRONOUS = ReadOptions(num_threads=0, prefetch_buffer_size=0)
NODE_BYTES = 20

Stream: TypeAlias = IterDataset[Any]


def numbers(lanes: int, first: int = 10**6) -> Stream:
    chain = MapDataset.range(first, first + 10**7)
    return chain.to_iter_dataset(SYNCHRONOUS, lanes=lanes)


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
    "mix": (2, lambda stream, lanes: IterDataset.mix([stream, other(lanes)], [2, 1])),
    "mix by tokens": (
        2,
        lambda stream, lanes: IterDataset.mix(
            [stream, other(lanes)], [2, 1], by="tokens", tokens=tokens_of
        ),
    ),
    "interleave": (
        2,
        lambda stream, lanes: IterDataset.interleave([stream, other(lanes)], cycle_length=2),
    ),
    "best_fit of a mix": (
        3,
        lambda stream, lanes: packed(IterDataset.mix([stream, other(lanes)]), "best_fit"),
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
