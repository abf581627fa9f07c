"""Files that no writer of the array_record package makes, but that its reader takes.

The reader finds record `i` in chunk `i // group_size`, whatever the chunks hold, and a footer that
counts too many records can end the process. Such files are put together here, byte by byte, with
right checksums, to show that they are refused before they are read.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.array_record_bytes import CODECS, hash_of, index_of, needs_core, some_records, written
from windrow.errors import SourceError
from windrow.sources import ArrayRecordDataSource

BLOCK = 65536


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def chunk(kind: bytes, data: bytes, records: int = 0, decoded: int = 0) -> bytes:
    head = struct.pack("<QQ", len(data), hash_of(data))
    head += kind + records.to_bytes(7, "little") + struct.pack("<Q", decoded)
    return struct.pack("<Q", hash_of(head)) + head + data


def simple(records: Sequence[bytes]) -> bytes:
    sizes = b"".join(varint(len(record)) for record in records)
    values = b"".join(records)
    return chunk(b"r", b"\0" + varint(len(sizes)) + sizes + values, len(records), len(values))


def block_header(previous: int, following: int) -> bytes:
    body = struct.pack("<QQ", previous, following)
    return struct.pack("<Q", hash_of(body)) + body


def padded(data: bytes) -> bytes:
    """`data` with a padding chunk to the end of the block."""
    return data + chunk(b"p", bytes(BLOCK - len(data) - 40))


def craft(
    path: Path, groups: Sequence[Sequence[bytes]], *, group_size: int, counted: int | None = None
) -> Path:
    """Write `groups`, a chunk each, into one block, and a footer that counts `counted` records."""
    total = sum(len(group) for group in groups) if counted is None else counted
    data = block_header(0, 64) + chunk(b"s", b"")
    footers = []
    for group in groups:
        size = sum(len(record) for record in group)
        footers.append(
            b"\x08" + varint(len(data)) + b"\x10" + varint(size) + b"\x18" + varint(len(group))
        )
        data += simple(group)
    options = f"group_size:{group_size},uncompressed".encode()
    meta = b"\x08\x01\x10" + varint(len(groups)) + b"\x18" + varint(total)
    meta += b"\x22" + varint(len(options)) + options
    offset = len(data)
    data = padded(data + simple([b"\x0a" + varint(len(meta)) + meta, *footers]))
    script = b"\x08" + varint(offset) + b"\x10" + varint(0x71930E704FDAE05E)
    last = simple([script] * 3)
    path.write_bytes(data + padded(block_header(0, 24 + len(last)) + last))
    return path


def test_a_file_made_here_is_read(tmp_path: Path) -> None:
    groups = [[b"a", b"bc"], [b"def", b""], [b"g" * 70]]
    source = ArrayRecordDataSource(craft(tmp_path / "a", groups, group_size=2))
    assert source.__getitems__(range(5)) == [record for group in groups for record in group]


@pytest.mark.parametrize("sizes", [(1, 1, 2, 2), (2, 1, 1, 2), (1, 1, 1, 4), (2, 2, 0, 2)])
def test_chunks_of_unequal_size_are_refused(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    groups = [[b"%d" % i for i in range(size)] for size in sizes]
    path = craft(tmp_path / "a", groups, group_size=max(sizes))
    with pytest.raises(SourceError, match=r"in 4 chunks, which are not all|counts records that no"):
        ArrayRecordDataSource(path)


def test_a_footer_that_counts_too_many_is_refused(tmp_path: Path) -> None:
    path = craft(tmp_path / "a", [[b"a"], [b"b"]], group_size=1, counted=3)
    with pytest.raises(SourceError, match=r"holds 3 records in 2 chunks|2 chunks and 3 records"):
        ArrayRecordDataSource(path)


# --- the index ------------------------------------------------------------------------------------


@needs_core
def test_padded_chunks_are_not_fetched_with_their_padding(tmp_path: Path) -> None:
    records = some_records(random.Random(1), 20)
    for codec in CODECS:
        raw = written(tmp_path / "a", records, f"group_size:5,{codec},pad_to_block_boundary:true")
        index = index_of(raw)
        assert index.chunk_offsets.tolist()[1:] == [BLOCK, 2 * BLOCK, 3 * BLOCK]
        starts, stops = index.spans(np.arange(4))
        assert (stops - starts).max() < 8_192
