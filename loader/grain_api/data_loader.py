"""`DataLoader`: a source, a sampler and transforms, as one chain with planned reads.

Elements and order equal what Grain's loader gives without workers, for any number of workers.

Invariant: elements are plain data as long as no transform draws random numbers. Otherwise each goes
through the chain as a `Record`, whose generator the transforms share.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from windrow import state_files
from windrow.core.machine import usable_cores
from windrow.errors import ArgumentError, PlanError
from windrow.grain_api.loader_state import elements_before, resume
from windrow.grain_api.samplers import (
    IndexSampler,
    Record,
    RecordMetadata,
    Sampler,
    SequentialSampler,
    length_of,
)
from windrow.grain_api.sharding import NoSharding, ShardOptions, as_shard, elements_of_shard
from windrow.iter_dataset import IterDataset
from windrow.iterator import DatasetIterator
from windrow.map_dataset import MapDataset
from windrow.transforms import columns
from windrow.transforms.arguments import at_least
from windrow.transforms.functions import as_batch, kind_of
from windrow.transforms.options import MultiprocessingOptions, ReadOptions

if TYPE_CHECKING:
    from windrow.stats.stats import Stats

# Their orders are index arithmetic. A subclass may have another one.
_OURS = (IndexSampler, SequentialSampler)
_RANDOM = ("RandomMap", "TfRandomMap")
_KINDS = ("Map", "Filter", "FlatMap", "Batch", *_RANDOM)


class DataLoader:
    """Elements of a source in the order of a sampler, after some transforms.

    Signature, elements and order are Grain's. Where the number of records is not a multiple of the
    number of shards, the first shards have one record more; with `drop_remainder=True` of `ShardOptions`
    the last records are left out, so that all shards have equally many.

    Args:
        data_source: A source: see `MapDataset.source`.
        sampler: Decides the order: `IndexSampler`, `SequentialSampler`, or one of your own.
        operations: Transforms in order: `Map`, `RandomMap`, `TfRandomMap`, `Filter`, `FlatMap` and
            `Batch` of `windrow.transforms` or of Grain. After a `FlatMap` there is no generator: a
            `RandomMap` gets None.
        worker_count: Worker processes for the transforms; None for one per core. The elements do not
            depend on it.
        worker_buffer_size: Work items that wait for each worker.
        shard_options: The shard that this process takes; by default the sampler's.
        read_options: How far to read ahead; by default what suits the source. Its `on_bad` is for records that
            cannot be read; errors of `operations` are raised.
        enable_profiling: Accepted for compatibility with Grain; see `DataLoaderIterator.stats`.

    Raises:
        ArgumentError: If a transform is of another kind.
        PlanError: If a number is negative, or neither the sampler nor the loader has shard options.

    Example:
        >>> import windrow
        >>> sampler = windrow.samplers.IndexSampler(10, shuffle=True, num_epochs=1, seed=42)
        >>> loader = windrow.DataLoader(
        ...     data_source=range(100, 110), sampler=sampler, operations=[windrow.transforms.Batch(4)]
        ... )
        >>> [batch.tolist() for batch in loader]
        [[108, 106, 107, 109], [100, 105, 101, 102], [104, 103]]
    """

    def __init__(
        self,
        *,
        data_source: Any,
        sampler: Sampler,
        operations: Sequence[Any] = (),
        worker_count: int | None = 0,
        worker_buffer_size: int = 1,
        shard_options: ShardOptions | None = None,
        read_options: ReadOptions | None = None,
        enable_profiling: bool = False,
    ) -> None:
        workers = usable_cores() if worker_count is None else worker_count
        self._options = MultiprocessingOptions(
            at_least(0, workers, "DataLoader: worker_count"),
            max(1, at_least(0, worker_buffer_size, "DataLoader: worker_buffer_size")),
            enable_profiling,
        )
        self.data_source, self.sampler = data_source, sampler
        self.shard_options = _shard(sampler) if shard_options is None else shard_options
        self._operations = [(_kind(operation), operation) for operation in operations]
        self._read_options, self._parts = read_options, 1
        stream = self._stream()
        self._dataset: IterDataset[Any] = stream.mp_prefetch(self._options) if workers else stream

    def _stream(self, part: slice | None = None) -> IterDataset[Any]:
        """The elements without workers, of all records of the shard or of a part of them."""
        elements: Any = _sampled(self.data_source, self.sampler, self.shard_options)
        is_random = any(kind in _RANDOM for kind, _ in self._operations)
        if is_random:
            elements = elements.map_with_index(_AsRecord(self.sampler, self.shard_options))
        if part is not None:
            elements = elements[part]
        stream: IterDataset[Any] = elements.to_iter_dataset(self._read_options)
        if not is_random:
            return stream.apply([operation for _, operation in self._operations])
        for kind, operation in self._operations:
            stream = _apply_to_records(stream, kind, operation)
        return stream.map(_data_of)

    def in_workers_of_grain(self, options: MultiprocessingOptions) -> DataLoader:
        """This loader with the elements that Grain's loader gives in workers.

        There, each worker takes every nth record and has filters and batches of its own.
        """
        found, count = copy.copy(self), options.most_workers
        found._options = options
        if count > 1 and any(kind not in ("Map", *_RANDOM) for kind, _ in self._operations):
            parts = [self._stream(slice(worker, None, count)) for worker in range(count)]
            found._dataset, found._parts = IterDataset.interleave(parts, count), count
        if count:
            found._dataset = found._dataset.mp_prefetch(options)
        return found

    @property
    def dataset(self) -> IterDataset[Any]:
        """The chain that the loader runs: see what it costs with `loader.dataset.explain()`."""
        return self._dataset

    @property
    def multiprocessing_options(self) -> MultiprocessingOptions:
        """The worker processes."""
        return self._options

    def __iter__(self) -> DataLoaderIterator:
        return DataLoaderIterator(self, None)


class DataLoaderIterator(Iterator[Any]):
    """Iterates over the elements of a `DataLoader`. States are bytes.

    Args:
        data_loader: The loader.
        state: The state to resume from; None for the start.
        validate_state: Whether a state of Grain must be one of an equal sampler. (States of Windrow
            are always checked.)

    Raises:
        StateError: If the state is invalid, or belongs to another loader or other data.
    """

    def __init__(
        self, data_loader: DataLoader, state: Any = None, validate_state: bool = True
    ) -> None:
        self._loader, self._validates = data_loader, validate_state
        self._iterator: DatasetIterator[Any] = iter(data_loader.dataset)
        if state is not None:
            self.set_state(state)

    def __iter__(self) -> DataLoaderIterator:
        return self

    def __next__(self) -> Any:
        return next(self._iterator)

    def get_state(self) -> bytes:
        """The state after the element given last: JSON, as UTF-8."""
        return json.dumps(self._iterator.get_state()).encode()

    def set_state(self, state: bytes) -> Self:
        """Resume from a state of Windrow, or of Grain's loader over the same records; the iterator itself.

        The number of workers may differ. A state of Grain's loader with several workers names a step
        of this loader only where they have taken consecutive records.

        Raises:
            StateError: If the state is invalid, or belongs to another loader or other data.
        """
        loader = self._loader
        found = elements_before(
            state,
            loader.sampler,
            loader.data_source,
            (loader.shard_options.shard_index, loader.shard_options.shard_count),
            validate=self._validates,
            parts=loader._parts,
        )
        if set(found) == {"position"}:
            resume(self._iterator, found["position"])
        else:
            self._iterator.set_state(found)
        return self

    def start_prefetch(self) -> None:
        """Start making elements ahead now, not at the first `next`."""
        self._iterator.start_prefetch()

    def stats(self) -> Stats:
        """Return times, bytes and waits since the iterator was made."""
        return self._iterator.stats()

    async def save(self, directory: Any) -> state_files.Pending:
        """Write the state as an Orbax checkpointable: see `DatasetIterator.save`."""
        return await self._iterator.save(directory)

    async def load(self, directory: Any) -> state_files.Pending:
        """Read a state as an Orbax checkpointable: see `DatasetIterator.load`."""
        return state_files.read_then(directory, lambda state: True, self.set_state)

    def close(self) -> None:
        """Stop prefetching and release everything. Closing twice is harmless."""
        self._iterator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"DataLoaderIterator({self._loader.dataset!r})"


def load(
    source: Any,
    *,
    num_epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    shard_options: ShardOptions = NoSharding(),  # noqa: B008 - frozen
    transformations: Sequence[Any] = (),
    batch_size: int | None = None,
    drop_remainder: bool = False,
    worker_count: int | None = 0,
    read_options: ReadOptions | None = None,
) -> DataLoader:
    """A `DataLoader` with an `IndexSampler` over all records of a source.

    Args:
        source: A source with a length.
        num_epochs: See `IndexSampler`, as `shuffle`, `seed` and `shard_options`.
        shuffle: Whether each epoch has a random order.
        seed: For the order and for random transforms.
        shard_options: The shard that this process takes.
        transformations: See `DataLoader`.
        batch_size: Elements per batch, after all transforms; None for no batches.
        drop_remainder: Leave out a shorter last batch.
        worker_count: Worker processes; None for one per core.
        read_options: How far to read ahead.

    Raises:
        ArgumentError: If a transform or a number is of another type.
        PlanError: If a number is out of range.

    Example:
        >>> import windrow
        >>> loader = windrow.load(range(7), shuffle=True, seed=1, num_epochs=1, batch_size=4)
        >>> [batch.tolist() for batch in loader]
        [[5, 2, 6, 0], [4, 1, 3]]
    """
    from windrow.transforms.functions import Batch

    sampler = IndexSampler(len(source), shard_options, shuffle, num_epochs, seed)
    batch = [] if batch_size is None else [Batch(batch_size, drop_remainder)]
    return DataLoader(
        data_source=source,
        sampler=sampler,
        operations=[*transformations, *batch],
        worker_count=worker_count,
        read_options=read_options,
    )


# --- the order -----------------------------------------------------------------------------------


def _shard(sampler: Any) -> ShardOptions:
    """The shard that a sampler takes.

    Raises:
        PlanError: If it has none.
    """
    # Grain's samplers keep it there, and samplers of users that follow them.
    try:
        return as_shard(sampler._shard_options)
    except AttributeError:
        raise PlanError(
            f"DataLoader: the sampler {sampler!r} has no shard options; give shard_options=, such as"
            " windrow.sharding.NoSharding()"
        ) from None


def _sampled(source: Any, sampler: Any, shard: ShardOptions) -> MapDataset[Any]:
    """The records of a shard in the order of a sampler; index arithmetic alone where it is ours."""
    dataset = MapDataset.source(source)
    if type(sampler) in _OURS:
        found: MapDataset[Any] | None = sampler.shard_of(dataset, shard)
        if found is not None:
            return found
    return MapDataset.select_from_datasets([dataset], _SampledKeys(sampler, shard))


class _SampledKeys:
    """The records that a sampler of the user selects for a shard: see `select_from_datasets`."""

    def __init__(self, sampler: Any, shard: ShardOptions) -> None:
        self._sampler, self._shard = sampler, shard
        self._length = elements_of_shard(length_of(sampler), shard)
        # As Grain: a sampler is known by how it prints itself.
        self.fingerprint = f"{sampler!r}, {shard.shard_index} of {shard.shard_count}"

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[int, int]:
        number = index * self._shard.shard_count + self._shard.shard_index
        return 0, self._sampler[number].record_key


# --- transforms ----------------------------------------------------------------------------------


def _kind(operation: Any) -> str:
    kind = kind_of(operation)
    if kind not in _KINDS:
        raise ArgumentError(
            f"DataLoader: {operation!r} is not a transform; give objects of Map, RandomMap, Filter,"
            " FlatMap or Batch of windrow.transforms (an operation of your own over an iterator of"
            " records has no position to resume from: write it as one of these)"
        )
    return kind


class _AsRecord:
    """Makes a `Record` of an element, with what the sampler says of it."""

    def __init__(self, sampler: Any, shard: ShardOptions) -> None:
        self._sampler, self._shard = sampler, shard

    def __call__(self, index: int, data: Any) -> Record[Any]:
        number = index * self._shard.shard_count + self._shard.shard_index
        if type(self._sampler) in _OURS:  # the record is known already
            return Record(RecordMetadata(number, None, self._sampler.generator(number)), data)
        return Record(self._sampler[number], data)


class _OnData:
    """A transform of the data of records."""

    def __init__(self, function: Callable[..., Any], is_random: bool) -> None:
        self._function, self._is_random = function, is_random

    def __call__(self, record: Record[Any]) -> Record[Any]:
        more = (record.metadata.rng,) if self._is_random else ()
        return Record(record.metadata, self._function(record.data, *more))


class _KeepsData:
    """A filter by the data of records."""

    def __init__(self, function: Callable[[Any], bool]) -> None:
        self._function = function

    def __call__(self, record: Record[Any]) -> bool:
        return self._function(record.data)


class _DataPieces:
    """A flat map of the data of records, whose pieces have no generator."""

    def __init__(self, transform: Any) -> None:
        self._transform = transform

    def __call__(self, record: Record[Any]) -> Iterable[Record[Any]]:
        first = record.metadata.index * self._transform.max_fan_out
        for number, piece in enumerate(self._transform.flat_map(record.data)):
            yield Record(RecordMetadata(first + number), piece)


class _BatchOfRecords:
    """Batches of records, with what is known of the last one."""

    def __init__(self, function: Callable[[Sequence[Any]], Any] | None) -> None:
        self._function = function or _stacked

    def __call__(self, records: Sequence[Record[Any]]) -> Record[Any]:
        data = self._function([record.data for record in records])
        return Record(records[-1].metadata.remove_record_key(), data)


def _stacked(elements: Sequence[Any]) -> Any:
    return columns.batch_of(list(elements))


def _data_of(record: Record[Any]) -> Any:
    return record.data


def _apply_to_records(
    stream: IterDataset[Record[Any]], kind: str, operation: Any
) -> IterDataset[Record[Any]]:
    if kind == "Map":
        return stream.map(_OnData(operation.map, False))
    if kind == "RandomMap":
        return stream.map(_OnData(operation.random_map, True))
    if kind == "TfRandomMap":
        return stream.map(_OnData(operation.np_random_map, True))
    if kind == "Filter":
        return stream.filter(_KeepsData(operation.filter))
    if kind == "FlatMap":
        return stream.flat_map(_DataPieces(operation))
    batch = as_batch(operation)
    return stream.batch(
        batch.batch_size,
        drop_remainder=batch.drop_remainder,
        batch_fn=_BatchOfRecords(batch.batch_fn),
    )
