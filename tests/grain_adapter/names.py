"""What Grain's tests import, by Grain's modules: Windrow's objects under Grain's names.

Grain's classes of nodes have no counterpart here: each is a method of the chain, called with the arguments
of the class. Names that a module lacks here are Grain's internals; cases that use them are in `listed.toml`.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from typing import Any, Final

import windrow
from windrow import experimental, python, samplers, sharding, sources, transforms
from windrow.grain_api import data_loader, datasets, tools
from windrow.grain_api import samplers as sampling
from windrow.grain_api import sharding as shards
from windrow.transforms.nodes import default_seed, options_of
from windrow.transforms.options import DatasetOptions, ExecutionTrackingMode

_PYTHON: Final = "grain._src.python."
_NODES: Final = f"{_PYTHON}dataset.transformations."
# What the tests check with, rather than what they test.
TOOLS: Final = (
    "grain._src.core.config",
    "grain._src.core.pytest",
    "grain._src.core.tree_lib",
    "grain.proto.execution_summary_pb2",
    f"{_PYTHON}testing.experimental",
    f"{_NODES}packing_packed_batch",
)


def _method(name: str) -> Callable[..., Any]:
    """A class of nodes of Grain's, as a method of its parent."""

    def made(parent: Any, *args: Any, **options: Any) -> Any:
        return getattr(parent, name)(*args, **options)

    return made


def _batch(parent: Any, batch_size: int, drop_remainder: bool = False, batch_fn: Any = None) -> Any:
    made = parent.batch(batch_size, drop_remainder=drop_remainder, batch_fn=batch_fn)
    made._batch_fn = batch_fn or _stacked
    return made


def _mixed(parents: Any, proportions: Any = None, selection_map: Any = None) -> Any:
    if selection_map is None:
        return windrow.MapDataset.mix(parents, proportions)
    return windrow.MapDataset.select_from_datasets(parents, selection_map)


def _mixed_streams(parents: Any, proportions: Any = None) -> Any:
    return windrow.IterDataset.mix(parents, proportions)


def _read_ahead(parent: Any, *, read_options: Any, allow_nones: bool = False) -> Any:
    made = parent.to_iter_dataset(read_options, allow_nones=allow_nones)
    made._read_options = read_options
    return made


def _read_ahead_iterator(parent: Any, read_options: Any, allow_nones: bool) -> Any:
    return iter(_read_ahead(parent, read_options=read_options, allow_nones=allow_nones))


def _in_workers(
    ds: Any,
    num_workers: int = 0,
    buffer_size: int = 1,
    worker_init_fn: Any = None,
    sequential_slice: bool = False,
) -> Any:
    return ds.mp_prefetch(
        windrow.MultiprocessingOptions(num_workers, buffer_size), worker_init_fn, sequential_slice
    )


def _in_worker(parent: Any, buffer_size: int, worker_init_fn: Any = None) -> Any:
    start = None if worker_init_fn is None else lambda number, count: worker_init_fn()
    return _in_workers(parent, 1, buffer_size, start)


def _stacked(values: Any, *, output_to_shared_memory: bool = False) -> Any:
    (batch,) = windrow.MapDataset.source(list(values)).batch(len(values))
    return batch


_NAMES: Final[dict[str, dict[str, Any]]] = {
    "grain": {},
    "grain._src.core.sharding": {
        "NoSharding": sharding.NoSharding,
        "ShardByJaxProcess": sharding.ShardByJaxProcess,
        "ShardOptions": sharding.ShardOptions,
        "even_split": shards.even_split,
    },
    "grain._src.core.transforms": {
        **{name: getattr(transforms, name) for name in dir(transforms) if name[0].isupper()},
        "FlatMap": experimental.FlatMapTransform,
    },
    f"{_PYTHON}data_loader": {
        "DataLoader": data_loader.DataLoader,
        "DataLoaderIterator": data_loader.DataLoaderIterator,
    },
    f"{_PYTHON}data_sources": {
        "ArrayRecordDataSource": sources.ArrayRecordDataSource,
        "RangeDataSource": sources.RangeDataSource,
        "SharedMemoryDataSource": sources.SequenceDataSource,
    },
    f"{_PYTHON}dataset.base": {
        "DatasetOptions": DatasetOptions,
        "DatasetSelectionMap": transforms.DatasetSelectionMap,
        "ExecutionTrackingMode": ExecutionTrackingMode,
        "MultiprocessingContext": object,
        "RandomAccessDataSource": sources.RandomAccessDataSource,
        "ShapeDtypeStruct": experimental.ShapeDtypeStruct,
        "ShapeDtypeStructProtocol": experimental.ShapeDtypeStructProtocol,
    },
    f"{_PYTHON}dataset.dataset": {
        "DatasetIterator": windrow.DatasetIterator,
        "IterDataset": windrow.IterDataset,
        "MapDataset": windrow.MapDataset,
        "WithOptionsIterDataset": datasets.WithOptionsIterDataset,
        "apply_transformations": experimental.apply_transformations,
        "get_element_spec": experimental.get_element_spec,
        "get_next_index": experimental.get_next_index,
        "set_next_index": experimental.set_next_index,
    },
    f"{_PYTHON}dataset.elastic_iterator": {"ElasticIterator": experimental.ElasticIterator},
    f"{_PYTHON}dataset.stats": {},
    f"{_PYTHON}experimental.index_shuffle.python.index_shuffle_module": {
        "index_shuffle": tools.index_shuffle
    },
    f"{_PYTHON}ipc.shared_memory_array": {},
    f"{_PYTHON}operations": {
        "BatchOperation": transforms.Batch,
        "FilterOperation": object,
        "MapOperation": object,
    },
    f"{_PYTHON}options": {
        "MultiprocessingOptions": python.MultiprocessingOptions,
        "ReadOptions": python.ReadOptions,
    },
    f"{_PYTHON}record": {
        "Record": sampling.Record,
        "RecordMetadata": sampling.RecordMetadata,
    },
    f"{_PYTHON}samplers": {
        name: getattr(samplers, name) for name in ("IndexSampler", "Sampler", "SequentialSampler")
    },
    f"{_NODES}batch": {
        "BatchFn": object,
        "BatchIterDataset": _batch,
        "BatchMapDataset": _batch,
        "batch_and_pad": experimental.batch_and_pad,
        "make_batch": _stacked,
    },
    f"{_NODES}cache": {"CacheIterDataset": experimental.CacheIterDataset},
    f"{_NODES}filter": {
        "FilterIterDataset": _method("filter"),
        "FilterMapDataset": _method("filter"),
    },
    f"{_NODES}flatmap": {
        "FlatMapIterDataset": experimental.FlatMapIterDataset,
        "FlatMapMapDataset": experimental.FlatMapMapDataset,
    },
    f"{_NODES}interleave": {"InterleaveIterDataset": experimental.InterleaveIterDataset},
    f"{_NODES}limit": {"LimitIterDataset": experimental.LimitIterDataset},
    f"{_NODES}map": {
        "MapIterDataset": _method("map"),
        "MapMapDataset": _method("map"),
        "MapWithIndexIterDataset": _method("map_with_index"),
        "MapWithIndexMapDataset": _method("map_with_index"),
        "RandomMapIterDataset": _method("random_map"),
        "RandomMapMapDataset": _method("random_map"),
    },
    f"{_NODES}mix": {
        "ConcatenateMapDataset": windrow.MapDataset.concatenate,
        "MixedIterDataset": _mixed_streams,
        "MixedMapDataset": _mixed,
    },
    f"{_NODES}packing": {
        "BestFitPackIterDataset": experimental.BestFitPackIterDataset,
        "FirstFitPackIterDataset": experimental.FirstFitPackIterDataset,
        "PackIterDataset": windrow.IterDataset,
    },
    f"{_NODES}packing_concat_then_split": {
        "BOSHandling": experimental.BOSHandling,
        "ConcatThenSplitIterDataset": experimental.ConcatThenSplitIterDataset,
    },
    f"{_NODES}prefetch": {
        "PrefetchDatasetIterator": _read_ahead_iterator,
        "PrefetchIterDataset": _read_ahead,
        "ThreadPrefetchDatasetIterator": experimental.ThreadPrefetchDatasetIterator,
        "ThreadPrefetchIterDataset": experimental.ThreadPrefetchIterDataset,
        "multithread_prefetch": experimental.multithread_prefetch,
    },
    f"{_NODES}process_prefetch": {
        "ProcessPrefetchIterDataset": _in_worker,
        "multiprocess_prefetch": _in_workers,
    },
    f"{_NODES}rebatch": {"RebatchIterDataset": experimental.RebatchIterDataset},
    f"{_NODES}repeat": {
        "RepeatIterDataset": experimental.RepeatIterDataset,
        "RepeatMapDataset": _method("repeat"),
    },
    f"{_NODES}shuffle": {
        "ShuffleMapDataset": _method("shuffle"),
        "WindowShuffleIterDataset": experimental.WindowShuffleIterDataset,
        "WindowShuffleMapDataset": experimental.WindowShuffleMapDataset,
    },
    f"{_NODES}slice": {"SliceMapDataset": _method("slice")},
    f"{_NODES}source": {
        "RangeMapDataset": windrow.MapDataset.range,
        "SourceMapDataset": windrow.MapDataset.source,
    },
    f"{_NODES}zip": {
        "ZipIterDataset": experimental.ZipIterDataset,
        "ZipMapDataset": experimental.ZipMapDataset,
    },
}


def modules() -> dict[str, types.ModuleType]:
    """A module for each of Grain's that a test imports, and those that they lie in."""
    found: dict[str, types.ModuleType] = {}

    def module(name: str) -> types.ModuleType:
        if name not in found:
            found[name] = types.ModuleType(name)
            outer, _, inner = name.rpartition(".")
            if outer:
                setattr(module(outer), inner, found[name])
        return found[name]

    for name, names in _NAMES.items():
        vars(module(name)).update(names)
    tree_lib = importlib.import_module("grain._src.core.tree_lib")
    found[f"{_NODES}batch"].tree_lib = tree_lib  # type: ignore[attr-defined]
    for name in TOOLS:
        outer, _, inner = name.rpartition(".")
        found[name] = importlib.import_module(name)
        setattr(module(outer), inner, found[name])
    # Grain's name of it that no program uses.
    windrow.MapDataset._getitems = windrow.MapDataset.__getitems__  # type: ignore[attr-defined]
    for kind in (windrow.MapDataset, windrow.IterDataset):
        setattr(kind, "_element_spec", property(experimental.get_element_spec))  # noqa: B010
        setattr(kind, "_default_seed", property(lambda ds: default_seed(ds._node)))  # noqa: B010
        setattr(kind, "_seed", property(lambda ds: ds._node.seed))  # noqa: B010
    # The options of a stream hold for all of it, so its iterator alone has them.
    windrow.DatasetIterator._ctx = property(  # type: ignore[attr-defined]
        lambda it: types.SimpleNamespace(dataset_options=options_of(it._node))
    )
    windrow.DatasetIterator._parents = ()
    # Grain copies batches of workers; arrays of ours are in shared memory in any case.
    windrow.IterDataset.enable_shared_memory_output = lambda ds: None  # type: ignore[attr-defined]
    found["grain"].__file__ = importlib.import_module("grain").__file__
    return found
