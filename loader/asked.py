"""Asked: which records of which sources the elements of a chain are made of, and at which element.

A chain with random access is walked downwards with whole arrays of positions, as `execute.start`
does, with the number of the element that each position belongs to.

Invariant: nothing is read, and no function of the user's is called but selection maps.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.transforms.nodes import BatchNode, IndexNode, Node, RoutingNode, SourceNode
from windrow.transforms.positions import Positions, positions

IntArray = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """What some elements ask of one source: record `records[k]`, for element `elements[k]`.

    Both are int64 `(k,)`; `elements` never decreases.
    """

    elements: IntArray
    records: IntArray


def asked_for(node: Node, first: int, stop: int) -> dict[int, Asked]:
    """What elements `[first, stop)` of a chain ask of each source, by the source's `id`."""
    numbers = np.arange(first, stop)
    found: dict[int, list[tuple[IntArray, IntArray]]] = {}
    if len(numbers):
        _walk(node, positions(numbers, node.length), numbers, found)
    return {source: _joined(parts) for source, parts in found.items()}


def _joined(parts: list[tuple[IntArray, IntArray]]) -> Asked:
    if len(parts) == 1:
        return Asked(*parts[0])
    elements, records = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(elements, kind="stable")
    return Asked(elements[order], records[order])


def _walk(node: Node, at: Positions, elements: IntArray, found: dict[int, Any]) -> None:
    match node:
        case SourceNode():
            found.setdefault(id(node.source), []).append((elements, at.offsets))
        case IndexNode():
            _walk(node.parent, node.to_parent(at), elements, found)
        case RoutingNode():
            which, below = node.route(at)
            for number in np.unique(which).tolist():
                rows = np.flatnonzero(which == number)
                _walk(node.parents[number], below.taken(rows), elements[rows], found)
        case BatchNode():
            inner, bounds = node.to_rows(at)
            _walk(node.parent, inner, np.repeat(elements, np.diff(bounds)), found)
        case _:
            for parent in node.parents:
                _walk(parent, at, elements, found)


def rows_of(node: Node) -> int:
    """Records that the largest element of a chain is made of, of all sources together."""
    match node:
        case SourceNode():
            return 1
        case BatchNode():
            return rows_of(node.parent) * max(1, min(node.size, node.parent.length))
        case RoutingNode():
            return max(map(rows_of, node.parents))
        case _:
            return max(1, sum(map(rows_of, node.parents)))
