"""Chunks that a stream needs last leave the cache on disk first: the stream stays, fewer bytes are fetched."""

from __future__ import annotations

import dataclasses
import gc
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr import codecs

from tests.far_arrays import PATIENT, objects, values, write, write_filtered
from tests.range_server import RangeServer
from windrow import MapDataset, ReadOptions
from windrow.core.native import native
from windrow.sources import RaggedDataSource, RemoteOptions, WindowDataSource, ZarrDataSource
from windrow.sources.remote.cache_segments import stored_segments
from windrow.sources.remote.coming_reads import ComingRanges
from windrow.sources.remote.disk_cache import DiskCache
from windrow.sources.remote.fetcher import Fetcher
from windrow.sources.zarr.coming_chunks import coming_ranges

pytestmark = pytest.mark.skipif(native() is None, reason="the native core decodes")

MIB = 1 << 20
ROWS = values(192, 2048)
TINY = values(37, 7)
LITTLE = ReadOptions(
    block_bytes=70_000, prefetch_buffer_size=16, resident_bytes=100_000, in_flight_bytes=100_000
)
LAYOUTS: dict[str, dict[str, Any]] = {
    "v2": {"zarr_format": 2, "chunks": (4, 3)},
    "v3": {"chunks": (4, 3)},
    "v3 dots": {
        "chunks": (4, 3),
        "chunk_key_encoding": {"name": "default", "separator": "."},
    },
    "shards": {"chunks": (4, 3), "shards": (8, 6)},
    "shards without crc": {
        "chunks": (8, 6),
        "serializer": codecs.ShardingCodec(
            chunk_shape=(4, 3), index_codecs=[codecs.BytesCodec()], codecs=[codecs.BytesCodec()]
        ),
        "compressors": [],
    },
}


class Everything:
    """All URLs."""

    def __contains__(self, url: object) -> bool:
        return True


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    top = tmp_path_factory.mktemp("arrays")
    write(top / "plain", ROWS, (2, 2048))
    write(top / "shard", ROWS, (2, 2048), (32, 2048))
    write(top / "cells", ROWS, (8, 512))
    for name, settings in LAYOUTS.items():
        array = zarr.create_array(top / name, shape=(37, 7), dtype="f4", **settings)
        array[:32] = TINY[:32]  # others are not stored
    return objects(top)


@pytest.fixture
def server(served: dict[str, bytes]) -> Iterator[RangeServer]:
    with RangeServer(served) as running:
        yield running


@pytest.fixture
def remote(tmp_path: Path) -> RemoteOptions:
    return dataclasses.replace(
        PATIENT, cache_dir=tmp_path / "plan", cache_bytes=MIB, keep_bytes=0, merge_gap_bytes=0
    )


def rows(server: RangeServer, name: str, remote: RemoteOptions) -> Any:
    return ZarrDataSource(server.url(name), remote=remote)


def windows(server: RangeServer, name: str, remote: RemoteOptions) -> Any:
    size = {0: 8, 1: 512}
    return WindowDataSource(server.url(name), size, size, remote=remote)


def boxes(server: RangeServer, name: str, remote: RemoteOptions) -> Any:
    size = {0: 8, 1: 1000}
    return WindowDataSource(server.url(name), size, size, remote=remote)


def chain(source: Any) -> Any:
    return MapDataset.source(source).shuffle(seed=1).repeat(3).batch(4).to_iter_dataset(LITTLE)


def by_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiskCache, "foresee", lambda *_: None)


def coming(*records: int) -> Iterator[Any]:
    yield np.array(records), np.arange(len(records))


# ---- what is fetched


@pytest.mark.parametrize(
    ("name", "opened", "most"),
    [
        pytest.param("plain", rows, 0.75, marks=pytest.mark.jobs),
        ("shard", rows, 0.92),
        ("cells", windows, 0.85),
        ("cells", boxes, 0.9),
    ],
)
def test_a_cache_smaller_than_the_data_keeps_the_chunks_that_come_soonest(
    server: RangeServer,
    remote: RemoteOptions,
    tmp_path: Path,
    name: str,
    opened: Callable[..., Any],
    most: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(options: RemoteOptions) -> tuple[int, list[bytes]]:
        source = opened(server, name, options)
        server.reset_counts()
        stream = [batch.tobytes() for batch in chain(source)]
        return server.counts().body_bytes, stream

    by_plan, stream = run(remote)
    by_last_use(monkeypatch)
    by_use, same = run(dataclasses.replace(remote, cache_dir=tmp_path / "use"))
    assert stream == same
    assert ROWS.nbytes < by_plan < most * by_use
    assert sum(one.disk_bytes for one in stored_segments(str(remote.cache_dir))) <= MIB


def test_a_stream_resumes_where_it_was_over_the_same_cache(
    server: RangeServer, remote: RemoteOptions
) -> None:
    whole = [batch.tobytes() for batch in chain(ZarrDataSource(server.url("plain")))]
    first = iter(chain(rows(server, "plain", remote)))
    begun = [next(first).tobytes() for _ in range(100)]
    state = json.loads(json.dumps(first.get_state()))
    first.close()
    second = iter(chain(rows(server, "plain", remote)))
    second.set_state(state)
    assert begun + [batch.tobytes() for batch in second] == whole


def test_a_cache_that_is_too_small_for_a_chunk_changes_nothing(
    remote: RemoteOptions, tmp_path: Path
) -> None:
    wide = values(16, 70_000)
    write(tmp_path / "wide", wide, (1, 70_000))  # each is larger than a quarter of the cache
    with RangeServer(objects(tmp_path / "wide", "wide/")) as server:
        source = rows(server, "wide", remote)
        server.reset_counts()
        for batch in chain(source):
            assert {row.tobytes() for row in batch} <= {row.tobytes() for row in wide}
        assert server.counts().body_bytes >= 3 * wide.nbytes
    assert not (tmp_path / "plan").exists()


def test_a_stream_that_is_closed_early_is_not_asked_any_more(
    server: RangeServer, remote: RemoteOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    next_uses = DiskCache._next_uses

    def noted(cache: DiskCache, names: set[str]) -> dict[str, int]:
        due = next_uses(cache, names)
        found.append(len(due))
        return due

    monkeypatch.setattr(DiskCache, "_next_uses", noted)
    source = rows(server, "plain", remote)
    iterator = iter(chain(source))
    for _ in range(60):
        next(iterator)
    assert max(found) > 10
    iterator.close()
    del iterator
    gc.collect()
    assert not source._tree._access.fetcher._cache._coming
    found.clear()
    np.testing.assert_array_equal(source.read(np.arange(192)), ROWS)
    assert set(found) == {0}


# ---- where chunks lie


@pytest.mark.parametrize("name", LAYOUTS)
def test_chunks_are_listed_as_they_are_looked_up(
    server: RangeServer, remote: RemoteOptions, name: str
) -> None:
    source = rows(server, name, dataclasses.replace(remote, cache_bytes=64 * MIB))
    cached = source.parts[0].reader.cached
    assert not len(cached.places_in(Everything()).numbers)
    source.read(np.arange(37))
    wanted = {(file.url, place) for file, places in cached._known(range(30)) for place in places}
    assert len(wanted) == 24
    places = cached.places_in(Everything())
    columns = (places.numbers, places.begin, places.end)
    found = zip(
        places.which, zip(*(column.tolist() for column in columns), strict=True), strict=True
    )
    assert sorted((places.files[file].url, place) for file, place in found) == sorted(wanted)
    only = places.files[0].url
    assert {file.url for file in cached.places_in({only}).files} == {only}


@pytest.mark.parametrize("name", ["v3", "shards"])
def test_the_next_record_of_a_chunk_counts(
    server: RangeServer, remote: RemoteOptions, name: str
) -> None:
    source = rows(server, name, dataclasses.replace(remote, cache_bytes=64 * MIB))
    source.read(np.arange(37))
    asked = list(coming_ranges(lambda: source.parts, coming(9, 30, 2, 8, 10, 31), Everything()))
    nearest = dict[tuple[str, int], int]()
    for each in asked:
        for file, begin, far in zip(each.which, each.begin, each.distances, strict=True):
            assert far >= each.nearest
            place = each.files[file].url, int(begin)
            assert place not in nearest  # of 6 records, which came in their order
            nearest[place] = int(far)
    # Three chunks side by side have the rows of a record: of 8 to 11, of 28 to 31, and of 0 to 3.
    assert sorted(nearest.values()) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_window_needs_all_chunks_that_it_touches(
    server: RangeServer, remote: RemoteOptions
) -> None:
    source = WindowDataSource(
        server.url("v3"),
        {0: 5, 1: 4},
        {0: 4, 1: 3},
        remote=dataclasses.replace(remote, cache_bytes=MIB),
    )
    source.read(np.arange(len(source)))
    ranges = list(coming_ranges(lambda: source.parts, coming(0), Everything()))
    urls = sorted(file.url.partition("/c/")[2] for each in ranges for file in each.files)
    assert urls == ["0/0", "0/1", "1/0", "1/1"]


# ---- what stays least recently used


def ranges_of(source: Any) -> list[ComingRanges]:
    return list(coming_ranges(lambda: source.parts, coming(0, 1), Everything()))


def test_an_array_whose_chunks_are_not_known_leaves_all_to_the_last_use(
    remote: RemoteOptions, tmp_path: Path
) -> None:
    write(tmp_path / "plain", TINY, (4, 7))
    write_filtered(tmp_path / "filter", TINY, (4, 7))
    start = codecs.ShardingCodec(
        chunk_shape=(4, 7), codecs=[codecs.BytesCodec()], index_location="start"
    )
    zarr.create_array(
        tmp_path / "start",
        shape=(37, 7),
        chunks=(8, 7),
        dtype="f4",
        serializer=start,
        compressors=[],
    )[...] = TINY
    with RangeServer(objects(tmp_path)) as server:
        for names in (["plain"], ["plain", "filter"], ["plain", "start"]):
            source = ZarrDataSource({name: server.url(name) for name in names}, remote=remote)
            source.read(np.arange(37))
            assert bool(ranges_of(source)) is (names == ["plain"])


def test_rows_of_different_lengths_are_left_to_the_last_use(
    remote: RemoteOptions, tmp_path: Path
) -> None:
    """Offsets would be read for records that come much later."""
    group = zarr.create_group(tmp_path / "ragged")
    group.create_array("values", data=np.arange(10, dtype="i4"), chunks=(4,))
    group.create_array("offsets", data=np.array([0, 3, 3, 10]), chunks=(2,))
    with RangeServer(objects(tmp_path)) as server:
        source: Any = RaggedDataSource(server.url("ragged"), remote=remote)
        source.read(np.arange(3))
        assert len(source.parts[0].reader.cached.places_in(Everything()).numbers) == 3
        assert ranges_of(source) == []


@pytest.mark.parametrize("why", ["no cache", "not by the core"])
def test_without_chunks_in_a_cache_nothing_is_prepared(
    server: RangeServer, remote: RemoteOptions, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise AssertionError("a cache is asked")

    monkeypatch.setattr(Fetcher, "foresee", refused)
    without = ZarrDataSource(server.url("v3"), remote=PATIENT)
    if why == "not by the core":
        without = ZarrDataSource(server.url("v3"), direct=False, remote=remote)
    assert next(iter(chain(without))).shape == (4, 7)
    with pytest.raises(AssertionError, match="a cache is asked"):
        next(iter(chain(rows(server, "v3", remote))))
