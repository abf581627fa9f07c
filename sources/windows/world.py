"""Sizes and bounds of windows in the world, and windows of several arrays around one point of it.

Invariant: nothing is rounded in silence. A size that is not a whole number of cells, and windows whose
middles do not meet, are errors unless the user says how far off they may be.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import tensorstore as ts

from windrow.errors import ArgumentError, SourceError
from windrow.sources.base import IntArray
from windrow.sources.windows.aligned import Aligned, aligned, cells_inside
from windrow.sources.windows.coordinates import Coordinates
from windrow.sources.windows.durations import duration, ns_of
from windrow.sources.windows.fields import TakenField
from windrow.sources.windows.origins import Dim, OriginAxis, Run, left_over, named
from windrow.sources.windows.selection import Coordinate, Picked
from windrow.sources.windows.times import times_along
from windrow.sources.zarr.open_array import OpenArray
from windrow.sources.zarr.spacing import SLACK, Extent, Spacing, extent, length_or_angle
from windrow.sources.zarr.store_array import StoreArray

_WHAT: Final = "WindowDataSource"
# Names of degrees where a coordinate has no unit, as xarray writes it.
_DEGREES: Final = ("lat", "latitude", "lon", "longitude")
_AT_ONCE: Final = 2**20
# Sums and ratios of floats are off by less than this part.
_NOISE: Final = 1e-6
_FAR: Final = 2.0**60  # cells; farther ones have no number


class World:
    """Where the cells of some arrays lie, along each dimension."""

    def __init__(
        self,
        opened: Sequence[OpenArray],
        names: Sequence[tuple[Dim, ...]],
        used: Sequence[int],
        known: Coordinates,
        *,
        tolerance: Extent | None,
        aligns: bool,
    ) -> None:
        """Compares the arrays; reads no coordinates.

        Args:
            opened: The arrays.
            names: Names of the axes of each array.
            used: Numbers of the arrays that fields are from.
            known: Reads coordinates.
            tolerance: How far off a size or a middle may be; None for not at all.
            aligns: Whether arrays may have other cells along a dimension, so that their windows are
                aligned.

        Raises:
            SourceError: If arrays cannot be compared.
        """
        self._opened, self._names, self._used, self._known = opened, names, used, known
        self.tolerance = tolerance
        self._spacings: dict[tuple[int, Dim], Spacing | None] = {}
        self._compared: dict[Spacing, None] = {}
        # The spacing of the reference, and the spacing of an array in its unit.
        self._pairs: dict[tuple[int, Dim], tuple[Spacing, Spacing]] = {}
        dims = dict.fromkeys(dim for number in used for dim in names[number]) if aligns else ()
        found = {dim: self._reference(dim) for dim in dims}
        self.references = {dim: number for dim, number in found.items() if number is not None}
        """By dimension along which arrays have other cells, the array whose cells origins count."""

    def stored(self, number: int, dim: Dim) -> Spacing | None:
        """The spacing that an array declares, without regard to coordinates."""
        array, axis = self._opened[number], self._names[number].index(dim)
        if array.found.spacing:
            return array.found.spacing[axis]
        if isinstance(array.found.spec, ts.TensorStore):
            return _of_store(array.found.spec, axis)
        backend = array.backend
        # The units that a Zarr array at a path may declare have no positions, as coordinates have.
        if array.found.metadata is None and isinstance(backend, StoreArray):
            return _of_store(backend.store, axis)
        return None

    def spacing(self, number: int, dim: Dim) -> Spacing | None:
        """The spacing of an array, also from coordinates; None if it is unknown.

        Raises:
            SourceError: If it has coordinates that are not evenly spaced.
        """
        if (number, dim) not in self._spacings:
            found = self.stored(number, dim)
            coordinate = (
                self._known.of(self._opened[number].found, dim)
                if found is None and isinstance(dim, str)
                else None
            )
            if coordinate is not None and len(coordinate) == self._length(number, dim):
                found = _spacing_of(dim, coordinate)
            self._spacings[number, dim] = found
        return self._spacings[number, dim]

    def cells(self, given: int | Extent, number: int, dim: Dim, what: str) -> int:
        """A size in cells of an array.

        Raises:
            ArgumentError: If it is in a unit that the axis has not.
            SourceError: If it is not a whole number of cells, and not within the tolerance of one.
        """
        if not isinstance(given, Extent):
            return given
        spacing = self._known_spacing(given, number, dim, what)
        step = abs(spacing.step)
        count = spacing.within(given, what) / step
        whole = max(1, math.floor(count + 0.5))
        off_by = abs(whole - count) * step
        if off_by > self._allowed(spacing, step * SLACK) * (1 + _NOISE):
            near = [spacing.shown(n * step) for n in (math.floor(count), math.ceil(count)) if n]
            off = spacing.shown(_rounded_up(off_by))
            raise SourceError(
                f"{what} is {given.text!r}, which is {count:.6g} cells of {spacing.shown_step} along"
                f" {named(dim)}; choose {' or '.join(near)}, or tolerance={off!r} for the nearest"
                " number of cells"
            )
        return whole

    def bound(self, given: Extent, number: int, dim: Dim, what: str) -> int:
        """The first cell whose middle does not lie before a position.

        Raises:
            ArgumentError: If the axis has no positions in that unit, or they descend.
        """
        spacing = self._known_spacing(given, number, dim, what)
        if spacing.step < 0 or math.isnan(spacing.first):
            raise ArgumentError(
                f"{what} is {given.text!r}, and the coordinates of {dim!r} are times, or descend; select"
                f" labels: select={{{dim!r}: slice(...)}}"
            )
        place = (spacing.within(given, what) - spacing.first) / spacing.step
        return min(max(0, math.ceil(place - 1e-6)), self._length(number, dim))

    def cells_at(self, dims: Sequence[Dim], points: npt.NDArray[Any], unit: str) -> IntArray:
        """The cell that holds each position, int64 `(n, dims)`, which need not be in the array.

        Raises:
            ArgumentError: If positions are not numbers, or an axis has no positions in that unit.
        """
        if not re.fullmatch(r"[^\W\d_]+", unit):  # digits would be a number before the unit
            raise ArgumentError(f"{_WHAT}: centers_unit must be a unit, such as 'nm', got {unit!r}")
        one = cast(Extent, extent(f"1{unit}", f"{_WHAT}: centers_unit"))  # not None of a string
        one = dataclasses.replace(one, text=unit)
        if points.size and (points.dtype.kind not in "iuf" or not np.isfinite(points).all()):
            raise ArgumentError(f"{_WHAT}: centers must be finite numbers, got {points.dtype}")
        points = points.astype(np.float64)
        found = np.zeros(points.shape, np.int64)
        for column, dim in enumerate(dims):
            spacing = self._known_spacing(one, self.number_for(dim), dim, f"{_WHAT}: centers_unit")
            scale = spacing.within(one, f"{_WHAT}: centers_unit")
            if math.isnan(spacing.first):
                raise ArgumentError(
                    f"{_WHAT}: centers_unit is {unit!r}, and the positions along {named(dim)} are"
                    " times; give centers in cells"
                )
            place = (points[:, column] * scale - spacing.first) / spacing.step
            far = np.flatnonzero(~(np.abs(place) < _FAR))
            if len(far):
                raise ArgumentError(
                    f"{_WHAT}: centers[{far[0]}] is {points[far[0]].tolist()} in {unit}, which is"
                    f" far from all cells along {named(dim)}"
                )
            found[:, column] = np.floor(place + 0.5 + _NOISE)
        return found

    def number_for(self, dim: Dim) -> int:
        """The array whose cells origins count along a dimension."""
        if dim in self.references:
            return self.references[dim]
        numbers = [number for number in self._used if dim in self._names[number]]
        return next((n for n in numbers if self.spacing(n, dim) is not None), numbers[0])

    # --- several resolutions ---------------------------------------------------------------------

    def range_of(self, number: int, dim: Dim, cells: Picked) -> range:
        """The cells of an array in some cells of the reference; all of them in the whole of it.

        Raises:
            ArgumentError: If `cells` are not a range.
            SourceError: If the array has no cell wholly in them.
        """
        if not isinstance(cells, range):
            raise ArgumentError(
                f"{_WHAT}: select takes cells of {dim!r}, and the arrays have other cells there;"
                f" give sizes={{{dim!r}: 1}}, or a slice"
            )
        reference, length = self.references[dim], self._length(number, dim)
        if cells == range(self._length(reference, dim)):
            return range(length)
        if number == reference:
            return cells
        found = cells_inside(*self._pairs[number, dim], cells, length)
        if cells and not found:
            raise SourceError(
                f"{_WHAT}: no cell of {self._opened[number].name!r} lies wholly in the cells"
                f" [{cells.start}, {cells.stop}) along {dim!r}, which count the smallest cells; choose"
                " more of them"
            )
        return found

    def along(
        self, number: int, dim: Dim, size: int, base: int, before: int, cells: range, *, wraps: bool
    ) -> tuple[tuple[Run, ...], Aligned | None]:
        """The cells of a window of `size` cells around the middle of the one at an origin.

        Args:
            number: The array.
            dim: A dimension of `references`.
            size: Cells of the window.
            base: Cells of the window of the reference.
            before: Cells of that window before its origin.
            cells: Cells of the reference that may be read.
            wraps: Whether the arrays come again after their last cell.

        Raises:
            SourceError: If they come again at different distances.
        """
        reference = self.references[dim]
        if number == reference and size == base:
            return ((-before, size - before),), None
        middle = Fraction(base, 2) - before
        within = self.range_of(number, dim, cells)
        found = aligned(*self._pairs[number, dim], middle, size, within)
        if wraps and len(cells) * found.up != len(within) * found.down:
            lengths = [
                each.shown(count * each.step)
                for each, count in zip(
                    self._pairs[number, dim], (len(cells), len(within)), strict=True
                )
            ]
            raise SourceError(
                f"{_WHAT}: pad='wrap' along {named(dim)} needs arrays of one length in the world, and"
                f" {self._opened[reference].name!r} is {lengths[0]} long and"
                f" {self._opened[number].name!r} {lengths[1]}; choose another padding, or start and stop"
            )
        return ((0, size),), found

    def lined_up(
        self, axis: OriginAxis, taken: Sequence[TakenField], last: int, *, shifts: bool
    ) -> OriginAxis:
        """The grid of `axis`, from its first origin on at which the middles of all windows meet.

        Args:
            axis: A regular grid.
            taken: The fields.
            last: The last cell that may be an origin.
            shifts: Whether the grid may begin later than `axis`.

        Raises:
            SourceError: If middles are further apart than the tolerance.
        """
        count = last - axis.first + 1 if shifts else (axis.count - 1) * axis.stride + 1
        origins = axis.first + np.arange(count)
        good = np.ones(count, np.bool_)
        for _, number, _, place in _aligned_along(taken, axis.dim):
            good &= self._meets(number, axis.dim, place, origins)
        for first in range(min(axis.stride, count) if shifts else 1):
            if good[first :: axis.stride].all():
                if not first:
                    return axis
                found = len(range(first, count, axis.stride))
                left = left_over(count - first - (found - 1) * axis.stride - 1, axis.dim)
                return dataclasses.replace(axis, first=axis.first + first, count=found, left=left)
        raise self._apart(taken, axis.dim, origins[:: axis.stride], _way_out(good, axis.stride))

    def check_centers(
        self, dims: Sequence[Dim], centers: npt.NDArray[Any], taken: Sequence[TakenField]
    ) -> None:
        """Checks that the middles of all windows around each center meet.

        Raises:
            SourceError: If they are further apart than the tolerance.
        """
        for column, dim in enumerate(dims):
            for first in range(0, len(centers), _AT_ONCE):
                cells = np.asarray(centers[first : first + _AT_ONCE, column]).astype(np.int64)
                for _, number, _, place in _aligned_along(taken, dim):
                    wrong = np.flatnonzero(~self._meets(number, dim, place, cells))
                    if len(wrong):
                        at = f"centers[{first + wrong[0]}]"
                        raise self._apart(taken, dim, cells, f"move {at}")

    def _meets(
        self, number: int, dim: Dim, place: Aligned, origins: IntArray
    ) -> npt.NDArray[np.bool_]:
        reference, own = self._pairs[number, dim]
        most = self._allowed(own, reference.step * SLACK) / own.step
        return place.off(origins) <= most * (1 + _NOISE)

    def _apart(
        self, taken: Sequence[TakenField], dim: Dim, origins: IntArray, way: str
    ) -> SourceError:
        offs = []
        for name, number, _, place in _aligned_along(taken, dim):
            own = self._pairs[number, dim][1]
            offs.append((float(place.off(origins).max()) * own.step, name, own))
        worst, name, own = max(offs, key=lambda item: item[0])
        off = own.shown(_rounded_up(worst))
        reference = self._pairs[self.references[dim], dim][0]
        shown = repr(off) if own.unit else off
        return SourceError(
            f"{_WHAT}: the windows of field {name!r}, with cells of {own.shown_step} along"
            f" {named(dim)}, cannot have the same middles as windows that begin at cells of"
            f" {reference.shown_step}: they are up to {off} apart; {way}, or give tolerance={shown}"
            " to take the nearest cell"
        )

    def _reference(self, dim: Dim) -> int | None:
        """The array with the smallest cells along a dimension; None if all have the same ones."""
        numbers = [number for number in self._used if dim in self._names[number]]
        stored = {number: self.stored(number, dim) for number in numbers}
        first = stored[numbers[0]]
        if len(numbers) < 2 or first is None:
            return None
        steps: dict[int, Spacing] = {}
        for number, each in stored.items():
            found = None if each is None else each.converted(first.unit)
            if each is None:
                return None  # the arrays must agree in length
            if found is None:
                raise SourceError(
                    f"{_WHAT}: along {dim!r}, {self._opened[numbers[0]].name!r} counts in"
                    f" {first.unit or 'no unit'} and {self._opened[number].name!r} in"
                    f" {each.unit or 'no unit'}, so that they cannot be aligned; choose one of them"
                )
            steps[number] = found
        lengths = {self._length(number, dim) for number in numbers}
        if len(lengths) == 1 and all(each.is_like(steps[numbers[0]]) for each in steps.values()):
            return None
        reference = min(steps, key=lambda number: steps[number].step)
        self._pairs |= {(number, dim): (steps[reference], own) for number, own in steps.items()}
        return reference

    def check_tolerance(self) -> None:
        """Checks that the tolerance was for one of the axes that sizes and middles were compared along.

        Raises:
            ArgumentError: If it is of another kind than all of them.
        """
        given, compared = self.tolerance, list(self._compared)
        if given is not None and compared and not any(each.counts(given) for each in compared):
            compared[0].within(given, f"{_WHAT}: tolerance")

    def _allowed(self, spacing: Spacing, slack: float) -> float:
        self._compared[spacing] = None
        if self.tolerance is None or not spacing.counts(self.tolerance):
            return slack  # the tolerance may be for another axis
        return max(slack, spacing.within(self.tolerance, f"{_WHAT}: tolerance"))

    def _known_spacing(self, given: Extent, number: int, dim: Dim, what: str) -> Spacing:
        found = self.spacing(number, dim)
        if found is None:
            raise ArgumentError(
                f"{what} is {given.text!r}, and the store does not say where the cells along"
                f" {named(dim)} lie: it has no coordinates of it and no resolution; give cells,"
                " or open the whole OME-Zarr image with resolution="
            )
        return found

    def _length(self, number: int, dim: Dim) -> int:
        return self._opened[number].shape[self._names[number].index(dim)]


def tolerances(
    given: Any, *, timed: bool, in_world: bool, in_time: bool
) -> tuple[np.timedelta64 | None, Extent | None]:
    """How far off times may be, and how far off sizes and middles of windows may be.

    Args:
        given: As for `WindowDataSource`.
        timed: Whether there are offsets in time.
        in_world: Whether there are sizes in the world, or several resolutions.
        in_time: Whether there are sizes in time.

    Raises:
        ArgumentError: If it is of a wrong kind, or of no use.
    """
    what = f"{_WHAT}: tolerance"
    if given is None:
        return None, None
    off = None if timed and _is_in_minutes(given) else length_or_angle(given)
    if off is None and in_world and isinstance(given, int | float):
        off = Extent(float(given), "", repr(given))
    if off is not None:
        if not in_world:
            raise ArgumentError(
                f"{what} is {given!r}, and all sizes are in cells of one resolution; leave it out"
            )
        if off.value < 0:
            raise ArgumentError(f"{what} must be at least 0, got {given!r}")
        return None, off
    found = duration(given, what)
    if found is None or found < np.timedelta64(0):
        raise ArgumentError(f"{what} must be a duration such as '30min' or '0h', got {given!r}")
    if not timed and not in_time:
        raise ArgumentError(
            f"{what} is for offsets in time, and no field has one; leave it out, or give"
            " durations, such as Field(offsets={'time': '-6h'})"
        )
    of_sizes = Extent(ns_of(found) * 1e-9, "time", str(given)) if in_time else None
    return found if timed else None, of_sizes


def _is_in_minutes(given: Any) -> bool:
    """Whether `given` is a string such as '30m', which is minutes for times, and else metres."""
    return isinstance(given, str) and re.fullmatch(r"\s*[+-]?[\d.]+\s*m\s*", given) is not None


def limits(taken: Sequence[TakenField], dim: Dim, cells: range) -> list[Run]:
    """Runs of the reference that keep the windows of other arrays within what may be read."""
    found = []
    for _, _, size, place in _aligned_along(taken, dim):
        first, last = place.origins(size)
        found.append((cells.start - first, cells.stop - last))
    return found


def _aligned_along(
    taken: Sequence[TakenField], dim: Dim
) -> Iterator[tuple[str, int, int, Aligned]]:
    """Name, array, cells and place of the fields that are aligned along a dimension."""
    for field in taken:
        for along in field.along:
            if along.dim == dim and along.aligned is not None:
                yield field.name, field.number, along.length, along.aligned


def _way_out(good: npt.NDArray[np.bool_], stride: int) -> str:
    places = np.flatnonzero(good)
    step = int(np.gcd.reduce(np.diff(places))) if len(places) > 1 else 0
    if step > 1 and stride % step:
        return f"choose strides that are a multiple of {step} cells"
    return "choose other sizes"


def _rounded_up(value: float) -> float:
    """A number above 0 to three digits, not below itself but for noise."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.ceil(value / unit * (1 - _NOISE / 10)) * unit


def _of_store(store: ts.TensorStore, axis: int) -> Spacing | None:
    """The spacing by the units of an open store, which may be a view of another one."""
    unit, transform = store.dimension_units[axis], store.spec().transform
    if unit is None or not unit.base_unit or transform is None:
        return None
    along = [each for each in transform.output if each.input_dimension == axis]
    stride = along[0].stride if len(along) == 1 else None
    if stride is None or stride < 1:
        return None  # its cells are in another order
    step, cell = float(unit.multiplier), along[0].offset + stride * store.domain.inclusive_min[axis]
    return Spacing(step, (cell + 0.5) * step / stride, unit.base_unit)


def _spacing_of(dim: Dim, coordinate: Coordinate) -> Spacing | None:
    values = coordinate.values
    if values.dtype.kind in "mM" or coordinate.unit_ns is not None:
        return times_along(dim, coordinate).spacing()
    if values.dtype.kind not in "iuf" or len(values) < 2:
        return None
    places = values.astype(np.float64)
    step = float(places[-1] - places[0]) / (len(places) - 1)
    uneven = ~(np.abs(np.diff(places) - step) <= abs(step) * SLACK)
    if not step or uneven.any():
        cell = int(np.argmax(uneven))
        raise SourceError(
            f"{_WHAT}: the coordinates along {named(dim)} are not evenly spaced: {values[cell]} (cell"
            f" {cell:,}) and {values[cell + 1]} differ by another step than most; give cells"
        )
    unit = coordinate.unit or ("deg" if dim in _DEGREES else "")
    return Spacing(step, float(places[0]), unit)
