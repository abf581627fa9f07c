"""The node of a block shuffle.

Invariant: each element of the parent is in one block, and finding the blocks reads no records.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from windrow.errors import PlanError
from windrow.sources.base import IntArray
from windrow.transforms import layouts
from windrow.transforms.arguments import at_least
from windrow.transforms.blocks import MOST_IN_WINDOW, BlockOrder, most_in_window
from windrow.transforms.nodes.base import ENDLESS, Node
from windrow.transforms.nodes.dealing import DealtToLanes
from windrow.transforms.nodes.index import IndexNode
from windrow.transforms.positions import Positions


@dataclasses.dataclass(frozen=True, eq=False)
class BlockShuffleNode(DealtToLanes, IndexNode):
    """Blocks shuffled over the whole epoch, then all elements in windows of several blocks.

    Args:
        seed: An integer in `[0, 2**32)`.
        block: Elements per block; None for the blocks of the sources.
        window_blocks: Blocks per window.
        lanes: Lanes that the shuffled blocks are dealt to; windows are then a lane's own.
    """

    shuffles: ClassVar[bool] = True

    seed: int
    block: int | None
    window_blocks: int
    lanes: int = 1
    order: BlockOrder = dataclasses.field(init=False)

    def count(self) -> int:
        at_least(1, self.window_blocks, "block_shuffle: window_blocks")
        if self.parent.length >= ENDLESS:
            raise PlanError(
                "block_shuffle: the dataset is endless, and an order needs an end;"
                " block-shuffle before repeat"
            )
        if self.block is None:
            found = self.parent.layout()
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
        blocks = len(found.bounds) - 1
        if self.lanes > max(1, blocks):
            raise PlanError(
                f"to_iter_dataset: lanes={self.lanes} are more than the {blocks} blocks of the block"
                f" shuffle before it; choose at most {blocks} lanes, or a smaller block= there"
            )
        window_blocks = max(1, self.window_blocks // self.lanes)
        order = BlockOrder(found.bounds, window_blocks, self.seed, found.elements, self.lanes)
        object.__setattr__(self, "order", order)
        return self.parent.length

    def dealt(self, lanes: int) -> Node:
        return self if lanes == 1 else dataclasses.replace(self, lanes=lanes)

    def lane_starts(self, epoch: int) -> IntArray | None:
        return None if self.lanes == 1 else self.order.lane_starts(epoch)

    @property
    def label(self) -> str:
        if self.block is not None:
            blocks = f"block={self.block}"
        else:
            blocks = f"{len(self.order.bounds) - 1} blocks, sha256={self.order.digest}"
        lanes = f", lanes={self.lanes}" if self.lanes > 1 else ""
        return (
            f"block_shuffle(seed={self.seed}, {blocks}, window_blocks={self.window_blocks}{lanes})"
        )

    @property
    def written(self) -> str:
        if self.block is not None:
            return self.label
        return f"block_shuffle(seed={self.seed}, window_blocks={self.window_blocks})"

    def to_parent(self, at: Positions) -> Positions:
        return Positions(at.epochs, self.order.at(at.seed_epochs(), at.offsets))
