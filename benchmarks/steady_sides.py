"""What the cases of `benchmarks.steady` share: sides, floors, and loops with reads ahead."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import zstandard
from numcodecs import Zstd

from windrow.core import native

IntArray = npt.NDArray[np.int64]
Batches: TypeAlias = Iterator[Any]
Side: TypeAlias = Callable[[], Batches]
T = TypeVar("T")

# Frames of one call of a native loop.
_FRAMES = 2_048


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """What is read in which order.

    Args:
        name: The case.
        store: The name of its store; cases of one name share it.
        written: Writes the store to a path, a tiny one if asked; returns where it is.
        sides: The sides over a store, the floor first.
    """

    name: str
    store: str
    written: Callable[[Path, bool], Path]
    sides: Callable[[Path], dict[str, Side]]


@contextlib.contextmanager
def closed(batches: Batches) -> Iterator[Batches]:
    """The batches, closed at the end where that is possible."""
    try:
        yield batches
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()


def with_core(dataset: Callable[[], Any], *, core: bool) -> Batches:
    """An iterator of a chain that is made with the native core, or without."""
    os.environ["WINDROW_NATIVE"] = "1" if core else "0"
    native.native.cache_clear()
    iterator: Batches = iter(dataset())
    next(iterator)  # opens the source
    return iterator


def ours(dataset: Callable[[], Any]) -> dict[str, Side]:
    """Windrow's sides of a case."""
    return {
        "ours": lambda: with_core(dataset, core=True),
        "ours, no core": lambda: with_core(dataset, core=False),
    }


def ahead(starts: Iterable[Callable[[], T]], depth: int) -> Iterator[T]:
    """Results of reads that were started in order, `depth` of them ahead."""
    waiting: collections.deque[Callable[[], T]] = collections.deque()
    for result in starts:
        waiting.append(result)
        if len(waiting) > depth:
            yield waiting.popleft()()


def shuffled_forever(count: int, seed: int = 3) -> Iterator[IntArray]:
    """The numbers below `count` in another order in each epoch."""
    random = np.random.default_rng(seed)
    while True:
        yield random.permutation(count)


def in_parts(orders: Iterable[IntArray], size: int) -> Iterator[IntArray]:
    """The whole parts of `size` of each order."""
    for order in orders:
        for first in range(0, len(order) - size + 1, size):
            yield order[first : first + size]


def large_frames(stored: Sequence[bytes], size: int) -> Batches:
    """Frames of `size` bytes decompressed on two threads; what is yielded has their sizes alone."""
    results: collections.deque[int] = collections.deque()
    numbers, stop, came = itertools.count(), threading.Event(), threading.Semaphore(0)
    codec = Zstd()

    def work() -> None:
        out = np.empty(size, np.uint8)
        while not stop.is_set():
            codec.decode(stored[next(numbers) % len(stored)], out)
            results.append(out.nbytes)
            came.release()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        while True:
            came.acquire()
            yield np.broadcast_to(np.uint8(0), results.popleft())
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def small_frames(stored: Sequence[bytes], size: int) -> Batches:
    """The same by a loop in C over many frames at a time, which are taken in random order."""
    codec = zstandard.ZstdDecompressor()
    some = min(_FRAMES, len(stored))
    sizes = np.full(some, size, np.uint64).tobytes()
    for part in in_parts(shuffled_forever(len(stored)), some):
        frames = [stored[number] for number in part]
        codec.multi_decompress_to_buffer(frames, decompressed_sizes=sizes, threads=2)
        yield np.broadcast_to(np.uint8(0), some * size)


def noise(rows: int, numbers: int, seed: int) -> npt.NDArray[np.uint16]:
    """Rows of numbers that compress to about half."""
    random = np.random.default_rng(seed)
    return random.normal(1000, 30, (rows, numbers)).astype(np.uint16)
