"""Nodes whose elements correspond to the elements of their one parent, one to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from windrow.transforms.moves import Moved, Moves
from windrow.transforms.nodes.base import Node


class SameLength(Node):
    """A node with one parent, of its parent's length."""

    def count(self) -> int:
        return self.parent.length


class SameIndices(SameLength):
    """A node whose element `i` is made of element `i` of its parent, or is that element."""

    has_same_indices: ClassVar[bool] = True


class UnseenNode(SameIndices):
    """Changes only how elements are made, not which elements come: it is in no fingerprint."""

    is_unseen: ClassVar[bool] = True
    looks_at_values: ClassVar[bool] = False
    keeps_epochs: ClassVar[bool] = True
    keeps_values: ClassVar[bool] = True
    keeps_elements: ClassVar[bool] = True
    follows_batch: ClassVar[bool] = True

    def position_after(
        self, position: Sequence[int], count: int, moves: Moves, unit: int | None
    ) -> Moved:
        return moves.after(0, position, count, unit)
