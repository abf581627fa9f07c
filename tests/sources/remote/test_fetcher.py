"""Bytes of files at URLs: exactly those asked for, through faults, or an error that says what was tried."""

from __future__ import annotations

import gc
import gzip
import os
import random
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.limits import CALM, DATA, ended, within
from tests.processes import until
from tests.range_server import Fault, RangeServer, stall, status
from windrow.errors import ArgumentError, NotFoundError, ReadError, SourceError, WindrowError
from windrow.sources.remote.fetcher import ByteRange, Fetcher, RemoteFile
from windrow.sources.remote.options import RemoteOptions


def fetcher(options: RemoteOptions = CALM, **storage_options: Any) -> Fetcher:
    return Fetcher("Tests", storage_options, options)


# ---- what may pass


def test_pauses_draw_nothing_from_the_generator_of_the_user(
    server: RangeServer, file: RemoteFile
) -> None:
    random.seed(5)
    server.plan([status(503), None])
    fetcher().start([ByteRange(file, 0, 10)]).result()
    drawn = random.random()
    random.seed(5)
    assert drawn == random.random()


def test_an_error_ends_the_others(server: RangeServer, file: RemoteFile) -> None:
    reader = Fetcher("Tests", None, RemoteOptions(timeout_s=300.0, stall_s=300.0))
    server.plan([stall(), stall(), status(404), stall(), stall()])
    server.gather(5)  # a request that came late would take a fault of the next plan
    wanted = [ByteRange(file, n, n + 10) for n in range(5)]
    with within(1.0), pytest.raises(NotFoundError, match="status 404"):
        reader.start(wanted).result()
    server.plan([stall(), status(404), stall()])
    server.gather(3)
    with within(1.0), pytest.raises(NotFoundError, match="status 404"):
        list(reader.fetch(wanted[:3]))


@pytest.mark.parametrize("call", ["tails", "is_file", "names_in", "read_small", "glob"])
def test_every_call_is_tried_again_and_bounded(
    server: RangeServer, file: RemoteFile, call: str
) -> None:
    url = {"names_in": server.url(), "glob": server.url() + "a*"}.get(call, file.url)

    def ask(options: RemoteOptions = CALM) -> tuple[Any, int]:
        """What the call returns, and how often it was tried again."""
        reader = Fetcher("Tests", None, options)
        found = reader.tails([url], 10) if call == "tails" else getattr(reader, call)(url)
        return found, reader.stats.counts()["retries"]

    expected, _ = ask()
    server.plan([status(503), status(500), None])
    assert ask() == (expected, 2)
    server.plan([stall()] * 9)
    with within(1.0), pytest.raises(ReadError, match=r"3 attempts in .* s: timeout"):
        ask(ended("timeout"))
    server.plan([status(403)])
    with pytest.raises(ReadError, match=r"1 attempt in .* s: status 403"):
        ask()


# ---- what a server may not do


def test_a_compressed_answer_is_refused() -> None:
    answer = status(200, body=gzip.compress(DATA), Content_Encoding="gzip", ETag='"1"')
    with RangeServer({"a.bin": DATA}) as server:
        server.chance(1.0, [answer])
        with pytest.raises(WindrowError, match=r"the server sends it compressed, so its bytes"):
            fetcher().tails([server.url("a.bin")], 10)
        with pytest.raises(WindrowError, match=r"the server sends it compressed, so its bytes"):
            fetcher().read_small(server.url("a.bin"))


def test_a_server_that_hides_the_length_is_refused(server: RangeServer) -> None:
    server.plan([status(206, body=b"0123456789", Content_Range="bytes 0-9/*", ETag='"1"')])
    with pytest.raises(WindrowError, match="the server hides its length"):
        fetcher().tails([server.url("a.bin")], 10)


# ---- file systems that block


class Blocking(MemoryFileSystem):  # type: ignore[misc]
    """Reads wait until they are let go; counts those at the same time."""

    protocol = "blocking"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    go = threading.Event()
    slow = threading.Event()  # is never set: waited for, it is time that passes
    slow_s = 0.01
    lock = threading.Lock()
    now = most = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("blocking://").strip("/")

    def cat_file(self, path: str, start: Any = None, end: Any = None, **kwargs: Any) -> Any:
        with Blocking.lock:
            Blocking.now += 1
            Blocking.most = max(Blocking.most, Blocking.now)
        try:
            assert Blocking.go.wait(60)
            self.slow.wait(self.slow_s)
            return super().cat_file(path, start, end, **kwargs)
        finally:
            with Blocking.lock:
                Blocking.now -= 1


@pytest.fixture
def blocking() -> Iterator[type[Blocking]]:
    fsspec.register_implementation("blocking", Blocking, clobber=True)
    Blocking.go.clear()
    Blocking.most = 0
    yield Blocking
    Blocking.go.set()
    assert until(lambda: Blocking.now == 0)


def test_a_file_system_that_blocks_is_left_behind(blocking: type[Blocking]) -> None:
    blocking().pipe("/a.bin", DATA)
    reader = Fetcher("Tests", None, ended("timeout"))
    with within(1.0), pytest.raises(ReadError, match=r"1 attempt in .* s: timeout"):
        reader.tails(["blocking://a.bin"], 10)
    assert until(lambda: blocking.most > 0)
    assert blocking.most == 1  # those after it use nothing that it may still use


def test_a_file_system_that_is_not_known_is_used_by_one_thread_at_a_time(
    blocking: type[Blocking], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocking().pipe("/a.bin", DATA)
    blocking.go.set()
    reader = Fetcher("Tests", None, ended("timeout", 1.0))
    file = reader.tails(["blocking://a.bin"], 10)[0].file
    wanted = [ByteRange(file, n, n + 10) for n in range(50)]
    monkeypatch.setattr(blocking, "slow_s", 1.2 / 50)  # all of them longer than one may take
    assert len(reader.start(wanted).result()) == 50
    assert blocking.most == 1
    assert reader.stats.counts()["faults"] == {}


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_read_that_never_ends_does_not_keep_the_interpreter() -> None:
    program = """
import threading, fsspec
from fsspec.implementations.memory import MemoryFileSystem
from windrow.sources.remote.fetcher import Fetcher
from windrow.sources.remote import RemoteOptions
class Stuck(MemoryFileSystem):
    protocol = "stuck"
    def info(self, *args, **kwargs):
        threading.Event().wait()
fsspec.register_implementation("stuck", Stuck)
try:
    Fetcher("Tests", None, RemoteOptions(timeout_s=0.1, retries=0)).tails(["stuck://a"], 1)
except OSError as error:
    print(error)
"""
    told = r"stuck://a, the last 1 bytes, could not be read; 1 attempt in \d+\.\d s"
    assert re.search(told, run(program))


def test_a_package_that_is_missing_is_named_by_its_extra() -> None:
    urls = {"http": "zip://x::http://h/a", "s3": "zip://x::s3://b/a", "gcs": "zip://x::gs://b/a"}
    program = f"""
import sys
sys.modules.update(dict.fromkeys(("aiohttp", "s3fs", "gcsfs")))
from windrow.errors import MissingExtraError
from windrow.sources.remote.fetcher import Fetcher
from windrow.sources.remote import RemoteOptions
for url in {[*urls.values()]!r}:
    try:
        Fetcher("Tests", None, RemoteOptions(retries=0)).tails([url], 1)
    except MissingExtraError as error:
        assert error.__context__ is None
        print(error)
"""
    told = run(program)
    for extra, url in urls.items():
        assert told.count(f"pip install '.[{extra}]'") == 1
        assert f"Tests: reading {url} needs the packages of windrow-data[{extra}]" in told


# ---- bytes as they are asked for, and what a server asks of who reads


def test_short_files_of_a_server_without_ranges_are_cut_out() -> None:
    with RangeServer({"a.bin": DATA}, ranges=False) as server:
        reader = fetcher()
        tail = reader.tails([server.url("a.bin")], 100)[0]
        wanted = [ByteRange(tail.file, 5, 50), ByteRange(tail.file, 10_239, 10_240)]
        assert tail.data == DATA[-100:]
        assert reader.start(wanted).result() == [DATA[5:50], DATA[-1:]]


def test_long_files_of_a_server_without_ranges_are_refused() -> None:
    limits = RemoteOptions(max_request_bytes=1000)
    with RangeServer({"a.bin": DATA}, ranges=False) as server:
        with pytest.raises(
            SourceError, match="sends the whole file when some of its bytes are requested"
        ):
            fetcher(limits).tails([server.url("a.bin")], 100)
        asked = [one[2] for one in server.counts().asked]
        assert asked == ["bytes=-100", "", "bytes=10140-10239"]
        file = fetcher().tails([server.url("a.bin")], 1)[0].file
        with pytest.raises(
            SourceError, match="serve it from a server that supports the header Range"
        ):
            fetcher(limits).start([ByteRange(file, 0, 10)]).result()


def test_a_server_that_takes_no_ranges_from_the_end_is_asked_from_the_beginning(
    server: RangeServer,
) -> None:
    server.plan([Fault("ignore_range")])
    limits = RemoteOptions(max_request_bytes=1000)
    tail = fetcher(limits).tails([server.url("a.bin")], 100)[0]
    assert tail.data == DATA[-100:]
    asked = [one[2] for one in server.counts().asked]
    assert asked == ["bytes=-100", "", "bytes=10140-10239"]


def test_a_server_without_versions_is_read_by_the_length_of_its_files() -> None:
    with RangeServer({"a.bin": DATA}, etags=False, headers={"Last-Modified": ""}) as server:
        reader = fetcher()
        file = reader.tails([server.url("a.bin")], 10)[0].file
        assert not file.has_version
        assert reader.read([ByteRange(file, 0, 9)]) == [DATA[:9]]
        server.put("a.bin", DATA + b"more")
        with pytest.raises(ReadError, match="has changed since it was opened"):
            reader.read([ByteRange(file, 0, 9)])


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
        file = reader.tails([f"http://someone:pass-word@{host}/a.bin"], 1)[0].file
        assert reader.start([ByteRange(file, 0, 9)]).result() == [DATA[:9]]
        assert "pass-word" not in repr(file)


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


def test_a_fetcher_that_is_gone_leaves_no_connection(server: RangeServer, file: RemoteFile) -> None:
    gc.collect()
    before = len(os.listdir("/dev/fd"))  # with the loop's own descriptors
    reader = fetcher()
    reader.start([ByteRange(file, n, n + 10) for n in range(100)]).result()
    del reader
    gc.collect()
    assert until(lambda: len(os.listdir("/dev/fd")) <= before)
