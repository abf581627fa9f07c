"""One epoch of a chain that repeats, and other orders in its epochs."""

from __future__ import annotations

import dataclasses

from windrow.transforms.nodes.base import STREAM, Node
from windrow.transforms.nodes.index import RepeatNode, SliceNode
from windrow.transforms.nodes.planned import over_first
from windrow.transforms.nodes.streams import StreamRepeatNode, as_chain, as_repeat, passes


def reseeded(node: Node) -> Node:
    """The chain with another order in each epoch, however it repeats."""
    parents = tuple(map(reseeded, node.parents))
    moved, repeat = node.over(parents), as_repeat(node)
    return moved if repeat is None else dataclasses.replace(repeat, parents=parents, reseed=True)


def first_epoch(node: Node) -> Node:
    """The chain that ends after one epoch of what it repeats for ever."""
    if not node.is_endless():
        return node
    if node.length != STREAM:
        return _first_of_chain(node, 1)
    chain = as_chain(node)
    if chain is not None:
        return chain.over((_first_of_chain(chain.parent, chain.lanes),))
    parents = tuple(map(first_epoch, node.parents))
    # A stream that is repeated may be endless itself: then its first pass never ends.
    return StreamRepeatNode(parents, 1) if passes(node) != 1 else node.over(parents)


def _first_of_chain(node: Node, lanes: int) -> Node:
    if not node.is_endless():
        return node
    if node.has_gaps:  # an index is not a number of elements
        return over_first(node, node.parent.pass_length())
    if lanes == 1:
        return SliceNode((node,), 0, 1, node.pass_length())
    repeat = as_repeat(node)
    if repeat is not None:  # lanes may take runs of each epoch
        return RepeatNode(node.parents, 1, repeat.reseed)
    parents = tuple(_first_of_chain(parent, lanes) for parent in node.parents)
    return dataclasses.replace(node, parents=parents)
