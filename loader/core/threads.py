"""Pools of daemon threads, calls that an event loop awaits, and futures made of others.

Invariant: a job of a pool never waits for another job of that pool. A job that never returns keeps
neither an event loop nor the end of the interpreter waiting. (The threads of `concurrent.futures` are
joined at the end.)
"""

from __future__ import annotations

import collections
import contextvars
import functools
import itertools
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Executor, Future
from types import TracebackType
from typing import Any, Final, TypeVar

from windrow.core.machine import usable_cores
from windrow.core.native_read import NativeRead

Given = TypeVar("Given")
Made = TypeVar("Made")

# Seconds after which an idle thread ends.
_IDLE_S: Final = 2.0


def answer_with(answer: Future[Any], call: Callable[[], Any]) -> None:
    """Call unless the future was cancelled, and set the future's result or exception."""
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(call())
    except BaseException as error:
        answer.set_exception(error)
        del answer  # the error holds this frame, and the answer holds the error


class DaemonPool(Executor):
    """A first-in, first-out pool of daemon threads, in which a waiting thread runs queued jobs itself.

    A sleeping thread wakes up late: with short jobs that costs a twentieth of the work of two cores.
    Threads start when a job finds no idle thread, and end after some idle time.

    As a context it waits for its calls at the end. An interrupt leaves those in progress to their threads.
    """

    def __init__(
        self, most: int | None, name: str, enter: Callable[[], None] = lambda: None
    ) -> None:
        """Use up to `most` threads, or one for each job; each new thread first calls `enter`."""
        self._most, self._name, self._enter, self._numbers = most, name, enter, itertools.count()
        self._lock = threading.Lock()
        self._jobs: collections.deque[tuple[Future[Any], Callable[[], Any]]] = collections.deque()
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._idle = 0  # threads that wait, without those that are about to wake
        self._threads: set[threading.Thread] = set()
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
            if self._idle:
                self._idle -= 1
                self._wake.put(None)
            elif len(self._threads) != self._most:
                self._start_thread(answer)
        return answer

    def _start_thread(self, answer: Future[Any]) -> None:
        name = f"{self._name}_{next(self._numbers)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter ends
            answer.cancel()
            raise
        self._threads.add(thread)

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

    def help_begin(self, answer: Future[Any]) -> None:
        """Run queued jobs up to and including the job of `answer`, unless a thread has begun it."""
        while not (answer.running() or answer.done()) and self._do_one():
            pass

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more jobs; wait for the running ones if `wait` is set."""
        with self._lock:
            self._ended = True
            for _ in range(self._idle):
                self._wake.put(None)
            self._idle, threads = 0, list(self._threads)
        if cancel_futures:
            left = self._jobs.copy()  # in one step, as threads take jobs
            self._jobs.clear()
            for answer, _ in left:
                answer.cancel()
        for thread in threads if wait else ():
            thread.join()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        is_interrupt = kind is not None and not issubclass(kind, Exception)
        self.shutdown(wait=not is_interrupt, cancel_futures=is_interrupt)

    def _work(self) -> None:
        self._enter()
        while self._waits_for_jobs():
            while self._do_one():
                pass

    def _waits_for_jobs(self) -> bool:
        """Wait until there may be a job; False if this thread is to end."""
        with self._lock:
            if self._jobs:
                return True
            if self._ended:
                self._threads.discard(threading.current_thread())
                return False
            self._idle += 1
        try:
            self._wake.get(timeout=_IDLE_S)
        except queue.Empty:
            with self._lock:
                if self._idle:
                    self._idle -= 1
                    self._threads.discard(threading.current_thread())
                    return False
            self._wake.get()  # the last thread that waited was woken just now
        return True

    def _do_one(self) -> bool:
        """Run the oldest job, and return whether there was one."""
        try:
            # Not in a variable: the error of a job holds this frame, and its answer holds the error.
            answer_with(*self._jobs.popleft())
        except IndexError:
            return False
        return True


@functools.cache
def shared_pool() -> DaemonPool:
    """Return the pool of the process that decodes arrays, with one thread per core."""
    return DaemonPool(usable_cores(), "windrow-zarr")


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
