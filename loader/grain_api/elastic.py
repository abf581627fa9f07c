"""`ElasticIterator`: batches of one global order, for a number of processes that may change.

Invariant: the state is the same on all processes after the same number of steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Self

from windrow import state_files
from windrow.core.text import with_article
from windrow.errors import ArgumentError, PlanError, StateError
from windrow.grain_api.sharding import ShardOptions
from windrow.iterator import DatasetIterator
from windrow.map_dataset import MapDataset
from windrow.transforms.arguments import at_least
from windrow.transforms.nodes import fingerprint, may_be_absent
from windrow.transforms.options import MultiprocessingOptions, ReadOptions


class ElasticIterator(Iterator[Any]):
    """The part of each global batch that one process takes: elements `i, i + n, ...` of the batch.

    The state counts elements of all processes. It restores any process of any number of them, with
    another batch size too. Elements after the last whole global batch are left out. The chain has
    the same with `ds.batch(B).shard(i, n)`, for streams too: see `IterDataset.shard`.

    Args:
        ds: A dataset without a filter, neither batched nor sliced by process.
        global_batch_size: Elements of all processes per step; a multiple of their number.
        shard_options: The number of this process, and of processes.
        read_options: How far to read ahead.
        multiprocessing_options: Worker processes for the functions of `ds`; None for none.

    Raises:
        ArgumentError: If `ds` is not a `MapDataset`.
        PlanError: If `ds` has a filter, the batch cannot be shared equally, or `read_options` has an
            `on_bad`.

    Example:
        >>> import windrow
        >>> from windrow.experimental import ElasticIterator
        >>> from windrow.sharding import ShardOptions
        >>> numbers = windrow.MapDataset.range(24)
        >>> first = ElasticIterator(numbers, 8, ShardOptions(1, 2))
        >>> next(first).tolist()
        [1, 3, 5, 7]
        >>> again = ElasticIterator(numbers, 8, ShardOptions(3, 4)).set_state(first.get_state())
        >>> next(again).tolist()
        [11, 15]
    """

    def __init__(
        self,
        ds: MapDataset[Any],
        global_batch_size: int,
        shard_options: ShardOptions,
        *,
        read_options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
        multiprocessing_options: MultiprocessingOptions | None = None,
    ) -> None:
        if not isinstance(ds, MapDataset):
            raise ArgumentError(
                f"ElasticIterator: needs a windrow.MapDataset, got {with_article(type(ds).__name__)}; for a stream"
                " use batch(n).shard(i, count)"
            )
        if may_be_absent(ds._node):
            raise PlanError(
                "ElasticIterator: a filter or flat map leaves gaps, so batches could not be shared"
                " equally; use to_iter_dataset(lanes=...).batch(n).shard(i, count)"
            )
        if getattr(read_options, "on_bad", "raise") != "raise":
            raise PlanError(
                "ElasticIterator: on_bad in read_options would leave out or replace whole batches of this"
                " process; write .on_bad('replace') after the dataset's functions"
            )
        size = at_least(1, global_batch_size, "ElasticIterator: global_batch_size")
        if size % shard_options.shard_count:
            raise PlanError(
                f"ElasticIterator: global_batch_size={size} cannot be shared equally by"
                f" {shard_options.shard_count} processes; choose a multiple"
            )
        self._ds, self._size, self._shard = ds, size, shard_options
        self._read_options, self._workers = read_options, multiprocessing_options
        self._next = 0
        self._iterator: DatasetIterator[Any] | None = None
        self._fingerprint = fingerprint(ds._node)

    @property
    def shard_options(self) -> ShardOptions:
        """The number of this process, and of processes."""
        return self._shard

    def __iter__(self) -> ElasticIterator:
        return self

    def __next__(self) -> Any:
        element = next(self._started())
        self._next += self._size
        return element

    def _started(self) -> DatasetIterator[Any]:
        if self._iterator is None:
            index, count = self._shard.shard_index, self._shard.shard_count
            part = self._ds[self._next + index :: count]
            batches = part.batch(self._size // count, drop_remainder=True)
            stream = batches.to_iter_dataset(self._read_options)
            if self._workers is not None:
                stream = stream.mp_prefetch(self._workers)
            self._iterator = iter(stream)
        return self._iterator

    def start_prefetch(self) -> None:
        """Start making elements ahead now, not at the first `next`."""
        self._started().start_prefetch()

    def get_state(self) -> dict[str, Any]:
        """The state after the step made last: JSON, the same on all processes."""
        return {"global_next_index": self._next, "fingerprint": self._fingerprint}

    def set_state(self, state: dict[str, Any]) -> Self:
        """Resume from a state of any process, or of Grain's class; the iterator itself.

        Raises:
            StateError: If it is invalid, or of another dataset.
        """
        found = state.get("global_next_index") if isinstance(state, dict) else None
        if type(found) is not int or found < 0:
            raise StateError(
                f"not a state of an ElasticIterator: global_next_index is {found!r}; pass the value"
                " that get_state() returned"
            )
        if state.get("fingerprint", self._fingerprint) != self._fingerprint:
            raise StateError(
                "the state was taken over another dataset\n"
                f"  state:    [{state['fingerprint']}]\n"
                f"  this run: {self._ds!r} [{self._fingerprint}]\n"
                "Restore with the dataset it was taken from, or start without a state."
            )
        self.close()
        self._next, self._iterator = found, None
        return self

    async def save(self, directory: Any) -> state_files.Pending:
        """Write the state as an Orbax checkpointable: see `DatasetIterator.save`."""
        return state_files.written(directory, json.dumps(self.get_state()))

    async def load(self, directory: Any) -> state_files.Pending:
        """Read a state as an Orbax checkpointable: see `DatasetIterator.load`."""
        return state_files.read_then(directory, lambda state: True, self.set_state)

    def close(self) -> None:
        """Stop prefetching and release everything. Closing twice is harmless."""
        if self._iterator is not None:
            self._iterator.close()
