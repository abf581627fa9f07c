"""Memory: a bound of the bytes that the buffers of an iterator hold.

Each kind of buffer has a budget, and the chain may have less to put into it. The bound is the sum of
the smaller of the two, over all kinds and streams.

Invariant: no run holds more, where the bytes of elements are known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from windrow.core.machine import shared_bytes_of
from windrow.engine.budgets import PartRoom, budget_of, rooms
from windrow.engine.chunk_prefetch import TICKET_BYTES
from windrow.explain.dry_run import DryRun, PlannedPart
from windrow.explain.paths import may_end_early
from windrow.sources.chunks import LaidOutSource
from windrow.transforms.nodes import Node, ToStreamNode, chains_of, sources_of, walk
from windrow.transforms.nodes.metadata import element_bytes
from windrow.transforms.nodes.reading import most_records
from windrow.transforms.nodes.streams import workers_of


def rooms_of(node: Node, stream: ToStreamNode) -> tuple[list[PartRoom], int]:
    """The rooms of one of the streams of a chain, and the bytes for records that it plans."""
    sources = list({id(s): s for s in sources_of(stream) if isinstance(s, LaidOutSource)}.values())
    if not sources or not stream.read_options.ahead:
        return [], 0
    return rooms(sources, budget_of(stream.read_options).share(len(chains_of(node))))


class Bound(NamedTuple):
    """The most bytes that each kind of buffer holds, and of chunks by the `id` of their source."""

    by: dict[str, int]
    held: dict[int, int]


def bound_of(node: Node, run: DryRun, ran: Node) -> Bound:
    """The bound of a whole stream, from a dry run of its first epoch, which is the stream `ran`."""
    # Then a run of another speed reads and plans no more than this one did.
    is_whole = run.is_whole and not node.is_endless() and not may_end_early(node)
    found = dict.fromkeys(("chunks", "planned", "rounds", "queue"), 0)
    held: dict[int, int] = {}
    largest = 0
    for stream, stream_ran in zip(chains_of(node), chains_of(ran), strict=True):
        batch_bytes = _read_batch_bytes(ran, stream_ran, run)
        if most_records(stream.parent) > most_records(stream_ran.parent):  # batches ran in parts
            batch_bytes = max(batch_bytes, math.ceil(run.bytes_of(stream)))
        largest = max(largest, batch_bytes)
        found["rounds"] += 2 * batch_bytes
        own_rooms, plan_bytes = rooms_of(node, stream)
        if own_rooms:
            planned = [_planned_bytes(room, run.parts) for room in own_rooms]
            most = plan_bytes + 2 * batch_bytes + sum(indices for _, indices in planned)
            all_planned = sum(size for size, _ in planned) if is_whole else most
            found["planned"] += min(most, all_planned)
        for room in own_rooms:
            chunk_bytes = _chunk_bytes(room, run.parts if is_whole else [])
            found["chunks"] += chunk_bytes
            held[id(room.source)] = held.get(id(room.source), 0) + chunk_bytes
    # A block is made of others, and then waits for room in the queue.
    lanes = max((stream.lanes for stream in chains_of(node)), default=1)
    found["rounds"] += 2 * max(largest, lanes * run.largest_block)
    found["queue"] = _queue_bytes(node, run)
    workers = _worker_bytes(node, largest)
    return Bound(found | ({"workers": workers} if workers else {}), held)


def _seen_of(room: PartRoom, seen: Sequence[PlannedPart]) -> list[PlannedPart]:
    part, source = room.part, room.source
    rooms_seen = ((own, own.ahead.room) for own in seen)
    return [own for own, r in rooms_seen if r.source is source and r.part.name == part.name]


def _chunk_bytes(room: PartRoom, seen: Sequence[PlannedPart]) -> int:
    """Bytes of the slots, which are no more than the chunks that are read."""
    counts = [len(own.uses.last) for own in _seen_of(room, seen)]
    return min([room.slots, *([max(counts)] if counts else [])]) * room.chunk_bytes


def _planned_bytes(room: PartRoom, seen: Sequence[PlannedPart]) -> tuple[int, int]:
    """Bytes of all that is planned of a part, and of the indices of two read batches."""
    found = most = 0
    for uses in (own.uses for own in _seen_of(room, seen)):
        found += uses.fragments * room.index_bytes + uses.records * room.record_bytes
        found += uses.batches * TICKET_BYTES
        most = max(most, uses.most_fragments)
    return found, 2 * (most * room.index_bytes + TICKET_BYTES)


def _read_batch_bytes(node: Node, stream: ToStreamNode, run: DryRun) -> int:
    """The most bytes of a read batch of a stream."""
    goal_bytes = run.budget_of(stream).batch_bytes
    seen = run.largest.get(id(stream), max(goal_bytes, math.ceil(run.bytes_of(stream))))
    if stream.lanes > 1:  # a read batch has rows of all lanes, also where few of them come
        seen = max(seen, stream.lanes * math.ceil(run.bytes_of(stream)))
    if not run.is_whole or may_end_early(node):
        return max(seen, goal_bytes)  # read batches may not have been as long as they get
    sizes = [element_bytes(each) for each in walk(node)]
    if all(size is not None and size.is_exact for size in sizes):
        return seen
    # One of large elements may follow one of small ones, and have as many.
    return max(2 * seen, goal_bytes)


def _queue_bytes(node: Node, run: DryRun) -> int:
    if not run.ahead:
        return 0
    most, each = run.budget.queue_bytes, element_bytes(node)
    if each is None:
        return max(most, run.largest_block)
    count = min(run.options.prefetch_buffer_size, node.elements().high)
    return math.ceil(max(min(most, count * each.high), run.largest_block))


def _worker_bytes(node: Node, largest: int) -> int:
    """Bytes of the arrays that are under way to workers: a request and a reply for each work item."""
    found = 0
    for each in walk(node):
        workers = workers_of(each)
        if workers is not None:
            options = workers.options
            jobs = options.most_workers * (1 + options.per_worker_buffer_size)
            room = shared_bytes_of(options.shared_bytes)
            found += min(jobs * 2 * largest, max(room, options.most_workers * 2 * largest))
    return found
