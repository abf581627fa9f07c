"""Cancel scopes: end the reads of a run whose result is no longer needed.

The threads of a run wait for networks deep inside sources. Each of them enters the scope of its run,
passes it on to the threads that it starts, and registers with it whatever may take long.

1. Setting a scope ends everything registered with it; whatever is registered later ends at once. A read
   that other runs share continues.
2. Setting a scope neither waits nor takes a lock, so finalizers may do it.
3. Without a scope, nothing changes.
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


class CancelScope:
    """A flag that ends the reads registered with it. Thread-safe."""

    def __init__(self) -> None:
        """Create a scope that is not set."""
        self.is_set = False
        """Whether the registered reads have ended or are about to."""
        self._ends: dict[object, Callable[[], object]] = {}

    def enter(self) -> None:
        """Make this the scope of the current thread."""
        _here.set(self)

    def set(self) -> None:
        """End what is registered, in another thread if one can be started."""
        self.is_set = True
        if self._ends:
            try:
                # Not a thread of `threading`: starting one takes locks.
                _thread.start_new_thread(self._end_all, ())
            except RuntimeError:  # the interpreter ends
                self._end_all()

    def add(self, key: object, end: Callable[[], object]) -> None:
        """Call `end` when the scope is set, unless `key` was removed by then."""
        self._ends[key] = end
        if self.is_set:
            self._end_all()

    def remove(self, key: object) -> None:
        """Forget `key`: its work has ended."""
        self._ends.pop(key, None)

    def _end_all(self) -> None:
        while True:
            try:
                _, end = self._ends.popitem()
            except KeyError:
                return
            end()


_here: Final[ContextVar[CancelScope | None]] = ContextVar("windrow-halt", default=None)


def current_scope() -> CancelScope | None:
    """The scope of this thread or task; None without one."""
    return _here.get()


def stopped() -> ReadError:
    """The error of a read that was ended."""
    return ReadError(
        "the read was cancelled, because its result is no longer needed", is_unanswered=True
    )


def cancel_with_scope(future: Future[Any]) -> None:
    """Cancel a future when the scope of this thread is set."""
    cancel_scope = _here.get()
    if cancel_scope is not None:
        cancel_scope.add(future, future.cancel)
        future.add_done_callback(cancel_scope.remove)


def fail_with_scope(future: Future[Any]) -> None:
    """End a running future with an error when the scope of this thread is set.

    Other code sets such a future by `settle`.
    """
    cancel_scope = _here.get()
    if cancel_scope is not None:
        cancel_scope.add(future, lambda: settle(future, error=stopped()))
        future.add_done_callback(cancel_scope.remove)


def settle(future: Future[Any], value: Any = None, error: BaseException | None = None) -> None:
    """Set a future, unless it has ended."""
    with contextlib.suppress(InvalidStateError):
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


def result_of(shared: Future[T]) -> T:
    """The result of a future that others wait for too. Waits for it, or for the scope of this thread.

    Raises:
        ReadError: If the scope is set.
    """
    if _here.get() is None or shared.done():
        return shared.result()
    own: Future[T] = Future()
    own.set_running_or_notify_cancel()
    fail_with_scope(own)

    def came(ended: Future[T]) -> None:
        error = ended.exception()
        settle(own, None if error is not None else ended.result(), error)

    shared.add_done_callback(came)
    return own.result()
