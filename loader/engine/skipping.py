"""Skipping: the position some elements later, by arithmetic where nodes know it.

A node that does not know it is run from the position on, without the nodes after it, and only the
marks of its rows are used. If it is in a lane, the node that joins the lanes is run, since lanes are
read together.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

from windrow.engine import streams
from windrow.engine.context import RunContext, bad_records
from windrow.engine.executors import Executors
from windrow.stats.profiler import Profiler
from windrow.transforms.moves import Moved
from windrow.transforms.nodes import Node, lane_share
from windrow.transforms.row_blocks import Blocks, OwnStates


class _LaneRunsError(Exception):
    """A node in a lane does not know the position."""


Run: TypeAlias = Callable[[Node, Sequence[int], int, "int | None"], Moved]
"""Runs a node from a position on, for a number of elements and a `unit`, as `streams.blocks`."""


def after(
    node: Node,
    position: Sequence[int],
    count: int,
    run: Run,
    unit: int | None = None,
    lane: tuple[int, int] | None = None,
) -> Moved:
    """The place `count` elements of a stream after a position.

    Args:
        node: A node of a stream.
        position: `node.width` integers.
        count: At least 0.
        run: Runs a node that does not know the position.
        unit: As for `streams.blocks`.
        lane: The number of the lane that the node is in, and the number of lanes.
    """
    if count == 0:
        return Moved(list(position), 0)
    try:
        found = node.position_after(position, count, _EngineMoves(node, run, lane), unit)
    except _LaneRunsError:
        if lane is not None:
            raise
        found = None
    if found is not None:
        return found
    if lane is not None:
        raise _LaneRunsError
    return run(node, position, count, unit)


@dataclasses.dataclass(frozen=True, slots=True)
class _EngineMoves:
    """The moves of a node's parents: see `transforms.moves.Moves`."""

    node: Node
    run: Run
    of_lane: tuple[int, int] | None

    def after(
        self, number: int, position: Sequence[int], count: int, unit: int | None = None
    ) -> Moved:
        return after(self.node.parents[number], position, count, self.run, unit, self.of_lane)

    @property
    def lane(self) -> int | None:
        return None if self.of_lane is None else self.of_lane[0]

    def in_lane(self, lane: int, lanes: int) -> _EngineMoves:
        return dataclasses.replace(self, of_lane=(lane, lanes) if lanes > 1 else None)

    def share(self, count: int) -> int:
        return count if self.of_lane is None else lane_share(count, *self.of_lane)


def running(meter: Profiler, own_states: OwnStates) -> Run:
    """Makes the elements; `meter` counts what is read."""
    return functools.partial(_run, meter, own_states)


def _run(
    meter: Profiler,
    own_states: OwnStates,
    node: Node,
    position: Sequence[int],
    count: int,
    unit: int | None,
) -> Moved:
    executors = Executors(node)
    run = RunContext(node, executors, meter, own_states=own_states, bad=bad_records(node))
    rows = streams.blocks(node, position, run, unit)
    is_interrupted = True
    try:
        with run.maker.working():
            moved = passed_in(rows, position, count)
        is_interrupted = False
        return moved
    except Exception:
        is_interrupted = False
        raise
    finally:
        run.stop()
        rows.close()
        run.end_threads(wait=not is_interrupted)
        executors.kill()


def passed_in(rows: Blocks, position: Sequence[int], count: int) -> Moved:
    """The mark of the last of `count` rows, which follow a position."""
    last, passed = list(position), 0
    for block in rows:
        wanted = min(len(block), count - passed)
        if wanted:
            last = block.marks[wanted - 1].tolist()
        passed += wanted
        if passed == count:
            break
    return Moved(last, passed)
