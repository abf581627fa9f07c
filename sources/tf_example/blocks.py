"""Decodes blocks of records of one length: NumPy cuts them up along their layouts.

A few records at a time are joined, so that they stay in the processor's cache. Large values are
copied from there into their columns. The rest of many records is gathered and then decoded.

Invariant: the columns hold the values that protobuf and the feature would give for each record. A
record that they might reject is left to them. Their values then replace the copied ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.sources.tf_example.features import Array, Column, Feature, cast, ragged_of
from windrow.sources.tf_example.layout import NO_LIST, Block, FeaturePart, RecordLayout, layout_of
from windrow.sources.tf_example.wire import BYTES_LIST, FLOAT_LIST, INT64_LIST, read_varints

Rows: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

# Bytes joined at a time: they fit a processor's cache, and outweigh the cost of a call.
_BLOCK_BYTES: Final = 1 << 18
# Records decoded together: their bytes without large values, and their greatest number.
_REST_BYTES: Final = 1 << 21
_MOST_ROWS: Final = 4096
# Values from this size on are copied by themselves.
_LARGE_BYTES: Final = 256
# Protobuf is as quick for fewer records of one length.
_FEWEST: Final = 16
# A file has as many orders of features as programs wrote it. Where there are more, layouts do not help.
_MOST_LAYOUTS: Final = 8
# A layout is tried on this many records, and must fit more than this share of them.
_TRIED: Final = 64
_LEAST_SHARE: Final = 1 / 32
_NO_ROWS: Final[Rows] = np.empty(0, np.int64)


class Filling:
    """A column to be filled, with rows in any order."""

    def __init__(self, feature: Feature, rows: int) -> None:
        self.feature = feature
        # Kept here, since every record needs them.
        self.dtype = feature.numpy_dtype
        self.items = feature.items
        self._shape = feature.item_shape
        self._rows = rows
        # Made when the first record has values of this shape: a feature may ask for any size.
        self._array: Array | None = None
        self._chunks: list[bytes | memoryview] = [b""] * (rows if feature.ragged else 0)

    def put(self, rows: Rows, values: Array, counts: Rows | int) -> None:
        """Fills `rows`, which ascend, with their `values`; each row has `counts` items."""
        if not self._chunks:
            self._of_rows()[_span(rows)] = values.reshape(len(rows), *self._shape)
            return
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        start = 0
        stops = np.cumsum(np.broadcast_to(counts, len(rows))) * self.feature.item_bytes
        for row, stop in zip(rows.tolist(), stops.tolist(), strict=True):
            self._chunks[row] = data[start:stop]
            start = stop

    def put_bytes(self, rows: Rows, data: Block) -> None:
        """Fills `rows` of one shape with their bytes, uint8 `(rows, bytes)`."""
        # As bytes, since numbers in a record are not aligned.
        self._of_rows().reshape(self._rows, -1).view(np.uint8)[_span(rows)] = data

    def put_row(self, row: int, value: Array | bytes) -> None:
        """Fills one row with a flat array of the column's dtype, or with its bytes."""
        if isinstance(value, bytes):
            self._chunks[row] = value
        elif self._chunks:
            self._chunks[row] = value.view(np.uint8).data
        else:
            self._of_rows()[row] = value.reshape(self._shape)

    def column(self, kept: Mask) -> Column:
        """The column of the rows that are `kept`."""
        if not self.feature.ragged:
            if self._array is None:
                return np.empty((0, *self._shape), self.dtype)
            return self._array if kept.all() else self._array[kept]
        chunks = [self._chunks[row] for row in np.flatnonzero(kept).tolist()]
        return ragged_of(chunks, self.feature)

    def _of_rows(self) -> Array:
        if self._array is None:
            self._array = np.empty((self._rows, *self._shape), self.dtype)
        return self._array


def fill_by_layouts(
    records: Sequence[bytes], fillings: Mapping[str, Filling], *, exact: bool
) -> Rows:
    """Fills the columns from all records that layouts can decode.

    Args:
        records: The messages.
        fillings: The columns to fill, by feature.
        exact: Whether to leave out records that have other features too.

    Returns:
        The rows that are left, in ascending order.
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
        else:
            left += _OfOneLength(records, fillings, exact=exact).fill(rows)
    return np.sort(np.concatenate(left))


def _span(rows: Rows) -> Rows | slice:
    """Ascending rows, as a slice if they have no gap."""
    start, stop = int(rows[0]), int(rows[-1]) + 1
    return slice(start, stop) if stop - start == len(rows) else rows


@dataclasses.dataclass(frozen=True, slots=True)
class _LayoutCuts:
    """A layout, and how its parts are decoded.

    Args:
        layout: The layout of whole records.
        large: Parts, in their order, that are copied by themselves, or skipped if no column needs
            them.
        rest: The layout without the large parts.
        wanted: The other parts that columns need, None where the feature is missing.
        others: Varints that no column needs. They are checked all the same.
    """

    layout: RecordLayout
    large: tuple[FeaturePart, ...]
    rest: RecordLayout
    wanted: Mapping[str, tuple[Feature, FeaturePart | None]]
    others: tuple[FeaturePart, ...]

    @classmethod
    def of(
        cls, record: bytes, features: Mapping[str, Feature], *, exact: bool
    ) -> _LayoutCuts | None:
        """The cut for records like this one; None if the record has to be left to protobuf."""
        layout = layout_of(record)
        if layout is None:
            return None
        parts = {part.name: part for part in layout.parts if part.kind != NO_LIST}
        if exact and not features.keys() >= parts.keys():
            return None
        if not all(_suits(feature, parts.get(name)) for name, feature in features.items()):
            return None
        large = {name: part for name, part in parts.items() if _is_large(features.get(name), part)}
        rest = layout.without(large)
        parts = {part.name: part for part in rest.parts if part.kind != NO_LIST}
        others = (part for name, part in parts.items() if name not in features)
        return cls(
            layout,
            tuple(large.values()),
            rest,
            {name: (f, parts.get(name)) for name, f in features.items() if name not in large},
            tuple(part for part in others if part.kind == INT64_LIST and part.spans),
        )

    @property
    def kept(self) -> Iterator[tuple[int, int]]:
        """Yields `(start, stop)` for the bytes of a record that `rest` covers."""
        at = 0
        for start, stop in (span for part in self.large for span in part.spans):
            yield at, start
            at = stop
        yield at, self.layout.record_bytes

    def values(self, block: Block) -> tuple[dict[str, tuple[Array, Rows | int]], Mask]:
        """Decodes the wanted parts of `block`, whose rows all have the layout.

        Returns:
            Values and counts of items by feature, as `Filling.put` takes them, and which rows are
            good. If a row is not good, call again without it.
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


class _OfOneLength:
    """Records of one length, cut up by the layouts that they have."""

    def __init__(
        self, records: Sequence[bytes], fillings: Mapping[str, Filling], *, exact: bool
    ) -> None:
        self._records = records
        self._fillings = fillings
        self._features = {name: filling.feature for name, filling in fillings.items()}
        self._exact = exact

    def fill(self, rows: Rows) -> Iterator[Rows]:
        """Fills the columns from the records at `rows`; yields the rows that are left."""
        for turn in range(_MOST_LAYOUTS):
            if len(rows) < _FEWEST:
                break
            # Records far apart are tried, since odd ones may stand next to one another.
            record = self._records[rows[len(rows) * turn // _MOST_LAYOUTS]]
            cut = _LayoutCuts.of(record, self._features, exact=self._exact)
            if cut is None or not self._is_worth(cut, rows):
                continue
            step = max(min(_MOST_ROWS, _REST_BYTES // cut.rest.record_bytes), 1)
            others = []
            for at in range(0, len(rows), step):
                bad, other = self._fill(cut, rows[at : at + step])
                yield bad
                others.append(other)
            rows = np.concatenate(others)
        yield rows

    def _is_worth(self, cut: _LayoutCuts, rows: Rows) -> bool:
        """Whether enough records have the layout, judged by a few of them."""
        some = rows[:: max(len(rows) // _TRIED, 1)]
        return bool(cut.layout.fits(self._block(some)).mean() > _LEAST_SHARE)

    def _fill(self, cut: _LayoutCuts, rows: Rows) -> tuple[Rows, Rows]:
        """Fills the columns from the rows that have this layout.

        Returns:
            The rows with this layout but bad values, and the rows without this layout.
        """
        block = self._rest(cut, rows)
        has = cut.rest.fits(block)
        others = rows[:0]
        if not has.all():
            others = rows[~has]
            rows, block = rows[has], block[has]
        found, good = cut.values(block)
        bad = rows[:0]
        if not good.all():
            bad, rows = rows[~good], rows[good]
            found, _ = cut.values(block[good])
        if len(rows):
            for name, (values, counts) in found.items():
                self._fillings[name].put(rows, values, counts)
        return bad, others

    def _rest(self, cut: _LayoutCuts, rows: Rows) -> Block:
        """Fills in the large values, whether the layout fits or not; returns the other bytes."""
        rest = np.empty((len(rows), cut.rest.record_bytes), np.uint8)
        wanted = [part for part in cut.large if part.name in self._fillings]
        step = max(_BLOCK_BYTES // cut.layout.record_bytes, 1)
        for at in range(0, len(rows), step):
            some = rows[at : at + step]
            block = self._block(some)
            for part in wanted:
                self._fillings[part.name].put_bytes(some, _bytes(block, part))
            to = 0
            for start, stop in cut.kept:
                rest[at : at + step, to : to + stop - start] = block[:, start:stop]
                to += stop - start
        return rest

    def _block(self, rows: Rows) -> Block:
        """The records at `rows` as uint8 `(rows, bytes)`."""
        span = _span(rows)
        if isinstance(span, slice):
            data = b"".join(self._records[span])
        else:
            data = b"".join([self._records[row] for row in rows.tolist()])
        return np.frombuffer(data, np.uint8).reshape(len(rows), -1)


def _is_large(feature: Feature | None, part: FeaturePart) -> bool:
    """Whether a part is large, and any bytes are valid values of it."""
    if part.size_bytes < _LARGE_BYTES:
        return False
    if feature is None:
        return part.kind != INT64_LIST
    if feature.ragged or part.kind == INT64_LIST:
        return False
    return feature.dtype == "float32" or (feature.raw and feature.dtype != "bool")


def _suits(feature: Feature, part: FeaturePart | None) -> bool:
    """Whether a part has the kind of a feature, and a length that it takes, where that is known."""
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


def _values(
    feature: Feature, part: FeaturePart | None, block: Block
) -> tuple[Array, Rows | int, Rows]:
    """Values, counts of items in each row, and the rows with values that the feature rejects."""
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


def _bytes(block: Block, part: FeaturePart) -> Block:
    """The bytes of a part's one span, in each record."""
    start, stop = part.spans[0] if part.spans else (0, 0)
    return block[:, start:stop]
