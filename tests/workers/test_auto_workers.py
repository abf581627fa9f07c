"""`mp_prefetch("auto")`: the stream without workers, whatever number of them is decided."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests import strategies as make
from tests.hypothesis_profiles import examples
from tests.processes import workers
from tests.strategies import Drawn
from tests.workers.test_workers_stream import FakeWorkers, build_short
from windrow import MultiprocessingOptions
from windrow.engine.executors import Executors
from windrow.engine.worker_choice import WorkerChooser
from windrow.errors import WorkerError
from windrow.transforms.nodes import WorkerSettings

M = windrow.MapDataset
UNDECIDED = "the loop has waited for too few elements to measure them"


class LateWorkers(FakeWorkers):
    """Fake workers, any number of them, which are ready when they are asked for the third time."""

    asked = count = 0

    def start(self, count: int | None = None) -> None:
        self.count = count or 0
        self._most = 2 * self.count

    def ready(self) -> int:
        self.asked += 1
        return self.count if self.asked > 2 else 0


class DecidedChooser(WorkerChooser):
    """Decides the given numbers of workers, each after some results."""

    numbers: list[tuple[int, int]]
    results = 0

    def took(self, rows: int, functions_s: float) -> None:
        self.results += 1
        while self.numbers and self.results >= self.numbers[0][0]:
            self.decide(self.numbers.pop(0)[1], "a test says so")


def decided(
    dataset: Any, numbers: list[tuple[int, int]], fake: Any = None
) -> windrow.DatasetIterator[Any]:
    """An iterator that decides the given numbers of workers, each after some results."""
    iterator: windrow.DatasetIterator[Any] = iter(dataset.mp_prefetch("auto"))
    executors = Executors(iterator._node, fake)
    settings = WorkerSettings(MultiprocessingOptions("auto"), None)
    for executor in executors._all:
        chooser = executor.chooser = DecidedChooser(settings, 0, cores=8)
        chooser.numbers = list(numbers)
    iterator._executors = executors
    return iterator


# As many workers, after some results.
NUMBERS = st.tuples(st.tuples(st.integers(1, 6), st.integers(0, 4)))


@pytest.mark.jobs
@given(drawn=make.streams(ours=True, most=5), numbers=NUMBERS)
@settings(max_examples=examples(100))
def test_streams_are_the_same_with_any_choice(
    drawn: Drawn, numbers: tuple[tuple[int, int], ...]
) -> None:
    dataset = build_short(drawn.recipe)
    assert make.differences(decided(dataset, list(numbers), LateWorkers), list(dataset)) == []


@pytest.mark.jobs
@given(drawn=make.chains(ours=True, lengths=make.FEW), numbers=NUMBERS, cut=st.integers(0, 24))
@settings(max_examples=examples(100))
def test_chains_are_restored_with_any_choice(
    drawn: Drawn, numbers: tuple[tuple[int, int], ...], cut: int
) -> None:
    dataset = build_short(drawn.recipe)
    expected = list(dataset)
    first = decided(dataset, list(numbers), LateWorkers)
    head = list(itertools.islice(first, cut))
    plain = iter(dataset)
    plain.set_state(json.loads(json.dumps(first.get_state())))
    assert make.differences(head + list(plain), expected) == []
    second = decided(dataset, list(numbers), LateWorkers)
    second.set_state(first.get_state())
    assert make.differences(head + list(second), expected) == []


def test_work_is_done_here_then_by_workers() -> None:
    made: list[LateWorkers] = []

    def fake(*args: Any) -> Any:
        made.append(LateWorkers(*args))
        return made[-1]

    rows = M.range(2000).map(lambda n: n).batch(4)
    options = windrow.ReadOptions(prefetch_buffer_size=4)  # which keeps work items small
    found = decided(rows.to_iter_dataset(options), [(5, 2)], fake)
    assert make.differences(found, list(rows)) == []
    assert made[0].requests > 5
    assert made[0].under_way == 0


@pytest.mark.parametrize("method", ["start", "ready"])
def test_without_workers_that_start_functions_stay_here(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    killed: list[LateWorkers] = []

    class NoWorkers(LateWorkers):
        def kill(self) -> None:
            killed.append(self)

    def fails(self: NoWorkers, count: int = 0) -> None:
        raise WorkerError("no more processes")

    setattr(NoWorkers, method, fails)
    rows = M.range(2000).map(lambda n: n)
    options = windrow.ReadOptions(prefetch_buffer_size=4)
    with decided(rows.to_iter_dataset(options), [(5, 2)], NoWorkers) as iterator:
        assert list(iterator) == list(range(2000))
        (chosen,) = iterator.stats().chosen
    assert str(chosen) == "this process: workers cannot be started: no more processes"
    assert "since workers cannot be started: no more processes" in caplog.text
    assert len(killed) == 1


# --- with processes ------------------------------------------------------------------------------


def pids(dataset: Any) -> Any:
    """The dataset, and the process that made each element."""
    return dataset.map(lambda x: (x, os.getpid()))


def taken(iterator: Any, holds: Callable[[Any], bool], limit_s: float = 60.0) -> list[Any]:
    """Elements up to the first one after which something holds."""
    found, end_s = [], time.monotonic() + limit_s
    for element in iterator:
        found.append(element)
        if holds(element):
            return found
        assert time.monotonic() < end_s, "it never held"
    raise AssertionError("the stream is over")


@pytest.mark.jobs
def test_workers_start_once_and_the_stream_stays() -> None:
    plain = M.range(1000).shuffle(seed=1).map(lambda n: n * 3).batch(8).repeat()
    options = windrow.ReadOptions(prefetch_buffer_size=16)
    chain = pids(plain).to_iter_dataset(options)
    expected = iter(plain.to_iter_dataset())
    makers: list[int] = []

    def is_over(element: Any) -> bool:
        makers.append(element[1])
        return len(set(makers)) == 3

    with decided(chain, [(5, 2)]) as iterator:
        assert workers() == []
        found = [batch for batch, _ in taken(iterator, is_over)]
        assert {worker.pid for worker in workers()} == set(makers) - {os.getpid()}
        state = json.loads(json.dumps(iterator.get_state()))
    for batch in found:
        np.testing.assert_array_equal(batch, next(expected))
    assert makers[0] == os.getpid()
    assert state["rows"] == expected.get_state()["rows"]
    with iter(chain.mp_prefetch("auto")) as again:
        again.set_state(state)
        for batch, _ in itertools.islice(again, 200):
            np.testing.assert_array_equal(batch, next(expected))


@pytest.mark.jobs
def test_slow_python_gets_workers() -> None:
    def counts(n: int) -> tuple[int, int]:
        return sum(n for _ in range(50_000)) // 50_000, os.getpid()

    most = MultiprocessingOptions("auto").most_workers
    if most == 1:
        pytest.skip("this process may use one core")
    with iter(M.range(1 << 40).map(counts).mp_prefetch("auto")) as iterator:
        found = taken(iterator, lambda element: element[1] != os.getpid())
        (chosen,) = iterator.stats().chosen
    assert [n for n, _ in found] == list(range(len(found)))
    assert 1 <= chosen.workers <= most
    assert "of the time" in chosen.reason


class Locked:
    """A source whose records cannot be pickled."""

    def __len__(self) -> int:
        return 1 << 40

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(n, threading.Lock()) for n in indices]

    def __getitem__(self, index: int) -> Any:
        return index, threading.Lock()


@pytest.mark.jobs
@pytest.mark.parametrize("source", [True, False])
def test_elements_that_cannot_be_pickled_are_made_here(source: bool) -> None:
    if source:
        chain = M.source(Locked()).map(lambda pair: pair)
    else:
        chain = M.range(1 << 40).map(lambda n: (n, threading.Lock()))
    with decided(chain, [(1, 2)]) as iterator:
        found = taken(iterator, lambda _: "sent" in iterator.stats().chosen[0].reason)
        found += itertools.islice(iterator, 3000)
        (chosen,) = iterator.stats().chosen
    assert [n for n, _ in found] == list(range(len(found)))
    assert chosen.workers == 0
    assert chosen.reason.startswith("elements cannot be sent to workers: TypeError: cannot pickle")


@pytest.mark.jobs
def test_with_what_prepares_workers_functions_run_in_workers_alone() -> None:
    def prepared(index: int, count: int) -> None:
        os.environ["WINDROW_TEST_PREPARED"] = f"{index} of {count}"

    chain = M.range(40).map(lambda n: (n, os.environ["WINDROW_TEST_PREPARED"]))
    found = list(chain.mp_prefetch("auto", prepared))
    assert [n for n, _ in found] == list(range(40))
    assert "WINDROW_TEST_PREPARED" not in os.environ
    limited = MultiprocessingOptions("auto", timeout_s=60)
    with iter(pids(M.range(40)).mp_prefetch(limited)) as iterator:
        assert os.getpid() not in {process for _, process in iterator}
        (chosen,) = iterator.stats().chosen
    assert chosen.workers == limited.most_workers
    assert "functions run in workers only" in chosen.reason


# --- what is said --------------------------------------------------------------------------------


def error_of(make: Callable[[], Any]) -> tuple[type[BaseException], str, list[str]]:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - compared with another one
        make()
    error = raised.value
    return type(error), re.sub("0x[0-9a-f]+", "0x", str(error)), getattr(error, "__notes__", [])


def test_errors_of_functions_are_those_without_workers() -> None:
    dataset = M.source([5, 2, 0]).map(lambda n: 10 // n)
    kind, text, notes = error_of(lambda: list(dataset.mp_prefetch("auto")))
    assert (kind, text) == error_of(lambda: list(dataset.to_iter_dataset()))[:2]
    assert re.search(r"raised in map\(.*\) for element 2", notes[0])
    assert notes[1] == "windrow: made of record 2 of SequenceDataSource(list of 3 records)"


def test_one_core_has_no_workers() -> None:
    program = """
import os
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
import windrow
chain = windrow.MapDataset.range(40).map(lambda n: (n, os.getpid())).mp_prefetch("auto")
with iter(chain) as iterator:
    found = list(iterator)
    assert [n for n, _ in found] == list(range(40))
    assert {process for _, process in found} == {os.getpid()}
    print(iterator.stats().chosen[0].reason)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("only one core may be used\n", "")


def test_the_chain_says_what_it_will_do() -> None:
    dataset = M.range(10).map(abs).mp_prefetch("auto")
    assert dataset._node.written == "mp_prefetch('auto')"
    most = MultiprocessingOptions("auto").most_workers
    text = f"in this process or up to {most} worker processes, as the first elements show"
    assert text in dataset.explain().details()


def test_stats_say_what_was_chosen() -> None:
    iterator = iter(M.range(10).map(abs).mp_prefetch("auto"))
    list(iterator)
    stats = iterator.stats()
    assert f"this process: {UNDECIDED}" in str(stats)
    assert stats.to_json()["chosen"] == [{"workers": 0, "threads": 1, "reason": UNDECIDED}]
    plain = iter(M.range(10).map(abs))
    list(plain)
    assert "chosen" not in plain.stats().to_json()
