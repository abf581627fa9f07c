"""Damaged ArrayRecord files, here and there: the right records, or an error that names them."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pytest

from tests.array_record_bytes import needs_core, written
from tests.damage import attack
from windrow.core.native import native
from windrow.errors import ReadError, SourceError
from windrow.sources import ArrayRecordDataSource, RemoteOptions
from windrow.sources.base import IntArray

pytestmark = pytest.mark.jobs

OPTIONS = (
    "group_size:1",
    "group_size:9",
    "group_size:4,uncompressed",
    "group_size:25,brotli:3",
    "group_size:7,transpose:true",
    "group_size:5,snappy,pad_to_block_boundary:true",
)
COUNT = 61
QUICK = RemoteOptions(retries=1, backoff_s=0.0, outage_s=0)
Damage = Callable[[bytearray, random.Random], None]
Files = list[tuple[bytes, list[bytes]]]


@functools.cache
def whole_files(folder: Path) -> Files:
    """Whole files and their records."""
    found = []
    for number, options in enumerate(OPTIONS):
        rng = np.random.default_rng(number)
        sizes = rng.integers(0, 2500, COUNT)
        records = [rng.integers(0, 40, size, np.uint8).tobytes() for size in sizes]
        found.append((written(folder / "whole.array_record", records, options), records))
    return found


def _used(data: bytearray, draw: random.Random) -> int:
    """A byte that is not one of the zeros that most of a small file consists of."""
    return draw.choice(np.flatnonzero(np.frombuffer(data, np.uint8)).tolist())


def flip(data: bytearray, draw: random.Random) -> None:
    for _ in range(draw.choice((1, 1, 1, 5))):
        data[_used(data, draw)] ^= 1 << draw.randrange(8)


def overwrite(data: bytearray, draw: random.Random) -> None:
    begin = _used(data, draw)
    size = min(draw.choice((1, 24, 40, 300, 5000)), len(data) - begin)
    data[begin : begin + size] = draw.randbytes(size)


def blank(data: bytearray, draw: random.Random) -> None:
    begin = _used(data, draw)
    size = min(draw.choice((1, 40, 3000, 65536)), len(data) - begin)
    data[begin : begin + size] = bytes(size)


def move(data: bytearray, draw: random.Random) -> None:
    """Bytes of one place in another, as a wrong copy has them."""
    size = draw.choice((1, 16, 100, 1000))
    a, b = (draw.randrange(len(data) - size) for _ in range(2))
    data[a : a + size] = data[b : b + size]


def cut(data: bytearray, draw: random.Random) -> None:
    if draw.random() < 0.5:
        del data[-65536 * draw.randint(1, len(data) // 65536) :]
    else:
        del data[draw.randrange(len(data)) :]


def lengthen(data: bytearray, draw: random.Random) -> None:
    data += bytes(65536) if draw.random() < 0.5 else draw.randbytes(draw.randint(1, 70_000))


DAMAGES: tuple[Damage, ...] = (flip, overwrite, blank, move, cut, lengthen)


def damaged_file(files: Files, draw: random.Random, folder: Path) -> tuple[Path, list[bytes]]:
    """A file with damage, and the records that it had."""
    whole, records = draw.choice(files)
    data = bytearray(whole)
    draw.choice(DAMAGES)(data, draw)
    path = folder / "a.array_record"
    path.write_bytes(data)
    return path, records


def lost_at(where: str, name: str, records: list[bytes]) -> set[int]:
    """The records that cannot be read; all of a file that cannot be opened."""
    source, why = _opened(where)
    if source is None:
        assert name in why
        return set(range(COUNT))
    assert len(source) == COUNT
    lost: set[int] = set()
    for first in range(0, COUNT, 16):
        indices = np.arange(first, min(first + 16, COUNT))
        for index in indices.tolist() if _lost(source, indices, records, lost) else ():
            _lost(source, np.array([index]), records, lost)
    return lost


def damaged_once(draw: random.Random, folder: Path) -> str:
    """What becomes of one damaged file that the core reads, here and now and then in a store."""
    path, records = damaged_file(whole_files(folder), draw, folder)
    lost = lost_at(str(path), str(path), records)
    if draw.random() < 0.02:
        fsspec.filesystem("memory").pipe_file("/damaged/a.array_record", path.read_bytes())
        lost |= lost_at("memory://damaged/a.array_record", "memory://", records)
    return "all lost" if len(lost) == COUNT else "some lost" if lost else "nothing lost"


def _opened(where: str) -> tuple[ArrayRecordDataSource | None, str]:
    """A file, or why it cannot be opened."""
    try:
        return ArrayRecordDataSource(where, remote=QUICK), ""
    except SourceError as error:
        return None, str(error)


def _lost(
    source: ArrayRecordDataSource, indices: IntArray, records: list[bytes], lost: set[int]
) -> bool:
    """Whether records cannot be read; else they are the right ones."""
    caught = None
    try:
        assert source.read(indices) == [records[index] for index in indices.tolist()]
    except ReadError as error:
        caught = error
    if caught is None:
        return False
    assert re.search(r"record \d+ of .*a\.array_record \(chunk \d+", str(caught)), str(caught)
    assert caught.file is not None
    assert caught.records is not None
    if native() is not None:
        assert caught.offset is not None
        assert caught.offset > 0
    first, stop = caught.records
    assert any(first <= index < stop for index in indices.tolist())
    lost.update(range(first, stop))
    return True


@needs_core
def test_ten_thousand_damaged_files(tmp_path: Path) -> None:
    counts = attack("tests.sources.array_record.test_array_record_damage", tmp_path)
    assert min(counts.get(name, 0) for name in ("all lost", "some lost", "nothing lost")) > 500
