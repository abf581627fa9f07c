"""Reads the index at the end of ArrayRecord files from their last bytes.

A postscript 65,536 bytes before the end states where the footer is. The footer is a chunk with one
record for the file and one record per data chunk.

Invariant: an `Index` comes from a postscript and a footer whose hashes are right. Its chunks lie one
behind the other within the file, and its counts add up. Otherwise a `SourceError` gives the reason.
"""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Final

import numpy as np

from windrow.errors import SourceError
from windrow.sources.array_record.chunks import (
    BLOCK,
    BLOCK_HEADER,
    CHUNK_HEADER,
    FIRST_CHUNK,
    MAGIC,
    SIGNATURE,
    Buffer,
    Ints,
    are_chunk_begins,
    ends,
    is_chunk_begin,
    leading_varint,
)
from windrow.sources.array_record.decode import ChunkError, StoredChunk, decode, decode_index

# The bytes at a file's end that hold its postscript, and the footer of a small file.
TAIL_BYTES: Final = 2 * BLOCK
# More bytes than any postscript has.
POSTSCRIPT_BYTES: Final = 160
# The index of 40 million chunks without compression; a damaged postscript may state anything.
_MOST_FOOTER_BYTES: Final = 1 << 30
# The number of equal records in a postscript.
_POSTSCRIPTS: Final = 3


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Index:
    """The facts in the index of a file, all verified except those that the chunks themselves repeat.

    Args:
        size_bytes: Size of the file.
        chunk_offsets: Where its data chunks begin, int64 `(chunks,)`.
        chunk_bytes: Bytes of the records of each chunk, int64 `(chunks,)`.
        footer_offset: Where its footer begins, after the last chunk.
        records: Number of its records.
        decoded_bytes: Bytes of all its records.
        first_decoded_bytes: Bytes of the records in its first chunk.
        group: Records in each chunk except the last, which may have fewer.
        written_with: The options of its writer.
        bounds: For a file with padding between chunks, the latest end of the bytes of each chunk.
            None for other files, where a chunk ends where the next begins.
    """

    size_bytes: int
    chunk_offsets: Ints = dataclasses.field(repr=False)
    chunk_bytes: Ints = dataclasses.field(repr=False)
    footer_offset: int
    records: int
    decoded_bytes: int
    first_decoded_bytes: int
    group: int
    written_with: str
    bounds: Ints | None = dataclasses.field(default=None, repr=False)

    @property
    def record_bytes(self) -> int | None:
        """Bytes of every record, if all have a chunk of their own and the same size; else None."""
        sizes = self.chunk_bytes
        same = self.group == 1 and len(sizes) > 0 and bool((sizes == sizes[0]).all())
        return int(sizes[0]) if same else None

    @property
    def chunks(self) -> int:
        """Number of data chunks."""
        return len(self.chunk_offsets)

    def spans(self, chunks: Ints) -> tuple[Ints, Ints]:
        """Bytes `[start, stop)` of the file that hold the chunks, without padding."""
        starts = self.chunk_offsets[chunks]
        if self.bounds is not None:
            return starts, self.bounds[chunks]
        behind = np.minimum(chunks + 1, self.chunks - 1)
        last = chunks == self.chunks - 1
        return starts, np.where(last, self.footer_offset, self.chunk_offsets[behind])

    def counts(self, chunks: Ints) -> Ints:
        """Records of the chunks."""
        counts: Ints = np.minimum(self.records - chunks * self.group, self.group)
        return counts


def footer_span(
    what: str, shown: str, tail: Buffer, size_bytes: int, *, head: Buffer | None = None
) -> tuple[int, int]:
    """The bytes `[start, stop)` of the footer in a file, by its last bytes.

    Args:
        what: The name of the reader, for errors.
        shown: The file's name, for errors.
        tail: Its last `TAIL_BYTES` bytes, or all bytes of a shorter file.
        size_bytes: Its size.
        head: Its first bytes, at least 32 if it has them; None if they are unknown.

    Raises:
        SourceError: If it is empty, cut off, damaged or not an ArrayRecord file.
    """
    head = tail if len(tail) == size_bytes else head
    why = why_no_index(shown, head, size_bytes)
    if why is not None:
        raise SourceError(f"{what}: {shown} {why}")
    stop = size_bytes - BLOCK
    footer = _footer_offset(memoryview(tail)[len(tail) - BLOCK :], stop)
    if footer is None or not FIRST_CHUNK <= footer < stop or not is_chunk_begin(footer):
        why = "the index at its end is missing or damaged"
    elif stop - footer > _MOST_FOOTER_BYTES:
        why = f"its index would be {stop - footer:,} bytes"
    else:
        return footer, stop
    raise SourceError(f"{what}: {shown} {cut_off(why, known=head is not None)}")


def parse_footer(what: str, shown: str, raw: Buffer, start: int, size_bytes: int) -> Index:
    """The index of a file.

    Args:
        what: The name of the reader, for errors.
        shown: The file's name, for errors.
        raw: The bytes of the span that `footer_span` returned.
        start: Where they begin in the file.
        size_bytes: Its size.

    Raises:
        SourceError: If the index is damaged, or its chunks have unequal numbers of records.
    """
    try:
        about, entries = decode_index(start, raw)
        return _checked(fields(about), entries, start, size_bytes)
    except _UnequalError as error:
        raise SourceError(
            f"{what}: {shown} holds {error}; Windrow reads only files whose chunks are equal."
            " Write the file again with the array_record package"
        ) from error
    except _DamagedIndexError as error:
        raise SourceError(f"{what}: {shown} is damaged: {error}; write or copy it again") from error
    except ChunkError as error:
        raise SourceError(
            f"{what}: {shown} is damaged: its index cannot be read: {error.why}; write or copy it"
            " again"
        ) from error


def why_no_index(shown: str, head: Buffer | None, size_bytes: int) -> str | None:
    """Why a file has no index at its end, as a clause that follows its name; None if it may have one.

    Args:
        shown: Its name.
        head: Its first bytes, at least 32 if it has them; None if they are unknown.
        size_bytes: Its size.
    """
    if size_bytes == 0:
        return (
            "is empty (0 bytes): its writer was not closed, or a copy failed; write or copy it"
            " again"
        )
    if head is not None and bytes(head[BLOCK_HEADER:FIRST_CHUNK]) != SIGNATURE[BLOCK_HEADER:]:
        hint = (
            "it has the name of a TFRecord file: convert it first, see windrow.converters"
            if "tfrecord" in os.path.basename(shown).lower()
            else "name ArrayRecord files only"
        )
        return f"is not an ArrayRecord file: it begins with {bytes(head[:8])!r}; {hint}"
    if size_bytes < 2 * BLOCK or size_bytes % BLOCK:
        why = f"its {size_bytes:,} bytes are not a multiple of {BLOCK:,}"
        return cut_off(why, known=head is not None)
    return None


def cut_off(why: str, *, known: bool) -> str:
    """A clause after the name of a file that is cut off; `known` if it has this format."""
    foreign = "" if known else ", or not an ArrayRecord file"
    return (
        f"is cut off or damaged{foreign}: {why}. Its writer was not closed, is still writing, or a"
        " copy stopped early; write or copy it again"
    )


def footer_place(postscript: bytes) -> int | None:
    """Where a file's footer begins, by a record of its postscript; None if that is not one."""
    values = fields(postscript)
    footer = values.get(1)
    return footer if isinstance(footer, int) and values.get(2) == MAGIC else None


def fields(message: bytes) -> dict[int, int | bytes]:
    """The fields of a protobuf message of integers and strings, up to the first damaged one."""
    values: dict[int, int | bytes] = {}
    at = 0
    while (tag := leading_varint(message, at)) and (value := leading_varint(message, tag[1])):
        at = value[1]
        if tag[0] & 7 == 0:
            values[tag[0] >> 3] = value[0]
        elif tag[0] & 7 == 2 and value[0] <= len(message) - at:
            values[tag[0] >> 3] = message[at : at + value[0]]
            at += value[0]
        else:
            break
    return values


def asked_group(written_with: str) -> int | None:
    """Records per chunk by a writer's options; None if they do not state it."""
    match = re.search(r"\bgroup_size:(\d{1,18})", written_with)
    return max(1, int(match[1])) if match else None


class _UnequalError(Exception):
    """The chunks of a file have unequal numbers of records."""


class _DamagedIndexError(Exception):
    """The numbers of an index do not agree; the message is a clause that follows the file's name."""


def _footer_offset(last: Buffer, offset: int) -> int | None:
    """Where the footer begins by the postscript, whose block begins at `offset`; None without one."""
    try:
        records = decode([StoredChunk(offset, last, _POSTSCRIPTS)])[0]
    except ChunkError:
        return None
    return footer_place(records[0])


def _checked(about: dict[int, int | bytes], entries: Ints, footer: int, size: int) -> Index:
    """The index of a file, if its numbers agree."""
    header = about.get(1)
    totals = fields(header) if isinstance(header, bytes) else {}
    offsets, decoded, counts = (np.ascontiguousarray(column) for column in entries.T)
    records = int(counts.sum()) if _addable(counts) else -1
    if totals.get(2) != len(entries) or totals.get(3) != records:
        raise _DamagedIndexError(
            f"its index counts {totals.get(2)!r} chunks and {totals.get(3)!r} records, and lists"
            f" {len(entries)} chunks of {records} records"
        )
    stops = np.append(offsets[1:], footer)
    stored = stops - offsets
    inside = not len(offsets) or int(offsets[0]) >= FIRST_CHUNK
    if not inside or not bool((are_chunk_begins(offsets) & (stored >= CHUNK_HEADER)).all()):
        raise _DamagedIndexError("the chunks that its index lists do not lie one behind the other")
    # A chunk takes at least one byte of the file per record.
    if not bool(((counts >= 1) & (counts <= stored)).all()) or not _addable(decoded):
        raise _DamagedIndexError("its index counts records that no chunk of its size can hold")
    options = totals.get(4)
    written_with = options.decode("utf-8", "replace") if isinstance(options, bytes) else ""
    padded = "pad_to_block_boundary:true" in written_with
    return Index(
        size_bytes=size,
        chunk_offsets=offsets,
        chunk_bytes=decoded,
        footer_offset=footer,
        records=records,
        decoded_bytes=int(decoded.sum()),
        first_decoded_bytes=int(decoded[0]) if len(decoded) else 0,
        group=_group(written_with, counts),
        written_with=written_with,
        bounds=_bounds(written_with, offsets, decoded, counts, stops) if padded else None,
    )


def _addable(values: Ints) -> bool:
    """Whether no value is negative and their sum fits 62 bits."""
    if not len(values):
        return True
    return int(values.min()) >= 0 and int(values.max()) <= (1 << 62) // len(values)


def _group(written_with: str, counts: Ints) -> int:
    """Records in each chunk except the last."""
    asked = asked_group(written_with) or 1
    if not len(counts):
        return asked
    first, last = int(counts[0]), int(counts[-1])
    if len(counts) == 1:
        return max(first, asked)
    if last > first or not bool((counts[:-1] == first).all()):
        raise _UnequalError(
            f"{int(counts.sum()):,} records in {len(counts):,} chunks, which are not all of"
            f" {first:,} records"
        )
    return first


def _bounds(written_with: str, offsets: Ints, decoded: Ints, counts: Ints, stops: Ints) -> Ints:
    """The latest end of the bytes of each chunk, in a file with padding between chunks."""
    # Incompressible data grows only a little. Transposed chunks may store each field separately.
    factor = 4 if "transpose:true" in written_with else 1
    most = np.minimum(decoded, np.int64(1 << 56)) * factor
    most += most // 64 + 16 * np.minimum(counts, np.int64(1 << 40)) + 4096
    bounds: Ints = np.minimum(ends(offsets, most), stops)
    return bounds
