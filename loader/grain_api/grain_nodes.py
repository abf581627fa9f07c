"""What each class of node of Grain becomes here: a table from its name to a small function.

The functions read attributes of Grain's nodes: see `grain_attributes` too. An iterator is converted as
the dataset that makes it.

Invariant: the dataset that a function makes has the elements, order and random values of the node.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from windrow.errors import PlanError, StateError
from windrow.grain_api import datasets, files, grain_attributes
from windrow.grain_api.conversion import Build, GraphConversion
from windrow.iter_dataset import IterDataset
from windrow.map_dataset import MapDataset
from windrow.transforms import random
from windrow.transforms.options import DatasetOptions, MultiprocessingOptions

# --- sources -------------------------------------------------------------------------------------


def _source(to: GraphConversion, node: Any) -> Any:
    from grain import MapDataset as GrainMapDataset

    if isinstance(node._source, GrainMapDataset):  # which counts as one epoch
        return to.of(node._source).repeat(1, reseed_each_epoch=False)
    return MapDataset.source(to.source(node._source))


def _parquet(to: GraphConversion, node: Any) -> Any:
    return files.ParquetIterDataset(node._paths[to.every()], **node._read_kwargs)


def _tfrecord(to: GraphConversion, node: Any) -> Any:
    if to.part is not None:
        raise PlanError("Grain cannot share a TFRecord file among workers")
    return files.TFRecordIterDataset(node._path)


def _without_place(to: GraphConversion, iterator: Any) -> Any:
    raise StateError(
        "from_grain: an iterator over a Parquet or TFRecord file has its place as a row group or a byte,"
        " which no state of Windrow has; pass the dataset, and skip what the iterator has given"
    )


# --- with random access --------------------------------------------------------------------------


def _random_map(to: GraphConversion, node: Any) -> Any:
    return to.parent(node).random_map(grain_attributes.function_of(node), seed=node._rng_pool._seed)


def _mixed(to: GraphConversion, node: Any) -> Any:
    parents = [to.of(parent) for parent in node._parents]
    rule = node._selection_map
    match grain_attributes.name_of(rule):
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


def _to_stream(to: GraphConversion, node: Any) -> Any:
    dataset = to.whole().of(grain_attributes.parent_of(node))
    dataset = dataset if to.part is None else dataset[to.every()]
    return dataset.to_iter_dataset(node._read_options, allow_nones=node._allow_nones)


def _stream_random_map(to: GraphConversion, node: Any) -> Any:
    (index, count), function = to.process, grain_attributes.function_of(node)
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


def _stream_mixed(to: GraphConversion, node: Any) -> Any:
    streams = [to.of(parent) for parent in node._parents]
    weights = _weights(node._proportions)
    if not isinstance(node._parents_structure, Mapping):
        return IterDataset.mix(streams, weights)
    names = grain_attributes.part_names(node)
    return IterDataset.mix(
        dict(zip(names, streams, strict=True)), dict(zip(names, weights, strict=True))
    )


def _fit_pack(to: GraphConversion, node: Any) -> Any:
    best = node._packer_cls.__name__.startswith("Best")
    names = ["num_packing_bins", "seed", "shuffle_bins", "shuffle_bins_group_by_feature"]
    names += ["meta_features", "pack_alignment_struct", "padding_struct", "max_sequences_per_bin"]
    options = {name: getattr(node, f"_{name}") for name in names}
    return to.parent(node).pack(node._length_struct, "best_fit" if best else "first_fit", **options)


def _split_pack(to: GraphConversion, node: Any) -> Any:
    given = vars(node._config)
    return datasets.ConcatThenSplitIterDataset(to.parent(node), **given)


def _interleaved(to: GraphConversion, node: Any) -> Any:
    parts = grain_attributes.interleaved_parts(node)
    if grain_attributes.are_workers(parts):
        if len(parts) > 1 and grain_attributes.is_sequential(parts[0]):
            return to.other(node, "mp_prefetch(sequential_slice=True) with several workers")
        return _in_workers(to, parts)
    inside = to.whole()
    streams = [inside.of(part) for part in parts[to.every()]]
    streams = [s.to_iter_dataset() if isinstance(s, MapDataset) else s for s in streams]
    return IterDataset.interleave(streams, node._cycle_length)


def _in_workers(to: GraphConversion, parts: Sequence[Any]) -> Any:
    """The stream of `mp_prefetch`, where each worker has a part of the data."""
    whole = grain_attributes.whole_of(parts[0])
    if len(parts) == 1 or grain_attributes.is_alike(whole):
        stream = to.of(whole)
    else:
        stream = IterDataset.interleave([to.of(part) for part in parts], len(parts))
    return stream.mp_prefetch(
        MultiprocessingOptions(len(parts), parts[0]._buffer_size),
        grain_attributes.worker_init(parts[0]),
    )


def _inside(to: GraphConversion, node: Any) -> Any:
    return to.inside(node).parent(node)


def _options(to: GraphConversion, node: Any) -> Any:
    return with_options(to.parent(node), node.options)


def with_options(stream: Any, options: Any) -> Any:
    """The stream with the options of Grain that matter here: the limits of filters."""
    names = ("filter_warn_threshold_ratio", "filter_raise_threshold_ratio")
    given = {name: getattr(options, name) for name in names if name in options._user_set_fields}
    return datasets.WithOptionsIterDataset(stream, DatasetOptions(**given)) if given else stream


# --- the table -----------------------------------------------------------------------------------


def _same(to: GraphConversion, node: Any) -> Any:
    return to.parent(node)


def _batch(to: GraphConversion, node: Any) -> Any:
    return to.parent(node).batch(
        node._batch_size,
        drop_remainder=node._drop_remainder,
        batch_fn=grain_attributes.batch_fn_of(node),
    )


def _zip(to: GraphConversion, node: Any) -> Any:
    parents = [to.of(parent) for parent in node._parents]
    return IterDataset.zip(parents, strict=node._strict)


def _shuffle(to: GraphConversion, node: Any) -> Any:
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


def _window_shuffle(to: GraphConversion, node: Any) -> Any:
    if hasattr(node, "__len__") and len(node) % node._window_size:
        _warn_of_loss("a window that does not divide the length", len(node))
    seed = node._global_seed if "_global_seed" in node.__dict__ else node._seed
    return to.parent(node).window_shuffle(node._window_size, seed)


def _map(to: GraphConversion, node: Any) -> Any:
    return to.parent(node).map(grain_attributes.function_of(node))


def _map_with_index(to: GraphConversion, node: Any) -> Any:
    return to.parent(node).map_with_index(grain_attributes.function_of(node))


def _filter(to: GraphConversion, node: Any) -> Any:
    return to.parent(node).filter(node._filter_fn)


def _flat_map(to: GraphConversion, node: Any) -> Any:
    function = node._transform if "_transform" in node.__dict__ else node._flat_map
    return to.parent(node).flat_map(function)


def _seed(to: GraphConversion, node: Any) -> Any:
    return to.parent(node).seed(node._seed_rng_seed)


NODES: Final[Mapping[str, Build]] = {
    # Sources.
    "SourceMapDataset": _source,
    "RangeMapDataset": lambda to, node: MapDataset.range(node.start, node.stop, node.step),
    "ParquetIterDataset": _parquet,
    "TFRecordIterDataset": _tfrecord,
    "_ParquetDatasetIterator": _without_place,
    "_TFRecordDatasetIterator": _without_place,
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


def _slice_of(node: Any) -> slice:
    if not node._length:
        return slice(0, 0)
    # With a step below 0, -1 stands for the place before the first element.
    return slice(node._start, None if node._stop < 0 else node._stop, node._step)


def conversion(*, strict: bool) -> GraphConversion:
    """A conversion by the table, of nothing yet."""
    return GraphConversion(NODES, strict, {})
