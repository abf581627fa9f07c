"""Streams: blocks of rows, each row with the position that follows it.

`blocks(node, position, ...)` is a pure function from a position (a few integers) to the rest of the
stream. Nothing else is ever stored. An iterator's state is the position after the last element it
gave. Rows that were made ahead may be dropped or kept: the stream is the same.

Contract of every generator here:
1. Rows come in the stream's order, whatever the sizes of blocks, budgets and threads.
2. `marks[r]` is a position: `blocks` started there yields exactly what follows row `r`.
3. When something raises, every whole row before it has been yielded first.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from windrow.engine.context import RunContext
from windrow.engine.executors import results
from windrow.engine.read_batches import BlockSize, block_size, random_access
from windrow.engine.stages import BlockItem, BlockTask, ChainStage, stage_of
from windrow.stats.profiler import calling
from windrow.transforms import tables
from windrow.transforms.nodes import Node, as_chain
from windrow.transforms.row_blocks import (
    BLOCK_ROWS,
    Block,
    Blocks,
    check_inside,
    groups,
    marks_in_group,
)

# The most rows of a block that are taken at once.
_MOST_ROWS = 1 << 20


def blocks(node: Node, position: Sequence[int], run: RunContext, unit: int | None) -> Blocks:
    """The stream of `node` from `position` on.

    Args:
        node: A node of a stream.
        position: `node.width` integers, as in the marks of a block.
        run: State that the streams of an iterator share; it changes no row.
        unit: Rows that the next batch above takes at a time, if nothing in between drops or
            reorders rows: a batched function is then called on just those.
    """
    stage = stage_of(node)
    unit = unit if stage.keeps_rows else None
    if stage.chain is not None and not stage.is_apart:
        return random_access(stage.chain, stage, position, run, unit)
    if stage.steps:
        return _staged(stage, position, run, unit)
    inputs = _ParentStreams(stage.below, run)
    if run.has_values:
        return stage.below.blocks(position, inputs, unit)
    return stage.below.blocks_without_values(position, inputs, unit)


@dataclasses.dataclass(frozen=True, slots=True)
class _ParentStreams:
    """The inputs of a node that makes its own blocks: see `transforms.row_blocks.Inputs`."""

    node: Node
    run: RunContext

    def blocks(self, number: int, position: Sequence[int], unit: int | None = None) -> Blocks:
        return blocks(self.node.parents[number], position, self.run, unit)

    def chain_number(self, number: int) -> int:
        parent = self.node.parents[number]
        chain = as_chain(parent)
        return self.run.chain_numbers[id(parent if chain is None else chain.parent)]

    def row_count(self) -> BlockSize:
        return block_size(self.run.options, 1, None)

    def now_s(self) -> float:
        return self.run.clock()

    def calling(self) -> contextlib.AbstractContextManager[None]:
        return calling(self.node)


# --- block by block ------------------------------------------------------------------------------


def _staged(
    stage: ChainStage, position: Sequence[int], run: RunContext, unit: int | None
) -> Blocks:
    """Yield the blocks of another stream after the steps of a stage."""
    executor = run.executor_of(stage)
    number, _ = executor.part_of(stage)
    # Input blocks may be quick to make, and slow in these steps.
    size = BlockSize(executor.bounded(run.options).block_bytes, 1, _MOST_ROWS)
    tasks = _tasks(stage, number, position, run, unit)
    if not stage.takes_groups:
        tasks = (part for task in tasks for part in _parts(task, size))
    for work, found in executor.in_order(BlockItem(task, stage) for task in tasks):
        for result in results(executor, work, found):
            run.heard(result, None)
            if result.rows:
                size_bytes = tables.nbytes(result.block.table)
                too_few = executor.wants_more_rows()
                size.saw(result.rows, size_bytes, result.took_s, too_few=too_few)
            if len(result.block):
                yield result.block


def _parts(task: BlockTask, size: BlockSize) -> Iterator[BlockTask]:
    block, start = task.block, 0
    while start < len(block):
        stop = min(len(block), start + size.next_rows())
        part = block if stop - start == len(block) else block.sliced(start, stop)
        yield BlockTask(task.stage, part, task.seen + start)
        start = stop


def _tasks(
    stage: ChainStage, number: int, position: Sequence[int], run: RunContext, unit: int | None
) -> Iterator[BlockTask]:
    batch = stage.batch
    if stage.counts:
        return _counted(stage, number, position, run, unit)
    if batch is not None:
        return (
            BlockTask(number, group)
            for group in groups(blocks(stage.below, position, run, batch.size), batch.size)
            if len(group) == batch.size or not batch.drop_remainder
        )
    if stage.takes_groups:
        return _grouped(stage, number, position, run, unit or BLOCK_ROWS)
    return (BlockTask(number, block) for block in blocks(stage.below, position, run, unit))


def _counted(
    stage: ChainStage, number: int, position: Sequence[int], run: RunContext, unit: int | None
) -> Iterator[BlockTask]:
    """Position: the parent's, and how many elements came before."""
    seen = position[-1]
    for block in blocks(stage.below, position[:-1], run, unit):
        yield BlockTask(number, block, seen)
        seen += len(block)


def _grouped(
    stage: ChainStage, number: int, position: Sequence[int], run: RunContext, rows: int
) -> Iterator[BlockTask]:
    """Position: the parent's where the group of rows began, and the rows of it already given."""
    before, given = np.array(position[:-1], np.int64), position[-1]
    for group in groups(blocks(stage.below, position[:-1], run, rows), rows):
        check_inside(given, len(group))
        marks = marks_in_group(before, group.marks[-1], len(group))
        marked = Block(group.table, marks, group.made_of)
        yield BlockTask(number, marked, skip=given)
        before, given = group.marks[-1], 0
