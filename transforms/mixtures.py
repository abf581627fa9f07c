"""Mixtures: which dataset each element comes from, by integer arithmetic alone.

A mixture has segments. Inside a segment the datasets have fixed shares, in the order that
`orders.mix_choose` gives. A segment begins where a schedule changes the weights, or where a dataset
has run out and leaves the others. Each dataset continues where it was.

Invariant: an element's dataset and its index there are a function of shares and the element's index.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from windrow.errors import ArgumentError, PlanError
from windrow.sources.base import IntArray
from windrow.transforms import orders
from windrow.transforms.arguments import at_least


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class Schedule:
    """Weights of a mixture that change at given steps.

    A step is the index of an element of the mixture, counted from 0 over all epochs: with a later
    `batch(64)`, batch `n` begins at step `64 * n`. A weight of 0 leaves a dataset out until its weight
    changes; each dataset continues where it was.

    Args:
        changes: Pairs of a step and the weights from that step on. The first step is 0, and steps
            increase. Weights are as for `mix`; at least one is positive.

    Raises:
        ArgumentError: If a step is not an integer, or something is not a pair.
        PlanError: If there is no pair, or steps do not begin with 0 and increase.

    Example:
        >>> import windrow
        >>> easy, hard = windrow.MapDataset.range(100), windrow.MapDataset.range(-100, 0)
        >>> weights = windrow.transforms.Schedule([(0, [1, 0]), (3, [1, 2])])
        >>> windrow.MapDataset.mix([easy, hard], weights).read(range(9)).tolist()
        [0, 1, 2, 3, -100, -99, 4, -98, -97]
    """

    changes: tuple[tuple[int, Any], ...]

    def __init__(self, changes: Iterable[tuple[int, Any]]) -> None:
        found: list[tuple[int, Any]] = []
        for change in changes:
            if not isinstance(change, (tuple, list)) or len(change) != 2:
                raise ArgumentError(f"Schedule: needs pairs of a step and weights, got {change!r}")
            step, weights = change
            found.append((at_least(0, step, "Schedule: step"), weights))
        steps = [step for step, _ in found]
        if not steps or steps[0] != 0 or any(b <= a for a, b in itertools.pairwise(steps)):
            raise PlanError(
                f"Schedule: steps must begin with 0 and increase, got {steps}; give the weights from"
                " the first element on as (0, weights)"
            )
        object.__setattr__(self, "changes", tuple(found))

    def over(self, function: Callable[[Any], Any]) -> Schedule:
        """The same steps, with `function` applied to the weights of each."""
        return Schedule([(step, function(weights)) for step, weights in self.changes])


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """Elements of a mixture, from `start` on, with fixed shares.

    Args:
        start: The first element.
        shares: Integers of at least 0, one for each dataset. If all are 0, the mixture has ended.
        before: The elements of each dataset that come before the segment.
    """

    start: int
    shares: tuple[int, ...]
    before: tuple[int, ...]

    def counts(self, stop: int) -> tuple[int, ...]:
        """The elements of each dataset before element `stop` of the mixture, which is in here."""
        total = sum(self.shares)
        if total == 0:
            return self.before
        periods, place = divmod(stop - self.start, total)
        found, rest = [], total
        for share, before in zip(self.shares, self.before, strict=True):
            # As in `orders.mix_choose`: `others` of the first `place` elements are later datasets'.
            others = place * (rest - share) // rest if share else place
            found.append(before + periods * share + place - others)
            place, rest = others, rest - share
        return tuple(found)


@dataclasses.dataclass(frozen=True, slots=True)
class Mixture:
    """The order of a mixture: see the header of the module."""

    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, changes: Sequence[tuple[int, Sequence[int]]]) -> Mixture:
        """The mixture with these shares from these elements on; the first element is 0."""
        segments: list[Segment] = []
        for start, shares in changes:
            before = segments[-1].counts(start) if segments else (0,) * len(shares)
            least = math.gcd(*shares) or 1
            segments.append(Segment(start, tuple(share // least for share in shares), before))
        return cls(tuple(segments))

    @property
    def stop(self) -> int | None:
        """The first element that no dataset has a share in; None if it never ends."""
        return next((each.start for each in self.segments if not any(each.shares)), None)

    def segment_at(self, index: int) -> int:
        """The number of the segment of element `index`; the first one has negative indices too."""
        starts = [segment.start for segment in self.segments]
        return max(0, bisect.bisect_right(starts, index) - 1)

    def counts(self, stop: int) -> tuple[int, ...]:
        """The elements of each dataset before element `stop` of the mixture."""
        return self.segments[self.segment_at(stop)].counts(stop)

    def choose(self, indices: IntArray) -> tuple[IntArray, IntArray]:
        """The dataset of each element, and the index in that dataset.

        Args:
            indices: int64 `(n,)`, before `stop`.

        Returns:
            Two arrays, int64 `(n,)`.
        """
        if not len(indices):
            return indices, indices
        first, last = (self.segment_at(int(at)) for at in (indices.min(), indices.max()))
        if first == last:
            return _chosen(self.segments[first], indices)
        which, keys = np.empty_like(indices), np.empty_like(indices)
        starts = np.array([segment.start for segment in self.segments[first + 1 : last + 1]])
        numbers = first + np.searchsorted(starts, indices, side="right")
        for number, rows in orders.groups(numbers):
            which[rows], keys[rows] = _chosen(self.segments[number], indices[rows])
        return which, keys

    def end(self, lengths: Sequence[int]) -> int:
        """The first element that its dataset of `lengths` elements lacks; at most `sys.maxsize`."""
        stop = self.stop
        most = sys.maxsize if stop is None else stop

        def lacks(index: int) -> bool:
            counts = self.counts(index + 1)
            return any(count > length for count, length in zip(counts, lengths, strict=True))

        # Near the first element in most mixtures, so from there in growing steps.
        high = 1
        while high < most and not lacks(high):
            high *= 2
        return bisect.bisect_left(range(min(high, most)), True, key=lacks)

    def without(self, number: int, index: int) -> Mixture:
        """The mixture whose dataset `number` has no share from element `index` on."""

        def left(segment: Segment) -> tuple[int, ...]:
            return (*segment.shares[:number], 0, *segment.shares[number + 1 :])

        earlier = [(each.start, each.shares) for each in self.segments if each.start < index]
        later = [(each.start, left(each)) for each in self.segments if each.start > index]
        here = left(self.segments[self.segment_at(index)])
        return Mixture.of([*earlier, (index, here), *later])

    def dealt(self, share: Callable[[int], int]) -> Mixture:
        """The mixture of a lane, whose segments begin at the lane's `share` of the elements before."""
        if len(self.segments) == 1:
            return self
        changes = {share(segment.start): segment.shares for segment in self.segments}
        return Mixture.of(list(changes.items()))

    def dropping(self, lengths: Sequence[int]) -> Mixture:
        """The mixture without each dataset of `lengths` elements from where it runs out."""
        mixture = self
        for _ in lengths:
            end = mixture.end(lengths)
            if end == sys.maxsize or end == mixture.stop:
                break
            which, _ = mixture.choose(np.array([end]))
            mixture = mixture.without(int(which[0]), end)
        return mixture


def _chosen(segment: Segment, indices: IntArray) -> tuple[IntArray, IntArray]:
    which, keys = orders.mix_choose(
        indices - segment.start, [share for share in segment.shares if share]
    )
    if not all(segment.shares):
        which = np.flatnonzero(segment.shares)[which]
    return which, keys + np.array(segment.before, np.int64)[which] if any(segment.before) else keys


# --- from what a user gives ----------------------------------------------------------------------


def scheduled(weights: Any, function: Callable[[Any], Any]) -> Any:
    """`function` of the weights, or of the weights of each step of a schedule."""
    return weights.over(function) if isinstance(weights, Schedule) else function(weights)


def named_weights(weights: Any, names: Sequence[str]) -> Any:
    """Weights by name as a list in the order of `names`.

    Raises:
        ArgumentError: If they are not given by name.
        PlanError: If the names are others.
    """
    if weights is None:
        return None
    if not isinstance(weights, Mapping):
        raise ArgumentError("mix: weights of named datasets must be a dict by name too")
    if set(weights) != set(names):
        raise PlanError(
            f"mix: datasets are named {sorted(names)}, weights {sorted(weights)};"
            " give one weight for each"
        )
    return [weights[name] for name in names]
