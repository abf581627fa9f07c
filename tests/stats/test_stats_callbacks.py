"""Callbacks of iterators: when they are called, and what may be done within them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import windrow
from tests.stats.test_stats import IN_TURN, in_turn, timed
from windrow import ReadOptions
from windrow.errors import ArgumentError, ClosedError
from windrow.stats.stats import Stats

M = windrow.MapDataset


def test_whoever_listens_is_told_now_and_then_and_at_the_end() -> None:
    calls: list[tuple[int, float]] = []
    iterator, clock = timed(in_turn(M.range(10)))
    iterator.on_stats(lambda stats: calls.append((stats.elements, stats.passed_s)), every_s=3)
    for _ in iterator:
        clock.pass_by(1)
    # With the element on its way to the loop.
    assert calls == [(3, 3.0), (6, 6.0), (9, 9.0), (10, 10.0)]
    assert next(iterator, None) is None
    iterator.close()
    assert len(calls) == 4


def test_an_iterator_that_goes_on_tells_its_next_end() -> None:
    calls: list[int] = []
    iterator = iter(M.range(3))
    iterator.on_stats(lambda stats: calls.append(stats.elements))
    start = iterator.get_state()
    assert list(iterator) == [0, 1, 2]
    iterator.set_state(start)
    assert list(iterator) == [0, 1, 2]
    assert calls == [3, 6]
    iterator.on_stats(None)
    iterator.set_state(start)
    assert (list(iterator), calls) == ([0, 1, 2], [3, 6])


def test_what_a_callback_raises_is_raised_once_and_nothing_is_lost() -> None:
    def complain(stats: Stats) -> None:
        raise ValueError(f"at {stats.elements}")

    iterator = iter(M.range(3).to_iter_dataset(ReadOptions(prefetch_buffer_size=0)))
    iterator.on_stats(complain, every_s=0)
    got = []
    for at in (0, 1, 2):
        with pytest.raises(ValueError, match=f"at {at}"):
            next(iterator)
        got.append(next(iterator))
    assert got == [0, 1, 2]
    with pytest.raises(ValueError, match="at 3"):
        next(iterator)
    assert next(iterator, None) is None


# Elements that come one by one, each with a call, and some that come in one block.
ONE_BY_ONE = pytest.mark.parametrize(
    "given",
    [
        pytest.param(lambda: M.range(6).to_iter_dataset(IN_TURN), id="in turn, one block"),
        pytest.param(lambda: in_turn(M.range(6)), id="in turn"),
        pytest.param(
            lambda: M.range(6).to_iter_dataset(ReadOptions(prefetch_buffer_size=1)), id="ahead"
        ),
    ],
)


@ONE_BY_ONE
def test_closing_within_a_callback_ends_the_loop(given: Callable[[], Any]) -> None:
    calls: list[int] = []

    def stop(stats: Stats) -> None:
        calls.append(stats.elements)
        if len(calls) == 1:
            iterator.close()
            assert calls == [0]  # it is not called within itself

    iterator = iter(given())
    iterator.on_stats(stop, every_s=0)
    assert list(iterator) == []
    assert calls == [0, 0]  # in the middle, and the end
    assert (iterator.stats().elements, iterator.stats().delivered_bytes) == (0, 0)
    with pytest.raises(ClosedError, match="closed; make another"):
        next(iterator)
    iterator.close()
    assert len(calls) == 2


@ONE_BY_ONE
def test_after_set_state_within_a_callback_its_element_comes(given: Callable[[], Any]) -> None:
    iterator = iter(given())
    start = iterator.get_state()
    assert [next(iterator) for _ in range(4)] == [0, 1, 2, 3]
    later = iterator.get_state()
    iterator.set_state(start)
    moved: list[int] = []

    def move(stats: Stats) -> None:
        if not moved:
            moved.append(stats.elements)
            iterator.set_state(later)

    iterator.on_stats(move, every_s=0)
    assert list(iterator) == [4, 5]
    assert (moved, iterator.stats().elements) == ([4], 6)


@ONE_BY_ONE
def test_states_and_stats_within_a_callback_are_those_before_the_element(
    given: Callable[[], Any],
) -> None:
    seen: list[tuple[Any, bool]] = []
    iterator = iter(given())

    def look(stats: Stats) -> None:
        again = iter(given())
        again.set_state(iterator.get_state())
        seen.append((next(again, None), iterator.stats().elements == stats.elements))

    iterator.on_stats(look, every_s=0)
    looped = list(iterator)
    assert looped == [0, 1, 2, 3, 4, 5]
    assert {same for _, same in seen} == {True}
    came = [at for at, _ in seen]
    assert (came[0], came[-1]) == (0, None)
    assert came[:-1] == sorted(came[:-1])


def test_an_error_of_the_loop_is_not_hidden_by_one_of_the_callback_at_closing() -> None:
    def complain(stats: Stats) -> None:
        raise ValueError(f"at {stats.elements}")

    def loop() -> None:
        with iter(M.range(3)) as iterator:
            iterator.on_stats(complain)
            next(iterator)
            raise KeyError("own")

    with pytest.raises(KeyError, match="own") as caught:
        loop()
    assert caught.value.__notes__ == [
        "windrow: closing the iterator raised too: ValueError('at 1')"
    ]
    with pytest.raises(ValueError, match="at 0"), iter(M.range(3)) as iterator:
        iterator.on_stats(complain)


@pytest.mark.parametrize(
    ("callback", "every_s"),
    [
        (3, 1.0),
        (print, -1),
        (print, float("nan")),
        (print, "1"),
    ],
)
def test_wrong_arguments(callback: Any, every_s: Any) -> None:
    with pytest.raises(ArgumentError):
        iter(M.range(3)).on_stats(callback, every_s)
