"""Open files, by path: the least recently used are let go of first.

Invariant: at most half of the files that the process may have open are kept. Pickles as none open.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

Opened = TypeVar("Opened")
_MOST_OPEN_FILES: Final = 4096


class OpenFiles(Generic[Opened]):
    """What `open_one` made of paths. Thread-safe."""

    def __init__(self, open_one: Callable[[str], Opened]) -> None:
        """Keep what `open_one` makes of a path; it must be picklable."""
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

    def get(self, path: str) -> Opened:
        """What is open for `path`, or is opened now."""
        with self._lock:
            found = self._open.get(path)
            if found is not None:
                self._open.move_to_end(path)
                return found
        made = self._open_one(path)
        with self._lock:
            found = self._open.setdefault(path, made)
            # Dropped, not closed: another thread may be reading with it, and the last one to let
            # go of it closes it.
            while len(self._open) > self._most:
                self._open.popitem(last=False)
        return found


def _most_open_files() -> int:
    try:
        import resource  # not on Windows
    except ImportError:
        return 256
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_OPEN_FILES
    return max(8, min(_MOST_OPEN_FILES, soft // 2))
