"""Executors whose waiting threads work, and futures made of others.

Invariant: a job of a pool never waits for another job of that pool.
"""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Executor, Future
from typing import Any, TypeVar

from windrow.core.native_read import NativeRead

Given = TypeVar("Given")
Made = TypeVar("Made")


def answer_with(answer: Future[Any], call: Callable[[], Any]) -> None:
    """Call unless the future was cancelled, and set the future's result or exception."""
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(call())
    except BaseException as error:
        answer.set_exception(error)
        del answer  # the error holds this frame, and the answer holds the error


class HelpedPool(Executor):
    """A first-in, first-out pool in which a waiting thread runs queued jobs itself.

    A sleeping thread wakes up late: with short jobs that costs a twentieth of the work of two cores.
    """

    def __init__(self, pool: Executor, threads: int) -> None:
        """Use up to `threads` threads of `pool`, which is shut down with this one."""
        self._pool, self._threads = pool, threads
        self._lock = threading.Lock()
        self._jobs: collections.deque[tuple[Future[Any], Callable[[], Any]]] = collections.deque()
        self._busy = 0  # threads that do jobs, or are about to
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
        """Run queued jobs up to and including the job of `answer`, unless a thread has begun it."""
        while not (answer.running() or answer.done()) and self._do_one():
            pass

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more jobs; wait for the running ones if `wait` is set."""
        with self._lock:
            self._ended = True
        if cancel_futures:
            left = self._jobs.copy()  # in one step, as threads take jobs
            self._jobs.clear()
            for answer, _ in left:
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
        """Run the oldest job, and return whether there was one."""
        try:
            # Not in a variable: the error of a job holds this frame, and its answer holds the error.
            answer_with(*self._jobs.popleft())
        except IndexError:
            return False
        return True


class Ends:
    """Joins the ends of several reads: the last one to end sets `done`. Thread-safe."""

    def __init__(
        self, count: int, failed: Callable[[Mapping[int, BaseException]], BaseException]
    ) -> None:
        """Wait for `count` ends; `failed` makes one error of the errors of reads, by place, ascending."""
        self.done: Future[None] = Future()
        self.done.set_running_or_notify_cancel()  # it cannot be cancelled any more
        self._left, self._failed = count, failed
        self._errors: dict[int, BaseException] = {}
        self._lock = threading.Lock()
        if not count:
            self.done.set_result(None)

    def end(self, place: int, error: BaseException | None) -> None:
        """Note that the read at `place` ended, with an error or None."""
        with self._lock:
            if error is not None:
                self._errors[place] = error
            self._left -= 1
            if self._left:
                return
        if not self._errors:
            self.done.set_result(None)
        else:
            errors, self._errors = dict(sorted(self._errors.items())), {}
            self.done.set_exception(self._failed(errors))


class InlineExecutor(Executor):
    """Runs each submitted call immediately, in the submitting thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call `fn`, and return a finished future of its result."""
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


def then(future: Future[Given], change: Callable[[Future[Given]], Made]) -> Future[Made]:
    """Return a future of `change(future)`, called when `future` is done.

    `change` runs in the thread that ends the future, or asks for the result of a read of the core, so
    it must be short. The returned future
    cannot be cancelled.
    """
    if isinstance(future, NativeRead):
        return future.then(change)
    made: Future[Made] = Future()
    made.set_running_or_notify_cancel()

    def end(done: Future[Given]) -> None:
        try:
            made.set_result(change(done))
        except CancelledError as error:  # its frames would hold what was read ahead
            made.set_exception(error.with_traceback(None))
        except BaseException as error:
            made.set_exception(error)

    future.add_done_callback(end)
    return made
