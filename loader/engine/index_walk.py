"""The walk of a chain: indices go down to the sources, and results come up.

`start(node, at, cuts, maker)` walks from a node to its sources with whole arrays of positions, and
starts every read. The function that it returns waits, and builds the result on the way back up. The
maker decides what the result is: `execute` makes values, and `record_trace` notes the records that
values are made of. There is no other walk.

Invariant: starting calls no function of the user (but a selection map) and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from windrow.sources.base import IntArray
from windrow.sources.ragged_column import PiecePlaces
from windrow.transforms.nodes import (
    IndexNode,
    JoinNode,
    LeafNode,
    Node,
    PieceNode,
    RegroupNode,
    RoutingNode,
    SourceNode,
    ValueNode,
)
from windrow.transforms.nodes.split import GivenNode
from windrow.transforms.positions import Positions

Made = TypeVar("Made")


class Maker(Protocol[Made]):
    """Starts the results of the leaves of a chain, and makes the results of other nodes.

    Each method but the first three gets the results of the node's parents.
    """

    def start(
        self, source: Any, records: IntArray, places: PiecePlaces | None = None
    ) -> Callable[[], Made]:
        """Start, or plan, reading records of a source; where it can, the parts of them with `places`."""
        ...

    def given(self, node: GivenNode, at: Positions, cuts: Sequence[int]) -> Callable[[], Made]:
        """Start making the table that another process gives, or take it."""
        ...

    def leaf(self, node: LeafNode, at: Positions) -> Callable[[], Made]:
        """Elements that a leaf makes from positions alone."""
        ...

    def merged(self, parts: Sequence[tuple[Made, IntArray]], count: int) -> Made:
        """`count` elements, of several parents: each part with the rows that it goes to."""
        ...

    def joined(self, node: JoinNode, parts: Sequence[Made]) -> Made:
        """Elements made of the elements of all parents at the same indices."""
        ...

    def gathered(self, node: RegroupNode, rows: Made, bounds: Sequence[int], at: Positions) -> Made:
        """Batches out of rows; batch `k` has the rows `[bounds[k], bounds[k + 1])`."""
        ...

    def cut(self, node: PieceNode, whole: Made, which: IntArray, at: Positions) -> Made:
        """Parts of elements; element `k` is a part of element `which[k]` of the parent's."""
        ...

    def before(self, node: ValueNode) -> Maker[Any]:
        """Makes what `applied` gets: this maker, unless the node takes bad rows."""
        ...

    def applied(self, node: ValueNode, rows: Made, at: Positions, cuts: Sequence[int]) -> Made:
        """Elements made of the parent's elements at the same indices."""
        ...


def start(
    node: Node,
    at: Positions,
    cuts: Sequence[int],
    maker: Maker[Made],
    places: PiecePlaces | None = None,
) -> Callable[[], Made]:
    """Start making the elements of `node` at positions `at`.

    Args:
        node: A node with random access.
        at: Positions in it.
        cuts: Bounds in `at` of the rows that a batched function gets in one call.
        maker: Reads the sources, and makes the result.
        places: Where parts of the elements go, if the node above them takes a `PlacedColumn`.

    Returns:
        A function that waits and returns what was made, to be called once.
    """
    match node:
        case SourceNode():
            return maker.start(node.source, at.offsets, places)
        case GivenNode():
            return maker.given(node, at, cuts)
        case LeafNode():
            return maker.leaf(node, at)
        case IndexNode():
            return start(node.parent, node.to_parent(at), cuts, maker, places)
        case RoutingNode():
            return _start_routed(node, at, cuts, maker)
        case JoinNode():
            finishes = [start(parent, at, cuts, maker) for parent in node.parents]
            return lambda: maker.joined(node, [finish() for finish in finishes])
        case RegroupNode():
            rows, bounds, wanted = node.to_parts(at)
            inner = bounds.tolist()
            before = start(node.parent, rows, inner, maker, wanted)
            return lambda: maker.gathered(node, before(), inner, at)
        case PieceNode():
            wholes, which = node.to_whole(at)
            before = start(node.parent, wholes, [0, len(wholes)], maker)
            return lambda: maker.cut(node, before(), which, at)
        case ValueNode():
            before = start(node.parent, at, cuts, maker.before(node))
            return lambda: maker.applied(node, before(), at, cuts)
        case _:
            raise TypeError(f"{type(node).__name__} has no random access")


def _start_routed(
    node: RoutingNode, at: Positions, cuts: Sequence[int], maker: Maker[Made]
) -> Callable[[], Made]:
    which, before = node.route(at)
    started: list[tuple[Callable[[], Made], IntArray]] = []
    for number in np.unique(which).tolist():
        rows = np.flatnonzero(which == number)
        inner = np.unique(np.searchsorted(rows, cuts)).tolist()
        finish = start(node.parents[number], before.taken(rows), inner, maker)
        started.append((finish, rows))
    if len(started) == 1:
        return started[0][0]
    return lambda: maker.merged([(finish(), rows) for finish, rows in started], len(at))
