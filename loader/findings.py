"""What a verification found: counts, and every bad piece with its place.

Invariant: plain values only, so that a report can be printed, compared, pickled and made JSON.
"""

from __future__ import annotations

import dataclasses

from windrow.errors import ReadError

_SHOWN: int = 20
_UNITS = ("bytes", "KB", "MB", "GB", "TB", "PB")


@dataclasses.dataclass(frozen=True, slots=True)
class BadPiece:
    """A piece that can not be read, or is missing where that was to be an error.

    Args:
        array: Name of the array in the source; '' where there is one only.
        piece: Its number: of an array the chunk, in C order of the grid of chunks; of ArrayRecord
            files the record group, over all files; of other sources the record. -1 for a file
            that the array has no place for.
        file: The file it is stored in, where that is known.
        offset: The byte of the file at which it begins, where that is known: 0 for a chunk in a
            file of its own.
        first_record: The first record of the source that some of it belongs to.
        stop_record: One past the last such record; some records between the two need not belong
            to it. 0 where there are none.
        error: What is wrong, in words.
    """

    array: str
    piece: int
    file: str | None
    offset: int | None
    first_record: int
    stop_record: int
    error: str

    def __str__(self) -> str:
        named = f"array {self.array!r}, " if self.array else ""
        place = self.file or "an unknown file"
        if self.piece < 0:
            return f"{named}{place}: {self.error}"
        last = self.stop_record - 1
        held = f"records {self.first_record} to {last}"
        if last <= self.first_record:
            held = f"record {self.first_record}"
        at = "" if self.offset is None else f" at byte {self.offset:,}"
        place = "" if self.file is None else f", {self.file}{at}"
        return f"{named}piece {self.piece}, {held}{place}: {self.error}"


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What `windrow.verify` found.

    Args:
        records: Records of the source.
        pieces: Pieces that were looked at: chunks, record groups, or records where a source has
            no pieces.
        decoded_bytes: Bytes in memory of the pieces that were read.
        missing: Pieces that are not stored, which read as the fill value.
        untold: Pieces of which the store can not tell whether they are stored.
        bad: The pieces that can not be read, by array and number.
        elapsed_s: Seconds that it took.
    """

    records: int
    pieces: int
    decoded_bytes: int
    missing: int
    untold: int
    bad: tuple[BadPiece, ...]
    elapsed_s: float

    @property
    def ok(self) -> bool:
        """Whether no piece is bad."""
        return not self.bad

    def raise_if_bad(self) -> None:
        """Raise what was found, if that is anything.

        Raises:
            ReadError: If a piece is bad. Its facts are those of the first one.
        """
        if self.bad:
            first = self.bad[0]
            raise ReadError(
                f"verify: {self}",
                file=first.file,
                offset=first.offset,
                records=(first.first_record, first.stop_record),
            )

    def __str__(self) -> str:
        lines = [f"{len(self.bad):,} bad of {self.counts}" if self.bad else self.counts]
        lines += [f"  {piece}" for piece in self.bad[:_SHOWN]]
        if len(self.bad) > _SHOWN:
            lines.append(f"  and {len(self.bad) - _SHOWN:,} more, see `bad` of the report")
        return "\n".join(lines)

    @property
    def counts(self) -> str:
        """What was looked at, in a line."""
        told = [_counted(self.pieces, "piece"), _counted(self.records, "record")]
        told.append(f"{_in_units(self.decoded_bytes)} decoded in {self.elapsed_s:.1f} s")
        if self.missing:
            told.append(f"{_counted(self.missing, 'piece')} not stored, read as the fill value")
        if self.untold:
            told.append(f"{_counted(self.untold, 'piece')} that may be stored or not: no telling")
        return ", ".join(told)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _in_units(count: int) -> str:
    size, unit = float(count), 0
    while size >= 1000 and unit + 1 < len(_UNITS):
        size, unit = size / 1000, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{count} bytes"
