"""Looks of a report: what a reader with a narrow window, a dark one, or no network meets."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windrow
from tests.browser import DESKTOP, PHONE, Browser, Looked, browser
from tests.report_pages import Told, chain_of_pictures, measured
from windrow import MapDataset

pytestmark = pytest.mark.report

SIZES = {"phone": PHONE, "desktop": DESKTOP}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of several chains, made once."""
    folder = tmp_path_factory.mktemp("pages")
    pictures = chain_of_pictures(folder)
    given: dict[str, Any] = {
        "measured": Told(pictures._node, measured(pictures, 30)),
        "long names": _long_names(),
    }
    return {
        name: windrow.report(one, folder / f"{name.replace(' ', '_')}.html")
        for name, one in given.items()
    }


Look = Callable[..., Looked]


@pytest.fixture(scope="module")
def look(pages: dict[str, Path], chromium: Browser) -> Iterator[Look]:
    """Opens pages once for all tests that only look at them."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def opened(name: str, size: tuple[int, int] = DESKTOP, *, dark: bool = False) -> Looked:
            return stack.enter_context(chromium.opened(pages[name], size, dark=dark))

        yield opened


def _long_names() -> Any:
    def function(element: Any) -> Any:
        return element

    function.__qualname__ = function.__name__ = "a_name_that_goes_on" + "_and_on" * 30
    return MapDataset.source(np.zeros((40, 3), np.float32)).map(function).batch(8)


# --- all pages -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["long names"])
def test_nothing_makes_a_page_wider_than_its_window(name: str, size: str, look: Look) -> None:
    looked = look(name, SIZES[size])
    assert looked.complaints == []
    assert looked.told("document.documentElement.scrollWidth") <= SIZES[size][0]


def test_no_button_needs_a_network(look: Look) -> None:
    looked = look("measured")
    looked.page.hover("#bytes")
    found = looked.told(
        "[...document.querySelectorAll('#bytes .modebar-btn')].map(b => b.dataset.title)"
    )
    assert len(found) == 6
    assert not [words for words in found if "hare" in words or "loud" in words]
    for button in looked.page.query_selector_all("#bytes .modebar-btn:not([data-title*=ownload])"):
        button.click()
    assert looked.complaints == []
    assert looked.requests == []


@pytest.mark.parametrize(("size", "columns"), [(PHONE, 2), ((800, 900), 4), (DESKTOP, 8)])
def test_eight_elements_fill_their_rows(size: tuple[int, int], columns: int, look: Look) -> None:
    boxes = look("measured", size).boxes("#elements figure")
    assert len(boxes) == 8
    rows = [round(box["y"]) for box in boxes]
    assert [rows.count(row) for row in sorted(set(rows))] == [columns] * (8 // columns)


def test_no_fact_stands_alone_on_a_wide_page(look: Look) -> None:
    rows = {round(box["y"]) for box in look("measured").boxes(".facts div")}
    assert len(rows) == 1
