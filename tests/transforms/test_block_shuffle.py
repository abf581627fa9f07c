"""The block shuffle: a permutation in every epoch, near each other what is stored together."""

from __future__ import annotations

import collections
import itertools
import json
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from array_record.python.array_record_module import ArrayRecordWriter
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests import strategies as make
from tests.strategies import Chunks
from windrow.errors import ArgumentError, PlanError, StateError
from windrow.transforms import blocks, nodes, orders
from windrow.transforms.nodes import BlockShuffleNode
from windrow.transforms.positions import Positions

IntArray = npt.NDArray[np.int64]
M = windrow.MapDataset
SIZES = st.lists(st.integers(1, 9), max_size=12)


def ints(values: object) -> IntArray:
    return np.asarray(values, np.int64)


def bounds_of(sizes: Sequence[int]) -> IntArray:
    return np.cumsum([0, *sizes])


def epoch_of(order: blocks.BlockOrder, epoch: int) -> list[int]:
    offsets = np.arange(order.bounds[-1])
    found: list[int] = order.at(np.full(len(offsets), epoch), offsets).tolist()
    return found


# --- the order is what the docstrings say --------------------------------------------------------

ONES = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15


def mixed(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & ONES
    z = (z ^ z >> 27) * 0x94D049BB133111EB & ONES
    return z ^ z >> 31


def folded(key: int, word: int) -> int:
    return mixed(((key ^ word) + GAMMA) & ONES)


def permuted(size: int, key: int) -> list[int]:
    """The permutation in Python integers: a model of `blocks.permutation`."""
    drawn = [mixed((key + (i + 1) * GAMMA) & ONES) for i in range(size)]
    if size <= 4096:
        return sorted(range(size), key=lambda i: (drawn[i] >> 24, i))
    bits = (size - 1).bit_length()
    return sorted(range(size), key=lambda i: (drawn[i] >> bits, i))


def model(bounds: IntArray, window_blocks: int, seed: int, epoch: int) -> list[int]:
    """One epoch of a block shuffle, in Python."""
    key = folded(folded(0, seed), epoch % 2**32)
    order = permuted(len(bounds) - 1, folded(key, 0))
    out: list[int] = []
    for window, start in enumerate(range(0, len(order), window_blocks)):
        some = order[start : start + window_blocks]
        inside = [i for k in some for i in range(int(bounds[k]), int(bounds[k + 1]))]
        out += [inside[i] for i in permuted(len(inside), folded(key, window + 1))]
    return out


@given(
    sizes=SIZES,
    window=st.integers(1, 15),
    seed=make.SEEDS,
    epoch=st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1),
)
@settings(max_examples=150)
def test_every_epoch_is_the_permutation_of_the_model(
    sizes: list[int], window: int, seed: int, epoch: int
) -> None:
    order = blocks.BlockOrder(bounds_of(sizes), window, seed)
    got = epoch_of(order, epoch)
    assert sorted(got) == list(range(sum(sizes)))
    assert got == model(bounds_of(sizes), window, seed, epoch)


@pytest.mark.parametrize(
    ("sizes", "window"),
    [
        ([4096] * 3, 1),  # the largest window of the first kind of key
        ([4097, 1, 5], 1),
        ([100] * 100, 3),  # several windows made at a time
        ([1] * 9000, 1),  # more windows than are made at a time, and many blocks
        ([7, 5000, 1, 60, 2], 2),
        ([3000] * 7, 10**30),
    ],
    ids=str,
)
def test_large_windows_are_those_of_the_model(sizes: list[int], window: int) -> None:
    order = blocks.BlockOrder(bounds_of(sizes), window, 5)
    assert epoch_of(order, 2) == model(bounds_of(sizes), window, 5, 2)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4095, 4096, 4097, 8192, 8193])
def test_permutations_of_any_size(size: int) -> None:
    got = blocks.permutation(size, 2**64 - 5)
    assert got.dtype == np.int64
    assert got.tolist() == permuted(size, 2**64 - 5)
    assert np.array_equal(np.sort(got), np.arange(size))


def test_permutations_are_even() -> None:
    # 6 orders of 3 items; the expected number of each is 1000, with a deviation of 29.
    keys = blocks.folded(np.arange(6000, dtype=np.uint64), np.zeros(6000, np.uint64))
    found = collections.Counter(tuple(blocks.permutation(3, key).tolist()) for key in keys.tolist())
    assert len(found) == 6
    assert max(abs(count - 1000) for count in found.values()) < 120


def test_block_shuffle_orders_are_frozen() -> None:
    # People restore year-old checkpoints. A new order needs a new version.
    assert blocks.permutation(10, 1).tolist() == [8, 4, 3, 7, 0, 1, 5, 9, 6, 2]
    assert blocks.permutation(5000, 1)[:6].tolist() == [98, 3055, 1643, 725, 565, 2077]
    order = blocks.BlockOrder(ints([0, 3, 4, 8, 13]), 2, 7)
    assert epoch_of(order, 0) == [0, 2, 3, 1, 8, 4, 5, 7, 9, 10, 11, 6, 12]
    assert epoch_of(order, 1) == [0, 1, 4, 6, 5, 2, 7, 3, 8, 10, 12, 11, 9]
    assert epoch_of(order, -1) == [9, 12, 11, 5, 8, 10, 4, 6, 7, 0, 1, 3, 2]
    assert list(M.range(12).block_shuffle(7, block=3, window_blocks=2)) == [
        0, 2, 3, 1, 4, 5, 9, 8, 10, 11, 6, 7,
    ]  # fmt: skip
    assert list(M.range(12).seed(42).block_shuffle(block=5)) == [
        9, 5, 2, 10, 7, 4, 0, 3, 1, 11, 8, 6,
    ]  # fmt: skip


def test_seeds_and_epochs_give_different_orders() -> None:
    # Unlike in shuffle, epoch 1 of seed 1 is not epoch 0 of seed 2.
    found = set()
    for seed, epoch in itertools.product([0, 1, 2, 3, 2**32 - 1], range(-2, 4)):
        order = blocks.BlockOrder(bounds_of([3] * 8), 3, seed)
        found.add(tuple(epoch_of(order, epoch)))
    assert len(found) == 30


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    window=st.integers(1, 6),
    data=st.data(),
)
@settings(max_examples=60)
def test_any_positions_in_any_order(sizes: list[int], window: int, data: st.DataObject) -> None:
    bounds = bounds_of(sizes)
    order = blocks.BlockOrder(bounds, window, 3)
    place = st.tuples(st.integers(-2, 2), st.integers(0, sum(sizes) - 1))
    places = data.draw(st.lists(place, max_size=40))
    expected = {epoch: model(bounds, window, 3, epoch) for epoch in range(-2, 3)}
    got = order.at(ints([e for e, _ in places]), ints([i for _, i in places]))
    assert got.dtype == np.int64
    assert got.tolist() == [expected[e][i] for e, i in places]


def test_epochs_beyond_64_bits_count_modulo_2_to_the_32() -> None:
    node = M.range(20).block_shuffle(1, block=3, window_blocks=2)._node
    assert isinstance(node, BlockShuffleNode)
    far = np.array([2**70 + 5] * 20, dtype=object)
    got = node.to_parent(Positions(far, np.arange(20))).offsets.tolist()
    assert got == node.to_parent(Positions(np.full(20, 5), np.arange(20))).offsets.tolist()


def test_the_answer_is_the_callers_own() -> None:
    order = blocks.BlockOrder(bounds_of([5, 5]), 1, 0)
    once = order.at(np.zeros(4, np.int64), np.arange(4))
    expected = once.tolist()
    once[:] = 0
    assert order.at(np.zeros(4, np.int64), np.arange(4)).tolist() == expected


def test_records_beyond_32_bits() -> None:
    # The window's table is wider there.
    length = 2**33 + 7
    dataset = M.range(length).block_shuffle(4, block=2**22, window_blocks=1)
    got = dataset.read(np.arange(2**22))
    assert np.array_equal(np.sort(got) - got.min(), np.arange(2**22))
    assert got.min() % 2**22 == 0
    assert dataset.read([2**33, length - 1]).max() > 2**32


# --- a few elements of a window ------------------------------------------------------------------


@given(
    size=st.integers(1, 9_000) | st.integers(16_000, 16_400) | st.integers(65_000, 70_000),
    key=st.integers(0, ONES),
    deviations=st.sampled_from([0, 6]),
    data=st.data(),
)
@settings(max_examples=80, deadline=None)
def test_picked_items_are_those_of_the_permutation(
    size: int, key: int, deviations: int, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, size - 1) | st.sampled_from([0, size - 1]))
    most = st.sampled_from([first, min(first + 15, size - 1), size - 1])
    places = ints(data.draw(st.lists(st.integers(first, data.draw(most)), min_size=1, max_size=20)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_DEVIATIONS", deviations)  # with 0 it mostly has to sort all
        got = blocks.picked(size, key, places)
    assert got.dtype == np.int64
    assert np.array_equal(got, blocks.permutation(size, key)[places])


@given(
    sizes=st.lists(st.sampled_from([1, 7, 300, 4_097]), min_size=1, max_size=40),
    window=st.integers(1, 8),
    seed=make.SEEDS,
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_a_few_elements_come_as_in_the_whole_order(
    sizes: list[int], window: int, seed: int, data: st.DataObject
) -> None:
    length = sum(sizes)
    order = blocks.BlockOrder(bounds_of(sizes), window, seed)
    few = st.tuples(st.integers(0, length - 1), st.sampled_from([1, 16, 200]), st.integers(0, 2))
    asked = [
        (epoch, np.arange(first, min(first + count, length)))
        for first, count, epoch in data.draw(st.lists(few, max_size=6))
    ]
    picked = [order.at(np.full(len(some), epoch), some) for epoch, some in asked]
    whole = [ints(epoch_of(order, epoch)) for epoch in range(3)]
    for (epoch, some), got in zip(asked, picked, strict=True):
        assert np.array_equal(got, whole[epoch][some])
    again = [order.at(np.full(len(some), epoch), some) for epoch, some in asked]
    assert all(map(np.array_equal, picked, again))
    assert np.array_equal(np.sort(whole[0]), np.arange(length))


def test_picked_elements_of_records_that_are_not_consecutive() -> None:
    length = 64 * 1024
    turned = blocks.BlockOrder(bounds_of([512] * 128), 16, 905, _Turned(length))
    plain = blocks.BlockOrder(bounds_of([512] * 128), 16, 905)
    for first in (5, 20_000, 40_000, length - 16):
        some = np.arange(first, first + 16)
        got = turned.at(np.zeros(16, np.int64), some)
        assert np.array_equal(got, length - 1 - plain.at(np.zeros(16, np.int64), some))
    assert np.array_equal(ints(epoch_of(turned, 0)), length - 1 - ints(epoch_of(plain, 0)))


class _Turned:
    """Records that are stored from the last to the first."""

    token = "turned"

    def __init__(self, length: int) -> None:
        self._length = length

    def at(self, places: IntArray) -> IntArray:
        return self._length - 1 - places


def test_a_window_is_sorted_for_those_alone_who_come_back() -> None:
    sorted_windows: list[int] = []
    permutation = blocks.permutation

    def counted(size: int, key: int) -> IntArray:
        sorted_windows.append(size)
        return permutation(size, key)

    def at(order: blocks.BlockOrder, first: int, count: int = 16) -> None:
        order.at(np.zeros(count, np.int64), np.arange(first, first + count))

    with pytest.MonkeyPatch.context() as patch:
        one_of_many = blocks.BlockOrder(bounds_of([1_000] * 640), 16, 901)
        at(one_of_many, 0)  # makes the order of blocks
        patch.setattr(blocks, "permutation", counted)
        for step in range(1, 10):  # of 65,536 rows: each in another window
            at(one_of_many, 65_536 * step)
        assert sorted_windows == []
        at(one_of_many, 65_536 * 3)  # the second time
        at(one_of_many, 65_536 * 3 + 16)
        assert sorted_windows == [16_000]
        alone = blocks.BlockOrder(bounds_of([1_000] * 640), 16, 902)
        at(alone, 0)
        sorted_windows.clear()
        for first in range(16, 64_000 - 16, 16):
            at(alone, first)
        assert sorted_windows == [16_000] * 4  # each window once, as soon as the stream is there
        many = blocks.BlockOrder(bounds_of([1_000] * 640), 16, 903)
        at(many, 0)
        sorted_windows.clear()
        at(many, 32_000, 2_000)
        assert sorted_windows == [16_000]


# --- locality ------------------------------------------------------------------------------------


@given(sizes=SIZES, window=st.integers(1, 8), epoch=st.integers(-2, 2))
@settings(max_examples=60)
def test_no_more_blocks_are_begun_than_a_window_has(
    sizes: list[int], window: int, epoch: int
) -> None:
    bounds = bounds_of(sizes)
    left = list(sizes)
    begun: set[int] = set()
    for offset in epoch_of(blocks.BlockOrder(bounds, window, 11), epoch):
        chunk = int(bounds.searchsorted(offset, side="right")) - 1
        left[chunk] -= 1
        (begun.add if left[chunk] else begun.discard)(chunk)
        assert len(begun) <= window


def test_a_batch_needs_the_chunks_of_its_windows_only() -> None:
    bounds = bounds_of([256] * 100)
    order = blocks.BlockOrder(bounds, 16, 0)
    got = ints(epoch_of(order, 0))
    chunks = [set((got[at : at + 4096] // 256).tolist()) for at in range(0, len(got), 4096)]
    assert [len(some) for some in chunks] == [16] * 6 + [4]
    assert set.union(*chunks) == set(range(100))
    # And each batch of 256 sees most of its window: nothing else would be a shuffle of it.
    assert len(set((got[:256] // 256).tolist())) >= 14


def test_equal_chunks_and_block_of_their_size_are_one_order() -> None:
    source = Chunks([4, 4, 4, 2])
    declared = M.source(source).block_shuffle(3, window_blocks=2)
    given = M.source(np.arange(14)).block_shuffle(3, block=4, window_blocks=2)
    assert list(declared.repeat(2)) == list(given.repeat(2))
    assert sorted(declared) == list(range(14))


# --- the layout of a chain -----------------------------------------------------------------------


def first(elements: Sequence[Any]) -> Any:
    return elements[0]


@st.composite
def laid_out(draw: st.DrawFn, base: int = 0, most: int = 4) -> Any:
    """A chain over chunks, whose elements are numbers of records (the first ones, of batches)."""
    dataset: Any = M.source(Chunks(draw(SIZES), base))
    kinds = ["seed", "value", "slice", "batch"] + ["concatenate"] * (base == 0)
    for number in range(draw(st.integers(0, most))):
        match draw(st.sampled_from(kinds)):
            case "seed":
                dataset = dataset.seed(3)
            case "value":
                dataset = dataset.map(int).random_map(lambda n, rng: n, seed=1)
                dataset = dataset.map_with_index(lambda i, n: n)
            case "slice":
                bound = st.none() | st.integers(-30, 30)
                step = draw(st.sampled_from([None, 1, 2, 3, 7, -1, -2, -5]))
                dataset = dataset[slice(draw(bound), draw(bound), step)]
            case "batch":
                size = draw(st.integers(1, 5) | st.just(10**30))
                dataset = dataset.batch(size, drop_remainder=draw(st.booleans()), batch_fn=first)
            case _:
                other = draw(laid_out(1000 * (number + 1), most=1))
                dataset = M.concatenate([dataset, other])
    return dataset


def chunks_below(node: nodes.Node) -> list[Chunks]:
    if isinstance(node, nodes.SourceNode):
        return [node.source]
    return [chunk for parent in node.parents for chunk in chunks_below(parent)]


@given(dataset=laid_out())
@settings(max_examples=150)
def test_blocks_are_what_the_chain_leaves_of_the_chunks(dataset: Any) -> None:
    elements = [int(element) for element in dataset.__getitems__(range(len(dataset)))]
    homes = [
        (number, int(source.blocks().searchsorted(element - source.base, side="right")))
        for element in elements
        for number, source in enumerate(chunks_below(dataset._node))
        if source.base <= element < source.base + len(source)
    ]
    assert len(homes) == len(elements)
    starts = [i for i in range(len(homes)) if i == 0 or homes[i] != homes[i - 1]]
    assert dataset._node.layout().bounds.tolist() == sorted({0, *starts, len(elements)})
    shuffled = dataset.block_shuffle(1, window_blocks=2)
    assert len(shuffled) == len(dataset)
    assert sorted(map(int, shuffled.repeat(2)[len(dataset) :])) == sorted(elements)


def test_repeat_has_the_blocks_of_each_epoch() -> None:
    twice = M.source(Chunks([3, 2])).repeat(2)
    assert twice._node.layout().bounds.tolist() == [0, 3, 5, 8, 10]
    assert collections.Counter(twice.block_shuffle(1)) == dict.fromkeys(range(5), 2)
    assert M.source(Chunks([])).repeat(3)._node.layout().bounds.tolist() == [0]
    once = M.source(Chunks([3, 2])).repeat(1, reseed_each_epoch=False)
    assert once._node.layout().bounds.tolist() == [0, 3, 5]


def test_chunks_of_no_records_are_left_out() -> None:
    source = Chunks([0, 3, 0, 0, 2, 0])
    assert M.source(source)._node.layout().bounds.tolist() == [0, 3, 5]
    assert list(M.source(source).block_shuffle(1)) == list(
        M.source(Chunks([3, 2])).block_shuffle(1)
    )


@pytest.mark.parametrize("sizes", [[], [1], [5], [1, 1]], ids=str)
@pytest.mark.parametrize("block", [None, 1, 3, 10**30])
@pytest.mark.parametrize("window", [1, 2, 10**30])
def test_short_datasets(sizes: list[int], block: int | None, window: int) -> None:
    dataset = M.source(Chunks(sizes)).block_shuffle(1, block=block, window_blocks=window)
    assert len(dataset) == sum(sizes)
    assert sorted(dataset) == list(range(sum(sizes)))
    assert len(list(dataset.repeat(3))) == 3 * sum(sizes)


# --- real stores ---------------------------------------------------------------------------------


def test_a_zarr_array_is_shuffled_by_its_chunks(tmp_path: Path) -> None:
    rows = np.arange(22 * 3, dtype=np.int32).reshape(22, 3)
    zarr.create_array(str(tmp_path / "a"), data=rows, chunks=(4, 2))
    dataset = M.source(windrow.sources.ZarrDataSource(tmp_path / "a"))
    assert dataset._node.layout().bounds.tolist() == [0, 4, 8, 12, 16, 20, 22]
    shuffled = dataset[1:].block_shuffle(9, window_blocks=2).repeat(2)
    order = list(
        M.source(Chunks([3, 4, 4, 4, 4, 2], 1)).block_shuffle(9, window_blocks=2).repeat(2)
    )
    assert [row.tolist() for row in shuffled] == rows[order].tolist()
    assert np.array_equal(shuffled.read(range(42)), rows[order])


def test_array_record_files_are_shuffled_by_their_groups(tmp_path: Path) -> None:
    groups, paths = {"a": (7, 3), "b": (4, 2)}, []
    for name, (count, size) in groups.items():
        paths.append(str(tmp_path / f"{name}.array_record"))
        writer = ArrayRecordWriter(paths[-1], f"group_size:{size}")
        for number in range(count):
            writer.write(f"{name}{number}".encode())
        writer.close()
    dataset = M.source(windrow.sources.ArrayRecordDataSource(paths))
    assert dataset._node.layout().bounds.tolist() == [0, 3, 6, 7, 9, 11]
    records = list(dataset)
    order = list(M.source(Chunks([3, 3, 1, 2, 2])).block_shuffle(9, window_blocks=2))
    assert list(dataset.block_shuffle(9, window_blocks=2)) == [records[i] for i in order]


# --- in a chain ----------------------------------------------------------------------------------


def chain(seed: int = 5) -> windrow.MapDataset[Any]:
    parts = [M.source(Chunks([4, 1, 7])), M.source(Chunks([2, 5], 100))[::2]]
    return M.concatenate(parts).block_shuffle(seed, window_blocks=2)


def test_reads_and_elements_agree() -> None:
    dataset = chain().map(int)
    indices = [*range(-20, 40), 3, 3, 2**63 - 1, -(2**63)]
    assert dataset.read(indices).tolist() == [dataset[i] for i in indices]


def test_restored_at_every_step_through_json() -> None:
    dataset = chain().repeat(3)[5:].batch(4)
    whole = [batch.tolist() for batch in dataset]
    iterator = iter(dataset)
    for at in range(len(whole) + 1):
        fresh = iter(dataset)
        fresh.set_state(json.loads(json.dumps(iterator.get_state())))
        assert [batch.tolist() for batch in fresh] == whole[at:]
        next(iterator, None)


def test_a_state_of_another_order_is_refused() -> None:
    def over(sizes: list[int], **arguments: Any) -> Any:
        return iter(M.source(Chunks(sizes)).block_shuffle(**{"seed": 1} | arguments))

    state = over([4, 4]).get_state()
    over([4, 4]).set_state(state)
    for other in (
        over([5, 3]),
        over([4, 4], seed=2),
        over([4, 4], window_blocks=2),
        over([4, 4], block=4),
    ):
        with pytest.raises(StateError, match="another chain or other data"):
            other.set_state(state)


def label_of(dataset: M[Any]) -> str:
    return str(iter(dataset).get_state()["chain"])


def test_printing_says_what_decides_the_order() -> None:
    dataset = M.range(12).block_shuffle(1, block=4, window_blocks=2)
    assert repr(dataset) == (
        "MapDataset(range(0, 12, 1) > block_shuffle(seed=1, block=4, window_blocks=2),"
        " 12 elements of int64)"
    )
    shown = label_of(M.source(Chunks([4, 3])).block_shuffle(1))
    assert "block_shuffle(seed=1, 2 blocks, sha256=" in shown
    assert shown != label_of(M.source(Chunks([3, 4])).block_shuffle(1))


def test_a_seed_may_be_derived() -> None:
    derived = nodes.default_seed(M.range(9).seed(3)._node)
    dataset = M.range(9).seed(3).block_shuffle(block=2)
    assert list(dataset) == list(M.range(9).block_shuffle(derived, block=2))


def test_absent_elements_stay_absent() -> None:
    dataset = M.source(Chunks([4, 4])).filter(lambda n: n % 2 == 0).block_shuffle(1)
    assert sorted(dataset) == [0, 2, 4, 6]
    assert dataset.__getitems__(range(8)).count(None) == 4
    with pytest.raises(PlanError, match="batch: a filter before it leaves gaps"):
        dataset.batch(2)


def test_a_pickled_chain_is_the_same() -> None:
    dataset = M.source(Chunks([4, 1, 7])).block_shuffle(5, window_blocks=2)
    assert list(pickle.loads(pickle.dumps(dataset))) == list(dataset)


def test_building_and_printing_read_nothing() -> None:
    source = Chunks([4, 4])
    dataset = M.source(source).block_shuffle(1).repeat(2)
    repr(dataset), len(dataset), iter(dataset).get_state()
    assert source.reads == 0
    list(dataset)
    assert source.reads > 0


# --- refusals ------------------------------------------------------------------------------------


class Wrong(Chunks):
    """Declares blocks that are invalid."""

    def __init__(self, declared: Any) -> None:
        super().__init__([5, 5])
        self.declared = declared

    def blocks(self) -> Any:
        return self.declared


CHUNKS = M.source(Chunks([4, 4, 4]))
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "seed": (lambda: CHUNKS.block_shuffle(), "block_shuffle: has no seed; pass seed="),
    "seed range": (
        lambda: CHUNKS.block_shuffle(2**32),
        r"block_shuffle: seed=4294967296 .* 2\*\*32",
    ),
    "block": (lambda: CHUNKS.block_shuffle(1, block=0), "block_shuffle: block must be at least 1"),
    "window": (
        lambda: CHUNKS.block_shuffle(1, window_blocks=0),
        "block_shuffle: window_blocks must be at least 1, got 0",
    ),
    "endless": (
        lambda: CHUNKS.repeat().block_shuffle(1),
        "the dataset is endless, .* block-shuffle before repeat",
    ),
    "endless, block": (
        lambda: CHUNKS.repeat().block_shuffle(1, block=4),
        "the dataset is endless, .* block-shuffle before repeat",
    ),
    "part of endless": (
        lambda: CHUNKS.repeat()[:100].block_shuffle(1),
        r"repeat\(for ever\) has endlessly many blocks; block-shuffle before repeat",
    ),
    "range": (
        lambda: M.range(9).block_shuffle(1),
        r"range\(0, 9, 1\) does not declare which records lie together; give block=, the number",
    ),
    "memory": (
        lambda: M.source(np.arange(9)).block_shuffle(1),
        r"source\(.*\) does not declare which records lie together; give block=, the number",
    ),
    "source of no blocks": (
        lambda: M.source(Wrong(None)).block_shuffle(1),
        r"source\(.*\) does not declare which records lie together; give block=, the number",
    ),
    "foreign": (
        lambda: M.source(make.Squares(9)).map(int).block_shuffle(1),
        r"source\(.*Squares.*\) does not declare which records lie together; give block=",
    ),
    "shuffle": (
        lambda: CHUNKS.shuffle(3).block_shuffle(1),
        r"shuffle\(seed=3\) hides .* block-shuffle before it, or give block=",
    ),
    "window shuffle": (
        lambda: CHUNKS.window_shuffle(4, 1).map(int).block_shuffle(1),
        r"window_shuffle\(.*\) hides .* block-shuffle before it, or give block=",
    ),
    "block shuffle": (
        lambda: CHUNKS.block_shuffle(2).block_shuffle(1),
        r"block_shuffle\(.*\) hides .* block-shuffle before it, or give block=",
    ),
    "mix": (
        lambda: M.mix([CHUNKS, CHUNKS]).block_shuffle(1),
        r"mix\(1, 1\) has no single layout; block-shuffle each of its datasets before it, or give",
    ),
    "zip": (
        lambda: M.zip([CHUNKS]).block_shuffle(1),
        r"zip\(1\) has no single layout; block-shuffle each of its datasets before it, or give",
    ),
    "select": (
        lambda: M.select_from_datasets([CHUNKS], make.Zigzag(1, 4)).block_shuffle(1),
        r"select_from_datasets\(.*\) has no single layout; block-shuffle each",
    ),
    "one of several": (
        lambda: M.concatenate([CHUNKS, M.range(3)]).block_shuffle(1),
        r"range\(0, 3, 1\) does not declare which records lie together",
    ),
    "blocks": (
        lambda: M.range(2**40).block_shuffle(1, block=2),
        "549755813888 blocks are too many, .* for at most 268435456",
    ),
    "blocks of repeat": (
        lambda: CHUNKS.repeat(2**30).block_shuffle(1),
        "3221225472 blocks are too many, .* for at most 268435456",
    ),
    "window elements": (
        lambda: M.range(2**40).block_shuffle(1, block=2**30),
        "a window of 16 blocks can have 17179869184 elements, .* for at most 268435456",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_order_is_refused_when_it_is_built(case: str) -> None:
    make_it, message = REFUSED[case]
    with pytest.raises(PlanError, match=message):
        make_it()


@pytest.mark.parametrize(
    "declared", [[], [0, 9], [1, 10], [0, 6, 5, 10], [0.0, 10.0], [[0, 10]]], ids=str
)
def test_blocks_that_are_none_are_refused(declared: Any) -> None:
    message = r"Wrong.blocks\(\) must be integers that increase from 0 to its length 10, got array"
    with pytest.raises(PlanError, match=message):
        M.source(Wrong(declared)).block_shuffle(1)


@pytest.mark.parametrize("arguments", [{"seed": 0.5}, {"block": "4"}, {"window_blocks": True}])
def test_arguments_of_another_kind(arguments: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=rf"block_shuffle: {next(iter(arguments))} must be an"):
        CHUNKS.block_shuffle(**{"seed": 1, "block": 3} | arguments)


@pytest.mark.parametrize(
    "hidden",
    [
        CHUNKS.shuffle(1),
        M.mix([CHUNKS, M.range(100, 112)]),
        M.zip([CHUNKS, M.range(12)]),
        M.range(7).repeat()[:12],
    ],
    ids=repr,
)
def test_with_block_given_the_layout_does_not_matter(hidden: windrow.MapDataset[Any]) -> None:
    shuffled = hidden.block_shuffle(1, block=5)
    expected = [repr(element) for element in hidden]
    assert [repr(element) for element in shuffled] != expected
    assert sorted(repr(element) for element in shuffled) == sorted(expected)


def test_tables_used_last_are_kept_though_they_are_large() -> None:
    store = orders.OrderTables(100, least=2)
    for name in range(4):
        store.keep(name, table=np.zeros(1000))
    assert [store.find(name) is not None for name in range(4)] == [False, False, True, True]
