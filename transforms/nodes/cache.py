"""A stream whose elements are kept in memory, so that later passes over it read nothing."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from windrow.transforms.moves import Moved, Moves
from windrow.transforms.nodes.streams import StreamNode, origin
from windrow.transforms.row_blocks import Block, Blocks, Inputs


@dataclasses.dataclass(frozen=True, eq=False)
class CacheNode(StreamNode):
    """The parent's elements, which are kept during the first whole pass of a run.

    A pass that does not begin at the start keeps nothing. What is kept is a copy, and what is given of
    it is another: the consumer may change elements. Later passes give the same rows with the same
    marks again (`gives_again`), so the states that these marks name must be kept.
    """

    looks_at_values: ClassVar[bool] = False
    keeps_values: ClassVar[bool] = True
    gives_again: ClassVar[bool] = True
    takes_no_planning: ClassVar[bool] = True
    label: ClassVar[str] = "cache"
    follows_shard: ClassVar[bool] = True

    def blocks(self, position: Sequence[int], inputs: Inputs, unit: int | None) -> Blocks:
        kept = inputs.kept()
        if list(position) != origin(self.parent):
            yield from inputs.blocks(0, position, unit)
            return
        if kept.blocks is None:
            found: list[Block] = []
            for block in inputs.blocks(0, position, unit):
                found.append(copy.deepcopy(block))
                yield block
            kept.blocks = found
            return
        for block in kept.blocks:
            yield copy.deepcopy(block)

    def position_after(
        self, position: Sequence[int], count: int, moves: Moves, unit: int | None
    ) -> Moved:
        return moves.after(0, position, count, unit)
