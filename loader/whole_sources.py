"""Whole sources: those of which an epoch asks for every record, and the pieces these lie in.

Shuffles do not change which records come: so of a source that is gone through as a whole the pieces
are known without working out any order.

Invariant: where a number of pieces is told, it is exact.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from windrow.sources import ArrayPart, LaidOutSource, ListPart, Part
from windrow.transforms.block_nodes import BlockShuffleNode
from windrow.transforms.nodes import (
    BatchNode,
    ConcatenateNode,
    Node,
    ReindexNode,
    RepeatNode,
    SeedNode,
    ShuffleNode,
    SliceNode,
    SourceNode,
    UnseenNode,
    ValueNode,
    WindowShuffleNode,
    ZipNode,
)

IntArray = npt.NDArray[np.int64]

# Records of windows or patches that are looked at at most, and at a time.
_MOST_COUNTED: Final = 1 << 22
_AT_ONCE: Final = 1 << 18


def gone_through(node: Node) -> set[int]:
    """The `id` of each source of which a pass over a chain asks for every record."""
    match node:
        case SourceNode():
            return {id(node.source)}
        case SliceNode():
            return gone_through(node.parent) if node.length == node.parent.length else set()
        case BatchNode():
            rest = node.parent.length % max(1, node.size) if node.drop_remainder else 0
            return set() if rest else gone_through(node.parent)
        case ReindexNode():
            return set()
        case SeedNode() | ShuffleNode() | WindowShuffleNode() | BlockShuffleNode() | RepeatNode():
            return gone_through(node.parent)
        case ValueNode() | UnseenNode():
            return gone_through(node.parent)
        case ConcatenateNode() | ZipNode():
            return set().union(*map(gone_through, node.parents))
        case _:
            return set()


def pieces_of_all(source: LaidOutSource, part: Part) -> IntArray | None:
    """The pieces that all records of a source lie in; None where that takes too long to tell."""
    length = len(source)
    rows = isinstance(part, ArrayPart) and part.size is None and part.starts is None
    if rows or isinstance(part, ListPart):
        return np.arange(part.piece_count)
    if length > _MOST_COUNTED:
        return None
    pieces = np.empty(0, np.int64)
    for first in range(0, length, _AT_ONCE):
        records = np.arange(first, min(length, first + _AT_ONCE))
        pieces = np.union1d(pieces, part.needs(records).pieces)
    return pieces
