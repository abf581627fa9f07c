"""HighwayHash-64 of many messages, against a plain implementation and the array_record package."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_sources_array_record_crafted import hash_of
from windrow.sources.highway_hash import hashes, seconds


def hashed(messages: list[bytes], gap: bytes = b"") -> list[int]:
    """The messages' hashes, from one buffer in which `gap` lies before each."""
    data = b"".join(gap + message for message in messages)
    lengths = np.array([len(m) for m in messages], np.int64)
    stops = np.cumsum(lengths + len(gap))
    return [int(h) for h in hashes(data, stops - lengths, stops)]


def test_the_hash_of_nothing_is_the_one_in_every_file() -> None:
    assert hashed([b""]) == [0x72C3B1E9C0139FE1]
    assert hashed([]) == []


def test_every_length_to_four_packets() -> None:
    draw = random.Random(1)
    messages = [draw.randbytes(n) for n in range(130)]
    draw.shuffle(messages)
    expected = [hash_of(message) for message in messages]
    assert hashed(messages) == expected
    # Alone, and from odd places, the answers are the same.
    assert [hashed([message], b"x")[0] for message in messages] == expected


@given(st.lists(st.binary(max_size=200), max_size=12), st.binary(max_size=3))
def test_any_messages_together(messages: list[bytes], gap: bytes) -> None:
    assert hashed(messages, gap) == [hash_of(message) for message in messages]


@pytest.mark.parametrize("count", [1023, 1024, 1025, 2049])
def test_more_messages_than_are_hashed_at_once(count: int) -> None:
    draw = random.Random(count)
    messages = [draw.randbytes(draw.choice((32, 33, 40, 64))) for _ in range(count)]
    found = hashed(messages)
    for at in (0, 1, count // 2, count - 2, count - 1):
        assert found[at] == hash_of(messages[at])
    assert len(set(found)) == count


def test_messages_may_overlap_and_come_in_any_order() -> None:
    data = random.Random(2).randbytes(500)
    bounds = [(400, 500), (0, 500), (0, 0), (500, 500), (37, 101), (37, 101)]
    starts, stops = np.array(bounds, np.int64).T
    found = hashes(memoryview(data), starts, stops)
    assert [int(h) for h in found] == [hash_of(data[a:b]) for a, b in bounds]


def test_many_messages_are_estimated_cheaper_than_one_of_all_their_bytes() -> None:
    many, one = np.full(256, 3_000), np.array([256 * 3_000])
    assert seconds(many) * 10 < seconds(one)
    assert seconds(np.empty(0, np.int64)) == 0
