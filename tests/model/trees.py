"""Columns, batches and rows of trees, as docs/chain.md has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from windrow import transforms
from windrow.errors import ElementError


class UnsureError(Exception):
    """The pages leave open what happens, or only the product's engine decides it."""


def is_tree(value: Any) -> bool:
    return isinstance(value, (dict, tuple, list))


def joined(values: Sequence[Any], leaf: Callable[[Sequence[Any]], Any], *, columns: bool) -> Any:
    """One tree of several, with `leaf` of the leaves at each place."""
    first = values[0]
    if columns and len({len(value) for value in values if isinstance(value, list)}) > 1:
        raise UnsureError("columns of lists of different lengths")
    if not any(is_tree(value) for value in values):
        return leaf(values)
    keys = list(first) if isinstance(first, dict) else None
    if not is_tree(first) or any(
        type(v) is not type(first) or len(v) != len(first) or (keys and list(v) != keys)
        for v in values
    ):
        if columns:  # where trees differ, there is a list of them
            return list(values)
        raise ElementError("trees differ")
    if keys is not None:
        return {k: joined([v[k] for v in values], leaf, columns=columns) for k in first}
    parts = [joined(places, leaf, columns=columns) for places in zip(*values, strict=True)]
    if isinstance(first, tuple):
        return tuple(parts)
    return transforms.ListColumns(parts) if columns else parts


def _stacked(leaves: Sequence[Any], *, strict: bool) -> Any:
    if any(leaf is None for leaf in leaves):
        if any(leaf is not None for leaf in leaves):
            raise UnsureError("None among values")
        return list(leaves)
    strings = [leaf for leaf in leaves if isinstance(leaf, (str, bytes))]
    if strings:
        if strict and len({type(leaf) for leaf in leaves}) > 1:
            raise UnsureError("strings and others in a batch")
        return list(leaves)
    arrays = [np.asarray(leaf) for leaf in leaves]
    if len({array.shape for array in arrays}) > 1:
        if strict:
            raise ElementError("shapes differ")
        return list(leaves)
    if not strict and len({isinstance(leaf, (int, float)) for leaf in leaves}) > 1:
        raise UnsureError("numbers of Python and of NumPy")
    if not strict and len({array.dtype for array in arrays}) > 1:
        return list(leaves)
    return np.stack(arrays)


def batch_of(values: Sequence[Any]) -> Any:
    """Elements stacked on a new first axis."""
    return joined(values, lambda leaves: _stacked(leaves, strict=True), columns=False)


def columns_of(values: Sequence[Any]) -> Any:
    """Elements as columns: an array where all agree, else a list."""
    return joined(values, lambda leaves: _stacked(leaves, strict=False), columns=True)


def padded_to(values: Sequence[Any], length: int, fill: float) -> list[Any]:
    """Each leaf with an axis, filled up to a length."""

    def leaf(leaves: Sequence[Any]) -> Any:
        (array,) = leaves
        if not isinstance(array, np.ndarray) or not array.ndim:
            return array
        if len(array) > length:
            raise ElementError("longer than pad_to")
        width = [(0, length - len(array)), *[(0, 0)] * (array.ndim - 1)]
        return np.pad(array, width, constant_values=fill)

    return [joined([value], leaf, columns=False) for value in values]


def empty_like(value: Any) -> Any:
    """An element of padding: zeros and empty strings."""

    def leaf(leaves: Sequence[Any]) -> Any:
        (x,) = leaves
        if isinstance(x, (str, bytes)):
            return type(x)()
        return np.zeros_like(x)

    return joined([value], leaf, columns=False)


def rows_of(batch: Any) -> int | None:
    """The rows of a batch; None for what is not one."""
    found: set[int | None] = set()

    def look(value: Any) -> None:
        if isinstance(value, dict):
            for each in value.values():
                look(each)
        elif isinstance(value, tuple):
            for each in value:
                look(each)
        elif isinstance(value, list) and not all(isinstance(x, (str, bytes)) for x in value):
            raise UnsureError("a list that is no column of strings")
        elif isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim):
            found.add(len(value))
        else:
            found.add(None)

    look(batch)
    return found.pop() if len(found) == 1 else None


def part_of(batch: Any, part: slice | int) -> Any:
    """Some rows of a batch, or one."""
    if isinstance(batch, dict):
        return {key: part_of(value, part) for key, value in batch.items()}
    if isinstance(batch, transforms.ListColumns):
        return [part_of(value, part) for value in batch]
    if isinstance(batch, tuple):
        return tuple(part_of(value, part) for value in batch)
    return batch[part]


def put_together(parts: Sequence[Any], *, lists_are_trees: bool = False) -> Any:
    """Batches end to end."""

    def leaf(leaves: Sequence[Any]) -> Any:
        if isinstance(leaves[0], list):
            return [x for each in leaves for x in each]
        if len({leaf.shape[1:] for leaf in leaves}) > 1:
            raise ElementError("rows differ in shape")
        return np.concatenate(leaves)

    def walk(values: Sequence[Any]) -> Any:
        if {type(v) for v in values} == {list, np.ndarray}:  # numbers among strings
            values = [v if isinstance(v, list) else v.tolist() for v in values]
        first = values[0]
        if any(type(v) is not type(first) for v in values):
            raise ElementError("trees differ")
        if isinstance(first, dict):
            if any(list(v) != list(first) for v in values):
                raise ElementError("keys differ")
            return {k: walk([v[k] for v in values]) for k in first}
        if isinstance(first, tuple):
            return tuple(walk(places) for places in zip(*values, strict=True))
        if lists_are_trees and isinstance(first, list) and any(is_tree(x) for x in first):
            some = [v for v in values if v]  # a batch without rows has no lists
            return [walk(places) for places in zip(*some, strict=True)]
        return leaf(values)

    return walk(parts)


def tokens_of(value: Any) -> int:
    """The length of the first axis of the first leaf."""
    while isinstance(value, (dict, tuple, list)):
        value = next(iter(value.values() if isinstance(value, dict) else value))
    if not isinstance(value, (str, bytes)) and not np.ndim(value):
        raise ElementError("mix: no tokens")
    return len(value)
