"""Write-back: files go to the disk while they grow, so that syncing them at their end is short.

The kernel would leave what is written in its cache for seconds: then whoever syncs a file waits for
all of it, and the processor with him. Where the system has no such call nothing is done.
"""

from __future__ import annotations

import contextlib
import os
from types import TracebackType
from typing import Final

# New bytes of a file that are worth a call.
_STEP_BYTES: Final = 4 << 20


def begin_writeback(descriptor: int, first: int, size_bytes: int) -> None:
    """Have bytes `[first, first + size_bytes)` of an open file written to the disk from now on.

    It does not wait, and promises nothing: `os.fsync` does. On Linux "not needed" begins to write
    what is not on the disk yet, and leaves that in the cache.
    """
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):  # a file system that takes no advice
            os.posix_fadvise(descriptor, first, size_bytes, os.POSIX_FADV_DONTNEED)


class Growing:
    """A local file that somebody else writes from its begin to its end. A context manager.

    Args:
        path: Of the file, which is there.
    """

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        self._begun_bytes = 0

    def __enter__(self) -> Growing:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def grew(self) -> None:
        """There may be more of it: have it written, where it is enough for a call."""
        size_bytes = os.fstat(self._descriptor).st_size
        more_bytes = size_bytes - self._begun_bytes
        if more_bytes >= _STEP_BYTES:
            begin_writeback(self._descriptor, self._begun_bytes, more_bytes)
            self._begun_bytes = size_bytes
