"""Chunks that a stream needs last leave the cache on disk first: the stream stays, fewer bytes are fetched."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr import codecs

from tests.far_arrays import PATIENT, objects, values, write
from tests.range_server import RangeServer
from windrow import MapDataset, ReadOptions
from windrow.core.native import native
from windrow.sources import RaggedDataSource, RemoteOptions, WindowDataSource, ZarrDataSource
from windrow.sources.remote.cache_segments import stored_segments
from windrow.sources.remote.disk_cache import DiskCache

pytestmark = pytest.mark.skipif(native() is None, reason="the native core decodes")

MIB = 1 << 20
ROWS = values(192, 2048)
LITTLE = ReadOptions(
    block_bytes=70_000, prefetch_buffer_size=16, resident_bytes=100_000, in_flight_bytes=100_000
)
CHUNK, SHARD = (8, 1024), (32, 2048)
LAYOUTS: dict[str, dict[str, Any]] = {
    "v2": {"zarr_format": 2, "chunks": CHUNK},
    "shards without crc": {
        "chunks": SHARD,
        "serializer": codecs.ShardingCodec(
            chunk_shape=CHUNK, index_codecs=[codecs.BytesCodec()], codecs=[codecs.BytesCodec()]
        ),
        "compressors": [],
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("arrays")
    write(top / "plain", ROWS, (2, 2048))
    write(top / "shard", ROWS, (2, 2048), (32, 2048))
    write(top / "cells", ROWS, (8, 512))
    for name, settings in LAYOUTS.items():
        array = zarr.create_array(top / name, shape=ROWS.shape, dtype="f4", **settings)
        array[:160] = ROWS[:160]  # others are not stored
    ragged = zarr.create_group(top / "ragged")
    ragged.create_array("values", data=ROWS.reshape(-1), chunks=(8192,))
    offsets = np.append(np.arange(0, ROWS.size, 3000), ROWS.size)
    ragged.create_array("offsets", data=offsets, chunks=(20,))
    return top


@pytest.fixture
def server(folder: Path) -> Iterator[RangeServer]:
    with RangeServer(objects(folder)) as running:
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


# ---- what is fetched


@pytest.mark.parametrize(
    ("name", "opened", "most"),
    [
        pytest.param("plain", rows, 0.75, marks=pytest.mark.jobs),
        pytest.param("shard", rows, 0.92, marks=pytest.mark.jobs),
        ("cells", windows, 0.85),
        pytest.param("cells", boxes, 0.9, marks=pytest.mark.jobs),
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


@pytest.mark.parametrize("name", [*LAYOUTS, "ragged"])
def test_the_stream_is_that_of_local_files(
    server: RangeServer, folder: Path, remote: RemoteOptions, name: str
) -> None:
    kind: Any = RaggedDataSource if name == "ragged" else ZarrDataSource
    streams = [
        [
            row.tobytes()
            for row in MapDataset.source(source).shuffle(seed=1).repeat(2).to_iter_dataset(LITTLE)
        ]
        for source in (kind(server.url(name), remote=remote), kind(folder / name))
    ]
    assert streams[0] == streams[1]


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
