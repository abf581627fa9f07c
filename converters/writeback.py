"""Write-back: files go to the disk while they grow, so that syncing them at their end is short.

The kernel would leave what is written in its cache for seconds: then whoever syncs a file waits for
all of it, and the processor with him. Where the system has no such call nothing is done.

Invariant: what a file holds, and when it is safe, does not depend on this: `os.fsync` alone promises.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Final

# New bytes of a file that are worth a call.
_STEP_BYTES: Final = 4 << 20


def begin_writeback(descriptor: int, first: int, size_bytes: int) -> None:
    """Have bytes `[first, first + size_bytes)` of an open file written to the disk from now on.

    It does not wait. On Linux "not needed" begins to write what is not on the disk yet, and leaves
    that in the cache.
    """
    advise = getattr(os, "posix_fadvise", None)
    if advise is not None:
        with contextlib.suppress(OSError):  # a file system that takes no advice
            advise(descriptor, first, size_bytes, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def growing(path: str) -> Iterator[Callable[[], None]]:
    """While somebody else writes the local file at `path`, which is there, from begin to end.

    Yields:
        A function to call when there may be more of it: that is written, if it is worth a call.

    Raises:
        OSError: If the file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY)
    begun_bytes = 0

    def grew() -> None:
        nonlocal begun_bytes
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes - begun_bytes >= _STEP_BYTES:
            begin_writeback(descriptor, begun_bytes, size_bytes - begun_bytes)
            begun_bytes = size_bytes

    try:
        yield grew
    finally:
        os.close(descriptor)
