"""Zarr over URLs: through TensorStore and through fsspec the same values as from the local disk."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
import time
import traceback
import urllib.parse
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import tensorstore as ts
import xarray
import zarr

from tests.far_arrays import (
    TWICE,
    AnyArray,
    in_memory,
    objects,
    put_all,
    values,
    write,
    write_filtered,
    write_old,
)
from tests.object_store import ObjectStore
from tests.range_server import RangeServer, cut, status
from windrow import MapDataset, verify
from windrow.errors import (
    ArgumentError,
    MissingExtraError,
    NotFoundError,
    ReadError,
    SourceError,
    WindrowError,
)
from windrow.sources import RemoteOptions, Window, WindowDataSource, ZarrDataSource
from windrow.sources.zarr.source import ArrayTree
from windrow.sources.zarr.stores import Access
from windrow.sources.zarr.urls import route_of

ODD = ["with space", "per%20cent", "hash#x", "plus+é", "q?x"]
ORDER = np.random.default_rng(1).permutation(37)


@pytest.fixture(scope="module")
def data() -> AnyArray:
    return values(37, 6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, data: AnyArray) -> Path:
    """Arrays: in chunks, in shards, of v2, and of odd names; and groups of both formats."""
    top = tmp_path_factory.mktemp("far")
    for name in ("plain", *ODD):
        write(top / name, data, (4, 6))
    write(top / "shard", data, (2, 3), (16, 6))
    write_old(top / "old", data, (5, 6))
    write_filtered(top / "filter", data, (5, 4))
    for version in (2, 3):
        group = zarr.open_group(str(top / f"group{version}"), mode="w", zarr_format=version)
        for key in ("a", "deep/b", "deep/er/c"):
            group.create_array(key, data=data, chunks=(4, 6))
    return top


@pytest.fixture
def server(folder: Path) -> Iterator[RangeServer]:
    with RangeServer(objects(folder)) as running:
        yield running


# --- which library ---------------------------------------------------------------------------------


BUCKET = {"bucket": "bucket", "path": "a"}


@pytest.mark.parametrize(
    ("url", "options", "expected"),
    [
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
    ts.KvStore.Spec(dict(way.spec))  # TensorStore takes it


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
        asked = [one[2] for one in counts.asked if one[0] == "GET"]
        assert asked
        assert all(asked)  # ranges, no whole objects
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
        with pytest.raises(SourceError, match=r"credentials") as caught:
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


def test_without_zarr_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = in_memory(folder / "filter", "far/without")
    monkeypatch.setitem(sys.modules, "windrow.sources.zarr.python_store", None)
    with pytest.raises(MissingExtraError, match=r"filter.*windrow-data\[zarr\]"):
        ZarrDataSource(url)
    assert fsspec.filesystem("memory").exists("/far/without/.zarray")


def test_limit_of_requests(tmp_path: Path) -> None:
    write(tmp_path / "a", values(64, 4), (2, 4))
    with RangeServer(tmp_path, latency_s=0.01) as server:
        source = ZarrDataSource(server.url("a"), remote=RemoteOptions(max_requests=3))
        server.gather(3)
        source.read(np.arange(64))
        assert server.counts().most_in_flight == 3


# --- places ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ODD)
def test_odd_names(server: RangeServer, folder: Path, data: AnyArray, name: str) -> None:
    assert urllib.parse.quote(name) in server.url(name)
    for options in (None, {"cookies": {"a": "b"}}):
        for end in ("", "/"):
            source = ZarrDataSource(server.url(name) + end, storage_options=options)
            np.testing.assert_array_equal(source.read(np.arange(37)), data)
    source = ZarrDataSource(in_memory(folder / name, f"odd/{name}"))
    np.testing.assert_array_equal(source.read(np.arange(37)), data)


@pytest.mark.parametrize("version", [2, 3])
def test_groups_in_groups(folder: Path, data: AnyArray, tmp_path: Path, version: int) -> None:
    name = f"group{version}"
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        for key, raw in objects(folder / name).items():
            file.writestr(f"in/{key}", raw)
    memory = in_memory(folder / name, f"groups/{name}")
    for url in (memory, memory + "/", f"zip://in::file://{tmp_path}/a.zip"):
        found = ZarrDataSource(url).read(np.arange(37))
        for values_of in (found["a"], found["deep"]["b"], found["deep"]["er"]["c"]):
            np.testing.assert_array_equal(values_of, data)
    found = ZarrDataSource(memory, names=["deep/er/c"]).read(np.arange(37))
    np.testing.assert_array_equal(found["deep"]["er"]["c"], data)
    assert verify(ZarrDataSource(memory)).chunks == 30


@pytest.mark.jobs
@pytest.mark.parametrize("keys", [True, False])
def test_a_bucket_as_a_group(
    folder: Path, data: AnyArray, keys: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ObjectStore() as store:
        put_all(folder / "group3", store.put)
        options = dict(store.storage_options)
        if not keys:  # then TensorStore reads
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", options.pop("key"))
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options.pop("secret"))
        for end in ("", "/"):
            url = f"s3://{store.bucket}{end}"
            source = ZarrDataSource(url, names=["a", "deep/b"], storage_options=options)
            np.testing.assert_array_equal(source.read(np.arange(37))["deep"]["b"], data)


@pytest.mark.parametrize("options", [None, {"cookies": {"a": "b"}}])
def test_limit_of_bytes(tmp_path: Path, options: dict[str, Any] | None) -> None:
    """Of a chunk a cell is wanted, and the whole of it is fetched."""
    data = values(48 * 4, 1 << 12)
    write(tmp_path / "a", data, (4, 1 << 12))
    remote = RemoteOptions(in_flight_bytes=4 * 4 * (4 << 12))
    with RangeServer(tmp_path, latency_s=0.01) as server:
        rows = ZarrDataSource(server.url("a"), storage_options=options, remote=remote)
        wanted = np.arange(0, 192, 4) + np.arange(48) % 4
        server.gather(2)
        np.testing.assert_array_equal(rows.read(wanted), data[wanted])
        few = WindowDataSource(
            server.url("a"), {0: Window(1, 4), 1: 8}, storage_options=options, remote=remote
        )
        wanted = np.arange(0, len(few), 511)
        np.testing.assert_array_equal(few.read(wanted)[:, 0, 0], data[::4, ::8].reshape(-1)[wanted])
        assert 2 <= server.counts().most_in_flight <= 4


# --- stores that refuse ------------------------------------------------------------------------------


def test_what_is_not_there_is_refused(server: RangeServer, data: AnyArray) -> None:
    """S3 answers 403 for it to who may not list a bucket."""
    server.plan([status(403)])  # zarr.json
    source = ZarrDataSource(server.url("old"))
    np.testing.assert_array_equal(source.read(np.arange(37)), data)
    server.chance(1.0, [status(403)])
    with pytest.raises(SourceError, match=r"zarr\.json cannot be read.*credentials"):
        ZarrDataSource(server.url("old"))
    with pytest.raises(ReadError, match="credentials"):
        source.read(np.array([9]))


def test_attributes_that_alone_are_refused(server: RangeServer) -> None:
    server.plan([None, None, status(403)])  # zarr.json, which is not there; .zarray; .zattrs
    with pytest.raises(SourceError, match=r"\.zattrs cannot be read.*credentials"):
        ZarrDataSource(server.url("old"))


def test_an_array_is_not_opened_unguarded(server: RangeServer) -> None:
    ZarrDataSource(server.url("plain"))
    server.plan([None] * (server.counts().requests - 1))  # found; what guards it fails
    server.chance(1.0, [status(503)])
    with pytest.raises(SourceError, match=r"/plain/ cannot be read.*503"):
        ZarrDataSource(server.url("plain"), remote=TWICE)


# --- coordinates -------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[2, 3])
def labelled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    grid = np.arange(24 * 3 * 4 * 6, dtype="f4").reshape(24, 3, 4, 6) + 1
    times = np.arange("2020-01-01", "2020-01-25", dtype="M8[D]").astype("M8[ns]")
    dims = ("time", "level", "lat", "lon")
    coords = {"time": times, "level": [1, 2, 3], "lat": np.arange(4.0), "lon": np.arange(6.0)}
    top = tmp_path_factory.mktemp("labelled")
    dataset = xarray.Dataset({"t": (dims, grid), "u": (dims, -grid)}, coords)
    dataset = dataset.assign_coords(valid_time=("time", times + np.timedelta64(1, "h")))
    dataset.to_zarr(top / "w", zarr_format=request.param, consolidated=True)
    return top


@pytest.mark.parametrize("options", [None, {"cookies": {"a": "b"}}])
def test_coordinates_are_read_side_by_side(labelled: Path, options: dict[str, Any] | None) -> None:
    def source_at(place: str | Path, **settings: Any) -> WindowDataSource:
        given = {"time": Window(3, 1, select=slice("2020-01-05", None)), "lat": slice(1, 2)}
        wanted = ["time", "level", "lat", "lon", "valid_time"]
        return WindowDataSource(place, given, coordinates=wanted, **settings)

    with RangeServer(labelled, latency_s=0.2) as server:
        began_s = time.monotonic()
        far = source_at(server.url("w"), storage_options=options)
        assert time.monotonic() - began_s < 30 * server.latency_s  # it was 70
        counts = server.counts()
        assert counts.most_in_flight >= 4
        chunks = [path for _, path, _ in counts.asked if "/c/" in path or path[-1] == "0"]
        assert len(chunks) == len(set(chunks))  # each once
        server.latency_s = 0.0
        near = source_at(labelled / "w")
        assert len(far) == len(near)
        for key, value in near[3].items():
            np.testing.assert_array_equal(far[3][key], value)


def test_a_coordinate_that_is_refused_is_no_cell(labelled: Path) -> None:
    with RangeServer(objects(labelled)) as server:
        for key in [key for key in objects(labelled) if key.startswith("w/lat/")]:
            server.remove(key)
        source = WindowDataSource(server.url("w/t"), {"time": 3, "lat": slice(1, 3)})
        assert source[0].shape == (3, 3, 2, 6)  # the array knows of none: cells
        with pytest.raises(NotFoundError, match="w/lat/, though the consolidated metadata"):
            WindowDataSource(server.url("w"), {"time": 3, "lat": slice(1, 3)})
    with RangeServer(objects(labelled)) as server:
        probe = WindowDataSource(server.url("w"), {"time": 3})
        before = server.counts().requests
        assert len(probe)
        server.plan([None] * before)
        server.chance(1.0, [status(403)])
        with pytest.raises((SourceError, ReadError), match="credentials"):
            WindowDataSource(server.url("w"), {"time": 3, "lat": slice(1, 3)})


# --- what errors keep --------------------------------------------------------------------------------


def _kept(error: BaseException | None) -> Iterator[str]:
    """All that an error and those behind it say, printed or not."""
    while error is not None:
        yield f"{error} {error!r} {error.args} {error.__dict__} {getattr(error, '__notes__', '')}"
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("name", ["plain", "filter"])
@pytest.mark.parametrize("fault", [status(403, body=b"to-hide"), status(404), cut()])
def test_errors_keep_no_secrets(server: RangeServer, name: str, fault: Any) -> None:
    base = server.address.removeprefix("http://")
    given: list[tuple[str, dict[str, Any] | None]] = [
        (f"http://user:pass-to-hide@{base}/{name}?sig=to-hide", None),
        (server.url(name), {"headers": {"Authorization": "Bearer abc-to-hide"}}),
        (server.url(name), {"cookies": {"a": "cookie-to-hide"}}),
    ]
    for url, options in given:
        server.heal()
        for call in _uses(url, options):
            server.chance(1.0, [fault])
            try:
                call()
            except WindrowError as error:
                said = [*_kept(error), pickle.dumps(error).decode("latin-1")]
                said += traceback.format_exception_only(error)
                assert not any("to-hide" in text or "dXNlcj" in text for text in said), said


def _uses(url: str, options: dict[str, Any] | None) -> list[Callable[[], Any]]:
    source = ZarrDataSource(url, storage_options=options, remote=TWICE)
    sent = pickle.dumps(source)
    return [
        lambda: source.read(np.arange(30)),
        lambda: list(MapDataset.source(source).shuffle(seed=1).to_iter_dataset()),
        lambda: pickle.loads(sent).read(np.arange(3)),
        lambda: verify(source),
        lambda: ZarrDataSource(url, storage_options=options, remote=TWICE),
    ]
