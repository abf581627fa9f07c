"""Shared memory: one mapping that several processes see, which has no name in any file system.

Contract:
1. Nothing is left behind, however and whenever a process ends: the memory has no name, and the
   system frees it with the last descriptor and mapping of it.
2. A mapping lives as long as any view of it; closing it early harms no view.
3. Memory that cannot be had is asked for in halves, with a warning, and in the end done without: a
   full file system is never a crash.
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

from windrow.errors import ClosedError, RecordIndexError
from windrow.sources.recycled import lent
from windrow.transforms.options import MIB

Bytes = npt.NDArray[np.uint8]
Maker = Callable[[int], int]

_MEMORY_FOLDER = "/dev/shm"
_PAGE_BYTES = mmap.PAGESIZE
# Below this the arrays of a few batches do not fit, and pipes are as good.
_LEAST_BYTES = MIB
# What less memory may cure; other errors mean that this kind of memory is not to be had at all.
_TOO_LITTLE_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.ENOMEM})


class SharedMemory:
    """Memory of a fixed size that every process with its descriptor can map.

    Made by `create` or `attach`. An object that is dropped is closed.

    Attributes:
        size_bytes: The size; 0 where no memory could be had, and arrays go through pipes.
        descriptor: An open file descriptor of it, to be passed to a process that attaches. It is
            not inherited by itself. With size 0 it stands for nothing, but may be passed as well.
    """

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self._whole = _mapped(descriptor, size_bytes)
        self.descriptor = descriptor
        self.size_bytes = size_bytes
        self._close_once = weakref.finalize(self, os.close, descriptor)
        self._close_once.atexit = False

    @classmethod
    def create(cls, size_bytes: int, *, makers: Sequence[Maker] | None = None) -> Self:
        """New memory of `size_bytes`, all zero; of less, with a warning, where there is less room.

        It is asked for in halves down to 1 MiB, and is of size 0 if even that cannot be had.

        Args:
            size_bytes: The size; with 0 there is no memory, and no warning.
            makers: Functions from a size to the descriptor of such memory, the best first; None
                for `anonymous` where the system has it, then `unlinked` in memory and on disk.
        """
        if size_bytes <= 0:
            return cls(os.open(os.devnull, os.O_RDONLY), 0)
        reason: OSError | None = None
        for make in _makers() if makers is None else makers:
            for size in _halves(size_bytes):
                try:
                    found = cls._made(make, size)
                except OSError as error:
                    # The first: it says why there is less than was asked for.
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
        """The memory that another process created, here; `descriptor` is this object's from now."""
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
        """Bytes `[start, stop)`: uint8 `(stop - start,)`, valid as long as it lives.

        Raises:
            ClosedError: If this object is closed, or is of size 0.
            RecordIndexError: If there are no such bytes.
        """
        return self._checked(start, stop)[start:stop]

    def lend(self, start: int, stop: int, back: Callable[[], object]) -> Bytes:
        """Bytes `[start, stop)` as `view` gives them; `back` is called when their last view dies.

        Args:
            start: First byte.
            stop: End of the bytes, at most `size_bytes`.
            back: Called once, in whatever thread and at whatever line the last view dies, so it
                must not wait for a lock. It is not called when the interpreter exits.

        Raises:
            ClosedError: If this object is closed, or is of size 0.
            RecordIndexError: If there are no such bytes.
        """
        return lent(self._checked(start, stop)[start:stop], lambda _: back())

    def close(self) -> None:
        """Closes the descriptor; the mapping goes with the last view of it. Closing twice is fine."""
        self._whole = np.empty(0, np.uint8)
        self.size_bytes = 0
        self.descriptor = -1
        self._close_once()

    def _checked(self, start: int, stop: int) -> Bytes:
        # Read once: another thread may close, and addresses outside a mapping would be a crash.
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


class Blocks:
    """Which parts of a memory are in use.

    Invariant: blocks in use are whole pages and do not overlap; all free memory is in `_free`
    (disjoint, sorted, not adjacent), in `_recent`, or on its way in `_given`.

    One thread takes; any thread may give back, at any line of any code, since giving is one append.

    Args:
        size_bytes: Size of the memory; what is left over after the last whole page is not used.
    """

    def __init__(self, size_bytes: int) -> None:
        whole = size_bytes // _PAGE_BYTES * _PAGE_BYTES
        self._free: list[tuple[int, int]] = [(0, whole)] if whole else []
        self._sizes: dict[int, int] = {}
        self._used_bytes = 0
        self._given: collections.deque[int] = collections.deque()
        # Offset and size of what came back since the last search, the newest last.
        self._recent: list[tuple[int, int]] = []

    @property
    def used_bytes(self) -> int:
        """Bytes of the pages in use."""
        self._take_back()
        return self._used_bytes

    def take(self, size_bytes: int) -> int | None:
        """Offset of a block of at least `size_bytes` that starts on a page; None if none is free."""
        self._take_back()
        size = max(1, -(-size_bytes // _PAGE_BYTES)) * _PAGE_BYTES
        offset = self._newest(size)
        if offset is None:
            offset = self._searched(size)
        if offset is None:
            return None
        self._sizes[offset] = size
        self._used_bytes += size
        return offset

    def give(self, offset: int) -> None:
        """Takes the block at `offset` back. Thread-safe, and waits for nothing."""
        self._given.append(offset)

    def _take_back(self) -> None:
        while self._given:
            offset = self._given.popleft()
            size = self._sizes.pop(offset)
            self._used_bytes -= size
            self._recent.append((offset, size))

    def _newest(self, size: int) -> int | None:
        """The block of this size that came back last: its pages are the warmest."""
        for at in range(len(self._recent) - 1, -1, -1):
            if self._recent[at][1] == size:
                return self._recent.pop(at)[0]
        return None

    def _searched(self, size: int) -> int | None:
        """The lowest room of this size: pages that were never touched are farther up."""
        for offset, length in self._recent:
            self._join(offset, offset + length)
        self._recent.clear()
        for at, (start, stop) in enumerate(self._free):
            if stop - start >= size:
                self._free[at : at + 1] = [(start + size, stop)] if start + size < stop else []
                return start
        return None

    def _join(self, start: int, stop: int) -> None:
        at = bisect.bisect(self._free, (start, stop))
        first, last = at, at
        if at < len(self._free) and self._free[at][0] == stop:
            stop, last = self._free[at][1], at + 1
        if at and self._free[at - 1][1] == start:
            start, first = self._free[at - 1][0], at - 1
        self._free[first:last] = [(start, stop)]


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
    """Descriptor of memory that is a file of no file system.

    Raises:
        OSError: If there is no room, or the system does not offer or permit it.
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
    """Descriptor of a file without a name in `folder`, or where temporary files go.

    Its space is reserved: on a full file system, writing to the mapping would be a SIGBUS.

    Raises:
        OSError: If there is no room, or the folder takes no files.
    """
    # Linux makes it without a name from the start; a process that is killed leaves nothing.
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        _reserve(file.fileno(), size_bytes)
        return os.dup(file.fileno())


def _reserve(descriptor: int, size_bytes: int) -> None:
    if sys.platform != "darwin":
        os.posix_fallocate(descriptor, 0, size_bytes)
        return
    # macOS cannot reserve by a call of POSIX: that there is room now has to do.
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
            " MultiprocessingOptions(shared_bytes=0) to do without"
        )
    warnings.warn(text, RuntimeWarning, stacklevel=3)
