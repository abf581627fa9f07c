"""Jobs on threads, and those who wait for one do jobs too."""

from __future__ import annotations

import collections
import random
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import pytest

from tests.laid_out import CountingRows, PiecedSource
from tests.processes import until
from windrow import MapDataset, ReadOptions
from windrow.core.machine import usable_cores
from windrow.core.threads import DaemonPool
from windrow.sources import Span


class Gate:
    """A job that is at work until it is opened."""

    def __init__(self) -> None:
        self._open, self.begun = threading.Event(), threading.Event()

    def __call__(self) -> int:
        self.begun.set()
        assert self._open.wait(60)
        return threading.get_ident()

    def open(self) -> None:
        self._open.set()


def new_pool(threads: int) -> DaemonPool:
    return DaemonPool(threads, "windrow-test")


def test_who_waits_does_the_jobs_before_its_own_in_their_order_and_none_behind() -> None:
    pool, gate, done = new_pool(1), Gate(), list[tuple[int, int]]()
    there = pool.submit(gate)
    assert gate.begun.wait(60)
    answers = [pool.submit(lambda k=k: done.append((k, threading.get_ident()))) for k in range(5)]
    pool.help_begin(answers[2])
    assert done == [(k, threading.get_ident()) for k in range(3)]
    assert not answers[3].done()
    gate.open()
    assert answers[4].result(timeout=60) is None
    assert [k for k, _ in done] == [0, 1, 2, 3, 4]
    assert {thread for _, thread in done[3:]} == {there.result()}
    pool.shutdown()


def test_at_shutdown_what_nobody_has_begun_is_done_or_cancelled() -> None:
    for cancels in (False, True):
        pool, gate = new_pool(1), Gate()
        begun = pool.submit(gate)
        assert gate.begun.wait(60)
        later = [pool.submit(int, "3") for _ in range(4)]
        pool.shutdown(wait=False, cancel_futures=cancels)
        with pytest.raises(RuntimeError, match="no jobs are taken after shutdown"):
            pool.submit(int)
        gate.open()
        assert begun.result(timeout=60)
        if cancels:
            assert all(one.cancelled() for one in later)
        else:
            assert [one.result(timeout=60) for one in later] == [3] * 4


def test_threads_end_when_idle_and_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.core.threads._IDLE_S", 0.001)
    pool, chance = new_pool(3), random.Random(7)
    for number in range(2_000):
        assert pool.submit(int, str(number)).result(timeout=60) == number
        if chance.random() < 0.2:
            threading.Event().wait(0.002 * chance.random())
    assert until(
        lambda: not [t for t in threading.enumerate() if t.name.startswith("windrow-test")]
    )
    assert pool.submit(int, "7").result(timeout=60) == 7
    pool.shutdown()


def test_each_job_is_done_once_however_many_help() -> None:
    pool, done = new_pool(2), collections.Counter[int]()
    chance = random.Random(5)
    for first in range(0, 3_000, 100):
        answers = [pool.submit(done.update, [k]) for k in range(first, first + 100)]
        helpers = [
            threading.Thread(target=pool.help_begin, args=[chance.choice(answers)])
            for _ in range(3)
        ]
        for helper in helpers:
            helper.start()
        for answer in answers:
            answer.result(timeout=60)
        for helper in helpers:
            helper.join()
    pool.shutdown()
    assert set(done) == set(range(3_000))
    assert set(done.values()) == {1}


class Together(CountingRows):
    """Rows whose first reads end only when one more than there are threads are under way."""

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        self._barrier = threading.Barrier(usable_cores() + 1)
        self._left = usable_cores() + 1
        self.threads: set[str] = set()

    def start(self, spans: Sequence[Span], pool: Executor) -> Future[None]:
        self._left -= 1
        meets = self._left >= 0
        return pool.submit(self._meet, list(spans), meets)

    def _meet(self, spans: list[Span], meets: bool) -> None:
        self.threads.add(threading.current_thread().name)
        if meets:
            self._barrier.wait(60)
        self._fill(spans)


def test_the_thread_that_makes_batches_decodes_while_it_waits() -> None:
    rows = np.arange(64 * 20_000).reshape(64, 20_000)
    source = PiecedSource({"": rows}, {"": 2})
    reader = Together(rows)
    object.__setattr__(source.parts[0], "reader", reader)
    backwards = MapDataset.source(source).slice(np.arange(64)[::-1])
    stream = iter(backwards.batch(64).to_iter_dataset(ReadOptions()))
    np.testing.assert_array_equal(next(stream), rows[::-1])
    stream.close()
    makers = {name for name in reader.threads if not name.startswith("windrow-decode")}
    assert len(makers) == 1
    assert len(reader.threads) == usable_cores() + 1
