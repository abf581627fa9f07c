"""Stores of the programs, written once per session."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from tests.model import elements
from windrow.transforms.nodes import idle


@pytest.fixture(scope="session", autouse=True)
def stores() -> Iterator[None]:
    # A stream of a mixture that has no row is given up after 800 epochs instead of 16,000.
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(idle, "_RARELY", 50):
        yield from elements.paths_of(Path(folder))
