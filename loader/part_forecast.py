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

import numpy as np
import numpy.typing as npt

from windrow.asked import Asked
from windrow.budget import Room
from windrow.costs import Amount
from windrow.round_plan import RoundPlan
from windrow.sources import ArrayPart, BoxPart, Part

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# The share of what is planned by which pieces are read ahead of their rounds at most; found by
# experiment, see tests/test_forecast.py.
_LEAD = 0.06
_BURST_LEAD = 0.9
# How much longer than on average pieces stay on the shelf.
_LONGER = 2.0


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Uses:
    """Which element wants which piece, sorted by piece, then element; each pair once.

    Args:
        pieces: int64 `(k,)`.
        elements: int64 `(k,)`.
        records: Records that want each piece, int64 `(pieces,)`.
        in_order: Whether all of each piece is wanted, in its order and once, bool `(pieces,)`.
        has_runs: Whether rows mostly follow the one before them.
    """

    pieces: IntArray
    elements: IntArray
    records: IntArray
    in_order: BoolArray
    has_runs: bool

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
        in_order, has_runs = np.zeros(len(firsts), np.bool_), False
        if isinstance(part, ArrayPart) and part.size is None and len(firsts):
            rows = part.first_rows(asked.records[records])
            steps = np.diff(rows, prepend=0) == 1
            steps[firsts] = True
            whole = counts * part.row_bytes == part.decoded_bytes(pieces[firsts])
            in_order = np.logical_and.reduceat(steps, firsts) & whole
            has_runs = bool(2 * steps.sum() > len(steps))
        new = other | (np.diff(elements, prepend=-1) != 0)
        return cls(pieces[new], elements[new], counts, in_order, has_runs)

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

    def rounds(self, plan: RoundPlan) -> int:
        """How many pieces the rounds of a plan want, those of each counted."""
        number = plan.round_of[self.elements]
        new = (np.diff(self.pieces, prepend=-1) != 0) | (np.diff(number, prepend=-1) != 0)
        return int(new.sum())


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
    uses: Uses, room: Room, short: RoundPlan, long: RoundPlan, since: int = 0
) -> PartForecast:
    """How often pieces are read through a look-ahead.

    Args:
        uses: Which elements want which pieces, from the first element on.
        room: What there is room for.
        short: The plan of rounds that take long, so that less is planned ahead.
        long: The plan of rounds that are as long as their bytes allow.
        since: The first element whose reads are counted.
    """
    breaks = breaks_of(uses, short, half=isinstance(room.part, BoxPart))
    held = _held(uses, breaks)
    once = int((uses.elements[uses.firsts] >= since).sum())
    if room.fits:
        again = _given_up(uses, breaks, room)
        return PartForecast(Amount(once, once + again), again > 0, held, is_saturated=False)
    if held + room.most_in_flight <= room.slots:
        most = once + _count_after(uses, breaks, since)
        fewest = once + _count_after(uses, breaks_of(uses, long, half=False), since)
        again = len(breaks) > 0
        return PartForecast(Amount(fewest, most), again, held, is_saturated=False)
    # Where pieces come in bursts, reads are spread over all the time from burst to burst.
    lead = _LEAD if uses.are_spread else _BURST_LEAD
    most = _served(uses, short.ends_when_read(uses.elements, lead), since)
    wanted = uses.rounds(short) if not since else most
    most = max(once, min(most, wanted))
    served = long.ends_at(uses.elements)
    span = max(1, int(long.bounds[-1]) - since)
    on_shelf = _LONGER * room.slots * span / max(1, _served(uses, served, since))
    # What is planned is counted in whole rounds.
    fewest = _served(uses, served + math.ceil(on_shelf) + long.rows, since)
    reads = Amount(min(max(once, fewest), most), most)
    return PartForecast(reads, most > once, held, is_saturated=True)


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


def _held(uses: Uses, breaks: IntArray) -> int:
    """Pieces that are held at a time at most."""
    starts = np.zeros(len(uses.pieces), np.bool_)
    starts[uses.firsts] = True
    starts[breaks + 1] = True
    stops = np.append(starts[1:], True)
    begin, end = np.sort(uses.elements[starts]), np.sort(uses.elements[stops])
    # Pieces that are done with at an element make room for those that come after it.
    there = np.arange(1, len(begin) + 1) - end.searchsorted(begin, side="left")
    return int(there.max(initial=0))


def _given_up(uses: Uses, breaks: IntArray, room: Room) -> int:
    """Pieces of a store that fits which may be read a second time."""
    if not len(breaks):
        return 0
    if room.keeps:
        # What is read whole for one round goes straight there, and is not kept.
        return len(breaks) if uses.has_runs else 0
    # From when the first one comes back, pieces are kept.
    back = int(uses.elements[breaks + 1].min())
    return int((uses.elements[breaks] <= back).sum())


def _served(uses: Uses, until: IntArray, since: int) -> int:
    """Reads, where a read for use `k` serves those of its piece before element `until[k]`."""
    width = int(uses.elements[-1:].max(initial=0)) + int(until.max(initial=0)) + 2
    keys = uses.pieces * width + uses.elements
    after = keys.searchsorted(uses.pieces * width + np.maximum(until, uses.elements + 1))
    at = uses.firsts
    ends = np.append(at[1:], len(keys))
    reads = 0
    while len(at):
        reads += int((uses.elements[at] >= since).sum())
        at = after[at]
        left = at < ends
        at, ends = at[left], ends[left]
    return reads
