"""Decodes blocks of records of one length: NumPy cuts them up along their layouts.

Records that one program writes mostly differ in their values alone. Tags, names and lengths are the
same bytes at the same places. A layout is those bytes, taken from one record. Every other record
with these bytes has the same features at the same places, and need not be parsed. The usual way of
writing has features and values in one piece each, no name twice and no unknown fields. A record
written in any other way has no layout, and protobuf parses it.

A few records at a time are joined, so that they stay in the processor's cache. Large values are
copied from there into their columns. The rest of many records is gathered and then decoded.

Invariants: a record that a layout fits parses, and its values are where the layout says. The columns
hold the values that protobuf and the feature would give for each record. A record that they might
reject is left to them. Their values then replace the copied ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.sources.tf_example.features import Array, Column, Feature, cast, ragged_of
from windrow.sources.tf_example.wire import (
    BYTES_LIST,
    FIRST_FIELD,
    FLOAT_LIST,
    INT64_LIST,
    SECOND_FIELD,
    read_varints,
)

Rows: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Block: TypeAlias = npt.NDArray[np.uint8]

NO_LIST: Final = 0

# A length of more bytes would be far longer than any record.
_MAX_LENGTH_BYTES: Final = 5

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


# Layouts.


@dataclasses.dataclass(frozen=True, slots=True)
class FeaturePart:
    """A feature in a layout.

    Args:
        name: Name of the feature.
        kind: The tag of its list: `BYTES_LIST`, `FLOAT_LIST`, `INT64_LIST`, or `NO_LIST`.
        spans: The bytes `[start, stop)` of the record that hold its values: one span per value of a
            list of bytes; one for all numbers, or an empty tuple without numbers.
    """

    name: str
    kind: int
    spans: tuple[tuple[int, int], ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all its values."""
        return sum(stop - start for start, stop in self.spans)


@dataclasses.dataclass(frozen=True, slots=True)
class RecordLayout:
    """The places of values in records of one length.

    `fixed` are all other bytes, as (start, bytes). They identify the records of this layout.
    """

    record_bytes: int
    parts: tuple[FeaturePart, ...]
    fixed: tuple[tuple[int, bytes], ...]

    def fits(self, block: Block) -> npt.NDArray[np.bool_]:
        """Returns which rows of `block`, uint8 `(records, record_bytes)`, have this layout.

        The varints of an `INT64_LIST` are not checked here: the caller checks them as it reads them.
        """
        block = np.ascontiguousarray(block)
        good = np.ones(len(block), np.bool_)
        for start, expected in self.fixed:
            stop = start + len(expected)
            # Mostly all rows fit, and one comparison shows that.
            if block[:, start:stop].tobytes() == expected * len(block):
                continue
            kind = np.dtype((np.void, len(expected)))
            found: npt.NDArray[np.void] = np.ndarray(
                len(block), kind, block, start, (self.record_bytes,)
            )
            good &= found == np.void(expected)
        return good

    def without(self, names: Collection[str]) -> RecordLayout:
        """The layout of the same records after the values of some parts are cut out."""
        gone = [span for part in self.parts if part.name in names for span in part.spans]

        def moved(at: int) -> int:
            return at - sum(stop - start for start, stop in gone if stop <= at)

        return RecordLayout(
            moved(self.record_bytes),
            tuple(
                FeaturePart(
                    part.name, part.kind, tuple((moved(a), moved(b)) for a, b in part.spans)
                )
                for part in self.parts
                if part.name not in names
            ),
            tuple((moved(at), data) for at, data in self.fixed),
        )


def layout_of(record: bytes) -> RecordLayout | None:
    """The layout of a record; None if it is not written in the usual way, or is not an Example.

    Example:
        >>> record = bytes.fromhex("0a0c 0a0a 0a0161 1205 1a03 0a0105")
        >>> layout = layout_of(record)
        >>> layout.parts
        (FeaturePart(name='a', kind=26, spans=((13, 14),)),)
        >>> layout.fits(np.frombuffer(record[:-1] + b"7", np.uint8)[np.newaxis])
        array([ True])
        >>> layout_of(b"something else")
    """
    try:
        parts = tuple(_parts(record))
    except ValueError:  # names that are not UTF-8 raise it too
        return None
    if len({part.name for part in parts}) < len(parts):
        return None  # protobuf takes the last feature of a name
    return RecordLayout(len(record), parts, tuple(_between(record, parts)))


def _parts(record: bytes) -> Iterator[FeaturePart]:
    at, stop = _inside(record, 0, len(record), FIRST_FIELD, whole=True)
    while at < stop:
        begin, at_next = _inside(record, at, stop, FIRST_FIELD)
        name_start, name_stop = _inside(record, begin, at_next, FIRST_FIELD)
        value, _ = _inside(record, name_stop, at_next, SECOND_FIELD, whole=True)
        name = record[name_start:name_stop].decode()
        yield FeaturePart(name, *_list_spans(record, value, at_next))
        at = at_next


def _list_spans(record: bytes, start: int, stop: int) -> tuple[int, tuple[tuple[int, int], ...]]:
    """The kind of a Feature's list, and the spans of its values."""
    if start == stop:
        return NO_LIST, ()
    kind = record[start]
    if kind not in (BYTES_LIST, FLOAT_LIST, INT64_LIST):
        raise ValueError("an unknown field")
    at, stop = _inside(record, start, stop, kind, whole=True)
    spans = []
    while at < stop:
        span = _inside(record, at, stop, FIRST_FIELD, whole=kind != BYTES_LIST)
        if kind == FLOAT_LIST and (span[1] - span[0]) % 4:
            raise ValueError("a part of a float")
        spans.append(span)
        at = span[1]
    return kind, tuple(spans)


def _inside(record: bytes, at: int, stop: int, tag: int, *, whole: bool = False) -> tuple[int, int]:
    """The bytes of the field with `tag` at `at`. It ends by `stop`, or exactly there if `whole`."""
    if at >= stop or record[at] != tag:
        raise ValueError("another field")
    length = 0
    for place in range(_MAX_LENGTH_BYTES):
        at += 1
        if at >= stop:
            raise ValueError("cut in a length")
        length |= (record[at] & 0x7F) << 7 * place
        if record[at] < 0x80:
            break
    else:
        raise ValueError("a length of too many bytes")
    start = at + 1
    if start + length > stop or (whole and start + length < stop):
        raise ValueError("another length")
    return start, start + length


def _between(record: bytes, parts: tuple[FeaturePart, ...]) -> Iterator[tuple[int, bytes]]:
    """Yields the bytes between the values, each run with its start."""
    at = 0
    for start, stop in (span for part in parts for span in part.spans):
        yield at, record[at:start]
        at = stop
    if at < len(record):
        yield at, record[at:]
