"""ArrayRecord files at URLs, through faults: the undisturbed stream, or an error that tells, in time."""

from __future__ import annotations

import dataclasses
import functools
import logging
import pickle
import re
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windrow
from tests.array_record_bytes import needs_core, written
from tests.limits import CALM, at_last, ended, passed, within
from tests.range_server import (
    Fault,
    RangeServer,
    cut,
    drip,
    replace,
    reset,
    stall,
    status,
)
from windrow.errors import ReadError, WindrowError
from windrow.sources import ArrayRecordDataSource, RemoteOptions

pytestmark = needs_core

NAME = "a.array_record"
# Many small requests. A stall is asked again soon, and so is what waits that long on a busy machine.
PATIENT = dataclasses.replace(
    CALM, retries=30, stall_s=1.0, merge_gap_bytes=0, max_request_bytes=3_000, max_requests=16
)
CHAINS = ("in order", "shuffled", "in blocks", "in a worker")
SECRETS = ("AKIDNOTTOBESEEN", "secret-not-to-be-seen", "pass-not-to-be-seen", "sig-not-to-be-seen")


def records(seed: int = 0) -> list[bytes]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 60, size, np.uint8).tobytes() for size in rng.integers(0, 900, 240)]


@functools.cache
def stored(options: str, seed: int = 0) -> bytes:
    """The bytes of a file."""
    with tempfile.TemporaryDirectory() as folder:
        return written(Path(folder) / NAME, records(seed), options)


GROUPS = ("group_size:1", "group_size:8")


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with RangeServer({NAME: stored("group_size:8")}) as running:
        yield running


def streamed(source: Any, order: str) -> list[bytes]:
    chain = windrow.MapDataset.source(source)
    if order in ("shuffled", "in a worker"):
        chain = chain.shuffle(seed=1)
    if order == "in blocks":
        chain = chain.block_shuffle(seed=1)
    stream = chain.batch(16).to_iter_dataset()
    if order == "in a worker":
        stream = stream.mp_prefetch(1)
    with iter(stream) as iterator:
        return [record for batch in iterator for record in batch]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[bytes]]:
    found = {}
    for options in GROUPS:
        path = tmp_path_factory.mktemp("here") / NAME
        path.write_bytes(stored(options))
        for order in CHAINS[:3]:
            found[options, order] = streamed(ArrayRecordDataSource(path), order)
        found[options, "in a worker"] = found[options, "shuffled"]
    return found


def told_by(error: BaseException) -> str:
    """All that can be seen of an error, also once it has crossed a process."""
    crossed = pickle.loads(pickle.dumps(error))
    return "\n".join(
        "".join(traceback.format_exception(one)) + repr(one) + str(vars(one))
        for one in (error, crossed)
    )


# ---- a tenth of all requests


BUSY, STALLS = [status(503), status(429), reset(), cut()], [stall(body=True), stall()]


@pytest.mark.parametrize(
    ("options", "order", "faults"),
    [
        ("group_size:1", "in order", BUSY),
        ("group_size:8", "shuffled", BUSY),
        ("group_size:1", "in blocks", BUSY),
        ("group_size:8", "in a worker", BUSY),
        ("group_size:8", "in blocks", STALLS),
        ("group_size:8", "in a worker", STALLS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_faults_in_a_tenth_of_all_requests_change_nothing(
    server: RangeServer,
    undisturbed: dict[tuple[str, str], list[bytes]],
    options: str,
    order: str,
    faults: Sequence[Fault],
) -> None:
    server.put(NAME, stored(options))
    source = ArrayRecordDataSource(server.url(NAME), remote=PATIENT)
    server.chance(0.1, faults, seed=4)
    assert streamed(source, order) == undisturbed[options, order]
    assert sum(server.counts().faults.values()) > 0
    assert source.stats()["retries"] > 0


# ---- faults without end


@pytest.mark.parametrize(
    ("order", "fault", "by", "why"),
    [
        ("in a worker", stall(), "stalled", r"2 attempts in .* s: stalled \(2\)"),
        ("shuffled", stall(body=True), "stalled", r"2 attempts in .* s: stalled \(2\)"),
        ("in blocks", drip(), "timeout", r"2 attempts in .* s: timeout \(2\)"),
        ("shuffled", cut(), "", r"2 attempts in .* s: cut short \(2\)"),
        ("in blocks", reset(), "", r"2 attempts in .* s: (reset|connection|cut short)"),
        ("in blocks", status(503), "", r"2 attempts in .* s: status 503 \(2\)"),
        ("in a worker", status(403), "", r"1 attempt in .* s: status 403"),
    ],
    ids=["stall", "stall in the body", "drip", "cut", "reset", "503", "403"],
)
def test_what_lasts_is_an_error_in_time(
    server: RangeServer, order: str, fault: Fault, by: str, why: str
) -> None:
    quick = ended(by, retries=1)
    source = at_last(lambda: ArrayRecordDataSource(server.url(NAME), remote=quick))
    server.chance(1.0, [fault])
    # A read that failed is tried once more, in smaller parts; a worker has to come up.
    with within(10.0), pytest.raises(ReadError, match=rf"http://.*/a\.array_record.*{why}"):
        streamed(source, order)
    server.heal()
    assert at_last(lambda: source.read(np.arange(240))) == records()


def test_one_file_of_many_that_stalls() -> None:
    data = stored("group_size:8")
    with RangeServer({f"{number}.array_record": data for number in range(40)}) as server:
        urls = [server.url(f"{number}.array_record") for number in range(40)]
        source = ArrayRecordDataSource(urls, remote=passed("stalled"))
        some = np.arange(0, len(source), 240)
        opened = source.stats()["retries"]
        server.reset_counts()
        server.plan([None] * 20 + [stall()])
        with within(5.0):
            assert source.read(some) == [records()[0]] * 40
        seen = server.counts()
        asked = [path for _, path, _ in seen.asked]
        assert seen.faults == {"stall": 1}
        assert asked.count(asked[20]) > 1
        assert len(set(asked)) == 40
        assert source.stats()["retries"] - opened == len(asked) - 40  # none without a stall
        assert source.stats()["faults"].keys() == {"stalled"}


def test_a_host_that_is_nowhere() -> None:
    with (
        within(1.0),
        pytest.raises(ReadError, match=r"nowhere\.invalid/a\.array_record.*host not found \(3\)"),
    ):
        ArrayRecordDataSource(f"http://nowhere.invalid/{NAME}", remote=CALM)


# ---- another file


@pytest.mark.parametrize("order", ["in blocks", "in a worker"])
def test_a_file_replaced_while_it_is_streamed_is_never_mixed(
    server: RangeServer, order: str
) -> None:
    apart = RemoteOptions(merge_gap_bytes=0, max_request_bytes=5_000, max_requests=4)
    source = ArrayRecordDataSource(server.url(NAME), remote=apart)
    server.plan([None, None, None, replace(stored("group_size:8", seed=1))])
    with pytest.raises(ReadError, match=r"/a\.array_record, bytes .* has changed since"):
        streamed(source, order)


# ---- credentials


@pytest.mark.parametrize(
    ("order", "fault", "by"),
    [
        ("in a worker", status(401), ""),
        ("in blocks", status(500), ""),
        ("in blocks", stall(), "stalled"),
        ("in a worker", cut(), ""),
        ("in blocks", replace(b"x" * 131_072), ""),
    ],
    ids=["401", "500", "stall", "cut", "replaced"],
)
def test_no_error_of_a_stream_shows_a_credential(
    order: str,
    fault: Fault,
    by: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    options = {"headers": {"X-Key": "secret-not-to-be-seen"}}
    with RangeServer({NAME: stored("group_size:8")}) as server:
        url = server.url(NAME).replace("//", "//user:pass-not-to-be-seen@")
        url += "?sig=sig-not-to-be-seen"
        source = at_last(
            lambda: ArrayRecordDataSource(url, storage_options=options, remote=ended(by, retries=1))
        )
        chain = windrow.MapDataset.source(source)
        server.chance(1.0, [fault])
        with pytest.raises(WindrowError, match=re.escape("//***@127.0.0.1")) as caught:
            streamed(source, order)
        seen = [repr(source), str(source), source.fingerprint, repr(chain), told_by(caught.value)]
        seen.append(repr(iter(chain.to_iter_dataset()).get_state()))
    seen += [caplog.text, *capfd.readouterr()]
    for text in seen:
        assert not any(secret in text for secret in SECRETS)
    assert "never retrieved" not in "".join(seen)
