"""Holdings: how much memory the pieces of a part take, and columns that are there before their round.

Reads are started at an even pace, a little before the rounds that want them. This follows the pace
round by round: what has been started and is still wanted has a slot, or a place in the column of
its round. It is followed until the horizon has been gone through more than once.

Invariant: the pace is that of `PartAhead._share_of`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final

import numpy as np
import numpy.typing as npt

from windrow.budget import Room
from windrow.lookahead import EARLY_BYTES
from windrow.part_forecast import Uses, breaks_of
from windrow.round_plan import RoundPlan
from windrow.sources import BoxPart, is_far

IntArray = npt.NDArray[np.int64]

# Rounds that are followed.
MOST_ROUNDS: Final = 1200


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Held:
    """What a part holds, round by round.

    Args:
        slots: Slots of the shelf that were used by then, int64 `(rounds,)`.
        records: Records of rounds whose column is there before they are made, `(rounds,)`.
        reads: Reads that are started while each round is given out, int64 `(rounds,)`.
    """

    slots: IntArray
    records: IntArray
    reads: IntArray


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Reads:
    """Pieces in the order in which they are read: the rounds that want each first and last."""

    first: IntArray
    last: IntArray
    straight: npt.NDArray[np.bool_]


def held(
    uses: Uses, room: Room, plan: RoundPlan, elements: IntArray, *, goes_on: bool = False
) -> Held:
    """What is held of a part whose pieces have slots as long as they are wanted.

    Args:
        uses: Which elements want which pieces.
        room: What there is room for.
        plan: The rounds.
        elements: The element of each record that is taken of the source, ascending.
        goes_on: Whether more elements follow those of the plan.
    """
    stop = math.inf if goes_on else float(plan.bounds[-1])
    reads = _reads(uses, room, plan)
    pace = _Pace(room, plan, elements, reads, stop)
    rounds = min(len(plan.ends), MOST_ROUNDS)
    found = np.zeros((3, rounds), np.int64)
    for number in range(rounds):
        started = pace.make(number)
        found[:, number] = min(pace.slots, room.slots), pace.records, started
    return Held(*found)


def _reads(uses: Uses, room: Room, plan: RoundPlan) -> _Reads:
    starts = np.zeros(len(uses.pieces), np.bool_)
    starts[uses.firsts] = True
    if not room.fits:
        starts[breaks_of(uses, plan, half=isinstance(room.part, BoxPart)) + 1] = True
    begin = np.flatnonzero(starts)
    first = plan.round_of[uses.elements[begin]]
    last = plan.round_of[uses.elements[np.append(begin[1:], len(starts)) - 1]]
    straight = uses.in_order[np.searchsorted(uses.firsts, begin, side="right") - 1]
    order = np.argsort(first, kind="stable")
    return _Reads(first[order], last[order], (straight & (first == last))[order])


class _Pace:
    """Starts reads round by round, as the look-ahead does."""

    def __init__(
        self, room: Room, plan: RoundPlan, elements: IntArray, reads: _Reads, stop: float
    ) -> None:
        self._room, self._plan, self._reads = room, plan, reads
        self._stop = stop  # behind the last element of all
        # Records of the source before each round, and before the end of what is planned then.
        self._at, self._until = elements.searchsorted(plan.bounds), elements.searchsorted(plan.ends)
        self._far = is_far(room.source)
        rounds = len(plan.ends)
        # Pieces that are due by each round, and rounds up to which all is planned.
        self._due = np.cumsum(np.bincount(reads.first, minlength=rounds))
        self._planned = plan.bounds.searchsorted(plan.ends)
        self._sizes = np.diff(self._at)
        self._started = self._last = 0
        self._credit = 0.0
        self._wanted = 0  # slots of pieces that are wanted
        self._leaving = np.zeros(
            rounds + 1, np.int64
        )  # of these, by the last round that wants them
        self._has_column = np.zeros(rounds, np.bool_)
        self.slots = self.records = 0

    def make(self, number: int) -> int:
        """Start what is started while round `number` is made; how much of it is not waited for.

        What it waits for is started first; the rest when the round has let go of what it wanted.
        """
        entered = int(self._due[self._planned[number] - 1])
        late, share = self._share(number, entered)
        begun = self._started
        self._start(min(late, entered - begun), number)
        records = self._column_records(number)
        self._wanted -= int(self._leaving[number])
        self._leaving[number] = 0
        rest = min(share, entered - begun) - (self._started - begun)
        self._start(rest, number)
        self._last = self._started - begun
        self.records = max(records, self._column_records(number + 1))
        return max(0, rest)

    def _column_records(self, number: int) -> int:
        stop = int(self._planned[min(number, len(self._planned) - 1)])
        there = self._has_column[number:stop]
        return int(self._sizes[number:stop][there].sum())

    def _start(self, count: int, number: int) -> None:
        if count <= 0:
            return
        chosen = slice(self._started, self._started + count)
        first, last = self._reads.first[chosen], self._reads.last[chosen]
        straight = self._goes_straight(chosen, number)
        if self._column_records(number) * self._room.record_bytes > EARLY_BYTES:
            straight[:] = False
        for low, high in zip(first[straight].tolist(), last[straight].tolist(), strict=True):
            self._has_column[max(number, low) : high + 1] = True
        ends = np.maximum(last[~straight], number)
        self._wanted += len(ends)
        np.add.at(self._leaving, ends, 1)
        room, plan = self._room, self._plan
        if room.fits and room.keeps and plan.ends[number] < self._stop:
            self.slots += len(ends)  # those that are not wanted are kept
        self.slots = max(self.slots, self._wanted)
        self._started += count

    def _share(self, number: int, entered: int) -> tuple[int, int]:
        """Reads that a round waits for, and how many are started on the way to the next one."""
        started = self._started
        at, planned = int(self._at[number]), int(self._until[number])
        records = int(self._sizes[number])
        self._credit = max(0.0, self._credit - self._last)
        if entered <= started or not records:
            return 0, 0
        first = int(self._reads.first[started])
        rounds = slice(first, int(self._planned[number]))
        dues, counts = self._at[:-1][rounds], self._due[rounds] - started
        late = max(0, int(self._due[number]) - started)
        per_record = entered / max(1, planned)
        if self._far:
            soon = at + records + self._room.most_in_flight / per_record
            return late, int(counts[dues <= soon].max(initial=0))
        lead = self._room.most_in_flight / 2 / per_record
        lead = max(records, min(lead, (planned - at) / 4))
        left = dues - lead - at + records
        share = float((counts / np.maximum(left, records)).max()) * records
        soon_late = int(counts[left <= records].max(initial=0))
        self._credit = min(self._credit + share, share + 1)
        return late, max(soon_late, int(self._credit))

    def _goes_straight(self, chosen: slice, number: int) -> npt.NDArray[np.bool_]:
        """Whether pieces have no slot: they are read to where their rounds want them."""
        plan, reads = self._plan, self._reads
        if not isinstance(self._room.part, BoxPart):
            return reads.straight[chosen].copy()
        begun, end = int(plan.bounds[number]), int(plan.ends[number])
        if self._room.fits or not number:
            return np.full(len(reads.last[chosen]), end == self._stop)
        return 2 * (plan.bounds[reads.last[chosen]] - begun) <= end - begun
