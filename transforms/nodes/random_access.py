"""Whole epochs of a chain, in an order that the quality of its shuffle is judged by.

Invariant: nothing here reads a record.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Protocol, runtime_checkable

from windrow.errors import PlanError
from windrow.transforms.nodes.base import STREAM, Node
from windrow.transforms.nodes.following import over
from windrow.transforms.nodes.metadata import epoch_length
from windrow.transforms.nodes.streams import as_batch, as_chain, as_repeat


@runtime_checkable
class OrdersRows(Protocol):
    """A node of a stream that has another order than its first parent."""

    def over_random_access(self, parents: tuple[Node, ...]) -> Node:
        """The order of the stream over parents with random access."""
        ...


def whole_epochs(node: Node) -> tuple[int, int]:
    """The fewest epochs that end where an element does: their elements, and their number.

    Batches of 7 over epochs of 100 end with an epoch only after 7 epochs. A chain that ends
    earlier has all of its elements and epochs.
    """
    batch = as_batch(node)
    if batch is None and node.keeps_epochs:
        return whole_epochs(node.parent)
    if batch is None or not batch.spans_epochs:
        return epoch_length(node), 1
    rows, epochs = whole_epochs(node.parent)
    shared = math.gcd(rows, batch.size)
    if rows // shared > node.length:
        return node.length, max(1, node.parent.length * epochs // rows)
    return rows // shared, epochs * batch.size // shared


def reseeded(node: Node) -> Node:
    """The chain with another order in each epoch, however it repeats."""
    moved = over(node, tuple(map(reseeded, node.parents)))
    repeat = as_repeat(moved)
    return moved if repeat is None else dataclasses.replace(repeat, reseed=True)


def with_random_access(node: Node) -> Node:
    """A node with random access and the same order, as if filters of a stream dropped nothing.

    Raises:
        PlanError: If a mixture has an empty stream, or rows are planned from lengths.
    """
    if node.length != STREAM:
        return node
    if as_chain(node) is None:
        parents = tuple(map(with_random_access, node.parents))
        return node.over_random_access(parents) if isinstance(node, OrdersRows) else parents[0]
    if node.parent.has_gaps:
        raise PlanError(
            f"shuffle_quality: {node.parent.label} mixes elements of a window by their lengths;"
            " ask for the quality of the dataset before it"
        )
    return node.parent
