"""What the models of both datasets share: elements with their records, seeds, batches and weights."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import windrow
from tests.model import elements
from tests.model.trees import (
    UnsureError,
    empty_like,
    is_branch,
    joined,
    padded_to,
    part_of,
    stacked,
)
from windrow import transforms
from windrow.errors import ElementError, PlanError

ENDLESS = sys.maxsize
BAD = (elements.BadError, ElementError)


@dataclasses.dataclass(frozen=True)
class Item:
    """An element, its records, and for a batch the records of each row."""

    value: Any
    records: tuple[Any, ...] = ()
    rows: tuple[tuple[Any, ...], ...] | None = None

    def having(self, value: Any) -> Item:
        return dataclasses.replace(self, value=value)


def column_of_one(leaves: Sequence[Any]) -> Any:
    if isinstance(leaves[0], (int, list)):  # the rows that come with it say what its column is
        raise UnsureError("columns of Python's numbers, and of lists")
    return stacked(leaves)


def item_of(value: Any, rows: Sequence[tuple[Any, ...]]) -> Item:
    return Item(value, tuple(itertools.chain(*rows)), tuple(rows))


class Dataset:
    """What has one meaning in both kinds."""

    own_seed: int | None = None
    leaf = 0  # names a source
    parents: tuple[Any, ...] = ()
    _same: Callable[..., Any]
    _mapped: Callable[..., Any]

    def seed_for(self, given: int | None) -> int:
        """The seed of a node after this one: its own, or of all seeds before it with their distances."""
        if given is not None:
            return given
        found: list[int] = []
        level, distance = [self], 1
        while level:
            found += [
                n for node in level if node.own_seed is not None for n in (node.own_seed, distance)
            ]
            level = [p for node in level if node.own_seed is None for p in node.parents]
            distance += 1
        if not found:
            raise PlanError("no seed")
        return int(np.random.SeedSequence(found).generate_state(1, np.uint32)[0])

    def sources(self) -> list[int]:
        """The sources in the order in which they first occur."""
        if not self.parents:
            return [self.leaf]
        return list(dict.fromkeys(leaf for p in self.parents for leaf in p.sources()))

    def pipe(self, function: Callable[[Any], Any]) -> Any:
        return function(self)

    def apply(self, given: Sequence[Any]) -> Any:
        dataset: Any = self
        for one in given:
            is_map = isinstance(one, transforms.Map)
            dataset = dataset.map(one) if is_map else dataset.batch(one.batch_size)
        return dataset

    def seed(self, seed: int) -> Any:
        found = self._same()
        found.own_seed = seed
        return found

    def shard(self, index: int, count: int) -> Any:
        return self._same()  # shards are compared with the whole

    def map(self, function: Any, *, batched: bool = False, keeps_length: bool = False) -> Any:
        call = getattr(function, "map", function)

        if not batched:
            return self._mapped(lambda _, x: call(x))
        return self._mapped(lambda _, x: part_of(call(joined([x], column_of_one, is_branch)), 0))

    def map_with_index(self, function: Any) -> Any:
        return self._mapped(function)

    def random_map(self, function: Any, *, seed: int | None = None) -> Any:
        """The Philox counter is the index."""
        key = np.random.SeedSequence(self.seed_for(seed)).generate_state(2, np.uint64)

        def call(index: int, x: Any) -> Any:
            counter = np.array([0, 0, 0, index % 2**64], np.uint64)
            return function(x, np.random.Generator(np.random.Philox(key=key, counter=counter)))

        return self._mapped(call)


class Patience:
    """Elements of sources since the last one that came out of a chain."""

    asked = 0

    @classmethod
    def ask(cls) -> None:
        cls.asked += 1
        if cls.asked > 5000:
            raise PlanError("an endless stream without an element")


class Batching:
    """Batches of places, some of which may have no element."""

    def __init__(
        self,
        size: int,
        *,
        drop_remainder: bool = False,
        remainder: str | None = None,
        batch_fn: Any = None,
        pad_to: int | None = None,
    ) -> None:
        self.end = remainder or ("drop" if drop_remainder else "keep")
        self.batch_fn, self.pad_to = batch_fn, pad_to

    def __call__(self, slots: Sequence[Item | None]) -> Item:
        items = [slot for slot in slots if slot is not None]
        values = [item.value for item in items]
        if any(value is None for value in values):
            raise UnsureError("an absent element in a batch")
        if self.pad_to:
            values = [padded_to(value, self.pad_to) for value in values]
        real = [slot is not None for slot in slots]
        if self.end == "pad":
            left, zero = iter(values), empty_like(values[0])
            values = [next(left) if is_real else zero for is_real in real]
        value = self.batch_fn(values) if self.batch_fn else joined(values, stacked)
        if self.end == "pad" and isinstance(value, dict):
            if "mask" in value:
                raise ElementError("elements have this key")
            value = {**value, "mask": np.array(real)}
        elif self.end == "pad":
            value = (value, np.array(real))
        return item_of(value, [item.records for item in items])


class Schedule:
    """Weights from steps on."""

    def __init__(self, steps: Sequence[tuple[int, Sequence[float]]]) -> None:
        self.steps = steps


def whole(weights: Sequence[float]) -> list[int]:
    return [int(weight * (100 / min(w for w in weights if w))) for weight in weights]


def choice(shares: Sequence[int], step: int) -> tuple[int, int]:
    """The dataset that gives element `step` of a mixture, and how many it gave before."""
    rest, a, b = sum(shares), step, step + 1
    for place, share in enumerate(shares):
        a_rest, b_rest = a * (rest - share) // rest, b * (rest - share) // rest
        if a - a_rest != b - b_rest:
            return place, b - b_rest - 1
        rest, a, b = rest - share, a_rest, b_rest
    raise AssertionError


def choices(weights: Any, count: int, lane: int = 0, lanes: int = 1) -> Iterator[tuple[int, int]]:
    """Of each step of a lane, the dataset and its own number; weights of a schedule begin anew."""
    steps = weights.steps if isinstance(weights, Schedule) else [(0, weights or [1] * count)]
    given, starts = [0] * count, [start for start, _ in steps] + [ENDLESS]
    for (_, now), until in zip(steps, starts[1:], strict=True):
        for k in itertools.count():
            if lane + sum(given) * lanes >= until:
                break
            place, _ = choice(whole(now), k)
            yield place, given[place]
            given[place] += 1


def stream_window(number: int, n: int, size: int, seed: int) -> list[int]:
    """Places in a shuffled window of a stream, which has `n` of `size` elements."""
    before = number * size
    stream = windrow.MapDataset.range(before + n).to_iter_dataset().window_shuffle(size, seed)
    return [i - before for i in list(stream)[before:]]
