"""Batches, columns and rows of trees, as docs/chain.md has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from windrow.errors import ElementError


class UnsureError(Exception):
    """The pages leave open what happens, or only the product's engine decides it."""


def is_tree(value: Any) -> bool:
    return isinstance(value, (dict, tuple, list))


def is_branch(value: Any) -> bool:
    """Whether a batch has its columns in here: a list is a column."""
    return isinstance(value, (dict, tuple))


def joined(
    values: Sequence[Any],
    leaf: Callable[[Sequence[Any]], Any],
    is_inner: Callable[[Any], bool] = is_tree,
) -> Any:
    """One tree of several, with `leaf` of the values at each place where it does not go on."""
    first = values[0]
    kinds = [(type(v), list(v) if isinstance(v, dict) else len(v)) for v in values if is_inner(v)]
    if not is_inner(first) or kinds != kinds[:1] * len(values):
        return leaf(values)
    if not isinstance(first, dict):
        return type(first)(joined(places, leaf, is_inner) for places in zip(*values, strict=True))
    return {key: joined([v[key] for v in values], leaf, is_inner) for key in first}


def stacked(leaves: Sequence[Any]) -> Any:
    if any(map(is_tree, leaves)):
        raise ElementError("trees differ")
    kinds = {type(leaf) for leaf in leaves}
    if type(None) in kinds and len(kinds) > 1:
        raise UnsureError("None and others")
    if kinds & {str, bytes, type(None)}:
        if kinds - {str, bytes, type(None)}:
            raise ElementError("strings and numbers")
        return list(leaves)
    if len({np.shape(leaf) for leaf in leaves}) > 1:
        raise ElementError("shapes differ")
    return np.stack(leaves)


def column_of_one(value: Any) -> Any:
    """One element as columns. What comes with it says what a column of Python's numbers is."""

    def leaf(leaves: Sequence[Any]) -> Any:
        if isinstance(leaves[0], (int, list)):
            raise UnsureError("columns of Python's numbers, and of lists")
        return stacked(leaves)

    return joined([value], leaf, is_branch)


def empty_like(value: Any) -> Any:
    """An element of padding: zeros and empty strings."""

    def leaf(x: Sequence[Any]) -> Any:
        return type(x[0])() if isinstance(x[0], (str, bytes)) else np.zeros_like(x[0])

    return joined([value], leaf)


def columns_in(batch: Any) -> Iterator[Any]:
    inner = batch.values() if isinstance(batch, dict) else batch
    yield from (c for x in inner for c in columns_in(x)) if is_branch(batch) else [batch]


def rows_of(batch: Any) -> int | None:
    """The rows of a batch; None for what is not one."""
    columns = list(columns_in(batch))
    if any(
        isinstance(c, list) and not all(isinstance(x, (str, bytes)) for x in c) for c in columns
    ):
        raise UnsureError("a list that is no column of strings")
    found = {len(c) if isinstance(c, list) or np.ndim(c) else None for c in columns}
    return found.pop() if len(found) == 1 else None


def part_of(batch: Any, part: slice | int) -> Any:
    """Some rows of a batch, or one."""
    return joined([batch], lambda columns: columns[0][part], is_branch)


def put_together(parts: Sequence[Any], is_inner: Callable[[Any], bool] = is_branch) -> Any:
    """Batches end to end."""

    def ends(columns: Sequence[Any]) -> Any:
        if any(map(is_branch, columns)):
            raise ElementError("trees differ")
        if len({type(column) for column in columns if len(column)}) > 1:
            raise UnsureError("strings and others")
        if isinstance(columns[0], list):
            return [x for column in columns for x in column]
        if len({column.shape[1:] for column in columns}) > 1:
            raise ElementError("rows differ in shape")
        return np.concatenate(columns)

    return joined(parts, ends, is_inner)
