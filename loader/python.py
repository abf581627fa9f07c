"""The names of `grain.python`, for programs that write `import grain.python as grain`.

They come from `windrow`, `windrow.transforms` and so on, some under a former name.
"""

from typing import Any

from windrow import experimental
from windrow.constants import (
    DATASET_INDEX,
    EPOCH,
    INDEX,
    META_FEATURES,
    RECORD,
    RECORD_KEY,
    SEED,
)
from windrow.core.absent_names import absent
from windrow.grain_api.data_loader import DataLoader, load
from windrow.grain_api.data_loader import DataLoaderIterator as PyGrainDatasetIterator
from windrow.grain_api.operations import (
    BatchOperation,
    FilterOperation,
    MapOperation,
    Operation,
    RandomMapOperation,
)
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
    "BatchOperation",
    "DataLoader",
    "DatasetIterator",
    "DatasetSelectionMap",
    "FilterOperation",
    "FilterTransform",
    "IndexSampler",
    "IterDataset",
    "MapDataset",
    "MapOperation",
    "MapTransform",
    "MapWithIndexTransform",
    "MultiprocessingOptions",
    "NoSharding",
    "Operation",
    "PyGrainDatasetIterator",
    "RandomAccessDataSource",
    "RandomMapOperation",
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

_PREFIX = "PyGrain"


def __getattr__(name: str) -> Any:
    if name.startswith(f"{_PREFIX}Checkpoint"):  # they need JAX and Orbax
        from windrow import checkpoint

        return getattr(checkpoint, name.removeprefix(_PREFIX))
    raise absent(__name__, name)
