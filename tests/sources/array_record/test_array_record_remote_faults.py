"""ArrayRecord files at URLs, through faults: the undisturbed stream, or an error that tells, in time."""

from __future__ import annotations

import functools
import logging
import pickle
import re
import tempfile
import traceback
from collections.abc import Iterator
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
    replace,
    stall,
    status,
)
from windrow.errors import ReadError, WindrowError
from windrow.sources import ArrayRecordDataSource, RemoteOptions

pytestmark = needs_core

NAME = "a.array_record"
SECRETS = ("AKIDNOTTOBESEEN", "secret-not-to-be-seen", "pass-not-to-be-seen", "sig-not-to-be-seen")


def records(seed: int = 0) -> list[bytes]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 60, size, np.uint8).tobytes() for size in rng.integers(0, 900, 240)]


@functools.cache
def stored(options: str, seed: int = 0) -> bytes:
    """The bytes of a file."""
    with tempfile.TemporaryDirectory() as folder:
        return written(Path(folder) / NAME, records(seed), options)


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


def told_by(error: BaseException) -> str:
    """All that can be seen of an error, also once it has crossed a process."""
    crossed = pickle.loads(pickle.dumps(error))
    return "\n".join(
        "".join(traceback.format_exception(one)) + repr(one) + str(vars(one))
        for one in (error, crossed)
    )


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
