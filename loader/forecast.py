"""Forecasts: what reading a chain comes to, worked out from orders and layouts.

Which records the elements of an epoch ask for follows from the order, and which pieces these lie in
from the layout. Of a long epoch a stretch is worked out, and the rest is taken to be like it.

Invariant: no record is read, and no function of the user's is called but selection maps.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow import demand
from windrow.budget import bytes_per_record
from windrow.costs import Amount, SourceCosts
from windrow.demand import Taken
from windrow.part_forecast import PartForecast, Uses, part_forecast
from windrow.record_sizes import record_bytes
from windrow.sources import ForeignDataSource, LaidOutSource, ListPart, Part
from windrow.stream_facts import StreamFacts, stream_facts
from windrow.stretches import Stretch, stretch_of
from windrow.transforms.nodes import Node
from windrow.whole_sources import gone_through, pieces_of_all

IntArray = npt.NDArray[np.int64]

_NOTHING: Final = Amount.exactly(0)
# Pieces that the rest is judged by.
_SOME: Final = 1 << 10
# How far the reads of a stretch may be from those of others, in standard deviations.
_DEVIATIONS: Final = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Forecast:
    """What a stream comes to: see `windrow.Explanation`."""

    elements: Amount
    is_endless: bool
    epoch: tuple[SourceCosts, ...]
    later_epoch: tuple[SourceCosts, ...]
    buffers_by: Mapping[str, Amount]
    unknown: tuple[str, ...] = ()


def forecast(node: Node) -> Forecast:
    """What an epoch of the stream of `node` comes to."""
    sources = demand.all_sources(node)
    facts = stream_facts(node)
    costs = {id(source): _no_costs(source) for source in sources}
    for taken in demand.taken(node):
        for source, found in _of_taken(taken, facts[id(taken.node)]):
            costs[id(source)] = _added(costs[id(source)], found)
    epoch = tuple(costs[id(source)] for source in sources)
    kinds = ("pieces", "planned", "rounds", "queue")
    return Forecast(
        elements=demand.elements(node),
        is_endless=demand.is_endless(node),
        epoch=epoch,
        later_epoch=epoch,
        buffers_by=dict.fromkeys(kinds, _NOTHING),
    )


def _of_taken(taken: Taken, facts: StreamFacts) -> list[tuple[Any, SourceCosts]]:
    chain = taken.node.parent
    found: list[tuple[Any, SourceCosts]] = []
    if taken.passes:
        stretch = stretch_of(facts, demand.pass_length(chain))
        costs = _of_stretch(stretch)
        found += [(source, own.times(taken.passes)) for source, own in costs]
    if taken.elements.high:
        found += _of_cut(taken, facts)
    return found


def _of_cut(taken: Taken, facts: StreamFacts) -> list[tuple[Any, SourceCosts]]:
    """What a pass comes to that ends before the chain does, and is read ahead of its end."""
    chain = taken.node.parent
    least, most = int(taken.elements.low), int(taken.elements.high)
    if demand.repeats_for_ever(chain):
        return _of_stretch(stretch_of(facts, most))
    low = {id(source): own for source, own in _of_stretch(stretch_of(facts, least))}
    ahead = min(chain.length, most + 3 * facts.most_rows + facts.unit)
    high = _of_stretch(stretch_of(facts, ahead))
    return [(source, _between(low.get(id(source), _no_costs(source)), own)) for source, own in high]


# --- sources -------------------------------------------------------------------------------------


def _of_stretch(stretch: Stretch) -> list[tuple[Any, SourceCosts]]:
    chain = stretch.facts.node.parent
    return [(source, _of_source(source, stretch)) for source in demand.all_sources(chain)]


def _of_source(source: Any, stretch: Stretch) -> SourceCosts:
    asked = stretch.asked.get(id(source))
    nothing = _no_costs(source)
    if asked is None or not len(asked.records):
        return nothing
    counted = int((asked.elements >= stretch.since).sum())
    records = Amount.exactly(round(counted * stretch.factor))
    if isinstance(source, LaidOutSource):
        costs = dataclasses.replace(nothing, records=records)
        for part in source.parts:
            costs = _added(costs, _of_part(source, part, stretch, records))
        return costs
    size = record_bytes(source)
    delivered = _NOTHING if size is None else size.times(records.low)
    return dataclasses.replace(
        nothing,
        records=records,
        reads=records if isinstance(source, ForeignDataSource) else _NOTHING,
        decoded_bytes=delivered,
        delivered_bytes=delivered,
    )


def _of_part(source: Any, part: Part, stretch: Stretch, records: Amount) -> SourceCosts:
    asked = stretch.asked[id(source)]
    needs = part.needs(asked.records)
    uses = Uses.of(needs.pieces, asked.elements[needs.records])
    delivered = Amount.exactly(bytes_per_record(part, len(source)) * records.low)
    costs = dataclasses.replace(_no_costs(source), delivered_bytes=delivered)
    room = stretch.facts.room_of(source, part.name)
    numbers, pieces = _pieces(source, part, uses, stretch)
    costs = dataclasses.replace(costs, pieces=pieces)
    if room is None and part.alone:
        return _alone(costs, part, needs.pieces, records)
    few, many = (uses.rounds(plan) for plan in (stretch.long, stretch.short))
    if room is None:
        reads = Amount(few, many).times(stretch.count / max(1, stretch.stop))
        return _sized(costs, part, numbers, reads)
    found = part_forecast(uses, room, stretch.short, stretch.long, stretch.since)
    reads = _reads(found, pieces, uses, stretch)
    share = stretch.count / max(1, stretch.stop)
    hits = Amount(max(0, few * share - reads.high), max(0, many * share - reads.low))
    return _sized(dataclasses.replace(costs, hits=hits), part, numbers, reads)


def _pieces(source: Any, part: Part, uses: Uses, stretch: Stretch) -> tuple[IntArray, Amount]:
    """Pieces that stand for those of an epoch, and how many there are."""
    numbers = uses.distinct
    if stretch.is_whole:
        return numbers, Amount.exactly(len(numbers))
    if id(source) in gone_through(stretch.facts.node.parent):
        found = pieces_of_all(source, part)
        if found is not None:
            return found, Amount.exactly(len(found))
    new = int((uses.elements[uses.firsts] >= stretch.since).sum()) * stretch.factor
    most = min(part.piece_count, round(new * 1.02) + 2 * len(numbers))
    return numbers, Amount(len(numbers), max(most, len(numbers)))


def _reads(found: PartForecast, pieces: Amount, uses: Uses, stretch: Stretch) -> Amount:
    """Reads of all elements, from those of a stretch."""
    if stretch.is_whole:
        return found.reads
    room_for_all = found.reads.low == found.reads.high and not found.is_saturated
    if room_for_all and not found.again:
        # In order, or in blocks: the pieces of other elements are other pieces.
        new = found.reads.low * stretch.factor
        if new <= 1.05 * pieces.high + 2 * stretch.factor:
            return pieces
    counted = found.reads.times(stretch.factor)
    noise = 1 + _DEVIATIONS / math.sqrt(max(1.0, found.reads.low))
    longest = float((stretch.long.ends - stretch.long.bounds[:-1]).max())
    if 4 * longest > stretch.stop:
        # A stretch is too short to tell how often pieces come back that are kept for longer.
        shortest = float((stretch.short.ends - stretch.short.bounds[:-1]).max())
        again = math.ceil(stretch.count / max(1.0, shortest))
        return Amount(pieces.low, max(counted.high * noise, min(again, 2) * pieces.high))
    return Amount(max(pieces.low, counted.low / noise), max(pieces.high, counted.high * noise))


def _alone(costs: SourceCosts, part: Part, pieces: IntArray, records: Amount) -> SourceCosts:
    """Records of a part that are read one by one, each with its share of its piece."""
    costs = dataclasses.replace(costs, reads=records)
    if isinstance(part, ListPart):  # each is a piece
        return _sized(costs, part, pieces, records)
    decoded = costs.delivered_bytes
    some = pieces[:_SOME]
    ratio = part.stored_bytes(some).sum() / max(1, part.decoded_bytes(some).sum())
    return dataclasses.replace(
        costs, decoded_bytes=decoded, stored_bytes=decoded.times(float(ratio))
    )


def _sized(costs: SourceCosts, part: Part, pieces: IntArray, reads: Amount) -> SourceCosts:
    """The bytes of so many reads of pieces."""
    found = []
    for sizes in (part.stored_bytes(pieces), part.decoded_bytes(pieces)):
        whole, largest = int(sizes.sum()), int(sizes.max(initial=0))
        if reads.is_exact and reads.low == len(pieces):
            found.append(Amount.exactly(whole))
            continue
        # The last piece of an array is smaller than others.
        mean = whole / max(1, len(pieces))
        low = max(0.0, reads.low * mean - largest)
        found.append(Amount(math.floor(low), math.ceil(reads.high * mean + largest)))
    return dataclasses.replace(costs, reads=reads, stored_bytes=found[0], decoded_bytes=found[1])


# --- sums ----------------------------------------------------------------------------------------


def _no_costs(source: Any) -> SourceCosts:
    nothing = _NOTHING
    stored = nothing if isinstance(source, LaidOutSource) else None
    return SourceCosts(repr(source), nothing, nothing, nothing, stored, nothing, nothing, nothing)


def _combined(one: SourceCosts, other: SourceCosts, how: Any) -> SourceCosts:
    numbers: dict[str, Any] = {}
    for field in dataclasses.fields(one):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, Amount) and isinstance(theirs, Amount):
            numbers[field.name] = how(mine, theirs)
    return dataclasses.replace(one, **numbers)


def _added(one: SourceCosts, other: SourceCosts) -> SourceCosts:
    return _combined(one, other, lambda mine, theirs: mine + theirs)


def _between(one: SourceCosts, other: SourceCosts) -> SourceCosts:
    return _combined(one, other, lambda mine, theirs: Amount(mine.low, theirs.high))
