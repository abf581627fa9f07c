"""`IterDataset`: a stream of elements, the second half of the chain that users write.

Every method returns a new dataset with one more node; nothing is read until elements are requested.
Names, arguments and meaning are Grain's, but Windrow never loses or repeats a record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from windrow.base import Dataset, applied, nodes_of
from windrow.engine.record_names import Records, records_at
from windrow.errors import ArgumentError, PlanError
from windrow.iterator import DatasetIterator
from windrow.transforms import functions, nodes
from windrow.transforms.arguments import checked_seed, integer, weights_given
from windrow.transforms.options import as_multiprocessing_options

T = TypeVar("T")


class IterDataset(Dataset[T]):
    """A stream of elements: an order without random access. From `MapDataset.to_iter_dataset()`.

    Example:
        >>> import windrow
        >>> stream = windrow.MapDataset.range(10).filter(lambda n: n % 3).to_iter_dataset()
        >>> [batch.tolist() for batch in stream.batch(4)]
        [[1, 2, 4, 5], [7, 8]]
    """

    @classmethod
    def mix(
        cls,
        datasets: Sequence[IterDataset[Any]] | Mapping[str, IterDataset[Any]],
        weights: Sequence[float] | Mapping[str, float] | None = None,
    ) -> IterDataset[Any]:
        """Elements of the streams in the proportions of `weights`, until the first one ends.

        Args:
            datasets: Streams, in a sequence or by name (in the order of the mapping).
            weights: One for each, in a sequence or by the same names.

        Raises:
            PlanError: If there is no dataset, or weights do not match them or are not positive.
        """
        if isinstance(datasets, Mapping):
            if weights is not None and not isinstance(weights, Mapping):
                raise ArgumentError("mix: weights of named datasets must be a dict by name too")
            if weights is not None and set(weights) != set(datasets):
                raise PlanError(
                    f"mix: datasets are named {sorted(datasets)}, weights {sorted(weights)};"
                    " give one weight for each"
                )
            weights = None if weights is None else [weights[name] for name in datasets]
            datasets = list(datasets.values())
        if isinstance(weights, Mapping):
            raise ArgumentError("mix: weights are named, datasets are not; name both or neither")
        parents = nodes_of(datasets, IterDataset, "mix")
        return IterDataset(nodes.StreamMixNode(parents, weights_given(weights)))

    @classmethod
    def zip(
        cls, datasets: Sequence[IterDataset[Any]], *, strict: bool = True
    ) -> IterDataset[tuple[Any, ...]]:
        """Tuples of the streams' next elements; with `strict` they must end together.

        Raises:
            PlanError: If there is no dataset.
        """
        return IterDataset(nodes.ZipNode(nodes_of(datasets, IterDataset, "zip"), strict))

    def seed(self, seed: int) -> IterDataset[T]:
        """Derive the seeds of later nodes from `seed`, unless they are given one.

        Raises:
            PlanError: If it is not in `[0, 2**64)`.
        """
        return IterDataset(nodes.SeedNode((self._node,), checked_seed(seed, "seed", 2**64)))

    def map(self, transform: Any, *, batched: bool = False) -> IterDataset[Any]:
        """`transform` of each element; with `batched`, of the columns of many (see MapDataset)."""
        function = functions.as_function(transform, "Map")
        make = nodes.ColumnMapNode if batched else nodes.MapNode
        return IterDataset(make((self._node,), function))

    def map_with_index(self, transform: Any) -> IterDataset[Any]:
        """`transform(n, element)`, where `n` counts the elements of the stream from 0."""
        function = functions.as_function(transform, "MapWithIndex")
        return IterDataset(nodes.MapWithIndexNode((self._node,), function))

    def random_map(self, transform: Any, *, seed: int | None = None) -> IterDataset[Any]:
        """`transform(element, rng)`, where `rng` depends on the seed and the element's number.

        Raises:
            PlanError: If there is no seed at all.
        """
        function = functions.as_function(transform, "RandomMap")
        found = nodes.seed_for(self._node, seed, "random_map", 2**64)
        return IterDataset(nodes.RandomMapNode((self._node,), function, found))

    def filter(self, transform: Any) -> IterDataset[T]:
        """The elements for which `transform` is true."""
        function = functions.as_function(transform, "Filter")
        return IterDataset(nodes.FilterNode((self._node,), function))

    def window_shuffle(self, window_size: int, seed: int | None = None) -> IterDataset[T]:
        """Shuffle inside windows of consecutive elements; a window is gathered before it is given out.

        Each window has a fixed cost, so prefer large ones: see `MapDataset.window_shuffle`.

        Raises:
            PlanError: If the window is smaller than 1, or there is no seed.
        """
        size = integer(window_size, "window_shuffle: window_size")
        found = nodes.seed_for(self._node, seed, "window_shuffle", 2**64)
        return IterDataset(nodes.StreamWindowShuffleNode((self._node,), size, found))

    def batch(
        self,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[Any]], Any] | None = None,
    ) -> IterDataset[Any]:
        """Batches of consecutive elements of the stream, across epochs too (see MapDataset).

        Raises:
            PlanError: If `batch_size` is less than 1.
        """
        size = integer(batch_size, "batch: batch_size")
        return IterDataset(nodes.BatchNode((self._node,), size, drop_remainder, batch_fn))

    def repeat(self, num_epochs: int | None = None) -> IterDataset[T]:
        """The stream again from its start, in the same order; with None, for ever.

        Raises:
            PlanError: If `num_epochs` is less than 1.
        """
        times = None if num_epochs is None else integer(num_epochs, "repeat: num_epochs")
        return IterDataset(nodes.StreamRepeatNode((self._node,), times))

    def limit(self, count: int) -> IterDataset[T]:
        """The first `count` elements.

        A batched function before it may be called on more rows.

        Raises:
            PlanError: If `count` is less than 1.
        """
        size = integer(count, "limit: count")
        return IterDataset(nodes.StreamLimitNode((self._node,), size))

    def apply(self, transformations: Any) -> IterDataset[Any]:
        """Apply one transform, or several in order: Map, RandomMap, MapWithIndex, Filter, Batch."""
        return applied(self, transformations)

    def mp_prefetch(
        self, options: Any = None, worker_init_fn: Callable[[int, int], None] | None = None
    ) -> IterDataset[T]:
        """The same stream, but worker processes run the functions of the chain so far.

        This process plans and reads. Elements, order and state do not depend on the workers.

        Args:
            options: A number of workers, or a `MultiprocessingOptions`; by default one worker per
                core. With 0 nothing changes.
            worker_init_fn: Called in each worker with its index and the number of workers, before
                anything else.

        Raises:
            ArgumentError: If the options are of another kind; on iteration, if the chain cannot
                be sent to a worker.
        """
        checked = as_multiprocessing_options(options)
        return IterDataset(nodes.ProcessNode((self._node,), checked, worker_init_fn))

    def records_of(self, index: int) -> Records:
        """The records that element number `index` of the stream is made of, without reading.

        See `MapDataset.records_of`. A map of a `MapDataset` that returns None, and so makes an
        element absent, counts as one that does not.

        Args:
            index: At least 0.

        Raises:
            PlanError: If values decide which elements come, as in a filter: iterate then, and ask
                `DatasetIterator.records_of_last`.
            RecordIndexError: If the stream has no such element.

        Example:
            >>> import windrow
            >>> stream = windrow.MapDataset.range(6)[::-1].to_iter_dataset().repeat().batch(4)
            >>> [record for _, record in stream.records_of(1)]
            [1, 0, 5, 4]
        """
        return records_at(self._node, integer(index, "records_of: index"))

    def __iter__(self) -> DatasetIterator[T]:
        return DatasetIterator(self._node)
