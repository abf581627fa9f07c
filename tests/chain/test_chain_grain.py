"""The chain against Grain 0.2: same lengths, elements, orders and random values, bit for bit."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import grain
import grain.python
import numpy as np
import pytest
from grain import experimental as grain_more
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import windrow
from tests import strategies as make
from tests.hypothesis_profiles import examples
from tests.strategies import Drawn
from windrow.errors import ArgumentError

# Grain's generators and window shuffles cannot count below 0.
NOT_BELOW_ZERO = {"random_map", "window_shuffle"}


@given(drawn=make.chains(), data=st.data())
@settings(max_examples=examples(150))
def test_random_access_equals_grain(drawn: Drawn, data: st.DataObject) -> None:
    # Grain's window seeds count in 32 bits.
    assume("window_shuffle" not in make.names_of(drawn.recipe) or not make.is_endless(drawn.recipe))
    ours, theirs = make.build(drawn.recipe), make.build(drawn.recipe, "grain")
    assert len(ours) == len(theirs) == drawn.length
    if not len(ours):
        return
    negative = not make.names_of(drawn.recipe) & NOT_BELOW_ZERO
    # Grain's generators count in 64 bits, so epochs of what is endless are beyond them.
    places = make.places(drawn, negative=negative, epochs=not make.is_endless(drawn.recipe))
    indices = [*data.draw(places), 0, min(len(ours), 10**9) - 1]
    expected = [theirs[i] for i in indices]
    assert make.differences((ours[i] for i in indices), expected) == []
    assert make.differences(ours.__getitems__(indices), expected) == []


@given(drawn=make.streams())
@settings(max_examples=examples(125))
def test_streams_equal_grain(drawn: Drawn) -> None:
    ours: Any = make.build(drawn.recipe)
    theirs: Any = make.build(drawn.recipe, "grain")
    assert make.differences(ours, itertools.islice(theirs, 2000)) == []


# --- where Grain loses or repeats data -----------------------------------------------------------


def test_grain_shuffle_of_65537_repeats_a_record_and_ours_does_not() -> None:
    theirs = grain.MapDataset.range(65537).shuffle(seed=7)
    ours = windrow.MapDataset.range(65537).shuffle(seed=7)
    assert len({theirs[i] for i in range(65537)}) == 65536
    assert np.array_equal(np.sort(ours.read(np.arange(65537))), np.arange(65537))
    # In another epoch too, and after other nodes.
    batches = ours.batch(1000).read(np.arange(len(ours.batch(1000)), 2 * len(ours.batch(1000))))
    assert sorted(np.concatenate(batches).tolist()) == list(range(65537))


def test_grain_window_shuffle_repeats_where_the_window_does_not_divide_and_ours_does_not() -> None:
    parent = grain.MapDataset.range(10)
    theirs = grain_more.WindowShuffleMapDataset(parent, window_size=4, seed=0)
    ours: Any = windrow.MapDataset.range(10).window_shuffle(4, seed=0)
    assert sorted(theirs[i] for i in range(10)) == [0, 1, 1, 2, 3, 4, 5, 6, 7, 8]
    assert sorted(ours) == list(range(10))
    assert sorted(ours[i] for i in range(10, 20)) == list(range(10))
    assert [ours[i] for i in range(8)] == [theirs[i] for i in range(8)]


# --- what is Grain's is taken --------------------------------------------------------------------


class _GrainMap(grain.transforms.Map):  # type: ignore[misc]  # grain has no types
    def map(self, element: Any) -> Any:
        return element * 2


class _GrainRandomMap(grain.transforms.RandomMap):  # type: ignore[misc]  # grain has no types
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return element + int(rng.integers(100))


class _GrainMapWithIndex(grain.transforms.MapWithIndex):  # type: ignore[misc]  # as above
    def map_with_index(self, index: int, element: Any) -> Any:
        return element * 1000 + index


class _GrainFilter(grain.transforms.Filter):  # type: ignore[misc]  # grain has no types
    def filter(self, element: Any) -> bool:
        return bool(element % 3)


class _LegacyMap(grain.python.MapTransform):  # type: ignore[misc]  # grain has no types
    def map(self, element: Any) -> Any:
        return element - 1


class _LegacyFilter(grain.python.FilterTransform):  # type: ignore[misc]  # grain has no types
    def filter(self, element: Any) -> bool:
        return bool(element % 2)


class _LegacyRandomMap(grain.python.RandomMapTransform):  # type: ignore[misc]  # as above
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return element + int(rng.integers(7))


class _Swap(grain.transforms.DatasetSelectionMap):  # type: ignore[misc]  # grain has no types
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[int, int]:
        return 1 - index % 2, index


class _OurMap(windrow.transforms.Map):
    def map(self, element: Any) -> Any:
        return element * 2


class _OurRandomMap(windrow.transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return element + int(rng.integers(100))


class _OurMapWithIndex(windrow.transforms.MapWithIndex):
    def map_with_index(self, index: int, element: Any) -> Any:
        return element * 1000 + index


class _OurFilter(windrow.transforms.Filter):
    def filter(self, element: Any) -> bool:
        return bool(element % 3)


THEIRS = (_GrainMap(), _GrainRandomMap(), _GrainMapWithIndex())
OURS = (_OurMap(), _OurRandomMap(), _OurMapWithIndex())


def test_grains_transforms_are_taken_by_methods_and_by_apply() -> None:
    base = windrow.MapDataset.range(20).seed(3)
    theirs = grain.MapDataset.range(20).seed(3)
    expected = list(theirs.apply([*THEIRS, _GrainFilter()]))
    for transforms in (THEIRS, OURS):
        by_hand = base.map(transforms[0]).random_map(transforms[1]).map_with_index(transforms[2])
        assert list(by_hand.filter(_GrainFilter())) == expected
        assert list(base.apply([*transforms, _OurFilter()])) == expected
        assert list(base.apply(list(transforms)).apply(_GrainFilter())) == expected


@pytest.mark.parametrize("filters", [_GrainFilter(), _OurFilter(), _LegacyFilter()])
@pytest.mark.parametrize("kind", [grain.transforms.Batch, windrow.transforms.Batch])
def test_apply_to_streams_equals_grain(filters: Any, kind: Any) -> None:
    theirs: Any = grain.transforms.Batch(4, drop_remainder=True)
    expected = (
        grain.MapDataset.range(30)
        .seed(1)
        .to_iter_dataset()
        .apply([_LegacyMap(), _LegacyRandomMap(), _GrainMapWithIndex()])
        .filter(lambda x: x % 2 if isinstance(filters, _LegacyFilter) else x % 3)
        .apply(theirs)
    )
    ours = windrow.MapDataset.range(30).seed(1).to_iter_dataset()
    ours = ours.apply([_LegacyMap(), _LegacyRandomMap(), _OurMapWithIndex(), filters])
    assert make.differences(ours.apply(kind(4, drop_remainder=True)), list(expected)) == []


def test_grains_selection_maps_and_read_options_are_taken() -> None:
    parts = [(0, 6), (100, 106)]
    ours = windrow.MapDataset.select_from_datasets(
        [windrow.MapDataset.range(*part) for part in parts], _Swap()
    )
    theirs = grain.MapDataset.select_from_datasets(
        [grain.MapDataset.range(*part) for part in parts], _Swap()
    )
    assert list(ours) == list(theirs) == [100, 1, 102, 3, 104, 5]
    options = grain.ReadOptions(num_threads=3, prefetch_buffer_size=7)
    assert list(ours.to_iter_dataset(options)) == list(theirs)
    assert list(ours.to_iter_dataset(read_options=grain.ReadOptions(0, 0))) == list(theirs)
    with pytest.raises(ArgumentError, match=r"needs a windrow\.ReadOptions, got 3 of type int"):
        ours.to_iter_dataset(3)  # type: ignore[call-overload]  # what is tested


def test_grains_sources_are_taken() -> None:
    ours = windrow.MapDataset.source(grain.sources.RangeDataSource(3, 30, 3)).shuffle(seed=1)
    theirs = grain.MapDataset.source(grain.sources.RangeDataSource(3, 30, 3)).shuffle(seed=1)
    assert list(ours) == list(theirs)


# --- states of Grain -----------------------------------------------------------------------------


@st.composite
def plain_streams(draw: st.DrawFn) -> Drawn:
    """Streams whose state in Grain is one index."""
    chain = draw(make.chains(lengths=make.SHORT, most=3))
    if chain.length > 40:
        chain = chain.then("slice", None, 17, None, length=17)
    # A zip keeps what a filter left out of one part as None, which Grain does not batch.
    has_none = chain.filtered and "zip" in make.names_of(chain.recipe)
    chain = chain.then("to_iter", False, length=-1)
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["map", "filter"] if has_none else ["map", "filter", "batch"]))
        if kind == "batch":
            chain = draw(make.batched(chain, "stream_batch"))
        else:
            chain = chain.then(f"stream_{kind}", draw(st.integers(2, 4)))
    return chain


def _steps(iterator: Any) -> Iterator[tuple[Any, Any]]:
    """Each state, with the element that follows it."""
    while True:
        state = json.loads(json.dumps(iterator.get_state()))
        try:
            yield state, next(iterator)
        except StopIteration:
            return


@given(drawn=plain_streams())
@settings(max_examples=examples(50))
def test_states_of_grain_are_restored_at_every_step(drawn: Drawn) -> None:
    theirs: Any = iter(make.build(drawn.recipe, "grain"))
    steps = list(_steps(theirs))
    elements = [element for _, element in steps]
    ours: Any = iter(make.build(drawn.recipe))
    for at, (state, _) in enumerate(steps):
        assert set(state) == {"next_index"}
        ours.set_state(state)
        assert make.differences(ours, elements[at:]) == []
    ours.set_state(theirs.get_state())
    assert list(ours) == []


def test_a_state_of_grain_is_refused_where_a_chain_has_more_to_remember() -> None:
    dataset: Any = windrow.MapDataset.range(9).to_iter_dataset().map_with_index(make.add_index)
    with pytest.raises(windrow.errors.StateError, match="only for a chain whose position is one"):
        iter(dataset).set_state({"next_index": 3})
