"""The public names of `windrow.experimental`: type checkers read this list, and `windrow.experimental` imports by it."""

from windrow.grain_api.datasets import BestFitPackIterDataset as BestFitPackIterDataset
from windrow.grain_api.datasets import BOSHandling as BOSHandling
from windrow.grain_api.datasets import CacheIterDataset as CacheIterDataset
from windrow.grain_api.datasets import ConcatThenSplitIterDataset as ConcatThenSplitIterDataset
from windrow.grain_api.datasets import FirstFitPackIterDataset as FirstFitPackIterDataset
from windrow.grain_api.datasets import FlatMapIterDataset as FlatMapIterDataset
from windrow.grain_api.datasets import FlatMapMapDataset as FlatMapMapDataset
from windrow.grain_api.datasets import InterleaveIterDataset as InterleaveIterDataset
from windrow.grain_api.datasets import LimitIterDataset as LimitIterDataset
from windrow.grain_api.datasets import RebatchIterDataset as RebatchIterDataset
from windrow.grain_api.datasets import RepeatIterDataset as RepeatIterDataset
from windrow.grain_api.datasets import (
    ThreadPrefetchDatasetIterator as ThreadPrefetchDatasetIterator,
)
from windrow.grain_api.datasets import ThreadPrefetchIterDataset as ThreadPrefetchIterDataset
from windrow.grain_api.datasets import WindowShuffleIterDataset as WindowShuffleIterDataset
from windrow.grain_api.datasets import WindowShuffleMapDataset as WindowShuffleMapDataset
from windrow.grain_api.datasets import WithOptionsIterDataset as WithOptionsIterDataset
from windrow.grain_api.datasets import ZipIterDataset as ZipIterDataset
from windrow.grain_api.datasets import ZipMapDataset as ZipMapDataset
from windrow.grain_api.datasets import multithread_prefetch as multithread_prefetch
from windrow.grain_api.elastic import ElasticIterator as ElasticIterator
from windrow.grain_api.files import ParquetIterDataset as ParquetIterDataset
from windrow.grain_api.files import TFRecordIterDataset as TFRecordIterDataset
from windrow.grain_api.tools import PerformanceConfig as PerformanceConfig
from windrow.grain_api.tools import RngPool as RngPool
from windrow.grain_api.tools import ShapeDtypeStruct as ShapeDtypeStruct
from windrow.grain_api.tools import ShapeDtypeStructProtocol as ShapeDtypeStructProtocol
from windrow.grain_api.tools import apply_transformations as apply_transformations
from windrow.grain_api.tools import (
    assert_equal_output_after_checkpoint as assert_equal_output_after_checkpoint,
)
from windrow.grain_api.tools import batch_and_pad as batch_and_pad
from windrow.grain_api.tools import device_put as device_put
from windrow.grain_api.tools import get_element_spec as get_element_spec
from windrow.grain_api.tools import get_next_index as get_next_index
from windrow.grain_api.tools import index_shuffle as index_shuffle
from windrow.grain_api.tools import pick_performance_config as pick_performance_config
from windrow.grain_api.tools import set_next_index as set_next_index
from windrow.transforms.functions import FlatMap, MapWithIndex
from windrow.transforms.options import DatasetOptions as DatasetOptions
from windrow.transforms.options import ExecutionTrackingMode as ExecutionTrackingMode

FlatMapTransform = FlatMap
MapWithIndexTransform = MapWithIndex
