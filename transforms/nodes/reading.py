"""What reading a chain takes, by the kinds of its nodes: positions that are computed, and records that are read.

Dry runs cut a long chain by these costs, so that they cut it at the same place on every machine. A kind of node that is not named here is judged by its flags and its parents alone.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from windrow.transforms import orders
from windrow.transforms.blocks import most_in_window
from windrow.transforms.nodes.base import STREAM, Node
from windrow.transforms.nodes.block_shuffle import BlockShuffleNode
from windrow.transforms.nodes.following import JoinsLanes, group_size
from windrow.transforms.nodes.index import ReindexNode, ShuffleNode, SliceNode, WindowShuffleNode
from windrow.transforms.nodes.interleave import StreamInterleaveNode
from windrow.transforms.nodes.lanes import LaneBatchNode
from windrow.transforms.nodes.limit import StreamLimitNode
from windrow.transforms.nodes.metadata import pass_length
from windrow.transforms.nodes.parts import CutNode
from windrow.transforms.nodes.planned import PlannedNode
from windrow.transforms.nodes.routing import SelectNode
from windrow.transforms.nodes.sample import SampleNode
from windrow.transforms.nodes.streams import StreamWindowShuffleNode
from windrow.transforms.nodes.values import EachNode
from windrow.transforms.nodes.whole_chain import source_of

AT_ONCE: Final = 2**16
"""Positions that are computed in one call."""

ORDER: Final = 2**14
"""The order of a window, however short, takes as long as this many positions: about 1 ms."""

POSITION_S: Final = 60e-9
"""What a usual machine takes to compute a position."""

_ASKED: Final = 20  # a call of a selection map
_SMALL_WINDOW: Final = 2**12  # of a block shuffle: the orders of several are computed together


class OrderCost(NamedTuple):
    """Positions that are computed to find the records of a chain's elements.

    Args:
        begin: Cost of moving to another place, however few elements are found there.
        each: Cost of each element from there on.
        span: Elements that one such move yields.
        together: The most elements that come together out of the same blocks.
    """

    begin: float = 0
    each: float = 1
    span: float = 1
    together: int = 1

    def scattered(self, length: int) -> float:
        """The cost of each element if neighbours lie all over `length` elements of this cost.

        They are found one by one, or in calls that compute all of them.
        """
        return min(self.begin + self.each, self.each * max(1.0, length / AT_ONCE))


def order_cost(node: Node) -> OrderCost:
    """What it takes to find the records of the elements of a node.

    A node that is not named here takes what its parents take together.
    """
    found = [order_cost(parent) for parent in node.parents] or [OrderCost()]
    begin, each, span, _ = (sum(part) for part in zip(*found, strict=True))
    cost = OrderCost(begin, each, span, max(own.together for own in found))
    match node:
        case ShuffleNode():
            if node.length <= orders.TABLE_LENGTH:
                return cost._replace(
                    begin=node.length, each=1 + cost.scattered(node.length), span=1
                )
            return cost._replace(begin=0, each=2 + cost.scattered(node.length), span=1)
        case WindowShuffleNode():
            own = ORDER / max(1, min(node.window_size, node.length))
            return cost._replace(begin=begin + ORDER, each=1 + each + own)
        case BlockShuffleNode():
            most = most_in_window(node.order.bounds, node.order.window_blocks)
            together, each = max(most, cost.together), 2 + cost.scattered(node.length)
            if together > _SMALL_WINDOW:
                return OrderCost(begin + together / 2, each, 1, together)
            return OrderCost(begin + ORDER / 2, each, ORDER, together)
        case SliceNode() if abs(node.step) > 1 and node.length > 1:
            step = abs(node.step)
            each = min(step * each, begin + each)
            return cost._replace(each=each, span=max(1.0, span / step))
        case ReindexNode():
            return cost._replace(begin=0, each=cost.scattered(node.length), span=1)
        case SampleNode():
            return cost._replace(begin=0, each=1 + cost.scattered(node.parent.length), span=1)
        case SelectNode():
            return cost._replace(begin=0, each=_ASKED + cost.scattered(node.length), span=1)
        case PlannedNode():
            # A plan, however short its window, takes as long as the order of a window.
            return cost._replace(each=each + ORDER / max(1, min(node.unit, node.parent.length)))
        case StreamWindowShuffleNode():
            return cost._replace(each=each + ORDER / node.window_size)
    return cost


# --- what nodes do with the elements of their parents ------------------------------------------------


def most_records(node: Node) -> int:
    """The most records that an element is made of, of all sources together."""
    counts = [most_records(parent) for parent in node.parents]
    most = max(1, max(counts, default=1) if node.chooses else sum(counts))
    planned = as_planned(node)
    if planned is not None:
        bounds = planned.plan_of(0).bounds if planned.length else np.zeros(1)
        return most * max(1, int(np.diff(bounds).max(initial=1)))
    size = group_size(node)
    if size is None or node.length == STREAM:
        return most * (size or 1)
    return most * max(1, min(size, node.parent.length))


def is_global(node: Node) -> bool:
    """Whether neighbours after a shuffle lie anywhere before it."""
    return isinstance(node, ShuffleNode)


def as_block_shuffle(node: Node) -> BlockShuffleNode | None:
    """The node, if it shuffles blocks."""
    return node if isinstance(node, BlockShuffleNode) else None


def as_planned(node: Node) -> PlannedNode | None:
    """The node, if its elements are planned from lengths."""
    return node if isinstance(node, PlannedNode) else None


def calls_for_each(node: Node) -> bool:
    """Whether a node calls a function for one element at a time."""
    return isinstance(node, EachNode)


def cuts_whole_elements(node: Node) -> bool:
    """Whether a node cuts parts out of elements that are made as wholes."""
    return isinstance(node, CutNode) and all(c.is_whole for box in node.have.values() for c in box)


def leaves_out_between(node: Node) -> bool:
    """Whether a node leaves out many elements that lie between those that it takes."""
    if isinstance(node, ReindexNode):
        return bool(node.length) and int(np.ptp(node.indices)) + 1 >= 2 * node.length
    if isinstance(node, SampleNode):
        return node.parent.length >= 2 * node.length
    return isinstance(node, SliceNode) and abs(node.step) > 1 and node.length > 1


def takes_again(node: Node) -> bool:
    """Whether a node may take an element of its parent twice in a pass."""
    return isinstance(node, (SampleNode, ReindexNode, SelectNode))


def takes_each(node: Node) -> bool:
    """Whether every pass of a node takes each element of its only parent once."""
    if isinstance(node, SliceNode):  # of what repeats for ever
        return (node.start, node.step) == (0, 1) and node.length >= pass_length(node.parent)
    if len(node.parents) > 1 or ends_parents(node):
        return False
    if isinstance(node, JoinsLanes) and len(node.run_lanes[0]) < node.run_lanes[1]:
        return False
    if node.length == STREAM or node.shuffles or node.keeps_epochs or node.has_gaps:
        return True
    size = group_size(node)
    if size is not None:
        return -(-node.parent.length // size) == node.length
    return source_of(node) is not None


def ends_parents(node: Node) -> bool:
    """Whether a stream may end before each of its parents has ended."""
    if node.length != STREAM:
        return False
    if isinstance(node, LaneBatchNode):  # with the shortest lane
        return node.drop_remainder and node.counts is not None and len({*node.counts}) > 1
    if node.hides_parents or isinstance(node, StreamLimitNode):
        return True
    several = len(node.parents) > 1 and not isinstance(node, StreamInterleaveNode)
    return several and not getattr(node, "drops_out", False)
