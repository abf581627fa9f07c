"""Turns a user's arguments about windows into a plan of the cells of each record.

Invariant: a plan is made from names, lengths and coordinates alone; no values are read for it. All
arrays with a dimension that windows move along agree in its length.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.errors import ArgumentError, SourceError
from windrow.sources.padding import Mode
from windrow.sources.windows.arguments import axis_names, fields_of
from windrow.sources.windows.coordinates import Coordinates
from windrow.sources.windows.durations import duration
from windrow.sources.windows.fields import (
    Along,
    Field,
    Matched,
    TakenField,
    by_dim,
    integer,
    runs_along,
    runs_of_cells,
    size_of,
    timed_dims,
)
from windrow.sources.windows.origins import (
    Centers,
    Dim,
    OriginAxis,
    OriginGrid,
    Origins,
    Run,
    listed_axis,
    masked,
    regular_axis,
)
from windrow.sources.windows.selection import Picked, picked
from windrow.sources.windows.stores import check_labels, coordinate_along
from windrow.sources.windows.times import Offsets, Times, times_along, with_times
from windrow.sources.zarr.names import Found
from windrow.sources.zarr.open_array import OpenArray

_WHAT: Final = "WindowDataSource"
_PADS: Final = ("constant", "edge", "reflect", "symmetric", "wrap")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class WindowRequest:
    """The arguments of a user about windows, as `WindowDataSource` takes them."""

    sizes: Any = None
    strides: Any = None
    start: Any = None
    stop: Any = None
    pad: Any = None
    fields: Any = None
    anchors: Any = None
    centers: Any = None
    dims: Any = None
    select: Any = None
    method: str | None = None
    tolerance: Any = None
    labelled: bool = False  # whether records have coordinates


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class WindowPlan:
    """The cells of each record.

    Args:
        origins: The origins of windows.
        taken: The fields.
        lengths: Cells along each dimension.
        ranges: The cells that may be read; cells outside are padding.
        arrays: Names of the axes of each array.
        pads: The padding along each dimension with padding.
    """

    origins: Origins
    taken: tuple[TakenField, ...]
    lengths: Mapping[Dim, int]
    ranges: Mapping[Dim, range]
    arrays: tuple[tuple[Dim, ...], ...]
    pads: Mapping[Dim, Mode]

    @property
    def pad_label(self) -> str:
        """The padding as a string for states and for the user; '' without padding."""
        modes = list(self.pads.values())
        if modes and modes == [modes[0]] * len(self.origins.dims):
            return modes[0]
        return ", ".join(f"{dim} {mode}" for dim, mode in self.pads.items())

    def reach(self, dim: Dim) -> Run:
        """The cells from the first to the last one that windows read, counted from their origins."""
        all_of = [axis.reach for field in self.taken for axis in field.along if axis.dim == dim]
        return min(first for first, _ in all_of), max(stop for _, stop in all_of)


def planned(opened: Sequence[OpenArray], request: WindowRequest, known: Coordinates) -> WindowPlan:
    """Makes the plan for `request` over open arrays; `known` reads the coordinates.

    Raises:
        ArgumentError: If an argument is of a wrong kind, or names an unknown dimension or array.
        SourceError: If windows do not fit, arrays do not agree, or a label does not exist.
        RecordIndexError: If a center is not a cell of the arrays.
    """
    return _Planner(opened, request, known).plan()


class _Planner:
    """Makes a plan from a request, step by step."""

    def __init__(
        self, opened: Sequence[OpenArray], request: WindowRequest, known: Coordinates
    ) -> None:
        if request.method not in (None, "nearest"):
            raise ArgumentError(
                f"{_WHAT}: method must be None or 'nearest', got {request.method!r}"
            )
        self._opened, self._request, self._known = opened, request, known
        self._names = axis_names(opened, request.dims)
        self._fields = fields_of(request.fields, opened)
        self._used = sorted({number for _, _, number in self._fields})
        self._sizes = {
            dim: size_of(size, dim, f"{_WHAT}: sizes")
            for dim, size in self._by_dim(request.sizes, "sizes")
        }
        self._strides = {
            dim: size_of(stride, dim, f"{_WHAT}: strides")
            for dim, stride in self._by_dim(request.strides, "strides")
        }
        self._anchors = dict(self._by_dim(request.anchors, "anchors"))
        self._fields = [
            (name, self._resolved(field), number) for name, field, number in self._fields
        ]
        timed = any(timed_dims(field) for _, field, _ in self._fields)
        self._tolerance = _checked_tolerance(request.tolerance, timed=timed)
        self._times: dict[Dim, Times] = {}
        self._matched: dict[Dim, dict[Offsets, Matched]] = {}
        self._centered: tuple[Dim, ...] = ()
        if request.centers is not None:
            self._centered = tuple(self._sizes)
        self._moving = self._moving_dims()
        self._pads = self._padded()
        self._lengths = self._agreed_lengths()
        self._picked: dict[Dim, Picked] = {}
        self._read_ahead()
        check_labels(opened, self._names, self._used, known)
        self._ranges = self._allowed()

    def plan(self) -> WindowPlan:
        taken = tuple(
            TakenField(name, number, tuple(self._along(field, dim) for dim in self._names[number]))
            for name, field, number in self._fields
        )
        origins = self._centers(taken) if self._centered else self._grid(taken)
        return WindowPlan(
            origins, taken, self._lengths, self._ranges, tuple(self._names), self._pads
        )

    def _read_ahead(self) -> None:
        """Reads the needed coordinates of remote arrays in parallel."""
        dims = {dim for dim, _ in self._by_dim(self._request.select, "select")}
        dims.update(dim for _, field, _ in self._fields for dim in field.select)
        dims.update(dim for _, field, _ in self._fields for dim in timed_dims(field))
        wanted: dict[str, Found] = {}
        others: list[Found] = []
        for number in self._used:
            array = self._opened[number]
            if not array.is_remote_source:
                continue
            if self._request.labelled:
                others.append(array.found)
            for dim in self._names[number]:
                if isinstance(dim, str) and (dim in dims or self._request.labelled):
                    # Other arrays mostly have the same coordinate.
                    wanted.setdefault(dim, array.found)
        self._known.read_ahead([(found, dim) for dim, found in wanted.items()], others)

    # --- dimensions ------------------------------------------------------------------------------

    def _dim(self, key: Dim) -> Dim:
        """The dimension with a name, or with the number of an axis."""
        names = [self._names[number] for number in self._used]
        if isinstance(key, int):
            found = {dims[key] for dims in names if -len(dims) <= key < len(dims)}
            if len(found) == 1:
                return found.pop()
            if found:
                raise ArgumentError(
                    f"{_WHAT}: axis {key} is {' and '.join(map(repr, sorted(found, key=str)))} of"
                    " different arrays; give a name, or names for all axes with dims="
                )
        elif any(key in dims for dims in names):
            return key
        known = list(dict.fromkeys(dim for dims in names for dim in dims))
        named = [dim for dim in known if isinstance(dim, str)]
        close = difflib.get_close_matches(str(key), named, 1)
        close = close or [dim for dim in named if dim.startswith(str(key))]
        if not any(isinstance(dim, str) for dim in known):
            more = "; the axes of the arrays have no names: give them with dims=, or count from 0"
        else:
            more = f"; did you mean {close[0]!r}?" if close else ""
        raise ArgumentError(f"{_WHAT}: no array has the dimension {key!r}, they have {known}{more}")

    def _by_dim(self, given: Any, name: str) -> list[tuple[Dim, Any]]:
        """The items of an argument by dimension, each dimension once."""
        found: dict[Dim, Any] = {}
        for key, value in by_dim(given, f"{_WHAT}: {name}"):
            dim = self._dim(key)
            if dim in found:
                raise ArgumentError(
                    f"{_WHAT}: {name} names {dim!r} twice, the second time as {key!r}; give it once"
                )
            found[dim] = value
        return list(found.items())

    def _resolved(self, field: Field) -> Field:
        return dataclasses.replace(
            field,
            offsets=dict(self._by_dim(field.offsets, "offsets of a Field")),
            sizes=dict(self._by_dim(field.sizes, "sizes of a Field")),
            select=dict(self._by_dim(field.select, "select of a Field")),
        )

    def _moving_dims(self) -> tuple[Dim, ...]:
        """The dimensions that windows move along, in the order of the largest array's axes."""
        wanted: set[Dim] = {*self._sizes, *self._anchors}
        for _, field, _ in self._fields:
            wanted.update(field.offsets, field.sizes)
        order = sorted(self._used, key=lambda number: -len(self._names[number]))
        found = [dim for number in order for dim in self._names[number] if dim in wanted]
        moving = tuple(dict.fromkeys(found))
        if self._request.centers is None:
            still = [dim for dim in self._strides if dim not in moving]
            if still:
                raise ArgumentError(
                    f"{_WHAT}: strides names {still[0]!r}, and windows do not move along it; give"
                    f" its size too, as sizes={{{still[0]!r}: ...}}"
                )
        if not moving:
            raise ArgumentError(
                f"{_WHAT}: the size of windows is not given; give sizes={{{self._example()!r}:"
                " ...}, offsets in fields, or anchors"
            )
        return moving

    def _padded(self) -> dict[Dim, Mode]:
        """The padding along each dimension with padding."""
        given: Any = self._request.pad
        if given is None:
            return {}
        by_name = isinstance(given, Mapping)
        found = self._by_dim(given, "pad") if by_name else [(dim, given) for dim in self._moving]
        for dim, mode in found:
            if mode not in _PADS:
                raise ArgumentError(
                    f"{_WHAT}: pad must be one of {_PADS} or None, or a dict of them by dimension, got"
                    f" {given!r}"
                )
            if dim not in self._moving:
                raise ArgumentError(
                    f"{_WHAT}: pad names {dim!r}, and windows do not move along it, so that none"
                    " reaches out there; leave it out, or give its size"
                )
        return dict(found)

    def _example(self) -> Dim:
        return self._names[self._used[0]][0]

    def _agreed_lengths(self) -> dict[Dim, int]:
        found: dict[Dim, tuple[int, str]] = {}
        for number in self._used:
            array = self._opened[number]
            for dim, length in zip(self._names[number], array.shape, strict=True):
                known = found.setdefault(dim, (length, array.name))
                if known[0] != length and (isinstance(dim, str) or dim in self._moving):
                    raise SourceError(
                        f"{_WHAT}: the arrays differ in length along {dim!r}\n"
                        f"  {known[1]}: {known[0]:,}\n  {array.name}: {length:,}\n"
                        "Choose arrays that agree with names=, name their axes with dims=, select the"
                        " same labels in a source of each and zip these, or give resolution= for volumes"
                        " at several resolutions."
                    )
        return {dim: length for dim, (length, _) in found.items()}

    # --- cells that may be read ------------------------------------------------------------------

    def _allowed(self) -> dict[Dim, range]:
        ranges = {dim: range(length) for dim, length in self._lengths.items()}
        bounds: dict[Dim, list[Any]] = {}
        for at, (given, name) in enumerate(
            ((self._request.start, "start"), (self._request.stop, "stop"))
        ):
            for dim, value in self._by_dim(given, name):
                bounds.setdefault(dim, [None, None])[at] = self._bound(dim, value, name)
        for dim, (first, stop) in bounds.items():
            ranges[dim] = ranges[dim][first:stop]
            if not ranges[dim] and self._lengths[dim] and dim not in self._moving:
                raise SourceError(
                    f"{_WHAT}: start and stop leave none of the {self._lengths[dim]:,} cells along"
                    f" {dim!r}, from {ranges[dim].start} to {ranges[dim].stop}; choose start < stop"
                )
        for dim, label in self._by_dim(self._request.select, "select"):
            if dim in bounds:
                raise ArgumentError(
                    f"{_WHAT}: select and start or stop both name {dim!r}; give one of them"
                )
            found = self._selected(dim, label)
            if isinstance(found, range):
                ranges[dim] = found
            else:
                self._picked[dim] = found
        return ranges

    def _bound(self, dim: Dim, value: Any, name: str) -> int:
        cell, length = integer(value, f"{_WHAT}: {name}[{dim!r}]"), self._lengths[dim]
        if not -length <= cell <= length:
            raise SourceError(
                f"{_WHAT}: {name}[{dim!r}] is {cell}, and there are {length:,} cells; choose"
                f" -{length} <= {name} <= {length}"
            )
        return cell

    def _selected(self, dim: Dim, label: Any) -> Picked:
        return picked(
            dim,
            label,
            coordinate_along(dim, self._opened, self._names, self._used, self._known),
            self._lengths[dim],
            moves=dim in self._moving,
            method=self._request.method,
        )

    # --- fields ----------------------------------------------------------------------------------

    def _along(self, field: Field, dim: Dim) -> Along:
        if dim in field.select:
            if dim in self._moving:
                raise ArgumentError(
                    f"{_WHAT}: windows move along {dim!r}, so a field cannot select"
                    f" {field.select[dim]!r} there; give it offsets, or leave offsets and sizes along"
                    f" {dim!r} out of all fields"
                )
            return _fixed(dim, self._selected(dim, field.select[dim]))
        if dim not in self._moving:
            return _fixed(dim, self._picked.get(dim, self._ranges[dim]))
        size = self._size(field, dim)
        offsets = field.offsets.get(dim, 0)
        dropped = size is None and not isinstance(offsets, tuple)
        cells = 1 if size is None else size
        before = cells // 2 if dim in self._centered else 0
        firsts: Any = offsets if isinstance(offsets, tuple) else (offsets,)
        if isinstance(firsts[0], np.timedelta64):
            firsts = self._cells_at(dim, firsts)
        if isinstance(firsts, Matched):
            if size is not None:
                raise ArgumentError(
                    f"{_WHAT}: offsets along {dim!r} are matched by time, one cell each, so that"
                    f" there is no size; leave {dim!r} out of sizes, and list all offsets"
                )
            return Along(dim, ((0, len(firsts.cells)),), True, dropped, firsts)
        runs = runs_of_cells([offset - before for offset in firsts], cells)
        return Along(dim, runs, True, dropped)

    def _size(self, field: Field, dim: Dim) -> int | None:
        """Cells of a field's window; None without a size."""
        if dim in field.sizes:
            return self._cells(field.sizes[dim], dim, f"sizes[{dim!r}] of a Field")
        given = self._sizes.get(dim)
        return None if given is None else self._cells(given, dim, f"{_WHAT}: sizes[{dim!r}]")

    def _cells(self, given: int | np.timedelta64, dim: Dim, what: str) -> int:
        """A size of windows, or a stride, in cells."""
        if isinstance(given, np.timedelta64):
            return self._times_along(dim).size_of(given, what)
        return given

    # --- times -----------------------------------------------------------------------------------

    def _cells_at(self, dim: Dim, offsets: Offsets) -> tuple[int, ...] | Matched:
        """Offsets in time as cells."""
        known = self._matched.setdefault(dim, {})
        if offsets in known:
            return known[offsets]
        found = self._times_along(dim).cells_at(offsets, self._ranges[dim], self._tolerance)
        if isinstance(found, Matched):
            known[offsets] = found  # fields with the same offsets have one coordinate
        return found

    def _times_along(self, dim: Dim) -> Times:
        """The times of the cells along a dimension."""
        if dim not in self._times:
            labels = coordinate_along(dim, self._opened, self._names, self._used, self._known)
            self._times[dim] = times_along(dim, labels)
        return self._times[dim]

    # --- origins ---------------------------------------------------------------------------------

    def _grid(self, taken: Sequence[TakenField]) -> OriginGrid:
        return OriginGrid([self._axis(dim, runs_along(taken, dim)) for dim in self._moving])

    def _axis(self, dim: Dim, runs: list[Run]) -> OriginAxis:
        cells, mode = self._ranges[dim], self._pads.get(dim)
        reads = runs or [(0, 1)]  # no field has cells at fixed distances
        given = self._given_anchors(dim)
        if given is not None and given.dtype.kind != "b":
            origins = given.astype(np.int64)
            if given.dtype.kind == "i":
                origins[origins < 0] += self._lengths[dim]
            axis = listed_axis(dim, origins, cells, reads, pad=mode is not None)
        else:
            name = "strides" if dim in self._strides else "sizes"
            given_stride = self._strides.get(dim, self._sizes.get(dim, 1))
            stride = self._cells(given_stride, dim, f"{_WHAT}: {name}[{dim!r}]")
            # Where cells wrap around there is no last window that fits.
            shifted = dim not in self._sizes or mode == "wrap"
            axis = regular_axis(dim, cells, reads, stride, pad=mode is not None, shifted=shifted)
            if given is not None:
                axis = masked(axis, given, runs, circle=cells if mode == "wrap" else None)
        matched = self._matched.get(dim)
        if not matched:
            return axis
        if mode is not None:
            raise ArgumentError(
                f"{_WHAT}: offsets along {dim!r} are matched by time, so that windows there are not"
                " padded; leave pad out, or give offsets in cells"
            )
        allowed = np.zeros(self._lengths[dim], np.bool_)
        allowed[cells.start : cells.stop] = True
        if given is not None and given.dtype.kind == "b":
            allowed &= given
        return with_times(axis, list(matched.values()), allowed, self._tolerance)

    def _given_anchors(self, dim: Dim) -> npt.NDArray[Any] | None:
        """The mask of a dimension, or its listed origins."""
        if dim not in self._anchors:
            return None
        given = np.asarray(self._anchors[dim])
        if given.ndim != 1 or given.dtype.kind not in "biu":
            raise ArgumentError(
                f"{_WHAT}: anchors[{dim!r}] must be a mask or integers in one dimension, got shape"
                f" {given.shape} and dtype {given.dtype}"
            )
        if given.dtype.kind == "b" and len(given) != self._lengths[dim]:
            raise ArgumentError(
                f"{_WHAT}: the mask of {dim!r} has {len(given):,} values, and there are"
                f" {self._lengths[dim]:,} cells; give one for each"
            )
        if given.dtype.kind != "b" and dim in self._strides:
            raise ArgumentError(
                f"{_WHAT}: anchors lists the origins along {dim!r}, so strides cannot; leave"
                " strides out, or give a mask"
            )
        return given

    def _centers(self, taken: Sequence[TakenField]) -> Centers:
        given = np.asanyarray(self._request.centers)
        dims = self._centered
        for name, there in (("strides", self._strides), ("anchors", self._anchors)):
            if there:
                raise ArgumentError(
                    f"{_WHAT}: centers do not go together with {name}; leave {name} out"
                )
        if len(dims) != len(self._moving):
            still = [dim for dim in self._moving if dim not in dims]
            raise ArgumentError(
                f"{_WHAT}: with centers, sizes must name each dimension that windows move along;"
                f" {still[0]!r} has offsets and no size"
            )
        if given.ndim == 1 and (len(dims) == 1 or not given.size):
            given = given.reshape(-1, len(dims))
        if given.ndim != 2 or given.shape[1] != len(dims):
            raise ArgumentError(
                f"{_WHAT}: centers must have shape (n, {len(dims)}), one column for each of"
                f" {list(dims)}, got {given.shape}"
            )
        if given.size and given.dtype.kind not in "iu":
            raise ArgumentError(
                f"{_WHAT}: centers must be integers, the cells in the middle of windows, got dtype"
                f" {given.dtype}; divide positions by the size of a cell"
            )
        centers = Centers(dims, given if given.size else given.astype(np.int64))
        runs = [runs_along(taken, dim) for dim in dims]
        reach = [(min(r[0] for r in each), max(r[1] for r in each)) for each in runs]
        # Where windows are padded, only the center itself must lie in the array.
        reach = [(0, 1) if dim in self._pads else run for dim, run in zip(dims, reach, strict=True)]
        centers.check([self._ranges[dim] for dim in dims], reach)
        return centers


def _checked_tolerance(given: Any, *, timed: bool) -> np.timedelta64 | None:
    """How far off times may be; `timed` says whether there are offsets in time."""
    what = f"{_WHAT}: tolerance"
    if given is None:
        return None
    found = duration(given, what)
    if found is None or found < np.timedelta64(0):
        raise ArgumentError(f"{what} must be a duration such as '30min' or '0h', got {given!r}")
    if not timed:
        raise ArgumentError(
            f"{what} is for offsets in time, and no field has one; leave it out, or give"
            " durations, such as Field(offsets={'time': '-6h'})"
        )
    return found


def _fixed(dim: Dim, cells: Picked) -> Along:
    """The cells that a field takes along a dimension without moving windows."""
    if isinstance(cells, int):
        return Along(dim, ((cells, cells + 1),), False, True)
    if isinstance(cells, range):
        return Along(dim, ((cells.start, cells.stop),), False, False)
    return Along(dim, runs_of_cells(cells), False, False)
