"""Skipping: the position some elements later, by arithmetic where nodes know it.

A node that does not know it is run from the position on, without the nodes after it, and only the
marks of its rows are used. If it is in a lane, the node that joins the lanes is run, since lanes are
read together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from windrow.engine import streams
from windrow.engine.context import RunContext
from windrow.engine.executors import Executors
from windrow.stats.profiler import Profiler
from windrow.transforms.moves import Moved
from windrow.transforms.nodes import Node, lane_share
from windrow.transforms.own_states import OwnStates


class _LaneRunsError(Exception):
    """A node in a lane does not know the position."""


def after(
    node: Node,
    position: Sequence[int],
    count: int,
    meter: Profiler,
    unit: int | None = None,
    lane: tuple[int, int] | None = None,
    own_states: OwnStates | None = None,
) -> Moved:
    """The place `count` elements of a stream after a position.

    Args:
        node: A node of a stream.
        position: `node.width` integers.
        count: At least 0.
        meter: Counts what is read, if anything must be.
        unit: As for `streams.blocks`.
        lane: The number of the lane that the node is in, and the number of lanes.
        own_states: The states of the user's own nodes at positions.
    """
    if count == 0:
        return Moved(list(position), 0)
    try:
        found = node.position_after(
            position, count, _EngineMoves(node, meter, lane, own_states), unit
        )
    except _LaneRunsError:
        if lane is not None:
            raise
        found = None
    if found is not None:
        return found
    if lane is not None:
        raise _LaneRunsError
    return _run(node, position, count, meter, unit, own_states)


@dataclasses.dataclass(frozen=True, slots=True)
class _EngineMoves:
    """The moves of a node's parents: see `transforms.moves.Moves`."""

    node: Node
    meter: Profiler
    of_lane: tuple[int, int] | None
    own_states: OwnStates | None

    def after(
        self, number: int, position: Sequence[int], count: int, unit: int | None = None
    ) -> Moved:
        return after(
            self.node.parents[number],
            position,
            count,
            self.meter,
            unit,
            self.of_lane,
            self.own_states,
        )

    @property
    def lane(self) -> int | None:
        return None if self.of_lane is None else self.of_lane[0]

    def in_lane(self, lane: int, lanes: int) -> _EngineMoves:
        return dataclasses.replace(self, of_lane=(lane, lanes) if lanes > 1 else None)

    def share(self, count: int) -> int:
        return count if self.of_lane is None else lane_share(count, *self.of_lane)


def _run(
    node: Node,
    position: Sequence[int],
    count: int,
    meter: Profiler,
    unit: int | None,
    own_states: OwnStates | None,
) -> Moved:
    """Make `count` elements, and return the mark of the last."""
    executors = Executors(node)
    run = RunContext(node, executors, meter, own_states=own_states)
    rows, last, passed = streams.blocks(node, position, run, unit), list(position), 0
    try:
        with run.maker.working():
            for block in rows:
                wanted = min(len(block), count - passed)
                if wanted:
                    last = block.marks[wanted - 1].tolist()
                passed += wanted
                if passed == count:
                    break
    finally:
        run.stop()
        rows.close()
        run.end_threads()
        executors.kill()
    return Moved(last, passed)
