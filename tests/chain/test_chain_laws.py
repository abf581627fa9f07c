"""The laws of the design: access, order, streams, what reads nothing; how iterators end and fail."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import windrow
from tests import strategies as make
from tests.hypothesis_profiles import examples
from tests.states import at_row
from tests.strategies import Drawn
from windrow.errors import ClosedError, ElementError
from windrow.transforms.nodes import ToStreamNode

M = windrow.MapDataset


class Counting:
    """A source that counts the records asked for."""

    def __init__(self, length: int, fingerprint: str = "counting") -> None:
        self._length = length
        self.fingerprint = f"{fingerprint}({length})"
        self.records = 0
        self.calls = 0
        self.lengths_asked = 0

    def __len__(self) -> int:
        self.lengths_asked += 1
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self.read(np.array([index]))[0]

    def read(self, indices: npt.NDArray[np.int64]) -> Any:
        self.calls += 1
        self.records += len(indices)
        return indices * 10


# --- 1. one element and many ---------------------------------------------------------------------


def row(columns: Any, at: int) -> Any:
    """Row `at` of public columns."""
    if isinstance(columns, dict):
        return {key: row(column, at) for key, column in columns.items()}
    if isinstance(columns, tuple):
        return tuple(row(column, at) for column in columns)
    return columns[at]


@given(drawn=make.chains(ours=True, lengths=make.FEW), data=st.data())
@settings(max_examples=examples(150))
def test_one_element_is_its_element_of_a_read_of_many(drawn: Drawn, data: st.DataObject) -> None:
    dataset: Any = make.build(drawn.recipe)
    assert len(dataset) == drawn.length
    if not len(dataset):
        return
    indices = data.draw(make.places(drawn))
    alone = [dataset[i] for i in indices]
    together = dataset.__getitems__(indices)
    if "batched_map" not in make.names_of(drawn.recipe):
        assert make.differences(together, alone) == []
    # Columns hold NumPy's numbers where an element may be a Python int. A batched function gets an
    # array where its rows agree, else a list, so after it a number may be either too.
    shown = [repr(make.on_leaves(np.asarray, element)) for element in alone]
    assert [repr(make.on_leaves(np.asarray, element)) for element in together] == shown
    columns = dataset.read(indices)
    rows = [row(columns, k) for k in range(len(indices))]
    assert [repr(make.on_leaves(np.asarray, element)) for element in rows] == shown


# --- 2. the stream is a function of chain, seed and data -----------------------------------------


def with_options(dataset: Any, options: windrow.ReadOptions) -> Any:
    """An iterator of the same stream, read in another way."""
    stream = dataset.to_iter_dataset() if isinstance(dataset, windrow.MapDataset) else dataset
    return windrow.DatasetIterator(read_in_another_way(stream._node, options))


def read_in_another_way(node: Any, options: windrow.ReadOptions) -> Any:
    if isinstance(node, ToStreamNode):
        return dataclasses.replace(node, read_options=options)
    parents = tuple(read_in_another_way(parent, options) for parent in node.parents)
    return dataclasses.replace(node, parents=parents)


@given(
    drawn=make.streams(ours=True, most=4),
    options=st.lists(st.sampled_from(make.READ_OPTIONS), min_size=2, max_size=3, unique_by=id),
    start=st.booleans(),
)
@settings(max_examples=examples(100))
def test_read_options_do_not_change_the_stream(
    drawn: Drawn, options: list[windrow.ReadOptions], start: bool
) -> None:
    dataset: Any = make.build(drawn.recipe)
    expected = list(itertools.islice(dataset, 200))
    for chosen in options:
        with with_options(dataset, chosen) as iterator:
            if start:
                iterator.start_prefetch()
            assert make.differences(itertools.islice(iterator, 200), expected) == []


@pytest.mark.parametrize("options", make.READ_OPTIONS, ids=repr)
def test_long_streams_do_not_depend_on_options(options: windrow.ReadOptions) -> None:
    source = {"x": np.arange(3000), "y": np.zeros((3000, 3), np.float32)}
    dataset = M.source(source).shuffle(seed=3).filter(lambda e: e["x"] % 7 > 0)
    expected = [e["x"] for e in dataset.__getitems__(range(3000)) if e is not None]
    got: Any = dataset.to_iter_dataset(options).map(make.Bump(0), batched=True).batch(100)
    found = np.concatenate([batch["x"] for batch in got])
    assert found.tolist() == [3 * int(x) for x in expected]


# --- 3. permutations, and the far end ------------------------------------------------------------


@given(
    length=st.sampled_from([1, 2, 3, 5, 16, 17, 97, 1009]),
    seed=make.SEEDS,
    window=st.integers(1, 1100),
    epoch=st.integers(-3, 3),
)
@settings(max_examples=examples(50))
def test_every_epoch_is_a_permutation(length: int, seed: int, window: int, epoch: int) -> None:
    base = M.range(length)
    here = np.arange(epoch * length, (epoch + 1) * length)
    for dataset in (
        base.shuffle(seed),
        base.window_shuffle(window, seed),
        base.window_shuffle(window, seed).shuffle(seed)[::-1],
        M.concatenate([base[: length // 2], base[length // 2 :]]).shuffle(seed),
    ):
        assert np.sort(dataset.read(here)).tolist() == list(range(length))


FAR = st.integers(0, 60).map(lambda n: sys.maxsize - 1 - n) | st.integers(0, sys.maxsize - 1)


@given(index=FAR)
@settings(max_examples=examples(50))
def test_far_elements_of_endless_repeats_are_exact(index: int) -> None:
    length = 10
    shuffled = M.range(length).shuffle(seed=5)
    assert M.range(length).repeat()[index] == index % length
    assert M.range(length)[::2].repeat()[index] == index % 5 * 2
    assert M.range(length).repeat()[::2][index // 2] == index // 2 * 2 % length
    assert M.range(length).repeat()[::-1][index] == (sys.maxsize - 1 - index) % length
    batches: Any = M.range(length).batch(3).repeat()
    first = index % 4 * 3
    assert batches[index].tolist() == list(range(first, min(length, first + 3)))
    of_endless: Any = M.range(length).repeat().batch(4)
    at = index // 4
    rows = range(at * 4, min(at * 4 + 4, sys.maxsize))
    assert of_endless[at].tolist() == [row % length for row in rows]
    # A shuffle's seed depends on the epoch, modulo 2**32.
    epoch = index // length
    near = M.range(length).shuffle(seed=(5 + epoch) % 2**32)
    assert shuffled.repeat()[index] == near[index % length]
    parts = [M.range(4), M.range(100, 104)]
    assert M.concatenate(parts).repeat()[index] == (index % 8) % 4 + 100 * (index % 8 // 4)
    mixed = M.mix(parts, [3, 1])  # five long: the first dataset has four elements
    assert mixed.repeat()[index] == mix_model(index, 4)
    endless = M.mix([part.repeat() for part in parts], [3, 1])
    assert endless[min(index, len(endless) - 1)] == mix_model(min(index, len(endless) - 1), 4)
    noise = M.range(length).random_map(lambda _, rng: int(rng.integers(2**40)), seed=3).repeat()
    bits = np.random.Philox(
        key=np.random.SeedSequence(3).generate_state(2, np.uint64),
        counter=np.array([0, 0, 0, index], np.uint64),
    )
    assert noise[index] == int(np.random.Generator(bits).integers(2**40))


@given(index=st.integers(-(2**63), 2**63 - 1), part=st.integers(1, 25), seed=make.SEEDS)
@example(index=-(2**63), part=1, seed=1)
@settings(max_examples=examples(50))
def test_parts_of_endless_repeats_can_be_repeated(index: int, part: int, seed: int) -> None:
    base = M.range(10).shuffle(seed)
    epoch, offset = divmod(index, part)
    number, inside = divmod(epoch * sys.maxsize + offset, 10)  # of the endless repeat
    expected = M.range(10).shuffle((seed + number) % 2**32)[inside]
    assert base.repeat()[:part][index] == expected
    assert base.repeat().map_with_index(lambda i, _: i)[:part][index] == number * 10 + inside
    again = base.repeat()[:part].repeat()
    if 0 <= index < sys.maxsize:
        assert again.read([index, 0]).tolist() == [expected, again[0]]


def mix_model(index: int, length: int) -> int:
    """Element of a 3 to 1 mixture of `range(4)` and `range(100, 104)`: exact integers."""
    rounds, place = divmod(index, 4)
    if place == 3:
        return 100 + rounds % length
    return (rounds * 3 + place) % length


def test_streams_reach_the_end_of_an_endless_repeat() -> None:
    dataset = M.range(10).repeat()
    iterator = iter(dataset)
    iterator.set_state(at_row(iterator.get_state(), sys.maxsize - 6))
    assert list(iterator) == [(sys.maxsize - 6 + k) % 10 for k in range(6)]
    assert iterator.get_state()["rows"] == sys.maxsize


# --- 7. what reads nothing -----------------------------------------------------------------------


def test_building_printing_and_restoring_read_nothing() -> None:
    source = Counting(1000)
    chain = M.source(source).seed(1).shuffle().map(make.Bump(1)).filter(bool).repeat(3)[::2]
    chain = M.mix([chain, M.source(source)]).map_with_index(make.add_index)
    zipped = M.zip([chain[:100], M.source(source)[:100]])
    many = windrow.IterDataset.mix([zipped.to_iter_dataset().window_shuffle(9, 1).batch(2)] * 2)
    assert len(zipped) == 100
    assert "counting(1000)" in repr(many)
    iterator = iter(many.limit(7))
    iterator.set_state(json.loads(json.dumps(iterator.get_state())))
    assert "window_shuffle" in repr(iterator)
    iterator.close()
    assert source.records == source.calls == 0
    # Restoring far into the data reads what follows alone.
    plain = iter(M.source(source).to_iter_dataset(make.SYNCHRONOUS))
    state = plain.get_state()
    plain.set_state(at_row(state, 990))
    assert source.records == 0
    assert len(list(plain)) == 10
    assert source.records == 10


def test_a_source_is_read_in_few_calls_and_no_record_twice() -> None:
    source = Counting(10_000)
    dataset = M.source(source).shuffle(seed=1).batch(100)
    assert sorted(np.concatenate([*dataset]).tolist()) == list(range(0, 100_000, 10))
    assert source.records == 10_000
    assert source.calls <= 40
    M.source(source).read(np.arange(5000))
    assert source.calls <= 41


def test_the_length_of_a_source_is_not_asked_for_again() -> None:
    source = Counting(100)
    dataset = M.source(source).shuffle(seed=1).batch(10)
    before = source.lengths_asked
    list(dataset)
    assert source.lengths_asked == before


# --- iterators -----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [make.SYNCHRONOUS, windrow.ReadOptions(2, 10)])
def test_a_closed_iterator_says_so(options: windrow.ReadOptions) -> None:
    iterator = iter(M.source(np.arange(100)).to_iter_dataset(options))
    assert next(iterator) == 0
    state = iterator.get_state()
    iterator.close()
    iterator.close()
    assert iterator.get_state() == state
    for call in (
        lambda: next(iterator),
        iterator.start_prefetch,
        lambda: iterator.set_state(state),
    ):
        with pytest.raises(ClosedError, match="this iterator was closed"):
            call()


def test_a_with_block_closes_and_leaves_no_thread() -> None:
    before = threading.active_count()
    with iter(M.source(np.arange(10_000)).to_iter_dataset(windrow.ReadOptions(4, 10))) as iterator:
        assert next(iterator) == 0
        assert threading.active_count() > before
    assert threading.active_count() == before
    with pytest.raises(ClosedError, match="closed"):
        next(iterator)
    with pytest.raises(KeyError), iter(M.range(3)) as iterator:
        raise KeyError
    with pytest.raises(ClosedError, match="closed"):
        next(iterator)


def test_the_end_stays_the_end() -> None:
    for options in (make.SYNCHRONOUS, windrow.ReadOptions()):
        iterator = iter(M.range(3).to_iter_dataset(options))
        assert [*iterator, *iterator] == [0, 1, 2]
        assert iterator.get_state()["rows"] == 3
        assert next(iterator, "end") == "end"


def test_iterators_of_one_dataset_are_apart() -> None:
    dataset = M.range(5).shuffle(1)
    one, two = iter(dataset), iter(dataset)
    assert [next(one) for _ in range(3)] == [next(two) for _ in range(3)]
    assert list(one) == list(two) == list(dataset)[3:]
    assert iter(one) is one


# --- errors come at their place, and the step is tried again -------------------------------------


class Flaky:
    """Raises for one element until it is mended."""

    def __init__(self, bad: int) -> None:
        self.bad: int | None = bad

    def check(self, element: Any) -> Any:
        if self.bad is not None and self.bad in np.ravel(element).tolist():
            raise OSError(f"no {self.bad} today")
        return element

    def keep(self, element: Any) -> bool:
        self.check(element)
        return True

    def indexed(self, _: int, element: Any) -> Any:
        return self.check(element)

    def random(self, element: Any, _: np.random.Generator) -> Any:
        return self.check(element)

    def stacked(self, elements: Any) -> Any:
        return np.array(self.check(list(elements)))

    def listed(self, element: Any) -> Any:
        return [self.check(element)]

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return int(self.check(index))


class FlakyColumns(Counting):
    """A batched source of the same kind."""

    def __init__(self, flaky: Flaky) -> None:
        super().__init__(40)
        self._flaky = flaky

    def read(self, indices: npt.NDArray[np.int64]) -> Any:
        return self._flaky.check(indices)


class FlakySelection:
    def __init__(self, flaky: Flaky) -> None:
        self._flaky = flaky

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[int, int]:
        return 0, self._flaky.check(index)


def failing(flaky: Flaky) -> dict[str, Any]:
    """Chains of 0 to 39 (in batches: of 4), which fail at element 22."""
    base = M.range(40)
    streamed = base.to_iter_dataset()
    mix = windrow.IterDataset.mix
    far = M.range(100, 200).to_iter_dataset()
    return {
        "source": M.source(flaky),
        "batched source": M.source(FlakyColumns(flaky)),
        "map": base.map(flaky.check),
        "filter": base.filter(flaky.keep),
        "map_with_index": base.map_with_index(flaky.indexed),
        "random_map": base.random_map(flaky.random, seed=1),
        "selection": M.select_from_datasets([base], FlakySelection(flaky)),
        "batch of map": base.map(flaky.check).batch(4),
        "batch_fn": base.batch(4, batch_fn=flaky.stacked),
        "batched map": base.map(flaky.check, batched=True).batch(4),
        "map of batches": base.batch(4).map(flaky.check),
        "stream map": streamed.map(flaky.check),
        "stream filter": streamed.filter(flaky.keep),
        "stream map_with_index": streamed.map_with_index(flaky.indexed),
        "stream random_map": streamed.random_map(flaky.random, seed=1),
        "stream batched map": streamed.map(flaky.check, batched=True).batch(4),
        "stream batch_fn": streamed.batch(4, batch_fn=flaky.stacked),
        "stream batch of map": streamed.map(flaky.check).batch(4),
        "stream flat_map": streamed.flat_map(flaky.listed),
        "window shuffle": streamed.map(flaky.check).window_shuffle(4, seed=2).batch(4),
        "interleave": windrow.IterDataset.interleave([streamed.map(flaky.check), far], 2),
        "mix": mix([base.map(flaky.check).to_iter_dataset(), far], [3, 1]),
        "mix of the other": mix([far, base.map(flaky.check).to_iter_dataset()], [1, 3]),
        "zip": windrow.IterDataset.zip([streamed.map(flaky.check), far], strict=False),
        "repeat": streamed.map(flaky.check).repeat(2),
        "limit": streamed.map(flaky.check).limit(30),
        "mix in batches": mix([streamed.map(flaky.check), far], [1, 1]).batch(4),
    }


@pytest.mark.parametrize("options", [*make.READ_OPTIONS[::5], windrow.ReadOptions()], ids=repr)
@pytest.mark.parametrize("name", failing(Flaky(22)))
def test_what_fails_comes_at_its_place_and_is_tried_again(
    name: str, options: windrow.ReadOptions
) -> None:
    flaky = Flaky(22)
    dataset = failing(flaky)[name]
    if isinstance(dataset, M):
        dataset = dataset.to_iter_dataset()
    flaky.bad = None
    with with_options(dataset, options) as iterator:
        expected = list(iterator)
    flaky.bad = 22
    # The first element that cannot be made without 22.
    at = next(i for i, element in enumerate(expected) if 22 in np.ravel(element).tolist())
    with with_options(dataset, options) as iterator:
        before = list(itertools.islice(iterator, at))
        assert make.differences(before, expected[:at]) == []
        state = iterator.get_state()
        for _ in range(2):
            with pytest.raises(OSError, match="no 22 today"):
                next(iterator)
            assert iterator.get_state() == state
        flaky.bad = None
        assert make.differences(iterator, expected[at:]) == []


def test_errors_keep_their_type_and_say_where() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        M.range(10).map(lambda x: 1 // (x - 7)).batch(5).read([0, 1])
    notes = " ".join(caught.value.__notes__)
    assert "map(test_errors_keep_their_type_and_say_where" in notes
    assert "for element 7" in notes
    with pytest.raises(ZeroDivisionError) as caught:
        list(M.range(10).to_iter_dataset().random_map(lambda x, _: 1 // (x - 7), seed=1))
    assert "random_map(seed=1)" in " ".join(caught.value.__notes__)
    with pytest.raises(KeyError) as missing:
        M.source({"x": np.arange(4)}).map(lambda c: c["y"], batched=True).read([0, 1])
    assert "batched=True" in " ".join(missing.value.__notes__)
    with pytest.raises(ValueError, match="ambiguous") as ambiguous:
        M.range(4).map(lambda x: np.array([x, x])).filter(lambda x: x > 1).read([0])
    assert "filter(" in " ".join(ambiguous.value.__notes__)


def test_a_strict_zip_gives_whole_tuples_before_it_complains() -> None:
    parts = [M.range(5).to_iter_dataset(), M.range(3).to_iter_dataset()]
    iterator = iter(windrow.IterDataset.zip(parts))
    assert [next(iterator) for _ in range(3)] == [(0, 0), (1, 1), (2, 2)]
    with pytest.raises(ElementError, match="zip: dataset 0 is longer than dataset 1"):
        next(iterator)
    assert list(windrow.IterDataset.zip(parts, strict=False)) == [(0, 0), (1, 1), (2, 2)]
    assert list(windrow.IterDataset.zip([parts[0], parts[0]]))[4] == (4, 4)
