"""Paths of a chain from its end to its sources: how often they pass over a source, and what they take of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from windrow.transforms.nodes import (
    STREAM,
    Node,
    ReindexNode,
    SelectNode,
    ShuffleNode,
    SliceNode,
    source_of,
    walk,
)
from windrow.transforms.nodes.epochs import passes
from windrow.transforms.nodes.following import JoinsLanes, group_size
from windrow.transforms.nodes.interleave import StreamInterleaveNode
from windrow.transforms.nodes.lanes import LaneBatchNode
from windrow.transforms.nodes.limit import StreamLimitNode
from windrow.transforms.nodes.metadata import pass_length
from windrow.transforms.nodes.planned import PlannedNode
from windrow.transforms.nodes.sample import SampleNode

Path: TypeAlias = tuple[Node, ...]
"""The nodes from the last one to a source; a source that occurs twice has two paths."""


def paths(node: Node, above: Path = ()) -> Iterator[tuple[Any, Path]]:
    """Yield the sources of a chain, each with a path to it."""
    path = (*above, node)
    if source_of(node) is not None:
        yield source_of(node), path
    for parent in node.parents:
        yield from paths(parent, path)


def passes_of(nodes: Sequence[Node]) -> int:
    """How often the nodes of a path go through the source, in one epoch."""
    return math.prod(passes(node) or 1 for node in nodes)


def is_global(node: Node) -> bool:
    """Whether neighbours after a shuffle lie anywhere before it."""
    return isinstance(node, ShuffleNode)


def takes_all(node: Node) -> bool:
    """Whether every pass of a chain takes each record of its only source once."""
    return all(_takes_each(each) for each in walk(node))


def takes_some(node: Node) -> bool:
    """Whether a chain takes no record of a source twice in a pass."""
    again = (SampleNode, ReindexNode, SelectNode)
    return not any(isinstance(each, again) for each in walk(node))


def _takes_each(node: Node) -> bool:
    if isinstance(node, SliceNode):  # of what repeats for ever
        whole = pass_length(node.parent) if node.parent.is_endless() else node.parent.length
        return (node.start, node.step) == (0, 1) and node.length >= whole
    if len(node.parents) > 1 or node.hides_parents or isinstance(node, StreamLimitNode):
        return False
    if isinstance(node, JoinsLanes) and len(node.run_lanes[0]) < node.run_lanes[1]:
        return False
    if node.length == STREAM or node.shuffles or node.keeps_epochs or source_of(node) is not None:
        return True
    if isinstance(node, PlannedNode):
        return True
    size = group_size(node)
    return size is not None and -(-node.parent.length // size) == node.length


def may_end_early(node: Node) -> bool:
    """Whether a stream may end before one that it is made of."""
    return any(each.length == STREAM and _ends_parents(each) for each in walk(node))


def _ends_parents(node: Node) -> bool:
    if isinstance(node, LaneBatchNode):  # with the shortest lane
        return node.drop_remainder and node.counts is not None and len({*node.counts}) > 1
    if node.hides_parents or isinstance(node, StreamLimitNode):
        return True
    several = len(node.parents) > 1 and not isinstance(node, StreamInterleaveNode)
    return several and not getattr(node, "drops_out", False)
