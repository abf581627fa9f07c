"""What each class of node of Grain becomes here: a table from its name to a small function.

The functions read attributes of Grain 0.2, most of them private, so this is the one place that knows
them. Iterators of Grain have the same attributes as the datasets that make them, and are in the table
under the same functions.

Invariant: the dataset that a function makes has the elements, order and random values of the node.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from windrow.errors import PlanError
from windrow.grain_api import datasets, files
from windrow.grain_api.options import WithOptionsIterDataset
from windrow.iter_dataset import IterDataset
from windrow.map_dataset import MapDataset
from windrow.transforms import random
from windrow.transforms.options import DatasetOptions, MultiprocessingOptions

if TYPE_CHECKING:
    from windrow.grain_api.conversion import Conversion

Build: TypeAlias = "Callable[[Conversion, Any], Any]"


def name_of(node: Any) -> str | None:
    """The name of Grain's own class of a node; None for a class of a user."""
    kind = type(node)
    return kind.__name__ if kind.__module__.partition(".")[0] == "grain" else None


def parent_of(node: Any) -> Any:
    """The one parent of a dataset or an iterator of Grain."""
    for name in ("_map_parent", "_maybe_nonnative_parent", "_iter_parent"):
        if name in node.__dict__:
            return node.__dict__[name]
    return node._parents[0]


def interleaved_parts(node: Any) -> list[Any]:
    """The datasets that an interleaving reads; they may be elements of a dataset."""
    return [node._datasets[index] for index in range(len(node._datasets))]


def function_of(node: Any) -> Any:
    """The function of a node, as an object of a transform where the node keeps it."""
    return node._transform if "_transform" in node.__dict__ else node._map_fn


def batch_fn_of(node: Any) -> Callable[..., Any] | None:
    """The function that makes batches; None for Grain's own."""
    from grain._src.python.dataset.transformations import batch

    function = node._batch_fn
    inner = function.func if isinstance(function, functools.partial) else function
    own = getattr(batch, "_MakeBatchParallel", ())
    return None if inner is batch.make_batch or isinstance(inner, own) else function


# --- sources -------------------------------------------------------------------------------------


def _source(to: Conversion, node: Any) -> Any:
    from grain import MapDataset as GrainMapDataset

    if isinstance(node._source, GrainMapDataset):  # which counts as one epoch
        return to.of(node._source).repeat(1, reseed_each_epoch=False)
    return MapDataset.source(to.source(node._source))


def _parquet(to: Conversion, node: Any) -> Any:
    return files.ParquetIterDataset(node._paths[to.every()], **node._read_kwargs)


def _tfrecord(to: Conversion, node: Any) -> Any:
    if to.part is not None:
        raise PlanError("Grain cannot share a TFRecord file among workers")
    return files.TFRecordIterDataset(node._path)


# --- with random access --------------------------------------------------------------------------


def _random_map(to: Conversion, node: Any) -> Any:
    return to.parent(node).random_map(function_of(node), seed=node._rng_pool._seed)


def _mixed(to: Conversion, node: Any) -> Any:
    parents = [to.of(parent) for parent in node._parents]
    rule = node._selection_map
    match name_of(rule):
        case "SelectionWithProportionsMap":
            return MapDataset.mix(parents, _weights(rule._proportions))
        case "_ConcatSelectionMap":
            return MapDataset.concatenate(parents)
    return MapDataset.select_from_datasets(parents, rule)


def _weights(proportions: Sequence[int]) -> list[float]:
    """Weights that `mix` turns into these integers.

    It makes 100 of the smallest weight and cuts off what follows the point, so Grain's smallest integer
    is 100, or 99 where that product was rounded down.
    """
    least = min(proportions)
    if least in (1, 100) and least * 100 // least == 100 and len(set(proportions)) == 1:
        return [1.0] * len(proportions)
    if least == 100:
        return [float(each) for each in proportions]
    if least != 99:
        raise PlanError(
            f"the least weight of a mixture is {least}, and Grain makes 100 or 99 of it"
        )
    small = next(w for n in range(1, 1000) if int((w := n / 7) * (100 / w)) == 99)
    return [small if each == 99 else (each + 0.5) * small / 100 for each in proportions]


# --- streams -------------------------------------------------------------------------------------


def _to_stream(to: Conversion, node: Any) -> Any:
    dataset = to.whole().of(parent_of(node))
    dataset = dataset if to.part is None else dataset[to.every()]
    return dataset.to_iter_dataset(node._read_options, allow_nones=node._allow_nones)


def _stream_random_map(to: Conversion, node: Any) -> Any:
    (index, count), function = to.process, function_of(node)
    if count == 1:
        return to.parent(node).random_map(function, seed=node._seed)
    draws = getattr(function, "random_map", function)
    return to.parent(node).map_with_index(_InProcess(draws, node._seed, index, count))


class _InProcess:
    """A random map as worker `index` of `count` of Grain draws: its elements have numbers of all."""

    def __init__(self, function: Callable[..., Any], seed: int, index: int, count: int) -> None:
        self._function, self._seed, self._index, self._count = function, seed, index, count

    def __call__(self, number: int, element: Any) -> Any:
        place = self._index + number * self._count
        return self._function(element, random.generator_at(self._seed, place))


def _stream_mixed(to: Conversion, node: Any) -> Any:
    streams = [to.of(parent) for parent in node._parents]
    weights = _weights(node._proportions)
    if not isinstance(node._parents_structure, Mapping):
        return IterDataset.mix(streams, weights)
    names = part_names(node)
    return IterDataset.mix(
        dict(zip(names, streams, strict=True)), dict(zip(names, weights, strict=True))
    )


def part_names(node: Any) -> list[str]:
    """The names of the parts of a mixture, in Grain's order: sorted, where JAX is installed."""
    from grain._src.core import tree_lib

    named = node._parents_structure
    return [str(name) for name in tree_lib.flatten({name: name for name in named})]


def _fit_pack(to: Conversion, node: Any) -> Any:
    best = node._packer_cls.__name__.startswith("Best")
    names = ["num_packing_bins", "seed", "shuffle_bins", "shuffle_bins_group_by_feature"]
    names += ["meta_features", "pack_alignment_struct", "padding_struct", "max_sequences_per_bin"]
    options = {name: getattr(node, f"_{name}") for name in names}
    return to.parent(node).pack(node._length_struct, "best_fit" if best else "first_fit", **options)


def _split_pack(to: Conversion, node: Any) -> Any:
    given = vars(node._config)
    return datasets.ConcatThenSplitIterDataset(to.parent(node), **given)


def _interleaved(to: Conversion, node: Any) -> Any:
    parts = interleaved_parts(node)
    if are_workers(parts):
        if len(parts) > 1 and _is_sequential(parts[0]):
            return to.other(node, "mp_prefetch(sequential_slice=True) with several workers")
        return _in_workers(to, parts)
    inside = to.whole()
    streams = [inside.of(part) for part in parts[to.every()]]
    streams = [s.to_iter_dataset() if isinstance(s, MapDataset) else s for s in streams]
    return IterDataset.interleave(streams, node._cycle_length)


def _in_workers(to: Conversion, parts: Sequence[Any]) -> Any:
    """The stream of `mp_prefetch`, where each worker has a part of the data."""
    whole = whole_of(parts[0])
    if len(parts) == 1 or is_alike(whole):
        stream = to.of(whole)
    else:
        stream = IterDataset.interleave([to.of(part) for part in parts], len(parts))
    return stream.mp_prefetch(
        MultiprocessingOptions(len(parts), parts[0]._buffer_size), _worker_init(parts[0])
    )


def are_workers(parts: Sequence[Any]) -> bool:
    """Whether an interleaving of these datasets is `mp_prefetch`."""
    return bool(parts) and all(name_of(part) == "ProcessPrefetchIterDataset" for part in parts)


def whole_of(part: Any) -> Any:
    """The dataset that workers share."""
    while name_of(part) in _WORKER_NODES:
        part = part._parents[0]
    return part


def _worker_init(part: Any) -> Callable[[int, int], None] | None:
    """The function of the user that begins each worker, if there is one."""
    given: Any = getattr(part._worker_init_fn, "args", ())
    return given[0][1].func if given and len(given[0]) > 1 else None


def _is_sequential(part: Any) -> bool:
    """Whether a worker has a part of each source in one piece."""
    while name_of(part) != "_LazyWorkerSliceIterDataset":
        part = part._parents[0]
    return bool(part._sequential_slice)


def _inside(to: Conversion, node: Any) -> Any:
    return inside(to, node).parent(node)


def inside(to: Conversion, node: Any) -> Conversion:
    """The conversion of the parent of a node: what Grain's workers are is written in their nodes."""
    match name_of(node):
        case "_LazyWorkerSliceIterDataset":
            return to.sliced((node._slice.start, node._slice.step))
        case "_MpContextIterDataset":
            return to.drawing((node._mp_context.process_index, node._mp_context.process_count))
    return to


def _options(to: Conversion, node: Any) -> Any:
    return with_options(to.parent(node), node.options)


def with_options(stream: Any, options: Any) -> Any:
    """The stream with the options of Grain that matter here: the limits of filters."""
    names = ("filter_warn_threshold_ratio", "filter_raise_threshold_ratio")
    given = {name: getattr(options, name) for name in names if name in options._user_set_fields}
    return WithOptionsIterDataset(stream, DatasetOptions(**given)) if given else stream


# --- does the order depend on workers? -----------------------------------------------------------

_WORKER_NODES: Final = frozenset(
    {"ProcessPrefetchIterDataset", "_MpContextIterDataset", "_LazyWorkerSliceIterDataset"}
)
_EACH_ALONE: Final = frozenset(
    {"MapIterDataset", "RandomMapIterDataset", "WithOptionsIterDataset", "_WithSeedIterDataset"}
)
_NEVER_ABSENT: Final = frozenset({"RangeMapDataset", "SourceMapDataset", "ZipMapDataset"})
_ORDERS: Final = frozenset(
    {"ShuffleMapDataset", "WindowShuffleMapDataset", "SliceMapDataset", "RepeatMapDataset"}
    | {"_WithSeedMapDataset", "MixedMapDataset", "ConcatenateMapDataset"}
)


def is_alike(node: Any) -> bool:
    """Whether a stream has one order for any number of workers of Grain.

    Each worker takes every nth element of the chain with random access, and what they make is given in
    turn. So a node that puts elements together, or an element that may be absent, changes the order.
    """
    while name_of(node) in _EACH_ALONE:
        node = parent_of(node)
    if name_of(node) != "PrefetchIterDataset":
        return False
    return bool(node._allow_nones) or _is_always_there(parent_of(node))


def _is_always_there(node: Any) -> bool:
    name = name_of(node)
    if name == "BatchMapDataset":
        return batch_fn_of(node) is None
    if name in _ORDERS:
        return all(map(_is_always_there, node._parents))
    return name in _NEVER_ABSENT  # a function may return None


# --- the table -----------------------------------------------------------------------------------


def _same(to: Conversion, node: Any) -> Any:
    return to.parent(node)


def _batch(to: Conversion, node: Any) -> Any:
    return to.parent(node).batch(
        node._batch_size, drop_remainder=node._drop_remainder, batch_fn=batch_fn_of(node)
    )


def _zip(to: Conversion, node: Any) -> Any:
    parents = [to.of(parent) for parent in node._parents]
    return IterDataset.zip(parents, strict=node._strict)


def _shuffle(to: Conversion, node: Any) -> Any:
    last = len(node) - 1
    if last >= 1 << 16 and last.bit_count() == 1 and last.bit_length() % 2:
        _warn_of_loss("a shuffle of this length", len(node))
    return to.parent(node).shuffle(node._seed)


def _warn_of_loss(what: str, length: int) -> None:
    warnings.warn(
        f"from_grain: Grain gives some elements of {length:,} twice and others never, after {what};"
        " here each comes once, in another order",
        stacklevel=2,
    )


def _window_shuffle(to: Conversion, node: Any) -> Any:
    if hasattr(node, "__len__") and len(node) % node._window_size:
        _warn_of_loss("a window that does not divide the length", len(node))
    seed = node._global_seed if "_global_seed" in node.__dict__ else node._seed
    return to.parent(node).window_shuffle(node._window_size, seed)


def _map(to: Conversion, node: Any) -> Any:
    return to.parent(node).map(function_of(node))


def _map_with_index(to: Conversion, node: Any) -> Any:
    return to.parent(node).map_with_index(function_of(node))


def _filter(to: Conversion, node: Any) -> Any:
    return to.parent(node).filter(node._filter_fn)


def _flat_map(to: Conversion, node: Any) -> Any:
    function = node._transform if "_transform" in node.__dict__ else node._flat_map
    return to.parent(node).flat_map(function)


def _seed(to: Conversion, node: Any) -> Any:
    return to.parent(node).seed(node._seed_rng_seed)


NODES: Final[Mapping[str, Build]] = {
    # Sources.
    "SourceMapDataset": _source,
    "RangeMapDataset": lambda to, node: MapDataset.range(node.start, node.stop, node.step),
    "ParquetIterDataset": _parquet,
    "TFRecordIterDataset": _tfrecord,
    # With random access.
    "MapMapDataset": _map,
    "RandomMapMapDataset": _random_map,
    "MapWithIndexMapDataset": _map_with_index,
    "FilterMapDataset": _filter,
    "FlatMapMapDataset": _flat_map,
    "ShuffleMapDataset": _shuffle,
    "WindowShuffleMapDataset": _window_shuffle,
    "SliceMapDataset": lambda to, node: to.parent(node).slice(_slice_of(node)),
    "RepeatMapDataset": lambda to, node: to.parent(node).repeat(
        node._num_epochs, reseed_each_epoch=node._reseed_each_epoch
    ),
    "BatchMapDataset": _batch,
    "ZipMapDataset": lambda to, node: MapDataset.zip([to.of(each) for each in node._parents]),
    "MixedMapDataset": _mixed,
    "ConcatenateMapDataset": _mixed,
    "_WithSeedMapDataset": _seed,
    # Streams.
    "PrefetchIterDataset": _to_stream,
    "MapIterDataset": _map,
    "RandomMapIterDataset": _stream_random_map,
    "MapWithIndexIterDataset": _map_with_index,
    "FilterIterDataset": _filter,
    "FlatMapIterDataset": _flat_map,
    "WindowShuffleIterDataset": _window_shuffle,
    "RepeatIterDataset": lambda to, node: to.parent(node).repeat(node._num_epochs),
    "LimitIterDataset": lambda to, node: to.parent(node).limit(node._count),
    "CacheIterDataset": lambda to, node: to.parent(node).cache(),
    "BatchIterDataset": _batch,
    "RebatchIterDataset": lambda to, node: to.parent(node).rebatch(
        node._batch_size, drop_remainder=node._drop_remainder
    ),
    "ZipIterDataset": _zip,
    "MixedIterDataset": _stream_mixed,
    "InterleaveIterDataset": _interleaved,
    "FirstFitPackIterDataset": _fit_pack,
    "BestFitPackIterDataset": _fit_pack,
    "ConcatThenSplitIterDataset": _split_pack,
    "WithOptionsIterDataset": _options,
    "_WithSeedIterDataset": _seed,
    "ThreadPrefetchIterDataset": _same,
    # What mp_prefetch and multithread_prefetch are made of.
    "ProcessPrefetchIterDataset": _same,
    "_MpContextIterDataset": _inside,
    "_LazyWorkerSliceIterDataset": _inside,
}

MAKER_OF: Final[Mapping[str, str]] = {
    "PrefetchDatasetIterator": "PrefetchIterDataset",
    "_MapDatasetIterator": "MapIterDataset",
    "_RandomMapDatasetIterator": "RandomMapIterDataset",
    "_MapWithIndexDatasetIterator": "MapWithIndexIterDataset",
    "_FilterDatasetIterator": "FilterIterDataset",
    "_FlatMapDatasetIterator": "FlatMapIterDataset",
    "_WindowShuffleDatasetIterator": "WindowShuffleIterDataset",
    "_RepeatDatasetIterator": "RepeatIterDataset",
    "_LimitDatasetIterator": "LimitIterDataset",
    "_InMemoryCacheDatasetIterator": "CacheIterDataset",
    "_BatchDatasetIterator": "BatchIterDataset",
    "_RebatchDatasetIterator": "RebatchIterDataset",
    "_ZipDatasetIterator": "ZipIterDataset",
    "_MixedDatasetIterator": "MixedIterDataset",
    "InterleaveDatasetIterator": "InterleaveIterDataset",
    "PackingDatasetIterator": "FirstFitPackIterDataset",
    "_ConcatThenSplitDatasetIterator": "ConcatThenSplitIterDataset",
    "ThreadPrefetchDatasetIterator": "ThreadPrefetchIterDataset",
    "ProcessPrefetchDatasetIterator": "ProcessPrefetchIterDataset",
}
"""The class of dataset that makes iterators of a class."""


def kind_of(node: Any) -> str | None:
    """The row of the table for a dataset or an iterator; None for another class."""
    name = name_of(node)
    name = name if name is None else MAKER_OF.get(name, name)
    return name if name in NODES else None


def _slice_of(node: Any) -> slice:
    if not node._length:
        return slice(0, 0)
    # With a step below 0, -1 stands for the place before the first element.
    return slice(node._start, None if node._stop < 0 else node._stop, node._step)
