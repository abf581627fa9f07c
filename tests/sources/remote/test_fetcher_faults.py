"""Faults of HTTP servers and of file systems: the right bytes, or an error that says what was tried."""

from __future__ import annotations

import gzip
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.limits import CALM, SLACK_S, ended, within
from tests.processes import until
from tests.range_server import Fault, RangeServer, stall, status
from windrow.errors import NotFoundError, ReadError, WindrowError
from windrow.sources.remote.fetcher import ByteRange, Fetcher, RemoteFile
from windrow.sources.remote.options import RemoteOptions

DATA = random.Random(1).randbytes(50_000)


@pytest.fixture(scope="module")
def site() -> Iterator[RangeServer]:
    with RangeServer({"a.bin": DATA}) as server:
        yield server


@pytest.fixture
def server(site: RangeServer) -> RangeServer:
    site.heal()
    return site


@pytest.fixture
def file(server: RangeServer) -> RemoteFile:
    found = Fetcher("Tests", None, CALM).tails([server.url("a.bin")], 1)[0].file
    server.reset_counts()
    return found


def fails(reader: Fetcher, file: RemoteFile, stop: int = 3000) -> WindrowError:
    """The error of reading the file's first bytes."""
    with within(1.0), pytest.raises(WindrowError, match=re.escape(file.shown)) as caught:
        reader.start([ByteRange(file, 0, stop)]).result()
    return caught.value


# ---- what may pass


def test_a_connection_closed_before_an_answer_is_made_again(
    server: RangeServer, file: RemoteFile
) -> None:
    # aiohttp makes it again, once, below the counts: it may have been idle for too long.
    reader = Fetcher("Tests", None, CALM)
    server.plan([Fault("close"), None])
    assert reader.start([ByteRange(file, 0, 3000)]).result() == [DATA[:3000]]
    assert reader.stats.counts()["faults"] == {}
    server.plan([Fault("close")] * 2)
    assert reader.start([ByteRange(file, 0, 3000)]).result() == [DATA[:3000]]
    assert reader.stats.counts()["faults"] == {"connection closed": 1}
    server.plan([Fault("close")] * 20)
    assert re.search(r"3 attempts in \d+\.\d s: connection closed \(3\)", str(fails(reader, file)))


def test_a_pause_that_the_server_asks_for_is_granted(server: RangeServer, file: RemoteFile) -> None:
    options = RemoteOptions(retries=1, backoff_s=0.001, max_backoff_s=0.3)
    reader = Fetcher("Tests", None, options)
    server.plan([status(503, Retry_After="3600"), None])
    started = time.monotonic()
    assert reader.start([ByteRange(file, 0, 10)]).result() == [DATA[:10]]
    assert 0.29 < time.monotonic() - started < 0.3 + SLACK_S


def test_pauses_draw_nothing_from_the_generator_of_the_user(
    server: RangeServer, file: RemoteFile
) -> None:
    random.seed(5)
    server.plan([status(503), None])
    Fetcher("Tests", None, CALM).start([ByteRange(file, 0, 10)]).result()
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
    with within(1.0), pytest.raises(ReadError, match=r"3 attempts in .* s: timeout \(3\)"):
        ask(ended("timeout"))
    server.plan([status(403)])
    with pytest.raises(ReadError, match=r"1 attempt in .* s: status 403"):
        ask()


# ---- what a server may not do


def test_a_compressed_answer_is_refused() -> None:
    answer = status(200, body=gzip.compress(DATA), Content_Encoding="gzip", ETag='"1"')
    with RangeServer({"a.bin": DATA}) as server:
        server.plan([answer])
        with pytest.raises(WindrowError, match=r"the server sends it compressed \(gzip\)"):
            Fetcher("Tests", None, CALM).tails([server.url("a.bin")], 10)
        assert server.counts().requests == 1


def test_a_server_that_hides_the_length_is_refused(server: RangeServer) -> None:
    server.plan([status(206, body=b"0123456789", Content_Range="bytes 0-9/*", ETag='"1"')])
    with pytest.raises(WindrowError, match="the server hides its length"):
        Fetcher("Tests", None, CALM).tails([server.url("a.bin")], 10)


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
    with within(1.0), pytest.raises(ReadError, match=r"timeout \(3\)"):
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
    urls = {"http": "http://h/a", "s3": "s3://b/a", "gcs": "gs://b/a"}
    program = f"""
import sys
sys.modules.update(dict.fromkeys(("aiohttp", "s3fs", "gcsfs")))
from windrow.errors import MissingExtraError
from windrow.sources.remote.fetcher import Fetcher
from windrow.sources.remote import RemoteOptions
for url in [outer + url for url in {[*urls.values()]!r} for outer in ("", "zip://x::")]:
    try:
        Fetcher("Tests", None, RemoteOptions(retries=0)).tails([url], 1)
    except MissingExtraError as error:
        assert error.__context__ is None
        print(error)
"""
    told = run(program)
    for extra, url in urls.items():
        assert told.count(f"pip install '.[{extra}]'") == 2
        assert f"Tests: reading {url} needs the packages of windrow-data[{extra}]" in told
