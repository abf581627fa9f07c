"""What the golden files hold is what this code does: see tests/golden/README.md."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.golden_files import CHAINS, PARTS, STATES, part, states_now
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


def _kept() -> Iterator[tuple[str, str]]:
    """Chains with states of earlier versions; of those that are as today, which `test_chain` restores, a few."""
    now = states_now()
    for file in STATES:
        for number, (name, held) in enumerate(part(file).items()):
            if held != now.get(name) or number % 20 == 0:
                yield file, name


@pytest.mark.parametrize(("file", "name"), list(_kept()))
def test_a_state_of_an_earlier_version_restores(file: str, name: str, stores: Path) -> None:
    held = part(file)[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lines = list(restored(held["recipe"], held, stores, most=len(held["positions"])))
    assert not lines, f"{name}\n" + "\n".join(lines)


# Every chain is explained, which takes long: a part of `make test-brief`.
SLOW = {"explain"}
BY_TIME = [pytest.param(name, marks=[pytest.mark.jobs] if name in SLOW else []) for name in PARTS]


@pytest.mark.parametrize("name", BY_TIME)
def test_part(name: str, stores: Path) -> None:
    _assert_same(name, part(name), PARTS[name](stores))
