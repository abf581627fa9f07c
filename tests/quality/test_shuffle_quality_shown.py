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
