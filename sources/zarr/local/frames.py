"""Encoded chunks of a local Zarr array, many of them decoded in one call.

The chunks lie in shards or in files of their own. They are small, so the cost of a call matters
more than the bytes that it decodes. `CodedChunks` decodes whole chunks, and `SmallChunks` picks
rows out of small chunks that lie in shards.

Invariants: decoded bytes come from whole chunks, each of the size that it must have; anything else
is an error. Rows come from whole chunks, or are the fill value where nothing is stored. An error of
`SmallChunks` does not name the chunk, and the memory to fill then holds anything.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import zstandard

from windrow.sources.base import IntArray
from windrow.sources.chunks import Span
from windrow.sources.zarr.local.codecs import (
    ByteArray,
    ChunkDamageError,
    ChunkDecoder,
    most_stored_bytes,
    refuse_bools,
    without_checksum,
)
from windrow.sources.zarr.local.metadata import PlainArray
from windrow.sources.zarr.local.shards import MISSING, ShardIndex, StoredFiles

AnyArray = npt.NDArray[Any]
Frame: TypeAlias = bytes | bytearray | memoryview

# Larger chunks are decoded just as well one by one, straight into the caller's memory.
MOST_CHUNK_BYTES: Final = 128 * 2**10
# The bytes that one round decodes stay in a core's cache until they are copied: batches of 2,048
# records of 3 KB take a quarter less time in rounds of 256 than at once.
ROUND_BYTES: Final = 2**20
# Picking rows from chunks of 8 KB this way takes half the time or less, from 24 KB a tenth less;
# chunks of 48 KB are decoded just as well one by one, straight into the caller's memory.
MOST_SMALL_BYTES: Final = 32 * 2**10
_SMALL_ROUND_BYTES: Final = 256 * 2**10
# With more chunks than this a call costs almost nothing, and Python's time per chunk counts.
_MOST_AT_ONCE: Final = 1024
# Runs of at least this much are copied without the GIL; shorter ones are joined with it, which
# costs 0.15 us per run instead of 0.5.
_LONG_RUN_BYTES: Final = 32 * 2**10
_MANY_AT_ONCE: Final = "multi_decompress_to_buffer" in zstandard.backend_features
# The longest header of a frame of zstd, and of its first block.
_HEAD_BYTES: Final = 21
_REPEATED: Final = 1  # a block of one byte, many times


def coded_chunks(
    plain: PlainArray, name: str, where: str, *, most_open: int | None = None
) -> CodedChunks:
    """The chunks of an array.

    Args:
        plain: The array.
        name: Name of the array in the source, for messages.
        where: Place of the array, for messages.
        most_open: Files to keep mapped, together with the files of all other arrays; None for as
            many as this process has room for.
    """
    sharded = plain.shard_shape is not None
    frames: Frames = _InShards(plain, name, where, most_open) if sharded else _InFiles(plain)
    return CodedChunks(plain, frames)


class Frames(Protocol):
    """Returns the stored bytes of chunks."""

    def get(self, chunks: IntArray) -> list[Frame | None]:
        """Stored bytes of each chunk; None where nothing is stored. Raises OSError."""
        ...

    def place(self, row: int) -> tuple[str, str]:
        """The file that holds the first cell of a row, and a note for messages to follow it."""
        ...

    def mean_bytes(self) -> int | None:
        """Bytes of a chunk, from a sample; None if none is stored."""
        ...


class _InShards:
    """Chunks in shards, as slices of the mapped files."""

    def __init__(self, plain: PlainArray, name: str, where: str, most_open: int | None) -> None:
        self._plain = plain
        self._files = StoredFiles(plain, most_open=most_open)
        self._index = ShardIndex(plain, self._files, name=name, where=where)

    def get(self, chunks: IntArray) -> list[Frame | None]:
        located = self._index.locate(chunks)
        numbers = located.shards.tolist()
        starts, stops = located.offsets.tolist(), (located.offsets + located.sizes).tolist()
        held: dict[int, Any] = self._files.hold(numbers)
        spans = zip(numbers, starts, stops, strict=True)
        return [
            None if start == MISSING else held[number][start:stop] for number, start, stop in spans
        ]

    def place(self, row: int) -> tuple[str, str]:
        return place_of(self._plain, self._files, row)

    def mean_bytes(self) -> int | None:
        sizes = (self._files.size(k) for k in range(min(16, math.prod(self._files.grid))))
        size = next((size for size in sizes if size != MISSING), None)
        return None if size is None else size // math.prod(self._plain.shard_grid)


class _InFiles:
    """Chunks in files of their own, read whole: each is needed once in an epoch."""

    def __init__(self, plain: PlainArray) -> None:
        self._plain = plain
        self._files = StoredFiles(plain)

    def get(self, chunks: IntArray) -> list[Frame | None]:
        most = most_stored_bytes(self._plain.chunk_bytes)
        return [_file_bytes(self._files.path(number), most) for number in chunks.tolist()]

    def place(self, row: int) -> tuple[str, str]:
        return place_of(self._plain, self._files, row)

    def mean_bytes(self) -> int | None:
        sampled = [self._files.size(k) for k in range(min(4, self._plain.grid[0]))]
        sizes = [size for size in sampled if size != MISSING]
        return sum(sizes) // len(sizes) if sizes else None


class CodedChunks:
    """Encoded chunks by their number, in C order of their grid."""

    def __init__(self, plain: PlainArray, frames: Frames) -> None:
        """Read nothing yet."""
        self._frames = frames
        self._size = plain.chunk_bytes
        self._bools = plain.dtype == np.bool_
        self._decoder = ChunkDecoder(plain.codecs, self._size)
        self._fill = np.asarray(plain.fill, plain.dtype).astype(plain.stored_dtype).tobytes()
        names = [codec.name for codec in plain.codecs]
        self._checked = names[-1:] == ["crc32c"]
        self._zstd = names[: len(names) - self._checked] == ["zstd"] and _MANY_AT_ONCE

    def fetch(
        self, chunks: IntArray, threads: int, *, whole: bool = False
    ) -> tuple[ByteArray, bool]:
        """Decoded bytes of chunks, joined in new memory, and whether one is not stored.

        Args:
            chunks: Their numbers.
            threads: Threads to decode on in addition to this one.
            whole: Whether to refuse chunks that are followed by other bytes.

        Raises:
            OSError: If a file cannot be read.
            ChunkDamageError: If a chunk is damaged.
        """
        frames = self._frames.get(chunks)
        stored = [frame for frame in frames if frame is not None]
        if len(stored) == len(frames):
            return self._decoded(stored, threads, whole=whole), False
        out = np.frombuffer(
            bytearray(self._fill) * (len(frames) * self._size // len(self._fill)), np.uint8
        )
        if stored:
            there = [k for k, frame in enumerate(frames) if frame is not None]
            found = self._decoded(stored, threads, whole=whole)
            out.reshape(len(frames), -1)[there] = found.reshape(len(stored), -1)
        return out, True

    def check(self, chunks: IntArray) -> int:
        """Decode chunks, drop the values and return how many chunks are not stored.

        Raises:
            OSError: If a file cannot be read.
            ChunkDamageError: If a chunk is damaged.
        """
        stored = [frame for frame in self._frames.get(chunks) if frame is not None]
        whole = not stored or self._are_whole(stored)
        step = max(1, ROUND_BYTES // self._size)
        for first in range(0, len(stored), step):
            some = stored[first : first + step]
            if self._bools:
                refuse_bools(self._decoded(some, 0))
            elif not whole or self._at_once(some, 0) is None:
                self._one_by_one(some)
        return len(chunks) - len(stored)

    def _are_whole(self, frames: list[Frame]) -> bool:
        """Whether nothing follows the frames; the library does not report that for many at once."""
        return not self._zstd or self._checked or _are_single_blocks(frames)

    def place(self, row: int) -> tuple[str, str]:
        """The file that holds the first cell of a row, and a note for messages to follow it."""
        return self._frames.place(row)

    def mean_bytes(self) -> int | None:
        """Stored bytes of a chunk, from a sample; None if none is stored."""
        return self._frames.mean_bytes()

    def _decoded(self, frames: list[Frame], threads: int, *, whole: bool = False) -> ByteArray:
        """Decoded bytes of at least one frame, joined."""
        odd = whole and not self._are_whole(frames)
        found = None if odd else self._at_once(frames, threads)
        if found is not None:
            return joined(list(found), len(frames) * self._size)
        return self._one_by_one(frames)

    def _at_once(self, frames: list[Frame], threads: int) -> Any | None:
        """The decoded frames, by the library; None if it cannot decode all of them."""
        if max(map(len, frames)) > most_stored_bytes(self._size):
            raise ChunkDamageError(
                f"it has {max(map(len, frames)):,} bytes, far more than a chunk can have"
            )
        if not self._zstd:
            return None
        bodies: list[Frame] = list(map(without_checksum, frames)) if self._checked else frames
        sizes = np.full(len(bodies), self._size, np.uint64).tobytes()
        try:
            # It refuses a frame that decodes to another size.
            return zstandard.ZstdDecompressor().multi_decompress_to_buffer(
                bodies, decompressed_sizes=sizes, threads=threads
            )
        except (zstandard.ZstdError, ValueError):
            return None  # a frame without its size, or damage: the decoder finds out

    def _one_by_one(self, frames: list[Frame]) -> ByteArray:
        out = np.empty(len(frames) * self._size, np.uint8)
        whole = self._decoder.takes_bytes
        for k, frame in enumerate(frames):
            data = bytes(frame) if whole else memoryview(frame)
            self._decoder.decode(data, out[k * self._size : (k + 1) * self._size])
        return out


def _are_single_blocks(frames: list[Frame]) -> bool:
    """Whether each is exactly one zstd frame of one block, as nearly all small ones are."""
    heads = b"".join([frame[:_HEAD_BYTES] for frame in frames])
    if len(heads) != _HEAD_BYTES * len(frames):
        return False  # frames this short are not worth a check here
    raw = np.frombuffer(heads, np.uint8).reshape(-1, _HEAD_BYTES)
    about = raw[:, 4]
    single = about >> 5 & 1
    content = np.array([0, 2, 4, 8])[about >> 6] + ((about >> 6 == 0) & (single == 1))
    begin = 6 - single.astype(np.int64) + np.array([0, 1, 2, 4])[about & 3] + content
    each = np.arange(len(raw))
    # Little-endian: whether it is the last block, its kind, and its bytes.
    block = sum(raw[each, begin + k].astype(np.int64) << 8 * k for k in range(3))
    stored = np.where(block >> 1 & 3 == _REPEATED, 1, block >> 3)
    ends = begin + 3 + stored + 4 * (about >> 2 & 1)
    lengths = np.fromiter(map(len, frames), np.int64, len(frames))
    return bool(((block & 1 == 1) & (ends == lengths)).all())


def joined(parts: list[Any], size: int) -> ByteArray:
    """`parts`, of `size` bytes together, joined in new memory."""
    if size < len(parts) * _LONG_RUN_BYTES:
        data = bytearray().join(parts)
        if len(data) != size:
            raise ChunkDamageError(f"{len(data):,} bytes were found, not {size:,}")
        return np.frombuffer(data, np.uint8)
    out = np.empty(size, np.uint8)
    at = 0
    for part in parts:
        out[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += len(part)
    if at != size:
        raise ChunkDamageError(f"{at:,} bytes were found, not {size:,}")
    return out


def place_of(plain: PlainArray, files: StoredFiles, row: int) -> tuple[str, str]:
    """The file that holds the first cell of a row, and a note for messages to follow it."""
    whole = plain.shard_shape or plain.chunk_shape
    number = row // whole[0] * math.prod(files.grid[1:])
    return files.path(number), f", shard {number}" if plain.shard_shape else ""


def _file_bytes(path: str, most: int) -> bytes | None:
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise ChunkDamageError(f"it has {size:,} bytes, far more than a chunk can have")
            return file.readall()
    except (FileNotFoundError, NotADirectoryError):
        return None


# --- rows of small chunks ------------------------------------------------------------------------


def small_chunks(plain: PlainArray) -> SmallChunks | None:
    """The small chunks of an array; None if its chunks are better decoded one by one."""
    # Chunks in files of their own would all be in memory at once, whatever their sizes.
    if not plain.codecs or plain.shard_shape is None or math.prod(plain.grid[1:]) != 1:
        return None
    if not 0 < plain.chunk_bytes <= MOST_SMALL_BYTES:
        return None
    return SmallChunks(plain, coded_chunks(plain, plain.name, plain.folder))


class SmallChunks:
    """Chunks that hold whole rows. Thread-safe."""

    def __init__(self, plain: PlainArray, chunks: CodedChunks) -> None:
        """Read nothing yet."""
        self._plain, self._chunks = plain, chunks
        self._rows = plain.chunk_shape[0]
        self._order = (0, *(1 + int(axis) for axis in np.argsort(plain.axes)))
        self._inside = (slice(None), slice(None), *(slice(0, n) for n in plain.shape[1:]))
        self.at_once = min(_MOST_AT_ONCE, _SMALL_ROUND_BYTES // plain.chunk_bytes)
        """Chunks that one call decodes."""

    def fill(self, spans: Sequence[Span]) -> bool:
        """Fill spans, each of one chunk, and return whether one of their chunks is not stored.

        Raises:
            OSError: If a file cannot be read.
            ChunkDamageError: If a chunk is damaged.
        """
        missed = False
        for at in range(0, len(spans), self.at_once):
            group = spans[at : at + self.at_once]
            chunks = np.array([span.first for span in group]) // self._rows
            blocks, missing = self._decoded(chunks)
            missed |= missing
            for span, block, chunk in zip(group, blocks, chunks.tolist(), strict=True):
                begin = chunk * self._rows
                span.out[...] = block[span.first - begin : span.stop - begin]
        return missed

    def rounds(self, rows: IntArray) -> list[IntArray]:
        """Indices into `rows` to `take` together, so that each chunk is decoded once."""
        order = np.argsort(rows, kind="stable")
        begins = np.flatnonzero(_is_new(rows[order] // self._rows))
        groups: list[IntArray] = np.split(order, begins[self.at_once :: self.at_once])
        return groups

    def take(self, rows: IntArray) -> tuple[AnyArray, bool]:
        """Rows `(n, ...)`, and whether a chunk is not stored; rows of one chunk must be adjacent.

        Raises:
            OSError: If a file cannot be read.
            ChunkDamageError: If a chunk is damaged.
        """
        chunks, within = np.divmod(rows, self._rows)
        new = _is_new(chunks)
        blocks, missing = self._decoded(chunks[new])
        return blocks[np.cumsum(new) - 1, within], missing

    def _decoded(self, chunks: IntArray) -> tuple[AnyArray, bool]:
        """Values `(chunks, rows of each, ...)`, and whether a chunk is not stored."""
        plain = self._plain
        decoded, missing = self._chunks.fetch(chunks, 0, whole=True)
        if plain.dtype == np.bool_:
            refuse_bools(decoded)
        values: AnyArray = decoded.view(plain.stored_dtype)
        values = values.reshape(len(chunks), *plain.stored_shape).transpose(self._order)
        return values[self._inside], missing


def _is_new(chunks: IntArray) -> npt.NDArray[np.bool_]:
    """Whether each chunk differs from the one before it."""
    new = np.ones(len(chunks), np.bool_)
    new[1:] = chunks[1:] != chunks[:-1]
    return new
