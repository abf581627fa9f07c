"""The base of all nodes, and the protocol that a node follows.

A chain is a tree of nodes, each a frozen value over its `parents`. A node has random access (its
`length` is the elements of one epoch) or is a stream (its `length` is `STREAM`, and it has an order
and a position instead of indices). Whatever else the package must know of a node is one of its
methods, or a function in `reading.py` or `metadata.py`. A new node is a class in a file of its own,
and a method of a dataset that makes it.

Contract of a node:
1. It is a frozen dataclass with `eq=False`. Its fields say what it does; they never change.
2. `count()` checks the fields, with a PlanError or an ArgumentError, and returns the length.
3. `label` names the node with all fields that decide which elements come, in which order. Labels
   are in states: the label of a node that is in use never changes by a byte.
4. No method reads a record. Only the methods of 6, 7 and 8, and a selection map, call functions of
   the user. All are deterministic: they may be called again, on any thread, in another process.
5. With random access a node derives from one of these classes and adds the method that is named:
   - `LeafNode.table(at)`: elements out of nothing but their positions.
   - `IndexNode.to_parent(at)`: positions in the parent. A node that reorders is a permutation of
     each epoch, whatever the length.
   - `RoutingNode.route(at)`: for each position which parent, and the position in that parent.
   - `JoinNode.join(tables)`: elements out of the elements that all parents have at one index.
   - `RegroupNode.to_rows(at)` and `gather(table, bounds)`: elements out of several of the parent.
   - `PieceNode.to_whole(at)` and `cut(table, which, at)`: elements that are parts of the parent's.
   - `ValueNode.apply(table, indices, cuts)`: element `i` out of element `i` of the parent.
     `EachNode.results(values, indices)` is the same for a function of one element.
   Positions are int64 arrays of epochs and offsets, with `0 <= offsets < length`, also where a node
   returns them for its parent. The arrays may be empty.
6. `ValueNode.apply` makes row `k` of row `k` and its index alone; absent rows stay absent. On a
   stream the engine runs it on blocks of any size. `stream_step` says what else it needs there.
7. A node of a stream whose `stream_step` is `Step.OWN` makes its rows by itself: `blocks(position, inputs,
   unit)` is a generator of blocks. Each row has a mark, the position at which `blocks` starts with the row
   after it. Blocks may have any sizes, also 0.
8. A position is the positions of all parents that are streams, one after the other, and then
   `position_width` integers of the node itself; a stream starts where all are 0. Positions are
   states: `position_width`, and what the integers mean, never change. What a position does not say
   is made again from the parents.
   `position_after` moves a position without running `blocks`, to what `blocks` would give. A block's
   `made_of` has the elements that each row is made of. None in place of either means unknown.
9. When something raises, `blocks` has yielded every whole row before it.
10. `spec`, `layout`, `elements`, `is_endless` and `element_bytes` answer from metadata and lengths alone.
    `chooses` and `made_from` (`windrow.transforms.nodes.planned`) say which one element each is made of.
    The defaults are safe: they say that nothing is known. What a node says of itself is believed.
11. `lengths_of(at, known)`, of a node that knows, says how long elements at positions are, or raises a
    PlanError. It reads nothing and calls no function. It checks that lengths are known for no positions, too.
12. Boxes of elements: a node that `keeps_elements` passes them on; another one is a `MakesBoxes`, or takes
    whole elements (`windrow.transforms.nodes.dealing`). Boxes never change which elements come.
13. What only some nodes know is not here. They derive from `DealtToLanes`, `Numbers`, `MakesBoxes`,
    `MakesBatches`, `JoinsLanes` or `GivesSeed`, or have the methods of a protocol, such as the
    protocols of `windrow.transforms.nodes.metadata`. A function, such as `element_bytes`, asks any node.
14. `functions`: the user's functions that it calls. A node with some runs in workers, so it must pickle.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from windrow.errors import PlanError
from windrow.transforms.amounts import Amount
from windrow.transforms.layouts import Layout
from windrow.transforms.moves import Moved, Moves
from windrow.transforms.nodes.following import (
    MakesBatches,
    check_shards,
    parents_of,
)
from windrow.transforms.row_blocks import Block, Blocks, Inputs, Step
from windrow.transforms.specs import Spec

if TYPE_CHECKING:
    from windrow.transforms.nodes.caught import Catch

Indices = npt.NDArray[Any]
"""Indices of elements: int64 `(n,)`, Python ints where those do not fit, or positions `(n, width)`."""

STREAM: Final = -1
ENDLESS: Final = sys.maxsize
# No chain is as long, unless it repeats for ever.
VAST: Final = 2**48


class RowShare(NamedTuple):
    """Rows `[low, high)` of each `size` rows."""

    size: int
    low: int
    high: int


@dataclasses.dataclass(frozen=True, eq=False)
class Node(abc.ABC):
    """A node of a chain. Immutable; `length` is the elements in one epoch, or `STREAM`."""

    parents: tuple[Node, ...]
    length: int = dataclasses.field(init=False)
    caught: Catch | None = dataclasses.field(default=None, kw_only=True, repr=False)
    """On a stream, which errors of its function drop an element; None where they are raised."""

    position_width: ClassVar[int] = 0
    """Integers that the node adds to the positions of its parents, on a stream."""
    drops: ClassVar[bool] = False
    """Whether it may leave elements out: they are absent, and a stream skips them."""
    needs_many: ClassVar[bool] = False
    """Whether it may take many elements of its parent before it gives one."""
    looks_at_values: ClassVar[bool] = True
    """Whether `blocks` decides by the elements themselves: see `blocks_without_values`."""
    keeps_elements: ClassVar[bool] = False
    """Whether each element is, as it is, an element of a parent."""
    keeps_values: ClassVar[bool] = False
    """Whether its elements are its parents' elements, in another order or in containers."""
    keeps_epochs: ClassVar[bool] = False
    """Whether one epoch of the node is one epoch of its parent, however often that repeats."""
    makes_values: ClassVar[bool] = False
    """Whether an element is made from the element of the parent at the same index."""
    chooses: ClassVar[bool] = False
    """Whether each element is some element of a parent, chosen by positions alone."""
    has_same_indices: ClassVar[bool] = False
    """Whether it has one parent, and each of its elements belongs to the parent's at the same index."""
    shuffles: ClassVar[bool] = False
    """Whether it changes the order of what the parent gives, and nothing else."""
    has_gaps: ClassVar[bool] = False
    """Whether indices without elements lie between others: see `windrow.transforms.nodes.dealing`."""
    counts_rows: ClassVar[bool] = False
    """Whether its own integer only counts rows, which are its parent's."""
    takes_bad: ClassVar[bool] = False
    """Whether rows before it that raise are isolated, and left out or replaced."""
    is_unseen: ClassVar[bool] = False
    """Whether it changes only how elements are made, and not which elements come."""
    is_half: ClassVar[bool] = False
    """Whether one method of a dataset makes it, and the node after it."""
    hides_parents: ClassVar[bool] = False
    """Whether its parents are not run as nodes, because a node of the user asks them itself."""
    seed_depth: ClassVar[int] = 1
    """How much deeper its parents are than it is, where the depth decides a derived seed."""
    packs: ClassVar[bool] = False
    """Whether a row is made of several elements one after the other; see `Block.made_of`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "parents", parents_of(self))
        object.__setattr__(self, "length", self.count())
        check_shards(self.parents, self)

    # --- what it is ------------------------------------------------------------------------------

    @property
    def parent(self) -> Node:
        """The one parent of a node that has one."""
        return self.parents[0]

    @abc.abstractmethod
    def count(self) -> int:
        """Check the arguments of the node, with a PlanError, and return its length. Called once."""

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """What it does, with all that decides the order: for printing and the fingerprint."""

    @property
    def written(self) -> str:
        """The node as its user wrote it, with the names of functions."""
        return self.label

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The functions of the user that it calls on elements."""
        return ()

    @property
    def follows_batch(self) -> bool:
        """Whether an element is made of one element alone, without its index, or is that element.

        The last batch of a chain may have such nodes after it: see `windrow.transforms.nodes.tail`.
        """
        return False

    @property
    def follows_shard(self) -> bool:
        """Whether numbers alone decide which elements come, and a row is made of one row alone."""
        return self.keeps_elements

    # --- what comes out --------------------------------------------------------------------------

    def spec(self, parents: Sequence[Spec]) -> Spec:
        """The spec of an element, of the specs of the parents' elements.

        Raises:
            PlanError: If that is not known before an element is made.
        """
        if self.keeps_elements:
            return parents[0]
        raise PlanError(f"element_spec: {self.label} has none")

    def layout(self) -> Layout:
        """The blocks of elements that are stored together, from the sources on.

        Raises:
            PlanError: If the node hides them, or a source does not declare them.
        """
        own = "give block=, the number of consecutive elements that are read together"
        if not self.parents:
            raise PlanError(
                f"block_shuffle: {self.label} does not declare which records lie together; {own}"
            )
        raise PlanError(
            f"block_shuffle: {self.label} has no single layout; block-shuffle each of its"
            f" datasets before it, or {own}"
        )

    def is_endless(self) -> bool:
        """Whether it repeats for ever, or is part of what does."""
        if self.length == STREAM:
            return math.isinf(self.elements().high)
        return self.length >= VAST and any(parent.is_endless() for parent in self.parents)

    # --- how many --------------------------------------------------------------------------------

    def elements(self) -> Amount:
        """The number of elements: an interval where a filter decides, infinite where they never end."""
        if self.length == STREAM:
            return fewest([parent.elements() for parent in self.parents])
        return Amount.exactly(math.inf if self.is_endless() else self.length)

    def never_ends(self) -> bool:
        """Whether a stream has no last element."""
        return bool(self.parents) and all(parent.never_ends() for parent in self.parents)

    # --- how it runs -----------------------------------------------------------------------------

    @property
    def stream_step(self) -> Step:
        """How it runs on a stream."""
        return Step.OWN

    def blocks(self, position: Sequence[int], inputs: Inputs, unit: int | None) -> Blocks:
        """The rows of a stream from a position on: see the contract, 7 to 9.

        Args:
            position: `width` integers.
            inputs: The parents' rows.
            unit: Rows that the next batch takes at a time, if nothing in between drops or reorders
                rows. A node that yields its parents' rows passes it on.
        """
        raise TypeError(f"{type(self).__name__} is not a node of a stream")

    def position_after(
        self, position: Sequence[int], count: int, moves: Moves, unit: int | None
    ) -> Moved | None:
        """The place at least one element after a position of a stream: see `transforms.moves`.

        None if only running `blocks` shows it. `unit` is as in `blocks`.
        """
        is_same = self.stream_step is Step.NOTHING
        return moves.after(0, position, count, unit) if is_same else None

    @property
    def width(self) -> int:
        """Integers in the position of a stream: its own, after the integers of its parents."""
        if self.length != STREAM:
            return 0
        parents = () if self.hides_parents else self.parents
        return self.position_width + sum(parent.width for parent in parents)


def split_position(node: Node, position: Sequence[int]) -> list[Sequence[int]]:
    """The parents' parts of a position, then the node's own integers.

    The parents of a node that hides them are at their start.
    """
    if node.hides_parents:
        return [*([0] * parent.width for parent in node.parents), position]
    parts, start = [], 0
    for parent in node.parents:
        parts.append(position[start : start + parent.width])
        start += parent.width
    return [*parts, position[start:]]


def blocks_without_values(
    node: Node, position: Sequence[int], inputs: Inputs, unit: int | None
) -> Blocks:
    """Rows of a dry run, whose elements have sizes and no values: see `Node.blocks`.

    A node that `looks_at_values` gives a row for each row of its parents, and marks that are not
    positions.
    """
    if isinstance(node, MakesBatches):
        yield from node.blocks_without_values(position, inputs, unit)
        return
    if not node.looks_at_values:
        yield from node.blocks(position, inputs, unit)
        return
    *parts, _ = split_position(node, position)
    for number, part in enumerate(parts):
        for block in inputs.blocks(number, part):
            yield Block(block.table, np.zeros((len(block), node.width), np.int64))


def fewest(amounts: Sequence[Amount]) -> Amount:
    """The number of elements of what ends with the first of its parts."""
    return Amount(min(part.low for part in amounts), min(part.high for part in amounts))
