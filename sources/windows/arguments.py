"""Reads the arguments of windows that name arrays and dimensions.

Invariant: every axis of an array has its own name or number, and every field one array.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from windrow.errors import ArgumentError
from windrow.sources.windows.declared import Dim, Field, Window, by_dim, window_of
from windrow.sources.zarr.open_array import OpenArray

_WHAT: Final = "WindowDataSource"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class NamedField:
    """A field of a record.

    Args:
        name: Its name in a record.
        field: What the user declared, by dimensions of the array.
        number: Number of its array.
    """

    name: str
    field: Field
    number: int


def axis_names(opened: Sequence[OpenArray], given: Any) -> list[tuple[Dim, ...]]:
    """Return the names of the axes of each array: given by the user, else stored, else their numbers."""
    by_number: dict[int, Any] = {}
    if isinstance(given, Mapping):
        for name, own in given.items():
            number = _number_of(name, opened)
            if number is None:
                raise ArgumentError(
                    f"{_WHAT}: dims names the array {name!r}; the arrays are"
                    f" {[array.name for array in opened]}"
                )
            by_number[number] = own
    elif given is not None:
        by_number = dict.fromkeys(range(len(opened)), given)
    return [_axes(array, by_number.get(number)) for number, array in enumerate(opened)]


def _axes(array: OpenArray, given: Any) -> tuple[Dim, ...]:
    rank = len(array.shape)
    names = array.found.dims or (None,) * rank if given is None else given
    if isinstance(names, str | bytes) or not (
        isinstance(names, Sequence) and all(name is None or isinstance(name, str) for name in names)
    ):
        raise ArgumentError(
            f"{_WHAT}: dims must be a tuple of names, one for each axis, or a dict of such tuples by"
            f" array, got {given!r}"
        )
    if len(names) != rank:
        raise ArgumentError(
            f"{_WHAT}: dims {tuple(names)} are {len(names)} names, and array {array.name!r} has"
            f" {rank} axes: shape {list(array.shape)}"
        )
    axes = tuple(k if name is None else name for k, name in enumerate(names))
    if len(set(axes)) < rank:
        raise ArgumentError(
            f"{_WHAT}: two axes of array {array.name!r} have the same name: {axes}; name them with"
            " dims="
        )
    return axes


def fields_of(given: Any, opened: Sequence[OpenArray]) -> list[NamedField]:
    """Return the fields of a record; by default every array."""
    known = [array.name for array in opened]
    if given is None:
        return [NamedField(name, Field(), number) for number, name in enumerate(known)]
    if not isinstance(given, Mapping) or not given:
        raise ArgumentError(
            f"{_WHAT}: fields must be a dict of Field by name, such as"
            f" {{'x': Field({known[0]!r}, {{'time': [-6, 0]}})}}, got {given!r}"
        )
    found = []
    for name, field in given.items():
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"{_WHAT}: names of fields must be strings, got {name!r}")
        if isinstance(field, str):
            field = Field(field)
        if not isinstance(field, Field):
            raise ArgumentError(f"{_WHAT}: fields[{name!r}] must be a Field, got {field!r}")
        number = _number_of(field.array, opened)
        if number is None:
            more = difflib.get_close_matches(str(field.array), known, 1)
            raise ArgumentError(
                f"{_WHAT}: fields[{name!r}] is of array {field.array!r}; the arrays are {known}"
                + (f"; did you mean {more[0]!r}?" if more else "")
            )
        found.append(NamedField(name, field, number))
    return found


def _number_of(name: str | None, opened: Sequence[OpenArray]) -> int | None:
    known = {array.name: number for number, array in enumerate(opened)}
    if len(opened) > 1 or name in known:
        return None if name is None else known.get(name)
    # A single array has no name in the source; the folder's name serves as its own.
    own = opened[0].found.where.rstrip("/").rpartition("/")[2]
    return 0 if name in (None, own) else None


class Dims:
    """The dimensions of some arrays, which users name, or number as axes."""

    def __init__(self, names: Sequence[tuple[Dim, ...]]) -> None:
        """Keeps the names of the axes of each array."""
        self._names = names

    def windows(self, given: Any) -> dict[Dim, Window]:
        """Return the window of each dimension that a user gives."""
        return {
            dim: window_of(value, f"{_WHAT}: windows[{dim!r}]")
            for dim, value in self._items(given, "windows").items()
        }

    def resolved(self, field: Field) -> Field:
        """Return a field with dimensions in place of numbers of axes."""
        return dataclasses.replace(
            field,
            offsets=self._items(field.offsets, "offsets of a Field"),
            sizes=self._items(field.sizes, "sizes of a Field"),
            select=self._items(field.select, "select of a Field"),
        )

    def _items(self, given: Any, name: str) -> dict[Dim, Any]:
        found: dict[Dim, Any] = {}
        for key, value in by_dim(given, f"{_WHAT}: {name}"):
            dim = self._dim(key)
            if dim in found:
                raise ArgumentError(
                    f"{_WHAT}: {name} names {dim!r} twice, the second time as {key!r}; give it once"
                )
            found[dim] = value
        return found

    def _dim(self, key: Dim) -> Dim:
        if isinstance(key, int):
            found = {dims[key] for dims in self._names if -len(dims) <= key < len(dims)}
            if len(found) == 1:
                return found.pop()
            if found:
                raise ArgumentError(
                    f"{_WHAT}: axis {key} is {' and '.join(map(repr, sorted(found, key=str)))} of"
                    " different arrays; give a name, or names for all axes with dims="
                )
        elif any(key in dims for dims in self._names):
            return key
        known = list(dict.fromkeys(dim for dims in self._names for dim in dims))
        named = [dim for dim in known if isinstance(dim, str)]
        close = difflib.get_close_matches(str(key), named, 1)
        close = close or [dim for dim in named if dim.startswith(str(key))]
        more = f"; did you mean {close[0]!r}?" if close else ""
        if not named:
            more = "; the axes of the arrays have no names: give them with dims=, or count from 0"
        raise ArgumentError(f"{_WHAT}: no array has the dimension {key!r}, they have {known}{more}")
