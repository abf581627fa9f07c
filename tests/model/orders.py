"""Orders of single shuffles and random values, taken from the product or from NumPy.

The model knows what a shuffle, a sample or a packer is applied to. How one of them orders `n` numbers
is defined by the product alone, and other tests hold it to Grain.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

import windrow


@functools.cache
def shuffled(n: int, epoch: int, seed: int) -> list[int]:
    """`shuffle`: places of the elements of an epoch."""
    return _epoch(windrow.MapDataset.range(n).shuffle(seed), n, epoch)


@functools.cache
def in_windows(n: int, epoch: int, size: int, seed: int) -> list[int]:
    """`MapDataset.window_shuffle`."""
    return _epoch(windrow.MapDataset.range(n).window_shuffle(size, seed), n, epoch)


@functools.cache
def sampled(n: int, epoch: int, count: int, seed: int) -> list[int]:
    """`sample`."""
    return _epoch(windrow.MapDataset.range(n).sample(count, seed), count, epoch)


@functools.cache
def in_blocks(blocks: tuple[tuple[int, ...], ...], epoch: int, seed: int, window: int) -> list[int]:
    """`block_shuffle` of blocks that have these elements."""

    class Board(windrow.sources.ArrayDataSource):
        def blocks(self) -> Any:
            return windrow.sources.Blocks(np.cumsum([0, *map(len, blocks)]), order.take)

    order = np.array([i for block in blocks for i in block], np.int64)
    source = windrow.MapDataset.source(Board(np.arange(len(order))))
    return _epoch(source.block_shuffle(seed, window_blocks=window), len(order), epoch)


@functools.cache
def in_stream_window(number: int, n: int, size: int, seed: int) -> list[int]:
    """`IterDataset.window_shuffle`: places in window `number`, which has `n` of `size` elements."""
    before = number * size
    stream = windrow.MapDataset.range(before + n).to_iter_dataset().window_shuffle(size, seed)
    return [i - before for i in list(stream)[before:]]


def _epoch(dataset: windrow.MapDataset[int], n: int, epoch: int) -> list[int]:
    return [int(i) for i in dataset.read(range(epoch * n, (epoch + 1) * n))] if n else []


def generator(seed: int, index: int) -> np.random.Generator:
    """The generator of `random_map` for an index: the Philox counter is the index."""
    key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    counter = np.array([0, 0, 0, index % 2**64], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def derived_seed(found: Sequence[tuple[int, int]]) -> int:
    """The seed of a node without its own, from earlier seeds and their distances."""
    numbers = [number for pair in found for number in pair]
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint32)[0])
