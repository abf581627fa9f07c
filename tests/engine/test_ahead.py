"""Working ahead: bounded in elements and bytes, and gone when the iterator is."""

from __future__ import annotations

import contextlib
import gc
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import windrow
from tests import processes
from windrow.errors import ClosedError

MIB = 1 << 20


class Counting:
    """A function that counts its calls, and how far they were ahead of what was consumed."""

    def __init__(self, enough: int, size_bytes: int = 8) -> None:
        self.calls = self.consumed = self.most_ahead = 0
        self.enough = threading.Event()
        self._enough = enough
        self._size = size_bytes

    def __call__(self, element: Any) -> Any:
        self.calls += 1
        self.most_ahead = max(self.most_ahead, self.calls - self.consumed)
        if self.calls - self.consumed >= self._enough:
            self.enough.set()
        return np.zeros(self._size, np.uint8)


_before = set[threading.Thread]()


@pytest.fixture(autouse=True)
def earlier_threads() -> None:
    """Leave out the threads of other tests' sources, which live as long as these."""
    _before.clear()
    _before.update(threading.enumerate())


def windrow_threads() -> list[threading.Thread]:
    """Threads of iterators: not those of the readers' pools, which live as long as the process."""
    threads = [t for t in threading.enumerate() if t.name.startswith("windrow")]
    pools = ("windrow-zarr", "windrow-array-record")
    return [t for t in threads if t not in _before and not t.name.startswith(pools)]


def endless(function: Any) -> windrow.MapDataset[Any]:
    return windrow.MapDataset.source(np.arange(1000)).map(function).repeat()


def consume(iterator: windrow.DatasetIterator[Any], function: Counting) -> None:
    """Wait until the thread is as far ahead as it should come, then take many elements."""
    iterator.start_prefetch()
    assert function.enough.wait(20)
    for _ in range(300):
        next(iterator)
        function.consumed += 1


def test_elements_made_ahead_are_bounded_by_their_number() -> None:
    function = Counting(enough=20)
    options = windrow.ReadOptions(prefetch_buffer_size=20)
    with iter(endless(function).to_iter_dataset(options)) as iterator:
        consume(iterator, function)
    # The buffer, the block that waits to enter it, and the block with the consumer.
    assert 20 <= function.most_ahead <= 3 * 20


def test_elements_made_ahead_are_bounded_by_their_bytes() -> None:
    function = Counting(enough=4, size_bytes=MIB)
    options = windrow.ReadOptions(memory_bytes=32 * MIB)
    with iter(endless(function).to_iter_dataset(options)) as iterator:
        consume(iterator, function)
    assert 4 <= function.most_ahead <= 4 + 3


@pytest.mark.parametrize("options", [{"num_threads": 0}, {"prefetch_buffer_size": 0}])
def test_without_threads_nothing_starts_one(options: dict[str, Any]) -> None:
    dataset = endless(lambda x: x).to_iter_dataset(windrow.ReadOptions(**options))
    iterator = iter(dataset)
    iterator.start_prefetch()
    next(iterator)
    assert windrow_threads() == []


def test_close_ends_the_threads() -> None:
    iterator = iter(endless(lambda x: x))
    next(iterator)
    assert windrow_threads() != []
    iterator.close()
    assert windrow_threads() == []


def test_a_dropped_iterator_ends_its_threads() -> None:
    iterator = iter(endless(lambda x: x))
    next(iterator)
    threads = windrow_threads()
    assert threads
    del iterator
    gc.collect()
    for thread in threads:
        thread.join(20)
    assert windrow_threads() == []


@pytest.mark.parametrize("end", ["raise SystemExit(0)", "import os; os.close(0)"])
def test_a_program_ends_in_the_middle_of_iterating(end: str) -> None:
    program = (
        "import numpy as np, windrow\n"
        "source = windrow.MapDataset.source(np.zeros((4096, 64)))\n"
        "iterators = [iter(source.shuffle(1).map(lambda x: x + 1).batch(16).repeat())"
        " for _ in range(8)]\n"
        "for i in iterators: next(i)\n"
        "print('made', flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program + end], capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "made\n", "")


TOGETHER: dict[str, Callable[[Any], Any]] = {
    "after": lambda each: each.map(lambda column: column * 2, batched=True),
    "in batches": lambda each: each.map(lambda column: column * 2, batched=True).batch(3),
    "of batches": lambda each: each.batch(3).map(lambda column: column * 2, batched=True),
    "twice": lambda each: each.map(abs, batched=True).map(lambda n: n * 2).map(abs, batched=True),
}


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.jobs)])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("together", TOGETHER.values(), ids=TOGETHER)
@pytest.mark.parametrize("fails_at", [4, 270])
def test_elements_before_an_error_come_first_where_rows_are_called_together(
    tmp_path: Path, together: Any, fails_at: int, is_stream: bool, workers: int
) -> None:
    repaired = tmp_path / "repaired"

    def fail(n: int) -> int:
        if n == fails_at and not repaired.exists():
            raise OSError("no connection")
        return n

    failing = windrow.MapDataset.range(300).map(fail)
    dataset = together(failing.to_iter_dataset() if is_stream else failing)
    if workers:
        dataset = dataset.mp_prefetch(workers)
    iterator, got = iter(dataset), list[int]()

    def take_all() -> None:
        for element in iterator:
            got.extend(np.atleast_1d(element).tolist())

    for _ in range(2):
        with pytest.raises(OSError, match="no connection"):
            take_all()
    size = 3 if together in (TOGETHER["in batches"], TOGETHER["of batches"]) else 1
    assert got == list(range(0, 2 * (fails_at // size * size), 2))
    again = iter(dataset)
    again.set_state(iterator.get_state())
    repaired.touch()
    for each in (again, iterator):
        rest = [n for element in each for n in np.atleast_1d(element).tolist()]
        assert got + rest == list(range(0, 600, 2))


@pytest.mark.parametrize("end", ["close", "set_state", "drop"])
def test_a_stream_that_yields_nothing_can_be_ended(end: str) -> None:
    calls = threading.Semaphore(0)

    def nothing(x: Any) -> bool:
        calls.release()
        return False

    iterator = iter(windrow.MapDataset.source([1, 2, 3]).repeat().filter(nothing))
    state = iterator.get_state()
    iterator.start_prefetch()
    assert calls.acquire(timeout=300)
    threads = windrow_threads()
    if end == "close":
        iterator.close()
    elif end == "set_state":
        iterator.set_state(state)
    else:
        del iterator
        gc.collect()
    for thread in threads:
        thread.join(20)
    assert windrow_threads() == []


def test_a_consumer_that_waits_is_told_that_the_iterator_was_closed() -> None:
    stop = threading.Event()
    endless = windrow.MapDataset.source(np.arange(10**6)).repeat()
    iterator = iter(endless.filter(lambda x: stop.is_set()))
    errors: list[Exception] = []

    def consume() -> None:
        try:
            next(iterator)
        except Exception as error:
            errors.append(error)

    consumer = threading.Thread(target=consume)
    iterator.start_prefetch()
    consumer.start()
    iterator.close()
    stop.set()
    consumer.join(20)
    assert [type(error) for error in errors] == [ClosedError]


def closing_at(line: int, iterator: windrow.DatasetIterator[Any]) -> Callable[..., Any]:
    """A trace function: another thread closes the iterator at a line of what begins its work."""
    begins, lines = windrow.DatasetIterator._begun.__code__, itertools.count()

    def traced(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is not begins:
            return None
        if event == "line" and next(lines) == line:
            closing = threading.Thread(target=iterator.close)
            closing.start()
            closing.join(20)
            assert not closing.is_alive()
        return traced

    return traced


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.jobs)])
def test_an_iterator_that_is_closed_while_it_begins_leaves_nothing(workers: int) -> None:
    chain = endless(abs).to_iter_dataset().mp_prefetch(workers)
    for line in itertools.count():
        iterator, before = iter(chain), sys.gettrace()
        sys.settrace(closing_at(line, iterator))
        try:
            with contextlib.suppress(ClosedError):
                next(iterator)
        finally:
            sys.settrace(before)
        was_closed = iterator._closed
        iterator.close()
        for thread in windrow_threads():
            thread.join(20)
        assert windrow_threads() == []
        assert processes.workers() == []
        if not was_closed:
            break
    assert line > 10


def test_parts_of_a_mixture_keep_their_options_and_share_the_threads() -> None:
    reads: list[int] = []

    class Source:
        fingerprint = "counted"

        def __len__(self) -> int:
            return 10_000

        def __getitem__(self, index: int) -> Any:
            raise AssertionError("read in batches")

        def read(self, indices: Any) -> Any:
            reads.append(len(indices))
            return np.asarray(indices)

    few = windrow.ReadOptions(num_threads=2, prefetch_buffer_size=2)
    parts = [windrow.MapDataset.source(Source()).to_iter_dataset(few) for _ in range(40)]
    with iter(windrow.IterDataset.mix(parts)) as iterator:
        for _ in range(400):
            next(iterator)
        assert max(reads) == 2
        assert len(windrow_threads()) <= 1 + 2
