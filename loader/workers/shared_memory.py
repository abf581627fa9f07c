"""Shared memory without a name in any file system, and an allocator for its slots.

Contract:
1. Nothing is left behind, however and whenever a process ends. The memory has no name, so the
   system frees it with its last descriptor and mapping.
2. A mapping lives as long as any view of it; closing the memory early harms no view.
3. If the system refuses the memory, none is used, with a warning.
4. Pages are touched only when they are written.
"""

from __future__ import annotations

import bisect
import collections
import errno
import mmap
import os
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable
from typing import Self

import numpy as np
import numpy.typing as npt

from windrow.core.buffer_pool import lent
from windrow.errors import ClosedError, RecordIndexError

Bytes = npt.NDArray[np.uint8]

_PAGE_BYTES = mmap.PAGESIZE


class SharedMemory:
    """Memory of a fixed size that every process with its descriptor can map.

    `create` or `attach` make one. It closes itself when it is dropped.

    Attributes:
        size_bytes: The size; 0 if no memory is available, and arrays go through sockets.
        descriptor: Its open file descriptor, for a process that attaches. Children do not inherit
            it unless it is passed to them. With size 0 it belongs to an empty file.
    """

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self._whole = _mapped(descriptor, size_bytes)
        self.descriptor = descriptor
        self.size_bytes = size_bytes
        self._close_once = weakref.finalize(self, os.close, descriptor)
        self._close_once.atexit = False

    @classmethod
    def create(cls, size_bytes: int) -> Self:
        """Make memory of `size_bytes`, all zero; if the system refuses it, make none and warn.

        Args:
            size_bytes: The size; with 0 there is no memory, and no warning.
        """
        if size_bytes > 0:
            try:
                return cls._made(size_bytes)
            except OSError as error:
                warnings.warn(
                    f"shared memory: asked for {size_bytes:,} bytes, got none ({error.strerror}); arrays"
                    " go through sockets, more slowly. Raise the limit on memory or file size of this"
                    " process or container, or set a smaller MultiprocessingOptions(shared_bytes=...)",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return cls(os.open(os.devnull, os.O_RDONLY), 0)

    @classmethod
    def attach(cls, descriptor: int, size_bytes: int) -> Self:
        """Map memory that another process created; the object owns `descriptor` from now on."""
        return cls(descriptor, size_bytes)

    @classmethod
    def _made(cls, size_bytes: int) -> Self:
        descriptor = unnamed_file(size_bytes)
        try:
            return cls(descriptor, size_bytes)
        except BaseException:
            os.close(descriptor)
            raise

    def view(self, start: int, stop: int) -> Bytes:
        """Bytes `[start, stop)`: uint8 `(stop - start,)`, valid as long as the array lives.

        Raises:
            ClosedError: If this object is closed, or is of size 0.
            RecordIndexError: If the memory does not have these bytes.
        """
        return self._checked(start, stop)[start:stop]

    def lend(self, start: int, stop: int, back: Callable[[], object]) -> Bytes:
        """The same as `view`; `back` is called when the last view of the bytes dies.

        Args:
            start: First byte.
            stop: End of the bytes, at most `size_bytes`.
            back: Called once, in any thread at any line, where the last view dies. So it must not
                wait for a lock. It is not called when the interpreter exits.

        Raises:
            ClosedError: If this object is closed, or is of size 0.
            RecordIndexError: If the memory does not have these bytes.
        """
        return lent(self._checked(start, stop)[start:stop], lambda _: back())

    def close(self) -> None:
        """Close the descriptor; the mapping ends with its last view. Closing twice is fine."""
        self._whole = np.empty(0, np.uint8)
        self.size_bytes = 0
        self.descriptor = -1
        self._close_once()

    def _checked(self, start: int, stop: int) -> Bytes:
        # Read once: another thread may close, and an access outside a mapping would crash.
        whole = self._whole
        if 0 <= start <= stop <= whole.size:
            return whole
        if not whole.size:
            raise ClosedError(
                f"shared memory: bytes [{start}, {stop}) of a memory that is closed or of size 0"
            )
        raise RecordIndexError(
            f"shared memory: bytes [{start}, {stop}) of a memory of {whole.size} bytes; choose"
            " 0 <= start <= stop <= size_bytes"
        )


class SlotAllocator:
    """Allocates the slots of a memory.

    Invariant: slots in use are whole pages and do not overlap; all free memory is in `_free`
    (disjoint, sorted, not adjacent), or on its way in `_returned`.

    One thread takes slots. Any thread may give one back, at any line of code: it is one append.

    Args:
        size_bytes: Size of the memory; a last page that is not whole stays unused.
    """

    def __init__(self, size_bytes: int) -> None:
        whole = size_bytes // _PAGE_BYTES * _PAGE_BYTES
        self._free: list[tuple[int, int]] = [(0, whole)] if whole else []
        self._sizes: dict[int, int] = {}
        self._used_bytes = 0
        self._returned: collections.deque[int] = collections.deque()

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages in use."""
        self._take_back()
        return self._used_bytes

    def take(self, size_bytes: int) -> int | None:
        """Offset of a new slot of at least `size_bytes`, page-aligned; None if it does not fit."""
        self._take_back()
        size = _pages(size_bytes)
        # The lowest: pages that were never touched have higher addresses.
        for at, (start, stop) in enumerate(self._free):
            if stop - start >= size:
                self._free[at : at + 1] = [(start + size, stop)] if start + size < stop else []
                self._sizes[start] = size
                self._used_bytes += size
                return start
        return None

    def give(self, offset: int) -> None:
        """Take the slot at `offset` back. Thread-safe, and waits for nothing."""
        self._returned.append(offset)

    def shrink(self, offset: int, size_bytes: int) -> None:
        """Make the slot at `offset` free from its first `size_bytes` on, in whole pages."""
        size = _pages(size_bytes)
        if size < self._sizes[offset]:
            self._free_again(offset + size, self._sizes[offset] - size)
            self._sizes[offset] = size

    def _take_back(self) -> None:
        while self._returned:
            offset = self._returned.popleft()
            self._free_again(offset, self._sizes.pop(offset))

    def _free_again(self, offset: int, size: int) -> None:
        self._used_bytes -= size
        self._join(offset, offset + size)

    def _join(self, start: int, stop: int) -> None:
        at = bisect.bisect(self._free, (start, stop))
        first, last = at, at
        if at < len(self._free) and self._free[at][0] == stop:
            stop, last = self._free[at][1], at + 1
        if at and self._free[at - 1][1] == start:
            start, first = self._free[at - 1][0], at - 1
        self._free[first:last] = [(start, stop)]


def _pages(size_bytes: int) -> int:
    """Bytes of the pages that hold `size_bytes`, at least one page."""
    return max(1, -(-size_bytes // _PAGE_BYTES)) * _PAGE_BYTES


def _mapped(descriptor: int, size_bytes: int) -> Bytes:
    if not size_bytes:
        return np.empty(0, np.uint8)
    return np.frombuffer(mmap.mmap(descriptor, size_bytes), np.uint8)


def unnamed_file(size_bytes: int) -> int:
    """Return the descriptor of a file without a name: in memory on Linux, else in the temporary folder.

    Raises:
        OSError: If memory or space is short, or the system does not permit it.
    """
    if sys.platform == "linux":
        descriptor = os.memfd_create("windrow", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile(buffering=0) as file:
            descriptor = os.dup(file.fileno())
    try:
        found = os.fstatvfs(descriptor)
        # A write to a mapping of a file on a full disk is a crash.
        if sys.platform != "linux" and found.f_bavail * found.f_frsize < size_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(descriptor, size_bytes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
