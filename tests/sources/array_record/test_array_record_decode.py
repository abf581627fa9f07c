"""Chunks decoded from their bytes, against what was written, and with every kind of damage."""

from __future__ import annotations

import functools
import itertools
import random
import struct
from pathlib import Path

import pytest
import zstandard

from tests.array_record_bytes import (
    CODECS,
    chunks_of,
    needs_core,
    proto,
    sealed,
    some_records,
    stripped,
    with_right_hashes,
    written,
)
from tests.damage import attack
from windrow.sources.array_record.decode import ChunkError, StoredChunk, Verify, decode

pytestmark = needs_core

KINDS = ("none", "one", "empty", "mixed", "protos", "around a block", "large")


def records_of(kind: str) -> list[bytes]:
    draw = random.Random(kind)
    lengths = (65_536 - less for less in range(0, 140, 9))
    made: dict[str, list[bytes]] = {
        "none": [],
        "one": [b"a"],
        "empty": [b""] * 3_000,
        "mixed": some_records(draw, 257),
        "protos": [proto(draw) for _ in range(300)],
        "around a block": [draw.randbytes(length) for length in lengths],
        "large": [draw.randbytes(1_000_000), bytes(1_000_000), b""],
    }
    return made[kind]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_make_gives_back_what_was_written(tmp_path: Path, codec: str, kind: str) -> None:
    records = records_of(kind)
    for more, group in itertools.product(
        ("", ",transpose:true", ",pad_to_block_boundary:true"), (1, 100, 65536)
    ):
        few = records[:40] if group == 1 else records
        raw = written(tmp_path / "a", few, f"group_size:{group},{codec}{more}")
        chunks = chunks_of(raw)
        ways: tuple[Verify, Verify] = ("headers", "all")
        for verify in ways:
            found = decode(chunks, verify=verify)
            assert [len(some) for some in found] == [chunk.records for chunk in chunks]
            assert [record for some in found for record in some] == few


@functools.cache
def makes(folder: Path) -> list[list[StoredChunk]]:
    """The chunks of files of every make."""
    draw, found = random.Random(0), []
    for codec, more, group in itertools.product(CODECS, ("", ",transpose:true"), (1, 40)):
        options = f"group_size:{group},{codec}{more}"
        found.append(chunks_of(written(folder / "a", some_records(draw, 40), options)))
    return found


def damaged_once(draw: random.Random, folder: Path) -> str:
    """What becomes of a chunk with damage whose hashes are right."""
    chunk = with_right_hashes(draw.choice(draw.choice(makes(folder))), draw)
    ways: tuple[Verify, Verify] = ("headers", "all")
    for verify in ways:
        try:
            # Several: what is read by other threads than this one must not end the process.
            found, *_ = decode([chunk] * 3, verify=verify)
        except ChunkError:
            return "refused"
        assert len(found) == chunk.records
        assert sum(map(len, found)) == struct.unpack_from("<Q", chunk.data, 32)[0]
    return "decoded"


@pytest.mark.jobs
def test_damage_under_right_hashes_never_ends_the_process(tmp_path: Path) -> None:
    counts = attack("tests.sources.array_record.test_array_record_decode", tmp_path, cases=500)
    assert counts["refused"] > 250


@pytest.mark.soak
def test_more_damage_under_right_hashes(tmp_path: Path, seed: int) -> None:
    first = 1_000_000 + 200 * seed
    attack("tests.sources.array_record.test_array_record_decode", tmp_path, 200, first)


def one(tmp_path: Path, options: str = "group_size:2,zstd") -> StoredChunk:
    return chunks_of(written(tmp_path / "a", [b"abc" * 50, b"defg"], options))[0]


def refused(chunk: StoredChunk, message: str, verify: Verify = "all") -> None:
    with pytest.raises(ChunkError, match=message) as caught:
        decode([chunk], verify=verify)
    assert caught.value.chunk == 0


@pytest.mark.parametrize(
    ("kind", "count", "decoded", "message"),
    [
        (b"x", 2, 154, r"its header has the type 'x'"),
        (b"r", 0, 154, r"it counts 0 records"),
        (b"r", 2**40, 154, r"it counts 1,099,511,627,776 records"),
        (b"r", 2, 2**31 + 1, r"2 records of 2,147,483,649 bytes together, more than its"),
        (b"r", 2, 2**64 - 1, r"more than its \d+ bytes can hold"),
        (b"r", 3, 154, r"it does not hold the sizes of 3 records"),
        (b"r", 2, 155, r"it holds 154 bytes of records, and its header counts 155"),
        (b"r", 2, 153, r"damaged, or more than its header counts"),
    ],
)
def test_headers_with_right_hashes_that_say_the_wrong_thing(
    tmp_path: Path, kind: bytes, count: int, decoded: int, message: str
) -> None:
    header, data = stripped(one(tmp_path))
    header[24:32] = kind + count.to_bytes(7, "little")
    struct.pack_into("<Q", header, 32, decoded)
    for verify in ("headers", "all"):
        refused(sealed(header, data), message, "all" if verify == "all" else "headers")


def of_one_frame(folder: Path, record: bytes, frame: bytes) -> StoredChunk:
    """A chunk of a record, which is stored as `frame`."""
    (chunk,) = chunks_of(written(folder / "a", [record], "group_size:1,zstd"))
    header, data = stripped(chunk)
    before = data[: data.rindex(zstandard.FRAME_HEADER)]
    return sealed(header, before + frame)


def test_a_frame_that_promises_much_takes_no_memory(tmp_path: Path) -> None:
    # A frame that says that it holds 2**40 bytes.
    frame = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 40) + b"\x01\x00\x00"
    with pytest.raises(ChunkError, match=r"zstd: a frame of 1,099,511,627,776 bytes where 5"):
        decode([of_one_frame(tmp_path, b"abcde", frame)])
