"""Shared memory without a name in any file system, and an allocator for its slots.

Contract:
1. Nothing is left behind, however and whenever a process ends. The memory has no name, so the
   system frees it with its last descriptor and mapping.
2. A mapping lives as long as any view of it; closing the memory early harms no view.
3. If the system refuses the memory, half of it is requested, and so on, with a warning, and in the
   end none is used: a full file system is never a crash.
4. Pages are touched only when they are written, except where a file system must reserve them.
"""

from __future__ import annotations

import bisect
import collections
import errno
import functools
import mmap
import os
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from windrow.core.buffer_pool import lent
from windrow.errors import ClosedError, RecordIndexError
from windrow.transforms.options import MIB

Bytes = npt.NDArray[np.uint8]
Maker = Callable[[int], int]

_MEMORY_FOLDER = "/dev/shm"
_PAGE_BYTES = mmap.PAGESIZE
# Less memory cannot hold the arrays of a few batches, and sockets are as good.
_LEAST_BYTES = MIB
# Errors that a smaller request may avoid; others mean that this kind of memory is unavailable.
_TOO_LITTLE_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.ENOMEM})


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
    def create(cls, size_bytes: int, *, makers: Sequence[Maker] | None = None) -> Self:
        """Make memory of `size_bytes`, all zero; if the system has less, make less and warn.

        Each attempt requests half as much, down to 1 MiB; if all fail the size is 0.

        Args:
            size_bytes: The size; with 0 there is no memory, and no warning.
            makers: Functions from a size to the descriptor of such memory, the best first; None
                for `anonymous` if the system has it, then `unlinked` in memory and on disk.
        """
        if size_bytes <= 0:
            return cls(os.open(os.devnull, os.O_RDONLY), 0)
        reason: OSError | None = None
        for make in _makers() if makers is None else makers:
            for size in _halves(size_bytes):
                try:
                    found = cls._made(make, size)
                except OSError as error:
                    # The first one says why there is less than was requested.
                    reason = reason or error
                    if error.errno not in _TOO_LITTLE_ROOM:
                        break
                    continue
                if size < size_bytes:
                    _warn_of_less(size_bytes, size, reason)
                return found
        _warn_of_less(size_bytes, 0, reason)
        return cls(os.open(os.devnull, os.O_RDONLY), 0)

    @classmethod
    def attach(cls, descriptor: int, size_bytes: int) -> Self:
        """Map memory that another process created; the object owns `descriptor` from now on."""
        return cls(descriptor, size_bytes)

    @classmethod
    def _made(cls, make: Maker, size_bytes: int) -> Self:
        descriptor = make(size_bytes)
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


def _makers() -> list[Maker]:
    on_disk = functools.partial(unlinked, folder=None)
    if sys.platform != "linux":
        return [on_disk]
    return [anonymous, functools.partial(unlinked, folder=_MEMORY_FOLDER), on_disk]


def _halves(size_bytes: int) -> Iterator[int]:
    yield size_bytes
    while (size_bytes := size_bytes // 2) >= _LEAST_BYTES:
        yield size_bytes


def anonymous(size_bytes: int) -> int:
    """Return the descriptor of memory that belongs to no file system.

    Raises:
        OSError: If memory is short, or the system does not offer or permit it.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    descriptor = os.memfd_create("windrow", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size_bytes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def unlinked(size_bytes: int, *, folder: str | None) -> int:
    """Return the descriptor of an unnamed file in `folder`; None is the folder of temporary files.

    Its space is reserved: on a full file system, a write to the mapping would raise SIGBUS.

    Raises:
        OSError: If space is short, or the folder takes no files.
    """
    # On Linux it never has a name; a process that is killed leaves nothing.
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        _reserve(file.fileno(), size_bytes)
        return os.dup(file.fileno())


def _reserve(descriptor: int, size_bytes: int) -> None:
    if sys.platform != "darwin":
        os.posix_fallocate(descriptor, 0, size_bytes)
        return
    # macOS has no such call: free space at this moment has to suffice.
    found = os.fstatvfs(descriptor)
    if found.f_bavail * found.f_frsize < size_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(descriptor, size_bytes)


def _warn_of_less(asked_bytes: int, found_bytes: int, reason: OSError | None) -> None:
    why = reason.strerror if reason else "unknown reason"
    if found_bytes:
        text = (
            f"shared memory: asked for {asked_bytes:,} bytes, got {found_bytes:,} ({why}); raise"
            " the limit on memory or file size of this process or container, or ask for less with"
            f" MultiprocessingOptions(shared_bytes={found_bytes})"
        )
    else:
        text = (
            f"shared memory: asked for {asked_bytes:,} bytes, got none ({why}); arrays go through"
            " pipes, more slowly. Make room in memory or in the folder of temporary files, or set"
            " MultiprocessingOptions(shared_bytes=0) to use none"
        )
    warnings.warn(text, RuntimeWarning, stacklevel=3)
