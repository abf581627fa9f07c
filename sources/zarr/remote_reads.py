"""Reads of TensorStore and zarr-python over a network: a bounded number at a time, and each of them ends.

1. At most twice `max_requests` reads run, with at most `in_flight_bytes` together; one read always runs. Others
   wait for their turn, in the order in which they were started.
2. TensorStore waits for ever for a server that takes a request and never answers. So a read of it ends at
   most `longest_s` after it began, for each `max_requests` objects that it needs.
3. Values that arrive after the end of a read are dropped; they have memory of their own.
4. When the cancel scope of the caller is set, its reads end; reads that wait never begin.
"""

from __future__ import annotations

import contextvars
import math
import re
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from windrow.core.cancellation import fail_with_scope, settle, stopped
from windrow.core.threads import DaemonPool
from windrow.sources.remote.options import RemoteOptions
from windrow.sources.remote.request_counts import RemoteStats
from windrow.sources.remote.stores import HeldBytes


class RemoteReads:
    """Runs the reads of one source. Thread-safe."""

    def __init__(self, options: RemoteOptions, stats: RemoteStats) -> None:
        """Start nothing yet; `stats` counts the reads."""
        self._options, self._stats = options, stats
        self._threads = DaemonPool(2 * options.max_requests, "windrow-reads")
        self._held = HeldBytes(options.in_flight_bytes)

    def start(
        self,
        begin: Callable[[], Any],
        requests: int = 1,
        size_bytes: int = 0,
        *,
        weight_bytes: int = 0,
    ) -> Future[Any]:
        """Start a read when its turn comes. Does not wait.

        Args:
            begin: Reads, or starts the read and returns a future of TensorStore.
            requests: Objects that it needs; each takes a request or two.
            size_bytes: Bytes of its values in memory.
            weight_bytes: Bytes of the chunks that it needs in memory, if these are more.

        Returns:
            A future of its values.
        """
        answer: Future[Any] = Future()
        answer.set_running_or_notify_cancel()  # it cannot be cancelled any more
        fail_with_scope(answer)
        limit_s = self._options.longest_s * math.ceil(max(1, requests) / self._options.max_requests)
        weight, run = max(size_bytes, weight_bytes), contextvars.copy_context().run
        self._threads.submit(run, self._run, answer, begin, limit_s, size_bytes, weight)
        return answer

    def _run(
        self,
        answer: Future[Any],
        begin: Callable[[], Any],
        limit_s: float,
        size_bytes: int,
        weight: int,
    ) -> None:
        self._held.take(weight, wait=True)
        try:
            if answer.done():
                return  # cancelled
            self._stats.request()
            began_s, found = time.monotonic(), begin()
            if hasattr(found, "add_done_callback"):
                found = self._result(found, answer, limit_s)
            self._stats.received(size_bytes)
            self._stats.took(time.monotonic() - began_s)
            settle(answer, found)
        except Exception as error:
            if not answer.done():
                self._stats.fault(kind_of(error))
            settle(answer, error=error)
        except BaseException:  # asyncio's error of a future that was cancelled
            settle(answer, error=stopped())
        finally:
            self._held.give(weight)

    def _result(self, future: Any, answer: Future[Any], limit_s: float) -> Any:
        """The result of a future of TensorStore, which is cancelled when `answer` ends before."""
        answer.add_done_callback(lambda _: future.cancel())
        try:
            return future.result(timeout=limit_s)
        except TimeoutError:
            if future.done():
                raise
        future.cancel()
        raise TimeoutError(
            f"no answer within {limit_s:,.1f} s, the limit of"
            f" RemoteOptions(timeout_s={self._options.timeout_s:g}, retries={self._options.retries})"
        )


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
