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

from windrow.sources.threads import answer_with

# A thread without work ends after so long.
_IDLE_S: Final = 2.0

_Job = Callable[[], None]
_Submitted = tuple[Future[Any], Callable[[], Any]]


class DaemonThreads:
    """Threads that are started when a call finds none idle, and end when they have been idle."""

    def __init__(self) -> None:
        """No thread yet."""
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[_Job]] = []

    async def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        """What `fn(*args)` returns or raises. Who no longer waits leaves it behind, running.

        It runs in the context of who calls.
        """
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
                        continue  # a job is being put this moment
                    self._idle.remove(jobs)
                    return
            job()
            del job  # it holds what was read
            with self._lock:
                self._idle.append(jobs)


class DaemonPool(Executor):
    """So many daemon threads that work for one who may halt them."""

    def __init__(self, most: int, name: str, enter: Callable[[], None]) -> None:
        """No thread yet; each calls `enter` first."""
        self._most, self._name, self._enter = most, name, enter
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Submitted | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._ended = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """What `fn` returns or raises.

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
        """Take no more jobs, and wait for those that run if told to."""
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
