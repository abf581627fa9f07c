"""Epochs of a chain that repeats: how many there are, and the chain that has one of them."""

from __future__ import annotations

from windrow.transforms.nodes.base import STREAM, Node
from windrow.transforms.nodes.following import over
from windrow.transforms.nodes.index import RepeatNode, SliceNode
from windrow.transforms.nodes.metadata import pass_length
from windrow.transforms.nodes.planned import PlannedNode, over_first
from windrow.transforms.nodes.streams import StreamRepeatNode, ToStreamNode, of_epochs


def passes(node: Node) -> int | None:
    """How often a node gives the epochs of its parent; None for ever."""
    return node.times if isinstance(node, (RepeatNode, StreamRepeatNode)) else 1


def first_epoch(node: Node) -> Node:
    """The chain that ends after one epoch of what it repeats for ever."""
    if not node.is_endless():
        return node
    if node.length != STREAM:
        return _first_of_chain(node, 1)
    if isinstance(node, ToStreamNode):
        return over(node, (_first_of_chain(node.parent, node.lanes),))
    parents = tuple(map(first_epoch, node.parents))
    # A stream that is repeated may be endless itself: then its first pass never ends.
    return StreamRepeatNode(parents, 1) if passes(node) != 1 else over(node, parents)


def _first_of_chain(node: Node, lanes: int) -> Node:
    if not node.is_endless():
        return node
    if isinstance(node, PlannedNode):  # an index is not a number of elements
        return over_first(node, pass_length(node.parent))
    if lanes == 1:
        return SliceNode((node,), 0, 1, pass_length(node))
    return of_epochs(node, 1)  # lanes may take runs of each epoch
