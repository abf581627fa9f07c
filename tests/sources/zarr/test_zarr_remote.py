"""Zarr over URLs: through TensorStore and through fsspec the same values as from the local disk."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import tensorstore as ts
import zarr

from tests.far_arrays import (
    AnyArray,
    in_memory,
    put_all,
    values,
    write,
    write_filtered,
    write_old,
)
from tests.object_store import ObjectStore
from tests.range_server import RangeServer
from windrow import MapDataset
from windrow.errors import (
    ArgumentError,
    MissingExtraError,
    NotFoundError,
    SourceError,
)
from windrow.sources import RemoteOptions, ZarrDataSource
from windrow.sources.zarr.stores import Access
from windrow.sources.zarr.tree import ArrayTree
from windrow.sources.zarr.urls import route_of

ORDER = np.random.default_rng(1).permutation(37)


@pytest.fixture(scope="module")
def data() -> AnyArray:
    return values(37, 6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, data: AnyArray) -> Path:
    """Arrays: in chunks, in shards, of v2; and groups of two of them, consolidated and not."""
    top = tmp_path_factory.mktemp("far")
    write(top / "plain", data, (4, 6))
    write(top / "shard", data, (2, 3), (16, 6))
    write_old(top / "old", data, (5, 6))
    write_filtered(top / "filter", data, (5, 4))
    for name in ("group", "listed"):
        group = zarr.open_group(str(top / name), mode="w")
        for key in ("a", "deep/b"):
            group.create_array(key, data=data if key == "a" else -data, chunks=(4, 6))
    zarr.consolidate_metadata(str(top / "group"))
    return top


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RangeServer]:
    with RangeServer(folder) as running:
        yield running


# --- which library ---------------------------------------------------------------------------------


BUCKET = {"bucket": "bucket", "path": "a"}
BASIC = ["Authorization: Basic dXNlcjpwQHNz"]


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
        (
            "https://user:p%40ss@h/a?sig=1",
            {"client_kwargs": {"headers": {"A": "b"}}, "block_size": 1},
            {
                "driver": "http",
                "base_url": "https://h?sig=1",
                "path": "/a",
                "headers": ["A: b", *BASIC],
            },
        ),
        (
            "http://h/a",
            {"client_kwargs": {"auth": ("user", "p@ss", "latin1")}},
            {"driver": "http", "base_url": "http://h", "path": "/a", "headers": BASIC},
        ),
        (
            "s3a://bucket/a",
            {"profile": "p", "client_kwargs": {"endpoint_url": "http://h", "region_name": "r"}},
            {
                **BUCKET,
                "driver": "s3",
                "endpoint": "http://h",
                "aws_region": "r",
                "aws_credentials": {"type": "profile", "profile": "p"},
            },
        ),
        (
            "gs://bucket/a",
            {"project": "p", "requester_pays": True},
            {**BUCKET, "driver": "gcs", "gcs_user_project": {"project_id": "p"}},
        ),
    ],
)
def test_what_tensorstore_is_told(
    url: str, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    way = route_of("source", url, options)
    assert way.spec == expected
    assert not way.is_array
    assert "Basic" not in repr(way)
    assert "sig" not in repr(way)
    ts.KvStore.Spec(dict(way.spec))  # TensorStore takes it


@pytest.mark.parametrize(
    ("url", "options", "why"),
    [
        ("memory://a", {}, "fsspec protocol 'memory'"),
        ("zip://a::s3://bucket/a.zip", {}, "fsspec protocol 'zip'"),
        ("s3://bucket/a", {"key": "k", "secret": "s"}, "TensorStore has no storage option 'key'"),
        ("s3://bucket/a", {"use_ssl": False}, "TensorStore has no storage option 'use_ssl'"),
        ("http://h/a", {"client_kwargs": {"x": 1}}, "TensorStore has no storage option 'x'"),
        ("gs://bucket/a", {"token": "t.json"}, "TensorStore has no storage option 'token'"),
        (
            "gs://bucket/a",
            {"requester_pays": True},
            "TensorStore has no storage option 'requester_pays' without 'project'",
        ),
    ],
)
def test_what_fsspec_reads(url: str, options: dict[str, Any], why: str) -> None:
    way = route_of("source", url, options)
    assert way.spec is None
    assert way.why == why


def test_adapters_of_tensorstore() -> None:
    way = route_of("source", "s3://bucket/a.zip|zip:in/", {"anon": True})
    base = {"driver": "s3", "bucket": "bucket", "path": "a.zip"}
    anonymous = {**base, "aws_credentials": {"type": "anonymous"}}
    assert way.spec == {"driver": "zip", "base": anonymous, "path": "in/"}
    assert not way.is_array
    with pytest.raises(
        ArgumentError, match=r"no setting for the storage option 'key'; leave it out"
    ):
        route_of("source", "s3://bucket/a.zip|zip:", {"key": "k"})


# --- the same values -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "shard", "old", "filter"])
def test_over_http(server: RangeServer, data: AnyArray, name: str) -> None:
    source = ZarrDataSource(server.url(name))
    way = "zarr-python" if name == "filter" else "TensorStore"
    assert f"{server.url(name)}/, read by {way}" in repr(source)
    np.testing.assert_array_equal(source.read(ORDER), data[ORDER])
    np.testing.assert_array_equal(source.read(np.arange(37)), data)
    stream = MapDataset.source(source).block_shuffle(seed=3).batch(5)
    got = np.concatenate(list(stream.to_iter_dataset()))
    assert sorted(map(bytes, got)) == sorted(map(bytes, data))
    assert source.is_remote_source
    assert source.stats()["requests"] > 0
    assert source.stats()["bytes"] > 0
    assert source.stats()["faults"] == {}


@pytest.mark.parametrize("name", ["plain", "shard", "old", "filter"])
def test_through_fsspec(folder: Path, data: AnyArray, name: str) -> None:
    source = ZarrDataSource(in_memory(folder / name, f"far/{name}"))
    why = "filter 'shuffle'" if name == "filter" else "fsspec protocol 'memory'"
    assert f"read by zarr-python ({why})" in repr(source)
    np.testing.assert_array_equal(source.read(ORDER), data[ORDER])
    got = list(MapDataset.source(source).batch(5).to_iter_dataset())
    np.testing.assert_array_equal(np.concatenate(got), data)


# --- S3 --------------------------------------------------------------------------------------------


@pytest.mark.jobs
def test_s3(folder: Path, data: AnyArray, monkeypatch: pytest.MonkeyPatch) -> None:
    with ObjectStore() as store:
        put_all(folder / "shard", lambda key, raw: store.put(f"shard/{key}", raw))
        endpoint = {
            "endpoint_url": store.faults.address,
            "client_kwargs": {"region_name": "us-east-1"},
        }
        by_keys = ZarrDataSource(store.url("shard"), storage_options=store.storage_options)
        assert "zarr-python (TensorStore has no storage option 'key')" in repr(by_keys)
        np.testing.assert_array_equal(by_keys.read(ORDER), data[ORDER])
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDNOTTOBESEEN")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-not-to-be-seen")
        public = fsspec.filesystem("s3", **store.storage_options)
        for key in public.find(store.url("shard")):
            public.chmod(key, "public-read")
        for options in (endpoint, {**endpoint, "anon": True}):
            source = ZarrDataSource(store.url("shard"), storage_options=options)
            assert "read by TensorStore" in repr(source)
            np.testing.assert_array_equal(source.read(ORDER), data[ORDER])


# --- requests --------------------------------------------------------------------------------------


def test_neighbours_are_one_request(tmp_path: Path) -> None:
    data = values(64, 4)
    write(tmp_path / "a", data, (2, 4), (64, 4))
    with RangeServer(tmp_path) as server:
        source = ZarrDataSource(server.url("a"))
        server.reset_counts()
        got = list(MapDataset.source(source).batch(8).to_iter_dataset())
        np.testing.assert_array_equal(np.concatenate(got), data)
        assert server.counts().requests <= 4  # 32 chunks, and the index
        server.reset_counts()
        source.read(np.array([3]))
        source.read(np.array([60]))
        assert server.counts().requests <= 2  # the index is kept


def test_metadata_of_many_arrays_are_asked_for_at_once(tmp_path: Path) -> None:
    for k in range(12):
        write(tmp_path / f"{k}", values(4, 2), (2, 2))
    with RangeServer(tmp_path) as server:
        server.gather(6)
        source = ZarrDataSource({f"{k}": server.url(f"{k}") for k in range(12)})
        assert server.counts().most_in_flight >= 6
        server.reset_counts()
        server.gather(12)
        source.read(np.arange(4))
        assert server.counts().most_in_flight >= 12


def test_reads_through_fsspec_are_side_by_side(tmp_path: Path) -> None:
    data = values(64, 4)
    write_filtered(tmp_path / "a", data, (2, 4))
    write(tmp_path / "s", data, (2, 4), (64, 4))
    with RangeServer(tmp_path, latency_s=0.2) as server:
        source = ZarrDataSource(server.url("a"))
        got = list(MapDataset.source(source).batch(8).to_iter_dataset())
        np.testing.assert_array_equal(np.concatenate(got), data)
        assert server.counts().most_in_flight >= 8
        server.latency_s = 0.0
        sharded = ZarrDataSource(server.url("s"), storage_options={"cookies": {}})
        server.reset_counts()
        np.testing.assert_array_equal(sharded.read(ORDER), data[ORDER])
        counts = server.counts()
        assert all(asked[2] for asked in counts.asked), counts.asked  # ranges, no whole objects
        assert counts.body_bytes <= data.nbytes + 4096


# --- settings and secrets --------------------------------------------------------------------------


def test_credentials_are_sent_and_never_shown(folder: Path, data: AnyArray) -> None:
    with RangeServer(folder, user=("user", "pass-to-hide")) as server:
        base = server.address.removeprefix("http://")
        secret = ("user", "pass-to-hide")
        for url, options in (
            (f"http://user:pass-to-hide@{base}/plain", {}),
            (server.url("plain"), {"client_kwargs": {"auth": secret}}),
            (server.url("plain") + "?sig=pass-to-hide", {"auth": secret}),
        ):
            source = ZarrDataSource(url, storage_options=options)
            np.testing.assert_array_equal(source.read(ORDER), data[ORDER])
            tree = ArrayTree("tree", url, access=Access("tree", options))
            shown = [repr(source), source.fingerprint, repr(source.parts), repr(tree.open())]
            assert not any("pass-to-hide" in text or "dXNlcj" in text for text in shown)
        wrong = f"http://user:wrong-to-hide@{base}/plain?sig=also-to-hide"
        with pytest.raises(SourceError, match=r"check your credentials") as caught:
            ZarrDataSource(wrong)
        _hidden(caught.value)


def _hidden(error: BaseException | None) -> None:
    while error is not None:
        assert "to-hide" not in f"{error} {error!r}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _read(source: Any, answers: Any) -> None:
    answers.put((np.asarray(source.read(ORDER)), repr(source)))


@pytest.mark.jobs
@pytest.mark.parametrize("name", ["shard", "filter"])
def test_another_process_opens_again(folder: Path, data: AnyArray, name: str) -> None:
    with RangeServer(folder, need_header=("X-Key", "pass-to-hide")) as server:
        remote = RemoteOptions(max_requests=7)
        options = {"headers": {"X-Key": "pass-to-hide"}}
        source = ZarrDataSource(server.url(name), storage_options=options, remote=remote)
        spawn = multiprocessing.get_context("spawn")
        answers = spawn.Queue()
        child = spawn.Process(target=_read, args=(source, answers))
        child.start()
        found, shown = answers.get(timeout=600)
        child.join(60)
        np.testing.assert_array_equal(found, data[ORDER])
        assert shown == repr(source)
        again = pickle.loads(pickle.dumps(source))
        assert again.stats()["requests"] == 0  # opened when it is read
        np.testing.assert_array_equal(again.read(ORDER), data[ORDER])


def test_nothing_is_there(server: RangeServer) -> None:
    with pytest.raises(NotFoundError, match=r"/none/ is not a Zarr array or group"):
        ZarrDataSource(server.url("none"))
    with pytest.raises(NotFoundError, match=r"memory://nowhere/? is not a Zarr array or group"):
        ZarrDataSource("memory://nowhere")
    with pytest.raises(ArgumentError, match="neither TensorStore nor fsspec knows the protocol"):
        ZarrDataSource("nonsense://x/y")


def test_without_zarr_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = in_memory(folder / "plain", "far/without")
    monkeypatch.setitem(sys.modules, "windrow.sources.zarr.python_store", None)
    with pytest.raises(MissingExtraError, match=r"fsspec protocol 'memory'.*windrow-data\[zarr\]"):
        ZarrDataSource(url)
    assert fsspec.filesystem("memory").exists("/far/without/zarr.json")


def test_limit_of_requests(tmp_path: Path) -> None:
    write(tmp_path / "a", values(64, 4), (2, 4))
    with RangeServer(tmp_path, latency_s=0.01) as server:
        source = ZarrDataSource(server.url("a"), remote=RemoteOptions(max_requests=3))
        server.gather(3)
        source.read(np.arange(64))
        assert server.counts().most_in_flight == 3
