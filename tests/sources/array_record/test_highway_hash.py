"""HighwayHash-64 of many messages, by the core and in Python, against a plain implementation."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.sources.array_record.test_sources_array_record_crafted import hash_of
from windrow.core.native import native
from windrow.sources.array_record import highway_hash
from windrow.sources.array_record.highway_hash import hashes


@pytest.fixture(params=["core", "python"], autouse=True)
def _who(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who computes the hashes of a test."""
    if request.param == "python":
        monkeypatch.setattr(highway_hash, "native", lambda: None)
    elif native() is None:
        pytest.skip("without the native core")


def hashed(messages: list[bytes], gap: bytes = b"") -> list[int]:
    """The messages' hashes, from one buffer in which `gap` lies before each."""
    data = b"".join(gap + message for message in messages)
    lengths = np.array([len(m) for m in messages], np.int64)
    stops = np.cumsum(lengths + len(gap))
    return [int(h) for h in hashes(data, stops - lengths, stops)]


def test_every_length_to_four_packets() -> None:
    draw = random.Random(1)
    messages = [draw.randbytes(n) for n in range(130)]
    draw.shuffle(messages)
    expected = [hash_of(message) for message in messages]
    assert hashed(messages) == expected
    # Alone, and from odd places, the answers are the same.
    assert [hashed([message], b"x")[0] for message in messages] == expected


def test_many_messages() -> None:
    count, draw = 2049, random.Random(1)
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


def test_places_of_another_type_and_outside_of_the_data() -> None:
    data = random.Random(7).randbytes(300)
    found = hashes(data, np.array([0, 7], np.int32), np.array([100, 300], np.int32))
    assert found.tolist() == [hash_of(data[:100]), hash_of(data[7:])]
    for start, stop in ((0, 301), (-1, 5), (9, 8)):
        with pytest.raises(IndexError, match="outside of the 300 bytes"):
            hashes(data, np.array([0, start]), np.array([0, stop]))
