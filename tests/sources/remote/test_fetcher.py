"""Bytes of files at URLs: exactly those asked for, within the limits, with names and versions."""

from __future__ import annotations

import random
import threading
import zipfile
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest

from tests.limits import CALM
from tests.range_server import Fault, RangeServer
from windrow.errors import ArgumentError, ReadError, SourceError
from windrow.sources.remote.fetcher import ByteRange, Fetcher, RemoteFile
from windrow.sources.remote.options import RemoteOptions

DATA = random.Random(0).randbytes(70_001)


@pytest.fixture(scope="module")
def site() -> Iterator[RangeServer]:
    files = {f"shards/{number:02}.bin": DATA[number:] for number in range(10)}
    with RangeServer({**files, "empty.bin": b"", "one.bin": b"x"}) as server:
        yield server


@pytest.fixture
def server(site: RangeServer) -> RangeServer:
    site.heal()
    site.reset_counts()
    return site


def fetcher(options: RemoteOptions = CALM, **storage_options: Any) -> Fetcher:
    return Fetcher("Tests", storage_options, options)


def opened(reader: Fetcher, url: str) -> RemoteFile:
    return reader.tails([url], 1)[0].file


def cut_out(wanted: list[ByteRange], data: bytes) -> list[bytes]:
    return [data[one.start : one.stop] for one in wanted]


# ---- tails


def test_short_files_of_a_server_without_ranges_are_cut_out() -> None:
    with RangeServer({"a.bin": DATA}, ranges=False) as server:
        reader = fetcher()
        tail = reader.tails([server.url("a.bin")], 100)[0]
        wanted = [ByteRange(tail.file, 5, 50), ByteRange(tail.file, 70_000, 70_001)]
        assert tail.data == DATA[-100:]
        assert reader.start(wanted).result() == cut_out(wanted, DATA)


def test_long_files_of_a_server_without_ranges_are_refused() -> None:
    limits = RemoteOptions(max_request_bytes=1000)
    with RangeServer({"a.bin": DATA}, ranges=False) as server:
        with pytest.raises(
            SourceError, match="sends the whole file when some of its bytes are requested"
        ):
            fetcher(limits).tails([server.url("a.bin")], 100)
        assert server.counts().requests == 2  # from the end, and from the beginning; no third
        file = RemoteFile(
            server.url("a.bin"), len(DATA), opened(fetcher(), server.url("a.bin")).version
        )
        with pytest.raises(
            SourceError, match="serve it from a server that supports the header Range"
        ):
            fetcher(limits).start([ByteRange(file, 0, 10)]).result()


def test_a_server_that_takes_no_ranges_from_the_end_is_asked_from_the_beginning(
    server: RangeServer,
) -> None:
    server.plan([Fault("ignore_range")])
    limits = RemoteOptions(max_request_bytes=1000)
    tail = fetcher(limits).tails([server.url("shards/00.bin")], 100)[0]
    assert tail.data == DATA[-100:]
    assert [asked[2] for asked in server.counts().asked] == ["bytes=-100", "bytes=69901-70000"]


# ---- ranges


def test_calls_side_by_side_share_the_bound() -> None:
    with RangeServer({"a.bin": DATA}, latency_s=0.02) as running:
        reader = fetcher(RemoteOptions(in_flight_bytes=1000))
        file = reader.tails([running.url("a.bin")], 1)[0].file
        running.reset_counts()
        wanted = [ByteRange(file, at * 500, at * 500 + 500) for at in range(10)]
        first, second = reader.fetch(wanted), reader.fetch(wanted)
        next(first)  # what it has asked for is not taken, and is all that may be
        answers: list[int] = []
        thread = threading.Thread(target=lambda: answers.extend(at for at, _ in second))
        thread.start()
        for _ in range(3):
            next(first)
        assert running.counts().most_in_flight <= 2
        del first  # gives back what it holds
        thread.join(20)
        assert sorted(answers) == list(range(10))


# ---- what a server asks of who reads


@pytest.mark.filterwarnings("ignore:.*auth:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*BasicAuth:DeprecationWarning")
def test_storage_options_reach_the_server() -> None:
    files = {"a.bin": DATA}
    with RangeServer(files, need_header=("X-Key", "let-me-in")) as server:
        reader = fetcher(headers={"X-Key": "let-me-in"})
        assert reader.tails([server.url("a.bin")], 10)[0].data == DATA[-10:]
        with pytest.raises(ReadError, match="status 403"):
            fetcher().tails([server.url("a.bin")], 10)
    import aiohttp

    with RangeServer(files, user=("someone", "pass-word")) as server:
        auth = aiohttp.BasicAuth("someone", "pass-word")
        reader = fetcher(client_kwargs={"auth": auth})
        assert reader.tails([server.url("a.bin")], 10)[0].data == DATA[-10:]
        host = server.address.removeprefix("http://")
        reader = fetcher()
        file = opened(reader, f"http://someone:pass-word@{host}/a.bin")
        assert reader.start([ByteRange(file, 0, 9)]).result() == [DATA[:9]]
        assert "pass-word" not in repr(file)


# ---- opening


def test_options_that_do_not_fit_are_named_and_not_shown() -> None:
    options = {"key": "AKIA-HIDDEN", "username": "HIDDEN-TOO"}
    with pytest.raises(ArgumentError, match=r"keys \['key', 'username'\] do not fit s3://b/a") as e:
        Fetcher("Tests", options, CALM).tails(["s3://b/a"], 10)
    assert "HIDDEN" not in str(e.value)


def test_the_options_of_the_user_stay_as_they_are() -> None:
    options = {"zip": {"mode": "r"}, "memory": {}}
    with zipfile.ZipFile(fsspec.open("memory://opt.zip", "wb").open(), "w") as archive:
        archive.writestr("a", b"abc")
    reader = Fetcher("Tests", options, CALM)
    assert reader.read_small("zip://a::memory://opt.zip") == b"abc"
    assert options == {"zip": {"mode": "r"}, "memory": {}}
