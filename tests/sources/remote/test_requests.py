"""Requests to a store: how many at a time, and how they are counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.array_record_bytes import write
from tests.limits import CALM, DATA
from tests.range_server import RangeServer, status
from windrow.errors import ArgumentError, PlanError
from windrow.sources import ArrayRecordDataSource, RemoteOptions
from windrow.sources.remote.fetcher import ByteRange, Fetcher


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


def test_an_iterator_reports_requests(tmp_path: Path) -> None:
    write(tmp_path / "a.array_record", [bytes([number]) * 100 for number in range(50)])
    with RangeServer(tmp_path) as server:
        source = ArrayRecordDataSource(server.url("a.array_record"), remote=CALM)
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
    assert metrics["retries"] == 1.0
    assert json.loads(json.dumps(stats.to_json()))["requests"]["retries"] == 1

    local = iter(windrow.MapDataset.range(3))
    list(local)
    assert local.stats().requests is None
    assert "requests" not in local.stats().to_json()
    assert "retries" not in local.metrics()
