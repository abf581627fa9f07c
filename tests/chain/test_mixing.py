"""Mixtures: by elements and by tokens, with weights that change, and datasets that end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.chain.test_steering import Counted
from windrow import IterDataset, MapDataset, RecordOf
from windrow.errors import ArgumentError, ElementError, PlanError
from windrow.transforms import Schedule, orders

M = MapDataset
Changes = list[tuple[int, list[int]]]
AtEnd = Literal["stop", "repeat", "drop"]
SYNCHRONOUS = windrow.ReadOptions(num_threads=0, prefetch_buffer_size=0)


@st.composite
def schedules(draw: st.DrawFn, datasets: int) -> Changes:
    """One to three changes of weights; a weight may be 0."""
    starts = [0, *sorted(draw(st.sets(st.integers(1, 30), max_size=2)))]
    some = st.lists(st.integers(0, 3), min_size=datasets, max_size=datasets).filter(any)
    return [(start, draw(some)) for start in starts]


def by_hand(changes: Changes, lengths: Sequence[int], *, drops: bool) -> list[tuple[int, int]]:
    """The elements of a mixture, one by one: the dataset and the index in it."""
    given, found, begin = [0] * len(lengths), list[tuple[int, int]](), 0
    gone: set[int] = set()
    while True:
        start, weights = [change for change in changes if change[0] <= len(found)][-1]
        begin = max(begin, start)
        active = [k for k, weight in enumerate(weights) if weight and k not in gone]
        if not active:
            return found
        shares = orders.mix_weights([weights[k] for k in range(len(weights)) if weights[k]])
        mine = [dict(zip(np.flatnonzero(weights).tolist(), shares, strict=True))[k] for k in active]
        which, _ = orders.mix_choose(np.array([len(found) - begin]), mine)
        chosen = active[int(which[0])]
        if given[chosen] == lengths[chosen]:
            if not drops:
                return found
            gone.add(chosen)
            begin = len(found)
            continue
        found.append((chosen, given[chosen]))
        given[chosen] += 1


@st.composite
def mixtures(draw: st.DrawFn, least: int = 1) -> tuple[Changes, list[int]]:
    count = draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(least, 12), min_size=count, max_size=count))
    return draw(schedules(count)), lengths


def numbered(lengths: Sequence[int]) -> list[MapDataset[Any]]:
    return [M.source(np.arange(n) + 100 * k) for k, n in enumerate(lengths)]


# --- by elements ---------------------------------------------------------------------------------


@given(mixture=mixtures(), drops=st.booleans())
def test_a_map_mixture_equals_one_by_hand(mixture: tuple[Changes, list[int]], drops: bool) -> None:
    changes, lengths = mixture
    expected = [100 * k + n for k, n in by_hand(changes, lengths, drops=drops)]
    mixed = M.mix(numbered(lengths), Schedule(changes), at_end="drop" if drops else "stop")
    assert len(mixed) == len(expected)
    if expected:
        assert mixed.read(np.arange(len(mixed))).tolist() == expected
    assert [mixed[n] for n in range(len(mixed))] == expected
    if drops and expected:  # each epoch is like the first
        earlier = mixed.read(np.arange(len(mixed)) - len(mixed))
        assert earlier.tolist() == expected


@given(
    mixture=mixtures(least=0),
    drops=st.booleans(),
    start=st.integers(0, 9),
    count=st.integers(0, 40),
)
def test_a_stream_mixture_equals_one_by_hand_from_anywhere(
    mixture: tuple[Changes, list[int]], drops: bool, start: int, count: int
) -> None:
    changes, lengths = mixture
    expected = [100 * k + n for k, n in by_hand(changes, lengths, drops=drops)]
    streams = [each.to_iter_dataset(SYNCHRONOUS) for each in numbered(lengths)]
    mixed = IterDataset.mix(streams, Schedule(changes), at_end="drop" if drops else "stop")
    iterator = iter(mixed)
    assert [next(iterator) for _ in expected[:start]] == expected[:start]
    again = iter(mixed)
    again.set_state(json.loads(json.dumps(iterator.get_state())))
    rest = expected[start:]
    assert iterator.skip(count) == min(count, len(rest))
    for number in rest[count:]:
        assert next(iterator) == number
        assert iterator.records_of_last() == [RecordOf(number // 100, number % 100)]
    assert list(iterator) == []
    assert list(again) == rest
    assert [mixed.records_of(n)[0] for n in range(len(expected))] == [
        RecordOf(n // 100, n % 100) for n in expected
    ]


def test_rows_that_were_not_used_come_next_in_their_order() -> None:
    """Where a stream drops out, rows taken for the mixture go back before those still held."""
    evens = M.range(1_000, 1_040).to_iter_dataset().filter(lambda n: n % 2 == 0)
    for length in (30, 64, 90):
        long = M.range(length).to_iter_dataset()
        given = list(IterDataset.mix([long, evens], [2, 1], at_end="drop"))
        assert [n for n in given if n < 1_000] == list(range(length))
        assert [n for n in given if n >= 1_000] == list(range(1_000, 1_040, 2))


def test_a_mixture_without_an_end_is_found_quickly() -> None:
    parts = [M.range(3).repeat(), M.range(5).repeat()]
    mixed = M.mix(parts, Schedule([(0, [1, 1]), (10**12, [1, 3])]))
    assert len(mixed) == windrow.transforms.nodes.ENDLESS
    at = 10**12 + 4 * 10**6
    names = [mixed.records_of(at + n)[0] for n in range(4)]
    assert names == [RecordOf(0, 0), RecordOf(1, 0), RecordOf(1, 1), RecordOf(1, 2)]


def test_named_datasets_take_a_schedule_of_named_weights() -> None:
    a, b = M.range(9).to_iter_dataset(), M.range(-9, 0).to_iter_dataset()
    weights = Schedule([(0, {"b": 0, "a": 1}), (2, {"a": 1, "b": 1})])
    assert list(IterDataset.mix({"a": a, "b": b}, weights).limit(4)) == [0, 1, 2, -9]


@pytest.mark.parametrize("drops", [False, True])
def test_skipping_a_mixture_of_chains_reads_nothing(drops: bool) -> None:
    sources = [Counted(1000), Counted(10), Counted(10**6)]
    streams = [M.source(source).shuffle(seed=1).to_iter_dataset() for source in sources]
    at_end: AtEnd = "drop" if drops else "stop"
    mixed = IterDataset.mix(streams, [1, 1, 2], at_end=at_end).batch(5)
    iterator = iter(mixed)
    assert iterator.skip(100_000) == (100_000 if drops else 9)
    assert sum(source.read_records for source in sources) == 0


def test_an_error_of_a_dataset_that_ends_early_comes_in_its_place() -> None:
    def fail(n: int) -> int:
        if n == 3:
            raise RuntimeError("element 3")
        return n

    streams = [
        M.range(10).to_iter_dataset(SYNCHRONOUS).map(fail),
        M.range(10, 20).to_iter_dataset(),
    ]
    for at_end in ("stop", "drop"):
        got: list[int] = []
        with pytest.raises(RuntimeError, match="element 3"):
            got.extend(IterDataset.mix(streams, at_end=at_end))
        assert got == [0, 10, 1, 11, 2, 12]


# --- by tokens -----------------------------------------------------------------------------------


def ragged(lengths: Sequence[int], fill: int) -> IterDataset[Any]:
    rows = [np.full(n, fill) for n in lengths]
    return M.source(rows).to_iter_dataset(SYNCHRONOUS)


def tokens_by_hand(
    changes: Changes, rows: list[list[int]], *, drops: bool
) -> list[tuple[int, int]]:
    """Datasets and lengths of the rows, by fractions instead of integers."""
    tokens, given, gone = [0] * len(rows), [0] * len(rows), set[int]()
    found: list[tuple[int, int]] = []
    begin = 0
    while True:
        start, weights = [change for change in changes if change[0] <= len(found)][-1]
        if start > begin:
            tokens, begin = [0] * len(rows), start
        shares = orders.mix_weights([weight for weight in weights if weight])
        share = dict(zip(np.flatnonzero(weights).tolist(), shares, strict=True))
        ratio = {k: Fraction(tokens[k], share[k]) for k in share if k not in gone}
        if not ratio:
            return found
        chosen = min(ratio, key=lambda k: (ratio[k], k))
        if given[chosen] == len(rows[chosen]):
            if not drops:
                return found
            gone.add(chosen)
            continue
        size = rows[chosen][given[chosen]]
        found.append((chosen, size))
        given[chosen] += 1
        tokens[chosen] += size


@given(data=st.data(), drops=st.booleans(), start=st.integers(0, 20))
def test_tokens_are_shared_as_by_hand_from_anywhere(
    data: st.DataObject, drops: bool, start: int
) -> None:
    count = data.draw(st.integers(1, 3))
    sizes = st.lists(st.integers(0, 9), max_size=12)
    rows = data.draw(st.lists(sizes, min_size=count, max_size=count))
    changes = data.draw(schedules(count))
    expected = tokens_by_hand(changes, rows, drops=drops)
    streams = [ragged(lengths, k) for k, lengths in enumerate(rows)]
    at_end: AtEnd = "drop" if drops else "stop"
    mixed = IterDataset.mix(streams, Schedule(changes), by="tokens", tokens=len, at_end=at_end)
    iterator = iter(mixed)
    taken = [next(iterator) for _ in expected[:start]]
    again, skipped = iter(mixed), iter(mixed)
    again.set_state(json.loads(json.dumps(iterator.get_state())))
    assert skipped.skip(start) == min(start, len(expected))
    rest = list(again)
    assert [len(row) for row in [*taken, *rest]] == [size for _, size in expected]
    assert [row[0] for row in [*taken, *rest] if len(row)] == [k for k, size in expected if size]
    assert [row.tolist() for row in skipped] == [row.tolist() for row in rest]


def test_rows_of_one_size_are_mixed_by_arithmetic() -> None:
    sources = [Counted(10**6), Counted(10**6)]
    wide = M.source(sources[0]).batch(8, drop_remainder=True)
    narrow = M.source(sources[1]).batch(2, drop_remainder=True)
    streams = [
        M.source(np.zeros((500, 8), np.int32)).to_iter_dataset(),
        M.source(np.ones((500, 2), np.int32)).to_iter_dataset(),
    ]
    mixed = IterDataset.mix(streams, [3, 1], by="tokens")
    assert "by=tokens of (8, 2)" in repr(mixed)
    rows = list(mixed.limit(70))
    assert sum(len(row) for row in rows if row[0] == 0) == 3 * sum(
        len(row) for row in rows if row[0] == 1
    )
    assert mixed.records_of(0) == [RecordOf(0, 0)]
    # Batches are rows, too; their specs are not declared here, so that their tokens are counted.
    counted = IterDataset.mix([wide.to_iter_dataset(), narrow.to_iter_dataset()], by="tokens")
    assert [len(row) for row in counted.limit(6)] == [8, 2, 2, 2, 2, 8]


@pytest.mark.parametrize("tokens", ["ids", "count", lambda element: element["count"]])
def test_tokens_by_key_and_by_function(tokens: Any) -> None:
    sizes = [4, 1, 1, 1, 1, 4]
    rows = [{"other": np.zeros(9), "ids": np.zeros(n), "count": n} for n in sizes]
    streams = [M.source(rows).to_iter_dataset(), M.source(rows[1:5]).to_iter_dataset()]
    mixed = IterDataset.mix(streams, by="tokens", tokens=tokens)
    assert [row["count"] for row in mixed] == [4, 1, 1, 1, 1, 1]


def test_rows_before_one_that_cannot_be_counted_are_given() -> None:
    def count(row: Any) -> int:
        return len(row) if len(row) < 5 else -1

    mixed = IterDataset.mix([ragged([1, 2, 5], 0)], by="tokens", tokens=count)
    got: list[Any] = []
    with pytest.raises(ElementError, match=r"integer of at least 0, got -1 from .*count"):
        got.extend(mixed)
    assert [len(row) for row in got] == [1, 2]


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"at_end": "wrap"}, PlanError),
        ({"by": "bytes"}, PlanError),
        ({"tokens": len}, PlanError),
        ({"by": "tokens", "tokens": 3}, ArgumentError),
        ({"weights": Schedule([(0, [1])])}, PlanError),
        ({"weights": Schedule([(0, [0, 0])])}, PlanError),
        ({"weights": Schedule([(0, [1, -1])])}, PlanError),
        ({"weights": Schedule([(0, {"a": 1})])}, ArgumentError),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], kind: Any) -> None:
    streams = [M.range(3).to_iter_dataset(), M.range(3).to_iter_dataset()]
    with pytest.raises(kind):
        IterDataset.mix(streams, **options)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ([], PlanError),
        ([(1, [1])], PlanError),
        ([(0, [1]), (0, [2])], PlanError),
        ([(0, [1]), 5], ArgumentError),
        ([(0.5, [1])], ArgumentError),
        ([(-1, [1])], PlanError),
    ],
)
def test_wrong_schedules_are_refused(changes: Any, kind: Any) -> None:
    with pytest.raises(kind):
        Schedule(changes)


@pytest.mark.parametrize(
    ("element", "tokens"),
    [
        (3, None),
        ({"a": np.zeros(2)}, "b"),
        ([1.5], "x"),
        ({"a": 1.5}, "a"),
    ],
)
def test_elements_without_tokens_are_refused(element: Any, tokens: Any) -> None:
    stream = M.source([element, element]).to_iter_dataset(SYNCHRONOUS)
    with pytest.raises(ElementError):
        list(IterDataset.mix([stream], by="tokens", tokens=tokens))


def test_empty_datasets_of_a_map_mixture_are_refused() -> None:
    for options in ({"at_end": "drop"}, {"weights": Schedule([(0, [1, 1])])}):
        with pytest.raises(PlanError, match="dataset 1 has no elements; leave it out"):
            M.mix([M.range(3), M.range(0)], **options)
