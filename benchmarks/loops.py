"""What sides share: orders, loops with reads under way, floors, and Grain's and torch's settings."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
T = TypeVar("T")

_FRAMES: Final = 2_048  # of one call of a native loop
_THREADS: Final = 2


# --- orders --------------------------------------------------------------------------------------


def shuffled(count: int, *, forever: bool, seed: int = 3) -> Iterator[IntArray]:
    """The numbers below `count` in another order in each epoch: in one, or in epoch after epoch."""
    random = np.random.default_rng(seed)
    yield random.permutation(count)
    while forever:
        yield random.permutation(count)


def in_order(count: int, *, forever: bool) -> Iterator[IntArray]:
    """The numbers below `count`, in one epoch, or in epoch after epoch."""
    yield np.arange(count)
    while forever:
        yield np.arange(count)


def in_parts(orders: Iterable[IntArray], size: int, *, whole: bool = False) -> Iterator[IntArray]:
    """Parts of `size` of each order; with `whole` without a shorter one at its end."""
    for order in orders:
        stop = len(order) - size + 1 if whole else len(order)
        for first in range(0, stop, size):
            yield order[first : first + size]


def mixed(windows: Iterable[Any], batch: int) -> Iterator[Any]:
    """Batches of the rows of each window, shuffled."""
    random = np.random.default_rng(3)
    for rows in windows:
        order = random.permutation(len(rows))
        for first in range(0, len(rows), batch):
            yield np.take(rows, order[first : first + batch], axis=0)


# --- reads under way -----------------------------------------------------------------------------


def ahead(starts: Iterable[Callable[[], T]], depth: int) -> Iterator[T]:
    """Results of reads that were started in order, `depth` of them ahead."""
    waiting: collections.deque[Callable[[], T]] = collections.deque()
    for result in starts:
        waiting.append(result)
        if len(waiting) > depth:
            yield waiting.popleft()()
    while waiting:
        yield waiting.popleft()()


def on_threads(call: Callable[[Any], T], keys: Iterable[Any], threads: int) -> Iterator[T]:
    """The results of one call for each key, in order, on `threads` threads; here if 0."""
    if not threads:
        yield from map(call, keys)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from ahead((pool.submit(call, key).result for key in keys), 2 * threads)


# --- floors --------------------------------------------------------------------------------------


def of_size(rows: int, size: int) -> Any:
    """A batch that only has a number of rows and of bytes, and takes no memory."""
    return np.broadcast_to(np.uint8(0), (rows, size // rows))


def large_frames(stored: Sequence[bytes], rows: int, size: int, *, forever: bool) -> Iterator[Any]:
    """Frames of `size` bytes decompressed on two threads; what is yielded has their sizes alone."""
    from numcodecs import Zstd

    came: collections.deque[int] = collections.deque()
    numbers = itertools.count() if forever else iter(range(len(stored)))
    stop, ready, codec = threading.Event(), threading.Semaphore(0), Zstd()

    def work() -> None:
        out = np.empty(size, np.uint8)
        for number in numbers:
            if stop.is_set():
                return
            codec.decode(stored[number % len(stored)], out)
            came.append(number)
            ready.release()

    threads = [threading.Thread(target=work) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    try:
        for _ in itertools.count() if forever else range(len(stored)):
            ready.acquire()
            came.popleft()
            yield of_size(rows, size)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def small_frames(stored: Sequence[bytes], size: int, *, forever: bool) -> Iterator[Any]:
    """The same by a loop in C over many frames at a time, which are taken in random order."""
    import zstandard

    codec = zstandard.ZstdDecompressor()
    for part in in_parts(shuffled(len(stored), forever=forever), _FRAMES):
        frames: Any = [stored[number] for number in part]
        sizes = np.full(len(part), size, np.uint64).tobytes()
        codec.multi_decompress_to_buffer(frames, decompressed_sizes=sizes, threads=_THREADS)
        yield of_size(len(part), len(part) * size)


# --- Grain ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Grain:
    """Grain's ReadOptions, its worker processes, and what each of these makes ahead."""

    threads: int = 16
    buffer: int = 500
    workers: int = 0
    ahead: int = 1

    def stream(self, dataset: Any) -> Any:
        """The elements of a dataset as a stream with these settings."""
        import grain
        from absl import flags

        read = grain.ReadOptions(num_threads=self.threads, prefetch_buffer_size=self.buffer)
        rows = dataset.to_iter_dataset(read)
        if not self.workers:
            return rows
        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()
        options = grain.MultiprocessingOptions(self.workers, per_worker_buffer_size=self.ahead)
        return rows.mp_prefetch(options)


GRAIN: Final = {
    "default": Grain(),
    "no threads": Grain(0, 0),
    "2 threads": Grain(2, 16),
    "2 workers": Grain(2, 16, workers=2),
}
GRAIN_ALONE: Final = {name: way for name, way in GRAIN.items() if not way.workers}
GRAIN_WORKERS: Final = {
    "default": Grain(workers=2),
    "no threads": Grain(0, 0, workers=2),
    "no threads, 8 ahead": Grain(0, 0, workers=2, ahead=8),
}


# --- torch ---------------------------------------------------------------------------------------

TORCH: Final = {"no workers": 0, "2 workers": 2}


def torch_batches(rows: Any, order: Iterable[int], batch: int, workers: int) -> Any:
    """A `DataLoader` over a dataset whose `__getitems__` returns a batch as one array."""
    import torch

    return torch.utils.data.DataLoader(
        rows,
        batch,
        sampler=list(order),
        num_workers=workers,
        collate_fn=torch.as_tensor,
        prefetch_factor=2 if workers else None,
        # A forked child of a process that has used TensorStore cannot use it.
        multiprocessing_context="forkserver" if workers else None,
    )
