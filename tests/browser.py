"""A Chromium without a window and without a network, in which tests look at pages.

1. Every request is refused and kept in `requests`, but that for the page itself.
2. What the page writes to its console, and errors of its code, are kept in `complaints`.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import playwright.sync_api
from PIL import Image

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
