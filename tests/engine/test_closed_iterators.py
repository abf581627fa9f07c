"""An iterator that is closed in the middle gives its memory back at once, without the garbage collector.

Requests and futures that are cancelled hold their errors, whose frames hold them: those it must find.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.explained_chains import CASES, Stores, served_stores
from windrow import MapDataset, ReadOptions
from windrow.core.native import native
from windrow.sources import ZarrDataSource

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


@pytest.mark.parametrize("direct", [False, True])
def test_chunks_that_could_not_be_read_keep_no_source_alive(tmp_path: Path, direct: bool) -> None:
    group = zarr.create_group(str(tmp_path / "a.zarr"))
    group.create_array("x", data=np.random.default_rng(0).random((80, 50)), chunks=(4, 50))
    for chunk in range(0, 20, 2):
        path = tmp_path / "a.zarr" / "x" / "c" / str(chunk) / "0"
        path.write_bytes(path.read_bytes()[:-100])
    source = ZarrDataSource(tmp_path / "a.zarr", names=["x"], direct=direct)
    ended = weakref.ref(source)
    shuffled = MapDataset.source(source).seed(1).shuffle().on_bad("replace").repeat().batch(4)
    # Several read batches are planned that want one bad chunk.
    dataset = shuffled.to_iter_dataset(ReadOptions(memory_bytes=3000))
    with iter(dataset) as iterator:
        next(iterator)
    del source, shuffled, dataset, iterator
    gc.collect()
    assert ended() is None
