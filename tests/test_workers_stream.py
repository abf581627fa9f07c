"""The stream of workers is the stream without them: orders, states, errors, in every chain."""

from __future__ import annotations

import collections
import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests import strategies as make
from tests.strategies import Drawn
from windrow import MultiprocessingOptions
from windrow.crew import Crews
from windrow.errors import ElementError
from windrow.handover import Parcel, Room, failure_of, opened

M = windrow.MapDataset


class FakeWorkers:
    """Does requests in this process, late and out of order, from bytes to bytes as workers do."""

    def __init__(self, handler: Any, options: MultiprocessingOptions, init: Any) -> None:
        message = Parcel.of((handler, init)).message(None)
        self._handler, _ = opened(message, None)
        self._most = options.num_workers * (1 + options.per_worker_buffer_size)
        self._waiting: dict[int, bytes] = {}
        self._done: dict[int, bytes] = {}
        self._numbers = itertools.count()
        self._random = random.Random(0)
        self.requests = 0

    def start(self) -> None: ...

    def submit(self, request: Any, tries: int = 3) -> int:
        number = next(self._numbers)
        self._waiting[number] = Parcel.of(request).message(None)
        self.requests += 1
        return number

    @property
    def has_room(self) -> bool:
        return len(self._waiting) + len(self._done) < self._most

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
            reply = self._handler(request, Room(None))
        except BaseException as error:
            reply = (failure_of(error),)
        self._done[number] = Parcel.of(reply).message(None)

    def interrupt(self) -> None: ...

    def forget(self) -> None:
        self._waiting.clear()
        self._done.clear()

    def kill(self) -> None: ...


def spread(dataset: Any, workers: int, buffer: int = 1) -> windrow.DatasetIterator[Any]:
    """An iterator of `dataset`, with its functions run by fake workers."""
    options = MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=buffer)
    iterator = iter(dataset.mp_prefetch(options))
    iterator._crews = Crews(iterator._node, FakeWorkers)
    return iterator


def build_short(recipe: make.Recipe) -> Any:
    """A stream of a recipe, not too long."""
    dataset: Any = make.build(recipe)
    return dataset[:24].to_iter_dataset() if isinstance(dataset, M) else dataset.limit(24)


@given(drawn=make.streams(ours=True, most=5), workers=st.integers(1, 5), buffer=st.integers(1, 3))
@settings(max_examples=150)
def test_streams_are_the_same_with_workers(drawn: Drawn, workers: int, buffer: int) -> None:
    dataset = build_short(drawn.recipe)
    assert make.differences(spread(dataset, workers, buffer), list(dataset)) == []


@given(drawn=make.chains(ours=True, lengths=make.FEW), workers=st.integers(1, 5))
@settings(max_examples=150)
def test_chains_are_the_same_with_workers(drawn: Drawn, workers: int) -> None:
    dataset = build_short(drawn.recipe)
    assert make.differences(spread(dataset, workers), list(dataset)) == []


@given(
    drawn=make.streams(ours=True, most=4),
    cut=st.integers(0, 24),
    before=st.integers(0, 5),
    after=st.integers(0, 5),
)
@settings(max_examples=150)
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
