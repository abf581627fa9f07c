"""Block shuffles over blocks whose records are not consecutive: patches of a grid, locations."""

from __future__ import annotations

import dataclasses
import functools
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests import strategies as make
from tests.hypothesis_profiles import examples
from windrow.errors import PlanError, StateError
from windrow.sources import BatchedSource, Blocks

IntArray = npt.NDArray[np.int64]
M = windrow.MapDataset


# --- sources -------------------------------------------------------------------------------------


class Homes(BatchedSource):
    """Records `base, base + 1, ...`; number `i` lies in block `homes[i]`."""

    def __init__(self, homes: Sequence[int], base: int = 0) -> None:
        self.base = base
        self.homes = np.asarray(homes, np.int64)

    def __len__(self) -> int:
        return len(self.homes)

    def read(self, indices: IntArray) -> IntArray:
        return indices + self.base

    def blocks(self) -> Blocks:
        bounds = np.cumsum([0, *np.bincount(self.homes, minlength=1)])
        return Blocks(bounds, np.argsort(self.homes, kind="stable").take)

    @property
    def fingerprint(self) -> str:
        return f"homes({self.base}:{len(self)})"


class Squares(BatchedSource):
    """Cells of a square of `side`, in squares of `block`, by arithmetic alone."""

    def __init__(self, side: int, block: int) -> None:
        self.side, self.block = side, block

    def __len__(self) -> int:
        return self.side**2

    def read(self, indices: IntArray) -> IntArray:
        return indices

    def blocks(self) -> Blocks:
        return Blocks(np.arange(0, self.side**2 + 1, self.block**2), self.records)

    def records(self, places: IntArray) -> IntArray:
        """Which cell stands at each place."""
        block, inside = np.divmod(places, self.block**2)
        rows, columns = np.divmod(block, self.side // self.block)
        row, column = np.divmod(inside, self.block)
        found: IntArray = (rows * self.block + row) * self.side + columns * self.block + column
        return found

    @property
    def fingerprint(self) -> str:
        return f"squares({self.side})"


class Declared(Homes):
    """Ten records in two blocks of five, with a function of its own."""

    def __init__(self, records: Callable[[IntArray], Any], length: int = 10) -> None:
        super().__init__([0] * (length // 2) + [1] * (length - length // 2))
        self.records = records

    def blocks(self) -> Blocks:
        half = len(self) // 2
        return Blocks(np.array([0, half, len(self)]), self.records)


# --- chains --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Chain:
    """A dataset with a model of it: the element, and the block that it lies in, at each index."""

    dataset: Any
    elements: list[int]
    homes: list[Any]

    def taken(self, dataset: Any, indices: Sequence[int]) -> Chain:
        """The elements at `indices`."""
        return Chain(dataset, [self.elements[i] for i in indices], [self.homes[i] for i in indices])


def first(elements: Sequence[Any]) -> Any:
    return elements[0]


@st.composite
def chains(draw: st.DrawFn, number: int = 0, most: int = 4) -> Chain:
    """Slices, lists, batches, repeats and concatenations over records in any blocks."""
    homes = draw(st.lists(st.integers(0, 6), max_size=25))
    base = 1000 * number
    found = Chain(
        M.source(Homes(homes, base)),
        [base + i for i in range(len(homes))],
        [(number, home) for home in homes],
    )
    for step in range(draw(st.integers(0, most))):
        dataset, length = found.dataset, len(found.elements)
        kinds = ["seed", "slice", "batch", "list", "repeat"] + ["concatenate"] * (number == 0)
        match draw(st.sampled_from(kinds)):
            case "seed":
                found = dataclasses.replace(found, dataset=dataset.seed(3).map(int))
            case "slice":
                bound = st.none() | st.integers(-30, 30)
                stride = draw(st.sampled_from([None, 1, 2, 3, 7, -1, -2, -5, 10**30]))
                cut = slice(draw(bound), draw(bound), stride)
                found = found.taken(dataset[cut], range(length)[cut])
            case "list" if length:
                indices = draw(st.lists(st.integers(-length, length - 1), max_size=30))
                found = found.taken(dataset.slice(indices), indices)
            case "batch":
                size, drop = draw(st.integers(1, 5) | st.just(10**30)), draw(st.booleans())
                batches = dataset.batch(size, drop_remainder=drop, batch_fn=first)
                found = found.taken(batches, range(0, length, size)[: len(batches)])
            case "repeat" if length < 200:
                times = draw(st.integers(1, 3))
                found = Chain(
                    dataset.repeat(times),
                    found.elements * times,
                    [(epoch, home) for epoch in range(times) for home in found.homes],
                )
            case "concatenate":
                other = draw(chains(step + 1, most=2))
                found = Chain(
                    M.concatenate([dataset, other.dataset]),
                    found.elements + other.elements,
                    found.homes + other.homes,
                )
            case _:
                pass
    return found


@given(chain=chains())
@settings(max_examples=examples(100), deadline=None)
def test_blocks_are_what_the_chain_leaves_of_those_below(chain: Chain) -> None:
    assert list(chain.dataset) == chain.elements
    found = chain.dataset._node.layout()
    offsets = found.at(np.arange(found.length)).tolist()
    assert sorted(offsets) == list(range(len(chain.elements)))
    homes = [chain.homes[i] for i in offsets]
    starts = [i for i in range(len(homes)) if i == 0 or homes[i] != homes[i - 1]]
    assert found.bounds.tolist() == sorted({0, *starts, len(homes)})
    assert len(set(homes)) == len(starts)  # and each block is there once


@given(chain=chains(), window=st.integers(1, 4), seed=make.SEEDS)
@settings(max_examples=examples(80), deadline=None)
def test_every_epoch_is_a_permutation_that_begins_few_blocks_at_a_time(
    chain: Chain, window: int, seed: int
) -> None:
    shuffled = chain.dataset.block_shuffle(seed, window_blocks=window)
    assert len(shuffled) == len(chain.elements)
    for epoch in range(2 if len(shuffled) else 0):
        at = range(epoch * len(shuffled), (epoch + 1) * len(shuffled))
        got = [int(element) for element in shuffled.read(at)]
        assert got == [int(shuffled[i]) for i in at]
        assert sorted(got) == sorted(chain.elements)
        order = shuffled._node.order.at(np.full(len(at), epoch), np.arange(len(at)))
        assert sorted(order.tolist()) == list(range(len(shuffled)))
        left = {home: chain.homes.count(home) for home in set(chain.homes)}
        begun: set[Any] = set()
        for home in (chain.homes[i] for i in order.tolist()):
            left[home] -= 1
            (begun.add if left[home] else begun.discard)(home)
            assert len(begun) <= window


@given(sizes=st.lists(st.integers(1, 9), max_size=12), window=st.integers(1, 5))
@settings(max_examples=examples(40))
def test_records_in_their_order_come_as_without_places(sizes: list[int], window: int) -> None:
    homes = np.repeat(np.arange(len(sizes)), sizes)
    placed = M.source(Homes(homes.tolist())).block_shuffle(7, window_blocks=window)
    plain = M.source(make.Chunks(sizes)).block_shuffle(7, window_blocks=window)
    assert list(placed) == list(plain)


# --- grids by arithmetic -------------------------------------------------------------------------


def test_10_to_the_12_records_need_no_table() -> None:
    dataset = M.source(Squares(10**6, 10**3)).block_shuffle(1, window_blocks=1)
    found = dataset.read(np.arange(10**6) + 5 * 10**11)
    rows, columns = np.divmod(np.sort(found), 10**6)
    assert np.array_equal(np.unique(rows) - rows[0], np.arange(10**3))
    assert np.array_equal(np.unique(columns) - columns.min(), np.arange(10**3))


class Backwards(Squares):
    """Four blocks, the last record first."""

    def blocks(self) -> Blocks:
        bounds = np.linspace(0, len(self), 5).astype(np.int64)
        return Blocks(bounds, lambda places: len(self) - 1 - places)


def test_part_of_what_is_too_large_for_a_table_is_refused() -> None:
    class Large(Squares):
        def blocks(self) -> Blocks:
            return Blocks(np.array([0, len(self)]), self.records)

    whole = M.source(Large(2**18, 2**9))
    for part in (whole[1:], whole.slice([4, 2]), whole.batch(2)):
        message = "blocks of 68719476736 elements are not consecutive.* at most 268435456; choose"
        with pytest.raises(PlanError, match=message):
            part.block_shuffle(1)
        assert len(part.block_shuffle(1, block=2**26, window_blocks=1)) == len(part)


@pytest.mark.parametrize("stretch", [2**20 - 1, 2**20, 2**20 + 1])
def test_slices_longer_than_a_stretch(stretch: int) -> None:
    homes = np.arange(stretch) % 3
    found = M.source(Homes(homes.tolist()))[1::2]._node.layout()
    model = np.argsort(homes[1::2], kind="stable")
    assert np.array_equal(found.at(np.arange(found.length)), model)
    assert found.bounds.tolist() == np.cumsum([0, *np.bincount(homes[1::2])]).tolist()


# --- states --------------------------------------------------------------------------------------

HOMES = [3, 0, 1, 0, 2, 3, 3, 1, 0, 0, 2]


def shuffled(homes: Sequence[int] = HOMES) -> Any:
    parts = [M.source(Homes(homes)), M.source(Homes([1, 0, 1], 100))[::-1]]
    return M.concatenate(parts).repeat(2)[1:].block_shuffle(5, window_blocks=2)


def bounds_of(dataset: Any) -> list[int]:
    """Bounds of the blocks that a shuffle has."""
    found: list[int] = dataset._node.order.bounds.tolist()
    return found


@pytest.mark.parametrize("function", ["whole", "slice", "list", "concatenate", "repeat"])
def test_a_state_of_other_places_is_refused(function: str) -> None:
    def over(homes: Sequence[int]) -> Any:
        dataset = M.source(Homes(homes))
        made = {
            "whole": lambda: dataset,
            "slice": lambda: dataset[2:],
            "list": lambda: dataset.slice([2, 3, 5]),
            "concatenate": lambda: M.concatenate([M.source(make.Chunks([2])), dataset]),
            "repeat": lambda: dataset.repeat(2),
        }[function]()
        return made.block_shuffle(1)

    one, other = over([0, 1, 0, 1, 0, 1]), over([0, 1, 1, 0, 0, 1])
    assert bounds_of(one) == bounds_of(other)
    assert list(one) != list(other)
    state = iter(one).get_state()
    iter(over([0, 1, 0, 1, 0, 1])).set_state(state)
    with pytest.raises(StateError, match="another chain or other data"):
        iter(other).set_state(state)


def test_a_state_of_another_large_grid_is_refused() -> None:
    # Too large to check each place, with the same bounds and length.
    one = M.source(Squares(720, 6)).block_shuffle(1)
    other = M.source(Transposed(720, 6)).block_shuffle(1)
    assert bounds_of(one) == bounds_of(other)
    with pytest.raises(StateError, match="another chain or other data"):
        iter(other).set_state(iter(one).get_state())


class Transposed(Squares):
    """The blocks one below the other."""

    def blocks(self) -> Blocks:
        turned = functools.partial(transposed, self.side)
        return Blocks(super().blocks().bounds, lambda places: turned(self.records(places)))


def transposed(side: int, cells: IntArray) -> IntArray:
    row, column = np.divmod(cells, side)
    found: IntArray = column * side + row
    return found


def test_a_pickled_chain_is_the_same() -> None:
    again = pickle.loads(pickle.dumps(shuffled()))
    assert list(again) == list(shuffled())
    assert repr(again) == repr(shuffled())
    backwards = M.source(Backwards(12, 1)).block_shuffle(3)  # its function is a lambda
    assert list(pickle.loads(pickle.dumps(backwards))) == list(backwards)


def test_a_source_that_tells_another_order_in_another_process_is_refused() -> None:
    source = Homes([0, 1, 0, 1, 0])
    again = pickle.loads(pickle.dumps(M.source(source).block_shuffle(3)))
    again._node.parent.source.homes[:] = [1, 0, 1, 0, 0]
    with pytest.raises(PlanError, match=r"Homes.blocks\(\) declares another order since"):
        list(again)


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "records",
    [
        lambda places: places + 1,
        lambda places: places - 1,
        lambda places: places // 2,
        lambda places: places[1:],
        lambda places: places * 1.0,
        lambda places: None,
    ],
)
def test_records_that_are_no_permutation_are_refused(records: Any) -> None:
    begin = r"Declared.blocks\(\).records must give each of its 10 records at one place: "
    with pytest.raises(PlanError, match=begin):
        M.source(Declared(records)).block_shuffle(1)


def beyond(places: IntArray) -> IntArray:
    """Wrong at one place in a million."""
    return np.where(places == 1_000_003, 10**9, places)


def twice(places: IntArray) -> IntArray:
    """Wrong at one place in a million, and in range."""
    return np.where(places == 1_000_003, 7, places)


def test_a_long_source_is_checked_where_it_is_read() -> None:
    dataset = M.source(Declared(beyond, 2_000_000)).block_shuffle(1, window_blocks=1)
    with pytest.raises(PlanError, match=r"2000000 records at one place: got records from 1000000 "):
        dataset.read(range(2_000_000))


def test_a_part_of_a_long_source_is_checked_whole() -> None:
    for records in (beyond, twice):
        with pytest.raises(PlanError, match=r"at one place"):
            M.source(Declared(records, 2_000_000))[5:].block_shuffle(1)


def test_a_source_that_keeps_or_overwrites_places_does_no_harm() -> None:
    def backwards(places: IntArray) -> IntArray:
        np.subtract(9, places, out=places)
        return places

    assert sorted(M.source(Declared(backwards)).block_shuffle(1)) == list(range(10))
