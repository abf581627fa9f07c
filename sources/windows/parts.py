"""Maps the cells of windows to parts that read them, and groups windows that lie together.

Invariant: small windows of whole rows are runs of rows, and one call gathers many of them. All other
windows are boxes. Both ways give the same cells.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from windrow.sources.base import IntArray
from windrow.sources.boxes import BoxField, BoxPart
from windrow.sources.chunks import ArrayPart, Blocks
from windrow.sources.padding import Padding
from windrow.sources.windows.fields import TakenField
from windrow.sources.windows.origins import Home
from windrow.sources.windows.plan import WindowPlan
from windrow.sources.zarr.open_array import OpenArray

# One call gathers many windows up to this number of bytes; a larger one is worth its own call.
_LARGE_BYTES: Final = 64 * 2**10
# Chunks shorter than windows are joined to blocks for this many windows side by side, up to this size.
_WINDOWS_SIDE_BY_SIDE: Final = 8
_BLOCK_BYTES: Final = 16 * 2**20


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class WindowParts:
    """The parts of a source, and the part of each field that moves.

    Args:
        parts: One part for each array along which windows move.
        places: The part of each field by its number, and the field's number in the part, which is
            None if the part is the field.
    """

    parts: tuple[BoxPart | ArrayPart, ...]
    places: Mapping[int, tuple[int, int | None]]


def parts_of(opened: Sequence[OpenArray], plan: WindowPlan, fills: Sequence[Any]) -> WindowParts:
    """The parts that read the fields of a plan; `fills` has the value of constant padding of each."""
    parts: list[BoxPart | ArrayPart] = []
    places: dict[int, tuple[int, int | None]] = {}
    for number, array in enumerate(opened):
        mine = [
            k
            for k, field in enumerate(plan.taken)
            if field.number == number and field.moves and 0 not in field.shape
        ]
        if not mine:
            continue
        fields = [plan.taken[k] for k in mine]
        rows = _row_part(array, fields, plan)
        places.update({k: (len(parts), at if rows is None else None) for at, k in enumerate(mine)})
        parts.append(_box_part(array, fields, plan, fills[mine[0]]) if rows is None else rows)
    return WindowParts(tuple(parts), places)


def blocks_of(laid_out: WindowParts, plan: WindowPlan) -> Blocks:
    """Groups windows by the chunk in which they begin; see `WindowDataSource.blocks`."""
    weighed = []
    for k, (number, _) in laid_out.places.items():
        part, field = laid_out.parts[number], plan.taken[k]
        size_bytes = math.prod(field.shape) * part.dtype.itemsize
        weighed.append((part.alone, size_bytes, number, field))
    weighed = [item for item in weighed if not item[0]] or weighed
    if not weighed:
        return Blocks(np.unique([0, len(plan.origins)]))
    least = sum(size for _, size, _, _ in weighed) / 8
    candidates = [
        (_homes(laid_out.parts[number], field, plan), laid_out.parts[number])
        for _, size, number, field in weighed
        if size >= least
    ]
    homes, part = max(candidates, key=lambda item: sum(home.chunk for home in item[0]))
    return plan.origins.blocks(_joined(homes, part, plan))


def _homes(part: BoxPart | ArrayPart, field: TakenField, plan: WindowPlan) -> list[Home]:
    """The chunks of a field's array, seen from its windows, along each dimension."""
    if isinstance(part, BoxPart):
        axes = list(zip(part.chunk_shape, part.shift, part.shape, strict=True))
    else:
        axes = [(part.chunk_rows, part.shift, part.rows)]
    homes = {dim: Home(1, 0, 0, 1) for dim in plan.origins.dims}
    for axis, along in enumerate(field.along):
        if along.dim in homes:
            chunk, shift, length = axes[axis]
            homes[along.dim] = Home(chunk, shift, along.first, length)
    return list(homes.values())


def _joined(homes: Sequence[Home], part: BoxPart | ArrayPart, plan: WindowPlan) -> list[Home]:
    """Joins several chunks to one, where windows are longer than chunks."""
    counts = []
    for dim, home in zip(plan.origins.dims, homes, strict=True):
        first, stop = plan.reach(dim)
        extent = stop - first
        wanted = -(-_WINDOWS_SIDE_BY_SIDE * extent // home.chunk)
        counts.append(max(1, wanted) if home.chunk < min(extent, home.length) else 1)
    if isinstance(part, BoxPart):
        chunk_bytes = part.chunk_bytes
    else:
        chunk_bytes = part.chunk_rows * part.row_bytes
    most = max(1, _BLOCK_BYTES // max(1, chunk_bytes))
    while math.prod(counts) > most:
        at = counts.index(max(counts))
        counts[at] = max(1, min(counts[at] - 1, counts[at] * most // math.prod(counts)))
    return [
        dataclasses.replace(home, chunk=home.chunk * count)
        for home, count in zip(homes, counts, strict=True)
    ]


def _row_part(array: OpenArray, fields: Sequence[TakenField], plan: WindowPlan) -> ArrayPart | None:
    """The windows as runs of whole rows; None for any other windows."""
    field, first = fields[0], fields[0].along[0]
    whole = all(
        axis.is_whole(cells) for axis, cells in zip(field.along[1:], array.shape[1:], strict=True)
    )
    if len(fields) > 1 or not whole or not first.moves or len(first.runs) > 1:
        return None
    if first.matched is not None:
        return None
    begin, stop = first.runs[0]
    if array.part.row_bytes * (stop - begin) > _LARGE_BYTES:
        return None
    low, high = plan.origins.reach(first.dim)
    may = plan.ranges[first.dim]
    if low + begin < may.start or high + stop > may.stop:
        return None  # some are padded
    column = plan.origins.dims.index(first.dim)

    def starts(indices: IntArray) -> IntArray:
        return plan.origins.at(indices)[:, column] + begin

    return array.part.in_windows(None if first.dropped else stop - begin, starts)


def _box_part(
    array: OpenArray, fields: Sequence[TakenField], plan: WindowPlan, fill: Any
) -> BoxPart:
    """The windows as boxes of an array."""
    columns = [
        plan.origins.dims.index(axis.dim) if axis.moves else None for axis in fields[0].along
    ]
    boxes = tuple(field.box_field() for field in fields)

    def origins(indices: IntArray) -> IntArray:
        found = plan.origins.at(indices)
        out = np.zeros((len(indices), len(columns)), np.int64)
        for axis, column in enumerate(columns):
            if column is not None:
                out[:, axis] = found[:, column]
        return _of_cuts(out, fields, boxes)

    modes = tuple(plan.pads.get(axis.dim) if axis.moves else None for axis in fields[0].along)
    if not any(modes):
        return array.box_part(origins, boxes, None)
    part = array.box_part(origins, boxes, Padding(modes, fill))
    readable = tuple(
        plan.ranges[axis.dim] if axis.moves else range(cells)
        for axis, cells in zip(fields[0].along, array.shape, strict=True)
    )
    return dataclasses.replace(part, readable=readable)


def _of_cuts(
    origins: IntArray, fields: Sequence[TakenField], boxes: Sequence[BoxField]
) -> IntArray:
    """The first cell of each record `(n, axes)`, or of each cut of it `(n, cuts, axes)`.

    Cuts differ where cells lie at different distances from different origins, since they are found by
    their times.
    """
    axes = range(origins.shape[1])
    if all(field.along[axis].matched is None for field in fields for axis in axes):
        return origins
    cuts = [(field, cut) for field, box in zip(fields, boxes, strict=True) for cut in box.cuts]
    found = np.repeat(origins[:, None], len(cuts), axis=1)
    for axis in axes:
        for field in fields:
            along = field.along[axis]
            mine = [k for k, (of, _) in enumerate(cuts) if of is field]
            if along.matched is not None:
                places = [cuts[k][1].target[axis] for k in mine]
                found[:, mine, axis] = along.at(origins[:, axis])[:, places]
    return found
