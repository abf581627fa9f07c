"""Nodes whose elements are parts of one element of the parent: sequences cut to pieces.

Several pieces come from one element, which is read once for all that are asked for together.

Invariant: the pieces of an element, end to end, are the element.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from windrow.errors import ElementError, PlanError
from windrow.sources.base import ArraySpec, IntArray
from windrow.sources.ragged_column import RaggedColumn, copy_runs
from windrow.transforms import columns, specs, tables
from windrow.transforms.arguments import at_least
from windrow.transforms.columns import Column
from windrow.transforms.lengths import RecordLengths
from windrow.transforms.nodes.base import VAST, Node
from windrow.transforms.nodes.metadata import known_lengths, known_spec
from windrow.transforms.nodes.regroup import PieceNode
from windrow.transforms.nodes.whole_chain import sources_of
from windrow.transforms.positions import Positions
from windrow.transforms.specs import Spec
from windrow.transforms.tables import Columnar, Listed, Table

# Epochs whose pieces are kept: the one in which a stream is, and the one after it.
_EPOCHS = 2


class _EpochPieces(NamedTuple):
    """The pieces of an epoch: lengths of its elements, and the piece at which each ends."""

    lengths: IntArray
    ends: IntArray


@dataclasses.dataclass(frozen=True, eq=False)
class ChunksNode(PieceNode):
    """Sequences in pieces of `size` items; the last piece of a sequence may have fewer.

    Args:
        size: Items of a piece.
        measured: The chain before it, whole also where a worker has a part of it.
        given: Lengths of records that the user gives: see `RecordLengths`.
        sequences: Keys of the leaves that are cut; None to know them by their specs.
    """

    size: int
    measured: Node
    given: Any = None
    sequences: tuple[str, ...] | None = None
    _found: dict[Any, Any] = dataclasses.field(init=False, repr=False, default_factory=dict)

    def count(self) -> int:
        at_least(1, self.size, "chunks_of: size")
        if self.parent.length >= VAST:
            raise PlanError(
                "chunks_of: the dataset before it is endless; call repeat() after chunks_of"
            )
        object.__setattr__(self, "length", 0)
        return self._counted(0)

    def _counted(self, epoch: Any) -> int:
        ends = self._pieces(epoch).ends
        return int(ends[-1]) if len(ends) else 0

    @property
    def label(self) -> str:
        some = "" if self.sequences is None else f", sequences={list(self.sequences)}"
        return f"chunks_of({self.size}{some})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_found": {}}  # found again in the other process

    # --- which pieces ----------------------------------------------------------------------------

    def _pieces(self, epoch: Any) -> _EpochPieces:
        """The pieces of an epoch.

        Raises:
            PlanError: If lengths are not known.
        """
        found: _EpochPieces | None = self._found.get(epoch)
        if found is None:
            known = self._found.get("known")
            if known is None:
                known = RecordLengths(sources_of(self.measured), self.given)
                self._found["known"] = known
            rows = np.arange(self.measured.length)
            at = Positions(np.full(len(rows), epoch, np.array(epoch).dtype), rows)
            lengths = known_lengths(self.measured, at, known) if len(rows) else rows
            found = _EpochPieces(lengths, np.cumsum(-(-lengths // self.size)))
            for old in [key for key in self._found if key != "known"][: 1 - _EPOCHS]:
                self._found.pop(old, None)
            self._found[epoch] = found
        return found

    def _of_epoch(self, epoch: Any) -> _EpochPieces:
        found = self._pieces(epoch)
        if self._counted(epoch) != self.length:
            raise PlanError(
                f"chunks_of: epoch {epoch} has {self._counted(epoch):,} pieces and epoch 0 has"
                f" {self.length:,}, since they have other elements; call chunks_of before what"
                " chooses them (a slice of a shuffle, a mix)"
            )
        return found

    def _places(self, at: Positions) -> tuple[IntArray, IntArray, IntArray]:
        """The parent's offset of each position, where its piece begins, and the whole length."""
        rows, firsts, lengths = (np.zeros(len(at), np.int64) for _ in range(3))
        for epoch in np.unique(at.epochs).tolist():
            mine = np.flatnonzero(at.epochs == epoch)
            pieces = self._of_epoch(epoch)
            offsets = at.offsets[mine]
            # Sequences without items have no piece: the search passes over them.
            row: IntArray = np.searchsorted(pieces.ends, offsets, side="right")
            rows[mine], lengths[mine] = row, pieces.lengths[row]
            before = pieces.ends[row] - -(-pieces.lengths[row] // self.size)
            firsts[mine] = (offsets - before) * self.size
        return rows, firsts, lengths

    def to_whole(self, at: Positions) -> tuple[Positions, IntArray]:
        rows, _, _ = self._places(at)
        is_new = np.ones(len(at), np.bool_)
        is_new[1:] = (rows[1:] != rows[:-1]) | (at.epochs[1:] != at.epochs[:-1])
        return Positions(at.epochs[is_new], rows[is_new]), np.cumsum(is_new) - 1

    def lengths_of(self, at: Positions, known: RecordLengths) -> IntArray:
        _, firsts, lengths = self._places(at)
        found: IntArray = np.minimum(self.size, lengths - firsts)
        return found

    # --- values ----------------------------------------------------------------------------------

    def spec(self, parents: Sequence[Spec]) -> Spec:
        names = self._names(parents[0])

        def cut(leaf: Any) -> Any:
            if not isinstance(leaf, ArraySpec) or not leaf.shape:
                return leaf
            return ArraySpec((None, *leaf.shape[1:]), leaf.dtype, leaf.dims)

        if not isinstance(parents[0], dict):
            return specs.mapped(cut, parents[0])
        return {
            key: specs.mapped(cut, leaf) if names is None or key in names else leaf
            for key, leaf in parents[0].items()
        }

    def _names(self, spec: Spec | None) -> frozenset[str] | None:
        """Keys of the leaves to cut: those given, or those whose length is not fixed; None: all."""
        if self.sequences is not None:
            return frozenset(self.sequences)
        if not isinstance(spec, dict):
            return None
        varied = frozenset(
            key
            for key, leaf in spec.items()
            if isinstance(leaf, ArraySpec) and leaf.shape and leaf.shape[0] is None
        )
        return varied or None

    def cut(self, table: Table, which: IntArray, at: Positions) -> Table:
        if not len(at):
            return Listed([])
        _, firsts, lengths = self._places(at)
        pieces = _Cuts(which, firsts, np.minimum(self.size, lengths - firsts), lengths)
        found = tables.single(table)
        if isinstance(found, Columnar) and found.present is None:
            tree = found.tree
        else:
            values = tables.elements(found)
            if tables.any_absent(values):
                raise ElementError(
                    "chunks_of: an element is absent (a function returned None); leave it out"
                    " before lengths are counted"
                )
            tree = columns.listed(values, strict=False)
        if not isinstance(tree, dict):
            return _table(pieces.of(tree, "the element", must=True), len(at))
        names = self._names(known_spec(self.measured))
        if names is not None and not names <= tree.keys():
            raise ElementError(
                f"chunks_of: sequences are {sorted(names)}, but elements have {sorted(tree)}; name"
                " keys of the elements in sequences="
            )
        made = {
            key: columns.map_columns(
                functools.partial(
                    pieces.of if names is None or key in names else pieces.taken,
                    name=f"leaf {key!r}",
                    must=names is not None,
                ),
                part,
            )
            for key, part in tree.items()
        }
        return Columnar(made, len(at))

    # --- how it runs -----------------------------------------------------------------------------

    keeps_values: ClassVar[bool] = False


class _Cuts(NamedTuple):
    """Which rows are cut, and where: int64 arrays, one entry for each piece."""

    which: IntArray
    firsts: IntArray
    sizes: IntArray
    lengths: IntArray

    def of(self, column: Column, name: str, must: bool) -> Column:
        """The pieces of a column of sequences.

        Args:
            column: The column.
            name: Its name, for messages.
            must: Whether it must be one of sequences; else others are given with each piece.
        """
        if isinstance(column, np.ndarray) and column.ndim > 1:
            rows, items = column.shape[:2]
            values = column.reshape(rows * items, *column.shape[2:])
            column = RaggedColumn(values, np.arange(rows + 1) * items)
        if isinstance(column, RaggedColumn):
            self._check(column.lengths, name)
            found = RaggedColumn.empty(self.sizes, column.values.shape[1:], column.values.dtype)
            starts = column.bounds[:-1][self.which] + self.firsts
            copy_runs(column.values, starts, found.values, found.bounds[:-1], self.sizes)
            return found
        if not isinstance(column, list) or not all(_is_sequence(row, must) for row in column):
            if must:
                raise ElementError(
                    f"chunks_of: {name} is not a sequence; elements must be arrays, strings or bytes,"
                    " or dicts of arrays: name those to be cut in sequences="
                )
            return self.taken(column, name, must)
        self._check(np.array(list(map(len, column)), np.int64), name)
        spans = zip(self.which.tolist(), self.firsts.tolist(), self.sizes.tolist(), strict=True)
        return [_owned(column[row][first : first + size]) for row, first, size in spans]

    def taken(self, column: Column, name: str, must: bool) -> Column:
        """What is not cut is given with each piece."""
        if isinstance(column, list):
            return [_owned(column[row]) for row in self.which.tolist()]
        return columns.taken(column, self.which)

    def _check(self, found: IntArray, name: str) -> None:
        wrong = np.flatnonzero(found[self.which] != self.lengths)
        if len(wrong):
            at = int(wrong[0])
            raise ElementError(
                f"chunks_of: {name} has length {found[self.which[at]]}, but its length was given as"
                f" {self.lengths[at]}; count lengths again (windrow.lengths), or name the leaves to"
                " be cut in sequences="
            )


def _is_sequence(row: Any, strings: bool) -> bool:
    return isinstance(row, (bytes, str)) if strings and np.ndim(row) == 0 else _has_axis(row)


def _has_axis(row: Any) -> bool:
    return isinstance(row, np.ndarray) and row.ndim > 0


def _owned(piece: Any) -> Any:
    return piece.copy() if isinstance(piece, np.ndarray) else piece


def _table(column: Column, rows: int) -> Table:
    return Listed(column) if type(column) is list else Columnar(column, rows)
