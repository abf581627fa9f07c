"""Shuffle quality where it is shown, in explanations and reports: by closed forms and by `shuffle_quality`."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import windrow
from tests.report_pages import Page
from windrow import MapDataset
from windrow.sources import ZarrDataSource

RECORDS, CHUNK, BATCH = 4_000, 40, 20


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> MapDataset[Any]:
    """A store on disk whose blocks are its chunks."""
    place = tmp_path_factory.mktemp("quality") / "store"
    zarr.create_array(place, data=np.zeros((RECORDS, 4), np.float32), chunks=(CHUNK, 4))
    return MapDataset.source(ZarrDataSource(place))


def lines_of(dataset: Any) -> list[str]:
    """What `print(ds.explain())` has under 'shuffle quality'."""
    printed = dataset.explain().details()
    _, _, lines = printed.partition("shuffle quality\n")
    return [line.removeprefix("  - ") for line in lines.partition("\n\n")[0].splitlines()]


def test_records_in_order_are_told_by_the_closed_form(data: MapDataset[Any]) -> None:
    # Means of batches are spread evenly: 20 * (4,000 + 20) / (4,000 + 1) is 20.095.
    assert lines_of(data.batch(BATCH)) == [
        "batches of 20 of 4,000 records",
        "blocks in a batch: 1 of 100; under a global shuffle ≈18.2",
        "variance of batch means on sorted data: 20.1 times the variance of a global shuffle",
        "so a batch is worth 0.995 records drawn at random from the epoch",
    ]


# --- the same as the function returns ------------------------------------------------------------

CHAINS: dict[str, Callable[[Any], Any]] = {
    "in order": lambda data: data.batch(BATCH),
    "shuffled": lambda data: data.shuffle(1).map(abs).batch(BATCH),
    "block-shuffled": lambda data: data.block_shuffle(1, window_blocks=5).batch(BATCH),
    "stream window": lambda data: data.to_iter_dataset().window_shuffle(500, seed=1).batch(BATCH),
    "endless": lambda data: data.shuffle(1).repeat().batch(BATCH),
    "filtered": lambda data: data.to_iter_dataset().filter(bool).batch(BATCH),
}


@pytest.mark.jobs  # a part of `make test-brief`
@pytest.mark.parametrize("name", CHAINS)
def test_an_explanation_tells_what_shuffle_quality_does(name: str, data: MapDataset[Any]) -> None:
    dataset = CHAINS[name](data)
    asked = windrow.shuffle_quality(dataset)
    explanation = dataset.explain()
    assert explanation.quality == asked
    assert lines_of(dataset) == [line.strip() for line in str(asked).splitlines()]
    assert json.loads(json.dumps(explanation.to_json()))["quality"] == asked.to_json()
    shown = explanation._repr_html_()
    assert all(f"<li>{html.escape(line)}</li>" in shown for line in lines_of(dataset))


def test_a_report_tells_what_shuffle_quality_does(data: MapDataset[Any], tmp_path: Path) -> None:
    dataset = CHAINS["block-shuffled"](data)
    asked = windrow.shuffle_quality(dataset)
    page = Page(windrow.report(dataset, tmp_path / "page.html", elements=0))
    lines = [line.strip() for line in str(asked).splitlines()]
    assert len(lines) == 4
    assert set(lines) <= set(page.words)
    ratio = page.words.index("shuffle: variance ratio")
    assert not asked.is_exact
    assert page.words[ratio + 1] == f"≈{asked.variance_ratio:.3g}"


def test_without_a_batch_the_one_that_is_taken_is_told(data: MapDataset[Any]) -> None:
    asked = windrow.shuffle_quality(data.shuffle(1), 64)
    first, *others = lines_of(data.shuffle(1))
    assert first == "batches of 64 of 4,000 records"
    assert others[-1] == "the chain has no batch: as if .batch(64) were put on top"
    assert [first, *others[:-1]] == [line.strip() for line in str(asked).splitlines()]
