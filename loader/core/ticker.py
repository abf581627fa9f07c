"""A thread that calls a function of an object from time to time, for as long as the object lives.

Invariant: the thread holds no reference to the object while it waits, and ends with it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

# The longest that stopping waits for a call in progress, which its daemon thread ends then.
_STOP_S: Final = 0.5


class Ticker:
    """Calls a function of an object at times that the function chooses.

    Args:
        target: The object.
        call: Takes it, and returns the seconds until the next call. It must not raise.
        name: The name of the thread.

    Example:
        >>> import threading
        >>> from windrow.core.ticker import Ticker
        >>> class Target:
        ...     called = threading.Event()
        >>> def call(target):
        ...     target.called.set()
        ...     return 60.0
        >>> target = Target()
        >>> ticker = Ticker(target, call, "example")
        >>> target.called.wait(10)
        True
        >>> ticker.stop()
    """

    def __init__(self, target: T, call: Callable[[T], float], name: str) -> None:
        self._stopped = threading.Event()
        args = weakref.ref(target), call, self._stopped
        self._thread = threading.Thread(target=_tick, args=args, name=name, daemon=True)
        weakref.finalize(target, self._stopped.set)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait a little for a call in progress."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_STOP_S)


def _tick(target: weakref.ref[T], call: Callable[[T], float], stopped: threading.Event) -> None:
    wait_s = 0.0
    while not stopped.wait(wait_s):
        alive = target()
        if alive is None:
            return
        wait_s = call(alive)
        del alive
