"""What may follow a batch: nodes that leave it the last one, and nodes that take its elements.

The last batch of a chain has only nodes after it that make each element of one element (`follows_batch`).
A node of any other kind takes the batches as the elements of a stream of one lane: `joined` puts the
node in that makes such batches of the rows of all lanes. A shard has some rows of each batch. Only nodes for
which that makes no difference may follow it (`follows_shard`).

Invariant: what a node gives of a shard are the rows of the shard of what it gives of whole batches.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from windrow.errors import PlanError
from windrow.sources.base import IntArray
from windrow.transforms.row_blocks import Blocks, Inputs, Step

N = TypeVar("N")


class MakesBatches(abc.ABC):
    """A node that makes batches of elements of its parent, or one shard of each."""

    @property
    @abc.abstractmethod
    def group_size(self) -> int:
        """Elements of the parent that a batch has."""

    @abc.abstractmethod
    def rows_at(self, indices: IntArray) -> IntArray | None:
        """The number of rows of batches with random access; None if a function makes them."""

    @abc.abstractmethod
    def blocks_without_values(
        self, position: Sequence[int], inputs: Inputs, unit: int | None
    ) -> Blocks:
        """Batches of a dry run, whose rows have sizes and no values: see `Node.blocks`."""

    @property
    def shard_names(self) -> str | None:
        """Names the shards of each batch that the node makes, and their number; None for whole batches."""
        return None

    @property
    def as_last(self) -> Any:
        """The batch as it is before `joined`."""
        return self


class JoinsLanes(abc.ABC):
    """A node that joins the lanes of its parent."""

    @property
    @abc.abstractmethod
    def run_lanes(self) -> tuple[Sequence[int], int]:
        """The lanes that it runs, and the number of all."""


def group_size(node: Any) -> int | None:
    """Elements of the parent that a batch has; None for a node that makes no batches."""
    return node.group_size if isinstance(node, MakesBatches) else None


def rows_at(node: Any, indices: IntArray) -> IntArray | None:
    """The number of rows of elements of a node with random access, where these are batches.

    None if they are not, or a function of the user makes them.
    """
    while node.follows_batch and not node.functions:
        node = node.parent
    return node.rows_at(indices) if isinstance(node, MakesBatches) else None


def sets_rows(node: Any) -> bool:
    """Whether a batched function before a node gets the rows of one element of it."""
    return group_size(node) is not None or node.has_gaps


def calls_on_rows(node: Any) -> bool:
    """Whether a batched function is called, and no later batch sets its rows."""
    if sets_rows(node):
        return False
    takes_groups = node.stream_step is Step.GROUPS
    return takes_groups or any(calls_on_rows(parent) for parent in node.parents)


def shard_names(node: Any) -> str | None:
    """The names of the shards of each batch that a node makes; None for a node that makes none."""
    return node.shard_names if isinstance(node, MakesBatches) else None


def as_last(node: Any) -> Any:
    """A batch as it is before `joined`; else the node."""
    return node.as_last if isinstance(node, MakesBatches) else node


def parents_of(node: Any) -> tuple[Any, ...]:
    """The parents of a new node, with batches of lanes joined unless the node leaves them the last.

    Raises:
        PlanError: If lanes cannot be joined.
    """
    if node.follows_batch:
        return tuple(node.parents)
    return tuple(joined(parent) for parent in node.parents)


def check_shards(parents: Sequence[Any], node: Any = None, who: str = "") -> None:
    """Check that a node may come after its parents' shards.

    Args:
        parents: Its parents.
        node: The node; None for one that may not follow a shard.
        who: The node as its user wrote it, if there is no node.

    Raises:
        PlanError: If it may not, or its parents have different shards.
    """
    found = [shard_of(parent) for parent in parents]
    shard = next((each for each in found if each is not None), None)
    if shard is None:
        return
    who = who or node.written
    if node is None or not node.follows_shard:
        way = "move it before batch"
        if getattr(node, "may_be_batched", False):
            way += (
                ", or write it as map(..., batched=True), which promises that rows are independent"
            )
        elif node is not None and sets_rows(node):
            way = "call shard after it"
        raise PlanError(
            f"{who} comes after {shard.written}, which has only some rows of each batch; {way}"
        )
    names = {"no shard" if each is None else f"shard {each.shard_names}" for each in found}
    if len(names) > 1:
        raise PlanError(
            f"{who}: its datasets have different rows of their batches: {' and '.join(sorted(names))};"
            " give each the same shard(index, count), or give none of them one"
        )
    if not node.follows_batch:
        check_agreement(shard, who)


def check_agreement(shard: Any, who: str) -> None:
    """Check that the end of a chain with a shard is known without the other shards.

    Raises:
        PlanError: If it is not.
    """
    if shard.agree is not None:
        raise PlanError(
            f"{who} comes after shard(..., agree=...), which decides where the chain ends; leave agree"
            " out, or move it before batch"
        )


def shard_of(node: Any) -> Any:
    """The node of some rows of batches, whose elements are, or make, a node's; None for whole ones."""
    while shard_names(node) is None and node.parents:
        node = node.parents[0]
    return None if shard_names(node) is None else node


def joins_lanes(of_one_lane: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let `joined` call a function for the last node that elements are made by.

    `tail` has it: it knows all kinds of batch, which are nodes themselves.
    """
    global _of_one_lane
    _of_one_lane = of_one_lane
    return of_one_lane


_of_one_lane: Callable[[Any], Any]


def joined(node: Any) -> Any:
    """The stream as one of one lane, if it ends with a batch of lanes."""
    return _last_changed(node, _of_one_lane)


def as_written(node: Any) -> Any:
    """The stream that `joined` was called with."""
    return _last_changed(node, as_last)


def _last_changed(node: Any, change: Callable[[Any], Any]) -> Any:
    last = node
    while last.follows_batch:
        last = last.parent
    return replaced(node, last, change(last))


def over(node: N, parents: tuple[Any, ...]) -> N:
    """The node over other parents of the same lengths, without checking it again."""
    given: Any = node
    if all(new is old for new, old in zip(parents, given.parents, strict=True)):
        return node
    moved = copy.copy(node)
    object.__setattr__(moved, "parents", parents)
    return moved


def replaced(node: N, old: Any, new: Any) -> N:
    """The chain with another node in place of one that its first parents lead to."""
    if node is old or old is new:
        return new if node is old else node
    before: Any = node
    moved: Any = over(before, tuple(replaced(parent, old, new) for parent in before.parents))
    if moved.length not in (-1, new.length):
        object.__setattr__(moved, "length", new.length)
    found: N = moved
    return found
