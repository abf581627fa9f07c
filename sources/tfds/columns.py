"""Decodes the records of a tfds dataset, which are serialised Examples, to columns.

`decode_examples` decodes all records at once. Protobuf reads sequences of bytes from each record.
Then lengths are checked, bytes become numbers or images, and values become the rows of columns.

Invariant: values have the bits that `tfds.data_source` gives. So do decoded images, where tfds decodes
them by Pillow and a file has the channels of its feature (see `tfds.images`). The values of a record
depend on it and the features alone, not on the other records.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from windrow.errors import ReadError
from windrow.sources.base import Columns
from windrow.sources.tf_example.columns import GIVE_FEATURES, decode_examples
from windrow.sources.tf_example.features import BYTES, Column, Feature, Ragged
from windrow.sources.tf_example.message import encode_example, parsed, values_of
from windrow.sources.tfds.features import IMAGE, Leaf, TfdsFeatures, tree_of
from windrow.sources.tfds.images import check_images
from windrow.sources.tfds.values import (
    InnerLengths,
    LeafColumn,
    UnfitError,
    blank,
    length_names,
    may_be_absent,
    of_bytes,
    of_values,
    rows_of,
    shape_name,
    values_name,
    wires_of,
)


def decode_records(
    records: Sequence[bytes],
    features: TfdsFeatures,
    *,
    images: bool = False,
    bad: list[ReadError] | None = None,
) -> Columns:
    """Decodes records to columns.

    - Numbers of one shape: an array `(rows, *lengths, *shape)` of the feature's dtype; labels int64.
    - All else: a list with a value per record. Numbers of a shape that differs, and sequences of
      them, are arrays. Text and encoded images are bytes; sequences of them are arrays of bytes
      `(n,)` of dtype object, and so are sequences of numbers or decoded images that each have a
      shape of their own. Sequences of sequences are `Ragged`. With one more level, the values of
      that `Ragged` are another `Ragged`.
    - An optional feature is None where it is absent. So is text, since features.json does not keep
      whether text is optional.
    - A nested dataset has the columns of a sequence.

    Args:
        records: Serialised Examples, as tfds writes them.
        features: The features to decode.
        images: Whether images are decoded, in threads, to arrays `(height, width, channels)`.
        bad: Takes the errors of bad records, in order, and their rows are left out. By default the
            first of them is raised.

    Returns:
        The tree of features, dicts in dicts. The columns share no memory with `records`.

    Raises:
        ReadError: If a record is damaged, or not of these features. `records` is `(number,
            number + 1)` of the record in the list, and `why` the message without the number.
        MissingExtraError: If `images` is true and Pillow is not installed.
    """
    found = decode_leaves(records, features.leaves, images=images, bad=bad)
    return tree_of({column.leaf.path: rows_of(column) for column in found})


def decode_leaves(
    records: Sequence[bytes],
    leaves: Sequence[Leaf],
    *,
    images: bool = False,
    bad: list[ReadError] | None = None,
) -> list[LeafColumn]:
    """Decodes the values of each leaf, all records one after another; see `decode_records`."""
    if images and any(leaf.kind == IMAGE for leaf in leaves):
        check_images()
    numbers = list(range(len(records)))
    found: dict[int, ReadError] = {}
    while True:
        batch = _ExampleBatch([records[number] for number in numbers], images=images)
        columns = batch.columns(leaves)
        if not batch.errors:
            break
        errors = {numbers[row]: _numbered(why, numbers[row]) for row, why in batch.errors.items()}
        if bad is None:
            raise errors[min(errors)]
        found |= errors
        numbers = [number for number in numbers if number not in errors]
    if bad is not None:
        bad.extend(found[number] for number in sorted(found))
    return columns


class _ExampleBatch:
    """Records to decode together; `errors` has the reason for each bad record, by row."""

    def __init__(self, records: list[bytes], *, images: bool) -> None:
        self.errors: dict[int, str] = {}
        self._records = records
        self._images = images
        self._absent: dict[str, set[int]] = {}

    def columns(self, leaves: Sequence[Leaf]) -> list[LeafColumn]:
        """One column for each leaf. They have no meaning if there are errors."""
        wires = {leaf.name: wires_of(leaf) for leaf in leaves}
        wanted = {name: one for some in wires.values() for name, one in some.items()}
        flat = self._decoded(wanted, leaves)
        parsed_leaves = [leaf for leaf in leaves if _needs_parsing(leaf)]
        listed = self._parsed(parsed_leaves) if parsed_leaves and not self.errors else {}
        out: list[LeafColumn] = []
        for leaf in leaves:
            if self.errors:
                break
            try:
                out.append(self._column(leaf, flat, listed))
            except UnfitError as error:
                self.errors |= {
                    row: f"feature {leaf.name!r} {why}" for row, why in error.rows.items()
                }
        return out

    def _column(
        self, leaf: Leaf, flat: Mapping[str, Column], listed: Mapping[str, list[list[bytes]]]
    ) -> LeafColumn:
        absent = np.array(sorted(self._absent.get(leaf.name, ())), np.int64)
        lengths = [_counts(flat[name]) for name in length_names(leaf)]
        if leaf.name in listed:
            column: Any = listed[leaf.name]
        else:
            column = flat[values_name(leaf)]
            if isinstance(column, Ragged) and column.values.dtype == np.uint8 and leaf.in_bytes:
                column = [[data] for data in _texts(column)]
        shapes = flat[shape_name(leaf)] if leaf.dynamic else None
        if isinstance(column, list) and leaf.dtype != BYTES:
            return of_bytes(leaf, column, lengths, shapes, absent, images=self._images)
        return of_values(leaf, column, lengths, absent)

    def _decoded(self, wanted: Mapping[str, Feature], leaves: Sequence[Leaf]) -> dict[str, Column]:
        """The columns of `wanted`. Values that may be absent, and are, get a blank."""
        if not wanted:
            return {}
        bad: list[ReadError] = []
        flat = decode_examples(self._records, wanted, bad=bad)
        if bad and self._fill([_row_of(error) for error in bad], leaves):
            bad = []
            flat = decode_examples(self._records, wanted, bad=bad)
        # Features of tfds come from its files, not from the user.
        self.errors = {
            _row_of(error): (error.why or str(error)).removesuffix(GIVE_FEATURES) for error in bad
        }
        return flat

    def _fill(self, rows: Sequence[int], leaves: Iterable[Leaf]) -> bool:
        """Adds blanks for absent values to the records at `rows`; returns whether any was absent."""
        filled = False
        leaves = [
            leaf for leaf in leaves if may_be_absent(leaf) and values_name(leaf) in wires_of(leaf)
        ]
        for row in rows if leaves else ():
            try:
                found = parsed(self._records[row])
            except ReadError:
                continue
            for leaf in leaves:
                name = values_name(leaf)
                if name not in found or values_of(found[name]) is None:
                    # Two Examples, one after another, parse as one with the features of both.
                    self._records[row] += encode_example(blank(leaf))
                    self._absent.setdefault(leaf.name, set()).add(row)
                    filled = True
        return filled

    def _parsed(self, leaves: Sequence[Leaf]) -> dict[str, list[list[bytes]]]:
        """The bytes of leaves that are lists of bytes, by name and record."""
        out: dict[str, list[list[bytes]]] = {
            leaf.name: [] for leaf in leaves if not wires_of(leaf).get(values_name(leaf))
        }
        for row, record in enumerate(self._records):
            try:
                found = parsed(record)
            except ReadError as error:
                self.errors[row] = error.why or str(error)
                continue
            for leaf in leaves:
                name = values_name(leaf)
                values = values_of(found[name]) if name in found else None
                if values is None and leaf.optional:
                    self._absent.setdefault(leaf.name, set()).add(row)
                if leaf.name not in out:
                    continue
                if not isinstance(values, list | type(None)):
                    self.errors[row] = f"feature {name!r} is of {values.dtype}, and takes bytes"
                if values is None and leaf.optional:
                    values = [b""] * math.prod(size or 0 for size in leaf.shape)
                out[leaf.name].append(values if isinstance(values, list) else [])
        return out


def _needs_parsing(leaf: Leaf) -> bool:
    """Whether only protobuf can read the leaf: a list of bytes, or one that may be absent or empty."""
    wires = wires_of(leaf)
    value = wires.get(values_name(leaf))
    return value is None or (leaf.optional and value.may_be_missing)


def _counts(column: Any) -> InnerLengths:
    # Lengths are decoded as a ragged feature.
    return InnerLengths(np.diff(column.offsets), column.values)


def _texts(column: Ragged) -> list[bytes]:
    data = column.values.tobytes()
    offsets = column.offsets.tolist()
    return [data[start:stop] for start, stop in itertools.pairwise(offsets)]


def _row_of(error: ReadError) -> int:
    if error.records is None:
        raise error
    return error.records[0]


def _numbered(why: str, number: int) -> ReadError:
    return ReadError(f"record {number}: {why}", records=(number, number + 1), why=why)
