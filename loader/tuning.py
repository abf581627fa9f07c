"""`windrow.tune`: how many workers a chain should have, found by running it.

Invariant: what is measured is what `mp_prefetch` would run; only its first elements are read.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from windrow.core.machine import usable_cores
from windrow.core.text import with_article
from windrow.errors import ArgumentError, PlanError
from windrow.iter_dataset import IterDataset
from windrow.map_dataset import MapDataset

# The smallest number of workers with this share of the best rate is chosen.
_ENOUGH: Final = 0.9
# The part of the time of each number in which threads and sizes of work items settle.
_SETTLES: Final = 0.25


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Tuning:
    """How many workers a chain should have: `dataset.mp_prefetch(tuning.workers)`.

    Args:
        workers: The number, 0 for none.
        rates: Elements per second, by the number of workers that were tried.
        reason: Why this number.
    """

    workers: int
    rates: Mapping[int, float]
    reason: str

    def __repr__(self) -> str:
        lines = [
            f"  {_named(workers)}: {rate:,.1f} elements/s" for workers, rate in self.rates.items()
        ]
        return "\n".join([f"mp_prefetch({self.workers}): {self.reason}", *lines])


class Measured(NamedTuple):
    """Elements of a chain that came in some seconds; or all but the first, where it `is_over` by then."""

    elements: int
    seconds: float
    is_over: bool


def tune(dataset: Any, seconds: float = 10.0) -> Tuning:
    """Find how many workers a chain should have, by running it for a while with some numbers of them.

    The numbers are 0, 1, 2, 4 and so on, up to one for each core that this process may use. Each gets the
    same part of the time; the start of the workers comes on top. The smallest number that is nearly
    as fast as the best one is chosen. On a machine that is busy with other work the result says little,
    and of data that ends before the time does, threads and workers may not have settled: the reason then
    says to give `dataset.repeat()`.

    `mp_prefetch("auto")` chooses while it runs, and needs no `tune`.

    Args:
        dataset: A `MapDataset` or an `IterDataset` without `mp_prefetch`. Its functions are called.
        seconds: How long to measure.

    Raises:
        ArgumentError: If an argument is of another kind, or `seconds` is not above 0.
        PlanError: If the chain has an `mp_prefetch`.

    Example:
        >>> import windrow
        >>> dataset = windrow.MapDataset.range(1000).map(abs)
        >>> found = windrow.tune(dataset, seconds=0.5)
        >>> found.workers
        0
        >>> sum(dataset.mp_prefetch(found.workers))
        499500
    """
    if not isinstance(dataset, (MapDataset, IterDataset)):
        raise ArgumentError(
            f"tune: needs a MapDataset or an IterDataset, got {with_article(type(dataset).__name__)}"
        )
    is_number = isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds < math.inf:
        raise ArgumentError(f"tune: seconds must be a number above 0, got {seconds!r}")
    if any(node.workers is not None for node in dataset._node.walk()):
        raise PlanError("tune: the chain has an mp_prefetch; give the dataset before it")
    cores = usable_cores()
    return tuned(lambda workers, limit_s: measured(dataset, workers, limit_s), cores, seconds)


def tuned(measure: Callable[[int, float], Measured], cores: int, seconds: float) -> Tuning:
    """The best number of workers, where `measure` runs a chain with a number for some seconds."""
    tried = [0]
    if cores > 1:
        tried += sorted({cores, *(2**power for power in range(cores.bit_length()))})
    each_s = seconds / len(tried)
    rates, ended = dict[int, float](), list[int]()
    for workers in tried:
        found = measure(workers, each_s)
        rates[workers] = found.elements / max(found.seconds, 1e-9)
        if not workers and found.is_over:
            few = f"all elements came within {each_s:.1f} s; for many epochs tune dataset.repeat()"
            return Tuning(0, rates, few)
        if found.is_over:
            ended.append(workers)
    if len(tried) == 1:
        return Tuning(0, rates, "this process may use one core")
    best = max(rates.values())
    chosen = min(workers for workers, rate in rates.items() if rate >= _ENOUGH * best)
    times = rates[chosen] / max(rates[0], 1e-9)
    reason = f"{times:.1f} times as fast as without workers"
    if not chosen:
        reason = "workers bring no more than a tenth"
    if ended:
        reason += f"; the data ended early with {_named(ended[0])}, so tune dataset.repeat()"
    return Tuning(chosen, rates, reason)


def measured(dataset: Any, workers: int, limit_s: float) -> Measured:
    """What comes of a chain in `limit_s` seconds after its first element."""
    with iter(dataset.mp_prefetch(workers)) as elements:
        if next(elements, elements) is elements:
            return Measured(0, 0.0, is_over=True)
        began_s = since_s = time.perf_counter()
        count = total = 0
        settled = False
        for _ in elements:
            count, total = count + 1, total + 1
            now_s = time.perf_counter()
            if not settled and now_s - began_s > _SETTLES * limit_s:
                settled, since_s, count = True, now_s, 0
            elif now_s - began_s >= limit_s:
                return Measured(count, now_s - since_s, is_over=False)
        # What came after it had settled may be very few elements.
        return Measured(total, time.perf_counter() - began_s, is_over=True)


def _named(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers or 'no'} workers"
