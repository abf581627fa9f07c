"""The report of a verification: counts, and every bad chunk with its location.

Invariant: it holds plain values only, so that it can be printed, compared, pickled and made JSON.
"""

from __future__ import annotations

import dataclasses

from windrow.core.text import bad_lines, counted, in_units, notebook_html
from windrow.errors import ReadError


@dataclasses.dataclass(frozen=True, slots=True)
class BadChunk:
    """A chunk that cannot be read, or that is missing although missing chunks are errors.

    Args:
        array: Name of the array in the source; '' if there is only one.
        chunk: Its number. Chunks of an array are counted in C order of the grid of chunks, record
            groups of ArrayRecord files over all files, and records of other sources as they are.
            -1 for a file that has no place in the array.
        file: The file that stores it, if known.
        offset: The byte of the file at which it begins, if known: 0 for a chunk in a file of its
            own.
        first_record: The first record of the source that has data in it.
        stop_record: One past the last such record; some records between the two may have no data
            in it. 0 if no record has.
        error: What is wrong.
    """

    array: str
    chunk: int
    file: str | None
    offset: int | None
    first_record: int
    stop_record: int
    error: str

    def __str__(self) -> str:
        named = f"array {self.array!r}, " if self.array else ""
        place = self.file or "an unknown file"
        if self.chunk < 0:
            return f"{named}{place}: {self.error}"
        last = self.stop_record - 1
        held = f"records {self.first_record} to {last}"
        if last <= self.first_record:
            held = f"record {self.first_record}"
        at = "" if self.offset is None else f" at byte {self.offset:,}"
        place = "" if self.file is None else f", {self.file}{at}"
        return f"{named}chunk {self.chunk}, {held}{place}: {self.error}"


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What `windrow.verify` found.

    Args:
        records: Records of the source.
        chunks: Chunks that were read: chunks of arrays, record groups, or records if a source has no
            chunks.
        decoded_bytes: Bytes in memory of the chunks that were read.
        missing: Chunks that are not stored and read as the fill value.
        untold: Chunks for which the store does not show whether they are stored.
        bad: The chunks that cannot be read, by array and number.
        elapsed_s: Duration in seconds.
    """

    records: int
    chunks: int
    decoded_bytes: int
    missing: int
    untold: int
    bad: tuple[BadChunk, ...]
    elapsed_s: float

    @property
    def ok(self) -> bool:
        """Whether no chunk is bad."""
        return not self.bad

    def raise_if_bad(self) -> None:
        """Raise an error with this report if a chunk is bad.

        Raises:
            ReadError: If a chunk is bad. It has the file, offset and records of the first bad chunk.
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
        return "\n".join(bad_lines(self.bad, self.counts, joint=" of "))

    def _repr_html_(self) -> str:
        head, *lines = str(self).splitlines()
        return notebook_html("", lists=[(head, lines)])

    @property
    def counts(self) -> str:
        """The counts in one line."""
        words = [counted(self.chunks, "chunk"), counted(self.records, "record")]
        words.append(
            f"{in_units(self.decoded_bytes, decimals=1)} decoded in {self.elapsed_s:.1f} s"
        )
        if self.missing:
            words.append(f"{counted(self.missing, 'chunk')} not stored, read as the fill value")
        if self.untold:
            words.append(f"{counted(self.untold, 'chunk')} that may or may not be stored")
        return ", ".join(words)
