"""Second requests for slow answers, their bounds, and the times of requests in `stats()`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from array_record.python.array_record_module import ArrayRecordWriter

import windrow
from tests.limits import CALM, DATA, within
from tests.range_server import RangeServer, late, stall, status
from windrow.sources import ArrayRecordDataSource, RemoteOptions
from windrow.sources.remote.fetcher import ByteRange, Fetcher, RemoteFile
from windrow.sources.remote.request_counts import RemoteStats

# No answer comes so late that a test would pass only after it.
_LATE_S = 300.0

HEDGED = dataclasses.replace(CALM, hedge=0.02)


def seen(count: int = 200, took_s: float = 0.01, size_bytes: int = 100) -> RemoteStats:
    """Counts of earlier requests."""
    stats = RemoteStats()
    for _ in range(count):
        stats.request(size_bytes=size_bytes)
        stats.took(took_s)
    return stats


def read(file: RemoteFile, stats: RemoteStats, options: RemoteOptions = HEDGED) -> bytes:
    return Fetcher("Tests", None, options, stats).start([ByteRange(file, 0, 100)]).result()[0]


def test_the_second_request_answers_for_a_slow_one(server: RangeServer, file: RemoteFile) -> None:
    server.plan([late(_LATE_S)])
    stats = seen()
    with within(1.0):
        assert read(file, stats) == DATA[:100]
    counts = stats.counts()
    assert (counts["requests"], counts["hedged"], counts["retries"]) == (202, 1, 0)
    assert (counts["bytes"], counts["faults"]) == (100, {})
    assert server.counts().requests == 2


def test_the_first_request_may_answer_first(server: RangeServer, file: RemoteFile) -> None:
    server.plan([late(0.3), stall()])
    stats = seen()
    with within(1.0):
        assert read(file, stats) == DATA[:100]
    assert stats.counts()["hedged"] == 1
    assert server.counts().requests == 2


@pytest.mark.parametrize("code", [404, 503])
def test_an_error_of_the_second_request_is_dropped(
    server: RangeServer, file: RemoteFile, code: int
) -> None:
    server.plan([late(0.3), status(code)])
    stats = seen()
    assert read(file, stats) == DATA[:100]
    assert stats.counts()["hedged"] == 1
    assert stats.counts()["faults"] == {}


def test_if_both_fail_the_request_is_made_again(server: RangeServer, file: RemoteFile) -> None:
    server.plan([stall(), stall(), None])
    stats = seen()
    assert read(file, stats, dataclasses.replace(HEDGED, stall_s=0.5)) == DATA[:100]
    counts = stats.counts()
    assert counts["faults"]["stalled"] == counts["retries"] >= 1


def test_a_request_that_waits_for_a_slot_blocks_nothing(
    server: RangeServer, file: RemoteFile
) -> None:
    server.plan([stall(), None])
    stats = seen()
    one = dataclasses.replace(HEDGED, stall_s=0.5, max_requests=1)
    with within(5.0):
        assert read(file, stats, one) == DATA[:100]
    counts = stats.counts()
    assert "hedged" not in counts
    assert counts["requests"] == 201 + counts["retries"]


@pytest.mark.parametrize("why", ["off", "few", "used up"])
def test_no_second_request(server: RangeServer, file: RemoteFile, why: str) -> None:
    server.plan([late(0.3)])
    stats = seen({"off": 200, "few": 49, "used up": 80}[why])
    assert stats.hedge(0, 0.02) is (why != "few")
    before = stats.counts()["requests"]
    off = dataclasses.replace(HEDGED, hedge=0)
    assert read(file, stats, off if why == "off" else HEDGED) == DATA[:100]
    assert stats.counts()["requests"] == before + 1
    assert server.counts().requests == 1


def test_the_shares_of_requests_and_bytes_are_kept() -> None:
    stats = seen(1000)
    assert sum(stats.hedge(100, 0.02) for _ in range(100)) == 20
    assert stats.counts()["hedged"] == 20
    stats = seen(1000)
    assert sum(stats.hedge(900, 0.02) for _ in range(100)) == 2
    stats.not_hedged(900)
    assert stats.counts()["hedged"] == 1
    assert stats.counts()["requests"] == 1001
    assert stats.hedge(900, 0.02)
    assert not seen(1000).hedge(100, 0)


def test_slow_is_twice_the_95th_percentile_of_the_last_requests() -> None:
    stats = RemoteStats()
    for number in range(49):
        stats.took(0.1)
        assert stats.hedge_after_s is None, number
    stats.took(0.1)
    assert stats.hedge_after_s == pytest.approx(0.2)
    for _ in range(2000):
        stats.took(0.01)
    assert stats.hedge_after_s == pytest.approx(0.02)
    for number in range(1024):
        stats.took(2.0 if number % 10 == 0 else 0.01)
    assert stats.hedge_after_s == pytest.approx(4.0)


def test_an_iterator_reports_requests(tmp_path: Path) -> None:
    writer = ArrayRecordWriter(str(tmp_path / "a.array_record"), "group_size:1")
    for number in range(50):
        writer.write(bytes([number]) * 100)
    writer.close()
    with RangeServer(tmp_path) as server:
        source = ArrayRecordDataSource(server.url("a.array_record"), remote=HEDGED)
        iterator = iter(windrow.MapDataset.source(source).batch(10))
        server.plan([status(503)])
        assert len(list(iterator)) == 5
    stats = iterator.stats()
    assert stats.requests is not None
    counts = source.stats()
    assert stats.requests["requests"] == counts["requests"]
    assert stats.requests["retries"] == 1
    assert stats.requests["p99_s"] == counts["p99_s"] > 0
    assert "time of a request, 95th percentile" in str(stats)
    metrics = iterator.metrics()
    assert metrics["request_p95_s"] == counts["p95_s"]
    assert (metrics["retries"], metrics["hedged"], metrics["outage_s"]) == (1.0, 0.0, 0.0)
    assert json.loads(json.dumps(stats.to_json()))["requests"]["retries"] == 1

    local = iter(windrow.MapDataset.range(3))
    list(local)
    assert local.stats().requests is None
    assert "requests" not in local.stats().to_json()
    assert "retries" not in local.metrics()
