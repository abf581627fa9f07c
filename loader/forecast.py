"""Forecasts: what reading a chain comes to, worked out from orders and layouts.

Which records the elements of an epoch ask for follows from the order, and which pieces these lie in
from the layout. Of a long epoch a stretch is worked out, and the rest is taken to be like it.

Invariant: no record is read, and no function of the user's is called but selection maps.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow import demand
from windrow.asked import Asked, rows_of
from windrow.budget import bytes_per_record
from windrow.buffers import Buffers, PartLook, buffers_of
from windrow.costs import Amount, SourceCosts
from windrow.demand import Taken
from windrow.part_forecast import Uses, part_forecast, slow_reads
from windrow.record_sizes import record_bytes
from windrow.round_plan import even_rounds
from windrow.sources import ArrayPart, ForeignDataSource, LaidOutSource, Part
from windrow.stream_facts import StreamFacts, stream_facts
from windrow.stretches import MOST_RECORDS, Stretch, stretch_of
from windrow.transforms.nodes import Node
from windrow.whole_sources import gone_through, pieces_of_all

IntArray = npt.NDArray[np.int64]

_NOTHING: Final = Amount.exactly(0)
# The share of the reads of the longest rounds that others may come to.
_LUCK: Final = 0.9
# How far the reads of a stretch may be from those of others, in standard deviations.
_DEVIATIONS: Final = 4

_Found: TypeAlias = list[tuple[Any, SourceCosts]]


@dataclasses.dataclass(frozen=True, slots=True)
class Forecast:
    """What a stream comes to: see `windrow.Explanation`; and what was worked out for it."""

    elements: Amount
    is_endless: bool
    epoch: tuple[SourceCosts, ...]
    later_epoch: tuple[SourceCosts, ...]
    buffers: Buffers
    streams: tuple[tuple[Stretch, list[PartLook]], ...]


def forecast(node: Node) -> Forecast:
    """What an epoch of the stream of `node` comes to."""
    work = _Work(node)
    sources = demand.all_sources(node)
    costs = {id(source): _no_costs(source) for source in sources}
    later = dict(costs)
    for taken in demand.taken(node):
        epoch = work.of_taken(taken)
        for sums, each in ((costs, epoch), (later, work.of_later(taken, epoch))):
            for source, found in each:
                sums[id(source)] = _beside(sums[id(source)], found)
    return Forecast(
        elements=demand.elements(node),
        is_endless=demand.is_endless(node),
        epoch=tuple(costs[id(source)] for source in sources),
        later_epoch=tuple(later[id(source)] for source in sources),
        buffers=buffers_of(node, work.streams.values()),
        streams=tuple(work.streams.values()),
    )


class _Work:
    """Works out the streams of a chain."""

    def __init__(self, node: Node) -> None:
        self._facts = stream_facts(node)
        self._is_endless = demand.is_endless(node)
        # Of each stream the longest stretch, which holds the most.
        self.streams: dict[int, tuple[Stretch, list[PartLook]]] = {}

    def of_taken(self, taken: Taken) -> _Found:
        """What an epoch comes to."""
        facts, chain = self._facts[id(taken.node)], taken.node.parent
        one_pass = demand.pass_length(chain)
        if taken.is_whole or taken.elements == Amount.exactly(one_pass):
            found = self._of_elements(facts, one_pass)
        else:
            found = self._of_cut(facts, taken)
        return [(source, _passes(own, taken)) for source, own in found]

    def of_later(self, taken: Taken, epoch: _Found) -> _Found:
        """What each later epoch comes to, given the first."""
        facts, chain = self._facts[id(taken.node)], taken.node.parent
        if not (self._is_endless and demand.repeats_for_ever(chain)):
            return epoch
        count = int(taken.elements.high)
        if 2 * count * rows_of(chain) <= MOST_RECORDS:
            return [
                (source, _by_chance(own))
                for source, own in self._of_elements(facts, count, again=True)
            ]
        if any(look.room.fits for look in self.streams[id(taken.node)][1]):
            # Maybe all of it is kept.
            return [(source, _between(_no_costs(source), own)) for source, own in epoch]
        return epoch

    def _of_cut(self, facts: StreamFacts, taken: Taken) -> _Found:
        """What a pass comes to that ends before the chain does, and is read ahead of its end."""
        least, most = int(taken.elements.low), int(taken.elements.high)
        low = {id(source): own for source, own in self._of_elements(facts, least)}
        whole = stretch_of(facts, demand.pass_length(taken.node.parent))
        planned = int((whole.long.ends - whole.long.bounds[:-1]).max(initial=0))
        ahead = most + planned + 2 * whole.long.rows
        endless = demand.repeats_for_ever(taken.node.parent)
        high = self._of_elements(facts, ahead if endless else min(whole.count, ahead))
        return [
            (source, _between(low.get(id(source), _no_costs(source)), own)) for source, own in high
        ]

    def _of_elements(self, facts: StreamFacts, count: int, *, again: bool = False) -> _Found:
        stretch = stretch_of(facts, count, again=again)
        looks: list[PartLook] = []
        sources = demand.all_sources(facts.node)
        found = [(source, _of_source(source, stretch, looks)) for source in sources]
        known = self.streams.get(id(facts.node))
        if known is None or known[0].stop < stretch.stop:
            self.streams[id(facts.node)] = stretch, looks
        return found


# --- sources -------------------------------------------------------------------------------------


def _of_source(source: Any, stretch: Stretch, looks: list[PartLook]) -> SourceCosts:
    asked = stretch.asked.get(id(source))
    nothing = _no_costs(source)
    if asked is None or not len(asked.records):
        return nothing
    records = _records(source, asked, stretch)
    size, is_foreign = record_bytes(source), isinstance(source, ForeignDataSource)
    delivered = None if size is None else _product(size, records)
    if isinstance(source, LaidOutSource):
        costs = dataclasses.replace(nothing, records=records, delivered_bytes=delivered)
        for part in source.parts:
            costs = _added(costs, _of_part(source, part, stretch, records, looks))
        return costs
    return dataclasses.replace(
        nothing,
        records=records,
        reads=records if is_foreign else _NOTHING,
        decoded_bytes=delivered if is_foreign else _NOTHING,
        delivered_bytes=delivered,
    )


def _records(source: Any, asked: Asked, stretch: Stretch) -> Amount:
    """Records of a source that all elements ask for."""
    counted = int((asked.elements >= stretch.since).sum()) * stretch.factor
    if stretch.is_whole:
        return Amount.exactly(round(counted))
    times = round(counted / len(source))
    if id(source) in gone_through(stretch.facts.node.parent) and times:
        return Amount.exactly(times * len(source))
    # The last batch may be shorter, and a mixture of a stretch is not quite that of the rest.
    rounding = counted / 1000 + rows_of(stretch.facts.node.parent)
    return Amount(max(0, math.floor(counted - rounding)), math.ceil(counted + rounding))


def _product(one: Amount, other: Amount) -> Amount:
    return Amount(one.low * other.low, one.high * other.high)


def _of_part(
    source: Any, part: Part, stretch: Stretch, records: Amount, looks: list[PartLook]
) -> SourceCosts:
    asked = stretch.asked[id(source)]
    uses = Uses.of(part, asked)
    costs = _no_costs(source)
    room = stretch.facts.room_of(source, part.name)
    numbers, pieces = _pieces(source, part, uses, stretch)
    costs = dataclasses.replace(costs, pieces=pieces)
    if room is None and part.alone:
        return _alone(costs, source, part, asked, records)
    if room is None:
        return _sized(costs, part, numbers, _unplanned(part, uses, pieces, stretch))
    few, many = uses.rounds(stretch.long), len(uses.elements)
    found = part_forecast(uses, room, stretch.short, stretch.long, stretch.since)
    looks.append(PartLook(room, uses, found))
    reads = _reads(looks[-1], pieces, stretch)
    share = stretch.count / max(1, stretch.stop)
    # After a quick round the next may be a little longer than its bytes allow.
    fewest = few if stretch.long.rows <= stretch.facts.unit else _LUCK * few
    hits = Amount(max(0, fewest * share - reads.high), max(0, many * share - reads.low))
    if stretch.share < 1:
        hits = Amount(0, _most_wanted(part, pieces, stretch) - pieces.low)
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


def _most_wanted(part: Part, pieces: Amount, stretch: Stretch) -> float:
    """Pieces that huge elements want, where a round has one at least and reads a piece once."""
    return max(pieces.high, float(stretch.count * part.piece_count))


def _unplanned(part: Part, uses: Uses, pieces: Amount, stretch: Stretch) -> Amount:
    """Reads of a part that is read round by round, by the rounds themselves."""
    facts, long = stretch.facts, stretch.long
    if stretch.share < 1:
        return Amount(pieces.low, _most_wanted(part, pieces, stretch))
    few = uses.rounds(long)
    share = stretch.count / max(1, stretch.stop)
    if long.rows <= facts.unit:
        most: float = few
    elif facts.calls:  # as long as it may take, a round is not shorter
        most = uses.rounds(even_rounds(stretch.stop, facts.unit))
    else:
        parts = sum(
            not p.alone for s in stretch.sources if isinstance(s, LaidOutSource) for p in s.parts
        )
        most = slow_reads(uses, part, stretch.stop, unit=facts.unit, rows=long.rows, parts=parts)
    # Where rounds may be shorter, their bounds may also happen to lie better.
    fewest = few if long.rows <= facts.unit else _LUCK * few
    once = len(uses.distinct)
    found = Amount(max(once, math.floor(fewest)), max(most, few)).times(share)
    if stretch.is_whole:
        return found
    return Amount(max(pieces.low, math.floor(found.low)), max(pieces.high, math.ceil(found.high)))


def _reads(look: PartLook, pieces: Amount, stretch: Stretch) -> Amount:
    """Reads of all elements, from those of a stretch."""
    found, room = look.forecast, look.room
    if stretch.is_whole:
        return found.reads
    if stretch.share < 1:
        most = pieces.high if room.fits else _most_wanted(room.part, pieces, stretch)
        return Amount(pieces.low, most)
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
        fewest = 0.0
        if look.uses.are_spread and found.is_saturated:
            # Each read serves what is planned, and what comes while the piece is on the shelf.
            on_shelf = 2 * room.slots / max(1.0, pieces.low)
            fewest = (
                0.9 * pieces.low * stretch.count / (longest * (1 + on_shelf) + stretch.long.rows)
            )
        # A stretch is too short to tell how often pieces come back that are kept for longer.
        shortest = float((stretch.short.ends - stretch.short.bounds[:-1]).max())
        again = math.ceil(stretch.count / max(1.0, shortest))
        most = max(counted.high * noise, min(again, 2) * pieces.high)
        return Amount(min(max(pieces.low, fewest), most), most)
    return Amount(max(pieces.low, counted.low / noise), max(pieces.high, counted.high * noise))


def _alone(
    costs: SourceCosts, source: Any, part: Part, asked: Asked, records: Amount
) -> SourceCosts:
    """Records of a part that are read one by one, each with its share of its piece."""
    costs = dataclasses.replace(costs, reads=records)
    pieces = part.needs(asked.records).pieces
    times = records.times(1 / max(1, len(asked.records)))
    stored = times.times(float(part.stored_bytes(pieces).sum()))
    whole = times.times(float(part.decoded_bytes(pieces).sum()))
    if not isinstance(part, ArrayPart):  # each record is a piece
        return dataclasses.replace(costs, stored_bytes=stored, decoded_bytes=whole)
    decoded = records.times(bytes_per_record(part, len(source)))
    stored = stored.times(min(1.0, decoded.high / max(1.0, whole.high)))
    rounding = 1 + stored.high / 1000
    return dataclasses.replace(
        costs,
        stored_bytes=Amount(math.floor(stored.low - rounding), math.ceil(stored.high + rounding)),
        decoded_bytes=decoded,
    )


def _sized(costs: SourceCosts, part: Part, pieces: IntArray, reads: Amount) -> SourceCosts:
    """The bytes of so many reads of pieces."""
    found = []
    decoded_bytes = part.decoded_bytes(pieces)
    for sizes in (part.stored_bytes(pieces), decoded_bytes):
        whole, largest = int(sizes.sum()), int(sizes.max(initial=0))
        if reads.is_exact and reads.low == len(pieces):
            found.append(Amount.exactly(whole))
            continue
        # The last piece of an array is smaller. It is read as often as others, or by its records.
        each = whole / max(1, len(pieces))
        by_records = float(sizes @ decoded_bytes) / max(1, int(decoded_bytes.sum()))
        low = max(0.0, reads.low * min(each, by_records) - largest)
        high = reads.high * max(each, by_records) + largest
        found.append(Amount(math.floor(low), math.ceil(high)))
    return dataclasses.replace(costs, reads=reads, stored_bytes=found[0], decoded_bytes=found[1])


# --- sums ----------------------------------------------------------------------------------------


def _no_costs(source: Any) -> SourceCosts:
    nothing = _NOTHING
    is_foreign = isinstance(source, ForeignDataSource)
    size = None if record_bytes(source) is None else nothing
    return SourceCosts(
        source=repr(source),
        records=nothing,
        pieces=nothing,
        reads=nothing,
        stored_bytes=None if is_foreign else nothing,
        decoded_bytes=size if is_foreign else nothing,
        delivered_bytes=size,
        hits=nothing,
    )


def _combined(one: SourceCosts, other: SourceCosts, how: Any) -> SourceCosts:
    numbers: dict[str, Any] = {}
    for field in dataclasses.fields(one):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, Amount) and isinstance(theirs, Amount):
            numbers[field.name] = how(mine, theirs)
    return dataclasses.replace(one, **numbers)


def _added(one: SourceCosts, other: SourceCosts) -> SourceCosts:
    return _combined(one, other, lambda mine, theirs: mine + theirs)


def _beside(one: SourceCosts, other: SourceCosts) -> SourceCosts:
    """The costs of two streams, which may read the same pieces."""
    mine, theirs = one.pieces, other.pieces
    pieces = Amount(max(mine.low, theirs.low), mine.high + theirs.high)
    return dataclasses.replace(_added(one, other), pieces=pieces)


def _passes(one: SourceCosts, taken: Taken) -> SourceCosts:
    """The costs of several passes, which read the same pieces."""
    every = dataclasses.replace(one.times(taken.times), pieces=one.pieces)
    if not taken.ends_early:
        return every
    return _between(_combined(one, one, lambda *_: _NOTHING), every)


def _by_chance(one: SourceCosts) -> SourceCosts:
    """The costs of any later epoch, from those of one.

    Where some pieces are still there from the epoch before, how many is by chance of the two orders.
    """
    reads, left = one.reads, one.pieces.low - one.reads.high
    if not reads.low or left <= 0:
        return one
    chance = 3 * math.sqrt(left)
    wider = Amount(
        max(0, math.floor(reads.low - chance)),
        min(math.ceil(reads.high + chance), one.pieces.high),
    )
    low, high = wider.low / reads.low, wider.high / reads.high
    stored, decoded = one.stored_bytes, one.decoded_bytes
    return dataclasses.replace(
        one,
        reads=wider,
        stored_bytes=stored and Amount(stored.low * low, stored.high * high),
        decoded_bytes=decoded and Amount(decoded.low * low, decoded.high * high),
        hits=Amount(max(0, one.hits.low - chance), one.hits.high + chance),
    )


def _between(one: SourceCosts, other: SourceCosts) -> SourceCosts:
    return _combined(one, other, lambda mine, theirs: Amount(mine.low, theirs.high))
