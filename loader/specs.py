"""Specs: shapes, dtypes and names of a chain's elements, told without reading any.

A spec is the tree of an element with, per leaf, an `ArraySpec` for an array or a number, and a type
for anything else: `bytes`, `str`, `list` for what batches do not stack.

Invariant: where `element_spec` tells, every element that is present agrees with it; it reads no
records and calls no function but `output_spec`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from windrow.errors import ArgumentError, PlanError
from windrow.sources import ArraySpec, Specified
from windrow.transforms.columns import is_named_tuple
from windrow.transforms.functions import kind_of, name_of
from windrow.transforms.nodes import (
    ENDLESS,
    STREAM,
    BatchNode,
    FilterNode,
    IndexNode,
    MapNode,
    MapWithIndexNode,
    Node,
    RandomMapNode,
    RangeNode,
    RoutingNode,
    SourceNode,
    UnseenNode,
    ZipNode,
)
from windrow.transforms.streams import (
    StreamLimitNode,
    StreamMixNode,
    StreamRepeatNode,
    StreamWindowShuffleNode,
    ToStreamNode,
)

Spec = Any  # a tree; see the module's header

FIRST: Final = 64
"""Elements of a dataset that are looked at for one that is present."""

_INTEGER: Final = ArraySpec((), np.int64)
_NUMBERS: Final = (bool, int, float, complex)
_KINDS: Final[dict[str, type]] = {
    "Map": MapNode,
    "RandomMap": RandomMapNode,
    "MapWithIndex": MapWithIndexNode,
}
_READ_ONE: Final = "or read one element for it with ds.read_spec()"


@runtime_checkable
class TellsOutput(Protocol):
    """A function, or a transform, that tells what it makes of an element."""

    def output_spec(self, input_spec: Spec) -> Spec:
        """The spec of what it returns for an element of `input_spec`."""
        ...


@runtime_checkable
class TellsBatch(Protocol):
    """A `batch_fn` that tells what it makes of a list of elements."""

    def output_spec(self, input_spec: Spec, batch_size: int, drop_remainder: bool) -> Spec:
        """The spec of what it returns for elements of `input_spec`."""
        ...


# --- of a chain ----------------------------------------------------------------------------------


def element_spec(node: Node) -> Spec:
    """The spec of a node's elements.

    Raises:
        PlanError: If a source or a function does not tell, or datasets that come together differ.
        ArgumentError: If what one of them tells is no spec.
    """
    match node:
        case SourceNode():
            return _source_spec(node)
        case RangeNode():
            return _INTEGER
        case MapNode() | MapWithIndexNode() | RandomMapNode():
            return _made_spec(node)
        case BatchNode():
            return _batch_spec(node)
        case ZipNode():
            return tuple(element_spec(parent) for parent in node.parents)
        case RoutingNode() | StreamMixNode():
            return _merged_spec(node)
        case IndexNode() | FilterNode() | UnseenNode() | ToStreamNode():
            return element_spec(node.parent)
        case StreamWindowShuffleNode() | StreamRepeatNode() | StreamLimitNode():
            return element_spec(node.parent)
        case _:
            raise PlanError(f"element_spec: {node.label} has none")


def _source_spec(node: SourceNode) -> Spec:
    name = type(node.source).__name__
    told = node.source.spec if isinstance(node.source, Specified) else None
    if told is None:
        raise PlanError(
            f"element_spec: {name} does not tell what its records are before one is read;"
            " read one with ds.read_spec()"
        )
    return checked(told, f"{name}.spec")


def _made_spec(node: MapNode | MapWithIndexNode | RandomMapNode) -> Spec:
    name = name_of(node.function)
    teller = _teller(node)
    if teller is None:
        raise PlanError(
            f"element_spec: {node.label}({name}) does not tell what it makes; give it as an object"
            f" with a method output_spec(spec), {_READ_ONE}"
        )
    return checked(teller.output_spec(element_spec(node.parent)), f"output_spec of {name}")


def _teller(node: MapNode | MapWithIndexNode | RandomMapNode) -> TellsOutput | None:
    """The callable itself, or the transform whose method it is."""
    if isinstance(node.function, TellsOutput):
        return node.function
    owner = getattr(node.function, "__self__", None)
    if isinstance(node, _KINDS.get(kind_of(owner) or "", ())) and isinstance(owner, TellsOutput):
        return owner
    return None


def _batch_spec(node: BatchNode) -> Spec:
    if node.batch_fn is None:
        rows = _rows_of(node)
        return mapped(functools.partial(_stacked, rows), element_spec(node.parent))
    name = name_of(node.batch_fn)
    teller = node.batch_fn.func if isinstance(node.batch_fn, functools.partial) else node.batch_fn
    if not isinstance(teller, TellsBatch):
        raise PlanError(
            f"element_spec: batch_fn {name} does not tell what it makes; give it a method"
            f" output_spec(spec, batch_size, drop_remainder), {_READ_ONE}"
        )
    told = teller.output_spec(element_spec(node.parent), node.size, node.drop_remainder)
    return checked(told, f"output_spec of {name}")


def _rows_of(node: BatchNode) -> int | None:
    """Elements of every batch; None where the last one may have fewer."""
    length = node.parent.length
    if node.drop_remainder or node.size == 1:
        return node.size
    if length == STREAM:
        return node.size if _never_ends(node.parent) else None
    if length >= ENDLESS or length % node.size == 0:
        return node.size
    return length if length < node.size else None


def _never_ends(node: Node) -> bool:
    """Whether a stream has no last element."""
    match node:
        case ToStreamNode():
            return node.parent.length >= ENDLESS
        case StreamRepeatNode(times=None):
            return True
        case StreamLimitNode():
            return False
        case _:
            return bool(node.parents) and all(_never_ends(parent) for parent in node.parents)


def _stacked(rows: int | None, leaf: Any) -> Any:
    if not isinstance(leaf, ArraySpec) or leaf.dtype.hasobject:
        return list
    dims = None if leaf.dims is None else (None, *leaf.dims)
    return ArraySpec((rows, *leaf.shape), leaf.dtype, dims)


def _merged_spec(node: Node) -> Spec:
    """The spec that the elements of all parents agree with."""
    parents = [parent for parent in node.parents if parent.length] or list(node.parents)
    found = [element_spec(parent) for parent in parents]
    whole = found[0]
    for number, other in enumerate(found):
        merged = _merged(whole, other)
        if merged is None:
            raise PlanError(
                f"element_spec: the datasets of {node.label} have different elements\n"
                f"  dataset {node.parents.index(parents[0])}: {whole}\n"
                f"  dataset {node.parents.index(parents[number])}: {other}\n"
                f"Make their trees, ranks and dtypes alike in a map, {_READ_ONE}."
            )
        whole = merged
    return whole


def _merged(one: Spec, other: Spec) -> Spec | None:
    """The spec that elements of both agree with; None where there is none."""
    if isinstance(one, ArraySpec) and isinstance(other, ArraySpec):
        if one.dtype != other.dtype or len(one.shape) != len(other.shape):
            return None
        sizes = zip(one.shape, other.shape, strict=True)
        shape = tuple(a if a == b else None for a, b in sizes)
        return ArraySpec(shape, one.dtype, one.dims if one.dims == other.dims else None)
    mine, others = _children(one), _children(other)
    if mine is None or others is None:
        return one if one == other else None
    if type(one) is not type(other) or len(mine) != len(others):
        return None
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return None
        others = [other[key] for key in one]
    merged = [_merged(a, b) for a, b in zip(mine, others, strict=True)]
    return None if any(leaf is None for leaf in merged) else _rebuilt(one, merged)


# --- of an element -------------------------------------------------------------------------------


def no_element() -> PlanError:
    """That there is nothing to tell of."""
    return PlanError(
        f"read_spec: none of the first {FIRST} elements is there, as the dataset is empty or a"
        " filter leaves them out; give functions a method output_spec and use element_spec"
    )


def spec_of(value: Any) -> Spec:
    """The spec of one element, as it is.

    A list of nothing but texts, bytes and other objects is a leaf, as in batches of such.
    """
    children = _children(value)
    if children is None:
        return _leaf_of(value)
    found = [spec_of(child) for child in children]
    if isinstance(value, list) and all(isinstance(leaf, type) for leaf in found):
        return list
    return _rebuilt(value, found)


def _leaf_of(value: Any) -> Any:
    for kind in (bytes, str):
        if isinstance(value, kind):
            return kind
    if isinstance(value, _NUMBERS) and not isinstance(value, np.generic):
        if type(value) is int and not -(2**63) <= value < 2**63:
            return int
        return ArraySpec((), np.asarray(value).dtype)
    if isinstance(value, (np.ndarray, np.generic)):
        return ArraySpec(value.shape, value.dtype)
    if getattr(value, "__array__", None) is not None:  # an array of another library
        array = np.asarray(value)
        return ArraySpec(array.shape, array.dtype)
    return type(value)


# --- trees ---------------------------------------------------------------------------------------


def checked(told: Any, who: str) -> Spec:
    """What a source or a function told, with its leaves as `ArraySpec` and types.

    Raises:
        ArgumentError: If a leaf is neither a type nor has shape and dtype.
    """

    def leaf(value: Any) -> Any:
        if isinstance(value, (ArraySpec, type)):
            return value
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if shape is None or dtype is None:
            raise ArgumentError(
                f"element_spec: {who} must be a tree with a windrow.sources.ArraySpec, another"
                f" object with shape and dtype, or a type at each leaf, got {value!r}"
            )
        return ArraySpec(shape, dtype)

    return mapped(leaf, told)


def mapped(function: Callable[[Any], Any], spec: Spec) -> Spec:
    """`spec` with `function` applied to each leaf."""
    children = _children(spec)
    if children is None:
        return function(spec)
    return _rebuilt(spec, [mapped(function, child) for child in children])


def _children(tree: Any) -> list[Any] | None:
    if isinstance(tree, Mapping):
        return list(tree.values())
    return list(tree) if isinstance(tree, (list, tuple)) else None


def _rebuilt(tree: Any, children: Sequence[Any]) -> Any:
    if isinstance(tree, Mapping):
        return dict(zip(tree, children, strict=True))
    if is_named_tuple(tree):
        return type(tree)(*children)
    return list(children) if isinstance(tree, list) else tuple(children)
