"""`mp_prefetch("auto")`: the stream without workers, whatever numbers of them are chosen while it runs."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests import strategies as make
from tests.processes import workers
from tests.strategies import Drawn
from tests.workers.test_workers_stream import FakeWorkers, Slowly, build_short
from windrow import MultiprocessingOptions
from windrow.engine.choosing_executor import ChosenTeam, WorkClocks
from windrow.engine.executors import Executors
from windrow.engine.worker_choice import WorkerChoice, WorkSample

M = windrow.MapDataset


class EmployedWorkers(FakeWorkers):
    """Fake workers, any number of them."""

    process_ids: Sequence[int] = ()

    def employ(self, count: int) -> None:
        self._most, self._count = 2 * count, count

    def dismiss(self) -> None: ...

    def ready(self) -> int:
        return self._count


class Scripted(WorkerChoice):
    """Chooses the given numbers one after another, and the last one from then on.

    Args:
        numbers: The numbers.
        reached: Whether a number that was chosen is reached, so that the next one may be chosen.
    """

    def __init__(
        self, numbers: Sequence[int], reached: Callable[[int], bool] = lambda number: True
    ) -> None:
        super().__init__(0, 8)
        self.numbers, self._reached = list(numbers), reached

    def saw(self, sample: WorkSample, room: int = 0) -> None:
        if self.numbers and self._reached(self.workers):
            self.workers = self.numbers.pop(0)


def scripted(
    dataset: Any,
    numbers: Sequence[int],
    fake: Any = None,
    reached: Callable[[int], bool] = lambda number: True,
) -> windrow.DatasetIterator[Any]:
    """An iterator that chooses the given numbers of workers, one after another as soon as it may."""
    iterator: windrow.DatasetIterator[Any] = iter(dataset.mp_prefetch("auto"))
    executors = Executors(iterator._node, fake)
    seconds = itertools.count()
    clocks = WorkClocks(lambda: float(next(seconds)), lambda: 0.0, lambda ids: 99)
    for executor in executors._all:
        if executor.workers is not None:
            team: Any = executor.workers
            executors._teams[id(executor)] = ChosenTeam(team, Scripted(numbers, reached), 0, clocks)
    iterator._executors = executors
    return iterator


NUMBERS = st.lists(st.integers(0, 4), max_size=6)


@pytest.mark.jobs
@given(drawn=make.streams(ours=True, most=5), numbers=NUMBERS)
@settings(max_examples=100)
def test_streams_are_the_same_with_any_choice(drawn: Drawn, numbers: list[int]) -> None:
    dataset = build_short(drawn.recipe)
    assert make.differences(scripted(dataset, numbers, EmployedWorkers), list(dataset)) == []


@pytest.mark.jobs
@given(drawn=make.chains(ours=True, lengths=make.FEW), numbers=NUMBERS, cut=st.integers(0, 24))
@settings(max_examples=100)
def test_chains_are_restored_with_any_choice(drawn: Drawn, numbers: list[int], cut: int) -> None:
    dataset = build_short(drawn.recipe)
    expected = list(dataset)
    first = scripted(dataset, numbers, EmployedWorkers)
    head = list(itertools.islice(first, cut))
    plain = iter(dataset)
    plain.set_state(json.loads(json.dumps(first.get_state())))
    assert make.differences(head + list(plain), expected) == []
    second = scripted(dataset, numbers[::-1], EmployedWorkers)
    second.set_state(first.get_state())
    assert make.differences(head + list(second), expected) == []


def test_work_is_done_here_and_by_workers_in_turn() -> None:
    made: list[EmployedWorkers] = []

    def fake(*args: Any) -> Any:
        made.append(EmployedWorkers(*args))
        return made[-1]

    rows = M.range(2000).map(lambda n: n).batch(4)
    options = windrow.ReadOptions(prefetch_buffer_size=4)  # which keeps work items small
    stream = rows.to_iter_dataset(options)
    found = scripted(stream, [2, 0, 3, 1, 0], fake)
    assert make.differences(found, list(rows)) == []
    assert made[0].requests > 5
    assert made[0].under_way == 0


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
def test_workers_come_and_go_and_the_stream_stays() -> None:
    plain = M.range(1000).shuffle(seed=1).map(lambda n: n * 3).batch(8).repeat()
    options = windrow.ReadOptions(prefetch_buffer_size=16)
    chain = pids(plain).to_iter_dataset(options)
    expected = iter(plain.to_iter_dataset())
    here, numbers = os.getpid(), [2, 1, 0, 3, 0]
    running: list[int] = []

    def run(number: int) -> bool:
        running.append(len(workers()))
        return running[-1] == number

    with scripted(chain, numbers, reached=run) as iterator:
        assert iterator._executors is not None
        (team,) = iterator._executors._teams.values()
        choice: Any = team.choice
        assert workers() == []
        taken_now = itertools.count()
        makers: set[int] = set()

        def is_over(element: Any) -> bool:
            makers.add(element[1])
            if next(taken_now) % 20:  # to look at processes takes long
                return False
            return not choice.numbers and not workers()

        found = [batch for batch, _ in taken(iterator, is_over)]
        state = json.loads(json.dumps(iterator.get_state()))
    for batch in found:
        np.testing.assert_array_equal(batch, next(expected))
    assert state["rows"] == expected.get_state()["rows"]
    # In turn 2, 1, none and 3 ran, and those that came later did work, too.
    left = iter(running)
    assert all(number in left for number in (2, 1, 0, 3))
    assert max(running) == 3
    assert here in makers
    assert len(makers) > 1 + 2
    with iter(chain.mp_prefetch("auto")) as again:
        again.set_state(state)
        for batch, _ in itertools.islice(again, 200):
            np.testing.assert_array_equal(batch, next(expected))


@pytest.mark.jobs
def test_a_killed_worker_is_replaced() -> None:
    chain = pids(M.range(1 << 40))
    with scripted(chain, [2]) as iterator:
        found = taken(iterator, lambda element: element[1] != os.getpid())
        seen = {os.getpid(), *(worker.pid for worker in workers())}

        def go_on() -> None:
            os.kill(found[-1][1], signal.SIGKILL)
            found.extend(taken(iterator, lambda element: element[1] not in seen))

        with pytest.warns(RuntimeWarning, match=r"worker \d of \d .* ended \(.*SIGKILL"):
            go_on()
    assert [n for n, _ in found] == list(range(len(found)))


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
    with scripted(chain, [2]) as iterator:
        found = taken(iterator, lambda _: "sent" in iterator.stats().chosen[0].reason)
        found += itertools.islice(iterator, 3000)
        (chosen,) = iterator.stats().chosen
    assert [n for n, _ in found] == list(range(len(found)))
    assert chosen.workers == 0
    assert chosen.reason.startswith("elements cannot be sent to workers: TypeError: cannot pickle")


@pytest.mark.jobs
def test_sources_that_workers_read_are_read_here_too() -> None:
    dataset = M.source(Slowly()).shuffle(seed=1).map(lambda pair: pair)
    here = list(dataset.mp_prefetch("auto"))
    assert [index for index, _ in here] == [index for index, _ in dataset]
    assert {process for _, process in here} == {os.getpid()}


@pytest.mark.jobs
def test_with_what_prepares_workers_functions_run_in_workers_alone() -> None:
    def prepared(index: int, count: int) -> None:
        os.environ["WINDROW_TEST_PREPARED"] = f"{index} of {count}"

    chain = M.range(40).map(lambda n: (n, os.environ["WINDROW_TEST_PREPARED"]))
    found = list(chain.mp_prefetch("auto", prepared))
    assert [n for n, _ in found] == list(range(40))
    assert "WINDROW_TEST_PREPARED" not in os.environ
    limited = MultiprocessingOptions("auto", timeout_s=60)
    assert os.getpid() not in {process for _, process in pids(M.range(40)).mp_prefetch(limited)}


# --- what is said --------------------------------------------------------------------------------


def error_of(make: Callable[[], Any]) -> tuple[type[BaseException], str, list[str]]:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - compared with another one
        make()
    error = raised.value
    return type(error), re.sub("0x[0-9a-f]+", "0x", str(error)), getattr(error, "__notes__", [])


def test_functions_that_cannot_be_pickled_are_refused_as_ever() -> None:
    lock = threading.Lock()
    dataset = M.range(10).map(lambda n: (n, lock))
    auto = error_of(lambda: list(dataset.mp_prefetch("auto")))
    assert auto == error_of(lambda: list(dataset.mp_prefetch(2)))
    assert "what cannot be pickled belongs to map(" in "".join(auto[2])


def test_errors_of_functions_are_those_without_workers() -> None:
    dataset = M.source([5, 2, 0]).map(lambda n: 10 // n)
    kind, text, notes = error_of(lambda: list(dataset.mp_prefetch("auto")))
    assert (kind, text) == error_of(lambda: list(dataset.to_iter_dataset()))[:2]
    assert re.search(r"raised in map\(.*\) for element 2", notes[0])
    assert notes[1] == "windrow: made of record 2 of SequenceDataSource(list of 3 records)"


@pytest.mark.parametrize("length", [0, 1, 2])
def test_short_datasets(length: int) -> None:
    dataset = M.source(np.arange(length)).map(lambda n: n + 1)
    with iter(dataset.mp_prefetch("auto")) as iterator:
        assert list(iterator) == [n + 1 for n in range(length)]
        (chosen,) = iterator.stats().chosen if length else (None,)
    assert chosen is None or chosen.reason == "nothing is measured yet"


def test_without_functions_nothing_is_chosen() -> None:
    iterator = iter(M.range(5).mp_prefetch("auto"))
    assert (list(iterator), iterator.stats().chosen) == ([0, 1, 2, 3, 4], ())


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
    print(iterator.stats().chosen[0].most)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_the_chain_says_what_it_will_do() -> None:
    dataset = M.range(10).map(abs).mp_prefetch("auto")
    assert dataset._node.written == "mp_prefetch('auto')"
    most = MultiprocessingOptions("auto").most_workers
    text = f"in this process or up to {most} worker processes, as measured while it runs"
    assert text in str(dataset.explain())


def test_stats_say_what_was_chosen() -> None:
    iterator = iter(M.range(10).map(abs).mp_prefetch("auto"))
    list(iterator)
    stats = iterator.stats()
    most = stats.chosen[0].most
    told = f"this process; at most {most} worker processes: nothing is measured yet"
    assert told in str(stats)
    assert stats.to_json()["chosen"] == [
        {"workers": 0, "most": most, "threads": 1, "reason": "nothing is measured yet"}
    ]
    plain = iter(M.range(10).map(abs))
    list(plain)
    assert "chosen" not in plain.stats().to_json()
