"""The batch node of one shard: of each batch only the rows that one process takes.

Invariant: the rows of shards `0, ..., count - 1` of a batch, end to end, are the rows of the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from windrow.errors import ArgumentError, PlanError
from windrow.transforms import columns
from windrow.transforms.amounts import Amount
from windrow.transforms.nodes.base import STREAM, IntArray, Node, Where
from windrow.transforms.nodes.regroup import BatchNode
from windrow.transforms.nodes.streams import as_batch, lanes_of, topmost_batch
from windrow.transforms.positions import Positions
from windrow.transforms.row_blocks import Step
from windrow.transforms.tables import Listed, Table

B = TypeVar("B", bound=BatchNode)


@dataclasses.dataclass(frozen=True, eq=False)
class ShardBatchNode(BatchNode):
    """Rows `[shard * size / shards, (shard + 1) * size / shards)` of each batch.

    Args:
        shard: Number of the shard, in `[0, shards)`.
        shards: Number of shards; it divides `size`.
        lead: Rows of batch 0, if that is not a whole batch: a run that was restored inside a
            batch, after its size was changed, begins there. Less than `size`.
        agree: Decides with the other shards whether there is another batch: see `IterDataset.shard`.
    """

    shard: int = 0
    shards: int = 1
    lead: int = 0
    agree: Callable[[bool], bool] | None = None

    def count(self) -> int:
        whole = super().count()
        if whole == STREAM or not self.lead:
            return whole
        rest = self.parent.length - self.lead
        return 1 + (rest // self.size if self.drop_remainder else -(-rest // self.size))

    @property
    def written(self) -> str:
        shown = super().written
        return shown if self.shards == 1 else f"{shown}.shard({self.shard}, {self.shards})"

    @property
    def group_size(self) -> int:
        return self.size // self.shards

    def _rows(self) -> int | None:
        whole = super()._rows()
        return self.size // self.shards if whole == self.size else None

    def element_bytes(self) -> Amount | None:
        whole = super().element_bytes()
        return whole if whole is None or self.shards == 1 else whole.times(1 / self.shards)

    def slots(self) -> tuple[int, int]:
        """The rows `[start, stop)` that the shard takes of each batch."""
        part = self.size // self.shards
        return self.shard * part, (self.shard + 1) * part

    def first_row(self, batch: int) -> int:
        """The row of the parent at which a batch begins."""
        if not self.lead:
            return batch * self.size
        return self.lead + (batch - 1) * self.size if batch else 0

    def to_rows(self, at: Positions) -> tuple[Positions, IntArray]:
        """The parent's positions for the rows of the shard, and the bounds of each batch in them.

        A batch without rows of the shard gets its first row, which `gather_at` takes away again.
        """
        starts, counts = self._spans(at)
        taken = np.maximum(counts, 1)
        bounds = np.concatenate([[0], np.cumsum(taken)])
        inside = np.arange(bounds[-1]) - np.repeat(bounds[:-1], taken)
        return Positions(np.repeat(at.epochs, taken), np.repeat(starts, taken) + inside), bounds

    def _spans(self, at: Positions) -> tuple[IntArray, IntArray]:
        length = self.parent.length
        # The given size may not fit into int64.
        size, (low, high) = min(self.size, length), (min(n, length) for n in self.slots())
        begins = at.offsets * size
        ends = np.minimum(begins + size, length)
        if self.lead:
            begins = np.maximum(begins - (size - self.lead), 0)
            ends = np.where(at.offsets == 0, self.lead, np.minimum(begins + size, length))
        counts = np.clip(ends - begins - low, 0, high - low)
        return np.where(counts > 0, begins + low, begins), counts

    def gather_at(self, table: Table, bounds: Sequence[int], at: Positions) -> Table:
        made = self.gather(table, bounds)
        empty = np.flatnonzero(self._spans(at)[1] == 0)
        if not len(empty) or not isinstance(made, Listed):
            return made
        batches = list(made.elements)
        for number in empty.tolist():
            batches[number] = self.emptied(batches[number])
        return Listed(batches)

    def emptied(self, batch: Any) -> Any:
        """A batch without rows, or of padding alone, like another batch."""
        if self.padding is not None and self.is_padded:
            return self.padding.without_rows(batch, self.group_size)
        return without_rows(batch)

    def runs_as(self, where: Where) -> str:
        if self.shards == 1:
            return super().runs_as(where)
        low, high = self.slots()
        rows = f"rows {low} to {high - 1} of each batch of {self.size}"
        if self.length != STREAM:
            return f"{rows}, nothing is read for others"
        lanes = lanes_of(self.parents, "batch")
        mine = range(low * lanes // self.size, -(-high * lanes // self.size))
        shown = f"lane {mine[0]}" if len(mine) == 1 else f"lanes {mine[0]} to {mine[-1]}"
        if lanes % self.shards:
            return f"{rows}, of {shown} of {lanes}; shards that share a lane each run it"
        return f"{rows}, of {shown} of {lanes}; no other lane is run"


def without_rows(batch: Any) -> Any:
    """A batch of no rows: the tree, dtypes and shapes of another batch."""
    return columns.map_columns(lambda column: column[:0], batch)


def sharded(node: Node, shard: int, shards: int, agree: Callable[[bool], bool] | None) -> Node:
    """The chain that makes one shard of each batch of another chain.

    Raises:
        ArgumentError: If a number is not in its range, or `agree` cannot be called.
        PlanError: If there is no batch that may be sharded, or its size does not divide.
    """
    if shards < 1 or not 0 <= shard < shards:
        raise ArgumentError(
            f"shard: index={shard} and count={shards} do not fit; choose count of at least 1 and"
            " 0 <= index < count"
        )
    if agree is not None and not callable(agree):
        raise ArgumentError(f"shard: agree must be a function of a bool, or None, got {agree!r}")
    return _over_shard(node, shard, shards, agree)


def _over_shard(node: Node, shard: int, shards: int, agree: Callable[[bool], bool] | None) -> Node:
    batch = as_batch(node)
    if batch is not None:
        return _shard_of(batch, shard, shards, agree)
    if (
        shards > 1
        and topmost_batch(node) is not None
        and node.functions
        and node.stream_step is not Step.GROUPS
    ):
        raise PlanError(
            f"shard: {node.written} comes after the last batch, and may read all of its rows;"
            " move it before batch, or write it as map(..., batched=True), which promises that"
            " rows are independent"
        )
    if not node.follows_batch:
        raise PlanError(
            f"shard: needs a batch that ends the chain, to take rows of it, but {node.written}"
            " comes there; write .batch(global_batch_size).shard(index, count)"
        )
    moved = node.over((_over_shard(node.parent, shard, shards, agree),))
    if moved.length != STREAM:
        object.__setattr__(moved, "length", moved.parent.length)
    return moved


def _shard_of(
    node: BatchNode, shard: int, shards: int, agree: Callable[[bool], bool] | None
) -> Node:
    if node.shards > 1:
        raise PlanError(f"shard: {node.written} is a shard already; call shard once")
    if node.size % shards:
        fits = [n for n in range(1, node.size + 1) if node.size % n == 0]
        near = min(fits, key=lambda n: abs(n - shards))
        more = -(-node.size // shards) * shards
        raise PlanError(
            f"shard: batch({node.size}) has no equal parts for {shards} shards; choose a batch of"
            f" {more} rows, or {near} shards"
        )
    if shards > 1 and node.batch_fn is not None:
        raise PlanError(
            f"shard: {node.written} makes a batch of all rows by a function; leave out batch_fn, and"
            " write it as map(..., batched=True) after the batch, for rows that are independent"
        )
    return another_batch(node, ShardBatchNode, shard=shard, shards=shards, agree=agree)


def another_batch(node: BatchNode, kind: type[B], **more: Any) -> B:
    """The same batch as a node of another class, with more fields."""
    names = {field.name for field in dataclasses.fields(kind) if field.init}
    given = {f.name: getattr(node, f.name) for f in dataclasses.fields(node) if f.init}
    return kind(**{**{name: given[name] for name in given if name in names}, **more})
