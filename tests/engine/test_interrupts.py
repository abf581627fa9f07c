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
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import numpy as np
import pytest

import windrow
from tests import own_datasets
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


# --- while something is in progress --------------------------------------------------------------


class Gate:
    """A function that gives elements from `first` on only once `opened` is set."""

    def __init__(self, first: int) -> None:
        self._first = first
        self.waits, self.opened = threading.Event(), threading.Event()

    def __call__(self, n: int) -> int:
        if n >= self._first and not self.opened.is_set():
            self.waits.set()
            self.opened.wait(60)
        return n


class GatedSource:
    """Records that are read once a gate lets them pass."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return self._gate(index)


def in_function(gate: Gate) -> Any:
    return plain(40).map(gate)


def in_read(gate: Gate) -> Any:
    return MapDataset.source(GatedSource(gate))


def in_filter(gate: Gate) -> Any:
    def is_good(n: int) -> bool:
        if n % 3 == 1:
            raise ValueError("of a bad record")
        return gate(n) % 2 == 0

    return plain(40).to_iter_dataset().filter(is_good).on_bad("skip")


def in_own_dataset(gate: Gate) -> Any:
    own = own_datasets.of(windrow)
    return own.Unbatch(plain(40).map(gate).batch(4).to_iter_dataset()).map(abs)


BLOCKED = [in_function, in_read, in_filter, in_own_dataset]


@pytest.mark.parametrize("make", BLOCKED, ids=lambda make: make.__name__)
def test_an_interrupt_waits_for_nothing_and_the_loop_goes_on(make: Callable[[Gate], Any]) -> None:
    gate, opened, before = Gate(12), Gate(40), left()
    iterator, got = iter(make(gate)), []
    iterator.start_prefetch()
    assert gate.waits.wait(30)
    begun = time.monotonic()
    with alarms() as alarm:
        try:
            alarm(0.05)
            while True:
                got.append(seen(next(iterator)))
        except KeyboardInterrupt:
            pass
    assert time.monotonic() - begun < 2
    threading.Timer(0.05, gate.opened.set).start()  # now two threads are in the function
    whole = rest(iter(make(opened)))
    state = json.loads(json.dumps(iterator.get_state()))
    coming = rest(iterator)
    assert got + coming == whole
    restored = iter(make(opened))
    restored.set_state(state)
    assert rest(restored) == coming
    assert iterator.get_state() == restored.get_state()
    assert until(lambda: not is_left(before))


@pytest.mark.parametrize("make", [*BLOCKED, on_device], ids=lambda make: make.__name__)
def test_closing_waits_for_nothing(make: Callable[[Any], Any]) -> None:
    gate, before = Gate(12), left()
    if make is on_device:
        stream = plain(40).map(gate).batch(2).to_iter_dataset()
        dataset = stream.to_jax(jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    else:
        dataset = make(gate)
    iterator = iter(dataset)
    iterator.start_prefetch()
    assert gate.waits.wait(30)
    begun = time.monotonic()
    iterator.close()
    assert time.monotonic() - begun < 2
    gate.opened.set()
    assert until(lambda: not is_left(before))


@pytest.mark.parametrize("call", ["read", "skip"])
def test_an_interrupt_of_a_call_waits_for_nothing(call: str) -> None:
    gate, before = Gate(12), left()
    iterator, dataset = iter(in_filter(gate)), in_read(gate)
    calls = {"read": lambda: dataset.read(range(40)), "skip": lambda: iterator.skip(30)}
    begun = time.monotonic()
    with alarms() as alarm:
        alarm(0.2)
        with pytest.raises(KeyboardInterrupt):
            calls[call]()
    assert time.monotonic() - begun < 2
    gate.opened.set()
    iterator.close()
    assert until(lambda: not is_left(before))


PROGRAM = """
import sys, threading
import numpy as np, windrow

def wait(n):
    return n if n < 40 else threading.Event().wait(60)

class Source:
    def __len__(self):
        return 100
    def __getitem__(self, index):
        return wait(index)

chains = {
    "function": windrow.MapDataset.source(np.arange(100)).map(wait),
    "read": windrow.MapDataset.source(Source()),
    "device": windrow.MapDataset.source(np.arange(100)).map(wait).batch(4),
}
dataset = chains[sys.argv[1]]
if sys.argv[1] == "device":
    import jax
    dataset = dataset.to_jax(jax.sharding.SingleDeviceSharding(jax.devices()[0]))
iterator = iter(dataset)
next(iterator)
threading.Event().wait(0.3)  # what is made ahead reaches the record that hangs
print("ends", flush=True)
"""


@pytest.mark.parametrize(
    "kind", ["function", "read", pytest.param("device", marks=pytest.mark.jobs)]
)
def test_a_program_ends_though_something_hangs(kind: str) -> None:
    command = [sys.executable, "-X", "dev", "-W", "ignore", "-c", PROGRAM, kind]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "ends\n"
        begun = time.monotonic()
        _, errors = run.communicate(timeout=50)
        assert (run.returncode, errors) == (0, "")
        assert time.monotonic() - begun < 10
