"""Reading over a network: what a user can set, and what is counted.

Invariant: nothing that is read waits longer than `RemoteOptions.longest_s` for one request.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import threading
from typing import Any

from windrow.errors import ArgumentError, PlanError

MIB = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Limits of reading over a network. None of them changes what is read.

    Args:
        max_requests: Requests in flight at a time, per source.
        max_request_bytes: Bytes that one request asks for at most; only a single record group that
            is larger is asked for as one.
        in_flight_bytes: Bytes asked for and not decoded yet at a time, at most, per source. One
            request is always made, whatever it weighs.
        keep_bytes: Bytes of what was fetched that are kept at most, per source, since neighbours of
            what was wanted may be wanted soon.
        merge_gap_bytes: Ranges of a file that lie this near to each other are one request.
        most_fetched: Bytes asked for per byte wanted, at most, where ranges are made one.
        timeout_s: Seconds for one request, from its start to its last byte.
        stall_s: Seconds of a request without a byte, where the file system tells.
        retries: How often a request is made again that failed for a reason that may pass: a status
            of 408, 429, 500, 502, 503 or 504, a connection that can not be made or breaks, a body
            cut short, a timeout.
        backoff_s: Seconds before the first of them, at most; twice as much before each next one,
            and of that a random part, so that many readers do not come back at once.
        max_backoff_s: Seconds before any of them, at most.

    Raises:
        ArgumentError: If a value is no number.
        PlanError: If it is out of range.
    """

    max_requests: int = 64
    max_request_bytes: int = 8 * MIB
    in_flight_bytes: int = 64 * MIB
    keep_bytes: int = 32 * MIB
    merge_gap_bytes: int = 128 << 10
    most_fetched: float = 4.0
    timeout_s: float = 60.0
    stall_s: float = 20.0
    retries: int = 5
    backoff_s: float = 0.25
    max_backoff_s: float = 8.0

    def __post_init__(self) -> None:
        for name in ("max_requests", "max_request_bytes", "in_flight_bytes"):
            self._whole(name, 1)
        for name in ("keep_bytes", "merge_gap_bytes", "retries"):
            self._whole(name, 0)
        for name in ("timeout_s", "stall_s"):
            self._number(name, 0.001)
        for name in ("backoff_s", "max_backoff_s"):
            self._number(name, 0.0)
        self._number("most_fetched", 1.0)

    def _number(self, name: str, least: float) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ArgumentError(f"RemoteOptions: {name} must be a number, got {value!r}")
        if not least <= value < math.inf:
            raise PlanError(
                f"RemoteOptions: {name} must be at least {least} and finite, got {value!r}"
            )

    def _whole(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ArgumentError(f"RemoteOptions: {name} must be an integer, got {value!r}")
        if value < least:
            raise PlanError(f"RemoteOptions: {name} must be at least {least}, got {value}")

    @property
    def longest_s(self) -> float:
        """Seconds until one request has succeeded or failed for good, at most.

        A server may ask for a pause; it is granted up to `max_backoff_s`, each time.
        """
        return (self.retries + 1) * self.timeout_s + self.retries * self.max_backoff_s


def is_far(source: Any) -> bool:
    """Whether a source is read over a network, as its `is_far` says: to wait for it is no work."""
    # Asked in every round: by a protocol that is checked at run time it costs far more.
    return bool(getattr(source, "is_far", False))


def as_remote_options(options: Any, what: str) -> RemoteOptions:
    """`options`, or the defaults for None.

    Raises:
        ArgumentError: If it is neither.
    """
    if options is None:
        return RemoteOptions()
    if not isinstance(options, RemoteOptions):
        # Not shown: they may be the storage options.
        raise ArgumentError(
            f"{what}: remote must be a windrow.sources.RemoteOptions, got a"
            f" {type(options).__name__}"
        )
    return options


class RemoteStats:
    """Counts of what was asked of a network. Thread-safe; pickles as nothing counted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = self._retries = self._bytes = 0
        self._faults: collections.Counter[str] = collections.Counter()

    def __reduce__(self) -> tuple[type[RemoteStats], tuple[()]]:
        return RemoteStats, ()

    def request(self, *, again: bool = False) -> None:
        """A request is made; `again` where it was made before."""
        with self._lock:
            self._requests += 1
            self._retries += again

    def received(self, size_bytes: int) -> None:
        """So many bytes came."""
        with self._lock:
            self._bytes += size_bytes

    def fault(self, kind: str) -> None:
        """A request failed: in a few words, such as 'status 503', 'timeout', 'cut short'."""
        with self._lock:
            self._faults[kind] += 1

    def counts(self) -> dict[str, Any]:
        """Numbers of `requests` (with those made again), `retries`, `bytes`, and `faults` by kind."""
        with self._lock:
            return {
                "requests": self._requests,
                "retries": self._retries,
                "bytes": self._bytes,
                "faults": dict(self._faults),
            }
