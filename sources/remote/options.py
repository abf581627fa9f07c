"""Options of reading over a network.

Invariant: no read waits longer than `RemoteOptions.longest_s` for one request, and `outage_s` more for a store
that is away.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any

from windrow.core.text import listing, with_article
from windrow.errors import ArgumentError, PlanError

MIB = 1 << 20
_LEAST_CACHE_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Limits of reading over a network. None of them changes the data.

    Args:
        max_requests: The most requests in flight at a time, per source and host or bucket.
        max_requests_per_host: The most requests in flight at a time to one host or bucket, of all sources of
            the process with this limit together, but for Zarr that TensorStore reads: without `cache_dir`.
        max_request_bytes: The most bytes of one request; only a single larger record group exceeds it.
        in_flight_bytes: The most bytes requested and not yet decoded at a time, per source and host. One
            request is always made, however large it is.
        keep_bytes: The most fetched bytes that are kept, per source, since neighbours of the bytes
            wanted may be wanted soon.
        merge_gap_bytes: Ranges of a file with at most this many bytes between them are one request.
        most_fetched: The most bytes requested per byte wanted, when ranges are merged.
        timeout_s: Seconds for one request, from its start to its last byte.
        stall_s: Seconds of a request without a byte, if the file system reports them.
        retries: How often a request is made again after a fault that may pass: a status of 408,
            429, 500, 502, 503 or 504, a connection that cannot be made or breaks, a body cut
            short, a timeout.
        backoff_s: The most seconds before the first retry. It doubles with each further retry, and
            each pause is a random part of it, so that many readers do not retry at once.
        max_backoff_s: The most seconds before any retry.
        outage_s: Seconds for which a store that has answered may be away after a source was opened: its
            requests are made again for so long instead of `retries` times, if they end with a status of
            408, 429, 500, 502, 503 or 504, without a connection or in a timeout. 0 to end with an error
            after `retries`.
        cache_dir: A folder of a local disk that keeps what was fetched, for later epochs and runs and
            for all processes of the host; None to keep nothing there.
        cache_bytes: The most bytes of that folder. What was used least recently is evicted.

    Raises:
        ArgumentError: If a value is not a number.
        PlanError: If a value is out of range.
    """

    max_requests: int = 64
    max_requests_per_host: int = 256
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
    outage_s: float = 600.0
    cache_dir: str | os.PathLike[str] | None = None
    cache_bytes: int = 16 << 30

    def __post_init__(self) -> None:
        for name in ("max_requests", "max_requests_per_host"):
            self._whole(name, 1)
        for name in ("max_request_bytes", "in_flight_bytes"):
            self._whole(name, 1)
        for name in ("keep_bytes", "merge_gap_bytes", "retries"):
            self._whole(name, 0)
        for name in ("timeout_s", "stall_s"):
            self._number(name, 0.001)
        for name in ("backoff_s", "max_backoff_s", "outage_s"):
            self._number(name, 0.0)
        self._number("most_fetched", 1.0)
        self._whole("cache_bytes", _LEAST_CACHE_BYTES)
        if self.cache_dir is not None:
            object.__setattr__(self, "cache_dir", _folder(self.cache_dir))

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
        """Return the most seconds of one request, without outages.

        A server may request a pause before each retry; it gets up to `max_backoff_s`.
        """
        return (self.retries + 1) * self.timeout_s + self.retries * self.max_backoff_s


def _folder(path: Any) -> str:
    """The absolute path of a folder of a local disk."""
    try:
        text = os.fspath(path)
    except TypeError:
        text = b""
    if not isinstance(text, str):
        raise ArgumentError(
            f"RemoteOptions: cache_dir must be a path of a local folder, got {with_article(type(path).__name__)}"
        )
    if not text or "://" in text:
        from windrow.core.redaction import shown_url

        raise PlanError(
            f"RemoteOptions: cache_dir must be a path of a local folder, got {shown_url(text)!r}"
        )
    return os.path.abspath(os.path.expanduser(text))


def is_remote_source(source: Any) -> bool:
    """Whether a source is read over a network, by its attribute `is_remote_source`."""
    # Every read batch calls this: a protocol that is checked at run time costs far more.
    return bool(getattr(source, "is_remote_source", False))


def as_remote_options(options: Any, what: str) -> RemoteOptions:
    """Check `options`; None stands for the defaults.

    Raises:
        ArgumentError: If it is neither.
    """
    if options is None:
        return RemoteOptions()
    if not isinstance(options, RemoteOptions):
        # The message does not show the value: it may be the storage options.
        raise ArgumentError(
            f"{what}: remote must be a windrow.sources.RemoteOptions, got a"
            f" {type(options).__name__}"
        )
    return options


def useless_options(what: str, options: Mapping[str, Any]) -> ArgumentError:
    """Make the error for storage options of a source without URLs."""
    return ArgumentError(
        f"{what}: storage_options has {listing(sorted(options))}, and only URLs are opened with such"
        " options; leave storage_options out, or give a URL such as 's3://bucket/data'"
    )
