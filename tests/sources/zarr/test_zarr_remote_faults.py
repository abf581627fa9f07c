"""Faults of the network under Zarr and ArrayRecord: the undisturbed stream, or an error that says why."""

from __future__ import annotations

import dataclasses
import functools
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts

from tests.array_record_bytes import write as write_records
from tests.far_arrays import (
    PATIENT,
    SHORT,
    TWICE,
    AnyArray,
    array_over,
    objects,
    put_all,
    values,
    write,
    write_ways,
)
from tests.limits import at_last, within
from tests.object_store import ObjectStore
from tests.range_server import Fault, RangeServer, cut, drip, reset, s3_error, stall, status
from windrow import MapDataset
from windrow.errors import ReadError, SourceError
from windrow.sources import (
    ArrayPart,
    ArrayRecordDataSource,
    RemoteOptions,
    Span,
    ZarrDataSource,
)

ARRAYS = ["plain", "shard", "filter", "cookies"]
WAYS = [*ARRAYS, "records"]


@pytest.fixture(scope="module")
def data() -> AnyArray:
    return values(96, 6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, data: AnyArray) -> Path:
    top = tmp_path_factory.mktemp("faults")
    write_ways(top, data)
    rows = [40 * row.tobytes() for row in data]
    write_records(top / "a.array_record", rows, "group_size:1,uncompressed")
    return top


@pytest.fixture
def server(folder: Path) -> Iterator[RangeServer]:
    with RangeServer(objects(folder)) as running:
        yield running


def source_over(server: RangeServer, way: str, remote: RemoteOptions = PATIENT) -> Any:
    if way == "records":
        many = dataclasses.replace(remote, merge_gap_bytes=0, max_request_bytes=3_000)
        return ArrayRecordDataSource(server.url("a.array_record"), remote=many)
    return array_over(server, way, remote)


def stream(source: Any) -> list[bytes]:
    chain = MapDataset.source(source).block_shuffle(seed=5).batch(7)
    return [np.asarray(batch).tobytes() for batch in chain.to_iter_dataset()]


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_through_faults(server: RangeServer, folder: Path, way: str) -> None:
    undisturbed = stream(source_over(server, way))
    faults: list[Fault] = [status(503), status(429), status(500), reset(), cut()]
    server.chance(0.1, faults, seed=3)
    for _ in range(3):
        assert stream(source_over(server, way)) == undisturbed  # what was read is not kept
    assert sum(server.counts().faults.values()) > 3


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", [status(503), reset(), cut()], ids=lambda f: f.kind)
def test_faults_without_end(server: RangeServer, way: str, fault: Fault) -> None:
    source = source_over(server, way, TWICE)
    server.chance(1.0, [fault])
    server.reset_counts()
    with pytest.raises(
        ReadError, match=rf"{re.escape(server.host)}:{server.port}/.*(cannot|could not) be read"
    ) as caught:
        source.read(np.array([9]))
    if way != "records":
        first, stop = caught.value.records or (0, 0)
        assert first <= 9 < stop
    assert caught.value.__cause__ is None
    assert 2 <= server.counts().requests <= 5  # twice, each of which curl may send once more
    assert source.stats()["faults"]
    server.heal()
    assert len(source_over(server, way).read(np.array([9]))) == 1


@pytest.mark.parametrize("way", WAYS)
def test_refused(server: RangeServer, way: str) -> None:
    source = source_over(server, way, PATIENT)
    server.chance(1.0, [status(403)])
    server.reset_counts()
    with pytest.raises(ReadError, match="credentials"):
        source.read(np.array([9]))
    asked = [one for one in server.counts().asked if one[0] == "GET"]
    assert len(asked) == 1  # never again
    server.chance(1.0, [status(401)])
    with pytest.raises((SourceError, ReadError), match="credentials"):
        source_over(server, way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", [stall(), stall(body=True), drip(0.1)], ids=lambda f: f.kind)
def test_a_read_that_never_ends(server: RangeServer, way: str, fault: Fault) -> None:
    source = at_last(lambda: source_over(server, way, SHORT))
    server.chance(1.0, [fault])
    with (
        within(3 * SHORT.longest_s),
        pytest.raises(ReadError, match=r"timeout|no answer within") as caught,
    ):
        source.read(np.arange(8, 20))
    assert str(server.port) in str(caught.value)
    assert "RemoteOptions" in str(caught.value)
    assert source.stats()["faults"]
    if fault.kind == "stall":
        with pytest.raises((SourceError, ReadError)):
            source_over(server, way, SHORT)


@pytest.mark.parametrize("way", ARRAYS)
def test_what_comes_too_late_is_dropped(server: RangeServer, data: AnyArray, way: str) -> None:
    source = at_last(lambda: array_over(server, way, SHORT))
    part = source.parts[0]
    assert isinstance(part, ArrayPart)
    out = np.zeros((2, 6), "f4")
    server.chance(1.0, [drip(0.004)])  # a chunk comes after the end of its read
    with ThreadPoolExecutor(1) as pool:
        ended = part.reader.start([Span(8, 10, out)], pool)
        try:
            ended.result(timeout=30)
        except ReadError:
            server.heal()
            array_over(server, way).read(np.arange(96))  # longer than what came late took
            assert not out.any()
        else:
            np.testing.assert_array_equal(out, data[8:10])


def test_a_stall_is_asked_for_again(server: RangeServer, data: AnyArray) -> None:
    remote = RemoteOptions(stall_s=1, retries=20, backoff_s=0.01)
    source = ZarrDataSource(server.url("plain"), remote=remote)
    server.plan([stall()])
    np.testing.assert_array_equal(source.read(np.array([9, 50])), data[[9, 50]])
    assert server.counts().faults == {"stall": 1}


def test_stores_that_are_open_have_limits_too(server: RangeServer, data: AnyArray) -> None:
    spec = {"driver": "zarr3", "kvstore": {"driver": "http", "base_url": server.url("plain/")}}
    store = ts.open(spec).result()
    for given in (store.kvstore, store[10:]):
        source = at_last(functools.partial(ZarrDataSource, given, remote=SHORT))
        first = 10 if given is not store.kvstore and len(source) < 96 else 0
        found = at_last(functools.partial(source.read, np.arange(5)))
        np.testing.assert_array_equal(found, data[first : first + 5])
        server.chance(1.0, [stall()])
        with pytest.raises(ReadError, match=r"no answer within .*timeout_s=0\.25"):
            source.read(np.array([40]))
        server.heal()


def test_a_server_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for url, text in (
        (f"http://127.0.0.1:{port}/a", "no connection"),
        ("http://no-such-host.invalid/a", "host not found"),
    ):
        told = rf"(?is)zarr\.json cannot be read.*{text}"
        with within(5.0), pytest.raises(SourceError, match=told):
            ZarrDataSource(url, remote=TWICE)


@pytest.mark.parametrize("way", ["shard", "cookies"])
def test_a_shard_that_is_written_again(
    server: RangeServer, data: AnyArray, way: str, tmp_path: Path
) -> None:
    source = array_over(server, way)
    np.testing.assert_array_equal(source.read(np.array([0])), data[[0]])
    other = np.concatenate([data[::-1], data[::-1]])[:96]
    write(tmp_path / "shard", other, (2, 3), (16, 6))
    put_all(tmp_path, server.put)
    with pytest.raises(ReadError, match="changed"):
        source.read(np.arange(8, 16))
    np.testing.assert_array_equal(array_over(server, way).read(np.arange(96)), other)


@pytest.mark.parametrize("anonymous", [True, pytest.param(False, marks=pytest.mark.jobs)])
def test_s3_through_faults(
    folder: Path, data: AnyArray, anonymous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ObjectStore() as store:
        put_all(folder / "plain", lambda key, raw: store.put(f"plain/{key}", raw))
        options = dict(store.storage_options)
        if anonymous:  # as far as the options say
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", options.pop("key"))
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options.pop("secret"))
        source = ZarrDataSource(store.url("plain"), storage_options=options, remote=PATIENT)
        assert "decoded directly" in repr(source)
        store.faults.chance(0.1, [s3_error(503, "SlowDown"), status(500), reset(), cut()], seed=1)
        for _ in range(2):
            np.testing.assert_array_equal(source.read(np.arange(96)), data)
        assert store.faults.counts().faults
        store.faults.chance(1.0, [s3_error(403, "ExpiredToken")])
        store.faults.reset_counts()
        with pytest.raises(ReadError, match="credentials") as caught:
            source.read(np.array([50]))
        assert "AKIDNOTTOBESEEN" not in str(caught.value)
        assert store.faults.counts().requests == 1
