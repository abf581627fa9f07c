"""ArrayRecord files at URLs: the records of the files here, few requests, and faults."""

from __future__ import annotations

import json
import logging
import pickle
import re
import tarfile
import traceback
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import windrow
from tests.array_record_bytes import needs_core, write
from tests.limits import at_last, ended, passed, within
from tests.range_server import Fault, RangeServer, cut, replace, stall, status
from windrow.errors import (
    ArgumentError,
    ConversionError,
    NotFoundError,
    ReadError,
    SourceError,
    WindrowError,
)
from windrow.sources import ArrayRecordDataSource, RemoteOptions

pytestmark = needs_core

OPTIONS = (
    "group_size:1",
    "group_size:7,uncompressed",
    "group_size:100,zstd:9",
    "group_size:3,brotli:4",
    "group_size:2,snappy",
    "group_size:16,transpose:true",
    "group_size:5,pad_to_block_boundary:true",
    "group_size:65536",
)


def some_records(count: int, seed: int = 0, most: int = 3000) -> list[bytes]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, most, count)
    return [rng.integers(0, 60, size, np.uint8).tobytes() for size in sizes]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RangeServer]:
    with RangeServer(tmp_path) as running:
        yield running


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("count", [0, 1, 257])
def test_records_are_those_of_the_package(
    server: RangeServer, tmp_path: Path, options: str, count: int
) -> None:
    path = write(tmp_path / "a.array_record", some_records(count), options)
    here, there = ArrayRecordDataSource(path), ArrayRecordDataSource(server.url("a.array_record"))
    assert len(there) == len(here) == count
    assert there.fingerprint == here.fingerprint
    assert there.blocks().tolist() == here.blocks().tolist()
    rng = np.random.default_rng(1)
    for indices in (np.arange(count), rng.permutation(count), rng.integers(0, count or 1, 40)):
        if count:
            assert there.read(indices) == here.read(indices)
    if count:
        assert there[-1] == here[-1]


def test_a_file_costs_one_request_to_open_and_neighbours_one_to_read(
    server: RangeServer, tmp_path: Path
) -> None:
    write(tmp_path / "a.array_record", some_records(500, most=900))
    source = ArrayRecordDataSource(server.url("a.array_record"))
    assert server.counts().requests == 2  # its end, and whether its folder is being written
    server.reset_counts()
    source.read(np.arange(100, 160))
    ((_, _, asked),) = server.counts().asked
    start, stop = map(int, asked.removeprefix("bytes=").split("-"))
    assert stop - start < 60 * 900
    server.reset_counts()
    source[3]
    assert server.counts().requests == 1
    assert source.stats()["requests"] == 4
    part = ArrayRecordDataSource(
        [server.url("a.array_record") + "[3:9]", tmp_path / "a.array_record"]
    )
    assert part.read(np.arange(8)) == source.read(np.array([*range(3, 9), 0, 1]))
    server.reset_counts()
    apart = RemoteOptions(merge_gap_bytes=0)
    ArrayRecordDataSource(server.url("a.array_record"), remote=apart).read(np.arange(0, 100, 2))
    assert server.counts().requests == 52


def test_requests_keep_to_the_limits(server: RangeServer, tmp_path: Path) -> None:
    for name in "abc":
        write(tmp_path / f"{name}.array_record", [b"x"] * 20_001, "uncompressed")
    options = RemoteOptions(max_request_bytes=50_000, in_flight_bytes=300_000, max_requests=2)
    urls = [server.url(f"{name}.array_record") for name in "abc"]
    source = ArrayRecordDataSource(urls, remote=options)
    assert len(server.counts().asked) >= 6  # their indices
    assert source.read(np.arange(60_003)) == [b"x"] * 60_003
    ranges = [re.fullmatch(r"bytes=(\d+)-(\d+)", asked) for _, _, asked in server.counts().asked]
    assert max(int(found[2]) - int(found[1]) + 1 for found in ranges if found) <= 50_000
    assert server.counts().most_in_flight <= 2


def test_folders_globs_and_splits(server: RangeServer, tmp_path: Path) -> None:
    for split, count in (("train", 3), ("test", 1)):
        for k in range(count):
            name = f"digits-{split}.array_record-{k:05d}-of-{count:05d}"
            write(tmp_path / "set" / name, some_records(4, seed=10 * count + k))
    (tmp_path / "set" / "dataset_info.json").write_text(
        json.dumps({"splits": [{"name": "train", "shardLengths": ["4"] * 3}]})
    )
    here = ArrayRecordDataSource(tmp_path / "set", split="train")
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "set"), "/splits/", recursive=True)
    for url in ("memory://splits/set", "memory://splits/set/", server.url("set/")):
        there = ArrayRecordDataSource(url, split="train")
        assert there.read(np.arange(12)) == here.read(np.arange(12))
    found = ArrayRecordDataSource("memory://splits/set/*-train.array_record-*")
    assert found.read(np.arange(12)) == here.read(np.arange(12))
    with pytest.raises(
        SourceError, match=r"memory://splits/set has several splits: test \(1 files"
    ):
        ArrayRecordDataSource("memory://splits/set")
    with pytest.raises(NotFoundError, match=r"no file matches 'memory://splits/set/x\*'"):
        ArrayRecordDataSource("memory://splits/set/x*")
    memory.rm("/splits/set/digits-train.array_record-00001-of-00003")
    with pytest.raises(NotFoundError, match=r"00001-of-00003 is missing in memory://splits/set"):
        ArrayRecordDataSource("memory://splits/set", split="train")


def test_a_folder_that_is_being_written_is_refused(server: RangeServer, tmp_path: Path) -> None:
    write(tmp_path / "out" / "a.array_record", [b"x"])
    (tmp_path / "out" / "_WINDROW_UNFINISHED").write_text("{}")
    with pytest.raises(ConversionError, match=r"writes http://.*/out has not finished"):
        ArrayRecordDataSource(server.url("out/a.array_record"))


@pytest.mark.parametrize(
    "url",
    [
        "zip://a.array_record::file://{here}/all.zip",
        "zip://::file://{here}/all.zip",
        "zip://*.array_record::file://{here}/all.zip",
        "zip://a.array_record::{there}/all.zip",
        "tar://a.array_record::{there}/all.tar",
        "simplecache::{there}/a.array_record",
        "simplecache::{there}/a.*record",
        "filecache::zip://a.array_record::{there}/all.zip",
        "local://{here}/a.array_record",
        "{there}/a.array_record?sig=[1]*",
    ],
)
def test_chains_of_urls(server: RangeServer, tmp_path: Path, url: str) -> None:
    path = write(tmp_path / "a.array_record", some_records(40), "group_size:4")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.write(path, "a.array_record")
    with tarfile.open(tmp_path / "all.tar", "w") as tape:
        tape.add(path, "a.array_record")
    there = ArrayRecordDataSource(url.format(here=tmp_path, there=server.address))
    order = np.random.default_rng(0).permutation(40)
    assert there.read(order) == ArrayRecordDataSource(path).read(order)


NAMES = ("a b", "100%", "a%20b", "a#1", "a?b", "a[1]", "a&b;c", "\u00e4")


def test_names_of_any_characters(server: RangeServer, tmp_path: Path) -> None:
    for number, name in enumerate(NAMES):
        write(tmp_path / "in" / f"{name}.array_record", some_records(2, seed=number))
    here = ArrayRecordDataSource(tmp_path / "in")
    fsspec.filesystem("memory").put(str(tmp_path / "in"), "/any-names/", recursive=True)
    for folder in (server.url("in"), server.url("in/"), "memory://any-names/in"):
        there = ArrayRecordDataSource(folder)
        assert there.read(np.arange(len(there))) == here.read(np.arange(len(here)))
    urls = [server.url(f"in/{name}.array_record") for name in sorted(NAMES)]
    assert ArrayRecordDataSource(urls).read(np.arange(len(here))) == here.read(np.arange(len(here)))


def test_a_url_that_pathlib_changed() -> None:
    with pytest.raises(ArgumentError, match=r"begins with s3:/ and was a URL"):
        ArrayRecordDataSource(Path("s3://key:secret@bucket/a.array_record"))


def test_signed_urls_ask_once_for_the_mark_of_a_conversion(
    server: RangeServer, tmp_path: Path
) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.array_record", [bytes([number])])
    urls = [server.url(f"{number}.array_record") + f"?sig={number}" for number in range(3)]
    server.plan([None, None, None, status(403)])  # a signature is of one file
    source = ArrayRecordDataSource(urls)
    assert source.read(np.arange(3)) == [b"\0", b"\1", b"\2"]
    paths = [path for _, path, _ in server.counts().asked]
    assert paths.count("_WINDROW_UNFINISHED") == 1


def test_a_missing_file(server: RangeServer) -> None:
    with pytest.raises(NotFoundError, match=r"http://.*/no\.array_record"):
        ArrayRecordDataSource(server.url("no.array_record"))


def test_many_files_are_opened_at_once(tmp_path: Path) -> None:
    data = write(tmp_path / "a.array_record", some_records(3)).read_bytes()
    files = {f"s/{k:05d}.array_record": data for k in range(200)}
    with RangeServer(files) as server:
        urls = [server.url(name) for name in files]
        server.gather(21)
        source = ArrayRecordDataSource(urls)
        assert len(source) == 600
        assert server.counts().requests == 201
        assert server.counts().most_in_flight > 20
        assert source[599] == source[2]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"direct": False}, "is a URL, and direct=False"),
        ({"direct": "no"}, "direct must be True, False or None"),
        ({"verify": "none"}, "verify must be 'all' or 'headers'"),
        ({"remote": {"retries": 3}}, "remote must be a windrow.sources.RemoteOptions"),
        ({"storage_options": "key"}, "storage_options must be a dict"),
    ],
)
def test_arguments(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        ArrayRecordDataSource("http://127.0.0.1:1/a.array_record", **arguments)


# ---- faults


def test_one_file_of_many_that_stalls(tmp_path: Path) -> None:
    records = some_records(240, most=900)
    data = write(tmp_path / "a", records, "group_size:8").read_bytes()
    with RangeServer({f"{number}.array_record": data for number in range(40)}) as server:
        urls = [server.url(f"{number}.array_record") for number in range(40)]
        source = ArrayRecordDataSource(urls, remote=passed("timeout"))
        some = np.arange(0, len(source), 240)
        opened = source.stats()["retries"]
        server.reset_counts()
        server.plan([None] * 20 + [stall()])
        with within(5.0):
            assert source.read(some) == [records[0]] * 40
        seen = server.counts()
        asked = [path for _, path, _ in seen.asked]
        assert seen.faults == {"stall": 1}
        assert asked.count(asked[20]) > 1
        assert len(set(asked)) == 40
        assert source.stats()["retries"] - opened == len(asked) - 40  # none without a stall
        assert source.stats()["faults"].keys() == {"timeout"}


def streamed(source: ArrayRecordDataSource, workers: int) -> Any:
    chain = windrow.MapDataset.source(source)
    if workers:
        return chain.shuffle(seed=1).batch(16).to_iter_dataset().mp_prefetch(workers)
    return chain.block_shuffle(seed=1).batch(16).to_iter_dataset()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_replaced_while_it_is_streamed_is_never_mixed(
    server: RangeServer, tmp_path: Path, workers: int
) -> None:
    old, new = (some_records(240, seed, most=900) for seed in (0, 1))
    write(tmp_path / "a.array_record", old, "group_size:8")
    apart = RemoteOptions(merge_gap_bytes=0, max_request_bytes=5_000, max_requests=4)
    source = ArrayRecordDataSource(server.url("a.array_record"), remote=apart)
    data = write(tmp_path / "new", new, "group_size:8").read_bytes()
    server.plan([None, None, None, replace(data)])
    with pytest.raises(ReadError, match=r"/a\.array_record, bytes .* has changed since"):
        list(streamed(source, workers))


SECRETS = ("secret-not-to-be-seen", "pass-not-to-be-seen", "sig-not-to-be-seen")


def told_by(error: BaseException) -> str:
    """All that can be seen of an error, also once it has crossed a process."""
    crossed = pickle.loads(pickle.dumps(error))
    return "\n".join(
        "".join(traceback.format_exception(one)) + repr(one) + str(vars(one))
        for one in (error, crossed)
    )


@pytest.mark.parametrize(
    ("workers", "fault", "by"),
    [
        (1, status(401), ""),
        (0, status(500), ""),
        (0, stall(), "stalled"),
        (1, cut(), ""),
        (0, replace(b"x" * 131_072), ""),
    ],
    ids=["401", "500", "stall", "cut", "replaced"],
)
def test_no_error_of_a_stream_shows_a_credential(
    tmp_path: Path,
    workers: int,
    fault: Fault,
    by: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    options = {"headers": {"X-Key": "secret-not-to-be-seen"}}
    write(tmp_path / "a.array_record", some_records(240, most=900), "group_size:8")
    with RangeServer(tmp_path) as server:
        url = server.url("a.array_record").replace("//", "//user:pass-not-to-be-seen@")
        url += "?sig=sig-not-to-be-seen"
        source = at_last(
            lambda: ArrayRecordDataSource(url, storage_options=options, remote=ended(by, retries=1))
        )
        chain = windrow.MapDataset.source(source)
        server.chance(1.0, [fault])
        with pytest.raises(WindrowError, match=re.escape("//***@127.")) as caught:
            list(streamed(source, workers))
        seen = [repr(source), str(source), source.fingerprint, repr(chain), told_by(caught.value)]
        seen.append(repr(iter(chain.to_iter_dataset()).get_state()))
    seen += [caplog.text, *capfd.readouterr()]
    for text in seen:
        assert not any(secret in text for secret in SECRETS)
    assert "never retrieved" not in "".join(seen)
