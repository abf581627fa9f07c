"""Files of one array in one range of addresses, so that one call copies rows from many of them.

If each file has a map of its own, every row costs a Python slice with the GIL. This module reserves
a range of addresses, without memory, and maps every file at its own place in the range when the
file is first needed. To NumPy the whole range is one array: one call without the GIL gathers rows
from any number of files.

Invariants:
- Addresses are valid only while the range is reserved. The arrays over it keep it reserved, and it
  is given back when the last of them is gone; this module returns only copies.
- Addresses that are not mapped are never touched, since that would kill the process; `ready` says
  which files are mapped.
- A file is mapped once, and only with the size that it must have. If it is cut shorter later, a
  read of the lost part kills the process (SIGBUS): see `shards`.
- All ranges together hold at most `_MOST_FILES` files. A process may have 65,530 maps on Linux,
  and a file takes two: itself and the gap to the next one.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import math
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.sources.base import IntArray
from windrow.sources.zarr.local.codecs import ByteArray

_MOST_FILES: Final = 12_000
# The most for one range; a process has addresses for 2**47 bytes.
_MOST_BYTES: Final = 2**43
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = {"linux": 0x4000, "darwin": 0x40}
_PROT_NONE: Final = 0
# A run costs as much as this many rows of a gather; measured with rows of 4 to 3,072 bytes.
_RUN_ROWS: Final = 8
# Copying at least this much without the GIL costs less than joining it with the GIL.
_LONG_RUN_BYTES: Final = 32 * 2**10
# Threads take parts of this size in turn, since the other thread may start late or not at all.
# Smaller parts cost more waits for the GIL.
_PART_BYTES: Final = 512 * 2**10
# Larger copies bypass the caches and take a quarter longer.
_MOST_COPIED_BYTES: Final = 512 * 2**10


def held_files() -> int:
    """Number of files that the ranges of this process have room for."""
    return sum(region.count for region in _regions)


def reserved(
    count: int, file_bytes: int, row_bytes: int, *, most_files: int | None = None
) -> FileRegion | None:
    """A range of addresses for files; None if this machine or process cannot have one.

    Args:
        count: Number of files; none of them is mapped yet.
        file_bytes: The largest size of a file.
        row_bytes: Bytes of a row.
        most_files: Files in all ranges of this process together; None for the default.
    """
    most_files = _MOST_FILES if most_files is None else most_files
    system = _system()
    if system is None or not count or not file_bytes or not row_bytes:
        return None
    # Several threads can gather rows at multiples of their size into the caller's memory.
    unit = math.lcm(mmap.PAGESIZE, row_bytes)
    if -(-file_bytes // unit) * unit * count > _MOST_BYTES:
        unit = mmap.PAGESIZE
    step = -(-file_bytes // unit) * unit
    if step * count > _MOST_BYTES:
        return None
    with _lock:
        if held_files() + count > most_files:
            return None
        address = system.reserve(step * count)
        if address is None:
            return None
        region = FileRegion(_Range(address, step * count, system), count, step, row_bytes)
        _regions.add(region)
    return region


class _System:
    """The system calls for memory maps."""

    def __init__(self, library: Any, no_reserve: int) -> None:
        self._map: Any = library.mmap
        self._map.restype = ctypes.c_void_p
        number = ctypes.c_int
        size = ctypes.c_size_t
        self._map.argtypes = (ctypes.c_void_p, size, number, number, number, ctypes.c_int64)
        self.unmap: Any = library.munmap
        self.unmap.argtypes = (ctypes.c_void_p, size)
        self._reserving = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve

    def reserve(self, size: int) -> int | None:
        """Address of `size` bytes that take no memory and cannot be read; None if refused."""
        address: int | None = self._map(None, size, _PROT_NONE, self._reserving, -1, 0)
        return None if address == _FAILED else address

    def place(self, address: int, size: int, file: int) -> bool:
        """Map the first `size` bytes of an open file at a reserved address; False if refused."""
        flags = mmap.MAP_SHARED | _MAP_FIXED
        mapped: int | None = self._map(address, size, mmap.PROT_READ, flags, file, 0)
        return mapped != _FAILED


_FAILED: Final = ctypes.c_void_p(-1).value


@functools.cache
def _system() -> _System | None:
    no_reserve = _MAP_NORESERVE.get(sys.platform)
    if no_reserve is None or sys.maxsize < 2**62:
        return None
    try:
        return _System(ctypes.CDLL(None), no_reserve)
    except (OSError, AttributeError):
        return None


class _Range:
    """Reserved addresses, given back when nothing refers to this object any more."""

    def __init__(self, address: int, size: int, system: _System) -> None:
        self.address, self.system = address, system
        # From this NumPy makes a read-only array, which keeps this object alive.
        self.__array_interface__ = {
            "version": 3,
            "data": (address, True),
            "shape": (size,),
            "typestr": "|u1",
        }
        self._given_back = weakref.finalize(self, system.unmap, address, size)
        # A thread may still read when the interpreter ends.
        self._given_back.atexit = False

    def place(self, offset: int, size: int, file: int) -> bool:
        """Map the first `size` bytes of an open file at `offset`; False if the system refuses."""
        if self._given_back.alive:
            if self.system.place(self.address + offset, size, file):
                return True
            # A refusal may leave a hole. Other code may map something into it, which must not be
            # replaced or given back here.
            self._given_back.detach()
        return False


class FileRegion:
    """Files of one array, by number, each mapped at `number * step`. Thread-safe."""

    count: int
    """Number of files that the range has room for."""

    step: int
    """Bytes from the place of one file to the place of the next one."""

    ready: npt.NDArray[np.bool_]
    """Whether each file is mapped, `(count + 1,)`; the last entry, for number -1, is never set."""

    def __init__(self, held: _Range, count: int, step: int, row_bytes: int) -> None:
        """Called by `reserved`."""
        self.count, self.step = count, step
        self.ready = np.zeros(count + 1, np.bool_)
        self._held, self._row_bytes = held, row_bytes
        self._bytes: ByteArray = np.asarray(held)
        size = len(self._bytes)
        self._rows = self._bytes[: size // row_bytes * row_bytes].reshape(-1, row_bytes)
        # The row that begins at each byte, as one value: a view that overlaps itself.
        self._any: npt.NDArray[np.void] = np.ndarray(
            (size - row_bytes + 1,), f"V{row_bytes}", self._bytes, 0, (1,)
        )
        self._lock = threading.Lock()

    def map(self, number: int, path: str, size: int) -> bool:
        """Map a file if it is not mapped; False if it does not fit or the system has no room.

        Args:
            number: In `[0, count)`.
            path: The file.
            size: The size that it must have, in bytes.

        Raises:
            OSError: If it cannot be opened or has another size.
        """
        if size > self.step or not size or not 0 <= number < self.count:
            return False
        with self._lock:
            if self.ready[number]:
                return True
            file = os.open(path, os.O_RDONLY)
            try:
                now = os.fstat(file).st_size
                if now != size:
                    raise OSError(f"it had {size:,} bytes and has {now:,} now")
                self.ready[number] = self._held.place(number * self.step, size, file)
            finally:
                os.close(file)
            return bool(self.ready[number])

    def rows(self, starts: IntArray, threads: int) -> ByteArray:
        """Rows `(n, row_bytes)` in new memory, from files that are all mapped.

        Args:
            starts: Where each row begins: `number * step` plus the place in the file; int64 `(n,)`.
            threads: Threads to copy on, if possible; with 0 or 1 this thread copies.
        """
        size = self._row_bytes
        cut = starts[1:] - starts[:-1] != size
        if (np.count_nonzero(cut) + 1) * _RUN_ROWS <= len(starts):
            return self._in_runs(starts, np.flatnonzero(cut) + 1)
        numbers, rest = np.divmod(starts, size)
        if np.count_nonzero(rest):
            return self._any[starts].view(np.uint8).reshape(-1, size)
        out = np.empty((len(starts), size), np.uint8)
        if threads < 2:
            self._take(numbers, out)
        else:
            step = max(1, _PART_BYTES // size)
            parts = collections.deque(range(0, len(starts), step))
            _together(functools.partial(self._take_parts, parts, step, numbers, out))
        return out

    def _take_parts(
        self, parts: collections.deque[int], step: int, numbers: IntArray, out: ByteArray
    ) -> None:
        while True:
            try:
                first = parts.popleft()
            except IndexError:
                return
            self._take(numbers[first : first + step], out[first : first + step])

    def _take(self, numbers: IntArray, out: ByteArray) -> None:
        np.take(self._rows, numbers, axis=0, out=out, mode="clip")

    def _in_runs(self, starts: IntArray, cuts: IntArray) -> ByteArray:
        """Rows that are mostly neighbours: each run of neighbours is one copy."""
        size = self._row_bytes
        first = np.concatenate(([0], cuts))
        length = np.diff(first, append=len(starts)) * size
        return self.runs(starts[first], length).reshape(-1, size)

    def runs(self, starts: IntArray, sizes: IntArray) -> ByteArray:
        """Runs of bytes joined, in new memory, from files that are all mapped.

        Args:
            starts: Where each run begins: `number * step` plus the place in the file; int64 `(n,)`.
            sizes: Bytes of each run, which lies in one file.
        """
        total = int(sizes.sum())
        if total < len(starts) * _LONG_RUN_BYTES:
            held = self._bytes.data
            runs = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
            joined = bytearray().join([held[start:stop] for start, stop in runs])
            return np.frombuffer(joined, np.uint8)
        out = np.empty(total, np.uint8)
        at_each = (np.cumsum(sizes) - sizes).tolist()
        for at, start, count in zip(at_each, starts.tolist(), sizes.tolist(), strict=True):
            for done in range(0, count, _MOST_COPIED_BYTES):
                stop = min(done + _MOST_COPIED_BYTES, count)
                out[at + done : at + stop] = self._bytes[start + done : start + stop]
        return out


_lock: Final = threading.Lock()
_regions: Final[weakref.WeakSet[FileRegion]] = weakref.WeakSet()


def _together(work: Callable[[], None]) -> None:
    """Run `work`, which takes its parts from a queue, on this thread and on another one."""
    try:
        helped = _helper().submit(work)
    except RuntimeError:  # the interpreter is ending, and no thread starts any more
        work()
        return
    try:
        work()
    finally:
        # If no core was free, the helper has not begun, and nothing is left for it.
        if not helped.cancel():
            helped.result()


@functools.cache
def _helper() -> ThreadPoolExecutor:
    """One thread that copies. Forked processes do not have it, but they may not read Zarr."""
    return ThreadPoolExecutor(1, thread_name_prefix="windrow-copy")
