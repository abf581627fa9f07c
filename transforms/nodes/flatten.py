"""Nodes that make several elements of one: `flat_map`, and the rows of batches.

On a stream, a function first makes a list of each element, block by block and in workers as any map;
then the items of the lists are given out one by one. With random access each element has a fixed
number of slots, and those without an item are absent.

Invariant: items come in the order of their elements and, of one element, in the order it gave them.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from windrow.errors import ElementError, PlanError
from windrow.sources.base import ArraySpec, IntArray
from windrow.transforms import columns, specs, tables
from windrow.transforms.amounts import Amount
from windrow.transforms.arguments import at_least
from windrow.transforms.functions import call_without_stop, name_of
from windrow.transforms.lengths import RecordLengths
from windrow.transforms.made_of import MadeOf
from windrow.transforms.moves import Moved, Moves
from windrow.transforms.nodes.base import ENDLESS, VAST, Indices, Node
from windrow.transforms.nodes.following import JoinsLanes, as_last, group_size
from windrow.transforms.nodes.idle import watch_of
from windrow.transforms.nodes.index import IndexNode
from windrow.transforms.nodes.metadata import element_bytes, epoch_length
from windrow.transforms.nodes.regroup import BatchNode
from windrow.transforms.nodes.streams import StreamNode, as_batch, as_chain
from windrow.transforms.nodes.values import EachNode, declared_spec
from windrow.transforms.positions import Positions, positions, run_numbers
from windrow.transforms.pytrees import Pytree, Unstacked
from windrow.transforms.row_blocks import (
    Block,
    Blocks,
    Inputs,
    check_inside,
    place_text,
    places,
)
from windrow.transforms.specs import Spec
from windrow.transforms.tables import Columnar, Listed, Table

# Items that are given out as one block, unless one element has more.
_ITEMS: Final = 1 << 16


def _holds_pytrees(tree: Any) -> bool:
    return isinstance(tree, Pytree) or any(map(_holds_pytrees, columns.children_of(tree) or ()))


def _items(function: Callable[[Any], Iterable[Any]], element: Any) -> list[Any]:
    """The items that a function makes of an element."""
    made = call_without_stop(function, element)
    try:
        each = iter(made)
    except TypeError:
        raise ElementError(
            f"flat_map({name_of(function)}) returned {columns.spec(made)}, which is not iterable;"
            " return a list of new elements, which may be empty"
        ) from None
    return list(each)


def _no_lengths(who: str) -> PlanError:
    return PlanError(
        f"lengths: {who} decides by a function how many elements there are and how long they are;"
        " plan from lengths before it, or cut sequences with chunks_of"
    )


# --- on a stream ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class FlatMapNode(EachNode):
    """The list of the items that a function makes of an element. A `FlattenNode` comes after it.

    Its spec is a list that holds the spec of an item.
    """

    is_half: ClassVar[bool] = True
    label: ClassVar[str] = "flat_map"

    def spec(self, parents: Sequence[Spec]) -> Spec:
        return [declared_spec(self.label, self.function, "FlatMap", parents)]

    def results(self, values: list[Any], indices: Indices) -> Iterator[Any]:
        return (_items(self.function, value) for value in values)

    def lengths_of(self, at: Positions, known: RecordLengths) -> IntArray:
        raise _no_lengths(self.written)


class SpreadNode(StreamNode):
    """Several elements, or none, of each element of the parent.

    Its own integer is the number of items that were given of the next element; the parent's position
    is the one before that element.
    """

    position_width: ClassVar[int] = 1
    needs_many: ClassVar[bool] = True

    @abc.abstractmethod
    def items(self, table: Table) -> Iterator[tuple[Table, IntArray]]:
        """The items of consecutive rows, some rows at a time.

        Returns:
            The items of some of the rows, from the first row on, and how many each row has.
        """

    def blocks(self, position: Sequence[int], inputs: Inputs, unit: int | None) -> Blocks:
        before, given = np.array(position[:-1], np.int64), position[-1]
        watch = watch_of(self, inputs)
        for block in inputs.blocks(0, position[:-1]):
            row = 0
            try:
                for items, counts in self.items(block.table):
                    after = block.marks[row : row + len(counts)]
                    known = block.made_of
                    if known is not None:
                        known = self.made_of(known.sliced(row, row + len(counts)), counts)
                    made = Block(items, _marks_of_items(before, after, counts), known)
                    if given:
                        check_inside(given, int(counts[0]))
                        made, given = made.sliced(given, len(made)), 0
                    row += len(counts)
                    before = after[-1]
                    watch.saw(len(counts), bool(counts.any()), after)
                    if len(made):
                        yield made
            except ElementError as error:
                place = place_text(places(block)[row])
                error.add_note(f"windrow: raised in {self.label} for {place}")
                raise
        check_inside(given, 1)

    def made_of(self, rows: MadeOf, counts: IntArray) -> MadeOf:
        """What the items are made of, of rows that have `counts` items."""
        return rows.spread(counts)

    def elements(self) -> Amount:
        most = self.parent.elements().high
        # How many there are is not known; `VAST` stands for any finite number.
        return Amount(0, min(most * VAST, VAST) if math.isfinite(most) else most)


def _marks_of_items(before: IntArray, after: IntArray, counts: IntArray) -> IntArray:
    """Marks of the items of some elements, which have `counts` items.

    Args:
        before: The parent's position before the first element.
        after: The parent's positions after each.
        counts: Items of each.
    """
    rows = np.repeat(np.arange(len(counts)), counts)
    given = run_numbers(counts, 1)
    is_last = given == counts[rows]
    parents = np.concatenate([before[None], after])[rows + is_last]
    return np.column_stack([parents, np.where(is_last, 0, given)])


@dataclasses.dataclass(frozen=True, eq=False)
class FlattenNode(SpreadNode):
    """The items of the lists that the parent makes, one by one."""

    label: ClassVar[str] = "flatten"

    @property
    def written(self) -> str:
        return self.parent.written

    def spec(self, parents: Sequence[Spec]) -> Spec:
        return parents[0][0]

    def items(self, table: Table) -> Iterator[tuple[Table, IntArray]]:
        lists = [found or [] for found in tables.elements(table)]  # none of an absent element
        counts = np.array(list(map(len, lists)), np.int64)
        cuts = np.flatnonzero(np.diff(np.cumsum(counts) // _ITEMS)) + 1
        for start, stop in itertools.pairwise([0, *cuts.tolist(), len(lists)]):
            if stop > start:
                items = list(itertools.chain.from_iterable(lists[start:stop]))
                yield Listed(items), counts[start:stop]


@dataclasses.dataclass(frozen=True, eq=False)
class UnbatchNode(SpreadNode):
    """The rows of batches. Batches of arrays are not taken apart: their rows are views."""

    is_half: ClassVar[bool] = True
    takes_no_planning: ClassVar[bool] = True
    keeps_values: ClassVar[bool] = True
    looks_at_values: ClassVar[bool] = False
    label: ClassVar[str] = "unbatch"
    written: ClassVar[str] = "rebatch"

    def spec(self, parents: Sequence[Spec]) -> Spec:
        def row(leaf: Any) -> Any:
            if isinstance(leaf, ArraySpec) and leaf.shape:
                dims = None if leaf.dims is None else leaf.dims[1:]
                return ArraySpec(leaf.shape[1:], leaf.dtype, dims)
            raise PlanError(
                f"element_spec: rebatch does not know what the rows of {leaf} are, {specs.READ_ONE}"
            )

        return specs.mapped(row, parents[0])

    def element_bytes(self) -> Amount | None:
        batch, rows = element_bytes(self.parent), _batch(self.parent)
        if batch is None or rows is None or not rows.group_size:
            return None
        return batch.times(1 / rows.group_size)

    def elements(self) -> Amount:
        batch = _batch(self.parent)
        if batch is None:
            return super().elements()
        found, size = self.parent.elements(), batch.group_size
        if batch.is_padded:
            return found.times(size)
        rows = batch.parent.elements()
        return Amount(min(found.low * size, rows.low), min(found.high * size, rows.high))

    def items(self, table: Table) -> Iterator[tuple[Table, IntArray]]:
        for batch in tables.elements(table):
            if batch is None:
                yield Listed([]), np.zeros(1, np.int64)
                continue
            tree = columns.map_columns(_rows_of, columns.columns_in(batch))
            leaves = columns.leaves_of(tree)
            kinds = (list, columns.SizedColumn)
            rows = [len(n) if isinstance(n, kinds) or np.ndim(n) else None for n in leaves]
            if not leaves or None in rows or len(set(rows)) > 1:
                raise ElementError(
                    f"rebatch: {columns.spec(batch)} is not a batch, whose leaves have one number of"
                    " rows; rebatch takes batches, and batch takes single elements"
                )
            count = rows[0] or 0
            whole = Columnar(tree, count)
            # Columns of a chain have no containers that JAX alone knows.
            some = _holds_pytrees(tree)
            yield Listed(tables.elements(whole)) if some else whole, np.array([count])

    def made_of(self, rows: MadeOf, counts: IntArray) -> MadeOf:
        return rows.ungrouped(counts)

    @property
    def has_known_rows(self) -> bool:
        """Whether the number of rows is known without the elements."""
        return self._known_batch is not None

    @functools.cached_property
    def _known_batch(self) -> Node | None:
        """The node whose batches are the parent's elements; None if a function can change them."""
        node = self.parent
        while group_size(node) is None and not node.functions:
            if not node.follows_batch and as_chain(node) is None:
                return None
            node = node.parent
        return None if node.functions else node

    def position_after(
        self, position: Sequence[int], count: int, moves: Moves, unit: int | None
    ) -> Moved | None:
        batch = self._known_batch
        if batch is None or (size := group_size(batch)) is None:
            return None
        if isinstance(batch, JoinsLanes) and as_last(batch).fixed_rows is None:
            return None  # each batch after the end of a lane has fewer rows
        before, given = position[:-1], position[-1]
        whole, rest = divmod(given + count, size)
        # Only the last batch may have fewer rows, and how many is not known here.
        needed = whole + 1 + (rest > 0)
        found = 0
        with contextlib.suppress(Exception):  # of a batch that may come after those that are passed
            found = moves.after(0, before, needed).passed
        if found < needed:
            return None
        return Moved([*moves.after(0, before, whole).position, rest], count)


def _rows_of(leaf: Any) -> Any:
    return leaf.rows if isinstance(leaf, Unstacked) else leaf


def _batch(node: Node) -> BatchNode | None:
    """The batch that makes the elements of a node, as far as that is known."""
    while not node.functions and group_size(node) is None:
        if not (node.follows_batch or getattr(node, "is_start", False)):
            break
        node = node.parent
    return as_batch(node)


# --- with random access --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class SlotsNode(IndexNode):
    """Each element of the parent `slots` times in a row."""

    is_half: ClassVar[bool] = True

    slots: int

    def count(self) -> int:
        at_least(1, self.slots, "flat_map: max_fan_out")
        return min(ENDLESS, self.slots * self.parent.length)

    @property
    def label(self) -> str:
        return f"slots({self.slots})"

    def to_parent(self, at: Positions) -> Positions:
        if self.length < ENDLESS:
            return Positions(at.epochs, at.offsets // self.slots)
        return positions(at.flat(self.length) // self.slots, self.parent.length)

    def length_of_pass(self, parents: Sequence[int]) -> int:
        return self.slots * parents[0]

    def epoch_length(self) -> int:
        return self.slots * epoch_length(self.parent) if self.is_endless() else self.length


@dataclasses.dataclass(frozen=True, eq=False)
class SlotMapNode(EachNode):
    """The item of a slot, of those that a function makes of an element; absent if there are fewer."""

    slots: int

    drops: ClassVar[bool] = True

    @property
    def label(self) -> str:
        return f"flat_map(max_fan_out={self.slots})"

    def spec(self, parents: Sequence[Spec]) -> Spec:
        return declared_spec(self.label, self.function, "FlatMap", parents)

    def results(self, values: list[Any], indices: Indices) -> Iterator[Any]:
        last, items = None, list[Any]()
        for value, index in zip(values, indices.tolist(), strict=True):
            number, slot = divmod(index, self.slots)
            if number != last:  # slots of an element that come together share one call
                items = _items(self.function, value)
                if len(items) > self.slots:
                    raise ElementError(
                        f"flat_map({name_of(self.function)}) made {len(items)} elements of element"
                        f" {number}, more than max_fan_out={self.slots}; raise max_fan_out, or use"
                        " to_iter_dataset().flat_map, which has no bound"
                    )
                last = number
            yield items[slot] if slot < len(items) else None

    def lengths_of(self, at: Positions, known: RecordLengths) -> IntArray:
        raise _no_lengths(self.written)
