"""Tables: the elements at some positions, and the operations of nodes on them.

A table is `Columnar` (columns, with a mask where a filter made rows absent), `Listed` (elements one
by one, None where absent) or `Segments` (tables end to end, one per call of a batched function).
Whatever touches elements one by one makes a `Listed`; whatever can works on columns.

Invariant: all three forms of the same elements mean the same; only `rows` of them exist.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.core.text import counted
from windrow.errors import ElementError
from windrow.sources.base import IntArray
from windrow.transforms import columns, record_sizes
from windrow.transforms.columns import Tree
from windrow.transforms.functions import call_without_stop


@dataclasses.dataclass(frozen=True, slots=True)
class Columnar:
    """Columns of `rows` elements; rows where `present` is False are absent."""

    tree: Tree
    rows: int
    present: npt.NDArray[np.bool_] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Listed:
    """Elements one by one; None where absent."""

    elements: list[Any]

    @property
    def rows(self) -> int:
        return len(self.elements)


@dataclasses.dataclass(frozen=True, slots=True)
class Segments:
    """Tables end to end."""

    tables: tuple[Columnar, ...]

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables)


Table: TypeAlias = Columnar | Listed | Segments


# --- changes of form -----------------------------------------------------------------------------


def elements(table: Table) -> list[Any]:
    """Return the elements, each in its own containers; None where absent."""
    match table:
        case Listed():
            return table.elements
        case Columnar(tree, rows, present):
            values = columns.split(tree, rows)
            if present is None:
                return values
            return [v if here else None for v, here in zip(values, present.tolist(), strict=True)]
        case Segments():
            return [element for part in table.tables for element in elements(part)]


def single(table: Table) -> Columnar | Listed:
    """Return the table without segments."""
    return joined(list(table.tables)) if isinstance(table, Segments) else table


def joined(tables: Sequence[Table]) -> Columnar | Listed:
    """Join tables end to end; columns stay columns if they agree."""
    if len(tables) == 1:
        return single(tables[0])
    bounds = np.cumsum([0, *(table.rows for table in tables)])
    parts = [
        (table, np.arange(start, stop))
        for table, (start, stop) in zip(tables, itertools.pairwise(bounds), strict=True)
        if stop > start
    ]
    return merged(parts, int(bounds[-1]))


def merged(parts: Sequence[tuple[Table, IntArray]], rows: int) -> Columnar | Listed:
    """Merge parts into one table of `rows` rows; row k of a part becomes row `at[k]`."""
    if all(isinstance(table, Columnar) and table.present is None for table, _ in parts) and parts:
        trees = [(table.tree, at) for table, at in parts if isinstance(table, Columnar)]
        tree = columns.scattered(trees, rows)
        if tree is not None:
            return Listed(tree) if type(tree) is list else Columnar(tree, rows)
    out: list[Any] = [None] * rows
    for table, at in parts:
        for i, element in zip(at.tolist(), elements(table), strict=True):
            out[i] = element
    return Listed(out)


def sliced(table: Table, start: int, stop: int) -> Columnar | Listed:
    """Rows `[start, stop)`; arrays are views. Rows of one segment stay as they are in it."""
    if isinstance(table, Segments):
        within = zip(table.tables, itertools.pairwise(_bounds(table)), strict=True)
        met = [(part, low, high) for part, (low, high) in within if low < stop and start < high]
        parts = [
            sliced(part, max(start - low, 0), min(stop, high) - low) for part, low, high in met
        ]
        return joined(parts) if parts else sliced(table.tables[0], 0, 0)
    if isinstance(table, Listed):
        return Listed(table.elements[start:stop])
    present = None if table.present is None else table.present[start:stop]
    return Columnar(columns.sliced(table.tree, start, stop), stop - start, present)


def cut(table: Table, cuts: Sequence[int]) -> list[Columnar | Listed]:
    """Return the rows between neighbouring `cuts`; a segment between two cuts stays as it is."""
    if isinstance(table, Segments):
        if _bounds(table) == list(cuts):
            return list(table.tables)
        table = single(table)  # once, not for every chunk
    return [sliced(table, start, stop) for start, stop in itertools.pairwise(cuts)]


def taken(table: Table, at: IntArray) -> Columnar | Listed:
    """Return the rows at positions `at`; columns are copied."""
    table = single(table)
    if isinstance(table, Listed):
        return Listed([table.elements[i] for i in at.tolist()])
    present = None if table.present is None else table.present[at]
    return Columnar(columns.taken(table.tree, at), len(at), present)


def without_absent(table: Table) -> tuple[Table, IntArray | None]:
    """Return the table without absent rows, and the rows that stayed; None if all stayed."""
    if isinstance(table, Segments):
        return table, None
    if isinstance(table, Columnar):
        if table.present is None:
            return table, None
        kept = np.flatnonzero(table.present)
        return Columnar(columns.taken(table.tree, kept), len(kept)), kept
    if not any_absent(table.elements):
        return table, None
    kept = np.array([i for i, e in enumerate(table.elements) if e is not None], np.int64)
    return taken(table, kept), kept


def as_columns(table: Table) -> Tree:
    """The table's columns, or a list of elements if some may be absent or their trees differ."""
    table = single(table)
    if isinstance(table, Columnar) and table.present is None:
        return columns.map_columns(_public, table.tree)
    values = elements(table)
    return values if any_absent(values) else columns.columns_of(values)


def _public(column: Any) -> Any:
    if isinstance(column, np.ndarray):
        return np.asarray(column)
    # As if its rows came one by one: the result must not depend on the grouping.
    rows = list(column)
    return columns.column_of(rows) if rows else rows


def nbytes(table: Table) -> int:
    """Approximate bytes of the table."""
    match table:
        case Listed(values):
            return record_sizes.nbytes(values)
        case Columnar(tree):
            return record_sizes.nbytes(columns.leaves_of(tree))
        case Segments(tables):
            return sum(nbytes(part) for part in tables)


def from_source(read: Any, rows: int, who: str) -> Table:
    """Convert the result of a source's `read` to a table of `rows` rows.

    Raises:
        ElementError: If it is not columns or a list of that many rows.
    """
    if type(read) is list:
        if len(read) != rows:
            raise ElementError(
                f"{who}: read returned {counted(len(read), 'record')} for {rows} indices"
            )
        return Listed(read)
    tree = columns.checked_columns(read, rows, f"{who}: read")
    return Listed(tree) if type(tree) is list else Columnar(tree, rows)


# --- functions of users --------------------------------------------------------------------------


def gathered(results: Iterable[Any], rows: int, who: str) -> tuple[list[Any], Exception | None]:
    """Collect the results of calls of a user's function up to the first error, and that error."""
    out: list[Any] = []
    try:
        out.extend(results)  # keeps what came before an error
    except Exception as error:
        return out, error
    if len(out) == rows:
        return out, None
    # It would silently end the user's loop too: the data must not seem to be over.
    return out, ElementError(f"{who} raised StopIteration; return or raise another error")


def any_absent(values: list[Any]) -> bool:
    """Whether an element is None."""
    return type(None) in set(map(type, values))  # `in` on the values would compare arrays


def map_segments(
    function: Callable[..., Tree],
    table: Table,
    cuts: Sequence[int],
    who: str,
    more: Callable[[IntArray], Any] | None = None,
) -> Table:
    """Call a batched function on the rows of a table between neighbouring `cuts`.

    Absent rows are left out of the call and stay absent.

    Args:
        function: Takes columns and returns columns.
        table: The rows.
        cuts: Bounds of the rows of each call.
        who: The function, for messages.
        more: Makes a second argument of the numbers of the rows in the table.
    """
    chunks = [
        _map_columns(function, part, who, start, more)
        for part, start in zip(cut(table, cuts), cuts, strict=False)
    ]
    if not chunks:
        return Listed([])
    dense = tuple(p for p in chunks if isinstance(p, Columnar) and p.present is None)
    return Segments(dense) if len(dense) == len(chunks) > 1 else joined(chunks)


def _bounds(segments: Segments) -> list[int]:
    return [0, *np.cumsum([table.rows for table in segments.tables]).tolist()]


def _map_columns(
    function: Callable[..., Tree],
    part: Columnar | Listed,
    who: str,
    start: int,
    more: Callable[[IntArray], Any] | None,
) -> Table:
    dense, kept = without_absent(part)
    if dense.rows == 0:
        return Listed([None] * part.rows)
    given = as_columns(dense)
    # Containers of its own: the function may put other columns into them.
    own = columns.map_columns(lambda column: column, given)
    rows = np.arange(part.rows) if kept is None else kept
    arguments = (own,) if more is None else (own, more(rows + start))
    made = call_without_stop(function, *arguments)
    made = columns.checked_columns(made, dense.rows, who, given=given)
    table = Listed(made) if type(made) is list else Columnar(made, dense.rows)
    if kept is None:
        return table
    if isinstance(table, Listed):
        return merged([(table, kept)], part.rows)
    present = np.zeros(part.rows, np.bool_)
    present[kept] = True
    row = np.minimum(np.cumsum(present) - present, dense.rows - 1)
    return Columnar(columns.taken(made, row), part.rows, present)


def filtered(table: Table, verdicts: list[Any]) -> Columnar | Listed:
    """Make the rows absent whose verdict is false."""
    keep = np.array([bool(v) for v in verdicts], np.bool_)
    table = single(table)
    if isinstance(table, Listed):
        pairs = zip(table.elements, keep.tolist(), strict=True)
        return Listed([element if wanted else None for element, wanted in pairs])
    return Columnar(table.tree, table.rows, keep)


# --- batches -------------------------------------------------------------------------------------


def batches(
    table: Table, bounds: Sequence[int], batch_fn: Callable[[list[Any]], Any] | None
) -> list[Any]:
    """Make a batch of the rows between each two neighbouring `bounds`.

    Arrays of a columnar table become views of it: nothing is stacked that was not taken apart.

    Raises:
        ElementError: If elements do not stack, or one is absent.
    """
    spans = list(itertools.pairwise(bounds))
    if batch_fn is not None:
        values = elements(table)
        return [call_without_stop(batch_fn, values[start:stop]) for start, stop in spans]
    if isinstance(table, Segments) and _bounds(table) == list(bounds):
        return [columns.batch_from(part.tree, 0, part.rows) for part in table.tables]
    table = single(table)
    if isinstance(table, Columnar) and table.present is None:
        return [columns.batch_from(table.tree, start, stop) for start, stop in spans]
    values = elements(table)
    return [_stacked(values[start:stop]) for start, stop in spans]


def batch_columns(table: Columnar | Listed) -> Tree:
    """The columns of the rows of one batch, whose rows may not be stacked yet.

    Raises:
        ElementError: If the trees of elements differ, or one is absent.
    """
    if isinstance(table, Columnar) and table.present is None:
        return columns.with_pytrees(table.tree)
    values = elements(table)
    _check_present(values)
    return columns.listed(values)


def _stacked(values: list[Any]) -> Any:
    _check_present(values)
    return columns.batch_of(values)


def _check_present(values: list[Any]) -> None:
    if any_absent(values):
        row = next(row for row, value in enumerate(values) if value is None)
        raise ElementError(
            f"batch: element {row} of the batch is absent (a function returned None; does it lack a"
            " return?); to leave elements out, use filter and to_iter_dataset() before batch"
        )
