"""A file of known bytes on a server: `DATA` of `tests/limits.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.limits import CALM, DATA
from tests.range_server import RangeServer
from windrow.sources.remote.fetcher import Fetcher, RemoteFile


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with RangeServer({"a.bin": DATA}) as running:
        yield running


@pytest.fixture
def file(server: RangeServer) -> RemoteFile:
    found = Fetcher("Tests", None, CALM).tails([server.url("a.bin")], 1)[0].file
    server.reset_counts()
    return found
