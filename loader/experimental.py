"""Grain's experimental names, each over a method of the chain or a part of Windrow.

Nothing here is experimental: a class has the elements, the states and the costs of its method.
"""

from typing import TYPE_CHECKING, Any, Final

from windrow.core.absent_names import found

if TYPE_CHECKING:
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

# The module of each name, and the name that it has there where that is another one.
_PLACES: Final = {
    "BOSHandling": "windrow.grain_api.datasets",
    "BestFitPackIterDataset": "windrow.grain_api.datasets",
    "CacheIterDataset": "windrow.grain_api.datasets",
    "ConcatThenSplitIterDataset": "windrow.grain_api.datasets",
    "DatasetOptions": "windrow.transforms.options",
    "ElasticIterator": "windrow.grain_api.elastic",
    "ExecutionTrackingMode": "windrow.transforms.options",
    "FirstFitPackIterDataset": "windrow.grain_api.datasets",
    "FlatMapIterDataset": "windrow.grain_api.datasets",
    "FlatMapMapDataset": "windrow.grain_api.datasets",
    "FlatMapTransform": "windrow.transforms.functions:FlatMap",
    "InterleaveIterDataset": "windrow.grain_api.datasets",
    "LimitIterDataset": "windrow.grain_api.datasets",
    "MapWithIndexTransform": "windrow.transforms.functions:MapWithIndex",
    "ParquetIterDataset": "windrow.grain_api.files",
    "PerformanceConfig": "windrow.grain_api.options",
    "RebatchIterDataset": "windrow.grain_api.datasets",
    "RepeatIterDataset": "windrow.grain_api.datasets",
    "RngPool": "windrow.grain_api.tools",
    "ShapeDtypeStruct": "windrow.grain_api.tools",
    "ShapeDtypeStructProtocol": "windrow.grain_api.tools",
    "TFRecordIterDataset": "windrow.grain_api.files",
    "ThreadPrefetchDatasetIterator": "windrow.grain_api.datasets",
    "ThreadPrefetchIterDataset": "windrow.grain_api.datasets",
    "WindowShuffleIterDataset": "windrow.grain_api.datasets",
    "WindowShuffleMapDataset": "windrow.grain_api.datasets",
    "WithOptionsIterDataset": "windrow.grain_api.options",
    "ZipIterDataset": "windrow.grain_api.datasets",
    "ZipMapDataset": "windrow.grain_api.datasets",
    "apply_transformations": "windrow.grain_api.tools",
    "assert_equal_output_after_checkpoint": "windrow.grain_api.tools",
    "batch_and_pad": "windrow.grain_api.tools",
    "device_put": "windrow.grain_api.tools",
    "get_element_spec": "windrow.grain_api.tools",
    "get_next_index": "windrow.grain_api.tools",
    "index_shuffle": "windrow.grain_api.index_shuffle",
    "multithread_prefetch": "windrow.grain_api.datasets",
    "pick_performance_config": "windrow.grain_api.options",
    "set_next_index": "windrow.grain_api.tools",
}

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
    globals()[name] = value = found(__name__, _PLACES, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
