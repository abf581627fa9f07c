"""The nodes of docs/extending.md, as they stand on the page, go through all that chains go through."""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import windrow
from tests.workers.test_workers_stream import spread
from windrow import MapDataset

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
MOST_LINES = 40
_FILE = re.compile(r'^```python title="(\w+)\.py"\n(.*?)^```$', re.DOTALL | re.MULTILINE)
FILES = dict(_FILE.findall(PAGE.read_text(encoding="utf-8")))
NUMBERS = range(23)
ROTATED = [*range(5, 23), *range(5)]


class Case(NamedTuple):
    """A chain that ends with a node of the page, over the numbers or a stream of them."""

    over: Callable[[MapDataset[int], Any], Any]
    wanted: list[int]
    is_known: bool = True  # whether the length is

    def make(self, page: Any) -> Any:
        return self.over(MapDataset.range(len(NUMBERS)), page)

    def rest(self, state: Any, page: Any) -> list[int]:
        return [*iter(self.make(page)).set_state(json.loads(json.dumps(state)))]


def is_odd(number: int) -> bool:
    return number % 2 == 1


def plus_one(number: int) -> int:
    return number + 1


CASES = {
    "rotated": Case(lambda ds, page: ds.pipe(page("rotated"), 5), ROTATED),
    "rotated over filtered epochs": Case(
        lambda ds, page: (
            ds.filter(is_odd).pipe(page("rotated"), 5).repeat(2).map(plus_one).to_iter_dataset()
        ),
        [n + 1 for n in ROTATED if is_odd(n)] * 2,
        is_known=False,
    ),
    "thin": Case(lambda ds, page: ds.to_iter_dataset().pipe(page("thin"), 3), [*NUMBERS[::3]]),
    "both, after a filter": Case(
        lambda ds, page: (
            ds.pipe(page("rotated"), 5).to_iter_dataset().filter(is_odd).pipe(page("thin"), 4)
        ),
        [n for n in ROTATED if is_odd(n)][::4],
        is_known=False,
    ),
}


def as_stream(dataset: Any) -> Any:
    return dataset.to_iter_dataset() if isinstance(dataset, MapDataset) else dataset


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """The function that each file of the page has for its node."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    yield lambda name: getattr(importlib.import_module(name), name)
    for name in FILES:
        sys.modules.pop(name, None)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_one_node_and_few_lines(name: str) -> None:
    classes = [node for node in ast.parse(FILES[name]).body if isinstance(node, ast.ClassDef)]
    assert len(classes) == 1
    assert FILES[name].count("\n") <= MOST_LINES


def test_the_page_has_a_node_with_random_access_and_one_of_a_stream(page: Any) -> None:
    assert set(FILES) == {"rotated", "thin"}
    dataset = CASES["rotated"].make(page)
    assert (dataset[0], dataset[-1], dataset[23 + 7]) == (5, 4, 12)
    assert list(dataset.__getitems__([3, 3, 0])) == [8, 8, 5]
    with pytest.raises(windrow.errors.PlanError, match="by must be at least 0, got -1"):
        MapDataset.range(3).pipe(page("rotated"), -1)


def test_it_is_restored_at_every_element(case: Case, page: Any) -> None:
    iterator = iter(case.make(page))
    for at in range(len(case.wanted) + 1):
        assert case.rest(iterator.get_state(), page) == case.wanted[at:]
        next(iterator, None)


@pytest.mark.parametrize("count", [2, 3])
def test_shards_have_the_rows_of_each_batch(case: Case, page: Any, count: int) -> None:
    # The number of batches after a filter is known when they never end.
    batches = as_stream(case.make(page)).repeat().batch(6)
    shards = zip(*(batches.shard(index, count) for index in range(count)), strict=True)
    for wanted, parts in itertools.islice(zip(batches, shards, strict=True), 7):
        assert [int(n) for part in parts for n in part] == wanted.tolist()


@pytest.mark.parametrize("lanes", [2, 3])
def test_lanes_take_turns_and_are_restored(page: Any, lanes: int) -> None:
    numbers = MapDataset.range(24).pipe(page("rotated"), 5)

    def chain() -> Any:
        return numbers.to_iter_dataset(lanes=lanes).pipe(page("thin"), 3)

    order = [(n + 5) % 24 for n in range(24)]
    thinned = [order[lane::lanes][::3] for lane in range(lanes)]
    wanted = [row for turn in zip(*thinned, strict=True) for row in turn]
    iterator = iter(chain())
    for at in range(len(wanted) + 1):
        assert [*iter(chain()).set_state(iterator.get_state())] == wanted[at:]
        next(iterator, None)


def test_workers_give_the_same(case: Case, page: Any) -> None:
    stream = as_stream(case.make(page)).map(plus_one)
    assert list(spread(stream, 2)) == [n + 1 for n in case.wanted]
