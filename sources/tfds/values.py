"""Checks and shapes the values of one tfds feature from Examples, and cuts them into rows.

An Example keeps the numbers of a record flat. Their shape, and their division into the items of
sequences, follow from the feature, the lengths that the Example keeps, and their number.

Invariant: each number of a record is delivered once, in order, or the record is reported as bad.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.errors import ReadError
from windrow.sources.tf_example.features import BYTES, Array, Column, Feature, Ragged, offsets_of
from windrow.sources.tfds.features import IMAGE, Leaf, Shape
from windrow.sources.tfds.images import decode_images

Int64s: TypeAlias = npt.NDArray[np.int64]

_LENGTHS: Final = Feature("int64", (None,))
# More than any record holds; sums of them fit an int64.
_MAX_ITEMS: Final = 2**40


class UnfitError(Exception):
    """Some records do not fit their feature; `rows` has the reason for each row."""

    def __init__(self, rows: Mapping[int, str]) -> None:
        super().__init__(rows)
        self.rows = rows


@dataclasses.dataclass(frozen=True, slots=True)
class InnerLengths:
    """The lengths of inner sequences: their number in each record, and all values in a row."""

    counts: Int64s
    values: Int64s


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LeafColumn:
    """The values of one leaf, all records one after another.

    Args:
        leaf: The leaf.
        rows: Number of records.
        items: Single values, not sequences: an array `(items, *shape)` where all have one shape,
            else a list of bytes or arrays.
        lengths: Lengths of the sequences around them, outermost first: `lengths[0]` has one length
            for each record, `lengths[1]` one for each item of those sequences, and so on.
        absent: The rows without a value. The items in these rows mean nothing.
    """

    leaf: Leaf
    rows: int
    items: Array | list[Any]
    lengths: tuple[Int64s, ...]
    absent: Int64s


def wires_of(leaf: Leaf) -> dict[str, Feature]:
    """The features that `decode_examples` reads for a leaf: all except lists of bytes.

    Numbers in sequences, or of a shape that differs, are flat.
    """
    lengths = dict.fromkeys(length_names(leaf), _LENGTHS)
    if leaf.dynamic:
        rank = len(leaf.shape)
        lengths[shape_name(leaf)] = _LENGTHS if leaf.lengths else Feature("int64", (rank,))
    if leaf.in_bytes:
        if leaf.lengths or (leaf.dtype == BYTES and leaf.shape):
            return lengths
        if leaf.encoding == "bytes" and _is_plain(leaf):
            return {leaf.name: Feature(leaf.dtype, leaf.shape, raw=True)}
        return {values_name(leaf): Feature(BYTES), **lengths}
    if not leaf.lengths and _is_plain(leaf):
        return {leaf.name: Feature(_kept_as(leaf), leaf.shape)}
    return {values_name(leaf): Feature(_kept_as(leaf), (None,)), **lengths}


def values_name(leaf: Leaf) -> str:
    """The name under which an Example keeps the values."""
    name = f"{leaf.name}/value" if leaf.dynamic else leaf.name
    return f"{name}/ragged_flat_values" if leaf.nested else name


def shape_name(leaf: Leaf) -> str:
    """The name under which an Example keeps the shapes of a dynamic leaf."""
    return f"{leaf.name}/shape/ragged_flat_values" if leaf.nested else f"{leaf.name}/shape"


def length_names(leaf: Leaf) -> list[str]:
    """The names under which an Example keeps the lengths of inner sequences, outermost first."""
    name = f"{leaf.name}/value" if leaf.dynamic else leaf.name
    return [f"{name}/ragged_row_lengths_{level}" for level in range(len(leaf.lengths) - 1)]


def may_be_absent(leaf: Leaf) -> bool:
    """Whether a record may lack the leaf: it is optional, or text, which tfds does not mark."""
    return leaf.optional or (leaf.feature == "Text" and not leaf.lengths)


def blank(leaf: Leaf) -> dict[str, object]:
    """A placeholder for a leaf that may be absent and is not a list of bytes, for an Example."""
    if leaf.dtype == BYTES:
        return {leaf.name: b""}
    shape = [size or 0 for size in leaf.shape]
    zeros = np.zeros(shape, leaf.numpy_dtype)
    if not leaf.in_bytes:
        return {leaf.name: zeros.astype(np.int64 if zeros.dtype.kind in "iub" else np.float32)}
    data = zeros.tobytes()
    out: dict[str, object] = {
        values_name(leaf): zlib.compress(data) if leaf.encoding == "zlib" else data
    }
    return {**out, shape_name(leaf): np.array(shape, np.int64)} if leaf.dynamic else out


def of_values(
    leaf: Leaf, column: Column | list[list[bytes]], lengths: Sequence[InnerLengths], absent: Int64s
) -> LeafColumn:
    """Builds the column of numbers, or of text, from the flat values of each record.

    Raises:
        UnfitError: If the values of a record do not divide into items of the feature.
    """
    if isinstance(column, np.ndarray):
        return LeafColumn(leaf, len(column), _signless(leaf, column), (), absent)
    if isinstance(column, list):
        counts = np.array([len(values) for values in column], np.int64)
        flat = objects_of([value for values in column for value in values])
    else:
        counts, flat = np.diff(column.offsets), _signless(leaf, column.values)
    found, extents = _parted(leaf, leaf.shape, counts, lengths)
    items: Array | list[Any]
    if extents is not None:
        items = _cut(flat, leaf.shape, extents)
    elif leaf.dtype == BYTES and not leaf.shape:
        items = flat.tolist()
    else:
        items = flat.reshape(-1, *_sizes(leaf))
    return LeafColumn(leaf, len(counts), items, found, absent)


def of_bytes(
    leaf: Leaf,
    column: list[list[bytes]],
    lengths: Sequence[InnerLengths],
    shapes: Column | None,
    absent: Int64s,
    *,
    images: bool,
) -> LeafColumn:
    """Builds the column of tensors, or of images, from encoded bytes.

    Args:
        leaf: Their feature.
        column: The bytes in each record.
        lengths: Lengths of the inner sequences.
        shapes: Shape of each tensor, where the Example keeps it.
        absent: The rows without a value.
        images: Whether images are decoded.

    Raises:
        UnfitError: If bytes do not fit the feature.
    """
    counts = np.array([len(values) for values in column], np.int64)
    found, _ = _parted(leaf, (), counts, lengths)
    encoded = [value for values in column for value in values]
    items: Array | list[Any]
    if leaf.kind == IMAGE and not images:
        return LeafColumn(leaf, len(counts), encoded, found, absent)
    if leaf.kind == IMAGE:
        done = decode_images(encoded, leaf)
    else:
        done = _tensors(leaf, encoded, _shapes(leaf, shapes, counts))
    row_of = np.repeat(np.arange(len(counts)), counts).tolist()
    if wrong := {
        row: str(one) for row, one in zip(row_of, done, strict=True) if isinstance(one, ReadError)
    }:
        raise UnfitError(wrong)
    items = list(done)
    if None not in leaf.shape:
        items = np.stack(items) if items else np.empty((0, *_sizes(leaf)), leaf.numpy_dtype)
    return LeafColumn(leaf, len(counts), items, found, absent)


def rows_of(column: LeafColumn) -> Any:
    """Turns a column into rows: an array with a leading axis of records, or a list."""
    leaf, items = column.leaf, column.items
    if not leaf.lengths:
        if leaf.steady and isinstance(items, np.ndarray):
            return items
        rows = list(items)
        for row in column.absent.tolist():
            rows[row] = None
        return rows
    values: Any = items if isinstance(items, np.ndarray) else objects_of(items)
    if leaf.steady and isinstance(items, np.ndarray):
        return values.reshape(column.rows, *leaf.lengths, *values.shape[1:])
    inner = leaf.lengths[leaf.levels + 1 :]
    if inner:
        count = int(column.lengths[leaf.levels].sum())
        values = values.reshape(count, *inner, *values.shape[1:])
    for lengths in reversed(column.lengths[1 : leaf.levels + 1]):
        values = Ragged(values, offsets_of(lengths))
    offsets = offsets_of(column.lengths[0]).tolist()
    return [values[start:stop] for start, stop in itertools.pairwise(offsets)]


def _parted(
    leaf: Leaf, shape: Shape, counts: Int64s, inner: Sequence[InnerLengths]
) -> tuple[tuple[Int64s, ...], Int64s | None]:
    """Divides the `counts` values of each record into items.

    Returns:
        The lengths of sequences, as in `LeafColumn`; and the extent of the differing axis of each
        item, None if all axes are fixed.
    """
    known = math.prod(size for size in shape if size is not None)
    items = np.ones_like(counts)
    found: tuple[Int64s, ...] = ()
    if inner:
        items, found = _nested(inner)
    elif leaf.lengths:
        outer = leaf.lengths[0]
        # Either the length of the sequence or an axis of the items differs, never both.
        items = counts // known if outer is None else np.full_like(counts, outer)
        found = (items,)
    rows = np.arange(len(counts))
    for level, (size, lengths) in enumerate(zip(leaf.lengths, found, strict=True)):
        if size is not None:
            row_of = np.repeat(rows, inner[level - 1].counts) if level else rows
            _check(lengths == size, row_of, f"has a sequence of another length than {size}")
    extents = counts // np.maximum(items * known, 1) if None in shape else np.ones_like(counts)
    takes = f"{leaf.dtype} {leaf.shape}" + f" in sequences of {leaf.lengths}" * bool(leaf.lengths)
    _check(
        items * known * extents == counts,
        rows,
        f"has a number of values that {takes} does not take",
    )
    return found, np.repeat(extents, items) if None in shape else None


def _nested(inner: Sequence[InnerLengths]) -> tuple[Int64s, tuple[Int64s, ...]]:
    """Number of items in each record, and the lengths of all sequences, from the `inner` ones."""
    rows = np.arange(len(inner[0].counts))
    items = inner[0].counts
    for lengths in inner:
        _check(items == lengths.counts, rows, "has a number of inner sequences that do not add up")
        good = (lengths.values >= 0) & (lengths.values <= _MAX_ITEMS)
        _check(
            good, np.repeat(rows, lengths.counts), "has an inner sequence of an impossible length"
        )
        sums = offsets_of(lengths.values)[offsets_of(lengths.counts)]
        items = np.diff(sums)
    return items, (inner[0].counts, *(lengths.values for lengths in inner))


def _shapes(leaf: Leaf, column: Column | None, counts: Int64s) -> list[list[int]] | None:
    """The shape of each tensor, where Examples keep them."""
    if column is None:
        return None
    rank = len(leaf.shape)
    if isinstance(column, Ragged):
        good = np.diff(column.offsets) == counts * rank
        _check(good, np.arange(len(counts)), f"has shapes that are not of {rank} sizes each")
        column = column.values
    found: list[list[int]] = np.asarray(column).reshape(-1, rank).tolist()
    return found


def _tensors(
    leaf: Leaf, encoded: Sequence[bytes], shapes: Sequence[Sequence[int]] | None
) -> list[Array | ReadError]:
    """Decodes tensors from bytes; an error for each one that does not fit the feature."""
    out: list[Array | ReadError] = []
    for at, data in enumerate(encoded):
        try:
            out.append(_tensor(leaf, data, None if shapes is None else shapes[at]))
        except (ValueError, zlib.error) as error:
            out.append(ReadError(str(error)))
    return out


def _tensor(leaf: Leaf, data: bytes, shape: Sequence[int] | None) -> Array:
    sizes: list[int] = [-1 if size is None else size for size in leaf.shape]
    takes = f"{leaf.dtype} {leaf.shape}"
    if shape is not None:
        if any(b < 0 or a not in (-1, b) for a, b in zip(sizes, shape, strict=True)):
            raise ValueError(f"has the shape {tuple(shape)}, which {takes} does not take")
        sizes = list(shape)
    known = math.prod(size for size in sizes if size >= 0) * leaf.numpy_dtype.itemsize
    if leaf.encoding == "zlib":
        # Surplus data is not unpacked.
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(data, 0 if -1 in sizes else known + 1)
        if not unpacking.eof and (-1 in sizes or len(data) <= known):
            raise ValueError(f"has zlib data that ends early, after {len(data)} bytes")
    if (len(data) % known if known else len(data)) if -1 in sizes else len(data) != known:
        multiple = "a multiple of " * (-1 in sizes)
        raise ValueError(f"has {len(data)} bytes, and {takes} takes {multiple}{known}")
    if leaf.dtype == "bool" and data.strip(b"\0\1"):
        raise ValueError(f"has a byte other than 0 and 1, which {takes} cannot hold")
    sizes = [len(data) // max(known, 1) if size < 0 else size for size in sizes]
    return np.frombuffer(bytearray(data), leaf.numpy_dtype).reshape(sizes)


def _check(good: npt.NDArray[np.bool_], row_of: Int64s, why: str) -> None:
    if not good.all():
        raise UnfitError(dict.fromkeys(row_of[~good].tolist(), why))


def _cut(flat: Array, shape: Shape, extents: Int64s) -> list[Array]:
    """Cuts flat values into items in which one axis differs."""
    known = math.prod(size for size in shape if size is not None)
    offsets = offsets_of(extents * known).tolist()
    return [
        flat[start:stop].reshape([extent if size is None else size for size in shape])
        for start, stop, extent in zip(offsets, offsets[1:], extents.tolist(), strict=False)
    ]


def objects_of(values: Sequence[Any]) -> Array:
    """An array of objects, even of arrays of one shape."""
    out = np.empty(len(values), object)
    for at, value in enumerate(values):
        out[at] = value
    return out


def _signless(leaf: Leaf, values: Array) -> Array:
    # tfds keeps the bits of a uint64 in an int64.
    return values.view(np.uint64) if _kept_as(leaf) != leaf.dtype else values


def _kept_as(leaf: Leaf) -> str:
    return "int64" if leaf.dtype == "uint64" and not leaf.in_bytes else leaf.dtype


def _is_plain(leaf: Leaf) -> bool:
    return None not in leaf.shape


def _sizes(leaf: Leaf) -> tuple[int, ...]:
    return tuple(size for size in leaf.shape if size is not None)
