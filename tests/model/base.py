"""What the models of both datasets share: elements with their records, seeds, and mixtures."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.model import elements, orders
from tests.model.trees import (
    UnsureError,
    batch_of,
    columns_of,
    empty_like,
    padded_to,
    part_of,
)
from windrow import transforms
from windrow.errors import ElementError, PlanError

ENDLESS = sys.maxsize
BAD = elements.BadError


@dataclasses.dataclass(frozen=True)
class Item:
    """An element, its records, and for a batch the records of each row."""

    value: Any
    records: tuple[Any, ...] = ()
    rows: tuple[tuple[Any, ...], ...] | None = None

    def having(self, value: Any) -> Item:
        return dataclasses.replace(self, value=value)


class Dataset:
    """What both kinds share: parents, and seeds from earlier in the chain."""

    own_seed: int | None = None
    parents: tuple[Any, ...] = ()
    leaf = 0  # names a source

    def seed_for(self, name: str, given: int | None) -> int:
        """The seed of a node after this one."""
        if given is not None:
            return given
        found, queue = [], collections.deque([(self, 1)])
        while queue:
            node, depth = queue.popleft()
            if node.own_seed is not None:
                found.append((node.own_seed, depth))
            else:
                queue.extend((parent, depth + 1) for parent in node.parents)
        if not found:
            raise PlanError(f"{name}: has no seed")
        return orders.derived_seed(found)

    def sources(self) -> list[int]:
        """The sources in the order in which they first occur."""
        if not self.parents:
            return [self.leaf]
        return list(dict.fromkeys(leaf for p in self.parents for leaf in p.sources()))

    def pipe(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    def apply(self, given: Any) -> Any:
        dataset: Any = self
        for one in given if isinstance(given, list) else [given]:
            match one:
                case transforms.Batch():
                    dataset = dataset.batch(one.batch_size, drop_remainder=one.drop_remainder)
                case transforms.Map():
                    dataset = dataset.map(one.map)
                case _:
                    raise UnsureError("apply")
        return dataset


class Patience:
    """Elements that were asked for since the last one that came out of a chain."""

    most = 5000
    asked = 0

    @classmethod
    def ask(cls) -> None:
        """Counts an element of a stream's source; an endless stream without elements is refused."""
        cls.asked += 1
        if cls.asked > cls.most:
            raise PlanError("an endless stream without an element")


def called(function: Callable[..., Any], *, batched: bool = False) -> Callable[..., Any]:
    """A function of an element as the chain calls it: of one row of columns, if it is batched."""
    if isinstance(function, transforms.Map):
        function = function.map
    if not batched:
        return function
    return lambda *args: part_of(function(columns_of([args[0]]), *([x] for x in args[1:])), 0)


def batched_item(items: Sequence[Item], make: Callable[[Sequence[Any]], Any]) -> Item:
    rows = tuple(item.records for item in items)
    return Item(make([item.value for item in items]), tuple(itertools.chain(*rows)), rows)


def padded(value: Any, real: Sequence[bool], mask: str) -> Any:
    if isinstance(value, dict) and mask in value:
        raise ElementError("batch: elements have this key")
    if isinstance(value, dict):
        return {**value, mask: np.array(real)}
    return (value, np.array(real))


def remainder_of(remainder: str | None, drop_remainder: bool, size: int) -> str:
    if size < 1:
        raise PlanError("batch: size")
    return remainder or ("drop" if drop_remainder else "keep")


# --- mixtures ------------------------------------------------------------------------------------


def whole_weights(weights: Sequence[float]) -> list[int]:
    least = min(weight for weight in weights if weight)
    return [int(weight * (100 / least)) for weight in weights]


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
    given, step = [0] * count, lane
    for (_, now), until in itertools.zip_longest(steps, [start for start, _ in steps[1:]]):
        shares = whole_weights(now)
        for k in itertools.count():
            if until is not None and step >= until:
                break
            place, _ = choice(shares, k)
            yield place, given[place]
            given[place] += 1
            step += lanes


class Schedule:
    """Weights from steps on."""

    def __init__(self, steps: Sequence[tuple[int, Sequence[float]]]) -> None:
        self.steps = steps


def ended(order: Iterator[tuple[int, int]], lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The order of a mixture of two datasets, where one that has ended drops out."""
    left = list(lengths)
    for place, _ in order:
        place = place if left[place] else 1 - place
        if not left[place]:
            return
        yield place, lengths[place] - left[place]
        left[place] -= 1


def flat(records: Any) -> Iterator[Any]:
    """The records of an element; those of a packed row are in a list of their own."""
    for each in records:
        yield from flat(each) if isinstance(each, list) else [each]


def batching(
    size: int, end: str, batch_fn: Any, mask: str, pad_to: int | None, pad_value: float
) -> Callable[[Sequence[Sequence[Item | None]]], Item]:
    """Makes a batch of the places of each lane; None where a lane has no row."""

    def make(lanes: Sequence[Sequence[Item | None]]) -> Item:
        slots = [slot for lane in lanes for slot in lane]
        items = [slot for slot in slots if slot is not None]
        rows = tuple(item.records for item in items)
        values = [item.value for item in items]
        if any(value is None for value in values):
            raise UnsureError("an absent element in a batch")
        if pad_to is not None:
            values = padded_to(values, pad_to, pad_value)
        if end == "pad":
            zero, real = empty_like(values[0]), iter(values)
            values = [zero if slot is None else next(real) for slot in slots]
        value = batch_fn(values) if batch_fn else batch_of(values)
        if end == "pad":
            value = padded(value, [slot is not None for slot in slots], mask)
        return Item(value, tuple(itertools.chain(*rows)), rows)

    return make
