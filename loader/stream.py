"""Streams: blocks of rows, each row with the position that follows it.

`blocks(node, position, ...)` is a pure function from a position (a few integers) to the rest of the
stream. Nothing else is ever stored: an iterator's state is the position behind the last element it
gave, and whatever was made ahead of that is thrown away or kept without anybody noticing.

Contract of every generator here:
1. Rows come in the stream's order, whatever the sizes of blocks, budgets and threads.
2. `marks[r]` is the position from which `blocks` yields exactly what follows row `r`.
3. When something raises, every whole row before it has been yielded first.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from windrow import execute
from windrow.crew import resolved
from windrow.errors import ElementError, StateError
from windrow.rounds import BLOCK_ROWS, BlockSize, block_size, random_access
from windrow.run import Run
from windrow.steps import Block, Blocks, BlockTask, BlockWork, Stage, batched, stage_of
from windrow.transforms import orders, tables
from windrow.transforms.nodes import BatchNode, Node, ZipNode
from windrow.transforms.streams import (
    ProcessNode,
    StreamLimitNode,
    StreamMixNode,
    StreamRepeatNode,
    StreamWindowShuffleNode,
    ToStreamNode,
    origin,
    width,
)
from windrow.transforms.tables import Columnar, Table

IntArray = npt.NDArray[np.int64]

# Rows of a block that are taken at once at most.
_MOST_ROWS = 1 << 20


def blocks(node: Node, position: Sequence[int], run: Run, unit: int | None) -> Blocks:
    """The stream of `node` from `position` on.

    Args:
        node: A node of a stream.
        position: `width(node)` integers, as in the marks of a block.
        run: What the streams of an iterator share; it changes no row.
        unit: Rows that the next batch above takes at a time, if nothing in between drops or
            reorders rows: a batched function is then called on just those.
    """
    stage = stage_of(node)
    unit = unit if stage.keeps_rows else None
    if isinstance(stage.below, ToStreamNode) and not stage.is_apart:
        return random_access(stage.below, stage, position, run, unit)
    if stage.steps:
        return _staged(stage, position, run, unit)
    match stage.below:
        case ProcessNode():
            return blocks(stage.below.parent, position, run, unit)
        case BatchNode():
            return _batched(stage.below, position, run)
        case StreamWindowShuffleNode():
            return _window_shuffled(stage.below, position, run)
        case StreamRepeatNode():
            return _repeated(stage.below, position, run)
        case StreamLimitNode():
            return _limited(stage.below, position, run, unit)
        case ZipNode():
            return _zipped(stage.below, position, run, unit)
        case StreamMixNode():
            return _mixed(stage.below, position, run)
        case _:
            raise TypeError(f"{type(stage.below).__name__} is no node of a stream")


# --- block by block ------------------------------------------------------------------------------


def _staged(stage: Stage, position: Sequence[int], run: Run, unit: int | None) -> Blocks:
    """The steps of a stage on the blocks of another stream."""
    crew = run.crew_of(stage)
    number, _ = crew.part_of(stage)
    # The blocks below may be quick to make, and slow to take these steps.
    size = BlockSize(crew.bounded(run.options).block_bytes, 1, _MOST_ROWS)
    tasks = _tasks(stage, number, position, run, unit)
    if not stage.takes_groups:
        tasks = (part for task in tasks for part in _parts(task, size))
    for work, found in crew.in_order(BlockWork(task, stage) for task in tasks):
        for outcome in resolved(crew, work, found):
            run.heard(outcome, None)
            if outcome.rows:
                size_bytes = tables.nbytes(outcome.block.table)
                too_few = crew.wants_more_rows()
                size.saw(outcome.rows, size_bytes, outcome.took_s, too_few=too_few)
            if len(outcome.block):
                yield outcome.block


def _parts(task: BlockTask, size: BlockSize) -> Iterator[BlockTask]:
    block, start = task.block, 0
    while start < len(block):
        stop = min(len(block), start + size.next_rows())
        part = block if stop - start == len(block) else block.sliced(start, stop)
        yield BlockTask(task.stage, part, task.seen + start)
        start = stop


def _tasks(
    stage: Stage, number: int, position: Sequence[int], run: Run, unit: int | None
) -> Iterator[BlockTask]:
    first = stage.first
    if stage.counts:
        return _counted(stage, number, position, run, unit)
    if isinstance(first, BatchNode):
        return (
            BlockTask(number, group)
            for group in _groups(blocks(stage.below, position, run, first.size), first.size)
            if len(group) == first.size or not first.drop_remainder
        )
    if stage.takes_groups:
        return _grouped(stage, number, position, run, unit or BLOCK_ROWS)
    return (BlockTask(number, block) for block in blocks(stage.below, position, run, unit))


def _counted(
    stage: Stage, number: int, position: Sequence[int], run: Run, unit: int | None
) -> Iterator[BlockTask]:
    """Position: the parent's, and how many elements came before."""
    seen = position[-1]
    for block in blocks(stage.below, position[:-1], run, unit):
        yield BlockTask(number, block, seen)
        seen += len(block)


def _grouped(
    stage: Stage, number: int, position: Sequence[int], run: Run, rows: int
) -> Iterator[BlockTask]:
    """Position: the parent's where the group of rows began, and the rows of it already given."""
    before, given = np.array(position[:-1], np.int64), position[-1]
    for group in _groups(blocks(stage.below, position[:-1], run, rows), rows):
        _check_inside(group, given)
        marked = Block(group.table, _marks_in_group(before, group, []))
        yield BlockTask(number, marked, skip=given)
        before, given = group.marks[-1], 0


# --- groups of rows ------------------------------------------------------------------------------


def _joined(parts: Sequence[Block]) -> Block:
    if len(parts) == 1:
        return parts[0]
    marks = np.concatenate([part.marks for part in parts])
    return Block(tables.joined([part.table for part in parts]), marks)


def _groups(parent: Blocks, size: int) -> Blocks:
    """The same rows in blocks of exactly `size`; the last may be shorter."""
    for block in _whole(parent, size):
        yield from _cut(block, size)


def _cut(block: Block, size: int) -> list[Block]:
    cuts = [*range(0, len(block), size), len(block)]
    marks = [block.marks[start:stop] for start, stop in itertools.pairwise(cuts)]
    return list(map(Block, tables.cut(block.table, cuts), marks))


def _whole(parent: Blocks, size: int) -> Blocks:
    """The same rows in blocks of whole groups of `size`, what is left over last."""
    held: list[Block] = []
    rows = 0
    for block in parent:
        held.append(block)
        rows += len(block)
        if rows < size:
            continue
        whole, left = _joined(held), rows % size
        held, rows = [], left
        if left:
            held = [whole.sliced(len(whole) - left, len(whole))]
            whole = whole.sliced(0, len(whole) - left)
        yield whole
    if rows:
        yield _joined(held)


def _batched(node: BatchNode, position: Sequence[int], run: Run) -> Blocks:
    for block in _whole(blocks(node.parent, position, run, node.size), node.size):
        if len(block) < node.size and node.drop_remainder:
            return
        table = block.table
        # Views cost nothing, cannot fail and come together; others are handed over as they are made.
        are_views = node.batch_fn is None and isinstance(table, Columnar) and table.present is None
        for part in [block] if are_views else _cut(block, node.size):
            batches, error = batched(node, part)
            if error is not None:
                raise error
            yield batches


def _window_shuffled(node: StreamWindowShuffleNode, position: Sequence[int], run: Run) -> Blocks:
    """Position: the parent's where the window began, the window, and what of it was given."""
    before, window, given = np.array(position[:-2], np.int64), position[-2], position[-1]
    parent = blocks(node.parent, position[:-2], run, None)
    for group in _groups(parent, node.window_size):
        order = orders.window_order(len(group), (node.seed + window) % 2**32)
        table = tables.taken(group.table, order)
        marks = _marks_in_group(before, group, [window])
        marks[-1, -2] = window + 1
        _check_inside(group, given)
        yield Block(table, marks).sliced(given, len(group))
        before, window, given = group.marks[-1], window + 1, 0


def _check_inside(group: Block, given: int) -> None:
    if given >= len(group):
        raise StateError(
            f"state is at element {given} of a group of {len(group)}; it is damaged: restore"
            " another one"
        )


def _marks_in_group(before: IntArray, group: Block, numbers: list[int]) -> IntArray:
    """Inside a group a stream goes on from the group's start; behind it, from the group's end."""
    rows = len(group)
    own = np.tile(np.array([*before, *numbers, 0], np.int64), (rows, 1))
    own[:, -1] = np.arange(1, rows + 1)
    own[-1, : len(before)] = group.marks[-1]
    own[-1, -1] = 0
    return own


# --- whole streams -------------------------------------------------------------------------------


def _repeated(node: StreamRepeatNode, position: Sequence[int], run: Run) -> Blocks:
    """Position: the parent's in this epoch, and the epoch."""
    begin, epoch = list(position[:-1]), position[-1]
    while node.times is None or epoch < node.times:
        given = False
        for block in blocks(node.parent, begin, run, None):
            given = True
            yield Block(block.table, np.insert(block.marks, block.marks.shape[1], epoch, axis=1))
        start = origin(node.parent)
        if not given and begin == start:
            return  # an empty stream, for ever
        begin, epoch = start, epoch + 1


def _limited(node: StreamLimitNode, position: Sequence[int], run: Run, unit: int | None) -> Blocks:
    """Position: the parent's, and the elements already given."""
    given = position[-1]
    if given >= node.size:
        return
    for block in blocks(node.parent, position[:-1], run, unit):
        block = block.sliced(0, min(len(block), node.size - given))
        numbers = np.arange(given + 1, given + 1 + len(block))
        yield Block(block.table, np.column_stack([block.marks, numbers]))
        given += len(block)
        if given == node.size:
            return


class _Feed:
    """Rows of one parent, as many as are asked for."""

    def __init__(self, parent: Blocks) -> None:
        self._parent = parent
        self._held: list[Block] = []
        self.error: Exception | None = None

    def take(self, rows: int) -> list[Block]:
        """The next `rows` rows; fewer only where the stream ended or raised, see `error`."""
        out: list[Block] = []
        while rows and (self._held or self._pull()):
            block = self._held.pop()
            if len(block) > rows:
                self._held.append(block.sliced(rows, len(block)))
                block = block.sliced(0, rows)
            out.append(block)
            rows -= len(block)
        return out

    def ready(self) -> int:
        """Rows that can be taken without waiting, after waiting for one; 0 at the end."""
        if not self._held:
            self._pull()
        if not self._held and self.error is not None:
            raise self.error
        return sum(map(len, self._held))

    def _pull(self) -> bool:
        if self.error is not None:
            return False
        try:
            self._held.extend(block for block in [next(self._parent, None)] if block is not None)
        except Exception as error:
            self.error = error
        return bool(self._held)


def _split_position(node: Node, position: Sequence[int]) -> list[Sequence[int]]:
    """The parents' parts of the position of a node with several parents."""
    ends = np.cumsum([width(parent) for parent in node.parents]).tolist()
    return [position[start:stop] for start, stop in itertools.pairwise([0, *ends])]


def _zipped(node: ZipNode, position: Sequence[int], run: Run, unit: int | None) -> Blocks:
    parts = zip(node.parents, _split_position(node, position), strict=True)
    feeds = [_Feed(blocks(parent, part, run, unit)) for parent, part in parts]
    while True:
        ready: list[int] = []
        for feed in feeds:
            ready.append(feed.ready())
            if ready[-1] == 0 and not node.strict:
                return  # what the others have is not asked for
        rows = min(ready)
        if rows == 0:
            break
        taken = [_joined(feed.take(rows)) for feed in feeds]
        table = execute.zipped([block.table for block in taken])
        yield Block(table, np.column_stack([block.marks for block in taken]))
    if any(ready):
        longer, shorter = next(i for i, n in enumerate(ready) if n), ready.index(0)
        raise ElementError(
            f"zip: dataset {longer} is longer than dataset {shorter}; make them equally long, or"
            " pass strict=False to stop at the shortest"
        )


def _mixed(node: StreamMixNode, position: Sequence[int], run: Run) -> Blocks:
    """Position: the parents', and the elements already given."""
    parts = [np.array([part], np.int64) for part in _split_position(node, position[:-1])]
    feeds = [
        _Feed(blocks(parent, part[0].tolist(), run, None))
        for parent, part in zip(node.parents, parts, strict=True)
    ]
    size = block_size(run.options, 1, None)
    given = position[-1]
    while True:
        began = time.perf_counter()
        coming = np.arange(given, given + size.next_rows())
        which, _ = orders.mix_choose(coming, node.proportions)
        rows = len(which)
        ended: _Feed | None = None
        taken: list[list[Block]] = []
        for number, feed in enumerate(feeds):
            places = np.flatnonzero(which == number)
            taken.append(feed.take(len(places)))
            have = sum(map(len, taken[-1]))
            if have < len(places) and places[have] < rows:
                # The mixture ends before the first element that this parent does not have.
                rows, ended = int(places[have]), feed
        if rows:
            block, parts = _mixture(which[:rows], taken, parts)
            numbers = np.arange(given + 1, given + 1 + rows)
            size.saw(rows, tables.nbytes(block.table), time.perf_counter() - began)
            yield Block(block.table, np.column_stack([block.marks, numbers]))
        if ended is not None:
            if ended.error is not None:
                raise ended.error
            return
        given += rows


def _mixture(
    which: IntArray, taken: Sequence[Sequence[Block]], before: Sequence[IntArray]
) -> tuple[Block, list[IntArray]]:
    """The rows of parents in the order of `which`, and the parents' positions behind them."""
    merging: list[tuple[Table, IntArray]] = []
    marks: list[IntArray] = []
    for number, (parts, start) in enumerate(zip(taken, before, strict=True)):
        mine = which == number
        places = np.flatnonzero(mine)
        own = start
        if len(places):
            block = _joined(parts).sliced(0, len(places))
            merging.append((block.table, places))
            own = np.concatenate([start, block.marks])
        marks.append(own[np.cumsum(mine)])
    table = tables.merged(merging, len(which))
    return Block(table, np.column_stack(marks)), [own[-1:] for own in marks]
