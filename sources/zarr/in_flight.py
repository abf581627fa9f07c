"""Reads of TensorStore over a network: a bounded number at a time, and each of them ends.

TensorStore retries failed requests, but it waits for ever for a server that takes a request and
never answers. So this module ends reads, whatever TensorStore does with them.

1. As many reads run as keep `max_requests` requests busy, with at most `in_flight_bytes` together; one read
   always runs. Other reads wait for their turn, in the order in which they were started.
2. A read ends at most `longest_s` after it began, for each `max_requests` objects that it needs:
   with its values, with TensorStore's error, or with a TimeoutError. A read that waits for stores that are
   away may take `outage_s` more.
3. Values that arrive after the end of a read are dropped; they have memory of their own.
4. When the cancel scope of the caller is set, its reads end; reads that wait never begin.

Thread-safe. Callbacks run on TensorStore's threads, or on the thread that watches deadlines.
"""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import math
import re
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

from windrow.core.cancellation import CancelScope, current_scope, settle, stopped
from windrow.sources.remote.options import RemoteOptions
from windrow.sources.remote.request_counts import RemoteStats

# Reads run beyond those that keep the requests busy, so that requests continue during decoding.
_AHEAD: Final = 2
_TICK_S: Final = 0.1
# The watching thread ends after this long without a read.
_IDLE_S: Final = 2.0


@dataclasses.dataclass(slots=True, eq=False)
class _RemoteRead:
    begin: Callable[[], Any]
    requests: int
    size_bytes: int
    weight_bytes: int
    answer: Future[Any]
    context: contextvars.Context
    began_s: float = 0.0
    due: float = math.inf
    future: Any = None
    is_cancelled: bool = False
    cancel_scope: CancelScope | None = None


class InFlightLimiter:
    """Runs the reads of one source, a bounded number at a time."""

    def __init__(self, options: RemoteOptions, stats: RemoteStats, *, waits: bool) -> None:
        """Start nothing yet.

        Args:
            options: Limits.
            stats: Counts the reads.
            waits: Whether reads wait for stores that are away.
        """
        self._options, self._stats, self._reads_wait = options, stats, waits
        self._lock = threading.Lock()
        self._waiting: collections.deque[_RemoteRead] = collections.deque()
        self._under_way: set[_RemoteRead] = set()
        self._requests = self._bytes = 0  # in progress
        self._here = threading.local()
        self._expected = False

    def expect(self) -> None:
        """Wait for stores that are away from now on: they have answered."""
        self._expected = True

    def start(
        self,
        begin: Callable[[], Any],
        requests: int = 1,
        size_bytes: int = 0,
        *,
        weight_bytes: int = 0,
    ) -> Future[Any]:
        """Start a read, now or when its turn comes. Does not wait.

        Args:
            begin: Starts the read; returns a future of TensorStore.
            requests: Objects that it needs; each takes a request or two.
            size_bytes: Bytes of its values in memory.
            weight_bytes: Bytes of the chunks that it needs in memory, if these are more.

        Returns:
            A future of its values.
        """
        context = contextvars.copy_context()
        weight = max(size_bytes, weight_bytes)
        read = _RemoteRead(begin, max(1, requests), size_bytes, weight, Future(), context)
        read.answer.set_running_or_notify_cancel()  # it cannot be cancelled any more
        cancel_scope = current_scope()
        if cancel_scope is not None:
            read.cancel_scope = cancel_scope
            cancel_scope.add(read, lambda: self._cancel(read))
        with self._lock:
            self._waiting.append(read)
        self._start_waiting()
        return read.answer

    def _cancel(self, read: _RemoteRead) -> None:
        with self._lock:
            read.is_cancelled = True
            begun = read in self._under_way
        if not begun:
            settle(read.answer, error=stopped())
            return
        if read.future is not None:
            read.future.cancel()
        self._end(read, None, stopped())

    def expire(self) -> bool:
        """End the reads that are late; return whether a read runs."""
        now = time.monotonic()
        with self._lock:
            late = [read for read in self._under_way if read.due <= now]
        for read in late:
            if read.future is not None:
                read.future.cancel()
            seconds = self._limit_s(read)
            self._end(
                read,
                None,
                TimeoutError(
                    f"no answer within {seconds:,.1f} s, the limit of"
                    f" RemoteOptions(timeout_s={self._options.timeout_s:g},"
                    f" retries={self._options.retries})"
                ),
            )
        with self._lock:
            return bool(self._under_way)

    def _limit_s(self, read: _RemoteRead) -> float:
        more_s = self._options.outage_s if self._expected and self._reads_wait else 0.0
        turns = math.ceil(read.requests / self._options.max_requests)
        return self._options.longest_s * turns + more_s

    def _start_waiting(self) -> None:
        """Start the reads whose turn has come."""
        if getattr(self._here, "going", False):
            return  # a caller in this thread does it
        self._here.going = True
        try:
            while (read := self._next()) is not None:
                self._begin(read)
        finally:
            self._here.going = False

    def _next(self) -> _RemoteRead | None:
        with self._lock:
            while self._waiting and self._waiting[0].is_cancelled:
                self._waiting.popleft()
            if not self._waiting:
                return None
            read = self._waiting[0]
            requests, weight = self._requests + read.requests, self._bytes + read.weight_bytes
            most = _AHEAD * self._options.max_requests
            if self._under_way and (requests > most or weight > self._options.in_flight_bytes):
                return None
            self._waiting.popleft()
            self._requests, self._bytes = requests, weight
            read.began_s = time.monotonic()
            read.due = read.began_s + self._limit_s(read)
            begun = not self._under_way
            self._under_way.add(read)
        if begun:
            _watch(self)
        return read

    def _begin(self, read: _RemoteRead) -> None:
        self._stats.request()
        try:
            # It may begin when another read ends, in a thread that works for another caller.
            future = read.future = read.context.run(read.begin)
            if read.is_cancelled:
                future.cancel()
            future.add_done_callback(lambda ended: self._arrived(read, ended))
        except (ValueError, RuntimeError, OSError) as error:
            self._end(read, None, error)

    def _arrived(self, read: _RemoteRead, ended: Any) -> None:
        if ended.cancelled():
            return  # it was late and has ended
        error = ended.exception()
        self._end(read, None if error is not None else ended.result(), error)

    def _end(self, read: _RemoteRead, value: Any, error: BaseException | None) -> None:
        with self._lock:
            if read not in self._under_way:
                return  # it ended before
            self._under_way.remove(read)
            self._requests -= read.requests
            self._bytes -= read.weight_bytes
        if error is None:
            self._stats.received(read.size_bytes)
            self._stats.took(time.monotonic() - read.began_s)
        elif not read.is_cancelled:
            self._stats.fault(kind_of(error))
        # Not by a callback of the answer: it would hold the read, and both would stay alive until
        # the garbage collector runs.
        if read.cancel_scope is not None:
            read.cancel_scope.remove(read)
        settle(read.answer, value, error)
        self._start_waiting()


def kind_of(error: BaseException) -> str:
    """The kind of an error, as statistics count it."""
    text = str(error)
    if isinstance(error, TimeoutError) or re.search("DEADLINE_EXCEEDED|no answer within", text):
        return "timeout"
    if found := re.search(r"HTTP code (\d{3})|http_response_code='(\d{3})'", text):
        return f"status {found[1] or found[2]}"
    if "PERMISSION_DENIED" in text or "credentials" in text:
        return "refused"
    if "partial file" in text:
        return "cut short"
    return "connection" if "CURL error" in text else "other"


_lock: Final = threading.Lock()
_busy: Final[weakref.WeakSet[InFlightLimiter]] = weakref.WeakSet()
_wakes: Final = threading.Event()
_thread: threading.Thread | None = None


def _watch(limiter: InFlightLimiter) -> None:
    global _thread
    with _lock:
        _busy.add(limiter)
        if _thread is None:
            _thread = threading.Thread(target=_watching, name="windrow-deadlines", daemon=True)
            _thread.start()
        _wakes.set()


def _watching() -> None:
    global _thread
    while True:
        if not _wakes.wait(_IDLE_S):
            with _lock:
                if _wakes.is_set():
                    continue
                _thread = None
                return
        time.sleep(_TICK_S)
        _wakes.clear()  # before the check: a read that begins from here on sets it again
        with _lock:
            limiters = list(_busy)
        _expire(limiters)
        limiters.clear()  # this thread keeps no limiter alive


def _expire(limiters: Sequence[InFlightLimiter]) -> None:
    for limiter in limiters:
        if limiter.expire():
            _wakes.set()
