"""The node of a block shuffle, and what is left of a source's blocks further up a chain.

Invariant: a layout parts all elements of its node, and to find it reads no records.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, runtime_checkable

from windrow.errors import PlanError
from windrow.transforms import layouts
from windrow.transforms.arguments import at_least
from windrow.transforms.blocks import MOST_IN_WINDOW, BlockOrder, most_in_window
from windrow.transforms.layouts import Layout
from windrow.transforms.nodes import (
    ENDLESS,
    BatchNode,
    ConcatenateNode,
    IndexNode,
    Node,
    ReindexNode,
    RepeatNode,
    SeedNode,
    SliceNode,
    SourceNode,
    ValueNode,
)
from windrow.transforms.positions import Positions


@runtime_checkable
class LaidOut(Protocol):
    """A source that tells which of its records lie near each other."""

    def blocks(self) -> Any:
        """Bounds of blocks of consecutive records, 0, ..., length; or those with `records`.

        None where nothing tells.
        """
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
            found = layout(self.parent)
        else:
            at_least(1, self.block, "block_shuffle: block")
            found = layouts.even(self.parent.length, self.block)
        most = most_in_window(found.bounds, self.window_blocks)
        if most > MOST_IN_WINDOW:
            raise PlanError(
                f"block_shuffle: a window of {self.window_blocks} blocks can have {most} elements,"
                f" and its order is held in memory; choose a smaller window_blocks or block, for"
                f" at most {MOST_IN_WINDOW}"
            )
        found.bounds.flags.writeable = False
        order = BlockOrder(found.bounds, self.window_blocks, self.seed, found.elements)
        object.__setattr__(self, "order", order)
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


def layout(node: Node) -> Layout:
    """The blocks that elements of a chain lie in, from its sources upwards.

    Raises:
        PlanError: If a node hides the layout, or a source tells none.
    """
    match node:
        case SourceNode(source=LaidOut()) if (
            told := layouts.told(node.source, node.length)
        ) is not None:
            return told
        case SeedNode() | ValueNode():
            return layout(node.parent)
        case SliceNode():
            # Any step may be given; int64 holds the step between two elements.
            step = node.step if node.length > 1 else 1
            return layouts.sliced(layout(node.parent), node.start, step, node.length)
        case ReindexNode():
            return layouts.listed(layout(node.parent), node.indices)
        case RepeatNode():
            if node.times is None:
                raise PlanError(
                    f"block_shuffle: {node.label} below has no end of blocks; block-shuffle before"
                    " repeat"
                )
            return layouts.repeated(layout(node.parent), node.times)
        case ConcatenateNode():
            return layouts.joined([layout(parent) for parent in node.parents])
        case BatchNode():
            return layouts.batched(layout(node.parent), node.size, node.length)
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
