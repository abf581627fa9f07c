"""Looks of a report: what a reader with a narrow window, a dark one, or no network meets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import windrow
from tests.browser import DESKTOP, PHONE, Look
from tests.report_pages import Page, Told, chain_of_pictures, measured
from windrow import MapDataset
from windrow.sources import ZarrDataSource

pytestmark = pytest.mark.report

SIZES = {"phone": PHONE, "desktop": DESKTOP}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of several chains, made once."""
    folder = tmp_path_factory.mktemp("pages")
    pictures = chain_of_pictures(folder)
    given: dict[str, Any] = {
        "measured": Told(pictures._node, measured(pictures, 30)),
        "long names": _long_names(),
        "memory": Told((numbers := _numbers())._node, measured(numbers, 30)),
        "branches": _branches(folder / "a folder of some depth" / "of_stores", 5),
    }
    return {
        name: windrow.report(one, folder / f"{name.replace(' ', '_')}.html")
        for name, one in given.items()
    }


def _long_names() -> Any:
    def function(element: Any) -> Any:
        return element

    function.__qualname__ = function.__name__ = "a_name_that_goes_on" + "_and_on" * 30
    return MapDataset.source(np.zeros((40, 3), np.float32)).map(function).batch(8)


def _numbers() -> Any:
    return MapDataset.source(np.zeros((480, 3), np.float32)).shuffle(seed=1).batch(8)


def _same(element: Any) -> Any:
    return element


def _branches(folder: Path, count: int) -> Any:
    zarr.create_array(folder / "x.zarr", data=np.zeros((60, 4), np.float32), chunks=(10, 4))
    sources = [ZarrDataSource(str(folder / "x.zarr")) for _ in range(count)]
    return MapDataset.mix([MapDataset.source(s).shuffle(seed=1) for s in sources])


# --- all pages -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["long names", "branches"])
def test_nothing_makes_a_page_wider_than_its_window(name: str, size: str, look: Look) -> None:
    looked = look(name, SIZES[size])
    assert looked.complaints == []
    assert looked.told("document.documentElement.scrollWidth") <= SIZES[size][0]


# --- the plan ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_a_plan_scrolls_by_itself_where_it_is_wider_than_the_page(size: str, look: Look) -> None:
    looked = look("branches", SIZES[size])
    (plan,) = looked.boxes("#plan .wide")
    assert plan["x"] + plan["width"] <= SIZES[size][0]
    rows = looked.boxes(".plan tbody tr")
    assert len(rows) == len(set(looked.texts(".plan tbody th"))) == 12
    # No column is so narrow that its words are cut into letters.
    assert all(box["width"] > 150 for box in looked.boxes(".plan td:nth-child(2)"))


def test_bytes_that_were_measured_stand_for_unknown_ones(tmp_path: Path) -> None:
    pictures = chain_of_pictures(tmp_path).map(_same)
    stats = measured(chain_of_pictures(tmp_path / "again"), 4)
    page = Page(windrow.report(Told(pictures._node, stats), tmp_path / "a.html"))
    assert page.words[page.words.index("bytes per batch") + 1 :][:2] == ["1 KB", "measured"]


# --- charts --------------------------------------------------------------------------------------


def test_what_a_source_in_memory_does_not_do_is_no_row(look: Look) -> None:
    assert look("memory").texts("#bytes .ytick text") == ["delivered"]
    stored = look("measured").texts("#bytes .ytick text")
    assert set(stored) == {"stored", "decoded", "delivered"}


def test_a_run_that_is_not_whole_is_told_under_its_bars(tmp_path: Path) -> None:
    dataset = chain_of_pictures(tmp_path)
    iterator = Told(dataset._node, measured(dataset, 3))
    said = Page(windrow.report(iterator, tmp_path / "a.html", elements=0)).said
    assert "Predicted is the mean of an epoch of 75 batches." in said
    assert (
        "Measured covers the 6 batches that were read for so far; the loop was given 6 of them."
        in said
    )
