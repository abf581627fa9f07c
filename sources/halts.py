"""Halts: telling who waits for a network that nobody wants any more what it waits for.

The threads of a run wait deep inside of sources. A thread that works for somebody knows their halt,
what it begins in other threads knows it too, and what may take long is registered with it.

1. Once a halt is set, all that is registered with it ends, and what is registered later ends at
   once. What was read for others as well goes on.
2. To set it waits for nothing and takes no lock, so that finalizers may.
3. Where there is no halt, nothing changes.
"""

from __future__ import annotations

import _thread
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from windrow.errors import ReadError

T = TypeVar("T")


class Halt:
    """A wish that reads end. Thread-safe."""

    def __init__(self) -> None:
        """Nothing is to end yet."""
        self._is_set = False
        self._ends: dict[object, Callable[[], object]] = {}

    @property
    def is_set(self) -> bool:
        """Whether what is registered has ended, or is about to."""
        return self._is_set

    def enter(self) -> None:
        """From now on this thread works for those who may set this halt."""
        _here.set(self)

    def set(self) -> None:
        """End what is registered, in another thread if there can be one."""
        self._is_set = True
        if self._ends:
            try:
                # Not a thread of `threading`: to start one takes locks.
                _thread.start_new_thread(self._end_all, ())
            except RuntimeError:  # the interpreter ends
                self._end_all()

    def add(self, key: object, end: Callable[[], object]) -> None:
        """Call `end` when the halt is set, unless `key` was removed by then."""
        self._ends[key] = end
        if self._is_set:
            self._end_all()

    def remove(self, key: object) -> None:
        """What was added has ended."""
        self._ends.pop(key, None)

    def _end_all(self) -> None:
        while True:
            try:
                _, end = self._ends.popitem()
            except KeyError:
                return
            end()


_here: Final[ContextVar[Halt | None]] = ContextVar("windrow-halt", default=None)


def halt_here() -> Halt | None:
    """The halt of those whom this thread, or task, works for."""
    return _here.get()


def stopped() -> ReadError:
    """The error of a read that was ended."""
    return ReadError("the read was ended, since nobody wants any more what it was for")


def cancel_with_halt(future: Future[Any]) -> None:
    """Cancel a future when the halt of this thread is set."""
    halt = _here.get()
    if halt is not None:
        halt.add(future, future.cancel)
        future.add_done_callback(halt.remove)


def fail_with_halt(future: Future[Any]) -> None:
    """Have a future that runs end with an error when the halt of this thread is set.

    Who sets it otherwise does so by `settle`.
    """
    halt = _here.get()
    if halt is not None:
        halt.add(future, lambda: settle(future, error=stopped()))
        future.add_done_callback(halt.remove)


def settle(future: Future[Any], value: Any = None, error: BaseException | None = None) -> None:
    """Set a future, unless it has ended."""
    with contextlib.suppress(InvalidStateError):
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


def result_of(shared: Future[T]) -> T:
    """What a future has that others wait for too. Waits until then, or the halt of this thread.

    Raises:
        ReadError: If the halt is set.
    """
    if _here.get() is None or shared.done():
        return shared.result()
    own: Future[T] = Future()
    own.set_running_or_notify_cancel()
    fail_with_halt(own)

    def came(ended: Future[T]) -> None:
        error = ended.exception()
        settle(own, None if error is not None else ended.result(), error)

    shared.add_done_callback(came)
    return own.result()
