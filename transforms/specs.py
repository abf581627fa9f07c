"""Specs: shapes, dtypes and names of a chain's elements, known without reading any.

A spec is the tree of an element with, per leaf, an `ArraySpec` for an array or a number, and a type
for anything else: `bytes`, `str`, `list` for what batches do not stack. `Node.spec` has the rule of
each node; here are the functions on specs that they share.

Invariant: nothing here reads a record or calls a function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias, overload, runtime_checkable

import numpy as np

from windrow.errors import ArgumentError, PlanError
from windrow.sources.base import ArraySpec
from windrow.transforms import pytrees
from windrow.transforms.columns import is_named_tuple

Spec: TypeAlias = Any  # a tree; see the module's header

FIRST: Final = 64
"""Elements of a dataset that are inspected to find one that is present."""

INTEGER: Final = ArraySpec((), np.int64)
READ_ONE: Final = "or read one element for it with ds.read_spec()"
_NUMBERS: Final = (bool, int, float, complex)


@runtime_checkable
class DeclaresOutput(Protocol):
    """A function, or a transform, that declares what it makes of an element."""

    def output_spec(self, input_spec: Spec) -> Spec:
        """The spec of what it returns for an element of `input_spec`."""
        ...


@runtime_checkable
class DeclaresBatch(Protocol):
    """A `batch_fn` that declares what it makes of a list of elements."""

    def output_spec(self, input_spec: Spec, batch_size: int, drop_remainder: bool) -> Spec:
        """The spec of what it returns for elements of `input_spec`."""
        ...


# --- of several elements ---------------------------------------------------------------------------


class Lazy(Sequence[Spec]):
    """Specs, each worked out on access, so that the user sees the first error."""

    def __init__(self, makers: Sequence[Callable[[], Spec]]) -> None:
        self._makers = makers

    def __len__(self) -> int:
        return len(self._makers)

    @overload
    def __getitem__(self, number: int) -> Spec: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[Spec]: ...

    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            return Lazy(self._makers[number])
        return self._makers[number]()


def stacked(rows: int | None, spec: Spec) -> Spec:
    """The spec of a batch of elements; `rows` is None where batches differ."""
    return mapped(functools.partial(_stacked, rows), spec)


def _stacked(rows: int | None, leaf: Any) -> Any:
    if not isinstance(leaf, ArraySpec) or leaf.dtype.hasobject:
        return list
    dims = None if leaf.dims is None else (None, *leaf.dims)
    return ArraySpec((rows, *leaf.shape), leaf.dtype, dims)


def merged(one: Spec, other: Spec) -> Spec | None:
    """Return the spec that covers elements of both; None if no spec does."""
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
    both = [merged(a, b) for a, b in zip(mine, others, strict=True)]
    return None if any(leaf is None for leaf in both) else _rebuilt(one, both)


# --- of an element -------------------------------------------------------------------------------


def no_element() -> PlanError:
    """Make the error for a dataset that has no element to inspect."""
    return PlanError(
        f"read_spec: none of the first {FIRST} elements is there, as the dataset is empty or a"
        " filter leaves them out; give functions a method output_spec and use element_spec"
    )


def spec_of(value: Any) -> Spec:
    """The spec of one element, as it is.

    A list that holds only strings, bytes and other objects is a leaf, as in batches of them.
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


def checked(declared: Any, who: str) -> Spec:
    """Return a declared spec with its leaves as `ArraySpec` and types.

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

    return mapped(leaf, declared)


def mapped(function: Callable[[Any], Any], spec: Spec) -> Spec:
    """`spec` with `function` applied to each leaf."""
    children = _children(spec)
    if children is None:
        return function(spec)
    return _rebuilt(spec, [mapped(function, child) for child in children])


def _children(tree: Any) -> list[Any] | None:
    if isinstance(tree, Mapping):
        return list(tree.values())
    if isinstance(tree, (list, tuple)):
        return list(tree)
    opened = None if isinstance(tree, ArraySpec) else pytrees.opened(tree)
    return None if opened is None else list(opened)


def _rebuilt(tree: Any, children: Sequence[Any]) -> Any:
    if isinstance(tree, Mapping):
        return dict(zip(tree, children, strict=True))
    if is_named_tuple(tree):
        return type(tree)(*children)
    opened = pytrees.opened(tree)
    if opened is not None:
        return opened.like(children).made()
    return list(children) if isinstance(tree, list) else tuple(children)
