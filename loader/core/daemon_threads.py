"""Daemon threads: blocking calls awaited from an event loop, and a pool of such threads.

Invariant: a call that never returns keeps neither the loop nor the end of the interpreter waiting.
(The threads of `concurrent.futures` are joined at the end.)
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Final

from windrow.core.threads import answer_with

# Seconds after which an idle thread ends.
_IDLE_S: Final = 2.0

_Job = Callable[[], None]
_Submitted = tuple[Future[Any], Callable[[], Any]]


class DaemonThreads:
    """Threads that start when a call finds no idle thread, and end after some idle time."""

    def __init__(self) -> None:
        """Start without threads."""
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[_Job]] = []

    async def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Return or raise what `fn(*args)` does. A cancelled caller leaves the call running.

        `fn` runs in the context of the caller.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Any] = loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if ended.done():  # no caller waits any more
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
            except StopIteration as stopped:  # a future cannot hold it
                error = RuntimeError(f"StopIteration: {stopped}")
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(functools.partial(settle, result, error))
            except RuntimeError:  # the loop has ended, and so has its caller
                return

        context = contextvars.copy_context()
        self._run(lambda: context.run(job))
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
                        continue  # another thread is just putting a job
                    self._idle.remove(jobs)
                    return
            job()
            del job  # it holds what was read
            with self._lock:
                self._idle.append(jobs)


class DaemonPool(Executor):
    """A pool of daemon threads, which may enter the cancel scope of the run that owns them."""

    def __init__(self, most: int, name: str, enter: Callable[[], object] = lambda: None) -> None:
        """Start without threads; each new thread first calls `enter`."""
        self._most, self._name, self._enter = most, name, enter
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Submitted | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._ended = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a call of `fn`, and return a future of its result.

        Raises:
            RuntimeError: If the pool was shut down.
        """
        answer: Future[Any] = Future()
        with self._lock:
            if self._ended:
                raise RuntimeError("no jobs are taken after shutdown")
            self._jobs.put((answer, functools.partial(fn, *args, **kwargs)))
            if len(self._threads) < self._most:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return answer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more jobs; wait for the running ones if `wait` is set."""
        with self._lock:
            self._ended = True
            while cancel_futures:
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if job is not None:
                    job[0].cancel()
            for _ in self._threads:
                self._jobs.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def _work(self) -> None:
        self._enter()
        while (job := self._jobs.get()) is not None:
            answer_with(*job)
            del job  # it holds what was read
