"""Values of planned rows: runs of the documents' tokens, copied to their places in the rows.

All rows of a read batch are made together: the tokens of all documents lie end to end in one array,
and the runs of all pieces are copied in one call, by the native core or by NumPy.

Invariant: what a row holds depends on its plan and its documents alone, not on the other rows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.core import buffer_pool, native
from windrow.errors import ElementError
from windrow.sources.base import ArraySpec, IntArray
from windrow.sources.ragged_column import RaggedColumn, copy_runs
from windrow.transforms import columns, tables
from windrow.transforms.tables import Columnar, Table

Array = npt.NDArray[Any]

_ALIGNED_BYTES: Final = 64


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Runs of tokens and where they go in an array of cells, row after row.

    Args:
        starts: int64 `(runs,)`, the first token of each run, in all documents end to end.
        places: int64 `(runs,)`, the cell that it goes to.
        lengths: int64 `(runs,)`, its tokens.
        shape: Rows, and cells of a row.
    """

    starts: IntArray
    places: IntArray
    lengths: IntArray
    shape: tuple[int, int]

    def _spread(self, starts: IntArray) -> IntArray:
        """The numbers from each of `starts` on, as many as the run has tokens."""
        ends = np.cumsum(self.lengths)
        shift = np.repeat(starts - (ends - self.lengths), self.lengths)
        spread: IntArray = np.arange(len(shift)) + shift
        return spread

    def copied(self, values: Array, memory: RowMemory, fill: int = 0) -> Array:
        """The tokens in their rows: `(rows, cells, ...)` of the dtype of `values`.

        Args:
            values: The tokens of all documents end to end.
            memory: Where the rows are made.
            fill: Fills cells without a token.
        """
        rows, cells = self.shape
        out = memory.array((rows, cells, *values.shape[1:]), values.dtype)
        flat = out.reshape(rows * cells, *values.shape[1:])
        item_bytes = values.dtype.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))
        core = native.native()
        if fill or core is None or not values.flags.c_contiguous or not item_bytes:
            flat[:] = fill
            copy_runs(values, self.starts, flat, self.places, self.lengths)
        elif out.size:
            # As bytes, since not every dtype has a buffer: bfloat16 has none.
            given, written = (array.reshape(-1).view(np.uint8) for array in (values, out))
            core.copy_runs(given, item_bytes, self.starts, self.places, self.lengths, written, True)
        return out

    def clear_others(self, out: Array) -> None:
        """Write 0 to the cells of `out` that no run goes to. For the native core."""
        item_bytes = out.nbytes // max(1, self.shape[0] * self.shape[1])
        core = native.native()
        if core is not None and item_bytes:
            core.clear_gaps(self.places, self.lengths, item_bytes, out.reshape(-1).view(np.uint8))

    def numbered(self, numbers: IntArray, memory: RowMemory) -> tuple[Array, Array]:
        """For each cell the number of its run, and its place in it; both are 0 where no run lies.

        Args:
            numbers: int64 `(runs,)`.
            memory: Where the result is made.

        Returns:
            Two arrays, int32 `(rows, cells)`.
        """
        ids = memory.array(self.shape, np.dtype(np.int32))
        positions = memory.array(self.shape, np.dtype(np.int32))
        core = native.native()
        if core is None:
            ids[:] = positions[:] = 0
            cells = self._spread(self.places)
            ids.reshape(-1)[cells] = np.repeat(numbers, self.lengths)
            positions.reshape(-1)[cells] = self._spread(np.zeros(len(self.lengths), np.int64))
        elif ids.size:
            core.number_runs(self.places, self.lengths, numbers, ids, positions)
        return ids, positions


class RowMemory:
    """Memory for the arrays of some rows, in one piece.

    A large piece is used again when nothing refers to its arrays any more, and smaller pieces would
    not be: see `windrow.core.buffer_pool`.
    """

    def __init__(self, size_bytes: int) -> None:
        """Take memory for arrays of this many bytes; further arrays get memory of their own."""
        self._left = buffer_pool.empty((size_bytes,), np.uint8)

    def array(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """An array that is not initialized."""
        size = math.prod(shape) * dtype.itemsize
        taken = -(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES
        if not size or taken > len(self._left):
            return np.empty(shape, dtype)
        part, self._left = self._left[:size], self._left[taken:]
        return part.view(dtype).reshape(shape)

    @staticmethod
    def bytes_of(cells: int, item_bytes: int) -> int:
        """Bytes for tokens, ids and positions of `cells` cells."""
        return cells * (item_bytes + 8) + 3 * _ALIGNED_BYTES


def shifted(tokens: Array, ids: Array) -> tuple[Array, Array]:
    """For each cell the token after it in its piece, and the id of the piece.

    Both are 0 at the last token of a piece, which has none after it, and where no piece lies.
    """
    after = np.zeros_like(tokens)
    after[:, :-1] = tokens[:, 1:]
    stays = np.zeros(ids.shape, np.bool_)
    stays[:, :-1] = (ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] > 0)
    after[~stays] = 0
    return after, np.where(stays, ids, np.int32(0))


# --- documents -----------------------------------------------------------------------------------


def named_columns(table: Table, who: str, place: Callable[[int], str]) -> dict[str, Any]:
    """The columns of documents by name; documents that are arrays have the name `tokens`.

    Args:
        table: The documents.
        who: What needs them, for errors.
        place: Names the document of a row of the table, for errors.

    Raises:
        ElementError: If a document is absent, or is neither an array nor a dict of arrays.
    """
    whole = tables.single(table)
    if isinstance(whole, Columnar) and whole.present is None:
        tree = whole.tree
    else:
        values = tables.elements(whole)
        if tables.any_absent(values):
            row = next(row for row, value in enumerate(values) if value is None)
            raise ElementError(
                f"{who}: {place(row)} is absent (a function returned None), but its length is"
                " given; leave it out of the dataset before"
            )
        tree = columns.columns_of(values)
    if not isinstance(tree, dict):
        has_trees = isinstance(tree, list) and any(isinstance(row, (dict, tuple)) for row in tree)
        if has_trees or columns.children_of(tree) is not None:
            raise _not_documents(tree, who)
        return {"tokens": tree}
    for name, column in tree.items():
        if columns.children_of(column) is not None or not isinstance(name, str):
            raise _not_documents(tree, who)
    return tree


def _not_documents(tree: Any, who: str) -> ElementError:
    return ElementError(
        f"{who}: an element must be an array, or a dict of arrays and numbers with names as keys,"
        f" got columns {columns.spec(tree)}; make it one in a map before, and give the lengths"
    )


def sequences_in(leaves: Mapping[str, Any], given: tuple[str, ...] | None) -> tuple[str, ...]:
    """The names of sequences: those given, or what has a first axis of no fixed length, or any axis.

    Args:
        leaves: The spec of a document, by name.
        given: What the user gives.
    """
    if given is not None:
        return given
    arrays = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, ArraySpec)}
    varied = tuple(name for name, leaf in arrays.items() if leaf.shape and leaf.shape[0] is None)
    return varied or tuple(name for name, leaf in arrays.items() if leaf.shape)


def known_sequences(spec: Any, given: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The names of sequences, if the user or the spec of a document says them."""
    if given is not None or spec is None:
        return given
    return sequences_in(spec if isinstance(spec, dict) else {"tokens": spec}, None)


def chosen(given: Mapping[str, Any], known: tuple[str, ...] | None, who: str) -> set[str]:
    """The names of the columns that are sequences: where they are not known, those with an axis.

    Raises:
        ElementError: If a known name is missing, or no column is a sequence.
    """
    if known is None:
        found = {name for name, column in given.items() if _has_axis(column)}
    else:
        found = set(known)
    if not found or not found <= set(given):
        raise ElementError(
            f"{who}: documents have {sorted(given)}, and the sequences are {sorted(found)}; a"
            " sequence is an array whose first axis is as long as the document: name them in"
            " sequences="
        )
    return found


def _has_axis(column: Any) -> bool:
    if isinstance(column, RaggedColumn):
        return True
    if isinstance(column, np.ndarray):
        return column.ndim > 1
    return not isinstance(column[0], (bytes, str)) and np.ndim(column[0]) > 0


def end_to_end(column: Any, name: str, who: str) -> RaggedColumn:
    """The sequences of a column, one after the other.

    Raises:
        ElementError: If they are not arrays, or differ in dtype or in the shape of an item.
    """
    if isinstance(column, RaggedColumn):
        return column
    if isinstance(column, np.ndarray):
        rows, items = column.shape[:2]
        values = column.reshape(rows * items, *column.shape[2:])
        return RaggedColumn(values, np.arange(rows + 1) * items)
    rows = [row if isinstance(row, np.ndarray) else np.asarray(row) for row in column]
    kinds = {(row.dtype, row.shape[1:]) for row in rows if row.ndim}
    if len(kinds) > 1 or not all(row.ndim for row in rows) or rows[0].dtype.hasobject:
        odd = {f"{row.dtype} {row.shape}" for row in rows[:1000]}
        raise ElementError(
            f"{who}: the sequences {name!r} must be arrays of one dtype that differ in their first"
            f" axis only, got {', '.join(sorted(odd)[:4])}; convert them in a map before"
        )
    bounds = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return RaggedColumn(np.concatenate(rows), bounds)


def features_of(
    column: Any, name: str, who: str, at: tuple[IntArray, IntArray], shape: tuple[int, int]
) -> Array:
    """Features of documents in the rows of their pieces: `(rows, most pieces, ...)`, else zeros.

    Args:
        column: One feature for each piece.
        name: Its name.
        who: What needs it, for errors.
        at: The row of each piece, and its number in the row.
        shape: Rows, and the most pieces of a row.

    Raises:
        ElementError: If they are not numbers or arrays of one shape and dtype.
    """
    values = columns.column_of(column) if isinstance(column, list) else column
    if isinstance(values, list) or values.dtype.hasobject:
        raise ElementError(
            f"{who}: feature {name!r} is {columns.spec(column[0])}; a feature of a document must be"
            " a number or an array of one shape and dtype: convert it, or leave it out, in a map"
            " before"
        )
    out = np.zeros((*shape, *values.shape[1:]), values.dtype)
    out[at] = values
    return out
