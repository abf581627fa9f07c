"""`from_grain`: a dataset that was built with Grain, as a chain of Windrow.

Invariant: the result has Grain's elements, in its order, with its random values, also for the number of
workers that Grain's dataset has.
"""

from __future__ import annotations

from typing import Any

from windrow.core.optional_imports import optional
from windrow.core.text import with_article
from windrow.errors import ArgumentError
from windrow.grain_api import grain_attributes, grain_nodes, grain_states
from windrow.grain_api.conversion import GraphConversion
from windrow.grain_api.data_loader import DataLoader, DataLoaderIterator
from windrow.grain_api.elastic import ElasticIterator
from windrow.grain_api.samplers import IndexSampler, SequentialSampler
from windrow.grain_api.sharding import as_shard
from windrow.transforms.options import as_multiprocessing_options


def from_grain(dataset: Any, strict: bool = True) -> Any:
    """A dataset of Grain as Windrow's: same elements, order and random values, with planned reads.

    Nothing is read. An iterator gives an iterator, which continues after the element given last; use one
    of the two only.

    With several workers, Grain's order can depend on their number, where a batch, filter or packer is in a
    stream. The result has that order, and does not change with other workers.

    Args:
        dataset: A `MapDataset`, `IterDataset`, `DataLoader` or `ElasticIterator` of Grain, or an iterator
            of one of them.
        strict: Whether a node without a counterpart is an error. Otherwise it runs as it is, and what it
            reads is read by Grain.

    Returns:
        A `windrow.MapDataset`, `windrow.IterDataset`, `windrow.DataLoader`,
        `windrow.experimental.ElasticIterator` or an iterator.

    Raises:
        ArgumentError: If it is not of Grain.
        MissingExtraError: If Grain is not installed.
        PlanError: If a node has no counterpart; the message names it.
        StateError: If the place of an iterator has none.

    Example:
        >>> import grain, windrow
        >>> theirs = grain.MapDataset.range(5).seed(2).shuffle().batch(2)
        >>> ours = windrow.from_grain(theirs)
        >>> print(ours)
        MapDataset(range(0, 5, 1) > seed(2) > shuffle(seed=307626447) > batch(2), 3 elements of int64 (?,))
        >>> [batch.tolist() for batch in ours] == [batch.tolist() for batch in theirs]
        True
    """
    grain = optional("grain", "windrow.from_grain", "grain")
    to = grain_nodes.conversion(strict=strict)
    name = grain_attributes.name_of(dataset)
    if name == "DataLoader":
        return _loader(to, dataset)
    if name == "DataLoaderIterator":
        loader = _loader(to, dataset._data_loader)
        return DataLoaderIterator(loader, dataset.get_state(), validate_state=False)
    if name in ("ElasticIterator", "_ElasticMapDatasetIterator"):
        return _elastic(to, dataset)
    if isinstance(dataset, (grain.MapDataset, grain.IterDataset)):
        return to.of(dataset)
    if isinstance(dataset, grain.DatasetIterator):
        return grain_states.resumed(to, dataset)
    raise ArgumentError(
        "from_grain: needs a MapDataset, IterDataset, DataLoader or iterator of Grain, got"
        f" {with_article(f'{type(dataset).__module__}.{type(dataset).__qualname__}')}"
    )


# --- loaders -------------------------------------------------------------------------------------


def _loader(to: GraphConversion, loader: Any) -> DataLoader:
    workers = loader._multiprocessing_options
    given = {
        "data_source": to.source(loader._data_source),
        "sampler": _sampler(loader._sampler),
        "operations": loader._operations,
        "shard_options": as_shard(loader._shard_options),
        "read_options": loader._read_options,
    }
    return DataLoader(**given).in_workers_of_grain(as_multiprocessing_options(workers))


def _sampler(sampler: Any) -> Any:
    name = grain_attributes.name_of(sampler)
    if name not in ("IndexSampler", "SequentialSampler"):
        return sampler
    own = as_shard(sampler._shard_options)
    if name == "SequentialSampler":
        return SequentialSampler(sampler._num_records, own, sampler._seed)
    return IndexSampler(
        sampler._num_records, own, sampler._shuffle, sampler._num_epochs, sampler._seed
    )


def _elastic(to: GraphConversion, iterator: Any) -> ElasticIterator:
    found = ElasticIterator(
        to.of(iterator._ds),
        iterator._global_batch_size,
        as_shard(iterator._shard_options),
        read_options=iterator._read_options,
        multiprocessing_options=iterator._multiprocessing_options,
    )
    found.set_state(iterator.get_state())
    return found
