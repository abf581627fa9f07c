"""The plan of a rechunking: every cell once, whole files, never more memory than given."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.converters.zarr.rechunk_plan import CellBox, Grids, RechunkPlan, plan_rechunk, runs
from windrow.errors import ConversionError

MIB = 1 << 20


@st.composite
def grids(draw: st.DrawFn) -> Grids:
    rank = draw(st.integers(0, 3))

    def sizes(most: int, least: int = 1) -> tuple[int, ...]:
        return tuple(draw(st.integers(least, most)) for _ in range(rank))

    chunk = sizes(9)
    shift = tuple(draw(st.integers(0, c - 1)) for c in chunk)
    itemsizes = st.sampled_from((1, 4, 100_000))
    encoding = draw(st.sampled_from((1, 2 * MIB, 50 * MIB)))
    return Grids(sizes(20, 0), chunk, shift, sizes(9), draw(itemsizes), draw(itemsizes), encoding)


@st.composite
def plans(draw: st.DrawFn) -> RechunkPlan:
    found = draw(grids())
    more = draw(st.sampled_from((0, 1, 10_000, 1_000_000, 100_000_000)))
    return plan_rechunk(found, found.least_bytes + more)


def cells_of(box: CellBox) -> tuple[slice, ...]:
    return tuple(slice(f, f + n) for f, n in zip(box.first, box.shape, strict=True))


@given(plans())
def test_blocks_are_whole_files_and_hold_every_cell_once(plan: RechunkPlan) -> None:
    shape, files = plan.grids.shape, plan.grids.file_shape
    seen = np.zeros(shape, int)
    for block in plan.blocks():
        seen[cells_of(block)] += 1
        for first, size, file, n in zip(block.first, block.shape, files, shape, strict=True):
            assert first % file == 0
            assert (first + size) % file == 0 or first + size == n
    assert (seen == 1).all()


@given(plans())
def test_pieces_lead_every_cell_from_its_read_to_its_block(plan: RechunkPlan) -> None:
    shape = plan.grids.shape
    values = np.arange(math.prod(shape)).reshape(shape)
    between: dict[CellBox, Any] = {}
    for read in plan.reads():
        file = np.full(read.cells, -1)
        for piece, begin in plan.pieces_of_read(read):
            file[begin : begin + piece.cells] = values[cells_of(piece)].ravel()
        assert (file >= 0).all()
        between[read] = file
    found = np.full(shape, -1)
    for block in plan.blocks():
        for read, piece, begin in plan.pieces_of_block(block):
            held = between[read][begin : begin + piece.cells]
            found[cells_of(piece)] = held.reshape(piece.shape)
    assert (found == values).all()


@given(plans(), st.integers(0, 200))
def test_runs_of_a_box_follow_one_another(plan: RechunkPlan, most: int) -> None:
    for box in plan.blocks():
        values = np.arange(box.cells).reshape(box.shape)
        for part, begin in runs(box, most):
            assert part.cells <= max(1, most)
            cut = tuple(
                slice(f - w, f - w + n)
                for f, n, w in zip(part.first, part.shape, box.first, strict=True)
            )
            assert (values[cut].ravel() == np.arange(begin, begin + part.cells)).all()
        assert sum(part.cells for part, _ in runs(box, most)) == box.cells


@given(grids(), st.integers(0, 100 * MIB))
def test_a_plan_stays_within_its_memory(grids: Grids, memory_bytes: int) -> None:
    try:
        plan = plan_rechunk(grids, memory_bytes, name="x")
    except ConversionError as error:
        assert memory_bytes < grids.least_bytes
        assert f"array 'x': {memory_bytes:,} bytes" in str(error)  # noqa: PT017
        assert f"at least {grids.least_bytes:,} bytes" in str(error)  # noqa: PT017
        return
    assert plan.memory_bytes <= memory_bytes
    sides = (plan.block, plan.between or plan.block)
    assert max(math.prod(side) for side in sides) * grids.itemsize <= plan.memory_bytes
    assert plan.decoders >= 1


@given(plans())
def test_amplification_is_what_the_reads_touch(plan: RechunkPlan) -> None:
    grids = plan.grids
    if not math.prod(grids.shape):
        return
    touched = 0
    for read in plan.reads():
        axes = zip(
            read.first, read.shape, grids.source_chunk, grids.source_shift, grids.shape, strict=True
        )
        spans = []
        for first, size, chunk, shift, n in axes:
            chunks = {(k + shift) // chunk for k in range(first, first + size)}
            spans.append(sum((k + shift) // chunk in chunks for k in range(n)))
        touched += math.prod(spans)
    assert plan.amplification == pytest.approx(touched / math.prod(grids.shape))


def flat(shape: Any, chunk: Any, files: Any, itemsize: int = 4) -> Grids:
    return Grids(shape, chunk, (0,) * len(shape), files, itemsize, itemsize, 2 * MIB)


def test_one_pass_where_a_block_of_whole_chunks_fits() -> None:
    plan = plan_rechunk(flat((2048, 512, 512), (16, 512, 512), (64, 512, 512)), 350 * MIB)
    assert (plan.between, plan.amplification) == (None, 1.0)


def test_two_passes_from_columns_to_rows() -> None:
    # Any block of whole rows that fits would touch every column.
    plan = plan_rechunk(flat((8192, 256, 256), (8192, 16, 16), (64, 256, 256)), 350 * MIB)
    assert plan.between is not None
    assert plan.amplification == 1.0
    pieces = sum(len(list(plan.pieces_of_read(read))) for read in plan.reads())
    reads, blocks = len(list(plan.reads())), len(list(plan.blocks()))
    # Every byte of both sides is in one of few large pieces.
    assert pieces <= reads * blocks
    assert max(reads, blocks) <= 32


def test_reading_a_little_again_is_cheaper_than_two_passes() -> None:
    plan = plan_rechunk(flat((2048, 512, 512), (256, 64, 64), (100, 512, 512)), 350 * MIB)
    assert plan.between is None
    assert 1 < plan.amplification < 3


def test_a_plan_travels_to_other_processes() -> None:
    plan = plan_rechunk(flat((8, 6), (3, 4), (2, 5)), 100 * MIB)
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_planning_takes_no_longer_for_a_large_array() -> None:
    # 100 TB, and more chunks along an axis than could be inspected one by one.
    plan = plan_rechunk(flat((25_000_000_000, 1000), (1000, 1000), (64, 1000)), 350 * MIB)
    assert plan.amplification == pytest.approx(1.0, abs=0.1)
