"""`IterDataset`: a stream of elements, the second half of the chain that users write.

Every method returns a new dataset with one more node; nothing is read until elements are requested.
Names, arguments and meaning are Grain's, but Windrow never loses or repeats a record.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Never, TypeVar, Unpack, overload

from windrow.base import Dataset, applied, nodes_of, register
from windrow.base_iterator import Epochs
from windrow.errors import ArgumentError, PlanError
from windrow.iterator import DatasetIterator, records_of
from windrow.transforms import functions, nodes
from windrow.transforms.arguments import AT_END, AtEnd, integer, one_of, weights_given
from windrow.transforms.mixtures import Schedule, named_weights, scheduled
from windrow.transforms.options import as_multiprocessing_options

if TYPE_CHECKING:
    import numpy.typing as npt

    from windrow.engine.record_names import Records
    from windrow.transforms.callables import (
        AnyTransform,
        ArrayLike,
        BatchedFunction,
        BatchedRandomFunction,
        FlatMaps,
        IndexedMapFunction,
        Locality,
        MapFunction,
        RandomMapFunction,
        Stacked,
        Unpadded,
        WorkerOptions,
    )

T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


class IterDataset(Dataset[T_co]):
    """A stream of elements: an order without random access. From `MapDataset.to_iter_dataset()`.

    Example:
        >>> import windrow
        >>> stream = windrow.MapDataset.range(10).filter(lambda n: n % 3).to_iter_dataset()
        >>> [batch.tolist() for batch in stream.batch(4)]
        [[1, 2, 4, 5], [7, 8]]
    """

    if not TYPE_CHECKING:  # type checkers know the attributes

        def __getattr__(self, name: str) -> Any:
            from windrow.core.absent_names import of_stream  # only for errors

            raise of_stream(type(self).__name__, name)

        def __getitem__(self, index: Any) -> Any:
            from windrow.core.absent_names import NO_INDEX

            raise ArgumentError(NO_INDEX)

        def __len__(self) -> int:
            # `list(stream)` asks, and goes without: nothing is imported for it.
            raise ArgumentError(
                "a stream has no length that is known before it ends: take len() of the MapDataset"
                " before to_iter_dataset(); stream.explain().length is the number of elements where"
                " the chain fixes it"
            )

        def __bool__(self) -> bool:
            return True  # without it Python asks for the length

    def _check_own_class(self) -> None:
        from windrow import own_nodes  # few processes have own nodes

        own_nodes.check_methods(type(self), IterDataset, ("__iter__",))

    def _own_node(self) -> nodes.Node:
        from windrow import own_nodes

        return own_nodes.stream_node(self)

    @classmethod
    def mix(
        cls,
        datasets: Sequence[IterDataset[S]] | Mapping[str, IterDataset[S]],
        weights: Sequence[float] | Mapping[str, float] | Schedule | None = None,
        *,
        by: Literal["elements", "tokens"] = "elements",
        tokens: Callable[[Any], int] | str | None = None,
        at_end: AtEnd = "stop",
    ) -> IterDataset[S]:
        """Elements of the streams in the proportions of `weights`, until the first one ends.

        Streams with names may change between runs: a state finds each by its name. One that is new
        starts from its beginning, one that is gone is left out, and new weights apply from there on. A
        warning says what differs.

        Args:
            datasets: Streams, in a sequence or by name (in the order of the mapping).
            weights: One for each, in a sequence or by the same names; or a `transforms.Schedule` of
                such weights.
            by: What is in these proportions: the number of elements, or of their tokens. Where specs
                show that all elements of a stream have the same number of tokens, such as packed
                rows, the order follows from it. Else the next element comes from the stream that has
                given the fewest tokens for its weight.
            tokens: Returns the tokens of an element; or the key of an array, whose first axis is
                counted, or of a number. By default the first axis of the first leaf is counted.
            at_end: What happens when a stream has ended. The mixture ends ("stop"), the stream starts
                again ("repeat"), or the mixture continues without it, until all have ended ("drop").

        Raises:
            PlanError: If there is no dataset, weights do not match them or are not positive, or an
                option has another value.
            ElementError: On iteration, if the tokens of an element cannot be counted.

        Example:
            >>> import numpy as np, windrow
            >>> long = windrow.MapDataset.source([np.zeros(n) for n in (8, 4, 4)]).to_iter_dataset()
            >>> short = windrow.MapDataset.source([np.ones(2)] * 12).to_iter_dataset()
            >>> mixed = windrow.IterDataset.mix([long, short], [2, 1], by="tokens", at_end="drop")
            >>> [len(row) for row in mixed]
            [8, 2, 2, 4, 2, 4, 2, 2, 2, 2, 2, 2, 2, 2, 2]
        """
        names: tuple[str, ...] | None = None
        if isinstance(datasets, Mapping):
            named = list(datasets)
            names = tuple(map(str, named))
            weights = scheduled(weights, lambda each: named_weights(each, named))
            datasets = list(datasets.values())
        parents = nodes_of(datasets, IterDataset, "mix")
        if one_of(at_end, AT_END, "mix: at_end") == "repeat":
            parents = tuple(
                each if each.never_ends() else nodes.StreamRepeatNode((each,), None)
                for each in parents
            )
        given, drops_out = scheduled(weights, weights_given), at_end == "drop"
        if one_of(by, ("elements", "tokens"), "mix: by") == "elements":
            if tokens is not None:
                raise PlanError('mix: tokens= is only for by="tokens"; leave it out, or give both')
            return IterDataset(nodes.StreamMixNode(parents, given, drops_out, names=names))
        if not (tokens is None or isinstance(tokens, str) or callable(tokens)):
            raise ArgumentError(f"mix: tokens must be a function or a key, got {tokens!r}")
        sizes = None if tokens is not None else nodes.token_sizes(parents)
        if sizes is not None:
            return IterDataset(nodes.StreamMixNode(parents, given, drops_out, sizes, names=names))
        return IterDataset(nodes.TokenMixNode(parents, given, drops_out, tokens, names=names))

    @classmethod
    def interleave(cls, datasets: Sequence[IterDataset[S]], cycle_length: int) -> IterDataset[S]:
        """Elements of `cycle_length` streams in turn; where one has ended, the next one begins there.

        Nothing is left out: it ends when all streams have ended. With a cycle of 1 the streams come
        one after the other. The order is Grain's.

        Raises:
            PlanError: If there is no dataset, or `cycle_length` is less than 1.

        Example:
            >>> import windrow
            >>> parts = [windrow.MapDataset.range(n, n + 3).to_iter_dataset() for n in (0, 10, 20)]
            >>> list(windrow.IterDataset.interleave(parts, cycle_length=2))
            [0, 10, 1, 11, 2, 12, 20, 21, 22]
        """
        parents = nodes_of(datasets, IterDataset, "interleave")
        count = integer(cycle_length, "interleave: cycle_length")
        return IterDataset(nodes.StreamInterleaveNode(parents, count))

    @overload
    @classmethod
    def zip(
        cls, datasets: tuple[IterDataset[A], IterDataset[B]], *, strict: bool = ...
    ) -> IterDataset[tuple[A, B]]: ...

    @overload
    @classmethod
    def zip(
        cls, datasets: tuple[IterDataset[A], IterDataset[B], IterDataset[C]], *, strict: bool = ...
    ) -> IterDataset[tuple[A, B, C]]: ...

    @overload
    @classmethod
    def zip(
        cls, datasets: Sequence[IterDataset[Any]], *, strict: bool = ...
    ) -> IterDataset[tuple[Any, ...]]: ...

    @classmethod
    def zip(cls, datasets: Sequence[IterDataset[Any]], *, strict: bool = True) -> IterDataset[Any]:
        """Tuples of the streams' next elements; with `strict` they must end together.

        Type checkers know what is in the tuples if the streams are given as a tuple of two or three.

        Raises:
            PlanError: If there is no dataset.
        """
        return IterDataset(nodes.ZipNode(nodes_of(datasets, IterDataset, "zip"), strict))

    @overload
    def map(
        self,
        transform: MapFunction[T_co, S],
        *,
        batched: Literal[False] = ...,
        **promises: Unpack[Locality],
    ) -> IterDataset[S]: ...

    @overload
    def map(
        self, transform: BatchedFunction, *, batched: bool, **promises: Unpack[Locality]
    ) -> IterDataset[Any]: ...

    def map(
        self,
        transform: Any,
        *,
        batched: bool = False,
        local: str | Iterable[str] = (),
        halo: Mapping[str, int] | None = None,
        wrap: str | Iterable[str] = (),
    ) -> IterDataset[Any]:
        """`transform` of each element, with the arguments of `MapDataset.map`."""
        function = functions.as_function(transform, "Map")
        make = nodes.ColumnMapNode if batched else nodes.MapNode
        promise = nodes.locality_after(self._node, local, halo, wrap)
        return IterDataset(make((self._node,), function, locality=promise))

    def map_with_index(self, transform: IndexedMapFunction[T_co, S]) -> IterDataset[S]:
        """`transform(n, element)`, where `n` counts the elements of the stream from 0."""
        function = functions.as_function(transform, "MapWithIndex")
        return IterDataset(nodes.MapWithIndexNode((self._node,), function))

    @overload
    def random_map(
        self,
        transform: RandomMapFunction[T_co, S],
        *,
        seed: int | None = ...,
        batched: Literal[False] = ...,
    ) -> IterDataset[S]: ...

    @overload
    def random_map(
        self, transform: BatchedRandomFunction, *, seed: int | None = ..., batched: bool
    ) -> IterDataset[Any]: ...

    def random_map(
        self, transform: Any, *, seed: int | None = None, batched: bool = False
    ) -> IterDataset[Any]:
        """`transform(element, rng)`, where `rng` depends on the seed and the element's number.

        With `batched`, `transform(columns, rngs)` gets the columns of many elements and a list with
        the generator of each (see MapDataset).

        Raises:
            PlanError: If there is no seed at all.
        """
        function = functions.as_function(transform, "RandomMap")
        found = nodes.seed_for(self._node, seed, "random_map", 2**64)
        make = nodes.RandomColumnMapNode if batched else nodes.RandomMapNode
        return IterDataset(make((self._node,), function, found))

    def flat_map(
        self, transform: Callable[[T_co], Iterable[S]] | FlatMaps[T_co, S]
    ) -> IterDataset[S]:
        """The elements that `transform` makes of each element, one after the other.

        The position counts elements given of the current one. So a restore reads that element again,
        and no other. An absent element gives no elements.

        Args:
            transform: A function that returns an iterable, which may be empty and must end, or a
                `transforms.FlatMap`, whose `max_fan_out` does not matter here.

        Raises:
            ArgumentError: If `transform` is neither a function nor a `transforms.FlatMap`.
            ElementError: On iteration, if it returns something that is not iterable.

        Example:
            >>> import windrow
            >>> stream = windrow.MapDataset.range(4).to_iter_dataset()
            >>> list(stream.flat_map(lambda n: [n] * n))
            [1, 2, 2, 3, 3, 3]
        """
        function = functions.as_function(transform, "FlatMap")
        return IterDataset(nodes.FlattenNode((nodes.FlatMapNode((self._node,), function),)))

    def window_shuffle(self, window_size: int, seed: int | None = None) -> IterDataset[T_co]:
        """Shuffle inside windows of consecutive elements; a window is gathered before it is given out.

        Each window has a fixed cost, so prefer large ones: see `MapDataset.window_shuffle`.

        Raises:
            PlanError: If the window is smaller than 1, or there is no seed.
        """
        size = integer(window_size, "window_shuffle: window_size")
        found = nodes.seed_for(self._node, seed, "window_shuffle", 2**64)
        return IterDataset(nodes.StreamWindowShuffleNode((self._node,), size, found))

    @overload
    def batch(
        self, batch_size: int, *, batch_fn: Callable[[list[T_co]], S], drop_remainder: bool = ...
    ) -> IterDataset[S]: ...

    @overload  # of elements of any type
    def batch(
        self: IterDataset[Never], batch_size: int, **options: Unpack[Stacked]
    ) -> IterDataset[Any]: ...

    @overload
    def batch(
        self: IterDataset[dict[str, Any]], batch_size: int, **options: Unpack[Stacked]
    ) -> IterDataset[dict[str, Any]]: ...

    @overload
    def batch(
        self: IterDataset[ArrayLike], batch_size: int, **options: Unpack[Unpadded]
    ) -> IterDataset[npt.NDArray[Any]]: ...

    @overload
    def batch(self, batch_size: int, **options: Unpack[Stacked]) -> IterDataset[Any]: ...

    def batch(
        self,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        batch_fn: Callable[..., Any] | None = None,
        remainder: nodes.Remainder | None = None,
        mask: str = "mask",
        pad_to: int | Mapping[str, int] | None = None,
        pad_value: float = 0,
    ) -> IterDataset[Any]:
        """Batches of consecutive elements of the stream, across epochs too (see MapDataset).

        In a stream with lanes, a lane that has ended leaves its rows out; with `remainder="pad"` its
        rows are padding in their places, and with `"drop"` the stream ends at the first batch that
        a lane cannot fill. What follows the batch takes it as an element of a stream of one lane.

        Raises:
            ArgumentError: If an argument has the wrong type or contradicts another one.
            PlanError: If a size is less than 1, or `batch_fn` is combined with padding.
        """
        size = integer(batch_size, "batch: batch_size")
        node = nodes.batch_node(
            self._node,
            size,
            batch_fn,
            drop_remainder=drop_remainder,
            remainder=remainder,
            mask=mask,
            pad_to=pad_to,
            pad_value=pad_value,
        )
        return IterDataset(node)

    def rebatch(self, batch_size: int, *, drop_remainder: bool = False) -> IterDataset[T_co]:
        """Batches of `batch_size` rows, cut and joined from batches of any sizes.

        After a shard, its rows of each new batch: each process makes all rows of these.

        Args:
            batch_size: Rows per batch; the last batch may have fewer.
            drop_remainder: Leave out a shorter last batch.

        Raises:
            PlanError: If `batch_size` is less than 1.
            ElementError: On iteration, if an element is not a batch: a tree whose leaves all have
                one number of rows.

        Example:
            >>> import windrow
            >>> stream = windrow.MapDataset.range(10).batch(4).to_iter_dataset()
            >>> [batch.tolist() for batch in stream.rebatch(3)]
            [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
        """
        size = integer(batch_size, "rebatch: batch_size")
        whole, share = nodes.unshared(self._node, "rebatch")
        node: nodes.Node = nodes.BatchNode((nodes.UnbatchNode((whole,)),), size, drop_remainder)
        if share is not None:
            node = nodes.shared(node, share)
            nodes.tail_of(node).run()  # checks that the shards can end together
        return IterDataset(node)

    def shard(
        self, index: int, count: int, *, agree: Callable[[bool], bool] | None = None
    ) -> IterDataset[T_co]:
        """The part of each batch that one of `count` processes takes.

        An element has the rows `[index * B // count, (index + 1) * B // count)` of the batch that the
        chain would give without `shard`. Nothing is read for others where `count` divides the number
        of lanes (`to_iter_dataset(lanes=...)`) or the batch is made with random access. Else
        processes that share a lane each run it. What follows gives this process's rows of the batches that
        it would give without `shard`: `limit`, `repeat`, `cache`, `window_shuffle`, `mp_prefetch`, `rebatch`,
        `map(..., batched=True)`, which promises independent rows, and `mix`, `zip` and `interleave` of equal
        shards. Other methods are a PlanError: call them before the batch.

        All shards end at the same batch. So a finite stream with a filter needs `repeat()` before the
        batch, or `drop_remainder=True` and `agree`.

        Args:
            index: Number of the shard.
            count: Number of shards; it divides the batch size.
            agree: Called by each process before each batch, in the thread that iterates, with
                whether its shard has the batch. Returns whether all shards have it.

        Raises:
            ArgumentError: If the numbers are not `0 <= index < count`, or `agree` cannot be called.
            PlanError: If the chain does not end in a batch, `count` does not divide its size, or the
                shards could not end together.

        Example:
            >>> import windrow
            >>> stream = windrow.MapDataset.range(16).to_iter_dataset(lanes=2).batch(8)
            >>> [batch.tolist() for batch in stream]
            [[0, 2, 4, 6, 1, 3, 5, 7], [8, 10, 12, 14, 9, 11, 13, 15]]
            >>> [batch.tolist() for batch in stream.shard(1, 2)]
            [[1, 3, 5, 7], [9, 11, 13, 15]]
        """
        number, shards = integer(index, "shard: index"), integer(count, "shard: count")
        node = nodes.sharded(self._node, number, shards, agree)
        nodes.tail_of(node).run()  # checks that the shards can end together
        return IterDataset(node)

    def pack(
        self,
        length_struct: Mapping[str, Any],
        method: Literal["first_fit", "best_fit", "concat_then_split"] = "first_fit",
        **options: Any,
    ) -> IterDataset[dict[str, Any]]:
        """Rows of fixed sizes that hold the sequences of several elements, packed as they come.

        Elements are dicts of arrays whose first axis is the sequence; a scalar is a sequence of
        length 1. A row has, for each feature `k`, the values `(length_struct[k], ...)`, and int32
        `k_segment_ids`, which count the sequences from 1, and `k_positions`, which count from 0 in
        each. Cells without a sequence have 0 in all three. Order and values are as in Grain's
        packers. `MapDataset.pack` fills rows better where lengths are known.

        A restored stream reads again only what the open rows hold.

        Args:
            length_struct: The cells of a row for each feature. For a meta feature that is a dict of
                sequences, give a dict. Other keys of elements are left out; for "concat_then_split"
                they are an error.
            method: "first_fit" and "best_fit" keep `num_packing_bins` rows open. A sequence goes into
                the first row that has room, or into the fullest. When one fits into none, all rows
                are given out. "concat_then_split" puts sequences end to end and cuts them.
            options: For "first_fit" and "best_fit": `num_packing_bins` (required), `seed` (0),
                `shuffle_bins` (True), `shuffle_bins_group_by_feature`, `meta_features` (features
                without segment ids; those without cells become a list for each row),
                `pack_alignment_struct`, `padding_struct`, `max_sequences_per_bin`. For
                "concat_then_split": `meta_features` (never cut), `split_full_length_features` (True),
                `bos_token_id` (replaces the first token of every sequence in `bos_features`).

        Raises:
            PlanError: If the method or an option is unknown, or a number is out of range.
            ElementError: On iteration, if an element lacks a feature or is longer than a row.

        Example:
            >>> import numpy as np, windrow
            >>> numbers = windrow.MapDataset.range(1, 5).map(lambda n: {"x": np.full(n, n)})
            >>> rows = numbers.to_iter_dataset().pack({"x": 6}, num_packing_bins=2, shuffle_bins=False)
            >>> [row["x"].tolist() for row in rows]
            [[1, 2, 2, 3, 3, 3], [4, 4, 4, 4, 0, 0]]
        """
        return IterDataset(nodes.pack_node(self._node, length_struct, method, options))

    def repeat(self, num_epochs: int | None = None) -> IterDataset[T_co]:
        """The stream again from its start, in the same order; with None, for ever.

        Raises:
            PlanError: If `num_epochs` is less than 1. On iteration, if the stream that repeats for ever
                has no element.
        """
        times = None if num_epochs is None else integer(num_epochs, "repeat: num_epochs")
        return IterDataset(nodes.StreamRepeatNode((self._node,), times))

    def cache(self) -> IterDataset[T_co]:
        """The same stream; an iterator keeps the elements of a whole pass, for the passes after it.

        For few elements that are costly to make, before `repeat`. They are all in memory, in addition
        to what is read ahead. After a restore the next whole pass is kept.

        Example:
            >>> import windrow
            >>> calls = []
            >>> numbers = windrow.MapDataset.range(3).map(lambda n: calls.append(n) or n)
            >>> stream = numbers.to_iter_dataset().cache().repeat(3)
            >>> list(stream), len(calls)
            ([0, 1, 2, 0, 1, 2, 0, 1, 2], 3)
        """
        return IterDataset(nodes.CacheNode((self._node,)))

    def limit(self, count: int) -> IterDataset[T_co]:
        """The first `count` elements.

        In a stream with lanes these are the first elements of the lanes in turn. A batched function before
        it may be called on more rows.

        Raises:
            PlanError: If `count` is less than 1, or the stream has lanes that end, and how many elements
                each of them has is not known before they are read, as after a filter.
        """
        size = integer(count, "limit: count")
        return IterDataset(nodes.StreamLimitNode((self._node,), size))

    def apply(self, transformations: AnyTransform | Sequence[AnyTransform]) -> IterDataset[Any]:
        """Apply one transform of `windrow.transforms`, or several in order."""
        return applied(self, transformations)

    def prefetch(
        self, multiprocessing_options: int | Literal["auto"] | WorkerOptions | None
    ) -> IterDataset[T_co]:
        """Deprecated: use `mp_prefetch(multiprocessing_options)`."""
        warnings.warn("prefetch is now mp_prefetch", DeprecationWarning, stacklevel=2)
        return self.mp_prefetch(multiprocessing_options)

    def mp_prefetch(
        self,
        options: int | Literal["auto"] | WorkerOptions | None = None,
        worker_init_fn: Callable[[int, int], None] | None = None,
        sequential_slice: bool = False,
    ) -> IterDataset[T_co]:
        """The same stream, but worker processes run the functions of the chain so far.

        This process plans and reads. Elements, order and state do not depend on the workers.

        Args:
            options: A number of workers, or a `MultiprocessingOptions`; by default one worker per
                core. With 0 nothing changes. With "auto" the functions begin in this process, and the
                iterator decides once, from its first elements, whether workers start, and how many.
            worker_init_fn: Called in each worker with its index and the number of workers, before
                anything else.
            sequential_slice: Accepted for compatibility with Grain, where each worker reads a part of
                the data in one piece, and the order depends on their number. Here one process plans
                all reads, and the order is the chain's.

        Raises:
            ArgumentError: If the options are of another kind. On iteration, what pickling raises is
                raised with its own type if functions cannot be sent to a worker, or results back.
            WorkerError: On iteration, if a function calls `sys.exit` in a worker.
        """
        checked = as_multiprocessing_options(options)
        return IterDataset(nodes.ProcessNode((self._node,), checked, worker_init_fn))

    def records_of(self, index: int | dict[str, Any]) -> Records:
        """The records that an element of the stream is made of, without reading.

        See `MapDataset.records_of`. Packed rows have a list for each row. A map of a `MapDataset` that returns None, and so makes an
        element absent, counts as one that does not.

        Args:
            index: The number of the element, at least 0; or a state, for the element after it. Where
                values decide which element that is, it is made, and its records are read.

        Raises:
            PlanError: If values decide which elements come, as in a filter, a `flat_map` or a packer
                of streams, and `index` is a number.
            RecordIndexError: If the stream has no such element.
            StateError: If the state is invalid, or belongs to another chain or other data.

        Example:
            >>> import windrow
            >>> stream = windrow.MapDataset.range(6)[::-1].to_iter_dataset().repeat().batch(4)
            >>> [record for _, record in stream.records_of(1)]
            [1, 0, 5, 4]
        """
        return records_of(self._node, index)

    def __iter__(self) -> DatasetIterator[T_co]:
        return Epochs.of(self, DatasetIterator(self._node))


register(IterDataset, of_streams=True)
