"""Tables with rows that are absent, of reads that failed for some records alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from windrow.errors import ReadError
from windrow.sources.base import IntArray
from windrow.sources.chunks import LaidOutSource, Rest
from windrow.sources.ragged_column import RaggedColumn
from windrow.transforms import columns, tables
from windrow.transforms.tables import Columnar, Listed, Table

FinishSome = Callable[[], tuple[Table, Mapping[int, ReadError]]]
"""Waits for records; those that could not be read alone are absent, and their errors come by row."""


def started_some(reader: Any, source: Any, records: IntArray) -> FinishSome:
    """Start, or plan, a read by an `execute.Reader` that may fail for some of its records."""
    finish = reader.start(source, records)
    is_planned = reader.prefetcher is not None and reader.prefetcher.plans(source)

    def some() -> tuple[Table, Mapping[int, ReadError]]:
        try:
            return finish(), {}
        except ReadError as error:
            rest, error.rest = error.rest, None
            table = _table_of_rest(source, rest, records, is_planned=is_planned)
            if rest is None or table is None:
                raise
        reader.bytes_read += tables.nbytes(table)
        if reader.read_counters is not None:
            reader.read_counters.arrived(source, records, tables.nbytes(table), ())
        return table, rest.errors

    return some


def _table_of_rest(
    source: Any, rest: Rest | None, records: IntArray, *, is_planned: bool
) -> Table | None:
    """The records of a read that failed for some alone, which are absent.

    Args:
        source: The source.
        rest: What the read has: with `is_planned` a column of each part, else of the only part.
        records: The records that were asked for.
        is_planned: Whether the parts were read each by itself.

    Returns:
        None where only reading the others again gives them.
    """
    if rest is None or not isinstance(source, LaidOutSource):
        return None
    if not is_planned and len(source.parts) != 1:
        return None
    found: list[Any] = rest.found if is_planned else [rest.found]
    count, name = len(records), type(source).__name__
    present = np.ones(count, np.bool_)
    present[[*rest.errors]] = False
    good = np.flatnonzero(present)
    if not len(good):
        return Listed([None] * count)
    flat = [a for column in found for a in (column if isinstance(column, tuple) else (column,))]
    if all(isinstance(column, np.ndarray) for column in flat):
        for column in flat:
            column[~present] = 0
        table = tables.from_source(source.assembled(found, records), count, name)
        if isinstance(table, Columnar):
            return dataclasses.replace(table, present=present)
        return merged_some([(tables.taken(table, good), good)], count)
    kept = [_good(column, good) for column in found]
    some = tables.from_source(source.assembled(kept, records[good]), len(good), name)
    return merged_some([(some, good)], count)


def _good(column: Any, rows: IntArray) -> Any:
    """Some rows of the column of a part."""
    if isinstance(column, tuple):  # the fields of boxes
        return tuple(field[rows] for field in column)
    if isinstance(column, (np.ndarray, RaggedColumn)):
        return column[rows]
    return [column[row] for row in rows.tolist()]


def merged_some(parts: Sequence[tuple[Table, IntArray]], count: int) -> Table:
    """Tables as one of `count` rows; rows in none of them are absent."""
    if not parts:
        return Listed([None] * count)
    singles = [(tables.single(table), rows) for table, rows in parts]
    whole = [
        (table.tree, rows)
        for table, rows in singles
        if isinstance(table, Columnar) and table.present is None
    ]
    tree = columns.scattered(whole, count) if len(whole) == len(parts) else None
    if tree is None or type(tree) is list:
        return tables.merged(singles, count)
    present = np.zeros(count, np.bool_)
    for _, rows in whole:
        present[rows] = True
    return Columnar(tree, count, None if present.all() else present)
