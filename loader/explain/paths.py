"""Paths of a chain from its end to its sources: how often they pass over a source, and what they take of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from windrow.transforms.nodes import Node, source_of, walk
from windrow.transforms.nodes.reading import ends_parents, takes_again, takes_each
from windrow.transforms.nodes.streams import passes

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


def takes_all(node: Node) -> bool:
    """Whether every pass of a chain takes each record of its only source once."""
    return all(map(takes_each, walk(node)))


def takes_some(node: Node) -> bool:
    """Whether a chain takes no record of a source twice in a pass."""
    return not any(map(takes_again, walk(node)))


def may_end_early(node: Node) -> bool:
    """Whether a stream may end before one that it is made of."""
    return any(map(ends_parents, walk(node)))
