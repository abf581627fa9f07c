"""The server that benchmarks read over a network."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.far import Served, Server

CONTENT = np.random.default_rng(0).bytes(3_000_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("far")
    (folder / "in").mkdir()
    (folder / "in" / "some file").write_bytes(CONTENT)
    (folder / "empty").write_bytes(b"")
    (folder.parent / "outside").write_bytes(b"secret")
    started = Server(str(folder), 0)
    yield started
    started.close()


@pytest.fixture
def connection(server: Server) -> Iterator[http.client.HTTPConnection]:
    found = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    yield found
    found.close()


def asked(
    connection: http.client.HTTPConnection, path: str, *, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers=fields)
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read()


@pytest.mark.parametrize(
    ("bounds", "start", "stop"),
    [
        ("0-0", 0, 1),
        ("10-65545", 10, 65_546),
        ("2999990-", 2_999_990, 3_000_000),
        ("2999990-99999999", 2_999_990, 3_000_000),
        ("-7", 2_999_993, 3_000_000),
        ("-99999999", 0, 3_000_000),
    ],
)
def test_ranges(bounds: str, start: int, stop: int, connection: http.client.HTTPConnection) -> None:
    status, fields, body = asked(connection, "/in/some%20file", Range=f"bytes={bounds}")
    assert (status, body) == (206, CONTENT[start:stop])
    assert fields["Content-Range"] == f"bytes {start}-{stop - 1}/3000000"


def test_whole_files_heads_and_what_is_not_there(connection: http.client.HTTPConnection) -> None:
    status, fields, body = asked(connection, "/in/some%20file")
    assert (status, body) == (200, CONTENT)
    tag = fields["ETag"]
    status, fields, body = asked(connection, "/in/some%20file", method="HEAD")
    assert (status, fields["Content-Length"], fields["ETag"], body) == (200, "3000000", tag, b"")
    assert asked(connection, "/empty")[::2] == (200, b"")
    assert asked(connection, "/empty", Range="bytes=-5")[0] == 416
    assert asked(connection, "/in/some%20file", Range="bytes=3000000-")[0] == 416
    for path in ("/none", "/in", "/", "/../outside", "/in/../../outside"):
        assert asked(connection, path)[::2] == (404, b"")


def test_versions(connection: http.client.HTTPConnection) -> None:
    path = "/in/some%20file"
    tag = asked(connection, path, method="HEAD")[1]["ETag"]
    assert asked(connection, path, If_Match=tag, Range="bytes=0-3")[::2] == (206, CONTENT[:4])
    assert asked(connection, path, If_Match='"other"', Range="bytes=0-3")[::2] == (412, b"")
    assert asked(connection, path, If_None_Match=tag)[::2] == (304, b"")
    assert asked(connection, path, If_None_Match='"other"')[::2] == (200, CONTENT)


def test_requests_and_bytes_are_counted(
    server: Server, connection: http.client.HTTPConnection
) -> None:
    asked(connection, "/in/some%20file", Range="bytes=0-3")
    server.reset()
    for _ in range(3):
        asked(connection, "/in/some%20file", Range="bytes=10-109")
    asked(connection, "/none")
    asked(connection, "/in/some%20file", method="HEAD")
    found = server.served()
    # The one connection was there before; asking for the counts made another.
    assert found == Served(requests=5, missing=1, bytes=300, connections=found.connections)


def test_requests_wait_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    latency_s, together = 0.2, 16
    server = Server(str(tmp_path), latency_s * 1e3)
    took_s: list[float] = []

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
        start_s = time.perf_counter()
        assert asked(connection, "/file", Range="bytes=0-99")[2] == CONTENT[:100]
        took_s.append(time.perf_counter() - start_s)
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(together)]
    start_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole_s = time.perf_counter() - start_s
    server.close()
    assert len(took_s) == together
    assert min(took_s) >= latency_s
    assert whole_s < latency_s * together / 2


def test_server_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"the server of files has failed"):
        Server(str(tmp_path), -1)
