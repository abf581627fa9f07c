"""Grain's sides: the same chains in Grain 0.2, with default options and with those that suit it.

`SETTINGS` are the ones tried; the best of a run is printed beside the default one. On two cores
two threads with a short buffer were the best of what was tried by hand over the records.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import grain
import tensorstore as ts
from absl import flags

from benchmarks import functions, timing
from benchmarks.setting import Setting
from benchmarks.timing import Round

_CACHE_BYTES = 256 * 2**20


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """Grain's ReadOptions, and worker processes."""

    threads: int
    buffer: int
    workers: int = 0


SETTINGS = {
    "default": Options(threads=16, buffer=500),
    "no threads": Options(threads=0, buffer=0),
    "2 threads": Options(threads=2, buffer=16),
    "2 workers": Options(threads=2, buffer=16, workers=2),
}


def _stream(dataset: grain.MapDataset, options: Options) -> grain.IterDataset:
    read = grain.ReadOptions(num_threads=options.threads, prefetch_buffer_size=options.buffer)
    stream = dataset.to_iter_dataset(read)
    if not options.workers:
        return stream
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    return stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=options.workers))


def _iteration(
    dataset: grain.MapDataset, records: int, options: Options, *, batched: bool = True
) -> Round:
    return timing.of_iteration(
        lambda: _stream(dataset, options),
        records,
        batched=batched,
        start_at_first=options.workers > 0,
    )


def array_record(setting: Setting, options: Options) -> Round:
    """Shuffled records, decoded one by one, in batches."""
    return _iteration(_array_record(setting), setting.records, options)


def _array_record(setting: Setting) -> grain.MapDataset:
    source = grain.sources.ArrayRecordDataSource(setting.array_record)
    dataset = grain.MapDataset.source(source).shuffle(seed=42).map(functions.decode)
    return dataset.batch(setting.batch_size)


class ZarrRows:
    """A source of rows over TensorStore, as a Grain user writes it, with TensorStore's cache on."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._open()

    def _open(self) -> None:
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": self._path}}
        context = ts.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})
        self._store = ts.open(spec, context=context).result()

    def __len__(self) -> int:
        return int(self._store.shape[0])

    def __getitem__(self, index: int) -> Any:
        return self._store[index].read().result()

    def __getstate__(self) -> dict[str, str]:
        return {"_path": self._path}

    def __setstate__(self, state: dict[str, str]) -> None:
        self._path = state["_path"]
        self._open()


def zarr(setting: Setting, options: Options) -> Round:
    """Records in order, in batches; the cache is empty at the start of a round."""

    def one_round() -> timing.Metrics:
        # The cache holds the whole array: a second epoch over it would decode nothing.
        dataset = grain.MapDataset.source(ZarrRows(setting.zarr)).batch(setting.batch_size)
        return _iteration(dataset, setting.records, options)()

    return one_round


def chain(setting: Setting, options: Options) -> Round:
    """No data: what the chain itself costs, in batches."""
    batches = _chain(setting).batch(setting.batch_size)
    return _iteration(batches, setting.elements, options)


def elements(setting: Setting, options: Options) -> Round:
    """The same, element by element."""
    return _iteration(_chain(setting), setting.elements, options, batched=False)


def _chain(setting: Setting) -> grain.MapDataset:
    return grain.MapDataset.range(setting.elements).shuffle(seed=42).map(functions.add_one)


def checkpoint(setting: Setting, options: Options) -> Round:
    """State in the middle of an epoch of the shuffled records."""
    dataset = _array_record(setting)
    return timing.of_restoring(
        lambda: iter(_stream(dataset, options)), len(dataset), setting.restores
    )
