"""Pages of reports as a browser draws them: what is seen, where, in which colours, and no request."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import windrow
from tests.browser import DESKTOP, PHONE, Browser, Look, Looked, pixels_of
from tests.report_pages import HOSTILE, Told, chain_of_pictures, chain_of_tokens, measured
from windrow import MapDataset

pytestmark = pytest.mark.report

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
    }
    made = {name: folder / f"{name}.html" for name in given}
    for name, one in given.items():
        windrow.report(one, made[name], title=HOSTILE if name == "tokens" else None)
    return made


def _fields() -> npt.NDArray[Any]:
    return np.random.default_rng(0).random((30, 24, 36)).astype(np.float32)


def _half(field: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return field / 2


# --- all pages -----------------------------------------------------------------------------------

NAMES = ("pictures", "measured", "tokens", "fields", "empty", "one record", "many")


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


# --- elements ------------------------------------------------------------------------------------


def test_pictures_show_the_elements(look: Look) -> None:
    looked = look("pictures")
    shown = pixels_of(looked.picture("#elements img.grid"))
    # Chunks have their pixels in rows of rising shades, halved: no more than 125.
    assert len(np.unique(shown.reshape(-1, 3), axis=0)) > 20
    assert looked.texts("#elements tbody th")[0] == "element 0, row 0"


def test_tokens_and_texts_are_told(look: Look) -> None:
    looked = look("tokens")
    assert looked.told("document.title") == HOSTILE
    assert looked.texts("h1") == [HOSTILE]
    tokens, words = looked.texts("#elements tbody tr:first-child td")
    first = int(tokens.split()[0])
    assert tokens == " ".join(str(first + at) for at in range(8)) + " and 32 more"
    assert words.startswith(f"the text of {first}")


# --- looks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dark", [False, True])
def test_words_are_read_on_light_and_on_dark(dark: bool, look: Look) -> None:
    looked = look("measured", dark=dark)
    ground = luminance(colour(looked, "body", "backgroundColor"))
    assert (ground < 0.05) == dark
    for selector in ("body", ".soft", "figcaption", "td", "thead th", ".facts small"):
        assert contrast(looked, selector, "color", ground) > 4.5, selector
    for selector in ("#timeline .x3title", "#bytes .ytick text"):
        assert contrast(looked, selector, "fill", ground) > 4.5, selector
    picture = pixels_of(looked.picture())
    assert (picture.mean() < 80) == dark


def test_print_is_on_white(pages: dict[str, Path], chromium: Browser) -> None:
    with chromium.opened(pages["measured"], dark=True) as looked:
        looked.page.emulate_media(media="print")
        assert luminance(colour(looked, "body", "backgroundColor")) > 0.95
        assert luminance(colour(looked, "body", "color")) < 0.05
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


def colour(looked: Looked, selector: str, kind: str) -> tuple[float, ...]:
    words: str = looked.told(
        "([s, k]) => getComputedStyle(document.querySelector(s))[k]", [selector, kind]
    )
    return tuple(float(part) for part in words.strip("rgba()").split(","))[:3]


def luminance(rgb: tuple[float, ...]) -> float:
    """Relative luminance, as WCAG 2.2 defines it."""
    shares = [value / 255 for value in rgb]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(looked: Looked, selector: str, kind: str, ground: float) -> float:
    """The contrast of words on the ground of the page, as WCAG 2.2 defines it."""
    high, low = sorted([luminance(colour(looked, selector, kind)), ground], reverse=True)
    return (high + 0.05) / (low + 0.05)
