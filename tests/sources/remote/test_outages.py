"""Stores that answered and are away: the run waits, logs that it waits, and ends after `outage_s`."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pickle
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windrow
from tests.array_record_bytes import write
from tests.far_arrays import array_over, values, write_ways
from tests.limits import CALM, DATA, within
from tests.processes import until
from tests.range_server import Fault, RangeServer, cut, replace, stall, status
from windrow.errors import NotFoundError, ReadError, WindrowError
from windrow.sources import ArrayRecordDataSource, RemoteOptions, ZarrDataSource
from windrow.sources.remote.fetcher import ByteRange, Fetcher, RemoteFile

# Three attempts before a request waits, and a wait that no test reaches by the machine's own clock.
PATIENT = dataclasses.replace(CALM, outage_s=600)


def fetcher(options: RemoteOptions = PATIENT, *, each_s: float = 0.0) -> Fetcher:
    """A fetcher for which every attempt takes `each_s`, by the clock of its outages."""
    reader = Fetcher("Tests", None, options)
    reader.expect_answers()
    reader._outages.clock = lambda: each_s * reader.stats._requests
    return reader


def read(reader: Fetcher, file: RemoteFile) -> bytes:
    return reader.start([ByteRange(file, 0, 3000)]).result()[0]


@pytest.mark.parametrize("code", [408, 503])
def test_a_store_that_comes_back_delays_the_read(
    server: RangeServer, file: RemoteFile, code: int
) -> None:
    server.plan([status(code)] * 40)
    reader = fetcher(each_s=10.0)
    assert read(reader, file) == DATA[:3000]
    counts = reader.stats.counts()
    assert (counts["requests"], counts["retries"]) == (41, 40)
    assert counts["faults"] == {f"status {code}": 40}
    assert counts["outage_s"] == pytest.approx(400.0)
    assert read(reader, file) == DATA[:3000]
    assert reader.stats.counts()["outage_s"] == pytest.approx(400.0)


def test_timeouts_and_refused_connections_are_outages(
    server: RangeServer, file: RemoteFile
) -> None:
    server.plan([stall()] * 4)
    reader = fetcher(dataclasses.replace(PATIENT, stall_s=0.3), each_s=1.0)
    assert read(reader, file) == DATA[:3000]
    assert reader.stats.counts()["faults"]["stalled"] >= 4
    server.close()
    with pytest.raises(ReadError, match=r"had answered before.*outage_s=600"):
        read(fetcher(each_s=100.0), file)


def test_an_outage_that_lasts_is_an_error_that_says_what_was_tried(
    server: RangeServer, file: RemoteFile
) -> None:
    server.chance(1.0, [status(503)])
    reader = fetcher(each_s=30.0)
    with pytest.raises(ReadError) as caught:
        read(reader, file)
    assert re.search(
        r"bytes \[0, 3,000\), could not be read; 21 attempts in \d+\.\d s: status 503 \(21\)\."
        r" It had answered before, so it was waited for \(RemoteOptions\.outage_s=600\)\. Check the network",
        str(caught.value),
    )
    assert (caught.value.why, caught.value.is_unanswered) == ("status 503", True)
    # The outage is as long as it is, so the next read does not wait for all of it again.
    with pytest.raises(ReadError, match=r"3 attempts in"):
        read(reader, file)
    server.heal()
    assert read(reader, file) == DATA[:3000]
    assert reader.stats.counts()["outage_s"] == pytest.approx(30.0 * 24)
    server.plan([status(503)] * 9)
    assert read(reader, file) == DATA[:3000]


@pytest.mark.parametrize(
    ("fault", "attempts", "told"),
    [
        (status(404), 1, "was not found"),
        (status(403), 1, "status 403"),
        (status(400), 1, "status 400"),
        (replace(b"another" * 2000), 1, "has changed since it was opened"),
        (cut(), 3, r"3 attempts in .*cut short \(3\)"),
        (Fault("wrong_range"), 3, r"3 attempts in .*wrong range \(3\)"),
    ],
    ids=lambda value: value.kind if isinstance(value, Fault) else "",
)
def test_an_answer_is_not_an_outage(
    server: RangeServer, file: RemoteFile, fault: Fault, attempts: int, told: str
) -> None:
    server.chance(1.0, [fault])
    with pytest.raises((ReadError, NotFoundError), match=told) as caught:
        read(fetcher(), file)
    assert "outage_s" not in str(caught.value)
    assert server.counts().requests == attempts


def test_a_message_each_minute_says_since_when_and_what_was_tried(
    server: RangeServer, file: RemoteFile, caplog: pytest.LogCaptureFixture
) -> None:
    secret = dataclasses.replace(file, url=file.url.replace("//", "//user:sesame@") + "?key=sesame")
    server.plan([status(503)] * 30)
    with caplog.at_level(logging.WARNING, "windrow.remote"):
        assert read(fetcher(each_s=10.0), secret) == DATA[:3000]
    told = [record.getMessage() for record in caplog.records]
    # It waits after the third attempt, 20 s after the first one failed, for 300 s.
    assert len(told) == 5 + 1
    store = server.address
    since = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert re.fullmatch(
        rf"Tests: {store} has not answered since {since}, for 20 s; requests tried: status 503 \(3\)\."
        r" Reading waits for it, for up to 600 s in all \(RemoteOptions\.outage_s\)",
        told[0].replace("***@", ""),
    )
    assert told[-1].endswith(f"{server.port} answers again, after 300 s")
    assert "sesame" not in caplog.text


def test_nothing_waits_before_the_source_is_open(server: RangeServer, file: RemoteFile) -> None:
    server.chance(1.0, [status(503)])
    reader = Fetcher("Tests", None, PATIENT)
    with pytest.raises(ReadError, match=r"3 attempts in .*status 503 \(3\)\. Check"):
        read(reader, file)
    with pytest.raises(ReadError, match=r"3 attempts in .*status 503 \(3\)\. Check"):
        ArrayRecordDataSource(server.url("a.bin"), remote=PATIENT)
    reader.expect_answers()
    copy = pickle.loads(pickle.dumps(reader))
    server.plan([status(503)] * 9)
    server.heal()
    assert read(copy, file) == DATA[:3000]
    off = fetcher(CALM)
    server.chance(1.0, [status(503)])
    with pytest.raises(ReadError, match=r"3 attempts in .*status 503 \(3\)\. Check"):
        read(off, file)


# ---- sources


ROWS = values(48, 6)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RangeServer]:
    write_ways(tmp_path, ROWS)
    write(tmp_path / "a.array_record", [np.full(300, n, "u2").tobytes() for n in range(200)])
    with RangeServer(tmp_path) as running:
        yield running


def numbers(batches: Any) -> list[int]:
    return [int(np.frombuffer(record, "u2")[0]) for batch in batches for record in batch]


@pytest.mark.parametrize(("workers", "cached"), [(0, True), (1, False)])
def test_an_outage_within_an_epoch_changes_nothing(
    site: RangeServer, tmp_path: Path, workers: int, cached: bool
) -> None:
    folder = tmp_path / "cache" if cached else None
    options = dataclasses.replace(PATIENT, merge_gap_bytes=0, cache_dir=folder)
    source = ArrayRecordDataSource(site.url("a.array_record"), remote=options)
    chain = windrow.MapDataset.source(source).shuffle(seed=1).batch(8).to_iter_dataset()
    if workers:
        chain = chain.mp_prefetch(workers)
    site.plan([*[None] * 5, *[status(503)] * 300])
    found = numbers(chain)
    expected = np.asarray(windrow.MapDataset.range(200).shuffle(seed=1).read(np.arange(200)))
    assert found == expected.tolist()
    assert site.counts().faults["status"] == 300


@pytest.mark.parametrize("way", ["records", "plain"])
def test_closing_the_iterator_ends_the_wait(site: RangeServer, way: str) -> None:
    slow = dataclasses.replace(PATIENT, backoff_s=500.0, max_backoff_s=500.0, retries=0)
    source: Any = ArrayRecordDataSource(site.url("a.array_record"), remote=slow)
    if way == "plain":
        source = array_over(site, way, slow)
    iterator = iter(windrow.MapDataset.source(source).shuffle(seed=1).batch(8).to_iter_dataset())
    site.chance(1.0, [status(503)])

    def wait() -> None:
        with contextlib.suppress(WindrowError):  # the iterator is closed
            next(iterator)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert until(lambda: source.stats()["faults"] != {})
    with within(1.0):
        iterator.close()
        waiting.join(60)
    assert not waiting.is_alive()


# ---- arrays that TensorStore reads: it makes three attempts before a read waits


def opened(site: RangeServer, each_s: float) -> ZarrDataSource:
    """An array for which every read takes `each_s`, by the clock of its outages."""
    source = array_over(site, "plain", PATIENT)
    limiter = source._tree._access.in_flight
    assert limiter._outages is not None
    limiter._outages.clock = lambda: each_s * limiter._stats._requests
    return source


@pytest.mark.parametrize("code", [429, 500])
def test_an_array_whose_store_comes_back_is_read(site: RangeServer, code: int) -> None:
    source = opened(site, each_s=1.0)
    site.plan([status(code)] * 30)
    np.testing.assert_array_equal(source.read(np.arange(4)), ROWS[:4])
    assert site.counts().faults["status"] == 30
    counts = source.stats()
    # Each read is 3 requests of TensorStore.
    assert counts["faults"] == {f"status {code}": 10}
    assert counts["retries"] == 10
    assert counts["outage_s"] > 0
    assert 0 < counts["p50_s"] <= counts["p99_s"]


def test_an_array_whose_store_stays_away_is_an_error_that_says_what_was_tried(
    site: RangeServer,
) -> None:
    source = opened(site, each_s=60.0)
    site.chance(1.0, [status(503)])
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
    site.heal()
    np.testing.assert_array_equal(source.read(np.arange(48)), ROWS)
