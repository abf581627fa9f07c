"""Daemon threads: blocking calls awaited from an event loop.

Invariant: a call that never returns keeps neither the loop nor the end of the interpreter waiting.
(The threads of `concurrent.futures` are joined at the end.)
"""

from __future__ import annotations

import asyncio
import functools
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

# A thread without work ends after so long.
_IDLE_S: Final = 2.0

_Job = Callable[[], None]


class DaemonThreads:
    """Threads that are started when a call finds none idle, and end when they have been idle."""

    def __init__(self) -> None:
        """No thread yet."""
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[_Job]] = []

    async def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        """What `fn(*args)` returns or raises. Who no longer waits leaves it behind, running."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Any] = loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if ended.done():  # nobody waits any more
                return
            if error is None:
                ended.set_result(result)
            else:
                ended.set_exception(error)

        def job() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = fn(*args)
            except StopIteration as stopped:  # a future can not hold it
                error = RuntimeError(f"StopIteration: {stopped}")
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(functools.partial(settle, result, error))
            except RuntimeError:  # the loop has ended, and with it who waited
                return

        self._run(job)
        return await ended

    def _run(self, job: _Job) -> None:
        with self._lock:
            if self._idle:
                self._idle.pop().put(job)
                return
        jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        jobs.put(job)
        threading.Thread(target=self._work, args=(jobs,), name="windrow-files", daemon=True).start()

    def _work(self, jobs: queue.SimpleQueue[_Job]) -> None:
        while True:
            try:
                job = jobs.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if jobs not in self._idle:
                        continue  # a job is being put this moment
                    self._idle.remove(jobs)
                    return
            job()
            del job  # it holds what was read
            with self._lock:
                self._idle.append(jobs)
