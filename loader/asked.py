"""Asked: which records of which sources the elements of a chain are made of, and at which element.

A chain with random access is walked downwards with whole arrays of positions, as `execute.start`
does, with the number of the element that each position belongs to.

Invariant: nothing is read, and no function of the user's is called but selection maps.
"""

from __future__ import annotations

import dataclasses
import math
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


def asked_for(node: Node, first: int, stop: int, *, share: float = 1.0) -> dict[int, Asked]:
    """What elements `[first, stop)` of a chain ask of each source, by the source's `id`.

    Args:
        node: The chain.
        first: The first element.
        stop: The end of the elements.
        share: The part of each batch, from its start on, that is looked at; 1 for all of it.
    """
    numbers = np.arange(first, stop)
    found: dict[int, list[tuple[IntArray, IntArray]]] = {}
    if len(numbers):
        _walk(node, positions(numbers, node.length), numbers, found, share)
    return {source: _joined(parts) for source, parts in found.items()}


def _joined(parts: list[tuple[IntArray, IntArray]]) -> Asked:
    if len(parts) == 1:
        return Asked(*parts[0])
    elements, records = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(elements, kind="stable")
    return Asked(elements[order], records[order])


def _walk(
    node: Node, at: Positions, elements: IntArray, found: dict[int, Any], share: float
) -> None:
    match node:
        case SourceNode():
            found.setdefault(id(node.source), []).append((elements, at.offsets))
        case IndexNode():
            _walk(node.parent, node.to_parent(at), elements, found, share)
        case RoutingNode():
            which, below = node.route(at)
            for number in np.unique(which).tolist():
                rows = np.flatnonzero(which == number)
                _walk(node.parents[number], below.taken(rows), elements[rows], found, share)
        case BatchNode():
            inner, counts = _rows(node, at, share)
            _walk(node.parent, inner, np.repeat(elements, counts), found, 1.0)
        case _:
            for parent in node.parents:
                _walk(parent, at, elements, found, share)


def _rows(node: BatchNode, at: Positions, share: float) -> tuple[Positions, IntArray]:
    """Where the rows of batches are, or so much of each, and how many of each batch."""
    if share == 1:
        rows, bounds = node.to_rows(at)
        return rows, np.diff(bounds)
    size = min(node.size, node.parent.length)
    starts = at.offsets * size
    counts = np.minimum(math.ceil(size * share), node.parent.length - starts)
    inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return Positions(np.repeat(at.epochs, counts), np.repeat(starts, counts) + inside), counts


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
