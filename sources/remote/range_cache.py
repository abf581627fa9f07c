"""A cache of byte ranges that were fetched recently or are being fetched, each only once.

Calls that read the same stretch of a file share its bytes. They may run one after the other or at
the same time, as the read batches of one shuffle window do.

1. The call that adds a range ends it: with its bytes, or by giving it up. Until then other calls may
   wait for it.
2. A call ends the ranges that it added before it waits for others, so two calls never wait for each
   other.
3. Beyond a limit of bytes the least recently used ranges are dropped.

A pickled copy is empty.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from concurrent.futures import Future

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CachedRange:
    """Bytes `[start, stop)` of a file; None if they were given up."""

    file: int
    start: int
    stop: int
    data: Future[bytes | None] = dataclasses.field(default_factory=Future)


class RangeCache:
    """Ranges of files; a file is given by its number. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        """Keep ranges that have arrived, up to `most_bytes`."""
        self._most_bytes = most_bytes
        self.lock = threading.Lock()
        """Hold it while you find out what to fetch and add those ranges."""
        self._ranges: collections.OrderedDict[int, CachedRange] = collections.OrderedDict()
        self._of_file: dict[int, dict[int, CachedRange]] = {}
        self._kept_bytes = 0

    def __reduce__(self) -> tuple[type[RangeCache], tuple[int]]:
        return RangeCache, (self._most_bytes,)

    def covering(
        self, file: int, begin: IntArray, end: IntArray
    ) -> list[tuple[CachedRange, IntArray]]:
        """Find the ranges that cover stretches `[begin, end)` of a file.

        Returns:
            Ranges, each with the places of the stretches in it. A stretch lies in one range at most.
        """
        left = np.ones(len(begin), np.bool_)
        covered = []
        for key, one in self._of_file.get(file, {}).items():
            first = int(np.searchsorted(begin, one.start))
            last = int(np.searchsorted(end, one.stop, side="right"))
            places = first + np.flatnonzero(left[first:last])
            if len(places):
                left[places] = False
                covered.append((one, places))
                self._ranges.move_to_end(key)
        return covered

    def add(self, file: int, start: int, stop: int) -> CachedRange:
        """Add a range that is about to be fetched."""
        one = CachedRange(file, start, stop)
        self._ranges[id(one)] = one
        self._of_file.setdefault(file, {})[id(one)] = one
        return one

    def arrive(self, one: CachedRange, data: bytes) -> None:
        """Set the bytes of a range that was added."""
        with self.lock:
            self._kept_bytes += len(data)
            one.data.set_result(data)
            for key, old in list(self._ranges.items()):
                if self._kept_bytes <= self._most_bytes:
                    break
                if old.data.done():
                    self._kept_bytes -= old.stop - old.start
                    self._drop(key)

    def give_up(self, one: CachedRange) -> None:
        """Give up a range that was added, unless it has arrived."""
        with self.lock:
            if not one.data.done():
                one.data.set_result(None)
                self._drop(id(one))

    def _drop(self, key: int) -> None:
        file = self._ranges.pop(key).file
        of_file = self._of_file[file]
        del of_file[key]
        if not of_file:
            del self._of_file[file]
