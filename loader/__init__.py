"""Windrow: data loading for training, planned over array storage.

A chain of `MapDataset` and `IterDataset` nodes over random-access sources; the whole order is known
in advance, so reads are planned and batched, and an iterator's state is a few integers.

Public names are imported when they are first used, so that a command or a worker process loads only what
it needs.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windrow import (
        checkpoint,
        constants,
        converters,
        errors,
        experimental,
        multiprocessing,
        python,
        samplers,
        sharding,
        sources,
        torch,  # noqa: F401 - not in __all__: `import *` must do without PyTorch
        transforms,
    )
    from windrow.colocated import ColocatedDataset, ColocatedIterator
    from windrow.data_statistics import Statistics, statistics
    from windrow.engine.record_names import RecordOf
    from windrow.errors import WindrowError
    from windrow.explain.explanation import Advice, Explanation
    from windrow.formats.inspect import inspect
    from windrow.grain_api.data_loader import DataLoader, DataLoaderIterator, load
    from windrow.grain_api.from_grain import from_grain
    from windrow.grain_api.records import Record, RecordMetadata
    from windrow.iter_dataset import IterDataset
    from windrow.iterator import DatasetIterator
    from windrow.jax_dataset import JaxDataset
    from windrow.map_dataset import MapDataset
    from windrow.order_quality import shuffle_quality
    from windrow.quality.shuffle_quality import ShuffleQuality
    from windrow.record_lengths import lengths
    from windrow.reporting.page import report
    from windrow.state import merge_states
    from windrow.stats.stats import Stats
    from windrow.transforms.options import MultiprocessingOptions, ReadOptions
    from windrow.verification.report import BadChunk, Report
    from windrow.verification.verify import verify

__version__ = "0.2.0"

_MODULE_OF = {
    "Advice": "windrow.explain.explanation",
    "BadChunk": "windrow.verification.report",
    "DataLoader": "windrow.grain_api.data_loader",
    "DataLoaderIterator": "windrow.grain_api.data_loader",
    "DatasetIterator": "windrow.iterator",
    "Explanation": "windrow.explain.explanation",
    "IterDataset": "windrow.iter_dataset",
    "ColocatedDataset": "windrow.colocated",
    "ColocatedIterator": "windrow.colocated",
    "JaxDataset": "windrow.jax_dataset",
    "MapDataset": "windrow.map_dataset",
    "MultiprocessingOptions": "windrow.transforms.options",
    "Record": "windrow.grain_api.records",
    "RecordMetadata": "windrow.grain_api.records",
    "RecordOf": "windrow.engine.record_names",
    "ReadOptions": "windrow.transforms.options",
    "Report": "windrow.verification.report",
    "ShuffleQuality": "windrow.quality.shuffle_quality",
    "Statistics": "windrow.data_statistics",
    "Stats": "windrow.stats.stats",
    "WindrowError": "windrow.errors",
    "from_grain": "windrow.grain_api.from_grain",
    "inspect": "windrow.formats.inspect",
    "lengths": "windrow.record_lengths",
    "load": "windrow.grain_api.data_loader",
    "merge_states": "windrow.state",
    "report": "windrow.reporting.page",
    "shuffle_quality": "windrow.order_quality",
    "statistics": "windrow.data_statistics",
    "verify": "windrow.verification.verify",
}
_MODULES = (
    "checkpoint",
    "constants",
    "converters",
    "errors",
    "experimental",
    "multiprocessing",
    "python",
    "samplers",
    "sharding",
    "sources",
    "torch",
    "transforms",
)

__all__ = [
    "Advice",
    "BadChunk",
    "ColocatedDataset",
    "ColocatedIterator",
    "DataLoader",
    "DataLoaderIterator",
    "DatasetIterator",
    "Explanation",
    "IterDataset",
    "JaxDataset",
    "MapDataset",
    "MultiprocessingOptions",
    "ReadOptions",
    "Record",
    "RecordMetadata",
    "RecordOf",
    "Report",
    "ShuffleQuality",
    "Statistics",
    "Stats",
    "WindrowError",
    "__version__",
    "checkpoint",
    "constants",
    "converters",
    "errors",
    "experimental",
    "from_grain",
    "inspect",
    "lengths",
    "load",
    "merge_states",
    "multiprocessing",
    "python",
    "report",
    "samplers",
    "sharding",
    "shuffle_quality",
    "sources",
    "statistics",
    "transforms",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"windrow.{name}")
    if name in _MODULE_OF:
        found = getattr(importlib.import_module(_MODULE_OF[name]), name)
        globals()[name] = found
        return found
    sources = importlib.import_module("windrow.sources")
    if name in sources.__all__:
        raise AttributeError(
            f"module 'windrow' has no attribute {name!r}; it is windrow.sources.{name}"
        )
    raise importlib.import_module("windrow.core.absent_names").absent("windrow", name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
