"""Coordinates of windows: what the axes of a record's fields are labelled with.

Invariant: coordinates are in memory; those of a record follow from its origin.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from windrow.errors import ArgumentError, SourceError
from windrow.sources.arrays import OpenArray
from windrow.sources.base import ArraySpec, IntArray
from windrow.sources.coordinates import Coordinates
from windrow.sources.pieces import AnyArray
from windrow.sources.selection import Coordinate
from windrow.sources.window_fields import Along, Taken
from windrow.sources.window_origins import Origins
from windrow.sources.window_plan import Plan, coordinate_along

_WHAT: Final = "WindowDataSource"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class WindowCoordinate:
    """One coordinate of each record.

    Args:
        name: In the record.
        along: Which cells of the dimension it labels.
        values: Of the whole dimension.
        padded: Whether windows may reach over the dimension's ends.
    """

    name: str
    along: Along
    values: AnyArray
    padded: bool

    @property
    def spec(self) -> ArraySpec:
        """As delivered."""
        dim = self.along.dim if isinstance(self.along.dim, str) else None
        if self.along.dropped:
            return ArraySpec((), self._dtype, ())
        return ArraySpec((self.along.length,), self._dtype, (dim,))

    @property
    def label(self) -> str:
        """What a state remembers of it."""
        values = np.ascontiguousarray(self.values)
        data = repr(values.tolist()).encode() if values.dtype.hasobject else values.tobytes()
        return f"{self.name} {values.dtype} sha256:{hashlib.sha256(data).hexdigest()[:16]}"

    @property
    def _dtype(self) -> np.dtype[Any]:
        dtype = self.values.dtype
        return np.dtype(np.float64) if self._outside and dtype.kind in "biu" else dtype

    @property
    def _outside(self) -> bool:
        return self.padded and self.along.moves

    def of(self, indices: IntArray, origins: Origins) -> AnyArray:
        """The coordinates of records, `(n, length)`, or `(n,)` of a dropped axis."""
        cells = self.along.cells()[None]
        if self.along.moves:
            column = origins.dims.index(self.along.dim)
            cells = origins.at(indices)[:, column, None] + cells
        else:
            cells = np.broadcast_to(cells, (len(indices), cells.shape[1]))
        if self._outside:
            found = self.values[np.clip(cells, 0, len(self.values) - 1)]
            found = found.astype(self._dtype, copy=False)
            found[(cells < 0) | (cells >= len(self.values))] = _nothing(self._dtype)
        else:
            found = self.values[cells]
        return found[:, 0] if self.along.dropped else found


def _nothing(dtype: np.dtype[Any]) -> Any:
    """What stands for no coordinate: NaN, NaT or an empty text."""
    if dtype.kind in "mM":
        return np.array("NaT", dtype)
    return "" if dtype.kind in "UTO" else np.nan


def window_coordinates(
    opened: Sequence[OpenArray],
    plan: Plan,
    wanted: bool | Sequence[str],
    *,
    known: Coordinates,
    padded: bool,
    own_name: str,
) -> tuple[WindowCoordinate, ...]:
    """The coordinates that records have beside their fields.

    Args:
        opened: The arrays.
        plan: Which cells of them records have.
        wanted: Whether there are any, or the names of those there are.
        known: Reads them.
        padded: Whether windows may reach out of the arrays.
        own_name: What a single array is called in a record that has coordinates.

    Raises:
        ArgumentError: If `wanted` is of a wrong kind.
        SourceError: If there are no such coordinates.
    """
    if wanted is False:
        return ()
    if not isinstance(wanted, bool) and (
        isinstance(wanted, str)
        or not isinstance(wanted, Sequence)
        or not all(isinstance(name, str) for name in wanted)
    ):
        raise ArgumentError(
            f"{_WHAT}: coordinates must be True, False or a list of names, got {wanted!r}"
        )
    dims = _dims(opened, plan, known)
    names = [name for name, dim in dims.items() if name == dim] if wanted is True else wanted
    found: list[WindowCoordinate] = []
    for name in dict.fromkeys(names):
        coordinate = _read(name, dims.get(name), opened, plan, known)
        if coordinate is not None:
            dim = coordinate.dims[0]
            found += _of_fields(name, dim, coordinate.values, plan.taken, padded)
        elif wanted is not True:
            raise SourceError(
                f"{_WHAT}: there are no coordinates {name!r} of the windows' dimensions beside the"
                f" arrays; their dimensions and other coordinates are {list(dims)}"
            )
    if not found:
        raise SourceError(
            f"{_WHAT}: there are no coordinates of the windows' dimensions beside the arrays;"
            " leave coordinates out"
        )
    taken = {field.name.partition("/")[0] or own_name for field in plan.taken}
    for item in found:
        if item.name in taken:
            raise SourceError(
                f"{_WHAT}: a field and a coordinate are both named {item.name!r}; give the field"
                " another name with fields="
            )
    return tuple(found)


def _dims(opened: Sequence[OpenArray], plan: Plan, known: Coordinates) -> dict[str, str]:
    """The dimension of each coordinate that there may be, by its name."""
    dims = [axis.dim for field in plan.taken for axis in field.along]
    found = {dim: dim for dim in dims if isinstance(dim, str)}
    for number in sorted({field.number for field in plan.taken}):
        for name, dim in known.extra_dims(opened[number].found).items():
            if dim in plan.arrays[number]:
                found.setdefault(name, dim)
    return found


def _read(
    name: str,
    dim: str | None,
    opened: Sequence[OpenArray],
    plan: Plan,
    known: Coordinates,
) -> Coordinate | None:
    """A coordinate of the arrays, None if there is none of that name."""
    used = sorted({field.number for field in plan.taken})
    if dim is None or name == dim:
        return None if dim is None else coordinate_along(dim, opened, plan.arrays, used, known)
    for number in used:
        found = opened[number].found
        if known.extra_dims(found).get(name) == dim:
            coordinate = known.extra(found, name)
            if len(coordinate.values) == plan.lengths[dim]:
                return coordinate
    return None


def _of_fields(
    name: str,
    dim: str,
    values: AnyArray,
    taken: Sequence[Taken],
    padded: bool,
) -> list[WindowCoordinate]:
    """One coordinate for all fields, or one for each where they differ along the dimension."""
    along = {field.name: axis for field in taken for axis in field.along if axis.dim == dim}
    if len(set(along.values())) == 1:
        return [WindowCoordinate(name, next(iter(along.values())), values, padded)]
    return [
        WindowCoordinate(f"{field.replace('/', '_')}_{name}", axis, values, padded)
        for field, axis in along.items()
    ]
