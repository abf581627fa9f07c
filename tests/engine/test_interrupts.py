"""KeyboardInterrupt in a loop that goes on with the same iterator, as in a notebook.

At most the element on its way is lost, and the state is that of the element given last.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import linecache
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np
import pytest

import windrow
from tests.processes import is_left, left, until
from windrow import IterDataset, MapDataset, base_iterator, transforms
from windrow.devices import delivery
from windrow.engine import prefetch_thread
from windrow.errors import ClosedError

# What takes blocks from the threads that make them; and all that the loop's thread runs.
TAKING = tuple(
    str(module.__file__) for module in (windrow.iterator, base_iterator, prefetch_thread, delivery)
)
ALL = tuple(str(Path(each.__file__ or "").parent) for each in (windrow, transforms))


def plain(count: int) -> Any:
    return MapDataset.source(np.arange(count))


def mapped(count: int) -> Any:
    return plain(4 * count).shuffle(seed=1).map(lambda n: n + 1).batch(4)


def packed(count: int) -> Any:
    documents = [np.full(1 + n % 7, n) for n in range(2 * count)]
    return MapDataset.source(documents).pack(8).map(lambda row: row["tokens"])


def mixed(count: int) -> Any:
    parts = [plain(count).map(lambda n: n * 2), plain(count).map(lambda n: n * 2 + 1)]
    streams = [part.to_iter_dataset() for part in parts]
    return IterDataset.interleave([IterDataset.mix(streams, [2, 1]), *streams[:1]], cycle_length=2)


def filtered(count: int) -> Any:
    stream = plain(2 * count).to_iter_dataset().filter(lambda n: n % 2 == 1)
    return stream.window_shuffle(8, seed=1)


def dealt(count: int) -> Any:
    return plain(4 * count).to_iter_dataset(lanes=2).batch(4).map(lambda n: n * 3)


def on_device(count: int) -> Any:
    return (
        mapped(count).to_iter_dataset().to_jax(jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    )


CHAINS = [plain, mapped, packed, mixed, filtered, dealt, on_device]

# At random moments, of each chain but the last: a thousand in all.
INTERRUPTS = 167


def seen(element: Any) -> Any:
    return np.asarray(element).tolist()


def rest(iterator: Any) -> list[Any]:
    return [seen(element) for element in iterator]


class Tracing:
    """Counts how often each of our lines runs in this thread, and interrupts it at one of them."""

    def __init__(self, files: tuple[str, ...], at: tuple[str, int, int] | None = None) -> None:
        self._files = files
        self.counts: collections.Counter[tuple[str, int]] = collections.Counter()
        self.at, self.was_interrupted = at, False

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(self._files):
            return None
        # A signal cannot come between the body of a `with` and the end of it, and a trace function can.
        if event == "line" and not linecache.getline(file, frame.f_lineno).lstrip().startswith(
            "with "
        ):
            self.counts[file, frame.f_lineno] += 1
            if self.at == (file, frame.f_lineno, self.counts[file, frame.f_lineno]):
                self.at, self.was_interrupted = None, True
                raise KeyboardInterrupt
        return self

    def run(self, call: Callable[[], Any]) -> Any:
        """The result of a call under this trace."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            return call()
        finally:
            sys.settrace(before)


def first_and_last(counts: collections.Counter[tuple[str, int]]) -> Iterator[tuple[str, int, int]]:
    for (file, line), count in sorted(counts.items()):
        for number in sorted({1, count}):
            yield file, line, number


def advanced(iterator: Any, _: Any) -> None:
    next(iterator)


# What the loop does, and the number of elements before the position after it.
STEPS: list[tuple[Callable[[Any, Any], Any], Callable[[int], int]]] = [
    *[(advanced, lambda at: at + 1)] * 3,
    (lambda iterator, _: iterator.get_state(), lambda at: at),
    *[(advanced, lambda at: at + 1)] * 2,
    (lambda iterator, _: iterator.skip(2), lambda at: at + 2),
    *[(advanced, lambda at: at + 1)] * 3,
    (lambda iterator, state: iterator.set_state(state), lambda at: 1),
    *[(advanced, lambda at: at + 1)] * 2,
]


def interrupted(dataset: Any, state: Any, tracing: Tracing) -> tuple[Any, set[int]]:
    """An iterator after the steps up to the interrupt, and where it may be."""
    iterator, at = iter(dataset), 0
    for step, after in STEPS:
        try:
            tracing.run(lambda step=step: step(iterator, state))  # type: ignore[misc]
        except KeyboardInterrupt:
            return iterator, {at, after(at)}
        at = after(at)
    return iterator, {at}


def cases() -> Iterator[Any]:
    for make in CHAINS:
        if make in (plain, mapped):
            yield pytest.param(make, TAKING, id=make.__name__)
        yield pytest.param(make, ALL, id=f"{make.__name__}-all", marks=pytest.mark.jobs)


@pytest.mark.parametrize(("make", "files"), [*cases()])
def test_an_interrupt_at_any_line_loses_one_element_at_most(
    make: Callable[[int], Any], files: tuple[str, ...]
) -> None:
    dataset = make(24)
    whole, first, tracing = rest(iter(dataset)), iter(dataset), Tracing(files)
    next(first)
    state = first.get_state()
    first.close()
    interrupted(dataset, state, tracing)[0].close()
    lines = list(first_and_last(tracing.counts))
    for at in lines:
        iterator, places = interrupted(dataset, state, Tracing(files, at))
        found = json.loads(json.dumps(iterator.get_state()))
        coming = rest(iterator)
        iterator.set_state(found)
        assert coming == rest(iterator) == whole[len(whole) - len(coming) :], at
        assert len(whole) - len(coming) in places, at
    assert len(lines) > 100


@pytest.mark.parametrize("make", [plain, on_device])
def test_closing_that_was_interrupted_can_be_finished(make: Callable[[int], Any]) -> None:
    dataset, lines, before = make(24), [("", 0, 0)], left()
    for at in itertools.count():
        tracing, iterator = Tracing(TAKING, lines[at]), iter(dataset)
        next(iterator)
        with contextlib.suppress(KeyboardInterrupt):
            tracing.run(iterator.close)
        iterator.close()
        with pytest.raises(ClosedError):
            next(iterator)
        if not at:
            lines += first_and_last(tracing.counts)
        if at == len(lines) - 1:
            break
    assert len(lines) > 20
    assert until(lambda: not is_left(before))


# --- at random moments ---------------------------------------------------------------------------


@contextlib.contextmanager
def alarms() -> Iterator[Callable[[float], None]]:
    """A function that lets this thread be interrupted after some seconds, within the context."""
    armed = True

    def interrupt(*_: Any) -> None:
        if armed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield lambda after_s: signal.setitimer(signal.ITIMER_REAL, after_s) and None
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def lost_at(reference: Any, received: int, element: Any) -> int:
    """How many elements are missing between `received` elements and this one; 2 for many."""
    reference.skip(received)
    for lost in range(2):
        if seen(next(reference)) == element:
            return lost
    return 2


@pytest.mark.soak
@pytest.mark.jobs
@pytest.mark.parametrize("make", CHAINS[:6], ids=lambda make: make.__name__)
def test_interrupts_at_random_moments_lose_one_element_at_most(
    make: Callable[[int], Any], moments: random.Random
) -> None:
    dataset = make(10_000).to_iter_dataset() if make is plain else make(10_000)
    dataset = dataset.repeat()
    iterator, reference = iter(dataset), iter(dataset)
    lost: collections.Counter[int] = collections.Counter()
    for _ in range(INTERRUPTS):
        received = 0
        with alarms() as alarm:
            try:
                alarm(moments.uniform(1e-4, 2e-2))
                while True:
                    next(iterator)
                    received += 1
            except KeyboardInterrupt:
                pass
        restored = iter(dataset)
        restored.set_state(json.loads(json.dumps(iterator.get_state())))
        after = seen(next(iterator))
        assert seen(next(restored)) == after
        restored.close()
        lost[lost_at(reference, received, after)] += 1
    assert set(lost) <= {0, 1}, lost
