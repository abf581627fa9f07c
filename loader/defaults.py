"""Defaults: how a chain is read where its user does not say."""

from __future__ import annotations

from collections.abc import Iterator

from windrow.sources import ForeignDataSource
from windrow.transforms.nodes import BatchNode, Node, SourceNode
from windrow.transforms.options import ReadOptions


def _nodes_of(node: Node) -> Iterator[Node]:
    yield node
    for parent in node.parents:
        yield from _nodes_of(parent)


def reads_records_alone(node: Node, elements: int) -> bool:
    """Whether making so many elements reads several records one by one, so that threads help."""
    below = list(_nodes_of(node))
    sources = [leaf.source for leaf in below if isinstance(leaf, SourceNode)]
    several = elements > 1 or any(isinstance(n, BatchNode) for n in below)
    return several and any(isinstance(s, ForeignDataSource) and not s.batched for s in sources)


def default_options(node: Node) -> ReadOptions:
    """Threads ahead of the consumer, unless there is nothing to read."""
    if any(isinstance(below, SourceNode) for below in _nodes_of(node)):
        return ReadOptions()
    return ReadOptions(num_threads=0)
