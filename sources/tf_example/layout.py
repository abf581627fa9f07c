"""Finds where the values of an Example's features are, for many records at once.

Records that one program writes mostly differ in their values alone. Tags, names and lengths are the
same bytes at the same places. A layout is those bytes, taken from one record. Every other record
with these bytes has the same features at the same places, and need not be parsed.

Invariant: a record that a layout fits parses, and its values are where the layout says. The usual
way of writing has features and values in one piece each, no name twice and no unknown fields. A
record written in any other way has no layout, and protobuf parses it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.sources.tf_example.wire import (
    BYTES_LIST,
    FIRST_FIELD,
    FLOAT_LIST,
    INT64_LIST,
    SECOND_FIELD,
)

NO_LIST: Final = 0

# A length of more bytes would be far longer than any record.
_MAX_LENGTH_BYTES: Final = 5

Block: TypeAlias = npt.NDArray[np.uint8]


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
        yield FeaturePart(name, *_values(record, value, at_next))
        at = at_next


def _values(record: bytes, start: int, stop: int) -> tuple[int, tuple[tuple[int, int], ...]]:
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
