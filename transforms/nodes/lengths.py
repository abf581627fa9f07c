"""Lengths of the elements of a chain with random access, from lengths of records alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from windrow.errors import PlanError
from windrow.sources.base import IntArray
from windrow.transforms.lengths import RecordLengths
from windrow.transforms.nodes.base import Node
from windrow.transforms.nodes.metadata import known_lengths
from windrow.transforms.nodes.whole_chain import source_of, sources_of
from windrow.transforms.positions import Positions


def lengths_of(node: Node, at: Positions, given: Sequence[IntArray] | None = None) -> IntArray:
    """Lengths of the elements of `node` at positions, without reading a record.

    It costs what finding the records of these elements costs. To ask often, make the
    `RecordLengths` once and call `known_lengths`.

    Args:
        node: A node with random access.
        at: Positions in it; with none, it only checks that lengths are known.
        given: Lengths of records, one array for each of `sources_of(node)`; they hold for whatever
            maps make of those records. None for what the sources know.

    Returns:
        int64 `(len(at),)`.

    Raises:
        PlanError: If lengths are not known, or wrong ones are given; the message has the way out.
        ArgumentError: If the lengths that are given are not arrays of integers.
        SourceError: If a source gives wrong lengths.
    """
    return known_lengths(node, at, RecordLengths(sources_of(node), given))


def over_records(node: Node) -> list[Node]:
    """The functions of a chain over each of its sources, as one chain per source.

    Element `r` of such a chain is made from record `r` of its source; nothing else decides it.

    Raises:
        PlanError: If something else does: a filter, a batch, a zip or a function that is given the
            index; or if functions differ between two ways to one source.
    """
    found: dict[int, Node] = {}
    ways: dict[int, list[object]] = {}
    waiting: list[tuple[Node, list[Node]]] = [(node, [])]
    while waiting:
        at, functions = waiting.pop()
        if source_of(at) is not None:
            key = id(source_of(at))
            way: list[object] = [(type(each), *map(id, each.functions)) for each in functions]
            if ways.setdefault(key, way) != way:
                raise PlanError(
                    f"lengths: two ways lead to {source_of(at)!r}, with different functions; count"
                    " the lengths of each by itself"
                )
            chain = at
            for each in reversed(functions):
                chain = dataclasses.replace(each, parents=(chain,))
            found[key] = chain
        elif at.makes_values and at.follows_batch:
            waiting.append((at.parent, [*functions, at]))
        elif at.chooses:
            waiting.extend((parent, functions) for parent in reversed(at.parents))
        else:
            raise PlanError(
                f"lengths: {at.written} does not make one element of each record, by the record"
                " alone; count lengths before it"
            )
    return list(found.values())
