"""Encoded chunks of a local Zarr array, many decoded at a call.

Chunks lie in shards or in files of their own, and are small: what a call costs counts for more than
what it decodes.

Invariant: decoded bytes are those of whole chunks, each of the size that it must have; anything else
is an error.
"""

from __future__ import annotations

import math
import os
from typing import Any, Final, Protocol, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt
import zstandard

from windrow.sources.base import IntArray
from windrow.sources.zarr_codecs import DamageError, Decoder, most_stored_bytes, refuse_bools
from windrow.sources.zarr_plain import PlainArray
from windrow.sources.zarr_shards import CHECKSUM_BYTES, MISSING, ShardIndex, StoredFiles

ByteArray: TypeAlias = npt.NDArray[np.uint8]
Frame: TypeAlias = bytes | bytearray | memoryview

# Larger chunks are decoded as well one by one, straight to where they are wanted.
MOST_CHUNK_BYTES: Final = 128 * 2**10
# What one round decodes stays in a core's cache until it is copied: batches of 2,048 records of
# 3 KB take a quarter less time in rounds of 256 than at once.
ROUND_BYTES: Final = 2**20
# Runs of at least this much are copied without the GIL; shorter ones are joined with it, which
# costs 0.15 us per run and not 0.5.
_LONG_RUN_BYTES: Final = 32 * 2**10
_MANY_AT_ONCE: Final = "multi_decompress_to_buffer" in zstandard.backend_features
# The longest header of a frame of zstd, and of its first block.
_HEAD_BYTES: Final = 21
_REPEATED: Final = 1  # a block of one byte, many times
# The CRC-32C of any bytes that end with their own CRC-32C, little-endian.
_RIGHT: Final = 0x48674BC7


def coded_chunks(
    plain: PlainArray, name: str, where: str, *, most_open: int | None = None
) -> CodedChunks:
    """The chunks of an array.

    Args:
        plain: The array.
        name: Name of the array in the source, for messages.
        where: Place of the array, for messages.
        most_open: Files to keep mapped, with those of all other arrays; None for as many as this
            process has room for.
    """
    sharded = plain.shard_shape is not None
    frames: Frames = _InShards(plain, name, where, most_open) if sharded else _InFiles(plain)
    return CodedChunks(plain, frames)


class Frames(Protocol):
    """Gives the stored bytes of chunks."""

    def get(self, chunks: IntArray) -> list[Frame | None]:
        """Stored bytes of each chunk; None where nothing is stored. Raises OSError."""
        ...

    def place(self, row: int) -> tuple[str, str]:
        """The file that holds a row, of its first cell, and what to say after it."""
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
        found = self._index.locate(chunks)
        numbers = found.shards.tolist()
        starts, stops = found.offsets.tolist(), (found.offsets + found.sizes).tolist()
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
    """Chunks in files of their own, read whole: each is wanted once in an epoch."""

    def __init__(self, plain: PlainArray) -> None:
        self._plain = plain
        self._files = StoredFiles(plain)

    def get(self, chunks: IntArray) -> list[Frame | None]:
        most = most_stored_bytes(self._plain.chunk_bytes)
        return [_file_bytes(self._files.path(number), most) for number in chunks.tolist()]

    def place(self, row: int) -> tuple[str, str]:
        return place_of(self._plain, self._files, row)

    def mean_bytes(self) -> int | None:
        found = [self._files.size(k) for k in range(min(4, self._plain.grid[0]))]
        sizes = [size for size in found if size != MISSING]
        return sum(sizes) // len(sizes) if sizes else None


class CodedChunks:
    """Encoded chunks, by number: C order of their grid."""

    def __init__(self, plain: PlainArray, frames: Frames) -> None:
        """Read nothing yet."""
        self._frames = frames
        self._size = plain.chunk_bytes
        self._bools = plain.dtype == np.bool_
        self._decoder = Decoder(plain.codecs, self._size)
        self._fill = np.asarray(plain.fill, plain.dtype).astype(plain.stored_dtype).tobytes()
        names = [codec.name for codec in plain.codecs]
        self._checked = names[-1:] == ["crc32c"]
        self._zstd = names[: len(names) - self._checked] == ["zstd"] and _MANY_AT_ONCE

    def fetch(
        self, chunks: IntArray, threads: int, *, whole: bool = False
    ) -> tuple[ByteArray, bool]:
        """Decoded bytes of chunks, joined, in new memory; and whether one is not stored.

        Args:
            chunks: Their numbers.
            threads: Beside this one, to decode on; 0 for none.
            whole: Whether chunks that something follows are damaged too.

        Raises:
            OSError: If a file can not be read.
            DamageError: If a chunk is damaged.
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
        """Decode chunks and drop them; how many are not stored.

        Raises:
            OSError: If a file can not be read.
            DamageError: If a chunk is damaged.
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
        """Whether nothing follows the frames, which the library would not tell of many at once."""
        return not self._zstd or self._checked or _are_single_blocks(frames)

    def place(self, row: int) -> tuple[str, str]:
        """The file that holds a row, of its first cell, and what to say after it."""
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
        """The decoded frames, by the library; None where it can not, or something is wrong."""
        if max(map(len, frames)) > most_stored_bytes(self._size):
            raise DamageError(
                f"it has {max(map(len, frames)):,} bytes, far more than a chunk can have"
            )
        if not self._zstd:
            return None
        bodies = [_body(frame) for frame in frames] if self._checked else frames
        sizes = np.full(len(bodies), self._size, np.uint64).tobytes()
        try:
            # It refuses a frame that decodes to another size.
            return zstandard.ZstdDecompressor().multi_decompress_to_buffer(
                bodies, decompressed_sizes=sizes, threads=threads
            )
        except (zstandard.ZstdError, ValueError):
            return None  # a frame without its size, or damage: the decoder tells

    def _one_by_one(self, frames: list[Frame]) -> ByteArray:
        out = np.empty(len(frames) * self._size, np.uint8)
        whole = self._decoder.takes_bytes
        for k, frame in enumerate(frames):
            data = bytes(frame) if whole else memoryview(frame)
            self._decoder.decode(data, out[k * self._size : (k + 1) * self._size])
        return out


def _body(frame: Frame) -> Frame:
    """`frame` without the checksum at its end, which is right."""
    short = len(frame) <= CHECKSUM_BYTES
    # The checksum library takes no memoryview.
    if short or google_crc32c.value(np.frombuffer(frame, np.uint8)) != _RIGHT:
        raise DamageError("its checksum (crc32c) is wrong")
    return frame[:-CHECKSUM_BYTES]


def _are_single_blocks(frames: list[Frame]) -> bool:
    """Whether each is a frame of zstd of one block, as nearly all small ones are, and no more."""
    heads = b"".join([frame[:_HEAD_BYTES] for frame in frames])
    if len(heads) != _HEAD_BYTES * len(frames):
        return False  # so short ones are not worth it
    raw = np.frombuffer(heads, np.uint8).reshape(-1, _HEAD_BYTES)
    about = raw[:, 4]
    single = about >> 5 & 1
    content = np.array([0, 2, 4, 8])[about >> 6] + ((about >> 6 == 0) & (single == 1))
    begin = 6 - single.astype(np.int64) + np.array([0, 1, 2, 4])[about & 3] + content
    each = np.arange(len(raw))
    # Little-endian: whether it is the last one, of which kind it is, and its bytes.
    block = sum(raw[each, begin + k].astype(np.int64) << 8 * k for k in range(3))
    stored = np.where(block >> 1 & 3 == _REPEATED, 1, block >> 3)
    ends = begin + 3 + stored + 4 * (about >> 2 & 1)
    lengths = np.fromiter(map(len, frames), np.int64, len(frames))
    return bool(((block & 1 == 1) & (ends == lengths)).all())


def joined(parts: list[Any], size: int) -> ByteArray:
    """`parts`, of `size` bytes together, in new memory."""
    if size < len(parts) * _LONG_RUN_BYTES:
        joined = bytearray().join(parts)
        if len(joined) != size:
            raise DamageError(f"{len(joined):,} bytes were found, not {size:,}")
        return np.frombuffer(joined, np.uint8)
    out = np.empty(size, np.uint8)
    at = 0
    for part in parts:
        out[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += len(part)
    if at != size:
        raise DamageError(f"{at:,} bytes were found, not {size:,}")
    return out


def place_of(plain: PlainArray, files: StoredFiles, row: int) -> tuple[str, str]:
    """The file that holds a row, of its first cell, and what to say after it."""
    whole = plain.shard_shape or plain.chunk_shape
    number = row // whole[0] * math.prod(files.grid[1:])
    return files.path(number), f", shard {number}" if plain.shard_shape else ""


def _file_bytes(path: str, most: int) -> bytes | None:
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise DamageError(f"it has {size:,} bytes, far more than a chunk can have")
            return file.readall()
    except (FileNotFoundError, NotADirectoryError):
        return None
