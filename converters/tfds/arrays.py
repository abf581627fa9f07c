"""Conversion between features of tfds and arrays of Zarr.

The arrays of a feature are called as it is, and dicts around it are groups:

- numbers of one shape, and images that are decoded to one: an array `NAME`, a row per record;
- text, encoded images, and numbers that differ in the first axis alone: ragged `NAME`, which is
  `NAME/values` and `NAME/offsets`, as in all conversions;
- all else: the numbers or bytes of a record one after another in ragged `NAME/flat`, and arrays that
  show where each begins. `NAME/lengths_1`, `NAME/lengths_2`, ... hold the lengths of sequences in
  sequences, the outer ones first. `NAME/item_bytes` holds the lengths of several strings,
  `NAME/item_shapes` the shapes of arrays that differ in shape within a record, and `NAME/shape` the
  shape of an array that differs in other axes.

If a record is without a feature, its row has zeros or nothing, and ragged `windrow_absent` has the
number of the feature in the order of features.json.

Invariant: the values that `decode_records` gives for a record come back bit for bit.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from windrow.converters.zarr.decoding import Wrong
from windrow.errors import ArgumentError, ReadError
from windrow.sources.base import Columns
from windrow.sources.tf_example.features import (
    BYTES,
    Array,
    Column,
    Feature,
    Ragged,
    offsets_of,
    ragged_of,
)
from windrow.sources.tfds.columns import decode_records
from windrow.sources.tfds.features import IMAGE, Leaf, Shape, TfdsFeatures, tree_of
from windrow.sources.tfds.values import may_be_absent, objects_of

ABSENT: Final = "windrow_absent"

FLAT: Final = "/flat"
SHAPE: Final = "/shape"
LENGTHS: Final = "/lengths_"
ITEM_BYTES: Final = "/item_bytes"
ITEM_SHAPES: Final = "/item_shapes"

_COMPLEX: Final = ("complex64", "complex128")
_COUNTS: Final = Feature("int64", (None,))


@dataclasses.dataclass(frozen=True, slots=True)
class LeafArrays:
    """The arrays of one leaf: divides its values into arrays, and joins them again.

    Args:
        leaf: The feature.
        images: Whether images are decoded.
    """

    leaf: Leaf
    images: bool = False

    @property
    def opaque(self) -> bool:
        """Whether items are bytes of any length."""
        return self.leaf.dtype == BYTES or (self.leaf.kind == IMAGE and not self.images)

    @property
    def item_shape(self) -> Shape:
        """The shape of a value in all sequences."""
        return () if self.leaf.kind == IMAGE and not self.images else self.leaf.shape

    @property
    def own_shapes(self) -> bool:
        """Whether each item of a sequence is an array of its own shape."""
        leaf = self.leaf
        return bool(leaf.lengths) and leaf.in_bytes and not self.opaque and None in leaf.shape

    @property
    def core(self) -> Shape:
        """The shape of the array within all `Ragged`s of a value, or of a value without them."""
        leaf = self.leaf
        inner = () if self.own_shapes else self.item_shape
        if leaf.levels:
            return (None, *leaf.lengths[leaf.levels + 1 :], *inner)
        return (*leaf.lengths, *inner)

    @property
    def is_whole(self) -> bool:
        """Whether one array, or one ragged feature, holds all values."""
        if self.leaf.levels or self.own_shapes:
            return False
        return not self.core if self.opaque else not self._keeps_shape

    @property
    def _keeps_shape(self) -> bool:
        """Whether the shape of the core must be stored."""
        return None in self.core and not (None not in self.core[1:] and 0 not in self.core)

    @property
    def features(self) -> dict[str, Feature]:
        """The stored features, by the ends of the names of their arrays; '' for a single array."""
        return dict(self._features())

    def _features(self) -> Iterator[tuple[str, Feature]]:
        dtype, core = self.leaf.dtype, self.core
        raw = dtype in _COMPLEX
        if self.is_whole:
            yield "", Feature(BYTES) if self.opaque else Feature(dtype, core, raw=raw)
            return
        for level in range(self.leaf.levels):
            yield f"{LENGTHS}{level + 1}", _COUNTS
        if self._keeps_shape:
            yield SHAPE, Feature("int64", (len(core),))
        if self.opaque:
            yield FLAT, Feature(BYTES)
            if core:
                yield ITEM_BYTES, _COUNTS
        elif self.own_shapes:
            yield FLAT, Feature(dtype, (None,), raw=raw)
            yield ITEM_SHAPES, Feature("int64", (None, len(self.item_shape)))
        else:
            inner = () if self._keeps_shape else core[1:]
            yield FLAT, Feature(dtype, (None, *inner), raw=raw)

    # From values to columns.

    def columns(self, values: Any) -> dict[str, Column]:
        """Return the column of each array, from the values that `decode_records` gives."""
        features = self.features
        if isinstance(values, np.ndarray) and self.is_whole and not features[""].ragged:
            return {"": values}
        parts: dict[str, list[Any]] = {end: [] for end in features}
        for value in values:
            row = self._blank(features) if value is None else self._cut(value)
            for end, part in row.items():
                parts[end].append(part)
        return {end: _column(parts[end], feature) for end, feature in features.items()}

    def _cut(self, value: Any) -> dict[str, Any]:
        if self.is_whole:
            return {"": value}
        out: dict[str, Any] = {}
        for level in range(self.leaf.levels):
            out[f"{LENGTHS}{level + 1}"] = np.diff(value.offsets)
            value = value.values
        core = np.asarray(value)
        if self._keeps_shape:
            out[SHAPE] = np.array(core.shape, np.int64)
        if self.opaque:
            items = core.reshape(-1).tolist()
            out[FLAT] = b"".join(items)
            out[ITEM_BYTES] = np.fromiter(map(len, items), np.int64, len(items))
        elif self.own_shapes:
            arrays = list(core.reshape(-1))
            empty = [np.empty(0, self.leaf.numpy_dtype)]
            out[FLAT] = np.concatenate([*empty, *(array.reshape(-1) for array in arrays)])
            shapes = np.array([array.shape for array in arrays], np.int64)
            out[ITEM_SHAPES] = shapes.reshape(-1, len(self.item_shape))
        else:
            out[FLAT] = core.reshape(-1) if self._keeps_shape else core
        return out

    def _blank(self, features: Mapping[str, Feature]) -> dict[str, Any]:
        return {
            end: b""
            if one.opaque
            else np.zeros((0,) * one.ragged + one.item_shape, one.numpy_dtype)
            for end, one in features.items()
        }

    # From columns to values.

    def values(self, columns: Mapping[str, Column], absent: frozenset[int]) -> Any:
        """Return the values of `decode_records`, from each array's column; None at rows `absent`."""
        if self.leaf.steady and self.is_whole and not isinstance(columns[""], Ragged):
            return columns[""]
        rows = len(next(iter(columns.values())))
        return [
            None if row in absent else self._joined({end: one[row] for end, one in columns.items()})
            for row in range(rows)
        ]

    def _joined(self, parts: Mapping[str, Any]) -> Any:
        if self.is_whole:
            return parts[""].tobytes() if self.opaque else parts[""]
        value: Any = self._core(parts)
        for level in range(self.leaf.levels, 0, -1):
            lengths = parts[f"{LENGTHS}{level}"]
            value = Ragged(value, offsets_of(lengths))
        return value

    def _core(self, parts: Mapping[str, Any]) -> Array:
        flat = parts[FLAT]
        core: Any = tuple(parts[SHAPE].tolist()) if self._keeps_shape else self.core
        items: list[Any]
        if self.opaque:
            data, ends = flat.tobytes(), np.cumsum(parts[ITEM_BYTES]).tolist()
            items = [data[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        elif self.own_shapes:
            shapes = [tuple(shape) for shape in parts[ITEM_SHAPES].tolist()]
            ends = np.cumsum([math.prod(shape) for shape in shapes], dtype=np.int64).tolist()
            items = [
                flat[a:b].reshape(shape)
                for a, b, shape in zip([0, *ends], ends, shapes, strict=False)
            ]
        else:
            found: Array = flat.reshape(core) if self._keeps_shape else flat
            return found
        out = objects_of(items)
        if None in core:
            core = (len(items) // math.prod(core[1:]), *core[1:])
        return out.reshape(core)


@dataclasses.dataclass(frozen=True, slots=True)
class TfdsArrays:
    """The arrays of a split, a `ColumnDecoder` of its records and the way back. Picklable.

    Args:
        tfds: The features of the dataset.
        images: Whether images are decoded.
    """

    tfds: TfdsFeatures
    images: bool = False

    @property
    def leaves(self) -> list[LeafArrays]:
        """Each leaf."""
        return [LeafArrays(leaf, self.images) for leaf in self.tfds.leaves]

    @property
    def features(self) -> dict[str, Feature]:
        """The features of the arrays, by name.

        Raises:
            ArgumentError: If two features become an array of one name.
        """
        arrays = [
            (f"{one.leaf.name}{end}", feature, f"feature {one.leaf.name!r:.80}")
            for one in self.leaves
            for end, feature in one.features.items()
        ]
        if self._some_absent:
            arrays.append((ABSENT, _COUNTS, "the array of absent features"))
        found: dict[str, Feature] = {}
        owners: dict[str, str] = {}
        for name, feature, owner in arrays:
            if name in found:
                raise ArgumentError(
                    f"{owners[name]} and {owner} would both be the array {name!r:.80}; leave a"
                    " feature out by names= (--name), or rename it and build the dataset again"
                )
            found[name], owners[name] = feature, owner
        return found

    @property
    def _some_absent(self) -> bool:
        """Whether records may be without a feature."""
        return any(map(may_be_absent, self.tfds.leaves))

    @property
    def attributes(self) -> dict[str, dict[str, Any]]:
        """The attributes that tfds has for each leaf, by the leaf's name, as JSON values."""
        return {
            leaf.name: json.loads(json.dumps({"tfds": leaf.attributes}))
            for leaf in self.tfds.leaves
        }

    def columns(self, records: Sequence[bytes], wrong: Wrong) -> dict[str, Column]:
        """The columns of the good records; the others go into `wrong`, in their order."""
        bad: list[ReadError] = []
        values = decode_records(records, self.tfds, images=self.images, bad=bad)
        wrong += [(error.records[0] if error.records else 0, error) for error in bad]
        return self.columns_of(values, len(records) - len(bad))

    def columns_of(self, values: Columns, rows: int) -> dict[str, Column]:
        """Return the columns of values from `decode_records`, for this number of rows."""
        found: dict[str, Column] = {}
        absent: list[list[int]] = [[] for _ in range(rows)]
        for number, one in enumerate(self.leaves):
            column = _at(values, one.leaf.path)
            for end, part in one.columns(column).items():
                found[f"{one.leaf.name}{end}"] = part
            if may_be_absent(one.leaf) and isinstance(column, list):
                for row, value in enumerate(column):
                    if value is None:
                        absent[row].append(number)
        if self._some_absent:
            numbers = [np.array(some, np.int64) for some in absent]
            found[ABSENT] = _column(numbers, _COUNTS)
        return found

    def values(self, columns: Mapping[str, Column]) -> Columns:
        """Return the values of `decode_records`, from the columns of all arrays."""
        absent: dict[int, set[int]] = {}
        for row, numbers in enumerate(_rows(columns[ABSENT]) if self._some_absent else ()):
            for number in numbers.tolist():
                absent.setdefault(number, set()).add(row)
        found = {}
        for number, one in enumerate(self.leaves):
            parts = {end: columns[f"{one.leaf.name}{end}"] for end in one.features}
            found[one.leaf.path] = one.values(parts, frozenset(absent.get(number, ())))
        return tree_of(found)


def _at(values: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        values = values[name]
    return values


def _rows(column: Column) -> Iterator[Array]:
    return (column[row] for row in range(len(column)))


def _column(parts: Sequence[Any], feature: Feature) -> Column:
    """The column of a feature from one row after another."""
    dtype = feature.numpy_dtype
    if not feature.ragged:
        out = np.empty((len(parts), *feature.item_shape), dtype)
        for row, part in enumerate(parts):
            out[row] = part
        return out
    if feature.opaque:
        return ragged_of(parts, feature)
    empty = np.empty((0, *feature.item_shape), dtype)
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    return Ragged(np.concatenate([empty, *parts]), offsets_of(lengths))
