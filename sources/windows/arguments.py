"""Reads the arguments of windows that name arrays and axes.

Invariant: every axis of an array has its own name or number, and every field one array.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from windrow.errors import ArgumentError
from windrow.sources.windows.fields import Field
from windrow.sources.windows.origins import Dim
from windrow.sources.zarr.open_array import OpenArray

_WHAT: Final = "WindowDataSource"


def axis_names(opened: Sequence[OpenArray], given: Any) -> list[tuple[Dim, ...]]:
    """Names of the axes of each array: given by the user, else stored, else their numbers."""
    names: list[tuple[Dim, ...]] = []
    by_array = given if isinstance(given, Mapping) else {}
    known = {array.name: number for number, array in enumerate(opened)}
    by_number: dict[int | None, Any] = {}
    for name, own in by_array.items():
        number = _number_of(name, known, opened)
        if number is None:
            raise ArgumentError(
                f"{_WHAT}: dims names the array {name!r}; the arrays are"
                f" {[array.name for array in opened]}"
            )
        by_number[number] = own
    for number, array in enumerate(opened):
        own = by_number.get(number) if isinstance(given, Mapping) else given
        rank = len(array.shape)
        if own is None:
            own = array.found.dims or (None,) * rank
        elif (
            isinstance(own, str | bytes)
            or not isinstance(own, Sequence)
            or not all(name is None or isinstance(name, str) for name in own)
        ):
            raise ArgumentError(
                f"{_WHAT}: dims must be a tuple of names, one for each axis, or a dict of such"
                f" tuples by array, got {own!r}"
            )
        elif len(own) != rank:
            raise ArgumentError(
                f"{_WHAT}: dims {tuple(own)} are {len(tuple(own))} names, and array {array.name!r}"
                f" has {rank} axes: shape {list(array.shape)}"
            )
        axes = tuple(k if name is None else name for k, name in enumerate(own))
        if len(set(axes)) < rank:
            raise ArgumentError(
                f"{_WHAT}: two axes of array {array.name!r} have the same name: {axes}; name them"
                " with dims="
            )
        names.append(axes)
    return names


def fields_of(given: Any, opened: Sequence[OpenArray]) -> list[tuple[str, Field, int]]:
    """The name, the field and the number of the array, for each field of a record."""
    known = {array.name: number for number, array in enumerate(opened)}
    if given is None:
        return [(array.name, Field(), number) for number, array in enumerate(opened)]
    if not isinstance(given, Mapping) or not given:
        raise ArgumentError(
            f"{_WHAT}: fields must be a dict of Field by name, such as"
            f" {{'x': Field({next(iter(known))!r}, {{'time': [-6, 0]}})}}, got {given!r}"
        )
    found = []
    for name, field in given.items():
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"{_WHAT}: names of fields must be strings, got {name!r}")
        if isinstance(field, str):
            field = Field(field)
        if not isinstance(field, Field):
            raise ArgumentError(f"{_WHAT}: fields[{name!r}] must be a Field, got {field!r}")
        if field.array is None and len(opened) == 1:
            number: int | None = 0
        else:
            number = _number_of(field.array, known, opened)
        if number is None:
            more = difflib.get_close_matches(str(field.array), known, 1)
            raise ArgumentError(
                f"{_WHAT}: fields[{name!r}] is of array {field.array!r}; the arrays are"
                f" {list(known)}" + (f"; did you mean {more[0]!r}?" if more else "")
            )
        found.append((name, field, number))
    return found


def _number_of(
    name: str | None, known: Mapping[str, int], opened: Sequence[OpenArray]
) -> int | None:
    if name is not None and name not in known and len(opened) == 1:
        # A single array has no name in the source; the folder's name serves as its own.
        own = opened[0].found.where.rstrip("/").rpartition("/")[2]
        return 0 if name == own else None
    return None if name is None else known.get(name)
