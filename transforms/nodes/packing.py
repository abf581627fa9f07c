"""Packed rows: documents side by side in rows of one length, planned from their lengths.

Invariant: a row has each token of its pieces once, in one run for each piece, and zeros elsewhere.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from windrow.core import native
from windrow.errors import ArgumentError, PlanError
from windrow.sources.base import ArraySpec, IntArray
from windrow.sources.ragged_column import PiecePlaces, PlacedColumn
from windrow.transforms import packed_values
from windrow.transforms.arguments import at_least
from windrow.transforms.nodes.metadata import known_spec
from windrow.transforms.nodes.planned import Pieces, PlannedNode
from windrow.transforms.packed_values import Array, RowMemory, Runs
from windrow.transforms.packing import MOST_ROW_LENGTH, GroupPlan, TooLong, plan_rows
from windrow.transforms.positions import Positions
from windrow.transforms.specs import Spec
from windrow.transforms.tables import Columnar, Listed, Table

BEST_FIT: Final = "best_fit_decreasing"
IDS, POSITIONS = "_segment_ids", "_positions"
ENOUGH: Final = 16_384
"""Documents that are planned together at least, unless windows are so few."""
# Made only if they are given a name.
SHIFTED, SHIFTED_IDS = "_shifted", "_shifted_segment_ids"

MAXTEXT: Final[Mapping[str, tuple[str, ...]]] = {
    "tokens": ("inputs",),
    "tokens_segment_ids": ("inputs_segmentation",),
    "tokens_positions": ("inputs_position", "targets_position"),
    "tokens_shifted": ("targets",),
    "tokens_shifted_segment_ids": ("targets_segmentation",),
}
"""The names that MaxText's trainer takes."""


@dataclasses.dataclass(frozen=True, eq=False)
class PackNode(PlannedNode):
    """Rows of `row_length` tokens, packed with documents of windows of the parent's elements.

    Args:
        row_length: Tokens of a row.
        max_segments: The most pieces of a row; None for no limit.
        names: Other names of what a row has; an array may have several.
    """

    row_length: int
    max_segments: int | None
    names: Mapping[str, tuple[str, ...]]

    packs: ClassVar[bool] = True
    who: ClassVar[str] = "pack"

    def check(self) -> None:
        at_least(1, self.row_length, "pack: row_length")
        if self.row_length > MOST_ROW_LENGTH:
            raise PlanError(
                f"pack: row_length must be at most {MOST_ROW_LENGTH}, got {self.row_length}"
            )
        if self.max_segments is not None:
            at_least(1, self.max_segments, "pack: max_segments")
        spec = known_spec(self.parent)
        if isinstance(spec, dict):
            sequences = packed_values.sequences_in(spec, self.sequences)
            self._check_features(set(spec) - set(sequences))
        if spec is not None:
            self.spec([spec])  # wrong names

    @property
    def arguments(self) -> str:
        segments = "" if self.max_segments is None else f", max_segments={self.max_segments}"
        some = "" if self.sequences is None else f", sequences={list(self.sequences)}"
        return (
            f"{self.row_length}, window={self.window}, method={BEST_FIT},"
            f" too_long={self.too_long.value}{segments}{some}, seed={self.seed}"
        )

    # --- what comes out --------------------------------------------------------------------------

    def spec(self, parents: Sequence[Spec]) -> Spec:
        given = parents[0]
        leaves = given if isinstance(given, dict) else {"tokens": given}
        sequences = packed_values.sequences_in(leaves, self.sequences)
        found: dict[str, Any] = {}
        for name, leaf in leaves.items():
            if not isinstance(leaf, ArraySpec):
                raise PlanError(
                    f"pack: {name!r} is {leaf!r}; an element must be an array, or a dict of arrays"
                    " and numbers: make it one in a map before"
                )
            if name not in sequences:
                found[name] = ArraySpec((self.max_segments, *leaf.shape), leaf.dtype)
                continue
            own = ArraySpec((self.row_length, *leaf.shape[1:]), leaf.dtype)
            number = ArraySpec((self.row_length,), np.int32)
            found |= {name: own, name + IDS: number, name + POSITIONS: number}
            found |= {name + SHIFTED: own, name + SHIFTED_IDS: number}
        return self._renamed(found)

    def _renamed(self, found: dict[str, Any]) -> dict[str, Any]:
        """The parts of a row by the names that the user gave."""
        unknown = set(self.names) - set(found)
        if unknown:
            raise PlanError(
                f"pack: names has {sorted(unknown)}, but a row has {sorted(found)}; give other"
                " names to these"
            )
        out: dict[str, Any] = {}
        for name, part in found.items():
            optional = name.endswith((SHIFTED, SHIFTED_IDS)) and name not in self.names
            for number, other in enumerate(() if optional else self.names.get(name, (name,))):
                if other in out:
                    raise PlanError(f"pack: two parts of a row have the name {other!r}")
                # Each has memory of its own, which a consumer may change.
                is_second = number > 0 and isinstance(part, np.ndarray)
                out[other] = part.copy() if is_second else part
        return out

    def _check_features(self, features: set[str]) -> None:
        if features and self.max_segments is None:
            raise PlanError(
                f"pack: documents have features {sorted(features)}, one for each piece of a row;"
                " give max_segments=, the most pieces of a row, or leave them out in a map before"
            )

    # --- plans -----------------------------------------------------------------------------------

    @functools.cached_property
    def unit(self) -> int:
        # Small windows are planned together, since the last row of a plan is not full.
        return self.window * max(1, ENOUGH // self.window)

    @property
    def longest(self) -> int:
        return self.row_length

    def refusal(self, length: int) -> str:
        return (
            f"has {length} tokens, more than a row of {self.row_length}; choose a longer"
            " row, or too_long='split', 'truncate' or 'drop'"
        )

    def planned(self, lengths: IntArray, number: tuple[int, int]) -> GroupPlan:
        return plan_rows(
            lengths,
            self.row_length,
            too_long=self.too_long,
            most_pieces=self.max_segments,
            window=self.window,
            seed=self.seed,
            number=number,
        )

    # --- values ----------------------------------------------------------------------------------

    def to_parts(self, at: Positions) -> tuple[Positions, IntArray, PiecePlaces | None]:
        pieces = self.pieces_of(at)
        rows = self.rows_of(pieces)
        if self.lengths is not None or self.sequences is not None or native.native() is None:
            return rows, pieces.bounds, None  # lengths may be others than in the source
        row_of = np.repeat(np.arange(len(at)), np.diff(pieces.bounds))
        targets = pieces.of("places") + row_of * self.row_length
        cells = len(at) * self.row_length
        places = PiecePlaces(pieces.of("starts"), pieces.of("lengths"), targets, cells)
        return rows, pieces.bounds, places

    def gather_at(self, table: Table, bounds: Sequence[int], at: Positions) -> Table:
        placed = _placed(table)
        if placed is not None:
            each = np.diff(bounds)
            tree = self._in_places(placed, np.asarray(bounds), len(at))
            return Columnar(tree, len(at), None if each.all() else each > 0)
        pieces = self.pieces_of(at)
        if not table.rows:
            return Listed([None] * len(at))
        given = packed_values.named_columns(
            table, "pack", lambda row: self.named(self.element_of(pieces, row))
        )
        tree = self._rows(given, pieces, len(at))
        present = np.diff(pieces.bounds) > 0
        return Columnar(tree, len(at), None if present.all() else present)

    def _in_places(
        self, given: Mapping[str, PlacedColumn], bounds: IntArray, rows: int
    ) -> dict[str, Any]:
        """Rows whose tokens are in their places already."""
        found: dict[str, Any] = {}
        numbers = np.arange(1, bounds[-1] + 1) - np.repeat(bounds[:-1], np.diff(bounds))
        shape = rows, self.row_length
        for name, column in given.items():
            tokens = column.values.reshape(*shape, *column.values.shape[1:])
            runs = Runs(column.places.starts, column.places.targets, column.places.lengths, shape)
            runs.clear_others(tokens)
            memory = RowMemory(RowMemory.bytes_of(rows * self.row_length, 0))
            found |= self._sequence(name, tokens, runs.numbered(numbers, memory))
        return self._renamed(found)

    def _sequence(self, name: str, tokens: Array, numbers: tuple[Array, Array]) -> dict[str, Any]:
        ids, positions = numbers
        found = {name: tokens, name + IDS: ids, name + POSITIONS: positions}
        if {name + SHIFTED, name + SHIFTED_IDS} & set(self.names):
            after, ids_after = packed_values.shifted(tokens, ids)
            found |= {name + SHIFTED: after, name + SHIFTED_IDS: ids_after}
        return found

    def _rows(self, given: Mapping[str, Any], pieces: Pieces, rows: int) -> dict[str, Any]:
        each = np.diff(pieces.bounds)
        row_of = np.repeat(np.arange(rows), each)
        number = np.arange(len(row_of)) - np.repeat(pieces.bounds[:-1], each)
        starts, lengths = pieces.of("starts"), pieces.of("lengths")
        places = pieces.of("places") + row_of * self.row_length
        sequences = packed_values.chosen(given, self.known_sequences, "pack")
        self._check_features(set(given) - sequences)
        found: dict[str, Any] = {}
        for name, column in given.items():
            if name not in sequences:
                shape = rows, self.max_segments or 1
                found[name] = packed_values.features_of(
                    column, name, "pack", (row_of, number), shape
                )
                continue
            documents = packed_values.end_to_end(column, name, "pack")
            self.mismatch(pieces, documents.lengths, name)
            shape = rows, self.row_length
            runs = Runs(documents.bounds[:-1] + starts, places, lengths, shape)
            item_bytes = documents.values.dtype.itemsize * math.prod(documents.values.shape[1:])
            memory = RowMemory(RowMemory.bytes_of(rows * self.row_length, item_bytes))
            tokens = runs.copied(documents.values, memory)
            found |= self._sequence(name, tokens, runs.numbered(number + 1, memory))
        return self._renamed(found)


def _placed(table: Table) -> dict[str, PlacedColumn] | None:
    """The sequences of documents by name, if their parts are in their places already."""
    tree = table.tree if isinstance(table, Columnar) else None
    named = tree if isinstance(tree, dict) else {"tokens": tree}
    found = {name: each for name, each in named.items() if isinstance(each, PlacedColumn)}
    return found if len(found) == len(named) else None


def checked_names(names: Any) -> dict[str, tuple[str, ...]]:
    """The names that a user gives to the parts of a row.

    Raises:
        ArgumentError: If they are not strings by strings.
    """
    if names is None:
        return {}
    if names == "maxtext":
        return dict(MAXTEXT)
    if not isinstance(names, Mapping):
        raise ArgumentError(f"pack: names must be a dict of names, or 'maxtext', got {names!r}")
    found = {k: (v,) if isinstance(v, str) else v for k, v in names.items()}
    for name, others in found.items():
        are_several = isinstance(others, (tuple, list)) and len(others) > 0
        if not are_several or not all(isinstance(each, str) for each in (name, *others)):
            raise ArgumentError(
                f"pack: names must be strings, or tuples of strings, got {name!r}: {others!r}"
            )
    return {name: tuple(others) for name, others in found.items()}


def checked_sequences(sequences: Any, who: str) -> tuple[str, ...] | None:
    """The names of sequences that a user gives.

    Raises:
        ArgumentError: If they are not strings.
    """
    if sequences is None:
        return None
    if isinstance(sequences, str) or not all(isinstance(name, str) for name in sequences):
        raise ArgumentError(f"{who}: sequences must be a list of names, got {sequences!r}")
    return tuple(sequences)


def checked_too_long(too_long: Any) -> TooLong:
    """What becomes of documents longer than a row, as a user gives it.

    Raises:
        ArgumentError: If it is another value.
    """
    try:
        return TooLong(too_long)
    except ValueError:
        kinds = ", ".join(repr(kind.value) for kind in TooLong)
        raise ArgumentError(f"pack: too_long must be one of {kinds}, got {too_long!r}") from None
