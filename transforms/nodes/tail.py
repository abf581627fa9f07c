"""The end of a chain: its last batch, what may follow it, and the rows that a state counts.

The last batch has only nodes after it that make an element of each of its elements alone
(`Node.follows_batch`). Its size, shards and worker processes do not decide which rows come. So a state
counts rows: elements before the last batch, or elements where a chain has no such batch. An iterator
runs another chain than the user wrote, with a node that joins lanes and counts rows.

Invariant: the rows after a state do not depend on the last batch and its shard.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from windrow.errors import PlanError
from windrow.transforms.nodes.base import STREAM, Node
from windrow.transforms.nodes.dealing import in_lane
from windrow.transforms.nodes.following import JoinsLanes, joins_lanes, over, replaced
from windrow.transforms.nodes.lanes import LaneBatchNode, LaneRowsNode, RowsNode
from windrow.transforms.nodes.regroup import BatchNode
from windrow.transforms.nodes.shard import ShardBatchNode, another_batch
from windrow.transforms.nodes.streams import as_batch, lanes_of
from windrow.transforms.nodes.whole_chain import fingerprint


class RowPosition(NamedTuple):
    """What a state holds of a stream.

    Args:
        rows: Rows that were given, of all lanes and shards.
        lanes: The position of each lane; None for one that this process does not run, and in a
            position for the integers of lanes that an earlier batch joined, and others run.
        after: Integers of nodes after the last batch.
        own: States of the user's own nodes, by their numbers from "0" on, parents first; None
            without them.
    """

    rows: int
    lanes: list[list[Any] | None]
    after: list[int]
    own: Mapping[str, Any] | None = None


class JoinedLane(NamedTuple):
    """A lane that a batch joins, before other nodes.

    Args:
        lane: Its number.
        places: Its integers in the position of the stream after it.
        is_run: Whether this process runs it.
    """

    lane: int
    places: range
    is_run: bool


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """The end of a stream.

    Args:
        node: The stream.
        batch: Its last batch, if it has one.
        lanes: The number of its lanes.
        is_indexed: Whether all of it has random access: the position is the index of an element.
        after: The number of integers in a position of nodes after the last batch.
        joined: The lanes that batches before the last one join.
    """

    node: Node
    batch: BatchNode | None
    lanes: int
    is_indexed: bool
    after: int
    joined: tuple[JoinedLane, ...] = ()

    @property
    def shards(self) -> int:
        """The number of shards of each batch."""
        return 1 if self.batch is None else self.batch.shards

    @property
    def agree(self) -> Callable[[bool], bool] | None:
        """Decides with the other shards whether there is another batch."""
        return None if self.batch is None else self.batch.agree

    @property
    def own_lanes(self) -> Sequence[int]:
        """The lanes that this process runs."""
        if self.is_indexed or self.lanes == 1 or self.batch is None or self.shards == 1:
            return range(self.lanes)
        return self.joining(self.batch, None).own_lanes()

    @property
    def lane_rows(self) -> list[int] | None:
        """The number of rows of each lane; None where metadata do not have it, or a lane is endless."""
        rows = self.row_node
        lanes = [in_lane(rows, n, self.lanes).elements() for n in range(self.lanes)]
        if not all(found.is_exact and not math.isinf(found.high) for found in lanes):
            return None
        return [round(found.high) for found in lanes]

    # --- the chain that runs ---------------------------------------------------------------------

    def run(self, lead: int = 0) -> Node:
        """The chain that an iterator runs.

        Args:
            lead: See `ShardBatchNode`.

        Raises:
            PlanError: If the numbers of lanes, shards and rows do not fit, or the shards cannot know
                where the stream ends.
        """
        batch = self.batch
        if self.is_indexed:
            if batch is None or not lead:
                return self.node
            return replaced(self.node, batch, another_batch(batch, ShardBatchNode, lead=lead))
        if batch is None:
            if self.lanes == 1:
                return RowsNode((self.node,))
            return LaneRowsNode((self.node,), self.lanes)
        if self.lanes == 1 and self.shards == 1:
            return replaced(self.node, batch, over(batch, (RowsNode(batch.parents),)))
        own = batch.of_own_rows() if self.lanes == 1 else None
        if own is not None:
            return replaced(self.node, batch, _of_own_rows(batch, own, counts=True))
        return replaced(self.node, batch, self.joining(batch, self.counts(batch)))

    def with_batch_of(self, size: int) -> Node:
        """The same chain with a last batch of another size."""
        if self.batch is None:
            return self.node
        return replaced(self.node, self.batch, another_batch(self.batch, BatchNode, size=size))

    def explained(self) -> Node:
        """The chain that `explain()` judges: as written, but with the lanes that this process runs.

        Shards end together, so a lane that is longer than others is not run to its own end.
        """
        batch = self.batch
        if self.is_indexed or batch is None or batch.batch_fn is not None:
            return self.node
        if self.lanes == self.shards == 1:
            return self.node
        counts = None if self.shards == 1 or batch.parent.never_ends() else self.lane_rows
        ends = None if counts is None else (min(counts), max(counts))
        return replaced(self.node, batch, self.joining(batch, ends))

    def joining(self, batch: BatchNode, counts: tuple[int, int] | None) -> LaneBatchNode:
        if batch.size % self.lanes:
            fits = [n for n in range(1, batch.size + 1) if batch.size % n == 0]
            near = min(fits, key=lambda n: abs(n - self.lanes))
            more = -(-batch.size // self.lanes) * self.lanes
            raise PlanError(
                f"batch: {batch.size} rows cannot be taken equally from {self.lanes} lanes; choose"
                f" batch({more}), or lanes={near}"
            )
        return another_batch(batch, LaneBatchNode, lanes=self.lanes, counts=counts)

    def counts(self, batch: BatchNode) -> tuple[int, int] | None:
        """The fewest and the most rows of a lane, where shards need them to end together."""
        rows = batch.parent
        ends_by_agreement = self.agree is not None and batch.drop_remainder
        if self.shards == 1 or rows.never_ends() or ends_by_agreement:
            return None
        counts = self.lane_rows
        if counts is None:
            raise PlanError(
                f"shard: how many rows the stream before {batch.label} has is not known before it"
                " is read, so the shards could not end at the same batch; write .repeat() before"
                " the batch, or batch(..., drop_remainder=True) with to_jax or shard(..., agree=...)"
            )
        return min(counts), max(counts)

    # --- positions -------------------------------------------------------------------------------

    def rows_of(self, position: Sequence[int], lead: int = 0) -> RowPosition:
        """What a state holds of a position of the chain that runs."""
        after = list(position[len(position) - self.after :])
        own = list(position[: len(position) - self.after])
        if self.is_indexed:
            rows = own[0] if self.batch is None else _first_row(self.batch, own[0], lead)
            return RowPosition(rows, [[rows]], after)
        width = self.lane_width
        lanes: list[list[Any] | None] = [None] * self.lanes
        for lane in self.own_lanes:
            part: list[Any] = list(own[lane * width : (lane + 1) * width])
            for place in (n for each in self.joined if not each.is_run for n in each.places):
                part[place] = None
            lanes[lane] = part
        return RowPosition(own[-1], lanes, after)

    def position_of(self, found: RowPosition) -> tuple[list[int], int]:
        """The position in the chain that runs, and the `lead` of that chain."""
        if self.is_indexed:
            if self.batch is None:
                return [found.rows, *found.after], 0
            whole, lead = divmod(found.rows, self.batch.size)
            if not lead or found.rows >= self.batch.parent.length:
                return [whole + (lead > 0), *found.after], 0
            return [whole + 1, *found.after], lead
        width = self.lane_width
        lanes = [[0] * width if lane is None else lane for lane in found.lanes]
        return [*(n or 0 for lane in lanes for n in lane), found.rows, *found.after], 0

    def rows_at(self, position: list[int]) -> RowPosition:
        """What a state holds of a position of the chain as it was written, which counts no rows."""
        own, after = position[: len(position) - self.after], position[len(position) - self.after :]
        if self.is_indexed:
            rows = own[0] if self.batch is None else _first_row(self.batch, own[0], 0)
            return RowPosition(rows, [[rows]], after)
        return RowPosition(own[0] if len(own) == 1 else 0, [own], after)

    @property
    def lane_width(self) -> int:
        """The integers in the position of a lane."""
        return 1 if self.is_indexed else self.row_node.width

    @property
    def row_node(self) -> Node:
        """The node whose elements are the rows."""
        return self.node if self.batch is None else self.batch.parent

    def fingerprint(self, *, earlier: bool = False) -> str:
        """Names the chain and its data, without the last batch: see `fingerprint`."""
        return fingerprint(self.node, self.batch, earlier=earlier)


def tail_of(node: Node) -> Tail:
    """The end of a stream.

    Raises:
        PlanError: If it is made of streams with different numbers of lanes.
    """
    lanes, after, has_index, each = lanes_of([node], node.label), 0, False, node
    while each.follows_batch:
        has_index = has_index or each.parent.length != STREAM
        after += 0 if has_index else each.position_width
        each = each.parent
    batch = as_batch(each)
    joined = () if lanes > 1 else tuple(_joined_lanes(node if batch is None else batch.parent, 0))
    if batch is not None:
        return Tail(node, batch, lanes, has_index, after, joined)
    return Tail(node, None, lanes, has_index and node.width == 1, 0, joined)


def _joined_lanes(node: Node, start: int) -> Iterator[JoinedLane]:
    """The lanes that are joined in a stream whose position begins at the place `start`."""
    if node.hides_parents:
        return
    if isinstance(node, JoinsLanes):
        own, lanes = node.run_lanes
        width = node.parent.width
        for lane in range(lanes):
            first = start + lane * width
            yield JoinedLane(lane, range(first, first + width), lane in own)
        return
    for parent in node.parents:
        if parent.width:
            yield from _joined_lanes(parent, start)
            start += parent.width


def _first_row(batch: BatchNode, number: int, lead: int) -> int:
    before = lead + (number - 1) * batch.size if lead and number else number * batch.size
    return min(before, batch.parent.length)


@joins_lanes
def of_one_lane(node: Node) -> Node:
    """A batch of a stream as a node that others may follow: see `windrow.transforms.nodes.following`.

    Other nodes stay as they are.

    Raises:
        PlanError: If its rows cannot be taken equally from the lanes, or the shards cannot know where
            the stream ends.
    """
    batch = as_batch(node)
    if batch is None or batch.length != STREAM or batch.as_last is not batch:
        return node
    lanes = lanes_of(batch.parents, batch.label)
    if lanes > 1:
        tail = Tail(batch, batch, lanes, False, 0)
        return tail.joining(batch, tail.counts(batch))
    own = batch.of_own_rows()
    return batch if own is None else _of_own_rows(batch, own, counts=False)


def _of_own_rows(batch: BatchNode, own: Node, *, counts: bool) -> BatchNode:
    from windrow.transforms.nodes.own_rows import OwnRowsBatchNode  # few chains need it

    return another_batch(batch, OwnRowsBatchNode, parents=(own,), counts=counts)
