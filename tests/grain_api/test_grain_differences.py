"""Small things that programs written for Grain rely on."""

from __future__ import annotations

import grain
import pytest

import windrow
from windrow import experimental
from windrow.errors import ArgumentError, StateError


def test_parents_are_datasets() -> None:
    numbers = windrow.MapDataset.range(8)
    assert numbers.parents == ()
    (shuffled,) = numbers.shuffle(1).batch(2).parents
    assert isinstance(shuffled, windrow.MapDataset)
    assert list(shuffled) == list(numbers.shuffle(1))
    stream = numbers.to_iter_dataset()
    assert isinstance(stream.parents[0], windrow.MapDataset)
    mixed = windrow.IterDataset.mix([stream, stream.limit(2)])
    assert [list(parent) for parent in mixed.parents] == [list(range(8)), [0, 1]]
    # Methods that make two nodes are one step.
    for made, before in [
        (stream.flat_map(lambda n: [n]), stream),
        (stream.batch(3).rebatch(2), stream.batch(3)),
        (numbers.flat_map(lambda n: [n], 2), numbers),
    ]:
        (parent,) = made.parents
        assert repr(parent) == repr(before)
    theirs = grain.MapDataset.range(8).shuffle(1).batch(2).to_iter_dataset()
    ours = numbers.shuffle(1).batch(2).to_iter_dataset()
    for _ in range(4):
        assert len(ours.parents) == len(theirs.parents)
        if ours.parents:
            ours, theirs = ours.parents[0], theirs.parents[0]  # type: ignore[assignment]


def test_prefetch_is_mp_prefetch() -> None:
    stream = windrow.MapDataset.range(6).map(abs).to_iter_dataset()
    with pytest.warns(DeprecationWarning, match="prefetch is now mp_prefetch"):
        made = stream.prefetch(windrow.MultiprocessingOptions(1))
    assert list(made) == list(range(6))


def test_a_sequential_slice_keeps_the_order() -> None:
    dataset = windrow.MapDataset.range(7).map(abs)
    assert list(dataset.mp_prefetch(1, sequential_slice=True)) == list(range(7))
    assert list(dataset.to_iter_dataset().mp_prefetch(0, None, True)) == list(range(7))


def test_errors_have_the_classes_of_grains() -> None:
    for library in (windrow, grain):
        numbers = library.MapDataset.range(3)
        for dataset in (numbers, numbers.batch(2), numbers.batch(3, drop_remainder=True)):
            iterator = dataset.to_iter_dataset().__iter__()
            iterator.set_state({"next_index": len(dataset)})
            assert list(iterator) == []
            for number in (len(dataset) + 1, -1):
                with pytest.raises(IndexError):
                    iterator.set_state({"next_index": number})
        with pytest.raises(ValueError):  # noqa: PT011 - two libraries
            library.MapDataset.range(3).slice(5)
        with pytest.raises(ValueError):  # noqa: PT011
            library.sources.ArrayRecordDataSource([])
    with pytest.raises(StateError, match="state is at element 4 of a dataset of 3"):
        iter(windrow.MapDataset.range(3)).set_state({"next_index": 4})
    with pytest.raises(StateError, match="state is at element 2 of a dataset of 1"):
        iter(windrow.MapDataset.range(3).batch(3)).set_state({"next_index": 2})
    with pytest.raises(StateError, match="state is at element -1; Grain counts them from 0"):
        iter(windrow.MapDataset.range(3)).set_state({"next_index": -1})
    with pytest.raises(ArgumentError, match="needs a slice or a sequence of integers, got int"):
        windrow.MapDataset.range(3).slice(5)  # type: ignore[arg-type]


def test_a_batch_that_is_never_shorter_has_its_length_in_the_spec() -> None:
    for length, ours in ((10, (5,)), (11, (None,))):
        assert (
            experimental.get_element_spec(windrow.MapDataset.range(length).batch(5)).shape == ours
        )
        theirs = grain.experimental.get_element_spec(grain.MapDataset.range(length).batch(5))
        assert theirs.shape == (None,)
