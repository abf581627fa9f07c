"""The names of `grain.python`, for programs that write `import grain.python as grain`.

They come from `windrow`, `windrow.transforms` and so on, some under a former name.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

from windrow.constants import (
    DATASET_INDEX,
    EPOCH,
    INDEX,
    META_FEATURES,
    RECORD,
    RECORD_KEY,
    SEED,
)
from windrow.core.absent_names import found

if TYPE_CHECKING:
    from windrow import experimental
    from windrow.grain_api.data_loader import DataLoader, load
    from windrow.grain_api.data_loader import DataLoaderIterator as PyGrainDatasetIterator
    from windrow.grain_api.records import Record, RecordMetadata
    from windrow.iter_dataset import IterDataset
    from windrow.iterator import DatasetIterator
    from windrow.map_dataset import MapDataset
    from windrow.samplers import IndexSampler, Sampler, SequentialSampler
    from windrow.sharding import NoSharding, ShardByJaxProcess, ShardOptions
    from windrow.sources.array_record.source import ArrayRecordDataSource
    from windrow.sources.foreign import RandomAccessDataSource
    from windrow.sources.memory import RangeDataSource
    from windrow.transforms import (
        Batch,
        DatasetSelectionMap,
        Transformation,
        Transformations,
    )
    from windrow.transforms import Filter as FilterTransform
    from windrow.transforms import Map as MapTransform
    from windrow.transforms import MapWithIndex as MapWithIndexTransform
    from windrow.transforms import RandomMap as RandomMapTransform
    from windrow.transforms.options import MultiprocessingOptions, ReadOptions

# The module of each name, and the name that it has there where that is another one.
_PLACES: Final = {
    "ArrayRecordDataSource": "windrow.sources.array_record.source",
    "Batch": "windrow.transforms",
    "DataLoader": "windrow.grain_api.data_loader",
    "DatasetIterator": "windrow.iterator",
    "DatasetSelectionMap": "windrow.transforms",
    "FilterTransform": "windrow.transforms:Filter",
    "IndexSampler": "windrow.samplers",
    "IterDataset": "windrow.iter_dataset",
    "MapDataset": "windrow.map_dataset",
    "MapTransform": "windrow.transforms:Map",
    "MapWithIndexTransform": "windrow.transforms:MapWithIndex",
    "MultiprocessingOptions": "windrow.transforms.options",
    "NoSharding": "windrow.sharding",
    "PyGrainDatasetIterator": "windrow.grain_api.data_loader:DataLoaderIterator",
    "RandomAccessDataSource": "windrow.sources.foreign",
    "RandomMapTransform": "windrow.transforms:RandomMap",
    "RangeDataSource": "windrow.sources.memory",
    "ReadOptions": "windrow.transforms.options",
    "Record": "windrow.grain_api.records",
    "RecordMetadata": "windrow.grain_api.records",
    "Sampler": "windrow.samplers",
    "SequentialSampler": "windrow.samplers",
    "ShardByJaxProcess": "windrow.sharding",
    "ShardOptions": "windrow.sharding",
    "Transformation": "windrow.transforms",
    "Transformations": "windrow.transforms",
    "load": "windrow.grain_api.data_loader",
}

__all__ = [
    "DATASET_INDEX",
    "EPOCH",
    "INDEX",
    "META_FEATURES",
    "RECORD",
    "RECORD_KEY",
    "SEED",
    "ArrayRecordDataSource",
    "Batch",
    "DataLoader",
    "DatasetIterator",
    "DatasetSelectionMap",
    "FilterTransform",
    "IndexSampler",
    "IterDataset",
    "MapDataset",
    "MapTransform",
    "MapWithIndexTransform",
    "MultiprocessingOptions",
    "NoSharding",
    "PyGrainDatasetIterator",
    "RandomAccessDataSource",
    "RandomMapTransform",
    "RangeDataSource",
    "ReadOptions",
    "Record",
    "RecordMetadata",
    "Sampler",
    "SequentialSampler",
    "ShardByJaxProcess",
    "ShardOptions",
    "Transformation",
    "Transformations",
    "experimental",
    "load",
]


_PREFIX: Final = "PyGrain"


def __getattr__(name: str) -> Any:
    if name == "experimental":
        return importlib.import_module("windrow.experimental")
    if name.startswith(f"{_PREFIX}Checkpoint"):  # they need JAX and Orbax
        return getattr(importlib.import_module("windrow.checkpoint"), name.removeprefix(_PREFIX))
    globals()[name] = value = found(__name__, _PLACES, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
