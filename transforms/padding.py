"""Padding: batches of one shape, of rows that differ in length and of batches that lack rows.

`lengths` pads the first axis of rows, and `mask` pads the rows of short batches and marks the real ones.
Both are fixed when a chain is written, so every batch has one shape, whatever it holds.

Invariant: a padded batch holds the values of its rows unchanged, and padding everywhere else.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.errors import ArgumentError, ElementError
from windrow.sources.base import ArraySpec, IntArray
from windrow.sources.ragged_column import RaggedColumn
from windrow.transforms import columns, specs, tables
from windrow.transforms.arguments import at_least
from windrow.transforms.columns import Column, SizedColumn, Tree
from windrow.transforms.pytrees import Unstacked
from windrow.transforms.specs import Spec
from windrow.transforms.tables import Table


@dataclasses.dataclass(frozen=True, slots=True)
class BatchPadding:
    """How batches are padded.

    Args:
        mask: The name under which a batch says which of its rows are real; None for batches that
            stay short.
        lengths: The length of the first axis of rows: one for all leaves that have an axis, or one
            by key; None for rows as they are.
        value: What rows are padded with. Rows of short batches are padded with zeros.
    """

    mask: str | None = None
    lengths: int | Mapping[str, int] | None = None
    value: Any = 0

    @property
    def label(self) -> str:
        """The arguments of `batch` that ask for it."""
        shown = []
        if self.mask is not None:
            shown.append(f"remainder='pad', mask={self.mask!r}")
        if self.lengths is not None:
            lengths = self.lengths if isinstance(self.lengths, int) else dict(self.lengths)
            shown.append(f"pad_to={lengths}, pad_value={self.value!r}")
        return ", ".join(shown)

    # --- specs -----------------------------------------------------------------------------------

    def spec(self, rows: int | None, spec: Spec) -> Spec:
        """The spec of a batch of `rows` elements of `spec`; None where batches differ."""
        if isinstance(self.lengths, Mapping):
            if isinstance(spec, Mapping):
                lengths = self.lengths
                spec = {
                    key: specs.mapped(functools.partial(_lengthened, lengths.get(key)), part)
                    for key, part in spec.items()
                }
        else:
            spec = specs.mapped(functools.partial(_lengthened, self.lengths), spec)
        batch = specs.stacked(rows, spec)
        if self.mask is None:
            return batch
        present = ArraySpec((rows,), np.bool_)
        return {**batch, self.mask: present} if isinstance(batch, dict) else (batch, present)

    # --- values ----------------------------------------------------------------------------------

    def batches(
        self,
        table: Table,
        bounds: Sequence[int],
        size: int,
        places: Sequence[IntArray] | None = None,
    ) -> list[Any]:
        """Make a batch of the rows between each two neighbouring `bounds`.

        Args:
            table: The rows.
            bounds: Bounds of the batches in them.
            size: Rows of a batch, if it gets a mask.
            places: For each batch the rows of it that its elements become; by default the first.

        Raises:
            ElementError: If elements do not stack, a row is too long, or has the key of the mask.
        """
        found = []
        for number, part in enumerate(tables.cut(table, bounds)):
            tree = self._lengthened(tables.batch_columns(part))
            if self.mask is None:
                found.append(columns.element_of(tree))
                continue
            at = np.arange(part.rows) if places is None else places[number]
            found.append(self._marked(tree, at, size))
        return found

    def without_rows(self, batch: Any, size: int) -> Any:
        """A batch of padding alone, like another batch."""
        none = np.zeros(0, np.int64)
        tree = columns.map_columns(
            lambda column: _filled(column, none, size), columns.columns_in(batch)
        )
        return columns.element_of(tree)

    def _marked(self, tree: Tree, at: IntArray, size: int) -> Any:
        if len(at) < size:
            tree = columns.map_columns(lambda column: _filled(column, at, size), tree)
        batch = columns.element_of(tree)
        present = np.zeros(size, np.bool_)
        present[at] = True
        if not isinstance(batch, dict):
            return batch, present
        if self.mask in batch:
            raise ElementError(
                f"batch: elements have the key {self.mask!r}, which would be the mask of the batch;"
                " choose another name: batch(..., mask=...)"
            )
        return {**batch, self.mask: present}

    def _lengthened(self, tree: Tree) -> Tree:
        if not isinstance(self.lengths, Mapping):
            return self._walked(tree, self.lengths, ())
        if isinstance(tree, SizedColumn):  # of a dry run, which has no keys
            return tree
        if not isinstance(tree, dict) or not self.lengths.keys() <= tree.keys():
            keys = list(tree) if isinstance(tree, dict) else "none"
            raise ElementError(
                f"batch: pad_to names the keys {list(self.lengths)}, but elements have {keys}; give"
                " keys of the elements, or one number for all leaves"
            )
        return {
            key: self._walked(part, self.lengths.get(key), (key,)) for key, part in tree.items()
        }

    def _walked(self, tree: Tree, length: int | None, path: tuple[Any, ...]) -> Tree:
        children = columns.children_of(tree)
        if children is None:
            return self._leaf(tree, length, path)
        names = list(tree) if isinstance(tree, dict) else range(len(children))
        made = [
            self._walked(child, length, (*path, name))
            for name, child in zip(names, children, strict=True)
        ]
        return columns.rebuilt(tree, made)

    def _leaf(self, column: Column, length: int | None, path: tuple[Any, ...]) -> Column:
        if length is None or isinstance(column, SizedColumn):
            return columns.stacked(column)
        if isinstance(column, RaggedColumn):
            self._check(column.lengths, length, path)
            out = self._blank(len(column), length, column.values, path)
            out[np.arange(length) < column.lengths[:, None]] = column.values
            return out
        if isinstance(column, np.ndarray):
            if column.ndim < 2:
                return columns.stacked(column)
            self._check(np.full(len(column), column.shape[1]), length, path)
            out = self._blank(len(column), length, column[0], path)
            out[:, : column.shape[1]] = column
            return out
        rows = [row if isinstance(row, np.ndarray) else columns.as_array(row) for row in column]
        arrays = [row for row in rows if row is not None and row.ndim]
        if not rows or len(arrays) < len(rows):
            found = columns.stacked(column)
            if isinstance(found, Unstacked):
                found.refuse()
            return found
        self._check(np.array([len(row) for row in arrays]), length, path)
        kinds = {(row.dtype, row.shape[1:]) for row in arrays}
        if len({shape for _, shape in kinds}) > 1:
            return columns.stacked(column)  # which names the shapes that differ
        dtype = columns.common_dtype((each for each, _ in kinds), f"batch: {_named(path)}")
        like = np.zeros((0, *arrays[0].shape[1:]), dtype)
        out = self._blank(len(arrays), length, like, path)
        for row, values in enumerate(arrays):
            out[row, : len(values)] = values
        return out

    def _check(self, lengths: IntArray, length: int, path: tuple[Any, ...]) -> None:
        longer = np.flatnonzero(lengths > length)
        if len(longer):
            row = int(longer[0])
            raise ElementError(
                f"batch: {_named(path)} of element {row} of the batch has length {lengths[row]}, which"
                f" is more than pad_to={length}; cut it in a map before the batch, or choose a larger"
                " pad_to"
            )

    def _blank(
        self, rows: int, length: int, like: npt.NDArray[Any], path: tuple[Any, ...]
    ) -> npt.NDArray[Any]:
        """Rows of padding, `(rows, length, ...)`, for rows like `like`, `(items, ...)`."""
        shape = (rows, length, *like.shape[1:])
        if not columns.holds(like.dtype, self.value):
            raise ElementError(
                f"batch: pad_value={self.value!r} is not a value of dtype {like.dtype}, which"
                f" {_named(path)} has; choose another, or convert it in a map before the batch"
            )
        return np.full(shape, self.value, like.dtype)


def padding_given(mask: str | None, pad_to: Any, pad_value: Any) -> BatchPadding | None:
    """The padding that arguments of `batch` ask for; None for none.

    Raises:
        ArgumentError: If an argument has the wrong type.
        PlanError: If a length is less than 1.
    """
    if mask is None and pad_to is None:
        return None
    if mask is not None and not isinstance(mask, str):
        raise ArgumentError(f"batch: mask must be the name of a key, got {mask!r}")
    lengths = pad_to
    if isinstance(pad_to, Mapping):
        lengths = {
            key: at_least(1, length, f"batch: pad_to[{key!r}]") for key, length in pad_to.items()
        }
    elif pad_to is not None:
        lengths = at_least(1, pad_to, "batch: pad_to")
    if not isinstance(pad_value, (numbers.Number, np.generic)):
        raise ArgumentError(f"batch: pad_value must be a number, got {pad_value!r}")
    return BatchPadding(mask, lengths, pad_value)


def _lengthened(length: int | None, leaf: Any) -> Any:
    if length is None or not isinstance(leaf, ArraySpec) or not leaf.shape:
        return leaf
    return ArraySpec((length, *leaf.shape[1:]), leaf.dtype, leaf.dims)


def _filled(column: Column, at: IntArray, size: int) -> Column:
    """`size` rows: the rows of a column at `at`, and zeros or empty strings elsewhere."""
    if isinstance(column, SizedColumn):
        return SizedColumn(size, column.row_bytes)
    if isinstance(column, np.ndarray):
        out = np.zeros((size, *column.shape[1:]), column.dtype)
        out[at] = column[: len(at)]
        return out
    blank = type(column[0])() if column and isinstance(column[0], (bytes, str)) else None
    rows = [blank] * size
    for place, row in zip(at.tolist(), itertools.islice(column, len(at)), strict=True):
        rows[place] = row
    return rows


def _named(path: tuple[Any, ...]) -> str:
    return f"leaf {'/'.join(map(repr, path))}" if path else "the array"
