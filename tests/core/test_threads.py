"""Functions of a chain on threads: where it is quicker, with the same stream and errors."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

import windrow

M = windrow.MapDataset


class Waiting:
    """A function that waits, as a request to a server does; it counts how many waited at a time."""

    def __init__(self, wrong: int | None = None) -> None:
        self._lock, self._never = threading.Lock(), threading.Event()
        self._wrong, self._now, self.most = wrong, 0, 0

    def __call__(self, element: int) -> int:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        self._never.wait(0.002)
        with self._lock:
            self._now -= 1
        if element == self._wrong:
            raise KeyError(element)
        return element * 3


def with_threads(threads: int, function: Any) -> Any:
    options = windrow.ReadOptions(num_threads=threads)
    return M.range(120).shuffle(seed=1).map(function).to_iter_dataset(options)


def test_a_function_that_waits_runs_on_several_threads() -> None:
    function = Waiting()
    assert sorted(with_threads(8, function)) == list(range(0, 360, 3))
    assert 2 <= function.most <= 8


@pytest.mark.parametrize("threads", [0, 1])
def test_one_thread_is_one_thread(threads: int) -> None:
    function = Waiting()
    assert len(list(with_threads(threads, function))) == 120
    assert function.most == 1


def test_functions_of_streams_and_filters_too() -> None:
    options = windrow.ReadOptions(num_threads=8)
    passed, mapped = Waiting(), Waiting()
    stream = M.range(100).to_iter_dataset(options).filter(passed).map(mapped).batch(5)
    expected = [n for n in range(0, 300, 3) if n]
    assert [n for batch in stream for n in batch.tolist()] == expected
    assert passed.most > 1 < mapped.most


def test_an_error_comes_behind_the_elements_before_it() -> None:
    order = list(M.range(120).shuffle(seed=1))
    iterator = iter(with_threads(8, Waiting(wrong=order[80])))
    assert list(itertools.islice(iterator, 80)) == [3 * n for n in order[:80]]
    with pytest.raises(KeyError) as caught:
        next(iterator)
    assert caught.value.__notes__ == ["windrow: raised in map(Waiting) for element 80"]
