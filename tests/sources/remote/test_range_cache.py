"""Kept ranges: found again, shared while they come, let go of beyond their bytes."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.array_record_bytes import write
from tests.range_server import RangeServer, status
from windrow.errors import ReadError
from windrow.sources import ArrayRecordDataSource, RemoteOptions


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    records = [number.to_bytes(4, "little") * 100 for number in range(2000)]
    write(folder / "a.array_record", records, "group_size:1,uncompressed")
    return folder


@pytest.mark.parametrize(("keep_bytes", "requests"), [(32 << 20, 1), (0, 3)])
def test_neighbours_are_asked_for_once(folder: Path, keep_bytes: int, requests: int) -> None:
    with RangeServer(folder) as server:
        options = RemoteOptions(keep_bytes=keep_bytes)
        source = ArrayRecordDataSource(server.url("a.array_record"), remote=options)
        opened = source.stats()["requests"]
        for indices in (np.arange(300), np.arange(200, 100, -1), np.array([299])):
            assert source.read(indices) == [
                number.to_bytes(4, "little") * 100 for number in indices.tolist()
            ]
        assert source.stats()["requests"] - opened == requests


def test_calls_side_by_side_share_what_is_on_its_way(folder: Path) -> None:
    with RangeServer(folder, latency_s=0.2) as server:
        source = ArrayRecordDataSource(server.url("a.array_record"))
        server.reset_counts()
        answers: list[list[bytes]] = []
        threads = [
            threading.Thread(target=lambda k=k: answers.append(source.read(np.arange(k, 500))))
            for k in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(map(len, answers)) == list(range(493, 501))
        assert all(answer[-1] == (499).to_bytes(4, "little") * 100 for answer in answers)
        assert server.counts().requests < 8


def test_who_waited_for_what_was_given_up_asks_itself(folder: Path) -> None:
    with RangeServer(folder, latency_s=0.2) as server:
        once = RemoteOptions(retries=0, outage_s=0)
        source = ArrayRecordDataSource(server.url("a.array_record"), remote=once)
        server.plan([status(503)])
        results: list[int] = []

        def read() -> None:
            try:
                results.append(len(source.read(np.arange(300))))
            except ReadError:
                results.append(-1)

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == [-1, 300, 300]


def test_what_was_never_asked_for_keeps_nobody_waiting(folder: Path, tmp_path: Path) -> None:
    here = tmp_path / "b.array_record"
    here.write_bytes((folder / "a.array_record").read_bytes())
    with RangeServer(folder) as server:
        source = ArrayRecordDataSource([server.url("a.array_record"), here])
        whole = here.read_bytes()
        here.write_bytes(whole + bytes(65536))
        both = np.r_[np.arange(100), 2000 + np.arange(10)]
        with pytest.raises(ReadError, match="changed since the source was made"):
            source.read(both)
        here.write_bytes(whole)
        answers: list[list[bytes]] = []
        thread = threading.Thread(target=lambda: answers.append(source.read(both)), daemon=True)
        thread.start()
        thread.join(20)
        assert len(answers[0]) == 110


_FORKED = """
import os, signal, sys, threading
import numpy as np
from windrow.errors import ReadError
from windrow.sources import ArrayRecordDataSource

source = ArrayRecordDataSource(sys.argv[1])
source.read(np.arange(300))
threading.Thread(target=source.read, args=(np.arange(500, 800),), daemon=True).start()
while source.stats()["requests"] < 4:
    pass
child = os.fork()
if not child:
    signal.alarm(20)
    for first in (0, 500):
        try:
            source.read(np.arange(first, first + 100))
        except ReadError as error:
            assert "forked" in str(error)
        else:
            os._exit(2)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_waits_for_nothing_of_its_parent(folder: Path) -> None:
    with RangeServer(folder, latency_s=0.3) as server:
        url = server.url("a.array_record")
        done = subprocess.run(
            [sys.executable, "-c", _FORKED, url], capture_output=True, timeout=600, check=False
        )
    assert done.returncode == 0, done.stderr.decode()
