"""Whole sources: the sources whose every record an epoch asks for, and the chunks of those records.

Shuffles do not change which records come. So the chunks of a source that is read as a whole are
known without working out any order.

Invariant: each number of chunks that is returned is exact.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from windrow.sources.chunks import ArrayPart, LaidOutSource, ListPart, Part
from windrow.transforms.nodes import (
    BatchNode,
    BlockShuffleNode,
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

# The most records of windows or patches that are examined, in all and at a time.
_MOST_COUNTED: Final = 1 << 22
_AT_ONCE: Final = 1 << 18


def gone_through(node: Node) -> set[int]:
    """The `id` of each source whose every record a pass over a chain asks for."""
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


def chunks_of_all(source: LaidOutSource, part: Part) -> IntArray | None:
    """The chunks that all records of a source lie in; None where finding them takes too long."""
    length = len(source)
    rows = isinstance(part, ArrayPart) and part.size is None and part.starts is None
    if rows or isinstance(part, ListPart):
        return np.arange(part.chunk_count)
    if length > _MOST_COUNTED:
        return None
    chunks = np.empty(0, np.int64)
    for first in range(0, length, _AT_ONCE):
        records = np.arange(first, min(length, first + _AT_ONCE))
        chunks = np.union1d(chunks, part.needs(records).chunks)
    return chunks
