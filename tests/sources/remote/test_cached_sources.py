"""Sources with a cache on disk: the records without one, few requests, and no harm by the disk."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import windrow
from tests.array_record_bytes import write
from tests.far_arrays import PATIENT, array_over, values, write_ways
from tests.range_server import RangeServer, cut, replace, reset, status
from windrow.cli.main import main
from windrow.errors import ReadError, SourceError
from windrow.sources import ArrayRecordDataSource, RemoteOptions, ZarrDataSource
from windrow.sources.remote.cache_folder import cache_report
from windrow.sources.remote.fetcher import Fetcher
from windrow.sources.remote.remote_file import ByteRange

COUNT = 257
ROWS = values(37, 6)


def write_records(path: Path, seed: int = 0, options: str = "group_size:1") -> list[bytes]:
    draw = random.Random(seed)
    records = [draw.randbytes(draw.randrange(2000)) for _ in range(COUNT)]
    write(path, records, options)
    return records


@pytest.fixture
def remote(tmp_path: Path) -> RemoteOptions:
    return dataclasses.replace(PATIENT, cache_dir=tmp_path / "cache")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    (tmp_path / "served").mkdir()
    with RangeServer(tmp_path / "served") as running:
        yield running


def epoch(source: ArrayRecordDataSource, seed: int) -> list[bytes]:
    ds = windrow.MapDataset.source(source).shuffle(seed=seed).batch(16, batch_fn=list)
    return sorted(record for batch in ds.to_iter_dataset() for record in batch)


# ---- records


@pytest.mark.parametrize(
    ("options", "faults"),
    [("group_size:1", True), ("group_size:7", False), ("group_size:3,snappy", True)],
)
def test_records_come_once_over_the_network(
    server: RangeServer, remote: RemoteOptions, tmp_path: Path, options: str, faults: bool
) -> None:
    records = sorted(write_records(tmp_path / "served" / "a", options=options))
    if faults:
        server.chance(0.2, [status(503), cut(), reset()])
    source = ArrayRecordDataSource(server.url("a"), remote=remote)
    assert epoch(source, 0) == records
    server.heal()
    server.reset_counts()
    for seed in (1, 2):
        assert epoch(source, seed) == records
    assert source.read(np.arange(COUNT)) == ArrayRecordDataSource(tmp_path / "served" / "a").read(
        np.arange(COUNT)
    )
    assert source[5] == source.read(np.array([5]))[0]
    assert server.counts().requests == 0
    assert source.stats()["cached_bytes"] > sum(map(len, records))


def test_the_next_run_asks_each_file_once(
    server: RangeServer, remote: RemoteOptions, tmp_path: Path
) -> None:
    records = sorted(write_records(tmp_path / "served" / "a"))
    assert epoch(ArrayRecordDataSource(server.url("a"), remote=remote), 0) == records
    server.reset_counts()
    source = ArrayRecordDataSource(server.url("a"), remote=remote)
    assert epoch(source, 1) == records
    assert epoch(pickle.loads(pickle.dumps(source)), 2) == records
    # It is a file, its end has the index, and no conversion is writing it.
    asked = [(path, part) for _, path, part in server.counts().asked]
    assert asked == [("a", "bytes=-1"), ("a", "bytes=-131072"), ("_WINDROW_UNFINISHED", "")]


def test_a_changed_file_is_never_served_by_the_next_run(
    server: RangeServer, remote: RemoteOptions, tmp_path: Path
) -> None:
    write_records(tmp_path / "served" / "a")
    alone = dataclasses.replace(remote, keep_bytes=0, merge_gap_bytes=0)
    first = ArrayRecordDataSource(server.url("a"), remote=alone)
    first.read(np.arange(0, COUNT, 2))
    after = write_records(tmp_path / "served" / "a", seed=1)
    with pytest.raises(ReadError, match="has changed since it was opened"):
        first.read(np.arange(1, COUNT, 2))
    second = ArrayRecordDataSource(server.url("a"), remote=remote)
    assert second.read(np.arange(COUNT)) == after


@pytest.mark.parametrize("protocol", ["memory", "http without ETags"])
def test_files_without_etags_are_told_by_size_and_time(
    remote: RemoteOptions, tmp_path: Path, protocol: str
) -> None:
    records = write_records(tmp_path / "a")
    data = (tmp_path / "a").read_bytes()
    with RangeServer({"a": data}, etags=False) as server:
        url = server.url("a")
        if protocol == "memory":
            url = f"memory://{tmp_path.name}/a"
            fsspec.filesystem("memory").pipe(url, data)
        source = ArrayRecordDataSource(url, remote=remote)
        assert source.read(np.arange(COUNT)) == records
        before = source.stats()["bytes"]
        assert source.read(np.arange(COUNT)) == records
        assert source.stats()["bytes"] == before


def damage(remote: RemoteOptions) -> None:
    """Damage every tenth range that is kept."""
    (path,) = Path(str(remote.cache_dir)).glob("*.sqlite")
    with contextlib.closing(sqlite3.connect(path)) as rows, rows:
        rows.execute("UPDATE kept SET data = zeroblob(7) WHERE rowid % 10 = 0")


def test_damaged_entries_are_fetched_again(
    server: RangeServer, remote: RemoteOptions, tmp_path: Path
) -> None:
    records = sorted(write_records(tmp_path / "served" / "a"))
    epoch(ArrayRecordDataSource(server.url("a"), remote=remote), 0)
    damage(remote)
    source = ArrayRecordDataSource(server.url("a"), remote=remote)
    server.reset_counts()
    assert epoch(source, 1) == records
    assert 0 < server.counts().body_bytes < 200_000
    source = ArrayRecordDataSource(server.url("a"), remote=remote)
    server.reset_counts()
    assert epoch(source, 1) == records
    assert server.counts().requests == 0


@pytest.mark.parametrize("harm", ["removed", "cut short", "full", "small", "forbidden"])
def test_the_disk_never_harms_the_stream(
    server: RangeServer,
    remote: RemoteOptions,
    tmp_path: Path,
    harm: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    records = sorted(write_records(tmp_path / "served" / "a"))
    if harm == "small":
        remote = dataclasses.replace(remote, cache_bytes=1 << 20)
    elif harm == "forbidden":
        remote = dataclasses.replace(remote, cache_dir="/proc/windrow")
    source = ArrayRecordDataSource(server.url("a"), remote=remote)
    assert epoch(source, 0) == records
    if harm == "removed":
        shutil.rmtree(tmp_path / "cache")
    elif harm == "cut short":
        os.truncate(next((tmp_path / "cache").iterdir()), 100_000)
    elif harm == "full":

        def full(*_: Any, **__: Any) -> int:
            raise sqlite3.OperationalError("database or disk is full")

        shutil.rmtree(tmp_path / "cache")
        (tmp_path / "cache").mkdir()
        monkeypatch.setattr(sqlite3, "connect", full)
    assert epoch(source, 1) == records
    assert caplog.text.count("reading continues without it") == (harm != "small")


# ---- arrays


@pytest.mark.parametrize("way", ["plain", "filter"])
def test_changed_chunks_are_never_served_by_the_next_run(
    server: RangeServer, remote: RemoteOptions, tmp_path: Path, way: str
) -> None:
    write_ways(tmp_path / "served", ROWS)
    order = np.arange(len(ROWS))
    np.testing.assert_array_equal(array_over(server, way, remote).read(order), ROWS)
    shutil.rmtree(tmp_path / "served")
    write_ways(tmp_path / "served", -ROWS)
    np.testing.assert_array_equal(array_over(server, way, remote).read(order), -ROWS)


def test_a_format_that_only_tensorstore_reads_is_refused(
    server: RangeServer, remote: RemoteOptions, tmp_path: Path
) -> None:
    folder = tmp_path / "served" / "n5"
    folder.mkdir()
    meta = {
        "dimensions": [4],
        "blockSize": [4],
        "dataType": "uint8",
        "compression": {"type": "raw"},
    }
    (folder / "attributes.json").write_text(json.dumps(meta))
    with pytest.raises(SourceError, match="if RemoteOptions has a cache_dir; leave that out"):
        ZarrDataSource(server.url("n5"), remote=remote)


# ---- objects, options, and the command


def test_an_object_that_changes_while_it_is_asked_for_is_never_mixed(
    remote: RemoteOptions,
) -> None:
    with RangeServer({"a": b"one" * 100}) as server:
        first = Fetcher("Tests", {}, remote).read_whole(server.url("a"))
        assert first is not None
        assert first[1] == b"one" * 100
        server.plan([None, replace(b"two" * 100)])
        reader = Fetcher("Tests", {}, remote)
        found = reader.read_whole(server.url("a"))
        assert found is not None
        assert found[1] == b"one" * 100  # by its version, which the store was asked for
        with pytest.raises(ReadError, match="has changed"):
            reader.read_kept(ByteRange(found[0], 1, 200))
        server.heal()
        server.remove("a")
        assert Fetcher("Tests", {}, remote).read_whole(server.url("a")) is None


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*argv: str) -> tuple[int, str, str]:
        code = main(["cache", *argv])
        return code, *capsys.readouterr()

    return run


def test_the_command_shows_verifies_and_clears(
    server: RangeServer,
    remote: RemoteOptions,
    tmp_path: Path,
    ran: Callable[..., tuple[int, str, str]],
) -> None:
    write_records(tmp_path / "served" / "a")
    url, folder = server.url("a"), str(remote.cache_dir)
    source = ArrayRecordDataSource(url, remote=remote)
    source.read(np.arange(COUNT))
    code, out, _ = ran(folder)
    assert code == 0
    assert f"{COUNT} ranges of 1 URLs" in out
    assert url in out
    code, out, _ = ran(folder, "--json", "--verify")
    facts = json.loads(out)
    assert (code, facts["damaged"], facts["cleared"]) == (0, 0, False)
    assert facts["urls"] == [{"url": url, "ranges": COUNT, "bytes": facts["urls"][0]["bytes"]}]
    assert facts["urls"][0]["bytes"] <= facts["disk_bytes"]
    damage(remote)
    code, out, _ = ran(folder, "--verify")
    assert code == 1
    assert "25 damaged ranges, deleted" in out
    source.read(np.arange(COUNT))
    (tmp_path / "cache" / "mine.txt").write_text("stays")
    code, out, _ = ran(folder, "--clear")
    assert (code, "all deleted" in out) == (0, True)
    assert cache_report(folder).urls == ()
    assert (tmp_path / "cache" / "mine.txt").exists()
    assert len(source.read(np.arange(COUNT))) == COUNT
