"""Buffers: the most memory that Windrow's own buffers take, when the loop is the slow one.

Of a chain that is made ahead the queue is full then, rounds are as long as their bytes and 0.1 s
allow, and pieces come at an even pace. Each stream is followed round by round twice: with rounds as
long as their bytes allow, and with rounds that take long. What differs is told as an interval.

Invariant: kinds are those of `Stats.peak_by`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from windrow import demand
from windrow.asked import rows_of
from windrow.budget import Room, rounds_at_once
from windrow.costs import Amount
from windrow.fullness import Holdings, RowBytes, calls, flow_of, full_of
from windrow.holdings import MOST_ROUNDS, Held, held
from windrow.lookahead import TICKET_BYTES
from windrow.part_forecast import PartForecast, Uses, part_forecast
from windrow.record_sizes import MADE, element_bytes, record_bytes
from windrow.round_plan import RoundPlan, round_plan
from windrow.sources import ArrayPart, BoxPart, Part
from windrow.sources.zarr_python import PythonBoxReader, PythonReader
from windrow.stream_facts import StreamFacts
from windrow.stretches import SLOW_ROUND_BYTES, Stretch, horizon_elements, stretch_of
from windrow.transforms.nodes import Node
from windrow.transforms.streams import StreamWindowShuffleNode

IntArray = npt.NDArray[np.int64]

KINDS: Final = ("pieces", "planned", "rounds", "queue", "workers")
_NOTHING: Final = Amount.exactly(0)
# Records of an endless chain that are looked at for what is held of several epochs.
_MOST_RECORDS: Final = 1 << 18


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class PartLook:
    """What was worked out of a part that is read through a look-ahead."""

    room: Room
    uses: Uses
    forecast: PartForecast


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Buffers:
    """The most bytes that the buffers of a chain take.

    Args:
        by: By kind; which need not be at one time.
        most: All of them at one time.
        held: Of pieces, by the `id` of their source.
    """

    by: Mapping[str, Amount]
    most: Amount
    held: Mapping[int, Amount]


def buffers_of(node: Node, streams: Iterable[tuple[Stretch, list[PartLook]]]) -> Buffers:
    """The most bytes that the buffers of a stream take."""
    found = [_of_stream(node, stretch, looks) for stretch, looks in streams]
    by = dict.fromkeys(KINDS, _NOTHING)
    of_source: dict[int, Amount] = {}
    for own in found:
        by = {kind: by[kind] + own.by.get(kind, _NOTHING) for kind in KINDS}
        for source, amount in own.held.items():
            of_source[source] = of_source.get(source, _NOTHING) + amount
    facts = [own.facts for own in found]
    ahead = [f for f in facts if f.options.ahead] or [f for f in facts if f.workers is not None]
    if len(found) == 1 and found[0].most is not None:
        most = found[0].most
    else:
        by["queue"] = _queue(node, ahead[0]) if ahead else _NOTHING
        by["rounds"] += _windows(node)
        low = sum(own.least for own in found)
        most = Amount(low, max(low, sum(amount.high for amount in by.values())))
    shown = {kind: amount for kind, amount in by.items() if amount.high or kind != "workers"}
    return Buffers(shown, most, of_source)


# --- one stream ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _OfStream:
    """What one stream takes; `most` at one time where that can be told, at least `least`."""

    facts: StreamFacts
    by: Mapping[str, Amount]
    held: Mapping[int, Amount]
    most: Amount | None
    least: float


def _of_stream(node: Node, stretch: Stretch, looks: list[PartLook]) -> _OfStream:
    is_endless = demand.repeats_for_ever(stretch.facts.node.parent)
    if is_endless:
        stretch, looks = _longer(stretch, looks)
    flow = flow_of(node, stretch.facts)
    each = _Bytes.of(node, stretch, 1 if flow is None else flow.rows)
    plans = _plans(stretch, looks, each)
    # Blocks whose windows do not fit may come so that some pieces are done with before.
    may_not = any(
        look.forecast.is_saturated and (is_endless or not look.uses.are_spread) for look in looks
    )
    held = [
        _holdings(stretch, looks, plan, spills=spills)
        for plan in plans
        for spills in ((True, False) if may_not else (True,))
    ]
    by = {
        "pieces": _span(own.pieces.max(initial=0) for own in held),
        "planned": _span(own.planned.max(initial=0) for own in held),
    }
    of_source = {
        source: _span(own.by_source[source] for own in held) for source in held[0].by_source
    }
    least = min(float((own.pieces + own.planned).max(initial=0)) for own in held)
    if flow is None or each.made is None:
        by["rounds"] = _rounds(stretch, plans[-1], each)
        by["workers"] = _workers(stretch, plans[-1], each)
        return _OfStream(stretch.facts, by, of_source, None, least)
    full = [full_of(flow, own, rows) for own in held for rows in each.bounds]
    by["pieces"] = _span(own.pieces for own in full)
    by["planned"] = _span(own.planned for own in full)
    by["rounds"] = _span(rounds for own in full for rounds in (own.rounds, own.most_rounds))
    by["queue"] = _span(own.queue for own in full)
    return _OfStream(stretch.facts, by, of_source, _span(own.most for own in full), least)


def _longer(stretch: Stretch, looks: list[PartLook]) -> tuple[Stretch, list[PartLook]]:
    """More of an endless chain, so that it is seen what is held when more than an epoch is planned."""
    rows = rows_of(stretch.facts.node.parent)
    wanted = MOST_ROUNDS * stretch.long.rows
    count = min(wanted, max(1, _MOST_RECORDS // rows))
    if count <= stretch.stop:
        return stretch, looks
    stretch = stretch_of(stretch.facts, count)
    found = []
    for look in looks:
        uses = Uses.of(look.room.part, stretch.asked[id(look.room.source)])
        forecast = part_forecast(uses, look.room, stretch.short, stretch.long)
        found.append(PartLook(look.room, uses, forecast))
    return stretch, found


@dataclasses.dataclass(frozen=True, slots=True)
class _Bytes:
    """Bytes of an element of a chain with random access.

    Args:
        read: Bytes of its records.
        begun: Those of them that are read when its round is begun.
        made: What becomes of it at the top of the chain; None where that is not known.
    """

    read: Amount
    begun: Amount
    made: Amount | None

    @classmethod
    def of(cls, node: Node, stretch: Stretch, rows: int) -> _Bytes:
        """Of a stream, of which the loop gets so many `rows` in an element."""
        read = begun = _NOTHING
        planned = {id(room.source) for room in stretch.facts.rooms}
        for source in demand.all_sources(stretch.facts.node):
            asked, size = stretch.asked.get(id(source)), record_bytes(source)
            if asked is not None and size is not None:
                own = size.times(stretch.records_each(source))
                read += own
                begun += _NOTHING if id(source) in planned else own
        made = element_bytes(node)
        return cls(read, begun, None if made is None else made.times(1 / rows))

    @property
    def bounds(self) -> list[RowBytes]:
        """The least and the most of them."""
        made = _NOTHING if self.made is None else self.made
        low = RowBytes(self.read.low, self.begun.low, made.low)
        high = RowBytes(self.read.high, self.begun.high, made.high)
        return [low] if low == high else [low, high]


def _span(numbers: Iterable[float]) -> Amount:
    found = list(map(float, numbers))
    return Amount(min(found), max(found))


# --- round by round ------------------------------------------------------------------------------


def _plans(stretch: Stretch, looks: list[PartLook], each: _Bytes) -> list[RoundPlan]:
    """Rounds as they may be; one plan where they are the same however long they take."""
    facts, most = stretch.facts, stretch.long.rows
    counted = max(1, stretch.stop - stretch.since)
    decoded = sum(look.forecast.reads.high * look.room.piece_bytes for look in looks) / counted
    slow = int(SLOW_ROUND_BYTES / max(1.0, decoded, each.read.high))
    # The rounds of slow functions are as short as they can be, and those of slow pieces.
    is_slow = calls(facts.node) or any(_is_slow(look.room.part) for look in looks)
    least = facts.unit if is_slow else min(most, slow)
    count = stretch.count
    if demand.repeats_for_ever(facts.node.parent):
        count = max(count, MOST_ROUNDS * most)
    if count == stretch.stop and least >= most:
        return [stretch.long]
    plans = []
    for rows in sorted({max(facts.unit, least), most}):
        stop = max(stretch.stop, min(count, MOST_ROUNDS * rows))
        plans.append(_plan(stretch, stop, rows))
    return plans


def _is_slow(part: Part) -> bool:
    """Whether a piece takes milliseconds however small it is, as with zarr-python."""
    match part:
        case ArrayPart() | BoxPart():
            return isinstance(part.reader, PythonReader | PythonBoxReader)
        case _:
            return False


def _plan(stretch: Stretch, stop: int, rows: int) -> RoundPlan:
    facts = stretch.facts
    return round_plan(
        stop,
        unit=facts.unit,
        most_rows=rows,
        full=horizon_elements(facts, stretch.planned_bytes, stretch.index_bytes),
        at_once=rounds_at_once(facts.rooms),
        is_ahead=facts.options.ahead,
    )


def _holdings(
    stretch: Stretch, looks: list[PartLook], plan: RoundPlan, *, spills: bool
) -> Holdings:
    """What is held while each of the first rounds is given out.

    With `spills` the records of all planned rounds are there where slots are taken from pieces.
    """
    rounds = min(len(plan.ends), MOST_ROUNDS)
    pieces, planned = np.zeros(rounds), np.zeros(rounds)
    reads = np.zeros(rounds, np.int64)
    by_source: dict[int, float] = {}
    later = np.arange(1, rounds + 1)
    elements = plan.ends[:rounds] - plan.bounds[later]
    for look in looks:
        room, own = look.room, _held(look, stretch, plan, rounds)
        pieces += own.slots * room.piece_bytes
        if spills or not look.forecast.is_saturated:
            planned += own.records * room.record_bytes
        reads = np.maximum(reads, own.reads)
        most = float(own.slots.max(initial=0)) * room.piece_bytes
        by_source[id(room.source)] = by_source.get(id(room.source), 0.0) + most
        fragments = float(look.uses.records.sum()) * room.index_bytes / max(1, stretch.stop)
        tickets = plan.bounds.searchsorted(plan.ends[:rounds]) - later
        planned += elements * fragments + tickets * TICKET_BYTES
    return Holdings(plan, pieces, planned, reads, by_source, bool(looks))


def _held(look: PartLook, stretch: Stretch, plan: RoundPlan, rounds: int) -> Held:
    """What a part holds, over as many rounds."""
    room, elements = look.room, stretch.asked[id(look.room.source)].elements
    if look.forecast.is_saturated:
        ahead = plan.ends[:rounds] - plan.bounds[1 : rounds + 1]
        each = stretch.records_each(room.source)
        return Held(
            slots=np.full(rounds, room.slots),
            records=np.ceil(ahead * each).astype(np.int64),
            reads=np.full(rounds, room.most_in_flight),
        )
    goes_on = int(plan.bounds[-1]) > stretch.stop
    own_plan = _plan(stretch, stretch.stop, plan.rows) if goes_on else plan
    own = held(look.uses, room, own_plan, elements, goes_on=goes_on)
    if len(own.slots) >= rounds:
        return Held(own.slots[:rounds], own.records[:rounds], own.reads[:rounds])
    # What follows is like what was looked at.
    more = rounds - len(own.slots)
    return Held(*(np.append(x, np.full(more, x.max(initial=0))) for x in _arrays(own)))


def _arrays(own: Held) -> tuple[IntArray, IntArray, IntArray]:
    return own.slots, own.records, own.reads


# --- where rounds do not simply come in turn -----------------------------------------------------


def _queue(node: Node, facts: StreamFacts) -> Amount:
    """Bytes of the elements that are ready, with no room for more."""
    options = facts.options
    size, count = element_bytes(node), demand.elements(node, once=False)
    most = min(options.prefetch_buffer_size, count.high)
    if size is None:
        return Amount(0, options.prefetch_bytes)
    if size.high >= options.prefetch_bytes:  # one is taken in any case
        return Amount(min(size.low, count.low * size.low), size.high)
    high = min(options.prefetch_bytes, most * size.high)
    return Amount(min(high, min(most, count.low) * size.low), high)


def _rounds(stretch: Stretch, plan: RoundPlan, each: _Bytes) -> Amount:
    """Bytes of the round that is made, of what is begun for the next, and of the loop's block."""
    facts = stretch.facts
    rows = int(np.diff(plan.bounds).max(initial=0))
    known = each.made is not None
    made = each.made if each.made is not None else each.read.times(MADE)
    most = max(each.read.high, made.high)
    most_bytes = max(facts.goal_bytes, facts.unit * most)
    high = min(rows * most, most_bytes) if known else most_bytes
    times = 1 if not facts.options.ahead else 2 if facts.rooms else 3
    return Amount(0, times * high)


def _windows(node: Node) -> Amount:
    """Bytes of windows that come together: one with the loop, one that waits, one in the queue."""
    found = _NOTHING
    if isinstance(node, StreamWindowShuffleNode):
        size, count = element_bytes(node.parent), demand.elements(node.parent, once=False)
        if size is not None:
            found = Amount(0, 3 * min(node.window_size, count.high) * size.high)
    return sum(map(_windows, node.parents), start=found)


def _workers(stretch: Stretch, plan: RoundPlan, each: _Bytes) -> Amount:
    """Bytes of the rounds that are under way to worker processes."""
    workers = stretch.facts.workers
    if workers is None:
        return _NOTHING
    most = workers.options.num_workers * (1 + workers.options.per_worker_buffer_size)
    made = each.read if each.made is None else each.made
    rows = int(np.diff(plan.bounds).max(initial=0))
    size_bytes = max(stretch.facts.goal_bytes, stretch.facts.unit * made.high)
    high = (
        size_bytes if each.made is None else min(size_bytes, rows * max(made.high, each.read.high))
    )
    return Amount(0, most * high)
