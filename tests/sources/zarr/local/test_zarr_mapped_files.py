"""Files in one range of addresses: the rows that are copied, and the room that is given back."""

from __future__ import annotations

import gc
import itertools
import mmap
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.zarr_layouts import Layout, make, reader_of, same, values_of, written
from windrow.errors import ReadError
from windrow.sources.chunks import RowReader, Span
from windrow.sources.zarr.local.mapped_files import FileRegion, held_files, reserved

AnyArray = npt.NDArray[Any]

HAS_REGIONS = sys.platform in ("linux", "darwin") and sys.maxsize > 2**32
pytestmark = pytest.mark.skipif(not HAS_REGIONS, reason="no ranges of addresses on this system")
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def region_of(count: int, file_bytes: int, row_bytes: int) -> FileRegion:
    region = reserved(count, file_bytes, row_bytes)
    assert region is not None
    return region


def stored(folder: Path, sizes: Sequence[int]) -> list[tuple[str, bytes]]:
    """Files of random bytes."""
    rng = np.random.default_rng(0)
    files = []
    for number, size in enumerate(sizes):
        path = folder / f"file {number}"
        data = rng.bytes(size)
        path.write_bytes(data)
        files.append((str(path), data))
    return files


def filled(region: FileRegion, files: Sequence[tuple[str, bytes]]) -> None:
    for number, (path, data) in enumerate(files):
        assert region.map(number, path, len(data))


# --- the region itself ---------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("row_bytes", [1, 4, 100, 3072, 4097])
def test_rows_come_from_any_file_in_any_order(tmp_path: Path, row_bytes: int, threads: int) -> None:
    files = stored(tmp_path, [row_bytes * 40] * 3)
    region = region_of(3, row_bytes * 40, row_bytes)
    filled(region, files)
    numbers = np.random.default_rng(1).integers(0, 120, 500)
    whole = b"".join(data for _, data in files)
    for wanted in (numbers, np.sort(numbers), np.arange(120), np.arange(5, 6), numbers[:3]):
        got = region.rows(wanted // 40 * region.step + wanted % 40 * row_bytes, threads)
        expected = np.frombuffer(whole, np.uint8).reshape(120, row_bytes)[wanted]
        assert got.flags.c_contiguous
        assert got.flags.writeable
        assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("row_bytes", [1, 3, 4096, 5000])
def test_rows_may_begin_at_any_byte(tmp_path: Path, row_bytes: int) -> None:
    sizes = [row_bytes * 5 + 1, row_bytes, row_bytes * 2 + 7]
    files = stored(tmp_path, sizes)
    region = region_of(3, max(sizes), row_bytes)
    filled(region, files)
    rng = np.random.default_rng(2)
    which = rng.integers(0, 3, 60)
    places = np.array([int(rng.integers(0, sizes[k] - row_bytes + 1)) for k in which])
    got = region.rows(which * region.step + places, 2)
    parts = [files[k][1][at : at + row_bytes] for k, at in zip(which, places, strict=True)]
    assert got.shape == (60, row_bytes)
    assert got.tobytes() == b"".join(parts)


def test_long_runs_are_copied_whole(tmp_path: Path) -> None:
    # Longer than what is copied at once, and not a multiple of it.
    files = stored(tmp_path, [700 * 3000] * 2)
    region = region_of(2, 700 * 3000, 3000)
    filled(region, files)
    wanted = np.concatenate([np.arange(3, 700), np.arange(0, 650)])
    starts = np.repeat([0, region.step], [697, 650]) + wanted * 3000
    got = region.rows(starts, 0)
    assert got.tobytes() == files[0][1][3 * 3000 :] + files[1][1][: 650 * 3000]


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    ((path, data),) = stored(tmp_path, [500])
    region = region_of(1, 500, 50)
    with pytest.raises(OSError, match="it had 400 bytes and has 500 now"):
        region.map(0, path, 400)
    assert not region.ready.any()
    with pytest.raises(FileNotFoundError):
        region.map(0, f"{path}x", 500)
    assert region.map(0, path, 500)
    assert region.map(0, f"{path}x", 500)  # it is there: nothing is opened
    assert region.ready.tolist() == [True, False]
    assert region.rows(np.array([450, 0]), 0).tobytes() == data[450:] + data[:50]


def test_what_does_not_fit_is_not_mapped(tmp_path: Path) -> None:
    ((path, _),) = stored(tmp_path, [3 * mmap.PAGESIZE])
    region = region_of(2, mmap.PAGESIZE, mmap.PAGESIZE)
    assert not region.map(0, path, 3 * mmap.PAGESIZE)
    assert not region.map(2, path, mmap.PAGESIZE)
    assert not region.map(-1, path, mmap.PAGESIZE)
    assert not region.map(0, path, 0)
    assert not region.ready.any()


def test_after_a_refusal_nothing_more_is_mapped(tmp_path: Path) -> None:
    files = stored(tmp_path, [500] * 2)
    region = region_of(3, 2**20, 50)
    filled(region, files[:1])
    # A folder can be opened and has a size, but no system maps one.
    assert not region.map(2, str(tmp_path), tmp_path.stat().st_size)
    assert not region.map(1, files[1][0], 500)
    assert region.ready.tolist() == [True, False, False, False]
    assert region.rows(np.array([50]), 0).tobytes() == files[0][1][50:100]


def test_ranges_are_bounded() -> None:
    gc.collect()
    most = held_files() + 8  # sources of other tests may live still
    first = reserved(6, 100, 10, most_files=most)
    assert first is not None
    assert reserved(3, 100, 10, most_files=most) is None
    second = reserved(2, 100, 10, most_files=most)
    assert second is not None
    del first
    gc.collect()
    assert reserved(3, 100, 10, most_files=most) is not None


def test_a_large_odd_row_does_not_take_all_addresses() -> None:
    # Rows of 10 MB + 1: files that begin at a multiple of both would be 40 GB apart.
    region = region_of(1000, 2 * (10**7 + 1), 10**7 + 1)
    assert region.step < 2**30


def maps_of(path: str) -> int:
    """Maps of a file in this process."""
    return Path("/proc/self/maps").read_text().count(path)


@linux
def test_addresses_are_given_back_with_the_last_use(tmp_path: Path) -> None:
    files = stored(tmp_path, [5000] * 7)
    assert maps_of(str(tmp_path)) == 0
    region = region_of(7, 5000, 10)
    filled(region, files[:4])
    assert maps_of(str(tmp_path)) == 4
    got = region.rows(np.array([0, 10, 500]), 0)
    joined = region.rows(np.arange(100) * 10, 0)
    del region
    gc.collect()
    assert maps_of(str(tmp_path)) == 0
    # What was read is a copy, which needs none of them.
    assert got[2].tobytes() == files[0][1][500:510]
    assert joined.tobytes() == files[0][1][:1000]


@linux
def test_a_reader_maps_what_it_needs_and_gives_it_back(tmp_path: Path) -> None:
    values = written(tmp_path, raw((40, 100), (4, 100)))
    descriptors = len(os.listdir("/proc/self/fd"))
    reader = reader_of(tmp_path)
    same(reader.read(np.array([0, 5, 6, 39])), values[[0, 5, 6, 39]])
    assert maps_of(f"{tmp_path}/c/") == 3
    assert len(os.listdir("/proc/self/fd")) == descriptors
    del reader
    gc.collect()
    assert maps_of(f"{tmp_path}/c/") == 0


# --- rows of arrays ------------------------------------------------------------------------------


def raw(
    shape: tuple[int, ...],
    chunk: tuple[int, ...],
    shard: tuple[int, ...] | None = None,
    dtype: str = "uint8",
    **more: Any,
) -> Layout:
    """A layout without compression."""
    return Layout(shape, chunk, shard, dtype, "none", **more)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    # Rows from a byte to several pages, chunks that are a multiple of a page and others.
    shape = (draw(st.integers(1, 40)), *draw(st.sampled_from([(), (1,), (7,), (2048,), (3, 900)])))
    # No more than nine cells in a row.
    chunk = (draw(st.integers(1, 9)), *(draw(st.integers(-(-n // 3), n)) for n in shape[1:]))
    version = draw(st.sampled_from([2, 3]))
    shards = st.tuples(*(st.integers(1, 3) for _ in shape))
    return raw(
        shape=shape,
        chunk=chunk,
        shard=draw(st.none() | shards) if version == 3 else None,
        dtype=draw(st.sampled_from(("uint8", "bool", "int16", "float32", "int64"))),
        endian=draw(st.sampled_from(("little", "big"))),
        location=draw(st.sampled_from(("start", "end"))),
        version=version,
        fill=draw(st.integers(0, 1)),
    )


@settings(max_examples=80, deadline=None)
@given(layouts(), st.data())
def test_rows_equal_those_of_tensorstore_and_of_single_files(
    layout: Layout, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = make(folder, layout)
        values = values_of(layout)
        rows = st.integers(0, layout.shape[0] - 1)
        if data.draw(st.booleans()):
            store.write(values).result()
        for row in data.draw(st.sets(rows, max_size=4)):
            store[row].write(values[row]).result()
        expected = store.read().result()
        reader, apart = reader_of(folder), reader_of(folder, most_open=1)
        orders = [np.array(data.draw(st.lists(rows, max_size=30)), np.int64) for _ in range(2)]
        for wanted in (*orders, np.arange(layout.shape[0])):
            same(reader.read(wanted), expected[wanted])
            same(apart.read(wanted), expected[wanted])
        out = np.full_like(expected, 55)
        cuts = sorted({0, len(out), *data.draw(st.lists(rows, max_size=3))})
        spans = [Span(a, b, out[a:b]) for a, b in itertools.pairwise(cuts)]
        with ThreadPoolExecutor(1) as pool:
            reader.start(spans, pool).result()
        same(out, expected)


@pytest.mark.parametrize("shard", [None, (5, 1)])
def test_threads_that_map_the_same_files_read_the_same(
    tmp_path: Path, shard: tuple[int, int] | None
) -> None:
    layout = raw((900, 3000), (3, 3000), shard)
    values = written(tmp_path, layout)
    rng = np.random.default_rng(0)
    for _ in range(3):
        reader = reader_of(tmp_path)
        orders = [rng.permutation(900)[:400] for _ in range(8)]
        together = threading.Barrier(4)

        def read(order: AnyArray, reader: RowReader = reader, at: Any = together) -> AnyArray:
            at.wait(60)
            return reader.read(order)

        with ThreadPoolExecutor(4) as pool:
            for order, got in zip(orders, pool.map(read, orders), strict=True):
                same(got, values[order])


def test_missing_chunks_are_the_fill_value_beside_others(tmp_path: Path) -> None:
    values = written(tmp_path, raw((60, 500), (4, 500), fill=9))
    for number in (0, 3, 14):
        (tmp_path / "c" / str(number) / "0").unlink()
    missing = np.isin(np.arange(60) // 4, (0, 3, 14))
    expected = np.where(missing[:, None], 9, values).astype(np.uint8)
    reader = reader_of(tmp_path)
    for wanted in (np.arange(60), np.random.default_rng(0).permutation(60), np.arange(4)):
        same(reader.read(wanted), expected[wanted])
    # A chunk that comes to be is read, as it is from maps of single files.
    (tmp_path / "c" / "3" / "0").write_bytes(values[12:16].tobytes())
    same(reader.read(np.array([13, 0])), np.stack([values[13], expected[0]]))


def test_a_file_cut_short_before_it_is_mapped_is_an_error(tmp_path: Path) -> None:
    values = written(tmp_path, raw((60, 500), (4, 500)))
    os.truncate(tmp_path / "c" / "7" / "0", 1999)
    reader = reader_of(tmp_path)
    order = np.random.default_rng(0).permutation(60)
    wrong = r"records 28 to 31 cannot be read: .*c/7/0: it has 1,999 bytes, not the 2,000"
    with pytest.raises(ReadError, match=wrong):
        reader.read(order)
    others = order[order // 4 != 7]
    same(reader.read(others), values[others])


def test_a_shard_that_is_larger_than_its_records_is_read(tmp_path: Path) -> None:
    # Bytes that no index entry points to, as other writers may leave: it fits no place in a range.
    values = written(tmp_path, raw((60, 500), (4, 500), (5, 1), location="start"))
    for number in (0, 2):
        with open(tmp_path / "c" / str(number) / "0", "ab") as file:
            file.write(bytes(10**6))
    order = np.random.default_rng(0).permutation(60)
    same(reader_of(tmp_path).read(order), values[order])


_NO_ADDRESSES = """
import resource, sys
import numpy as np
from windrow.sources.zarr.local.single_records import single_record_reader
from windrow.sources.zarr.local.metadata import plain_array
from windrow.sources.zarr.local.mapped_files import reserved
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 2**28
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
assert reserved(10, 2**32, 4) is None
reader = single_record_reader(plain_array(sys.argv[1]), "x", "/data")
rows = reader.read(np.arange(0, 2000, 7))
assert (rows[:, 0] == np.arange(0, 2000, 7)).all()
"""


@linux
def test_without_addresses_files_are_mapped_one_by_one(tmp_path: Path) -> None:
    # A range of 2,000 files, 2 MB apart, is more than this process may have.
    store = make(str(tmp_path), raw((2000, 513), (1, 513), dtype="int16"))
    store[::7, 0].write(np.arange(0, 2000, 7, dtype=np.int16)).result()
    subprocess.run([sys.executable, "-c", _NO_ADDRESSES, str(tmp_path)], check=True, timeout=600)
