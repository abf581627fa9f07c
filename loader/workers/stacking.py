"""Stacks elements into columns to send them: many small arrays cost more than one large one.

Contract: `columns.split(stacked(elements, buffer), len(elements))` are the elements, with equal types,
each in containers of its own; their arrays are views of the columns.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.transforms import columns
from windrow.transforms.columns import Column, ListColumns, Tree
from windrow.workers.messages import MessageBuffer

# Elements nested deeper than this are pickled as they are.
_MOST_DEPTH = 8
# Types of leaves that a batch stacks alike from a list column and from elements.
_PLAIN = frozenset({bool, int, float, complex, str, bytes, np.ndarray, type(None)})


def stacked(elements: list[Any], buffer: MessageBuffer) -> Tree:
    """Turn elements into columns, which are faster to send; `columns.split` reverses it.

    If all elements have arrays of one dtype and shape, or NumPy scalars of one type, these become one
    array of the buffer. Values without arrays stay a list of the same objects.
    """
    return _folded(elements, buffer, 0)


def is_exact(tree: Tree) -> bool:
    """Return whether these columns mean exactly the same for the nodes of a chain as the elements."""
    return type(tree) is not list and all(map(_is_plain, columns.leaves_of(tree)))


def _is_plain(column: Column) -> bool:
    """Return whether a column has no containers of other shapes each, and no unknown objects."""
    if not isinstance(column, list):
        return True
    kinds = set(map(type, column))
    return all(kind in _PLAIN or issubclass(kind, np.generic) for kind in kinds)


def _folded(values: list[Any], buffer: MessageBuffer, depth: int) -> Tree:
    # Whole passes in C over types, shapes and keys: a Python loop costs as much as the copy.
    kinds = set(map(type, values))
    if len(kinds) != 1 or depth > _MOST_DEPTH:
        return values
    kind: Any = kinds.pop()
    first = values[0]
    if kind is np.ndarray:
        # Rows of a column without further axes would be scalars.
        return _joined(values, buffer) if first.ndim and columns.agree(values) else values
    if issubclass(kind, np.generic):
        return _joined_scalars(values, buffer)
    if not _holds_arrays(first, depth):
        return values
    if kind is dict:
        if not _have_keys(values, tuple(first)):
            return values
        return {key: _folded([v[key] for v in values], buffer, depth + 1) for key in first}
    if list(map(len, values)).count(len(first)) != len(values):
        return values
    children = [_folded(list(rows), buffer, depth + 1) for rows in zip(*values, strict=True)]
    if kind is tuple:
        return tuple(children)
    return ListColumns(children) if kind is list else kind._make(children)


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


def _joined(rows: list[npt.NDArray[Any]], buffer: MessageBuffer) -> npt.NDArray[Any]:
    first = rows[0]
    if len(rows) == 1:
        return first.reshape(1, *first.shape)
    out = buffer.empty((len(rows), *first.shape), first.dtype)
    # One call in C; numpy.stack makes a Python-level view per row first.
    np.concatenate(rows, out=out.reshape(len(rows) * first.shape[0], *first.shape[1:]))
    return out


def _joined_scalars(values: list[Any], buffer: MessageBuffer) -> Column:
    # Other scalars each have their own unit or length, or a type that does not follow from the dtype.
    kind = values[0].dtype
    if kind.kind not in "biufc" or kind.type is not type(values[0]):
        return values
    column = buffer.empty((len(values),), kind)
    column[:] = values
    return column
