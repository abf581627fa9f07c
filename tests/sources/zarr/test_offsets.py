"""Offsets in chunks: NumPy's numbers, no chunk but those needed, and damage is noticed where it is."""

from __future__ import annotations

import types
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.errors import ReadError
from windrow.sources.chunks import ArrayPart, Span
from windrow.sources.zarr.offsets import Offsets

AnyArray = npt.NDArray[Any]


class CountingReader:
    """Rows in memory; `calls` has the first row of each chunk that was read, by call."""

    def __init__(self, rows: AnyArray) -> None:
        self.rows = rows
        self.calls: list[list[int]] = []

    def start(self, spans: Sequence[Span], pool: Executor) -> Future[None]:
        self.calls.append([span.first for span in spans])
        for span in spans:
            span.out[...] = self.rows[span.first : span.stop]
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def read(self, rows: Any) -> AnyArray:
        raise AssertionError("rows are read in chunks")

    def stored_bytes(self, chunks: Any) -> Any:
        return chunks


def stored(
    name: str, rows: AnyArray, chunk: int, shift: int = 0, attributes: Any = None, wide: int = 0
) -> Any:
    """What is used of an open array."""
    row_shape = (wide,) if wide else ()
    part = ArrayPart(name, len(rows), row_shape, rows.dtype, chunk, CountingReader(rows), shift)
    found = types.SimpleNamespace(what="Rows", where=name)
    return types.SimpleNamespace(
        part=part, found=found, attributes=attributes or {}, is_remote_source=False
    )


def offsets_of(
    bounds: Sequence[int],
    chunk: int,
    *,
    values: int | None = None,
    dtype: str = "i8",
    shift: int = 0,
    index: Sequence[int] | None = None,
    block: int = 8,
) -> Offsets:
    """Offsets of values of 128 KiB in chunks of two, so in blocks of eight."""
    array = np.array(bounds, np.int64).astype(dtype)
    wide = np.broadcast_to(np.uint8(0), (array[-1] if values is None else values, 1 << 17))
    noted = {"windrow_block_values": block}
    return Offsets(
        stored("offsets", array, chunk, shift),
        stored("values", wide, 2, wide=1 << 17),
        None if index is None else stored("blocks", np.array(index, np.int64), 2, 0, noted),
    )


def read_by(offsets: Offsets) -> list[list[int]]:
    calls: list[list[int]] = offsets.part.reader.calls  # type: ignore[attr-defined]
    return calls


def right_index(bounds: Sequence[int]) -> list[int]:
    """The first record of each block, by NumPy."""
    found: list[int] = np.searchsorted(bounds, np.arange(0, bounds[-1], 8)).tolist()
    return found


def bounds_of(lengths: Sequence[int]) -> list[int]:
    found: list[int] = np.cumsum([0, *lengths]).tolist()
    return found


def one_by_one(offsets: Offsets, records: Sequence[int]) -> None:
    for record in records:
        assert offsets.lengths(np.array([record])).min() >= 0


some_lengths = st.lists(st.integers(0, 4) | st.sampled_from([0, 9, 30]), min_size=1, max_size=40)


@settings(max_examples=100)
@given(
    some_lengths,
    st.integers(1, 7),
    st.sampled_from(["i8", "u4", ">i8", "u8"]),
    st.booleans(),
    st.data(),
)
def test_any_records_have_numpys_offsets_and_no_chunk_is_read_twice(
    lengths: list[int], chunk: int, dtype: str, indexed: bool, data: st.DataObject
) -> None:
    bounds = bounds_of(lengths)
    shift = data.draw(st.integers(0, chunk - 1))
    index = right_index(bounds) if indexed else None
    offsets = offsets_of(bounds, chunk, dtype=dtype, shift=shift, index=index)
    needed = {(len(bounds) - 1 + shift) // chunk}  # the last one is always read
    for _ in range(data.draw(st.integers(1, 4))):
        records = np.array(
            data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=5))
        )
        if indexed and data.draw(st.booleans()):
            assert offsets.block_starts().tolist() == index
        before = len(read_by(offsets))
        assert offsets.starts(records).tolist() == [bounds[r] for r in records]
        assert offsets.lengths(records).tolist() == [lengths[r] for r in records]
        assert len(read_by(offsets)) <= before + 1
        needed |= {(row + shift) // chunk for r in records.tolist() for row in (r, r + 1)}
    found = [first for call in read_by(offsets) for first in call]
    assert sorted(found) == [max(0, number * chunk - shift) for number in sorted(needed)]
    first, stop = sorted(data.draw(st.tuples(*[st.integers(0, bounds[-1])] * 2)))
    wanted = np.searchsorted(bounds, first, "right") - 1, np.searchsorted(bounds, stop, "left")
    assert offsets.records_of(first, stop) == wanted
    assert offsets.block_starts().tolist() == right_index(bounds)
    assert offsets.all().tolist() == bounds
    found = [first for call in read_by(offsets) for first in call]
    assert len(found) == len(set(found))


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ([1, 2, 3, 4, 5, 6], r"they begin with 1, and must begin with 0"),
        ([0, 2, 1, 4, 5, 6], r"offset 2 is 1, and less than 2 before it"),
        ([0, 4, 3, 4, 5, 6], r"offset 2 is 3, and less than 4 before it"),
        ([0, 1, -3, 4, 5, 6], r"offset 2 is -3, and (less than 1 before it|must be at least 0)"),
        (
            [0, 1, 3, 9, 5, 6],
            r"offset (4 is 5, and less than 9 before it|3 is 9, and there are 6 values)",
        ),
        ([0, 1, 3, 4, 5, 7], r"the last one is 7, and there are 6 values"),
    ],
)
def test_damage_is_noticed_with_the_chunks_beside_it(bounds: list[int], message: str) -> None:
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        offsets = offsets_of(bounds, 2, values=6)
        with pytest.raises(ReadError, match=f"Rows: the offsets in offsets .* values: {message}"):
            one_by_one(offsets, order)
    with pytest.raises(ReadError, match=message):
        offsets_of(bounds, 2, values=6).all()


# --- the index -----------------------------------------------------------------------------------

LENGTHS = [3, 0, 7, 1, 1, 20, 0, 2, 5, 5, 6, 2, 9, 4]  # 65 values: nine blocks
BOUNDS = bounds_of(LENGTHS)
RIGHT = right_index(BOUNDS)


@pytest.mark.parametrize("blocks", [0, 1, 5, 8])
def test_blocks_that_were_appended_are_found_from_the_offsets_after_them(blocks: int) -> None:
    offsets = offsets_of(BOUNDS, 2, index=RIGHT[:blocks])
    assert offsets.block_starts().tolist() == RIGHT
    first = RIGHT[blocks - 1] if blocks else 0
    assert read_by(offsets) == [list(range(first - first % 2, len(BOUNDS), 2))]


def wrong_indexes() -> list[tuple[int, list[int]]]:
    """The right index with one block that begins a record too early or too late, but rises."""
    changed = [
        (k, [*RIGHT[:k], RIGHT[k] + by, *RIGHT[k + 1 :]]) for k in range(1, 9) for by in (-1, 1)
    ]
    return [(k, index) for k, index in changed if index == sorted(index) and index[-1] <= 14]


@pytest.mark.parametrize("read_first", [True, False])
@pytest.mark.parametrize(("block", "index"), wrong_indexes())
def test_a_wrong_index_is_noticed(block: int, index: list[int], read_first: bool) -> None:
    offsets = offsets_of(BOUNDS, 2, index=index)
    message = rf"the index of blocks in blocks does not fit .*: block {block} begins with record"
    if read_first:
        offsets.all()
        with pytest.raises(ReadError, match=message):
            offsets.block_starts()
        return
    offsets.block_starts()
    with pytest.raises(ReadError, match=message):
        offsets.all()
    # One record after the other, only what is read can be compared.
    with pytest.raises(ReadError, match=message):
        one_by_one(offsets, range(len(LENGTHS)))


@pytest.mark.parametrize("index", [[1, 2], [0, 3, 2], [0, 15], [0, -1]])
def test_an_index_that_no_records_have_is_refused(index: list[int]) -> None:
    with pytest.raises(ReadError, match=r"it must rise from 0, and to 14 at most"):
        offsets_of(BOUNDS, 2, index=index).block_starts()
