"""Computes where windows begin: on a grid along some dimensions, or around listed places.

Invariants: the origin of record `i` is a function of `i` alone, exact for any sizes. A table is held
only for origins that the user lists. Along each dimension an origin is a cell of the arrays, counted
from their first cell. It may lie outside of them only where windows are padded.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from windrow.errors import PlanError, RecordIndexError, SourceError
from windrow.sources.base import IntArray
from windrow.sources.chunks import Blocks
from windrow.sources.mapped import MappedArray, mapped
from windrow.sources.windows.declared import Dim

Run: TypeAlias = tuple[int, int]  # cells [first, stop), counted from an origin

_WHAT: Final = "WindowDataSource"
_MOST_RECORDS: Final = 2**62
_MOST_BLOCKS: Final = 2**28
_CHECKED_AT_ONCE: Final = 2**20


@dataclasses.dataclass(frozen=True, slots=True)
class Home:
    """The chunks of an array along one dimension, seen from windows.

    Args:
        chunk: Cells of a chunk.
        shift: Cells of the first chunk before the array's first cell.
        offset: Cells from a window's origin to its first cell in the array.
        length: Cells of the array.
    """

    chunk: int
    shift: int
    offset: int
    length: int

    def of(self, origins: IntArray) -> IntArray:
        """Number of the chunk in which windows begin; the nearest one if they begin outside."""
        cells: IntArray = np.clip(origins + self.offset, 0, self.length - 1)
        return (cells + self.shift) // self.chunk


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class OriginAxis:
    """Origins along one dimension: `first, first + stride, ...`, or a table of origins.

    Args:
        dim: The dimension.
        first: The first origin.
        stride: Cells from one origin to the next one.
        count: Number of origins.
        table: All origins, int64 `(count,)`; None where they are regular.
        left: What was left out or padded, as text for the user.
    """

    dim: Dim
    first: int
    stride: int
    count: int
    table: IntArray | None = None
    left: str = ""

    def at(self, places: IntArray) -> IntArray:
        """The origins at `places`, in `[0, count)`."""
        if self.table is not None:
            return self.table[places]
        return places * self.stride + self.first if self.first else places * self.stride

    @property
    def reach(self) -> tuple[int, int]:
        """The smallest and the largest origin; two zeros without origins."""
        if not self.count:
            return 0, 0
        if self.table is not None:
            return int(self.table.min()), int(self.table.max())
        return self.first, self.first + (self.count - 1) * self.stride

    @property
    def label(self) -> str:
        """The axis as a string for states."""
        if self.table is None:
            return f"{self.dim}: {self.first} + {self.count} * {self.stride}"
        digest = hashlib.sha256(self.table.astype("<i8").tobytes()).hexdigest()[:16]
        return f"{self.dim}: {self.count} origins, sha256:{digest}"

    def by_home(self, home: Home) -> tuple[IntArray, IntArray | None]:
        """Bounds of the places that begin in one chunk, and the places in that order.

        The order is None where the places are in order already.
        """
        if self.table is None:
            ends = home.of(np.array(self.reach))
            _check_count(int(ends[1] - ends[0]))
            chunks = np.arange(ends[0] + 1, ends[1] + 1)
            begin = chunks * home.chunk - home.shift - home.offset - self.first
            bounds = np.clip(-(-begin // self.stride), 0, self.count)
            return np.unique(np.r_[0, bounds, self.count]), None
        homes = home.of(self.table)
        order = None
        if np.any(np.diff(homes) < 0):
            order = np.argsort(homes, kind="stable")
            homes = homes[order]
        return np.r_[0, np.flatnonzero(np.diff(homes)) + 1, self.count], order


def regular_axis(
    dim: Dim, cells: range, runs: Sequence[Run], stride: int, *, pad: bool, shifted: bool
) -> OriginAxis:
    """The origins of regular windows within `cells`, from the first cell on.

    Args:
        dim: The dimension.
        cells: Cells that may be read, with step 1.
        runs: The cells that each window reads, counted from its origin.
        stride: Cells from one origin to the next one.
        pad: Whether a window may reach over the end.
        shifted: Whether windows were given by offsets: with `pad` an origin is any of `cells`.

    Raises:
        SourceError: If no window fits.
    """
    low, high = min(run[0] for run in runs), max(run[1] for run in runs)
    size, length, along = high - low, len(cells), named(dim)
    if pad and shifted:
        return OriginAxis(dim, cells.start, stride, -(-length // stride))
    if pad:
        count = min(max(0, -(-(length - size) // stride)) + 1, -(-length // stride))
    else:
        count = (length - size) // stride + 1 if length >= size else 0
    over = (count - 1) * stride + size - length
    if count < 1 and not length:
        raise SourceError(f"{_WHAT}: there are no cells along {along}, and a window has {size:,}")
    if count < 1:
        offsets = f" (offsets {low} to {high - 1})" if shifted else ""
        raise SourceError(
            f"{_WHAT}: a window of {size:,} cells{offsets} along {along} does not fit into {length:,};"
            f" choose at most {length:,}, or pad=..."
        )
    left = f"{-over:,} left over at the end of {along}" if over < 0 and not pad else ""
    if over > 0:
        left = f"the last one padded by {over:,} along {along}"
    return OriginAxis(dim, cells.start - low, stride, count, left=left)


def named(dim: Dim) -> str:
    """The name of a dimension, for messages."""
    return f"axis {dim}" if isinstance(dim, int) else dim


def masked(
    axis: OriginAxis, mask: npt.NDArray[np.bool_], runs: Sequence[Run], circle: range | None = None
) -> OriginAxis:
    """The origins of `axis` whose windows read no cell for which `mask` is false.

    Cells outside of the mask are padding; with `circle` they are these cells, again and again.
    """
    whole = range(len(mask)) if circle is None else circle
    before = np.concatenate([[0], np.cumsum(~mask[whole.start : whole.stop])])
    origins = axis.at(np.arange(axis.count)) - whole.start
    good = np.ones(axis.count, np.bool_)

    def masked_before(cells: IntArray) -> IntArray:
        if circle is None:
            return np.asarray(before[np.clip(cells, 0, len(whole))])
        turns, within = np.divmod(cells, len(whole))
        found: IntArray = turns * before[-1] + before[within]
        return found

    for first, stop in runs:
        good &= masked_before(origins + first) == masked_before(origins + stop)
    origins += whole.start
    if not good.any():
        raise SourceError(
            f"{_WHAT}: the selection along {axis.dim!r} allows no window: each of the {axis.count:,}"
            " that fit has a cell outside of it"
        )
    return chosen(axis, origins, good, "masked")


def chosen(
    axis: OriginAxis, origins: IntArray, good: npt.NDArray[np.bool_], why: str
) -> OriginAxis:
    """The origins of `axis` that are good; `why` says what the others are."""
    count = int(np.count_nonzero(good))
    left = f"{axis.count - count:,} {why} along {named(axis.dim)}" if count < axis.count else ""
    left = ", ".join(text for text in (axis.left, left) if text)
    return dataclasses.replace(axis, count=count, table=origins[good], left=left)


def listed_axis(
    dim: Dim, given: IntArray, cells: range, runs: Sequence[Run], *, pad: bool
) -> OriginAxis:
    """An axis with the origins that a user lists.

    Raises:
        SourceError: If a window would reach out of `cells` and is not padded, or does not begin in
            `cells`.
    """
    low, high = (0, 1) if pad else (min(r[0] for r in runs), max(r[1] for r in runs))
    wrong = np.flatnonzero((given + low < cells.start) | (given + high > cells.stop))
    if len(wrong):
        raise SourceError(
            f"{_WHAT}: anchors[{dim!r}][{wrong[0]}] is {given[wrong[0]]}, whose window would be the"
            f" cells [{given[wrong[0]] + low}, {given[wrong[0]] + high}), and there are"
            f" [{cells.start}, {cells.stop}); leave it out" + ("" if pad else ", or give pad=...")
        )
    return OriginAxis(dim, 0, 1, len(given), table=given)


class OriginGrid:
    """All combinations of the origins along some dimensions, in C order."""

    def __init__(self, axes: Sequence[OriginAxis]) -> None:
        """Makes the grid from the axes, at least one, in their order.

        Raises:
            SourceError: If the number of combinations is too large.
        """
        self._axes = tuple(axes)
        self._length = math.prod(axis.count for axis in axes)
        if self._length >= _MOST_RECORDS:
            raise SourceError(
                f"{_WHAT}: {self._length:,} windows are too many; choose larger strides, for fewer"
                f" than {_MOST_RECORDS:,}"
            )

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions along which windows begin at different cells."""
        return tuple(axis.dim for axis in self._axes)

    def __len__(self) -> int:
        return self._length

    @property
    def label(self) -> str:
        """The origins as a string for states."""
        return "; ".join(axis.label for axis in self._axes)

    @property
    def left(self) -> str:
        """The origins that were left out or padded, as text for the user; may be empty."""
        return ", ".join(axis.left for axis in self._axes if axis.left)

    def at(self, indices: IntArray) -> IntArray:
        """The origins of records, int64 `(n, dims)`."""
        return np.stack([axis.at(k) for axis, k in self._unravelled(indices)], axis=1)

    def reach(self, dim: Dim) -> tuple[int, int]:
        """The smallest and the largest origin along a dimension; two zeros without origins."""
        return next(axis.reach for axis in self._axes if axis.dim == dim)

    def _unravelled(self, indices: IntArray) -> list[tuple[OriginAxis, IntArray]]:
        places: list[IntArray] = []
        rest = indices
        for axis in self._axes[:0:-1]:
            rest, place = np.divmod(rest, axis.count)
            places.append(place)
        places.append(rest)
        return list(zip(self._axes, reversed(places), strict=True))

    def blocks(self, homes: Sequence[Home]) -> Blocks:
        """Groups records by the chunk in which they begin; `homes` has one for each dimension."""
        parted = [axis.by_home(home) for axis, home in zip(self._axes, homes, strict=True)]
        edges = [bounds for bounds, _ in parted]
        orders = [order for _, order in parted]
        _check_count(math.prod(len(bounds) - 1 for bounds in edges))
        sizes = np.ones(1, np.int64)
        for bounds in edges:
            sizes = np.multiply.outer(sizes, np.diff(bounds)).ravel()
        ends = np.concatenate([[0], np.cumsum(sizes)])
        if all(order is None for order in orders) and _consecutive(edges):
            return Blocks(ends)
        counts = [axis.count for axis in self._axes]
        return Blocks(ends, lambda places: _placed(places, ends, edges, orders, counts))


def _check_count(chunks: int) -> None:
    """Checks that an integer per chunk fits into memory.

    Raises:
        PlanError: If the number of chunks is too large.
    """
    if chunks > _MOST_BLOCKS:
        raise PlanError(
            f"block_shuffle: the windows begin in {chunks:,} chunks, which are too many; give"
            " block=, the number of consecutive windows that are read together"
        )


def _consecutive(edges: Sequence[IntArray]) -> bool:
    """Whether the order of blocks is the C order of records."""
    parted = [k for k, bounds in enumerate(edges) if len(bounds) > 2]
    return not parted or all((np.diff(bounds) == 1).all() for bounds in edges[: parted[-1]])


def _placed(
    places: IntArray,
    ends: IntArray,
    edges: Sequence[IntArray],
    orders: Sequence[IntArray | None],
    counts: Sequence[int],
) -> IntArray:
    """The record at each place in the order of blocks."""
    block = np.searchsorted(ends, places, side="right") - 1
    within = places - ends[block]
    record, stride = np.zeros_like(places), 1
    for bounds, order, count in zip(edges[::-1], orders[::-1], counts[::-1], strict=True):
        block, number = np.divmod(block, len(bounds) - 1)
        first = bounds[number]
        within, inside = np.divmod(within, bounds[number + 1] - first)
        place = first + inside
        record += (place if order is None else order[place]) * stride
        stride *= count
    return record


class Centers:
    """Origins of windows around cells that a user lists."""

    def __init__(self, dims: Sequence[Dim], cells: npt.NDArray[Any]) -> None:
        """Keeps a reference to `cells`, integers `(n, dims)`; they are not copied."""
        self._dims, self._cells = tuple(dims), cells
        self._digest = ""
        # What `check` allows, `[low, high)` along each dimension.
        self._low = self._high = np.zeros(len(self._dims), np.int64)

    def __getstate__(self) -> dict[str, Any]:
        held = mapped(self._cells)
        return {
            "dims": self._dims,
            "cells": self._cells if held is None else held,
            "digest": self._digest,
            "allowed": (self._low, self._high),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        cells = state["cells"]
        self._dims, self._digest = state["dims"], state["digest"]
        self._low, self._high = state["allowed"]
        self._cells = cells.open() if isinstance(cells, MappedArray) else cells

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The dimensions of the columns."""
        return self._dims

    def __len__(self) -> int:
        return len(self._cells)

    @property
    def label(self) -> str:
        """The centers as a string for states."""
        if not self._digest:
            found = hashlib.sha256()
            for first in range(0, len(self._cells), _CHECKED_AT_ONCE):
                part = self._cells[first : first + _CHECKED_AT_ONCE]
                found.update(np.ascontiguousarray(part, "<i8").tobytes())
            self._digest = found.hexdigest()[:16]
        return f"{len(self._cells)} centers along {list(self._dims)}, sha256:{self._digest}"

    @property
    def left(self) -> str:
        """Nothing: no center is left out."""
        return ""

    def at(self, indices: IntArray) -> IntArray:
        """The origins of records, int64 `(n, dims)`: the listed cells."""
        found: IntArray = np.asarray(self._cells[indices]).astype(np.int64)
        if ((found < self._low) | (found >= self._high)).any():
            # Some cells of their windows would stay uninitialised.
            raise SourceError(
                f"{_WHAT}: centers were changed since the source was made; make it again, or give"
                " it a copy"
            )
        return found

    def reach(self, dim: Dim) -> tuple[int, int]:
        """The smallest and the largest center along a dimension; two zeros without centers."""
        column = self._cells[:, self._dims.index(dim)]
        return (int(column.min()), int(column.max())) if len(column) else (0, 0)

    def check(self, lengths: Sequence[range], runs: Sequence[Run]) -> None:
        """Checks that centers, and the cells around them, lie within the arrays.

        Args:
            lengths: The cells of the arrays along each dimension.
            runs: The cells around a center that must lie within them, along each dimension.

        Raises:
            RecordIndexError: If a center is not a cell of the arrays.
            SourceError: If a window is not within them.
        """
        low = self._low = np.array([cells.start for cells in lengths])
        high = self._high = np.array([cells.stop for cells in lengths])
        before, behind = np.array(runs).T
        self._low, self._high = np.maximum(low, low - before), np.minimum(high, high - behind + 1)
        for first in range(0, len(self._cells), _CHECKED_AT_ONCE):
            part = self._cells[first : first + _CHECKED_AT_ONCE]
            out = np.flatnonzero(((part < low) | (part >= high)).any(axis=1))
            if len(out):
                shown = [f"[{cells.start}, {cells.stop})" for cells in lengths]
                raise RecordIndexError(
                    f"{_WHAT}: centers[{first + out[0]}] is {part[out[0]].tolist()}, and the cells"
                    f" along {list(self._dims)} are {', '.join(shown)}"
                )
            out = np.flatnonzero(((part < low - before) | (part > high - behind)).any(axis=1))
            if len(out):
                raise SourceError(
                    f"{_WHAT}: the window around centers[{first + out[0]}],"
                    f" {part[out[0]].tolist()}, reaches out of the array; leave it out, or choose"
                    " a padding: pad='constant', 'edge', 'reflect', 'symmetric' or 'wrap'"
                )

    def blocks(self, homes: Sequence[Home]) -> Blocks:
        """Groups records by the chunk in which their centers lie."""
        number = np.zeros(len(self), np.int64)
        for k, home in enumerate(homes):
            chunks = (home.length - 1 + home.shift) // home.chunk + 1
            for first in range(0, len(self), _CHECKED_AT_ONCE):
                part = slice(first, first + _CHECKED_AT_ONCE)
                number[part] *= chunks
                number[part] += home.of(np.asarray(self._cells[part, k]).astype(np.int64))
        order = np.argsort(number, kind="stable")
        ascending = number[order]
        bounds = np.r_[0, np.flatnonzero(np.diff(ascending)) + 1, len(self)]
        order = order.astype(np.uint32 if len(self) < 2**32 else np.int64)
        return Blocks(np.unique(bounds), lambda places: np.asarray(order[places]).astype(np.int64))


Origins: TypeAlias = OriginGrid | Centers
