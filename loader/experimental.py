"""Grain's experimental names, each over a method of the chain or a part of Windrow.

Nothing here is experimental: a class has the elements, the states and the costs of its method.
"""

from typing import Any

from windrow.core.absent_names import absent
from windrow.grain_api.datasets import (
    BestFitPackIterDataset,
    BOSHandling,
    CacheIterDataset,
    ConcatThenSplitIterDataset,
    FirstFitPackIterDataset,
    FlatMapIterDataset,
    FlatMapMapDataset,
    InterleaveIterDataset,
    LimitIterDataset,
    RebatchIterDataset,
    RepeatIterDataset,
    ThreadPrefetchDatasetIterator,
    ThreadPrefetchIterDataset,
    WindowShuffleIterDataset,
    WindowShuffleMapDataset,
    ZipIterDataset,
    ZipMapDataset,
    multithread_prefetch,
)
from windrow.grain_api.elastic import ElasticIterator
from windrow.grain_api.files import ParquetIterDataset, TFRecordIterDataset
from windrow.grain_api.index_shuffle import index_shuffle
from windrow.grain_api.options import (
    PerformanceConfig,
    WithOptionsIterDataset,
    pick_performance_config,
)
from windrow.grain_api.tools import (
    RngPool,
    ShapeDtypeStruct,
    ShapeDtypeStructProtocol,
    apply_transformations,
    assert_equal_output_after_checkpoint,
    batch_and_pad,
    device_put,
    get_element_spec,
    get_next_index,
    set_next_index,
)
from windrow.transforms.functions import FlatMap as FlatMapTransform
from windrow.transforms.functions import MapWithIndex as MapWithIndexTransform
from windrow.transforms.options import DatasetOptions, ExecutionTrackingMode

__all__ = [
    "BOSHandling",
    "BestFitPackIterDataset",
    "CacheIterDataset",
    "ConcatThenSplitIterDataset",
    "DatasetOptions",
    "ElasticIterator",
    "ExecutionTrackingMode",
    "FirstFitPackIterDataset",
    "FlatMapIterDataset",
    "FlatMapMapDataset",
    "FlatMapTransform",
    "InterleaveIterDataset",
    "LimitIterDataset",
    "MapWithIndexTransform",
    "ParquetIterDataset",
    "PerformanceConfig",
    "RebatchIterDataset",
    "RepeatIterDataset",
    "RngPool",
    "ShapeDtypeStruct",
    "ShapeDtypeStructProtocol",
    "TFRecordIterDataset",
    "ThreadPrefetchDatasetIterator",
    "ThreadPrefetchIterDataset",
    "WindowShuffleIterDataset",
    "WindowShuffleMapDataset",
    "WithOptionsIterDataset",
    "ZipIterDataset",
    "ZipMapDataset",
    "apply_transformations",
    "assert_equal_output_after_checkpoint",
    "batch_and_pad",
    "device_put",
    "get_element_spec",
    "get_next_index",
    "index_shuffle",
    "multithread_prefetch",
    "pick_performance_config",
    "set_next_index",
]


def __getattr__(name: str) -> Any:
    raise absent(__name__, name)
