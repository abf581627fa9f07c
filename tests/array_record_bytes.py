"""ArrayRecord files of every make, their chunks, and chunks with damage whose hashes are right."""

from __future__ import annotations

import importlib
import random
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from windrow.core.native import native
from windrow.sources.array_record.chunks import CHUNK_HEADER, contiguous
from windrow.sources.array_record.decode import StoredChunk
from windrow.sources.array_record.index import TAIL_BYTES, Index, footer_span, parse_footer

needs_core = pytest.mark.skipif(native() is None, reason="without the native core")

CODECS = ("uncompressed", "snappy", "zstd", "brotli:3")


def write(path: Path, records: Iterable[bytes], options: str = "group_size:1") -> Path:
    """Write a file of `records`, and the folders that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return path


def written(path: Path, records: Sequence[bytes], options: str) -> bytes:
    """The bytes of a file of `records`."""
    return write(path, records, options).read_bytes()


def index_of(raw: bytes) -> Index:
    start, stop = footer_span("test", "file", raw[-TAIL_BYTES:], len(raw))
    return parse_footer("test", "file", raw[start:stop], start, len(raw))


def chunks_of(raw: bytes, index: Index | None = None) -> list[StoredChunk]:
    """All chunks of a file, with no more bytes than the index allows for them."""
    index = index_of(raw) if index is None else index
    numbers = np.arange(index.chunks)
    starts, stops = index.spans(numbers)
    return [
        StoredChunk(start, raw[start:stop], count)
        for start, stop, count in zip(
            starts.tolist(), stops.tolist(), index.counts(numbers).tolist(), strict=True
        )
    ]


def proto(draw: random.Random) -> bytes:
    """A protobuf message, which transposing takes apart."""
    text = draw.randbytes(draw.randrange(20))
    return bytes((8, draw.randrange(128), 18, len(text))) + text + bytes((26, 2, 8, 5))


def some_records(draw: random.Random, count: int) -> list[bytes]:
    return [
        draw.choice((b"", b"a" * 300, proto(draw), draw.randbytes(draw.randrange(200))))
        for _ in range(count)
    ]


def hash_of(data: bytes | bytearray) -> int:
    """The hash that chunks have, by the native core, also where it is switched off."""
    found: int = importlib.import_module("windrow.core._native").hash_for_test(bytes(data))
    return found


def stripped(chunk: StoredChunk) -> tuple[bytearray, bytearray]:
    """Header and data of a chunk, without block headers."""
    head = contiguous(chunk.offset, chunk.data, 0, CHUNK_HEADER)
    size = struct.unpack_from("<Q", head, 8)[0]
    raw = bytearray(contiguous(chunk.offset, chunk.data, 0, CHUNK_HEADER + size))
    return raw[:CHUNK_HEADER], raw[CHUNK_HEADER:]


def sealed(header: bytearray, data: bytearray) -> StoredChunk:
    """A chunk with right hashes, whatever it counts and holds; it begins at byte 64."""
    struct.pack_into("<QQ", header, 8, len(data), hash_of(data))
    struct.pack_into("<Q", header, 0, hash_of(header[8:]))
    count = int.from_bytes(header[25:32], "little")
    assert 64 + CHUNK_HEADER + len(data) <= 65536, "block headers are not made here"
    return StoredChunk(64, bytes(header + data), min(count, 2**62))


def with_right_hashes(chunk: StoredChunk, draw: random.Random) -> StoredChunk:
    """The chunk with damage to its counts, its sizes, its streams or its kind."""
    header, data = stripped(chunk)
    for _ in range(draw.choice((1, 1, 2, 4))):
        way = draw.randrange(7)
        at = draw.randrange(len(data))
        if way == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif way == 1:
            # Where sizes, lengths and the frames' own headers are.
            data[min(at, draw.randrange(1, 24))] = draw.randrange(256)
        elif way == 2:
            data[at:] = data[at : at + draw.randrange(len(data))] or b"\0"
        elif way == 3:
            data[at:at] = draw.randbytes(draw.randrange(1, 12))
        elif way == 4:
            count = int.from_bytes(header[25:32], "little")
            count = draw.choice((count + 1, max(0, count - 1), 0, 2**20, 2**40, 2**56 - 1))
            header[25:32] = (count % 2**56).to_bytes(7, "little")
        elif way == 5:
            size = struct.unpack_from("<Q", header, 32)[0]
            size = draw.choice((size + 1, max(0, size - 1), 0, 2**30, 2**33, 2**63, 2**64 - 1))
            struct.pack_into("<Q", header, 32, size % 2**64)
        else:
            header[24:25] = draw.choice((b"r", b"t", b"t", b"s", b"p"))
    return sealed(header, data)
