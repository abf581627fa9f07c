"""Reading for lanes: read batches with the next elements of several lanes, dealt to those lanes.

Lanes of a stream (`windrow.transforms.nodes.lanes`) run the same nodes over different elements of one
chain. Their elements are read together, so that many lanes cost no more than one. The steps
of the stage after the chain run on each read batch as a whole.

Invariant: the rows of a lane do not depend on other lanes. A lane that needs many elements for a row
gets more of each read batch, so that the rows of the others do not fill the memory.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from windrow.engine.context import RunContext
from windrow.engine.read_batches import Elements, ReadBatches, compact
from windrow.engine.stages import ChainStage, most_of_stage, never_a_row
from windrow.sources.base import IntArray
from windrow.transforms import tables
from windrow.transforms.nodes import Node, ToStreamNode, as_chain
from windrow.transforms.nodes.dealing import dealing_of
from windrow.transforms.positions import run_numbers, starts_of
from windrow.transforms.row_blocks import Block, Blocks, Turns

# The elements of turns that are worked out together.
_AT_ONCE: Final = 1 << 12


class _LaneStates:
    """What is known of the lanes of one reader: arrays with an item for each of them, in order.

    `planned` is the index after the elements that are planned, `pending` the number of those that
    are not read, `held` the rows in hand, `without` the elements that were read since the last row. `is_over` is whether all elements of a lane are planned,
    `is_read` whether they are also read.
    """

    def __init__(self, starts: Mapping[int, int]) -> None:
        count = len(starts)
        self.numbers = np.array([*starts], np.int64)
        self.planned = np.array([*starts.values()], np.int64)
        self.pending, self.held, self.without = np.zeros((3, count), np.int64)
        self.is_over, self.is_read = np.zeros(count, np.bool_), np.zeros(count, np.bool_)


class _LaneOrder:
    """The elements of read batches: more of the lanes that have fewer rows in hand or planned."""

    def __init__(self, node: Node, states: _LaneStates, count: int) -> None:
        self._node, self._states, self._count = node, states, count
        # The elements of lanes in each read batch, and the lanes that have no more after it.
        self._planned: collections.deque[tuple[IntArray, IntArray]] = collections.deque()
        self._read, self._elements, self._rows = 0, 1, 1

    @property
    def is_over(self) -> bool:
        return bool(self._states.is_over.all())

    def arrived(self, elements: int, rows: int) -> None:
        """Note that more elements, in the order of `take`, were read and gave `rows` rows."""
        states = self._states
        self._read += elements
        self._elements, self._rows = self._elements + elements, self._rows + rows
        while self._planned and self._read >= self._planned[0][0].sum():
            counts, ended = self._planned.popleft()
            self._read -= int(counts.sum())
            states.pending -= counts
            states.without += counts
            states.is_read[ended] = True

    def take(self, rows: int) -> Elements:
        states = self._states
        own = np.flatnonzero(~states.is_over)
        shares = self._shares(own, rows)
        indices, found = dealing_of(self._node).lane_indices(
            states.planned[own], shares, states.numbers[own], self._count
        )
        has_any = found > 0
        states.planned[own[has_any]] = indices[np.cumsum(found)[has_any] - 1] + 1
        ended = own[found < shares]
        states.is_over[ended] = True
        counts = np.zeros(len(states.numbers), np.int64)
        counts[own] = found
        states.pending += counts
        self._planned.append((counts, ended))
        self.arrived(0, 0)
        if not len(indices) and not self.is_over:  # lanes ended that were thought to have more
            return self.take(rows)
        return compact(indices) if np.count_nonzero(has_any) == 1 else indices

    def _shares(self, lanes: IntArray, rows: int) -> IntArray:
        """About `rows` elements, parted so that all lanes come to have equally many rows."""
        if not len(lanes):
            return np.zeros(0, np.int64)
        kept = self._rows / self._elements  # of the elements, by filters
        levels = self._states.held[lanes] + self._states.pending[lanes] * kept
        ascending = np.sort(levels)
        ranks = np.arange(1, len(lanes) + 1)
        tops = (rows * kept + np.cumsum(ascending)) / ranks
        top = tops[np.flatnonzero(tops > ascending)[-1]]
        shares = np.maximum(top - levels, 0) / kept
        whole: IntArray = np.floor(shares + 0.5).astype(np.int64)
        whole[int(np.argmin(levels))] += not whole.any()
        return whole


class LaneReader:
    """Reads the elements of several lanes of a stage, each of them once, from a start to its end."""

    def __init__(
        self, stage: ChainStage, chain: ToStreamNode, run: RunContext, starts: Mapping[int, int]
    ) -> None:
        self._stage, self._chain, self._run = stage, chain, run
        self._places = {lane: place for place, lane in enumerate(starts)}
        self._states = _LaneStates(starts)
        self._order = _LaneOrder(chain.parent, self._states, chain.lanes)
        # For each lane: the index after the row given last; and of blocks in hand, rows `[start, stop)`.
        self._given = dict(starts)
        self._held: dict[int, collections.deque[tuple[Block, int, int]]] = {
            lane: collections.deque() for lane in starts
        }
        self._open: set[int] = set()  # lanes whose rows a node takes
        self._most_without_row = most_of_stage(stage) if run.has_values else math.inf
        batches = ReadBatches(chain, stage, run, self._order, unit=len(starts), longer=True)
        self._blocks = batches.whole_blocks()
        self._has_failed = False

    def claims(self, lane: int, start: int) -> bool:
        """Whether it gives the rows of a lane from an index on; it does so once."""
        if lane in self._open or self._given.get(lane) != start:
            return False
        self._open.add(lane)
        return True

    def rows(self, lane: int) -> Blocks:
        """The rows of a lane."""
        held, place = self._held[lane], self._places[lane]
        while True:
            while held:
                block, start, stop = held.popleft()
                self._states.held[place] -= stop - start
                self._given[lane] = int(block.marks[stop - 1, 0])
                yield block.sliced(start, stop)
            if self._has_failed:
                # Alone, so that the error comes after the rows that this lane has before it.
                alone = LaneReader(self._stage, self._chain, self._run, {lane: self._given[lane]})
                yield from alone.rows(lane)
                return
            if not self._read_more():
                return

    def _read_more(self) -> bool:
        """Deal out another block; False at the end."""
        try:
            block = self.read()
        except Exception:
            if len(self._places) == 1:
                raise
            self._has_failed = True
            return True
        if block is None:
            return False
        if len(block):
            self._deal(block)
        return True

    # --- for a node that takes the rows of all lanes ---

    def read(self) -> Block | None:
        """The rows of another read batch, lane after lane; None at the end."""
        found = next(self._blocks, None)
        if found is None:
            return None
        block, elements = found
        self._order.arrived(elements, len(block))
        if self._most_without_row < math.inf:
            self._check_rows(block)
        return Block(tables.single(block.table), block.marks, block.made_of)

    def _check_rows(self, block: Block) -> None:
        """Raise a PlanError if a lane gives no row, however long it runs."""
        states = self._states
        states.without[[self._places[lane] for lane in set(self.lanes_of(block).tolist())]] = 0
        never = np.flatnonzero(states.without > self._most_without_row)
        if len(never):
            lane = int(states.numbers[never[0]])
            raise never_a_row(self._stage, lane, self._chain.lanes)

    def lanes_of(self, block: Block) -> IntArray:
        """The lane of each row of `read`."""
        return dealing_of(self._chain.parent).lane_of(block.marks[:, 0] - 1, self._chain.lanes)

    def hold(self, rows: IntArray) -> npt.NDArray[np.bool_]:
        """Note how many rows of each lane are in hand; returns where no more will come."""
        self._states.held[:] = rows
        return self._states.is_read

    def resume(self, lane: int, rest: Block) -> Blocks:
        """The rows in hand of a lane, and those after them."""
        if len(rest):
            self._held[lane].append((rest, 0, len(rest)))
        self._states.held[self._places[lane]] = len(rest)
        return self.rows(lane)

    def _deal(self, block: Block) -> None:
        lanes = self.lanes_of(block)
        cuts = [0, *(np.flatnonzero(np.diff(lanes)) + 1).tolist(), len(block)]
        for start, stop in itertools.pairwise(cuts):
            lane = int(lanes[start])
            self._held[lane].append((block, start, stop))
            self._states.held[self._places[lane]] += stop - start


class _TurnOrder:
    """The elements of whole turns: of each the rows `slots`, with `rows` elements of each lane."""

    def __init__(
        self, chain: ToStreamNode, starts: Mapping[int, int], rows: int, slots: IntArray
    ) -> None:
        self._chain, self._rows, self._slots = chain, rows, slots
        self._numbers = np.array([*starts], np.int64)
        self._planned = np.array([*starts.values()], np.int64)
        # Turns that were worked out together: the indices, by turn, lane and row.
        self._turns = np.zeros((0, len(starts), rows), np.int64)
        self._has_all = self.is_over = False
        # For each read batch, the indices after the elements of lanes in each of its turns.
        self.ends: collections.deque[IntArray] = collections.deque()

    def take(self, rows: int) -> Elements:
        turns = max(1, rows // len(self._slots))
        if len(self._turns) < turns and not self._has_all:
            self._plan(max(turns, _AT_ONCE // (len(self._numbers) * self._rows)))
        own, self._turns = self._turns[:turns], self._turns[turns:]
        self.is_over = self._has_all and not len(self._turns)
        if len(own):
            self.ends.append(own[:, :, -1] + 1)
        elements: IntArray = own.reshape(len(own), -1)[:, self._slots].ravel()
        return elements

    def _plan(self, turns: int) -> None:
        """Work out the next turns, as many of them as all lanes can fill."""
        lanes = len(self._numbers)
        indices, found = dealing_of(self._chain.parent).lane_indices(
            self._planned, np.full(lanes, turns * self._rows), self._numbers, self._chain.lanes
        )
        whole = int(found.min()) // self._rows
        if whole < turns:
            self._has_all = True
            each = np.full(lanes, whole * self._rows)
            indices = indices[run_numbers(each, starts_of(found))]
        new = indices.reshape(lanes, whole, self._rows).transpose(1, 0, 2)
        if whole:
            self._planned = new[-1, :, -1] + 1
        self._turns = np.concatenate([self._turns, new])


def turn_rows(
    stage: ChainStage,
    chain: ToStreamNode,
    run: RunContext,
    starts: Mapping[int, int],
    rows: int,
    slots: IntArray,
) -> Turns:
    """The rows `slots` of whole turns, read in their order: see `Inputs.turns`."""
    order = _TurnOrder(chain, starts, rows, slots)
    batches = ReadBatches(chain, stage, run, order, unit=len(slots), longer=True)
    for block, elements in batches.whole_blocks():
        ends = order.ends.popleft()
        if not len(block) == elements == len(ends) * len(slots):
            return  # an element is absent, or a row after these raised
        yield block, ends


class LaneGroup:
    """The lanes that a process runs of one stream, and the readers that they share."""

    def __init__(
        self, node: Node, run: RunContext, lanes: int, starts: Mapping[int, Sequence[int]]
    ) -> None:
        """Begin lanes of `node` at the positions `starts`."""
        self.lanes = lanes
        self._run, self._starts = run, starts
        # Where, in a position, the index of each chain is.
        self._places = dict(_places(node, 0))
        self._readers: dict[int, list[LaneReader]] = collections.defaultdict(list)

    def rows(self, stage: ChainStage, chain: ToStreamNode, lane: int, start: int) -> Blocks:
        """The rows of a stage in one lane, from an index of its chain on."""
        return self._reader(stage, chain, lane, start).rows(lane)

    def joint(self, stage: ChainStage, chain: ToStreamNode) -> LaneReader:
        """The reader of all lanes at once, for a stage that is all that lanes have."""
        starts = {lane: position[0] for lane, position in self._starts.items()}
        readers = [self._reader(stage, chain, lane, start) for lane, start in starts.items()]
        return readers[0]  # all are the same: `_guessed` knows where lanes begin

    def _reader(self, stage: ChainStage, chain: ToStreamNode, lane: int, start: int) -> LaneReader:
        readers = self._readers[id(stage.top)]
        reader = next((each for each in readers if each.claims(lane, start)), None)
        if reader is None:
            reader = LaneReader(stage, chain, self._run, self._guessed(chain, lane, start, readers))
            reader.claims(lane, start)
            readers.append(reader)
        return reader

    def _guessed(
        self, chain: ToStreamNode, lane: int, start: int, readers: Sequence[LaneReader]
    ) -> dict[int, int]:
        """Where the other lanes will begin, so that they can be read together.

        A lane that begins elsewhere gets a reader of its own, so a wrong guess costs time only.
        """
        place = self._places.get(id(chain))
        if place is not None and not readers and self._starts[lane][place] == start:
            return {each: position[place] for each, position in self._starts.items()}
        return dict.fromkeys(self._starts, start) if start == 0 else {lane: start}


@dataclasses.dataclass(frozen=True, slots=True)
class Lane:
    """A lane that nodes run in."""

    number: int
    group: LaneGroup

    def row(self, count: int) -> int:
        """The number in the whole stream of element `count` of the lane."""
        return count * self.group.lanes + self.number


def _places(node: Node, before: int) -> Iterator[tuple[int, int]]:
    if as_chain(node) is not None:
        yield id(node), before
        return
    for parent in node.parents:
        yield from _places(parent, before)
        before += parent.width
