"""Regrouping nodes: elements that are made of several elements, of one parent or of several."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np

from windrow.errors import ArgumentError, ElementError, PlanError
from windrow.sources.base import IntArray
from windrow.sources.ragged_column import PiecePlaces
from windrow.transforms import columns, layouts, specs, tables
from windrow.transforms.amounts import Amount
from windrow.transforms.arguments import at_least
from windrow.transforms.columns import SizedColumn
from windrow.transforms.functions import name_of
from windrow.transforms.layouts import Layout
from windrow.transforms.made_of import side_by_side
from windrow.transforms.moves import Moved, Moves
from windrow.transforms.nodes.base import ENDLESS, STREAM, VAST, Node, split_position
from windrow.transforms.nodes.dealing import MakesBoxes
from windrow.transforms.nodes.following import MakesBatches
from windrow.transforms.nodes.index import first_elements
from windrow.transforms.nodes.metadata import (
    bytes_by_spec,
    element_bytes,
    epoch_length,
    known_spec,
)
from windrow.transforms.positions import Positions, positions, run_numbers
from windrow.transforms.record_sizes import spec_bytes
from windrow.transforms.row_blocks import (
    Block,
    Blocks,
    Feed,
    Inputs,
    Step,
    cut,
    joined,
    place_text,
    places,
    whole_groups,
)
from windrow.transforms.specs import DeclaresBatch, Spec
from windrow.transforms.tables import Columnar, Listed, Table

if TYPE_CHECKING:
    from windrow.sources.cells import Boxes

Remainder: TypeAlias = Literal["keep", "drop", "pad"]
"""What becomes of a last batch with too few elements."""

if TYPE_CHECKING:
    from windrow.transforms.padding import BatchPadding

# --- of several parents --------------------------------------------------------------------------


class JoinNode(Node):
    """Element `i` of the node is made of element `i` of all parents."""

    @abc.abstractmethod
    def join(self, parts: Sequence[Table]) -> Table:
        """Join rows into elements; each parent gives one table of them."""

    def is_endless(self) -> bool:
        return bool(self.length) and all(parent.is_endless() for parent in self.parents)


@dataclasses.dataclass(frozen=True, eq=False)
class ZipNode(MakesBoxes, JoinNode):
    """A tuple of the elements that the parents have at one index."""

    strict: bool = True

    looks_at_values: ClassVar[bool] = False
    keeps_values: ClassVar[bool] = True
    follows_shard: ClassVar[bool] = True

    def count(self) -> int:
        if not self.parents:
            raise PlanError("zip: needs at least one dataset, got none")
        lengths = [parent.length for parent in self.parents]
        if len(set(lengths)) > 1:
            raise PlanError(
                f"zip: datasets must have one length, got {lengths}; slice them to the shortest"
            )
        return self.parent.length

    @property
    def label(self) -> str:
        return f"zip({len(self.parents)}{'' if self.strict else ', strict=False'})"

    def spec(self, parents: Sequence[Spec]) -> Spec:
        return tuple(parents)

    def boxes_of_parents(self, boxes: Boxes) -> tuple[Sequence[Boxes], Boxes]:
        numbers = range(len(self.parents))
        return [{p[1:]: box for p, box in boxes.items() if p[0] == n} for n in numbers], boxes

    def element_bytes(self) -> Amount | None:
        sizes = [element_bytes(parent) for parent in self.parents]
        known = [size for size in sizes if size is not None]
        return sum(known, start=Amount.exactly(0)) if len(known) == len(sizes) else None

    def over_random_access(self, parents: tuple[Node, ...]) -> Node:
        shortest = min(parent.length for parent in parents)
        return ZipNode(tuple(first_elements(parent, shortest) for parent in parents))

    def join(self, parts: Sequence[Table]) -> Table:
        singles = [tables.single(part) for part in parts]
        trees = [t.tree for t in singles if isinstance(t, Columnar) and t.present is None]
        if len(trees) == len(singles):
            return Columnar(tuple(trees), singles[0].rows)
        return Listed(list(zip(*(tables.elements(part) for part in singles), strict=True)))

    def position_after(
        self, position: Sequence[int], count: int, moves: Moves, unit: int | None
    ) -> Moved:
        *parts, _ = split_position(self, position)
        found = [moves.after(number, part, count, unit) for number, part in enumerate(parts)]
        fewest = min(moved.passed for moved in found)
        if any(moved.passed > fewest for moved in found):
            found = [moves.after(number, part, fewest, unit) for number, part in enumerate(parts)]
        return Moved([n for moved in found for n in moved.position], fewest)

    def blocks(self, position: Sequence[int], inputs: Inputs, unit: int | None) -> Blocks:
        *parts, _ = split_position(self, position)
        feeds = [Feed(inputs.blocks(number, part, unit)) for number, part in enumerate(parts)]
        while True:
            ready: list[int] = []
            for feed in feeds:
                ready.append(feed.ready())
                if ready[-1] == 0 and not self.strict:
                    return  # the rows of the others are not used
            rows = min(ready)
            if rows == 0:
                break
            taken = [joined(feed.take(rows)) for feed in feeds]
            table = self.join([block.table for block in taken])
            known = [block.made_of for block in taken if block.made_of is not None]
            rows_of = side_by_side(known) if len(known) == len(taken) else None
            yield Block(table, np.column_stack([block.marks for block in taken]), rows_of)
        if any(ready):
            longer, shorter = next(i for i, n in enumerate(ready) if n), ready.index(0)
            raise ElementError(
                f"zip: dataset {longer} is longer than dataset {shorter}; make them equally long,"
                " or pass strict=False to stop at the shortest"
            )


# --- of one parent -------------------------------------------------------------------------------


class RegroupNode(Node):
    """One parent; each element of the node is made of several of its elements."""

    @abc.abstractmethod
    def to_rows(self, at: Positions) -> tuple[Positions, IntArray]:
        """For positions in this node: positions in the parent, and bounds in them.

        Returns:
            The parent's positions, and int64 `(len(at) + 1,)` that increases from 0: element `k` is
            made of the rows `[bounds[k], bounds[k + 1])`, at least one.
        """

    def to_parts(self, at: Positions) -> tuple[Positions, IntArray, PiecePlaces | None]:
        """`to_rows`, and where parts of the rows go; None if whole rows are wanted.

        A source that can read parts to their places then gives columns of the class `PlacedColumn`.
        """
        return *self.to_rows(at), None

    @abc.abstractmethod
    def gather(self, table: Table, bounds: Sequence[int]) -> Table:
        """Make an element of the parent's rows between each two neighbouring `bounds`."""

    def is_endless(self) -> bool:
        return bool(self.length) and self.parent.is_endless()

    def without_rows_at(self, at: Positions) -> IntArray:
        """Which of the elements at positions are made of no row, though `to_rows` has one for them."""
        return np.zeros(0, np.int64)

    def gather_at(self, table: Table, bounds: Sequence[int], at: Positions) -> Table:
        """`gather` for the positions that `to_rows` got, for a node that needs to know them."""
        return self.gather(table, bounds)


class PieceNode(Node):
    """One parent; each element of the node is a part of one of its elements."""

    @abc.abstractmethod
    def to_whole(self, at: Positions) -> tuple[Positions, IntArray]:
        """For positions in this node: positions in the parent, and which of them each is part of."""

    @abc.abstractmethod
    def cut(self, table: Table, which: IntArray, at: Positions) -> Table:
        """Make the elements at positions, of the parent's elements that `to_whole` asked for."""


def _without_values(rows: Any) -> int:
    """In place of a user's `batch_fn`: batches of these are alike, whatever their rows are."""
    return 0


@dataclasses.dataclass(frozen=True, eq=False)
class BatchNode(MakesBatches, MakesBoxes, RegroupNode):
    """Consecutive elements stacked; batches do not cross an epoch of a random-access parent."""

    size: int
    drop_remainder: bool = False
    batch_fn: Callable[[list[Any]], Any] | None = None
    padding: BatchPadding | None = None

    looks_at_values: ClassVar[bool] = False
    keeps_values: ClassVar[bool] = True

    def count(self) -> int:
        at_least(1, self.size, "batch: batch_size")
        n = self.parent.length
        if n == STREAM:
            return STREAM
        return n // self.size if self.drop_remainder else -(-n // self.size)

    @property
    def label(self) -> str:
        drop = ", drop_remainder=True" if self.drop_remainder else ""
        own = ", batch_fn" if self.batch_fn is not None else ""
        padded = "" if self.padding is None else f", {self.padding.label}"
        return f"batch({self.size}{drop}{own}{padded})"

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return () if self.batch_fn is None else (self.batch_fn,)

    @property
    def group_size(self) -> int:
        return self.size

    def of_own_rows(self) -> Node | None:
        """The stream of the rows of one shard alone; None if the rows of others must be made, too."""
        return None

    @property
    def unapplied(self) -> BatchNode:
        """The batch with the same rows that calls no function of the user."""
        return (
            self if self.batch_fn is None else dataclasses.replace(self, batch_fn=_without_values)
        )

    @property
    def shards(self) -> int:
        """Shards that each batch is cut into; the node makes one of them."""
        return 1

    @property
    def agree(self) -> Callable[[bool], bool] | None:
        """Decides with the other shards whether there is another batch."""
        return None

    @property
    def is_padded(self) -> bool:
        """Whether short batches get rows of padding, and all a mask."""
        return self.padding is not None and self.padding.mask is not None

    @property
    def stream_step(self) -> Step:
        return Step.OWN if self.batch_fn is None else Step.GROUPS

    # --- what comes out --------------------------------------------------------------------------

    def spec(self, parents: Sequence[Spec]) -> Spec:
        if self.padding is not None:
            return self.padding.spec(self.fixed_rows, parents[0])
        if self.batch_fn is None:
            return specs.stacked(self.fixed_rows, parents[0])
        name = name_of(self.batch_fn)
        own = self.batch_fn
        function = own.func if isinstance(own, functools.partial) else own
        if not isinstance(function, DeclaresBatch):
            raise PlanError(
                f"element_spec: batch_fn {name} does not declare what it makes; give it a method"
                f" output_spec(spec, batch_size, drop_remainder), {specs.READ_ONE}"
            )
        declared = function.output_spec(parents[0], self.size, self.drop_remainder)
        return specs.checked(declared, f"output_spec of {name}")

    def boxes_of_parents(self, boxes: Boxes) -> tuple[Sequence[Boxes], Boxes] | None:
        is_plain = self.batch_fn is None and (self.padding is None or self.padding.lengths is None)
        if not is_plain or not all(box[0].is_whole for box in boxes.values()):
            return None
        return [{path: box[1:] for path, box in boxes.items()}], boxes

    @property
    def fixed_rows(self) -> int | None:
        """Elements of every batch; None where the last one may have fewer."""
        length = self.parent.length
        if self.drop_remainder or self.size == 1 or self.is_padded:
            return self.size
        if length == STREAM:
            return self.size if self.parent.never_ends() else None
        if length >= ENDLESS or length % self.size == 0:
            return self.size
        return length if length < self.size else None

    def element_bytes(self) -> Amount | None:
        if self.batch_fn is not None:
            return bytes_by_spec(self)
        rows = self.size if self.length == STREAM else min(self.size, self.parent.length)
        given = known_spec(self.parent)
        if self.padding is not None and given is not None:
            padded = spec_bytes(self.padding.spec(self.size if self.is_padded else rows, given))
            if padded is not None:
                return Amount.exactly(padded)
        # A number takes less in an array than as an object.
        size = spec_bytes(given)
        row = element_bytes(self.parent) if size is None else Amount.exactly(size)
        return None if row is None else row.times(rows)

    def layout(self) -> Layout:
        return layouts.batched(self.parent.layout(), self.size, self.length)

    def length_of_pass(self, parents: Sequence[int]) -> int:
        return -(-parents[0] // self.size)

    @property
    def spans_epochs(self) -> bool:
        """Whether a batch may have records of two epochs."""
        return epoch_length(self.parent) != self.parent.length

    def epoch_length(self) -> int:
        if not self.spans_epochs:
            return self.length
        return max(1, epoch_length(self.parent) // self.size)

    def over_random_access(self, parents: tuple[Node, ...]) -> Node:
        return BatchNode(parents, self.size, self.drop_remainder)

    def elements(self) -> Amount:
        if self.length != STREAM:
            return super().elements()
        rows = self.parent.elements()
        return Amount(self._batches(rows.low), self._batches(rows.high))

    def _batches(self, rows: float) -> float:
        if math.isinf(rows) or rows == VAST:  # endless, or not known
            return rows
        return rows // self.size if self.drop_remainder else -(-rows // self.size)

    # --- how it runs -----------------------------------------------------------------------------

    def to_rows(self, at: Positions) -> tuple[Positions, IntArray]:
        """The parent's positions for batches, and the bounds of each batch in them."""
        size = min(self.size, self.parent.length)  # the given size may not fit into int64
        starts = at.offsets * size
        counts = np.minimum(size, self.parent.length - starts)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        return Positions(np.repeat(at.epochs, counts), run_numbers(counts, starts)), bounds

    def rows_at(self, indices: IntArray) -> IntArray | None:
        if self.batch_fn is not None:
            return None
        if self.is_padded:
            return np.full(len(indices), self.group_size)
        return np.diff(self.to_rows(positions(indices, self.length))[1])

    def gather(self, table: Table, bounds: Sequence[int]) -> Table:
        if self.padding is not None:
            return Listed(self.padding.batches(table, bounds, self.group_size))
        return Listed(tables.batches(table, bounds, self.batch_fn))

    def blocks(self, position: Sequence[int], inputs: Inputs, unit: int | None) -> Blocks:
        for block in whole_groups(inputs.blocks(0, position, self.size), self.size):
            if len(block) < self.size and self.drop_remainder:
                return
            table = block.table
            # Views cost nothing and cannot fail, so they come together; others are yielded when made.
            are_views = isinstance(table, Columnar) and table.present is None
            for part in [block] if are_views else cut(block, self.size):
                yield self.batched(part, inputs.calling)

    def blocks_without_values(
        self, position: Sequence[int], inputs: Inputs, unit: int | None
    ) -> Blocks:
        size = None if self.padding is None else element_bytes(self)
        for block in self.blocks(position, inputs, unit):
            if size is None:
                yield block
                continue
            padded = [_of_bytes(batch, size.high) for batch in tables.elements(block.table)]
            yield block.with_table(Listed(padded))

    def position_after(
        self, position: Sequence[int], count: int, moves: Moves, unit: int | None
    ) -> Moved | None:
        rows = moves.after(0, position, count * self.size, self.size)
        whole, rest = divmod(rows.passed, self.size)
        if rest and self.drop_remainder:
            return Moved(moves.after(0, position, whole * self.size, self.size).position, whole)
        return Moved(rows.position, whole + bool(rest))

    def batched(
        self, block: Block, calling: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> Block:
        """The batches that the rows of a block make; the last may be short.

        Args:
            block: The rows.
            calling: See `Inputs.calling`.
        """
        bounds = [*range(0, len(block), self.size), len(block)]
        try:
            with calling():
                table = self.gather(block.table, bounds)
        except Exception as error:
            first = place_text(places(block.of_rows(self.parent.counts_rows))[0])
            error.add_note(f"windrow: raised in {self.label} for the batch from {first} on")
            raise
        rows_of = None if block.made_of is None else block.made_of.grouped(bounds)
        return Block(table, block.marks[np.array(bounds[1:]) - 1], rows_of)


def _of_bytes(batch: Any, size_bytes: float) -> Any:
    """A batch of a dry run whose rows, with its mask, have a number of bytes."""
    leaves = columns.leaves_of(batch)
    mask_bytes = sum(leaf.nbytes for leaf in leaves if isinstance(leaf, np.ndarray))
    return columns.map_columns(
        lambda leaf: (
            SizedColumn(len(leaf), (size_bytes - mask_bytes) / max(1, len(leaf)))
            if isinstance(leaf, SizedColumn)
            else leaf
        ),
        batch,
    )


def batch_node(
    parent: Node,
    size: int,
    batch_fn: Callable[[list[Any]], Any] | None,
    *,
    drop_remainder: bool,
    remainder: Remainder | None,
    mask: str,
    pad_to: Any,
    pad_value: Any,
) -> BatchNode:
    """The batches that the arguments of `batch` ask for.

    Raises:
        ArgumentError: If an argument has the wrong type or contradicts another one.
        PlanError: If a size is less than 1, or `batch_fn` is combined with padding.
    """
    chosen = remainder or ("drop" if drop_remainder else "keep")
    if chosen not in ("keep", "drop", "pad"):
        raise ArgumentError(f"batch: remainder must be 'keep', 'drop' or 'pad', got {remainder!r}")
    if drop_remainder and chosen != "drop":
        raise ArgumentError(
            f"batch: drop_remainder=True contradicts remainder={chosen!r}; give one of them"
        )
    padding = None
    if chosen == "pad" or pad_to is not None:
        # Few batches are padded, and the others do not load what pads them.
        from windrow.transforms.padding import padding_given

        padding = padding_given(mask if chosen == "pad" else None, pad_to, pad_value)
    if padding is not None and batch_fn is not None:
        raise PlanError(
            f"batch: {name_of(batch_fn)} makes the batches, so they are not padded; leave out"
            " batch_fn, or pad in it"
        )
    return BatchNode((parent,), size, chosen == "drop", batch_fn, padding)
