"""Our side: the chains as a user writes them, with default options unless the case says otherwise."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias

import windrow
from benchmarks import functions, timing
from benchmarks.job import Job, Metrics, Options, Work
from windrow.engine.budgets import budget_of
from windrow.formats.verify import verify_place

_Verify: TypeAlias = Literal["headers", "all"]

_SEED = 42
_FEW_BYTES = 16 * 2**20
_MB = 10**6
_WORKERS = 2
_THREADS = 2
# With half of the store in memory, windows of more blocks would be read again.
_FEW_BLOCKS = 2
_SHARED_BYTES = 64 * 2**20


def options(job: Job) -> Options:
    """Orders; what a call of the source reads and checks; with worker processes, or without."""
    if job.layout == "far_records":
        return {"global shuffle": "global shuffle"}
    if job.layout == "array_record_direct":
        return {
            "4 batches a call": (4, "headers"),
            "all hashes": (1, "all"),
            "4 batches a call, all hashes": (4, "all"),
        }
    return {"no workers": 0, "2 workers": _WORKERS}


def array_record(job: Job) -> Work:
    """Records that one call turns into rows, in batches."""
    return _work(job, lambda: _array_record(job))


array_record_groups = array_record


def far_records(job: Job, order: str = "") -> Work:
    """The same over HTTP, in that order whatever the order of the case is."""
    ordered = dataclasses.replace(job, order=order or job.order)
    return _work(job, lambda: _array_record(ordered))


def array_record_direct(job: Job, setting: tuple[int, _Verify] = (1, "headers")) -> Work:
    """Windrow's own reader of the format over a local file, without a chain: batches of a call."""
    batches, verify = setting
    order, size = job.epoch, batches * job.batch_size
    parts = [order[first : first + size] for first in range(0, len(order), size)]

    def opened() -> Iterator[Any]:
        source = windrow.sources.ArrayRecordDataSource(job.path, direct=True, verify=verify)
        return (source.read(part) for part in parts)

    return Work(opened, mapped=True)


def far_files(job: Job) -> Metrics:
    """A source over many remote files."""
    urls = [f"{job.url}/{job.data.far.file_name(number)}" for number in range(job.data.far.files)]
    job.server.reset()
    start_s = time.perf_counter()
    source = windrow.sources.ArrayRecordDataSource(urls)
    took_s = time.perf_counter() - start_s
    if len(source) != job.data.far.files * job.data.far.file_records:
        raise RuntimeError(f"benchmark: {len(source):,} records in {len(urls):,} files")
    return {"open_ms": took_s * 1e3, "requests": job.server.served().requests}


def zarr(job: Job) -> Work:
    """Rows in batches."""

    def opened() -> windrow.MapDataset[Any]:
        source = windrow.sources.ZarrDataSource(job.url if job.is_remote_source else job.path)
        return _ordered(job, windrow.MapDataset.source(source)).batch(job.batch_size)

    return _work(job, opened)


far_zarr = zarr_raw = zarr_shards = zarr


def tokens(job: Job) -> Work:
    """Windows of a grid in batches."""
    grid = job.windows
    axes = [axis for axis, cells in enumerate(grid.shape) if grid.size[axis] != cells]
    sizes = {axis: grid.size[axis] for axis in axes}
    strides = {axis: grid.strides[axis] for axis in axes}

    def opened() -> windrow.MapDataset[Any]:
        source = windrow.sources.WindowDataSource(job.path, sizes, strides)
        records = _ordered(job, windrow.MapDataset.source(source))
        return (records.repeat(job.epochs) if job.epochs > 1 else records).batch(job.batch_size)

    return _work(job, opened)


tokens_cached = fields = tokens


def patches(job: Job) -> Work:
    """Windows anywhere in a volume, in batches."""
    sizes = dict(enumerate(job.windows.size))
    centers = job.windows.centers

    def opened() -> windrow.MapDataset[Any]:
        source = windrow.sources.WindowDataSource(job.path, sizes, centers=centers)
        return _ordered(job, windrow.MapDataset.source(source)).batch(job.batch_size)

    return _work(job, opened)


def verify(job: Job) -> Metrics:
    """All that `windrow verify` does, on two threads."""

    def whole() -> int:
        report = verify_place(job.path, threads=_THREADS, progress=False)
        if not report.ok or report.data.records != job.records:
            raise RuntimeError(f"benchmark: {report}")
        return report.data.records

    return timing.of_whole(whole, job)


verify_zarr = verify


def numbers(job: Job) -> Work:
    """Nothing to read: what the order and the batches cost."""
    shuffled = windrow.MapDataset.range(job.records).shuffle(seed=_SEED)
    return Work(lambda: shuffled.batch(job.batch_size))


def calls(job: Job) -> Work:
    """The same with a function of a microsecond for each element."""
    shuffled = windrow.MapDataset.range(job.records).shuffle(seed=_SEED)
    return Work(lambda: shuffled.map(functions.one_us).batch(job.batch_size))


def elements(job: Job) -> Work:
    """The same without batches, and with the least of functions."""
    shuffled = windrow.MapDataset.range(job.records).shuffle(seed=_SEED)
    return Work(lambda: shuffled.map(functions.add_one), batched=False)


def slow(job: Job, workers: int = _WORKERS) -> Work:
    """Rows in memory and a function of a millisecond for each of them."""
    return _spread(_in_memory(job).map(functions.one_ms).batch(job.batch_size), job, workers)


def start(job: Job, workers: int = _WORKERS) -> Work:
    """The same with a function over NumPy arrays."""
    return _spread(_in_memory(job).map(functions.scaled).batch(job.batch_size), job, workers)


def large(job: Job, workers: int = _WORKERS) -> Work:
    """Rows in memory, and a function that does nothing with a batch of them."""
    return _spread(_in_memory(job).batch(job.batch_size).map(functions.same), job, workers)


compact = large


def zarr_workers(job: Job, workers: int = _WORKERS) -> Work:
    """The same over rows of Zarr, with little memory for reading."""
    rows = windrow.sources.ZarrDataSource(job.data.path("zarr"))
    batches = _ordered(job, windrow.MapDataset.source(rows)).batch(job.batch_size)
    return _spread(batches.map(functions.same), job, workers)


def _in_memory(job: Job) -> windrow.MapDataset[Any]:
    kept = job.kept
    return windrow.MapDataset.source(kept.rows()).repeat(kept.epochs)


def _spread(batches: windrow.MapDataset[Any], job: Job, workers: int) -> Work:
    if not workers:
        return Work(lambda: batches, mapped=True)
    if not job.watched:
        return Work(lambda: batches.mp_prefetch(workers), workers=True)
    spread = windrow.MultiprocessingOptions(workers, shared_bytes=_SHARED_BYTES)
    read, read_bytes = _little_memory(job)
    budget_mb = (_SHARED_BYTES + read_bytes) / _MB
    return Work(
        lambda: batches.to_iter_dataset(read).mp_prefetch(spread),
        workers=True,
        extra=lambda: {"budget_mb": budget_mb},
    )


def checkpoint(job: Job) -> Metrics:
    """State in the middle of an epoch of shuffled records."""
    dataset = _array_record(dataclasses.replace(job, layout="array_record"))
    return timing.of_restoring(lambda: iter(dataset), len(dataset), job.data.restores)


def _array_record(job: Job) -> windrow.MapDataset[Any]:
    source = windrow.sources.ArrayRecordDataSource(job.url if job.is_remote_source else job.path)
    records = _ordered(job, windrow.MapDataset.source(source))
    return records.map(functions.decode_many, batched=True).batch(job.batch_size)


def _ordered(job: Job, dataset: windrow.MapDataset[Any]) -> windrow.MapDataset[Any]:
    if job.order == "in order":
        return dataset
    if job.order == "global shuffle":
        return dataset.shuffle(seed=_SEED)
    few = job.layout == "fields" and job.resident_share is not None
    window = _FEW_BLOCKS if few else job.data.window_blocks
    # Single remote records: neighbours come in one request.
    block = job.data.chunk_rows if job.layout == "far_records" else None
    return dataset.block_shuffle(seed=_SEED, block=block, window_blocks=window)


def _work(job: Job, opened: Callable[[], windrow.MapDataset[Any]]) -> Work:
    mapped = job.is_remote_source or job.layout in ("zarr_raw", "zarr_shards", "tokens_cached")
    warm = job.is_cached
    if job.resident_bytes is None:
        budget_mb = _default_bytes() / _MB
        return Work(
            opened,
            warm=warm,
            mapped=mapped,
            extra=lambda: {"budget_mb": budget_mb},
            server=job.server if job.is_remote_source else None,
        )
    read, read_bytes = _little_memory(job)
    budget_mb = read_bytes / _MB
    return Work(
        lambda: opened().to_iter_dataset(read),
        warm=warm,
        mapped=mapped,
        extra=lambda: {"budget_mb": budget_mb},
    )


def _default_bytes() -> int:
    """The bytes that an iterator may hold by default."""
    options = windrow.ReadOptions()
    budget = budget_of(options)
    return budget.resident_bytes + budget.in_flight_bytes + options.prefetch_bytes


def _little_memory(job: Job) -> tuple[windrow.ReadOptions, int]:
    """How to read within a part of the decoded store, and the bytes that this may take."""
    if job.resident_bytes is None:
        return windrow.ReadOptions(), 0
    options = windrow.ReadOptions(
        resident_bytes=job.resident_bytes, in_flight_bytes=_FEW_BYTES, prefetch_bytes=_FEW_BYTES
    )
    return options, job.resident_bytes + 2 * _FEW_BYTES
