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

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import windrow
from tests.array_record_bytes import write
from tests.far_arrays import array_over, values, write_ways
from tests.limits import CALM, DATA, within
from tests.processes import until
from tests.range_server import RangeServer, replace, stall, status
from windrow.errors import NotFoundError, ReadError, WindrowError
from windrow.sources import ArrayRecordDataSource, RemoteOptions
from windrow.sources.remote import core_store
from windrow.sources.remote.fetcher import ByteRange, Fetcher, RemoteFile

# Three attempts before a request waits, and a wait that no test reaches.
PATIENT = dataclasses.replace(CALM, outage_s=600)


def fetcher(options: RemoteOptions = PATIENT) -> Fetcher:
    reader = Fetcher("Tests", None, options)
    reader.expect_answers()
    return reader


def read(reader: Fetcher, file: RemoteFile) -> bytes:
    return reader.read([ByteRange(file, 0, 3000)])[0]


@pytest.mark.parametrize("code", [429, 503])
def test_a_store_that_comes_back_delays_the_read(
    server: RangeServer, file: RemoteFile, code: int
) -> None:
    server.plan([status(code)] * 40)
    reader = fetcher()
    assert read(reader, file) == DATA[:3000]
    counts = reader.stats.counts()
    assert (counts["requests"], counts["retries"]) == (41, 40)
    assert counts["faults"] == {f"status {code}": 40}


def test_timeouts_and_refused_connections_are_outages(
    server: RangeServer, file: RemoteFile
) -> None:
    server.plan([stall()] * 4)
    reader = fetcher(dataclasses.replace(PATIENT, timeout_s=0.3))
    assert read(reader, file) == DATA[:3000]
    assert reader.stats.counts()["faults"]["timeout"] >= 4
    server.close()
    short = dataclasses.replace(PATIENT, timeout_s=0.1, outage_s=0.3)
    with pytest.raises(ReadError, match=r"no connection.*had answered before.*outage_s=0\.3"):
        read(fetcher(short), file)


def test_an_outage_that_lasts_is_an_error_that_says_what_was_tried(
    server: RangeServer, file: RemoteFile
) -> None:
    server.chance(1.0, [status(503)])
    short = dataclasses.replace(PATIENT, timeout_s=0.05, outage_s=0.5)
    with pytest.raises(ReadError) as caught:
        read(fetcher(short), file)
    assert re.search(
        r"bytes \[0, 3,000\), could not be read; \d\d+ attempts in 0\.\d s: status 503 .*\. It had answered"
        r" before, so it was waited for \(RemoteOptions\.outage_s=0\.5\)\. Check the network",
        str(caught.value),
    ), str(caught.value)
    assert (caught.value.why, caught.value.is_unanswered) == ("status 503", True)
    server.heal()
    assert read(fetcher(short), file) == DATA[:3000]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (status(404), "was not found"),
        (status(403), "status 403"),
        (status(400), "status 400"),
        (replace(b"another" * 2000), "has changed since it was opened"),
    ],
    ids=["404", "403", "400", "replaced"],
)
def test_an_answer_is_not_an_outage(
    server: RangeServer, file: RemoteFile, fault: Any, told: str
) -> None:
    server.chance(1.0, [fault])
    with pytest.raises((ReadError, NotFoundError), match=told) as caught:
        read(fetcher(), file)
    assert "outage_s" not in str(caught.value)
    assert server.counts().requests == 1


def test_a_message_says_what_is_waited_for(
    server: RangeServer,
    file: RemoteFile,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core_store, "MESSAGE_EVERY_S", 0.05)
    secret = dataclasses.replace(file, url=file.url.replace("//", "//user:sesame@"))
    slow = dataclasses.replace(PATIENT, backoff_s=0.1, max_backoff_s=0.1)
    server.plan([status(503)] * 6)
    with caplog.at_level(logging.WARNING, "windrow.remote"):
        assert read(fetcher(slow), secret) == DATA[:3000]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) >= 2
    waits = rf"Tests: {server.address} has not answered for \d+ s; requests failed: status 503 \(\d+\)\."
    assert re.search(f"{waits} Reading waits for it, for up to 600 s in all", " ".join(told))
    assert told[-1] == f"Tests: {server.address} answers again"
    assert "sesame" not in caplog.text


def test_nothing_waits_before_the_source_is_open(server: RangeServer, file: RemoteFile) -> None:
    server.chance(1.0, [status(503)])
    reader = Fetcher("Tests", None, PATIENT)
    with pytest.raises(ReadError, match=r"3 attempts in .*status 503"):
        read(reader, file)
    with pytest.raises(ReadError, match=r"3 attempts in .*status 503"):
        ArrayRecordDataSource(server.url("a.bin"), remote=PATIENT)
    reader.expect_answers()
    copy = pickle.loads(pickle.dumps(reader))
    server.heal()
    server.plan([status(503)] * 9)
    assert read(copy, file) == DATA[:3000]
    off = fetcher(CALM)
    server.chance(1.0, [status(503)])
    with pytest.raises(ReadError, match=r"3 attempts in .*status 503") as caught:
        read(off, file)
    assert "outage_s" not in str(caught.value)


class Away(MemoryFileSystem):  # type: ignore[misc]
    """A file system of fsspec that is away for some calls."""

    protocol = "away"
    left = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("away://").strip("/")

    def cat_file(self, *args: Any, **kwargs: Any) -> Any:
        if Away.left:
            Away.left -= 1
            raise ConnectionResetError("away")
        return super().cat_file(*args, **kwargs)


def test_file_systems_of_fsspec_are_waited_for(file: RemoteFile) -> None:
    fsspec.register_implementation("away", Away, clobber=True)
    Away().pipe("/a.bin", DATA)
    reader = fetcher()
    there = reader.tails(["away:///a.bin"], 1)[0].file
    Away.left = 30
    assert read(reader, there) == DATA[:3000]
    assert reader.stats.counts()["faults"] == {"reset": 30}
    Away.left = 30
    with pytest.raises(ReadError, match=r"3 attempts in .* s: reset"):
        read(Fetcher("Tests", None, PATIENT), there)


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


@pytest.mark.parametrize("code", [429, 500])
def test_an_array_whose_store_comes_back_is_read(site: RangeServer, code: int) -> None:
    source = array_over(site, "plain", PATIENT)
    site.plan([status(code)] * 30)
    np.testing.assert_array_equal(source.read(np.arange(4)), ROWS[:4])
    assert site.counts().faults["status"] == 30
    counts = source.stats()
    assert counts["faults"] == {f"status {code}": 30}
    assert counts["retries"] == 30
    assert 0 < counts["p50_s"] <= counts["p99_s"]


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
