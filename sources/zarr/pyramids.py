"""Pyramids: the same volume at several resolutions, in OME-Zarr and in Neuroglancer's precomputed form.

Invariant: only metadata decides; nothing is opened here. Levels are in the order of the store, which
begins with the finest one. Every level has the names of its axes.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import tensorstore as ts

from windrow.errors import ArgumentError, SourceError
from windrow.sources.zarr.metadata import sizes_of
from windrow.sources.zarr.names import Found, FoundGroup, FoundTree

# Sizes in metadata are rounded: two are equal up to this part.
_SLACK: Final = 0.01


Scale: TypeAlias = str | Mapping[str, float]  # name of a level, or size of a cell along some axes


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Pyramid:
    """One volume at several resolutions.

    Args:
        name: Its name in the source; '' if it is the source.
        levels: Its arrays, the finest one first.
        keys: The name of each level in the pyramid.
        steps: The size of a cell of each level along the axes whose metadata have it, in the unit of
            the store, which is nm in a precomputed volume.
    """

    name: str
    levels: tuple[Found, ...]
    keys: tuple[str, ...]
    steps: tuple[Mapping[str, float], ...]

    def named(self, number: int) -> Found:
        """A level, named as an array of the source."""
        key = self.keys[number]
        name = f"{self.name}/{key}" if self.name else key
        return dataclasses.replace(self.levels[number], name=name)

    def level_of(self, scale: Scale, what: str) -> int:
        """Number of the level with a name or a resolution.

        Args:
            scale: The name of the level, or the size of a cell along some axes.
            what: Name of the argument, for messages.

        Raises:
            ArgumentError: If `scale` names an unknown axis.
            SourceError: If no level has it, or several have.
        """
        if isinstance(scale, str):
            fits = [k for k, key in enumerate(self.keys) if key == scale]
        else:
            self._check_axes(scale, what)
            fits = [k for k, steps in enumerate(self.steps) if _has(steps, scale)]
        if len(fits) == 1:
            return fits[0]
        why = "several levels have: name more axes" if fits else "no level has"
        named = f" of {self.name!r}" if self.name else ""
        raise SourceError(f"{what} is {scale!r}, which {why}; the levels{named} are\n{self.shown}")

    def _check_axes(self, scale: Mapping[str, float], what: str) -> None:
        dims = list(dict.fromkeys(dim for level in self.levels for dim in level.dims))
        for dim in scale:
            if dim not in dims:
                raise ArgumentError(
                    f"{what} names {dim!r}, and the axes are {dims}; the levels are\n{self.shown}"
                )

    @property
    def shown(self) -> str:
        """The levels and their resolutions as text for the user, one a line."""
        return "\n".join(
            f"  {key}: {_resolution(steps)}"
            for key, steps in zip(self.keys, self.steps, strict=True)
        )


def checked_scale(given: Any, what: str) -> Scale | None:
    """A scale that a user gives.

    Raises:
        ArgumentError: If it is neither a name nor a dict of numbers with at least one axis.
    """
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, Mapping) and given and all(map(_is_number, given.values())):
        return dict(given)
    raise ArgumentError(
        f"{what} must be the name of a level, or a dict by axis of the size of a cell in the unit of"
        f" the store, such as {{'x': 8}}, got {given!r}"
    )


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
    levels, keys, steps = [], [], []
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
        steps.append(_by_axis(level.dims[:3], _numbers(scale.get("resolution"), 3)))
    return Pyramid(name, tuple(levels), tuple(keys), tuple(steps))


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


def _of_datasets(group: FoundGroup, name: str) -> Pyramid | None:
    described = _multiscales(group.attributes)
    if described is None:
        return None
    after = described.get("coordinateTransformations")
    levels, keys, steps = [], [], []
    for dataset in described.get("datasets") or ():
        path = dataset.get("path") if isinstance(dataset, Mapping) else None
        found = _item(group, path) if isinstance(path, str) else None
        if found is None:
            continue
        before = dataset.get("coordinateTransformations")
        rank = len(found.shape or ())
        dims = _axes(described.get("axes"), rank)
        levels.append(dataclasses.replace(found, dims=dims or found.dims))
        keys.append(str(path))
        steps.append(_by_axis(dims, _scaled(before, after, rank)))
    return Pyramid(name, tuple(levels), tuple(keys), tuple(steps)) if levels else None


def _item(group: FoundGroup, path: str) -> Found | None:
    at: Any = group
    for step in path.split("/"):
        items = at.items if isinstance(at, FoundGroup) else {}
        at = items.get(step)
    return at if isinstance(at, Found) else None


def _axes(axes: Any, rank: int) -> tuple[str, ...]:
    """Names of the axes; () if they do not fit the array."""
    listed = axes if isinstance(axes, list) else []
    named = [axis.get("name") if isinstance(axis, Mapping) else axis for axis in listed]
    names = tuple(name for name in named if isinstance(name, str))
    return names if len(names) == len(named) == len(set(names)) == rank else ()


def _scaled(before: Any, after: Any, rank: int) -> list[float] | None:
    """The size of a cell after all transformations; None if one of them is not known."""
    steps = [1.0] * rank
    if not isinstance(before, list):
        return None
    for each in [*before, *(after if isinstance(after, list) else [])]:
        kind = each.get("type") if isinstance(each, Mapping) else None
        if kind == "scale":
            values = _numbers(each.get("scale"), rank)
            if values is None:
                return None
            steps = [a * b for a, b in zip(steps, values, strict=True)]
        elif kind not in ("identity", "translation"):
            return None
    return steps


# --- values --------------------------------------------------------------------------------------


def _numbers(given: Any, count: int) -> list[float] | None:
    if not isinstance(given, list) or len(given) != count:
        return None
    if not all(isinstance(one, int | float) and abs(one) < 1e18 for one in given):
        return None
    return [float(one) for one in given]


def _by_axis(dims: Sequence[Any], steps: Sequence[float] | None) -> dict[str, float]:
    """Sizes of cells by the names of axes, without those that are not above 0."""
    pairs = zip(dims, steps or (), strict=False)
    return {dim: step for dim, step in pairs if dim is not None and step > 0}


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _has(steps: Mapping[str, float], scale: Mapping[str, float]) -> bool:
    """Whether cells have these sizes, up to rounding."""
    return all(abs(steps.get(dim, math.nan) - size) <= _SLACK * size for dim, size in scale.items())


def _resolution(steps: Mapping[str, float]) -> str:
    shown = [f"{dim} {step:.6g}" for dim, step in steps.items()]
    return ", ".join(shown) or "the resolution is not stored"
