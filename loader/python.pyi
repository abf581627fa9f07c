"""The public names of `windrow.python`: type checkers read this list, and `windrow.python` imports by it."""

from windrow import experimental as experimental
from windrow.constants import DATASET_INDEX as DATASET_INDEX
from windrow.constants import EPOCH as EPOCH
from windrow.constants import INDEX as INDEX
from windrow.constants import META_FEATURES as META_FEATURES
from windrow.constants import RECORD as RECORD
from windrow.constants import RECORD_KEY as RECORD_KEY
from windrow.constants import SEED as SEED
from windrow.grain_api.data_loader import DataLoader as DataLoader
from windrow.grain_api.data_loader import DataLoaderIterator
from windrow.grain_api.data_loader import load as load
from windrow.grain_api.samplers import Record as Record
from windrow.grain_api.samplers import RecordMetadata as RecordMetadata
from windrow.iter_dataset import IterDataset as IterDataset
from windrow.iterator import DatasetIterator as DatasetIterator
from windrow.map_dataset import MapDataset as MapDataset
from windrow.samplers import IndexSampler as IndexSampler
from windrow.samplers import Sampler as Sampler
from windrow.samplers import SequentialSampler as SequentialSampler
from windrow.sharding import NoSharding as NoSharding
from windrow.sharding import ShardByJaxProcess as ShardByJaxProcess
from windrow.sharding import ShardOptions as ShardOptions
from windrow.sources.array_record.source import ArrayRecordDataSource as ArrayRecordDataSource
from windrow.sources.foreign import RandomAccessDataSource as RandomAccessDataSource
from windrow.sources.memory import RangeDataSource as RangeDataSource
from windrow.transforms import Batch as Batch
from windrow.transforms import DatasetSelectionMap as DatasetSelectionMap
from windrow.transforms import Filter, Map, MapWithIndex, RandomMap
from windrow.transforms import Transformation as Transformation
from windrow.transforms import Transformations as Transformations
from windrow.transforms.options import MultiprocessingOptions as MultiprocessingOptions
from windrow.transforms.options import ReadOptions as ReadOptions

FilterTransform = Filter
MapTransform = Map
MapWithIndexTransform = MapWithIndex
PyGrainDatasetIterator = DataLoaderIterator
RandomMapTransform = RandomMap
