"""Decide how many worker processes a chain has, from one sample of its work.

This process reads and gathers elements in any case. Functions are called here (0 workers, on threads
where that is faster), or in workers, to which this process then sends the elements.

Invariant: nothing is measured or started here. The same sample gives the same number.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Final, NamedTuple

# Seconds that sending an element to a worker and back takes this process, at least.
_SEND_S: Final = 5e-6
# How many times as fast workers must be by the estimate to be worth their memory and their start.
_GAIN: Final = 1.25
# The share of its time for which a worker should be busy, so that it is rarely waited for.
_BUSY: Final = 0.8


@dataclasses.dataclass(frozen=True, slots=True)
class WorkSample:
    """Work that was measured while the loop waited for elements.

    Args:
        rows: Elements that were made.
        passed_s: Seconds that passed.
        functions_s: Seconds in which functions were called, here or in a worker.
        own_s: The seconds of `passed_s` in which this process neither called functions nor waited for
            a worker: it read, gathered and sent elements.
        computed_s: Seconds that all threads of this process computed; 0 if a worker called functions.
    """

    rows: int = 0
    passed_s: float = 0.0
    functions_s: float = 0.0
    own_s: float = 0.0
    computed_s: float = 0.0

    def plus(self, more: WorkSample) -> WorkSample:
        """Return the sum of both."""
        return WorkSample(
            self.rows + more.rows,
            self.passed_s + more.passed_s,
            self.functions_s + more.functions_s,
            self.own_s + more.own_s,
            self.computed_s + more.computed_s,
        )


class WorkerChoice(NamedTuple):
    """A number of workers, 0 for none, and why."""

    workers: int
    reason: str


def choose_workers(sample: WorkSample, *, cores: int, room: int, fewest: int = 0) -> WorkerChoice:
    """Choose how many workers keep up with what this process reads and sends.

    Args:
        sample: The work of `fewest` workers, or of this process if that is 0.
        cores: Cores that this process and its workers may keep busy: no more workers than that.
        room: Workers for which there is memory.
        fewest: 0 if functions may be called in this process, else 1.
    """
    most = min(cores, room)
    if most <= fewest:
        return WorkerChoice(fewest, "there is no memory for more workers")
    own_s = sample.own_s + sample.rows * _SEND_S
    # Functions on several threads keep more than one core busy.
    work_s = max(sample.functions_s, sample.computed_s - sample.own_s)
    least_s = max(own_s, work_s / most, (own_s + work_s) / cores, 1e-9)
    gain = sample.passed_s / least_s
    share = sample.functions_s / max(sample.passed_s, 1e-9)
    row_us = 1e6 * sample.functions_s / max(sample.rows, 1)
    reason = (
        f"functions take {share:.0%} of the time, {row_us:,.1f} us for an element;"
        f" {'more ' if fewest else ''}workers make it at most {gain:.1f} times as fast"
    )
    if gain < _GAIN:
        return WorkerChoice(fewest, reason)
    return WorkerChoice(max(fewest, min(most, math.ceil(work_s / (_BUSY * least_s)))), reason)
