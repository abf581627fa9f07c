"""Faults of memory: little of it, many iterators, and consumers that sleep or share a dataset."""

from __future__ import annotations

import gc
import random
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import windrow
from tests.processes import Program, is_left, left, until

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.soak,
    pytest.mark.usefixtures("leaves_nothing"),
    pytest.mark.skipif(sys.platform == "win32", reason="workers need POSIX"),
]

MIB = 1 << 20


def filled(x: Any) -> Any:
    return np.full(100_000, x, np.int32)


def arrays(records: int = 60) -> windrow.MapDataset[Any]:
    return windrow.MapDataset.source(np.arange(records)).shuffle(seed=1).map(filled)


def sums(elements: Any) -> list[int]:
    return [int(np.asarray(element).astype(np.int64).sum()) for element in elements]


# --- little shared memory ------------------------------------------------------------------------


@pytest.mark.parametrize("shared_bytes", [0, 1, 4096, 500_000, 2 * MIB])
@pytest.mark.parametrize("batch", [1, 16])
def test_batches_larger_than_all_shared_memory_arrive(shared_bytes: int, batch: int) -> None:
    options = windrow.MultiprocessingOptions(2, shared_bytes=shared_bytes)
    dataset = arrays().batch(batch)
    assert sums(dataset.mp_prefetch(options)) == sums(dataset)


LIMITED = """
import resource, sys
import numpy as np
import windrow

def filled(x):
    return np.full(100_000, x, np.int32)

resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))
dataset = windrow.MapDataset.source(np.arange(60)).map(filled).batch(4)
options = windrow.MultiprocessingOptions(2, shared_bytes=64 << 20)
for number, batch in enumerate(dataset.mp_prefetch(options)):
    assert (batch == np.arange(4 * number, 4 * number + 4)[:, None]).all()
print(number)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit does not hold there for this memory")
def test_a_limit_on_the_size_of_files_is_a_warning(tmp_path: Path) -> None:
    with Program(tmp_path, ["-c", LIMITED]) as run:
        run.ends()
        assert run.out == "14\n"
        assert run.errors.count("RuntimeWarning") == 1
        assert "shared memory: asked for 67,108,864 bytes, got none" in run.errors
        assert "MultiprocessingOptions(shared_bytes=" in run.errors


# --- a consumer that sleeps ----------------------------------------------------------------------


def test_nothing_grows_while_the_consumer_sleeps(tmp_path: Path) -> None:
    made = tmp_path / "made"

    def count(x: Any) -> Any:
        with made.open("ab") as file:
            file.write(b".")
        return np.full(MIB, x, np.uint8)

    options = windrow.MultiprocessingOptions(2, shared_bytes=32 * MIB)
    read = windrow.ReadOptions(memory_bytes=64 * MIB)
    dataset = windrow.MapDataset.source(np.arange(1000)).map(count).to_iter_dataset(read)
    with iter(dataset.mp_prefetch(options)) as iterator:
        next(iterator)
        # Until nothing was made for a while.
        sizes: list[int] = []

        def is_still() -> bool:
            sizes.append(made.stat().st_size)
            return len(sizes) > 100 and sizes[-100] == sizes[-1]

        assert until(is_still)
        # The buffer, what waits to enter it, and what lies in shared memory.
        assert sizes[-1] <= 16 + 4 + 32 + 8
        for n in range(1, 100):
            assert next(iterator)[0] == n
        assert until(lambda: made.stat().st_size > sizes[-1])
        assert made.stat().st_size <= 100 + sizes[-1]


# --- several iterators ---------------------------------------------------------------------------


def test_iterators_in_threads(moments: random.Random) -> None:
    dataset = arrays().mp_prefetch(1)
    expected = sums(arrays())
    stops = [moments.choice([60, moments.randrange(60)]) for _ in range(4)]
    found: dict[int, list[int]] = {}

    def consume(number: int) -> None:
        with iter(dataset) as iterator:
            found[number] = sums(next(iterator) for _ in range(stops[number]))

    threads = [threading.Thread(target=consume, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [found[number] for number in range(4)] == [expected[:stop] for stop in stops]


# --- many iterators ------------------------------------------------------------------------------


def private_bytes() -> int:
    """Memory of this process, without what it shares."""
    gc.collect()
    info = psutil.Process().memory_info()
    return int(info.rss - getattr(info, "shared", 0))


def test_iterators_made_and_dropped_leave_nothing(moments: random.Random) -> None:
    # Small arrays: freed memory of large ones is kept by malloc, per thread, up to some bound.
    dataset = windrow.MapDataset.source(np.arange(60)).map(lambda x: np.full(500, x)).mp_prefetch(2)
    started = set(moments.sample(range(1000), 20))
    at_first = left()
    at_first["descriptors"] += ["what the first worker opens for good"] * 2

    def use(numbers: range) -> None:
        for number in numbers:
            iterator = iter(dataset)
            if number in started:
                for _ in range(moments.randrange(1, 62)):
                    next(iterator, None)
                if number % 2:
                    iterator.close()

    use(range(300))
    gc.collect()
    assert until(lambda: not is_left(at_first))
    before, before_bytes = left(), private_bytes()
    use(range(300, 1000))
    gc.collect()
    assert until(lambda: not is_left(before))
    assert private_bytes() - before_bytes < 8 * MIB
    children = psutil.Process().children()
    assert [child for child in children if child.status() == psutil.STATUS_ZOMBIE] == []


def test_descriptors_that_run_out_are_an_error_and_not_a_hang(tmp_path: Path) -> None:
    text = """
    import os, resource
    import windrow
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
    iterators = []
    try:
        while True:
            iterators.append(iter(windrow.MapDataset.range(100).map(abs).mp_prefetch(2)))
            next(iterators[-1])
    except (OSError, windrow.errors.WorkerError) as error:
        print(type(error).__name__, len(iterators) > 1)
    del iterators[1:]
    print(list(iterators[0]) == list(range(1, 100)))
    """
    with Program(tmp_path, ["-c", textwrap.dedent(text)]) as run:
        run.ends()
        assert run.out.split()[1:] == ["True", "True"]
        assert run.errors == ""
