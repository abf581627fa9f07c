"""The cache on disk: bytes as they were kept or nothing, whatever happens to the folder."""

from __future__ import annotations

import errno
import gc
import logging
import os
import random
import re
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.processes import Program, left, until
from windrow.sources.remote import disk_cache
from windrow.sources.remote.cache_segments import stored_segments
from windrow.sources.remote.disk_cache import DiskCache
from windrow.sources.remote.remote_file import RemoteFile

DATA = random.Random(0).randbytes(300_001)
FILE = RemoteFile("http://user:hidden@example.org/a?key=hidden", len(DATA), 'ETag "a"')
MIB = 1 << 20


def put(cache: DiskCache, *ranges: tuple[int, int], file: RemoteFile = FILE) -> None:
    for start, stop in ranges:
        one = np.array([start]), np.array([stop])
        cache.put(file, *one, start, DATA[start:stop])


def got(cache: DiskCache, *ranges: tuple[int, int], file: RemoteFile = FILE) -> list[bool]:
    """Which ranges are kept; those that are have the bytes of `DATA`."""
    begin, end = (np.array(side, np.int64) for side in zip(*ranges, strict=True))
    kept = [False] * len(ranges)
    for run in cache.get(file, begin, end):
        for place in run.places.tolist():
            assert not kept[place]
            kept[place] = True
            first = ranges[place][0] - run.start
            part = run.data[first : first + ranges[place][1] - ranges[place][0]]
            assert part == DATA[slice(*ranges[place])]
    return kept


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(str(tmp_path / "cache"), 8 * MIB)


def files(folder: Path) -> list[Path]:
    return [Path(one.path) for one in stored_segments(str(folder))]


def test_a_dropped_cache_closes_its_segments(tmp_path: Path) -> None:
    before = len(left()["descriptors"])
    cache = DiskCache(str(tmp_path), 8 * MIB)
    put(cache, (0, 10), (200_000, 300_000))
    assert len(left()["descriptors"]) == before + len(files(tmp_path)) > before
    del cache
    gc.collect()
    assert len(left()["descriptors"]) == before


# ---- what is kept


RANGE = st.integers(0, 40).flatmap(lambda a: st.tuples(st.just(a), st.integers(a + 1, 60)))


@settings(max_examples=40)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["put", "get", "damage", "reopen"]), RANGE, st.integers(0, 99)),
        max_size=12,
    ),
    unit=st.sampled_from([1, 50, 5_000]),
)
def test_kept_ranges_are_found_and_never_wrong(
    steps: list[tuple[str, tuple[int, int], int]], unit: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache, known, damaged = DiskCache(folder, 8 * MIB), dict[int, int](), False
        for what, (first, last), chance in steps:
            start, stop = first * unit, last * unit
            if what == "put":
                put(cache, (start, stop))
                known[start] = stop
            elif what == "get":
                kept = got(cache, (start, stop)) == [True]
                assert kept == (known.get(start) == stop) or damaged
            elif what == "reopen":
                cache = DiskCache(folder, 8 * MIB)
            elif what == "damage":
                for path in files(Path(folder)):
                    damaged = True
                    at = path.stat().st_size * chance // 100
                    with path.open("r+b") as file:
                        file.seek(at)
                        before = file.read(7)
                        file.seek(at)
                        file.write(bytes(255 - one for one in before))
                cache = DiskCache(folder, 8 * MIB)
        for start, stop in known.items():
            put(cache, (start, stop))
            assert got(cache, (start, stop)) == [True]


def test_another_version_size_or_store_has_nothing(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), MIB, {"endpoint_url": "http://one", "key": "hidden"})
    put(cache, (0, 100))
    assert got(cache, (0, 100)) == [True]
    for other in (
        RemoteFile(FILE.url, FILE.size_bytes, 'ETag "b"'),
        RemoteFile(FILE.url, FILE.size_bytes + 1, FILE.version),
        RemoteFile(FILE.url + "b", FILE.size_bytes, FILE.version),
    ):
        assert got(cache, (0, 100), file=other) == [False]
    for store, same in (("http://one", True), ("http://two", False)):
        there = DiskCache(str(tmp_path), MIB, {"endpoint_url": store, "key": "another"})
        assert got(there, (0, 100)) == [same]
        assert there.knows(FILE.url) == same


def test_a_file_without_a_version_is_not_kept(cache: DiskCache, tmp_path: Path) -> None:
    file = RemoteFile(FILE.url, FILE.size_bytes)
    put(cache, (0, 100), file=file)
    assert got(cache, (0, 100), file=file) == [False]
    assert not (tmp_path / "cache").exists()


def test_no_secret_is_stored_and_others_may_not_read(cache: DiskCache, tmp_path: Path) -> None:
    put(cache, (0, 100))
    (path,) = files(tmp_path / "cache")
    assert b"hidden" not in path.read_bytes()
    assert [one.url() for one in stored_segments(str(tmp_path / "cache"))] == [
        "http://***@example.org/a?***"
    ]
    assert {place.stat().st_mode & 0o77 for place in (tmp_path / "cache", path)} == {0}


# ---- the bound


def test_the_disk_is_bounded_and_what_was_used_last_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "windrow.remote")
    cache, most = DiskCache(str(tmp_path), MIB), 0
    for number in range(120):
        file = RemoteFile(f"http://example.org/{number}", len(DATA), "ETag a")
        put(cache, (0, 20_000), file=file)
        # Segments that are as new as the clock is fine would be evicted in any order.
        for one in stored_segments(str(tmp_path)):
            if one.url() == file.url:
                os.utime(one.path, (number, number if number else 1000))
        most = max(most, sum(one.disk_bytes for one in stored_segments(str(tmp_path))))
    assert MIB // 2 < most <= MIB
    kept = sorted(int(one.url().rpartition("/")[2]) for one in stored_segments(str(tmp_path)))
    assert kept[0] == 0
    assert kept[1:] == list(range(121 - len(kept), 120))
    assert re.search(rf"the cache in {re.escape(str(tmp_path))}: \d+ bytes evicted", caplog.text)


def test_an_open_segment_that_another_process_evicts_is_not_used(
    cache: DiskCache, tmp_path: Path
) -> None:
    put(cache, (0, 100), (200, 300))
    other = DiskCache(str(tmp_path / "cache"), 8 * MIB)
    assert got(other, (0, 100)) == [True]
    for path in files(tmp_path / "cache"):
        path.unlink()
    put(cache, (200, 300))
    assert got(other, (0, 100), (200, 300)) == [False, True]
    assert got(cache, (0, 100), (200, 300)) == [False, True]


def test_ranges_larger_than_the_cache_are_not_kept(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), MIB)
    put(cache, (0, 290_000))
    assert files(tmp_path) == []
    put(cache, (5, 200_000), (5, 6))
    assert got(cache, (5, 200_000), (5, 6)) == [True, True]


# ---- faults of the disk


@pytest.mark.parametrize("call", ["pwrite", "write", "link", "ftruncate"])
def test_a_full_disk_warns_once_and_what_is_kept_is_read(
    cache: DiskCache,
    tmp_path: Path,
    call: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    put(cache, (0, 100))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    real = getattr(os, call)
    monkeypatch.setattr(os, call, full)
    other = RemoteFile(FILE.url + "2", FILE.size_bytes, FILE.version)
    with caplog.at_level(logging.WARNING):
        put(cache, (100, 200), file=other)
        put(cache, (100, 200), (300, 400))
    assert caplog.text.count("No space left on device") == 1
    assert got(cache, (0, 100), (100, 200)) == [True, False]
    monkeypatch.setattr(disk_cache, "_PAUSE_S", 0.0)
    cache = DiskCache(str(tmp_path / "cache"), 8 * MIB)
    put(cache, (300, 400))
    monkeypatch.setattr(os, call, real)
    put(cache, (100, 200))
    assert got(cache, (0, 100), (100, 200)) == [True, True]


def test_a_row_that_a_full_disk_cuts_makes_the_segment_useless(
    cache: DiskCache, tmp_path: Path
) -> None:
    put(cache, (0, 100))
    (path,) = files(tmp_path / "cache")
    with path.open("ab") as file:
        file.write(b"part")
    assert got(cache, (0, 100)) == [True]  # another process may be writing the rest
    os.utime(path, (0, 0))
    assert got(cache, (0, 100)) == [False]
    put(cache, (0, 100))
    assert got(cache, (0, 100)) == [True]


@pytest.mark.parametrize("there", ["a file", "forbidden"])
def test_a_folder_that_cannot_be_made_is_a_warning(
    tmp_path: Path, there: str, caplog: pytest.LogCaptureFixture
) -> None:
    if there == "a file":
        (tmp_path / "cache").write_text("")
        folder = tmp_path / "cache" / "deep"
    else:
        folder = Path("/proc/windrow")
    cache = DiskCache(str(folder), MIB)
    put(cache, (0, 100), (100, 200))
    assert got(cache, (0, 100)) == [False]
    assert caplog.text.count("reading continues without it") == 1


# ---- several processes

_WRITER = """
import random, sys
import numpy as np
from windrow.sources.remote.disk_cache import DiskCache
from windrow.sources.remote.remote_file import RemoteFile
data = random.Random(0).randbytes(300_001)
cache = DiskCache(sys.argv[1], 8 << 20)
file = RemoteFile(sys.argv[2], len(data), sys.argv[3])
order = random.Random(int(sys.argv[4]))
print("writes", flush=True)
for number in range(int(sys.argv[5])):
    start = order.randrange(3000) * 100
    stop = start + 100
    for run in cache.get(file, np.array([start]), np.array([stop])):
        assert run.data == data[start:stop]
    cache.put(file, np.array([start]), np.array([stop]), start, data[start:stop])
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "writer.py"
    path.write_text(_WRITER)
    return path


def test_a_process_that_is_killed_in_a_write_harms_nothing(
    cache: DiskCache, tmp_path: Path, program: Path
) -> None:
    argv = [str(program), str(tmp_path / "cache"), FILE.url, FILE.version, "1", str(10**9)]
    ranges = [(start, start + 100) for start in range(0, 300_000, 100)]
    with Program(tmp_path, argv) as writer:
        writer.says("writes")
        assert until(lambda: sum(got(cache, *ranges)) > 50)
        writer.send(signal.SIGKILL)
        writer.code()
    assert sum(got(DiskCache(str(tmp_path / "cache"), 8 * MIB), *ranges)) > 0
    put(cache, *ranges)
    assert all(got(cache, *ranges))


def test_processes_that_write_at_once_share_what_they_keep(
    cache: DiskCache, tmp_path: Path, program: Path
) -> None:
    argv = [str(program), str(tmp_path / "cache"), FILE.url, FILE.version]
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    with Program(one, [*argv, "1", "800"]) as first, Program(two, [*argv, "2", "800"]) as second:
        first.ends()
        second.ends()
    written = {order.randrange(3000) for order in map(random.Random, (1, 2)) for _ in range(800)}
    ranges = [(start * 100, start * 100 + 100) for start in range(3000)]
    assert [at for at, kept in enumerate(got(cache, *ranges)) if kept] == sorted(written)
