"""Fullness: what a stream holds at a time while its loop is the slow one.

Rounds become blocks, and blocks wait in a queue until it has no room. Then the loop has one block,
those behind it fill the queue, and the next one waits with the rest of its round. So for every
block that the loop may have it follows which others are there, and which rounds are planned.

Invariant: rows are elements of the chain with random access, and so are not in batches of the
stream above it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from windrow.round_plan import RoundPlan
from windrow.stream_facts import StreamFacts
from windrow.transforms.halves import has_function
from windrow.transforms.nodes import BatchNode, FilterNode, Node
from windrow.transforms.streams import (
    ProcessNode,
    StreamLimitNode,
    StreamRepeatNode,
    StreamWindowShuffleNode,
    ToStreamNode,
)

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class Flow:
    """How the rounds of one stream come to the loop.

    Args:
        facts: How the stream is read.
        rows: Rows of an element that the loop gets.
        window: Rows that come together, as of a window; 1 where there is none.
        limit: Rows that are made at most, of a pass.
        passes: How often it is gone through.
    """

    facts: StreamFacts
    rows: int
    window: int
    limit: float
    passes: float


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Holdings:
    """What the parts of a stream hold while each round is given out.

    Args:
        plan: The rounds.
        pieces: Bytes of pieces, float64 `(rounds,)`.
        planned: Bytes for rounds that are planned, float64 `(rounds,)`.
        reads: Reads that are started meanwhile, int64 `(rounds,)`.
        by_source: The most bytes of pieces, by the `id` of their source.
        is_planned: Whether there is a look-ahead.
    """

    plan: RoundPlan
    pieces: FloatArray
    planned: FloatArray
    reads: IntArray
    by_source: Mapping[int, float]
    is_planned: bool


@dataclasses.dataclass(frozen=True, slots=True)
class RowBytes:
    """Bytes of a row: of its records, of those that are begun with its round, of what is made."""

    read: float
    begun: float
    made: float


@dataclasses.dataclass(frozen=True, slots=True)
class Full:
    """The most bytes by kind, and of all at one time.

    Before the queue is full there may be `most_rounds` bytes in rounds.
    """

    pieces: float
    planned: float
    rounds: float
    most_rounds: float
    queue: float
    most: float


def flow_of(node: Node, facts: StreamFacts) -> Flow | None:
    """How a stream comes to the loop at `node`; None where that is not simply in turn."""
    path: list[Node] = []
    while not isinstance(node, ToStreamNode):
        workers = isinstance(node, ProcessNode) and node.options.num_workers
        if len(node.parents) != 1 or workers or isinstance(node, FilterNode):
            return None
        path.append(node)
        node = node.parents[0]
    if _drops(node.parent):
        return None
    rows, window, limit, passes = 1, 1, math.inf, 1.0
    for above in reversed(path):
        match above:
            case BatchNode():
                rows *= above.size
            case StreamWindowShuffleNode():
                window = max(window, above.window_size * rows)
            case StreamLimitNode() if passes == 1:
                limit = min(limit, above.size * rows)
            case StreamRepeatNode():
                passes *= math.inf if above.times is None else above.times
            case _:
                pass
    return Flow(facts, rows, window, limit, passes)


def _drops(node: Node) -> bool:
    return isinstance(node, FilterNode) or any(map(_drops, node.parents))


def calls(node: Node) -> bool:
    """Whether a function is called somewhere in a chain: how long that takes is not known."""
    return has_function(node) or any(map(calls, node.parents))


def full_of(flow: Flow, own: Holdings, each: RowBytes) -> Full:
    """What is held where blocks of rows come to the loop as `flow` says."""
    bounds = own.plan.bounds[: len(own.pieces) + 1]
    ends = _blocks(flow, own, bounds)
    if not len(ends):
        return Full(0, 0, 0, 0, 0, 0)
    number = np.clip(bounds.searchsorted(ends) - 1, 0, len(bounds) - 2)
    goal_bytes = math.inf
    if flow.window == 1:
        goal_bytes = max(flow.facts.goal_bytes, flow.facts.unit * max(each.read, each.made))
    block = np.minimum(np.diff(ends, prepend=0) * each.made, goal_bytes)
    if not flow.facts.options.ahead:
        most = float(block.max())
        return Full(0, 0, most, most, 0, most)
    # Of a block that waits: itself, the rest of its round, and what is begun for the next one.
    left = np.maximum(bounds[number + 1] - ends, 0) * max(each.read, each.made)
    if not own.is_planned:
        left[-1] = 0  # a round is one block, of which a limit may leave some away
    waits = np.minimum(block + left, goal_bytes)
    if not own.is_planned:
        sizes = np.append(np.diff(bounds), 0)
        waits = waits + np.minimum(sizes[number + 1] * each.begun, goal_bytes)
    pieces, planned = own.pieces[number], own.planned[number]
    options = flow.facts.options
    room = min(options.prefetch_buffer_size * flow.rows, options.prefetch_bytes / max(1, each.made))
    passes = int(min(flow.passes, 2 + room // ends[-1]))
    if passes > 1:
        ends = (ends + ends[-1] * np.arange(passes)[:, None]).ravel()
        block, waits, pieces, planned = (
            np.tile(values, passes) for values in (block, waits, pieces, planned)
        )
    rounds, most_rounds, queue, most = _most(ends, block, waits, pieces + planned, room, each)
    return Full(float(pieces.max()), float(planned.max()), rounds, most_rounds, queue, most)


def _most(
    ends: IntArray,
    block: FloatArray,
    waits: FloatArray,
    held: FloatArray,
    room: float,
    each: RowBytes,
) -> tuple[float, float, float, float]:
    """The most in rounds, in rounds at any time, in the queue, and of all at one time.

    Args:
        ends: Where blocks end.
        block: Bytes of each block.
        waits: The same, with what else is in rounds while it waits for room.
        held: What is held beside rounds and queue meanwhile.
        room: Rows that the queue has room for.
        each: Bytes of rows.
    """
    waits, held = np.append(waits, 0), np.append(held, held[-1])
    # The loop has block `has`, those up to `next_one` are in the queue.
    has = np.arange(len(ends))
    next_one = np.minimum(ends.searchsorted(ends + room, side="right"), len(ends))
    next_one = np.minimum(np.maximum(next_one, has + 2), len(ends))
    # Before it is full for the first time the loop has the first block.
    filling = np.arange(1, max(2, int(next_one[0])))
    has = np.append(has, np.zeros(len(filling), np.int64))
    next_one = np.append(next_one, np.minimum(filling, len(ends)))
    queue = (ends[next_one - 1] - ends[has]) * each.made
    rounds = waits[next_one] + block[has]
    most = float((rounds + queue + held[next_one]).max())
    any_time = max(float(rounds.max()), float((block + waits[1:]).max()))
    return float(rounds.max()), any_time, float(queue.max()), most


def _blocks(flow: Flow, own: Holdings, bounds: IntArray) -> IntArray:
    """Where the blocks of rows end."""
    sizes = np.diff(bounds)
    steps = np.ones(len(sizes), np.int64)
    if own.is_planned:
        reads = own.reads[: len(sizes)]
        steps = np.clip(-(-reads * sizes // np.maximum(1, reads + sizes)), 1, np.maximum(1, sizes))
    first = np.repeat(np.cumsum(steps) - steps, steps)
    step = np.arange(int(steps.sum())) - first + 1
    ends = np.repeat(bounds[:-1], steps) + np.repeat(sizes, steps) * step // np.repeat(steps, steps)
    stop = int(min(bounds[-1], flow.limit))
    ends = np.append(ends[ends < stop], stop) if stop else ends[:0]
    for size in (flow.window, flow.rows):
        if size > 1:
            ends = np.unique(np.append(ends[:-1] // size * size, stop))
            ends = ends[ends > 0]
    if flow.window > 1:
        ends = np.append(np.arange(flow.window, stop, flow.window), stop)
    return ends
