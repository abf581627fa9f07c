"""Lengths of the elements of a chain with random access, from lengths of records alone."""

from __future__ import annotations

from collections.abc import Sequence

from windrow.transforms.lengths import RecordLengths
from windrow.transforms.nodes.base import IntArray, Node
from windrow.transforms.positions import Positions


def lengths_of(node: Node, at: Positions, given: Sequence[IntArray] | None = None) -> IntArray:
    """Lengths of the elements of `node` at positions, without reading a record.

    It costs what finding the records of these elements costs. To ask often, make the
    `RecordLengths` once and call `node.lengths_of(at, known)`.

    Args:
        node: A node with random access.
        at: Positions in it; with none, it only checks that lengths are known.
        given: Lengths of records, one array for each of `node.sources()`; they hold for whatever
            maps make of those records. None for what the sources know.

    Returns:
        int64 `(len(at),)`.

    Raises:
        PlanError: If lengths are not known, or wrong ones are given; the message has the way out.
        ArgumentError: If the lengths that are given are not arrays of integers.
        SourceError: If a source gives wrong lengths.
    """
    return node.lengths_of(at, RecordLengths(node.sources(), given))
