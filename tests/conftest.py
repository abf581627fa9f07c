"""Settings of all tests."""

from __future__ import annotations

import functools
import gc
import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import tensorstore

from tests import hypothesis_profiles
from tests.processes import is_left, left, left_in_memory, names_in_memory, until
from windrow.core import native

hypothesis.settings.load_profile(hypothesis_profiles.USUAL)

# In the background of a script SIGINT is ignored, and by all processes that are started there.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def unsynced() -> Iterator[None]:
    """No store of a test waits until the disk has it: half of the time of tests that write many files."""
    context, opened = tensorstore.Context({"file_io_sync": False}), tensorstore.open

    @functools.wraps(opened)
    def open_unsynced(spec: Any, **settings: Any) -> Any:
        # Stores in memory live in their context, so each has one of its own.
        if settings.get("create") and "memory" not in str(spec):
            settings.setdefault("context", context)
        return opened(spec, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensorstore, "open", open_unsynced)
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def frozen() -> None:
    """What was imported so far is not looked through at every `gc.collect`: a second each time."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak", type=int, default=1, metavar="N", help="run each test of a fault N times"
    )
    parser.addoption(
        "--soak-seed", type=int, default=0, metavar="SEED", help="first seed of their moments"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test of a fault once per seed; the seed is in its name."""
    if metafunc.definition.get_closest_marker("soak"):
        first, times = (int(metafunc.config.getoption(o)) for o in ("soak_seed", "soak"))
        metafunc.fixturenames.append("seed")
        metafunc.parametrize("seed", range(first, first + times), ids=lambda seed: f"seed{seed}")


@pytest.fixture
def moments(seed: int, request: pytest.FixtureRequest) -> random.Random:
    """What a test draws its random moments from."""
    return random.Random(f"{seed} {request.function.__name__}")


@pytest.fixture
def without_core(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sources that the test makes do without the native core."""
    monkeypatch.setenv("WINDROW_NATIVE", "0")
    native.native.cache_clear()
    yield
    native.native.cache_clear()


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    """Checks that a test leaves no worker, thread, descriptor or name of shared memory behind."""
    before, named_before = left(), names_in_memory()
    yield
    gc.collect()
    assert until(lambda: not is_left(before), 10.0), f"{before} became {left()}"
    assert left_in_memory(named_before) == set()
