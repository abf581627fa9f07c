"""Sequences cut to pieces: each item once, with random access, and in any order of the sequences."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests import strategies as make
from tests.hypothesis_profiles import examples
from tests.strategies import lengths_of
from windrow.engine.record_trace import trace
from windrow.errors import ArgumentError, ElementError, PlanError
from windrow.transforms.positions import positions

M = windrow.MapDataset
few_lengths = st.lists(st.integers(0, 9), max_size=12)


def documents_of(lengths: Sequence[int]) -> list[npt.NDArray[np.int64]]:
    """Documents whose tokens are all different."""
    return [100 * number + np.arange(length) for number, length in enumerate(lengths)]


def counted(lengths: Sequence[int]) -> list[npt.NDArray[np.int64]]:
    return [np.array(lengths, np.int64)]


def pieces_of(documents: Sequence[Any], size: int) -> list[Any]:
    """The pieces of documents, by a plain loop."""
    return [
        document[start : start + size]
        for document in documents
        for start in range(0, len(document), size)
    ]


def lists(pieces: Sequence[Any]) -> list[Any]:
    return [piece.tolist() for piece in pieces]


class Ragged:
    """A source that knows its lengths, and counts the records that are read."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths, self._documents = lengths, documents_of(lengths)
        self.read_count = 0

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, index: int) -> Any:
        self.read_count += 1
        return self._documents[index]

    def lengths(self) -> npt.NDArray[np.int64]:
        return np.array(self._lengths, np.int64)


@given(lengths=few_lengths, size=st.integers(1, 12), seed=make.SEEDS, epochs=st.integers(1, 2))
@settings(max_examples=examples(50), deadline=None)
def test_pieces_are_the_documents(lengths: list[int], size: int, seed: int, epochs: int) -> None:
    documents = documents_of(lengths)
    base = M.source(documents).shuffle(seed)
    dataset = base.chunks_of(size, lengths=counted(lengths))
    if not documents:
        assert len(dataset) == 0
        return
    expected: list[Any] = []
    for epoch in range(epochs):
        order = base.__getitems__(range(epoch * len(documents), (epoch + 1) * len(documents)))
        expected += pieces_of(order, size)
    assert len(dataset) * epochs == len(expected)
    if not expected:
        return
    assert lists(list(dataset.repeat(epochs))) == lists(expected)
    indices = list(range(len(expected)))[::-1]
    assert lists(dataset.__getitems__(indices)) == lists(expected[::-1])
    found = lengths_of(dataset._node, positions(np.arange(len(expected)), len(dataset)))
    assert found.tolist() == list(map(len, expected))
    # One element is its element of a read of many.
    assert lists([dataset[index] for index in indices[:4]]) == lists(expected[::-1][:4])


def test_a_document_is_read_once_for_its_pieces() -> None:
    source = Ragged([40, 30])
    dataset = M.source(source).chunks_of(2)
    assert source.read_count == 0
    assert len(dataset.__getitems__(range(35))) == 35
    assert source.read_count == 2
    found = trace(dataset._node, np.array([0, 1, 19, 20, 34])).taken[0]
    assert found.records.tolist() == [0, 0, 0, 1, 1]
    assert found.rows.tolist() == [0, 1, 2, 3, 4]


def test_strings_dicts_and_features() -> None:
    texts = ["first", "", "second"]
    assert list(M.source(texts).chunks_of(4, lengths=counted([5, 0, 6]))) == pieces_of(texts, 4)
    raw = [b"abcde", b"f"]
    assert list(M.source(raw).chunks_of(2, lengths=counted([5, 1]))) == pieces_of(raw, 2)
    records = [
        {"t": tokens, "loss": tokens / 2, "n": number, "box": np.zeros(2)}
        for number, tokens in enumerate(documents_of([5, 2]))
    ]
    dataset = M.source(records).chunks_of(3, lengths=counted([5, 2]), sequences=["t", "loss"])
    assert [(e["t"].tolist(), e["n"], len(e["box"])) for e in dataset] == [
        ([0, 1, 2], 0, 2),
        ([3, 4], 0, 2),
        ([100, 101], 1, 2),
    ]
    assert dataset[1]["loss"].tolist() == [1.5, 2.0]  # type: ignore[index]
    columns = M.source({"t": np.arange(12).reshape(3, 4), "n": np.arange(3)})
    pieces = columns.chunks_of(3, lengths=counted([4, 4, 4]))
    assert [(e["t"].tolist(), int(e["n"])) for e in pieces][:2] == [([0, 1, 2], 0), ([3], 0)]
    assert pieces.element_spec["t"].shape == (None,)


def test_padded_batches() -> None:
    chain = M.source(Ragged([5, 0, 7, 3])).shuffle(seed=2)
    padded = list(itertools.islice(chain.chunks_of(3).batch(2, pad_to=3), 2))
    assert [batch.shape for batch in padded] == [(2, 3), (2, 3)]


DOCUMENTS = M.source(documents_of([5, 3]))
LENGTHS = counted([5, 3])


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: M.source(make.Squares(3)).chunks_of(2), PlanError),
        (lambda: DOCUMENTS.batch(2).chunks_of(2), PlanError),
        (lambda: DOCUMENTS.chunks_of(0, lengths=LENGTHS), PlanError),
        (lambda: DOCUMENTS.repeat().chunks_of(2, lengths=LENGTHS), PlanError),
        (lambda: DOCUMENTS.chunks_of(2, lengths=counted([5, -3])), PlanError),
        (lambda: DOCUMENTS.chunks_of(2, lengths=counted([5])), PlanError),
        (lambda: DOCUMENTS.chunks_of(2, lengths=LENGTHS, sequences="t"), ArgumentError),
        (lambda: list(DOCUMENTS.chunks_of(2, lengths=counted([5, 4]))), ElementError),
        (lambda: list(M.source([1.0]).chunks_of(1, lengths=counted([1]))), ElementError),
        (
            lambda: list(named([2]).chunks_of(2, lengths=counted([2]), sequences=["x"])),
            ElementError,
        ),
    ],
)
def test_what_is_refused(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


def named(lengths: Sequence[int]) -> Any:
    return M.source([{"t": np.zeros(length)} for length in lengths])


def test_epochs_of_other_documents_are_refused() -> None:
    chosen = M.source(documents_of([1, 9, 1])).shuffle(seed=0)[:1]
    dataset = chosen.chunks_of(2, lengths=counted([1, 9, 1]))
    with pytest.raises(PlanError, match="call chunks_of before what chooses them"):
        list(dataset.repeat(8))
