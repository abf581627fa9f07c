"""Chooses the levels of pyramids that windows are cut from.

Invariant: without a scale, levels of OME-Zarr that are named are plain arrays, as if there were no
pyramids. A record's field has one level, and only levels that a field has are opened.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final

from windrow.core.text import listing
from windrow.errors import ArgumentError
from windrow.sources.windows.fields import Field
from windrow.sources.zarr.names import ChosenTree, Found, FoundTree, arrays_of, choose
from windrow.sources.zarr.pyramids import Pyramid, checked_scale, pyramids_of

_WHAT: Final = "WindowDataSource"


class LevelChooser:
    """Picks the arrays of a source, as `names.choose` does, where they may be levels of pyramids."""

    def __init__(self, scale: Any, fields: Any) -> None:
        """Keeps the arguments of a user.

        Args:
            scale: As for `WindowDataSource`.
            fields: As for `WindowDataSource`.

        Raises:
            ArgumentError: If `scale` is of a wrong kind.
        """
        self._scale = checked_scale(scale, f"{_WHAT}: scale")
        self.fields = fields
        """The fields; after a choice of levels, each names its array."""

    def __call__(
        self, what: str, tree: FoundTree, names: Sequence[str] | None = None
    ) -> tuple[ChosenTree, tuple[Found, ...]]:
        """The arrays that give records, and the arrays that do not.

        Raises:
            ArgumentError, SourceError: As `names.choose` raises them, or if no level has the scale.
        """
        pyramids = {pyramid.name: pyramid for pyramid in pyramids_of(tree)}
        if self._scale is None and (names is not None or not self._has_levels(pyramids)):
            return choose(what, tree, names)
        if names is not None:
            raise ArgumentError(
                f"{_WHAT}: names and scale do not go together; give fields={{'x': Field(...)}}"
            )
        if not pyramids:
            raise ArgumentError(
                f"{_WHAT}: scale is for volumes at several resolutions, OME-Zarr or precomputed, and"
                " this source has neither; leave it out"
            )
        if not isinstance(self.fields, Mapping):  # None, or `fields_of` says what is wrong
            return self._without_fields(tree, pyramids), ()
        return self._of_fields(tree, pyramids), ()

    def _has_levels(self, pyramids: Mapping[str, Pyramid]) -> bool:
        """Whether levels are meant without a scale, where arrays of these names would not do."""
        fields = self.fields.values() if isinstance(self.fields, Mapping) else ()
        named = [field.array if isinstance(field, Field) else field for field in fields]
        images = [each for each in pyramids.values() if each.levels[0].metadata is not None]
        if any(not each.name for each in images) and not any(named):
            return True  # an OME-Zarr image, and the user names no level
        # A scale of a precomputed volume is not an array by itself.
        scales = {
            each.named(k).name
            for each in pyramids.values()
            if each not in images
            for k in range(len(each.keys))
        }
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

    def _of_fields(self, tree: FoundTree, pyramids: Mapping[str, Pyramid]) -> ChosenTree:
        known = {item.name: item for item in arrays_of(tree)}
        for each in pyramids.values():
            known |= {each.named(k).name: each.named(k) for k in range(len(each.levels))}
        chosen: dict[str, Found] = {}
        fields: dict[Any, Any] = {}
        for name, given in self.fields.items():
            field = Field(given) if isinstance(given, str) else given
            if not isinstance(field, Field):  # `fields_of` says what is wrong with it
                fields[name] = given
                continue
            found = self._of_field(name, field, pyramids, known)
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

    def _of_field(
        self, name: Any, field: Field, pyramids: Mapping[str, Pyramid], known: Mapping[str, Found]
    ) -> Found:
        wanted = field.array or ""
        if wanted in pyramids:
            return self._level(pyramids[wanted])
        if wanted not in known:
            raise ArgumentError(
                f"{_WHAT}: fields[{name!r}] is of array {field.array!r}; there are"
                f" {listing([name for name in dict.fromkeys([*pyramids, *known]) if name])}"
            )
        return known[wanted]

    def _level(self, pyramid: Pyramid) -> Found:
        number = 0 if self._scale is None else pyramid.level_of(self._scale, f"{_WHAT}: scale")
        return pyramid.named(number)
