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


def test_memory_of_other_sizes_is_given_up_oldest_first_where_none_fits() -> None:
    several = [buffer_pool.empty((LARGE // 8,), np.int64) for _ in range(3)]
    places = [address(array) for array in several]
    for _ in range(3):
        del several[0]  # in this order
    size = buffer_pool.waiting_bytes() // 3
    larger = buffer_pool.empty((LARGE // 8 + LARGE // 16,), np.int64)  # as much as two of them
    assert address(larger) not in places
    assert buffer_pool.waiting_bytes() == size
    assert address(buffer_pool.empty((LARGE // 8,), np.int64)) == places[2]


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


def test_little_waits() -> None:
    many = [buffer_pool.empty((LARGE,), np.int64) for _ in range(8)]
    places = {address(array) for array in many}
    del many
    held = [buffer_pool.empty((LARGE,), np.int64) for _ in range(3)]
    assert {address(array) for array in held} <= places
    assert buffer_pool.waiting_bytes() == 0
    del held
    several = [buffer_pool.empty((LARGE // 8,), np.int64) for _ in range(60)]
    del several
    assert 50 << 20 < buffer_pool.waiting_bytes() <= 64 << 20


@pytest.mark.parametrize(("shape", "dtype"), [((3, 0), "f4"), ((), "i8"), ((4,), "O"), ((7,), "?")])
def test_small_and_other_arrays_are_numpys(shape: tuple[int, ...], dtype: str) -> None:
    found = buffer_pool.empty(shape, dtype)
    assert (found.shape, found.dtype, found.base) == (shape, np.dtype(dtype), None)


def test_large_reads_of_arrays_in_memory() -> None:
    array = np.arange(3 * LARGE).reshape(3, LARGE)
    source = ArrayDataSource(array)
    for indices in ([0, 2], [2, 1], [1]):
        assert (source.read(np.array(indices)) == array[indices]).all()
