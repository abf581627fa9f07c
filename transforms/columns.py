"""Columns: many elements together, as the tree of one element with one column per leaf.

A column is an array with a leading axis of rows where all rows agree in shape and dtype, else a
list with one entry per row, or a `RaggedColumn`, which means the same as the list of its rows. bytes
and str are always lists: NumPy's fixed-width strings drop
trailing NULs. Trees are dict (in insertion order), list, tuple and NamedTuple; all else is a leaf. In batches
objects that JAX knows as trees are trees too (`transforms.pytrees`); elsewhere they are leaves.

Inside columns a plain list is a column of rows, so a list that is a container of the element's tree
is a `ListColumns` there. Invariant: `split(columns_of(elements), len(elements))` equals `elements`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from windrow.core.text import counted
from windrow.errors import ElementError
from windrow.sources.base import IntArray
from windrow.sources.ragged_column import RaggedColumn
from windrow.transforms import pytrees
from windrow.transforms.pytrees import Pytree

Tree = Any
Column = Any  # an array, a list or a RaggedColumn

# Rows up to this size are joined faster as bytes than by NumPy.
_SMALL_BYTES = 64 << 10
_NUMBERS = (bool, int, float, complex)
_shape = operator.attrgetter("shape")
_dtype = operator.attrgetter("dtype")


class ListColumns(list[Any]):
    """A list of the element's tree, in columns, where a plain list would be a column of rows."""


class PythonInts(np.ndarray[Any, np.dtype[np.int64]]):
    """An int64 column whose rows are Python ints, as `MapDataset.range` yields them."""


class SizedColumn(Sequence[Any]):
    """A column without data, with a number of rows and bytes per row: what a dry run passes on."""

    __slots__ = ("row_bytes", "rows")

    def __init__(self, rows: int, row_bytes: float) -> None:
        """Take no memory for the rows."""
        self.rows, self.row_bytes = rows, row_bytes

    def __len__(self) -> int:
        return self.rows

    @property
    def nbytes(self) -> int:
        """Bytes that the rows would take."""
        return round(self.rows * self.row_bytes)

    def __getitem__(self, at: Any) -> SizedColumn:
        if isinstance(at, slice):
            return SizedColumn(len(range(*at.indices(self.rows))), self.row_bytes)
        return SizedColumn(np.size(at), self.row_bytes)

    def __iter__(self) -> Iterator[SizedColumn]:
        return itertools.repeat(SizedColumn(1, self.row_bytes), self.rows)


def is_named_tuple(value: Any) -> TypeGuard[tuple[Any, ...]]:
    """Whether `value` is a tuple with named fields."""
    return isinstance(value, tuple) and getattr(type(value), "_fields", None) is not None


def rebuilt(tree: Tree, children: Sequence[Any]) -> Tree:
    """Return the container `tree` with other children, in the order of `children_of`."""
    if isinstance(tree, dict):
        return dict(zip(tree, children, strict=True))
    if is_named_tuple(tree):
        return type(tree)(*children)
    if isinstance(tree, Pytree):
        return tree.like(children)
    return ListColumns(children) if isinstance(tree, list) else tuple(children)


def children_of(tree: Tree) -> list[Any] | None:
    """Children of a container of columns in order; None where `tree` is a column."""
    if isinstance(tree, dict):
        return list(tree.values())
    if isinstance(tree, (tuple, ListColumns)):
        return list(tree)
    return None


def map_columns(function: Callable[[Column], Any], tree: Tree) -> Tree:
    """`tree` with `function` applied to each column."""
    children = children_of(tree)
    if children is None:
        return function(tree)
    return rebuilt(tree, [map_columns(function, child) for child in children])


def leaves_of(tree: Tree) -> list[Column]:
    """The columns of `tree`, in order."""
    children = children_of(tree)
    if children is None:
        return [tree]
    return [leaf for child in children for leaf in leaves_of(child)]


# --- elements to columns -------------------------------------------------------------------------


def columns_of(elements: list[Any]) -> Tree:
    """Return the columns of `elements`; where their trees differ, a list of their subtrees."""
    if not elements:
        return []
    return _gathered(elements, column_of)


def batch_of(elements: list[Any]) -> Tree:
    """One batch: `elements` stacked leaf by leaf on a new leading axis; bytes and str as lists.

    Leaves that differ in dtype are promoted as `numpy.stack` does.

    Raises:
        ElementError: If the trees differ, or a leaf differs in shape.
    """
    return element_of(_gathered(elements, _stacked, strict=True))


def listed(elements: list[Any], *, strict: bool = True) -> Tree:
    """The leaves of `elements` in lists, not stacked yet.

    Raises:
        ElementError: If the trees differ and it is `strict`; otherwise subtrees that differ are in
            a list.
    """
    return _gathered(elements, list, strict=strict)


def stacked(column: Column) -> Column:
    """A leaf of a batch: rows stacked to an array; strings and other objects as a list.

    Raises:
        ElementError: If rows differ in shape.
    """
    return _stacked(column) if isinstance(column, list) and column else _batch_column(column)


def columns_in(batch: Any) -> Tree:
    """The columns of a batch: the inverse of `element_of`.

    A list is a column, unless it holds arrays or containers of columns: a number or a string in one
    says that its items are elements. What a worker has not stacked stays as it is.
    """
    if isinstance(batch, dict):
        return {key: columns_in(child) for key, child in batch.items()}
    if isinstance(batch, tuple):
        return rebuilt(batch, [columns_in(child) for child in batch])
    if isinstance(batch, list):
        kinds = (dict, list, tuple, np.ndarray, pytrees.Unstacked)
        is_tree = any(isinstance(each, kinds) or _is_foreign_array(each) for each in batch)
        is_tree = is_tree or any(pytrees.opened(each) is not None for each in batch[:1])
        children = ListColumns([columns_in(child) for child in batch]) if is_tree else batch
        return children if all(map(_may_be_column, leaves_of(children))) else batch
    tree = pytrees.opened(batch)
    return batch if tree is None else tree.like([columns_in(child) for child in tree])


def _may_be_column(leaf: Any) -> bool:
    kinds = (list, np.ndarray, SizedColumn, pytrees.Unstacked)
    return isinstance(leaf, kinds) or _is_foreign_array(leaf)


def with_pytrees(tree: Tree) -> Tree:
    """Columns, with a list for each leaf where objects are trees that JAX knows.

    Raises:
        ElementError: If the trees differ.
    """

    def opened(column: Column) -> Any:
        if not isinstance(column, list) or not column or _pytrees(column) is None:
            return column
        return _gathered(column, list, strict=True)

    return map_columns(opened, tree)


def as_array(value: Any) -> npt.NDArray[Any] | None:
    """An array of any library, or a number, as a NumPy array; None for other values."""
    if isinstance(value, (np.ndarray, np.generic, *_NUMBERS)) or _is_foreign_array(value):
        return np.asarray(value)
    return None


def _gathered(
    values: list[Any], leaf: Callable[[list[Any]], Column], *, strict: bool = False
) -> Tree:
    first, rows, kinds = values[0], len(values), set(map(type, values))
    if isinstance(first, dict):
        same = all(issubclass(kind, dict) for kind in kinds)
        if same and list(map(dict.keys, values)).count(first.keys()) == rows:
            return {k: _gathered([v[k] for v in values], leaf, strict=strict) for k in first}
    elif isinstance(first, (list, tuple)):
        if len(kinds) == 1 and list(map(len, values)).count(len(first)) == rows:
            children = [
                _gathered([v[i] for v in values], leaf, strict=strict) for i in range(len(first))
            ]
            return rebuilt(first, children)
    elif not strict or not any(issubclass(kind, (dict, list, tuple)) for kind in kinds):
        trees = _pytrees(values) if strict else None
        if trees is None:
            return leaf(values)
        if all(tree.kind == trees[0].kind for tree in trees):
            children = [
                _gathered(list(rows), leaf, strict=True) for rows in zip(*trees, strict=True)
            ]
            return trees[0].like(children)
    if strict:
        raise ElementError(_differ(values))
    return list(values)


def _pytrees(values: list[Any]) -> list[Pytree] | None:
    """The values as trees that JAX knows; None if none of them is one.

    Raises:
        ElementError: If some of them are trees, and others are not.
    """
    if len(set(map(type, values))) == 1 and pytrees.opened(values[0]) is None:
        return None
    trees = [tree for tree in map(pytrees.opened, values) if tree is not None]
    if 0 < len(trees) < len(values):
        raise ElementError(_differ(values))
    return trees or None


def _differ(values: list[Any]) -> str:
    shapes = [spec(v) for v in values]
    outlines = [_outline(value) for value in values]
    other = next((i for i, each in enumerate(outlines) if each != outlines[0]), 1)
    return (
        "batch: elements differ in structure\n"
        f"  element 0: {shapes[0]}\n"
        f"  element {other}: {shapes[other]}\n"
        "Make them alike in a map before the batch, or pass batch_fn."
    )


def _outline(value: Any) -> Any:
    if isinstance(value, dict):
        return frozenset((k, _outline(v)) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return (type(value), tuple(_outline(v) for v in value))
    tree = pytrees.opened(value)
    return "*" if tree is None else (str(tree.kind), tuple(_outline(v) for v in tree))


def spec(value: Any) -> str:
    """Describe `value` briefly: its tree with shapes and dtypes for arrays, and types for the rest."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {spec(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(spec(v) for v in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    if isinstance(value, (np.ndarray, np.generic)):
        return f"{value.dtype}{list(value.shape)}"
    tree = pytrees.opened(value)
    if tree is None:
        return type(value).__name__
    inside = ", ".join(f"{key}={spec(v)}" for key, v in zip(tree.keys, tree, strict=True))
    return f"{type(value).__name__}({inside})"


def column_of(rows: list[Any]) -> Column:
    """Stack `rows` to an array if all agree in shape and dtype, else return a list."""
    if isinstance(rows[0], (bytes, str)):
        return list(rows)
    if type(rows[0]) is np.ndarray and set(map(type, rows)) == {np.ndarray}:
        return _joined_rows(rows) if agree(rows) else list(rows)
    if any(map(_is_foreign_array, {type(row): row for row in rows}.values())):
        rows = [np.asarray(row) if _is_foreign_array(row) else row for row in rows]
    # Whole passes in C over types, shapes and dtypes: a Python loop costs as much as the copy.
    kinds = set(map(type, rows))
    if all(issubclass(kind, (np.ndarray, np.generic)) for kind in kinds):
        return _joined_rows(rows) if agree(rows) else list(rows)
    if len(kinds) == 1 and issubclass(kinds.pop(), _NUMBERS):
        return _numbers(rows)
    return list(rows)


def agree(rows: list[Any]) -> bool:
    """Whether arrays agree in shape and dtype, and hold no objects."""
    first = rows[0]
    return (
        not first.dtype.hasobject
        and list(map(_shape, rows)).count(first.shape) == len(rows)
        and list(map(_dtype, rows)).count(first.dtype) == len(rows)
    )


def _is_foreign_array(value: Any) -> bool:
    """Whether `value` is an array of another library (JAX, torch, PIL) that NumPy can view."""
    if isinstance(value, (np.ndarray, np.generic, bytes, str, *_NUMBERS)):
        return False
    return getattr(value, "__array__", None) is not None or (
        getattr(value, "__array_interface__", None) is not None
    )


def _numbers(rows: list[Any]) -> Column:
    if type(rows[0]) is not int:
        return np.array(rows)
    try:
        return np.array(rows, np.int64)
    except OverflowError:
        return list(rows)


def _joined_rows(rows: list[Any]) -> npt.NDArray[Any]:
    first = rows[0]
    if first.ndim == 0:
        return np.array(rows, first.dtype)
    # One call in C; numpy.stack makes a Python-level view per row first.
    shape = (len(rows), *first.shape)
    if first.dtype.kind in "biufc" and 0 < first.nbytes <= _SMALL_BYTES:
        # Half the time of NumPy for small rows; the memory is new and writable.
        with contextlib.suppress(TypeError, BufferError, ValueError):  # not in one piece; bfloat16
            return np.frombuffer(bytearray().join(rows), first.dtype).reshape(shape)
    # The dtype is named, since NumPy would change the byte order of several rows to its own.
    return np.concatenate(rows, dtype=first.dtype).reshape(shape)


def _stacked(rows: list[Any]) -> Column:
    column = column_of(rows)
    return _batch_column(column) if isinstance(column, list) else column


def _batch_column(column: Column) -> Column:
    """Make a leaf of a batch from a column: numbers are stacked; shapes that differ are an error."""
    if isinstance(column, np.ndarray):
        return np.asarray(column)
    if isinstance(column, SizedColumn):
        return column
    if isinstance(column, RaggedColumn):
        rows = column.as_array()
        if rows is not None:
            return rows
        column = list(column)
    if not all(isinstance(r, (np.ndarray, np.generic, *_NUMBERS)) for r in column):
        if _pytrees(column) is None:
            return pytrees.unstacked(column)
        return _gathered(column, _stacked, strict=True)
    shapes = [np.shape(r) for r in column]
    if any(shape != shapes[0] for shape in shapes):
        other = next(i for i, shape in enumerate(shapes) if shape != shapes[0])
        raise ElementError(
            f"batch: element 0 has shape {shapes[0]} and element {other} has shape"
            f" {shapes[other]}; arrays in a batch must agree in shape: pad them in a map before"
            " the batch, or pass batch_fn"
        )
    common_dtype((np.asarray(r).dtype for r in column), "batch: elements")
    stacked = np.stack(column)
    return column if stacked.dtype.hasobject else stacked


def common_dtype(dtypes: Iterable[np.dtype[Any]], what: str) -> np.dtype[Any]:
    """The dtype that NumPy gives arrays of several dtypes in one array.

    Args:
        dtypes: The dtypes.
        what: Has them, for the message.

    Raises:
        ElementError: If they have no dtype together, or numbers would become strings, or integers alone would become
            floating-point numbers, which lose digits above 2**53.
    """
    kinds = sorted(set(dtypes), key=str)
    if len(kinds) == 1:
        return kinds[0]
    given = {kind.kind for kind in kinds}
    try:
        found = np.result_type(*kinds)
    except TypeError:
        found = None
    is_rounded = found is not None and found.kind == "f" and given <= set("biu")
    if found is None or is_rounded or (found.kind not in "biufcO" and given != {found.kind}):
        rounded = f"would become {found}, which rounds integers above 2**53"
        raise ElementError(
            f"{what} of {' and '.join(map(str, kinds))} {rounded if is_rounded else 'have no dtype together'};"
            " convert them to one dtype in a map before"
        )
    return found


def holds(dtype: np.dtype[Any], value: Any) -> bool:
    """Whether an array of `dtype` keeps the number `value` as it is."""
    try:
        return bool(np.full((), value, dtype) == value) or value != value
    except (OverflowError, TypeError, ValueError):
        return False


# --- columns to elements -------------------------------------------------------------------------


def split(tree: Tree, rows: int) -> list[Any]:
    """Return the elements of `tree`, each in its own containers; arrays are views of rows."""
    children = children_of(tree)
    if children is None:
        return tree.tolist() if isinstance(tree, PythonInts) else list(tree)
    parts = [split(child, rows) for child in children]
    if not parts:
        return [
            [] if isinstance(tree, list) else element_of(rebuilt(tree, ())) for _ in range(rows)
        ]
    if isinstance(tree, Pytree):
        return [tree.like(values).made() for values in zip(*parts, strict=True)]
    if isinstance(tree, dict):
        keys = list(tree)
        return [dict(zip(keys, values, strict=True)) for values in zip(*parts, strict=True)]
    if is_named_tuple(tree):
        return list(itertools.starmap(type(tree), zip(*parts, strict=True)))
    values = zip(*parts, strict=True)
    return list(values) if isinstance(tree, tuple) else [list(v) for v in values]


def element_of(tree: Tree) -> Tree:
    """Columns as one element (a batch): the same arrays in plain containers."""
    if isinstance(tree, ListColumns):
        return [element_of(child) for child in tree]
    if isinstance(tree, dict):
        return {key: element_of(child) for key, child in tree.items()}
    if isinstance(tree, tuple):
        children = [element_of(child) for child in tree]
        if isinstance(tree, Pytree):
            return tree.like(children).made()
        return type(tree)(*children) if is_named_tuple(tree) else tuple(children)
    return np.asarray(tree) if isinstance(tree, np.ndarray) else tree


def batch_from(tree: Tree, start: int, stop: int) -> Tree:
    """Return rows `[start, stop)` of columns as one batch; arrays are views."""
    return element_of(map_columns(lambda c: _batch_column(c[start:stop]), tree))


def restacked(element: Tree) -> Tree:
    """An element that a worker has made, with batches of what JAX knows as trees in this process."""
    if isinstance(element, pytrees.Unstacked):
        return element_of(_batch_column([restacked(row) for row in element.rows]))
    if isinstance(element, dict):
        return {key: restacked(child) for key, child in element.items()}
    if isinstance(element, (list, tuple)):
        children = [restacked(child) for child in element]
        return children if isinstance(element, list) else rebuilt(element, children)
    return element


# --- columns to columns --------------------------------------------------------------------------


def sliced(tree: Tree, start: int, stop: int) -> Tree:
    """Rows `[start, stop)`; arrays are views."""
    return map_columns(lambda column: column[start:stop], tree)


def taken(tree: Tree, at: IntArray) -> Tree:
    """Rows at the positions `at`, copied."""
    return map_columns(functools.partial(_taken, at=at), tree)


def _taken(column: Column, at: IntArray) -> Column:
    return [column[i] for i in at.tolist()] if isinstance(column, list) else column[at]


def scattered(parts: Sequence[tuple[Tree, IntArray]], rows: int) -> Tree | None:
    """Merge parts into columns of `rows` rows; row k of a part becomes row `at[k]`. None if trees differ.

    A column is an array only where all parts have arrays of one dtype and row shape.
    """
    trees = [tree for tree, _ in parts]
    kinds = {_kind(tree) for tree in trees}
    if len(kinds) > 1:
        return None
    if children_of(trees[0]) is None:
        return _scattered_column(parts, rows)
    names = list(trees[0]) if isinstance(trees[0], dict) else range(len(trees[0]))
    children = [scattered([(tree[name], at) for tree, at in parts], rows) for name in names]
    if any(child is None for child in children):
        return None
    return rebuilt(trees[0], children)


def _kind(tree: Tree) -> Any:
    if isinstance(tree, dict):
        return frozenset(tree)
    children = children_of(tree)
    return "column" if children is None else (type(tree), len(children))


def _scattered_column(parts: Sequence[tuple[Column, IntArray]], rows: int) -> Column:
    first = parts[0][0]
    if isinstance(first, SizedColumn):
        return SizedColumn(rows, sum(column.nbytes for column, _ in parts) / max(1, rows))
    # By type too: rows of PythonInts differ from rows of another int64 column.
    if isinstance(first, np.ndarray) and all(
        type(c) is type(first) and (c.dtype, c.shape[1:]) == (first.dtype, first.shape[1:])
        for c, _ in parts
    ):
        out = np.empty((rows, *first.shape[1:]), first.dtype)
        for column, at in parts:
            out[at] = column
        return out.view(type(first))
    if isinstance(first, RaggedColumn) and all(
        isinstance(c, RaggedColumn) and c.is_like(first) for c, _ in parts
    ):
        return _scattered_rows(parts, rows)
    merged: list[Any] = [None] * rows
    for column, at in parts:
        for i, value in zip(at.tolist(), split(column, len(at)), strict=True):
            merged[i] = value
    return merged


def _scattered_rows(parts: Sequence[tuple[RaggedColumn, IntArray]], rows: int) -> RaggedColumn:
    first, lengths = parts[0][0].values, np.zeros(rows, np.int64)
    for column, at in parts:
        lengths[at] = column.lengths
    out = RaggedColumn.empty(lengths, first.shape[1:], first.dtype)
    for column, at in parts:
        out.put(at, column)
    return out


def checked_columns(tree: Tree, rows: int, who: str, *, given: Tree = None) -> Tree:
    """Check that a result of a user's function or source is columns of exactly `rows` rows.

    Args:
        tree: What was returned. Arrays of strings or objects become lists of those.
        rows: The number of rows that it must have.
        who: Who returned it, for messages.
        given: The columns that the function was given, if it is one.

    Raises:
        ElementError: If a leaf is not a column, or has another number of rows, or a plain list stands
            where `given` had a list of columns: it could be either.
    """
    children = children_of(tree)
    if children is not None:
        below = _children_given(tree, given, len(children))
        pairs = zip(children, below, strict=True)
        return rebuilt(tree, [checked_columns(c, rows, who, given=g) for c, g in pairs])
    column = tree
    if _is_foreign_array(column):
        column = np.asarray(column)
    is_array = isinstance(column, np.ndarray) and column.ndim > 0
    if not is_array and not isinstance(column, (list, RaggedColumn)):
        raise ElementError(
            f"{who} returned {spec(tree)} where a column of {rows} rows is needed; return arrays"
            " with a leading axis of rows, or lists with one entry per row"
        )
    if isinstance(given, ListColumns) and isinstance(column, list):
        raise ElementError(
            f"{who} returned a plain list where its input has a list of {len(given)} columns;"
            " return windrow.transforms.ListColumns([...]) for a list of columns, or an array (of"
            " dtype object for strings and objects) for one column"
        )
    if len(column) != rows:
        raise ElementError(
            f"{who} returned {counted(len(column), 'row')} for {rows}; it must return one row for each"
        )
    return column if isinstance(column, (list, RaggedColumn)) else _without_strings(column)


def _children_given(tree: Tree, given: Tree, count: int) -> Sequence[Tree]:
    """The values in `given` at the places of the children of `tree`; None without a value."""
    if isinstance(tree, dict):
        return [given.get(key) if isinstance(given, dict) else None for key in tree]
    below = None if isinstance(given, dict) else children_of(given)
    return below if below is not None and len(below) == count else [None] * count


def _without_strings(column: npt.NDArray[Any]) -> Column:
    """Return an array as a column; a list if its rows are strings or hold objects."""
    if column.ndim == 1 and column.dtype.kind in "SUTO":
        return column.tolist()
    return list(column) if column.dtype.hasobject else column
