"""Large arrays use memory again once nothing refers to it."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from windrow.core import buffer_pool
from windrow.sources import ArrayDataSource

LARGE = 5 << 20  # of int64: 40 MiB


@pytest.fixture(autouse=True)
def nothing_waits() -> None:
    buffer_pool.forget()


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_freed_memory_is_used_again() -> None:
    first = buffer_pool.empty((LARGE,), np.int64)
    place = address(first)
    del first
    again = buffer_pool.empty((LARGE // 2, 2), np.float64)
    assert address(again) == place
    assert again.shape == (LARGE // 2, 2)
    assert again.dtype == np.float64
    assert again.flags.writeable
    assert again.flags.c_contiguous


def test_memory_that_is_looked_at_is_not() -> None:
    first = buffer_pool.empty((LARGE,), np.int64)
    first[:] = 7
    row = first[5:6]
    del first
    others = [buffer_pool.empty((LARGE,), np.int64) for _ in range(3)]
    for other in others:
        other[:] = 0
    assert row.tolist() == [7]


@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident pages of Linux")
def test_the_system_gets_memory_back_at_once() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    arrays = [buffer_pool.returned((3 << 20,), np.uint8) for _ in range(20)]
    for array in arrays:
        array[:] = 1
    before = resident()
    del arrays[::2], array  # malloc keeps such holes
    assert before - resident() > 25 << 20


def test_large_reads_of_arrays_in_memory() -> None:
    array = np.arange(3 * LARGE).reshape(3, LARGE)
    source = ArrayDataSource(array)
    for indices in ([0, 2], [2, 1], [1]):
        assert (source.read(np.array(indices)) == array[indices]).all()
