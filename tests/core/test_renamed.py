"""Old names of public things work, warn, and give what the new names give."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import pytest

from windrow import sources
from windrow.sources import ArrayPart, IntArray, Needs, Span
from windrow.stats.costs import Amount, SourceCosts


class NoReader:
    """Reads nothing: the tests ask for sizes only."""

    def start(self, spans: Sequence[Span], pool: Executor) -> Future[None]:
        raise NotImplementedError

    def read(self, rows: IntArray) -> Any:
        raise NotImplementedError

    def stored_bytes(self, chunks: IntArray) -> IntArray:
        raise NotImplementedError


def test_old_attributes_warn_and_give_the_new_ones() -> None:
    part = ArrayPart("", 40, (), np.dtype("f4"), chunk_rows=10, reader=NoReader())
    with pytest.warns(
        DeprecationWarning, match=r"ArrayPart\.piece_rows is now ArrayPart\.chunk_rows"
    ):
        assert part.piece_rows == 10
    with pytest.warns(DeprecationWarning, match="piece_count is now ArrayPart.chunk_count"):
        assert part.piece_count == 4
    needs = Needs(np.arange(2), np.array([3, 4]))
    with pytest.warns(DeprecationWarning, match=r"Needs\.pieces is now Needs\.chunks"):
        assert needs.pieces.tolist() == [3, 4]
    amount = Amount.exactly(7)
    costs = SourceCosts("s", amount, Amount.exactly(3), amount, None, None, None, amount)
    with pytest.warns(DeprecationWarning, match=r"SourceCosts\.pieces is now SourceCosts\.chunks"):
        assert costs.pieces == Amount.exactly(3)


def test_old_arguments_warn_and_are_passed_on() -> None:
    with pytest.warns(DeprecationWarning, match="ArrayPart: argument piece_rows is now chunk_rows"):
        part = ArrayPart("", 40, (), np.dtype("f4"), piece_rows=10, reader=NoReader())  # type: ignore[call-arg]
    assert part.chunk_rows == 10


def test_old_function_of_sources_warns() -> None:
    with pytest.warns(DeprecationWarning, match="is_far is now is_remote_source"):
        old = sources.is_far  # type: ignore[attr-defined]
    assert old is sources.is_remote_source


def test_a_source_that_says_is_far_counts_as_remote() -> None:
    class Far:
        is_far = True

    assert sources.is_remote_source(Far())
    assert not sources.is_remote_source(object())
