"""Value nodes: element `i` is made of element `i` of the parent."""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from windrow.errors import PlanError
from windrow.sources.base import IntArray
from windrow.transforms import random, specs, tables
from windrow.transforms.amounts import Amount
from windrow.transforms.functions import kind_of, name_of
from windrow.transforms.layouts import Layout
from windrow.transforms.lengths import GIVE_LENGTHS, RecordLengths
from windrow.transforms.moves import Moved, Moves, after_groups
from windrow.transforms.nodes.base import STREAM, Indices, Node
from windrow.transforms.nodes.dealing import MakesBoxes
from windrow.transforms.nodes.metadata import known_lengths
from windrow.transforms.nodes.same import SameIndices
from windrow.transforms.nodes.whole_chain import follows_batch
from windrow.transforms.positions import Positions
from windrow.transforms.random import IndexedRandom
from windrow.transforms.row_blocks import BLOCK_ROWS, Step
from windrow.transforms.specs import DeclaresOutput, Spec
from windrow.transforms.tables import Listed, Table

if TYPE_CHECKING:
    from windrow.sources.cells import Boxes
    from windrow.transforms.locality import Locality


class ValueNode(SameIndices):
    """Element `i` of the node is made from element `i` of the parent."""

    keeps_epochs: ClassVar[bool] = True
    makes_values: ClassVar[bool] = True

    @abc.abstractmethod
    def apply(self, table: Table, indices: Indices, cuts: Sequence[int]) -> Table:
        """Make elements of rows of the parent; absent ones stay absent.

        Args:
            table: Rows of the parent.
            indices: Index of each row. On a stream, the number of the element if `stream_step` is
                `Step.NUMBERED`, else its place.
            cuts: Bounds of the rows that a function of many rows gets in one call.
        """

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.apply,)

    @property
    def stream_step(self) -> Step:
        return Step.ROWS

    def layout(self) -> Layout:
        return self.parent.layout()

    def lengths_of(self, at: Positions, known: RecordLengths) -> IntArray:
        if not known.are_given:
            raise PlanError(
                f"lengths: {self.written} may change them; if it does not, write map(...,"
                f" keeps_length=True), else {GIVE_LENGTHS}"
            )
        return known_lengths(self.parent, at, known)

    def made_from(self, at: Positions) -> tuple[Node, Positions]:
        return self.parent, at

    def is_endless(self) -> bool:
        return bool(self.length) and self.parent.is_endless()

    def position_after(
        self, position: Sequence[int], count: int, moves: Moves, unit: int | None
    ) -> Moved | None:
        step = self.stream_step
        if self.drops or step is Step.OWN:
            return None
        if step is Step.NUMBERED:
            moved = moves.after(0, position[:-1], count, unit)
            return Moved([*moved.position, position[-1] + moved.passed], moved.passed)
        if step is Step.GROUPS:
            rows = 1 if follows_batch(self.parent) else unit or BLOCK_ROWS
            move = lambda at, count: moves.after(0, at, count, rows)  # noqa: E731
            found = after_groups(position[:-1], position[-1], count, rows, move)
            return Moved([*found.position, found.given], found.passed)
        return moves.after(0, position, count, unit)


@dataclasses.dataclass(frozen=True, eq=False)
class FunctionNode(ValueNode):
    """Calls a function of the user."""

    function: Callable[..., Any]

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        return (self.function,)

    @property
    def written(self) -> str:
        name, _, more = self.label.partition("(")
        inside = [name_of(self.function), more.rstrip(")")]
        return f"{name}({', '.join(filter(None, inside))})"


@dataclasses.dataclass(frozen=True, eq=False)
class EachNode(FunctionNode):
    """Calls a function of the user on elements one by one, on as many threads as pay."""

    may_be_batched: ClassVar[bool] = False
    """Whether the same method takes a function of columns."""

    @abc.abstractmethod
    def results(self, values: list[Any], indices: Indices) -> Iterator[Any]:
        """Calls the function on each value that is present, lazily, in order.

        Args:
            values: Elements of the parent.
            indices: Their indices: see `ValueNode.apply`.
        """

    def made(self, table: Table, results: list[Any]) -> Table:
        """The elements, of the parent's and of the results, None where an element was absent."""
        return Listed(results)

    def apply(self, table: Table, indices: Indices, cuts: Sequence[int]) -> Table:
        """The elements, without the threads and the notes on errors that the engine adds."""
        values = tables.elements(table)
        here = [row for row, value in enumerate(values) if value is not None]
        results: list[Any] = [None] * len(values)
        for row, result in zip(
            here, self.results([values[row] for row in here], indices[here]), strict=True
        ):
            results[row] = result
        return self.made(table, results)


def declared_spec(
    label: str, function: Callable[..., Any], kind: str, parents: Sequence[Spec]
) -> Spec:
    """Return the spec that a function declares, or the transform of a kind that has it as a method.

    Raises:
        PlanError: If neither has a method `output_spec`.
    """
    name = name_of(function)
    owner = getattr(function, "__self__", None)
    if isinstance(function, DeclaresOutput):
        declaring: DeclaresOutput = function
    elif kind_of(owner) == kind and isinstance(owner, DeclaresOutput):
        declaring = owner
    else:
        raise PlanError(
            f"element_spec: {label}({name}) does not declare what it makes; give it as an object"
            f" with a method output_spec(spec), {specs.READ_ONE}"
        )
    return specs.checked(declaring.output_spec(parents[0]), f"output_spec of {name}")


def locality_after(node: Node, local: Any, halo: Any, wrap: Any) -> Locality | None:
    """The promise of a map of a node's elements: see `windrow.transforms.locality`.

    Raises:
        ArgumentError: If an argument is of a wrong kind, or does not fit the elements.
        PlanError: If a halo is negative.
    """
    if not (local or halo or wrap):
        return None
    # Few maps promise something: others do not load it.
    from windrow.transforms.locality import locality_of

    try:
        spec = grid_spec(node)
    except PlanError:
        spec = None
    return locality_of(local, halo, wrap, spec)


@dataclasses.dataclass(frozen=True, eq=False)
class LocalMap(MakesBoxes, FunctionNode):
    """A map that may promise to keep lengths, and to be local: see `windrow.transforms.locality`."""

    keeps_length: bool = False
    locality: Locality | None = None

    follows_batch: ClassVar[bool] = True

    def lengths_of(self, at: Positions, known: RecordLengths) -> IntArray:
        if self.keeps_length:
            return known_lengths(self.parent, at, known)
        return super().lengths_of(at, known)

    def spec(self, parents: Sequence[Spec]) -> Spec:
        return declared_spec(self.label, self.function, "Map", parents)

    def grid_spec(self) -> Spec:
        """The spec of an element, whose dtypes may be others: see `grid_spec`."""
        try:
            return self.spec(specs.Lazy([lambda: grid_spec(self.parent)]))
        except PlanError:
            if self.locality is None:
                raise
            return grid_spec(self.parent)  # it keeps the tree and the shapes

    def boxes_of_parents(self, boxes: Boxes) -> tuple[Sequence[Boxes], Boxes] | None:
        if self.locality is None:
            return None
        asked, made = self.locality.of_parent(boxes, self.grid_spec(), grid_spec(self.parent))
        return ([asked], made) if asked else None


def grid_spec(node: Node) -> Spec:
    """The spec of an element of any node; where a local map declares none, dtypes may be others.

    Raises:
        PlanError: If shapes are not known before an element is made.
    """
    own: Any = getattr(node, "grid_spec", None)  # of a `LocalMap`
    if own is not None:
        return own()
    return node.spec(specs.Lazy([functools.partial(grid_spec, p) for p in node.parents]))


@dataclasses.dataclass(frozen=True, eq=False)
class MapNode(LocalMap, EachNode):
    """A function of one element."""

    may_be_batched: ClassVar[bool] = True
    label: ClassVar[str] = "map"

    def results(self, values: list[Any], indices: Indices) -> Iterator[Any]:
        return map(self.function, values)


@dataclasses.dataclass(frozen=True, eq=False)
class ColumnMapNode(LocalMap):
    """A function of the columns of many elements.

    On a stream its own integer is the rows of the parent since the group of rows began.
    """

    position_width: ClassVar[int] = 1
    follows_shard: ClassVar[bool] = True
    label: ClassVar[str] = "map(batched=True)"

    @property
    def stream_step(self) -> Step:
        # Positions do not say which elements of a group were dropped, but how many elements came.
        return Step.GROUPS if self.caught is None else Step.NUMBERED

    def apply(self, table: Table, indices: Indices, cuts: Sequence[int]) -> Table:
        who = f"map({name_of(self.function)}, batched=True)"
        return tables.map_segments(self.function, table, cuts, who)


@dataclasses.dataclass(frozen=True, eq=False)
class MapWithIndexNode(EachNode):
    """A function of an element's index and the element."""

    position_width: ClassVar[int] = 1
    label: ClassVar[str] = "map_with_index"
    stream_step: ClassVar[Step] = Step.NUMBERED

    def spec(self, parents: Sequence[Spec]) -> Spec:
        return declared_spec(self.label, self.function, "MapWithIndex", parents)

    def results(self, values: list[Any], indices: Indices) -> Iterator[Any]:
        return map(self.function, indices.tolist(), values)


@dataclasses.dataclass(frozen=True, eq=False)
class RandomMapNode(EachNode):
    """A function of an element and a generator that depends on seed and index alone."""

    seed: int

    position_width: ClassVar[int] = 1
    stream_step: ClassVar[Step] = Step.NUMBERED

    @property
    def label(self) -> str:
        return f"random_map(seed={self.seed})"

    def spec(self, parents: Sequence[Spec]) -> Spec:
        return declared_spec(self.label, self.function, "RandomMap", parents)

    def results(self, values: list[Any], indices: Indices) -> Iterator[Any]:
        generators = map(IndexedRandom(self.seed).at, indices.tolist())
        return map(self.function, values, generators)


@dataclasses.dataclass(frozen=True, eq=False)
class RandomColumnMapNode(FunctionNode):
    """A function of the columns of many elements, and of the generator of each."""

    seed: int

    position_width: ClassVar[int] = 1
    stream_step: ClassVar[Step] = Step.NUMBERED

    @property
    def label(self) -> str:
        return f"random_map(seed={self.seed}, batched=True)"

    def spec(self, parents: Sequence[Spec]) -> Spec:
        return declared_spec(self.label, self.function, "RandomMap", parents)

    def apply(self, table: Table, indices: Indices, cuts: Sequence[int]) -> Table:
        def generators(rows: IntArray) -> list[np.random.Generator]:
            return [random.generator_at(self.seed, index) for index in indices[rows].tolist()]

        who = f"random_map({name_of(self.function)}, batched=True)"
        return tables.map_segments(self.function, table, cuts, who, generators)


@dataclasses.dataclass(frozen=True, eq=False)
class FilterNode(EachNode):
    """Makes elements absent for which a predicate is false; the length stays."""

    drops: ClassVar[bool] = True
    needs_many: ClassVar[bool] = True
    keeps_values: ClassVar[bool] = True
    label: ClassVar[str] = "filter"

    def spec(self, parents: Sequence[Spec]) -> Spec:
        return parents[0]

    def results(self, values: list[Any], indices: Indices) -> Iterator[Any]:
        return map(bool, map(self.function, values))

    def made(self, table: Table, results: list[Any]) -> Table:
        return tables.filtered(table, results)

    def lengths_of(self, at: Positions, known: RecordLengths) -> IntArray:
        raise PlanError(
            "lengths: a filter decides by the elements which of them are there; filter"
            " after what needs lengths, or choose by index: ds.slice([...])"
        )

    def elements(self) -> Amount:
        found = super().elements()
        return Amount(0, found.high) if self.length == STREAM else found
