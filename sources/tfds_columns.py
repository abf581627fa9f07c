"""Columns of a dataset of tfds: what its records, serialised Examples, hold.

What layouts can cut up, `decode_examples` does for all records at once. Sequences of bytes are taken
from each record by protobuf. Then lengths are checked, and bytes become numbers or images, and
values the rows of columns.

Invariant: values are bit for bit what `tfds.data_source` gives; decoded images too, where it decodes
them by Pillow and a file has the channels of its feature (see `tfds_images`). What becomes of a
record depends on it and the features alone, not on the records beside it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from windrow.errors import ReadError
from windrow.sources.base import Columns
from windrow.sources.example import encode_example, parsed, values_of
from windrow.sources.example_columns import GIVE_FEATURES, decode_examples
from windrow.sources.features import BYTES, Column, Feature, Ragged
from windrow.sources.tfds_features import IMAGE, Leaf, TfdsFeatures, tree_of
from windrow.sources.tfds_images import check_images
from windrow.sources.tfds_values import (
    Counts,
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
    """The columns of records.

    - Numbers of one shape: an array `(rows, *lengths, *shape)` of the feature's dtype; labels int64.
    - All else: a list with a value per record. Numbers of a shape that differs, and sequences of
      them, are arrays. Text and encoded images are bytes; sequences of them arrays of bytes `(n,)`
      of dtype object, and so are sequences of numbers or decoded images that each have a shape of
      their own. Sequences of sequences are `Ragged`, and of those a `Ragged` whose values are one.
    - What is optional is None where it is absent; so is text, of which features.json does not keep
      that it is optional.
    - A nested dataset has the columns of a sequence.

    Args:
        records: Serialised Examples, as tfds writes them.
        features: Of all that is wanted.
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
    """The values of each leaf, of all records one after another; as `decode_records` else."""
    if images and any(leaf.kind == IMAGE for leaf in leaves):
        check_images()
    numbers = list(range(len(records)))
    found: dict[int, ReadError] = {}
    while True:
        batch = _Batch([records[number] for number in numbers], images=images)
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


class _Batch:
    """Records that are being decoded; `errors` are what is wrong with some, by row."""

    def __init__(self, records: list[bytes], *, images: bool) -> None:
        self.errors: dict[int, str] = {}
        self._records = records
        self._images = images
        self._absent: dict[str, set[int]] = {}

    def columns(self, leaves: Sequence[Leaf]) -> list[LeafColumn]:
        """One for each leaf; without meaning if there are errors."""
        wires = {leaf.name: wires_of(leaf) for leaf in leaves}
        wanted = {name: one for some in wires.values() for name, one in some.items()}
        flat = self._decoded(wanted, leaves)
        looked_at = [leaf for leaf in leaves if _needs_a_look(leaf)]
        listed = self._parsed(looked_at) if looked_at and not self.errors else {}
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
        """What layouts can cut up. What is absent, and may be, is filled in."""
        if not wanted:
            return {}
        bad: list[ReadError] = []
        flat = decode_examples(self._records, wanted, bad=bad)
        if bad and self._fill([_row_of(error) for error in bad], leaves):
            bad = []
            flat = decode_examples(self._records, wanted, bad=bad)
        # Features of tfds are not given, but told by its files.
        self.errors = {
            _row_of(error): (error.why or str(error)).removesuffix(GIVE_FEATURES) for error in bad
        }
        return flat

    def _fill(self, rows: Sequence[int], leaves: Iterable[Leaf]) -> bool:
        """Fill in what is absent in the records at `rows`; whether anything was."""
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
                    # Examples one after another are one, with the features of both.
                    self._records[row] += encode_example(blank(leaf))
                    self._absent.setdefault(leaf.name, set()).add(row)
                    filled = True
        return filled

    def _parsed(self, leaves: Sequence[Leaf]) -> dict[str, list[list[bytes]]]:
        """The bytes of leaves that are lists of them, by name and record."""
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


def _needs_a_look(leaf: Leaf) -> bool:
    """Whether protobuf alone can tell of it: lists of bytes, and whether it is there or empty."""
    wires = wires_of(leaf)
    value = wires.get(values_name(leaf))
    return value is None or (leaf.optional and value.may_be_missing)


def _counts(column: Any) -> Counts:
    # Lengths are asked for as a ragged feature.
    return Counts(np.diff(column.offsets), column.values)


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
