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
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from windrow.engine.context import RunContext
from windrow.engine.executors import results
from windrow.engine.read_batches import BlockSize, block_size, random_access
from windrow.engine.stages import BlockItem, BlockTask, ChainStage, stage_of, watch_of_stage
from windrow.errors import ClosedError
from windrow.sources.base import IntArray
from windrow.stats.profiler import calling
from windrow.transforms import tables
from windrow.transforms.nodes import Node, as_chain, chain_of_rows, follows_batch, lane_share
from windrow.transforms.nodes.base import blocks_without_values
from windrow.transforms.row_blocks import (
    BLOCK_ROWS,
    Block,
    Blocks,
    Inputs,
    JointRows,
    KeptBlocks,
    OwnStates,
    Turns,
    check_inside,
    groups,
    marks_in_group,
)

if TYPE_CHECKING:
    from windrow.engine.lane_reader import Lane

# The most rows of a block that are taken at once.
_MOST_ROWS = 1 << 20


def blocks(
    node: Node,
    position: Sequence[int],
    run: RunContext,
    unit: int | None,
    lane: Lane | None = None,
) -> Blocks:
    """The stream of `node` from `position` on.

    Args:
        node: A node of a stream.
        position: `node.width` integers, as in the marks of a block.
        run: State that the streams of an iterator share; it changes no row.
        unit: Rows that the next batch above takes at a time, if nothing in between drops or
            reorders rows: a batched function is then called on just those.
        lane: The lane that is run, of a stream that has several.
    """
    stage = stage_of(node)
    unit = unit if stage.keeps_rows else None
    if stage.chain is not None and not stage.is_apart:
        if lane is not None:
            return lane.group.rows(stage, stage.chain, lane.number, position[0])
        return random_access(stage.chain, stage, position, run, unit)
    if stage.steps:
        return _staged(stage, position, run, unit, lane)
    below, inputs = stage.below, _ParentStreams(stage.below, run, lane)
    if run.has_values:
        return _with_rows(below.blocks(position, inputs, unit))
    return _with_rows(blocks_without_values(below, position, inputs, unit))


def _with_rows(rest: Blocks) -> Blocks:
    """Leave out the blocks without rows that a node may yield."""
    for block in rest:
        if len(block):
            yield block


@dataclasses.dataclass(frozen=True, slots=True)
class _ParentStreams:
    """The inputs of a node that makes its own blocks: see `transforms.row_blocks.Inputs`."""

    node: Node
    run: RunContext
    lane: Lane | None

    def blocks(self, number: int, position: Sequence[int], unit: int | None = None) -> Blocks:
        return blocks(self.node.parents[number], position, self.run, unit, self.lane)

    def in_lanes(self, lanes: int, starts: Mapping[int, Sequence[int]]) -> list[Inputs]:
        if lanes == 1:
            return [self]
        # Few chains have lanes, and the others do not load this.
        from windrow.engine.lane_reader import Lane, LaneGroup

        group = LaneGroup(self.node.parent, self.run, lanes, starts)
        return [_ParentStreams(self.node, self.run, Lane(number, group)) for number in starts]

    def joint(self, lanes: int, starts: Mapping[int, Sequence[int]]) -> JointRows | None:
        stage = stage_of(self.node.parent)
        if lanes == 1 or stage.chain is None or stage.is_apart:
            return None
        from windrow.engine.lane_reader import LaneGroup

        return LaneGroup(self.node.parent, self.run, lanes, starts).joint(stage, stage.chain)

    def turns(
        self, lanes: int, starts: Mapping[int, Sequence[int]], rows: int, slots: IntArray
    ) -> Turns | None:
        chain = chain_of_rows(self.node.parent)
        if lanes == 1 or chain is None:
            return None
        from windrow.engine.lane_reader import turn_rows

        stage = stage_of(self.node.parent)
        at = {lane: position[0] for lane, position in starts.items()}
        return turn_rows(stage, chain, self.run, at, rows, slots)

    def number(self, count: int) -> int:
        return count if self.lane is None else self.lane.row(count)

    def share(self, count: int) -> int:
        lane = self.lane
        return count if lane is None else lane_share(count, lane.number, lane.group.lanes)

    def chain_number(self, number: int) -> int:
        parent = self.node.parents[number]
        chain = as_chain(parent)
        return self.run.chain_numbers[id(parent if chain is None else chain.parent)]

    def kept(self) -> KeptBlocks:
        lane = 0 if self.lane is None else self.lane.number
        return self.run.kept.setdefault((id(self.node), lane), KeptBlocks())

    def own_states(self) -> OwnStates:
        return self.run.own_states

    def row_count(self) -> BlockSize:
        return block_size(self.run.options, self.run.budget.batch_bytes, 1)

    def now_s(self) -> float:
        return self.run.clock()

    def calling(self) -> contextlib.AbstractContextManager[None]:
        return calling(self.node)


# --- block by block ------------------------------------------------------------------------------


def _staged(
    stage: ChainStage,
    position: Sequence[int],
    run: RunContext,
    unit: int | None,
    lane: Lane | None,
) -> Blocks:
    """Yield the blocks of another stream after the steps of a stage."""
    executor, watch = run.executor_of(stage), None
    if run.has_values:
        place = (0, 1) if lane is None else (lane.number, lane.group.lanes)
        watch = watch_of_stage(stage, *place)
    number, _ = executor.part_of(stage)
    # Input blocks may be quick to make, and slow in these steps.
    size = BlockSize(executor.bounded(run.budget.batch_bytes), 1, _MOST_ROWS)
    drops = run.drop_watch(stage.steps)
    tasks = _tasks(stage, number, position, run, unit, lane)
    if not stage.takes_groups:
        tasks = (part for task in tasks for part in _parts(task, size))
    for work, found in executor.in_order(BlockItem(task, stage) for task in tasks):
        for result in results(executor, work, found, run.counting_bad()):
            run.heard(result, None)
            if watch is not None:
                watch.saw(result.rows, len(result.block) > 0, work.task.block.marks)
            if result.rows:
                size_bytes = tables.nbytes(result.block.table)
                too_few = executor.wants_more_rows()
                size.saw(result.rows, size_bytes, result.took_s, too_few=too_few)
            if len(result.block):
                yield result.block
            if drops is not None:
                drops.saw(result.rows if stage.batch is None else 1, len(result.block))


def _parts(task: BlockTask, size: BlockSize) -> Iterator[BlockTask]:
    block, start = task.block, 0
    while start < len(block):
        stop = min(len(block), start + size.next_rows())
        part = block if stop - start == len(block) else block.sliced(start, stop)
        yield dataclasses.replace(task, block=part, seen=task.seen + start)
        start = stop


def _tasks(
    stage: ChainStage,
    number: int,
    position: Sequence[int],
    run: RunContext,
    unit: int | None,
    lane: Lane | None,
) -> Iterator[BlockTask]:
    batch = stage.batch
    if stage.counts:
        return _counted(stage, number, position, run, unit, lane)
    if batch is not None:
        return (
            BlockTask(number, group)
            for group in groups(blocks(stage.below, position, run, batch.size, lane), batch.size)
            if len(group) == batch.size or not batch.drop_remainder
        )
    if stage.takes_groups:
        # Batches come one by one: a state must be where one ends, whatever their size.
        rows = 1 if follows_batch(stage.below) else unit or BLOCK_ROWS
        return _grouped(stage, number, position, run, rows, lane)
    return (BlockTask(number, block) for block in blocks(stage.below, position, run, unit, lane))


def _counted(
    stage: ChainStage,
    number: int,
    position: Sequence[int],
    run: RunContext,
    unit: int | None,
    lane: Lane | None,
) -> Iterator[BlockTask]:
    """Position: the parent's, and how many elements came before in the lane."""
    seen = position[-1]
    first, step = (0, 1) if lane is None else (lane.number, lane.group.lanes)
    for block in blocks(stage.below, position[:-1], run, unit, lane):
        yield BlockTask(number, block, seen, lane=first, lanes=step)
        seen += len(block)


def _grouped(
    stage: ChainStage,
    number: int,
    position: Sequence[int],
    run: RunContext,
    rows: int,
    lane: Lane | None,
) -> Iterator[BlockTask]:
    """Position: the parent's where the group of rows began, and the rows of it already given."""
    before, given = np.array(position[:-1], np.int64), position[-1]
    failed: list[Exception] = []
    for group in groups(
        _until_error(blocks(stage.below, position[:-1], run, rows, lane), failed), rows
    ):
        if given >= len(group):  # the groups of the run that was stopped had more rows
            before, given = group.marks[-1], given - len(group)
            continue
        # Before an error comes the start of a group, which is made again as a whole.
        count = len(group) + (bool(failed) and len(group) < rows)
        marks = marks_in_group(before, group.marks[-1], count)[: len(group)]
        marked = Block(group.table, marks, group.made_of)
        yield BlockTask(number, marked, skip=given)
        before, given = group.marks[-1], 0
    if failed:
        raise failed.pop()  # an error holds this frame: the frame must not hold the error
    check_inside(given, 1)


def _until_error(rest: Blocks, failed: list[Exception]) -> Blocks:
    """Yield blocks, and put the error that ends them into a list."""
    try:
        yield from rest
    except ClosedError:
        raise
    except Exception as error:
        failed.append(error)
