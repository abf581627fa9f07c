"""Splits a chain at its functions: one process plans and reads, another calls the functions.

A chain with random access is cut before its functions. The lower parts, which call no function of
the user, stay where the sources are; the upper part is sent, with a `GivenNode` for each lower part.

Invariant: both halves together make the same elements as the whole chain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from windrow.transforms.nodes import Node
from windrow.transforms.nodes.following import over
from windrow.transforms.nodes.whole_chain import source_of


@dataclasses.dataclass(frozen=True, eq=False)
class GivenNode(Node):
    """Elements that another process makes and sends as a table."""

    number: int
    size: int

    def count(self) -> int:
        return self.size

    @property
    def label(self) -> str:
        return f"given({self.number})"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Halves:
    """A chain in two parts: `lower[n]` makes the elements of `GivenNode` number n in `upper`."""

    upper: Node
    lower: tuple[Node, ...]

    @property
    def travels(self) -> bool:
        """Whether the upper half has anything to do."""
        return bool(self.upper.parents) or source_of(self.upper) is not None


def halved(node: Node, travels: Callable[[Any], bool]) -> Halves:
    """Cut a chain before its functions.

    Args:
        node: A node with random access.
        travels: Whether a source is read in the process that calls the functions.
    """
    lower: list[Node] = []
    upper = _upper(node, travels, lower)
    return Halves(upper, tuple(lower))


# No closure that calls itself: that would keep the sources until garbage is collected.
def _upper(node: Node, travels: Callable[[Any], bool], lower: list[Node]) -> Node:
    if not _must_travel(node, travels):
        lower.append(node)
        return GivenNode((), len(lower) - 1, node.length)
    parents = tuple(_upper(parent, travels, lower) for parent in node.parents)
    sent: Any = getattr(node, "sent_over", None)  # what is another node there
    return over(node, parents) if sent is None else sent(parents)


def _must_travel(node: Node, travels: Callable[[Any], bool]) -> bool:
    if source_of(node) is not None:
        return travels(source_of(node))
    return bool(node.functions) or any(_must_travel(parent, travels) for parent in node.parents)
