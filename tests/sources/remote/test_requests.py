"""Requests to a store: how many at a time, and second ones for slow answers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.array_record_bytes import write
from tests.limits import CALM, DATA, within
from tests.range_server import RangeServer, late, status
from windrow.errors import ArgumentError, PlanError
from windrow.sources import ArrayRecordDataSource, RemoteOptions
from windrow.sources.remote.fetcher import ByteRange, Fetcher, RemoteFile
from windrow.sources.remote.request_counts import RemoteStats


def test_all_sources_together_keep_to_the_limit_of_a_host() -> None:
    options = RemoteOptions(max_requests_per_host=5)
    with RangeServer({"a.bin": DATA}, latency_s=0.01) as server:
        readers = [Fetcher("Tests", None, options) for _ in range(3)]
        file = readers[0].tails([server.url("a.bin")], 1)[0].file
        wanted = [ByteRange(file, n, n + 10) for n in range(20)]
        server.gather(5)
        running = [reader.start(wanted) for reader in readers]
        data = [DATA[one.start : one.stop] for one in wanted]
        assert [one.result() for one in running] == [data] * 3
        assert server.counts().most_in_flight == 5


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        (
            {"max_requests_per_host": 0},
            PlanError,
            "max_requests_per_host must be at least 1, got 0",
        ),
        ({"outage_s": "long"}, ArgumentError, "outage_s must be a number"),
        ({"outage_s": -1.0}, PlanError, "outage_s must be at least 0"),
        ({"hedge": 2}, PlanError, "hedge is a share and at most 1, got 2"),
        ({"cache_dir": 3}, ArgumentError, "cache_dir must be a path of a local folder, got an int"),
        ({"cache_dir": "s3://a:b@c"}, PlanError, r"got 's3://\*\*\*@c'"),
        ({"cache_bytes": 1000}, PlanError, "cache_bytes must be at least 1048576, got 1000"),
        ({"cache_bytes": 1e9}, ArgumentError, "cache_bytes must be an integer"),
    ],
)
def test_options_that_are_refused(
    given: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        RemoteOptions(**given)


# --- second requests ------------------------------------------------------------------------------


# No answer comes so late that a test would pass only after it.
_LATE_S = 300.0

HEDGED = dataclasses.replace(CALM, hedge=0.02)


def seen(count: int = 200, took_s: float = 0.01) -> RemoteStats:
    """Counts of earlier requests."""
    stats = RemoteStats()
    for _ in range(count):
        stats.request()
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


@pytest.mark.parametrize("code", [404, 503])
def test_an_error_of_the_second_request_is_dropped(
    server: RangeServer, file: RemoteFile, code: int
) -> None:
    server.plan([late(0.3), status(code)])
    stats = seen()
    assert read(file, stats) == DATA[:100]
    assert stats.counts()["hedged"] == 1
    assert stats.counts()["faults"] == {}


@pytest.mark.parametrize("why", ["off", "few", "used up"])
def test_no_second_request(server: RangeServer, file: RemoteFile, why: str) -> None:
    server.plan([late(0.3)])
    stats = seen({"off": 200, "few": 49, "used up": 80}[why])
    assert stats.hedge(0.02) is (why != "few")
    before = stats.counts()["requests"]
    off = dataclasses.replace(HEDGED, hedge=0)
    assert read(file, stats, off if why == "off" else HEDGED) == DATA[:100]
    assert stats.counts()["requests"] == before + 1
    assert server.counts().requests == 1


def test_the_share_of_requests_is_kept() -> None:
    stats = seen(1000)
    assert sum(stats.hedge(0.02) for _ in range(100)) == 20
    assert (stats.counts()["hedged"], stats.counts()["requests"]) == (20, 1020)
    assert not seen(1000).hedge(0)


def test_an_iterator_reports_requests(tmp_path: Path) -> None:
    write(tmp_path / "a.array_record", [bytes([number]) * 100 for number in range(50)])
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
