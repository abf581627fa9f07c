"""Bytes of objects in stores: S3 by moto's server, Google Cloud Storage by its answers."""

from __future__ import annotations

import pickle
import random
import re
import traceback
from collections.abc import Iterator

import pytest
import s3fs

from tests.limits import CALM, at_last, ended, passed, within
from tests.object_store import ObjectStore
from tests.range_server import Fault, RangeServer, cut, reset, s3_error, stall, status
from windrow.errors import NotFoundError, ReadError, WindrowError
from windrow.sources.remote.fetcher import ByteRange, Fetcher, RemoteFile
from windrow.sources.remote.options import RemoteOptions

pytestmark = pytest.mark.jobs

DATA = random.Random(2).randbytes(50_000)


@pytest.fixture(scope="module")
def bucket() -> Iterator[ObjectStore]:
    with ObjectStore() as store:
        for number in range(4):
            store.put(f"d/{number}.bin", DATA[number:])
        store.put("empty", b"")
        yield store


@pytest.fixture
def store(bucket: ObjectStore) -> ObjectStore:
    bucket.faults.heal()
    bucket.faults.reset_counts()
    return bucket


def reader_of(store: ObjectStore, options: RemoteOptions = CALM) -> Fetcher:
    return Fetcher("Tests", store.storage_options, options)


@pytest.fixture
def file(store: ObjectStore) -> RemoteFile:
    found = reader_of(store).tails([store.url("d/0.bin")], 1)[0].file
    store.faults.reset_counts()
    return found


def fails(reader: Fetcher, file: RemoteFile) -> WindrowError:
    with within(3.0), pytest.raises(WindrowError, match=re.escape(file.shown)) as caught:
        reader.start([ByteRange(file, 0, 3000)]).result()
    return caught.value


# ---- S3


def test_objects_of_s3(store: ObjectStore) -> None:
    reader = reader_of(store)
    urls = [store.url(f"d/{number}.bin") for number in (2, 0, 2, 1)]
    tails = reader.tails(urls, 1000)
    assert [tail.file.url for tail in tails] == urls
    assert [tail.file.size_bytes for tail in tails] == [len(DATA) - n for n in (2, 0, 2, 1)]
    assert all(tail.data == DATA[-1000:] for tail in tails)
    assert store.faults.counts().requests == 3  # no head, no list
    wanted = [ByteRange(tails[1].file, n, n * 2) for n in range(0, 20_000, 500)]
    expected = [DATA[one.start : one.stop] for one in wanted]
    assert reader.start(wanted).result() == expected
    again: Fetcher = pickle.loads(pickle.dumps(reader))
    assert sorted(again.fetch(wanted)) == list(enumerate(expected))
    assert again.stats.counts()["requests"] == len(wanted) - 1


@pytest.mark.parametrize("refused", [False, True])
def test_an_empty_object(store: ObjectStore, refused: bool) -> None:
    if refused:  # as S3 itself answers
        store.faults.plan([s3_error(416, "InvalidRange")])
    tail = reader_of(store).tails([store.url("empty")], 100)[0]
    assert (tail.data, tail.file.size_bytes) == (b"", 0)
    assert tail.file.version.startswith('ETag "')


def test_names_in_s3(store: ObjectStore) -> None:
    reader = reader_of(store)
    assert reader.is_file(store.url("d/0.bin"))
    assert not reader.is_file(store.url("d"))
    assert reader.is_folder(store.url("d"))
    assert reader.is_folder(store.url("d/"))
    assert not reader.is_folder(store.url("e"))
    assert not reader.is_file(store.url("e"))
    assert reader.names_in(store.url()) == ["d/", "empty"]
    assert reader.names_in(store.url("d")) == ["0.bin", "1.bin", "2.bin", "3.bin"]
    assert reader.glob(store.url("d/[12].*")) == [store.url("d/1.bin"), store.url("d/2.bin")]
    assert reader.read_small(store.url("d/3.bin")) == DATA[3:]
    assert reader.read_small(store.url("none")) is None
    with pytest.raises(NotFoundError, match="/none was not found"):
        reader.names_in(store.url("none"))


def test_where_names_may_not_be_listed_a_key_that_is_not_there_is_none(store: ObjectStore) -> None:
    reader = reader_of(store)
    store.faults.plan([s3_error(403, "AccessDenied")])
    assert reader.read_small(store.url("none")) is None
    store.faults.plan([s3_error(403, "SignatureDoesNotMatch")])
    with pytest.raises(ReadError, match="status 403 SignatureDoesNotMatch"):
        reader.read_small(store.url("none"))


@pytest.mark.parametrize(
    ("fault", "kind", "limit"),
    [
        (s3_error(503, "SlowDown"), "status 503", ""),
        (s3_error(500, "InternalError"), "status 500", ""),
        (status(503, body=b"<html>busy</html>"), "status 503", ""),
        (cut(), "cut short", ""),
        (reset(), "cut short", ""),
        (stall(), "timeout", "timeout"),
        (stall(body=True), "cut short", "timeout"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_may_pass_is_tried_again(
    store: ObjectStore, file: RemoteFile, fault: Fault, kind: str, limit: str
) -> None:
    reader = reader_of(store, passed(limit))
    reader.read_small(store.url("empty"))  # a client is made
    store.faults.plan([fault, None])
    assert reader.start([ByteRange(file, 0, 3000)]).result() == [DATA[:3000]]
    assert store.faults.counts().faults == {fault.kind: 1}
    assert reader.stats.counts()["faults"].keys() == {kind}
    reader = reader_of(store, ended(limit, 0.3))
    at_last(lambda: reader.read_small(store.url("empty")))
    store.faults.reset_counts()
    store.faults.plan([fault] * 9)
    error = fails(reader, file)
    assert isinstance(error, ReadError)
    if kind == "cut short":
        assert re.search("connection broken|timeout", str(error))
    else:
        assert re.search(rf"3 attempts in \d+\.\d s: {kind}", str(error))
    assert store.faults.counts().requests == 3  # no library tries on its own


@pytest.mark.parametrize(
    ("fault", "told", "kind"),
    [
        (s3_error(404, "NoSuchKey"), "was not found", NotFoundError),
        (s3_error(404, "NoSuchBucket"), "was not found", NotFoundError),
        (s3_error(403, "AccessDenied"), "Give valid credentials in storage_options", ReadError),
        (s3_error(400, "ExpiredToken"), "renew expired ones", ReadError),
        (s3_error(403, "InvalidAccessKeyId"), "Give valid credentials", ReadError),
        (s3_error(412, "PreconditionFailed"), "could not be read", ReadError),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_stays_is_not_tried_again(
    store: ObjectStore, file: RemoteFile, fault: Fault, told: str, kind: type[Exception]
) -> None:
    store.faults.plan([fault])
    error = fails(reader_of(store), file)
    assert isinstance(error, kind)
    assert told in str(error)
    assert "1 attempt in" in str(error)
    assert store.faults.counts().requests == 1


def test_an_object_replaced_while_it_is_read_is_never_mixed(store: ObjectStore) -> None:
    store.put("r.bin", DATA)
    reader = reader_of(store)
    file = reader.tails([store.url("r.bin")], 10)[0].file
    store.put("r.bin", DATA[::-1])
    assert "has changed since it was opened: it was ETag" in str(fails(reader, file))
    assert reader.stats.counts()["faults"] == {"changed": 1}
    store.remove("r.bin")
    assert isinstance(fails(reader, file), NotFoundError)


def test_settings_of_file_systems_that_the_user_has_stay(store: ObjectStore) -> None:
    theirs = s3fs.S3FileSystem(**store.storage_options)
    reader = reader_of(store)
    reader.tails([store.url("d/0.bin")], 10)
    assert theirs.retries == s3fs.S3FileSystem.retries == 5
    assert theirs.config_kwargs == {}


# ---- Google Cloud Storage


LISTED = """<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated>
{}</ListBucketResult>"""


@pytest.fixture
def cloud() -> Iterator[RangeServer]:
    files = {"b": LISTED.format("").encode(), "b/d/a.bin": DATA, "b/empty": b""}
    with RangeServer(files, listings=False) as server:
        yield server


def cloud_reader(cloud: RangeServer, options: RemoteOptions = CALM) -> Fetcher:
    return Fetcher("Tests", {"endpoint_url": cloud.address, "token": "anon"}, options)


def test_objects_of_google_cloud_storage(cloud: RangeServer) -> None:
    reader = cloud_reader(cloud)
    tail = reader.tails(["gs://b/d/a.bin"], 100)[0]
    assert tail.file.size_bytes == len(DATA)
    assert tail.file.version.startswith("ETag ")
    assert tail.data == DATA[-100:]
    assert cloud.counts().requests == 1
    wanted = [ByteRange(tail.file, n, n + 300) for n in range(0, 30_000, 100)]
    assert reader.start(wanted).result() == [DATA[one.start : one.stop] for one in wanted]
    empty = reader.tails(["gs://b/empty"], 10)[0]
    assert (empty.data, empty.file.size_bytes) == (b"", 0)
    assert reader.read_small("gs://b/d/a.bin") == DATA
    assert reader.read_small("gs://b/none") is None


def test_faults_of_google_cloud_storage(cloud: RangeServer) -> None:
    reader = cloud_reader(cloud)
    file = reader.tails(["gs://b/d/a.bin"], 100)[0].file
    cloud.plan([status(503), status(429), None])
    assert reader.start([ByteRange(file, 0, 3000)]).result() == [DATA[:3000]]
    assert reader.stats.counts()["faults"] == {"status 503": 1, "status 429": 1}
    for code, told in ((401, "Give valid credentials"), (403, "status 403"), (404, "not found")):
        cloud.reset_counts()
        cloud.plan([status(code)])
        assert told in str(fails(reader, file))
        assert cloud.counts().requests == 1
    cloud.put("b/d/a.bin", DATA[::-1])
    assert "has changed since it was opened: it was ETag" in str(fails(reader, file))


def test_a_store_that_asks_for_a_token_when_it_is_opened() -> None:
    """gcsfs takes a text for a token, and asks Google about it: which fails here."""
    token = "token-not-to-be-seen/with a slash"
    reader = Fetcher("Tests", {"token": token}, ended("timeout", 5.0, retries=1))
    with pytest.raises(ReadError, match=r"Tests: gs://bucket/a could not be read") as caught:
        reader.tails(["gs://bucket/a"], 10)
    told = "".join(traceback.format_exception(caught.value))
    assert "not-to-be-seen" not in told


def test_names_in_google_cloud_storage(cloud: RangeServer) -> None:
    reader = cloud_reader(cloud)
    assert reader.is_file("gs://b/d/a.bin")
    assert not reader.is_file("gs://b/none")
    assert not reader.is_folder("gs://b/none")
    with pytest.raises(NotFoundError, match="gs://b/none was not found"):
        reader.names_in("gs://b/none")
    entry = "<Contents><Key>d/{}</Key><LastModified>2026-01-01T00:00:00Z</LastModified><Size>1</Size></Contents>"
    listed = (
        entry.format("")
        + entry.format("a.bin")
        + "<CommonPrefixes><Prefix>d/e/</Prefix></CommonPrefixes>"
    )
    cloud.put("b", LISTED.format(listed).encode())
    assert reader.is_folder("gs://b/d")
    assert reader.names_in("gs://b/d") == ["a.bin", "e/"]
