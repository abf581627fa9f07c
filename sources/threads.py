"""Threads on which arrays are decoded, shared by all arrays of a process.

Invariant: what runs on them waits for no other work that runs on them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, Final

from windrow.sources.process import cores

_lock: Final = threading.Lock()
_pool: ThreadPoolExecutor | None = None


def shared_pool() -> ThreadPoolExecutor:
    """As many threads as there are cores."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(cores(), thread_name_prefix="windrow-zarr")
        return _pool


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
