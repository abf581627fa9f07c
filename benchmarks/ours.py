"""Our sides: the chains as a user writes them, with default options.

Each function opens its source and returns what makes one round; opening is not timed.
"""

from __future__ import annotations

import windrow
from benchmarks import functions, timing
from benchmarks.setting import Setting
from benchmarks.timing import Round


def array_record(setting: Setting) -> Round:
    """Shuffled records, decoded one by one, in batches."""
    dataset = _array_record(setting)
    return timing.of_iteration(lambda: dataset, setting.records)


def _array_record(setting: Setting) -> windrow.MapDataset[object]:
    source = windrow.sources.ArrayRecordDataSource(setting.array_record)
    dataset: windrow.MapDataset[object] = (
        windrow.MapDataset.source(source)
        .shuffle(seed=42)
        .map(functions.decode)
        .batch(setting.batch_size)
    )
    return dataset


def zarr(setting: Setting) -> Round:
    """Records in order, in batches."""

    def dataset() -> windrow.MapDataset[object]:
        # Opened for each round, as Grain's source is: nothing is left in a cache.
        source = windrow.sources.ZarrDataSource(setting.zarr)
        return windrow.MapDataset.source(source).batch(setting.batch_size)

    return timing.of_iteration(dataset, setting.records)


def chain(setting: Setting) -> Round:
    """No data: what the chain itself costs, in batches."""
    dataset = windrow.MapDataset.range(setting.elements).shuffle(seed=42).map(functions.add_one)
    batches = dataset.batch(setting.batch_size)
    return timing.of_iteration(lambda: batches, setting.elements)


def elements(setting: Setting) -> Round:
    """The same, element by element."""
    dataset = windrow.MapDataset.range(setting.elements).shuffle(seed=42).map(functions.add_one)
    return timing.of_iteration(lambda: dataset, setting.elements, batched=False)


def checkpoint(setting: Setting) -> Round:
    """State in the middle of an epoch of the shuffled records."""
    dataset = _array_record(setting)
    return timing.of_restoring(lambda: iter(dataset), len(dataset), setting.restores)
