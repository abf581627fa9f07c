"""What the models of both datasets share: elements with their records, seeds, batches and weights."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import windrow
from tests.model import elements, trees
from windrow import transforms
from windrow.errors import ElementError, PlanError

ENDLESS = sys.maxsize
BAD = (elements.BadError, ElementError)


@dataclasses.dataclass(frozen=True)
class Item:
    """An element, its records, and for each dataset of a zip the records of each row of a batch."""

    value: Any
    records: tuple[Any, ...] = ()
    sides: tuple[tuple[tuple[Any, ...], ...], ...] = ()

    def having(self, value: Any) -> Item:
        return dataclasses.replace(self, value=value)

    def row(self, k: int, rows: int) -> tuple[Any, ...]:
        sides = self.sides or ((self.records,),)
        return end_to_end([side[k] if len(side) == rows else end_to_end(side) for side in sides])


def end_to_end(rows: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(itertools.chain(*rows))


def tied(items: Sequence[Item]) -> Item:
    sides = end_to_end([item.sides or ((item.records,),) for item in items])
    return Item(tuple(item.value for item in items), end_to_end([x.records for x in items]), sides)


def item_of(value: Any, rows: Sequence[tuple[Any, ...]]) -> Item:
    return Item(value, end_to_end(rows), (tuple(rows),))


class Dataset:
    """What has one meaning in both kinds."""

    leaf = 0  # names a source
    parents: tuple[Any, ...] = ()
    _same: Callable[..., Any]
    _mapped: Callable[..., Any]

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

    def unchanged(self, *_: Any) -> Any:
        return self._same()

    shard = seed = unchanged  # shards are put together; what needs a seed of the chain is open

    def unsure(self, *_: Any, **__: Any) -> Any:
        raise trees.UnsureError("only the product's engine decides it")

    def map(self, function: Any, *, batched: bool = False, keeps_length: bool = False) -> Any:
        call = getattr(function, "map", function)
        if not batched:
            return self._mapped(lambda _, x: call(x))
        return self._mapped(lambda _, x: trees.part_of(call(trees.column_of_one(x)), 0))

    def map_with_index(self, function: Any) -> Any:
        return self._mapped(function)

    def random_map(self, function: Any, *, seed: int | None = None) -> Any:
        if seed is None:
            raise trees.UnsureError("seeds of the chain")
        drawn = windrow.MapDataset.range(1).random_map(lambda _, rng: rng, seed=seed)
        return self._mapped(lambda index, x: function(x, drawn[index]))


class Patience:
    """Elements of sources since the last one that came out of a chain."""

    asked = 0

    @classmethod
    def ask(cls) -> None:
        cls.asked += 1
        if cls.asked > 20_000:
            raise PlanError("an endless stream without an element")


def end_of(*, drop_remainder: bool = False, remainder: str | None = None, **_: Any) -> str:
    return remainder or ("drop" if drop_remainder else "keep")


def batch_of(slots: Sequence[Item | None], batch_fn: Any = None, **options: Any) -> Item:
    """A batch of places, some of which may have no element."""
    items = [slot for slot in slots if slot is not None]
    values = [item.value for item in items]
    if "pad_to" in options or any(value is None for value in values):
        raise trees.UnsureError("an absent element in a batch")
    real, pads = np.array([slot is not None for slot in slots]), end_of(**options) == "pad"
    if pads:
        zero = trees.empty_like(values[0])
        values = [zero if slot is None else slot.value for slot in slots]
    value = batch_fn(values) if batch_fn else trees.joined(values, trees.stacked)
    if pads and "mask" in (value if isinstance(value, dict) else ()):
        raise ElementError("elements have this key")
    if pads:
        value = {**value, "mask": real} if isinstance(value, dict) else (value, real)
    return item_of(value, [item.records for item in items])


def whole(weights: Any, count: int) -> list[int]:
    if isinstance(weights, transforms.Schedule):
        raise trees.UnsureError("weights that change")
    given = weights or [1] * count
    return [int(weight * (100 / min(w for w in given if w))) for weight in given]


def choice(shares: Sequence[int], step: int) -> tuple[int, int]:
    """The dataset that gives element `step` of a mixture, and how many it gave before."""
    rest, a, b = sum(shares), step, step + 1
    for place, share in enumerate(shares):
        a_rest, b_rest = a * (rest - share) // rest, b * (rest - share) // rest
        if a - a_rest != b - b_rest:
            return place, b - b_rest - 1
        rest, a, b = rest - share, a_rest, b_rest
    raise AssertionError


def stream_window(number: int, n: int, size: int, seed: int) -> list[int]:
    """Places in a shuffled window of a stream, which has `n` of `size` elements."""
    numbers = windrow.MapDataset.range(number * size + n).to_iter_dataset()
    iterator = iter(numbers.window_shuffle(size, seed))
    before = iterator.skip(number * size)
    return [i - before for i in iterator]
