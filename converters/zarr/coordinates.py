"""Which arrays of a group label others: coordinates, their bounds, and grid mappings.

Invariant: names, axes and attributes decide; nothing is read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

# Attributes of an array that name others, by the CF conventions.
_NAMING: Final = ("coordinates", "bounds", "climatology", "grid_mapping")


@dataclasses.dataclass(frozen=True, slots=True)
class Labelled:
    """An array that may have labels, or be one: names of its axes, number of axes, attributes."""

    dims: tuple[str | None, ...]
    rank: int
    attributes: Mapping[str, Any]


def labels_of(
    name: str, there: Mapping[str, Labelled], groups: Mapping[str, Mapping[str, Any]]
) -> tuple[list[str], list[str]]:
    """The names of the arrays that label an array, and the labels of these.

    A label lies in the array's group, or in a group around it.

    Args:
        name: The array.
        there: All arrays, by name.
        groups: The attributes of groups, by name.

    Returns:
        The labels; and names of arrays that would be labels if they were there.
    """
    found, absent = dict[str, None](), dict[str, None]()
    left = [name]
    while left:
        array = left.pop(0)
        for word, is_axis in _named_by(array, there[array], groups):
            places = [other for other in _places(array, word) if other not in (name, array)]
            label = next((other for other in places if other in there), None)
            if label is None:
                absent.update(dict.fromkeys(places))
            elif label not in found and _fits(there[label], word, there[array], is_axis):
                found[label] = None
                left.append(label)
    return list(found), list(absent)


def _named_by(
    name: str, array: Labelled, groups: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, bool | None]]:
    """Names that an array has for labels: of an axis (True), its own (False), of its group (None)."""
    yield from ((dim, True) for dim in array.dims if dim)
    for attribute in _NAMING:
        yield from ((word, False) for word in _words(array.attributes.get(attribute)))
    listed = groups.get(name.rpartition("/")[0], {}).get("coordinates")
    yield from ((word, None) for word in _words(listed))


def _words(text: object) -> list[str]:
    # A grid mapping may be written as "crs: x y".
    return text.replace(":", " ").split() if isinstance(text, str) else []


def _places(name: str, word: str) -> Iterator[str]:
    """The names of `word` in the group of an array, and in the groups around it."""
    group = name.rpartition("/")[0]
    while group:
        yield f"{group}/{word}"
        group = group.rpartition("/")[0]
    yield word


def _fits(label: Labelled, word: str, array: Labelled, is_axis: bool | None) -> bool:
    if is_axis:
        return label.rank == 1 and label.dims in ((word,), ())
    # A group lists the coordinates of all of its arrays.
    return is_axis is False or set(label.dims) <= set(array.dims)
