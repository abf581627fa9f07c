"""TensorStore alone over HTTP: a loop of reads with as many requests in flight as ours has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorstore as ts

from benchmarks import expert, far, stores
from benchmarks.job import Job, Options, Work

# Else the index of a shard would be read again for every read of it.
_CACHE_BYTES = 64 * 2**20


def options(job: Job) -> Options:
    """Reads of inner chunks that are asked for at a time, each a request or neighbours together."""
    if job.small:
        return {"64 reads ahead": (64, False), "64 reads ahead, merged": (64, True)}
    return {
        f"{reads} reads ahead{', merged' if merged else ''}": (reads, merged)
        for reads in (64, 256, 512)
        for merged in (False, True)
    }


def far_zarr(job: Job, setting: tuple[int, bool]) -> Work:
    """Slices of whole batches; or inner chunks in random order, rows mixed in a window of them."""
    reads, merged = setting
    if job.order == "in order":
        return Work(lambda: _slices(job, reads, merged), mapped=True, server=job.server)
    return Work(lambda: _windows(job, reads, merged), mapped=True, server=job.server)


def _slices(job: Job, reads: int, merged: bool) -> Iterator[Any]:
    store, size = _opened(job), job.batch_size
    ahead = max(1, reads * job.data.far.chunk_rows // size)

    def submit(first: int) -> Callable[[], Any]:
        (read,) = _reads(store, [slice(first, min(first + size, job.records))], merged)
        result: Callable[[], Any] = read.result
        return result

    return expert.in_flight(submit, range(0, job.records, size), ahead)


def _windows(job: Job, reads: int, merged: bool) -> Iterator[Any]:
    store = _opened(job)

    def submit(blocks: Any) -> Callable[[], Any]:
        found = _reads(store, [slice(int(b[0]), int(b[-1]) + 1) for b in blocks], merged)
        return lambda: np.concatenate([read.result() for read in found])

    ahead = max(1, reads // job.data.window_blocks)
    windows = expert.in_flight(submit, job.data.block_groups(job.layout), ahead)
    return expert.mixed(windows, job.batch_size)


def _opened(job: Job) -> ts.TensorStore:
    return stores.far_zarr(job.url, _CACHE_BYTES, far.REQUESTS)


def _reads(store: ts.TensorStore, places: list[slice], merged: bool) -> list[Any]:
    if not merged:
        return [store[place].read() for place in places]
    with ts.Batch() as together:
        return [store[place].read(batch=together) for place in places]
