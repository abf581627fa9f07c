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
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from windrow.engine.context import RunContext
from windrow.engine.read_batches import Elements, ReadBatches, compact
from windrow.engine.stages import ChainStage
from windrow.transforms import tables
from windrow.transforms.nodes import Node, ToStreamNode, as_chain
from windrow.transforms.row_blocks import Block, Blocks

IntArray = npt.NDArray[np.int64]


@dataclasses.dataclass(slots=True)
class _LaneState:
    """What is known of a lane of one reader.

    Args:
        start: The index at which it began.
        planned: The index after those that are planned.
        given: The index after the row given last.
        is_over: Whether all of its elements are planned.
        is_read: Whether they are also read.
        is_open: Whether a node takes its rows.
        held: Rows in hand: of each block, those in `[start, stop)`.
        held_rows: Their number.
        pending: Elements that are planned and not read.
    """

    start: int
    planned: int
    given: int
    is_over: bool = False
    is_read: bool = False
    is_open: bool = False
    held: collections.deque[tuple[Block, int, int]] = dataclasses.field(
        default_factory=collections.deque
    )
    held_rows: int = 0
    pending: int = 0


class _LaneOrder:
    """The elements of read batches: more of the lanes that have fewer rows in hand or planned."""

    def __init__(self, node: Node, lanes: Mapping[int, _LaneState], count: int) -> None:
        self._node, self._lanes, self._count = node, lanes, count
        # The elements of lanes in each read batch, and the lanes that have no more after it.
        self._planned: collections.deque[tuple[dict[int, int], list[_LaneState]]] = (
            collections.deque()
        )
        self._read, self._elements, self._rows = 0, 1, 1

    @property
    def is_over(self) -> bool:
        return all(lane.is_over for lane in self._lanes.values())

    def arrived(self, elements: int, rows: int) -> None:
        """Note that more elements, in the order of `take`, were read and gave `rows` rows."""
        self._read += elements
        self._elements, self._rows = self._elements + elements, self._rows + rows
        while self._planned and self._read >= sum(self._planned[0][0].values()):
            counts, ended = self._planned.popleft()
            self._read -= sum(counts.values())
            for number, count in counts.items():
                self._lanes[number].pending -= count
            for lane in ended:
                lane.is_read = True

    def take(self, rows: int) -> Elements:
        numbers = [number for number, lane in self._lanes.items() if not lane.is_over]
        shares = self._shares([self._lanes[number] for number in numbers], rows)
        parts: list[IntArray] = []
        counts: dict[int, int] = {}
        ended: list[_LaneState] = []
        for number, share in zip(numbers, shares.tolist(), strict=True):
            lane = self._lanes[number]
            found = self._node.lane_indices(lane.planned, share, number, self._count)
            if len(found) < share:
                lane.is_over = True
                ended.append(lane)
            if len(found):
                lane.planned = int(found[-1]) + 1
                lane.pending += len(found)
                counts[number] = len(found)
                parts.append(found)
        self._planned.append((counts, ended))
        self.arrived(0, 0)
        if len(parts) == 1:
            return compact(parts[0])
        if not parts and not self.is_over:  # lanes ended that were thought to have more
            return self.take(rows)
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _shares(self, lanes: Sequence[_LaneState], rows: int) -> IntArray:
        """About `rows` elements, parted so that all lanes come to have equally many rows."""
        if not lanes:
            return np.zeros(0, np.int64)
        kept = self._rows / self._elements  # of the elements, by filters
        levels = np.array([lane.held_rows + lane.pending * kept for lane in lanes])
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
        self._lanes = {lane: _LaneState(start, start, start) for lane, start in starts.items()}
        self._order = _LaneOrder(chain.parent, self._lanes, chain.lanes)
        batches = ReadBatches(chain, stage, run, self._order, unit=len(starts))
        self._blocks = batches.whole_blocks()
        self._has_failed = False

    def claims(self, lane: int, start: int) -> bool:
        """Whether it gives the rows of a lane from an index on; it does so once."""
        own = self._lanes.get(lane)
        if own is None or own.is_open or own.start != start:
            return False
        own.is_open = True
        return True

    def rows(self, lane: int) -> Blocks:
        """The rows of a lane."""
        own = self._lanes[lane]
        while True:
            while own.held:
                block, start, stop = own.held.popleft()
                own.held_rows -= stop - start
                own.given = int(block.marks[stop - 1, 0])
                yield block.sliced(start, stop)
            if self._has_failed:
                # Alone, so that the error comes after the rows that this lane has before it.
                alone = LaneReader(self._stage, self._chain, self._run, {lane: own.given})
                yield from alone.rows(lane)
                return
            if not self._read_more():
                return

    def _read_more(self) -> bool:
        """Deal out another block; False at the end."""
        try:
            block = self.read()
        except Exception:
            if len(self._lanes) == 1:
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
        return Block(tables.single(block.table), block.marks, block.made_of)

    def lanes_of(self, block: Block) -> IntArray:
        """The lane of each row of `read`."""
        return self._chain.parent.lane_of(block.marks[:, 0] - 1, self._chain.lanes)

    def hold(self, lane: int, rows: int) -> bool:
        """Note how many rows of a lane are in hand; returns whether no more will come."""
        own = self._lanes[lane]
        own.held_rows = rows
        return own.is_read

    def resume(self, lane: int, rest: Block) -> Blocks:
        """The rows in hand of a lane, and those after them."""
        own = self._lanes[lane]
        own.held_rows = 0
        if len(rest):
            own.held.append((rest, 0, len(rest)))
            own.held_rows = len(rest)
        return self.rows(lane)

    def _deal(self, block: Block) -> None:
        lanes = self.lanes_of(block)
        cuts = [0, *(np.flatnonzero(np.diff(lanes)) + 1).tolist(), len(block)]
        for start, stop in itertools.pairwise(cuts):
            own = self._lanes[int(lanes[start])]
            own.held.append((block, start, stop))
            own.held_rows += stop - start


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
