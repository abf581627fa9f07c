"""Counts and times of the requests of one source.

Invariant: noting a request costs the same however many there were.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Any, Final

# Percentiles describe the last requests, and are computed again after a part of these.
_LAST: Final = 1024
_AGAIN: Final = 32
# Before this number of requests was answered, none is made twice.
_FEW: Final = 50
# A second request is made after this multiple of the 95th percentile. After the percentile itself, 5% of
# requests that are not slow would use up the share.
_SLOW: Final = 2.0
# Nothing is worth a second request before this.
_SOON_S: Final = 0.005
PERCENTILES: Final = (50, 95, 99)


class RemoteStats:
    """Counts of network requests. Thread-safe; a pickled copy starts at zero."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = self._retries = self._bytes = 0
        self._hedged = 0
        self._cached_bytes: int | None = None
        self._faults: collections.Counter[str] = collections.Counter()
        self._answered = 0
        self._took_s: collections.deque[float] = collections.deque(maxlen=_LAST)
        self._outage_s = self._back_s = 0.0
        self._away: tuple[float, Callable[[], float]] | None = None
        self.hedge_after_s: float | None = None
        """Seconds after which a request is slow; None if too few were answered to say."""

    def __reduce__(self) -> tuple[type[RemoteStats], tuple[()]]:
        return RemoteStats, ()

    def request(self, *, again: bool = False) -> None:
        """Count a request; `again` if it was made before."""
        with self._lock:
            self._requests += 1
            self._retries += again

    def took(self, passed_s: float) -> None:
        """Note the seconds of a request that was answered."""
        with self._lock:
            self._took_s.append(passed_s)
            self._answered += 1
            if self._answered >= _FEW and (
                self.hedge_after_s is None or not self._answered % _AGAIN
            ):
                (p95_s,) = _percentiles(self._took_s, (95,))
                self.hedge_after_s = max(_SOON_S, _SLOW * p95_s)

    def hedge(self, share: float) -> bool:
        """Whether a second request stays within the share; count it then."""
        with self._lock:
            if self._hedged + 1 > share * (self._requests - self._hedged):
                return False
            self._requests += 1
            self._hedged += 1
            return True

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

    def away_since(self, since_s: float, clock: Callable[[], float]) -> None:
        """Note that a store is away since then, by the clock."""
        with self._lock:
            self._away = max(since_s, self._back_s), clock

    def is_back(self) -> None:
        """Note that no store is away any more."""
        with self._lock:
            if self._away is not None:
                since_s, clock = self._away
                self._back_s = clock()
                self._outage_s += max(0.0, self._back_s - since_s)
                self._away = None

    def counts(self) -> dict[str, Any]:
        """Return numbers of `requests`, `retries`, `bytes`, and `faults` by kind.

        With a cache on disk also `cached_bytes`, which came from it. Second requests are in `requests` and,
        if there were any, in `hedged`. After outages `outage_s` has their seconds. `p50_s`, `p95_s` and
        `p99_s` are the seconds of the last requests that were answered, by percentile.
        """
        with self._lock:
            found: dict[str, Any] = {
                "requests": self._requests,
                "retries": self._retries,
                "bytes": self._bytes,
                "faults": dict(self._faults),
            }
            if self._cached_bytes is not None:
                found["cached_bytes"] = self._cached_bytes
            if self._hedged:
                found["hedged"] = self._hedged
            outage_s = self._outage_s
            if self._away is not None:
                since_s, clock = self._away
                outage_s += max(0.0, clock() - since_s)
            if outage_s:
                found["outage_s"] = outage_s
            took_s = list(self._took_s)
        return found | _by_percentile(took_s)

    def times(self) -> list[float]:
        """Return the seconds of the last requests that were answered."""
        with self._lock:
            return list(self._took_s)


def request_figures(stats: list[RemoteStats]) -> dict[str, float]:
    """Sum the counts of several sources, with percentiles of times.

    Returns:
        `requests`, `retries`, `hedged`, `outage_s` and, if a request was answered, `p50_s`, `p95_s` and
        `p99_s`.
    """
    found = dict.fromkeys(("requests", "retries", "hedged", "outage_s"), 0.0)
    took_s: list[float] = []
    for one in stats:
        counts = one.counts()
        for name in found:
            found[name] += counts.get(name, 0)
        took_s += one.times()
    return found | _by_percentile(took_s)


def _by_percentile(took_s: list[float]) -> dict[str, float]:
    if not took_s:
        return {}
    values = _percentiles(took_s, PERCENTILES)
    return {f"p{p}_s": value for p, value in zip(PERCENTILES, values, strict=True)}


def _percentiles(
    values: collections.deque[float] | list[float], wanted: tuple[int, ...]
) -> list[float]:
    """The nearest-rank percentiles of some values."""
    ordered = sorted(values)
    return [ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in wanted]
