"""Forecast of one part: how often its pieces are read, from the elements that want them.

A piece is read when its first use is near, and then serves all uses that are planned by then. On
the shelf it goes on serving, use by use, as long as the next one is planned before the last one is
made. Where more pieces are wanted at a time than have slots, each read serves what was planned when
the slot was taken, and little more. How far ahead is planned is between two plans; so the number of
reads is between two numbers, which are the same where every piece is read once.

Invariant: `reads.low` is never less than the pieces that are wanted.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

import numpy as np
import numpy.typing as npt

from windrow.asked import Asked
from windrow.budget import Room
from windrow.costs import Amount
from windrow.round_plan import RoundPlan
from windrow.sources import ArrayPart, BoxPart, Part, is_far

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# The share of what is planned by which pieces are read ahead of their rounds at most; found by
# experiment, see tests/test_forecast.py.
_LEAD = 0.06
_BURST_LEAD = 0.9
# The share of what is planned by which they are read ahead of what is made, see
# `PartAhead._share_of`.
_EARLIEST = 0.25
# What a slow machine decodes in a second, on one thread; what it takes to read a piece at all; and
# for how long others have its cores while a round is made.
SLOW_BYTES_PER_S: Final = 100e6
_SLOW_READ_S: Final = 0.0005
_STOPPED_S: Final = 0.025
# What a round takes at most, see `rounds`.
ROUND_S: Final = 0.1
# Rounds that are followed one by one.
_MOST_ROUNDS: Final = 1 << 12
# How much longer than on average pieces stay on the shelf; and the share of the reads that comes of
# it to which chance may bring them: slots are taken from pieces that happen to have come. Of 800 runs
# of one shuffle nine had fewer reads than without it, by 1% at most.
_LONGER = 2.0
_BY_CHANCE = 0.99


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Uses:
    """Which element wants which piece, sorted by piece, then element; each pair once.

    Args:
        pieces: int64 `(k,)`.
        elements: int64 `(k,)`.
        records: Records that want each piece, int64 `(pieces,)`.
        in_order: Whether all of each piece is wanted, in its order and once, bool `(pieces,)`.
        runs: The number of the run of rows, each behind the one before it, that a use begins in,
            int64 `(k,)`.
        is_whole: Whether that run has all rows of its piece, bool `(k,)`.
    """

    pieces: IntArray
    elements: IntArray
    records: IntArray
    in_order: BoolArray
    runs: IntArray
    is_whole: BoolArray

    @classmethod
    def of(cls, part: Part, asked: Asked) -> Uses:
        """What some elements want of a part."""
        needs = part.needs(asked.records)
        order = np.argsort(needs.pieces, kind="stable")
        pieces, records = needs.pieces[order], needs.records[order]
        elements = asked.elements[records]
        other = np.diff(pieces, prepend=-1) != 0
        firsts = np.flatnonzero(other)
        counts = np.diff(np.append(firsts, len(pieces)))
        in_order = np.zeros(len(firsts), np.bool_)
        runs, is_whole = np.arange(len(pieces)), np.zeros(len(pieces), np.bool_)
        if isinstance(part, ArrayPart) and part.size is None and len(firsts):
            rows = part.first_rows(asked.records[records])
            steps = np.diff(rows, prepend=0) == 1
            steps[firsts] = False
            runs = np.cumsum(~steps) - 1
            whole_rows = part.decoded_bytes(pieces) // max(1, part.row_bytes)
            is_whole = np.bincount(runs)[runs] == whole_rows
            in_order = is_whole[firsts] & (counts == whole_rows[firsts])
        new = other | (np.diff(elements, prepend=-1) != 0)
        return cls(pieces[new], elements[new], counts, in_order, runs[new], is_whole[new])

    @property
    def firsts(self) -> IntArray:
        """Where the uses of each piece begin."""
        return np.flatnonzero(np.diff(self.pieces, prepend=-1))

    @property
    def distinct(self) -> IntArray:
        """The pieces."""
        return self.pieces[self.firsts]

    @property
    def are_spread(self) -> bool:
        """Whether most pieces are wanted from one end of the elements to the other."""
        firsts = self.firsts
        lasts = np.append(firsts[1:], len(self.pieces)) - 1
        spans = self.elements[lasts] - self.elements[firsts]
        return bool(2 * np.median(spans) > self.elements.max(initial=0))

    def rounds(self, plan: RoundPlan, since: int = 0) -> int:
        """How many pieces the rounds of a plan want from an element on, those of each counted."""
        number = plan.round_of[self.elements]
        new = (np.diff(self.pieces, prepend=-1) != 0) | (np.diff(number, prepend=-1) != 0)
        return int((new & (self.elements >= since)).sum())


@dataclasses.dataclass(frozen=True, slots=True)
class PartForecast:
    """What reading a part comes to.

    Args:
        reads: Pieces read, at the elements that are counted.
        again: Whether a piece may be read more than once.
        held: Pieces that are wanted at a time at most, from the first to the last of their uses.
        is_saturated: Whether slots are taken from pieces that planned rounds want.
    """

    reads: Amount
    again: bool
    held: int
    is_saturated: bool


def part_forecast(
    uses: Uses,
    room: Room,
    short: RoundPlan,
    long: RoundPlan,
    since: int = 0,
    *,
    is_read_soon: bool = False,
) -> PartForecast:
    """How often pieces are read through a look-ahead.

    Args:
        uses: Which elements want which pieces, from the first element on.
        room: What there is room for.
        short: The plan of rounds that take long, so that less is planned ahead.
        long: The plan of rounds that are as long as their bytes allow.
        since: The first element whose reads are counted.
        is_read_soon: Whether what later rounds want is read before a round has let go of its
            pieces, as where workers make it.
    """
    is_box = isinstance(room.part, BoxPart)
    breaks = breaks_of(uses, short, half=is_box)
    held = _held(uses, breaks)
    once = int((uses.elements[uses.firsts] >= since).sum())
    given_up = np.union1d(breaks, _left_behind(uses, room, short))
    if room.fits:
        again = _given_up(uses, given_up, room)
        return PartForecast(Amount(once, once + again), again > 0, held, is_saturated=False)
    crowd = max(_crowd(uses, breaks, plan, is_read_soon=is_read_soon) for plan in (short, long))
    if min(held + room.most_in_flight, crowd) <= room.slots:
        most = once + _count_after(uses, given_up, since)
        sure = breaks_of(uses, long, half=False)
        if not is_box:
            in_use = min(crowd, held + room.most_in_flight, room.slots)
            sure = _gone_for_sure(uses, sure, long, in_use)
        fewest = once + _count_after(uses, sure, since)
        return PartForecast(Amount(fewest, most), most > once, held, is_saturated=False)
    planned = int((long.ends - long.bounds[:-1]).max(initial=0))
    if long.rows == short.rows and planned <= 2 * long.rows and not is_box:
        reads = _uncached(uses, room, long, since)
        return PartForecast(reads, True, held, is_saturated=True)
    # Where pieces come in bursts, reads are spread over all the time from burst to burst.
    lead = _LEAD if uses.are_spread else _BURST_LEAD
    most = _served(uses, short.ends_when_read(uses.elements, lead), since)
    wanted = uses.rounds(short) if not since else most
    most = max(once, min(most, wanted))
    served = long.ends_at(uses.elements)
    span = max(1, int(long.bounds[-1]) - since)
    on_shelf = _LONGER * room.slots * span / max(1, _served(uses, served, since))
    # What is planned is counted in whole rounds.
    fewest = math.ceil(_BY_CHANCE * _served(uses, served + math.ceil(on_shelf) + long.rows, since))
    reads = Amount(min(max(once, fewest), most), most)
    return PartForecast(reads, most > once, held, is_saturated=True)


def slow_reads(uses: Uses, part: Part, stop: int, *, unit: int, rows: int, parts: int) -> float:
    """Reads of a part without a look-ahead, by rounds on a slow machine.

    A round reads each piece that it wants, and has as many elements as take 0.1 s: see
    `rounds.BlockSize`.

    Args:
        uses: Which elements want which pieces.
        part: The part.
        stop: The end of the elements.
        unit: Elements that a round has at least; every round is a multiple of it.
        rows: Elements that a round has at most.
        parts: Parts that are read one after the other.
    """
    order = np.argsort(uses.elements, kind="stable")
    elements = uses.elements[order]
    before = np.where(np.diff(uses.pieces, prepend=-1), -1, np.roll(uses.elements, 1))[order]
    decoded_bytes = part.decoded_bytes(uses.distinct)
    each_s = parts * (_SLOW_READ_S + float(decoded_bytes.mean()) / SLOW_BYTES_PER_S)
    at = reads = rounds = 0
    length = unit
    while rounds < _MOST_ROUNDS:
        end = min(stop, at + length)
        first, last = elements.searchsorted([at, end])
        found = int((before[first:last] < at).sum())
        reads, at, rounds = reads + found, end, rounds + 1
        if at == stop:
            break
        wanted = min(ROUND_S / (_STOPPED_S + found * each_s), 4) * length
        length = max(1, int(min(wanted, rows)) // unit) * unit
    # One more for each round, as bounds that lie badly part a piece.
    return (reads + rounds) * stop / at


def _count_after(uses: Uses, breaks: IntArray, since: int) -> int:
    """Breaks whose next use is counted."""
    return int((uses.elements[breaks + 1] >= since).sum())


def breaks_of(uses: Uses, plan: RoundPlan, *, half: bool) -> IntArray:
    """The numbers of the uses of a piece after which it is given up, since no other one is planned by then.

    Of boxes those that are planned last must be further than half of what is planned: what is not
    is copied where it is decoded.
    """
    end = plan.ends_at(uses.elements)
    if half:
        end = uses.elements + (end - uses.elements) // 2
    same = uses.pieces[1:] == uses.pieces[:-1]
    return np.flatnonzero(same & (uses.elements[1:] >= end[:-1]))


def _left_behind(uses: Uses, room: Room, plan: RoundPlan) -> IntArray:
    """The numbers of the uses after which a piece may be gone, since it was read straight there.

    That is decided when it is read: it is not known for what is planned later.
    """
    if not uses.is_whole.any():
        return np.empty(0, np.int64)
    same = (uses.pieces[1:] == uses.pieces[:-1]) & (uses.runs[1:] != uses.runs[:-1])
    at = np.flatnonzero(same & uses.is_whole[:-1])
    # Read at the end of the first round from which the pace reaches so far.
    starts, ends = plan.bounds[:-1], plan.ends
    pieces_each = len(uses.firsts) / max(1, len(plan.round_of))
    if is_far(room.source):
        lead = np.full(len(starts), room.most_in_flight / pieces_each)
    else:
        lead = np.minimum(room.most_in_flight / 2 / pieces_each, _EARLIEST * (ends - starts))
    reach = np.maximum.accumulate(starts + np.maximum(lead, np.diff(plan.bounds)))
    begun = np.minimum(reach.searchsorted(uses.elements[at]), plan.round_of[uses.elements[at]])
    left: IntArray = at[uses.elements[at + 1] >= ends[begun]]
    return left


def _spans(uses: Uses, breaks: IntArray) -> tuple[IntArray, IntArray]:
    """The uses from which, and to which, pieces are wanted without a break."""
    starts = np.zeros(len(uses.pieces), np.bool_)
    starts[uses.firsts] = True
    starts[breaks + 1] = True
    return np.flatnonzero(starts), np.flatnonzero(np.append(starts[1:], True))


def _crowd(uses: Uses, breaks: IntArray, plan: RoundPlan, *, is_read_soon: bool) -> int:
    """Pieces that are read, or to be read, and wanted at a time at most.

    What a round wants is read before it is made; what those behind it want is when it has let go of
    its pieces.
    """
    if not len(plan.ends):
        return 0
    first, last = _spans(uses, breaks)
    begin, end = np.sort(uses.elements[first]), np.sort(uses.elements[last])
    starts, stops = plan.bounds[:-1], plan.bounds[1:]
    here = begin.searchsorted(stops) - end.searchsorted(starts)
    left = starts if is_read_soon else stops
    ahead = begin.searchsorted(plan.ends) - end.searchsorted(left)
    return int(max(here.max(), ahead.max()))


def _gone_for_sure(uses: Uses, breaks: IntArray, plan: RoundPlan, slots: int) -> IntArray:
    """Those of the breaks by whose end a piece is off the shelf.

    What nobody wants stays there until its slot is taken, the one that was let go first before
    others: at the latest when as many pieces were read to slots as are in use.
    """
    if not len(breaks):
        return breaks
    first, last = _spans(uses, breaks)
    round_of = plan.round_of
    straight = uses.is_whole[first] & (uses.runs[first] == uses.runs[last])
    straight &= round_of[uses.elements[first]] == round_of[uses.elements[last]]
    begin = np.sort(uses.elements[first[~straight]])
    # Planned again just before the first round whose plan reaches that far.
    again = plan.ends.searchsorted(uses.elements[breaks + 1], side="right")
    done = uses.elements[breaks]
    read_until = done + np.maximum((plan.ends_at(done) - done) * _EARLIEST, plan.rows)
    between = begin.searchsorted(plan.bounds[again]) - begin.searchsorted(read_until)
    had_slot = np.zeros(len(uses.pieces), np.bool_)
    had_slot[last[~straight]] = True
    gone: IntArray = breaks[~had_slot[breaks] | (between >= slots)]
    return gone


def _held(uses: Uses, breaks: IntArray) -> int:
    """Pieces that are held at a time at most."""
    first, last = _spans(uses, breaks)
    begin, end = np.sort(uses.elements[first]), np.sort(uses.elements[last])
    # Pieces that are done with at an element make room for those that come after it.
    there = np.arange(1, len(begin) + 1) - end.searchsorted(begin, side="left")
    return int(there.max(initial=0))


def _given_up(uses: Uses, breaks: IntArray, room: Room) -> int:
    """Pieces of a store that fits which may be read a second time."""
    if not len(breaks):
        return 0
    if room.keeps:
        # What is read whole for one round goes straight there, and is not kept.
        return int(uses.is_whole[breaks].sum())
    # From when the first one comes back, pieces are kept.
    back = int(uses.elements[breaks + 1].min())
    return int((uses.elements[breaks] <= back).sum())


def _uncached(uses: Uses, room: Room, plan: RoundPlan, since: int) -> Amount:
    """Reads where there is no room to plan more than two rounds.

    A piece that is read for a round serves the next one too. When that one is planned as well, the
    reads which it waits for have begun, as many as there may be at a time: what they took no slot
    from may serve a third. In rounds of several elements more of them have begun, one after the
    other, and serve their own round only.
    """
    reads = _served_at(uses, plan.ends_at(uses.elements), len(plan.round_of))
    rounds = np.add.reduceat(reads, plan.bounds[:-1])
    left = np.maximum(0, room.slots - np.minimum(rounds, room.most_in_flight))
    saved = np.minimum(rounds[2:], left[1:-1])
    counted = int(reads[since:].sum())
    fewest = counted - int(saved[max(0, int(plan.bounds.searchsorted(since)) - 2) :].sum())
    once = int((uses.elements[uses.firsts] >= since).sum())
    if plan.rows > 1:
        most = max(counted, uses.rounds(plan, since))
    else:  # what is read straight to its round, and wanted by the next one, is read again
        same = (uses.pieces[1:] == uses.pieces[:-1]) & (uses.runs[1:] != uses.runs[:-1])
        soon = uses.elements[1:] < plan.ends_at(uses.elements[:-1])
        most = counted + int((same & soon & uses.is_whole[:-1]).sum())
    return Amount(max(fewest, once), max(most, once))


def _served(uses: Uses, until: IntArray, since: int) -> int:
    """Reads, where a read for use `k` serves those of its piece before element `until[k]`."""
    return int(_served_at(uses, until, 1 + int(uses.elements.max(initial=0)))[since:].sum())


def _served_at(uses: Uses, until: IntArray, stop: int) -> IntArray:
    """The same for each element before `stop`, int64 `(stop,)`."""
    width = int(uses.elements[-1:].max(initial=0)) + int(until.max(initial=0)) + 2
    keys = uses.pieces * width + uses.elements
    after = keys.searchsorted(uses.pieces * width + np.maximum(until, uses.elements + 1))
    at = uses.firsts
    ends = np.append(at[1:], len(keys))
    found = [uses.elements[:0]]
    while len(at):
        found.append(uses.elements[at])
        at = after[at]
        left = at < ends
        at, ends = at[left], ends[left]
    reads: IntArray = np.bincount(np.concatenate(found), minlength=stop)
    return reads
