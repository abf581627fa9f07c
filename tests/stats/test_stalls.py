"""The stall detector: that it reports what everything does, once for each stall, and nothing else."""

from __future__ import annotations

import logging
import os
import threading
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.range_server import RangeServer
from tests.stats.test_stats import in_turn, timed
from windrow.errors import ArgumentError, ClosedError, PlanError
from windrow.stalls import StallWatch

M = windrow.MapDataset
SHORT_S = 0.02
# Longer than any test: it ends a test that hangs.
LIMIT_S = 60


class Blocking:
    """Records, each of which waits for an event of its own."""

    def __init__(self, count: int) -> None:
        self.events = [threading.Event() for _ in range(count)]

    def __len__(self) -> int:
        return len(self.events)

    def __getitem__(self, record: int) -> int:
        assert self.events[record].wait(LIMIT_S)
        return record


def test_each_stall_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    source = Blocking(3)
    texts: list[str] = []
    iterator = iter(in_turn(M.source(source)))

    def stalled(text: str) -> None:
        iterator._stall_watch._look(iterator)  # not reported again
        source.events[len(texts)].set()
        texts.append(text)

    caplog.set_level(logging.WARNING, "windrow")
    iterator.on_stall(SHORT_S, stalled)
    assert list(iterator) == [0, 1, 2]
    iterator.close()
    assert len(texts) == 3
    assert [(record.name, record.getMessage()) for record in caplog.records] == [
        ("windrow.stall", text) for text in texts
    ]


def test_it_shows_the_stacks_of_the_loop_and_of_the_threads() -> None:
    source = Blocking(1)
    texts: list[str] = []

    def stalled(text: str) -> None:
        texts.append(text)
        source.events[0].set()

    with iter(M.source(source)) as iterator:
        iterator.on_stall(SHORT_S, stalled)
        assert next(iterator) == 0
    (text,) = texts
    lines = text.splitlines()
    assert lines[0].startswith("next has waited ")
    assert lines[1].startswith("making elements: reading, for ")
    (loop,) = [line for line in lines if line.endswith(", the loop:")]
    assert threading.current_thread().name in loop
    assert "in Blocking.__getitem__" in text
    assert "  windrow-ahead:" in lines
    assert "windrow-stall" not in text


def test_a_slow_loop_is_no_stall() -> None:
    iterator, clock = timed(in_turn(M.range(3)))
    texts: list[str] = []
    watch = StallWatch(
        iterator, iterator._meter, 10, lambda _, waited_s: f"{waited_s}", texts.append
    )
    watch.stop()  # only the calls below look
    next(iterator)
    clock.pass_by(100)
    assert watch._look(iterator) == 2.5
    iterator._meter.asked(is_ready=False)
    clock.pass_by(9)
    assert watch._look(iterator) == 1
    clock.pass_by(1)
    watch._look(iterator)
    clock.pass_by(50)
    watch._look(iterator)
    assert texts == ["10.0"]


def test_a_callback_that_raises_does_not_end_the_watch(caplog: pytest.LogCaptureFixture) -> None:
    source = Blocking(2)
    calls: list[str] = []
    iterator = iter(in_turn(M.source(source)))

    def stalled(text: str) -> None:
        source.events[len(calls)].set()
        calls.append(text)
        raise ValueError("of the callback")

    iterator.on_stall(SHORT_S, stalled)
    assert list(iterator) == [0, 1]
    iterator.close()
    assert len(calls) == 2
    assert "of the callback" in caplog.text


@pytest.mark.parametrize("end", ["close", "drop", "stop"])
def test_its_thread_ends_with_the_iterator(end: str) -> None:
    iterator = iter(M.range(9))
    iterator.on_stall(SHORT_S)
    thread = iterator._stall_watch._ticker._thread  # type: ignore[union-attr]
    assert thread.is_alive()
    if end == "close":
        iterator.close()
    elif end == "stop":
        iterator.on_stall(0)
    else:
        del iterator
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_no_thread_runs_unless_it_is_asked_for() -> None:
    list(iter(M.range(9)))
    assert not [t for t in threading.enumerate() if t.name in ("windrow-stall", "windrow-history")]


def opened(path: Path, element: int) -> int:
    with path.open() as pipe:  # blocks until there is a writer
        pipe.read()
    return element


def until(words: str, then: Callable[[], Any], iterator: Any) -> list[str]:
    """Report stalls until a report has some words, and call `then`; the list gets that report."""
    found: list[str] = []

    def stalled(text: str) -> None:
        if words in text:
            found.append(text)
            then()
        else:
            iterator._stall_watch._reported_s = None  # so the same stall is reported again

    iterator.on_stall(SHORT_S, stalled)
    return found


def test_it_shows_what_workers_do(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    dataset = M.range(1).map(lambda n: opened(pipe, n)).to_iter_dataset()
    with iter(dataset.mp_prefetch(windrow.MultiprocessingOptions(num_workers=1))) as iterator:
        found = until("at work on a job, silent for", lambda: pipe.open("w").close(), iterator)
        assert next(iterator) == 0
    assert "worker processes:\n  worker 0 (process " in found[0]


def test_it_shows_requests_without_secrets() -> None:
    with RangeServer() as server:
        server.put("data", b"x" * 100)
        url = server.url("data")
        server.gather(2)  # no request is answered before there are two
        with iter(in_turn(M.source(_Fetching(f"{url}?X-Amz-Signature=hush")))) as iterator:
            found = until("1 request:", lambda: urllib.request.urlopen(url).close(), iterator)
            assert next(iterator) == 100
    assert f"1 request:\n  {url}?***, the last 1,000 bytes, attempt 1: for " in found[0]
    assert "hush" not in found[0]


class _Fetching:
    def __init__(self, url: str) -> None:
        self._url = url

    def __len__(self) -> int:
        return 1

    def __getitem__(self, record: int) -> int:
        from windrow.sources.remote.fetcher import Fetcher
        from windrow.sources.remote.options import RemoteOptions

        (tail,) = Fetcher("test", None, RemoteOptions()).tails([self._url], 1000)
        return len(tail.data)


@pytest.mark.parametrize("after_s", [-1, float("nan"), float("inf"), "long"])
def test_wrong_arguments(after_s: Any) -> None:
    iterator = iter(M.range(3))
    with pytest.raises(ArgumentError, match="after_s must be a number of seconds, or 0 to stop"):
        iterator.on_stall(after_s)
    with pytest.raises(ArgumentError, match="callback must take a string"):
        iterator.on_stall(1, "print")  # type: ignore[arg-type]
    iterator.close()
    with pytest.raises(ClosedError):
        iterator.on_stall(1)


class _Own(windrow.DatasetIterator[int]):
    def __next__(self) -> int:
        raise StopIteration

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> Any: ...


def test_iterators_of_users_have_neither() -> None:
    parents: Sequence[Any] = [iter(M.range(3))]
    own = _Own(parents)
    with pytest.raises(PlanError, match="on_stall: _Own is an iterator of your own"):
        own.on_stall(1)
    with pytest.raises(PlanError, match="keep_history: _Own is an iterator of your own"):
        own.keep_history("h")
