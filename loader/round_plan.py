"""Round plans: how far ahead of each element a stream is planned.

A stream is made in rounds: short ones at first, then as long as the budget of a round and 0.1 s
allow. While a round is made, later ones are planned, until their records come to as many bytes as
the horizon has room for. How long a round takes is not known beforehand, so there are two plans:
one of rounds that are as long as their bytes allow, one of rounds that take long.

Invariant: the plan of long rounds is never ahead of what happens by less than the other one.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from windrow.rounds import MOST_ROUNDS, PARTS_AT_ONCE

IntArray = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
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

    def end_at(self, elements: IntArray) -> IntArray:
        """Up to where all is planned while each of some elements is made."""
        found: IntArray = self.ends[self.bounds.searchsorted(elements, side="right") - 1]
        return found

    def begun_at(self, elements: IntArray, lead: float) -> IntArray:
        """The element that is made when the pieces of another one are read, at the earliest.

        They are read no more than the share `lead` of what is planned before their round.
        """
        starts = self.bounds[:-1]
        reached = starts + lead * (self.ends - starts)
        # What is planned grows with every round: so does how far it reaches.
        rounds = np.maximum.accumulate(reached).searchsorted(elements, side="left")
        found: IntArray = np.minimum(starts[np.minimum(rounds, len(starts) - 1)], elements)
        return found


def round_plan(
    first: int, stop: int, *, unit: int, most_rows: int, full: float, parts: int
) -> RoundPlan:
    """The rounds of elements `[first, stop)`.

    Args:
        first: The first element; where it is not 0, the stream is past its start.
        stop: The end.
        unit: Elements of the first round; every round is a multiple of it.
        most_rows: Elements of a round at most.
        full: Elements that the horizon has room for.
        parts: Parts that are read through the look-ahead.
    """
    step = max(1, PARTS_AT_ONCE // max(1, parts))
    most_rows = max(unit, most_rows // unit * unit)
    rows = most_rows if first else unit
    made = MOST_ROUNDS if first else 0
    bounds, ends = [first], []
    while True:
        begun = len(ends)
        at = bounds[begun]
        most = min(MOST_ROUNDS, 1 + step * (1 + made))
        while bounds[-1] < stop and len(bounds) - 1 - begun < (2 if bounds[-1] - at >= full else most):
            bounds.append(min(stop, bounds[-1] + rows))
        ends.append(bounds[-1])
        if bounds[-1] == stop:
            break
        settled = rows == most_rows and (bounds[-1] - at >= full or most == MOST_ROUNDS)
        if settled and bounds[begun + 1] - at == rows:
            break
        rows = min(most_rows, 4 * rows)
        made += 1
    return _continued(np.array(bounds), np.array(ends), stop, rows)


def _continued(bounds: IntArray, ends: IntArray, stop: int, rows: int) -> RoundPlan:
    """The plan up to the end, from where all rounds are alike."""
    more = np.arange(bounds[-1] + rows, stop, rows) if bounds[-1] < stop else bounds[:0]
    if bounds[-1] < stop:
        bounds = np.concatenate([bounds, more, [stop]])
    made = len(ends) - 1
    ahead = int(bounds.searchsorted(ends[-1])) - made  # rounds
    later = np.minimum(np.arange(made + 1, len(bounds) - 1) + ahead, len(bounds) - 1)
    return RoundPlan(bounds, np.concatenate([ends, bounds[later]]), rows)
