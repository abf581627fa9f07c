"""Access to arrays far away: the settings, limits, secrets and counts that a source has for them.

Invariants: nothing is connected before it is needed; what is pickled opens again with the same
settings; no text that went through `hide` holds a secret.
"""

from __future__ import annotations

import asyncio
import collections
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

import tensorstore as ts

from windrow.errors import ArgumentError, SourceError
from windrow.sources.daemons import DaemonPool, DaemonThreads
from windrow.sources.halts import Halt, halt_here
from windrow.sources.remote import RemoteStats, as_remote_options
from windrow.sources.secrets import HIDDEN, Secrets
from windrow.sources.zarr_flight import Flight
from windrow.sources.zarr_reasons import bare, reason
from windrow.sources.zarr_urls import Way, way_of

if TYPE_CHECKING:
    from windrow.sources.fetching import Fetcher

T = TypeVar("T")

# Drivers of key-value stores that wait for a network.
_FAR: Final = frozenset({"http", "s3", "gcs", "gcs_grpc", "tsgrpc_kvstore", "google_cloud_storage"})
# Where TensorStore looks for credentials.
_IN_ENVIRONMENT: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
# Threads that wait for one another at a time.
_AT_ONCE: Final = 32
# Of indices of shards and chunks that were decoded last, for all arrays of a source.
_POOL: Final = "cache_pool#windrow"
_POOL_BYTES: Final = 32 << 20


class Access:
    """How one source reaches what is far away."""

    def __init__(
        self, what: str, storage_options: Mapping[str, Any] | None = None, remote: Any = None
    ) -> None:
        """Connect to nothing yet.

        Raises:
            ArgumentError: If `storage_options` are no mapping of texts, or `remote` no options.
        """
        if storage_options is not None and (
            not isinstance(storage_options, Mapping)
            or not all(isinstance(key, str) for key in storage_options)
        ):
            raise ArgumentError(
                f"{what}: storage_options must be a dict with texts as keys, as fsspec takes them,"
                f" got a {type(storage_options).__name__}"
            )
        self.what = what
        self.storage_options = dict(storage_options or {})
        self.options = as_remote_options(remote, what)
        self._sent: set[str] = set()
        self._restart()

    def __getstate__(self) -> tuple[Any, ...]:
        return self.what, self.storage_options, self.options, self._sent

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.what, self.storage_options, self.options, self._sent = state
        self._restart()

    def _restart(self) -> None:
        self.stats = RemoteStats()
        self.flight = Flight(self.options, self.stats)
        self.fetches = Flight(self.options, RemoteStats())  # the fetcher counts its requests
        self._threads = DaemonThreads()
        self._secrets = Secrets(self.storage_options)
        self._lock = threading.Lock()
        self._fetcher: Fetcher | None = None
        self._context: ts.Context | None = None

    def hide(self, text: str) -> str:
        """`text` without secrets."""
        found = (os.environ.get(name, "") for name in _IN_ENVIRONMENT)
        for sent in (*self._sent, *(value for value in found if value)):
            text = text.replace(sent, HIDDEN)
        return self._secrets.hide(text)

    def reason(self, error: BaseException) -> str:
        """What went wrong, for people."""
        return self.hide(reason(error))

    @bare
    def way(self, url: str) -> Way:
        """How `url` is read.

        Raises:
            ArgumentError: If it can not be, with these options.
            SourceError: If it can not be parsed.
        """
        try:
            found = way_of(self.what, url, self.storage_options)
        except ValueError as error:
            raise SourceError(
                f"{self.what}: {self.hide(repr(url))} can not be opened: {self.reason(error)}"
            ) from None
        for header in _headers(found.spec):
            name, _, value = header.partition(": ")
            if name.lower() == "authorization":
                self._sent |= {value, value.rpartition(" ")[2]}
        return found

    # --- TensorStore -----------------------------------------------------------------------------

    @property
    def context(self) -> ts.Context:
        """Limits of requests and retries, and what is kept, for all arrays of the source."""
        with self._lock:
            if self._context is None:
                self._context = self._new_context()
            return self._context

    def _new_context(self) -> ts.Context:
        options = self.options
        # curl's own limits, read when TensorStore makes its first request; of the whole process.
        seconds = str(max(1, math.ceil(options.stall_s)))
        os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", seconds)
        os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")
        connect = str(max(1, math.ceil(min(options.timeout_s, options.stall_s))))
        os.environ.setdefault("TENSORSTORE_CURL_CONNECT_TIMEOUT_SECONDS", connect)
        limit = {"limit": options.max_requests}
        retries = {
            "max_retries": options.retries,
            "initial_delay": f"{max(0.001, options.backoff_s)}s",
            "max_delay": f"{max(0.001, options.max_backoff_s)}s",
        }
        settings: dict[str, Any] = {_POOL: {"total_bytes_limit": _POOL_BYTES}}
        for driver in ("http", "s3", "gcs"):
            settings[f"{driver}_request_concurrency"] = limit
            settings[f"{driver}_request_retries"] = retries
        return ts.Context(settings)

    def opened(self, spec: Any) -> ts.KvStore:
        """The key-value store of a spec.

        Raises:
            ValueError: If there can be none.
            TimeoutError: If that takes too long.
        """
        return ts.KvStore.open(spec, context=self.context).result(timeout=self.options.longest_s)

    def read(self, store: ts.KvStore, key: str) -> bytes | None:
        """What lies at `key`; None if nothing does. Waits.

        Raises:
            ValueError: If it can not be read.
            TimeoutError: If that takes too long.
        """
        found = self.flight.start(lambda: store.read(key)).result()
        return bytes(found.value) if found.state == "value" else None

    @property
    def sharded(self) -> dict[str, Any]:
        """Settings of an array in shards, so that the index of a shard is not read for each chunk.

        A shard that was written again is read again: each read names the version it is of.
        """
        return {"cache_pool": _POOL, "recheck_cached_data": "open"}

    # --- fsspec ----------------------------------------------------------------------------------

    @property
    def fetcher(self) -> Fetcher:
        """Reads byte ranges through fsspec."""
        from windrow.sources.fetching import Fetcher

        with self._lock:
            if self._fetcher is None:
                self._fetcher = Fetcher(self.what, self.storage_options, self.options)
            return self._fetcher

    def run(self, fn: Callable[[], T]) -> Future[T]:
        """What `fn` returns, which may wait, in a thread of its own."""
        from fsspec.asyn import get_loop

        return asyncio.run_coroutine_threadsafe(self._threads.call(fn), get_loop())

    def counts(self) -> dict[str, Any]:
        """What was asked of networks so far, as `RemoteStats.counts` tells it."""
        found = self.stats.counts()
        fetcher = self._fetcher
        if fetcher is None:
            return found
        other = fetcher.stats.counts()
        faults = collections.Counter(found.pop("faults"))
        faults.update(other.pop("faults"))
        return {**{key: count + other[key] for key, count in found.items()}, "faults": dict(faults)}


def side_by_side(calls: Sequence[Callable[[], Any]], *, wait: bool) -> list[Any]:
    """What `calls` return; each in a thread of its own where they `wait` for a network.

    Where one fails, or the wait is broken off, the others are ended.
    """
    if not wait or len(calls) < 2:
        return [call() for call in calls]
    halt, above = Halt(), halt_here()
    if above is not None:
        above.add(halt, halt.set)
    pool = DaemonPool(min(_AT_ONCE, len(calls)), "windrow-side", halt.enter)
    try:
        return [read.result() for read in [pool.submit(call) for call in calls]]
    except BaseException:
        halt.set()
        raise
    finally:
        if above is not None:
            above.remove(halt)
        pool.shutdown(cancel_futures=True)


def drivers(spec: Any) -> set[str]:
    """The drivers that a spec names at any depth, as those of views do."""
    if isinstance(spec, dict):
        own = {spec["driver"]} if isinstance(spec.get("driver"), str) else set()
        return own.union(*map(drivers, spec.values()))
    return set().union(*map(drivers, spec)) if isinstance(spec, list) else set()


def is_far(spec: Any) -> bool:
    """Whether what a spec opens waits for a network."""
    return bool(drivers(spec) & _FAR)


def _headers(spec: Any) -> list[str]:
    for inside in ("kvstore", "base"):
        if isinstance(spec, Mapping) and inside in spec:
            return _headers(spec[inside])
    return list(spec.get("headers", ())) if isinstance(spec, Mapping) else []
