"""Pyramids: the same volume at several resolutions, in OME-Zarr and in Neuroglancer's precomputed form.

Invariant: only metadata decides; nothing is opened here. Levels are in the order of the store, which
begins with the finest one. Every level has the names of its axes.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import tensorstore as ts

from windrow.errors import ArgumentError, SourceError
from windrow.sources.zarr.metadata import sizes_of
from windrow.sources.zarr.names import Found, FoundGroup, FoundTree
from windrow.sources.zarr.spacing import SLACK, Spacing, extent

_VOXELS: Final = "nm"  # the unit of every precomputed volume


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Pyramid:
    """One volume at several resolutions.

    Args:
        name: Its name in the source; '' if it is the source.
        levels: Its arrays, the finest one first.
        keys: The name of each level in the pyramid.
    """

    name: str
    levels: tuple[Found, ...]
    keys: tuple[str, ...]

    def named(self, number: int) -> Found:
        """A level, named as an array of the source."""
        key = self.keys[number]
        name = f"{self.name}/{key}" if self.name else key
        return dataclasses.replace(self.levels[number], name=name)

    def level_at(self, resolution: Mapping[str, Any], what: str) -> int:
        """Number of the level with a resolution.

        Args:
            resolution: Along some axes, the size of a cell: a number in the unit of the store, or a
                string with a unit.
            what: Name of the argument, for messages.

        Raises:
            ArgumentError: If `resolution` is of a wrong kind, or names an unknown axis.
            SourceError: If it is the resolution of no level, or of several ones.
        """
        fits = [k for k, level in enumerate(self.levels) if self._fits(level, resolution, what)]
        if len(fits) == 1:
            return fits[0]
        why = "several levels have: name more axes" if fits else "no level has"
        named = f" of {self.name!r}" if self.name else ""
        raise SourceError(
            f"{what} is {dict(resolution)}, which {why}; the levels{named} are\n{self.shown}"
        )

    @property
    def shown(self) -> str:
        """The levels and their resolutions as text for the user, one a line."""
        return "\n".join(
            f"  {key}: {_resolution(level)}"
            for key, level in zip(self.keys, self.levels, strict=True)
        )

    def _fits(self, level: Found, resolution: Mapping[str, Any], what: str) -> bool:
        for dim, wanted in resolution.items():
            if dim not in level.dims:
                raise ArgumentError(
                    f"{what} names {dim!r}, and the axes are {list(level.dims)}; the levels are\n"
                    f"{self.shown}"
                )
            spacing = level.spacing[level.dims.index(dim)] if level.spacing else None
            if spacing is None:
                return False
            size = _size(wanted, spacing, f"{what}[{dim!r}]")
            if abs(abs(spacing.step) - size) > SLACK * size:
                return False
        return True


def checked_resolution(given: Any, what: str) -> Mapping[str, Any] | None:
    """A resolution that a user gives.

    Raises:
        ArgumentError: If it is not a dict with at least one axis.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping) or not given:
        raise ArgumentError(f"{what} must be a dict by axis, such as {{'x': '8nm'}}, got {given!r}")
    return dict(given)


def pyramids_of(tree: FoundTree, name: str = "") -> Iterator[Pyramid]:
    """The pyramids of a tree, under their names in it."""
    if isinstance(tree, Found):
        if tree.scales:
            yield _of_scales(tree, name)
        return
    items = tree.items if isinstance(tree, FoundGroup) else tree
    levels = _of_datasets(tree, name) if isinstance(tree, FoundGroup) else None
    if levels is not None:
        yield levels
    for key, item in items.items():
        yield from pyramids_of(item, f"{name}/{key}" if name else key)


def dataset_paths(attributes: Mapping[str, Any]) -> list[str]:
    """Paths of the levels that the attributes of a group list by the rules of OME-Zarr."""
    datasets = (_multiscales(attributes) or {}).get("datasets")
    listed = datasets if isinstance(datasets, list) else []
    paths = [item.get("path") for item in listed if isinstance(item, Mapping)]
    # A path that leads out of the group is not one of its levels.
    return [p for p in paths if isinstance(p, str) and not {"", ".", ".."} & set(p.split("/"))]


# --- precomputed ---------------------------------------------------------------------------------


def _of_scales(found: Found, name: str) -> Pyramid:
    levels, keys = [], []
    for number, scale in enumerate(found.scales):
        size = sizes_of(scale.get("size"))
        channels = () if found.shape is None else found.shape[3:]
        level = dataclasses.replace(
            found,
            spec=_at_scale(found.spec, number),
            attributes=scale,
            shape=None if size is None else (*size, *channels),
            spacing=of_scale(scale),
            scales=(),
        )
        levels.append(level)
        keys.append(str(scale.get("key", number)))
    return Pyramid(name, tuple(levels), tuple(keys))


def _at_scale(spec: Any, number: int) -> Any:
    if isinstance(spec, Mapping):
        return {**spec, "scale_index": number}
    if spec is None:  # no library opens it, which is an error when it is opened
        return None
    found = ts.Spec({"driver": "neuroglancer_precomputed", "scale_index": number})
    found.update(kvstore=spec.kvstore)
    return found


def of_scale(scale: Mapping[str, Any]) -> tuple[Spacing | None, ...]:
    """The spacing of a scale of a precomputed volume, by axis; () if its metadata have none."""
    steps, origin = _numbers(scale.get("resolution"), 3), _numbers(scale.get("voxel_offset"), 3)
    if steps is None or min(steps) <= 0:
        return ()
    firsts = origin or [0.0] * 3
    cells = [
        Spacing(step, (first + 0.5) * step, _VOXELS)
        for step, first in zip(steps, firsts, strict=True)
    ]
    return (*cells, None)


# --- OME-Zarr ------------------------------------------------------------------------------------


def _multiscales(attributes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    own = attributes.get("ome", attributes)  # version 0.5; before it, the attributes themselves
    listed = own.get("multiscales") if isinstance(own, Mapping) else None
    first = listed[0] if isinstance(listed, list) and listed else None
    return first if isinstance(first, Mapping) else None


def _of_datasets(group: FoundGroup, name: str) -> Pyramid | None:
    described = _multiscales(group.attributes)
    if described is None:
        return None
    after = described.get("coordinateTransformations")
    levels, keys = [], []
    for dataset in described.get("datasets") or ():
        path = dataset.get("path") if isinstance(dataset, Mapping) else None
        found = _item(group, path) if isinstance(path, str) else None
        if found is None:
            continue
        before = dataset.get("coordinateTransformations")
        rank = len(found.shape or ())
        dims, units = _axes(described.get("axes"), rank)
        spacing = _transformed(before, after, units) if dims else ()
        levels.append(dataclasses.replace(found, dims=dims or found.dims, spacing=spacing))
        keys.append(str(path))
    return Pyramid(name, tuple(levels), tuple(keys)) if levels else None


def _item(group: FoundGroup, path: str) -> Found | None:
    at: Any = group
    for step in path.split("/"):
        items = at.items if isinstance(at, FoundGroup) else {}
        at = items.get(step)
    return at if isinstance(at, Found) else None


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


def _transformed(before: Any, after: Any, units: Sequence[str]) -> tuple[Spacing | None, ...]:
    """The spacing that transformations give to cells, one after the other; () if one is not known."""
    rank = len(units)
    steps, firsts = [1.0] * rank, [0.0] * rank
    if not isinstance(before, list):
        return ()
    for each in [*before, *(after if isinstance(after, list) else [])]:
        kind = each.get("type") if isinstance(each, Mapping) else None
        if kind == "identity":
            continue
        values = _numbers(each.get(kind), rank) if kind in ("scale", "translation") else None
        if values is None:
            return ()
        if kind == "scale":
            steps = [a * b for a, b in zip(steps, values, strict=True)]
            firsts = [a * b for a, b in zip(firsts, values, strict=True)]
        else:
            firsts = [a + b for a, b in zip(firsts, values, strict=True)]
    return tuple(
        Spacing(step, first, unit) if step > 0 else None
        for step, first, unit in zip(steps, firsts, units, strict=True)
    )


# --- values --------------------------------------------------------------------------------------


def _numbers(given: Any, count: int) -> list[float] | None:
    if not isinstance(given, list) or len(given) != count:
        return None
    if not all(isinstance(one, int | float) and abs(one) < 1e18 for one in given):
        return None
    return [float(one) for one in given]


def _size(wanted: Any, spacing: Spacing, what: str) -> float:
    parsed = extent(wanted, what)
    if parsed is not None:
        return spacing.within(parsed, what)
    if isinstance(wanted, bool) or not isinstance(wanted, numbers.Real):
        raise ArgumentError(f"{what} must be a number, or a string such as '8nm', got {wanted!r}")
    return float(wanted)


def _resolution(level: Found) -> str:
    known = zip(level.dims, level.spacing, strict=False)
    shown = [f"{dim} {each.shown_step}" for dim, each in known if each is not None]
    return ", ".join(shown) or "the resolution is not stored"
