"""Moves along a stream without making its elements: the position some elements later.

A node that knows from a position alone where it is `count` elements later answers `position_after`;
the engine runs the others (`windrow.engine.skipping`).

Invariant: a stream that starts at the position after `count` elements gives what it would have given
after making them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias


class Moved(NamedTuple):
    """The place after some elements.

    Args:
        position: The position after them.
        passed: The number of elements passed. It is less than asked for only at the end.
    """

    position: list[int]
    passed: int


Move: TypeAlias = Callable[[Sequence[int], int], Moved]
"""The place a number of elements after a position of a stream."""


class Moves(Protocol):
    """The engine's interface for a node that moves: the moves of its parents."""

    def after(
        self, number: int, position: Sequence[int], count: int, unit: int | None = None
    ) -> Moved:
        """The place `count` elements of parent `number` after a position.

        Args:
            number: The parent's place in `parents`.
            position: As many integers as the parent's `width`.
            count: At least 0.
            unit: As for `Inputs.blocks`.
        """
        ...

    @property
    def lane(self) -> int | None:
        """The lane that moves; None for a stream that has no lanes."""
        ...

    def in_lane(self, lane: int, lanes: int) -> Moves:
        """The moves of one lane of the parents."""
        ...

    def share(self, count: int) -> int:
        """As `Inputs.share`."""
        ...


class GroupMoved(NamedTuple):
    """The place after some rows that are given in groups.

    Args:
        position: The parent's position where the group begins.
        groups: Groups that were passed.
        given: Rows of the next group that were given.
        passed: Rows that were passed.
    """

    position: list[int]
    groups: int
    given: int
    passed: int


def after_groups(
    position: Sequence[int], given: int, count: int, size: int, move: Move
) -> GroupMoved:
    """Move `count` rows, where each `size` rows of the parent are a group that is given row by row.

    Args:
        position: The parent's position where the group begins.
        given: Rows of this group that were given.
        count: Rows to pass.
        size: Rows of a group; the last may have fewer.
        move: Moves in the parent.
    """
    groups, rest = divmod(given + count, size)
    whole = move(position, groups * size)
    if whole.passed < groups * size:
        return GroupMoved(whole.position, -(-whole.passed // size), 0, whole.passed - given)
    if rest == 0:
        return GroupMoved(whole.position, groups, 0, count)
    last = move(whole.position, rest + 1)
    if last.passed > rest:
        return GroupMoved(whole.position, groups, rest, count)
    # The stream ends in this group, or with it: after its last row comes the position after it.
    passed = whole.passed + last.passed - given
    return GroupMoved(last.position, groups + (last.passed > 0), 0, passed)
