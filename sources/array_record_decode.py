"""Records of ArrayRecord chunks that were fetched: whole chunks in, their records out.

Headers are always verified, all at once. What follows goes one of two ways:

1. Here, for plain and zstd chunks: parsed in NumPy, those of one record decompressed together. For chunks
   of one record of 3 KB some 4 us of one core each, and 150 us for a call. In native code their data hashes
   are 0.5 us more each; in NumPy 4 us where 1,000 come together, 12 us among 64, and 550 us alone.
2. Through the array_record package and a file in memory (`array_record_memory`), for everything else
   the package reads, and where data is verified for less so: few chunks, or long ones. Some 350 us
   more for a call and 8.5 us more for such a chunk, and nothing for its data hash.

Invariant: a chunk's records are as many and as long together as its header counts, and its header
is what was written; with `verify="all"` they are what was written, else a bit that changed within
compressed data may go unnoticed. What can not be decoded is a `ChunkError`. A header can make no
more memory be taken than its chunk can decompress to. Nothing in a chunk tells its place: one that
lies where another of equally many records should is taken for it, as the package does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import zstandard

from windrow.sources import array_record_memory as memory
from windrow.sources.array_record_chunks import (
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
    parse_headers,
)
from windrow.sources.array_record_simple import (
    BROTLI,
    PLAIN,
    SNAPPY,
    ZSTD,
    DamageError,
    decompressor,
    split,
)
from windrow.sources.highway_hash import hashes, hashes_of, seconds

Verify = Literal["all", "headers"]
Mask = npt.NDArray[np.bool_]

# Of each chunk's data, what is looked at to find where its values begin.
_AHEAD: Final = 48
# From where a chunk begins, what is looked at of it.
HEAD_BYTES: Final = CHUNK_HEADER + _AHEAD + 2 * BLOCK_HEADER
_MOST_BYTES: Final = 1 << 31
# Bytes that a byte of data can stand for: a block of zstd is 128 KiB of at least 4 bytes; one of
# brotli 16 MiB of a few; a copy of snappy 64 bytes of 3.
_EXPANSION: Final = {PLAIN: 1, ZSTD: 1 << 15, BROTLI: 1 << 24, SNAPPY: 32}
_MOST_RECORDS: Final = 1 << 26
_SPARE_BYTES: Final = 1 << 16
# Of a zstd frame, what tells the size of its content, and then what a block of it begins with.
_FRAME_BYTES: Final = 9
_FRAME_BLOCK: Final = 3
_MANY_AT_ONCE: Final = "multi_decompress_to_buffer" in zstandard.backend_features
# Frames that are decompressed together: as many as stay in a core's cache.
_ROUND: Final = 256
# Of a varint of what fits memory here.
_SIZE_BYTES: Final = 5
_MAGIC: Final = np.frombuffer(zstandard.FRAME_HEADER, np.uint8)


class StoredChunk(NamedTuple):
    """A chunk as it lies in its file.

    Args:
        offset: Where it begins in the file.
        data: The file's bytes from there on, block headers included, at least to its end.
        records: How many records the file's index says it has.
    """

    offset: int
    data: Buffer
    records: int


class ChunkError(Exception):
    """A chunk can not be decoded.

    Args:
        chunk: Its number in the list.
        why: What is wrong, in words that follow its name.
    """

    def __init__(self, chunk: int, why: str) -> None:
        super().__init__(chunk, why)
        self.chunk, self.why = chunk, why

    def __str__(self) -> str:
        return f"chunk {self.chunk}: {self.why}"


def decode(chunks: Sequence[StoredChunk], *, verify: Verify = "all") -> list[list[bytes]]:
    """The records of each chunk.

    Args:
        chunks: Of one file or several.
        verify: "headers" leaves out the hashes of data where they would cost extra.

    Raises:
        ChunkError: If one is damaged, cut off, or not what the index says.
        ReadError: If this process was forked from one that had used the array_record package, and
            a chunk needs it.
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
    found: list[list[bytes]] = [[] for _ in raws]
    for chosen, records in (
        (here, _decoded(fetched, here, verify) if len(here) else []),
        (there, _through_package(fetched, there)),
    ):
        for at, some in zip(chosen.tolist(), records, strict=True):
            found[at] = some
    return found


def decode_run(data: bytes, start: int, offsets: Ints, stops: Ints) -> list[bytes] | None:
    """The records of chunks of one record each, which lie one behind the other.

    Some 3 us less for each than by `decode`, since nothing is made of a chunk but its record.

    Args:
        data: The bytes of the file from `start` on, to 136 bytes behind where the last chunk begins.
        start: Where they begin in the file.
        offsets: Where each chunk begins in the file.
        stops: Where the next one does.

    Returns:
        None where anything is wrong, or not as in most files: `decode` tells.
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
    """Chunks whose headers are right: where they begin, their bytes, headers, and first bytes."""

    offsets: Ints
    raws: Sequence[Buffer]
    headers: Headers
    rows: Bytes


def _refuse(
    offsets: Ints, raws: Sequence[Buffer], counted: Ints, headers: Headers, rows: Bytes
) -> None:
    """Refuse the first chunk whose header is wrong, or promises what can not be."""
    right, kind, data_bytes, _, records, decoded = headers
    lengths = np.array([len(raw) for raw in raws], np.int64)
    sane = right & is_chunk_begin(offsets) & (data_bytes >= 0) & (data_bytes <= _MOST_BYTES)
    stored = np.where(sane, data_bytes, 0)
    packing = rows[:, CHUNK_HEADER]
    factors = np.full(256, max(_EXPANSION.values()), np.int64)
    factors[list(_EXPANSION)] = list(_EXPANSION.values())
    # Of transposed chunks the byte tells of their parts; what those expand to is not known.
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
    """What is wrong with a chunk that was refused."""
    right, kind, data_bytes, _, records, decoded = (column[at].item() for column in headers)
    needed, there = bytes_there
    if offset < 0 or 0 < offset % BLOCK <= BLOCK_HEADER:
        return f"no chunk can begin at byte {offset:,}"
    if there < CHUNK_HEADER:
        return f"it is cut off: {there:,} bytes of it are there"
    if not right:
        return "its header hash is wrong"
    if kind not in (SIMPLE, TRANSPOSED):
        return f"its header says type {chr(kind)!r}, where 'r' or 't' have records"
    if records != counted:
        return f"it holds {records:,} records and the index says {counted:,}"
    if not 0 <= data_bytes <= _MOST_BYTES:
        return f"its header counts {data_bytes:,} bytes of data, more than {_MOST_BYTES:,}"
    if needed > there:
        return f"it is cut off: {there:,} of its {needed:,} bytes are there"
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
    """Whether the package decodes and verifies chunks for less than hashing them here costs."""
    count = int(ours.sum())
    return seconds(headers.data_bytes[ours]) > memory.seconds(count)


def _through_package(fetched: _Fetched, chosen: Ints) -> list[list[bytes]]:
    """Records of the chunks `chosen`; the package always verifies their data."""
    offsets, raws, headers, _ = fetched
    found: dict[int, list[bytes]] = {}
    # The package takes the chunks of a file to be of equally many records.
    counts = headers.records[chosen]
    for count in np.unique(counts).tolist():
        group = chosen[counts == count].tolist()
        framed = [
            memory.Framed(
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
                raise ChunkError(at, f"the package gave not the {count:,} records that it counts")
            found[at] = some
    return [found[at] for at in chosen.tolist()]


def _read(framed: Sequence[memory.Framed], numbers: Sequence[int]) -> list[list[bytes]]:
    try:
        return memory.read_chunks(framed)
    except memory.UnreadableError as error:
        why = error.why
        if "hash" in why.lower() or "data corrupted" in why.lower():
            why = f"its data hash is wrong, or that of a block header in it: {why}"
        raise ChunkError(numbers[error.number], why) from error


def _decoded(fetched: _Fetched, chosen: Ints, verify: Verify) -> list[list[bytes]]:
    """Records of the plain and zstd chunks `chosen`."""
    offsets, raws, headers, rows = fetched
    lengths = headers.data_bytes[chosen]
    inside = offsets[chosen] % BLOCK
    begins = np.where(inside == 0, BLOCK_HEADER, 0) + CHUNK_HEADER
    whole = inside + begins + lengths <= BLOCK
    numbers = chosen.tolist()
    # A part of the fetched bytes where no block header lies within, which is nearly everywhere.
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
    found = []
    counts = zip(
        headers.records[chosen].tolist(), headers.decoded_bytes[chosen].tolist(), strict=True
    )
    for at, data, (records, decoded) in zip(numbers, datas, counts, strict=True):
        try:
            found.append(split(data, records, decoded))
        except DamageError as error:
            raise ChunkError(at, str(error)) from error
    return found


def _singles(datas: Sequence[Buffer], ahead: Bytes, decoded: Ints) -> list[list[bytes]] | None:
    """Records of chunks of one record each, all plain or all of zstd; None if one is of another make.

    Args:
        datas: The data of each.
        ahead: The first bytes of it, uint8 `(chunks, 48)`.
        decoded: Bytes of each record.

    Returns:
        None too if one is damaged.
    """
    stored = np.fromiter(map(len, datas), np.int64, len(datas))
    packed = _packed(ahead, stored, decoded)
    if packed is None:
        return None
    values = [data[lead:] for data, lead in zip(datas, packed.leads.tolist(), strict=True)]
    found = _unpacked(values, decoded, packed)
    return None if found is None else [[one] for one in found]


class _Packed(NamedTuple):
    """How single records lie in the data of their chunks, all alike.

    Args:
        leads: Bytes before each of them.
        plain: Whether they lie there as they are; else each is a frame of zstd.
        one_block: Whether each frame is one block, with nothing behind it.
    """

    leads: Ints
    plain: bool
    one_block: bool


def _packed(ahead: Bytes, stored: Ints, decoded: Ints) -> _Packed | None:
    """How records lie in chunks of one each; None if one is not as most are, or not as the others.

    Args:
        ahead: The first bytes of each chunk's data, uint8 `(chunks, 48)`.
        stored: Bytes of that data.
        decoded: Bytes of each record.
    """
    if not bool((ahead[:, 0] == ahead[0, 0]).all()):
        return None
    if ahead[0, 0] != PLAIN:
        return _frames(ahead, stored, decoded)
    leads = _values(ahead, decoded)
    return None if leads is None else _Packed(leads, plain=True, one_block=False)


def _unpacked(values: list[Buffer], sizes: Ints, packed: _Packed) -> list[bytes] | None:
    """Records of these sizes, from what is stored of each; None if one is damaged."""
    together = _MANY_AT_ONCE and packed.one_block and bool(sizes.all())
    decompressed = _together if together else _one_by_one
    try:
        found = [bytes(one) for one in values] if packed.plain else decompressed(values, sizes)
    except (zstandard.ZstdError, ValueError, MemoryError):
        return None
    lengths = np.fromiter(map(len, found), np.int64, len(found))
    return found if bool((lengths == sizes).all()) else None


def _values(ahead: Bytes, decoded: Ints) -> Ints | None:
    """Where the record of each plain chunk begins; None if what is before is not its size."""
    sizes_bytes = ahead[:, 1].astype(np.int64)
    if int(sizes_bytes.max()) > _SIZE_BYTES:
        return None
    size, stop = _leading(ahead, np.full(len(ahead), 2))
    return stop if bool(((size == decoded) & (stop == 2 + sizes_bytes)).all()) else None


def _leading(ahead: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The varint of at most five bytes at a place of each row, and where it ends."""
    each, at = np.arange(len(ahead)), at.copy()
    found = np.zeros(len(ahead), np.int64)
    going = np.ones(len(ahead), bool)
    for shift in range(0, 7 * _SIZE_BYTES, 7):
        byte = ahead[each, at]
        found |= np.where(going, (byte & 0x7F).astype(np.int64) << shift, 0)
        at += going
        going &= byte >= 0x80
        if not going.any():
            break
    return found, at


def _one_by_one(frames: list[Buffer], sizes: Ints) -> list[bytes]:
    """Records of zstd frames of these sizes; a ZstdError if there is more than a frame."""
    decompress = decompressor().decompress
    return [
        decompress(frame, size, False, False)
        for frame, size in zip(frames, sizes.tolist(), strict=True)
    ]


def _together(frames: list[Buffer], sizes: Ints) -> list[bytes]:
    """The same, without the GIL but between rounds, for 2 us of 12 less for each of 3 KB.

    What is behind a frame is not noticed here, and a size of 0 is not taken.
    """
    many = decompressor().multi_decompress_to_buffer
    found: list[bytes] = []
    for at in range(0, len(frames), _ROUND):
        size = sizes[at : at + _ROUND].astype(np.uint64).tobytes()
        some: Any = many(frames[at : at + _ROUND], decompressed_sizes=size)
        found += [one.tobytes() for one in some]
    return found


def _frames(ahead: Bytes, stored: Ints, decoded: Ints) -> _Packed | None:
    """How the frames of single records lie in their chunks; None if one is not made as most are.

    That is: the sizes take less than 30 bytes, and the frame says its content's size, which is that
    of the header, so that decompressing takes no more memory than that.
    """
    sizes_bytes = ahead[:, 1]
    if int(sizes_bytes.max()) >= 30:
        return None
    promised, at = _leading(ahead, 2 + sizes_bytes.astype(np.int64))
    each = np.arange(len(ahead))
    start = ahead[each[:, None], at[:, None] + np.arange(_FRAME_BYTES + _FRAME_BLOCK)]
    described, field = start[:, 4], start[:, 5:].astype(np.int64)
    # Of the ways to write the size: a byte, two bytes and 256 more, or four bytes.
    two = field[:, 0] | field[:, 1] << 8
    way = (described >> 6) & 3
    content = np.choose(
        way, [field[:, 0], two + 256, two | field[:, 2] << 16 | field[:, 3] << 24, -1]
    )
    usual = (described & 0x23) == 0x20
    usual &= (start[:, :4] == _MAGIC).all(axis=1) & (promised == decoded) & (content == decoded)
    if not bool(usual.all()):
        return None
    # A block: whether it is the last one, its kind, and its bytes, of which one of kind 1 has one.
    place = np.array([1, 2, 4])[way]
    word = field[each, place] | field[each, place + 1] << 8 | field[each, place + 2] << 16
    inside = np.where(word >> 1 & 3 == 1, 1, word >> 3)
    checksum = np.where(described & 4, 4, 0)
    stop = at + 5 + place + _FRAME_BLOCK + inside + checksum
    one_block = bool(((word & 1 == 1) & (stop == stored)).all())
    return _Packed(at, plain=False, one_block=one_block)
