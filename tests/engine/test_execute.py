"""Reading: several sources, and records of slow sources, side by side; never one by one."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import windrow

READERS = 4


class Meeting:
    """A source that answers only when `READERS` threads ask at the same time."""

    def __init__(self) -> None:
        self.together = threading.Barrier(READERS, timeout=300)

    def __len__(self) -> int:
        return READERS

    def __getitem__(self, index: int) -> int:
        self.together.wait()
        return index * 10


class Counting:
    """A source with batched reads that counts them."""

    def __init__(self, records: int) -> None:
        self.records = records
        self.reads: list[int] = []
        self.fingerprint = f"counting({records})"

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("records must not be read one by one")

    def read(self, indices: Any) -> Any:
        self.reads.append(len(indices))
        return {"n": np.asarray(indices) * 10}


def test_records_of_a_source_without_batches_are_read_side_by_side() -> None:
    dataset = windrow.MapDataset.source(Meeting())
    assert dataset.read(range(READERS)).tolist() == [0, 10, 20, 30]


def test_each_parent_of_a_mixture_is_read_once() -> None:
    first, second = Counting(600), Counting(200)
    parts = [windrow.MapDataset.source(s).map(lambda e: e["n"]) for s in (first, second)]
    mixed = windrow.MapDataset.mix(parts, weights=[3, 1])
    mixed.read(range(800))
    assert (first.reads, second.reads) == ([600], [200])


def test_an_error_in_the_user_s_source_names_the_record() -> None:
    class Broken(Meeting):
        def __getitem__(self, index: int) -> int:
            if index == 2:
                raise KeyError("no such file")
            return index

    iterator = iter(windrow.MapDataset.source(Broken()))
    assert [next(iterator), next(iterator)] == [0, 1]
    with pytest.raises(KeyError, match="no such file") as caught:
        next(iterator)
    assert any("record 2" in note for note in caught.value.__notes__)


def fail_at(number: int) -> Any:
    def function(x: Any) -> Any:
        if x == number:
            raise ValueError("cannot be decoded")
        return x

    return function


def notes_of(stream: Any) -> str:
    with pytest.raises(ValueError, match=r"cannot be decoded|agree in shape") as caught:
        list(stream)
    return "\n".join(caught.value.__notes__)


def test_an_error_in_a_stream_names_the_element() -> None:
    stream = windrow.MapDataset.range(10).to_iter_dataset()
    assert notes_of(stream.map(fail_at(7))).endswith("for element 7")
    # Of several parts each has an index of its own: the note has the position that a state would.
    mixed = windrow.IterDataset.mix([stream, stream.map(lambda x: x + 10)])
    assert "the element before position [4, 4, 8]" in notes_of(mixed.map(fail_at(13)))


def test_an_error_in_a_batch_of_a_stream_names_where_it_begins() -> None:
    ragged = windrow.MapDataset.range(10).map(lambda x: np.zeros(2 if x == 6 else 1))
    assert "in batch(4) for the batch from element 4 on" in notes_of(
        ragged.to_iter_dataset().batch(4)
    )
