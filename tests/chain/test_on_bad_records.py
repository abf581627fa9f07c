"""Records that came in place of bad ones: what names the records of an element names these."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windrow
from tests.chain.test_on_bad import BAD, checked, flat, numbers
from windrow import MapDataset
from windrow.transforms.nodes import on_bad


def replaced(**more: Any) -> MapDataset[int]:
    return numbers().shuffle(seed=1).map(checked).on_bad("replace", **more)


# Each gives the numbers of its records.
STREAMS: dict[str, Callable[[], Any]] = {
    "elements": replaced,
    "batches": lambda: replaced().repeat(3).batch(4),
    "shuffled": lambda: replaced().shuffle(seed=2).batch(4),
    "bad batches": lambda: numbers().map(checked).batch(2).on_bad("replace").batch(2),
    "a stream": lambda: (
        replaced().to_iter_dataset(lanes=2).filter(lambda n: n != 7).window_shuffle(4, seed=1)
    ),
    "twice": lambda: (
        replaced().filter(lambda n: n != 7).on_bad("replace").to_iter_dataset().batch(3)
    ),
}


@pytest.mark.parametrize(
    ("name", "workers"),
    [*((name, 0) for name in STREAMS), pytest.param("batches", 1, marks=pytest.mark.jobs)],
)
def test_the_record_that_came_is_named(name: str, workers: int, tmp_path: Path) -> None:
    dataset: Any = STREAMS[name]()
    if workers:
        dataset = dataset.to_iter_dataset().mp_prefetch(workers)
    wanted = list[list[int]]()
    with iter(dataset) as iterator:
        iterator.keep_history(tmp_path / "h")
        for element in iterator:
            wanted.append(np.ravel(element).tolist())
            assert [record for _, record in iterator.records_of_last()] == wanted[-1]
    assert BAD.isdisjoint(flat(wanted))
    with windrow.history.read(tmp_path / "h") as history:
        for step, records in enumerate(wanted):
            assert [record for _, record in history.step(step).records] == records


def test_the_file_of_bad_records_names_it(tmp_path: Path) -> None:
    log = tmp_path / "bad.jsonl"
    dataset = replaced(log=log)
    found = [int(number) for number in dataset]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(lines) == len(BAD)
    for line in lines:
        assert line["instead"][0]["records"] == [found[line["element"]]]


def test_few_replacements_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_bad, "_REMEMBERED", 3)
    dataset: Any = replaced().repeat(20)
    list(dataset)
    (node,) = (each for each in dataset._node.walk() if each.takes_bad)
    assert len(node.instead) == 3
