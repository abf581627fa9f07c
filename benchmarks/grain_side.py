"""Grain's side: the same chains in Grain 0.2, with default options and with those that suit it.

Grain has no block shuffle: there the source gives its records in that order, ready-made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import grain
import numpy as np
import numpy.typing as npt
from absl import flags

from benchmarks import functions, stores, timing
from benchmarks.data import InMemory
from benchmarks.job import Job, Metrics, Options, Work

_SEED = 42


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """Grain's ReadOptions, worker processes, and what each of those makes ahead.

    With `in_slices` a record of a source in memory is a whole batch, so that none is put together.
    """

    threads: int
    buffer: int
    workers: int = 0
    ahead: int = 1
    in_slices: bool = False


SETTINGS: Options = {
    "default": Setting(threads=16, buffer=500),
    "no threads": Setting(threads=0, buffer=0),
    "2 threads": Setting(threads=2, buffer=16),
    "2 workers": Setting(threads=2, buffer=16, workers=2),
}


_WORKERS: Options = {
    "default": Setting(threads=16, buffer=500, workers=2),
    "no threads": Setting(threads=0, buffer=0, workers=2),
    "no threads, 8 ahead": Setting(threads=0, buffer=0, workers=2, ahead=8),
}


def options(job: Job) -> Options:
    """What is tried; a chain without data is quickest without processes.

    Where ours has worker processes, so have all of these.
    """
    if job.small:
        return {name: SETTINGS[name] for name in ("default", "no threads")}
    if job.layout == "start":
        return {"default": _WORKERS["default"]}
    if job.layout == "slow":
        return _WORKERS
    if job.in_memory is not None:
        in_slices = {
            f"{name}, slices": dataclasses.replace(value, in_slices=True)
            for name, value in _WORKERS.items()
            if not value.threads  # these only cost where there is nothing to wait for
        }
        return _WORKERS | in_slices
    if job.layout in ("numbers", "calls", "elements", "checkpoint"):
        return {name: value for name, value in SETTINGS.items() if not value.workers}
    return SETTINGS


class Ordered:
    """A source in another order."""

    def __init__(self, source: Any, order: npt.NDArray[np.int64]) -> None:
        self._source = source
        self._order = order.tolist()

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> Any:
        return self._source[self._order[index]]


class ZarrRows:
    """A source of rows over TensorStore, as a user writes it, with TensorStore's cache on.

    Args:
        path: The array.
        cache_bytes: The cache.
        size: Rows of a record, which follow each other without overlap; None for single rows.
    """

    def __init__(self, path: str, cache_bytes: int, *, size: int | None = None) -> None:
        self._arguments = path, cache_bytes, size
        self._open()

    def _open(self) -> None:
        path, cache_bytes, self._size = self._arguments
        self._store = stores.zarr(path, cache_bytes)

    def __len__(self) -> int:
        return int(self._store.shape[0]) // (self._size or 1)

    def __getitem__(self, index: int) -> Any:
        if self._size is None:
            return self._store[index].read().result()
        return self._store[index * self._size : (index + 1) * self._size].read().result()

    def __getstate__(self) -> tuple[str, int, int | None]:
        return self._arguments

    def __setstate__(self, state: tuple[str, int, int | None]) -> None:
        self._arguments = state
        self._open()


class Kept:
    """A source of rows in memory, or of slices of them. Workers make theirs anew.

    Args:
        kept: The rows.
        size: Rows of a slice; None for single rows.
    """

    def __init__(self, kept: InMemory, size: int | None) -> None:
        self._arguments = kept, size
        self._rows = kept.rows()

    def __len__(self) -> int:
        kept, size = self._arguments
        return kept.records // (size or 1)

    def __getitem__(self, index: int) -> Any:
        size = self._arguments[1]
        return self._rows[index] if size is None else self._rows[index * size : (index + 1) * size]

    def __reduce__(self) -> tuple[type[Kept], tuple[InMemory, int | None]]:
        return Kept, self._arguments


def array_record(job: Job, setting: Setting) -> Work:
    """Records decoded one by one, in batches."""
    return _work(lambda: _array_record(job), job, setting)


array_record_groups = array_record


def _array_record(job: Job) -> grain.MapDataset:
    source = grain.sources.ArrayRecordDataSource(job.path)
    return _ordered(job, source).map(functions.decode).batch(job.batch_size)


def zarr(job: Job, setting: Setting) -> Work:
    """Rows in batches."""
    return _work(lambda: _zarr(job, None), job, setting)


zarr_raw = zarr_shards = zarr


def tokens(job: Job, setting: Setting) -> Work:
    """Windows of tokens in batches."""
    return _work(lambda: _zarr(job, job.windows.size[0]), job, setting)


def _zarr(job: Job, size: int | None) -> grain.MapDataset:
    source = ZarrRows(job.path, job.cache_bytes, size=size)
    return _ordered(job, source).batch(job.batch_size)


def numbers(job: Job, setting: Setting) -> Work:
    """Nothing to read."""
    return _work(lambda: _range(job).batch(job.batch_size), job, setting)


def calls(job: Job, setting: Setting) -> Work:
    """The same with a function of a microsecond for each element."""
    batches = _range(job).map(functions.one_us).batch(job.batch_size)
    return _work(lambda: batches, job, setting)


def elements(job: Job, setting: Setting) -> Work:
    """The same without batches, and with the least of functions."""
    return _work(lambda: _range(job).map(functions.add_one), job, setting, batched=False)


def slow(job: Job, setting: Setting) -> Work:
    """Rows in memory and a function of a millisecond for each of them."""
    return _spread(_in_memory(job).map(functions.one_ms).batch(job.batch_size), job, setting)


def start(job: Job, setting: Setting) -> Work:
    """The same with a function over NumPy arrays."""
    return _spread(_in_memory(job).map(functions.scaled).batch(job.batch_size), job, setting)


def large(job: Job, setting: Setting) -> Work:
    """Rows in memory, and a function that does nothing with a batch of them."""
    if setting.in_slices:
        return _spread(_in_memory(job, job.batch_size).map(functions.same), job, setting)
    return _spread(_in_memory(job).batch(job.batch_size).map(functions.same), job, setting)


compact = large


def _in_memory(job: Job, size: int | None = None) -> grain.MapDataset:
    return grain.MapDataset.source(Kept(job.kept, size)).repeat(job.kept.epochs)


def _spread(batches: grain.MapDataset, job: Job, setting: Setting) -> Work:
    return _work(lambda: batches, job, setting)


def checkpoint(job: Job) -> Metrics:
    """State in the middle of an epoch of shuffled records."""
    dataset = _array_record(dataclasses.replace(job, layout="array_record"))
    setting = SETTINGS[job.option]
    return timing.of_restoring(
        lambda: iter(stream(dataset, setting)), len(dataset), job.data.restores
    )


def _range(job: Job) -> grain.MapDataset:
    return grain.MapDataset.range(job.records).shuffle(seed=_SEED)


def _ordered(job: Job, source: Any) -> grain.MapDataset:
    if job.order == "block shuffle":
        source = Ordered(source, job.epoch)
    dataset = grain.MapDataset.source(source)
    return dataset.shuffle(seed=_SEED) if job.order == "global shuffle" else dataset


def _work(
    make: Callable[[], grain.MapDataset], job: Job, setting: Setting, *, batched: bool = True
) -> Work:
    return Work(lambda: stream(make(), setting), batched=batched, workers=setting.workers > 0)


def stream(dataset: grain.MapDataset, setting: Setting) -> grain.IterDataset:
    """The elements as a stream with these settings."""
    read = grain.ReadOptions(num_threads=setting.threads, prefetch_buffer_size=setting.buffer)
    rows = dataset.to_iter_dataset(read)
    if not setting.workers:
        return rows
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    spread = grain.MultiprocessingOptions(setting.workers, per_worker_buffer_size=setting.ahead)
    return rows.mp_prefetch(spread)
