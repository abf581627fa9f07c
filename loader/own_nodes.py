"""A user's own subclasses of datasets and iterators: checks, nodes, and their part of a state."""

from __future__ import annotations

import collections
import inspect
import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from windrow.errors import ArgumentError, StateError
from windrow.transforms import nodes
from windrow.transforms.nodes import STREAM, Node, RowPosition, Tail
from windrow.transforms.options import ReadOptions
from windrow.transforms.row_blocks import OwnStates

_MADE_BY: Final = {
    "MapDataset": "MapDataset.source(source) for the records of a source, or of a sequence or arrays",
    "IterDataset": "MapDataset.source(source).to_iter_dataset() for a stream of the records of a source",
    "DatasetIterator": "iter(dataset) for an iterator over a dataset",
}
_TAKEN: Final = {"__getitem__": "an index", "set_state": "a state"}
_STATELESS: Final = (
    "which has no state; return an instance of a subclass of windrow.DatasetIterator with __next__,"
    " get_state and set_state"
)


def parents_given(parents: Any, kind: type[Any], own: type[Any]) -> tuple[Any, ...]:
    """The parents that a subclass gives to `super().__init__`.

    Raises:
        ArgumentError: If one is not of that kind.
    """
    several = isinstance(parents, Iterable) and not isinstance(parents, kind)
    found = tuple(parents) if several else (parents,)
    for each in found:
        if not isinstance(each, kind):
            raise ArgumentError(
                f"{own.__name__}: super().__init__ takes parents, each a windrow"
                f" {kind.__name__}, got {each!r}"
            )
    return found


def check_methods(own: type[Any], base: type[Any], names: Iterable[str]) -> None:
    """Check that a subclass has methods of its own.

    Raises:
        ArgumentError: If it is the class of Windrow itself, if it has not, or one is not a method that can work; the message names them.
    """
    if own is base:
        raise ArgumentError(f"{base.__name__}: write {_MADE_BY[base.__name__]}")
    missing = [name for name in names if getattr(own, name, None) is getattr(base, name, None)]
    if missing:
        raise ArgumentError(
            f"{own.__name__}: a subclass of windrow.{base.__name__} needs its own"
            f" {' and '.join(missing)}; define {'it' if len(missing) == 1 else 'them'}, or use a"
            " method of a dataset"
        )
    for name in names:
        function = getattr(own, name)
        if not callable(function):
            raise ArgumentError(
                f"{own.__name__}: {name} must be a method, and is {function!r}; define it with def"
            )
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise ArgumentError(
                f"{own.__name__}: {name} is asynchronous, and elements are made by plain calls; define it"
                " with def instead of async def"
            )
        if inspect.isgeneratorfunction(function):
            why = (
                _STATELESS if name == "__iter__" else "and must return; use return instead of yield"
            )
            raise ArgumentError(f"{own.__name__}: {name} is a generator, {why}")
        if inspect.isfunction(inspect.getattr_static(own, name)):
            signature = inspect.signature(function, follow_wrapped=False)
            taken = _TAKEN.get(name)
            try:
                signature.bind(*(("self",) if taken is None else ("self", taken)))
            except TypeError as error:
                raise ArgumentError(
                    f"{own.__name__}: {name}{signature} must take self and {taken or 'nothing else'}"
                ) from error


def parent_of(own: object, parents: tuple[Any, ...]) -> Any:
    """The only parent.

    Raises:
        ArgumentError: If it has no parent, or several.
    """
    if len(parents) != 1:
        raise ArgumentError(
            f"{type(own).__name__}: _parent is for one parent, and this has {len(parents)}; use _parents"
        )
    return parents[0]


def check_parents(dataset: Any) -> None:
    """Check that a dataset of an own class can run over its parents.

    Raises:
        ArgumentError: If a `MapDataset` has an `IterDataset` as a parent.
        PlanError: If a parent of an `IterDataset` has several lanes.
    """
    if not hasattr(type(dataset), "read"):  # a stream
        stream_node(dataset)
        return
    name, parents = _named(dataset)
    streams = [each.label for each in parents if each.length == STREAM]
    if streams:
        raise ArgumentError(
            f"{name}: parents of a MapDataset need random access, and {streams[0]} is a stream;"
            " subclass windrow.IterDataset"
        )


def map_node(dataset: Any, function: Callable[[int], Any]) -> Node:
    """The node of an own `MapDataset`, whose elements `function` makes of indices.

    Raises:
        ArgumentError: If `__len__` returns no length.
    """
    name, parents = _named(dataset)
    nodes.check_shards(parents, who=name)
    try:
        length = len(dataset)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(
            f"{name}: __len__ must return an integer of at least 0, the elements of one epoch ({error})"
        ) from error
    return nodes.OwnMapNode((nodes.OwnIndicesNode(parents, length),), function, name)


def stream_node(dataset: Any) -> Node:
    """The node of an own `IterDataset`.

    Raises:
        PlanError: If a parent has several lanes.
    """
    name, parents = _named(dataset)
    streams = tuple(
        each if each.length == STREAM else nodes.ToStreamNode((each,), ReadOptions())
        for each in parents or (nodes.RangeNode((), 0, 0, 1),)
    )
    return nodes.OwnStreamNode(streams, dataset, name)


def _named(dataset: Any) -> tuple[str, tuple[Node, ...]]:
    return type(dataset).__qualname__, tuple(parent._node for parent in dataset._parents)


# --- states --------------------------------------------------------------------------------------


def stored(tail: Tail, states: OwnStates, found: RowPosition) -> RowPosition:
    """A position as a state holds it, with counts and JSON in place of numbers."""
    (lane,) = found.lanes
    if lane is None or not nodes.has_own(tail.row_node):
        return found
    numbers = nodes.own_numbers(tail.row_node, lane)
    kept = [states.of(number) if number else None for number in numbers]
    counts = iter([0 if each is None else each.elements for each in kept])
    own = {str(k): each.value() for k, each in enumerate(kept) if each is not None}
    counted = nodes.with_own_numbers(tail.row_node, lane, counts)
    return found._replace(lanes=[counted], own=own)


def taken(tail: Tail, states: OwnStates, found: RowPosition) -> RowPosition:
    """A position as the iterator uses it, of one that a state holds.

    Raises:
        StateError: If the state of an own node is missing.
    """
    (lane,) = found.lanes
    if lane is None or not nodes.has_own(tail.row_node):
        return found
    counts, kept = nodes.own_numbers(tail.row_node, lane), found.own or {}
    missing = [k for k, count in enumerate(counts) if count and str(k) not in kept]
    if missing:
        raise StateError(
            f"state has no own state of your node number {missing[0]}, which has given"
            f" {counts[missing[0]]} elements. The state is damaged: restore another one."
        )
    numbers = iter(
        [
            states.add(n, json.dumps(kept[str(k)]), collections.deque()) if n else 0
            for k, n in enumerate(counts)
        ]
    )
    return found._replace(lanes=[nodes.with_own_numbers(tail.row_node, lane, numbers)])


def forget(tail: Tail, states: OwnStates, found: RowPosition) -> None:
    """Drop states that no position from this one on needs."""
    (lane,) = found.lanes
    if lane is not None:
        states.forget_before(nodes.own_numbers(tail.row_node, lane))
