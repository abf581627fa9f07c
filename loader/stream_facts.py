"""Stream facts: how the streams of a chain will be read, told from options and layouts.

Invariant: what is told here is what `Run`, `Lookahead` and the rounds make of the same chain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from windrow.budget import Room, rooms
from windrow.demand import all_sources
from windrow.memory import budget_of, shared_bytes_of
from windrow.rounds import BLOCK_ROWS, ROUNDS_AHEAD, calls_on_rows
from windrow.sources import LaidOutSource, is_far
from windrow.transforms.halves import has_function
from windrow.transforms.nodes import BatchNode, FilterNode, MapNode, Node
from windrow.transforms.options import ReadOptions
from windrow.transforms.streams import (
    ProcessNode,
    StreamMixNode,
    StreamRepeatNode,
    StreamWindowShuffleNode,
    ToStreamNode,
)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StreamFacts:
    """How one chain with random access is read as a stream.

    Args:
        node: What makes a stream of the chain.
        options: How it is read, with its share of the bytes of a round.
        workers: The node whose workers run its functions; None for none.
        calls: Whether functions are called on its rounds: how long they take is not known.
        unit: Elements that a round has at least; every round is a multiple of it.
        goal_bytes: Bytes that a round aims at.
        most_rows: Elements that a round has at most.
        rooms: What there is room for of each part that is read through a look-ahead.
        horizon_bytes: For records of rounds that are planned.
        kept_bytes: For pieces on the shelf.
    """

    node: ToStreamNode
    options: ReadOptions
    workers: ProcessNode | None
    calls: bool
    unit: int
    goal_bytes: int
    most_rows: int
    rooms: tuple[Room, ...]
    horizon_bytes: int
    kept_bytes: int

    def room_of(self, source: Any, name: str) -> Room | None:
        """The room of a part; None where it is not read through a look-ahead."""
        for room in self.rooms:
            if room.source is source and room.part.name == name:
                return room
        return None


def stream_facts(node: Node) -> dict[int, StreamFacts]:
    """How the streams below a node are read, by the `id` of what makes them."""
    found = list(_found(node, None, None, is_called=False))
    return {id(each[0]): _facts(*each, len(found)) for each in found}


_Found = tuple[ToStreamNode, int | None, ProcessNode | None, bool]


def _calls(node: Node) -> bool:
    return has_function(node) or any(map(_calls, node.parents))


def _found(
    node: Node, unit: int | None, workers: ProcessNode | None, *, is_called: bool
) -> Iterator[_Found]:
    """Every stream, the rows that a batch above it takes, who runs its functions, if there are any."""
    is_called = is_called or has_function(node)
    match node:
        case ToStreamNode():
            yield node, unit, workers, is_called
            return
        case BatchNode():
            unit = node.size
        case FilterNode() | StreamWindowShuffleNode() | StreamRepeatNode() | StreamMixNode():
            unit = None
        case MapNode(batched=True):
            unit = unit or BLOCK_ROWS
        case ProcessNode() if node.options.num_workers:
            workers = node
        case _:
            pass
    for parent in node.parents:
        yield from _found(parent, unit, workers, is_called=is_called)


def _facts(
    node: ToStreamNode,
    unit: int | None,
    workers: ProcessNode | None,
    is_called: bool,
    streams: int,
) -> StreamFacts:
    given = node.read_options
    block_bytes = max(1, given.block_bytes // streams)
    if workers is not None:
        own = workers.options
        most = own.num_workers * (1 + own.per_worker_buffer_size)
        room_bytes = shared_bytes_of(own.shared_bytes) // (4 * most)
        block_bytes = max(1, min(block_bytes, room_bytes))
    options = dataclasses.replace(given, block_bytes=block_bytes)
    sources = [s for s in all_sources(node) if isinstance(s, LaidOutSource)]
    budget = budget_of(given, far=any(map(is_far, sources))).share(1 / streams)
    found, budget = rooms(sources, budget) if given.ahead and sources else ([], budget)
    least = unit or (BLOCK_ROWS if calls_on_rows(node.parent) else 1)
    if found:
        goal_bytes = max(1, min(block_bytes // 2, budget.horizon_bytes // ROUNDS_AHEAD))
        most_rows = options.prefetch_buffer_size
    else:
        units = 4 if least > 1 and options.prefetch_buffer_size else 1
        goal_bytes, most_rows = block_bytes, max(options.prefetch_buffer_size, units * least)
    return StreamFacts(
        node=node,
        options=options,
        workers=workers,
        calls=is_called or _calls(node),
        unit=least,
        goal_bytes=goal_bytes,
        most_rows=max(least, most_rows),
        rooms=tuple(found),
        horizon_bytes=budget.horizon_bytes,
        kept_bytes=budget.kept_bytes,
    )
