"""Reads of TensorStore over a network: so many at a time, and each of them ends.

TensorStore makes requests again that failed, and waits for ever on a server that takes a request and
never answers. So a read has an end here, whatever becomes of it there.

1. As many reads are under way as keep `max_requests` requests going, of no more than
   `in_flight_bytes`; one always is. The others wait for their turn, in the order they came in.
2. A read that is under way has ended `longest_s` later, for each `max_requests` objects it needs:
   with what came, with TensorStore's error, or with a TimeoutError.
3. What comes after the end of its read is dropped; it was read into memory of its own.
4. When the halt of who started a read is set, it has ended; where it waits, it is never begun.

Thread-safe. Its callbacks run on TensorStore's threads, or the one that watches.
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

from windrow.sources.halts import Halt, halt_here, settle, stopped
from windrow.sources.remote import RemoteOptions, RemoteStats

# Reads beyond those whose requests go on, so that requests go on while others are decoded.
_AHEAD: Final = 2
_TICK_S: Final = 0.1
# The thread that watches ends when nothing was under way for so long.
_IDLE_S: Final = 2.0


@dataclasses.dataclass(slots=True, eq=False)
class _Read:
    begin: Callable[[], Any]
    requests: int
    size_bytes: int
    weight_bytes: int
    answer: Future[Any]
    context: contextvars.Context
    due: float = math.inf
    future: Any = None
    is_halted: bool = False
    halt: Halt | None = None


class Flight:
    """The reads of one source that are under way. It pickles as one that has none."""

    def __init__(self, options: RemoteOptions, stats: RemoteStats) -> None:
        """Start nothing yet."""
        self._options, self._stats = options, stats
        self._lock = threading.Lock()
        self._waiting: collections.deque[_Read] = collections.deque()
        self._under_way: set[_Read] = set()
        self._requests = self._bytes = 0  # of those under way
        self._here = threading.local()

    def __reduce__(self) -> tuple[type[Flight], tuple[RemoteOptions, RemoteStats]]:
        return Flight, (self._options, self._stats)

    def start(
        self,
        begin: Callable[[], Any],
        requests: int = 1,
        size_bytes: int = 0,
        *,
        weight_bytes: int = 0,
        for_all: bool = False,
    ) -> Future[Any]:
        """Start a read, now or when there is room. Does not wait.

        Args:
            begin: Starts it; returns a future of TensorStore.
            requests: Objects that it needs, each of which is a request or two.
            size_bytes: Of what it gives, in memory.
            weight_bytes: Of the chunks that must be there for it, where these are more.
            for_all: Whether others may wait for it too, so that no halt ends it.

        Returns:
            What it gives, or its error.
        """
        context = contextvars.copy_context()
        weight = max(size_bytes, weight_bytes)
        read = _Read(begin, max(1, requests), size_bytes, weight, Future(), context)
        read.answer.set_running_or_notify_cancel()  # it can not be cancelled any more
        halt = None if for_all else halt_here()
        if halt is not None:
            read.halt = halt
            halt.add(read, lambda: self._halt(read))
        with self._lock:
            self._waiting.append(read)
        self._go()
        return read.answer

    def _halt(self, read: _Read) -> None:
        with self._lock:
            read.is_halted = True
            begun = read in self._under_way
        if not begun:
            settle(read.answer, error=stopped())
            return
        if read.future is not None:
            read.future.cancel()
        self._end(read, None, stopped())

    def expire(self) -> bool:
        """End what is late; whether something is under way still."""
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
                    f"no answer within {seconds:,.1f} s, which is what"
                    f" RemoteOptions(timeout_s={self._options.timeout_s:g},"
                    f" retries={self._options.retries}) come to"
                ),
            )
        with self._lock:
            return bool(self._under_way)

    def _limit_s(self, read: _Read) -> float:
        return self._options.longest_s * math.ceil(read.requests / self._options.max_requests)

    def _go(self) -> None:
        """Start what there is room for."""
        if getattr(self._here, "going", False):
            return  # further up in this thread
        self._here.going = True
        try:
            while (read := self._next()) is not None:
                self._begin(read)
        finally:
            self._here.going = False

    def _next(self) -> _Read | None:
        with self._lock:
            while self._waiting and self._waiting[0].is_halted:
                self._waiting.popleft()
            if not self._waiting:
                return None
            read = self._waiting[0]
            requests, weight = self._requests + read.requests, self._bytes + read.weight_bytes
            most = _AHEAD * self._options.max_requests
            full = requests > most or weight > self._options.in_flight_bytes
            if full and self._under_way:
                return None
            self._waiting.popleft()
            self._requests, self._bytes = requests, weight
            read.due = time.monotonic() + self._limit_s(read)
            begun = not self._under_way
            self._under_way.add(read)
        if begun:
            _watch(self)
        return read

    def _begin(self, read: _Read) -> None:
        self._stats.request()
        try:
            # It may begin when another one has ended, in a thread that works for somebody else.
            read.future = read.context.run(read.begin)
            if read.is_halted:
                read.future.cancel()
            read.future.add_done_callback(lambda ended: self._came(read, ended))
        except (ValueError, RuntimeError, OSError) as error:
            self._end(read, None, error)

    def _came(self, read: _Read, ended: Any) -> None:
        if ended.cancelled():
            return  # it was late, and has ended
        error = ended.exception()
        self._end(read, None if error is not None else ended.result(), error)

    def _end(self, read: _Read, value: Any, error: BaseException | None) -> None:
        with self._lock:
            if read not in self._under_way:
                return  # it has ended before
            self._under_way.remove(read)
            self._requests -= read.requests
            self._bytes -= read.weight_bytes
        if error is None:
            self._stats.received(read.size_bytes)
        elif not read.is_halted:
            self._stats.fault(kind_of(error))
        # Not by a callback of the answer: with the read in it they would keep each other, and what
        # was read, alive until the garbage collector comes.
        if read.halt is not None:
            read.halt.remove(read)
        settle(read.answer, value, error)
        self._go()


def kind_of(error: BaseException) -> str:
    """What went wrong, in a few words, as statistics count it."""
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
_busy: Final[weakref.WeakSet[Flight]] = weakref.WeakSet()
_wakes: Final = threading.Event()
_thread: threading.Thread | None = None


def _watch(flight: Flight) -> None:
    global _thread
    with _lock:
        _busy.add(flight)
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
        _wakes.clear()  # before they are looked at: who comes now sets it again
        with _lock:
            flights = list(_busy)
        _expire(flights)
        flights.clear()  # nothing is kept alive while nothing is under way


def _expire(flights: Sequence[Flight]) -> None:
    for flight in flights:
        if flight.expire():
            _wakes.set()
