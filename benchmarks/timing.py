"""One round of a side: what is timed, and the metrics that come out, with units in their names.

Invariant: a round that did not deliver every record is an error, not a figure.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeAlias

Metrics: TypeAlias = dict[str, float]
Round: TypeAlias = Callable[[], Metrics]


class Resumable(Protocol):
    """An iterator with a state, ours or Grain's."""

    def __next__(self) -> Any: ...

    def get_state(self) -> Any: ...

    def set_state(self, state: Any) -> None: ...


def seconds(work: Callable[[], None]) -> float:
    """Seconds that `work` takes."""
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def of_iteration(
    make: Callable[[], Iterable[Any]],
    records: int,
    *,
    batched: bool = True,
    start_at_first: bool = False,
) -> Round:
    """Iterate an epoch from the making of its iterator to its end.

    Args:
        make: Returns what is iterated; called outside the timed part.
        records: Records of the epoch.
        batched: Whether elements are batches.
        start_at_first: Start the clock when the first element has come, and leave it out: the
            start of worker processes is not counted.
    """

    def one_round() -> Metrics:
        iterable = make()
        start_s = time.perf_counter()
        iterator = iter(iterable)
        uncounted = 0
        if start_at_first:
            first = next(iterator)
            uncounted = len(first) if batched else 1
            start_s = time.perf_counter()
        rows = _rows(iterator, batched=batched)
        took_s = time.perf_counter() - start_s
        if uncounted + rows != records:
            raise RuntimeError(f"benchmark: {uncounted + rows} of {records} records came")
        return {"records_per_s": rows / took_s}

    return one_round


def _rows(iterator: Iterator[Any], *, batched: bool) -> int:
    rows = 0
    if batched:
        for batch in iterator:
            rows += len(batch)
    else:
        for _ in iterator:
            rows += 1
    return rows


def of_restoring(make: Callable[[], Any], batches: int, restores: int) -> Round:
    """Save in the middle of an epoch, restore in a new iterator, wait for its first batch."""

    def one_round() -> Metrics:
        iterator: Resumable = make()
        state: Any = None
        saves_s = []
        for _ in range(max(1, batches // 2)):
            next(iterator)
            start_s = time.perf_counter()
            state = iterator.get_state()
            saves_s.append(time.perf_counter() - start_s)
        _close(iterator)
        restored = [_restore(make, state) for _ in range(restores)]
        return {
            "get_state_us": statistics.median(saves_s) * 1e6,
            "set_state_us": statistics.median(set_s for set_s, _ in restored) * 1e6,
            "first_batch_ms": statistics.median(first_s for _, first_s in restored) * 1e3,
            "state_bytes": len(json.dumps(state)),
        }

    return one_round


def _restore(make: Callable[[], Any], state: Any) -> tuple[float, float]:
    """Seconds of `set_state`, and from the making of the iterator to its first batch."""
    start_s = time.perf_counter()
    iterator: Resumable = make()
    made_s = time.perf_counter()
    iterator.set_state(state)
    restored_s = time.perf_counter()
    next(iterator)
    first_s = time.perf_counter() - start_s
    _close(iterator)
    return restored_s - made_s, first_s


def _close(iterator: Any) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
