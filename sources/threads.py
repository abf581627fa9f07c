"""Threads on which arrays are decoded, shared by all arrays of a process.

Invariant: what runs on them waits for no other work that runs on them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from windrow.sources.process import cores

Given = TypeVar("Given")
Made = TypeVar("Made")

_lock: Final = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def shared_pool() -> ThreadPoolExecutor:
    """As many threads as there are cores."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(cores(), thread_name_prefix="windrow-zarr")
        return _pool


class Ends:
    """The ends of several reads as one: `done` is set by the one that ends last. Thread-safe."""

    def __init__(self, count: int) -> None:
        """Wait for `count` ends, at least one."""
        self.done: Future[None] = Future()
        """It has the error of the read with the smallest place that failed, if any did."""
        self.done.set_running_or_notify_cancel()  # it can not be cancelled any more
        self._left = count
        self._failed: tuple[int, Exception] | None = None
        self._lock = threading.Lock()

    def end(self, place: int, error: Exception | None) -> None:
        """The read at `place` ended, with an error or None."""
        with self._lock:
            if error is not None and (self._failed is None or place < self._failed[0]):
                self._failed = place, error
            self._left -= 1
            if self._left:
                return
        if self._failed is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(self._failed[1])


class Here(Executor):
    """Runs what is submitted at once, in the thread that submits it."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """What `fn` returned or raised, in a future that is done."""
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


def then(future: Future[Given], change: Callable[[Future[Given]], Made]) -> Future[Made]:
    """What `change` makes of a future that is done, or the error it raises.

    It runs in the thread in which the future ends, so it must be short. It can not be cancelled.
    """
    made: Future[Made] = Future()
    made.set_running_or_notify_cancel()

    def end(done: Future[Given]) -> None:
        try:
            made.set_result(change(done))
        except BaseException as error:
            made.set_exception(error)

    future.add_done_callback(end)
    return made
