"""Bad elements of streams: dropped where a function raises, the same in any run, and counted."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.chain.test_on_bad import DAMAGED, check_restored, number_of, run
from windrow import IterDataset, MapDataset
from windrow.errors import PlanError

COUNT = 60


def checked(number: int) -> int:
    if number % 7 == 3:
        raise ValueError(f"number {number} is bad")
    return int(number)


def checked_columns(numbers: Any) -> Any:
    return np.array([checked(number) for number in numbers.tolist()], np.int64)


def is_odd(number: int) -> bool:
    return checked(number) % 2 == 1


def noisy(number: int, rng: np.random.Generator) -> int:
    if number % 11 == 5:
        raise ValueError(f"number {number} is noisy")
    return int(number) + 1000 * int(rng.integers(2))


def twice(number: int) -> list[int]:
    return [checked(number), number + 1]


def summed(numbers: Sequence[int]) -> int:
    return checked(sum(numbers))


def numbers(lanes: int = 1) -> IterDataset[int]:
    return MapDataset.range(COUNT).shuffle(seed=1).to_iter_dataset(lanes=lanes)


STREAMS: dict[str, Callable[[], Any]] = {
    "map": lambda: numbers().map(checked).on_bad("skip"),
    "filter": lambda: (
        numbers().filter(is_odd).map(lambda n: checked(n + 1)).on_bad("skip").batch(3)
    ),
    "columns": lambda: numbers().map(checked_columns, batched=True).map(twice).on_bad("skip"),
    "random": lambda: numbers().map(checked).random_map(noisy, seed=2).on_bad("skip"),
    "random columns": lambda: (
        numbers()
        .window_shuffle(5, seed=1)
        .random_map(lambda n, rngs: checked_columns(n), seed=2, batched=True)
        .map(lambda n: checked(n + 2))
        .on_bad("skip")
    ),
    "flat_map": lambda: numbers().flat_map(twice).map(checked).on_bad("skip").batch(4),
    "batch_fn": lambda: numbers().batch(3, batch_fn=summed).on_bad("skip"),
    "mix": lambda: IterDataset.mix([numbers().map(checked), numbers().filter(is_odd)]).on_bad(
        "skip"
    ),
    "lanes": lambda: numbers(3).map(checked).random_map(noisy, seed=3).on_bad("skip").batch(3),
    "lanes, flat_map": lambda: (
        numbers(3).flat_map(twice).map(checked).window_shuffle(4, seed=1).on_bad("skip").batch(3)
    ),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_restored_run_has_the_same_stream(name: str) -> None:
    dataset = STREAMS[name]()
    elements, states = run(dataset)
    for at in range(0, len(states), 5):
        check_restored(dataset, elements, states, at)


@pytest.mark.jobs
@pytest.mark.parametrize("name", ["random", "lanes, flat_map"])
def test_workers_give_the_same_stream(name: str) -> None:
    elements, states = run(STREAMS[name]())
    with iter(STREAMS[name]().mp_prefetch(2)) as iterator:
        iterator.set_state(states[5])
        for number in range(5, len(elements)):
            assert np.asarray(next(iterator)).tolist() == elements[number]
            assert iterator.get_state()["lanes"] == states[number + 1]["lanes"]


def test_reading_and_functions_before_the_stream_are_covered(tmp_path: Path) -> None:
    source, lost = DAMAGED["groups"](tmp_path)
    lost |= {n for n in range(120) if n % 29 == 11 or n % 7 == 3}
    stream = MapDataset.source(source).shuffle(seed=1).map(number_of).to_iter_dataset()
    log = tmp_path / "bad.jsonl"
    with iter(stream.map(checked).on_bad("skip", log=log)) as iterator:
        assert sorted(iterator) == [n for n in range(120) if n not in lost]
        assert [*(iterator.stats().bad_records or {}).values()] == [len(lost)]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert sorted(line["sources"][0]["records"][0] for line in lines) == sorted(lost)


def test_a_node_covers_what_comes_after_the_one_before_it() -> None:
    stream = MapDataset.range(20).to_iter_dataset().map(checked)
    with pytest.raises(ValueError, match="number 3 is bad"):
        list(stream.on_bad("skip", KeyError).map(checked).on_bad("skip"))
    with pytest.raises(ValueError, match="number 3 is bad"):
        list(MapDataset.range(20).to_iter_dataset().on_bad("skip").map(checked))
    assert list(stream.on_bad("raise").on_bad("skip")) == [n for n in range(20) if n % 7 != 3]


def test_a_stream_has_nothing_to_put_in_place_of_a_bad_element() -> None:
    with pytest.raises(PlanError, match=r"write on_bad\('replace'\) before to_iter_dataset"):
        numbers().on_bad("replace")


def test_bad_elements_are_appended_to_a_file(tmp_path: Path) -> None:
    log = tmp_path / "bad.jsonl"
    stream = MapDataset.range(10).to_iter_dataset().flat_map(twice).map(checked)
    assert len(list(stream.on_bad("skip", log=log))) == 16
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    found = [(line["element"], line["sources"][0]["records"], line["reason"]) for line in lines]
    # The flat_map raises at 3, and the map at what it makes of 2 and 9; each is read ahead.
    assert sorted(found) == [
        (2, [2], "number 3 is bad"),
        (3, [3], "number 3 is bad"),
        (9, [9], "number 10 is bad"),
    ]
    assert lines[1]["sources"][0]["source"] == "range(0, 10, 1)"
