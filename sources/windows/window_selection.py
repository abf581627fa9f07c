"""Selects cells along one dimension, by labels or, without coordinates, by cells.

Invariant: a selection is one cell, cells in the given order, or a range of neighbours. It is never
empty.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np

from windrow.errors import ArgumentError, SourceError
from windrow.sources.windows.fields import integer
from windrow.sources.windows.origins import Dim
from windrow.sources.windows.selection import Coordinate, position_of, positions_of, range_of

_WHAT: Final = "WindowDataSource"

Picked: TypeAlias = int | tuple[int, ...] | range  # a single cell drops the axis


def picked(
    dim: Dim,
    label: Any,
    coordinate: Coordinate | None,
    length: int,
    *,
    moves: bool,
    method: str | None,
) -> Picked:
    """The cells that a label, a list of labels or a slice of labels selects.

    Args:
        dim: The dimension.
        label: The labels to select; cells if the dimension has no coordinate, as in xarray.
        coordinate: Coordinate of the dimension; None without one.
        length: Cells of the dimension.
        moves: Whether windows move along it, so that only neighbours can be selected.
        method: As for `WindowDataSource`.

    Raises:
        ArgumentError: If `label` is of a wrong kind.
        SourceError: If a label does not exist, or nothing is selected.
    """
    if coordinate is None:
        found = _by_cell(dim, label, length)
    else:
        found = _by_label(label, coordinate, moves=moves, method=method)
    if moves and not isinstance(found, range):
        raise ArgumentError(
            f"{_WHAT}: windows move along {dim!r}, so select takes a slice there, got {label!r};"
            " to list origins, give anchors"
        )
    if not isinstance(found, int) and not len(found):
        held = f" coordinates: {coordinate.range}" if coordinate else f" cells of {dim!r}"
        raise SourceError(
            f"{_WHAT}: select[{dim!r}] = {label} holds none of the {length:,}{held}"
            + _turned(label, coordinate)
        )
    return found


def _turned(label: Any, coordinate: Coordinate | None) -> str:
    """The end of a message for a slice against the order of its coordinate; '' for others."""
    if coordinate is None or not isinstance(label, slice):
        return ""
    other = slice(label.stop, label.start)
    found = range_of(coordinate, other)
    way = "rise" if coordinate.direction > 0 else "fall"
    return f"; they {way}, so write {other}" if found.stop > found.start else ""


def _is_list(label: Any) -> bool:
    return isinstance(label, list | tuple | np.ndarray) and np.ndim(label) > 0


def _by_label(label: Any, coordinate: Coordinate, *, moves: bool, method: str | None) -> Picked:
    if isinstance(label, str) and coordinate.values.dtype.kind == "M" and coordinate.direction:
        # A string may cover many times, such as all of a month.
        covered = range_of(coordinate, slice(label, label))
        if moves or covered.stop - covered.start > 1:
            return range(covered.start, covered.stop)
    if isinstance(label, slice):
        found = range_of(coordinate, label)
        return range(found.start, found.stop)
    if _is_list(label):
        return tuple(int(cell) for cell in positions_of(coordinate, label, method=method))
    return position_of(coordinate, label, method=method)


def _by_cell(dim: Dim, label: Any, length: int) -> Picked:
    parts = [label.start, label.stop, label.step] if isinstance(label, slice) else [label]
    if any(isinstance(part, str) for part in parts):
        raise SourceError(
            f"{_WHAT}: the store has no coordinates of {dim!r}, so that the label {label!r} cannot"
            " be found; give cells, counted from 0"
        )
    if isinstance(label, slice):
        what = f"{_WHAT}: select[{dim!r}]"
        bounds = [None if part is None else integer(part, what) for part in parts]
        cells = range(length)[slice(*bounds)]
        return cells if cells.step == 1 else tuple(cells)
    if _is_list(label):
        return tuple(_cell(dim, cell, length) for cell in label)
    return _cell(dim, label, length)


def _cell(dim: Dim, given: Any, length: int) -> int:
    cell = integer(given, f"{_WHAT}: select[{dim!r}], which has no coordinates,")
    if not -length <= cell < length:
        raise SourceError(
            f"{_WHAT}: select[{dim!r}] is {cell}, and there are {length:,} cells; choose"
            f" -{length} <= cell < {length}"
        )
    return cell % length
