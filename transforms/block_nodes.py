"""The node of a block shuffle, and what is left of a source's blocks further up a chain.

Invariant: bounds are int64 and increase from 0 to the length of their node, so that block `k` is the
elements `[bounds[k], bounds[k + 1])` and none is empty. To find them reads no records.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from windrow.errors import PlanError
from windrow.transforms.arguments import at_least
from windrow.transforms.blocks import MOST_BLOCKS, MOST_IN_WINDOW, BlockOrder, most_in_window
from windrow.transforms.nodes import (
    ENDLESS,
    BatchNode,
    ConcatenateNode,
    IndexNode,
    Node,
    RepeatNode,
    SeedNode,
    SliceNode,
    SourceNode,
    ValueNode,
)
from windrow.transforms.positions import Positions

IntArray = npt.NDArray[np.int64]


@runtime_checkable
class LaidOut(Protocol):
    """A source that tells which of its records lie near each other."""

    def blocks(self) -> Any:
        """Bounds of the blocks that part the records by locality: 0, ..., length, increasing."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class BlockShuffleNode(IndexNode):
    """Blocks shuffled over the whole epoch, then all elements in windows of several blocks.

    Args:
        seed: An integer in `[0, 2**32)`.
        block: Elements per block; None for the blocks of the sources below.
        window_blocks: Blocks per window.
    """

    seed: int
    block: int | None
    window_blocks: int
    order: BlockOrder = dataclasses.field(init=False)

    def count(self) -> int:
        at_least(1, self.window_blocks, "block_shuffle: window_blocks")
        if self.parent.length >= ENDLESS:
            raise PlanError(
                "block_shuffle: the dataset is endless, and an order needs an end;"
                " block-shuffle before repeat"
            )
        if self.block is None:
            bounds = layout(self.parent)
        else:
            bounds = _even_bounds(self.parent.length, self.block)
        most = most_in_window(bounds, self.window_blocks)
        if most > MOST_IN_WINDOW:
            raise PlanError(
                f"block_shuffle: a window of {self.window_blocks} blocks can have {most} elements,"
                f" and its order is held in memory; choose a smaller window_blocks or block, for"
                f" at most {MOST_IN_WINDOW}"
            )
        bounds.flags.writeable = False
        object.__setattr__(self, "order", BlockOrder(bounds, self.window_blocks, self.seed))
        return self.parent.length

    @property
    def label(self) -> str:
        if self.block is not None:
            blocks = f"block={self.block}"
        else:
            blocks = f"{len(self.order.bounds) - 1} blocks, sha256={self.order.digest}"
        return f"block_shuffle(seed={self.seed}, {blocks}, window_blocks={self.window_blocks})"

    def to_parent(self, at: Positions) -> Positions:
        return Positions(at.epochs, self.order.at(at.seed_epochs(), at.offsets))


def layout(node: Node) -> IntArray:
    """The bounds of the blocks that elements of a chain lie in, from its sources upwards.

    Raises:
        PlanError: If a node hides the layout, or a source tells none.
    """
    match node:
        case SourceNode(source=LaidOut()):
            return _told(node)
        case SeedNode() | ValueNode():
            return layout(node.parent)
        case SliceNode():
            return _sliced(layout(node.parent), node)
        case RepeatNode():
            return _repeated(node)
        case ConcatenateNode():
            parts = [layout(parent) for parent in node.parents]
            _check_count(sum(len(part) - 1 for part in parts))
            ends = np.cumsum([0, *(part[-1] for part in parts)])
            moved = [part[1:] + end for part, end in zip(parts, ends[:-1], strict=True)]
            return np.concatenate([[0], *moved])
        case BatchNode():
            size = min(node.size, max(1, node.parent.length))
            left = -(-layout(node.parent) // size)
            return _without_empty(np.minimum(left, node.length))
        case _:
            raise PlanError(_hidden(node))


def _hidden(node: Node) -> str:
    """Why a node has no layout, and what to do."""
    own = "give block=, the number of consecutive elements that are read together"
    if not node.parents:
        return f"block_shuffle: {node.label} does not tell which records lie together; {own}"
    if len(node.parents) > 1 or not isinstance(node, IndexNode):
        return (
            f"block_shuffle: {node.label} below has no one layout; block-shuffle each of its"
            f" datasets before, or {own}"
        )
    return (
        f"block_shuffle: {node.label} below hides which elements are stored together;"
        f" block-shuffle before it, or {own}"
    )


def _told(node: SourceNode) -> IntArray:
    """The blocks that a source tells, checked: a source may be the user's own."""
    bounds = np.array(node.source.blocks())
    if not (
        bounds.ndim == 1
        and bounds.dtype.kind in "iu"
        and len(bounds)
        and bounds[0] == 0
        and bounds[-1] == node.length
        and (bounds[1:] >= bounds[:-1]).all()
    ):
        raise PlanError(
            f"block_shuffle: {type(node.source).__name__}.blocks() must be integers that increase"
            f" from 0 to its length {node.length}, got {bounds!r}; mend it, or give block="
        )
    _check_count(len(bounds) - 1)
    return _without_empty(bounds.astype(np.int64))


def _sliced(bounds: IntArray, node: SliceNode) -> IntArray:
    """Bounds of what a slice leaves of each block; blocks of which it leaves nothing are gone."""
    if node.step > 0:
        left = -((node.start - bounds) // node.step)  # elements of the slice before each bound
    else:
        left = (node.start - bounds) // -node.step + 1  # and here, at the bound or after it
    return _without_empty(np.sort(np.clip(left, 0, node.length)))


def _repeated(node: RepeatNode) -> IntArray:
    if node.times is None:
        raise PlanError(
            f"block_shuffle: {node.label} below has no end of blocks; block-shuffle before repeat"
        )
    bounds = layout(node.parent)
    _check_count((len(bounds) - 1) * node.times)
    starts = np.arange(node.times)[:, None] * bounds[-1]
    return np.concatenate([[0], (starts + bounds[1:]).ravel()])


def _even_bounds(length: int, block: int) -> IntArray:
    at_least(1, block, "block_shuffle: block")
    _check_count(-(-length // block))
    starts = np.arange(0, length, min(block, max(1, length)), dtype=np.int64)
    return np.append(starts, np.int64(length))


def _without_empty(bounds: IntArray) -> IntArray:
    kept: IntArray = bounds[np.append(True, bounds[1:] > bounds[:-1])]
    return kept


def _check_count(blocks: int) -> None:
    if blocks > MOST_BLOCKS:
        raise PlanError(
            f"block_shuffle: {blocks} blocks are too many, as an integer is held for each; make"
            f" blocks larger with block=, for at most {MOST_BLOCKS}"
        )
