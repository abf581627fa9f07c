"""Columns to Examples: one serialised tf.train.Example per row.

The native core writes many rows at once. Without it `encode_example` writes each of them.

Invariant: equal rows give equal bytes, the same as `encode_example` gives for the same values.
`decode_examples` makes the same columns of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.core.native import native
from windrow.errors import ArgumentError
from windrow.sources.tf_example.columns import check_features
from windrow.sources.tf_example.features import (
    Array,
    Column,
    Feature,
    Ragged,
    cast,
)
from windrow.sources.tf_example.message import BYTES_LIST, FLOAT_LIST, INT64_LIST, encode_example

_Rows: TypeAlias = npt.NDArray[np.int64]


def encode_examples(columns: Mapping[str, Column], features: Mapping[str, Feature]) -> list[bytes]:
    """Return one serialised tf.train.Example per row of `columns`.

    Args:
        columns: By name, what `decode_examples` gives for `features`: arrays `(rows, *shape)` of
            the feature's dtype, or `Ragged`.
        features: How each is written; a name for every column.

    Raises:
        ArgumentError: If columns and features do not go together, columns have different lengths,
            or a number fits neither int64 nor, exactly, float32: those need `raw=True`.

    Example:
        >>> from windrow.converters import encode_example
        >>> features = {"pixels": Feature("uint8", (2,), raw=True), "label": Feature("int64")}
        >>> columns = {"pixels": np.array([[1, 2], [3, 4]], np.uint8), "label": np.array([5, 6])}
        >>> records = encode_examples(columns, features)
        >>> records[1] == encode_example({"pixels": bytes([3, 4]), "label": 6})
        True
    """
    check_features("encode_examples", features)
    if columns.keys() != features.keys():
        raise ArgumentError(
            f"encode_examples: columns are {sorted(columns)}, features {sorted(features)}; give a"
            " feature for each column"
        )
    parts = [_part(name, features[name], columns[name]) for name in sorted(features)]
    rows = parts[0].rows
    for part in parts:
        if part.rows != rows:
            raise ArgumentError(
                f"encode_examples: column {part.name!r} has {part.rows} rows, and"
                f" {parts[0].name!r} {rows}; all have to have as many"
            )
    core = native()
    if core is None:
        return [encode_example({p.name: p.row(at) for p in parts}) for at in range(rows)]
    wanted = [(p.name, p.kind, p.values, p.bounds * p.values.itemsize) for p in parts]
    records: list[bytes] = core.encode_examples(wanted)
    return records


@dataclasses.dataclass(frozen=True, slots=True)
class _FeatureValues:
    """A feature's values, flat: row `i` is `values[bounds[i] : bounds[i + 1]]`.

    They are uint8, float32 or int64, by the `kind` of the list.
    """

    name: str
    kind: int
    values: Array
    bounds: _Rows

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.bounds) - 1

    def row(self, at: int) -> Array | bytes:
        """The value of a row, as `encode_example` takes it."""
        values = self.values[self.bounds[at] : self.bounds[at + 1]]
        return values.tobytes() if self.kind == BYTES_LIST else values


def _part(name: str, feature: Feature, column: Column) -> _FeatureValues:
    values, offsets = _checked(name, feature, column)
    if feature.in_bytes:
        data = values.reshape(-1).view(np.uint8)
        return _FeatureValues(name, BYTES_LIST, data, offsets * feature.item_bytes)
    is_whole = values.dtype.kind in "iub"
    stored, fits = cast(values.reshape(-1), np.dtype(np.int64 if is_whole else np.float32))
    if fits is not None and not fits.all():
        raise ArgumentError(
            f"encode_examples: column {name!r} has the number {values.reshape(-1)[~fits][0]!s},"
            f" which {stored.dtype} cannot hold; give the feature raw=True"
        )
    kind = INT64_LIST if is_whole else FLOAT_LIST
    return _FeatureValues(name, kind, stored, offsets * feature.items)


def _checked(name: str, feature: Feature, column: Column) -> tuple[Array, _Rows]:
    """The values of a column, contiguous, and where its rows begin and end, in items."""
    is_ragged = isinstance(column, Ragged)
    values = np.asarray(column.values if isinstance(column, Ragged) else column)
    dtype, shape = values.dtype.newbyteorder("="), values.shape[1:]
    if (
        is_ragged != feature.ragged
        or dtype != feature.numpy_dtype
        or not values.ndim
        or shape != feature.item_shape
    ):
        raise ArgumentError(
            f"encode_examples: column {name!r} is {'ragged, ' * is_ragged}{dtype.name} {shape} by"
            f" row, and its feature {feature}; the two have to agree"
        )
    if isinstance(column, Ragged):
        offsets = np.asarray(column.offsets)
        if (
            offsets.ndim != 1
            or offsets.dtype != np.int64
            or not len(offsets)
            or (offsets[0], offsets[-1]) != (0, len(values))
            or (np.diff(offsets) < 0).any()
        ):
            raise ArgumentError(
                f"encode_examples: column {name!r} has offsets that do not ascend, as int64, from 0"
                f" to its {len(values)} items"
            )
    else:
        offsets = np.arange(len(values) + 1)
    return np.ascontiguousarray(values, feature.numpy_dtype).reshape(values.shape), offsets
