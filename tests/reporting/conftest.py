"""Fixtures of the tests that look at reports in a browser; each module has its own `pages`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Browser, Look, browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def look(pages: dict[str, Path], chromium: Browser) -> Iterator[Look]:
    with chromium.looking(pages) as found:
        yield found
