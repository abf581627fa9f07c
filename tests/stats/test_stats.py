"""What iterators measure, with a clock that moves only on command and sources that count."""

from __future__ import annotations

import itertools
import json
import math
import os
import pickle
import re
import threading
from typing import Any

import numpy as np
import pytest

import windrow
from tests.laid_out import pieced
from tests.processes import until
from windrow import ReadOptions
from windrow.stats.costs import Amount
from windrow.stats.profiler import OTHER, READING, ROOM, WORKERS, Profiler, calling, doing
from windrow.stats.stats import NOTHING_YET, Stats

M = windrow.MapDataset
IN_TURN = ReadOptions(num_threads=0)


class Clock:
    """Seconds that pass on command."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def pass_by(self, seconds: float) -> None:
        self.now_s += seconds


def timed(dataset: Any) -> tuple[windrow.DatasetIterator[Any], Clock]:
    """An iterator that measures by a clock of its own."""
    clock = Clock()
    iterator = iter(dataset)
    iterator._meter = Profiler(iterator._node, clock)
    return iterator, clock


def in_turn(dataset: Any) -> Any:
    """The same elements, each made when it is asked for, by the thread that asks."""
    return dataset.to_iter_dataset(ReadOptions(num_threads=0, prefetch_buffer_size=0))


# --- times ---------------------------------------------------------------------------------------


def test_nothing_was_asked_for_yet() -> None:
    stats = iter(M.range(3)).stats()
    assert stats.sentence == str(stats) == NOTHING_YET
    assert (stats.elements, stats.passed_s, stats.timeline) == (0, 0.0, ())


def test_the_time_is_parted_into_what_the_loop_waited_for_and_its_own() -> None:
    def two_seconds(value: int) -> int:
        clock.pass_by(2)
        return value

    def one_second(value: int) -> bool:
        clock.pass_by(1)
        return True

    iterator, clock = timed(in_turn(M.range(5).map(two_seconds).filter(one_second)))
    for _ in iterator:
        clock.pass_by(9)
    clock.pass_by(1000)  # after the end the loop does not wait, and no time counts
    stats = iterator.stats()
    assert stats.elements == 5
    assert (stats.passed_s, stats.waited_s, stats.loop_s) == (60, 15, 45)
    first, second = (
        f"test_the_time_is_parted_into_what_the_loop_waited_for_and_its_own.<locals>.{n}"
        for n in ("two_seconds", "one_second")
    )
    assert stats.mapping_s == {f"map({first})": 10, f"filter({second})": 5}
    assert stats.waited_for == {f"map({first})": 10, f"filter({second})": 5}
    assert stats.sentence == f"the loop waits for data 25% of the time; 67% of that is map({first})"


def test_what_a_thread_ahead_does_is_waited_for_only_while_the_loop_waits() -> None:
    clock = Clock()
    meter = Profiler(M.range(3)._node, clock)
    maker = meter.renew(in_turn=False)
    node = M.range(3).map(abs)._node
    with maker.working():
        with doing(READING):
            clock.pass_by(5)  # ahead of all
        meter.asked(is_ready=False)
        with doing(READING):
            clock.pass_by(1)
        with calling(node):
            clock.pass_by(2)
        clock.pass_by(3)
        made = maker.made_block()
        meter.got()
        meter.took(4, 32, made)
        with calling(node):
            clock.pass_by(10)
        with doing(ROOM):
            clock.pass_by(20)
        meter.asked(is_ready=True)
        meter.got()
        meter.took(4, 32, maker.made_block())
    stats = meter.stats(0)
    assert (stats.waited_s, stats.loop_s) == (6, 30)
    assert stats.waited_for == {OTHER: 3, "map(abs)": 2, READING: 1}
    assert (stats.reading_s, stats.mapping_s, stats.blocked_s) == (6, {"map(abs)": 12}, 20)
    assert [(t.reading_s, t.mapping_s) for t in stats.timeline] == [(6, 2), (0, 10)]


def test_waits_for_workers_are_parted_into_what_these_did() -> None:
    clock = Clock()
    meter = Profiler(M.range(3)._node, clock)
    maker = meter.renew(in_turn=False)
    with maker.working():
        meter.asked(is_ready=False)
        with doing(WORKERS):
            clock.pass_by(10)
        meter.got()
        meter.took(1, 8, None)
        assert meter.stats(0).waited_for == {WORKERS: 10}  # they start, and say nothing yet
        maker.heard({"map(f)": 3.0, OTHER: 1.0})
        assert meter.stats(0).waited_for == {WORKERS: 7, "map(f)": 3}
        maker.heard({"map(f)": 27.0, READING: 9.0})
    stats = meter.stats(0)
    assert stats.waited_for == {"map(f)": 7.5, READING: 2.25, WORKERS: 0.25}
    assert (stats.reading_s, stats.mapping_s) == (9, {"map(f)": 30})


# --- what stays ----------------------------------------------------------------------------------


def test_stats_count_on_over_states_and_stay_when_all_is_closed() -> None:
    source = pieced(48, 8)
    iterator = iter(M.source(source).batch(4))
    start = iterator.get_state()
    list(itertools.islice(iterator, 5))
    iterator.set_state(start)
    assert iterator.stats().elements == 5
    assert len(list(iterator)) == 12
    iterator.close()
    stats = iterator.stats()
    assert stats.elements == 17
    assert stats.delivered_bytes == 17 * 4 * 32
    assert stats.sources[0].reads == Amount.exactly(len(source.started))


def test_an_error_is_waited_for_too_and_the_loop_goes_on() -> None:
    failing = [True]

    def once(value: int) -> int:
        clock.pass_by(2)
        if value == 1 and failing:
            failing.clear()
            raise ValueError("once")
        return value

    iterator, clock = timed(in_turn(M.range(3).map(once)))
    assert next(iterator) == 0
    with pytest.raises(ValueError, match="once"):
        next(iterator)
    clock.pass_by(5)
    assert list(iterator) == [1, 2]
    stats = iterator.stats()
    assert stats.loop_s == 5
    assert stats.passed_s == stats.waited_s + 5
    assert sum(stats.mapping_s.values()) == stats.waited_s


def test_a_pickled_iterator_counts_anew() -> None:
    calls: list[Stats] = []
    iterator = iter(M.range(10).map(abs))
    iterator.on_stats(calls.append, every_s=0)
    next(iterator)
    calls.clear()
    again = pickle.loads(pickle.dumps(iterator))
    assert again.stats().sentence == NOTHING_YET
    assert next(again) == 1
    assert (again.stats().elements, calls) == (1, [])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_iterator_counts_anew(threads: int) -> None:
    iterator = iter(M.range(10).to_iter_dataset(ReadOptions(num_threads=threads)))
    next(iterator)
    child = os.fork()
    if not child:
        os._exit(0 if iterator.stats().sentence == NOTHING_YET else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert iterator.stats().elements == 1


@pytest.mark.parametrize("threads", [0, 2])
def test_any_thread_may_look_at_any_time(threads: int) -> None:
    options = ReadOptions(num_threads=threads, prefetch_buffer_size=8)
    dataset = M.source(pieced(3_000, 8)).shuffle(seed=1).map(np.sum).to_iter_dataset(options)
    iterator = iter(dataset.batch(4))
    seen: list[Stats] = []
    failures: list[BaseException] = []
    ended = threading.Event()

    def look() -> None:
        try:
            while not ended.wait(0.001):
                seen.append(iterator.stats())
        except BaseException as error:
            failures.append(error)

    looking = threading.Thread(target=look)
    looking.start()
    taken = sum(1 for _ in iterator)
    assert until(lambda: len(seen) > 3 or bool(failures))
    ended.set()
    looking.join()
    assert failures == []
    assert taken == 750
    elements = [stats.elements for stats in seen]
    assert elements == sorted(elements)
    passed = [stats.passed_s for stats in seen]
    assert passed == sorted(passed)
    for stats in seen:
        assert stats.passed_s == pytest.approx(stats.waited_s + stats.loop_s)


# --- as text and JSON ----------------------------------------------------------------------------


def test_stats_are_printed_as_tables() -> None:
    iterator, clock = timed(in_turn(M.source(pieced(10, 4)).map(np.sum)))
    for _ in iterator:
        clock.pass_by(1)
    said = str(iterator.stats())
    assert said.startswith("the loop does not wait for data")
    for line in (
        r"the loop's own +10\.000 s +100%",
        r"map\(sum\) +0\.000 s +0%",
        r"elements +10",
        r"given to the loop +80 bytes",
    ):
        assert re.search(line, said), line
    assert "decoded bytes" in said


def test_stats_are_json_and_pickle() -> None:
    iterator = iter(M.source(pieced(10, 4)).map(np.sum))
    for _ in iterator:
        pass
    stats = iterator.stats()
    values = json.loads(json.dumps(stats.to_json()))
    assert values["elements"] == 10
    assert values["sources"][0]["reads"] == {"low": 3, "high": 3}
    assert values["sentence"] == stats.sentence
    assert pickle.loads(pickle.dumps(stats)) == stats


# --- metrics: the numbers in one flat dict --------------------------------------------------------


def test_metrics_are_the_numbers_of_the_stats() -> None:
    iterator = iter(M.source(pieced(100, 10)).map(np.negative).batch(10))
    before = iterator.metrics()
    assert before["elements"] == before["waited_share"] == 0.0
    list(iterator)
    stats, found = iterator.stats(), iterator.metrics()
    assert found["elements"] == 10
    assert found["records"] == 100
    assert found["reads"] == 10
    assert found["waited_s"] == stats.waited_s
    assert found["waited_share"] == stats.waited_s / stats.passed_s
    assert found["mapping_s"] == sum(stats.mapping_s.values()) > 0
    assert all(type(value) is float and math.isfinite(value) for value in found.values())


def test_no_sources_have_no_costs() -> None:
    iterator = iter(M.range(3))
    list(iterator)
    assert "reads" not in iterator.metrics()


def test_bad_records_are_counted_where_they_may_be() -> None:
    numbers = M.source(["1", "two", "3", "four"]).map(int)
    found = []
    for dataset in (numbers.on_bad("skip"), numbers.slice([0])):
        with iter(dataset) as iterator:
            list(iterator)
            found.append(iterator.metrics().get("bad_records"))
    assert found == [2, None]
