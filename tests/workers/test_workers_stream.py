"""The stream of workers is the stream without them: orders, states, errors, in every chain."""

from __future__ import annotations

import itertools
import json
import os
import random
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests import strategies as make
from tests.hypothesis_profiles import examples
from tests.strategies import Drawn
from windrow import MultiprocessingOptions
from windrow.engine.executors import Executors
from windrow.workers.messages import Message, MessageBuffer, failure_of, opened

M = windrow.MapDataset


class FakeWorkers:
    """Does requests in this process, late and out of order, from bytes to bytes as workers do."""

    def __init__(self, handler: Any, options: MultiprocessingOptions, init: Any) -> None:
        message = Message.of((handler, init)).packed(None)
        self._handler, _ = opened(message, None)
        self._most = options.most_workers * (1 + options.per_worker_buffer_size)
        self._waiting: dict[int, bytes] = {}
        self._done: dict[int, bytes] = {}
        self._numbers = itertools.count()
        self._random = random.Random(0)
        self.requests = 0
        self.request_bytes = 0

    def start(self, count: int | None = None) -> None: ...

    def submit(self, request: Any, tries: int = 3) -> int:
        number = next(self._numbers)
        self._waiting[number] = Message.of(request).packed(None)
        self.requests += 1
        return number

    @property
    def under_way(self) -> int:
        return len(self._waiting) + len(self._done)

    @property
    def wants_jobs(self) -> bool:
        return self.under_way < self._most

    def is_done(self, ticket: int) -> bool:
        if self._waiting and self._random.random() < 0.5:
            self._work(self._random.choice(list(self._waiting)))
        return ticket in self._done

    def wait(self, ticket: int) -> Any:
        if ticket not in self._done:
            self._work(ticket)
        found = opened(self._done.pop(ticket), None)
        if isinstance(found, tuple):
            raise found[0].raised()
        return found

    def _work(self, number: int) -> None:
        request = opened(self._waiting.pop(number), None)
        try:
            reply = self._handler(request, MessageBuffer(None))
        except BaseException as error:
            reply = (failure_of(error),)
        self._done[number] = Message.of(reply).packed(None)

    def interrupt(self) -> None: ...

    def drop(self, ticket: int) -> None:
        self._waiting.pop(ticket, None)
        self._done.pop(ticket, None)

    def forget(self) -> None:
        self._waiting.clear()
        self._done.clear()

    def kill(self) -> None: ...


def spread(dataset: Any, workers: int, buffer: int = 1) -> windrow.DatasetIterator[Any]:
    """An iterator of `dataset`, with its functions run by fake workers."""
    options = MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=buffer)
    iterator: windrow.DatasetIterator[Any] = iter(dataset.mp_prefetch(options))
    fake: Any = FakeWorkers
    iterator._executors = Executors(iterator._node, fake)
    return iterator


def build_short(recipe: make.Recipe) -> Any:
    """A stream of a recipe, not too long."""
    dataset: Any = make.build(recipe)
    return dataset[:24].to_iter_dataset() if isinstance(dataset, M) else dataset.limit(24)


@pytest.mark.jobs
@given(drawn=make.streams(ours=True, most=5), workers=st.integers(1, 5), buffer=st.integers(1, 3))
@settings(max_examples=examples(150))
def test_streams_are_the_same_with_workers(drawn: Drawn, workers: int, buffer: int) -> None:
    dataset = build_short(drawn.recipe)
    assert make.differences(spread(dataset, workers, buffer), list(dataset)) == []


@pytest.mark.jobs
@given(drawn=make.chains(ours=True, lengths=make.FEW), workers=st.integers(1, 5))
@settings(max_examples=examples(150))
def test_chains_are_the_same_with_workers(drawn: Drawn, workers: int) -> None:
    dataset = build_short(drawn.recipe)
    assert make.differences(spread(dataset, workers), list(dataset)) == []


@pytest.mark.jobs
@given(
    drawn=make.streams(ours=True, most=4),
    cut=st.integers(0, 24),
    before=st.integers(0, 5),
    after=st.integers(0, 5),
)
@settings(max_examples=examples(150))
def test_streams_are_restored_under_another_number_of_workers(
    drawn: Drawn, cut: int, before: int, after: int
) -> None:
    dataset = build_short(drawn.recipe)
    expected = list(dataset)
    first = spread(dataset, before)
    head = list(itertools.islice(first, cut))
    second = spread(dataset, after)
    second.set_state(json.loads(json.dumps(first.get_state())))
    assert make.differences(head + list(second), expected) == []
    plain = iter(dataset)
    plain.set_state(first.get_state())
    assert make.differences(plain, expected[len(head) :]) == []


def test_streams_that_end_early_leave_nothing_under_way() -> None:
    made: list[FakeWorkers] = []

    def fake(*args: Any) -> Any:
        made.append(FakeWorkers(*args))
        return made[-1]

    rows = M.range(100).map(lambda n: n)
    stream = rows.to_iter_dataset().limit(7).repeat(3).mp_prefetch(3)
    iterator = iter(stream)
    iterator._executors = Executors(iterator._node, fake)
    assert list(iterator) == [*range(7)] * 3
    (team,) = made
    assert team.requests > 9  # more than were wanted, or this shows nothing
    assert team.under_way == 0


# --- with processes ------------------------------------------------------------------------------


@pytest.mark.jobs
@given(drawn=make.streams(ours=True, most=4), cut=st.integers(0, 24), data=st.data())
@settings(max_examples=3, deadline=None)
def test_processes_give_the_same_stream(drawn: Drawn, cut: int, data: st.DataObject) -> None:
    dataset = build_short(drawn.recipe)
    expected = list(dataset)
    workers, before, after = data.draw(st.permutations([0, 1, 2, 3, 5]))[:3]
    assert make.differences(dataset.mp_prefetch(workers), expected) == []
    with iter(dataset.mp_prefetch(before)) as first:
        head = list(itertools.islice(first, cut))
        state = json.loads(json.dumps(first.get_state()))
    with iter(dataset.mp_prefetch(after)) as second:
        second.set_state(state)
        assert make.differences(head + list(second), expected) == []


class Slowly:
    """A source that reads records one by one, and gives the process that reads them."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, os.getpid()


@pytest.mark.jobs
def test_sources_without_batched_reads_are_read_in_workers() -> None:
    dataset = M.source(Slowly()).shuffle(seed=1).map(lambda pair: pair)
    found = list(dataset.mp_prefetch(2))
    assert [index for index, _ in found] == [index for index, _ in dataset]
    assert os.getpid() not in {process for _, process in found}


def test_what_has_no_functions_needs_no_workers() -> None:
    dataset = M.source(np.arange(20.0)).shuffle(seed=1).batch(3)
    before = set(psutil.Process().children())
    with iter(dataset.mp_prefetch(2)) as iterator:
        assert make.differences(iterator, list(dataset)) == []
        assert set(psutil.Process().children()) <= before


@pytest.mark.jobs
def test_two_crews_in_one_chain() -> None:
    parts = [M.range(30).map(lambda x, by=by: x + by).to_iter_dataset() for by in (100, 200)]  # type: ignore[misc]
    mixed = windrow.IterDataset.mix([part.mp_prefetch(1) for part in parts])
    chain = mixed.map(lambda x: (x, os.getpid())).mp_prefetch(2).map(lambda pair: pair[0])
    assert list(chain) == list(windrow.IterDataset.mix(parts))
