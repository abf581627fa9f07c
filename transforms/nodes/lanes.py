"""Lanes: independent parts of a stream, and the nodes that join their rows in the global order.

`to_iter_dataset(lanes=L)` deals the elements of a chain to `L` lanes. What follows runs in each of
them, with a position of its own. These nodes join the lanes, where the last batch is or at the end of
the chain: row `k` of lane `l` is row `k * L + l` of the whole, and a batch of `B` rows has the next
`B / L` rows of each lane, lane after lane.

Users do not write these nodes: `tail` puts them into the chain that an iterator runs.

Invariant: rows and marks do not depend on the blocks that lanes come in.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Generator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from windrow.errors import ElementError
from windrow.sources.base import IntArray
from windrow.transforms import tables
from windrow.transforms.amounts import Amount
from windrow.transforms.made_of import MadeOf
from windrow.transforms.moves import Moved, Moves
from windrow.transforms.nodes.base import Node
from windrow.transforms.nodes.dealing import in_lane
from windrow.transforms.nodes.following import JoinsLanes
from windrow.transforms.nodes.regroup import BatchNode
from windrow.transforms.nodes.shard import ShardBatchNode, another_batch
from windrow.transforms.nodes.streams import SameElementsNode, lane_share, no_row, origin
from windrow.transforms.row_blocks import (
    Block,
    Blocks,
    Feed,
    Inputs,
    JointRows,
    Step,
    Turns,
    cut,
    joined,
    made_of_all,
)
from windrow.transforms.tables import Columnar, Listed, Segments, Table

# The rows that are joined at once, unless one batch has more.
_ROWS = 1 << 12
_NONE: Table = Listed([])


@dataclasses.dataclass(frozen=True, eq=False)
class RowsNode(SameElementsNode):
    """The rows of a stream of one lane, counted: its own integer is the number of rows so far."""

    position_width: ClassVar[int] = 1
    counts_rows: ClassVar[bool] = True
    label: ClassVar[str] = "rows"

    def blocks(self, position: Sequence[int], inputs: Inputs, unit: int | None) -> Blocks:
        seen = position[-1]
        for block in inputs.blocks(0, position[:-1], unit):
            yield block.with_marks(np.arange(seen + 1, seen + 1 + len(block)))
            seen += len(block)

    def position_after(
        self, position: Sequence[int], count: int, moves: Moves, unit: int | None
    ) -> Moved:
        moved = moves.after(0, position[:-1], count, unit)
        return Moved([*moved.position, position[-1] + moved.passed], moved.passed)


@dataclasses.dataclass(frozen=True, eq=False)
class LaneRowsNode(JoinsLanes, SameElementsNode):
    """The rows of all lanes in turn. Its own integer is the number of the next row."""

    lanes: int = 1

    label: ClassVar[str] = "lanes"

    @property
    def width(self) -> int:
        return self.lanes * self.parent.width + 1

    @property
    def run_lanes(self) -> tuple[Sequence[int], int]:
        return range(self.lanes), self.lanes

    def blocks(self, position: Sequence[int], inputs: Inputs, unit: int | None) -> Blocks:
        lanes = self.lanes
        at = np.array(position[:-1], np.int64).reshape(lanes, self.parent.width)
        feeds = _feeds(inputs, lanes, dict(enumerate(at.tolist())))
        turn, first = divmod(position[-1], lanes)
        while True:
            # A run that stopped inside a turn begins with the other lanes of that turn.
            ready = [feed.fill(1) for feed in feeds[first:]]
            whole = min(ready) if first == 0 else 0
            turns = max(1, min(whole, _ROWS // lanes))
            short = next(
                (n for n, rows in enumerate(ready) if not rows and feeds[first + n].error), None
            )
            wanted = feeds[first:] if short is None else feeds[first : first + short]
            taken = [feed.take(turns) for feed in wanted]
            parts = [joined(blocks) if blocks else None for blocks in taken]
            found = [part for part in parts if part is not None]
            if found:
                yield self._joined(parts, at, turn, first, turns)
            if short is not None:
                error = feeds[first + short].error
                if error is not None:
                    raise error
            if not found and first == 0:
                return
            turn, first = turn + turns, 0

    def position_after(
        self, position: Sequence[int], count: int, moves: Moves, unit: int | None
    ) -> Moved:
        lanes, width, start = self.lanes, self.parent.width, position[-1]
        at = [position[lane * width : (lane + 1) * width] for lane in range(lanes)]
        own = [moves.in_lane(lane, lanes) for lane in range(lanes)]
        have = [count] * lanes  # the most rows that each lane has

        def rows_before(stop: int) -> list[int]:
            both = [(lane_share(stop, n, lanes), lane_share(start, n, lanes)) for n in range(lanes)]
            return [min(h, a - b) for (a, b), h in zip(both, have, strict=True)]

        while True:
            numbers = range(start, start + count * lanes + 1)
            wanted = min(count, sum(have))
            stop = numbers[
                bisect.bisect_left(numbers, wanted, key=lambda end: sum(rows_before(end)))
            ]
            rows = rows_before(stop)
            moved = [own[n].after(0, at[n], rows[n]) for n in range(lanes)]
            found = [each.passed for each in moved]
            if found == rows:
                return Moved([*(n for each in moved for n in each.position), stop], sum(found))
            have = [f if f < r else h for f, r, h in zip(found, rows, have, strict=True)]

    def _joined(
        self, parts: Sequence[Block | None], at: IntArray, turn: int, first: int, turns: int
    ) -> Block:
        """The rows of some turns; `at` becomes the positions after them."""
        lanes = [first + n for n, part in enumerate(parts) if part is not None]
        blocks = [part for part in parts if part is not None]
        count = len(blocks)
        table, known = tables.joined([block.table for block in blocks]), made_of_all(blocks)
        order = np.arange(count * turns).reshape(count, turns).T.ravel()
        if turns > 1:
            table = tables.taken(table, order)
            known = None if known is None else known.taken(order)
        before = np.tile(at, (turns, count, 1, 1))  # (turn, row, lane, integer)
        for row, (lane, block) in enumerate(zip(lanes, blocks, strict=True)):
            before[:, row:, lane] = block.marks[:, None]
            before[1:, :row, lane] = block.marks[:-1, None]
            at[lane] = block.marks[-1]
        numbers = (turn + np.arange(turns))[:, None] * self.lanes + np.array(lanes) + 1
        marks = before.reshape(turns * count, -1)
        return Block(table, np.column_stack([marks, numbers.ravel()]), known)


@dataclasses.dataclass(frozen=True, eq=False)
class LaneBatchNode(JoinsLanes, ShardBatchNode):
    """Batches of the next rows of each lane. Its own integer is the number of the next row.

    Args:
        lanes: Number of lanes of the parent; it divides `size`.
        counts: The fewest and the most rows of any lane, where they are known and needed: for a
            shard of several of a stream that ends.
    """

    lanes: int = 1
    counts: tuple[int, int] | None = None

    looks_at_values: ClassVar[bool] = False
    stream_step: ClassVar[Step] = Step.OWN

    @property
    def label(self) -> str:
        return f"{super().label[:-1]}, of {self.lanes} lanes)"

    @property
    def written(self) -> str:
        return self.as_last.written

    @property
    def as_last(self) -> BatchNode:
        return another_batch(self, ShardBatchNode if self.shards > 1 else BatchNode)

    def in_lane(self, lane: int, lanes: int) -> Node:
        return self

    @property
    def width(self) -> int:
        return self.lanes * self.parent.width + 1

    @property
    def turn_rows(self) -> int:
        """Rows of each lane in a batch."""
        return self.size // self.lanes

    def elements(self) -> Amount:
        every = range(self.lanes)
        lanes = [in_lane(self.parent, lane, self.lanes).elements() for lane in every]
        pick = min if self.drop_remainder else max
        fewest, most = pick(each.low for each in lanes), pick(each.high for each in lanes)
        return Amount(self._batches(fewest * self.lanes), self._batches(most * self.lanes))

    @property
    def run_lanes(self) -> tuple[Sequence[int], int]:
        return self.own_lanes(), self.lanes

    def own_lanes(self) -> list[int]:
        """The lanes that have rows of the shard: a batch has the rows of lane after lane."""
        rows = self.size // self.lanes
        found = {n for start, stop in self.slots() for n in range(start // rows, -(-stop // rows))}
        return sorted(found)

    def position_after(
        self, position: Sequence[int], count: int, moves: Moves, unit: int | None
    ) -> Moved:
        width, rows, before = self.parent.width, self.turn_rows, position[-1] // self.lanes
        lanes = self.own_lanes()
        at = {lane: position[lane * width : (lane + 1) * width] for lane in lanes}
        own = {lane: moves.in_lane(lane, self.lanes) for lane in lanes}
        moved = {lane: own[lane].after(0, at[lane], count * rows) for lane in lanes}
        fewest, most = (pick(each.passed for each in moved.values()) for pick in (min, max))
        if self.counts is not None:
            fewest, most = (max(0, each - before) for each in self.counts)
        passed = min(count, fewest // rows if self.drop_remainder else -(-most // rows))
        if passed < count:
            moved = {lane: own[lane].after(0, at[lane], passed * rows) for lane in lanes}
        if not passed:
            return Moved(list(position), 0)
        found = [*position[:-1], (before + passed * rows) * self.lanes]
        for lane, each in moved.items():
            found[lane * width : (lane + 1) * width] = each.position
        return Moved(found, passed)

    def _own_rows(self) -> list[IntArray]:
        """For each of these lanes, the rows of its turn that are the shard's."""
        rows, found = self.turn_rows, list[IntArray]()
        for first in (lane * rows for lane in self.own_lanes()):
            inside = [(max(low - first, 0), min(high - first, rows)) for low, high in self.slots()]
            found.append(np.concatenate([np.arange(low, max(low, high)) for low, high in inside]))
        return found

    def blocks(self, position: Sequence[int], inputs: Inputs, unit: int | None) -> Blocks:
        lanes, rows, width = self.own_lanes(), self.turn_rows, self.parent.width
        at = np.array(position[:-1], np.int64).reshape(self.lanes, width)
        before, last = position[-1] // self.lanes, _LastBatch(self, inputs, lanes[0])
        whole = inputs.turns(self.lanes, self._starts(at), rows, self._flat_slots())
        has_failed = False
        if whole is not None:
            before, has_failed = yield from self._from_turns(whole, at, before, inputs, last)
        joint = None if has_failed else inputs.joint(self.lanes, self._starts(at))
        if joint is None:
            feeds = _feeds(inputs, self.lanes, self._starts(at), rows)
        else:
            before, feeds = yield from self._from_joint(joint, at, before, inputs, last)
        while self._has_more(before):
            ready = [feed.fill(rows) for feed in feeds]
            turns = self._turns(min(ready) // rows, before)
            if turns == 0:
                for lane, feed, count in zip(lanes, feeds, ready, strict=True):
                    if count < rows and feed.error is not None:
                        raise feed.error
                    if count < rows and self.parent.never_ends():
                        why = "it has no element to repeat"
                        raise no_row(lane, self.lanes, why, "keep some in filter")
                self._check_counts(ready, before)
                if self.drop_remainder or (not any(ready) and self._knows_the_end):
                    return
                turns = 1  # some rows are missing
            taken = [feed.take(turns * rows) for feed in feeds]
            parts = [joined(blocks) if blocks else None for blocks in taken]
            order, marks = self._order(parts, turns), self._marks(parts, at, before, turns)
            found = [part for part in parts if part is not None]
            rows_of = joined(found) if found else Block(_NONE, marks[:0])
            yield from self._made(rows_of, order, marks, inputs, last, self._places(parts))
            before += turns * rows

    def blocks_without_values(
        self, position: Sequence[int], inputs: Inputs, unit: int | None
    ) -> Blocks:
        if self.batch_fn is None:
            yield from super().blocks_without_values(position, inputs, unit)
        else:
            yield from self.unapplied.blocks(position, inputs, unit)

    def _starts(self, at: IntArray) -> dict[int, list[int]]:
        """The position of each of these lanes."""
        return {lane: at[lane].tolist() for lane in self.own_lanes()}

    def _flat_slots(self) -> IntArray:
        """The shard's rows of the rows of these lanes in a turn, end to end."""
        return np.concatenate([n * self.turn_rows + own for n, own in enumerate(self._own_rows())])

    def _from_turns(
        self, turns: Turns, at: IntArray, before: int, inputs: Inputs, last: _LastBatch
    ) -> Generator[Block, None, tuple[int, bool]]:
        """Batches from rows that are read in their order.

        Returns:
            The rows of each lane that were given, and whether the row after them raised.
        """
        while self._has_more(before):
            try:
                found = next(turns, None)
            except Exception:  # it comes again from its lane, after the rows before it
                return before, True
            if found is None:
                break
            block, ends = found
            count = self._most_turns(len(ends), before)
            own = len(block) // len(ends)
            yield from self._made(
                block.sliced(0, count * own),
                np.arange(count * own).reshape(count, own),
                self._marks_at(ends[:count], at, before),
                inputs,
                last,
            )
            before += count * self.turn_rows
        return before, False

    def _from_joint(
        self, joint: JointRows, at: IntArray, before: int, inputs: Inputs, last: _LastBatch
    ) -> Generator[Block, None, tuple[int, list[Feed]]]:
        """Batches from rows of all lanes together, until some lane ends or raises.

        Returns:
            The rows of each lane that were given, and the rows that follow in each lane.
        """
        lanes, rows, slots = self.own_lanes(), self.turn_rows, self._flat_slots()
        pool, of = Block(_NONE, np.zeros((0, 1), np.int64)), np.zeros(0, np.int64)
        numbers = np.zeros(self.lanes, np.int64)  # of lanes, among the lanes of this process
        numbers[lanes] = np.arange(len(lanes))
        while self._has_more(before):
            in_lanes, counts = np.argsort(of, kind="stable"), np.bincount(of, minlength=len(lanes))
            if (joint.hold(counts) & (counts < rows)).any():
                break
            try:
                block = joint.read()
            except Exception:  # it comes again from its lane, after the rows before it
                return before, _feeds(inputs, self.lanes, self._starts(at))
            if block is None:
                break
            old, of = len(pool), np.concatenate([of, numbers[joint.lanes_of(block)]])
            in_lanes, counts = np.argsort(of, kind="stable"), np.bincount(of, minlength=len(lanes))
            turns = self._most_turns(int(counts.min()) // rows, before)
            # The rows by turn (axis 0) and lane (axis 1).
            starts = (np.cumsum(counts) - counts)[:, None]
            inside = (np.arange(turns) * rows)[:, None, None] + np.arange(rows)
            grid = in_lanes[starts + inside]
            # Only the first turns have rows of the pool: others are copied once, from the block.
            mixed = int((grid < old).any(axis=(1, 2)).sum())
            for first, stop in ((0, mixed), (mixed, turns)):
                if first == stop:
                    continue
                part, order = block, grid[first:stop] - old
                if first < mixed:
                    used = np.unique(order[order >= 0])
                    part = joined([pool, block.taken(used)])
                    at_used = old + np.searchsorted(used, order)
                    order = np.where(order < 0, order + old, at_used)
                marks = self._marks_at(part.marks[order[:, :, -1], 0], at, before)
                order = order.reshape(stop - first, -1)[:, slots]
                yield from self._made(part, order, marks, inputs, last)
                before += (stop - first) * rows
            is_left = np.ones(len(of), np.bool_)
            is_left[grid.ravel()] = False
            left = np.flatnonzero(is_left)
            parts = [pool.taken(left[left < old]), block.taken(left[left >= old] - old)]
            pool, of = joined([part for part in parts if len(part)] or parts[:1]), of[left]
        of_lane = (pool.taken(np.flatnonzero(of == number)) for number in range(len(lanes)))
        feeds = [Feed(joint.resume(lane, own)) for lane, own in zip(lanes, of_lane, strict=True)]
        return before, feeds

    def _turns(self, ready: int, before: int) -> int:
        """How many of the turns that are ready come at once."""
        return self._most_turns(min(ready, max(1, _ROWS // self.size)), before)

    def _most_turns(self, ready: int, before: int) -> int:
        """How many of the turns that are ready the stream has, where it ends for all shards."""
        if self.counts is None or not self.drop_remainder:
            return ready
        return min(ready, (self.counts[0] - before) // self.turn_rows)

    @property
    def _knows_the_end(self) -> bool:
        """Whether the rows of these lanes alone say where the stream ends."""
        return self.counts is None or len(self.own_lanes()) == self.lanes

    def _check_counts(self, ready: Sequence[int], before: int) -> None:
        """Refuse lanes that end before they should, where other shards may have another batch then.

        Raises:
            ElementError: If they do.
        """
        if self._knows_the_end or (any(ready) and not self.drop_remainder):
            return
        wanted = self.turn_rows if self.drop_remainder else 1
        for lane, count in zip(self.own_lanes(), ready, strict=True):
            has = in_lane(self.parent, lane, self.lanes).elements().high
            if count < wanted <= has - before:
                raise ElementError(
                    f"shard: lane {lane} of {self.lanes} ended after {before + count} of {has:,.0f} elements, since a"
                    " function returned None for the others; so this process cannot know where the stream ends."
                    " Leave elements out with filter, and write .repeat() before the batch"
                )

    def _has_more(self, before: int) -> bool:
        """Whether there is a batch after `before` rows of each lane, as far as counts say."""
        if self.counts is None:
            return True
        fewest, most = self.counts
        return before + self.turn_rows <= fewest if self.drop_remainder else before < most

    def _made(
        self,
        found: Block,
        order: IntArray,
        marks: IntArray,
        inputs: Inputs,
        last: _LastBatch,
        places: IntArray | None = None,
    ) -> Blocks:
        """The batches of some turns.

        Args:
            found: Rows.
            order: The rows of each turn among them.
            marks: What follows each turn.
            inputs: See `blocks`.
            last: A batch that was made before.
            places: The rows of a padded batch that its rows become, where some are missing.
        """
        turns, counts = order.shape
        if not counts:
            none = MadeOf.of_elements(0, np.zeros(0, np.int64)).grouped([0] * (turns + 1))
            yield Block(Listed([self.emptied(last.found())]), marks, none)
            return
        if isinstance(found.table, Segments) and turns > 1:  # each turn as its function returned it
            rows = len(found) // turns
            for n, turn in enumerate(cut(found, rows)):
                own = order[n : n + 1] - n * rows
                yield from self._made(turn, own, marks[n : n + 1], inputs, last)
            return
        table, rows_of, order = found.table, found.made_of, order.ravel()
        if not np.array_equal(order, np.arange(table.rows)):
            table = tables.taken(table, order)
            rows_of = None if rows_of is None else rows_of.taken(order)
        if rows_of is not None:
            rows_of = rows_of.grouped([*range(0, len(order) + 1, counts)])
        are_views = isinstance(table, Columnar) and table.present is None
        spans = [(0, turns)] if are_views else [(n, n + 1) for n in range(turns)]
        for start, stop in spans:
            rows = table if len(spans) == 1 else tables.sliced(table, start * counts, stop * counts)
            with inputs.calling():
                bounds = [*range(0, rows.rows + 1, counts)]
                if self.padding is not None and places is not None and counts < self.group_size:
                    made: tables.Table = Listed(
                        self.padding.batches(rows, bounds, self.group_size, [places])
                    )
                else:
                    made = self.gather(rows, bounds)
            last.keep(made)
            known = None if rows_of is None else rows_of.sliced(start, stop)
            yield Block(made, marks[start:stop], known)

    def _order(self, parts: Sequence[Block | None], turns: int) -> IntArray:
        """Where the shard's rows are in the joined parts of lanes, batch by batch."""
        found, start, rows = list[IntArray](), 0, self.turn_rows
        for part, own in zip(parts, self._own_rows(), strict=True):
            count = 0 if part is None else len(part)
            if count == turns * rows:
                found.append((start + np.arange(count)).reshape(turns, rows)[:, own])
            else:  # the lane ends in this batch, the only one
                found.append((start + own[own < count])[None])
            start += count
        return np.concatenate(found, axis=1)

    def _places(self, parts: Sequence[Block | None]) -> IntArray:
        """The rows of a batch that the rows of `_order` become, if each lane keeps its places."""
        found, start = list[IntArray](), 0
        for part, own in zip(parts, self._own_rows(), strict=True):
            count = 0 if part is None else len(part)
            found.append(start + np.arange(np.count_nonzero(own < count)))
            start += len(own)
        return np.concatenate(found)

    def _marks(
        self, parts: Sequence[Block | None], at: IntArray, before: int, turns: int
    ) -> IntArray:
        """The positions after each of some turns; `at` becomes the last of them."""
        rows = self.turn_rows
        marks = np.tile(at, (turns, 1, 1))
        for lane, part in zip(self.own_lanes(), parts, strict=True):
            if part is not None:
                whole = len(part) == turns * rows
                marks[:, lane] = part.marks[rows - 1 :: rows] if whole else part.marks[-1]
        at[:] = marks[-1]
        return self._numbered(marks, before)

    def _marks_at(self, ends: IntArray, at: IntArray, before: int) -> IntArray:
        """As `_marks`, where a lane's position after each turn is one integer: `(turns, own lanes)`."""
        lanes = self.own_lanes()
        marks = np.tile(at, (len(ends), 1, 1))
        marks[:, lanes, 0] = ends
        at[:] = marks[-1]
        return self._numbered(marks, before)

    def _numbered(self, marks: IntArray, before: int) -> IntArray:
        turns = len(marks)
        numbers = (before + (1 + np.arange(turns)) * self.turn_rows) * self.lanes
        return np.column_stack([marks.reshape(turns, -1), numbers])


class _LastBatch:
    """The batch made last: an empty batch has its shape."""

    def __init__(self, node: LaneBatchNode, inputs: Inputs, lane: int) -> None:
        self._node, self._inputs, self._lane = node, inputs, lane
        self._batch: Any = None

    def keep(self, made: tables.Table) -> None:
        if isinstance(made, Listed):
            self._batch = made.elements[-1]

    def found(self) -> Any:
        """The last batch; if the run has made none, one of the first row of the first lane that has rows."""
        if self._batch is None:
            lanes = [self._lane, *(n for n in range(self._node.lanes) if n != self._lane)]
            start = origin(self._node.parent)
            for number in lanes:
                (feed,) = _feeds(self._inputs, self._node.lanes, {number: start})
                if feed.fill(1):
                    break
                if feed.error is not None:
                    raise feed.error
            made = self._node.gather(joined(feed.take(1)).table, [0, 1])
            self._batch = tables.elements(made)[0]
        return self._batch


def _feeds(
    inputs: Inputs, lanes: int, starts: Mapping[int, Sequence[int]], rows: int | None = None
) -> list[Feed]:
    """The rows of some lanes, each from a position on; without lanes, `rows` make a batch."""
    pairs = zip(inputs.in_lanes(lanes, starts), starts.values(), strict=True)
    unit = rows if lanes == 1 else None
    return [Feed(lane.blocks(0, position, unit)) for lane, position in pairs]
