"""The block shuffle: a permutation in every epoch, near each other what is stored together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests import strategies as make
from tests.hypothesis_profiles import examples
from tests.strategies import Chunks
from windrow.errors import ArgumentError, PlanError
from windrow.transforms import blocks

IntArray = npt.NDArray[np.int64]
M = windrow.MapDataset
SIZES = st.lists(st.integers(1, 9), max_size=12)


def ints(values: object) -> IntArray:
    return np.asarray(values, np.int64)


def bounds_of(sizes: Sequence[int]) -> IntArray:
    return np.cumsum([0, *sizes])


def epoch_of(order: blocks.BlockOrder, epoch: int) -> list[int]:
    offsets = np.arange(order.bounds[-1])
    found: list[int] = order.at(np.full(len(offsets), epoch), offsets).tolist()
    return found


# --- the order is what the docstrings say --------------------------------------------------------

ONES = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15


def mixed(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & ONES
    z = (z ^ z >> 27) * 0x94D049BB133111EB & ONES
    return z ^ z >> 31


def folded(key: int, word: int) -> int:
    return mixed(((key ^ word) + GAMMA) & ONES)


def permuted(size: int, key: int) -> list[int]:
    """The permutation in Python integers: a model of `blocks.permutation`."""
    drawn = [mixed((key + (i + 1) * GAMMA) & ONES) for i in range(size)]
    if size <= 4096:
        return sorted(range(size), key=lambda i: (drawn[i] >> 24, i))
    bits = (size - 1).bit_length()
    return sorted(range(size), key=lambda i: (drawn[i] >> bits, i))


def model(bounds: IntArray, window_blocks: int, seed: int, epoch: int, lanes: int = 1) -> list[int]:
    """One epoch of a block shuffle, in Python."""
    key = folded(folded(0, seed), epoch % 2**32)
    order = permuted(len(bounds) - 1, folded(key, 0))
    out: list[int] = []
    for lane in range(lanes):
        own = order[lane::lanes]
        for window, start in enumerate(range(0, len(own), window_blocks)):
            some = own[start : start + window_blocks]
            inside = [i for k in some for i in range(int(bounds[k]), int(bounds[k + 1]))]
            out += [
                inside[i] for i in permuted(len(inside), folded(key, window * lanes + lane + 1))
            ]
    return out


@given(
    sizes=SIZES,
    window=st.integers(1, 15),
    seed=make.SEEDS,
    epoch=st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1),
    lanes=st.integers(1, 12),
)
@settings(max_examples=examples(100))
def test_every_epoch_is_the_permutation_of_the_model(
    sizes: list[int], window: int, seed: int, epoch: int, lanes: int
) -> None:
    lanes = max(1, min(lanes, len(sizes)))
    order = blocks.BlockOrder(bounds_of(sizes), window, seed, None, lanes)
    got = epoch_of(order, epoch)
    assert sorted(got) == list(range(sum(sizes)))
    assert got == model(bounds_of(sizes), window, seed, epoch, lanes)


@pytest.mark.parametrize(
    ("sizes", "window"),
    [
        ([4096] * 3, 1),  # the largest window of the first kind of key
        ([4097, 1, 5], 1),
        ([100] * 100, 3),  # several windows made at a time
        ([1] * 9000, 1),  # more windows than are made at a time, and many blocks
        ([7, 5000, 1, 60, 2], 2),
        ([3000] * 7, 10**30),
    ],
    ids=str,
)
def test_large_windows_are_those_of_the_model(sizes: list[int], window: int) -> None:
    order = blocks.BlockOrder(bounds_of(sizes), window, 5)
    assert epoch_of(order, 2) == model(bounds_of(sizes), window, 5, 2)


def test_records_beyond_32_bits() -> None:
    # The window's table is wider there.
    length = 2**33 + 7
    dataset = M.range(length).block_shuffle(4, block=2**19, window_blocks=1)
    got = dataset.read(np.arange(2**19))
    assert np.array_equal(np.sort(got) - got.min(), np.arange(2**19))
    assert got.min() % 2**19 == 0
    assert dataset.read([2**33, length - 1]).max() > 2**32


# --- refusals ------------------------------------------------------------------------------------


class Wrong(Chunks):
    """Declares blocks that are invalid."""

    def __init__(self, declared: Any) -> None:
        super().__init__([5, 5])
        self.declared = declared

    def blocks(self) -> Any:
        return self.declared


CHUNKS = M.source(Chunks([4, 4, 4]))
REFUSED: dict[str, Callable[[], Any]] = {
    "seed": lambda: CHUNKS.block_shuffle(),
    "seed range": lambda: CHUNKS.block_shuffle(2**32),
    "block": lambda: CHUNKS.block_shuffle(1, block=0),
    "window": lambda: CHUNKS.block_shuffle(1, window_blocks=0),
    "part of endless": lambda: CHUNKS.repeat()[:100].block_shuffle(1),
    "source of no blocks": lambda: M.source(Wrong(None)).block_shuffle(1),
    "foreign": lambda: M.source(make.Squares(9)).map(int).block_shuffle(1),
    "shuffle": lambda: CHUNKS.shuffle(3).block_shuffle(1),
    "window shuffle": lambda: CHUNKS.window_shuffle(4, 1).map(int).block_shuffle(1),
    "block shuffle": lambda: CHUNKS.block_shuffle(2).block_shuffle(1),
    "mix": lambda: M.mix([CHUNKS, CHUNKS]).block_shuffle(1),
    "zip": lambda: M.zip([CHUNKS]).block_shuffle(1),
    "select": lambda: M.select_from_datasets([CHUNKS], make.Zigzag(1, 4)).block_shuffle(1),
    "one of several": lambda: M.concatenate([CHUNKS, M.range(3)]).block_shuffle(1),
    "blocks": lambda: M.range(2**40).block_shuffle(1, block=2),
    "blocks of repeat": lambda: CHUNKS.repeat(2**30).block_shuffle(1),
    "window elements": lambda: M.range(2**40).block_shuffle(1, block=2**30),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_order_is_refused_when_it_is_built(case: str) -> None:
    with pytest.raises(PlanError):
        REFUSED[case]()


@pytest.mark.parametrize(
    "declared", [[], [0, 9], [1, 10], [0, 6, 5, 10], [0.0, 10.0], [[0, 10]]], ids=str
)
def test_blocks_that_are_none_are_refused(declared: Any) -> None:
    message = r"Wrong.blocks\(\) must be integers that increase from 0 to its length 10, got array"
    with pytest.raises(PlanError, match=message):
        M.source(Wrong(declared)).block_shuffle(1)


@pytest.mark.parametrize("arguments", [{"seed": 0.5}, {"block": "4"}, {"window_blocks": True}])
def test_arguments_of_another_kind(arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=rf"block_shuffle: {next(iter(arguments))} must be an"):
        CHUNKS.block_shuffle(**{"seed": 1, "block": 3} | arguments)
