"""Levels: the same volume at several resolutions, in OME-Zarr and in Neuroglancer's precomputed form.

A level is chosen by its name, or by the size of its cells, which may have a unit, such as '8nm'.

Invariants: only metadata decides; nothing is opened here. Levels are in the order of the store, which
begins with the finest one. A plain number is in the unit of the store; a string converts to it, or is an error.
"""

from __future__ import annotations

import dataclasses
import numbers
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import tensorstore as ts

from windrow.errors import ArgumentError, SourceError
from windrow.sources.zarr.metadata import sizes_of
from windrow.sources.zarr.names import Found, FoundGroup, FoundTree, Keys, arrays_of

# The name of a level, or the size of a cell along some axes: a number, or a string with a unit.
Resolution: TypeAlias = str | Mapping[str, Any]

_VOXELS: Final = "nm"  # the unit of every precomputed volume
_NUMBER: Final = re.compile(r"\s*([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S+)\s*")
# Symbol, kind, and size in nanometres or seconds; then the other names of the unit.
_UNITS: Final = (
    ("pm", "length", 1e-3, "picometer", "picometre"),
    ("Å", "length", 0.1, "angstrom", "\N{ANGSTROM SIGN}"),
    ("nm", "length", 1.0, "nanometer", "nanometre"),
    ("um", "length", 1e3, "micrometer", "micrometre", "micron", "\xb5m", "\u03bcm"),
    ("mm", "length", 1e6, "millimeter", "millimetre"),
    ("cm", "length", 1e7, "centimeter", "centimetre"),
    ("m", "length", 1e9, "meter", "metre"),
    ("km", "length", 1e12, "kilometer", "kilometre"),
    ("ns", "time", 1e-9, "nanosecond"),
    ("us", "time", 1e-6, "microsecond", "\xb5s", "\u03bcs"),
    ("ms", "time", 1e-3, "millisecond"),
    ("s", "time", 1.0, "second", "sec"),
    ("min", "time", 60.0, "minute"),
    ("h", "time", 3600.0, "hour"),
    ("D", "time", 86400.0, "day", "d"),
)
_OF_NAME: Final[Mapping[str, tuple[str, str, float]]] = {
    name: (symbol, kind, size)
    for symbol, kind, size, *others in _UNITS
    for name in (symbol, *others, *(f"{other}s" for other in others))
}
# Sizes in metadata are rounded: two are equal up to this part.
_SLACK: Final = 0.01


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Pyramid:
    """One volume at several resolutions.

    Args:
        name: Its name in the source; '' if it is the source.
        levels: Its arrays, the finest one first.
        keys: The name of each level in the pyramid.
        cells: The cells of each level along the axes whose metadata say where they lie.
    """

    name: str
    levels: tuple[Found, ...]
    keys: tuple[str, ...]
    cells: tuple[Mapping[str, LevelCells], ...]

    def named(self, number: int) -> Found:
        """A level, named as an array of the source."""
        key = self.keys[number]
        name = f"{self.name}/{key}" if self.name else key
        return dataclasses.replace(self.levels[number], name=name)

    def level_of(self, resolution: Resolution, what: str) -> int:
        """Number of the level with a name or a resolution.

        Args:
            resolution: The name of the level, or along some axes the size of a cell: a number in the
                unit of the store, or a string with a unit.
            what: Name of the argument, for messages.

        Raises:
            ArgumentError: If `resolution` is of a wrong kind, or names an unknown axis.
            SourceError: If no level has it, or several have.
        """
        if isinstance(resolution, str):
            fits = [k for k, key in enumerate(self.keys) if key == resolution]
        else:
            fits = [k for k in range(len(self.levels)) if self._fits(k, resolution, what)]
        if len(fits) == 1:
            return fits[0]
        why = "several levels have: name more axes" if fits else "no level has"
        named = f" of {self.name!r}" if self.name else ""
        raise SourceError(
            f"{what} is {resolution!r}, which {why}; the levels{named} are\n{self.shown}"
        )

    @property
    def shown(self) -> str:
        """The levels and their resolutions as text for the user, one a line."""
        return "\n".join(
            f"  {key}: {_resolution(cells)}"
            for key, cells in zip(self.keys, self.cells, strict=True)
        )

    def _fits(self, number: int, resolution: Mapping[str, Any], what: str) -> bool:
        for dim, wanted in resolution.items():
            if dim not in self.levels[number].dims:
                axes = list(self.levels[number].dims)
                raise ArgumentError(
                    f"{what} names {dim!r}, and the axes are {axes}; the levels are\n{self.shown}"
                )
            cell = self.cells[number].get(dim)
            if cell is None or not cell.have_size(wanted, f"{what}[{dim!r}]"):
                return False
        return True


def checked_resolution(given: Any, what: str) -> Resolution | None:
    """A resolution that a user gives.

    Raises:
        ArgumentError: If it is neither a name nor a dict with at least one axis.
    """
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, Mapping) and given:
        return dict(given)
    raise ArgumentError(
        f"{what} must be the name of a level, or a dict by axis, such as {{'x': '8nm'}}, got"
        f" {given!r}"
    )


def pyramids_of(tree: FoundTree) -> Iterator[Pyramid]:
    """The pyramids of a tree, under their names in it."""
    if isinstance(tree, FoundGroup):
        for at in tree.groups:
            levels = _of_datasets(tree, at)
            if levels is not None:
                yield levels
    yield from (_of_scales(item) for item in arrays_of(tree) if item.scales)


def dataset_paths(attributes: Mapping[str, Any]) -> list[str]:
    """Paths of the levels that the attributes of a group list by the rules of OME-Zarr."""
    datasets = (_multiscales(attributes) or {}).get("datasets")
    listed = datasets if isinstance(datasets, list) else []
    paths = [item.get("path") for item in listed if isinstance(item, Mapping)]
    # A path that leads out of the group is not one of its levels.
    return [p for p in paths if isinstance(p, str) and not {"", ".", ".."} & set(p.split("/"))]


# --- precomputed ---------------------------------------------------------------------------------


def _of_scales(found: Found) -> Pyramid:
    levels, keys, cells = [], [], []
    for number, scale in enumerate(found.scales):
        size = sizes_of(scale.get("size"))
        channels = () if found.shape is None else found.shape[3:]
        level = dataclasses.replace(
            found,
            spec=_at_scale(found.spec, number),
            attributes=scale,
            shape=None if size is None else (*size, *channels),
            scales=(),
        )
        levels.append(level)
        keys.append(str(scale.get("key", number)))
        cells.append(_of_scale(scale, level.dims))
    return Pyramid(found.name, tuple(levels), tuple(keys), tuple(cells))


def _of_scale(scale: Mapping[str, Any], dims: Sequence[Any]) -> dict[str, LevelCells]:
    steps, origin = _numbers(scale.get("resolution"), 3), _numbers(scale.get("voxel_offset"), 3)
    steps, origin = steps or [], origin or [0.0] * 3
    firsts = [(cell + 0.5) * step for cell, step in zip(origin, steps, strict=False)]
    return _by_axis(dims, steps, firsts, [_VOXELS] * 3)


def _at_scale(spec: Any, number: int) -> Any:
    if isinstance(spec, Mapping):
        return {**spec, "scale_index": number}
    if spec is None:  # no library opens it, which is an error when it is opened
        return None
    found = ts.Spec({"driver": "neuroglancer_precomputed", "scale_index": number})
    found.update(kvstore=spec.kvstore)
    return found


# --- OME-Zarr ------------------------------------------------------------------------------------


def _multiscales(attributes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    own = attributes.get("ome", attributes)  # version 0.5; before it, the attributes themselves
    listed = own.get("multiscales") if isinstance(own, Mapping) else None
    first = listed[0] if isinstance(listed, list) and listed else None
    return first if isinstance(first, Mapping) else None


def _of_datasets(tree: FoundGroup, at: Keys) -> Pyramid | None:
    described = _multiscales(tree.groups[at])
    if described is None:
        return None
    after = described.get("coordinateTransformations")
    levels, keys, cells = [], [], []
    for dataset in described.get("datasets") or ():
        path = dataset.get("path") if isinstance(dataset, Mapping) else None
        found = tree.arrays.get((*at, *path.split("/"))) if isinstance(path, str) else None
        if found is None:
            continue
        before = dataset.get("coordinateTransformations")
        rank = len(found.shape or ())
        dims, units = _axes(described.get("axes"), rank)
        levels.append(dataclasses.replace(found, dims=dims or found.dims))
        keys.append(str(path))
        cells.append(_by_axis(dims, *_transformed(before, after, rank), units))
    name = "/".join(at)
    return Pyramid(name, tuple(levels), tuple(keys), tuple(cells)) if levels else None


def _axes(axes: Any, rank: int) -> tuple[tuple[str, ...], list[str]]:
    """Names and units of the axes; no names if they do not fit the array."""
    listed = axes if isinstance(axes, list) else []
    named = [{"name": axis} if isinstance(axis, str) else axis for axis in listed]
    if len(named) != rank or not all(isinstance(axis, Mapping) for axis in named):
        return (), []
    names = [axis.get("name") for axis in named]
    if not all(isinstance(one, str) for one in names) or len(set(names)) < rank:
        return (), []
    units = [axis.get("unit") for axis in named]
    return tuple(map(str, names)), [unit if isinstance(unit, str) else "" for unit in units]


def _transformed(before: Any, after: Any, rank: int) -> tuple[list[float], list[float]]:
    """Sizes of cells and the first middles after transformations; empty if one is not known."""
    steps, firsts = [1.0] * rank, [0.0] * rank
    if not isinstance(before, list):
        return [], []
    for each in [*before, *(after if isinstance(after, list) else [])]:
        kind = each.get("type") if isinstance(each, Mapping) else None
        if kind == "identity":
            continue
        values = _numbers(each.get(kind), rank) if kind in ("scale", "translation") else None
        if values is None:
            return [], []
        if kind == "scale":
            steps = [a * b for a, b in zip(steps, values, strict=True)]
            firsts = [a * b for a, b in zip(firsts, values, strict=True)]
        else:
            firsts = [a + b for a, b in zip(firsts, values, strict=True)]
    return steps, firsts


# --- values --------------------------------------------------------------------------------------


def _numbers(given: Any, count: int) -> list[float] | None:
    if not isinstance(given, list) or len(given) != count:
        return None
    if not all(isinstance(one, int | float) and abs(one) < 1e18 for one in given):
        return None
    return [float(one) for one in given]


def _by_axis(
    dims: Sequence[Any], steps: Sequence[float], firsts: Sequence[float], units: Sequence[str]
) -> dict[str, LevelCells]:
    """Cells by the names of axes, without axes of unnamed or empty cells."""
    known = zip(dims, steps, firsts, units, strict=False)
    return {
        dim: LevelCells(step, first, unit)
        for dim, step, first, unit in known
        if dim is not None and step > 0
    }


def _resolution(cells: Mapping[str, LevelCells]) -> str:
    known = ", ".join(f"{dim} {cell.shown(cell.size)}" for dim, cell in cells.items())
    return known or "the resolution is not stored"


# --- cells and their units -----------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class LevelCells:
    """The cells of a level along an axis.

    Args:
        size: The size of a cell, above 0.
        first: The middle of the first cell.
        unit: The unit of both, as the store names it; '' if it has none.
    """

    size: float
    first: float
    unit: str = ""

    def shown(self, value: float) -> str:
        """A length in the unit of the store as text for the user."""
        symbol = _OF_NAME[self.unit][0] if self.unit in _OF_NAME else self.unit
        return f"{value:.6g}{symbol}"

    def are_where(self, other: LevelCells) -> bool:
        """Whether both have the same cells, up to rounding."""
        own, its = _OF_NAME.get(self.unit), _OF_NAME.get(other.unit)
        factor = 1.0
        if self.unit != other.unit:
            if own is None or its is None or own[1] != its[1]:
                return False
            factor = its[2] / own[2]
        near = self.size * _SLACK
        return (
            abs(self.size - other.size * factor) <= 1e-6 * self.size
            and abs(self.first - other.first * factor) <= near
        )

    def have_size(self, wanted: Any, what: str) -> bool:
        """Whether their size is `wanted`, a number or a string with a unit, up to rounding.

        Raises:
            ArgumentError: If `wanted` is neither, or of a kind that the store does not count in.
        """
        size = self._within(wanted, what)
        return abs(self.size - size) <= _SLACK * size

    def _within(self, wanted: Any, what: str) -> float:
        """`wanted` in the unit of the store."""
        if isinstance(wanted, str):
            return self._converted(wanted, what)
        if isinstance(wanted, bool) or not isinstance(wanted, numbers.Real):
            raise ArgumentError(
                f"{what} must be a number, or a string such as '8nm', got {wanted!r}"
            )
        return float(wanted)

    def _converted(self, text: str, what: str) -> float:
        number, (symbol, kind, factor) = _parsed(text, what)
        own = _OF_NAME.get(self.unit)
        if own is None:
            has = f"the unit {self.unit!r}, which is not known" if self.unit else "no unit"
            raise ArgumentError(f"{what} is {text!r}, and the axis has {has}; give a number")
        if own[1] != kind:
            raise ArgumentError(
                f"{what} is {text!r}, a {kind}, and the axis counts in {own[0]}; give a {own[1]},"
                " or a number"
            )
        # Equal units are not converted, so that nothing is rounded.
        return number if own[0] == symbol else number * factor / own[2]


def _parsed(text: str, what: str) -> tuple[float, tuple[str, str, float]]:
    """The number of a string such as '320nm', and its unit."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise ArgumentError(
            f"{what} is {text!r}; write a number and its unit, such as '8nm' or '0.5um', or give a"
            " number"
        )
    unit = _OF_NAME.get(found[2])
    if unit is None:
        raise ArgumentError(
            f"{what} is {text!r}, with the unknown unit {found[2]!r}; known are"
            f" {', '.join(symbol for symbol, *_ in _UNITS)}"
        )
    return float(found[1]), unit
