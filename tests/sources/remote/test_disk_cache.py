"""The cache on disk: bytes as they were kept or nothing, whatever happens to the folder."""

from __future__ import annotations

import contextlib
import gc
import random
import resource
import signal
import sqlite3
import stat
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.processes import Program, left, until
from windrow.sources.remote import cache_folder, disk_cache
from windrow.sources.remote.cache_folder import cache_report
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
    found = cache.get(file, begin, end)
    for data, (start, stop) in zip(found, ranges, strict=True):
        assert data is None or data == DATA[start:stop]
    return [data is not None for data in found]


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(str(tmp_path / "cache"), 8 * MIB)


def database(folder: Path) -> Path:
    (path,) = folder.glob("*.sqlite")
    return path


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def test_a_dropped_cache_closes_its_database(tmp_path: Path) -> None:
    before = len(left()["descriptors"])
    cache = DiskCache(str(tmp_path), 8 * MIB)
    put(cache, (0, 10), (200_000, 300_000))
    assert len(left()["descriptors"]) > before
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
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk_cache, "_PAUSE_S", 0.0)
        cache, known, damaged = DiskCache(folder, 8 * MIB), set[tuple[int, int]](), False
        for what, (first, last), chance in steps:
            one = first * unit, last * unit
            if what == "put":
                put(cache, one)
                known.add(one)
            elif what == "get":
                assert got(cache, one) == [one in known] or damaged
            elif what == "reopen":
                cache = DiskCache(folder, 8 * MIB)
            elif what == "damage" and known:
                damaged = True
                path = database(Path(folder))
                at = path.stat().st_size * chance // 100
                overwrite(path, at, bytes(255 - byte for byte in path.read_bytes()[at : at + 7]))
                cache = DiskCache(folder, 8 * MIB)
        for one in known:
            put(cache, one)
            if got(cache, one) != [True]:  # the database was damaged, and is made again
                put(cache, one)
                assert got(cache, one) == [True]


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


def test_no_secret_is_stored_and_others_may_not_read(cache: DiskCache, tmp_path: Path) -> None:
    put(cache, (0, 100))
    (path,) = (tmp_path / "cache").iterdir()
    assert b"hidden" not in path.read_bytes()
    assert [one.url for one in cache_report(str(tmp_path / "cache")).urls] == [
        "http://***@example.org/a?***"
    ]
    assert {stat.S_IMODE(place.stat().st_mode) & 0o77 for place in (path.parent, path)} == {0}


# ---- the bound


def numbered(number: int) -> RemoteFile:
    return RemoteFile(f"http://example.org/{number}", len(DATA), "ETag a")


@pytest.mark.parametrize("size", [500, 20_000])
def test_the_disk_is_bounded_and_what_was_used_last_stays(tmp_path: Path, size: int) -> None:
    cache, most, count = DiskCache(str(tmp_path), MIB), 0, 2 * MIB // (size + 500)
    for number in range(count):
        put(cache, (0, size), file=numbered(number))
        assert got(cache, (0, size), file=numbered(0)) == [True]
        if number % 64 == 0:
            most = max(most, sum(512 * one.stat().st_blocks for one in tmp_path.iterdir()))
    assert MIB // 2 < most <= MIB
    kept = [number for number in range(count) if got(cache, (0, size), file=numbered(number))[0]]
    assert 1 < len(kept) < count
    assert kept[1:] == list(range(count + 1 - len(kept), count))
    assert len(cache_report(str(tmp_path)).urls) == len(kept)


# ---- faults of the disk


def test_a_full_disk_warns_once_and_what_is_kept_is_read(
    cache: DiskCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disk_cache, "_PAUSE_S", 0.0)
    put(cache, (0, 100))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, before[1]))  # no file may grow
    try:
        put(cache, (0, 200_000), (0, 250_000))
        assert got(cache, (0, 100), (0, 200_000)) == [True, False]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert caplog.text.count("reading continues without it") == 1
    put(cache, (0, 200_000))
    assert got(cache, (0, 100), (0, 200_000)) == [True, True]


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
    (found,) = cache.get(file, np.array([start]), np.array([stop]))
    assert found in (None, data[start:stop])
    cache.put(file, np.array([start]), np.array([stop]), start, data[start:stop])
"""


def test_a_process_that_stops_while_it_writes_is_not_waited_for(
    cache: DiskCache,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    put(cache, (0, 100))
    monkeypatch.setattr(cache_folder, "_WAIT_S", 0.01)
    monkeypatch.setattr(disk_cache, "_PAUSE_S", 0.0)
    other = DiskCache(str(tmp_path / "cache"), 8 * MIB)
    with contextlib.closing(sqlite3.connect(database(tmp_path / "cache"))) as rows:
        rows.execute("BEGIN EXCLUSIVE")
        put(other, (100, 200))
        assert got(other, (0, 100)) == [False]
    assert got(other, (0, 100), (100, 200)) == [True, False]
    assert not caplog.text


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


@pytest.mark.parametrize("version", ["", f"{FILE.size_bytes} bytes"])
def test_a_file_without_a_version_is_not_kept(
    cache: DiskCache, tmp_path: Path, version: str
) -> None:
    file = RemoteFile(FILE.url, FILE.size_bytes, version)
    put(cache, (0, 100), file=file)
    assert got(cache, (0, 100), file=file) == [False]
    assert not (tmp_path / "cache").exists()
