"""How a source reaches remote stores: its settings, limits, secrets and counts.

Invariants: nothing is connected before it is needed. What is pickled opens again with the same
settings. Text that went through `hide` holds no secret, no error shows one, and no wait is longer than
its limit.
"""

from __future__ import annotations

import contextvars
import functools
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

import tensorstore as ts

from windrow.core.cancellation import CancelScope, current_scope
from windrow.core.redaction import HIDDEN, Redaction, shown_url
from windrow.core.text import with_article
from windrow.core.threads import DaemonPool
from windrow.errors import ArgumentError, SourceError, WindrowError
from windrow.sources.remote.options import as_remote_options
from windrow.sources.remote.request_counts import RemoteStats
from windrow.sources.zarr.error_text import is_about_profile, reason
from windrow.sources.zarr.remote_reads import RemoteReads
from windrow.sources.zarr.urls import (
    UrlRoute,
    headers_of,
    route_of,
)

if TYPE_CHECKING:
    from windrow.sources.remote.fetcher import Fetcher

P = ParamSpec("P")
T = TypeVar("T")

# Where TensorStore looks for credentials.
_IN_ENVIRONMENT: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
# A pool of recently decoded shard indices and chunks, for all arrays of a source.
_POOL: Final = "cache_pool#windrow"
_POOL_BYTES: Final = 32 << 20
# The most threads of one call of `side_by_side`.
_AT_ONCE: Final = 32


def bare(fn: Callable[P, T]) -> Callable[P, T]:
    """Make errors that `fn` raises `from None` drop their context too.

    Such an error is printed alone, but keeps the original error as its context. Tools that report
    errors look there, and would find settings with headers.
    """

    @functools.wraps(fn)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return fn(*args, **kwargs)
        except WindrowError as error:
            if error.__suppress_context__ and error.__cause__ is None:
                error.__context__ = None
            raise

    return called


def side_by_side(calls: Sequence[Callable[[], Any]], *, wait: bool) -> list[Any]:
    """The results of `calls`; each runs in a thread of its own if they `wait` for a network.

    If one of them fails, or the caller is interrupted, the others are cancelled.
    """
    if not wait or len(calls) < 2:
        return [call() for call in calls]
    cancel_scope, outer = CancelScope(), current_scope()
    if outer is not None:
        outer.add(cancel_scope, cancel_scope.set)
    pool = DaemonPool(min(_AT_ONCE, len(calls)), "windrow-side", cancel_scope.enter)
    try:
        return [read.result() for read in [pool.submit(call) for call in calls]]
    except BaseException:
        cancel_scope.set()
        raise
    finally:
        if outer is not None:
            outer.remove(cancel_scope)
        pool.shutdown(cancel_futures=True)


class Access:
    """How one source reaches remote stores."""

    def __init__(
        self, what: str, storage_options: Mapping[str, Any] | None = None, remote: Any = None
    ) -> None:
        """Connect to nothing yet.

        Raises:
            ArgumentError: If `storage_options` is not a mapping with string keys, or `remote` is
                not a `RemoteOptions`.
        """
        if storage_options is not None and (
            not isinstance(storage_options, Mapping)
            or not all(isinstance(key, str) for key in storage_options)
        ):
            raise ArgumentError(
                f"{what}: storage_options must be a dict with string keys, as fsspec takes it,"
                f" got {with_article(type(storage_options).__name__)}"
            )
        self.what = what
        self.storage_options = dict(storage_options or {})
        self.options = as_remote_options(remote, what)
        self.reached = False
        """Whether a URL was opened with these settings."""
        self._sent: set[str] = set()
        self._expected = False
        self._restart()

    def __getstate__(self) -> tuple[Any, ...]:
        return self.what, self.storage_options, self.options, self._sent, self._expected

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.what, self.storage_options, self.options, self._sent, self._expected = state
        self.reached = True
        self._restart()

    def _restart(self) -> None:
        self.stats = RemoteStats()
        self._redaction = Redaction(self.storage_options)
        self._threads = DaemonPool(None, "windrow-files")
        self._lock = threading.RLock()
        self._reads: tuple[RemoteReads, RemoteReads] | None = None
        self._fetcher: Fetcher | None = None
        self._context: ts.Context | None = None

    def expect_answers(self) -> None:
        """Wait for stores that are away from now on, also in pickled copies: all have answered."""
        self._expected = True
        with self._lock:
            if self._fetcher is not None:
                self._fetcher.expect_answers()

    @property
    def in_flight(self) -> RemoteReads:
        """Runs the reads of TensorStore."""
        return self._both_reads()[0]

    @property
    def fetches(self) -> RemoteReads:
        """Runs the reads of zarr-python through `fetcher`, which counts its requests itself."""
        return self._both_reads()[1]

    def _both_reads(self) -> tuple[RemoteReads, RemoteReads]:
        with self._lock:
            if self._reads is None:
                counted = RemoteReads(self.options, self.stats)
                self._reads = counted, RemoteReads(self.options, RemoteStats())
            return self._reads

    def hide(self, text: str) -> str:
        """`text` without secrets."""
        from_environment = (os.environ.get(name, "") for name in _IN_ENVIRONMENT)
        for sent in (*self._sent, *(value for value in from_environment if value)):
            text = text.replace(sent, HIDDEN)
        return self._redaction.hide(text)

    def reason(self, error: BaseException) -> str:
        """The reason of an error, for people, without secrets."""
        profile = self.storage_options.get("profile")
        if profile is not None and is_about_profile(error):
            return (
                f"AWS's files of settings (~/.aws/config and ~/.aws/credentials) have no profile"
                f" {profile!r} with credentials ({self.hide(reason(error))})"
            )
        return self.hide(reason(error))

    @bare
    def route(self, url: str) -> UrlRoute:
        """Which library reads `url`, and with which settings.

        Raises:
            ArgumentError: If no library can read it with these options.
            SourceError: If it cannot be parsed.
        """
        self.reached = True
        try:
            cached = self.options.cache_dir is not None
            route = route_of(self.what, url, self.storage_options, cached=cached)
        except ValueError as error:
            if "unsupported URL scheme" in str(error):
                raise ArgumentError(
                    f"{self.what}: neither TensorStore nor fsspec knows the protocol"
                    f" {url.partition('://')[0]!r}; they know file, memory, http, s3, gs, zip and"
                    " others (fsspec.available_protocols() lists them)"
                ) from None
            raise SourceError(
                f"{self.what}: {self.hide(repr(url))} cannot be opened: {self.reason(error)}"
            ) from None
        for header in headers_of(route.spec):
            name, _, value = header.partition(": ")
            if name.lower() == "authorization":
                self._sent |= {value, value.rpartition(" ")[2]}
        return route

    # --- TensorStore -----------------------------------------------------------------------------

    @property
    def context(self) -> ts.Context:
        """TensorStore's limits, retries and caches, shared by all arrays of the source."""
        with self._lock:
            if self._context is None:
                self._context = self._new_context()
            return self._context

    def _new_context(self) -> ts.Context:
        options = self.options
        # curl's own limits, for the whole process; TensorStore reads them at its first request.
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
            ValueError: If it cannot be opened.
            TimeoutError: If that takes too long.
        """
        return ts.KvStore.open(spec, context=self.context).result(timeout=self.options.longest_s)

    def read(self, store: ts.KvStore, key: str) -> bytes | None:
        """The value at `key`; None if it is absent. Waits.

        Raises:
            ValueError: If it cannot be read.
            TimeoutError: If that takes too long.
        """
        answer = self.in_flight.start(partial(store.read, key)).result()
        return bytes(answer.value) if answer.state == "value" else None

    def place(self, store: ts.KvStore) -> str:
        """The URL of a store, for people."""
        try:
            return self.hide(shown_url(str(store.url)))
        except (NotImplementedError, ValueError):
            return "an open KvStore"

    @property
    def sharded(self) -> dict[str, Any]:
        """Settings that keep TensorStore from reading the index of a shard for each chunk.

        A shard that was written again is read again: each read names the version that it expects.
        """
        return {"cache_pool": _POOL, "recheck_cached_data": "open"}

    # --- fsspec ----------------------------------------------------------------------------------

    @property
    def fetcher(self) -> Fetcher:
        """Reads byte ranges through fsspec."""
        from windrow.sources.remote.fetcher import Fetcher

        with self._lock:
            if self._fetcher is None:
                self._fetcher = Fetcher(self.what, self.storage_options, self.options, self.stats)
                if self._expected:
                    self._fetcher.expect_answers()
            return self._fetcher

    def run(self, fn: Callable[[], T]) -> Future[T]:
        """Run `fn`, which may wait, in a thread of its own."""
        return self._threads.submit(contextvars.copy_context().run, fn)
