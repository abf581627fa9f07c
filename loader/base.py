"""What both kinds of dataset share: a node of a chain, its spec, `apply`, and printing it.

Invariant: no record is read but for `read_spec`.
"""

from __future__ import annotations

import abc
import functools
import itertools
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    overload,
)

import numpy as np

from windrow.core.text import with_article
from windrow.engine import execute
from windrow.engine.budgets import default_options
from windrow.errors import ArgumentError, ReadError, UnsupportedTransformError
from windrow.iterator import DatasetIterator
from windrow.transforms import functions, nodes, specs, tables
from windrow.transforms.arguments import checked_seed
from windrow.transforms.nodes import STREAM, Node
from windrow.transforms.nodes.metadata import element_spec
from windrow.transforms.options import ReadOptions, as_read_options
from windrow.transforms.positions import positions

if TYPE_CHECKING:
    from windrow.colocated import ColocatedDataset
    from windrow.explain.explanation import Explanation
    from windrow.jax_dataset import JaxDataset
    from windrow.transforms.callables import FilterFunction
    from windrow.transforms.options import OnBad

T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S")
P = ParamSpec("P")
D = TypeVar("D", bound="Dataset[Any]")


class Dataset(abc.ABC, Generic[T_co]):
    """A chain, of one kind or the other."""

    def __init__(self, parents: Node | Dataset[Any] | Sequence[Dataset[Any]] = ()) -> None:
        node = nodes.as_node(parents)
        if node is not None:
            self.__dict__["_node"] = node
            return
        from windrow import own_nodes  # few processes have own nodes

        self._check_own_class()
        self._own_parents = own_nodes.parents_given(parents, Dataset, type(self))
        own_nodes.check_parents(self)

    @functools.cached_property
    def _node(self) -> Node:
        # A subclass may set what its `__len__` needs after `super().__init__`.
        if "_own_parents" not in self.__dict__:
            raise ArgumentError(
                f"{type(self).__name__}: its __init__ must call super().__init__(parents)"
            )
        return self._own_node()

    @abc.abstractmethod
    def _check_own_class(self) -> None:
        """Check that a subclass of a user has the methods that it needs."""

    @abc.abstractmethod
    def _own_node(self) -> Node:
        """The node of a dataset whose class is a user's subclass."""

    def _with(self, node: Node) -> Self:
        """The dataset of a node, of the same kind."""
        made: Self = _KINDS[node.length == STREAM](node)  # type: ignore[assignment]
        return made

    @property
    def _parents(self) -> tuple[Any, ...]:
        return self.parents

    @property
    def _parent(self) -> Any:
        from windrow import own_nodes

        return own_nodes.parent_of(self, self._parents)

    @abc.abstractmethod
    def __iter__(self) -> DatasetIterator[T_co]: ...

    @property
    def parents(self) -> tuple[Dataset[Any], ...]:
        """The datasets that this one is made of, without their own parents; none for a source.

        Example:
            >>> import windrow
            >>> dataset = windrow.MapDataset.range(4).shuffle(seed=1).batch(2)
            >>> dataset.parents
            (MapDataset(range(0, 4, 1) > shuffle(seed=1), 4 elements of int64),)
        """
        if "_own_parents" in self.__dict__:
            return self._own_parents
        return tuple(
            _KINDS[node.length == STREAM](node) for node in nodes.written_parents(self._node)
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        # With both classes, which a stream's `parents` need where it arrives.
        found: Any = super().__reduce_ex__(protocol)
        make, arguments, *state = found
        return _remade, (tuple(_KINDS.values()), make, arguments), *state

    def pipe(
        self, function: Callable[Concatenate[Self, P], S], /, *args: P.args, **kwargs: P.kwargs
    ) -> S:
        """`function(self, *args, **kwargs)`: for steps that a chain has no method for."""
        return function(self, *args, **kwargs)

    @property
    def element_spec(self) -> Any:
        """The tree of an element with a `windrow.sources.ArraySpec` for each array or number.

        Other leaves are types: `bytes`, `str`, and `list` for what a batch does not stack. A length
        that differs between elements, as in a short last batch, is None. An absent element has the
        spec that it would have if it were present, also in a tuple of `zip`. No record is read and no
        function is called: a transform declares its result in a method `output_spec(spec)`.

        Raises:
            PlanError: If a source or a function declares no spec; use `read_spec()` then.
            ArgumentError: If a declared spec is invalid.

        Example:
            >>> import numpy as np, windrow
            >>> dataset = windrow.MapDataset.source({"x": np.zeros((10, 3)), "y": np.arange(10)})
            >>> dataset.batch(4, drop_remainder=True).element_spec["x"]
            ArraySpec(shape=(4, 3), dtype=dtype('float64'), dims=None)
        """
        return element_spec(self._node)

    def read_spec(self) -> Any:
        """Read the first element and return its spec: see `element_spec`.

        Other elements may have other shapes, and names of axes are unknown.

        Raises:
            PlanError: If the dataset is empty, or none of the first 64 elements is there.

        Example:
            >>> import windrow
            >>> windrow.MapDataset.source([b"a", b"b"]).map(len).read_spec()
            ArraySpec(shape=(), dtype=dtype('int64'), dims=None)
        """
        return _read_spec(self._node)

    @overload
    def to_jax(
        self,
        sharding: Any,
        *,
        prefetch: int = ...,
        prefetch_bytes: int = ...,
        host: Iterable[str] = ...,
        colocated: Literal[False] = ...,
    ) -> JaxDataset: ...

    @overload
    def to_jax(
        self,
        sharding: Any,
        *,
        prefetch: int = ...,
        prefetch_bytes: int = ...,
        host: Iterable[str] = ...,
        colocated: Literal[True],
    ) -> ColocatedDataset: ...

    def to_jax(
        self,
        sharding: Any,
        *,
        prefetch: int = 2,
        prefetch_bytes: int = 1 << 30,
        host: Iterable[str] = (),
        colocated: bool = False,
    ) -> JaxDataset | ColocatedDataset:
        """Batches as trees of global `jax.Array`s, after the last `batch`.

        The batch size counts the rows of all processes. Each process reads only the rows that its
        addressable devices hold, each row once; nothing is sent between processes. The iterator has
        all that iterators have, and its state is the state after the batch given last.

        A finite stream after a filter needs `batch(..., remainder="drop")`; its processes agree on
        the end through `jax.distributed`. Other functions than `map(..., batched=True)` belong
        before the batch, unless each process has all rows.

        Args:
            sharding: One `jax.sharding.Sharding` for all leaves, a tree of them, or a function that
                returns one for the path of a leaf: a tuple of keys, such as `("image",)`. If the
                chain declares no spec, a function is asked for the leaves of the first rows, which
                are read for it.
            prefetch: Batches on their way to the devices, at least 0.
            prefetch_bytes: The most bytes of this process's rows on their way. One batch is always
                allowed.
            host: Leaves, or trees of leaves, that stay in NumPy with the rows of this process, such
                as strings: keys, or paths of keys with slashes.
            colocated: For a controller that has all devices: the hosts of the devices read, through
                `jax.experimental.colocated_python`. The iterator has `get_state`, `set_state`,
                `start_prefetch` and `close`.

        Returns:
            An iterable. Leaves of 64 bits become leaves of 32 bits unless `jax_enable_x64` is set.

        Raises:
            PlanError: If the chain does not end in a batch, the sharding does not divide a shape, or
                a leaf is not an array.
            ArgumentError: If an argument has the wrong type, or names no leaf.
            MissingExtraError: If JAX is not installed.
            ElementError: On iteration, for a shape or leaf that the spec did not show, and for
                integers that do not fit into 32 bits.

        Example:
            >>> import jax, numpy as np, windrow
            >>> from jax.sharding import NamedSharding, PartitionSpec
            >>> mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
            >>> sharding = NamedSharding(mesh, PartitionSpec("data"))
            >>> dataset = windrow.MapDataset.source({"x": np.arange(6, dtype=np.float32)}).batch(3)
            >>> for batch in dataset.to_jax(sharding):
            ...     print(type(batch["x"]).__name__, batch["x"].sharding == sharding, batch["x"])
            ArrayImpl True [0. 1. 2.]
            ArrayImpl True [3. 4. 5.]
        """
        node = self._node
        if node.length != STREAM:
            node = nodes.ToStreamNode((node,), default_options(node))
        # Few processes ask: a worker does not load JAX.
        if colocated:
            from windrow.colocated import ColocatedDataset

            return ColocatedDataset(node, sharding, prefetch, prefetch_bytes, host, _read_spec)
        from windrow.jax_dataset import JaxDataset

        return JaxDataset(node, sharding, prefetch, prefetch_bytes, host, _read_spec)

    def seed(self, seed: int) -> Self:
        """Derive the seeds of later nodes from `seed`, unless they are given one.

        Raises:
            PlanError: If it is not in `[0, 2**64)`.
        """
        return self._with(nodes.SeedNode((self._node,), checked_seed(seed, "seed", 2**64)))

    def filter(self, transform: FilterFunction[T_co]) -> Self:
        """Leave out elements for which `transform` is false.

        In a `MapDataset` they are absent: None, with the length unchanged. Iteration leaves them out. Call
        `batch` after `to_iter_dataset()`.

        Raises:
            ArgumentError: If `transform` is neither a function nor a `transforms.Filter`.
        """
        function = functions.as_function(transform, "Filter")
        return self._with(nodes.FilterNode((self._node,), function))

    def on_bad(
        self,
        action: OnBad,
        errors: type[Exception] | Sequence[type[Exception]] = (ReadError, ValueError),
        max_bad: float | None = None,
        log: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Continue where a record before this node cannot be read, or a function before it raises.

        It covers the nodes before it, back to the previous `on_bad` or else to the sources.
        With `"skip"` a bad record is absent, as if a `filter` had left it out; so `batch` comes after
        `to_iter_dataset()`. A stream drops an element where a function raises for it. With `"replace"` another record of the dataset before comes in its place,
        chosen by the seed and the index, so batches keep their size. With `"raise"` the error is
        raised, as without this node. The stream is the same with any workers, hosts and restarts.
        `stats()` counts the records that were left out or replaced since the iterator was made or moved.

        Errors of the chain itself, of memory, and of a store that does not answer are always raised.

        Args:
            action: `"raise"`, `"skip"` or `"replace"`.
            errors: The classes of errors that make a record a bad one.
            max_bad: The most bad records that an iterator may meet from where it is made or moved, None for
                no limit. One that is made again, as after an error, counts again. A float is a share of
                1,000 elements, or of more that are read together. Not part of the fingerprint.
            log: A JSON Lines file. A line is appended for each bad record when it is met, which is ahead
                of the loop. It is not part of the fingerprint.

        Raises:
            ArgumentError: If `errors` or `max_bad` has the wrong type.
            PlanError: If `action` is something else, an error of the chain is among `errors`, or the
                action is `"replace"` and this is a stream: write it before `to_iter_dataset`.

        Example:
            >>> import windrow
            >>> numbers = windrow.MapDataset.source(["1", "2", "three", "4"]).map(int)
            >>> list(numbers.on_bad("skip")), list(numbers.on_bad("replace").batch(4))[0].tolist()
            ([1, 2, 4], [1, 2, 1, 4])
        """
        seed = nodes.default_seed(self._node)
        return self._with(nodes.on_bad_node(self._node, action, errors, max_bad, log, seed))

    def explain(self, *, sharding: Any = None, host: Iterable[str] = ()) -> Explanation:
        """Describe the chain and its costs, before anything is read.

        Uses the lengths, layouts and metadata of the sources, and works out the orders. No
        function of the user's is called but selection maps and methods `output_spec`.

        Args:
            sharding: As for `to_jax`: the chain that this process runs for its devices is
                described, and in `across` what each process reads, decodes beyond what it delivers,
                and holds, and how often all of them read a chunk.
            host: As for `to_jax`.

        Returns:
            The chain as written and as run, and for each source the chunks, reads and bytes of an
            epoch and of a batch. `print` shows the most of it; `details()` and notebooks, tables.

        Raises:
            ReadError: If metadata that describe a layout cannot be read.
            PlanError, ArgumentError: As `to_jax` raises them, with `sharding`.

        Example:
            >>> import numpy as np, windrow
            >>> dataset = windrow.MapDataset.source(np.zeros((100, 8), np.float32)).batch(32)
            >>> explanation = dataset.explain()
            >>> print(explanation.batches, "batches of", explanation.batch_bytes, "bytes")
            4 batches of 1,024 bytes
        """
        if sharding is not None:
            return self.to_jax(sharding, host=host).explain()
        # Few processes ask: a worker and a training loop do not load it.
        from windrow.explain.explained import explained

        return explained(self._node)

    def __repr__(self) -> str:
        from windrow import shown  # few processes print

        return shown.text(type(self).__name__, self._node)

    def _repr_html_(self) -> str:
        from windrow import shown

        return shown.html(type(self).__name__, self._node)


def _read_spec(node: Node) -> Any:
    """Read the first element and return its spec: see `Dataset.read_spec`."""
    for element in _first_elements(node):
        if element is not None:
            return specs.spec_of(element)
    raise specs.no_element()


def _first_elements(node: Node) -> Iterator[Any]:
    """Elements from the first on, each read when it is asked for; None where absent."""
    while node.is_unseen:
        node = node.parent  # one element needs no workers
    if node.length == STREAM:
        with first_iterator(node, 1) as iterator:
            yield from itertools.islice(iterator, 1)
        return
    for index in range(min(node.length, specs.FIRST)):
        at = positions(np.array([index], np.int64), node.length)
        yield tables.elements(execute.start(node, at, [0, 1], execute.Reader())())[0]


def first_iterator(node: Node, count: int) -> DatasetIterator[Any]:
    """An iterator over a stream, for its first elements alone.

    It asks no other shard whether there is one.
    """
    tail = nodes.tail_of(node)
    if tail.agree is None and (tail.lanes == 1 or tail.batch is not None):
        node = nodes.StreamLimitNode((node,), count)  # no more are read
    iterator: DatasetIterator[Any] = DatasetIterator(node)
    iterator._agree = None
    return iterator


def stream_of(node: Node, read_options: Any) -> tuple[Node, ReadOptions]:
    """The chain of a stream with these options, and the options; by default what suits the sources.

    Raises:
        ArgumentError: If they are something else.
        PlanError: If their `on_bad` does not fit the chain.
    """
    options = as_read_options(default_options(node) if read_options is None else read_options)
    if options.on_bad == "raise":
        return node, options
    given = options.on_bad, nodes.BAD_ERRORS, options.max_bad, None
    return nodes.on_bad_node(node, *given, nodes.default_seed(node)), options


class _OfClass(classmethod):  # type: ignore[type-arg]
    """A class method that an instance refuses, since its result would be without the instance."""

    def __init__(self, method: Callable[..., Any], kind: str) -> None:
        super().__init__(method)
        self._kind = kind

    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        bound = super().__get__(None, type(instance) if owner is None else owner)
        if instance is None:
            return bound
        of = f"{self._kind}.{self.__func__.__name__}"

        @functools.wraps(bound)
        def refused(*_: Any, **__: Any) -> Any:
            raise ArgumentError(
                f"{of} is of the class, and would be without the dataset that it was called on; write {of}(...),"
                " with all datasets in one list where it takes several"
            )

        return refused


_KINDS: Final[dict[bool, type[Dataset[Any]]]] = {}  # by whether it is of streams


def register(kind: type[Dataset[Any]], *, of_streams: bool) -> None:
    """Make streams, or datasets with random access, of this class where only their node is known.

    Its class methods can be called on the class alone. Type checkers see them as they are written.
    """
    _KINDS[of_streams] = kind
    for name, method in list(vars(kind).items()):
        if isinstance(method, classmethod):
            setattr(kind, name, _OfClass(method.__func__, kind.__name__))


def _remade(_: tuple[type[Any], ...], make: Callable[..., Any], arguments: Any) -> Any:
    return make(*arguments)


def nodes_of(datasets: Any, kind: type[Dataset[Any]], who: str) -> tuple[Node, ...]:
    """The nodes of several datasets of one kind.

    Raises:
        ArgumentError: If they are something else.
    """
    if isinstance(datasets, Mapping):
        names = "; streams with names are for IterDataset.mix" if who == "mix" else ""
        raise ArgumentError(
            f"{who}: needs a list of {kind.__name__}, got a mapping; give its values:"
            f" {who}(list(datasets.values())){names}"
        )
    # A dataset is iterable too, but its elements are not datasets, and must not be read here.
    if isinstance(datasets, Dataset) or not isinstance(datasets, Iterable):
        raise ArgumentError(f"{who}: needs a list of {kind.__name__}, got {datasets!r}")
    datasets = list(datasets)
    for i, dataset in enumerate(datasets):
        if not isinstance(dataset, kind):
            raise ArgumentError(
                f"{who}: dataset {i} is {with_article(type(dataset).__name__)}, not {with_article(kind.__name__)}"
            )
    return tuple(dataset._node for dataset in datasets)


def applied(dataset: D, transformations: Any) -> D:
    """A dataset after one transform, or several in order.

    Raises:
        ArgumentError: If one is not a transform.
    """
    chain: Any = dataset
    several = isinstance(transformations, Sequence)
    for transform in transformations if several else [transformations]:
        match functions.kind_of(transform):
            case "Map":
                chain = chain.map(transform)
            case "RandomMap":
                chain = chain.random_map(transform)
            case "MapWithIndex":
                chain = chain.map_with_index(transform)
            case "FlatMap":
                chain = chain.flat_map(transform)
            case "Filter":
                chain = chain.filter(transform)
            case "Batch":
                batch = functions.as_batch(transform)
                chain = chain.batch(
                    batch.batch_size, drop_remainder=batch.drop_remainder, batch_fn=batch.batch_fn
                )
            case _:
                if isinstance(transform, type):
                    name = transform.__name__
                    raise UnsupportedTransformError(
                        f"apply: {name} is a class; pass an instance: {name}(...)"
                    )
                if isinstance(transform, types.FunctionType):
                    raise UnsupportedTransformError(
                        f"apply: {transform.__qualname__} is a function; use map or filter, or an"
                        " instance of a class of windrow.transforms, such as Map or Filter"
                    )
                raise UnsupportedTransformError(
                    f"apply: {transform!r} is not a Map, RandomMap, MapWithIndex, FlatMap, Filter"
                    " or Batch of windrow.transforms; for a plain function use map or filter"
                )
    made: D = chain
    return made
