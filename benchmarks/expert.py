"""The expert's side: loops that one would write by hand for one store and one order.

No chain, no state, no restart: what a framework is compared with. Every loop has the settings that
one would try, and takes the best.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorstore as ts

from benchmarks import functions, grids, stores
from benchmarks.job import Job, Options, Work

DEPTHS = (3, 1, 6)
_MIB = 2**20


@dataclasses.dataclass(frozen=True, slots=True)
class Windows:
    """How single windows are read: batches under way at a time, and TensorStore's cache."""

    ahead: int
    cache_bytes: int = 0


def options(job: Job) -> Options:
    """Reads under way at a time; for a global shuffle of Zarr rows, with a cache."""
    if job.layout == "array_record":
        return {"no threads": 0, "1 thread": 1, "2 threads": 2}
    depths = {f"{depth} ahead": depth for depth in ((2,) if job.small else (1, 2, 4, 8))}
    if job.layout in ("fields", "patches"):
        tried = DEPTHS[:1] if job.small else DEPTHS
        return {f"{depth} ahead": Windows(depth) for depth in tried}
    if job.order != "global shuffle" or job.layout == "array_record_groups":
        return depths
    caches = (job.cache_bytes,) if job.small or job.resident_share else (64 * _MIB, job.cache_bytes)
    return {
        f"{name}, {cache // _MIB} MiB cache": (depth, cache)
        for name, depth in depths.items()
        for cache in caches
    }


def array_record(job: Job, threads: int) -> Work:
    """Bulk reads of four batches, joined, viewed as rows and cut."""
    size = job.batch_size

    def opened() -> Iterator[Any]:
        reader = stores.array_record(job.path)
        order = job.epoch
        parts = [order[first : first + 4 * size] for first in range(0, len(order), 4 * size)]

        def read(part: Any) -> Any:
            return functions.decode_many(reader.read(part.tolist()))

        def batches() -> Iterator[Any]:
            for rows in _threaded(read, parts, threads):
                yield from (rows[first : first + size] for first in range(0, len(rows), size))

        return batches()

    return Work(opened)


def array_record_groups(job: Job, ahead: int) -> Work:
    """Groups of a window read whole, then its records in random order."""

    def opened() -> Iterator[Any]:
        reader = stores.array_record(job.path)
        groups = job.data.block_groups(job.layout)
        if job.order != "block shuffle":
            return (_decoded(reader, batch) for batch in job.batches)
        windows = _threaded(lambda ids: _decoded(reader, np.concatenate(ids)), groups, 1, ahead)
        return mixed(windows, job.batch_size)

    return Work(opened)


def zarr(job: Job, setting: Any) -> Work:
    """A slice per batch; or chunks of a window, then its rows in random order; or `oindex`."""
    if job.order == "in order":
        return Work(lambda: _slices(job, setting))
    if job.order == "block shuffle" and job.layout != "zarr_shards":
        return Work(lambda: _windows(job, setting, 1))
    if job.order == "block shuffle":
        return Work(lambda: _rows(job, setting, 64 * _MIB))
    return Work(lambda: _rows(job, *setting))


zarr_raw = zarr_shards = zarr


def tokens(job: Job, setting: Any) -> Work:
    """The same for windows of tokens: a read for each window under a global shuffle."""
    size = job.windows.size[0]
    if job.order == "in order":
        return Work(lambda: _cut(_slices(job, setting, size), size, job.batch_size))
    if job.order == "block shuffle":
        return Work(lambda: _windows(job, setting, size))
    return _global_windows(job, Windows(*setting))


def fields(job: Job, setting: Windows) -> Work:
    """A read for each window, under a global shuffle whatever the order of the case is."""
    order = dataclasses.replace(job, order="global shuffle")
    return _global_windows(order, setting)


patches = fields


def _global_windows(job: Job, setting: Windows) -> Work:
    size, first_cells = job.windows.size, job.windows.first_cells

    def opened() -> Iterator[Any]:
        store = stores.zarr(job.path, setting.cache_bytes)

        def submit(ids: Any) -> Callable[[], Any]:
            with ts.Batch() as together:
                reads = [
                    store[grids.box(first, size)].read(batch=together)
                    for first in first_cells[ids].tolist()
                ]
            return lambda: np.stack([read.result() for read in reads])

        return in_flight(submit, job.batches, setting.ahead)

    return Work(opened)


def _slices(job: Job, depth: int, size: int = 1) -> Iterator[Any]:
    store = stores.zarr(job.path)
    # Batches that are smaller than a chunk are cut from what is read of it at once.
    step = job.batch_size if size == 1 else job.data.block_records(job.layout)

    def submit(first: int) -> Callable[[], Any]:
        result: Callable[[], Any] = (
            store[first * size : min(first + step, job.records) * size].read().result
        )
        return result

    return in_flight(submit, range(0, job.records, step), depth)


def _cut(runs: Iterable[Any], size: int, batch_size: int) -> Iterator[Any]:
    for run in runs:
        rows = run.reshape(-1, size)
        yield from (rows[first : first + batch_size] for first in range(0, len(rows), batch_size))


def _windows(job: Job, ahead: int, size: int) -> Iterator[Any]:
    """Whole chunks in random order, records mixed within a window of them."""
    store = stores.zarr(job.path)

    def submit(blocks: Any) -> Callable[[], Any]:
        reads = [store[int(b[0]) * size : (int(b[-1]) + 1) * size].read() for b in blocks]
        return lambda: np.concatenate([read.result() for read in reads])

    windows = in_flight(submit, job.data.block_groups(job.layout), ahead)
    if size > 1:
        windows = (rows.reshape(-1, size) for rows in windows)
    return mixed(windows, job.batch_size)


def _rows(job: Job, depth: int, cache_bytes: int) -> Iterator[Any]:
    """The rows of a batch in one request, sorted: the order within a batch is free."""
    store = stores.zarr(job.path, cache_bytes)

    def submit(ids: Any) -> Callable[[], Any]:
        result: Callable[[], Any] = store.oindex[np.sort(ids)].read().result
        return result

    return in_flight(submit, job.batches, depth)


def mixed(windows: Iterable[Any], batch_size: int) -> Iterator[Any]:
    random = np.random.default_rng(3)
    for rows in windows:
        order = random.permutation(len(rows))
        for first in range(0, len(rows), batch_size):
            yield np.take(rows, order[first : first + batch_size], axis=0)


def in_flight(
    submit: Callable[[Any], Callable[[], Any]], keys: Iterable[Any], depth: int
) -> Iterator[Any]:
    """What `submit` of each key gives, in order, with `depth` of them under way."""
    waiting: collections.deque[Callable[[], Any]] = collections.deque()
    for key in keys:
        waiting.append(submit(key))
        if len(waiting) > depth:
            yield waiting.popleft()()
    while waiting:
        yield waiting.popleft()()


def _threaded(
    call: Callable[[Any], Any], keys: Iterable[Any], threads: int, ahead: int = 2
) -> Iterator[Any]:
    if not threads:
        yield from map(call, keys)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from in_flight(lambda key: pool.submit(call, key).result, keys, ahead)


def _decoded(reader: Any, ids: Any) -> Any:
    return functions.decode_many(reader.read(ids.tolist()))
