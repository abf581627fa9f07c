"""The batch of one shard over rows that are planned before they are read: it makes its own rows only.

How many rows follow an index, and where they end, is known from plans. So a shard takes its rows of each batch
without the others, and all shards end at the same batch.

Users do not write this node: `tail` puts it into the chain that an iterator runs.

Invariant: a node that makes all rows, and leaves the others out, has the same batches and marks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from windrow.transforms.moves import Moved, Moves
from windrow.transforms.nodes.base import Node
from windrow.transforms.nodes.dealing import numbers_of
from windrow.transforms.nodes.shard import ShardBatchNode, another_batch
from windrow.transforms.nodes.streams import as_chain
from windrow.transforms.row_blocks import Blocks, Feed, Inputs, Step, joined


@dataclasses.dataclass(frozen=True, eq=False)
class OwnRowsBatchNode(ShardBatchNode):
    """Batches of the rows of one shard. If it `counts`, its own integer is the number of the next row.

    Its parent gives the rows of the shard; where a batch has none of them, it gives the first row of
    the batch (`ToStreamNode.of_shard`).
    """

    counts: bool = True

    @property
    def width(self) -> int:
        return self.parent.width + self.counts

    @property
    def as_last(self) -> Node:
        chain = as_chain(self.parent)
        rows = self.parent if chain is None else dataclasses.replace(chain, share=None)
        return another_batch(self, ShardBatchNode, parents=(rows,))

    stream_step: ClassVar[Step] = Step.OWN

    @property
    def _rows_of_all(self) -> Node:
        """The node with random access that has the rows of all shards."""
        return self.parent.parent

    def position_after(
        self, position: Sequence[int], count: int, moves: Moves, unit: int | None
    ) -> Moved:
        index, passed = numbers_of(self._rows_of_all).index_after(position[0], count * self.size)
        if self.drop_remainder and passed % self.size:
            index, passed = numbers_of(self._rows_of_all).index_after(
                position[0], passed - passed % self.size
            )
        return Moved([index, *(n + passed for n in position[1:])], -(-passed // self.size))

    def blocks(self, position: Sequence[int], inputs: Inputs, unit: int | None) -> Blocks:
        index, *seen = position
        ((low, high),) = self.slots()  # `of_own_rows` takes neighbours only
        feed = Feed(inputs.blocks(0, [index], high - low))
        while True:
            index, rows = numbers_of(self._rows_of_all).index_after(index, self.size)
            if not rows or (rows < self.size and self.drop_remainder):
                return
            seen = [n + rows for n in seen]
            own = min(high, rows) - min(low, rows)
            if feed.fill(max(1, own)) < max(1, own) and feed.error is not None:
                raise feed.error
            made = self.batched(joined(feed.take(max(1, own))), inputs.calling)
            mark = np.array([[index, *seen]])
            yield dataclasses.replace(made if own else self.without_rows(made), marks=mark)
