"""Write-back: files are on their way to the disk while they grow."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np
import pytest

from windrow.converters import (
    tfrecord_to_array_record,
    write_records,
)

_MB = 1 << 20
# Nothing of them compresses, so that as much is written as is read.
_RECORDS = [np.random.default_rng(seed).bytes(_MB // 4) for seed in range(80)]

Told = dict[str, list[tuple[int, int]]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What the kernel was asked to write: by file, first byte and number of bytes."""
    if not hasattr(os, "posix_fadvise"):
        pytest.skip("this system has no such call")
    asked: Told = {}

    def posix_fadvise(descriptor: int, first: int, size_bytes: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_DONTNEED
        assert first + size_bytes <= os.fstat(descriptor).st_size
        name = os.readlink(f"/proc/self/fd/{descriptor}").rpartition("/")[2]
        asked.setdefault(name, []).append((first, size_bytes))

    monkeypatch.setattr(os, "posix_fadvise", posix_fadvise)
    return asked


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source" / "x.tfrecord"
    path.parent.mkdir()
    write_records(path, _RECORDS)
    return path


def assert_told_as_it_grew(told: Told, *, most_bytes: int) -> None:
    """All bytes of the only file but the last few are reported, once, in order, some at a time."""
    (ranges,) = told.values()
    assert ranges[0][0] == 0
    assert all(a + size == b for (a, size), (b, _) in itertools.pairwise(ranges))
    assert max(size for _, size in ranges) <= most_bytes
    assert sum(size for _, size in ranges) > sum(map(len, _RECORDS)) - most_bytes


def test_records_go_to_the_disk_while_their_file_grows(
    tmp_path: Path, source: Path, told: Told
) -> None:
    tfrecord_to_array_record(source, tmp_path / "out", progress=False)
    assert_told_as_it_grew(told, most_bytes=17 * _MB)  # of one batch
