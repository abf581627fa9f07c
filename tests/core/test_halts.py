"""Halts: who closes an iterator over a server that stalls waits for nothing, and asks for no more."""

from __future__ import annotations

import contextvars
import gc
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore as ts

from tests.array_record_bytes import write
from tests.far_arrays import AnyArray, array_over, objects, values, write_ways
from tests.limits import within
from tests.range_server import RangeServer, stall
from windrow import MapDataset
from windrow.core.cancellation import (
    CancelScope,
    fail_with_scope,
)
from windrow.errors import ReadError
from windrow.sources import ArrayRecordDataSource, RemoteOptions, Window, WindowDataSource
from windrow.sources.remote.request_counts import RemoteStats
from windrow.sources.zarr.remote_reads import RemoteReads
from windrow.sources.zarr.stores import side_by_side

pytestmark = pytest.mark.jobs

# Without a halt each wait would last for minutes.
LONG = RemoteOptions(timeout_s=120, stall_s=120, max_requests=8)
WAYS = ["plain", "shard", "filter", "cookies", "windows", "records"]


@pytest.fixture(scope="module")
def data() -> AnyArray:
    return values(960, 6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, data: AnyArray) -> Path:
    top = tmp_path_factory.mktemp("halts")
    write_ways(top, data)
    write(top / "a.array_record", (random.Random(number).randbytes(1000) for number in range(5000)))
    return top


@pytest.fixture
def server(folder: Path) -> Iterator[RangeServer]:
    with RangeServer(objects(folder)) as running:
        yield running


def source_of(server: RangeServer, way: str) -> Any:
    if way == "windows":
        return WindowDataSource(server.url("plain"), {0: Window(3, 1)}, remote=LONG)
    if way == "records":
        return ArrayRecordDataSource(server.url("a.array_record"), remote=LONG)
    return array_over(server, way, LONG)


def wait_for_stalls(server: RangeServer) -> None:
    ends_s = time.monotonic() + 20
    while not server.counts().faults and time.monotonic() < ends_s:
        threading.Event().wait(0.01)
    assert server.counts().faults


@pytest.mark.parametrize("way", WAYS)
def test_closing_an_iterator(server: RangeServer, way: str) -> None:
    chain = MapDataset.source(source_of(server, way)).shuffle(seed=1)
    batches = iter(chain.batch(16).to_iter_dataset())
    next(batches)
    server.chance(1.0, [stall()])
    wait_for_stalls(server)
    with within(0.9):
        batches.close()


def assert_quiet(server: RangeServer) -> None:
    """Nothing is asked for any more, but what was on its way, in TensorStore's queue too."""
    asked = server.counts().requests
    threading.Event().wait(10 * server.latency_s)  # in which 80 others would be
    assert server.counts().requests <= asked + 2 * LONG.max_requests


@pytest.mark.parametrize("way", ["plain", "filter", "cookies", "records"])
def test_no_traffic_goes_on(server: RangeServer, way: str) -> None:
    chain = MapDataset.source(source_of(server, way)).shuffle(seed=1).batch(16)
    batches = iter(chain.to_iter_dataset())
    next(batches)
    server.latency_s = 0.05
    before = server.counts().requests
    while server.counts().requests == before:
        next(batches)
    batches.close()
    assert_quiet(server)


@pytest.mark.parametrize("way", ["plain", "filter", "records"])
def test_an_error_of_a_function(server: RangeServer, way: str) -> None:
    calls: list[int] = []

    def fails(element: Any) -> Any:
        calls.append(1)
        if len(calls) > 20:
            server.latency_s = 0.05
            raise ValueError("no more of these")
        return element

    source = source_of(server, way)
    elements = iter(MapDataset.source(source).shuffle(seed=2).map(fails).to_iter_dataset())
    with pytest.raises(ValueError, match="no more of these"):
        list(elements)
    assert_quiet(server)
    elements.close()


def test_another_iterator_goes_on(server: RangeServer, data: AnyArray) -> None:
    for way in ("plain", "filter", "records"):
        source = source_of(server, way)
        expected = list(source.read(np.arange(len(source))))
        one, other = (iter(MapDataset.source(source).to_iter_dataset()) for _ in range(2))
        next(one)
        found = [next(other)]
        one.close()
        found += other
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


_LEFT_OPEN = """
import sys, threading, time
from windrow import MapDataset
from windrow.sources import ArrayRecordDataSource, RemoteOptions, ZarrDataSource
kind = ArrayRecordDataSource if "array_record" in sys.argv[1] else ZarrDataSource
source = kind(sys.argv[1], remote=RemoteOptions(timeout_s=120, stall_s=120))
batches = iter(MapDataset.source(source).shuffle(seed=1).batch(16).to_iter_dataset())
next(batches)
print("read", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("name", ["plain", "filter", "a.array_record"])
def test_the_interpreter_ends(server: RangeServer, name: str) -> None:
    command = [sys.executable, "-c", _LEFT_OPEN, server.url(name)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        server.plan([None] * 40)  # its metadata, its first records
        server.chance(1.0, [stall()])
        line = child.stdout.readline()
        with within(5.0):
            _, complaints = child.communicate("\n", timeout=60)
        assert (line, child.returncode) == ("read\n", 0)
        # zarr-python stops its event loop at the end, without waiting for what runs on it.
        warned = "never awaited" in complaints and name == "filter"
        assert warned or not complaints


def test_a_halt_of_calls_side_by_side_is_that_of_who_calls() -> None:
    cancel_scope, begun = CancelScope(), threading.Event()

    def waits() -> None:
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        fail_with_scope(future)
        begun.set()
        future.result(timeout=60)

    with ThreadPoolExecutor(1, initializer=cancel_scope.enter) as pool:
        found = pool.submit(side_by_side, [waits, waits], wait=True)
        assert begun.wait(10)
        cancel_scope.set()
        with pytest.raises(ReadError, match="its result is no longer needed"):
            found.result(timeout=60)


def test_what_was_read_is_let_go_of_at_once() -> None:
    # Left to the garbage collector, what was read piles up: its cycles are of few objects.
    flight = RemoteReads(RemoteOptions(), RemoteStats())
    store = ts.array(np.arange(10))

    def kept() -> weakref.ref[Any]:
        CancelScope().enter()
        return weakref.ref(flight.start(store.read).result(timeout=60))

    gc.disable()
    try:
        found = contextvars.copy_context().run(kept)
        until = time.monotonic() + 30
        while found() is not None and time.monotonic() < until:
            threading.Event().wait(0.01)  # the thread that brought it may hold it for a moment
        assert found() is None
    finally:
        gc.enable()
