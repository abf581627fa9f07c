"""Stacks elements into columns to send them: many small arrays cost more than one large one.

Contract:
1. `unstacked(stacked(elements, buffer))` are the elements, with equal types, each in containers of
   its own; their arrays are views of the columns.
2. `as_tree` returns columns for the nodes of a chain only if these mean exactly the same.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, assert_never

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from windrow.transforms.columns import ListColumns, Tree, agree
from windrow.workers.messages import MessageBuffer, address_of

# Elements nested deeper than this are pickled as they are.
_MOST_DEPTH = 8
# Rows of at least this size that already lie in one array stay there.
_LARGE_ROW_BYTES = 16 << 10
# Types of leaves that a batch stacks alike from a list column and from elements.
_PLAIN = frozenset({bool, int, float, complex, str, bytes, np.ndarray, type(None)})


class _Arrays(NamedTuple):
    """One array per element, all in one array with a leading axis of elements."""

    column: npt.NDArray[Any]


class _Scalars(NamedTuple):
    """One NumPy scalar per element."""

    column: npt.NDArray[Any]


class _Objects(NamedTuple):
    """Anything else."""

    values: list[Any]


class _Dicts(NamedTuple):
    """One dict per element, all with the same keys in the same order."""

    keys: tuple[Any, ...]
    children: list[_Column]


class _Sequences(NamedTuple):
    """One list, tuple or NamedTuple per element, all of one type and length."""

    kind: type
    children: list[_Column]


_Column = _Arrays | _Scalars | _Objects | _Dicts | _Sequences


class _Stacked(NamedTuple):
    rows: int
    column: _Column


def stacked(elements: list[Any], buffer: MessageBuffer) -> Any:
    """Turn elements into columns, which are faster to send; `unstacked` reverses it.

    If all elements have arrays of one dtype and shape, or NumPy scalars of one type, these become one
    array of the buffer. Values without arrays stay a list of the same objects. Large arrays that are
    consecutive rows of one array, and the array of a single element, are not copied.
    """
    return _Stacked(len(elements), _folded(elements, buffer, 0))


def unstacked(found: Any) -> list[Any]:
    """The elements that `stacked` was given; their arrays are views of the columns."""
    return _unfolded(found.column, found.rows)


def as_tree(found: Any) -> Tree | None:
    """Return the columns in the form of a chain's nodes; None if single elements are needed."""
    with contextlib.suppress(_NoTreeError):
        return None if isinstance(found.column, _Objects) else _tree(found.column)
    return None


class _NoTreeError(Exception):
    pass


def _tree(column: _Column) -> Tree:
    match column:
        case _Objects(values):
            kinds = set(map(type, values))
            if not all(kind in _PLAIN or issubclass(kind, np.generic) for kind in kinds):
                raise _NoTreeError  # containers of other shapes each, or unknown objects
            return values
        case _Scalars(array):
            return array
        case _Arrays(array):
            if array.ndim == 1:
                raise _NoTreeError  # its rows are arrays, but rows of such a column are scalars
            return array
        case _Dicts(keys, children):
            return dict(zip(keys, map(_tree, children), strict=True))
        case _Sequences(kind, children):
            trees = tuple(map(_tree, children))
            if kind is tuple:
                return trees
            return ListColumns(trees) if kind is list else _maker(kind)(trees)
    assert_never(column)


def _folded(values: list[Any], buffer: MessageBuffer, depth: int) -> _Column:
    # Whole passes in C over types, shapes and keys: a Python loop costs as much as the copy.
    kinds = set(map(type, values))
    if len(kinds) != 1 or depth > _MOST_DEPTH:
        return _Objects(values)
    (kind,) = kinds
    first = values[0]
    if kind is np.ndarray:
        return _Arrays(_column_of(values, buffer)) if agree(values) else _Objects(values)
    if issubclass(kind, np.generic):
        return _folded_scalars(values, buffer)
    if not _holds_arrays(first, depth):
        return _Objects(values)
    if kind is dict:
        if not _have_keys(values, keys := tuple(first)):
            return _Objects(values)
        children = [[value[key] for value in values] for key in keys]
        return _Dicts(keys, [_folded(child, buffer, depth + 1) for child in children])
    if list(map(len, values)).count(len(first)) != len(values):
        return _Objects(values)
    rows = map(list, zip(*values, strict=True))
    return _Sequences(kind, [_folded(child, buffer, depth + 1) for child in rows])


def _unfolded(column: _Column, count: int) -> list[Any]:
    match column:
        case _Objects(values):
            return values
        case _Scalars(array):
            return list(array)
        case _Arrays(array):
            # Rows of a one-dimensional column would be scalars.
            return list(array) if array.ndim > 1 else [array[i, ...] for i in range(count)]
        case _Dicts(keys, children):
            rows = zip(*[_unfolded(child, count) for child in children], strict=True)
            return [dict(zip(keys, row, strict=True)) for row in rows]
        case _Sequences(kind, children):
            rows = zip(*[_unfolded(child, count) for child in children], strict=True)
            if kind is tuple:
                return list(rows)
            return list(map(list, rows)) if kind is list else list(map(_maker(kind), rows))
    assert_never(column)


def _maker(kind: Any) -> Callable[[tuple[Any, ...]], Any]:
    make: Callable[[tuple[Any, ...]], Any] = kind._make
    return make


def _holds_arrays(value: Any, depth: int) -> bool:
    """Whether a container of an element holds an array or a NumPy scalar, at any depth."""
    kind = type(value)
    if kind is dict:
        children = list(value.values())
    elif kind is list or kind is tuple or _is_named_tuple(kind):
        children = list(value)
    else:
        return False
    kinds = set(map(type, children))
    if any(issubclass(kind, (np.ndarray, np.generic)) for kind in kinds):
        return True
    if depth >= _MOST_DEPTH or not any(issubclass(kind, (dict, list, tuple)) for kind in kinds):
        return False
    return any(_holds_arrays(child, depth + 1) for child in children)


def _is_named_tuple(kind: type) -> bool:
    """Whether a type is a NamedTuple, and not derived from one with attributes of its own."""
    return kind.__base__ is tuple and "_fields" in kind.__dict__ and not kind.__dictoffset__


def _have_keys(values: list[dict[Any, Any]], keys: tuple[Any, ...]) -> bool:
    """Whether all have these keys in this order, of one type that makes equal ones the same."""
    kinds = set(map(type, itertools.chain.from_iterable(values)))
    if len(kinds) != 1 or not kinds <= {str, int, bytes}:
        return False
    return list(map(tuple, values)).count(keys) == len(values)


def _column_of(rows: list[npt.NDArray[Any]], buffer: MessageBuffer) -> npt.NDArray[Any]:
    first = rows[0]
    if len(rows) == 1:
        return first.reshape(1, *first.shape)
    if first.nbytes >= _LARGE_ROW_BYTES and _are_rows_of_one(rows):
        return as_strided(first, (len(rows), *first.shape), (first.nbytes, *first.strides))
    out = buffer.empty((len(rows), *first.shape), first.dtype)
    if first.ndim:
        # One call in C; numpy.stack makes a Python-level view per row first.
        joined = out.reshape(len(rows) * first.shape[0], *first.shape[1:])
        np.concatenate(rows, out=joined)
    else:
        for i, row in enumerate(rows):
            out[i] = row
    return out


def _are_rows_of_one(rows: list[npt.NDArray[Any]]) -> bool:
    """Whether arrays of one shape and dtype follow one another in the memory of one array."""
    first = rows[0]
    base = first.base
    if base is None or base is not rows[-1].base or not first.flags.c_contiguous:
        return False
    start, size = address_of(first), first.nbytes
    return all(
        row.base is base and row.strides == first.strides and address_of(row) == start + i * size
        for i, row in enumerate(rows)
    )


def _folded_scalars(values: list[Any], buffer: MessageBuffer) -> _Column:
    # Other scalars each have their own unit or length, or a type that does not follow from the dtype.
    kind = values[0].dtype
    if kind.kind not in "biufc" or kind.type is not type(values[0]):
        return _Objects(values)
    column = buffer.empty((len(values),), kind)
    column[:] = values
    return _Scalars(column)
