"""Stores that TensorStore reads and that are away: reads are begun again until the store answers."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import windrow
from tests.far_arrays import array_over, values, write_ways
from tests.limits import CALM, within
from tests.processes import until
from tests.range_server import RangeServer, status
from windrow.errors import ReadError, WindrowError
from windrow.sources import RemoteOptions, ZarrDataSource

# TensorStore makes three attempts before a read waits.
PATIENT = dataclasses.replace(CALM, outage_s=600)
DATA = values(48, 6)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    write_ways(tmp_path, DATA)
    with RangeServer(tmp_path) as running:
        yield running


def opened(
    server: RangeServer, options: RemoteOptions = PATIENT, *, each_s: float = 0.0
) -> ZarrDataSource:
    """An array for which every read takes `each_s`, by the clock of its outages."""
    source = array_over(server, "plain", options)
    limiter = source._tree._access.in_flight
    assert limiter._outages is not None
    limiter._outages.clock = lambda: each_s * limiter._stats._requests
    return source


@pytest.mark.parametrize("code", [429, 500])
def test_a_store_that_comes_back_delays_the_read(server: RangeServer, code: int) -> None:
    source = opened(server, each_s=1.0)
    server.plan([status(code)] * 30)
    np.testing.assert_array_equal(source.read(np.arange(4)), DATA[:4])
    assert server.counts().faults["status"] == 30
    counts = source.stats()
    # Each read is 3 requests of TensorStore.
    assert counts["faults"] == {f"status {code}": 10}
    assert counts["retries"] == 10
    assert counts["outage_s"] > 0
    assert 0 < counts["p50_s"] <= counts["p99_s"]


def test_an_outage_that_lasts_is_an_error_that_says_what_was_tried(server: RangeServer) -> None:
    source = opened(server, each_s=60.0)
    server.chance(1.0, [status(503)])
    with pytest.raises(ReadError) as caught:
        source.read(np.arange(4))
    assert re.search(
        r"chunk that holds records 0 to 3 cannot be read: .*503.*; \d+ attempts, the last 6\d\d s after the"
        r" first: status 503 \(\d+\)\. It had answered before, so it was waited for"
        r" \(RemoteOptions\.outage_s=600\)\. If it may arrive later",
        str(caught.value),
    ), str(caught.value)
    # The outage is as long as it is, so the next read does not wait for all of it again.
    with pytest.raises(ReadError, match="cannot be read") as caught:
        source.read(np.arange(4))
    assert "It had answered before" not in str(caught.value)
    server.heal()
    np.testing.assert_array_equal(source.read(np.arange(48)), DATA)


def test_closing_the_iterator_ends_the_wait(server: RangeServer) -> None:
    slow = dataclasses.replace(PATIENT, backoff_s=500.0, max_backoff_s=500.0, retries=0)
    source = opened(server, slow)
    limiter = source._tree._access.in_flight
    iterator = iter(windrow.MapDataset.source(source).shuffle(seed=1).batch(8).to_iter_dataset())
    server.chance(1.0, [status(503)])

    def wait() -> None:
        with contextlib.suppress(WindrowError):  # the iterator is closed
            next(iterator)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    try:
        assert until(lambda: source.stats()["faults"] != {})
        waits = [fault for read in list(limiter._under_way) for fault in read.faults]
        assert {fault.kind for fault in waits} == {"status 503"}
    finally:
        with within(1.0):
            iterator.close()
            waiting.join(60)
    assert not waiting.is_alive()
    assert until(lambda: not limiter._under_way)
