"""Reads the index at the end of ArrayRecord files from their last bytes.

A postscript 65,536 bytes before the end states where the footer is. The footer is a chunk with one
record for the file and one record per data chunk. Many files are parsed at once, since their hashes
cost less together.

Invariant: an `Index` comes from a postscript and a footer whose hashes are right. Its chunks lie one
behind the other within the file, and its counts add up. Otherwise a `SourceError` gives the reason.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import re
from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np

from windrow.errors import SourceError
from windrow.sources.array_record.chunks import (
    BLOCK,
    BLOCK_HEADER,
    CHUNK_HEADER,
    FIRST_CHUNK,
    MAGIC,
    SIGNATURE,
    SIMPLE,
    TRANSPOSED,
    Buffer,
    Bytes,
    Headers,
    Ints,
    contiguous,
    ends,
    heads,
    is_chunk_begin,
    leading_varint,
    parse_headers,
    varints,
)
from windrow.sources.array_record.decode import PLAIN, ZSTD, DamagedDataError, parts
from windrow.sources.array_record.highway_hash import hashes_of
from windrow.sources.array_record.package import Framed, UnreadableError, read_range

T = TypeVar("T")

# The bytes at a file's end that hold its postscript, and the footer of a small file.
TAIL_BYTES: Final = 2 * BLOCK
# More bytes than any postscript has.
POSTSCRIPT_BYTES: Final = 160
# The index of 40 million chunks without compression; a damaged postscript may state anything.
_MOST_FOOTER_BYTES: Final = 1 << 30
# The package hashes longer footers: NumPy hashes a single message at 4 MB/s.
_LONG_BYTES: Final = 1 << 15
# Chunks whose entries are parsed at a time.
_AT_ONCE: Final = 1 << 18


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Index:
    """The facts in the index of a file, all verified except those that the chunks themselves repeat.

    Args:
        size_bytes: Size of the file.
        chunk_offsets: Where its data chunks begin, int64 `(chunks,)`.
        footer_offset: Where its footer begins, behind the last chunk.
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
    footer_offset: int
    records: int
    decoded_bytes: int
    first_decoded_bytes: int
    group: int
    written_with: str
    bounds: Ints | None = dataclasses.field(default=None, repr=False)

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


def footer_span(what: str, shown: str, tail: Buffer, size_bytes: int) -> tuple[int, int]:
    """The bytes `[start, stop)` of the footer in a file, by its last bytes.

    Args:
        what: The name of the reader, for errors.
        shown: The file's name, for errors.
        tail: Its last `TAIL_BYTES` bytes, or all bytes of a shorter file.
        size_bytes: Its size.

    Raises:
        SourceError: If it is empty, cut off, damaged or not an ArrayRecord file.
    """
    return _one(footer_spans(what, [shown], [tail], [size_bytes]))


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
    return _one(parse_footers(what, [shown], [raw], [start], [size_bytes]))


def footer_spans(
    what: str, shown: Sequence[str], tails: Sequence[Buffer], sizes: Sequence[int]
) -> list[tuple[int, int] | SourceError]:
    """`footer_span` of many files; a file that fails has its error as its entry."""
    whys = [
        why_no_index(name, tail if len(tail) == size else None, size)
        for name, tail, size in zip(shown, tails, sizes, strict=True)
    ]
    good = [at for at, why in enumerate(whys) if why is None]
    footers = _footer_offsets([tails[at] for at in good], [sizes[at] for at in good])
    results: list[tuple[int, int] | SourceError] = [
        SourceError(f"{what}: {name} {why}") for name, why in zip(shown, whys, strict=True)
    ]
    for at, footer in zip(good, footers, strict=True):
        stop = sizes[at] - BLOCK
        if footer is None or not FIRST_CHUNK <= footer < stop or not _begins(footer):
            why = "the index at its end is missing or damaged"
        elif stop - footer > _MOST_FOOTER_BYTES:
            why = f"its index would be {stop - footer:,} bytes"
        else:
            results[at] = footer, stop
            continue
        results[at] = SourceError(f"{what}: {shown[at]} {cut_off(why, known=False)}")
    return results


def parse_footers(
    what: str,
    shown: Sequence[str],
    raws: Sequence[Buffer],
    starts: Sequence[int],
    sizes: Sequence[int],
) -> list[Index | SourceError]:
    """`parse_footer` of many files; a file that fails has its error as its entry."""
    if not len(raws):
        return []
    offsets = np.asarray(starts, np.int64)
    headers = parse_headers(heads(offsets, raws))
    whys = _damaged_headers(offsets, headers, raws)
    whole = [at for at, why in enumerate(whys) if why is None]
    short = [at for at in whole if headers.data_bytes[at] <= _LONG_BYTES]
    datas = {at: _data(headers, at, starts[at], raws[at]) for at in whole}
    own = hashes_of([datas[at] for at in short])
    for at, right in zip(short, (own == headers.data_hash[short]).tolist(), strict=True):
        if not right:
            whys[at] = "the data hash of its index is wrong"
    results: list[Index | SourceError] = []
    for at, (name, why) in enumerate(zip(shown, whys, strict=True)):
        try:
            if why is not None:
                raise DamagedDataError(why)
            chunk = _framed(headers, at, starts[at], raws[at])
            results.append(_index(chunk, datas[at], sizes[at]))
        except _UnequalError as error:
            results.append(
                SourceError(
                    f"{what}: {name} holds {error}; Windrow reads only files whose chunks are equal."
                    " Write the file again with the array_record package"
                )
            )
        except DamagedDataError as error:
            results.append(
                SourceError(f"{what}: {name} is damaged: {error}; write or copy it again")
            )
    return results


def indexed_places(path: str) -> Ints | None:
    """Where the data chunks of a local file begin, by its index and their own headers.

    It reads all headers at once; `package_reader.chunk_places` goes from header to header.

    Returns:
        The begin, the bytes in the file and the bytes in memory of each chunk, int64 `(chunks, 3)`.
        None if the index cannot be read, or a header does not lead to the next chunk of the index.

    Raises:
        OSError: If the file cannot be read.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < FIRST_CHUNK + BLOCK:
            return None
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapped:
            try:
                tail = mapped[max(0, size - TAIL_BYTES) :]
                start, stop = footer_span("", path, tail, size)
                index = parse_footer("", path, mapped[start:stop], start, size)
            except SourceError:
                return None
            return _places(mapped, index)


def _places(mapped: mmap.mmap, index: Index) -> Ints | None:
    offsets = index.chunk_offsets
    # A view with a header at each byte of the file, to take those where chunks begin.
    every = np.ndarray((index.size_bytes - CHUNK_HEADER + 1,), f"V{CHUNK_HEADER}", mapped, 0, (1,))
    headers = every[offsets]
    del every  # otherwise the file could not be closed
    inside = offsets % BLOCK
    for at in np.flatnonzero((inside == 0) | (inside > BLOCK - CHUNK_HEADER)).tolist():
        begin = int(offsets[at])
        raw = mapped[begin : begin + CHUNK_HEADER + 2 * BLOCK_HEADER]
        headers[at] = np.void(bytes(contiguous(begin, raw, 0, CHUNK_HEADER)))
    lanes = headers.view("<u8").reshape(-1, CHUNK_HEADER // 8)
    kind, data_bytes = lanes[:, 3].astype(np.uint8), lanes[:, 1]
    fits = ((kind == SIMPLE) | (kind == TRANSPOSED)) & (data_bytes < np.uint64(index.size_bytes))
    if index.bounds is not None or not bool(fits.all()):
        return None
    stored = data_bytes.astype(np.int64)
    # The chunk behind one that ends with a block begins with the next block.
    if not np.array_equal(ends(offsets, stored), np.append(offsets[1:], index.footer_offset)):
        return None
    # The number in a damaged header may not fit.
    decoded = np.minimum(lanes[:, 4], np.uint64(np.iinfo(np.int64).max)).astype(np.int64)
    return np.column_stack([offsets, stored + CHUNK_HEADER, decoded])


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
    """A clause behind the name of a file that is cut off; `known` if it has this format."""
    foreign = "" if known else ", or not an ArrayRecord file"
    return (
        f"is cut off or damaged{foreign}: {why}. Its writer was not closed, is still writing, or a"
        " copy stopped early; write or copy it again"
    )


def footer_place(data: Buffer, decoded_bytes: int) -> int | None:
    """Where a file's footer begins, by the data of its postscript; None if the data is not one."""
    try:
        stops, values = parts(data, 3, decoded_bytes)
    except DamagedDataError:
        return None
    postscript = fields(bytes(values[: int(stops[0])]))
    footer = postscript.get(1)
    return footer if isinstance(footer, int) and postscript.get(2) == MAGIC else None


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


def _one(results: list[T | SourceError]) -> T:
    only = results[0]
    if isinstance(only, SourceError):
        raise only
    return only


def _begins(offset: int) -> bool:
    return bool(is_chunk_begin(np.array([offset], np.int64))[0])


def _footer_offsets(tails: Sequence[Buffer], sizes: Sequence[int]) -> list[int | None]:
    """Where the footers begin by the postscripts; None if a tail holds no postscript."""
    if not len(tails):
        return []
    offsets = np.asarray(sizes, np.int64) - BLOCK
    raws = [memoryview(tail)[len(tail) - BLOCK :] for tail in tails]
    rows = heads(offsets, raws, CHUNK_HEADER + POSTSCRIPT_BYTES)
    headers = parse_headers(rows)
    fits = (headers.data_bytes >= 0) & (headers.data_bytes <= POSTSCRIPT_BYTES)
    right = headers.right & fits & (headers.kind == SIMPLE) & (headers.records == 3)
    lengths = np.where(right, headers.data_bytes, 0).tolist()
    datas = [
        row[CHUNK_HEADER : CHUNK_HEADER + length].tobytes()
        for row, length in zip(rows, lengths, strict=True)
    ]
    right &= hashes_of(datas) == headers.data_hash
    return [
        footer_place(data, decoded) if ok else None
        for data, decoded, ok in zip(
            datas, headers.decoded_bytes.tolist(), right.tolist(), strict=True
        )
    ]


def _damaged_headers(offsets: Ints, headers: Headers, raws: Sequence[Buffer]) -> list[str | None]:
    """Why chunks cannot be footers, by their headers; None for those that can."""
    lengths = np.array([len(raw) for raw in raws], np.int64)
    stops = ends(offsets, np.where(headers.right, np.maximum(headers.data_bytes, 0), 0)) - offsets
    whys: list[str | None] = []
    for at, right in enumerate(headers.right.tolist()):
        if not right:
            whys.append("the header of its index is wrong")
        elif headers.kind[at] != SIMPLE or headers.records[at] < 1:
            whys.append(f"there is no footer at byte {int(offsets[at]):,}")
        elif headers.data_bytes[at] < 0 or stops[at] > lengths[at]:
            whys.append(f"its index of {int(headers.data_bytes[at]):,} bytes is cut off")
        elif not 0 <= headers.decoded_bytes[at] <= _MOST_FOOTER_BYTES:
            whys.append(f"its index counts {int(headers.decoded_bytes[at]):,} bytes of itself")
        else:
            whys.append(None)
    return whys


def _data(headers: Headers, at: int, start: int, raw: Buffer) -> Buffer:
    stop = CHUNK_HEADER + int(headers.data_bytes[at])
    return contiguous(start, raw, CHUNK_HEADER, stop)


def _framed(headers: Headers, at: int, start: int, raw: Buffer) -> Framed:
    counts = headers.data_bytes[at], headers.records[at], headers.decoded_bytes[at]
    return Framed(start, raw, *(int(count) for count in counts))


def _index(chunk: Framed, data: Buffer, size: int) -> Index:
    """The index of a file from its footer, whose header is right, and from the footer's data."""
    if not len(data):
        raise DamagedDataError("its index is empty")
    own = data[0] in (PLAIN, ZSTD)
    try:
        # The package verifies the hash of a whole chunk when it reads one record of it.
        if len(data) > _LONG_BYTES or not own:
            read_range(chunk, 0, 1)
        about, entries = _own_entries(chunk, data) if own else _package_entries(chunk)
    except UnreadableError as error:
        raise DamagedDataError(f"its index cannot be read: {error.why}") from error
    return _checked(fields(about), entries, chunk.offset, size)


def _own_entries(chunk: Framed, data: Buffer) -> tuple[bytes, Ints]:
    stops, values = parts(data, chunk.records, chunk.decoded_bytes)
    raw = np.frombuffer(values, np.uint8)
    rows = np.empty((chunk.records - 1, 3), np.int64)
    for first in range(0, len(rows), _AT_ONCE):
        last = min(first + _AT_ONCE, len(rows))
        _parse_entries(raw[int(stops[first]) : int(stops[last])], rows[first:last])
    return bytes(values[: int(stops[0])]), rows


def _package_entries(chunk: Framed) -> tuple[bytes, Ints]:
    about = read_range(chunk, 0, 1)[0]
    rows = np.empty((chunk.records - 1, 3), np.int64)
    for first in range(0, len(rows), _AT_ONCE):
        last = min(first + _AT_ONCE, len(rows))
        joined = b"".join(read_range(chunk, first + 1, last + 1))
        _parse_entries(np.frombuffer(joined, np.uint8), rows[first:last])
    return about, rows


def _parse_entries(raw: Bytes, into: Ints) -> None:
    """Parse offset, bytes and records of each chunk; writers always write the three fields in order."""
    values = varints(raw, 6 * len(into))
    if values is None:
        raise DamagedDataError("its index does not hold three numbers per chunk")
    rows = values.reshape(-1, 6)
    if not bool((rows[:, 0::2] == (0x08, 0x10, 0x18)).all()):
        raise DamagedDataError("its index does not hold the numbers of chunks")
    into[:] = rows[:, 1::2]


def _checked(about: dict[int, int | bytes], entries: Ints, footer: int, size: int) -> Index:
    """The index of a file, if its numbers agree."""
    header = about.get(1)
    totals = fields(header) if isinstance(header, bytes) else {}
    offsets, decoded, counts = (np.ascontiguousarray(column) for column in entries.T)
    records = int(counts.sum()) if _addable(counts) else -1
    if totals.get(2) != len(entries) or totals.get(3) != records:
        raise DamagedDataError(
            f"its index counts {totals.get(2)!r} chunks and {totals.get(3)!r} records, and lists"
            f" {len(entries)} chunks of {records} records"
        )
    stops = np.append(offsets[1:], footer)
    stored = stops - offsets
    inside = not len(offsets) or int(offsets[0]) >= FIRST_CHUNK
    if not inside or not bool((is_chunk_begin(offsets) & (stored >= CHUNK_HEADER)).all()):
        raise DamagedDataError("the chunks that its index lists do not lie one behind the other")
    # A chunk takes at least one byte of the file per record.
    if not bool(((counts >= 1) & (counts <= stored)).all()) or not _addable(decoded):
        raise DamagedDataError("its index counts records that no chunk of its size can hold")
    options = totals.get(4)
    written_with = options.decode("utf-8", "replace") if isinstance(options, bytes) else ""
    padded = "pad_to_block_boundary:true" in written_with
    return Index(
        size_bytes=size,
        chunk_offsets=offsets,
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
