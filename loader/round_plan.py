"""Round plans: how far ahead of each element a stream is planned.

A stream is made in rounds: short ones at first, then as long as the budget of a round and 0.1 s
allow. While a round is made, later ones are planned, until their records come to as many bytes as
the horizon has room for. How long a round takes is not known beforehand, so there are two plans:
one of rounds that are as long as their bytes allow, one of rounds that take long.

Invariant: the plan of long rounds is never ahead of what happens by less than the other one.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import numpy.typing as npt

from windrow.rounds import MOST_ROUNDS

IntArray = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class RoundPlan:
    """Rounds of a stream: round `m` is the elements `[bounds[m], bounds[m + 1])`.

    Args:
        bounds: int64 `(rounds + 1,)`, from the first element to the one behind the last.
        ends: int64 `(rounds,)`: the element up to which all is planned while a round is made.
        rows: Elements of the longest round.
    """

    bounds: IntArray
    ends: IntArray
    rows: int

    @functools.cached_property
    def round_of(self) -> IntArray:
        """The round of each element."""
        return np.repeat(np.arange(len(self.ends)), np.diff(self.bounds))

    def ends_at(self, elements: IntArray) -> IntArray:
        """Up to where all is planned while each of some elements is made."""
        found: IntArray = self.ends[self.round_of[elements]]
        return found

    def ends_when_read(self, elements: IntArray, lead: float) -> IntArray:
        """The same for when the pieces of each are read at the earliest.

        They are read no more than the share `lead` of what is planned before their round, and a
        round.
        """
        starts = self.bounds[:-1]
        # What is planned grows with every round: so does how far it reaches.
        reached = np.maximum.accumulate(starts + lead * (self.ends - starts))
        rounds = reached.searchsorted(np.arange(len(self.round_of)), side="left")
        begun = np.maximum(np.minimum(rounds, self.round_of) - 1, 0)
        found: IntArray = self.ends[begun[elements]]
        return found


def round_plan(
    stop: int, *, unit: int, most_rows: int, full: float, at_once: int, is_ahead: bool
) -> RoundPlan:
    """The rounds of elements `[0, stop)`.

    Args:
        stop: The end.
        unit: Elements of the first round; every round is a multiple of it.
        most_rows: Elements of a round at most.
        full: Elements that the horizon has room for.
        at_once: As `budget.rounds_at_once`; for 0, no look-ahead, two rounds are planned.
        is_ahead: Whether rounds are planned before they are asked for.
    """
    most_rows = max(unit, most_rows // unit * unit)
    rows = unit
    bounds = [0]
    ends: list[int] = []
    while bounds[-1] < stop:
        made, planned = len(ends), len(bounds)
        at = bounds[made]
        most = min(MOST_ROUNDS, 1 + at_once * (1 + made)) if at_once else 1 + is_ahead
        while bounds[-1] < stop:
            most_now = min(2, most) if bounds[-1] - at >= full else most
            if len(bounds) - 1 - made >= most_now:
                break
            bounds.append(min(stop, bounds[-1] + rows))
        ends.append(bounds[-1])
        settled = rows == most_rows and (
            bounds[-1] - at >= full or most == MOST_ROUNDS or not at_once
        )
        if settled and bounds[made + 1] - at == rows:
            break
        if len(bounds) > planned:  # rounds are at most four times those that were planned before
            rows = min(most_rows, 4 * rows)
    return _continued(np.array(bounds), np.array(ends, np.int64), stop, rows)


def even_rounds(stop: int, rows: int) -> RoundPlan:
    """Rounds of so many elements each, of which none is planned before it is made."""
    bounds = np.append(np.arange(0, stop, rows), stop)
    return RoundPlan(bounds, bounds[1:], rows)


def _continued(bounds: IntArray, ends: IntArray, stop: int, rows: int) -> RoundPlan:
    """The plan up to the end, from where all rounds are alike."""
    if bounds[-1] < stop:
        bounds = np.concatenate([bounds, np.arange(bounds[-1] + rows, stop, rows), [stop]])
    made = len(ends)
    ahead = int(bounds.searchsorted(ends[-1])) - made + 1 if made else 0  # rounds
    later = np.minimum(np.arange(made, len(bounds) - 1) + ahead, len(bounds) - 1)
    return RoundPlan(bounds, np.concatenate([ends, bounds[later]]), rows)
