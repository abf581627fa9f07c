"""An iterator that is closed in the middle gives its memory back at once, without the garbage collector.

Requests and futures that are cancelled hold their errors, whose frames hold them: those it must find.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.explained_chains import CASES, Stores, served_stores
from windrow.core.native import native

pytestmark = pytest.mark.skipif(native() is None, reason="futures of other threads are cancelled")


def is_cancelled(name: str) -> bool:
    """Whether what is read ahead are futures that closing cancels."""
    return "remote" in name or "through the package" in name


NAMES = [name for name, case in CASES.items() if not case.is_slow and not is_cancelled(name)]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    with served_stores(tmp_path_factory.mktemp("stores")) as found:
        yield found


def ours_in_cycles() -> list[str]:
    """Classes of this package whose objects only the garbage collector would find."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return sorted(
            {
                type(found).__qualname__
                for found in gc.garbage
                if type(found).__module__.startswith("windrow.")
            }
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@pytest.mark.parametrize("name", NAMES)
def test_a_closed_iterator_leaves_no_cycle(stores: Stores, name: str) -> None:
    dataset = CASES[name].make(stores)
    gc.collect()
    gc.disable()
    try:
        with iter(dataset) as iterator:
            next(iterator)
        del iterator
        assert ours_in_cycles() == []
    finally:
        gc.enable()
