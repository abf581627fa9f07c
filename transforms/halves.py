"""Halves of a chain: what one process plans and reads, and what another makes of it.

A chain with random access is cut below its functions. The lower parts, which call no function of
the user's, stay where the sources are; the upper part travels, with a `GivenNode` for each part.

Invariant: both halves together make the elements that the whole chain makes.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

from windrow.transforms.nodes import (
    BatchNode,
    FilterNode,
    MapNode,
    MapWithIndexNode,
    Node,
    RandomMapNode,
    SourceNode,
)


@dataclasses.dataclass(frozen=True, eq=False)
class GivenNode(Node):
    """Elements that another process makes, and gives as a table."""

    number: int
    size: int

    def count(self) -> int:
        return self.size

    @property
    def label(self) -> str:
        return f"given({self.number})"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Halves:
    """A chain in two: `lower[n]` makes what `upper` is given as its `GivenNode` number n."""

    upper: Node
    lower: tuple[Node, ...]

    @property
    def travels(self) -> bool:
        """Whether the upper half has anything to do."""
        return not isinstance(self.upper, GivenNode)


def halved(node: Node, travels: Callable[[SourceNode], bool]) -> Halves:
    """Cut a chain below its functions.

    Args:
        node: A node with random access.
        travels: Whether a source is read where the functions are.
    """
    lower: list[Node] = []
    upper = _upper(node, travels, lower)
    return Halves(upper, tuple(lower))


# No closure that calls itself: that would keep the sources until garbage is collected.
def _upper(node: Node, travels: Callable[[SourceNode], bool], lower: list[Node]) -> Node:
    if not _must_travel(node, travels):
        lower.append(node)
        return GivenNode((), len(lower) - 1, node.length)
    return with_parents(node, tuple(_upper(parent, travels, lower) for parent in node.parents))


def with_parents(node: Node, parents: tuple[Node, ...]) -> Node:
    """The same node over other parents, of the same lengths: it is not checked again."""
    moved = copy.copy(node)
    object.__setattr__(moved, "parents", parents)
    return moved


def _must_travel(node: Node, travels: Callable[[SourceNode], bool]) -> bool:
    if isinstance(node, SourceNode):
        return travels(node)
    return has_function(node) or any(_must_travel(parent, travels) for parent in node.parents)


def has_function(node: Node) -> bool:
    """Whether a node by itself calls a function of the user's on elements."""
    if isinstance(node, BatchNode):
        return node.batch_fn is not None
    return isinstance(node, (MapNode, MapWithIndexNode, RandomMapNode, FilterNode))
