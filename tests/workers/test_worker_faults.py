"""Faults of workers: whatever ends one, the stream continues, or an error says what it was making."""

from __future__ import annotations

import functools
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import windrow
from tests.processes import until, workers
from tests.states import at_row
from windrow.errors import WorkerError

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.soak,
    pytest.mark.usefixtures("leaves_nothing"),
    pytest.mark.skipif(sys.platform == "win32", reason="workers need POSIX"),
]

RECORDS = 2000


def double(x: Any) -> Any:
    time.sleep(0.0002)
    return x * 2


def is_odd(x: Any) -> bool:
    return bool(x % 3)


def add(x: Any, rng: np.random.Generator) -> Any:
    return x + rng.integers(100)


def numbers() -> windrow.MapDataset[Any]:
    return windrow.MapDataset.source(np.arange(RECORDS)).seed(3).shuffle()


# Little is made ahead, so that there is work left whenever a worker ends.
READ = windrow.ReadOptions(prefetch_buffer_size=32)

CHAINS: dict[str, Callable[[], windrow.IterDataset[Any]]] = {
    "elements": lambda: numbers().map(double).to_iter_dataset(READ),
    "batches": lambda: numbers().map(double).batch(8).to_iter_dataset(READ),
    "random": lambda: numbers().map(double).random_map(add).batch(3).to_iter_dataset(READ),
    "filtered": lambda: numbers().map(double).to_iter_dataset(READ).filter(is_odd).batch(8),
    "stream": lambda: (
        numbers().to_iter_dataset(READ).map(double).window_shuffle(32, seed=1).batch(8)
    ),
}


def listed(elements: Any) -> list[Any]:
    return [np.asarray(element).tolist() for element in elements]


# --- killed at a random moment -------------------------------------------------------------------


@pytest.mark.parametrize("chain", sorted(CHAINS))
def test_the_stream_goes_on_when_a_worker_is_killed(chain: str, moments: random.Random) -> None:
    dataset = CHAINS[chain]()
    expected = listed(dataset)
    killed = threading.Event()

    def kill() -> None:
        moments.choice(workers()).kill()
        killed.set()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        iterator = iter(dataset.mp_prefetch(2))
        iterator.start_prefetch()
        timer = threading.Timer(moments.uniform(0, 0.4), kill)
        timer.start()
        # Half of the stream at most before the kill, so that there is work for a new worker.
        got = [next(iterator) for _ in range(moments.randrange(len(expected) // 2))]
        assert killed.wait(20)
        got += list(iterator)
        timer.join()
    assert listed(got) == expected
    assert [warning.category for warning in caught] == [RuntimeWarning]
    text = str(caught[0].message)
    assert text.startswith("worker ")
    assert "killed by SIGKILL" in text


def end_once(x: Any, *, folder: Path, at: int, end: Callable[[], object]) -> Any:
    """Ends its process at one element, the first time."""
    if x == at:
        try:
            (folder / "ended").touch(exist_ok=False)
        except FileExistsError:
            return x
        end()
    return x


def kill_own_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# --- work that ends every worker -----------------------------------------------------------------


def end_at(x: Any, *, at: int, end: Callable[[], object]) -> Any:
    if x == at:
        end()
    return x


@pytest.mark.filterwarnings("ignore:worker . of 2:RuntimeWarning")
@pytest.mark.parametrize(
    ("end", "how"),
    [
        (kill_own_process, "killed by SIGKILL"),
        (functools.partial(os._exit, 3), "exit code 3"),
    ],
    ids=["killed", "exits"],
)
def test_an_element_that_ends_three_workers_is_an_error_that_names_it(
    moments: random.Random, end: Callable[[], object], how: str
) -> None:
    at = moments.randrange(200)
    function = functools.partial(end_at, at=at, end=end)
    dataset = windrow.MapDataset.source(np.arange(200)).map(function)
    got: list[Any] = []
    with iter(dataset.mp_prefetch(2)) as iterator:
        with pytest.raises(WorkerError, match=f"3 workers .*the same work.*{how}") as caught:
            got.extend(iterator)
        assert got == list(range(at))
        note = "".join(caught.value.__notes__)
        assert f"element {at}, made of record {at} of ArrayDataSource" in note
        iterator.set_state(at_row(iterator.get_state(), at + 1))
        assert listed(iterator) == list(range(at + 1, 200))


# --- workers that hang ---------------------------------------------------------------------------


def hang() -> None:
    while True:
        signal.pause()


def loop() -> None:
    while True:
        pass


# A worker that is well has to make an element in these seconds on a machine that is busy, too.
def limited(timeout_s: float) -> windrow.MultiprocessingOptions:
    return windrow.MultiprocessingOptions(2, timeout_s=timeout_s)


@pytest.mark.parametrize("end", [hang, loop])
def test_a_worker_that_hangs_is_replaced_after_the_time_that_the_user_sets(
    tmp_path: Path, moments: random.Random, end: Callable[[], None]
) -> None:
    at = moments.randrange(100)
    function = functools.partial(end_once, folder=tmp_path, at=at, end=end)
    dataset = windrow.MapDataset.source(np.arange(100)).map(function)
    with pytest.warns(RuntimeWarning, match=r"longer than timeout_s=2.*a new one"):
        assert listed(dataset.mp_prefetch(limited(2))) == list(range(100))


@pytest.mark.filterwarnings("ignore:worker . of 2:RuntimeWarning")
def test_an_element_that_hangs_always_is_an_error_that_names_it(moments: random.Random) -> None:
    at = moments.randrange(50)
    dataset = windrow.MapDataset.source(np.arange(50)).map(
        functools.partial(end_at, at=at, end=hang)
    )
    with iter(dataset.mp_prefetch(limited(1.5))) as iterator:
        with pytest.raises(WorkerError, match=r"timeout_s=1\.5.*larger") as caught:
            list(iterator)
        assert f"element {at}, made of record {at}" in "".join(caught.value.__notes__)


def test_without_a_limit_a_slow_element_is_waited_for(tmp_path: Path) -> None:
    go = tmp_path / "go"

    def wait_at_3(x: Any) -> Any:
        if x == 3:
            until(go.exists)
        return x

    with iter(windrow.MapDataset.range(6).map(wait_at_3).mp_prefetch(2)) as iterator:
        assert [next(iterator) for _ in range(3)] == [0, 1, 2]
        # Longer than what the parent looks after its workers.
        threading.Timer(1.2, go.touch).start()
        assert list(iterator) == [3, 4, 5]


# --- memory --------------------------------------------------------------------------------------


def limit_memory(index: int, count: int) -> None:
    import resource

    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not limit address space")
def test_out_of_memory_in_a_worker_is_an_error_at_its_element(moments: random.Random) -> None:
    at = moments.randrange(100)

    def fill(x: Any) -> Any:
        return np.zeros((1 << 30) if x == at else 8, np.uint8) + np.uint8(x)

    dataset = windrow.MapDataset.source(np.arange(100)).map(fill)
    with iter(dataset.mp_prefetch(2, limit_memory)) as iterator:
        got = [next(iterator).tolist() for _ in range(at)]
        pids = {worker.pid for worker in workers()}
        with pytest.raises(MemoryError, match="Unable to allocate") as caught:
            next(iterator)
        assert any(f"element {at}" in note for note in caught.value.__notes__)
        iterator.set_state(at_row(iterator.get_state(), at + 1))
        got += listed(iterator)
    assert len(pids) == 2
    assert got == [[x] * 8 for x in range(100) if x != at]
