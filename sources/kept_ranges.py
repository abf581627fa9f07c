"""Kept ranges: what was fetched lately, or is being fetched, so that it is not fetched twice.

Calls that read the same stretch of a file one after the other, or side by side, as rounds of one
window of a shuffle do, share its bytes.

1. Whoever adds a range ends it: with its bytes, or as given up. Until then others may wait for it.
2. Nobody waits for a range before ending those that it added itself: two calls never wait for each
   other.
3. What is kept is let go of, the least recently used first, beyond so many bytes.

Pickles as nothing kept.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from concurrent.futures import Future

import numpy as np

from windrow.sources.base import IntArray


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class KeptRange:
    """Bytes `[start, stop)` of a file; None in place of them where they were given up."""

    file: int
    start: int
    stop: int
    data: Future[bytes | None] = dataclasses.field(default_factory=Future)


class KeptRanges:
    """Ranges of files, which are told by number. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        """Keep up to so many bytes of ranges that have come."""
        self._most_bytes = most_bytes
        self.lock = threading.Lock()
        """To be held while it is found out what to fetch, and that is added."""
        self._ranges: collections.OrderedDict[int, KeptRange] = collections.OrderedDict()
        self._of_file: dict[int, dict[int, KeptRange]] = {}
        self._kept_bytes = 0

    def __reduce__(self) -> tuple[type[KeptRanges], tuple[int]]:
        return KeptRanges, (self._most_bytes,)

    def found(self, file: int, begin: IntArray, end: IntArray) -> list[tuple[KeptRange, IntArray]]:
        """Which of the stretches `[begin, end)` of a file, in order, lie in ranges; each in one.

        Returns:
            Ranges, and the places of the stretches in each.
        """
        left = np.ones(len(begin), np.bool_)
        held = []
        for key, one in self._of_file.get(file, {}).items():
            first = int(np.searchsorted(begin, one.start))
            last = int(np.searchsorted(end, one.stop, side="right"))
            places = first + np.flatnonzero(left[first:last])
            if len(places):
                left[places] = False
                held.append((one, places))
                self._ranges.move_to_end(key)
        return held

    def add(self, file: int, start: int, stop: int) -> KeptRange:
        """A range that is about to be fetched."""
        one = KeptRange(file, start, stop)
        self._ranges[id(one)] = one
        self._of_file.setdefault(file, {})[id(one)] = one
        return one

    def came(self, one: KeptRange, data: bytes) -> None:
        """The bytes of a range that was added."""
        with self.lock:
            self._kept_bytes += len(data)
            one.data.set_result(data)
            for key, old in list(self._ranges.items()):
                if self._kept_bytes <= self._most_bytes:
                    break
                if old.data.done():
                    self._kept_bytes -= old.stop - old.start
                    self._drop(key)

    def give_up(self, one: KeptRange) -> None:
        """A range that was added does not come, unless it has."""
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
