"""Threads on which arrays are decoded: those that all arrays of a process share, and a stream's own.

Invariant: what runs on them waits for no other work that runs on them.
"""

from __future__ import annotations

import collections
import functools
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


def answer_with(answer: Future[Any], call: Callable[[], Any]) -> None:
    """Call, unless nobody wants the answer any more: it is what is returned or raised."""
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(call())
    except BaseException as error:
        answer.set_exception(error)
        del answer  # the error holds this frame, and the answer the error


class HelpedPool(Executor):
    """Jobs that threads do in the order in which they come, and that who waits for one does too.

    A thread that sleeps is woken late: of short jobs that is a twentieth of what two cores can do.
    """

    def __init__(self, pool: Executor, threads: int) -> None:
        """Use up to so many `threads` of `pool`, which is shut down with this one."""
        self._pool, self._threads = pool, threads
        self._lock = threading.Lock()
        self._jobs: collections.deque[tuple[Future[Any], Callable[[], Any]]] = collections.deque()
        self._busy = 0  # threads that do jobs, or are about to
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
            self._jobs.append((answer, functools.partial(fn, *args, **kwargs)))
            if self._busy == self._threads:
                return answer
            self._busy += 1
        try:
            self._pool.submit(self._work)
        except RuntimeError:  # the interpreter ends
            answer.cancel()
            raise
        return answer

    def help_begin(self, answer: Future[Any]) -> None:
        """Do jobs until that of `answer` is begun: those before it, and it, if no thread does."""
        while not (answer.running() or answer.done()) and self._do_one():
            pass

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more jobs, and wait for those that run if told to."""
        with self._lock:
            self._ended = True
        while cancel_futures:
            try:
                answer, _ = self._jobs.popleft()
            except IndexError:
                break
            answer.cancel()
        self._pool.shutdown(wait)

    def _work(self) -> None:
        while True:
            while self._do_one():
                pass
            with self._lock:
                if not self._jobs:
                    self._busy -= 1
                    return

    def _do_one(self) -> bool:
        """Do the job that came first; whether there was one."""
        try:
            # In no variable: the error of a job holds this frame, and its answer the error.
            answer_with(*self._jobs.popleft())
        except IndexError:
            return False
        return True


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
