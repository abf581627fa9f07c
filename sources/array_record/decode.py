"""Decodes whole chunks of ArrayRecord files into their records.

All headers are always verified, in one step. A chunk is then decoded in one of two ways:

1. Here, for plain and zstd chunks: NumPy parses them, and single records are decompressed together.
   A chunk with one record of 3 KB takes some 4 us of one core, and a call 150 us. A data hash takes
   0.5 us more in native code. In NumPy it takes 4 us among 1,000 chunks, 12 us among 64, and 550 us
   for one chunk.
2. By the array_record package from a file in memory (`package`), for all other chunks, and where
   the package verifies data at less cost: few chunks, or long ones. This takes some 350 us more for
   a call and 8.5 us more for each chunk, and nothing for its data hash.

A simple chunk's data is a byte for the compression, the sizes of the records, and the records end to
end. Sizes and records are compressed separately, each after its length in memory.

Invariant: a chunk's header is as it was written, and its records have the number and the total size
that it counts. With `verify="all"` the records are as they were written; otherwise a changed bit
within compressed data may go unnoticed. A chunk that cannot be decoded is a `ChunkError`. A header
cannot make this module allocate more memory than its chunk can decompress to. A chunk does not state
its place: a chunk in the place of another with as many records is taken for it, as by the package.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard

from windrow.sources.array_record import package
from windrow.sources.array_record.chunks import (
    BLOCK,
    BLOCK_HEADER,
    CHUNK_HEADER,
    SIMPLE,
    TRANSPOSED,
    Buffer,
    Bytes,
    Headers,
    Ints,
    contiguous,
    ends,
    heads,
    heads_within,
    is_chunk_begin,
    leading_varint,
    parse_headers,
    varints,
)
from windrow.sources.array_record.highway_hash import hashes, hashes_of, seconds

Verify = Literal["all", "headers"]
Mask = npt.NDArray[np.bool_]

PLAIN: Final = 0
ZSTD: Final = ord("z")
BROTLI: Final = ord("b")
SNAPPY: Final = ord("s")
# The format's own limit of a window. Unused pages of the window take no memory.
_MOST_WINDOW: Final = 1 << 31
# The most bytes that the length of a record takes.
_COUNT_BYTES: Final = 10
# The first bytes of each chunk's data, which show where its values begin.
_AHEAD: Final = 48
# The bytes from the begin of a chunk that hold its header and those first bytes.
HEAD_BYTES: Final = CHUNK_HEADER + _AHEAD + 2 * BLOCK_HEADER
_MOST_BYTES: Final = 1 << 31
# The most bytes that a byte of data can decompress to. A block of zstd has 128 KiB from at least 4
# bytes, a block of brotli 16 MiB from a few, and a copy of snappy 64 bytes from 3.
_EXPANSION: Final = {PLAIN: 1, ZSTD: 1 << 15, BROTLI: 1 << 24, SNAPPY: 32}
_MOST_RECORDS: Final = 1 << 26
_SPARE_BYTES: Final = 1 << 16
# The bytes of a zstd frame up to the size of its content, and the header of a block.
_FRAME_BYTES: Final = 9
_FRAME_BLOCK: Final = 3
_MANY_AT_ONCE: Final = "multi_decompress_to_buffer" in zstandard.backend_features
# Frames that are decompressed together: as many as stay in a core's cache.
_FRAMES_AT_ONCE: Final = 256
# The most bytes of a varint of a size that fits memory here.
_SIZE_BYTES: Final = 5
_MAGIC: Final = np.frombuffer(zstandard.FRAME_HEADER, np.uint8)


class StoredChunk(NamedTuple):
    """A chunk as stored in its file.

    Args:
        offset: Where it begins in the file.
        data: The file's bytes from there on, with block headers, at least to its end.
        records: The number of its records by the file's index.
    """

    offset: int
    data: Buffer
    records: int


class ChunkError(Exception):
    """A chunk cannot be decoded.

    Args:
        chunk: Its number in the list.
        why: The reason, as a clause that follows its name.
    """

    def __init__(self, chunk: int, why: str) -> None:
        super().__init__(chunk, why)
        self.chunk, self.why = chunk, why

    def __str__(self) -> str:
        return f"chunk {self.chunk}: {self.why}"


def decode(chunks: Sequence[StoredChunk], *, verify: Verify = "all") -> list[list[bytes]]:
    """The records of each chunk.

    Args:
        chunks: Chunks of one file or several.
        verify: "headers" skips the hashes of data where they would cost extra.

    Raises:
        ChunkError: If a chunk is damaged, cut off, or does not match the index.
        ReadError: If a chunk needs the array_record package, and this process was forked from one
            that had used it.
    """
    if not chunks:
        return []
    offsets = np.array([chunk[0] for chunk in chunks], np.int64)
    raws = [chunk[1] for chunk in chunks]
    rows = heads(offsets, raws, CHUNK_HEADER + _AHEAD)
    headers = parse_headers(rows)
    counted = np.array([chunk[2] for chunk in chunks], np.int64)
    _refuse(offsets, raws, counted, headers, rows)
    ours = _readable_here(headers, rows)
    if verify == "all" and ours.any() and _cheaper_through_package(headers, ours):
        ours[:] = False
    here, there = np.flatnonzero(ours), np.flatnonzero(~ours)
    fetched = _Fetched(offsets, raws, headers, rows)
    if not len(there):
        return _decoded(fetched, here, verify)
    results: list[list[bytes]] = [[] for _ in raws]
    for chosen, records in (
        (here, _decoded(fetched, here, verify) if len(here) else []),
        (there, _through_package(fetched, there)),
    ):
        for at, some in zip(chosen.tolist(), records, strict=True):
            results[at] = some
    return results


def decode_run(data: bytes, start: int, offsets: Ints, stops: Ints) -> list[bytes] | None:
    """The records of chunks of one record each, which lie one behind the other.

    This takes some 3 us less per chunk than `decode`, since it creates only the record.

    Args:
        data: The bytes of the file from `start` on, to 136 bytes behind the begin of the last chunk.
        start: Where they begin in the file.
        offsets: Where each chunk begins in the file.
        stops: Where the next chunk begins.

    Returns:
        None if anything is wrong or unusual; `decode` then finds out.
    """
    raw = np.frombuffer(data, np.uint8)
    if len(raw) < offsets[-1] - start + HEAD_BYTES or len(raw) < stops[-1] - start:
        return None
    rows = heads_within(raw, start, offsets, CHUNK_HEADER + _AHEAD)
    right, kind, data_bytes, data_hash, records, decoded = parse_headers(rows)
    sane = right & (kind == SIMPLE) & (records == 1) & is_chunk_begin(offsets)
    sane &= (data_bytes > 0) & (data_bytes <= _MOST_BYTES) & (decoded >= 0)
    sane &= decoded <= data_bytes * _EXPANSION[ZSTD] + _SPARE_BYTES
    if not bool(sane.all()) or not bool((ends(offsets, data_bytes) <= stops).all()):
        return None
    inside = offsets % BLOCK
    begins = np.where(inside == 0, BLOCK_HEADER, 0) + CHUNK_HEADER
    cut = np.flatnonzero(inside + begins + data_bytes > BLOCK)
    begins += offsets - start
    stops = begins + data_bytes
    view = memoryview(data)
    joined = [
        contiguous(place, view[place - start :], CHUNK_HEADER, CHUNK_HEADER + size)
        for place, size in zip(offsets[cut].tolist(), data_bytes[cut].tolist(), strict=True)
    ]
    found_hash = hashes(raw, begins, np.where(stops <= len(raw), stops, begins))
    found_hash[cut] = hashes_of(joined)
    packed = _packed(rows[:, CHUNK_HEADER:], data_bytes, decoded)
    if packed is None or not bool((found_hash == data_hash).all()):
        return None
    leads = packed.leads
    values: list[Buffer] = [
        view[a:b] for a, b in zip((begins + leads).tolist(), stops.tolist(), strict=True)
    ]
    for at, one in zip(cut.tolist(), joined, strict=True):
        values[at] = memoryview(one)[int(leads[at]) :]
    return _unpacked(values, decoded, packed)


class _Fetched(NamedTuple):
    """Chunks whose headers are right: their offsets, bytes, headers, and first bytes."""

    offsets: Ints
    raws: Sequence[Buffer]
    headers: Headers
    rows: Bytes


def _refuse(
    offsets: Ints, raws: Sequence[Buffer], counted: Ints, headers: Headers, rows: Bytes
) -> None:
    """Refuse the first chunk whose header is wrong or impossible."""
    right, kind, data_bytes, _, records, decoded = headers
    lengths = np.array([len(raw) for raw in raws], np.int64)
    sane = right & is_chunk_begin(offsets) & (data_bytes >= 0) & (data_bytes <= _MOST_BYTES)
    stored = np.where(sane, data_bytes, 0)
    packing = rows[:, CHUNK_HEADER]
    factors = np.full(256, max(_EXPANSION.values()), np.int64)
    factors[list(_EXPANSION)] = list(_EXPANSION.values())
    # In transposed chunks the byte is the compression of their parts, whose expansion is unknown.
    factor = np.where(kind == TRANSPOSED, max(_EXPANSION.values()), factors[packing])
    most = np.minimum(stored * factor + _SPARE_BYTES, _MOST_BYTES)
    sane &= (kind == SIMPLE) | (kind == TRANSPOSED)
    sane &= (records == counted) & (ends(offsets, stored) - offsets <= lengths)
    sane &= (decoded >= 0) & (decoded <= most) & (stored > 0)
    sane &= (records > 0) & (records <= _MOST_RECORDS)
    if not sane.all():
        at = int(np.argmin(sane))
        end = int(ends(offsets[at : at + 1], stored[at : at + 1])[0] - offsets[at])
        raise ChunkError(
            at, _why(headers, at, int(offsets[at]), int(counted[at]), (end, len(raws[at])))
        )


def _why(headers: Headers, at: int, offset: int, counted: int, bytes_there: tuple[int, int]) -> str:
    """The reason why a chunk was refused."""
    right, kind, data_bytes, _, records, decoded = (column[at].item() for column in headers)
    needed, there = bytes_there
    if offset < 0 or 0 < offset % BLOCK <= BLOCK_HEADER:
        return f"no chunk can begin at byte {offset:,}"
    if there < CHUNK_HEADER:
        return f"it is cut off: {there:,} of its bytes exist"
    if not right:
        return "its header hash is wrong"
    if kind not in (SIMPLE, TRANSPOSED):
        return f"its header has the type {chr(kind)!r}; only 'r' and 't' have records"
    if records != counted:
        return f"it holds {records:,} records and the index counts {counted:,}"
    if not 0 <= data_bytes <= _MOST_BYTES:
        return f"its header counts {data_bytes:,} bytes of data, more than {_MOST_BYTES:,}"
    if needed > there:
        return f"it is cut off: {there:,} of its {needed:,} bytes exist"
    if not 0 < records <= _MOST_RECORDS:
        return f"it counts {records:,} records; 1 to {_MOST_RECORDS:,} are possible"
    if data_bytes == 0:
        return "it has no data"
    return (
        f"its header counts {records:,} records of {decoded:,} bytes together, more than its"
        f" {data_bytes:,} bytes can hold"
    )


def _readable_here(headers: Headers, rows: Bytes) -> Mask:
    packing = rows[:, CHUNK_HEADER]
    mask: Mask = (headers.kind == SIMPLE) & ((packing == ZSTD) | (packing == PLAIN))
    return mask


def _cheaper_through_package(headers: Headers, ours: Mask) -> bool:
    """Whether the package decodes and verifies chunks at less cost than hashing them here."""
    count = int(ours.sum())
    return seconds(headers.data_bytes[ours]) > package.seconds(count)


def _through_package(fetched: _Fetched, chosen: Ints) -> list[list[bytes]]:
    """Records of the chunks `chosen`; the package always verifies their data."""
    offsets, raws, headers, _ = fetched
    by_number: dict[int, list[bytes]] = {}
    # The package assumes that all chunks of a file have the same number of records.
    counts = headers.records[chosen]
    for count in np.unique(counts).tolist():
        group = chosen[counts == count].tolist()
        framed = [
            package.Framed(
                int(offsets[at]),
                raws[at],
                int(headers.data_bytes[at]),
                count,
                int(headers.decoded_bytes[at]),
            )
            for at in group
        ]
        for at, chunk, some in zip(group, framed, _read(framed, group), strict=True):
            if len(some) != count or sum(map(len, some)) != chunk.decoded_bytes:
                raise ChunkError(
                    at, f"the package did not return the {count:,} records that it counts"
                )
            by_number[at] = some
    return [by_number[at] for at in chosen.tolist()]


def _read(framed: Sequence[package.Framed], numbers: Sequence[int]) -> list[list[bytes]]:
    try:
        return package.read_chunks(framed)
    except package.UnreadableError as error:
        why = error.why
        if "hash" in why.lower() or "data corrupted" in why.lower():
            why = f"its data hash is wrong, or the hash of a block header in it: {why}"
        raise ChunkError(numbers[error.number], why) from error


def _decoded(fetched: _Fetched, chosen: Ints, verify: Verify) -> list[list[bytes]]:
    """Records of the plain and zstd chunks `chosen`."""
    offsets, raws, headers, rows = fetched
    lengths = headers.data_bytes[chosen]
    inside = offsets[chosen] % BLOCK
    begins = np.where(inside == 0, BLOCK_HEADER, 0) + CHUNK_HEADER
    whole = inside + begins + lengths <= BLOCK
    numbers = chosen.tolist()
    # A slice of the fetched bytes; few chunks have a block header inside.
    datas: list[Buffer] = [
        raws[at][begin:stop]
        for at, begin, stop in zip(
            numbers, begins.tolist(), (begins + lengths).tolist(), strict=True
        )
    ]
    for place in np.flatnonzero(~whole).tolist():
        at = numbers[place]
        stop = CHUNK_HEADER + int(lengths[place])
        datas[place] = contiguous(int(offsets[at]), raws[at], CHUNK_HEADER, stop)
    if verify == "all":
        wrong = np.flatnonzero(hashes_of(datas) != headers.data_hash[chosen])
        if len(wrong):
            raise ChunkError(numbers[int(wrong[0])], "its data hash is wrong")
    if bool((headers.records[chosen] == 1).all()):
        singles = _singles(datas, rows[chosen, CHUNK_HEADER:], headers.decoded_bytes[chosen])
        if singles is not None:
            return singles
    results = []
    counts = zip(
        headers.records[chosen].tolist(), headers.decoded_bytes[chosen].tolist(), strict=True
    )
    for at, data, (records, decoded) in zip(numbers, datas, counts, strict=True):
        try:
            results.append(split(data, records, decoded))
        except DamagedDataError as error:
            raise ChunkError(at, str(error)) from error
    return results


def _singles(datas: Sequence[Buffer], ahead: Bytes, decoded: Ints) -> list[list[bytes]] | None:
    """Records of chunks of one record each, all plain or all zstd; None if a chunk is unusual.

    Args:
        datas: The data of each chunk.
        ahead: The first bytes of that data, uint8 `(chunks, 48)`.
        decoded: Bytes of each record.

    Returns:
        Also None if a chunk is damaged.
    """
    stored = np.fromiter(map(len, datas), np.int64, len(datas))
    packed = _packed(ahead, stored, decoded)
    if packed is None:
        return None
    values = [data[lead:] for data, lead in zip(datas, packed.leads.tolist(), strict=True)]
    singles = _unpacked(values, decoded, packed)
    return None if singles is None else [[one] for one in singles]


class _Packed(NamedTuple):
    """The common layout of single records in the data of their chunks.

    Args:
        leads: Bytes before each record.
        plain: Whether records are uncompressed; else each is a zstd frame.
        one_block: Whether each frame is one block, with nothing behind it.
    """

    leads: Ints
    plain: bool
    one_block: bool


def _packed(ahead: Bytes, stored: Ints, decoded: Ints) -> _Packed | None:
    """The layout of records in chunks of one record; None if a chunk is unusual or differs.

    Args:
        ahead: The first bytes of each chunk's data, uint8 `(chunks, 48)`.
        stored: Bytes of that data.
        decoded: Bytes of each record.
    """
    if not bool((ahead[:, 0] == ahead[0, 0]).all()):
        return None
    if ahead[0, 0] == ZSTD:
        return _frames(ahead, stored, decoded)
    if ahead[0, 0] != PLAIN:
        return None  # only `decode` knows how to refuse another compression
    leads = _values(ahead, decoded)
    return None if leads is None else _Packed(leads, plain=True, one_block=False)


def _unpacked(values: list[Buffer], sizes: Ints, packed: _Packed) -> list[bytes] | None:
    """Records of these sizes, from their stored bytes; None if one is damaged."""
    together = _MANY_AT_ONCE and packed.one_block and bool(sizes.all())
    decompressed = _together if together else _one_by_one
    try:
        contents = [bytes(one) for one in values] if packed.plain else decompressed(values, sizes)
    except (zstandard.ZstdError, ValueError, MemoryError):
        return None
    lengths = np.fromiter(map(len, contents), np.int64, len(contents))
    return contents if bool((lengths == sizes).all()) else None


def _values(ahead: Bytes, decoded: Ints) -> Ints | None:
    """Where the record of each plain chunk begins; None if the bytes before it are not its size."""
    sizes_bytes = ahead[:, 1].astype(np.int64)
    if int(sizes_bytes.max()) > _SIZE_BYTES:
        return None
    size, stop = _leading(ahead, np.full(len(ahead), 2))
    return stop if bool(((size == decoded) & (stop == 2 + sizes_bytes)).all()) else None


def _leading(ahead: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The varint of at most five bytes at a place of each row, and its end."""
    each, at = np.arange(len(ahead)), at.copy()
    values = np.zeros(len(ahead), np.int64)
    going = np.ones(len(ahead), bool)
    for shift in range(0, 7 * _SIZE_BYTES, 7):
        byte = ahead[each, at]
        values |= np.where(going, (byte & 0x7F).astype(np.int64) << shift, 0)
        at += going
        going &= byte >= 0x80
        if not going.any():
            break
    return values, at


def _one_by_one(frames: list[Buffer], sizes: Ints) -> list[bytes]:
    """Records of zstd frames of these sizes; raises a ZstdError if bytes follow a frame."""
    decompress = decompressor().decompress
    return [
        decompress(frame, size, False, False)
        for frame, size in zip(frames, sizes.tolist(), strict=True)
    ]


def _together(frames: list[Buffer], sizes: Ints) -> list[bytes]:
    """The same without the GIL, in 10 us instead of 12 for each record of 3 KB.

    It does not notice bytes behind a frame, and does not accept a size of 0.
    """
    many = decompressor().multi_decompress_to_buffer
    records: list[bytes] = []
    for at in range(0, len(frames), _FRAMES_AT_ONCE):
        size = sizes[at : at + _FRAMES_AT_ONCE].astype(np.uint64).tobytes()
        some: Any = many(frames[at : at + _FRAMES_AT_ONCE], decompressed_sizes=size)
        records += [one.tobytes() for one in some]
    return records


def _frames(ahead: Bytes, stored: Ints, decoded: Ints) -> _Packed | None:
    """The layout of the frames of single records in their chunks; None if one is unusual.

    In the usual layout the sizes take less than 30 bytes, and the frame states the same size of its
    content as the header, so decompressing takes no more memory than that.
    """
    sizes_bytes = ahead[:, 1]
    if int(sizes_bytes.max()) >= 30:
        return None
    promised, at = _leading(ahead, 2 + sizes_bytes.astype(np.int64))
    each = np.arange(len(ahead))
    start = ahead[each[:, None], at[:, None] + np.arange(_FRAME_BYTES + _FRAME_BLOCK)]
    described, field = start[:, 4], start[:, 5:].astype(np.int64)
    # The ways to write the size: a byte, two bytes plus 256, or four bytes.
    two = field[:, 0] | field[:, 1] << 8
    way = (described >> 6) & 3
    content = np.choose(
        way, [field[:, 0], two + 256, two | field[:, 2] << 16 | field[:, 3] << 24, -1]
    )
    usual = (described & 0x23) == 0x20
    usual &= (start[:, :4] == _MAGIC).all(axis=1) & (promised == decoded) & (content == decoded)
    if not bool(usual.all()):
        return None
    # A block header: whether it is the last, its kind, and its size; kind 1 stores one byte.
    place = np.array([1, 2, 4])[way]
    word = field[each, place] | field[each, place + 1] << 8 | field[each, place + 2] << 16
    inside = np.where(word >> 1 & 3 == 1, 1, word >> 3)
    checksum = np.where(described & 4, 4, 0)
    stop = at + 5 + place + _FRAME_BLOCK + inside + checksum
    one_block = bool(((word & 1 == 1) & (stop == stored)).all())
    return _Packed(at, plain=False, one_block=one_block)


# ---- simple chunks


class DamagedDataError(Exception):
    """The data of a chunk is damaged; the message is a clause that follows its name."""


class _Decompressors(threading.local):
    def __init__(self) -> None:
        self._one: zstandard.ZstdDecompressor | None = None

    def get(self) -> zstandard.ZstdDecompressor:
        if self._one is None:
            self._one = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
        return self._one


_decompressors: Final = _Decompressors()


def decompressor() -> zstandard.ZstdDecompressor:
    """The decompressor of this thread."""
    return _decompressors.get()


def unpacked(stream: Buffer, size: int) -> bytes:
    """Decompress a zstd frame of `size` bytes.

    Raises:
        DamagedDataError: If it is not such a frame.
    """
    try:
        # The frame may promise any size, and zstd allocates that memory.
        promised = zstandard.frame_content_size(stream)
        if promised not in (-1, size):
            raise DamagedDataError(
                f"zstd: a frame of {promised:,} bytes where {size:,} were promised"
            )
        content = decompressor().decompress(
            stream, max_output_size=max(1, size), allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise DamagedDataError(f"zstd: {error}") from error
    except MemoryError as error:
        raise DamagedDataError(f"zstd: not enough memory for a frame of {size:,} bytes") from error
    if len(content) != size:
        raise DamagedDataError(f"zstd: {len(content):,} bytes where {size:,} were promised")
    return content


def parts(data: Buffer, records: int, decoded_bytes: int) -> tuple[Ints, Buffer]:
    """The ends of the records of a plain or zstd chunk, and the records end to end.

    Args:
        data: The chunk's data.
        records: The number of records by its header.
        decoded_bytes: Their bytes by its header.

    Returns:
        int64 `(records,)`, ending with `decoded_bytes`; and `decoded_bytes` bytes.

    Raises:
        DamagedDataError: If it does not hold the records that its header counts.
    """
    packed = data[0] == ZSTD if len(data) else False
    lead = leading_varint(data, 1)
    if lead is None or sum(lead) > len(data):
        raise DamagedDataError("its data is cut off within the sizes of its records")
    stop = sum(lead)
    stored, values = data[lead[1] : stop], data[stop:]
    if packed:
        stored = _inner(stored, records * _COUNT_BYTES, "sizes")
        values = _inner(values, decoded_bytes, "records")
    sizes = varints(np.frombuffer(stored, np.uint8), records)
    if sizes is None:
        raise DamagedDataError(f"it does not hold the sizes of {records:,} records")
    # Each size first: the sum of absurd sizes might be right.
    if records and int(sizes.max()) > decoded_bytes:
        raise DamagedDataError("one of its records is larger than all of them")
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if records else 0
    if total != decoded_bytes or len(values) != decoded_bytes:
        raise DamagedDataError(
            f"its sizes add up to {total:,} bytes, it holds {len(values):,}, and its header"
            f" counts {decoded_bytes:,}"
        )
    return ends, values


def split(data: Buffer, records: int, decoded_bytes: int) -> list[bytes]:
    """The records of a plain or zstd chunk; arguments and errors are the same as for `parts`."""
    ends, values = parts(data, records, decoded_bytes)
    whole = bytes(values)
    if records == 1:
        return [whole]
    return [whole[a:b] for a, b in itertools.pairwise([0, *ends.tolist()])]


def _inner(stream: Buffer, most: int, of: str) -> bytes:
    lead = leading_varint(stream, 0)
    reached = len(stream) * _EXPANSION[ZSTD] + _SPARE_BYTES
    if lead is None or lead[0] > min(most, reached):
        raise DamagedDataError(f"the length of its {of} is damaged, or more than its header counts")
    return unpacked(stream[lead[1] :], lead[0])
