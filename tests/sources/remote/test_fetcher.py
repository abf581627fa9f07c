"""Bytes of files at URLs: exactly those asked for, within the limits, with names and versions."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import random
import sys
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.limits import CALM, counted
from tests.processes import until
from tests.range_server import Fault, RangeServer, replace, stall, status
from windrow.errors import ArgumentError, NotFoundError, ReadError, SourceError
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


def memory_file(path: str, data: bytes) -> str:
    fsspec.filesystem("memory").pipe(path, data)
    return f"memory://{path.lstrip('/')}"


# ---- tails


def test_tails_are_one_request_each_and_a_url_that_comes_twice_one(server: RangeServer) -> None:
    urls = [server.url(f"shards/{number:02}.bin") for number in (3, 1, 3, 2)]
    reader = fetcher()
    tails = reader.tails(urls, 1000)
    assert [tail.file.url for tail in tails] == urls
    assert [tail.file.size_bytes for tail in tails] == [len(DATA) - n for n in (3, 1, 3, 2)]
    assert all(tail.data == DATA[-1000:] for tail in tails)
    assert [asked[2] for asked in server.counts().asked] == ["bytes=-1000"] * 3
    assert counted(reader) == {"requests": 3, "retries": 0, "bytes": 3000, "faults": {}}


@pytest.mark.parametrize(
    ("path", "data"), [("empty.bin", b""), ("one.bin", b"x"), ("shards/00.bin", DATA)]
)
def test_the_tail_of_a_short_file_is_all_of_it(server: RangeServer, path: str, data: bytes) -> None:
    tail = fetcher().tails([server.url(path)], 1 << 20)[0]
    assert (tail.data, tail.file.size_bytes) == (data, len(data))
    assert tail.file.version.startswith("ETag ")


def test_a_server_without_etags_tells_files_by_their_time() -> None:
    with RangeServer({"a.bin": DATA}, etags=False) as server:
        file = opened(fetcher(), server.url("a.bin"))
        assert file.version == "of Sat, 01 Jan 2000 00:00:00 GMT"


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


@settings(max_examples=30)
@given(data=st.data())
def test_any_ranges_are_their_bytes_in_their_order(site: RangeServer, data: st.DataObject) -> None:
    site.heal()
    reader = fetcher()
    wanted = []
    for number in data.draw(st.lists(st.integers(0, 9), max_size=12)):
        file = opened(reader, site.url(f"shards/{number:02}.bin"))
        start = data.draw(st.integers(0, file.size_bytes))
        stop = data.draw(st.integers(start, min(file.size_bytes, start + 5000)))
        wanted.append((number, ByteRange(file, start, stop)))
    ranges = [one for _, one in wanted]
    expected = [DATA[number:][one.start : one.stop] for number, one in wanted]
    assert reader.start(ranges).result() == expected
    assert sorted(reader.fetch(ranges)) == list(enumerate(expected))


def test_ranges_are_asked_for_as_given_and_empty_ones_not(server: RangeServer) -> None:
    reader = fetcher()
    file = opened(reader, server.url("shards/00.bin"))
    server.reset_counts()
    wanted = [ByteRange(file, 7, 7), ByteRange(file, 10, 20), ByteRange(file, 20, 21)]
    assert reader.start(wanted).result() == [b"", DATA[10:20], DATA[20:21]]
    asked = sorted(range_ for _, _, range_ in server.counts().asked)
    assert asked == ["bytes=10-19", "bytes=20-20"]
    assert dict(reader.fetch(wanted[:1])) == {0: b""}
    assert reader.start([]).result() == []


@pytest.mark.parametrize(("start", "stop"), [(0, 70_002), (-1, 5), (10, 9), (70_002, 70_003)])
def test_a_range_that_the_file_does_not_have_is_refused(
    server: RangeServer, start: int, stop: int
) -> None:
    reader = fetcher()
    file = opened(reader, server.url("shards/00.bin"))
    with pytest.raises(ReadError, match=r"shards/00.bin has 70,001 bytes, and bytes \["):
        reader.start([ByteRange(file, start, stop)])


def test_requests_in_flight_are_bounded_over_all_calls() -> None:
    with RangeServer({"a.bin": DATA}, latency_s=0.01) as server:
        reader = fetcher(RemoteOptions(max_requests=7))
        file = opened(reader, server.url("a.bin"))
        wanted = [ByteRange(file, n, n + 10) for n in range(40)]
        server.gather(7)
        running = [reader.start(wanted) for _ in range(3)]
        assert all(one.result() == cut_out(wanted, DATA) for one in running)
        assert server.counts().most_in_flight == 7
        assert server.counts().requests == 121


def test_many_requests_are_in_flight_at_a_time() -> None:
    with RangeServer({"a.bin": DATA}) as server:
        reader = fetcher(RemoteOptions(max_requests=200))
        file = opened(reader, server.url("a.bin"))
        server.gather(150)
        assert len(reader.start([ByteRange(file, n, n + 1) for n in range(200)]).result()) == 200
        assert server.counts().most_in_flight >= 150  # no limit of a library is below ours


def test_what_is_asked_for_and_not_taken_is_bounded() -> None:
    with RangeServer({"a.bin": DATA}) as server:
        reader = fetcher(RemoteOptions(in_flight_bytes=3500))
        file = opened(reader, server.url("a.bin"))
        server.reset_counts()
        wanted = [ByteRange(file, n * 1000, n * 1000 + 1000) for n in range(20)]
        coming = reader.fetch(wanted)
        got = dict([next(coming)])
        assert until(lambda: server.counts().requests == 3)  # one is taken, and not done with
        got.update([next(coming)])
        assert until(lambda: server.counts().requests == 4)
        got.update(coming)
        assert [got[n] for n in range(20)] == cut_out(wanted, DATA)


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


def test_closing_the_iterator_cancels_the_rest(server: RangeServer) -> None:
    reader = fetcher(RemoteOptions(max_requests=4))
    file = opened(reader, server.url("shards/00.bin"))
    server.reset_counts()
    server.plan([None, stall(), stall(), stall(), stall()])
    coming = reader.fetch([ByteRange(file, n, n + 10) for n in range(100)])
    next(coming)
    coming.close()  # type: ignore[attr-defined]
    server.plan([])
    assert reader.start([ByteRange(file, 0, 10)]).result() == [DATA[:10]]
    assert server.counts().requests < 20


def test_what_is_started_can_be_cancelled(server: RangeServer) -> None:
    reader = fetcher()
    file = opened(reader, server.url("shards/00.bin"))
    server.plan([stall()])
    running = reader.start([ByteRange(file, 0, 10)])
    assert until(lambda: server.counts().faults == {"stall": 1})
    assert running.cancel()
    with pytest.raises(CancelledError):
        running.result()
    assert reader.start([ByteRange(file, 0, 10)]).result() == [DATA[:10]]


def test_threads_share_a_fetcher(server: RangeServer) -> None:
    reader = fetcher()
    urls = [server.url(f"shards/{number:02}.bin") for number in range(10)]
    wrong: list[int] = []

    def read(number: int) -> None:
        file = opened(reader, urls[number])
        wanted = [ByteRange(file, n, n + 100) for n in range(0, 5000, 100)]
        if reader.start(wanted).result() != cut_out(wanted, DATA[number:]):
            wrong.append(number)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert reader.stats.counts()["requests"] == 510


def test_a_fetcher_that_is_gone_leaves_no_connection(server: RangeServer) -> None:
    opened(fetcher(), server.url("one.bin"))  # the loop's own descriptors are there now
    gc.collect()
    before = len(os.listdir("/dev/fd"))
    reader = fetcher()
    file = opened(reader, server.url("shards/00.bin"))
    reader.start([ByteRange(file, n, n + 10) for n in range(100)]).result()
    del reader
    gc.collect()
    assert until(lambda: len(os.listdir("/dev/fd")) <= before)


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


# ---- names


def test_names_over_http(server: RangeServer) -> None:
    reader = fetcher()
    assert reader.is_file(server.url("one.bin"))
    assert reader.is_file(server.url("empty.bin"))
    assert not reader.is_file(server.url("shards"))
    assert not reader.is_file(server.url("none.bin"))
    assert reader.is_folder(server.url("shards"))
    assert reader.is_folder(server.url("shards/"))
    assert not reader.is_folder(server.url("one.bin"))
    assert not reader.is_folder(server.url("none"))
    assert reader.names_in(server.url()) == ["empty.bin", "one.bin", "shards/"]
    assert reader.names_in(server.url("shards"))[:2] == ["00.bin", "01.bin"]
    found = reader.glob(server.url("shards/") + "0[12]*.bin")
    assert found == [server.url("shards/01.bin"), server.url("shards/02.bin")]
    assert reader.read_small(server.url("shards/00.bin")) == DATA
    assert reader.read_small(server.url("empty.bin")) == b""
    assert reader.read_small(server.url("none.bin")) is None
    with pytest.raises(NotFoundError, match=r"/none was not found; 1 attempt in .* s: not found"):
        reader.names_in(server.url("none"))


# ---- other file systems


@pytest.mark.parametrize("how", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_files_in_an_archive_wherever_it_lies(tmp_path: Path, how: int) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w", how) as archive:
        archive.writestr("in/a.bin", DATA)
        archive.writestr("in/b.bin", b"bb")
    packed = (tmp_path / "x.zip").read_bytes()
    with RangeServer({"x.zip": packed}) as server:
        for outer in (
            f"file://{tmp_path}/x.zip",
            memory_file("/x.zip", packed),
            server.url("x.zip"),
        ):
            reader = fetcher()
            url = f"zip://in/a.bin::{outer}"
            tail = reader.tails([url], 100)[0]
            assert tail.data == DATA[-100:]
            wanted = [ByteRange(tail.file, n * 1000, n * 1001) for n in range(60)]
            assert reader.start(wanted).result() == cut_out(wanted, DATA)
            assert reader.names_in(f"zip://in::{outer}") == ["a.bin", "b.bin"]
            assert reader.glob(f"zip://in/b*::{outer}") == [f"zip://in/b.bin::{outer}"]
            with pytest.raises(NotFoundError, match=r"zip://in/c\.bin::.* was not found"):
                reader.tails([f"zip://in/c.bin::{outer}"], 10)


def test_a_file_in_memory_that_was_replaced_is_an_error() -> None:
    reader = fetcher()
    file = opened(reader, memory_file("/fetching/r.bin", DATA))
    memory_file("/fetching/r.bin", DATA[::-1])
    with pytest.raises(ReadError, match=r"r\.bin has changed since it was opened: it was created"):
        reader.start([ByteRange(file, 0, 10)]).result()
    with pytest.raises(ReadError, match="has changed since it was opened"):
        list(reader.fetch([ByteRange(file, 0, 10), ByteRange(file, 5, 10)]))


def test_a_local_file_that_was_replaced_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(DATA)
    reader = fetcher()
    file = opened(reader, f"file://{path}")
    assert reader.start([ByteRange(file, 0, 10)]).result() == [DATA[:10]]
    path.write_bytes(DATA[:-1])
    with pytest.raises(ReadError, match="it had 70,001 bytes and has 70,000"):
        reader.start([ByteRange(file, 0, 10)]).result()


# ---- opening


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(ArgumentError, match="fsspec does not know the protocol 'nope'"):
        fetcher().tails(["nope://a/b"], 10)
    with pytest.raises(ArgumentError, match="fsspec does not know the protocol 'nope'"):
        fetcher().tails(["zip://a::nope://b"], 10)


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


def test_a_fetcher_pickles_and_shows_no_secret(server: RangeServer) -> None:
    reader = fetcher(headers={"X-Key": "not-to-be-seen"})
    file = opened(reader, server.url("shards/00.bin") + "?sig=not-to-be-seen")
    again: Fetcher = pickle.loads(pickle.dumps(reader))
    assert again.stats.counts()["requests"] == 0
    assert again.start([ByteRange(file, 0, 10)]).result() == [DATA[:10]]
    assert pickle.loads(pickle.dumps(file)) == file
    tail = again.tails([file.url], 10)[0]
    assert (
        "not-to-be-seen" not in f"{reader!r} {again!r} {file!r} {ByteRange(file, 0, 1)!r} {tail!r}"
    )


def read_elsewhere(reader: Fetcher, url: str) -> bytes:
    return reader.tails([url], 10)[0].data


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_is_told_to_spawn(server: RangeServer) -> None:
    reader = fetcher()
    opened(reader, server.url("one.bin"))
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        try:
            sender.send(read_elsewhere(reader, server.url("one.bin")))
        except BaseException as error:
            sender.send(error)
        finally:
            os._exit(0)
    sender.close()
    assert receiver.poll(60)
    came = receiver.recv()
    os.waitpid(child, 0)
    assert isinstance(came, ReadError)
    assert "Tests: cannot be read in process" in str(came)


# ---- one version only


def test_a_file_replaced_while_it_is_read_is_never_mixed(server: RangeServer) -> None:
    with RangeServer({"a.bin": DATA}) as server:
        reader = fetcher()
        file = opened(reader, server.url("a.bin"))
        server.plan([*[None] * 5, replace(DATA[::-1])])
        with pytest.raises(
            ReadError,
            match=r'a\.bin, bytes \[.*\), has changed since it was opened: it was ETag ".*" and is',
        ):
            reader.start([ByteRange(file, n, n + 10) for n in range(20)]).result()
        with pytest.raises(ReadError, match="Make a new source to read the file as it is now"):
            list(reader.fetch([ByteRange(file, 0, 10)]))
        assert reader.stats.counts()["faults"]["changed"] >= 2
        again = opened(reader, server.url("a.bin"))
        assert reader.start([ByteRange(again, 0, 10)]).result() == [DATA[::-1][:10]]


def test_a_file_that_is_gone_is_said_so(server: RangeServer) -> None:
    reader = fetcher()
    file = opened(reader, server.url("one.bin"))
    server.plan([status(404)])
    with pytest.raises(NotFoundError, match=r"one.bin, bytes \[0, 1\), was not found; 1 attempt"):
        reader.start([ByteRange(file, 0, 1)]).result()
