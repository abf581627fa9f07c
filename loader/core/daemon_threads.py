"""Daemon threads: blocking calls awaited from an event loop, and pools of such threads.

Invariant: a call that never returns keeps neither the loop nor the end of the interpreter waiting.
(The threads of `concurrent.futures` are joined at the end.)
"""

from __future__ import annotations

import contextvars
import functools
import itertools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from types import TracebackType
from typing import Any, Final

from windrow.core.machine import usable_cores
from windrow.core.threads import HelpedPool, answer_with

# Seconds after which an idle thread ends.
_IDLE_S: Final = 2.0

_Submitted = tuple[Future[Any], Callable[[], Any]]


class DaemonThreads(Executor):
    """Threads that start when a call finds no idle thread, and end after some idle time."""

    def __init__(
        self,
        name: str = "windrow-files",
        enter: Callable[[], None] = lambda: None,
        most: int | None = None,
    ) -> None:
        """Start without threads. There are up to `most`, and each first calls `enter`."""
        self._name, self._enter, self._numbers, self._most = name, enter, itertools.count(), most
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Submitted | None] = queue.SimpleQueue()
        self._idle = 0  # threads that wait, less the jobs in the queue
        self._threads: set[threading.Thread] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call `fn` in a thread of its own, and return a future of its result."""
        answer: Future[Any] = Future()
        with self._lock:
            self._jobs.put((answer, functools.partial(fn, *args, **kwargs)))
            if self._idle > 0 or len(self._threads) == self._most:
                self._idle -= 1
            else:
                name = f"{self._name}_{next(self._numbers)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                thread.start()
                self._threads.add(thread)
        return answer

    async def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Return or raise what `fn(*args)` does. A cancelled caller leaves the call running.

        `fn` runs in the context of the caller.
        """

        def job() -> Any:
            try:
                return fn(*args)
            except StopIteration as stopped:  # a future cannot hold it
                raise RuntimeError(f"StopIteration: {stopped}") from None

        import asyncio  # the caller has it; other processes do not load it

        context = contextvars.copy_context()
        return await asyncio.wrap_future(self.submit(context.run, job))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads after their calls, and wait for that if `wait` is set."""
        with self._lock:
            threads = list(self._threads)
        for _ in threads:
            self._jobs.put(None)
        for thread in threads if wait else ():
            thread.join()

    def _work(self) -> None:
        self._enter()
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._idle <= 0:
                        continue  # another thread is just putting a job
                    self._idle -= 1
                    self._threads.discard(threading.current_thread())
                    return
            if job is None:
                return
            answer_with(*job)
            del job  # it holds what was read
            with self._lock:
                self._idle += 1


class DaemonPool(HelpedPool):
    """A pool of daemon threads.

    As a context it waits for its calls at the end. An interrupt leaves those in progress to their threads.
    """

    def __init__(self, most: int, name: str, enter: Callable[[], None] = lambda: None) -> None:
        """Use up to `most` threads; each new thread first calls `enter`."""
        super().__init__(DaemonThreads(name, enter, most), most)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        is_interrupt = kind is not None and not issubclass(kind, Exception)
        self.shutdown(wait=not is_interrupt, cancel_futures=is_interrupt)


@functools.cache
def shared_pool() -> DaemonPool:
    """Return the pool of the process that decodes arrays, with one thread per core."""
    return DaemonPool(usable_cores(), "windrow-zarr")
