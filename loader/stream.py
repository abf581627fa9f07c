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

import collections
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Generator, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from windrow import execute
from windrow.errors import ElementError, StateError
from windrow.lookahead import Lookahead
from windrow.run import Run
from windrow.transforms import orders, tables
from windrow.transforms.nodes import (
    BatchNode,
    FilterNode,
    MapNode,
    MapWithIndexNode,
    Node,
    RandomMapNode,
    SeedNode,
    ZipNode,
)
from windrow.transforms.options import ReadOptions
from windrow.transforms.positions import positions
from windrow.transforms.streams import (
    StreamLimitNode,
    StreamMixNode,
    StreamRepeatNode,
    StreamWindowShuffleNode,
    ToStreamNode,
    origin,
    width,
)
from windrow.transforms.tables import Listed, Table

IntArray = npt.NDArray[np.int64]

# A consumer waits for a block as a whole, so slow functions get small ones.
_GOAL_S = 0.1

# Rounds that a look-ahead's horizon has room for at least, if a batch is no longer than a round.
_ROUNDS_AHEAD = 32

# Rounds planned ahead at most, and tickets of parts to plan from one round to the next.
_MOST_ROUNDS = 512
_PARTS_AT_ONCE = 16

# Rows that a batched function gets where no batch says how many.
BLOCK_ROWS = 256


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """Some rows of a stream; `marks` is int64 `(rows, width)`: the position after each row."""

    table: Table
    marks: IntArray

    def __len__(self) -> int:
        return len(self.marks)

    def sliced(self, start: int, stop: int) -> Block:
        """Rows `[start, stop)`."""
        return Block(tables.sliced(self.table, start, stop), self.marks[start:stop])


Blocks: TypeAlias = Generator[Block, None, None]


class BlockSize:
    """How many rows to make at once: few at first, then as many as the goals allow."""

    def __init__(self, goal_bytes: int, unit: int, most: int) -> None:
        self._goal_bytes = goal_bytes
        self._most = max(unit, most)
        self._unit = unit
        self.rows = unit

    def saw(self, rows: int, size_bytes: int, took_s: float) -> None:
        """Learn from a block of `rows` rows, of `size_bytes`, that took `took_s` to make."""
        by_bytes = self._goal_bytes / max(1, size_bytes)
        by_time = _GOAL_S / max(1e-9, took_s)
        wanted = min(int(rows * min(by_bytes, by_time)), 4 * self.rows, self._most)
        self.rows = max(1, wanted // self._unit) * self._unit


def _block_size(options: ReadOptions, unit: int, lookahead: Lookahead | None) -> BlockSize:
    if lookahead:
        # Rounds much shorter than the horizon: reads are planned from one to the next.
        # And half as long as others, since pieces want a place in the processor's cache as well.
        goal_bytes = min(options.block_bytes // 2, lookahead.horizon_bytes // _ROUNDS_AHEAD)
        return BlockSize(max(1, goal_bytes), unit, options.prefetch_buffer_size)
    # One read for several batches costs less per record than one for each.
    units = 4 if unit > 1 and options.prefetch_buffer_size else 1
    return BlockSize(options.block_bytes, unit, max(options.prefetch_buffer_size, units * unit))


def blocks(node: Node, position: Sequence[int], run: Run, unit: int | None) -> Blocks:
    """The stream of `node` from `position` on.

    Args:
        node: A node of a stream.
        position: `width(node)` integers, as in the marks of a block.
        run: What the streams of an iterator share; it changes no row.
        unit: Rows that the next batch above takes at a time, if nothing in between drops or
            reorders rows: a batched function is then called on just those.
    """
    match node:
        case ToStreamNode():
            return _random_access(node, position, run, unit)
        case SeedNode():
            return blocks(node.parent, position, run, unit)
        case MapNode(batched=True):
            return _batched_map(node, position, run, unit or BLOCK_ROWS)
        case MapNode():
            return _mapped(node, blocks(node.parent, position, run, unit))
        case FilterNode():
            return _filtered(node, blocks(node.parent, position, run, None))
        case MapWithIndexNode() | RandomMapNode():
            return _counted_map(node, position, run, unit)
        case BatchNode():
            return _batched(node, position, run)
        case StreamWindowShuffleNode():
            return _window_shuffled(node, position, run)
        case StreamRepeatNode():
            return _repeated(node, position, run)
        case StreamLimitNode():
            return _limited(node, position, run, unit)
        case ZipNode():
            return _zipped(node, position, run, unit)
        case StreamMixNode():
            return _mixed(node, position, run)
        case _:
            raise TypeError(f"{type(node).__name__} is no node of a stream")


# --- from random access to a stream --------------------------------------------------------------


def _random_access(
    node: ToStreamNode, position: Sequence[int], run: Run, unit: int | None
) -> Blocks:
    """Rounds of reads in order; with a thread pool the next round is read while one is made."""
    first, length = position[0], node.parent.length
    # Batched functions get the same rows whatever the position, so rounds keep to their bounds.
    rows = (unit or BLOCK_ROWS) if _calls_on_rows(node.parent) else 1
    options = run.options_of(node)
    lookahead = run.lookahead(node)
    size = _block_size(options, unit or rows, lookahead)
    rounds: collections.deque[_Round] = collections.deque()
    following, made = first - first % rows, 0
    # A filter may drop everything for ever, so a run that is not wanted any more is noticed here.
    while (following < length or rounds) and not run.stopped.is_set():
        while following < length and len(rounds) < _planned_rounds(options, lookahead, made):
            stop = min(length, following + size.rows)
            reader = run.reader(options, lookahead, made + len(rounds))
            rounds.append(_Round(node.parent, following, stop, rows, reader))
            following = stop
            if lookahead and made + len(rounds) == 1:
                lookahead.begin()  # what the first round needs is read while more are planned
        reads = 0
        if lookahead:
            if following == length:
                lookahead.end()
            reads = lookahead.pace(made)
        for soon in itertools.islice(rounds, 2 if options.ahead else 1):
            soon.reader.begin()
        current = rounds.popleft()
        made += 1
        began = time.perf_counter()
        for start, table in current.tables():
            took_s = time.perf_counter() - began
            size.saw(table.rows, max(current.reader.bytes_read, tables.nbytes(table)), took_s)
            block = _as_block(table, start, allow_nones=node.allow_nones)
            kept = block.sliced(int(np.sum(block.marks[:, 0] <= first)), len(block))
            yield from _in_steps(kept if len(kept) < len(block) else block, reads, lookahead)


def _in_steps(block: Block, reads: int, lookahead: Lookahead | None) -> Blocks:
    """A block's rows, with the reads that are to be started meanwhile spread over them.

    From one element to the next as many are started as come to one element, and one more.
    """
    rows = len(block)
    steps = max(1, min(rows, math.ceil(reads * rows / (reads + rows)) if reads else 0))
    for number in range(steps):
        if lookahead:
            lookahead.step(number, steps)
        if rows:
            start, stop = (rows * n // steps for n in (number, number + 1))
            yield block if steps == 1 else block.sliced(start, stop)


def _planned_rounds(options: ReadOptions, lookahead: Lookahead | None, made: int) -> int:
    """How many rounds to have planned; with a look-ahead ever more, so that the first come soon."""
    if not options.ahead:
        return 1
    if not lookahead or lookahead.is_full:
        return 2
    # Little by little, since all that is planned at once delays the next batch.
    step = max(1, _PARTS_AT_ONCE // len(lookahead))
    return min(_MOST_ROUNDS, 1 + step * (1 + made))


def _calls_on_rows(node: Node) -> bool:
    """Whether a batched function is called with no batch above it to say on which rows."""
    if isinstance(node, BatchNode):
        return False
    batched = isinstance(node, MapNode) and node.batched
    return batched or any(_calls_on_rows(parent) for parent in node.parents)


class _Round:
    """Elements `[start, stop)` of a node with random access, being read."""

    def __init__(
        self, node: Node, start: int, stop: int, rows: int, reader: execute.Reader
    ) -> None:
        self._node, self._start, self._stop, self._rows = node, start, stop, rows
        self.reader = reader
        self._finish = self._started(start, stop)

    def _started(self, start: int, stop: int) -> execute.Finish:
        at = positions(np.arange(start, stop), self._node.length)
        cuts = (
            [*range(0, stop - start, self._rows), stop - start]
            if self._rows > 1
            else [0, stop - start]
        )
        try:
            return execute.start(self._node, at, cuts, self.reader)
        except Exception as error:  # of a selection map: it has its place in the order too
            self._leave_plan()
            return functools.partial(_raised, error)

    def _leave_plan(self) -> None:
        if self.reader.lookahead is not None:
            self.reader.lookahead.drop(self.reader.round)
            self.reader.lookahead = None

    def tables(self) -> Iterator[tuple[int, Table]]:
        """The elements with the index of the first, in pieces after an error."""
        yield from self._pieces(self._start, self._stop, self._finish)

    def _pieces(self, start: int, stop: int, finish: execute.Finish) -> Iterator[tuple[int, Table]]:
        try:
            table = finish()
        except Exception:
            if self.reader.lookahead is not None:
                # By themselves, since a planned read that failed may be of records of other rounds.
                self._leave_plan()
                yield from self._pieces(start, stop, self._started(start, stop))
                return
            if stop - start <= self._rows:
                raise
        else:
            yield start, table
            return
        # Make the halves by themselves, so that all before the damage is delivered.
        middle = start + max(self._rows, (stop - start) // 2 // self._rows * self._rows)
        for a, b in ((start, middle), (middle, stop)):
            yield from self._pieces(a, b, self._started(a, b))


def _raised(error: Exception) -> Table:
    raise error


def _as_block(table: Table, start: int, *, allow_nones: bool) -> Block:
    # Not arange(start + 1, stop + 1), which is no int64 at the end of an endless dataset.
    marks = (np.arange(table.rows) + (start + 1)).reshape(-1, 1)
    if allow_nones:
        return Block(Listed(tables.elements(table)), marks)
    dense, kept = tables.without_absent(table)
    return Block(dense, marks if kept is None else marks[kept])


# --- row by row ----------------------------------------------------------------------------------


def _places(block: Block) -> IntArray:
    """What an error calls a row: its index, or, of a stream in parts, the position behind it."""
    return block.marks[:, 0] - 1 if block.marks.shape[1] == 1 else block.marks


def _mapped(node: MapNode, parent: Blocks) -> Blocks:
    for block in parent:
        out, error = execute.call(node, block.table, _places(block))
        if out:
            yield Block(Listed(out), block.marks[: len(out)])
        if error is not None:
            raise error


def _filtered(node: FilterNode, parent: Blocks) -> Blocks:
    for block in parent:
        verdicts, error = execute.call(node, block.table, _places(block), on_none=True)
        kept = np.flatnonzero(np.array([bool(v) for v in verdicts], np.bool_))
        if len(kept) == len(block):
            yield block
        elif len(kept):
            yield Block(tables.taken(block.table, kept), block.marks[kept])
        if error is not None:
            raise error


def _counted_map(node: Node, position: Sequence[int], run: Run, unit: int | None) -> Blocks:
    """Maps that see how many elements came before; position: the parent's, and that number."""
    seen = position[-1]
    for block in blocks(node.parent, position[:-1], run, unit):
        numbers = np.arange(seen, seen + len(block))
        out, error = execute.call(node, block.table, numbers)
        if out:
            marks = np.column_stack([block.marks, numbers + 1])
            yield Block(Listed(out), marks[: len(out)])
        if error is not None:
            raise error
        seen += len(block)


# --- groups of rows ------------------------------------------------------------------------------


def _joined(parts: Sequence[Block]) -> Block:
    if len(parts) == 1:
        return parts[0]
    marks = np.concatenate([part.marks for part in parts])
    return Block(tables.joined([part.table for part in parts]), marks)


def _groups(parent: Blocks, size: int) -> Blocks:
    """The same rows in blocks of exactly `size`; the last may be shorter."""
    held: list[Block] = []
    rows = 0
    for block in parent:
        held.append(block)
        rows += len(block)
        if rows < size:
            continue
        whole = _joined(held)
        cuts = [*range(0, rows, size), rows]
        marks = [whole.marks[start:stop] for start, stop in itertools.pairwise(cuts)]
        groups = list(map(Block, tables.cut(whole.table, cuts), marks))
        rows %= size
        held = [groups.pop()] if rows else []
        yield from groups
    if rows:
        yield _joined(held)


def _batched(node: BatchNode, position: Sequence[int], run: Run) -> Blocks:
    for group in _groups(blocks(node.parent, position, run, node.size), node.size):
        if len(group) == node.size or not node.drop_remainder:
            try:
                batch = tables.batches(group.table, [0, len(group)], node.batch_fn)
            except Exception as error:
                first = execute.place_of(_places(group)[0])
                error.add_note(f"windrow: raised in {node.label} for the batch from {first} on")
                raise
            yield Block(Listed(batch), group.marks[-1:])


def _batched_map(node: MapNode, position: Sequence[int], run: Run, rows: int) -> Blocks:
    """Position: the parent's where the group of rows began, and the rows of it already given."""
    before, given = np.array(position[:-1], np.int64), position[-1]
    for group in _groups(blocks(node.parent, position[:-1], run, rows), rows):
        table = execute.map_columns(node, group.table, [0, len(group)])
        yield _behind(Block(table, _marks_in_group(before, group, [])), given)
        before, given = group.marks[-1], 0


def _window_shuffled(node: StreamWindowShuffleNode, position: Sequence[int], run: Run) -> Blocks:
    """Position: the parent's where the window began, the window, and what of it was given."""
    before, window, given = np.array(position[:-2], np.int64), position[-2], position[-1]
    parent = blocks(node.parent, position[:-2], run, None)
    for group in _groups(parent, node.window_size):
        order = orders.window_order(len(group), (node.seed + window) % 2**32)
        table = tables.taken(group.table, order)
        marks = _marks_in_group(before, group, [window])
        marks[-1, -2] = window + 1
        yield _behind(Block(table, marks), given)
        before, window, given = group.marks[-1], window + 1, 0


def _behind(group: Block, given: int) -> Block:
    if given >= len(group):
        raise StateError(
            f"state is at element {given} of a group of {len(group)}; it is damaged: restore"
            " another one"
        )
    return group.sliced(given, len(group))


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
    size = _block_size(run.options, 1, None)
    given = position[-1]
    while True:
        began = time.perf_counter()
        which, _ = orders.mix_choose(np.arange(given, given + size.rows), node.proportions)
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
