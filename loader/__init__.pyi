"""The public names of `windrow`: type checkers read this list, and `windrow` imports by it."""

from windrow import checkpoint as checkpoint
from windrow import constants as constants
from windrow import converters as converters
from windrow import errors as errors
from windrow import experimental as experimental
from windrow import multiprocessing as multiprocessing
from windrow import python as python
from windrow import samplers as samplers
from windrow import sharding as sharding
from windrow import sources as sources
from windrow import torch as torch
from windrow import transforms as transforms
from windrow.colocated import ColocatedDataset as ColocatedDataset
from windrow.colocated import ColocatedIterator as ColocatedIterator
from windrow.data_statistics import Statistics as Statistics
from windrow.data_statistics import statistics as statistics
from windrow.engine.record_names import RecordOf as RecordOf
from windrow.errors import WindrowError as WindrowError
from windrow.explain.explanation import Advice as Advice
from windrow.explain.explanation import Explanation as Explanation
from windrow.formats.inspect import inspect as inspect
from windrow.grain_api.data_loader import DataLoader as DataLoader
from windrow.grain_api.data_loader import DataLoaderIterator as DataLoaderIterator
from windrow.grain_api.data_loader import load as load
from windrow.grain_api.from_grain import from_grain as from_grain
from windrow.grain_api.samplers import Record as Record
from windrow.grain_api.samplers import RecordMetadata as RecordMetadata
from windrow.iter_dataset import IterDataset as IterDataset
from windrow.iterator import DatasetIterator as DatasetIterator
from windrow.jax_dataset import JaxDataset as JaxDataset
from windrow.map_dataset import MapDataset as MapDataset
from windrow.order_quality import shuffle_quality as shuffle_quality
from windrow.quality.shuffle_quality import ShuffleQuality as ShuffleQuality
from windrow.record_lengths import lengths as lengths
from windrow.reporting.page import report as report
from windrow.state import merge_states as merge_states
from windrow.stats.stats import Stats as Stats
from windrow.transforms.options import MultiprocessingOptions as MultiprocessingOptions
from windrow.transforms.options import ReadOptions as ReadOptions
from windrow.verification.report import BadChunk as BadChunk
from windrow.verification.report import Report as Report
from windrow.verification.verify import verify as verify

__version__: str
