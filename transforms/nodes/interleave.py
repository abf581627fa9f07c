"""Interleaved streams: some at a time in turn, and the next one when one of them ends.

Invariant: the order depends on the streams' lengths and the cycle alone, not on how they are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np

from windrow.errors import PlanError
from windrow.sources.base import IntArray
from windrow.transforms import tables
from windrow.transforms.amounts import Amount
from windrow.transforms.arguments import at_least
from windrow.transforms.moves import Moved, Moves
from windrow.transforms.nodes.base import STREAM, Node, split_position
from windrow.transforms.nodes.routing import ConcatenateNode, MixNode, spec_of_any
from windrow.transforms.nodes.streams import SameElementsNode, lanes_of
from windrow.transforms.row_blocks import Block, Blocks, Feed, Inputs, joined, made_of_all
from windrow.transforms.specs import Spec

# Rows and integers of positions that are made at once.
_ROWS: Final = 1 << 12
_INTEGERS: Final = 1 << 18


@dataclasses.dataclass(frozen=True, eq=False)
class StreamInterleaveNode(SameElementsNode):
    """Elements of `cycle_length` streams in turn; where one has ended, the next stream begins.

    Its own integers are the place in the cycle that is next, the number of streams that have begun,
    and for each place its stream, counted from 1, or 0 for none.
    """

    cycle_length: int

    def count(self) -> int:
        if not self.parents:
            raise PlanError("interleave: needs at least one dataset, got none")
        at_least(1, self.cycle_length, "interleave: cycle_length")
        lanes_of(self.parents, "interleave")
        return STREAM

    @property
    def label(self) -> str:
        return f"interleave({len(self.parents)}, cycle_length={self.cycle_length})"

    @property
    def places(self) -> int:
        """Streams that are open at a time."""
        return min(self.cycle_length, len(self.parents))

    @property
    def width(self) -> int:
        return super().width + self.places + 2

    def spec(self, parents: Sequence[Spec]) -> Spec:
        return spec_of_any(self, parents)

    def elements(self) -> Amount:
        found = (parent.elements() for parent in self.parents)
        return sum(found, start=Amount.exactly(0))

    def never_ends(self) -> bool:
        return any(parent.never_ends() for parent in self.parents)

    def over_random_access(self, parents: tuple[Node, ...]) -> Node:
        # For streams of one length this is the order; for others it is a similar one.
        return MixNode(parents, None) if self.places > 1 else ConcatenateNode(parents)

    def blocks(self, position: Sequence[int], inputs: Inputs, unit: int | None) -> Blocks:
        *parts, own = split_position(self, position)
        feeds = [Feed(inputs.blocks(number, part)) for number, part in enumerate(parts)]
        cycle = _Cycle(self, list(own))
        at = np.array(position[: len(position) - len(own)], np.int64)
        most = max(1, min(_ROWS, _INTEGERS // self.width))
        while (place := cycle.next_place()) is not None:
            order = cycle.whole_turn()
            turns = min((feeds[stream].fill(1) for stream in order), default=0)
            turns = min(turns, max(1, most // max(1, len(order))))
            if turns:
                yield self._turned(feeds, order, turns, at, cycle)
                continue
            stream = cycle.stream_at(place)
            if feeds[stream].fill(1):
                yield self._turned(feeds, [stream], 1, at, cycle)
                continue
            error = feeds[stream].error
            if error is not None:
                raise error
            cycle.ended(place)

    def position_after(
        self, position: Sequence[int], count: int, moves: Moves, unit: int | None
    ) -> Moved:
        *parts, own = split_position(self, position)
        cycle, taken = (
            _Cycle(self, list(own)),
            [_PartMoves(moves, n, at) for n, at in enumerate(parts)],
        )
        left, last = count, list(own)
        while left and (place := cycle.next_place()) is not None:
            order = cycle.whole_turn()
            turns = left // len(order) if order else 0
            for stream in order:
                turns = min(turns, taken[stream].ready(turns))
            for stream in order if turns else ():
                taken[stream].rows += turns
                cycle.gave(stream)
            left -= turns * len(order)
            last = cycle.integers if turns else last
            # Less than a turn is left, or a stream begins or ends in the next one.
            for _ in range(0 if turns else max(1, len(order))):
                stream = cycle.stream_at(place)
                if taken[stream].ready(1):
                    taken[stream].rows, left = taken[stream].rows + 1, left - 1
                    cycle.gave(stream)
                    last = cycle.integers
                else:
                    cycle.ended(place)
                following = cycle.next_place() if left else None
                if following is None:
                    break
                place = following
        own_after = [n for each in taken for n in each.position()]
        return Moved([*own_after, *last], count - left)

    def _turned(
        self, feeds: Sequence[Feed], order: Sequence[int], turns: int, at: IntArray, cycle: _Cycle
    ) -> Block:
        """The next elements of some streams, `turns` times; `at` becomes the positions after them."""
        parts = [joined(feeds[stream].take(turns)) for stream in order]
        count = len(order)
        in_turn = np.arange(count * turns).reshape(count, turns).T.ravel()
        table, known = tables.joined([part.table for part in parts]), made_of_all(parts)
        if turns > 1 and count > 1:
            table = tables.taken(table, in_turn)
            known = None if known is None else known.taken(in_turn)
        starts = np.cumsum([0, *(parent.width for parent in self.parents)])
        marks = np.tile(at, (turns, count, 1))
        own = np.empty((turns, count, self.places + 2), np.int64)
        for row, (stream, part) in enumerate(zip(order, parts, strict=True)):
            mine = slice(starts[stream], starts[stream + 1])
            marks[:, row:, mine] = part.marks[:, None]
            marks[1:, :row, mine] = part.marks[:-1, None]
            at[mine] = part.marks[-1]
            cycle.gave(stream)
            own[:, row] = cycle.integers
        return Block(table, np.concatenate([marks, own], axis=2).reshape(turns * count, -1), known)


class _PartMoves:
    """Rows that a move takes from one stream; it asks for no more than it may need."""

    def __init__(self, moves: Moves, number: int, position: Sequence[int]) -> None:
        self._moves, self._number, self._start = moves, number, position
        self._known, self._is_over = Moved(list(position), 0), False
        self.rows = 0

    def ready(self, rows: int) -> int:
        """How many of the next `rows` rows the stream has."""
        lacking = self.rows + rows - self._known.passed
        if lacking > 0 and not self._is_over:
            more = self._moves.after(self._number, self._known.position, lacking)
            self._known = Moved(more.position, self._known.passed + more.passed)
            self._is_over = more.passed < lacking
        return min(rows, self._known.passed - self.rows)

    def position(self) -> list[int]:
        """The position after the rows that were taken."""
        if self.rows == self._known.passed:
            return list(self._known.position)
        return self._moves.after(self._number, self._start, self.rows).position


class _Cycle:
    """The places of a cycle: which stream each has, and which is next."""

    def __init__(self, node: StreamInterleaveNode, own: list[int]) -> None:
        self._count = len(node.parents)
        self._next, self._begun, *self._streams = own

    @property
    def integers(self) -> list[int]:
        return [self._next, self._begun, *self._streams]

    def next_place(self) -> int | None:
        """The next place that has a stream, after a new one took it if it had none; None at the end."""
        for _ in self._streams:
            if not self._streams[self._next] and self._begun < self._count:
                self._begun += 1
                self._streams[self._next] = self._begun
            if self._streams[self._next]:
                return self._next
            self._next = (self._next + 1) % len(self._streams)
        return None

    def stream_at(self, place: int) -> int:
        return self._streams[place] - 1

    def whole_turn(self) -> list[int]:
        """The streams of a turn that begins at the next place; none if a new one must begin in it."""
        if self._begun < self._count and 0 in self._streams:
            return []
        turned = [*self._streams[self._next :], *self._streams[: self._next]]
        return [number - 1 for number in turned if number]

    def gave(self, stream: int) -> None:
        """Move on after an element of a stream."""
        self._next = (self._streams.index(stream + 1) + 1) % len(self._streams)

    def ended(self, place: int) -> None:
        """Free the place of a stream that has ended."""
        self._streams[place] = 0
        self._next = (place + 1) % len(self._streams)
