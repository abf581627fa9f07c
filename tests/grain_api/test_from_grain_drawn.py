"""`from_grain` over drawn chains of the nodes of Grain that have no method: elements, and places."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import grain
import numpy as np
from grain import experimental as more
from hypothesis import example, given, settings
from hypothesis import strategies as st

import windrow
from tests.grain_api import test_from_grain
from tests.hypothesis_profiles import examples

MOST = 60
closed = test_from_grain.closed


def as_tokens(number: int) -> dict[str, Any]:
    return {"tokens": np.full(number % 5 + 1, number, np.int64)}


def as_number(row: dict[str, Any]) -> int:
    tokens = np.asarray(row["tokens"]).ravel()
    return int((tokens * np.arange(1, len(tokens) + 1)).sum() % 10**6)


def in_all(batch: Any) -> int:
    return int(np.asarray(batch).sum())


def odd(number: int) -> bool:
    return number % 2 == 1


def one_more(number: int) -> int:
    return number + 1


def packed(kind: Any, **options: Any) -> Callable[[Any], Any]:
    return lambda ds: kind(ds.map(as_tokens), length_struct={"tokens": 6}, **options).map(as_number)


STEPS: dict[str, Callable[[Any], Any]] = {
    "flat map": lambda ds: more.FlatMapIterDataset(ds, test_from_grain.Spread()),
    "rebatch": lambda ds: more.RebatchIterDataset(ds.batch(3), 2).map(in_all),
    "interleave": lambda ds: more.InterleaveIterDataset([ds, ds.map(one_more)], cycle_length=2),
    "first fit": packed(more.FirstFitPackIterDataset, num_packing_bins=2),
    "best fit": packed(more.BestFitPackIterDataset, num_packing_bins=3, seed=4),
    "concat": packed(more.ConcatThenSplitIterDataset),
    "cache": more.CacheIterDataset,
    "repeat": lambda ds: more.RepeatIterDataset(ds, 2),
    "limit": lambda ds: more.LimitIterDataset(ds, 9),
    "window shuffle": lambda ds: more.WindowShuffleIterDataset(ds, window_size=4, seed=3),
    "options": lambda ds: more.WithOptionsIterDataset(ds, more.DatasetOptions()),
    "threads": lambda ds: more.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=2),
    "zip": lambda ds: more.ZipIterDataset([ds, ds.map(one_more)]).map(in_all),
    "filter": lambda ds: ds.filter(odd),
}
# In Grain these have no place that survives JSON, or none after the first epoch.
WITHOUT_PLACES = {"concat", "cache"}


# Its fifth place is one from which Grain itself goes on with nothing.
@example(length=2, names=["interleave", "repeat"], at=5)
@given(
    length=st.integers(0, 12),
    names=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=3),
    at=st.integers(0, 12),
)
@settings(max_examples=examples(50))
def test_drawn_chains_are_grains(length: int, names: list[str], at: int) -> None:
    theirs: Any = grain.MapDataset.range(length).shuffle(seed=2).to_iter_dataset()
    for name in names:
        theirs = STEPS[name](theirs)
    expected = list(itertools.islice(theirs, MOST))
    assert list(itertools.islice(windrow.from_grain(theirs), MOST)) == expected
    # In a later epoch Grain's own state of an interleaving says that all of it is exhausted.
    has_place = not WITHOUT_PLACES & set(names) and not {"interleave", "repeat"} <= set(names)
    if has_place and len(expected) < MOST:
        test_from_grain.check_places(theirs, expected, min(at, len(expected)))
