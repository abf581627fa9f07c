"""Orders and random values: permutations for any length, and the numbers that Grain gives."""

from __future__ import annotations

import itertools
import threading
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from grain.experimental import index_shuffle
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hypothesis_profiles import examples
from windrow.core import native
from windrow.transforms import orders
from windrow.transforms.random import IndexedRandom, philox_key

IntArray = npt.NDArray[np.int64]

SEEDS = st.integers(0, 2**32 - 1)
# Both sides of every change of method: bits of the block, table or walk, width of the numbers.
LENGTHS = (
    1, 2, 3, 10, 100, 65535, 65536, 65538, 70_000, 2**18 - 1, 2**18, 2**18 + 2, 10**6, 2**31,
    2**32 - 1, 2**32, 2**32 + 2, 2**40, 2**49 + 7, 2**50, 2**61 + 1, 2**62 - 1, 2**62, 2**63 - 1,
)  # fmt: skip


def ints(values: object) -> IntArray:
    return np.asarray(values, np.int64)


def grain_shuffled(offsets: IntArray, length: int, seed: int) -> list[int]:
    return [index_shuffle(i, max_index=length - 1, seed=seed, rounds=4) for i in offsets.tolist()]


@pytest.mark.parametrize("length", LENGTHS)
@settings(max_examples=12)
@given(seed=SEEDS, data=st.data())
def test_shuffle_equals_grain(length: int, seed: int, data: st.DataObject) -> None:
    few = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=5))
    offsets = ints([*few, 0, length - 1])
    assert orders.shuffled(offsets, length, seed).tolist() == grain_shuffled(offsets, length, seed)


@pytest.mark.parametrize("length", [1000, 65536, 70_000, 300_000, 10**6, 2**40, 2**63 - 1])
def test_large_shuffles_equal_grain(length: int) -> None:
    offsets = np.random.default_rng(5).integers(0, length, 70_000)
    got = orders.shuffled(offsets, length, 123)
    some = slice(0, None, 500)
    assert got[some].tolist() == grain_shuffled(offsets[some], length, 123)
    alone = [orders.shuffled(offsets[i : i + 1], length, 123)[0] for i in range(0, 70_000, 500)]
    assert got[some].tolist() == alone


@pytest.mark.parametrize("length", [65535, 65536, 65538, 99_991, 262144, 262146, 700_001])
def test_long_shuffles_are_permutations(length: int) -> None:
    offsets = np.arange(length)
    assert np.array_equal(np.sort(orders.shuffled(offsets, length, 2**32 - 1)), offsets)


def test_lengths_that_floating_point_cannot_tell_apart_stay_injective() -> None:
    # log2 in floating point gives 50 bits for these, one too few for the last offsets.
    length = 2**50 + 3
    offsets = ints([*range(5), *range(2**50 - 5, length)])
    got = orders.shuffled(offsets, length, 7)
    assert len(set(got.tolist())) == len(offsets)
    assert len(set(grain_shuffled(offsets, length, 7))) < len(offsets)
    assert got.min() >= 0
    assert got.max() < length


def test_orders_where_grain_is_defective_are_frozen() -> None:
    # People restore year-old checkpoints. A new order needs a new version.
    shuffled = orders.shuffled
    assert shuffled(ints([0, 1, 65536]), 65537, 7).tolist() == [35249, 40007, 20255]
    got = shuffled(ints([0, 1, 2**40]), 2**40 + 1, 7)
    assert got.tolist() == [438306820087, 562939060878, 470419294991]


def test_a_window_longer_than_the_epoch_is_a_shuffle() -> None:
    steps = np.arange(30)
    got = orders.window_shuffled(steps // 10, steps % 10, 10, 2**62, 2**32 + 5)
    assert np.array_equal(got, orders.epoch_shuffled(steps // 10, steps % 10, 10, 5))


def test_windows_far_out_wrap_around_exactly() -> None:
    length, window, epoch, offset = 2**63 - 1, 1000, 2**62 + 3, 2**63 - 5
    got = orders.window_shuffled(ints([epoch]), ints([offset]), length, window, 9)
    number = offset // window
    size = min(window, length - number * window)
    seed = (9 + epoch * -(-length // window) + number) % 2**32
    inside = grain_shuffled(ints([offset % window]), size, seed)[0]
    assert got.tolist() == [number * window + inside]


def test_answers_belong_to_the_caller() -> None:
    # The tables are shared by all callers: a change of an answer must not reach them.
    offsets = np.arange(1000)
    first = orders.shuffled(offsets, 1000, 3)
    kept = first.copy()
    first[:] = -1
    orders.window_order(1000, 3)[:] = -1
    assert np.array_equal(orders.shuffled(offsets, 1000, 3), kept)
    assert np.array_equal(offsets, np.arange(1000))


def test_tables_are_bounded_and_shared_by_threads() -> None:
    offsets = np.arange(20_000)
    expected = {seed: orders.shuffled(offsets, 20_000, seed) for seed in range(8)}
    store = orders.OrderTables[npt.NDArray[np.uint16]](100_000)  # two tables of 40,000 bytes fit
    wrong: list[int] = []

    def use(first: int) -> None:
        for seed in itertools.islice(itertools.cycle(range(8)), first, first + 24):
            table = store.find(20_000, seed)
            if table is None:
                table = expected[seed].astype(np.uint16)
                store.keep(20_000, seed, table=table)
            if not np.array_equal(table, expected[seed]) or store.held_bytes > 200_000:
                wrong.append(seed)

    threads = [threading.Thread(target=use, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=600)
    assert wrong == []
    assert 40_000 < store.held_bytes <= 100_000
    assert sum(store.find(20_000, seed) is not None for seed in range(8)) == 2


@given(
    seed=st.one_of(SEEDS, st.integers(0, 2**130)),
    indices=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4),
)
def test_random_values_are_those_of_the_index(seed: int, indices: list[int]) -> None:
    random = IndexedRandom(seed)
    for index in indices:
        bits = np.random.Philox(key=philox_key(seed), counter=np.array([0, 0, 0, index], np.uint64))
        expected = np.random.Generator(bits)
        got = random.at(index)
        # An odd number of 32-bit draws leaves half a word behind, which the next index must not see.
        for draw in ("uint32", "int64", "uint32"):
            assert got.integers(2**31, dtype=draw) == expected.integers(2**31, dtype=draw)
        assert got.normal() == expected.normal()


@pytest.mark.skipif(native.native() is None, reason="compares the native core with NumPy")
@settings(max_examples=examples(50))
@given(st.data())
def test_the_core_and_numpy_give_the_same_orders(data: st.DataObject) -> None:
    bits = data.draw(st.integers(1, 62))
    length = data.draw(st.integers(2, 2**bits + 1))
    seed = data.draw(st.integers(0, 2**32 - 1))
    offsets = np.array(data.draw(st.lists(st.integers(0, length - 1), max_size=100)), np.int64)
    found = orders.shuffled(offsets, length, seed)
    with (
        mock.patch.object(native, "native", return_value=None),
        mock.patch.object(orders, "_tables", orders.OrderTables(1 << 20)),
    ):
        assert orders.shuffled(offsets, length, seed).tolist() == found.tolist()
