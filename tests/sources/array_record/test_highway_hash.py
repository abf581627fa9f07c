"""HighwayHash-64 of many messages, by NumPy and in native code, against a plain implementation."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sources.array_record.test_sources_array_record_crafted import hash_of
from windrow.sources.array_record import highway_hash
from windrow.sources.array_record.highway_hash import hashes, is_native, seconds


@pytest.fixture(params=["numpy", "native"], autouse=True)
def who(request: pytest.FixtureRequest) -> Iterator[str]:
    """Who computes the hashes of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(highway_hash, "native_code", highway_hash.NativeCode())
        if request.param == "native":
            assert is_native(), "the tests need the extra fast"
        else:
            patch.setattr(highway_hash, "_NATIVE_WORTH_BYTES", 1 << 60)
            patch.setattr(highway_hash, "native_code", highway_hash.NativeCode())
        yield request.param


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


def test_many_messages_are_estimated_cheaper_than_one_of_all_their_bytes_by_numpy(who: str) -> None:
    many, one = np.full(256, 3_000), np.array([256 * 3_000])
    if who == "numpy":
        assert seconds(many) * 10 < seconds(one)
        assert seconds(np.empty(0, np.int64)) == 0
    else:
        assert seconds(one) < seconds(many) < 1.1 * seconds(one)


def test_places_of_another_type_and_outside_of_the_data() -> None:
    data = random.Random(7).randbytes(300)
    found = hashes(data, np.array([0, 7], np.int32), np.array([100, 300], np.int32))
    assert found.tolist() == [hash_of(data[:100]), hash_of(data[7:])]
    for start, stop in ((0, 301), (-1, 5), (9, 8)):
        with pytest.raises(IndexError, match="outside of the 300 bytes"):
            hashes(data, np.array([0, start]), np.array([0, stop]))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_while_native_code_is_made_goes_on() -> None:
    code = """
import os, sys
import numpy as np
from windrow.sources.array_record import highway_hash
highway_hash.native_code._lock.acquire()
child = os.fork()
if not child:
    found = highway_hash.hashes_of([b""])
    os._exit(0 if found.tolist() == [0x72C3B1E9C0139FE1] else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_native_code_is_made_once_enough_is_to_be_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(highway_hash, "_NATIVE_WORTH_BYTES", 1_000)
    monkeypatch.setattr(highway_hash, "native_code", highway_hash.NativeCode())
    data = random.Random(3).randbytes(900)
    found = []
    for _ in range(3):
        found += hashed([data])
        found.append(highway_hash.native_code.is_made)
    assert found == [hash_of(data), False, hash_of(data), True, hash_of(data), True]


def test_an_estimate_counts_as_what_is_to_be_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(highway_hash, "_NATIVE_WORTH_BYTES", 1_000)
    monkeypatch.setattr(highway_hash, "native_code", highway_hash.NativeCode())
    before = seconds(np.array([999]))
    assert seconds(np.array([999])) < before


def test_without_llvmlite_numpy_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "windrow.sources.array_record.highway_hash_native", None)
    monkeypatch.setattr(highway_hash, "_NATIVE_WORTH_BYTES", 1_000)
    monkeypatch.setattr(highway_hash, "native_code", highway_hash.NativeCode())
    assert not is_native()
    data = random.Random(4).randbytes(5_000)
    assert hashed([data, b""]) == [hash_of(data), hash_of(b"")]


def test_several_threads_at_once() -> None:
    draw = random.Random(5)
    messages = [[draw.randbytes(draw.randrange(300)) for _ in range(50)] for _ in range(8)]
    found: dict[int, list[int]] = {}
    start = threading.Barrier(len(messages))

    def work(at: int) -> None:
        start.wait()
        found[at] = hashed(messages[at])

    threads = [threading.Thread(target=work, args=(at,)) for at in range(len(messages))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {at: [hash_of(one) for one in some] for at, some in enumerate(messages)}


def test_items_that_lie_apart_in_memory() -> None:
    data = np.frombuffer(random.Random(6).randbytes(2_000), np.uint8)[::2]
    starts = np.array([0, 9, 5, 9], np.int64)[::2]
    found = hashes(data, starts, starts + 70)
    whole = data.tobytes()
    assert found.tolist() == [hash_of(whole[0:70]), hash_of(whole[5:75])]
