"""Chooses the levels of pyramids that windows are cut from.

Invariant: without a resolution, levels of OME-Zarr that are named are plain arrays, as if there were no
pyramids. A record's field has one level, and only levels that a field has are opened.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from windrow.core.text import listing
from windrow.errors import ArgumentError, SourceError
from windrow.sources.windows.declared import Field
from windrow.sources.zarr.find import choose
from windrow.sources.zarr.levels import LevelCells, Pyramid, checked_resolution, pyramids_of
from windrow.sources.zarr.names import ChosenTree, Found, FoundTree, arrays_of

_WHAT: Final = "WindowDataSource"

_Levels: TypeAlias = Mapping[str, tuple[Pyramid, int]]  # a pyramid and the number of a level


class LevelChooser:
    """Picks the arrays of a source, as `find.choose` does, where they may be levels of pyramids."""

    def __init__(self, resolution: Any, fields: Any) -> None:
        """Keeps the arguments of a user.

        Args:
            resolution: As for `WindowDataSource`.
            fields: As for `WindowDataSource`.

        Raises:
            ArgumentError: If `resolution` is of a wrong kind.
        """
        self._resolution = checked_resolution(resolution, f"{_WHAT}: resolution")
        # Where the cells of the levels lie, by the name and the length of an axis.
        self._places: dict[tuple[str, int], tuple[str, LevelCells]] = {}
        self.fields = fields
        """The fields; after a choice of levels, each names its array."""

    def __call__(
        self, what: str, tree: FoundTree, names: Sequence[str] | None = None
    ) -> tuple[ChosenTree, tuple[Found, ...]]:
        """The arrays that give records, and the arrays that do not.

        Raises:
            ArgumentError, SourceError: As `find.choose` raises them, or if no level has the
                resolution, or fields lie at several places.
        """
        pyramids = {pyramid.name: pyramid for pyramid in pyramids_of(tree)}
        levels = {
            each.named(number).name: (each, number)
            for each in pyramids.values()
            for number in range(len(each.levels))
        }
        plain = self._resolution is None and not self._names_levels(pyramids, levels)
        if plain or (self._resolution is None and names is not None):
            return choose(what, tree, names)
        if names is not None:
            raise ArgumentError(
                f"{_WHAT}: names and resolution do not go together; give fields={{'x': Field(...)}}"
            )
        if not pyramids:
            raise ArgumentError(
                f"{_WHAT}: resolution is for volumes at several resolutions, OME-Zarr or precomputed,"
                " and this source has neither; leave it out"
            )
        if not isinstance(self.fields, Mapping):  # None, or `fields_of` says what is wrong
            return self._without_fields(tree, pyramids), ()
        return self._of_fields(tree, pyramids, levels), ()

    def _names_levels(self, pyramids: Mapping[str, Pyramid], levels: _Levels) -> bool:
        """Whether levels are meant without a resolution, where arrays of these names would not do."""
        fields = self.fields.values() if isinstance(self.fields, Mapping) else ()
        named = [field.array if isinstance(field, Field) else field for field in fields]
        if "" in pyramids and pyramids[""].levels[0].metadata is not None and not any(named):
            return True  # an OME-Zarr image, and the user names no level
        # A scale of a precomputed volume is not an array by itself.
        scales = {name for name, (each, _) in levels.items() if each.levels[0].metadata is None}
        return any(isinstance(name, str) and name in scales for name in named)

    def _without_fields(self, tree: FoundTree, pyramids: Mapping[str, Pyramid]) -> ChosenTree:
        if "" in pyramids:
            return dataclasses.replace(self._level(pyramids[""]), name="")
        chosen: dict[str, ChosenTree] = {}
        plain, _ = choose(_WHAT, tree)
        for item in arrays_of(plain):
            inside = [name for name in pyramids if f"{item.name}/".startswith(f"{name}/")]
            if not inside:
                chosen[item.name] = item
            elif inside[0] not in chosen:
                found = self._level(pyramids[inside[0]])
                chosen[inside[0]] = dataclasses.replace(found, name=inside[0])
        return chosen

    def _of_fields(
        self, tree: FoundTree, pyramids: Mapping[str, Pyramid], levels: _Levels
    ) -> ChosenTree:
        arrays = {item.name: item for item in arrays_of(tree)}
        chosen: dict[str, Found] = {}
        fields: dict[Any, Any] = {}
        for name, given in self.fields.items():
            field = fields[name] = Field(given) if isinstance(given, str) else given
            if not isinstance(field, Field):  # `fields_of` says what is wrong with it
                continue
            wanted = field.array or ""
            if wanted in pyramids:
                found = self._level(pyramids[wanted])
            elif wanted in levels:
                found = self._placed(*levels[wanted])
            elif wanted in arrays:
                found = arrays[wanted]
            else:
                known = dict.fromkeys([*pyramids, *arrays, *levels])
                raise ArgumentError(
                    f"{_WHAT}: fields[{name!r}] is of array {field.array!r}; there are"
                    f" {listing([one for one in known if one])}"
                )
            found = chosen.setdefault(found.name, found)
            fields[name] = dataclasses.replace(field, array=found.name)
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

    def _level(self, pyramid: Pyramid) -> Found:
        if self._resolution is None:
            return self._placed(pyramid, 0)
        return self._placed(pyramid, pyramid.level_of(self._resolution, f"{_WHAT}: resolution"))

    def _placed(self, pyramid: Pyramid, number: int) -> Found:
        """A level; where a resolution is given, all levels must have the same cells.

        Raises:
            SourceError: If it has other cells than a level before, along an axis of one length.
        """
        level = pyramid.named(number)
        if self._resolution is None or level.shape is None:
            return level
        for dim, cells in pyramid.cells[number].items():
            length = level.shape[level.dims.index(dim)]
            name, others = self._places.setdefault((dim, length), (level.name, cells))
            if not cells.are_where(others):
                raise SourceError(
                    f"{_WHAT}: along {dim!r} the first cell of {level.name!r} is"
                    f" {cells.shown(cells.size)} around {cells.shown(cells.first)}, and the first"
                    f" cell of {name!r} is {others.shown(others.size)} around {others.shown(others.first)};"
                    " windows count cells from the first one: zip a source of each, with centers="
                )
        return level
