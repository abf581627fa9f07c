"""Stores of the programs, written once per session."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.model import elements


@pytest.fixture(scope="session", autouse=True)
def stores() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        yield from elements.paths_of(Path(folder))
