"""The batch node of shards: of each batch only the rows that one process takes.

Invariant: the rows of shards `0, ..., count - 1` of a batch, end to end, are the rows of the batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from windrow.errors import ArgumentError, PlanError
from windrow.sources.base import IntArray
from windrow.transforms import columns, tables
from windrow.transforms.amounts import Amount
from windrow.transforms.made_of import MadeOf
from windrow.transforms.nodes.base import STREAM, Node, RowShare
from windrow.transforms.nodes.following import as_last, check_agreement, joined, over, shard_of
from windrow.transforms.nodes.regroup import BatchNode
from windrow.transforms.nodes.streams import (
    as_batch,
    as_chain,
    topmost_batch,
)
from windrow.transforms.nodes.whole_chain import parents_first
from windrow.transforms.positions import Positions, positions, run_numbers
from windrow.transforms.row_blocks import Block, Blocks, Inputs, Step, groups
from windrow.transforms.tables import Listed, Table

B = TypeVar("B", bound=BatchNode)
_NO_RECORDS = MadeOf.of_elements(0, np.zeros(0, np.int64)).grouped([0, 0])


@dataclasses.dataclass(frozen=True, eq=False)
class ShardBatchNode(BatchNode):
    """Some of the equal parts of each batch.

    Part `k` of `shards` is the rows `[k * size / shards, (k + 1) * size / shards)` of a batch.

    Args:
        parts: Numbers of the parts that are taken, in `[0, shards)` and ascending.
        shards: Number of parts; it divides `size`.
        lead: Rows of batch 0, if that is not a whole batch: a run that was restored inside a
            batch, after its size was changed, begins there. Less than `size`.
        agree: Decides with the other shards whether there is another batch: see `IterDataset.shard`.
        is_even: Whether a shorter batch has equal parts too; else its parts keep the rows that they
            have in a whole batch.
    """

    parts: tuple[int, ...] = (0,)
    shards: int = 1
    lead: int = 0
    agree: Callable[[bool], bool] | None = None
    is_even: bool = False

    def count(self) -> int:
        whole = super().count()
        if whole == STREAM:
            return whole
        rest = self.parent.length - self.lead
        may_be_short = not self.drop_remainder and not self.parent.is_endless()
        if self.is_even and may_be_short and rest % self.size % self.shards:
            raise PlanError(
                f"batch({self.size}): the last batch has {rest % self.size} rows, which have no equal"
                f" parts for {self.shards} shards; write remainder='drop' or 'pad', or repeat before it"
            )
        if not self.lead:
            return whole
        return 1 + (rest // self.size if self.drop_remainder else -(-rest // self.size))

    @property
    def written(self) -> str:
        return ".".join(filter(None, [super().written, self._taken_part]))

    @property
    def shard_names(self) -> str | None:
        parts = "+".join(map(str, self.parts))
        return f"{parts}/{self.shards}" if self.shards > 1 else None

    @property
    def _taken_part(self) -> str:
        if self.shards == 1:
            return ""
        own = self.parts[0] if len(self.parts) == 1 else self.parts
        return f"shard({own}, {self.shards})"

    @property
    def group_size(self) -> int:
        return self.size // self.shards * len(self.parts)

    @property
    def fixed_rows(self) -> int | None:
        whole = super().fixed_rows
        if whole is None or (whole != self.size and not self.is_even):
            return None
        return whole // self.shards * len(self.parts)

    def element_bytes(self) -> Amount | None:
        whole = super().element_bytes()
        if whole is None or self.shards == 1:
            return whole
        return whole.times(len(self.parts) / self.shards)

    def _runs(self) -> list[tuple[int, int]]:
        """The parts as runs `[start, stop)` of neighbours."""
        found: list[tuple[int, int]] = []
        for part in self.parts:
            if found and found[-1][1] == part:
                found[-1] = found[-1][0], part + 1
            else:
                found.append((part, part + 1))
        return found

    def slots(self) -> list[tuple[int, int]]:
        """The ranges of rows `[start, stop)` that are taken of each whole batch."""
        part = self.size // self.shards
        return [(start * part, stop * part) for start, stop in self._runs()]

    def of_own_rows(self) -> Node | None:
        """The stream of the shard's rows alone; None if the rows of others must be made, too."""
        ranges = self.slots()
        chain = as_chain(self.parent)
        if chain is None or len(ranges) > 1:
            return None
        return chain.of_shard(RowShare(self.size, *ranges[0]))

    def to_rows(self, at: Positions) -> tuple[Positions, IntArray]:
        """The parent's positions for the rows of the shard, and the bounds of each batch in them.

        A batch without rows of the shard gets its first row, which `gather_at` takes away again.
        """
        starts, counts = self._spans(at)
        counts[:, 0] += counts.sum(axis=1) == 0
        taken = counts.sum(axis=1)
        flat, bounds = counts.ravel(), np.concatenate([[0], np.cumsum(taken)])
        return Positions(np.repeat(at.epochs, taken), run_numbers(flat, starts.ravel())), bounds

    def _spans(self, at: Positions) -> tuple[IntArray, IntArray]:
        """Where each run of parts begins, and its rows, for each batch: both `(batches, runs)`.

        A run without rows begins with the batch.
        """
        length = self.parent.length
        size = min(self.size, length)  # the given size may not fit into int64
        begins = at.offsets * size
        if self.lead:
            begins = np.maximum(begins - (size - self.lead), 0)
        # The end of an endless chain plus a batch does not fit into int64.
        ends = begins + np.minimum(size, length - begins)
        if self.lead:
            ends = np.where(at.offsets == 0, self.lead, ends)
        rows = (ends - begins)[:, None]
        if self.is_even:
            low, high = (
                np.array(bounds) * (rows // self.shards)
                for bounds in zip(*self._runs(), strict=True)
            )
        else:
            low, high = np.array([[min(n, length) for n in slot] for slot in self.slots()]).T
        counts = np.clip(rows - low, 0, high - low)
        return begins[:, None] + np.where(counts > 0, low, 0), counts

    def rows_at(self, indices: IntArray) -> IntArray | None:
        found = super().rows_at(indices)
        if found is None or self.is_padded:
            return found
        rows: IntArray = self._spans(positions(indices, self.length))[1].sum(axis=1)
        return rows

    def without_rows_at(self, at: Positions) -> IntArray:
        return np.flatnonzero(self._spans(at)[1].sum(axis=1) == 0)

    def gather_at(self, table: Table, bounds: Sequence[int], at: Positions) -> Table:
        made = self.gather(table, bounds)
        empty = self.without_rows_at(at)
        if not len(empty) or not isinstance(made, Listed):
            return made
        batches = list(made.elements)
        for number in empty.tolist():
            batches[number] = self.emptied(batches[number])
        return Listed(batches)

    def blocks(self, position: Sequence[int], inputs: Inputs, unit: int | None) -> Blocks:
        """The batches of a stream of one lane, whose rows are all made."""
        for group in groups(inputs.blocks(0, position, self.size), self.size):
            if len(group) < self.size and self.drop_remainder:
                return
            slots = [(low, min(high, len(group))) for low, high in self.slots()]
            own = np.concatenate([np.arange(low, max(low, high)) for low, high in slots])
            made = self.batched(
                group.taken(own if len(own) else np.zeros(1, np.int64)), inputs.calling
            )
            mark = group.marks[-1:]
            yield dataclasses.replace(made if len(own) else self.without_rows(made), marks=mark)

    def without_rows(self, made: Block) -> Block:
        """A block of one batch, without its rows."""
        table = Listed([self.emptied(batch) for batch in tables.elements(made.table)])
        return Block(table, made.marks, _NO_RECORDS)

    def emptied(self, batch: Any) -> Any:
        """A batch without rows, or of padding alone, like another batch."""
        if self.padding is not None and self.is_padded:
            return self.padding.without_rows(batch, self.group_size)
        return without_rows(batch)


def without_rows(batch: Any) -> Any:
    """A batch of no rows: the tree, dtypes and shapes of another batch."""
    tree = columns.columns_in(batch)
    return columns.element_of(columns.map_columns(lambda column: column[:0], tree))


@dataclasses.dataclass(frozen=True, slots=True)
class BatchParts:
    """The parts of each batch that a process takes.

    Args:
        parts, shards, agree, is_even: See `ShardBatchNode`.
        who: The method that asks, for errors.
    """

    parts: tuple[int, ...]
    shards: int
    agree: Callable[[bool], bool] | None = None
    is_even: bool = False
    who: str = "shard"


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
    return shared(node, BatchParts((shard,), shards, agree))


def shared(node: Node, share: BatchParts) -> Node:
    """The chain that makes some parts of each batch of another chain.

    Raises:
        PlanError: If there is no batch that has parts, or its size does not divide.
    """
    batch = as_batch(node)
    if batch is not None:
        return _share_of(batch, share)
    has_parts = share.shards > 1 and topmost_batch(node) is not None
    if has_parts and node.functions and node.stream_step is not Step.GROUPS:
        raise PlanError(
            f"{share.who}: {node.written} comes after the last batch, and may read all of its rows;"
            " move it before batch, or write it as map(..., batched=True), which promises that"
            " rows are independent"
        )
    if not node.follows_batch:
        call = "shard(index, count)" if share.who == "shard" else f"{share.who}(...)"
        raise PlanError(
            f"{share.who}: needs a batch that ends the chain, to take rows of it, but {node.written}"
            f" comes there; write .batch(global_batch_size).{call}"
        )
    moved = over(node, (shared(node.parent, share),))
    if moved.length != STREAM:
        object.__setattr__(moved, "length", moved.parent.length)
    return moved


def _share_of(node: BatchNode, share: BatchParts) -> Node:
    who, shards = share.who, share.shards
    if node.shards > 1:
        raise PlanError(f"{who}: {node.written} is a shard already; call {who} once, without shard")
    is_even = share.is_even and not node.is_padded  # padded batches are all whole
    if node.size % shards and not (is_even and node.length != STREAM):
        fits = [n for n in range(1, node.size + 1) if node.size % n == 0]
        near = min(fits, key=lambda n: abs(n - shards))
        more = -(-node.size // shards) * shards
        raise PlanError(
            f"{who}: batch({node.size}) has no equal parts for {shards} shards; choose a batch of"
            f" {more} rows, or {near} shards"
        )
    if shards > 1 and node.batch_fn is not None:
        raise PlanError(
            f"{who}: {node.written} makes a batch of all rows by a function; leave out batch_fn, and"
            " write it as map(..., batched=True) after the batch, for rows that are independent"
        )
    return another_batch(
        node,
        ShardBatchNode,
        parts=share.parts,
        shards=shards,
        agree=share.agree,
        is_even=is_even,
    )


def unshared(node: Node, who: str) -> tuple[Node, BatchParts | None]:
    """The chain with whole batches in place of the rows of a shard, and the shard.

    Raises:
        PlanError: If shards agree on the end of the chain.
    """
    shard = shard_of(node)
    if shard is None:
        return node, None
    check_agreement(shard, who)
    made: dict[int, Node] = {}
    for each in parents_first(node):
        last = as_batch(as_last(each))
        if last is not None and last.shards > 1:
            made[id(each)] = joined(another_batch(last, BatchNode))
        else:
            made[id(each)] = over(each, tuple(made[id(parent)] for parent in each.parents))
    return made[id(node)], BatchParts(shard.parts, shard.shards, who=who)


def another_batch(node: BatchNode, kind: type[B], **more: Any) -> B:
    """The same batch as a node of another class, with more fields."""
    names = {field.name for field in dataclasses.fields(kind) if field.init}
    given = {f.name: getattr(node, f.name) for f in dataclasses.fields(node) if f.init}
    return kind(**{**{name: given[name] for name in given if name in names}, **more})
