"""Knowing: the records of any element, without reading."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from windrow import IterDataset, MapDataset, RecordOf

M = MapDataset


def leaves(element: Any) -> list[int]:
    """The numbers of an element, row by row."""
    if isinstance(element, tuple):
        parts = [leaves(part) for part in element]
        return [n for row in itertools.zip_longest(*parts) for n in row if n is not None]
    if isinstance(element, list):
        return [n for part in element for n in leaves(part)]
    return [int(n) for n in np.ravel(element)]


@st.composite
def named_chains(draw: st.DrawFn, *, filters: bool) -> IterDataset[Any]:
    """Streams whose numbers name their records: source `k` has `1000 * k + record`."""
    count = draw(st.integers(1, 3))
    parts: list[IterDataset[Any]] = []
    for number in range(count):
        length = draw(st.integers(1, 12))
        part: Any = M.source(np.arange(length) + 1000 * number)
        if draw(st.booleans()):
            part = part.shuffle(seed=draw(st.integers(0, 9)))
        if draw(st.booleans()):
            part = part[:: draw(st.sampled_from([-1, 2]))].repeat(2)
        parts.append(part.to_iter_dataset())
    stream = parts[0] if count == 1 else IterDataset.mix(parts, draw(weights(count)))
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["map", "window", "repeat", "limit", "numbered", "columns"]))
        match kind:
            case "map" if filters:
                by = draw(st.integers(2, 4))
                stream = stream.filter(lambda n, by=by: n % by != 0)
            case "map":
                stream = stream.map(lambda n: n)
            case "window":
                stream = stream.window_shuffle(
                    draw(st.integers(1, 5)), seed=draw(st.integers(0, 9))
                )
            case "repeat":
                stream = stream.repeat(draw(st.integers(1, 3)))
            case "limit":
                stream = stream.limit(draw(st.integers(1, 20)))
            case "numbered":
                stream = stream.map_with_index(lambda _, n: n)
            case _:
                stream = stream.map(lambda column: column, batched=True)
    for _ in range(draw(st.integers(0, 2))):
        size, drop = draw(st.integers(1, 4)), draw(st.booleans())
        stream = stream.batch(size, drop_remainder=drop, batch_fn=list)
    return stream


def weights(count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, 3), min_size=count, max_size=count)


def names(element: Any) -> list[RecordOf]:
    return [RecordOf(n // 1000, n % 1000) for n in leaves(element)]


@given(stream=named_chains(filters=True), start=st.integers(0, 4))
def test_the_last_records_are_those_of_the_element(stream: Any, start: int) -> None:
    first, iterator = iter(stream), iter(stream)
    for _ in range(start):
        next(first, None)
    iterator.set_state(first.get_state())
    for element in iterator:
        assert iterator.records_of_last() == names(element)


@given(stream=named_chains(filters=False))
def test_the_records_of_any_element_of_a_stream(stream: Any) -> None:
    elements = list(stream)
    for number, element in enumerate(elements):
        assert stream.records_of(number) == names(element)
    with pytest.raises(windrow.errors.RecordIndexError, match=f"element {len(elements)}|is empty"):
        stream.records_of(len(elements))
