"""What the golden files hold is what this code does: see tests/golden/README.md."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.golden_files import CHAINS, PARTS, part
from tests.golden_records import differences, observed, restored
from tests.golden_stores import unpack


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stores, in a folder whose name no golden file has."""
    return unpack(tmp_path_factory.mktemp("golden") / "stores")


def _assert_same(what: str, expected: Any, got: Any) -> None:
    lines = list(differences(expected, json.loads(json.dumps(got))))
    assert not lines, f"{what}: {len(lines)} differ\n" + "\n".join(lines[:20])


@pytest.mark.parametrize("name", part(CHAINS))
def test_chain(name: str, stores: Path) -> None:
    chain = part(CHAINS)[name]
    recipe = chain["recipe"]
    _assert_same(name, chain, {"recipe": recipe, **observed(recipe, stores)})
    if "positions" in chain:
        with warnings.catch_warnings():
            # A state of today's code may not even warn that functions have other names.
            warnings.simplefilter("error")
            lines = list(restored(recipe, chain, stores))
        assert not lines, f"{name}\n" + "\n".join(lines)


@pytest.mark.parametrize("name", PARTS)
def test_part(name: str, stores: Path) -> None:
    _assert_same(name, part(name), PARTS[name](stores))
