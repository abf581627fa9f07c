"""A bare loop over chunks of rows: files read, decompressed on threads, their rows gathered.

It knows everything beforehand, looks after nothing and can do nothing else: what is left of the
floor once chunks are read from files and rows copied, by as little Python as does it.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numcodecs import Zstd

from benchmarks.data import AnyArray, IntArray
from benchmarks.expert import in_flight, mixed
from benchmarks.job import Job, Options, Work

_WINDOWS_AHEAD = 2


def options(job: Job) -> Options:
    """Threads that decompress."""
    return {"2 threads": 2} if job.small else {"2 threads": 2, "3 threads": 3}


def zarr(job: Job, threads: int) -> Work:
    """The chunks of a window side by side in one array, whose rows are taken in random order."""
    rows = job.data.block_records(job.layout)
    # A last chunk of fewer records is stored whole: behind the others, so that records lie together.
    windows = [sorted(w, key=len, reverse=True) for w in job.data.block_groups(job.layout)]
    own = threading.local()

    def decompress(chunk: int, out: AnyArray) -> None:
        if not hasattr(own, "stored"):
            own.stored = memoryview(bytearray(2 * out.nbytes))
        file = os.open(f"{job.path}/c/{chunk}/0", os.O_RDONLY)
        size = os.preadv(file, [own.stored], 0)
        os.close(file)
        Zstd().decode(own.stored[:size], out)

    def opened() -> Iterator[Any]:
        shape = len(windows[0]) * rows, job.record_bytes
        memory = itertools.cycle([np.empty(shape, np.uint8) for _ in range(_WINDOWS_AHEAD + 1)])
        with ThreadPoolExecutor(threads) as pool:

            def submit(window: Sequence[IntArray]) -> Callable[[], AnyArray]:
                into = next(memory)
                begun = [
                    pool.submit(decompress, int(chunk[0]) // rows, into[at : at + rows])
                    for chunk, at in zip(window, range(0, len(into), rows), strict=False)
                ]
                return functools.partial(_filled, begun, into[: sum(map(len, window))])

            yield from mixed(in_flight(submit, windows, _WINDOWS_AHEAD), job.batch_size)

    return Work(opened)


def _filled(begun: Sequence[Future[None]], rows: AnyArray) -> AnyArray:
    for one in begun:
        one.result()
    return rows
