"""Chooses the levels of pyramids that windows are cut from.

Invariant: with sizes in cells and without a resolution, levels of OME-Zarr that are named are plain arrays,
as if there were no pyramids. A record's field has one level, and only levels that a field has are opened.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from windrow.core.text import listing
from windrow.errors import ArgumentError
from windrow.sources.windows.fields import Field
from windrow.sources.zarr.names import ChosenTree, Found, FoundTree, arrays_of, choose
from windrow.sources.zarr.pyramids import Pyramid, checked_resolution, pyramids_of

_WHAT: Final = "WindowDataSource"


class LevelChooser:
    """Picks the arrays of a source, as `names.choose` does, where they may be levels of pyramids."""

    def __init__(self, resolution: Any, fields: Any, extents: Sequence[Any]) -> None:
        """Keeps the arguments of a user.

        Args:
            resolution: As for `WindowDataSource`.
            fields: As for `WindowDataSource`.
            extents: Its `sizes`, `strides`, `start` and `stop`, and the unit of its centers.

        Raises:
            ArgumentError: If `resolution` is not a dict.
        """
        self._resolution = checked_resolution(resolution, f"{_WHAT}: resolution")
        own = [field for field in _values(fields) if isinstance(field, Field)]
        self._asked = self._resolution is not None or any(f.resolution is not None for f in own)
        given = [value for each in (*extents, *(f.sizes for f in own)) for value in _values(each)]
        self._has_extents = any(isinstance(value, str) for value in given)
        self.fields = fields
        """The fields; after a choice of levels, each names its array."""
        self.in_world = False
        """Whether levels were chosen, so that fields are aligned by positions in the world."""

    def __call__(
        self, what: str, tree: FoundTree, names: Sequence[str] | None = None
    ) -> tuple[ChosenTree, tuple[Found, ...]]:
        """The arrays that give records, and the arrays that do not.

        Raises:
            ArgumentError, SourceError: As `names.choose` raises them, or if no level has the
                resolution.
        """
        pyramids = {pyramid.name: pyramid for pyramid in pyramids_of(tree)}
        if not self._asked and (names is not None or not self._has_levels(pyramids)):
            chosen, others = choose(what, tree, names)
            return (_placed(chosen, pyramids) if self._has_extents else chosen), others
        if names is not None:
            raise ArgumentError(
                f"{_WHAT}: names and resolution do not go together; give fields={{'x': Field(...)}}"
            )
        if not pyramids:
            raise ArgumentError(
                f"{_WHAT}: resolution is for volumes at several resolutions, OME-Zarr or precomputed,"
                " and this source has neither; leave it out"
            )
        self.in_world = True
        if not isinstance(self.fields, Mapping):  # None, or `fields_of` says what is wrong
            return self._without_fields(tree, pyramids), ()
        return self._of_fields(tree, pyramids), ()

    def _has_levels(self, pyramids: Mapping[str, Pyramid]) -> bool:
        """Whether levels are meant without a resolution, where arrays of these names would not do."""
        named = [f.array if isinstance(f, Field) else f for f in _values(self.fields)]
        images = [each for each in pyramids.values() if each.levels[0].metadata is not None]
        whole = {each.name for each in images}
        if "" in whole and not any(named):
            return True  # an OME-Zarr image, and the user names no level
        # A scale of a precomputed volume is not an array by itself.
        scales = {
            each.named(k).name
            for each in pyramids.values()
            if each not in images
            for k in range(len(each.keys))
        }
        names = {name or "" for name in named if name is None or isinstance(name, str)}
        if scales & names:
            return True
        if not isinstance(self.fields, Mapping):
            return self._has_extents and bool(whole)
        return self._has_extents and bool(whole & names)

    def _without_fields(self, tree: FoundTree, pyramids: Mapping[str, Pyramid]) -> ChosenTree:
        if "" in pyramids:
            return dataclasses.replace(self._level(pyramids[""], self._resolution, ""), name="")
        chosen: dict[str, ChosenTree] = {}
        plain, _ = choose(_WHAT, tree)
        for item in arrays_of(plain):
            inside = [name for name in pyramids if f"{item.name}/".startswith(f"{name}/")]
            if not inside:
                chosen[item.name] = item
            elif inside[0] not in chosen:
                found = self._level(pyramids[inside[0]], self._resolution, inside[0])
                chosen[inside[0]] = dataclasses.replace(found, name=inside[0])
        return chosen

    def _of_fields(self, tree: FoundTree, pyramids: Mapping[str, Pyramid]) -> ChosenTree:
        plain = {item.name: item for item in arrays_of(tree)}
        chosen: dict[str, Found] = {}
        fields: dict[Any, Any] = {}
        for name, given in self.fields.items():
            field = Field(given) if isinstance(given, str) else given
            found = self._of_field(name, field, pyramids, plain)
            if found is None:  # `fields_of` says what is wrong with it
                fields[name] = given
                continue
            found = chosen.setdefault(found.name, found)
            fields[name] = dataclasses.replace(field, array=found.name, resolution=None)
        if not chosen:
            raise ArgumentError(
                f"{_WHAT}: fields must be a dict of Field by name, got {self.fields!r}"
            )
        if len(chosen) == 1 and "" in pyramids:
            (found,) = chosen.values()
            self.fields = {name: dataclasses.replace(f, array=None) for name, f in fields.items()}
            return dataclasses.replace(found, name="")
        self.fields = fields
        return dict(chosen)

    def _of_field(
        self,
        name: Any,
        field: Any,
        pyramids: Mapping[str, Pyramid],
        plain: Mapping[str, Found],
    ) -> Found | None:
        if not isinstance(field, Field):
            return None
        what = f"fields[{name!r}]"
        pyramid = pyramids.get(field.array or "")
        if pyramid is not None:
            return self._level(pyramid, field.resolution or self._resolution, what)
        for each in pyramids.values():
            levels = {each.named(k).name: k for k in range(len(each.levels))}
            if field.array in levels:
                level = each.named(levels[field.array])
                if field.resolution is not None:
                    raise ArgumentError(
                        f"{_WHAT}: {what} has a resolution, and {field.array!r} is one level of a"
                        " pyramid; give one of them"
                    )
                return level
        found = plain.get(field.array or "")
        if found is None:
            known = [
                each.named(k).name for each in pyramids.values() for k in range(len(each.keys))
            ]
            known += [name for name in [*pyramids, *plain] if name and name not in known]
            raise ArgumentError(
                f"{_WHAT}: {what} is of array {field.array!r}; there are {listing(known)}"
            )
        if field.resolution is not None:
            raise ArgumentError(
                f"{_WHAT}: {what} has a resolution, and {field.array!r} has one level; leave"
                " resolution out"
            )
        return found

    def _level(self, pyramid: Pyramid, resolution: Any, what: str) -> Found:
        if resolution is None:
            return pyramid.named(0)
        shown = f"{what}: resolution" if what.startswith("fields") else "resolution"
        return pyramid.named(pyramid.level_at(resolution, f"{_WHAT}: {shown}"))


def _values(given: Any) -> list[Any]:
    return list(given.values()) if isinstance(given, Mapping) else []


def _placed(tree: ChosenTree, pyramids: Mapping[str, Pyramid]) -> ChosenTree:
    """The arrays of a tree; levels of pyramids with the names of their axes, and where cells lie."""
    if not isinstance(tree, Found):
        return {key: _placed(item, pyramids) for key, item in tree.items()}
    for each in pyramids.values():
        for number in range(len(each.levels)):
            level = each.named(number)
            if level.name == tree.name and tree.metadata is not None:
                return dataclasses.replace(tree, dims=level.dims, spacing=level.spacing)
    return tree
