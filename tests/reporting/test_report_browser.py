"""Pages of reports as a browser draws them: what is seen, where, in which colours, and no request.

The browser is a Chromium without a window and without a network.

1. Every request is refused and kept in `requests`, but that for the page itself.
2. What the page writes to its console, and errors of its code, are kept in `complaints`.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import playwright.sync_api
import pytest
import zarr
from PIL import Image

import windrow
from tests.report_pages import HOSTILE, Told, chain_of_pictures, chain_of_tokens, measured
from windrow import MapDataset
from windrow.sources import ZarrDataSource

pytestmark = pytest.mark.report

# Opens a page by its name, in a window of a size, light or dark.
Look: TypeAlias = "Callable[..., Looked]"

PHONE: Final = (390, 844)
DESKTOP: Final = (1280, 900)

# What a page is waited for; the machine may be busy.
_PATIENCE_MS: Final = 120_000


class Browser:
    """A Chromium, and the pages that are open in it."""

    def __init__(self, chromium: playwright.sync_api.Browser) -> None:
        self._chromium = chromium

    def new_context(self, **settings: Any) -> playwright.sync_api.BrowserContext:
        """A window of one's own."""
        return self._chromium.new_context(offline=True, **settings)

    @contextlib.contextmanager
    def opened(
        self, path: str | Path, size: tuple[int, int] = DESKTOP, *, dark: bool = False
    ) -> Iterator[Looked]:
        """A page, drawn."""
        context = self.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if dark else "light",
        )
        try:
            yield Looked(context.new_page(), Path(path))
        finally:
            context.close()

    @contextlib.contextmanager
    def looking(self, pages: Mapping[str, Path]) -> Iterator[Look]:
        """Opens pages by name, once for all tests that only look at them."""
        with contextlib.ExitStack() as stack:

            @functools.cache
            def opened(name: str, size: tuple[int, int] = DESKTOP, *, dark: bool = False) -> Looked:
                return stack.enter_context(self.opened(pages[name], size, dark=dark))

            yield opened


class Looked:
    """An open page, and what can be seen of it."""

    def __init__(self, page: playwright.sync_api.Page, path: Path) -> None:
        self.page = page
        self.requests: list[str] = []
        self.complaints: list[str] = []
        address = path.resolve().as_uri()

        def route(asked: playwright.sync_api.Route) -> None:
            if asked.request.url == address:
                asked.continue_()
            else:
                self.requests.append(asked.request.url)
                asked.abort()

        page.set_default_timeout(_PATIENCE_MS)
        page.route("**/*", route)
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(address)
        page.wait_for_selector("html[data-drawn]", state="attached")

    def told(self, script: str, *given: Any) -> Any:
        """What an expression, or a function of one argument, comes to in the page."""
        return self.page.evaluate(script, *given)

    def texts(self, selector: str) -> list[str]:
        """The words of what a selector finds, in order."""
        found: list[str] = self.told(
            "s => [...document.querySelectorAll(s)].map(e => e.textContent.trim())", selector
        )
        return found

    def boxes(self, selector: str) -> list[dict[str, float]]:
        """Where on the page it lies: x, y, width and height, in CSS pixels."""
        found: list[dict[str, float]] = self.told(
            """s => [...document.querySelectorAll(s)].map(e => {
              const b = e.getBoundingClientRect();
              return {x: b.x, y: b.y + scrollY, width: b.width, height: b.height};
            })""",
            selector,
        )
        return found

    def picture(self, selector: str | None = None) -> bytes:
        """What it looks like, as a PNG; the whole page without a selector."""
        if selector is None:
            return self.page.screenshot(full_page=True)
        return self.page.locator(selector).first.screenshot()


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """The Chromium that the environment names in CHROMIUM, as `make test-report` does."""
    with playwright.sync_api.sync_playwright() as driver:
        chromium = driver.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"),
            # Chromium's own sandbox needs a user that is not root.
            args=["--no-sandbox", "--disable-gpu"],
        )
        try:
            yield Browser(chromium)
        finally:
            chromium.close()


def pixels_of(png: bytes) -> npt.NDArray[np.uint8]:
    """The pixels of a picture: uint8 `(height, width, 3)`."""
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def look(pages: dict[str, Path], chromium: Browser) -> Iterator[Look]:
    with chromium.looking(pages) as found:
        yield found


# --- the pages -----------------------------------------------------------------------------------

SIZES = {"phone": PHONE, "desktop": DESKTOP}
BLOCKS = 150


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of several chains, made once."""
    folder = tmp_path_factory.mktemp("pages")
    pictures = chain_of_pictures(folder)
    given: dict[str, Any] = {
        "pictures": pictures,
        "measured": Told(pictures._node, measured(pictures, BLOCKS)),
        "tokens": chain_of_tokens(),
        "fields": MapDataset.source(_fields()).shuffle(seed=2).map(_half),
        "empty": MapDataset.source([]),
        "one record": MapDataset.source([np.arange(3.0)]).repeat(),
        "many": MapDataset.range(10**7).shuffle(seed=5).batch(100),
        "long names": _long_names(),
        "memory": Told((numbers := _numbers())._node, measured(numbers, 30)),
        "branches": _branches(folder / "a folder of some depth" / "of_stores", 5),
    }
    made = {name: folder / f"{name}.html" for name in given}
    for name, one in given.items():
        windrow.report(one, made[name], title=HOSTILE if name == "tokens" else None)
    return made


def _fields() -> npt.NDArray[Any]:
    return np.random.default_rng(0).random((30, 24, 36)).astype(np.float32)


def _half(field: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return field / 2


def _long_names() -> Any:
    def function(element: Any) -> Any:
        return element

    function.__qualname__ = function.__name__ = "a_name_that_goes_on" + "_and_on" * 30
    return MapDataset.source(np.zeros((40, 3), np.float32)).map(function).batch(8)


def _numbers() -> Any:
    return MapDataset.source(np.zeros((480, 3), np.float32)).shuffle(seed=1).batch(8)


def _branches(folder: Path, count: int) -> Any:
    zarr.create_array(folder / "x.zarr", data=np.zeros((60, 4), np.float32), chunks=(10, 4))
    sources = [ZarrDataSource(str(folder / "x.zarr")) for _ in range(count)]
    return MapDataset.mix([MapDataset.source(s).shuffle(seed=1) for s in sources])


# --- all pages -----------------------------------------------------------------------------------

NAMES = ["pictures", "measured", "tokens", "fields", "empty", "one record", "many"]
NAMES += ["long names", "branches"]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_drawn_whole_and_asks_for_nothing(name: str, size: str, look: Look) -> None:
    looked = look(name, SIZES[size])
    assert looked.complaints == []
    assert looked.requests == []
    charts = looked.boxes(".chart")
    assert looked.told("Number(document.documentElement.dataset.drawn)") == len(charts)
    assert len(looked.boxes(".chart .main-svg")) >= len(charts)
    width = SIZES[size][0]
    # Nothing but what scrolls by itself is wider than the window.
    assert looked.told("document.documentElement.scrollWidth") <= width
    for box in [*charts, *looked.boxes("section"), *looked.boxes("figure")]:
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width + 0.5
    assert all(box["width"] > 250 and box["height"] > 80 for box in charts)
    no_words = "s => [...document.querySelectorAll(s)].filter(e => !e.ariaLabel).length"
    assert looked.told(no_words, ".chart") == 0
    assert looked.told("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert looked.told("[...document.images].every(i => i.alt)")


@pytest.mark.parametrize("size", SIZES)
def test_a_plan_scrolls_by_itself_where_it_is_wider_than_the_page(size: str, look: Look) -> None:
    looked = look("branches", SIZES[size])
    (plan,) = looked.boxes("#plan .wide")
    assert plan["x"] + plan["width"] <= SIZES[size][0]
    rows = looked.boxes(".plan tbody tr")
    assert len(rows) == len(set(looked.texts(".plan tbody th"))) == 12
    # No column is so narrow that its words are cut into letters.
    assert all(box["width"] > 150 for box in looked.boxes(".plan td:nth-child(2)"))


def test_what_a_source_in_memory_does_not_do_is_no_row(look: Look) -> None:
    assert look("memory").texts("#bytes .ytick text") == ["delivered"]
    stored = look("measured").texts("#bytes .ytick text")
    assert set(stored) == {"stored", "decoded", "delivered"}


# --- elements ------------------------------------------------------------------------------------


def test_pictures_show_the_elements(look: Look) -> None:
    looked = look("pictures")
    shown = pixels_of(looked.picture("#elements img.grid"))
    # Chunks have their pixels in rows of rising shades, halved: no more than 125.
    assert len(np.unique(shown.reshape(-1, 3), axis=0)) > 20
    assert looked.texts("#elements tbody th")[0] == "element 0, row 0"


# --- looks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dark", [False, True])
def test_a_page_is_light_or_dark(dark: bool, look: Look) -> None:
    shades = pixels_of(look("measured", dark=dark).picture()).mean(axis=-1)
    ground = np.median(shades)
    assert (ground < 40) == dark
    # Words, lines and bars stand out from the ground.
    assert np.mean(np.abs(shades - ground) > 120) > 0.01


def test_print_is_on_white(pages: dict[str, Path], chromium: Browser) -> None:
    with chromium.opened(pages["measured"], dark=True) as looked:
        looked.page.emulate_media(media="print")
        assert np.median(pixels_of(looked.picture())) > 240
        paper = looked.page.pdf(format="A4")
        assert paper.startswith(b"%PDF")
        assert looked.complaints == []


def test_without_scripts_the_tables_are_there(pages: dict[str, Path], chromium: Browser) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["measured"].as_uri())
    heads = page.locator("#costs th").all_text_contents()
    assert {"records", "chunks", "reads", "hits"} <= {head.strip() for head in heads}
    assert "Drawing it needs JavaScript" in page.inner_text("#time")
    context.close()


def test_what_asks_for_something_is_counted_and_the_policy_forbids_it(
    pages: dict[str, Path], tmp_path: Path, chromium: Browser
) -> None:
    asking = "<img src='http://127.0.0.1:9/a.png'><script src='http://127.0.0.1:9/a.js'></script>"
    whole = pages["empty"].read_text(encoding="utf-8").replace("</main>", f"{asking}</main>")
    (tmp_path / "with.html").write_text(whole, encoding="utf-8")
    policy = re.compile(r"<meta http-equiv=[^>]+>")
    (tmp_path / "without.html").write_text(policy.sub("", whole), encoding="utf-8")
    with chromium.opened(tmp_path / "without.html") as looked:
        assert sorted(looked.requests) == ["http://127.0.0.1:9/a.js", "http://127.0.0.1:9/a.png"]
    with chromium.opened(tmp_path / "with.html") as looked:
        assert looked.requests == []
        assert (
            len([words for words in looked.complaints if "Content Security Policy" in words]) == 2
        )
