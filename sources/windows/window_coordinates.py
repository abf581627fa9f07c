"""Computes the coordinates of windows, which label the axes of a record's fields.

Invariant: coordinates are in memory. The coordinates of a record follow from its origin.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from windrow.errors import ArgumentError, SourceError
from windrow.sources.base import AnyArray, ArraySpec, IntArray
from windrow.sources.cells import Box
from windrow.sources.windows.coordinates import Coordinates, coordinate_along
from windrow.sources.windows.declared import Dim
from windrow.sources.windows.fields import Along
from windrow.sources.windows.origins import Origins
from windrow.sources.windows.plan import WindowPlan
from windrow.sources.windows.selection import Coordinate
from windrow.sources.zarr.open_array import OpenArray

_WHAT: Final = "WindowDataSource"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class WindowCoordinate:
    """One coordinate of each record.

    Args:
        name: Its name in the record.
        axis: Name of the axis that it labels.
        along: The cells of the dimension that it labels.
        values: Labels of the whole dimension.
        reaches_out: Whether windows may have cells outside of the array, which have no label.
        circle: The cells that come again after their last one; None where windows do not wrap.
        attributes: As they are stored.
    """

    name: str
    axis: str
    along: Along
    values: AnyArray
    reaches_out: bool
    circle: range | None = None
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def spec(self) -> ArraySpec:
        """Shape, dtype and dimension as delivered."""
        dim = self.along.dim if isinstance(self.along.dim, str) else None
        if self.along.dropped:
            return ArraySpec((), self._dtype, ())
        return ArraySpec((self.along.length,), self._dtype, (dim,))

    def within(self, box: Box | None) -> WindowCoordinate:
        """The coordinate of some cells; None for all."""
        if box is None or self.along.dropped:
            return self
        return dataclasses.replace(self, along=self.along.within(box[0]))

    @property
    def label(self) -> str:
        """The coordinate as a string for states."""
        values = np.ascontiguousarray(self.values)
        data = repr(values.tolist()).encode() if values.dtype.hasobject else values.tobytes()
        return f"{self.name} {values.dtype} sha256:{hashlib.sha256(data).hexdigest()[:16]}"

    @property
    def _dtype(self) -> np.dtype[Any]:
        dtype = self.values.dtype
        return np.dtype(np.float64) if self.reaches_out and dtype.kind in "biu" else dtype

    def of(self, indices: IntArray, origins: Origins) -> AnyArray:
        """The coordinates of records, `(n, length)`, or `(n,)` for a dropped axis."""
        if self.along.moves:
            cells = self.along.at(origins.at(indices)[:, origins.dims.index(self.along.dim)])
        else:
            cells = np.broadcast_to(self.along.cells(), (len(indices), self.along.length))
        if self.circle is not None:
            cells = (cells - self.circle.start) % len(self.circle) + self.circle.start
        if self.reaches_out:
            found = self.values[np.clip(cells, 0, len(self.values) - 1)]
            found = found.astype(self._dtype, copy=False)
            found[(cells < 0) | (cells >= len(self.values))] = _nothing(self._dtype)
        else:
            found = self.values[cells]
        return found[:, 0] if self.along.dropped else found


def _nothing(dtype: np.dtype[Any]) -> Any:
    """The value of a missing coordinate: NaN, NaT or an empty string."""
    if dtype.kind in "mM":
        return np.array("NaT", dtype)
    return "" if dtype.kind in "UTO" else np.nan


def window_coordinates(
    opened: Sequence[OpenArray],
    plan: WindowPlan,
    wanted: bool | Sequence[str],
    *,
    known: Coordinates,
    own_name: str,
) -> tuple[WindowCoordinate, ...]:
    """Return the coordinates that records have in addition to their fields.

    Args:
        opened: The arrays.
        plan: The cells of each record.
        wanted: Whether records have coordinates, or the names of the coordinates.
        known: Reads the coordinates.
        own_name: Name of a single array in a record with coordinates.

    Raises:
        ArgumentError: If `wanted` is of a wrong kind.
        SourceError: If the store does not have such coordinates.
    """
    if wanted is False:
        return ()
    several = isinstance(wanted, Sequence) and not isinstance(wanted, str)
    if not isinstance(wanted, bool) and not (several and all(isinstance(x, str) for x in wanted)):
        raise ArgumentError(
            f"{_WHAT}: coordinates must be True, False or a list of names, got {wanted!r}"
        )
    dims = _dims(opened, plan, known)
    names = [name for name, dim in dims.items() if name == dim] if wanted is True else wanted
    found: dict[str, WindowCoordinate] = {}
    for name in dict.fromkeys(names):
        coordinate = _read(name, dims[name], opened, plan, known) if name in dims else None
        if coordinate is not None:
            found.update(_of_fields(coordinate, plan))
        elif wanted is not True:
            raise SourceError(
                f"{_WHAT}: the store has no coordinates {name!r} along the windows' dimensions; the"
                f" dimensions and other coordinates are {list(dims)}"
            )
    if not found:
        raise SourceError(
            f"{_WHAT}: the store has no coordinates along the windows' dimensions; leave"
            " coordinates out"
        )
    taken = {field.name.partition("/")[0] or own_name for field in plan.taken}
    for name in taken.intersection(found):
        raise SourceError(
            f"{_WHAT}: a field and a coordinate are both named {name!r}; give the field another name"
            " with fields="
        )
    return tuple(found.values())


def _dims(opened: Sequence[OpenArray], plan: WindowPlan, known: Coordinates) -> dict[str, str]:
    """The dimension of each possible coordinate, by the coordinate's name."""
    dims = [axis.dim for field in plan.taken for axis in field.along]
    found = {dim: dim for dim in dims if isinstance(dim, str)}
    for number in plan.used:
        for name, dim in known.extra_dims(opened[number].found).items():
            if dim in plan.arrays[number]:
                found.setdefault(name, dim)
    return found


def _read(
    name: str, dim: str, opened: Sequence[OpenArray], plan: WindowPlan, known: Coordinates
) -> Coordinate | None:
    """Reads a coordinate of the arrays; None if the arrays have none of that name."""
    if name == dim:
        return coordinate_along(dim, opened, plan.arrays, plan.used, known)
    for number in plan.used:
        found = opened[number].found
        if known.extra_dims(found).get(name) == dim:
            coordinate = known.extra(found, name)
            if len(coordinate) == plan.lengths[dim]:
                return coordinate
    return None


def _of_fields(coordinate: Coordinate, plan: WindowPlan) -> dict[str, WindowCoordinate]:
    """One coordinate for all fields, or one for each if they differ along the dimension."""
    found: dict[str, WindowCoordinate] = {}
    (dim,) = coordinate.dims
    mode = plan.pads.get(dim)
    for field in plan.taken:
        own = axis_name(plan, dim, field.name, coordinate.name)
        for along in field.along:
            if along.dim == dim and own not in found:
                wraps = along.moves and mode == "wrap"
                found[own] = WindowCoordinate(
                    own,
                    axis_name(plan, dim, field.name),
                    along,
                    coordinate.values,
                    reaches_out=along.moves and mode is not None and not wraps,
                    circle=plan.ranges[dim] if wraps else None,
                    attributes=coordinate.attributes,
                )
    return found


def axis_name(plan: WindowPlan, dim: Dim, field: str, name: str | None = None) -> str:
    """The name of a field's axis along `dim`, or of labels `name` along it.

    It is the name itself where all fields have the same cells, and else begins with the field's.
    """
    name = name or (f"dim_{dim}" if isinstance(dim, int) else dim)
    cells = {axis for taken in plan.taken for axis in taken.along if axis.dim == dim}
    return name if len(cells) == 1 else f"{field.replace('/', '_')}_{name}"
