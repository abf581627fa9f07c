"""Columns to Examples: one serialised tf.train.Example per row.

Rows whose features have the same sizes differ in their values alone. The bytes between the values
are made once, and NumPy puts the values of many rows in their places.

Invariant: equal rows give equal bytes, the same as `encode_example` gives for the same values.
`decode_examples` makes the same columns of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.errors import ArgumentError
from windrow.sources.tf_example.columns import check_features
from windrow.sources.tf_example.features import Array, Column, Feature, Ragged, cast
from windrow.sources.tf_example.wire import (
    BYTES_LIST,
    FIRST_FIELD,
    FLOAT_LIST,
    INT64_LIST,
    entry_head,
    field_head,
    write_varints,
)

_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Rows: TypeAlias = npt.NDArray[np.int64]

# A block stays in the processor's cache between being put together and being taken apart.
_BLOCK_BYTES: Final = 1 << 20
# Fewer rows of the same sizes are put together one by one.
_FEWEST: Final = 16


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
    rows = len(parts[0].sizes)
    for part in parts:
        if len(part.sizes) != rows:
            raise ArgumentError(
                f"encode_examples: column {part.name!r} has {len(part.sizes)} rows, and"
                f" {parts[0].name!r} {rows}; all have to have as many"
            )
    out = [b""] * rows
    for some in _of_one_size(parts):
        for row, record in zip(some.tolist(), _records(parts, some), strict=True):
            out[row] = record
    return out


@dataclasses.dataclass(frozen=True, slots=True)
class _FeatureBytes:
    """A feature's values as they are stored: row `i` is `data[starts[i] : starts[i] + sizes[i]]`."""

    name: str
    kind: int
    data: _Bytes
    starts: _Rows
    sizes: _Rows

    def head(self, size: int) -> bytes:
        """Return the bytes that stand before `size` bytes of values."""
        # A list without numbers has no field for them.
        head = field_head(FIRST_FIELD, size) if size or self.kind == BYTES_LIST else b""
        return entry_head(self.name, self.kind, len(head) + size) + head

    def row(self, row: int) -> bytes:
        """The values of one row."""
        start = self.starts[row]
        return bytes(self.data[start : start + self.sizes[row]])

    def rows(self, rows: _Rows, size: int) -> _Bytes:
        """The values of rows of one size, uint8 `(rows, size)`."""
        shape = (len(self.data) - size + 1, size)
        windows: _Bytes = np.lib.stride_tricks.as_strided(self.data, shape, (1, 1), writeable=False)
        return windows[self.starts[rows]]


def _part(name: str, feature: Feature, column: Column) -> _FeatureBytes:
    values, offsets = _checked(name, feature, column)
    if feature.in_bytes:
        data = values.reshape(-1).view(np.uint8)
        return _of_bounds(name, BYTES_LIST, data, offsets * feature.item_bytes)
    is_whole = values.dtype.kind in "iub"
    stored, fits = cast(values.reshape(-1), np.dtype(np.int64 if is_whole else np.float32))
    if fits is not None and not fits.all():
        raise ArgumentError(
            f"encode_examples: column {name!r} has the number {values.reshape(-1)[~fits][0]!s},"
            f" which {stored.dtype} cannot hold; give the feature raw=True"
        )
    bounds = offsets * feature.items
    if not is_whole:
        return _of_bounds(name, FLOAT_LIST, stored.view(np.uint8), bounds * 4)
    data, sizes = write_varints(stored)
    return _of_bounds(name, INT64_LIST, data, np.concatenate([[0], np.cumsum(sizes)])[bounds])


def _of_bounds(name: str, kind: int, data: _Bytes, bounds: _Rows) -> _FeatureBytes:
    return _FeatureBytes(name, kind, data, bounds[:-1], np.diff(bounds))


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


def _of_one_size(parts: Sequence[_FeatureBytes]) -> Iterator[_Rows]:
    """The rows in groups, in which no part changes its size."""
    key = np.zeros(len(parts[0].sizes), np.int64)
    for part in parts:
        found, place = np.unique(part.sizes, return_inverse=True)
        if len(found) > 1:
            # Numbered anew each time, so that it does not overflow.
            key = np.unique(key * len(found) + place, return_inverse=True)[1]
    rows = np.argsort(key, kind="stable")
    start = 0
    for stop in (np.flatnonzero(np.diff(key[rows], append=-1)) + 1).tolist():
        yield rows[start:stop]
        start = stop


def _records(parts: Sequence[_FeatureBytes], rows: _Rows) -> Iterator[bytes]:
    """The records of rows of the same sizes."""
    sizes = [int(part.sizes[rows[0]]) for part in parts]
    heads = [part.head(size) for part, size in zip(parts, sizes, strict=True)]
    heads[0] = field_head(FIRST_FIELD, sum(map(len, heads)) + sum(sizes)) + heads[0]
    if len(rows) < _FEWEST:
        for row in rows.tolist():
            values = (part.row(row) for part in parts)
            yield b"".join(piece for pair in zip(heads, values, strict=True) for piece in pair)
        return
    record_bytes = sum(map(len, heads)) + sum(sizes)
    step = max(_BLOCK_BYTES // record_bytes, 1)
    block = np.empty((min(step, len(rows)), record_bytes), np.uint8)
    for at in range(0, len(rows), step):
        some = rows[at : at + step]
        start = 0
        for part, head, size in zip(parts, heads, sizes, strict=True):
            block[:, start : start + len(head)] = np.frombuffer(head, np.uint8)
            start += len(head)
            block[: len(some), start : start + size] = part.rows(some, size)
            start += size
        yield from block[: len(some)].view(np.dtype((np.void, record_bytes)))[:, 0].tolist()
