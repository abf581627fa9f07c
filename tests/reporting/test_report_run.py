"""The page of a run that happened, as a browser draws it, against what the iterator counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import zarr

import windrow
from tests.browser import Browser, Looked
from windrow import MapDataset, ReadOptions
from windrow.core.text import in_units
from windrow.explain.explanation import Explanation
from windrow.sources import ZarrDataSource
from windrow.stats.stats import Stats

pytestmark = pytest.mark.report

RECORDS, CHUNK, BATCH = 3_000, 50, 25


class Run(NamedTuple):
    """The prediction before a run, the counts of the run, and its page."""

    told: Explanation
    stats: Stats
    page: Looked


def sorted_twice(row: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Takes its time, so that no two blocks come within a millisecond."""
    return np.sort(np.sort(np.tile(row, 8))[::-1])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[Run]:
    """A run over a store on disk, with a function and a loop that is slow in its second half."""
    folder = tmp_path_factory.mktemp("run")
    rows = np.random.default_rng(0).random((RECORDS, 400)).astype(np.float32)
    zarr.create_array(folder / "store", data=rows, chunks=(CHUNK, 400))
    dataset = MapDataset.source(ZarrDataSource(folder / "store"))
    dataset = dataset.block_shuffle(seed=1, window_blocks=6).map(sorted_twice).batch(BATCH)
    stream = dataset.to_iter_dataset(ReadOptions(prefetch_buffer_size=3))
    iterator = iter(stream)
    for number, batch in enumerate(iterator):
        for _ in range(0 if number < 60 else 4):
            np.sort(batch, axis=0)
    path = windrow.report(iterator, folder / "page.html")
    with chromium.opened(path) as page:
        yield Run(stream.explain(), iterator.stats(), page)


# --- predicted and measured ----------------------------------------------------------------------

FIGURES = {
    "records": "records",
    "chunks": "chunks",
    "reads": "reads",
    "stored, about": "stored_bytes",
    "decoded": "decoded_bytes",
    "delivered": "delivered_bytes",
}


def table_of(page: Looked, caption: str) -> list[list[str]]:
    """The cells of a table, row by row, as they are seen."""
    found: list[list[list[str]]] = page.told(
        """caption => [...document.querySelectorAll("#costs table")]
          .filter(table => table.caption.innerText.startsWith(caption))
          .map(table => [...table.rows].map(
            row => [...row.cells].map(cell => cell.innerText.trim())))""",
        caption,
    )
    (rows,) = found
    return rows


def as_number(cell: str) -> float:
    """Return the number in a cell, in bytes if it has a unit."""
    number, _, unit = cell.replace(",", "").partition(" ")
    return float(number) * {"": 1, "bytes": 1, "KB": 1e3, "MB": 1e6}[unit]


def test_the_columns_are_what_was_told_and_what_was_counted(run: Run) -> None:
    (told,), (counted,) = run.told.epoch, run.stats.sources
    assert (told.chunks.low, told.reads.low) == (RECORDS / CHUNK, RECORDS / CHUNK)
    heads, *rows = table_of(run.page, "source 0: ")
    assert heads == ["", "epoch", "batch"]
    cells = {head: list(map(as_number, others)) for head, *others in rows if head in FIGURES}
    found = dict(zip(*table_of(run.page, "sources"), strict=True))
    for head, name in FIGURES.items():
        before, after = getattr(told, name), getattr(counted, name)
        # A whole epoch, in blocks: the prediction is exact.
        assert before.is_exact
        assert before == after
        each = after.low / run.stats.elements
        # Three figures are shown.
        assert cells[head] == pytest.approx([before.low, each], rel=0.005), head
        assert as_number(found[name.replace("_", " ")]) == pytest.approx(after.low, rel=0.005)
    assert ["decoded per delivered", "1", "1"] in rows


def test_memory_is_told_as_the_most_that_was_held(run: Run) -> None:
    cells = dict(table_of(run.page, "memory"))
    for kind, size in run.stats.peak_by.items():
        assert cells[f"{kind} at most"] == in_units(size)
    assert cells["buffers at most"] == in_units(run.stats.peak_buffers_bytes)
    assert run.stats.peak_buffers_bytes > 0


# --- who waited for whom -------------------------------------------------------------------------


def test_where_the_time_went_is_told_as_it_was_counted(run: Run) -> None:
    stats = run.stats
    times = {name: spent for name, spent, _ in table_of(run.page, "time")}
    assert times["the loop's own"] == f"{stats.loop_s:.3f} s"
    assert times["reading"] == f"{stats.reading_s:.3f} s"
    for name, spent_s in stats.waited_for.items():
        assert times[f"waited for {name}"] == f"{spent_s:.3f} s"
    for name, spent_s in stats.mapping_s.items():
        assert times[name] == f"{spent_s:.3f} s"


def test_the_sentence_is_that_of_the_run(run: Run) -> None:
    said = run.stats.sentence
    assert f"{said[0].upper()}{said[1:]}." in run.page.texts(".sentence")
    assert f"{run.stats.elements:,}" in run.page.texts(".facts dd")
