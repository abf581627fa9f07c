"""Rows that sequences are packed into as they come: first fit, best fit, and pieces of sequences.

A row has cells for each feature. A sequence takes the next free cells of every feature of one row.
It has a segment id, which counts from 1 in each row, and positions, which count from 0.

Invariant: a cell belongs to at most one sequence; cells without one have segment id 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.errors import ElementError
from windrow.sources.base import AnyArray, IntArray
from windrow.transforms import columns


@dataclasses.dataclass(frozen=True, slots=True)
class PackedFeature:
    """A feature that is packed.

    Args:
        name: Its key.
        cells: Cells of a row.
        is_meta: Whether it gets no segment ids and positions.
        padding: The value of cells without a sequence; None for zero.
        alignment: Sequences begin at multiples of this.
        inside: The keys under `name` that lead to it, if a meta feature is a dict.
    """

    name: str
    cells: int
    is_meta: bool = False
    padding: Any = None
    alignment: int = 1
    inside: tuple[str, ...] = ()

    @property
    def written(self) -> str:
        """Its keys, for people and labels."""
        return "/".join(map(str, (self.name, *self.inside)))

    def taken(self, element: Any) -> Any:
        """Its value in an element that has its key.

        Raises:
            ElementError: If it lies in a dict that lacks it.
        """
        value = element[self.name]
        for key in self.inside:
            if not isinstance(value, dict) or key not in value:
                raise ElementError(
                    f"pack: an element lacks {self.written!r}; map it to a dict that has it before,"
                    " or leave it out of length_struct"
                )
            value = value[key]
        return value

    def put(self, found: dict[str, Any], value: Any) -> None:
        """Put a value of it into a dict of all features."""
        *outer, last = self.name, *self.inside
        for key in outer:
            found = found.setdefault(key, {})
        found[last] = value


def length_of(value: Any) -> int:
    """Cells that a value takes: the length of its first axis, or 1 for a scalar."""
    shape = _array_of(value).shape
    return shape[0] if shape else 1


def values_of(
    element: Any, features: Sequence[PackedFeature], *, all_keys: bool = False
) -> list[Any]:
    """The values of the features of an element.

    Args:
        element: A dict.
        features: The features.
        all_keys: Whether another key of the element is an error.

    Raises:
        ElementError: If the element is not a dict, lacks a feature, or has a key that it may not have.
    """
    if not isinstance(element, dict):
        raise ElementError(
            f"pack: elements must be dicts of sequences, got {type(element).__name__}; map them before"
        )
    missing = [feature.name for feature in features if feature.name not in element]
    if missing:
        raise ElementError(
            f"pack: the element has the keys {sorted(map(str, element))} and lacks {missing}; map it"
            " to a dict that has them before, or leave them out of length_struct"
        )
    others = set(element) - {feature.name for feature in features} if all_keys else set()
    if others:
        raise ElementError(
            f"pack: the element has the keys {sorted(map(str, element))}, and length_struct lacks"
            f" {sorted(map(str, others))}; give their cells there, or leave them out in a map before"
        )
    return [f.taken(element) if f.inside else element[f.name] for f in features]


def new_cells(feature: PackedFeature, value: Any, rows: int | None) -> AnyArray:
    """Cells of rows, or of one row, for values such as `value`, filled with the padding.

    Raises:
        ElementError: If the padding is not a value of their dtype.
    """
    like = _array_of(value)
    shape = (feature.cells, *like.shape[1:])
    shape = shape if rows is None else (rows, *shape)
    if feature.padding is None:
        return np.zeros(shape, like.dtype)
    if not columns.holds(like.dtype, feature.padding):
        raise ElementError(
            f"pack: padding_struct has {feature.padding!r} for {feature.written!r}, which is not a value of"
            f" its dtype {like.dtype}; choose another, or convert the values in a map before"
        )
    return np.full(shape, feature.padding, like.dtype)


def _array_of(value: Any) -> AnyArray:
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.array(None)
    if array.dtype == object and not isinstance(value, np.ndarray):
        raise ElementError(
            f"pack: a value is a {type(value).__name__} that makes no array of numbers or strings,"
            f" {str(value)[:80]}; map it to one array before"
        )
    return array


def _dtype_for(feature: PackedFeature, cells: AnyArray, values: AnyArray) -> np.dtype[Any]:
    """The dtype that holds the cells of a row and the values that come into them.

    Raises:
        ElementError: If no dtype does, or the shapes after the first axis differ.
    """
    if values.dtype == cells.dtype and values.shape[1:] == cells.shape[1:]:
        return cells.dtype  # nearly always
    shown = f"pack: values of {feature.written!r}"
    if values.ndim and values.shape[1:] != cells.shape[1:]:
        raise ElementError(
            f"{shown} have items of shape {cells.shape[1:]} and {values.shape[1:]}, and may differ in their first"
            " axis only; make them alike in a map before"
        )
    return columns.common_dtype([cells.dtype, values.dtype], shown)


class OpenRows:
    """Rows that are filled side by side, until a sequence fits into none of them."""

    def __init__(
        self,
        features: Sequence[PackedFeature],
        element: Any,
        rows: int,
        *,
        best: bool,
        most: int | None,
        collected: Sequence[str],
    ) -> None:
        """Make empty rows.

        Args:
            features: What is packed.
            element: The first element, for dtypes and shapes.
            rows: Their number.
            best: Whether a sequence goes to the fullest row that has room, and not to the first.
            most: The most sequences of a row; None for any number.
            collected: Keys whose values are put into a list for each row.
        """
        self._features, self._best, self._most = features, best, most
        values = values_of(element, features)
        self._values = [new_cells(f, v, rows) for f, v in zip(features, values, strict=True)]
        self._segments = [np.zeros((rows, f.cells), np.int32) for f in features]
        self._positions = [np.zeros((rows, f.cells), np.int32) for f in features]
        self._counts = np.zeros(rows, np.int32)
        self._free = np.zeros((len(features), rows), np.int64)
        self._cells = np.array([f.cells for f in features], np.int64)
        self._counting = np.arange(int(self._cells.max(initial=0)), dtype=np.int32)
        self.members: list[list[int]] = [[] for _ in range(rows)]
        """For each row the numbers of its elements, as they were added."""
        self._added = 0
        self.has_new_cells = False
        """Whether the element that was added last has values."""
        self._collected: dict[str, list[list[Any]]] = {
            k: [[] for _ in range(rows)] for k in collected
        }

    def add(self, element: Any) -> bool:
        """Put an element into a row; False if it fits into none.

        Raises:
            ElementError: If the element lacks a feature, or does not fit into an empty row.
        """
        values = [_array_of(value) for value in values_of(element, self._features)]
        sizes = np.array([len(value) if value.ndim else 1 for value in values], np.int64)
        self._check(sizes)
        after = self._free + sizes[:, None]
        if self._most is not None and self._best:
            after += np.where(self._counts < self._most, 0, self._cells[:, None])
        fits: npt.NDArray[np.bool_] = np.all(after <= self._cells[:, None], axis=0)
        if self._most is not None and not self._best:
            np.logical_and(fits, self._counts < self._most, out=fits)
        if not fits.any():
            return False
        if self._best:
            row = int(np.where(fits, self._free.sum(axis=0), -1).argmax())
        else:
            row = int(fits.argmax())
        self._put(element, values, sizes.tolist(), row)
        return True

    def _check(self, sizes: IntArray) -> None:
        wrong = np.flatnonzero(sizes > self._cells)
        if len(wrong):
            feature = self._features[int(wrong[0])]
            raise ElementError(
                f"pack: {feature.written!r} of an element has length {sizes[wrong[0]]}, and a row"
                f" has {feature.cells} cells for it; cut or drop longer sequences before, or give"
                " length_struct more"
            )

    def _put(self, element: Any, values: list[AnyArray], sizes: list[int], row: int) -> None:
        self._counts[row] += 1
        self.members[row].append(self._added)
        self._added += 1
        self.has_new_cells = any(sizes)
        for at, (feature, value, size) in enumerate(
            zip(self._features, values, sizes, strict=True)
        ):
            start = int(self._free[at, row])
            if size:
                self._cells_for(at, value)[row, start : start + size] = value
            self._segments[at][row, start : start + size] = self._counts[row]
            self._positions[at][row, start : start + size] = self._counting[:size]
            self._free[at, row] = -(-(start + size) // feature.alignment) * feature.alignment
        for key, rows in self._collected.items():
            if key in element:
                rows[row].append(element[key])

    def _cells_for(self, at: int, given: AnyArray) -> AnyArray:
        """The cells of feature `at`, of a dtype that holds given values too."""
        feature, cells = self._features[at], self._values[at]
        if given.dtype == cells.dtype and given.shape[1:] == cells.shape[2:]:
            return cells  # nearly always
        if not self._free[at].any():  # what came before was empty, and may be of any dtype
            self._values[at] = new_cells(feature, given, len(self._counts))
        dtype = _dtype_for(feature, self._values[at][0], given)
        self._values[at] = self._values[at].astype(dtype, copy=False)
        return self._values[at]

    @property
    def count(self) -> int:
        """The rows that have sequences: the first ones."""
        return int(np.count_nonzero(self._counts))

    def columns(self) -> dict[str, Any]:
        """The rows that have sequences: values, then segment ids and positions of each feature."""
        rows = self.count
        found: dict[str, Any] = {}
        for feature, values in zip(self._features, self._values, strict=True):
            feature.put(found, values[:rows])
        for key, lists in self._collected.items():
            found[key] = np.empty(rows, object)
            for row in range(rows):
                found[key][row] = lists[row]
        for at, feature in enumerate(self._features):
            if not feature.is_meta:
                found[f"{feature.name}_segment_ids"] = self._segments[at][:rows]
                found[f"{feature.name}_positions"] = self._positions[at][:rows]
        return found


def row_of(columns: Mapping[str, Any], row: int) -> dict[str, Any]:
    """One row of columns."""
    return {
        key: row_of(each, row) if isinstance(each, dict) else each[row]
        for key, each in columns.items()
    }


def shuffled_rows(
    columns: Mapping[str, AnyArray], rows: int, seed: int, group_by: str | None
) -> IntArray:
    """The order in which rows are given out, int64 `(rows,)`.

    Args:
        columns: The rows.
        rows: Their number.
        seed: The seed of the permutation.
        group_by: Rows are sorted by the mean of the distinct values of this feature, and keep the
            order of the permutation where means are equal. None to leave that out.
    """
    order = np.random.default_rng(seed).permuted(np.arange(rows))
    if group_by is None:
        return order
    distinct = [np.unique(row) for row in columns[group_by]]
    with np.errstate(invalid="ignore", divide="ignore"):
        means = [np.nan_to_num(np.sum(each) / np.count_nonzero(each), nan=0.0) for each in distinct]
    keyed = sorted(zip(means, order.tolist(), range(rows), strict=True))
    return np.array([row for _, _, row in keyed], np.int64)


@dataclasses.dataclass(frozen=True, slots=True)
class CutSequence:
    """The values of an element, from `starts[k]` on for each feature `k` that is not a meta feature."""

    values: list[Any]
    starts: tuple[int, ...]

    def taken(self, at: int) -> Any:
        """What is left of feature `at`."""
        value, start = self.values[at], self.starts[at]
        return value[start:] if start else value


def packed_row(
    features: Sequence[PackedFeature],
    parts: Sequence[Sequence[Any]],
    first_token: Mapping[str, Any],
) -> dict[str, AnyArray]:
    """One row of the values of several elements, end to end.

    Args:
        features: What is packed.
        parts: For each element the value of each feature, which fit into the row together.
        first_token: The token that replaces the first one of each element, by feature.

    Raises:
        ElementError: If values do not fit into one array, or do not hold the token.
    """
    row: dict[str, AnyArray] = {}
    for at, feature in enumerate(features):
        sizes = [length_of(part[at]) for part in parts]
        given = [part[at] for part, size in zip(parts, sizes, strict=True) if size]
        values = new_cells(feature, given[0] if given else parts[0][at], None)
        for value in given[1:]:
            dtype = _dtype_for(feature, values, _array_of(value))
            if dtype is not values.dtype:
                values = values.astype(dtype)
        token = first_token.get(feature.name)
        if token is not None and not columns.holds(values.dtype, token):
            raise ElementError(
                f"pack: bos_token_id={token} is not a value of dtype {values.dtype}, which"
                f" {feature.name!r} has; convert the values in a map before"
            )
        segments, positions = (np.zeros(feature.cells, np.int32) for _ in range(2))
        end = 0
        for number, (part, size) in enumerate(zip(parts, sizes, strict=True), 1):
            start, end = end, end + size
            if size:
                values[start:end] = part[at]
            if token is not None and start < feature.cells:
                values[start] = token
            segments[start:end] = number
            positions[start:end] = np.arange(size)
        row[feature.name] = values
        if not feature.is_meta:
            row[f"{feature.name}_segment_ids"] = segments
            row[f"{feature.name}_positions"] = positions
    return row
