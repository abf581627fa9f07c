"""Counts and times of the requests of one source.

Invariant: noting a request costs the same however many there were.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Any, Final, TypeAlias

_LAST: Final = 1024
PERCENTILES: Final = (50, 95, 99)
# Requests, those made again, faults by kind, seconds until the last answers began.
_Counted: TypeAlias = tuple[int, int, dict[str, int], list[float]]


class RemoteStats:
    """Counts of network requests. Thread-safe; a pickled copy starts at zero."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = self._retries = self._bytes = 0
        self._cached_bytes: int | None = None
        self._faults: collections.Counter[str] = collections.Counter()
        self._took_s: collections.deque[float] = collections.deque(maxlen=_LAST)
        self._of_core: list[Callable[[], _Counted]] = []

    def __reduce__(self) -> tuple[type[RemoteStats], tuple[()]]:
        return RemoteStats, ()

    def add_core(self, counts: Callable[[], _Counted]) -> None:
        """Add the requests that the native core makes and counts."""
        with self._lock:
            self._of_core.append(counts)

    def request(self, *, again: bool = False) -> None:
        """Count a request; `again` if it was made before."""
        with self._lock:
            self._requests += 1
            self._retries += again

    def took(self, passed_s: float) -> None:
        """Note the seconds of a request that was answered."""
        with self._lock:
            self._took_s.append(passed_s)

    def received(self, size_bytes: int) -> None:
        """Count bytes that arrived."""
        with self._lock:
            self._bytes += size_bytes

    def cached(self, size_bytes: int) -> None:
        """Count bytes that came from the cache on disk."""
        with self._lock:
            self._cached_bytes = (self._cached_bytes or 0) + size_bytes

    def fault(self, kind: str) -> None:
        """Count a failed request by its description, such as 'status 503'."""
        with self._lock:
            self._faults[kind] += 1

    def counts(self) -> dict[str, Any]:
        """Return numbers of `requests`, `retries`, `bytes`, and `faults` by kind.

        With a cache on disk also `cached_bytes`, which came from it. `p50_s`, `p95_s` and `p99_s` are the
        seconds until the last requests were answered, by percentile.
        """
        found, took_s = self._counted()
        return found | _by_percentile(took_s)

    def times(self) -> list[float]:
        """Return the seconds of the last requests that were answered."""
        return self._counted()[1]

    def _counted(self) -> tuple[dict[str, Any], list[float]]:
        with self._lock:
            requests, retries, faults = self._requests, self._retries, self._faults.copy()
            took_s, others = list(self._took_s), list(self._of_core)
            size, cached = self._bytes, self._cached_bytes
        for counts in others:
            made, repeated, failed, seconds = counts()
            requests, retries, took_s = requests + made, retries + repeated, took_s + seconds
            faults.update(failed)
        found = {"requests": requests, "retries": retries, "bytes": size, "faults": dict(faults)}
        return found | ({} if cached is None else {"cached_bytes": cached}), took_s


def request_figures(stats: list[RemoteStats]) -> dict[str, float]:
    """Sum the counts of several sources, with percentiles of times.

    Returns:
        `requests`, `retries` and, if a request was answered, `p50_s`, `p95_s` and `p99_s`.
    """
    found = dict.fromkeys(("requests", "retries"), 0.0)
    took_s: list[float] = []
    for one in stats:
        counts = one.counts()
        for name in found:
            found[name] += counts.get(name, 0)
        took_s += one.times()
    return found | _by_percentile(took_s)


def _by_percentile(took_s: list[float]) -> dict[str, float]:
    """The nearest-rank percentiles of some values."""
    ordered = sorted(took_s)
    places = {p: min(len(ordered) - 1, len(ordered) * p // 100) for p in PERCENTILES}
    return {f"p{p}_s": ordered[place] for p, place in places.items()} if ordered else {}
