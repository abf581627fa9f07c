"""Buffers: the most memory that Windrow's own buffers take, when the loop is the slow one.

Of a chain that is made ahead the queue is full then, rounds are as long as their bytes allow, and
pieces come at an even pace.

Invariant: kinds are those of `Stats.peak_by`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from windrow import demand
from windrow.budget import Room
from windrow.costs import Amount
from windrow.holdings import Held, held
from windrow.lookahead import TICKET_BYTES
from windrow.part_forecast import PartForecast, Uses
from windrow.record_sizes import element_bytes, record_bytes
from windrow.round_plan import RoundPlan
from windrow.stream_facts import StreamFacts
from windrow.stretches import Stretch
from windrow.transforms.nodes import Node

IntArray = npt.NDArray[np.int64]

KINDS = ("pieces", "planned", "rounds", "queue", "workers")
_NOTHING = Amount.exactly(0)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PartLook:
    """What was worked out of a part that is read through a look-ahead."""

    room: Room
    uses: Uses
    forecast: PartForecast


def buffers_by(
    node: Node, streams: Mapping[int, tuple[Stretch, list[PartLook]]]
) -> dict[str, Amount]:
    """The most bytes that the buffers of a stream take, by kind."""
    found = dict.fromkeys(KINDS, _NOTHING)
    for stretch, looks in streams.values():
        own = _of_stream(stretch, looks)
        found = {kind: found[kind] + own.get(kind, _NOTHING) for kind in KINDS}
    stretches = [stretch for stretch, _ in streams.values()]
    ahead = [s.facts for s in stretches if s.facts.options.ahead]
    workers = [s.facts for s in stretches if s.facts.workers is not None]
    if ahead or workers:
        found["queue"] = _queue(node, (ahead or workers)[0])
    return {kind: amount for kind, amount in found.items() if amount.high or kind != "workers"}


def _queue(node: Node, facts: StreamFacts) -> Amount:
    """Bytes of the elements that are ready, with no room for more."""
    options = facts.options
    size, count = element_bytes(node), demand.elements(node)
    most = min(options.prefetch_buffer_size, count.high)
    if size is None:
        return Amount(0, options.prefetch_bytes)
    if size.high >= options.prefetch_bytes:  # one is taken in any case
        return size
    high = min(options.prefetch_bytes, most * size.high)
    return Amount(min(high, min(most, count.low) * size.low), high)


def _of_stream(stretch: Stretch, looks: list[PartLook]) -> dict[str, Amount]:
    facts, plan = stretch.facts, stretch.long
    pieces = planned = 0.0
    reads = np.zeros(len(plan.ends), np.int64)
    for look in looks:
        room = look.room
        records = len(stretch.asked[id(room.source)].records) / max(1, stretch.stop)
        own = _held(look, stretch, records)
        reads[: len(own.reads)] = np.maximum(reads[: len(own.reads)], own.reads)
        pieces += own.slots * room.piece_bytes
        planned += own.elements * records * room.record_bytes
    if looks:
        planned += _indices(stretch, looks)
    rounds = _rounds(stretch, reads, planned_ahead=bool(looks))
    found = {"pieces": Amount.exactly(pieces), "planned": Amount.exactly(planned), "rounds": rounds}
    if facts.workers is not None:
        own_options = facts.workers.options
        most = own_options.num_workers * (1 + own_options.per_worker_buffer_size)
        found["workers"] = Amount(0, most * _largest(plan) * _bytes_each(stretch))
    return found


def _held(look: PartLook, stretch: Stretch, records: float) -> Held:
    room, plan = look.room, stretch.long
    if not look.forecast.is_saturated:
        return held(look.uses, room, plan, records)
    ahead = int((plan.ends - plan.bounds[:-1]).max(initial=0))
    reads = np.full(len(plan.ends), room.most_in_flight)
    return Held(room.slots, ahead, reads)


def _indices(stretch: Stretch, looks: list[PartLook]) -> float:
    """Bytes of the indices of what is planned at a time."""
    plan = stretch.long
    rounds = plan.bounds.searchsorted(plan.ends) - np.arange(len(plan.ends))
    elements = plan.ends - plan.bounds[:-1]
    fragments = sum(float(look.uses.records.sum()) * look.room.index_bytes for look in looks)
    sizes = rounds * TICKET_BYTES * len(looks) + elements * (fragments / max(1, stretch.stop))
    return float(sizes.max(initial=0))


def _rounds(stretch: Stretch, reads: IntArray, *, planned_ahead: bool) -> Amount:
    """Bytes of a round that was made, while it is given out, and of the block that the loop has."""
    each, long = _bytes_each(stretch), stretch.long
    if not planned_ahead:
        # Of those that are not planned the next one is being read too.
        times = min(3, len(long.ends)) if stretch.facts.options.ahead else 1
        return Amount(_largest(stretch.short), times * _largest(long)).times(each)
    sizes = np.diff(long.bounds)
    steps = np.maximum(1, np.minimum(sizes, -(-reads * sizes // np.maximum(1, reads + sizes))))
    high = float((sizes * (1 + 1 / steps)).max(initial=0))
    return Amount(min(high, _largest(stretch.short)), high).times(each)


def _largest(plan: RoundPlan) -> int:
    """Elements of the longest round."""
    return int(np.diff(plan.bounds).max(initial=0))


def _bytes_each(stretch: Stretch) -> float:
    """Bytes of the records of an element, or of what is made of them."""
    each = 0.0
    for source in demand.all_sources(stretch.facts.node):
        asked, size = stretch.asked.get(id(source)), record_bytes(source)
        if asked is not None and size is not None:
            each += size.high * len(asked.records) / max(1, stretch.stop)
    made = element_bytes(stretch.facts.node)
    return max(each, 0.0 if made is None else made.high)
