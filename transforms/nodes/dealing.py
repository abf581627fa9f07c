"""What only some nodes know: how lanes take their elements, which indices have some, and boxes.

Lane `l` of `L` takes the elements `l, l + L, ...`, or a run of elements of each epoch after a block
shuffle, whose blocks are dealt to lanes. Most nodes have an element at each index; what is planned from
lengths numbers its elements by windows, and has gaps. Boxes of elements go down a chain as indices do: see
`windrow.transforms.nodes.parts`. Each kind of node is asked by `isinstance`, through a function.

Invariant: each element has one index and is taken by one lane, and each lane takes its elements in ascending
order. Boxes never change which elements come, or their order.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from windrow.sources.base import IntArray
from windrow.transforms.amounts import PackCounts
from windrow.transforms.nodes.following import over
from windrow.transforms.positions import run_numbers

if TYPE_CHECKING:
    from windrow.sources.cells import Boxes

N = TypeVar("N")


class DealtToLanes:
    """A node that knows how its elements are dealt to lanes; others deal them in turn."""

    length: int

    def dealt(self, lanes: int) -> Any:
        """The chain whose elements lanes take; other than this one after a block shuffle only."""
        return self

    def lane_starts(self, epoch: int) -> IntArray | None:
        """The offset at which each lane begins in an epoch, and the length, where lanes take runs.

        None where lane `l` of `L` takes the elements `l, l + L, ...`.
        """
        return None

    def lane_indices(
        self, starts: IntArray, counts: IntArray, numbers: IntArray, lanes: int
    ) -> tuple[IntArray, IntArray]:
        """The next indices that some lanes take, lane after lane.

        Args:
            starts: For each of these lanes, the first index that it may have.
            counts: How many indices each lane is to have.
            numbers: The numbers of these lanes, of `lanes`.
            lanes: The number of all lanes.

        Returns:
            The indices, and how many of them each lane has: fewer only where there are no more.
        """
        bounds = self.lane_starts(0)
        if bounds is not None:
            first = np.maximum(starts, bounds[numbers])
            found = np.clip(bounds[numbers + 1] - first, 0, counts)
            return run_numbers(found, first), found
        first = starts + (numbers - starts) % lanes
        found = np.clip((self.length - 1 - first) // lanes + 1, 0, counts)
        return run_numbers(found, first, lanes), found

    def lane_of(self, indices: IntArray, lanes: int) -> IntArray:
        """The lane that takes each index."""
        starts = self.lane_starts(0)
        if starts is None:
            return indices % lanes
        return starts[1:].searchsorted(indices, side="right")

    def lane_elements(self, lane: int, lanes: int) -> int:
        """The number of indices that a lane takes."""
        starts = self.lane_starts(0)
        if starts is None:
            return max(0, -((lane - self.length) // lanes))
        return int(starts[lane + 1] - starts[lane])


@dataclasses.dataclass(frozen=True, slots=True)
class InTurn(DealtToLanes):
    """Elements that lanes take in turn."""

    length: int


def dealing_of(node: Any) -> DealtToLanes:
    """How the elements of any node with random access are dealt to lanes."""
    while node.has_same_indices:
        node = node.parent
    return node if isinstance(node, DealtToLanes) else InTurn(node.length)


def dealt(node: Any, lanes: int) -> Any:
    """The chain whose elements lanes take: see `DealtToLanes.dealt`."""
    if node.has_same_indices:
        return over(node, (dealt(node.parent, lanes),))
    return node.dealt(lanes) if isinstance(node, DealtToLanes) else node


@runtime_checkable
class KnowsLane(Protocol):
    """A node of a stream that is another one in a lane, not only over other parents."""

    def in_lane(self, lane: int, lanes: int) -> Any:
        """The stream of one lane: see `in_lane`."""
        ...


def in_lane(node: Any, lane: int, lanes: int) -> Any:
    """The stream of one lane, for questions about it; not to be run."""
    if node.length >= 0:  # it has random access
        return node
    return (
        node.in_lane(lane, lanes) if isinstance(node, KnowsLane) else over_lane(node, lane, lanes)
    )


def over_lane(node: N, lane: int, lanes: int) -> N:
    """A node of a stream over one lane of its parents."""
    given: Any = node
    return over(node, tuple(in_lane(parent, lane, lanes) for parent in given.parents))


# --- which indices have elements --------------------------------------------------------------------


class Numbers(abc.ABC):
    """A node with random access that says which of its indices have elements."""

    @abc.abstractmethod
    def indices_from(self, start: int, count: int) -> IntArray:
        """The next indices from `start` on at which the node can have elements.

        A stream asks for no others. A node that numbers its elements with gaps leaves out the
        indices in the gaps; all others, absent elements too, are in the order of the stream.

        Args:
            start: From 0 up to the length.
            count: At least 1.

        Returns:
            int64 `(count,)`, ascending, each below the length; fewer only where there are no more.
        """

    @abc.abstractmethod
    def index_after(self, start: int, count: int) -> tuple[int, int]:
        """The index after the next `count` elements, and how many there are."""


class NumbersWithGaps(Numbers):
    """A node that plans its elements from lengths."""

    @abc.abstractmethod
    def planned_counts(self, indices: IntArray) -> Mapping[int, PackCounts]:
        """What becomes of the parent's elements in the windows of some indices, by their numbers."""


@dataclasses.dataclass(frozen=True, slots=True)
class AllNumbers(Numbers):
    """All indices below a length."""

    length: int

    def indices_from(self, start: int, count: int) -> IntArray:
        return np.arange(start, min(self.length, start + count))

    def index_after(self, start: int, count: int) -> tuple[int, int]:
        passed = max(0, min(count, self.length - start))
        return start + passed, passed


def numbers_of(node: Any) -> Numbers:
    """The indices of any node with random access that have elements."""
    while node.has_same_indices:
        node = node.parent
    return node if isinstance(node, Numbers) else AllNumbers(node.length)


# --- boxes of elements -------------------------------------------------------------------------------


class MakesBoxes(abc.ABC):
    """A node that makes boxes of its elements of other boxes of its parents' elements."""

    @abc.abstractmethod
    def boxes_of_parents(self, boxes: Boxes) -> tuple[Sequence[Boxes], Boxes] | None:
        """What makes boxes of elements.

        Returns:
            The boxes of the elements of each parent that are needed, and the boxes that come of them,
            which hold `boxes`. None if the node needs whole elements.
        """


def boxes_of_parents(node: Any, boxes: Boxes) -> tuple[Sequence[Boxes], Boxes] | None:
    """What makes boxes of the elements of any node with parents: see `MakesBoxes`."""
    if isinstance(node, MakesBoxes):
        return node.boxes_of_parents(boxes)
    return ([boxes] * len(node.parents), boxes) if node.keeps_elements else None
