"""The first elements of a stream.

In a stream with lanes they are the first elements of the lanes in turn, without lanes that have ended. So
how many elements each lane has must be known, unless no lane ends.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from windrow.errors import PlanError
from windrow.transforms.amounts import Amount
from windrow.transforms.arguments import at_least
from windrow.transforms.moves import Moved, Moves
from windrow.transforms.nodes.base import STREAM, Node
from windrow.transforms.nodes.dealing import in_lane, over_lane
from windrow.transforms.nodes.index import first_elements
from windrow.transforms.nodes.streams import SameElementsNode, lane_share, lanes_of, undecided
from windrow.transforms.row_blocks import Blocks, Inputs


@dataclasses.dataclass(frozen=True, eq=False)
class StreamLimitNode(SameElementsNode):
    """The first `size` elements of the stream. Its own integer counts those that were given."""

    size: int
    of_lanes: tuple[int, ...] | None = dataclasses.field(init=False, default=None)
    """How many of them each lane has; None without lanes."""

    position_width: ClassVar[int] = 1

    def over_random_access(self, parents: tuple[Node, ...]) -> Node:
        return first_elements(parents[0], self.size)

    def count(self) -> int:
        at_least(1, self.size, "limit: count")
        lanes = lanes_of(self.parents, "limit")
        if lanes > 1:
            object.__setattr__(self, "of_lanes", _of_lanes(self.parent, self.size, lanes))
        return STREAM

    @property
    def label(self) -> str:
        return f"limit({self.size})"

    def elements(self) -> Amount:
        found = self.parent.elements()
        return Amount(min(self.size, found.low), min(self.size, found.high))

    def in_lane(self, lane: int, lanes: int) -> Node:
        moved = copy.copy(over_lane(self, lane, lanes))
        object.__setattr__(moved, "size", self._size(lane))
        return moved

    def never_ends(self) -> bool:
        return False

    def _size(self, lane: int | None) -> int:
        """The most elements that come of a lane."""
        return self.size if self.of_lanes is None or lane is None else self.of_lanes[lane]

    def blocks(self, position: Sequence[int], inputs: Inputs, unit: int | None) -> Blocks:
        # The first element of a lane has the number of the lane.
        given, size = position[-1], self._size(inputs.number(0))
        if given >= size:
            return
        for block in inputs.blocks(0, position[:-1], unit):
            block = block.sliced(0, min(len(block), size - given))
            yield block.with_marks(np.arange(given + 1, given + 1 + len(block)))
            given += len(block)
            if given == size:
                return
        if self.of_lanes is not None and self.parent.elements().high > self.size:
            raise PlanError(
                f"limit: lane {inputs.number(0)} of {len(self.of_lanes)} has {given} of {size} elements:"
                " a function made the others absent (None), so it is not known which are the first"
                f" {self.size}; write limit before the function, or .batch(...) before limit"
            )

    def position_after(
        self, position: Sequence[int], count: int, moves: Moves, unit: int | None
    ) -> Moved:
        *before, given = position
        moved = moves.after(0, before, max(0, min(count, self._size(moves.lane) - given)), unit)
        return Moved([*moved.position, given + moved.passed], moved.passed)


def _of_lanes(node: Node, count: int, lanes: int) -> tuple[int, ...]:
    """How many of the first `count` elements of a stream each lane has.

    Raises:
        PlanError: If that is not known before they are read.
    """
    shares = tuple(lane_share(count, lane, lanes) for lane in range(lanes))
    if node.never_ends():
        return shares
    have = [in_lane(node, lane, lanes).elements() for lane in range(lanes)]
    if all(found.low >= share for found, share in zip(have, shares, strict=True)):
        return shares
    if sum(found.high for found in have) <= count:  # all of them
        return tuple(int(found.high) for found in have)
    if not all(found.is_exact for found in have):
        deciding = undecided(node)
        who = node.written if deciding is None else deciding.written
        raise PlanError(
            f"limit: how many elements {who} leaves in each of {lanes} lanes is not known before they"
            f" are read, so it is not known which are the first {count}; write limit before it,"
            " .repeat() before limit, or .batch(...) before limit, which then counts batches"
        )
    rows = np.array([min(found.high, count) for found in have], np.int64)
    low, high = 0, count  # the whole turns among them
    while low < high:
        turns = (low + high + 1) // 2
        low, high = (turns, high) if np.minimum(rows, turns).sum() <= count else (low, turns - 1)
    taken = np.minimum(rows, low)
    more = np.flatnonzero(rows > low)[: count - int(taken.sum())]
    taken[more] += 1
    return tuple(taken.tolist())
