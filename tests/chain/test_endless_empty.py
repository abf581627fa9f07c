"""Endless streams without an element: an error after some epochs, and never a hang or an early end."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import pytest

from windrow import IterDataset, MapDataset
from windrow.errors import ClosedError, PlanError

Make = Callable[[int], IterDataset[Any]]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Filters that leave out everything also warn."""
    logging.getLogger("windrow.filter").setLevel(logging.ERROR)
    yield
    logging.getLogger("windrow.filter").setLevel(logging.NOTSET)


def some(lanes: int) -> IterDataset[int]:
    return MapDataset.range(6).to_iter_dataset(lanes=lanes)


def endless(lanes: int) -> IterDataset[int]:
    return MapDataset.range(6).repeat().to_iter_dataset(lanes=lanes)


def none(lanes: int) -> IterDataset[int]:
    return some(lanes).filter(never)


def never(element: Any) -> bool:
    return False


def empty(element: Any) -> dict[str, Any]:
    return {"x": np.zeros(0)}


def broken(element: Any) -> Any:
    raise ValueError("broken")


def emptied(batch: Any) -> Any:
    return batch[:0]


FIT: dict[str, Any] = {"num_packing_bins": 2}
STREAMS: dict[str, Make] = {
    "repeat": lambda n: none(n).repeat(),
    "repeat of range(0)": lambda n: MapDataset.range(0).to_iter_dataset(lanes=n).repeat(),
    "repeat, limit": lambda n: none(n).repeat().limit(3),
    "repeat of flat_map": lambda n: some(n).flat_map(lambda _: []).repeat(),
    "repeat of batches": lambda n: some(1).batch(7, drop_remainder=True).repeat(),
    "repeat of rebatch": lambda n: some(1).batch(2).rebatch(7, drop_remainder=True).repeat(),
    "repeat of cache": lambda n: none(n).cache().repeat(),
    "repeat of on_bad": lambda n: some(n).map(broken).on_bad("skip").repeat(),
    "repeat of interleave": lambda n: IterDataset.interleave([none(n), none(n)], 1).repeat(),
    "flat_map": lambda n: endless(n).flat_map(lambda _: []),
    "flat_map of flat_map": lambda n: endless(n).flat_map(lambda e: [e]).flat_map(lambda _: []),
    "filter of flat_map": lambda n: endless(n).flat_map(lambda e: [e, e]).filter(never),
    "filter of repeat": lambda n: some(n).flat_map(lambda e: [e]).repeat().filter(never),
    "filter of mix": lambda n: IterDataset.mix([endless(n), endless(n)]).filter(never),
    "filter of zip": lambda n: IterDataset.zip([endless(n), endless(n)]).filter(never),
    "mix, repeat": lambda n: IterDataset.mix([some(n), none(n)], at_end="repeat"),
    "mix of repeats": lambda n: IterDataset.mix([some(n).repeat(), none(n).repeat()]),
    "zip of a filter": lambda n: IterDataset.zip([endless(n), endless(n).filter(never)]),
    "rebatch": lambda n: endless(1).batch(2).map(emptied).rebatch(2),
    "pack, first_fit": lambda n: endless(n).map(empty).pack({"x": 8}, "first_fit", **FIT),
    "pack, best_fit": lambda n: endless(n).map(empty).pack({"x": 8}, "best_fit", **FIT),
    "pack, split": lambda n: endless(n).map(empty).pack({"x": 8}, "concat_then_split"),
}
LONG = MapDataset.source([np.arange(20)] * 3).repeat()
EMPTY = MapDataset.source([np.arange(0)] * 3).repeat()
PLANNED: dict[str, Make] = {
    "pack, too long": lambda n: LONG.pack(8, too_long="drop"),
    "pack, empty": lambda n: EMPTY.pack(8),
    "pack, batch, shard": lambda n: LONG.pack(8, too_long="drop").batch(2).shard(0, 2),
    "bucket, too long": lambda n: LONG.bucket([8], [2], too_long="drop"),
    "filter of packed rows": lambda n: LONG.pack(20).filter(never),
}


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("name", [*STREAMS, *PLANNED])
def test_a_stream_without_an_element_is_an_error(name: str, lanes: int) -> None:
    stream = (STREAMS | PLANNED)[name](lanes)
    with pytest.raises(PlanError, match="has no row"):
        list(itertools.islice(iter(stream), 5))
    with pytest.raises(PlanError, match="has no row"):
        iter(stream).skip(5)


def test_the_error_names_the_method_as_it_was_written() -> None:
    with pytest.raises(
        PlanError, match=r": flat_map\(.*\) made no row of the elements of 16 epochs"
    ):
        next(iter(STREAMS["flat_map"](1)))
    with pytest.raises(PlanError, match=r"limit: how many elements flat_map\(.*\) leaves"):
        some(2).flat_map(lambda e: [e]).limit(1)


@pytest.mark.parametrize("name", ["pack, empty", "filter of packed rows", "rebatch", "mix, repeat"])
def test_it_is_explained(name: str) -> None:
    assert "chain" in (STREAMS | PLANNED)[name](1).explain().details()


@pytest.mark.parametrize("name", ["pack, too long", "pack, first_fit", "filter of flat_map"])
def test_it_is_closed_while_it_looks_for_a_row(name: str) -> None:
    iterator = iter((STREAMS | PLANNED)[name](1))
    iterator.start_prefetch()
    iterator.close()
    with pytest.raises(ClosedError):
        next(iterator)


def test_what_is_kept_for_ever_is_explained() -> None:
    stream = some(1).cache().repeat().batch(4)
    assert "repeat" in stream.explain().details()
    mixed = IterDataset.mix([some(1).cache(), some(1)], at_end="repeat")
    assert "mix" in mixed.explain().details()


def test_few_rows_of_many_epochs_are_found() -> None:
    # A row that needs the elements of more than 16 epochs.
    tokens = endless(1).map(lambda n: {"x": np.ones(1 if n == 3 else 0)})
    ways: list[tuple[Literal["first_fit", "concat_then_split"], dict[str, Any]]] = [
        ("concat_then_split", {}),
        ("first_fit", FIT),
    ]
    for method, options in ways:
        row = next(iter(tokens.pack({"x": 50}, method, **options)))
        assert row["x"].sum() == 50
    assert next(iter(endless(1).batch(1000))).shape == (1000,)
    # A part of a mixture that comes rarely.
    rare = IterDataset.mix([endless(1), endless(1).map(lambda n: n + 100)], [1, 0.01])
    found = itertools.islice(iter(rare.filter(lambda n: n == 105)), 2)
    assert list(found) == [105, 105]
