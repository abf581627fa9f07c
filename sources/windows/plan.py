"""Turns a user's arguments about windows into a plan of the cells of each record.

Invariant: a plan is made from names, lengths and coordinates alone; no values are read for it. All
arrays with a dimension that windows move along agree in its length.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from windrow.errors import ArgumentError, SourceError
from windrow.sources.base import IntArray
from windrow.sources.padding import Mode
from windrow.sources.windows.arguments import Dims, NamedField, axis_names, fields_of
from windrow.sources.windows.coordinates import Coordinates, check_labels, coordinate_along
from windrow.sources.windows.declared import Dim, Field, Window
from windrow.sources.windows.fields import (
    Along,
    Matched,
    TakenField,
    runs_along,
    runs_of_cells,
)
from windrow.sources.windows.origins import (
    Centers,
    OriginAxis,
    OriginGrid,
    Origins,
    Run,
    listed_axis,
    masked,
    regular_axis,
)
from windrow.sources.windows.selection import Coordinate, Picked, picked, readable
from windrow.sources.windows.times import Offsets, Times, times_along, with_times
from windrow.sources.zarr.names import Found
from windrow.sources.zarr.open_array import OpenArray

_WHAT: Final = "WindowDataSource"
_WHOLE: Final = Window()


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
    def used(self) -> list[int]:
        """The numbers of the arrays of fields."""
        return sorted({field.number for field in self.taken})

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


def planned(
    opened: Sequence[OpenArray],
    known: Coordinates,
    *,
    windows: Any,
    fields: Any,
    centers: Any,
    dims: Any,
    labelled: bool,
) -> WindowPlan:
    """Make the plan of windows over open arrays.

    Args:
        opened: The arrays.
        known: Reads the coordinates.
        windows: As for `WindowDataSource`, as are the others.
        fields: The fields of a record.
        centers: Places of windows.
        dims: Names of axes.
        labelled: Whether records have coordinates.

    Raises:
        ArgumentError: If an argument is of a wrong kind, or names an unknown dimension or array.
        SourceError: If windows do not fit, arrays do not agree, or a label does not exist.
        RecordIndexError: If a center is not a cell of the arrays.
    """
    names = axis_names(opened, dims)
    named = fields_of(fields, opened)
    by_user = Dims([names[number] for number in sorted({item.number for item in named})])
    resolved = [dataclasses.replace(item, field=by_user.resolved(item.field)) for item in named]
    return _Planner(opened, known, names, resolved, by_user.windows(windows), labelled).plan(
        centers
    )


class _Planner:
    """Makes a plan, step by step."""

    def __init__(
        self,
        opened: Sequence[OpenArray],
        known: Coordinates,
        names: Sequence[tuple[Dim, ...]],
        fields: Sequence[NamedField],
        windows: Mapping[Dim, Window],
        labelled: bool,
    ) -> None:
        self._opened, self._known, self._names = opened, known, names
        self._fields, self._windows = fields, windows
        self._used = sorted({item.number for item in fields})
        self._times: dict[Dim, Times] = {}
        self._matched: dict[Dim, dict[Offsets, Matched]] = {}
        self._moving = self._moving_dims()
        self._check_windows()
        self._pads: dict[Dim, Any] = {
            dim: window.pad for dim, window in windows.items() if window.pad is not None
        }
        self._lengths = self._agreed_lengths()
        self._read_ahead(labelled)
        check_labels(opened, names, self._used, known)
        self._picked: dict[Dim, Picked] = {}
        self._masks: dict[Dim, npt.NDArray[np.bool_]] = {}  # where not all of a range is selected
        self._ranges = self._allowed()

    def plan(self, centers: Any) -> WindowPlan:
        """Make the plan; `centers` as for `WindowDataSource`."""
        # Columns of centers are in the order of the dimensions with a size.
        sized = [dim for dim, window in self._windows.items() if window.size is not None]
        middle = [] if centers is None else sized
        taken = tuple(
            TakenField(
                item.name,
                item.number,
                tuple(self._along(item.field, dim, middle) for dim in self._names[item.number]),
            )
            for item in self._fields
        )
        origins: Origins
        if centers is None:
            origins = OriginGrid([self._axis(dim, runs_along(taken, dim)) for dim in self._moving])
        else:
            origins = self._centers(centers, sized, taken)
        arrays = tuple(self._names)
        return WindowPlan(origins, taken, self._lengths, self._ranges, arrays, self._pads)

    def _read_ahead(self, labelled: bool) -> None:
        """Reads the needed coordinates of remote arrays in parallel."""
        dims = {dim for dim, window in self._windows.items() if window.seeks_labels}
        for item in self._fields:
            dims.update(item.field.select, item.field.timed_dims)
        wanted: dict[str, Found] = {}
        others: list[Found] = []
        for number in self._used:
            array = self._opened[number]
            if not array.is_remote_source:
                continue
            if labelled:
                others.append(array.found)
            for dim in self._names[number]:
                if isinstance(dim, str) and (dim in dims or labelled):
                    # Other arrays mostly have the same coordinate.
                    wanted.setdefault(dim, array.found)
        self._known.read_ahead([(found, dim) for dim, found in wanted.items()], others)

    # --- dimensions ------------------------------------------------------------------------------

    def _moving_dims(self) -> tuple[Dim, ...]:
        """The dimensions that windows move along, in the order of the largest array's axes."""
        wanted = {
            dim
            for dim, window in self._windows.items()
            if window.size is not None or window.anchors is not None
        }
        for item in self._fields:
            wanted.update(item.field.offsets, item.field.sizes)
        order = sorted(self._used, key=lambda number: -len(self._names[number]))
        found = [dim for number in order for dim in self._names[number] if dim in wanted]
        if not found:
            raise ArgumentError(
                f"{_WHAT}: the size of windows is not given; give windows="
                f"{{{self._names[self._used[0]][0]!r}: ...}}, offsets in fields, or anchors"
            )
        return tuple(dict.fromkeys(found))

    def _check_windows(self) -> None:
        timed = {dim for item in self._fields for dim in item.field.timed_dims}
        for dim, window in self._windows.items():
            for name in ("stride", "pad"):
                if getattr(window, name) is not None and dim not in self._moving:
                    raise ArgumentError(
                        f"{_WHAT}: {name} is given along {dim!r}, and windows do not move along it;"
                        " leave it out, or give its size"
                    )
            if window.tolerance is not None and dim not in timed:
                raise ArgumentError(
                    f"{_WHAT}: tolerance is for offsets in time, and no field has one along {dim!r};"
                    f" leave it out, or give durations, such as Field(offsets={{{dim!r}: '-6h'}})"
                )

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
        for dim, window in self._windows.items():
            if window.chosen is None:
                continue
            if dim in self._moving:
                ranges[dim], mask = readable(dim, window, *self._labelled(dim, window))
                if mask is not None:
                    self._masks[dim] = mask
                continue
            found = picked(dim, window, *self._labelled(dim, window))
            if isinstance(found, range):
                ranges[dim] = found
            else:
                self._picked[dim] = found
        return ranges

    def _labelled(self, dim: Dim, window: Window) -> tuple[Coordinate | None, int]:
        """The labels among which a window selects, and the cells of the dimension."""
        return self._labels(dim) if window.seeks_labels else None, self._lengths[dim]

    def _labels(self, dim: Dim) -> Coordinate | None:
        return coordinate_along(dim, self._opened, self._names, self._used, self._known)

    # --- fields ----------------------------------------------------------------------------------

    def _along(self, field: Field, dim: Dim, middle: Sequence[Dim]) -> Along:
        """The cells of a field along a dimension; origins of `middle` are the middles of windows."""
        window = self._windows.get(dim, _WHOLE)
        if dim in field.select:
            if dim in self._moving:
                raise ArgumentError(
                    f"{_WHAT}: windows move along {dim!r}, so a field cannot select"
                    f" {field.select[dim]!r} there; give it offsets, or leave offsets and sizes along"
                    f" {dim!r} out of all fields"
                )
            own = Window(select=field.select[dim], method=window.method)
            return _fixed(dim, picked(dim, own, *self._labelled(dim, own)))
        if dim not in self._moving:
            return _fixed(dim, self._picked.get(dim, self._ranges[dim]))
        given = field.sizes.get(dim, window.size)
        size = None if given is None else self._cells(given, dim, "size")
        offsets = field.offsets.get(dim, 0)
        dropped = size is None and not isinstance(offsets, tuple)
        cells = 1 if size is None else size
        before = cells // 2 if dim in middle else 0
        firsts: Any = offsets if isinstance(offsets, tuple) else (offsets,)
        if isinstance(firsts[0], datetime.timedelta):
            firsts = self._cells_at(dim, firsts)
        if isinstance(firsts, Matched):
            if size is not None:
                raise ArgumentError(
                    f"{_WHAT}: offsets along {dim!r} are matched by time, one cell each, so that"
                    " there is no size; leave it out, and list all offsets"
                )
            return Along(dim, ((0, len(firsts.cells)),), True, dropped, firsts)
        runs = runs_of_cells([offset - before for offset in firsts], cells)
        return Along(dim, runs, True, dropped)

    def _cells(self, given: Any, dim: Dim, name: str) -> int:
        """A size of windows, or a stride, in cells."""
        if isinstance(given, datetime.timedelta):
            return self._times_along(dim).size_of(given, name)
        return int(given)

    def _cells_at(self, dim: Dim, offsets: Offsets) -> tuple[int, ...] | Matched:
        """Offsets in time as cells."""
        known = self._matched.setdefault(dim, {})
        if offsets in known:
            return known[offsets]
        tolerance = self._windows.get(dim, _WHOLE).tolerance
        found = self._times_along(dim).cells_at(offsets, self._ranges[dim], tolerance)
        if isinstance(found, Matched):
            known[offsets] = found  # fields with the same offsets have one coordinate
        return found

    def _times_along(self, dim: Dim) -> Times:
        """The times of the cells along a dimension."""
        if dim not in self._times:
            self._times[dim] = times_along(dim, self._labels(dim))
        return self._times[dim]

    # --- origins ---------------------------------------------------------------------------------

    def _axis(self, dim: Dim, runs: list[Run]) -> OriginAxis:
        window, cells, mask = (
            self._windows.get(dim, _WHOLE),
            self._ranges[dim],
            self._masks.get(dim),
        )
        padded, wraps = window.pad is not None, window.pad == "wrap"
        reads = runs or [(0, 1)]  # no field has cells at fixed distances
        if window.anchors is not None:
            axis = listed_axis(dim, self._anchors(dim, window), cells, reads, pad=padded)
        else:
            given = window.size if window.stride is None else window.stride
            stride = 1 if given is None else self._cells(given, dim, "stride")
            # Where cells wrap around there is no last window that fits.
            shifted = window.size is None or wraps
            axis = regular_axis(dim, cells, reads, stride, pad=padded, shifted=shifted)
        if mask is not None:
            axis = masked(axis, mask, runs, circle=cells if wraps else None)
        matched = self._matched.get(dim)
        if not matched:
            return axis
        if padded:
            raise ArgumentError(
                f"{_WHAT}: offsets along {dim!r} are matched by time, so that windows there are not"
                " padded; leave pad out, or give offsets in cells"
            )
        inside = np.zeros(self._lengths[dim], np.bool_)
        inside[cells.start : cells.stop] = True
        if mask is not None:
            inside &= mask
        return with_times(axis, list(matched.values()), inside)

    def _anchors(self, dim: Dim, window: Window) -> IntArray:
        """The origins that a user lists along a dimension."""
        given, what = np.asarray(window.anchors), f"{_WHAT}: anchors along {dim!r}"
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise ArgumentError(
                f"{what} must be integers in one dimension, got shape {given.shape} and dtype"
                f" {given.dtype}; a mask of cells is Window(select=...)"
            )
        if window.stride is not None or dim in self._masks:
            raise ArgumentError(
                f"{what} list the origins; leave stride out, and select one slice at most"
            )
        origins = given.astype(np.int64)
        if given.dtype.kind == "i":
            origins[origins < 0] += self._lengths[dim]
        return origins

    def _centers(self, given: Any, dims: Sequence[Dim], taken: Sequence[TakenField]) -> Centers:
        given = np.asanyarray(given)
        for dim, window in self._windows.items():
            if window.stride is not None or window.anchors is not None or dim in self._masks:
                raise ArgumentError(
                    f"{_WHAT}: centers list the windows; leave strides and anchors out, and select one"
                    f" slice at most along {dim!r}"
                )
        if len(dims) != len(self._moving):
            still = [dim for dim in self._moving if dim not in dims]
            raise ArgumentError(
                f"{_WHAT}: with centers, each dimension that windows move along has a size;"
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


def _fixed(dim: Dim, cells: Picked) -> Along:
    """The cells that a field takes along a dimension without moving windows."""
    if isinstance(cells, int):
        return Along(dim, ((cells, cells + 1),), False, True)
    if isinstance(cells, range):
        return Along(dim, ((cells.start, cells.stop),), False, False)
    return Along(dim, runs_of_cells(cells), False, False)
