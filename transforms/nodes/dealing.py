"""Parts of the protocol of nodes: elements of lanes, and bad rows.

Lane `l` of `L` takes the elements `l, l + L, ...`, or a run of elements of each epoch after a block
shuffle, whose blocks are dealt to lanes.

Invariant: each element is taken by one lane, and each lane takes its elements in ascending order.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from windrow.transforms.nodes.caught import Catch

IntArray = npt.NDArray[np.int64]


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
            return runs_of(first, found), found
        first = starts + (numbers - starts) % lanes
        found = np.clip((self.length - 1 - first) // lanes + 1, 0, counts)
        return runs_of(first, found, lanes), found

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
    return node if isinstance(node, DealtToLanes) else InTurn(node.length)


def dealt(node: Any, lanes: int) -> Any:
    """The chain whose elements lanes take: see `DealtToLanes.dealt`."""
    return node.dealt(lanes) if isinstance(node, DealtToLanes) else node


def runs_of(first: IntArray, counts: IntArray, step: int = 1) -> IntArray:
    """The integers `first[k]`, `first[k] + step`, ..., `counts[k]` of them, for each `k` in turn."""
    before = np.cumsum(counts) - counts
    found: IntArray = np.repeat(first - before * step, counts) + np.arange(counts.sum()) * step
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class TakesBad:
    """The part of a node that says what becomes of bad rows: see `windrow.transforms.nodes.on_bad`."""

    caught: Catch | None = dataclasses.field(default=None, kw_only=True, repr=False)
    """On a stream, which errors of its function drop an element; None where they are raised."""

    takes_bad: ClassVar[bool] = False
    """Whether rows before it that raise are isolated, and left out or replaced."""

    @property
    def counts_places(self: Any) -> bool:
        """Whether its own integer in a position is the `Catch.column` of itself and later nodes."""
        caught = self.caught if self.position_width == 1 else None
        return caught is not None and caught.column == self.width - 1

    def all_good(self: Any) -> Any:
        """The chain as if no row before it were bad, for predictions."""
        return self.over(tuple(parent.all_good() for parent in self.parents))

    def sent_over(self: Any, parents: tuple[Any, ...]) -> Any:
        """As `over`, in the half of a chain that is sent to worker processes."""
        return self.over(parents)
