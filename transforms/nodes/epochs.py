"""Epochs of a chain that repeats: how many there are, and the chain that has one of them."""

from __future__ import annotations

import dataclasses

from windrow.transforms.nodes.base import STREAM, Node
from windrow.transforms.nodes.index import RepeatNode, SliceNode
from windrow.transforms.nodes.planned import PlannedNode, over_first
from windrow.transforms.nodes.streams import StreamRepeatNode, ToStreamNode


def passes(node: Node) -> int | None:
    """How often a node gives the epochs of its parent; None for ever."""
    return node.times if isinstance(node, (RepeatNode, StreamRepeatNode)) else 1


def reseeded(node: Node) -> Node:
    """The chain with another order in each epoch, however it repeats."""
    parents = tuple(map(reseeded, node.parents))
    if isinstance(node, RepeatNode):
        return dataclasses.replace(node, parents=parents, reseed=True)
    return node.over(parents)


def first_epoch(node: Node) -> Node:
    """The chain that ends after one epoch of what it repeats for ever."""
    if not node.is_endless():
        return node
    if node.length != STREAM:
        return _first_of_chain(node, 1)
    if isinstance(node, ToStreamNode):
        return node.over((_first_of_chain(node.parent, node.lanes),))
    parents = tuple(map(first_epoch, node.parents))
    # A stream that is repeated may be endless itself: then its first pass never ends.
    return StreamRepeatNode(parents, 1) if passes(node) != 1 else node.over(parents)


def _first_of_chain(node: Node, lanes: int) -> Node:
    if not node.is_endless():
        return node
    if isinstance(node, PlannedNode):  # an index is not a number of elements
        return over_first(node, node.parent.pass_length())
    if lanes == 1:
        return SliceNode((node,), 0, 1, node.pass_length())
    if isinstance(node, RepeatNode):  # lanes may take runs of each epoch
        return RepeatNode(node.parents, 1, node.reseed)
    parents = tuple(_first_of_chain(parent, lanes) for parent in node.parents)
    return dataclasses.replace(node, parents=parents)
