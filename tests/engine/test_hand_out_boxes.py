"""Boxes that go straight from decoded chunks to all planned read batches, and into no slot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import ZstdCodec

from tests.room import room_for
from windrow import MapDataset
from windrow.core.native import native
from windrow.engine.box_cache import BoxCache
from windrow.errors import ReadError
from windrow.sources import BoxField, BoxPart, Cut, WindowDataSource
from windrow.sources.zarr.plain import PlainStore

needs_core = pytest.mark.skipif(native() is None, reason="the native core copies the boxes")

SHAPE, CHUNK, SIZE = (600, 520), (160, 140), (100, 80)
CHUNKS = 4 * 4
VALUES = np.arange(np.prod(SHAPE), dtype="i4").reshape(SHAPE)
PLACES = [(y, x) for y in range(0, 440, 40) for x in range(0, 380, 60)]
# Room for the records of half an epoch, and less than all chunks take.
ROOM = room_for(1_400_000)


def patches(folder: Path) -> MapDataset[Any]:
    array = zarr.create_array(
        str(folder / "volume"), data=VALUES, chunks=CHUNK, compressors=[ZstdCodec(level=1)]
    )
    assert array.shape == SHAPE
    centers = np.array(PLACES) + np.array(SIZE) // 2
    source = WindowDataSource(str(folder / "volume"), {0: SIZE[0], 1: SIZE[1]}, centers=centers)
    return MapDataset.source(source)


def expected(chain: MapDataset[Any]) -> list[Any]:
    return [chain[k] for k in range(len(chain))]


def window(at: int) -> npt.NDArray[Any]:
    y, x = PLACES[at]
    return VALUES[y : y + SIZE[0], x : x + SIZE[1]]


@needs_core
@pytest.mark.parametrize("batch", [1, 3, 16])
def test_a_read_serves_all_that_is_planned(tmp_path: Path, batch: int) -> None:
    chain = patches(tmp_path).shuffle(seed=1).repeat(3).batch(batch)
    wanted = expected(chain)
    assert np.array_equal(
        np.sort([each[0, 0] for each in np.concatenate(wanted)])[::3],
        [window(k)[0, 0] for k in range(len(PLACES))],
    )
    with iter(chain.to_iter_dataset(ROOM)) as iterator:
        for found, each in zip(iterator, wanted, strict=True):
            assert np.array_equal(found, each)
        stats = iterator.stats()
    # A read serves about half an epoch of records, each of which lies in two chunks on average.
    reads = stats.sources[0].reads.low
    assert 3 * CHUNKS < reads < 3 * 4 * CHUNKS


@needs_core
def test_a_damaged_chunk_is_an_error_of_its_own_batches(tmp_path: Path) -> None:
    chain = patches(tmp_path).shuffle(seed=1)
    order = expected(chain)
    (tmp_path / "volume" / "c" / "1" / "2").write_bytes(b"damaged")
    cells = set(VALUES[160:320, 280:420].ravel().tolist())
    bad = [not cells.isdisjoint(each.ravel().tolist()) for each in order]
    with iter(chain.to_iter_dataset(ROOM)) as iterator:
        for k in range(bad.index(True)):
            assert np.array_equal(next(iterator), order[k])
        with pytest.raises(ReadError, match=r"cells \[160:320, 280:420\].*c/1/2"):
            next(iterator)


@needs_core
def test_what_the_core_refuses_once_is_copied_from_the_second_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = patches(tmp_path).shuffle(seed=1).batch(4)
    wanted = expected(chain)
    path = tmp_path / "volume" / "c" / "1" / "2"
    stored, again = path.read_bytes(), PlainStore.look_again
    path.write_bytes(b"damaged")
    looks: list[Any] = []

    def repaired(self: PlainStore, coords: Sequence[Any], *, cells: bool = False) -> bool:
        looks.extend(coords)
        path.write_bytes(stored)
        return again(self, coords, cells=cells)

    monkeypatch.setattr(PlainStore, "look_again", repaired)
    with iter(chain.to_iter_dataset(ROOM)) as iterator:
        for found, each in zip(iterator, wanted, strict=True):
            assert np.array_equal(found, each)
    assert looks == [(1, 2)]


class NoReader:
    """Reads nothing."""

    start: Any = None
    stored_bytes: Any = None


@needs_core
@given(data=st.data())
def test_the_core_plans_and_copies_as_numpy_does(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 3), "axes")
    axes = st.tuples(*(st.integers(1, 9) for _ in range(rank)))
    shape, chunk = data.draw(axes, "shape"), data.draw(axes, "chunk")
    size = tuple(data.draw(st.integers(0, cells)) for cells in shape)
    shift = tuple(data.draw(st.integers(0, cells - 1)) for cells in chunk)
    # Two cuts tile the only field along its last axis.
    split = data.draw(st.integers(0, size[-1]), "split")
    none, rest = (0,) * (rank - 1), size[:-1]
    one, other = (*rest, split), (*rest, size[-1] - split)
    cuts = Cut((*none, 0), (*none, 0), one), Cut((*none, split), (*none, split), other)
    places = st.tuples(*(st.integers(0, n - k) for n, k in zip(shape, size, strict=True)))
    origins = np.array(data.draw(st.lists(places, max_size=5)), np.int64).reshape(-1, rank)
    dtype = np.dtype(data.draw(st.sampled_from(["u1", "M8[s]", "f4", "V3"])))
    part = BoxPart(
        "", shape, dtype, chunk, NoReader(), lambda indices: origins[indices],
        (BoxField(size, cuts),), shift=shift,
    )  # fmt: skip
    low = origins
    high = low + np.array(size)
    table = part._table
    planned = zip(table.cut(low, high), table.cut_in_numpy(low, high), strict=True)
    for mine, its in planned:
        assert (mine.dtype, mine.tolist()) == (its.dtype, its.tolist())
    cache = BoxCache(part, part.chunk_count)
    cache._memory.view("u1")[...] = np.arange(cache._memory.nbytes).reshape(
        *cache._memory.shape[:-1], -1
    )
    fragments, wanted = cache.fragments(np.arange(len(origins)))
    slots = np.array(wanted.numbers, np.int64)[wanted.which]
    (found,) = cache.gather(len(origins), fragments, slots)
    (expected,) = part.empty(len(origins))
    cache._fill_in_numpy((expected,), fragments, cache._memory, slots)
    assert found.tobytes() == expected.tobytes()


@needs_core
def test_the_core_refuses_fragments_outside_of_outputs_and_slots() -> None:
    core: Any = native()

    def numbers(*values: int) -> npt.NDArray[np.int64]:
        return np.array(values, np.int64)

    def placed(record: int = 0, target: int = 0, length: int = 2, which: int = 0) -> Any:
        at = numbers(record), numbers(0), numbers(3), numbers(target), numbers(length)
        return core.Boxes([np.zeros((1, 4), "u1")], numbers(0), *at, numbers(which), 1)

    for wrong in ({"record": 1}, {"target": 3}, {"length": 5}, {"target": -1}, {"length": -1}):
        with pytest.raises(ValueError, match="does not lie in its output"):
            placed(**wrong)
    with pytest.raises(ValueError, match="there is no such chunk"):
        placed(which=1)
    slots = np.zeros((2, 5), "u1")
    placed().gather(slots, [5], [0], numbers(1))
    for wrong_slot, cells in ((2, 5), (-1, 5), (0, 4)):
        with pytest.raises(ValueError, match="does not lie in its slot"):
            placed(length=2).gather(slots[:, :cells].copy(), [5], [0], numbers(wrong_slot))
    with pytest.raises(ValueError, match="other axes or values"):
        placed().gather(slots.astype("u2"), [5], [0], numbers(1))
