"""Samplers: the order in which a `DataLoader` takes records, and the generator of each element.

Invariant: `sampler[index]` depends on the sampler's arguments and `index` alone, so that any element
of any shard can be asked for.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from windrow.errors import PlanError, RecordIndexError
from windrow.grain_api.sharding import NoSharding, ShardOptions, elements_of_shard, even_split
from windrow.map_dataset import MapDataset
from windrow.transforms.arguments import at_least, checked_seed

T = TypeVar("T")


@dataclasses.dataclass(slots=True)
class RecordMetadata:
    """What a sampler says of an element.

    Args:
        index: Its number in the order of all shards together.
        record_key: The index of the record that it is made of.
        rng: The generator for random transforms of it.
    """

    index: int
    record_key: int | None = None
    rng: np.random.Generator | None = None

    def remove_record_key(self) -> RecordMetadata:
        """The same without `record_key`: for what is no longer one record."""
        return self if self.record_key is None else dataclasses.replace(self, record_key=None)


@dataclasses.dataclass(slots=True)
class Record(Generic[T]):
    """An element on its way through a `DataLoader`, and what is known of it."""

    metadata: RecordMetadata
    data: T


class Sampler(Protocol):
    """Decides which record each element is made of."""

    def __getitem__(self, index: int) -> RecordMetadata:
        """The metadata of element `index` of all shards together.

        Raises:
            IndexError: If there are fewer elements.
        """
        ...


class SequentialSampler:
    """The records in their order, once.

    Shard `i` of `n` gets the records `i, i + n, ...`.

    Args:
        num_records: The number of records.
        shard_options: The shard that this process takes.
        seed: For the generators of random transforms, which are None without it.

    Raises:
        ArgumentError: If a number is not an integer.
        PlanError: If there is no record.

    Example:
        >>> import windrow
        >>> windrow.samplers.SequentialSampler(10)[3]
        RecordMetadata(index=3, record_key=3, rng=None)
    """

    def __init__(
        self,
        num_records: int,
        shard_options: ShardOptions = NoSharding(),  # noqa: B008 - frozen
        seed: int | None = None,
    ) -> None:
        self._num_records = at_least(1, num_records, "SequentialSampler: num_records")
        self._shard_options, self._seed = shard_options, seed
        left = num_records % shard_options.shard_count if shard_options.drop_remainder else 0
        self._max_index = num_records - left

    def __len__(self) -> int:
        return self._max_index

    def __repr__(self) -> str:
        return (
            f"SequentialSampler(num_records={self._num_records},"
            f" shard_options={self._shard_options!r})"
        )

    def __getitem__(self, index: int) -> RecordMetadata:
        check_index(index, self._max_index, "SequentialSampler")
        return RecordMetadata(index, index, self.generator(index))

    def generator(self, index: int) -> np.random.Generator | None:
        """The generator for random transforms of an element; None without a seed."""
        return _generator(self._seed, index)

    def shard_of(self, dataset: MapDataset[T], shard: ShardOptions) -> MapDataset[T] | None:
        """The elements that a shard gets of a dataset; None if the dataset has too few records."""
        if len(dataset) < self._max_index:
            return None
        count = elements_of_shard(self._max_index, shard)
        return dataset[: self._max_index][shard.shard_index :: shard.shard_count][:count]


class IndexSampler:
    """The records of one source, over several epochs, shuffled if wanted.

    A shard is a run of consecutive records. `shuffle` shuffles inside each shard: for a shuffle over
    all records use `MapDataset.shuffle` before `ds[i::n]`.

    Args:
        num_records: The number of records.
        shard_options: The shard that this process takes.
        shuffle: Whether each epoch has a random order of its own.
        num_epochs: The number of epochs; None for ever.
        seed: In `[0, 2**32)`; for the order, and for the generators of random transforms.

    Raises:
        ArgumentError: If a number is not an integer.
        PlanError: If there is no record or no epoch, a shuffle has no seed, or it is out of range.

    Example:
        >>> import windrow
        >>> sampler = windrow.samplers.IndexSampler(10, shuffle=True, num_epochs=1, seed=42)
        >>> [sampler[index].record_key for index in range(len(sampler))]
        [8, 6, 7, 9, 0, 5, 1, 2, 4, 3]
    """

    def __init__(
        self,
        num_records: int,
        shard_options: ShardOptions = NoSharding(),  # noqa: B008 - frozen
        shuffle: bool = False,
        num_epochs: int | None = None,
        seed: int | None = None,
    ) -> None:
        self._num_records = at_least(1, num_records, "IndexSampler: num_records")
        if num_epochs is not None:
            at_least(1, num_epochs, "IndexSampler: num_epochs")
        if shuffle and seed is None:
            raise PlanError("IndexSampler: shuffle=True needs a seed; give seed=...")
        self._seed = None if seed is None else checked_seed(seed, "IndexSampler", 2**32)
        self._shard_options, self._shuffle = shard_options, bool(shuffle)
        self._num_epochs = num_epochs
        self._max_index = None if num_epochs is None else num_epochs * num_records
        start, stop = even_split(num_records, shard_options)
        # The first shards have more records, in each epoch anew: their last elements have larger numbers.
        self._last = None if num_epochs is None else (stop - start) * num_epochs
        if num_epochs is not None and shard_options.drop_remainder:
            self._max_index = (stop - start) * shard_options.shard_count * num_epochs
        self._keys = self._in_order(MapDataset.range(num_records))

    def __len__(self) -> int:
        return sys.maxsize if self._max_index is None else self._max_index

    def __repr__(self) -> str:
        return (
            f"IndexSampler(num_records={self._num_records},"
            f" shard_options={self._shard_options!r}, shuffle={self._shuffle},"
            f" num_epochs={self._num_epochs}, seed={self._seed})"
        )

    def __getitem__(self, index: int) -> RecordMetadata:
        count = self._shard_options.shard_count
        check_index(index, max(len(self), (self._last or 0) * count), "IndexSampler")
        key = self._keys[index // count]
        return RecordMetadata(index, key, self.generator(index))

    def generator(self, index: int) -> np.random.Generator | None:
        """The generator for random transforms of an element; None without a seed."""
        return _generator(self._seed, index)

    def _in_order(self, dataset: MapDataset[T]) -> MapDataset[T]:
        """One epoch of the sampler's own shard of a dataset, in the order of the sampler."""
        start, stop = even_split(self._num_records, self._shard_options)
        part = dataset if stop - start == len(dataset) else dataset[start:stop]
        return part.shuffle(self._seed) if self._shuffle else part

    def shard_of(self, dataset: MapDataset[T], shard: ShardOptions) -> MapDataset[T] | None:
        """The elements that a shard gets of a dataset.

        None if it has too few records, or the shard is one of another number than the sampler's.
        """
        count = shard.shard_count
        if count != self._shard_options.shard_count or len(dataset) < self._num_records:
            return None
        part = self._in_order(dataset)
        if not len(part):
            raise PlanError(
                f"{self!r}: the shard has no record; use at most {self._num_records} shards"
            )
        if self._max_index is None:
            return part.repeat()
        return part.repeat()[: self._max_index // count if shard.drop_remainder else self._last]


def check_index(index: int, stop: int, who: str) -> None:
    """Check that a sampler has an element.

    Raises:
        RecordIndexError: If it does not.
    """
    if not 0 <= index < stop:
        raise RecordIndexError(f"{who}: index {index} is outside [0, {stop})")


def _generator(seed: int | None, index: int) -> np.random.Generator | None:
    return None if seed is None else np.random.Generator(np.random.Philox(key=seed + index))


def length_of(sampler: Any) -> int:
    """The number of elements of any sampler, by asking for elements where it has no `len`."""
    try:
        return len(sampler)
    except TypeError:
        low, high = 0, sys.maxsize
    while low < high:
        middle = (low + high) // 2
        try:
            sampler[middle]
        except IndexError:
            high = middle
        else:
            low = middle + 1
    return low
