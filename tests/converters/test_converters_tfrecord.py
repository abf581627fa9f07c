"""TFRecord framing: what is written is read back, and no damage passes for data."""

from __future__ import annotations

import gzip
import os
import random
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hypothesis_profiles import examples
from windrow.converters import read_records, write_records
from windrow.converters.records import tfrecord
from windrow.converters.records.tfrecord import read_batches
from windrow.errors import MissingExtraError, NotFoundError, ReadError

RECORDS = [b"one", b"", b"three" * 7]


def plain_crc32c(data: bytes) -> int:
    """CRC-32C bit by bit, to check the framing without the package that it uses."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def frame(data: bytes) -> bytes:
    def masked(part: bytes) -> bytes:
        crc = plain_crc32c(part)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def test_bytes_on_disk_follow_the_format(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    assert write_records(path, RECORDS) == 3
    assert path.read_bytes() == b"".join(map(frame, RECORDS))


@settings(max_examples=examples(40))
@given(records=st.lists(st.binary(max_size=300), max_size=12), suffix=st.sampled_from(["", ".gz"]))
def test_round_trip(records: list[bytes], suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.tfrecord" + suffix)
        write_records(path, iter(records))
        assert list(read_records(path)) == records


def test_records_larger_than_a_block_and_across_blocks(tmp_path: Path) -> None:
    draw = random.Random(0)
    records = [draw.randbytes(n) for n in (3, 1 << 20, 700_001, 700_001, 5 << 20, 0, 12)]
    write_records(tmp_path / "a", records)
    assert list(read_records(tmp_path / "a")) == records


@pytest.mark.parametrize("name", ["a.gz", "a.tfrecord.gzip", "A.TFRECORD.GZ"])
def test_gzip_is_gzip(tmp_path: Path, name: str) -> None:
    write_records(tmp_path / name, RECORDS)
    assert gzip.decompress((tmp_path / name).read_bytes()) == b"".join(map(frame, RECORDS))
    assert list(read_records(tmp_path / name)) == RECORDS


def test_a_url_is_read(tmp_path: Path) -> None:
    url = "memory://converters/a.tfrecord"
    write_records(url, RECORDS)
    assert list(read_records(url)) == RECORDS


def test_no_flipped_byte_passes(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    whole = b"".join(map(frame, RECORDS))
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(ReadError, match=r"a\.tfrecord: record \d at byte \d+: the checksum of"):
            list(read_records(path))


def test_no_cut_inside_a_record_passes(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    whole = b"".join(map(frame, RECORDS))
    ends = {0: 0, 19: 1, 35: 2, len(whole): 3}
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        if size in ends:  # the format cannot distinguish such a file from a whole one
            assert list(read_records(path)) == RECORDS[: ends[size]]
        else:
            with pytest.raises(ReadError, match=r"record \d at byte \d+: the file (ends|is cut)"):
                list(read_records(path))


def test_a_hostile_length_takes_no_memory(tmp_path: Path) -> None:
    length = struct.pack("<Q", 1 << 60)
    (tmp_path / "a").write_bytes(length + frame(length)[20:] + b"x" * 100)
    with pytest.raises(ReadError, match="cut off: the record has 1152921504606846976 bytes"):
        list(read_records(tmp_path / "a"))


def test_gzip_without_its_name_says_so(tmp_path: Path) -> None:
    write_records(tmp_path / "a.gz", RECORDS)
    (tmp_path / "a.gz").rename(tmp_path / "a")
    with pytest.raises(ReadError, match=r"give it a name that ends in \.gz"):
        list(read_records(tmp_path / "a"))
    (tmp_path / "b.gz").write_bytes(frame(b"x"))
    with pytest.raises(ReadError, match=r"b\.gz: record 0 at byte 0: Not a gzipped file"):
        list(read_records(tmp_path / "b.gz"))


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(MissingExtraError, match=r"reading TFRecord .* windrow-data\[beam\]"):
        list(read_records(tmp_path / "a"))


def spoiled(folder: Path, at: int, *, suffix: str = "") -> Path:
    """A file of `RECORDS` with one byte changed."""
    whole = bytearray(b"".join(map(frame, RECORDS)))
    whole[at] ^= 1
    path = folder / f"a.tfrecord{suffix}"
    path.write_bytes(gzip.compress(bytes(whole)) if suffix else bytes(whole))
    return path


def test_wrong_lengths_and_cuts_are_never_skipped(tmp_path: Path) -> None:
    path = spoiled(tmp_path, 35)
    batches = read_batches(path, skip_bad=True)
    assert next(batches).records == RECORDS[:2]
    with pytest.raises(ReadError, match="record 2 at byte 35: the checksum of the length") as found:
        next(batches)
    assert (found.value.offset, found.value.records) == (35, (2, 3))
    path.write_bytes(b"".join(map(frame, RECORDS))[:-1])
    with pytest.raises(ReadError, match="record 2 at byte 35: the file is cut off"):
        list(read_batches(path, skip_bad=True))


@settings(max_examples=examples(60))
@given(
    sizes=st.lists(st.sampled_from([0, 1, 7, 300]), min_size=1, max_size=12),
    damaged=st.sets(st.integers(0, 4_000), max_size=2),
    cut=st.integers(0, 20),
    skip_bad=st.booleans(),
    check_data=st.booleans(),
)
def test_the_core_finds_what_python_finds(
    sizes: list[int], damaged: set[int], cut: int, skip_bad: bool, check_data: bool
) -> None:
    raw = bytearray(b"".join(frame(bytes([at % 251]) * size) for at, size in enumerate(sizes)))
    for at in damaged:
        raw[at % len(raw)] ^= 1

    def found(path: str) -> tuple[list[Any], str]:
        batches: list[Any] = []
        try:
            for batch in read_batches(path, skip_bad=skip_bad, check_data=check_data):
                batches += [(batch.records, [str(one) for one in batch.bad], batch.start_byte)]
        except ReadError as error:
            return batches, str(error)
        return batches, ""

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / "a.tfrecord"
        path.write_bytes(raw[: len(raw) - cut])
        ours = found(str(path))
        patch.setattr(tfrecord, "native", lambda: None)
        assert found(str(path)) == ours


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as found:
        list(read_records("memory://user:word@nowhere/a?signed=secret"))
    assert "word" not in str(found.value)
    assert "secret" not in str(found.value)
