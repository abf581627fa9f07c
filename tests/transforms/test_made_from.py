"""Which one element an element is made of, and what nodes say of a chain for plans and figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from windrow import MapDataset as M
from windrow.errors import PlanError
from windrow.transforms.nodes import Node, over_records, topmost_batch
from windrow.transforms.nodes.epochs import reseeded
from windrow.transforms.positions import positions

Link = Callable[[windrow.MapDataset[Any]], windrow.MapDataset[Any]]

# Each keeps its elements' values, so an element is the record that it is made of.
LINKS: dict[str, Link] = {
    "slice": lambda ds: ds[1::2],
    "listed": lambda ds: ds.slice(list(range(len(ds) - 1, -1, -2))),
    "shuffle": lambda ds: ds.shuffle(3),
    "window_shuffle": lambda ds: ds.window_shuffle(4, 5),
    "block_shuffle": lambda ds: ds.block_shuffle(6, block=3, window_blocks=2),
    "repeat": lambda ds: ds.repeat(2),
    "seed": lambda ds: ds.seed(7),
    "map": lambda ds: ds.map(lambda x: x),
    "batched map": lambda ds: ds.map(lambda x: x, batched=True),
    "map_with_index": lambda ds: ds.map_with_index(lambda i, x: x),
    "concatenate": lambda ds: M.concatenate([M.range(1000, 1005), ds]),
    "mix": lambda ds: M.mix([ds, M.range(2000, 2030)], weights=[0.6, 0.4]),
}


def followed(node: Node, index: int) -> int:
    """The record at the end of the way that `made_from` shows."""
    at = positions(np.array([index]), node.length)
    while node.parents:
        before = node.made_from(at)
        assert before is not None
        node, at = before
    (record,) = np.asarray(node.table(at).tree).tolist()  # type: ignore[attr-defined]
    return int(record)


@given(
    records=st.integers(8, 40),
    links=st.lists(st.sampled_from(sorted(LINKS)), max_size=4),
    place=st.floats(0, 1, exclude_max=True),
)
def test_the_way_ends_at_the_record_that_is_read(
    records: int, links: list[str], place: float
) -> None:
    dataset: windrow.MapDataset[Any] = M.range(records)
    for link in links:
        dataset = LINKS[link](dataset)
    if not len(dataset):
        return
    index = int(place * len(dataset))
    assert followed(dataset._node, index) == dataset[index]


def test_what_is_made_of_several_elements_has_no_way() -> None:
    first = positions(np.array([0]), 3)
    for dataset in (M.range(6).batch(2), M.zip([M.range(3), M.range(3)]), M.range(3)):
        assert dataset._node.made_from(first) is None


def test_reseeded_repeats_have_an_order_for_each_epoch() -> None:
    fixed = M.concatenate([M.range(20), M.range(20, 40)]).shuffle(1)
    dataset = fixed.repeat(2, reseed_each_epoch=False).map(str).batch(4)
    node = reseeded(dataset._node)
    anew = fixed.repeat(2).map(str).batch(4)
    assert node.label == dataset._node.label
    assert node.parent.parent.label == anew._node.parent.parent.label
    assert dataset._node.parent.parent.label != anew._node.parent.parent.label
    # A chain that does not repeat is the same chain.
    assert reseeded(fixed._node) is fixed._node


def test_the_topmost_batch_is_found_whatever_follows_it() -> None:
    inner = M.range(40).batch(2)
    outer = inner.batch(5)
    assert topmost_batch(outer.map(len).filter(bool).shuffle(1)._node) is outer._node
    assert topmost_batch(inner.repeat(3)._node) is inner._node
    assert topmost_batch(M.range(4).shuffle(1)._node) is None
    # Where datasets meet there is no one batch.
    assert topmost_batch(M.concatenate([inner, inner])._node) is None


def test_functions_over_records_are_those_of_the_chain() -> None:
    dataset = M.source([b"a", b"bb"]).map(len).shuffle(1).map(str, batched=True).repeat(2)
    (chain,) = over_records(dataset._node)
    assert [each.label for each in chain.walk()][:-1] == ["map(batched=True)", "map"]
    assert [each.functions for each in chain.walk()] == [(str,), (len,), ()]
    indexed = M.source([b"a"]).map_with_index(lambda i, x: x)
    for other in (indexed, dataset.filter(bool), dataset.batch(2)):
        with pytest.raises(PlanError, match="does not make one element of each record"):
            over_records(other._node)
