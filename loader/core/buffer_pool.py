"""Buffer pool: memory of large arrays that is used again.

malloc returns an array of more than 32 MiB to the system when it is freed, and mostly also an array of
a few MiB that another thread than its maker frees. The system must clear the pages of the next array,
which takes as long as filling it: batches of 25 MB were two to three times slower. Memory of such
arrays waits here for the next array of its size. It is the system's own: what is given up goes back at
once, where malloc would keep the holes between other arrays.

Invariant: the pool keeps memory only once nothing refers to it, and keeps little at a time.
"""

from __future__ import annotations

import collections
import contextlib
import math
import mmap
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

ALIGNMENT: Final = 64
"""What JAX takes as it is, on CPU devices, begins at a multiple of this."""

# A small array is copied faster than it is aligned.
_ALIGNED_BYTES: Final = 1 << 12
_LARGE_BYTES: Final = 1 << 19
# From this size on NumPy, too, asks for large pages: they are cleared and found faster.
_HUGE_BYTES: Final = 4 << 20
# Sizes are rounded up, so that arrays of about one size use the same memory.
_STEP_BYTES: Final = 1 << 18
_LARGEST_BYTES: Final = 170 << 20
# More than a few arrays wait only if they are small.
_MOST_WAITING: Final = 32
_FEW: Final = 3
_MOST_BYTES: Final = 64 << 20

# Filled by finalizers, in any thread: a deque needs no lock for that.
_waiting: Final[collections.deque[Bytes]] = collections.deque(maxlen=_MOST_WAITING)


def empty(shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an uninitialized array, as `np.empty` does; a large one may reuse memory.

    From some kB on its address is a multiple of `ALIGNMENT`.
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size < _ALIGNED_BYTES or kind.hasobject:
        return np.empty(shape, kind)
    if size < _LARGE_BYTES or size > _LARGEST_BYTES:
        return np.ndarray(shape, kind, _aligned(size))
    rounded = -(-size // _STEP_BYTES) * _STEP_BYTES
    memory = _taken(rounded)
    if memory is None:
        memory = _mapped(rounded)
    return np.ndarray(shape, kind, lent(memory, _wait))


def _aligned(size_bytes: int) -> Bytes:
    memory = np.empty(size_bytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size_bytes]


def returned(shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an uninitialized array, whose memory the system gets back once nothing refers to it.

    malloc would keep the memory of up to 32 MiB that lies between other arrays.
    """
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size < _LARGE_BYTES or kind.hasobject:
        return np.empty(shape, kind)
    return np.ndarray(shape, kind, _mapped(size))


def _mapped(size_bytes: int) -> Bytes:
    if sys.platform == "win32":
        return _aligned(size_bytes)
    found = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)
    if size_bytes >= _HUGE_BYTES and sys.platform == "linux":
        with contextlib.suppress(OSError):  # a system without large pages
            found.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(found, np.uint8)


def lent(memory: Bytes, back: Callable[[Bytes], object]) -> Bytes:
    """Return the same memory, and call `back(memory)` when the last view of the result dies.

    The call may come in any thread at any line, so it must not wait for a lock. It does not come
    when the interpreter exits.
    """
    lease = _Lease(memory)
    weakref.finalize(lease, back, memory).atexit = False
    found: Bytes = np.asarray(lease)
    return found


def waiting_bytes() -> int:
    """Bytes of memory that waits for reuse."""
    return sum(held.size for held in list(_waiting))


def forget() -> None:
    """Return the waiting memory to the system."""
    _waiting.clear()


def _wait(memory: Bytes) -> None:
    _waiting.append(memory)
    while len(_waiting) > _FEW and waiting_bytes() > _MOST_BYTES:
        with contextlib.suppress(IndexError):  # another thread took it
            _waiting.popleft()


def _taken(size_bytes: int) -> Bytes | None:
    """Take the newest waiting memory of this size: its pages are likely in the CPU caches.

    Without one, the sizes in use have changed. Then as much of the oldest memory is given up as
    the new array takes, so that the process does not grow by memory that nothing will take.
    """
    others: list[Bytes] = []
    with contextlib.suppress(IndexError):  # none is left, or another thread took it
        while True:
            memory = _waiting.pop()
            if memory.size == size_bytes:
                _waiting.extend(reversed(others))
                return memory
            others.append(memory)
    given_up = 0
    while others and given_up < size_bytes:
        given_up += others.pop().size
    _waiting.extend(reversed(others))
    return None


class _Lease:
    """The base of all views of lent memory."""

    __slots__ = ("__array_interface__", "__weakref__", "_memory")

    def __init__(self, memory: Bytes) -> None:
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__
