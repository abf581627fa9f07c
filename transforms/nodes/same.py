"""Nodes whose elements correspond to the elements of their one parent, one to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from windrow.sources.base import IntArray
from windrow.transforms.moves import Moved, Moves
from windrow.transforms.nodes.base import Node
from windrow.transforms.nodes.dealing import DealtToLanes, Numbers, dealing_of, dealt, numbers_of
from windrow.transforms.nodes.following import over
from windrow.transforms.specs import Spec


class SameLength(Node):
    """A node with one parent, of its parent's length."""

    def count(self) -> int:
        return self.parent.length


class SameIndices(DealtToLanes, Numbers, SameLength):
    """A node whose element `i` is made of element `i` of its parent, or is that element."""

    def indices_from(self, start: int, count: int) -> IntArray:
        return numbers_of(self.parent).indices_from(start, count)

    def index_after(self, start: int, count: int) -> tuple[int, int]:
        return numbers_of(self.parent).index_after(start, count)

    def dealt(self, lanes: int) -> Node:
        return over(self, (dealt(self.parent, lanes),))

    def lane_starts(self, epoch: int) -> IntArray | None:
        return dealing_of(self.parent).lane_starts(epoch)

    def lane_indices(
        self, starts: IntArray, counts: IntArray, numbers: IntArray, lanes: int
    ) -> tuple[IntArray, IntArray]:
        return dealing_of(self.parent).lane_indices(starts, counts, numbers, lanes)

    def lane_of(self, indices: IntArray, lanes: int) -> IntArray:
        return dealing_of(self.parent).lane_of(indices, lanes)

    def lane_elements(self, lane: int, lanes: int) -> int:
        return dealing_of(self.parent).lane_elements(lane, lanes)


class UnseenNode(SameIndices):
    """Changes only how elements are made, not which elements come: it is in no fingerprint."""

    is_unseen: ClassVar[bool] = True
    keeps_epochs: ClassVar[bool] = True
    keeps_values: ClassVar[bool] = True
    keeps_elements: ClassVar[bool] = True
    follows_batch: ClassVar[bool] = True

    def spec(self, parents: Sequence[Spec]) -> Spec:
        return parents[0]

    def position_after(
        self, position: Sequence[int], count: int, moves: Moves, unit: int | None
    ) -> Moved:
        return moves.after(0, position, count, unit)

    @property
    def takes_all(self) -> bool:
        return True
