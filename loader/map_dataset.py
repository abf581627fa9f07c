"""`MapDataset`: elements with random access, the first half of the chain that users write.

Every method returns a new dataset with one more node; nothing is read until elements are requested.
Names, arguments and meaning are Grain's, but Windrow never loses or repeats a record.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Never,
    SupportsIndex,
    TypeVar,
    Unpack,
    overload,
)

import numpy as np
import numpy.typing as npt

from windrow.base import applied, nodes_of, register
from windrow.errors import ArgumentError, PlanError, RecordIndexError
from windrow.random_access import Ordered
from windrow.sources.adapt import as_source
from windrow.transforms import functions, nodes
from windrow.transforms.arguments import (
    AT_END,
    AtEnd,
    integer,
    one_index,
    one_of,
    weights_given,
)
from windrow.transforms.mixtures import Schedule, scheduled

if TYPE_CHECKING:
    from windrow.transforms.callables import (
        AnyTransform,
        ArrayLike,
        BatchedFunction,
        BatchedRandomFunction,
        FlatMaps,
        IndexedMapFunction,
        MapFunction,
        MapPromises,
        NamedArrays,
        RandomAccessSource,
        RandomMapFunction,
        Selects,
        Stacked,
        StoredArray,
        Unpadded,
    )

T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


class MapDataset(Ordered[T_co]):
    """Elements with random access: an endless function of an integer, `len` of them in one epoch.

    Index `i` is element `i % len` of epoch `i // len`; negative indices are earlier epochs.

    Example:
        >>> import windrow
        >>> dataset = windrow.MapDataset.source([3, 1, 4, 1, 5]).shuffle(seed=0).batch(2)
        >>> len(dataset)
        3
        >>> [batch.tolist() for batch in dataset]
        [[3, 5], [1, 4], [1]]
    """

    def _check_own_class(self) -> None:
        from windrow import own_nodes  # few processes have own nodes

        own_nodes.check_methods(type(self), MapDataset, ("__len__", "__getitem__"))

    def _own_node(self) -> nodes.Node:
        from windrow import own_nodes

        return own_nodes.map_node(self, self.__getitem__)

    # --- where elements come from ----------------------------------------------------------------

    @overload
    @classmethod
    def source(cls, source: StoredArray) -> MapDataset[Any]: ...

    @overload
    @classmethod
    def source(
        cls, source: Mapping[Any, Any] | Sequence[dict[str, Any]]
    ) -> MapDataset[dict[str, Any]]: ...

    @overload
    @classmethod
    def source(cls, source: RandomAccessSource[S]) -> MapDataset[S]: ...

    @overload
    @classmethod
    def source(cls, source: NamedArrays) -> MapDataset[dict[str, Any]]: ...

    @classmethod
    def source(cls, source: Any) -> MapDataset[Any]:
        """The records of a source: one of `windrow.sources`, or any map-style source.

        Args:
            source: A source, a sequence, a NumPy array or a dict of arrays, or an object of Grain's
                or torch's kind with `__len__` and `__getitem__`.

        Raises:
            ArgumentError: If it is anything else.
        """
        return MapDataset(nodes.SourceNode((), as_source(source)))

    @classmethod
    def range(cls, start: int, stop: int | None = None, step: int = 1) -> MapDataset[int]:
        """The Python ints of `range(start, stop, step)`; `range(n)` counts from 0.

        Raises:
            PlanError: If the step is 0, or a number is 2**62 or more in size.
        """
        if stop is None:
            start, stop = 0, start
        given = {"start": start, "stop": stop, "step": step}
        bounds = (integer(n, f"range: {name}") for name, n in given.items())
        return MapDataset(nodes.RangeNode((), *bounds))

    @classmethod
    def mix(
        cls,
        datasets: Sequence[MapDataset[S]],
        weights: Sequence[float] | Schedule | None = None,
        *,
        at_end: AtEnd = "stop",
    ) -> MapDataset[S]:
        """Elements of the datasets in the proportions of `weights` (equal ones by default).

        Args:
            datasets: At least one, none of them empty.
            weights: One for each; or a `transforms.Schedule` of such weights.
            at_end: What happens when a dataset runs out. The epoch ends, and the next epoch continues
                from there ("stop"); each dataset is repeated for ever ("repeat"); or the epoch
                continues without it, until it has all elements of all ("drop"). With "drop" a
                schedule starts again with each epoch.

        Raises:
            PlanError: If there is no dataset, one is empty, weights are too few or not positive, or
                `at_end` is something else.
        """
        parents = nodes_of(datasets, MapDataset, "mix")
        if one_of(at_end, AT_END, "mix: at_end") == "repeat":
            parents = tuple(
                each if each.length in (0, nodes.ENDLESS) else nodes.RepeatNode((each,), None)
                for each in parents
            )
        given = scheduled(weights, weights_given)
        return MapDataset(nodes.MixNode(parents, given, at_end == "drop"))

    @classmethod
    def select_from_datasets(
        cls, datasets: Sequence[MapDataset[S]], selection_map: Selects
    ) -> MapDataset[S]:
        """Element `i` is element `k` of dataset `d`, where `selection_map[i]` is `(d, k)`.

        `selection_map` is a `windrow.transforms.DatasetSelectionMap` or anything with its two
        methods. It is asked for any index, also beyond its length, in later epochs. If it has a
        `fingerprint`, a str, the state's fingerprint includes it; without one, a state of another
        selection of the same class and length is accepted.

        Raises:
            PlanError: If there is no dataset, or one is empty; on reading, if the map names a missing one.
        """
        parents = nodes_of(datasets, MapDataset, "select_from_datasets")
        return MapDataset(nodes.SelectNode(parents, selection_map))

    @classmethod
    def concatenate(cls, datasets: Sequence[MapDataset[S]]) -> MapDataset[S]:
        """The datasets one after the other, epoch by epoch.

        Raises:
            PlanError: If there is no dataset, one is endless, or together they are too long.
        """
        return MapDataset(nodes.ConcatenateNode(nodes_of(datasets, MapDataset, "concatenate")))

    @overload
    @classmethod
    def zip(cls, datasets: tuple[MapDataset[A], MapDataset[B]]) -> MapDataset[tuple[A, B]]: ...

    @overload
    @classmethod
    def zip(
        cls, datasets: tuple[MapDataset[A], MapDataset[B], MapDataset[C]]
    ) -> MapDataset[tuple[A, B, C]]: ...

    @overload
    @classmethod
    def zip(cls, datasets: Sequence[MapDataset[Any]]) -> MapDataset[tuple[Any, ...]]: ...

    @classmethod
    def zip(cls, datasets: Sequence[MapDataset[Any]]) -> MapDataset[Any]:
        """Tuples of the elements that datasets of one length have at the same index.

        Type checkers know what is in the tuples if the datasets are given as a tuple of two or three.

        Raises:
            PlanError: If there is no dataset, or they differ in length.
        """
        return MapDataset(nodes.ZipNode(nodes_of(datasets, MapDataset, "zip")))

    # --- parts and epochs ------------------------------------------------------------------------

    def slice(self, sl: builtins.slice | Sequence[int] | npt.NDArray[Any]) -> MapDataset[T_co]:
        """Part of each epoch: a slice, or a sequence of indices in the order wanted.

        `ds[i::n]` is the part of host `i` of `n`. Indices may be negative, as in NumPy.

        Raises:
            PlanError: If an index of a sequence is out of range.
        """
        return MapDataset(nodes.sliced(self._node, sl))

    def repeat(
        self, num_epochs: int | None = None, *, reseed_each_epoch: bool = True
    ) -> MapDataset[T_co]:
        """Epochs end to end: `num_epochs` of them, or, with None, for ever.

        Args:
            num_epochs: At least 1.
            reseed_each_epoch: With False each epoch is the first one again, in its order and with
                its random values.

        Raises:
            PlanError: If `num_epochs` is less than 1, or the dataset is endless already.
        """
        times = None if num_epochs is None else integer(num_epochs, "repeat: num_epochs")
        return MapDataset(nodes.RepeatNode((self._node,), times, reseed_each_epoch))

    # --- values ----------------------------------------------------------------------------------

    @overload
    def map(
        self,
        transform: MapFunction[T_co, S],
        *,
        batched: Literal[False] = ...,
        **promises: Unpack[MapPromises],
    ) -> MapDataset[S]: ...

    @overload
    def map(
        self, transform: BatchedFunction, *, batched: bool, **promises: Unpack[MapPromises]
    ) -> MapDataset[Any]: ...

    def map(
        self,
        transform: Any,
        *,
        batched: bool = False,
        keeps_length: bool = False,
        local: str | Iterable[str] = (),
        halo: Mapping[str, int] | None = None,
        wrap: str | Iterable[str] = (),
    ) -> MapDataset[Any]:
        """`transform` of each element.

        Args:
            transform: A function, or a `transforms.Map`. It gets one element, its own to change;
                None makes the element absent.
            batched: The function gets the columns of many elements at once and returns columns of
                as many rows. It must treat rows independently of each other. In a stream it is
                called on the rows of the next batch in the chain, else on aligned blocks.
            keeps_length: The promise that a sequence is as long as the one it is made from, so
                that what is planned from lengths works after it.
            local: The promise that cells along these dimensions are treated independently, so that
                parts of samples can be made of parts of records: see `to_jax`. The function
                keeps the leaves and axes, unless it declares others by `output_spec`.
            halo: By dimension of `local`, cells on each side that a cell depends on too.
            wrap: Dimensions of `local` whose ends meet, such as longitude at the date line: the
                function takes the cells around an end from the other end.

        Raises:
            ArgumentError: If `transform` is neither a function nor a `transforms.Map`; if `local`
                names a dimension that elements do not have, or a halo is larger than the axis.
            PlanError: If a halo is negative.
        """
        function = functions.as_function(transform, "Map")
        make = nodes.ColumnMapNode if batched else nodes.MapNode
        promise = nodes.locality_after(self._node, local, halo, wrap)
        return MapDataset(make((self._node,), function, keeps_length, promise))

    def map_with_index(self, transform: IndexedMapFunction[T_co, S]) -> MapDataset[S]:
        """`transform(index, element)` of each element; indices continue over the epochs.

        Raises:
            ArgumentError: If `transform` is neither a function nor a `transforms.MapWithIndex`.
        """
        function = functions.as_function(transform, "MapWithIndex")
        return MapDataset(nodes.MapWithIndexNode((self._node,), function))

    @overload
    def random_map(
        self,
        transform: RandomMapFunction[T_co, S],
        *,
        seed: int | None = ...,
        batched: Literal[False] = ...,
    ) -> MapDataset[S]: ...

    @overload
    def random_map(
        self, transform: BatchedRandomFunction, *, seed: int | None = ..., batched: bool
    ) -> MapDataset[Any]: ...

    def random_map(
        self, transform: Any, *, seed: int | None = None, batched: bool = False
    ) -> MapDataset[Any]:
        """`transform(element, rng)`, where `rng` depends on the seed and the index alone.

        The generator is valid during the call only. Grain gives the same values for the same seed.

        Args:
            transform: A function, or a `transforms.RandomMap`.
            seed: By default derived from an earlier `seed(...)`.
            batched: `transform(columns, rngs)` gets the columns of many elements and a list with
                the generator of each, the same as without `batched`. It returns columns of as many
                rows, and must treat rows independently: how many it gets at once may vary.

        Raises:
            PlanError: If there is no seed at all.

        Example:
            >>> import numpy as np, windrow
            >>> dataset = windrow.MapDataset.range(4).seed(1)
            >>> def noise(columns, rngs):
            ...     return columns + np.array([rng.integers(10) for rng in rngs])
            >>> one_by_one = dataset.random_map(lambda n, rng: n + int(rng.integers(10)))
            >>> list(dataset.random_map(noise, batched=True)) == list(one_by_one)
            True
        """
        function = functions.as_function(transform, "RandomMap")
        found = nodes.seed_for(self._node, seed, "random_map", 2**64)
        make = nodes.RandomColumnMapNode if batched else nodes.RandomMapNode
        return MapDataset(make((self._node,), function, found))

    @overload
    def flat_map(
        self, transform: Callable[[T_co], Iterable[S]], max_fan_out: int
    ) -> MapDataset[S]: ...

    @overload
    def flat_map(
        self, transform: FlatMaps[T_co, S], max_fan_out: int | None = None
    ) -> MapDataset[S]: ...

    def flat_map(self, transform: Any, max_fan_out: int | None = None) -> MapDataset[Any]:
        """The elements that `transform` makes of each element, with random access.

        Each element has `max_fan_out` indices, so the length is `max_fan_out` times as large. Indices
        for which it makes nothing are absent: None, which iteration leaves out. Each index reads its
        element: for large fan-outs prefer `to_iter_dataset().flat_map`, which reads it once.

        Args:
            transform: A function that returns an iterable, which may be empty, or a
                `transforms.FlatMap`.
            max_fan_out: The most elements that it makes of one; by default the attribute of a
                `transforms.FlatMap`.

        Raises:
            ArgumentError: If `transform` is neither, or `max_fan_out` is missing.
            PlanError: If `max_fan_out` is less than 1.
            ElementError: On reading, if `transform` makes more, or something that is not iterable.

        Example:
            >>> import windrow
            >>> dataset = windrow.MapDataset.range(3).flat_map(lambda n: [n] * n, max_fan_out=2)
            >>> dataset[:].read(range(6)), list(dataset)
            ([None, None, 1, None, 2, 2], [1, 2, 2])
        """
        function = functions.as_function(transform, "FlatMap")
        given = getattr(transform, "max_fan_out", None) if max_fan_out is None else max_fan_out
        if given is None:
            raise ArgumentError(
                "flat_map: random access needs max_fan_out, the most elements that the function"
                " makes of one; give it, or write to_iter_dataset().flat_map(...), which needs none"
            )
        slots = integer(given, "flat_map: max_fan_out")
        node = nodes.SlotsNode((self._node,), slots)
        return MapDataset(nodes.SlotMapNode((node,), function, slots))

    @overload
    def batch(
        self, batch_size: int, *, batch_fn: Callable[[list[T_co]], S], drop_remainder: bool = ...
    ) -> MapDataset[S]: ...

    @overload  # of elements of any type
    def batch(
        self: MapDataset[Never], batch_size: int, **options: Unpack[Stacked]
    ) -> MapDataset[Any]: ...

    @overload
    def batch(
        self: MapDataset[dict[str, Any]], batch_size: int, **options: Unpack[Stacked]
    ) -> MapDataset[dict[str, Any]]: ...

    @overload
    def batch(
        self: MapDataset[ArrayLike], batch_size: int, **options: Unpack[Unpadded]
    ) -> MapDataset[npt.NDArray[Any]]: ...

    @overload
    def batch(self, batch_size: int, **options: Unpack[Stacked]) -> MapDataset[Any]: ...

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
    ) -> MapDataset[Any]:
        """Batches of consecutive elements, which do not cross an epoch.

        Leaves are stacked on a new leading axis; bytes and str become lists.

        Args:
            batch_size: Elements per batch; the last batch of an epoch may be shorter.
            drop_remainder: Leave out a shorter last batch.
            batch_fn: Makes a batch of a list of elements, instead of stacking.
            remainder: What becomes of a shorter last batch: `"keep"` it, `"drop"` it (which is
                `drop_remainder=True`), or `"pad"` it with zeros (and empty strings). With `"pad"`
                each batch says which rows are real, in a bool array `(batch_size,)`: batches that
                are dicts get it under the key `mask`, others become the pair `(batch, mask)`.
            mask: The name of that key.
            pad_to: Pads rows that differ in length: the first axis of each leaf that has an axis is
                padded to this length. A dict of lengths by key pads leaves under these keys alone.
            pad_value: The number that `pad_to` pads with.

        Raises:
            ArgumentError: If an argument has the wrong type or contradicts another one.
            PlanError: If a size is less than 1, a filter comes before, or `batch_fn` is combined
                with padding.
            ElementError: On reading, if a row is longer than `pad_to`.

        Example:
            >>> import numpy as np, windrow
            >>> rows = windrow.MapDataset.source([np.arange(n) for n in (3, 1, 2)])
            >>> for batch, mask in rows.batch(2, remainder="pad", pad_to=3, pad_value=-1):
            ...     print(batch.tolist(), mask.tolist())
            [[0, 1, 2], [0, -1, -1]] [True, True]
            [[0, 1, -1], [0, 0, 0]] [True, False]
        """
        size = integer(batch_size, "batch: batch_size")
        if nodes.may_be_absent(self._node):
            raise PlanError(
                "batch: a filter before it leaves gaps that random access cannot close; write"
                " .filter(f).to_iter_dataset().batch(n), or filter after the batch"
            )
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
        return MapDataset(node)

    def shard(self, index: int, count: int) -> MapDataset[T_co]:
        """The part of each batch that one of `count` processes takes: see `IterDataset.shard`.

        Element `k` has the rows `[index * B // count, (index + 1) * B // count)` of batch `k`. No
        other rows are read. A last batch that is shorter can leave a process without rows.

        Raises:
            ArgumentError: If the numbers are not `0 <= index < count`.
            PlanError: If the chain does not end in a batch, or `count` does not divide its size.

        Example:
            >>> import windrow
            >>> dataset = windrow.MapDataset.range(16).batch(8).shard(1, 4)
            >>> [batch.tolist() for batch in dataset]
            [[2, 3], [10, 11]]
        """
        number, shards = integer(index, "shard: index"), integer(count, "shard: count")
        return MapDataset(nodes.sharded(self._node, number, shards, None))

    def apply(self, transformations: AnyTransform | Sequence[AnyTransform]) -> MapDataset[Any]:
        """Apply one transform of `windrow.transforms`, or several in order."""
        return applied(self, transformations)

    # --- elements --------------------------------------------------------------------------------

    @overload
    def __getitem__(self, index: SupportsIndex) -> T_co | None: ...

    @overload
    def __getitem__(self, index: builtins.slice) -> MapDataset[T_co]: ...

    def __getitem__(self, index: SupportsIndex | builtins.slice) -> T_co | MapDataset[T_co] | None:
        """An element, or the dataset of a slice; `[len(ds)]` is element 0 of the next epoch."""
        if isinstance(index, slice):
            return self.slice(index)
        number = one_index(index)
        if not -(2**63) <= number < 2**63:
            raise RecordIndexError(f"index {number} is too large; choose one below 2**63")
        element: T_co | None = self.__getitems__(np.array([number], np.int64))[0]
        return element


register(MapDataset, of_streams=False)
