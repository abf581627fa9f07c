"""The index at the end of ArrayRecord files, from their last bytes.

A postscript 65,536 bytes before the end tells where the footer is; the footer is a chunk of one
record for the file and one per data chunk. Many files are taken at once: their hashes are computed
side by side.

Invariant: an `Index` comes of a postscript and a footer whose hashes are right, its chunks lie one
behind the other within the file, and its counts add up; all else is a `SourceError` that says what.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np

from windrow.errors import SourceError
from windrow.sources.array_record_chunks import (
    BLOCK,
    BLOCK_HEADER,
    CHUNK_HEADER,
    FIRST_CHUNK,
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
    parse_headers,
    varints,
)
from windrow.sources.array_record_ends import (
    POSTSCRIPT_BYTES,
    asked_group,
    cut_off,
    fields,
    footer_place,
    why_no_index,
)
from windrow.sources.array_record_memory import Framed, UnreadableError, read_range
from windrow.sources.array_record_simple import PLAIN, ZSTD, DamageError, parts
from windrow.sources.highway_hash import hashes_of

T = TypeVar("T")

# Bytes of a file's end that hold its postscript, and the footer of a small file.
TAIL_BYTES: Final = 2 * BLOCK
# Of an index of 40 million chunks that were not compressed; a damaged postscript may say anything.
_MOST_FOOTER_BYTES: Final = 1 << 30
# Longer ones are hashed by the package: NumPy hashes a single message at 4 MB/s.
_LONG_BYTES: Final = 1 << 15
# Chunks whose entries are parsed at a time.
_AT_ONCE: Final = 1 << 18


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Index:
    """What the end of a file says. All of it is verified but what chunks say of themselves.

    Args:
        size_bytes: Size of the file.
        chunk_offsets: Where its data chunks begin, int64 `(chunks,)`.
        footer_offset: Where its footer begins, behind the last of them.
        records: Number of its records.
        decoded_bytes: Bytes of all its records.
        first_decoded_bytes: Bytes of the records in its first chunk.
        group: Records in each chunk but the last, which may have fewer.
        written_with: The options of its writer.
        bounds: Of a file with padding between chunks, where the bytes of each end at the latest;
            None for others, where they end at the next.
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
        """Bytes `[start, stop)` of the file that hold the chunks, padding left out."""
        starts = self.chunk_offsets[chunks]
        if self.bounds is not None:
            return starts, self.bounds[chunks]
        behind = np.minimum(chunks + 1, self.chunks - 1)
        last = chunks == self.chunks - 1
        return starts, np.where(last, self.footer_offset, self.chunk_offsets[behind])

    def counts(self, chunks: Ints) -> Ints:
        """Records of the chunks."""
        found: Ints = np.minimum(self.records - chunks * self.group, self.group)
        return found


def footer_span(what: str, shown: str, tail: Buffer, size_bytes: int) -> tuple[int, int]:
    """Where the footer is in a file, by its last bytes: `[start, stop)`.

    Args:
        what: Who reads, for errors.
        shown: The file's name, for errors.
        tail: Its last `TAIL_BYTES`, or all of a shorter one.
        size_bytes: Its size.

    Raises:
        SourceError: If it is empty, cut off, damaged or no ArrayRecord file.
    """
    return _one(footer_spans(what, [shown], [tail], [size_bytes]))


def parse_footer(what: str, shown: str, raw: Buffer, start: int, size_bytes: int) -> Index:
    """The index of a file.

    Args:
        what: Who reads, for errors.
        shown: The file's name, for errors.
        raw: The bytes of the span that `footer_span` told.
        start: Where they begin in the file.
        size_bytes: Its size.

    Raises:
        SourceError: If the index is damaged, or its chunks are not all of equally many records.
    """
    return _one(parse_footers(what, [shown], [raw], [start], [size_bytes]))


def footer_spans(
    what: str, shown: Sequence[str], tails: Sequence[Buffer], sizes: Sequence[int]
) -> list[tuple[int, int] | SourceError]:
    """`footer_span` of many files; the error of one that fails is its entry."""
    whys = [
        why_no_index(name, tail if len(tail) == size else None, size)
        for name, tail, size in zip(shown, tails, sizes, strict=True)
    ]
    good = [at for at, why in enumerate(whys) if why is None]
    footers = _footer_offsets([tails[at] for at in good], [sizes[at] for at in good])
    found: list[tuple[int, int] | SourceError] = [
        SourceError(f"{what}: {name} {why}") for name, why in zip(shown, whys, strict=True)
    ]
    for at, footer in zip(good, footers, strict=True):
        stop = sizes[at] - BLOCK
        if footer is None or not FIRST_CHUNK <= footer < stop or not _begins(footer):
            why = "the index at its end is missing or damaged"
        elif stop - footer > _MOST_FOOTER_BYTES:
            why = f"its index would be {stop - footer:,} bytes"
        else:
            found[at] = footer, stop
            continue
        found[at] = SourceError(f"{what}: {shown[at]} {cut_off(why, known=False)}")
    return found


def parse_footers(
    what: str,
    shown: Sequence[str],
    raws: Sequence[Buffer],
    starts: Sequence[int],
    sizes: Sequence[int],
) -> list[Index | SourceError]:
    """`parse_footer` of many files; the error of one that fails is its entry."""
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
    found: list[Index | SourceError] = []
    for at, (name, why) in enumerate(zip(shown, whys, strict=True)):
        try:
            if why is not None:
                raise DamageError(why)
            chunk = _framed(headers, at, starts[at], raws[at])
            found.append(_index(chunk, datas[at], sizes[at]))
        except _UnequalError as error:
            found.append(
                SourceError(
                    f"{what}: {name} holds {error}; only files are read whose chunks are equal."
                    " Write the file again with the array_record package"
                )
            )
        except DamageError as error:
            found.append(SourceError(f"{what}: {name} is damaged: {error}; write or copy it again"))
    return found


def indexed_places(path: str) -> Ints | None:
    """Where the data chunks of a file of a local disk begin, by its index and their own headers.

    As `array_record_ends.chunk_places`, which goes from header to header, but all at once.

    Returns:
        Of each chunk the byte at which it begins, its bytes in the file and its bytes in memory,
        int64 `(chunks, 3)`. None where the index can not be read, or a header does not lead to the
        chunk that the index has next.

    Raises:
        OSError: If the file can not be read.
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
    # One header at each byte of the file, of which those of chunks are taken.
    every = np.ndarray((index.size_bytes - CHUNK_HEADER + 1,), f"V{CHUNK_HEADER}", mapped, 0, (1,))
    headers = every[offsets]
    del every  # else the file could not be closed
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
    # A chunk that ends where a block does is followed by one that begins there.
    if not np.array_equal(ends(offsets, stored), np.append(offsets[1:], index.footer_offset)):
        return None
    # What a damaged header says may not fit.
    decoded = np.minimum(lanes[:, 4], np.uint64(np.iinfo(np.int64).max)).astype(np.int64)
    return np.column_stack([offsets, stored + CHUNK_HEADER, decoded])


class _UnequalError(Exception):
    """A file's chunks are of unequal size."""


def _one(found: list[T | SourceError]) -> T:
    only = found[0]
    if isinstance(only, SourceError):
        raise only
    return only


def _begins(offset: int) -> bool:
    return bool(is_chunk_begin(np.array([offset], np.int64))[0])


def _footer_offsets(tails: Sequence[Buffer], sizes: Sequence[int]) -> list[int | None]:
    """Where postscripts say that the footers begin; None for what is no postscript."""
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
    """Why chunks can be no footers, by their headers."""
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
    """The index of a file from its footer, whose header is right, and its data if it is short."""
    if not len(data):
        raise DamageError("its index is empty")
    own = data[0] in (PLAIN, ZSTD)
    try:
        # The package verifies the hash of a whole chunk when it reads one record of it.
        if len(data) > _LONG_BYTES or not own:
            read_range(chunk, 0, 1)
        about, entries = _own_entries(chunk, data) if own else _package_entries(chunk)
    except UnreadableError as error:
        raise DamageError(f"its index can not be read: {error.why}") from error
    return _checked(fields(about), entries, chunk.offset, size)


def _own_entries(chunk: Framed, data: Buffer) -> tuple[bytes, Ints]:
    stops, values = parts(data, chunk.records, chunk.decoded_bytes)
    raw = np.frombuffer(values, np.uint8)
    found = np.empty((chunk.records - 1, 3), np.int64)
    for first in range(0, len(found), _AT_ONCE):
        last = min(first + _AT_ONCE, len(found))
        _parse_entries(raw[int(stops[first]) : int(stops[last])], found[first:last])
    return bytes(values[: int(stops[0])]), found


def _package_entries(chunk: Framed) -> tuple[bytes, Ints]:
    about = read_range(chunk, 0, 1)[0]
    found = np.empty((chunk.records - 1, 3), np.int64)
    for first in range(0, len(found), _AT_ONCE):
        last = min(first + _AT_ONCE, len(found))
        joined = b"".join(read_range(chunk, first + 1, last + 1))
        _parse_entries(np.frombuffer(joined, np.uint8), found[first:last])
    return about, found


def _parse_entries(raw: Bytes, into: Ints) -> None:
    """Offset, bytes and records of each chunk; its three fields are always written, in order."""
    values = varints(raw, 6 * len(into))
    if values is None:
        raise DamageError("its index does not hold three numbers per chunk")
    rows = values.reshape(-1, 6)
    if not bool((rows[:, 0::2] == (0x08, 0x10, 0x18)).all()):
        raise DamageError("its index does not hold the numbers of chunks")
    into[:] = rows[:, 1::2]


def _checked(about: dict[int, int | bytes], entries: Ints, footer: int, size: int) -> Index:
    """The index of a file, if what it says fits together."""
    told = about.get(1)
    said = fields(told) if isinstance(told, bytes) else {}
    offsets, decoded, counts = (np.ascontiguousarray(column) for column in entries.T)
    records = int(counts.sum()) if _addable(counts) else -1
    if said.get(2) != len(entries) or said.get(3) != records:
        raise DamageError(
            f"its index counts {said.get(2)!r} chunks and {said.get(3)!r} records, and lists"
            f" {len(entries)} chunks of {records} records"
        )
    stops = np.append(offsets[1:], footer)
    stored = stops - offsets
    inside = not len(offsets) or int(offsets[0]) >= FIRST_CHUNK
    if not inside or not bool((is_chunk_begin(offsets) & (stored >= CHUNK_HEADER)).all()):
        raise DamageError("the chunks that its index lists do not lie one behind the other")
    # A chunk takes at least a byte of the file per record.
    if not bool(((counts >= 1) & (counts <= stored)).all()) or not _addable(decoded):
        raise DamageError("its index counts records that no chunk of its size can hold")
    options = said.get(4)
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
    """Whether the sum of values fits 62 bits, none of them negative."""
    if not len(values):
        return True
    return int(values.min()) >= 0 and int(values.max()) <= (1 << 62) // len(values)


def _group(written_with: str, counts: Ints) -> int:
    """Records in each chunk but the last."""
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
    """Where the bytes of each chunk end at the latest, of a file with padding between them."""
    # Compression adds little where it gains nothing. Of fields by column each may be told apart.
    factor = 4 if "transpose:true" in written_with else 1
    most = np.minimum(decoded, np.int64(1 << 56)) * factor
    most += most // 64 + 16 * np.minimum(counts, np.int64(1 << 40)) + 4096
    found: Ints = np.minimum(ends(offsets, most), stops)
    return found
