"""How many worker processes to use, decided from who waited for whom.

Functions are called in this process (0 workers, on threads where that is faster) or in workers. A
decision follows from a sample of the work, and another number is tried only where the sample shows
that it may help: it is kept if more elements come with it, and given up if not.

Invariant: nothing is measured or started here. The same samples give the same decisions.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from typing import Final

# Shares of the time: of a loop that is slower than its loader, of waiting for workers that is worth
# another one, and of functions that are worth a worker.
_SLOWER: Final = 0.1
_WAITS: Final = 0.1
_SMALL: Final = 0.15
# An element takes longer to send to a worker and back.
_CHEAP_S: Final = 5e-6
# Shares of its time that a worker, and the cores of this process, are busy if they are used well.
_FULL, _BUSY = 0.8, 0.85
# Workers that are busy for less than this share are waited for because elements travel.
_WORKS: Final = 0.5
# How much faster more workers must be to be kept, and how fast fewer must be.
_GAIN: Final = 1.1
_LOSS: Final = 0.95
# More workers that are slower than this are not tried again as soon.
_CLEAR: Final = 0.9
# Seconds until the next trial after one that failed, four times as many each time; and until this
# process is tried again in place of workers, twice as many each time.
_REST_S, _CLEAR_REST_S, _MOST_REST_S = 4.0, 16.0, 64.0
_AGAIN_S, _MOST_AGAIN_S = 30.0, 960.0


@dataclasses.dataclass(frozen=True, slots=True)
class WorkSample:
    """What happened while some number of workers called the functions.

    Args:
        workers: Their number; 0 for this process.
        rows: Rows that were made.
        passed_s: Seconds that passed.
        ahead_s: The seconds of these in which enough elements were ready: the loop is slower.
        waited_s: The seconds of these in which this process sent work to workers and waited for it.
        worked_s: Seconds in which functions were called, the sum over all workers.
        cores: Cores that this process kept busy.
    """

    workers: int
    rows: int
    passed_s: float
    ahead_s: float = 0.0
    waited_s: float = 0.0
    worked_s: float = 0.0
    cores: float = 0.0

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows / max(self.passed_s, 1e-9)

    @property
    def is_ahead(self) -> bool:
        """Whether the loop is slower."""
        return self.ahead_s > _SLOWER * self.passed_s

    @property
    def function_share(self) -> float:
        """The share of the time of making elements in which functions were called here."""
        return min(1.0, self.worked_s / max(self.passed_s - self.ahead_s, 1e-9))

    @property
    def busy(self) -> float:
        """How many workers would have been busy all the time."""
        return self.worked_s / max(self.passed_s, 1e-9)


class WorkerChoice:
    """Chooses the number of workers.

    Args:
        fewest: The fewest, and the number at first; 0 if functions may be called in this process.
        cores: Cores that this process and its workers may keep busy. With one core, workers are not worth it.

    Attributes:
        workers: The number to use now.
        is_trial: Whether that is a trial, so that the workers of before should stay.
        reason: Why, as text.
    """

    def __init__(self, fewest: int, cores: int) -> None:
        self.fewest, self._cores = fewest, cores
        self.most = max(fewest, cores if cores > 1 else 0)
        self.workers, self.is_trial = fewest, False
        self.reason = "nothing is measured yet"
        self._before: WorkSample | None = None  # what a trial is compared with
        self._rest_s, self._next_rest_s = 0.0, _REST_S
        self._again_s = self._next_again_s = _AGAIN_S

    def saw(self, sample: WorkSample, room: int = sys.maxsize) -> None:
        """Learn from the work that `workers` workers did.

        Args:
            sample: The work.
            room: Workers for which there is memory, those that run included.
        """
        most = max(self.fewest, min(self.most, room))
        self._rest_s = max(0.0, self._rest_s - sample.passed_s)
        self._again_s -= sample.passed_s
        if sample.workers > most:
            self._keep(most, "there is no memory for more")
        elif self._before is not None:
            self._judge(self._before, sample)
        else:
            self._consider(sample, most)

    def at_most(self, workers: int, why: str) -> None:
        """Use this number of workers, and never more from now on."""
        self.most = workers
        self._keep(workers, why)

    def only_here(self, why: str) -> None:
        """Call functions in this process from now on."""
        self.most = 0
        self._keep(0, why)

    def _keep(self, workers: int, why: str) -> None:
        self.workers, self.reason = workers, why
        self.is_trial, self._before = False, None

    def _judge(self, before: WorkSample, trial: WorkSample) -> None:
        """Keep the number that was tried, or the one before it."""
        times = trial.rate / max(before.rate, 1e-9)
        found = f"{_named(trial.workers)} made {times:.2f} times the elements of {_named(before.workers)}"
        if trial.workers > before.workers:
            is_better = times >= _GAIN
        else:
            is_better = times >= _LOSS or trial.is_ahead
        if is_better:
            self._rest_s, self._next_rest_s = 0.0, _REST_S
            self._again_s = self._next_again_s = _AGAIN_S
            self._keep(trial.workers, found)
            return
        if trial.workers > before.workers and times < _CLEAR:
            self._next_rest_s = max(self._next_rest_s, _CLEAR_REST_S)
        if trial.workers == 0:
            self._next_again_s = min(2 * self._next_again_s, _MOST_AGAIN_S)
            self._again_s = self._next_again_s
        self._rest_s = self._next_rest_s
        self._next_rest_s = min(4 * self._next_rest_s, _MOST_REST_S)
        self._keep(before.workers, found)

    def _consider(self, sample: WorkSample, most: int) -> None:
        """Try another number if the sample shows that it may be better."""
        if sample.workers:
            wanted, why = self._beside(sample, most)
        else:
            wanted, why = self._alone(sample, most)
        if wanted == sample.workers:
            # What was found by a trial stays the reason while only the next trial is due.
            self.reason = why or self.reason
        elif self._rest_s <= 0 or not wanted:
            self._before, self.workers, self.is_trial, self.reason = sample, wanted, True, why

    def _alone(self, sample: WorkSample, most: int) -> tuple[int, str]:
        """The number to use after a sample of this process, and why."""
        if not self.most:
            return 0, self.reason if self._cores > 1 else "this process may use one core"
        if not most:
            return 0, "there is no memory for a worker"
        if sample.is_ahead:
            return 0, "the loop is slower than the functions"
        row_s, share = sample.worked_s / max(1, sample.rows), sample.function_share
        if row_s < _CHEAP_S:
            return 0, f"functions take {row_s * 1e6:.1f} us for an element, less than sending it"
        if share < _SMALL:
            return 0, f"functions take {share:.0%} of the time, reading and gathering the rest"
        if sample.cores > _BUSY * self._cores:
            return 0, f"this process keeps {sample.cores:.1f} of {self._cores} cores busy by itself"
        # As many as make elements as quickly as this process reads and sends them. On its threads functions may
        # keep more than a core busy.
        busy = max(share, sample.cores - (1 - share))
        wanted = math.ceil(busy / max(1 - share, 1e-9)) if share < 1 else most
        return min(wanted, most), f"functions take {share:.0%} of the time of this process"

    def _beside(self, sample: WorkSample, most: int) -> tuple[int, str]:
        """The number to use after a sample of workers, and why."""
        workers = sample.workers
        if not self.fewest and self._again_s <= 0:
            return 0, "this process is tried again"
        needed = max(1, self.fewest, math.ceil(sample.busy / _FULL))
        waits = sample.waited_s > _WAITS * sample.passed_s and not sample.is_ahead
        if waits and sample.busy > _WORKS * workers:
            if workers < most:
                return min(2 * workers, most), f"the loop waits for {_named(workers)}"
            return workers, ""
        if needed < workers:
            return (
                needed,
                f"{_named(workers)} were busy for {sample.busy / workers:.0%} of the time",
            )
        if sample.is_ahead:
            return workers, f"the loop is slower than {_named(workers)}"
        return workers, ""


def _named(workers: int) -> str:
    if not workers:
        return "this process"
    return f"{workers} worker{'s' if workers > 1 else ''}"
