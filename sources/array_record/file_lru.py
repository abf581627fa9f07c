"""A cache of open local files, which drops the least recently used.

Invariant: it keeps at most half of the files that the process may open. A pickled copy is empty.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

Opened = TypeVar("Opened")
_MOST_OPEN_FILES: Final = 4096


class OpenFileCache(Generic[Opened]):
    """Caches the results of `open_one` by path. Thread-safe."""

    def __init__(self, open_one: Callable[[str], Opened]) -> None:
        """Open paths with `open_one`, which must be picklable."""
        self._open_one = open_one
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._open: collections.OrderedDict[str, Opened] = collections.OrderedDict()
        self._most = _most_open_files()

    def __getstate__(self) -> Callable[[str], Opened]:
        return self._open_one

    def __setstate__(self, state: Callable[[str], Opened]) -> None:
        self._open_one = state
        self._start()

    @property
    def most(self) -> int:
        """The number of files that are kept open."""
        return self._most

    def get(self, path: str) -> Opened:
        """The open file of `path`, which is opened now if it is not open."""
        with self._lock:
            opened = self._open.get(path)
            if opened is not None:
                self._open.move_to_end(path)
                return opened
        made = self._open_one(path)
        with self._lock:
            opened = self._open.setdefault(path, made)
            # Dropped, not closed: another thread may be reading it. The last reference closes it.
            while len(self._open) > self._most:
                self._open.popitem(last=False)
        return opened


def _most_open_files() -> int:
    try:
        import resource  # not on Windows
    except ImportError:
        return 256
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_OPEN_FILES
    return max(8, min(_MOST_OPEN_FILES, soft // 2))
