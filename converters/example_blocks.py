"""Blocks: records of one length, cut up by NumPy along the layouts that they have.

Invariant: what is filled in is what protobuf and the feature would say of each record. Whatever
they might say no to is left to them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.converters.example_layout import NO_LIST, Block, Layout, Part, layout_of
from windrow.converters.example_wire import BYTES_LIST, FLOAT_LIST, INT64_LIST, read_varints
from windrow.converters.features import Array, Column, Feature, Ragged, cast

Rows: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

# A block stays in the processor's cache between being joined and being cut up.
_BLOCK_BYTES: Final = 2 << 20
# Of fewer records of one length, protobuf is as quick.
_FEWEST: Final = 16
# A file has as many orders of features as programs wrote it. Where there are more, layouts do not help.
_MOST_LAYOUTS: Final = 8
_NO_ROWS: Final[Rows] = np.empty(0, np.int64)


class Filling:
    """A column that is being filled, rows in any order."""

    def __init__(self, feature: Feature, rows: int) -> None:
        self.feature = feature
        # Here, since they are asked for with every record.
        self.dtype = feature.numpy_dtype
        self.items = feature.items
        self._shape = feature.item_shape
        self._rows = rows
        # Not made before a record has so many values: a feature may ask for any size.
        self._array: Array | None = None
        self._pieces: list[bytes | memoryview] = [b""] * (rows if feature.ragged else 0)

    def put(self, rows: Rows, values: Array, counts: Rows | int) -> None:
        """Put in `rows`, in ascending order; `values` are all theirs, of `counts` items each."""
        if not self._pieces:
            span = slice(rows[0], rows[-1] + 1)
            alike = span.stop - span.start == len(rows)
            self._of_rows()[span if alike else rows] = values.reshape(len(rows), *self._shape)
            return
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        start = 0
        stops = np.cumsum(np.broadcast_to(counts, len(rows))) * self.feature.item_bytes
        for row, stop in zip(rows.tolist(), stops.tolist(), strict=True):
            self._pieces[row] = data[start:stop]
            start = stop

    def put_row(self, row: int, value: Array | bytes) -> None:
        """Put in one row: flat, of the column's dtype, or its bytes."""
        if isinstance(value, bytes):
            self._pieces[row] = value
        elif self._pieces:
            self._pieces[row] = value.view(np.uint8).data
        else:
            self._of_rows()[row] = value.reshape(self._shape)

    def column(self, kept: Mask) -> Column:
        """The rows that are `kept`."""
        if not self.feature.ragged:
            if self._array is None:
                return np.empty((0, *self._shape), self.dtype)
            return self._array if kept.all() else self._array[kept]
        pieces = [self._pieces[row] for row in np.flatnonzero(kept).tolist()]
        values = np.frombuffer(bytearray().join(pieces), self.dtype).reshape(-1, *self._shape)
        offsets = np.zeros(len(pieces) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, pieces), np.int64, len(pieces)), out=offsets[1:])
        return Ragged(values, offsets // self.feature.item_bytes)

    def _of_rows(self) -> Array:
        if self._array is None:
            self._array = np.empty((self._rows, *self._shape), self.dtype)
        return self._array


def fill_by_layouts(
    records: Sequence[bytes], fillings: Mapping[str, Filling], *, exact: bool
) -> Rows:
    """Fill in what goes by layouts; the rows that are left, in order.

    Args:
        records: The messages.
        fillings: The columns to fill, by feature.
        exact: Whether records with features beside these are to be left.
    """
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    by_size = np.argsort(sizes, kind="stable")
    stops = np.flatnonzero(np.diff(sizes[by_size], append=-1)) + 1
    left = [np.empty(0, np.int64)]
    start = 0
    for stop in stops.tolist():
        rows, start = by_size[start:stop], stop
        if len(rows) < _FEWEST or not len(records[rows[0]]):
            left.append(rows)
            continue
        cutter = _Cutter(fillings, exact=exact)
        for some, block in _blocks(records, rows):
            left += cutter.cut(some, block)
    return np.sort(np.concatenate(left))


def _blocks(records: Sequence[bytes], rows: Rows) -> Iterator[tuple[Rows, Block]]:
    """Records of one length as blocks, uint8 `(records, bytes)`."""
    step = max(_BLOCK_BYTES // len(records[rows[0]]), 1)
    for at in range(0, len(rows), step):
        some = rows[at : at + step]
        data = b"".join(_picked(records, some))
        yield some, np.frombuffer(data, np.uint8).reshape(len(some), -1)


def _picked(records: Sequence[bytes], rows: Rows) -> Sequence[bytes]:
    """The records at `rows`, which ascend."""
    start, stop = int(rows[0]), int(rows[-1]) + 1
    if stop - start == len(rows):
        return records[start:stop]
    return [records[row] for row in rows.tolist()]


@dataclasses.dataclass(frozen=True, slots=True)
class _Cut:
    """A layout, and what to do with its parts.

    `wanted` are the parts that columns are made of, None where the feature is missing; `others` are
    varints that nobody wants, which have to be varints all the same.
    """

    layout: Layout
    wanted: Mapping[str, tuple[Feature, Part | None]]
    others: tuple[Part, ...]

    @classmethod
    def of(cls, record: bytes, features: Mapping[str, Feature], *, exact: bool) -> _Cut | None:
        """The cut for records like this one; None if it has to be left."""
        layout = layout_of(record)
        if layout is None:
            return None
        parts = {part.name: part for part in layout.parts if part.kind != NO_LIST}
        if exact and not features.keys() >= parts.keys():
            return None
        if not all(_suits(feature, parts.get(name)) for name, feature in features.items()):
            return None
        others = (part for name, part in parts.items() if name not in features)
        return cls(
            layout,
            {name: (feature, parts.get(name)) for name, feature in features.items()},
            tuple(part for part in others if part.kind == INT64_LIST and part.spans),
        )

    def values(self, block: Block) -> tuple[dict[str, tuple[Array, Rows | int]], Mask]:
        """By feature, values and counts of items, as `Filling.put` takes them; which rows are good.

        All rows of `block` have the layout. If one is not good, leave it out and ask again.
        """
        good = np.ones(len(block), np.bool_)
        found: dict[str, tuple[Array, Rows | int]] = {}
        for name, (feature, part) in self.wanted.items():
            values, counts, bad = _values(feature, part, block)
            found[name] = values, counts
            if len(bad):
                good[bad] = False
        for part in self.others:
            good[read_varints(_bytes(block, part))[2]] = False
        return found, good


class _Cutter:
    """Cuts up records of one length, by the layouts that it meets."""

    def __init__(self, fillings: Mapping[str, Filling], *, exact: bool) -> None:
        self._fillings = fillings
        self._features = {name: filling.feature for name, filling in fillings.items()}
        self._exact = exact
        self._cuts: list[_Cut] = []

    def cut(self, rows: Rows, block: Block) -> Iterator[Rows]:
        """Fill in the records of `block`, which are `rows`; the rows that are left."""
        for cut in self._cuts:
            bad, rows, block = self._fill(cut, rows, block)
            yield bad
        for _ in range(_MOST_LAYOUTS - len(self._cuts)):
            if not len(rows):
                break
            new = _Cut.of(block[0].tobytes(), self._features, exact=self._exact)
            if new is None:
                bad, rows, block = rows[:1], rows[1:], block[1:]
            else:
                self._cuts.append(new)
                bad, rows, block = self._fill(new, rows, block)
            yield bad
        yield rows

    def _fill(self, cut: _Cut, rows: Rows, block: Block) -> tuple[Rows, Rows, Block]:
        """Fill in what has this layout; rows of it with bad values, and those that have it not."""
        has = cut.layout.fits(block)
        others = rows[:0], block[:0]
        if not has.all():
            others = rows[~has], block[~has]
            rows, block = rows[has], block[has]
        found, good = cut.values(block)
        bad = rows[:0]
        if not good.all():
            bad, rows = rows[~good], rows[good]
            found, _ = cut.values(block[good])
        if len(rows):
            for name, (values, counts) in found.items():
                self._fillings[name].put(rows, values, counts)
        return bad, *others


def _suits(feature: Feature, part: Part | None) -> bool:
    """Whether a part is of the kind of a feature, and of a length that it takes where that is known."""
    if part is None:
        return feature.may_be_missing
    size = sum(stop - start for start, stop in part.spans)
    if feature.in_bytes:
        one = part.kind == BYTES_LIST and len(part.spans) == 1
        return one and _is_length(feature, size, feature.item_bytes)
    if feature.numpy_dtype.kind in "iub":
        return part.kind == INT64_LIST
    return part.kind == FLOAT_LIST and _is_length(feature, size, 4 * feature.items)


def _is_length(feature: Feature, size: int, item_size: int) -> bool:
    return size % item_size == 0 if feature.ragged else size == item_size


def _values(feature: Feature, part: Part | None, block: Block) -> tuple[Array, Rows | int, Rows]:
    """Values, counts of items in each row, and the rows whose values the feature does not take."""
    dtype = feature.numpy_dtype
    if part is None:
        return np.empty(0, dtype), 0, _NO_ROWS
    data = _bytes(block, part)
    if feature.in_bytes:
        is_bad = data.max(axis=1, initial=0) > 1 if feature.dtype == "bool" else None
        bad = _NO_ROWS if is_bad is None else np.flatnonzero(is_bad)
        return data.view(dtype), data.shape[1] // max(feature.item_bytes, 1), bad
    counts: Rows | int
    if part.kind == FLOAT_LIST:
        numbers: Array = data.view(np.float32)
        counts, bad = numbers.shape[1], _NO_ROWS
    else:
        numbers, counts, bad = read_varints(data)
        wrong = counts % feature.items if feature.ragged else counts != feature.items
        bad = np.concatenate([bad, np.flatnonzero(wrong)])
    values, fits = cast(numbers, dtype)
    if fits is not None and not fits.all():
        row_of = np.repeat(np.arange(len(block)), counts)
        bad = np.concatenate([bad, row_of[~fits.reshape(-1)]])
    return values, counts // feature.items if feature.ragged else counts, bad


def _bytes(block: Block, part: Part) -> Block:
    """The bytes of a part's one span, in each record."""
    start, stop = part.spans[0] if part.spans else (0, 0)
    return block[:, start:stop]
