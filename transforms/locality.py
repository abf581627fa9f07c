"""Locality: what a function of elements promises about cells, and the boxes that follow from it.

A function is local along a dimension if a cell of what it makes depends only on the cells of the same
place, and on at most `halo` cells next to it. So a box of its result is made of a box of its argument, grown by the
halo. At an end of an axis the function sees the end, as in whole elements; elsewhere the halo is cut off. With
`wrap` an axis is a circle, and the function takes cells from its other end.

Invariant: a box of the result for a whole element is, bit for bit, that box of the result for the part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from windrow.errors import ArgumentError
from windrow.sources.base import ArraySpec
from windrow.sources.cells import Box, Boxes, Cells, Path, whole
from windrow.transforms.arguments import at_least
from windrow.transforms.columns import is_named_tuple
from windrow.transforms.specs import Spec


@dataclasses.dataclass(frozen=True, slots=True)
class Locality:
    """The promise of a function.

    Args:
        dims: Names of the dimensions whose cells it treats independently.
        halo: Cells on each side that it needs too, by dimension.
        wrap: Dimensions whose ends meet.
    """

    dims: frozenset[str]
    halo: Mapping[str, int]
    wrap: frozenset[str]

    def of_parent(self, boxes: Boxes, made: Spec, given: Spec) -> tuple[Boxes, Boxes]:
        """The boxes of the argument that boxes of the result need, and the boxes that come of them.

        Args:
            boxes: Boxes of the result.
            made: The spec of the result.
            given: The spec of the argument.
        """
        cells = self._cells(boxes, made, given)
        return _with_cells(given, cells), _with_cells(made, cells)

    def _cells(self, boxes: Boxes, made: Spec, given: Spec) -> dict[str, Cells]:
        found: dict[str, Cells] = {}
        for path, leaf in array_leaves(made):
            box = boxes.get(path) or whole_box(leaf)
            for name, cells in zip(leaf.dims or (), box, strict=False):
                if name in self.dims:
                    found[name] = found[name].joined(cells) if name in found else cells
        sizes = dims_of(made), dims_of(given)
        return {
            name: grown
            for name, cells in found.items()
            if all(each.get(name, {cells.size}) == {cells.size} for each in sizes)
            and not (grown := cells.grown(self.halo.get(name, 0), wrap=name in self.wrap)).is_whole
        }


def locality_of(local: Any, halo: Any, wrap: Any, spec: Spec | None) -> Locality | None:
    """The promise that arguments of `map` make; None without one.

    Raises:
        ArgumentError: If they are of a wrong kind, name a dimension that elements of `spec` do not
            have, or a halo is larger than its axis.
        PlanError: If a halo is negative.
    """
    dims, around = _names(local, "local"), _names(wrap, "wrap")
    if not isinstance(halo or {}, Mapping):
        raise ArgumentError(
            f"map: halo must be a dict of cells by dimension, such as {{'lat': 1}}, got {halo!r}"
        )
    sizes = None if spec is None else dims_of(spec)
    for name in dims:
        if sizes is not None and name not in sizes:
            raise ArgumentError(
                f"map: local names {name!r}, and the elements have the dimensions {sorted(sizes)};"
                " choose from these, or name the axes with dims= of the source"
            )
    cells = {name: at_least(0, size, f"map: halo[{name!r}]") for name, size in (halo or {}).items()}
    for what, names in (("halo", cells), ("wrap", around)):
        for name in names:
            if name not in dims:
                raise ArgumentError(
                    f"map: {what} names {name!r}, which is not in local={tuple(dims)}; add it there"
                )
    for name, size in cells.items():
        least = min((n for n in (sizes or {}).get(name, ()) if n is not None), default=size)
        if size > least:
            raise ArgumentError(
                f"map: halo[{name!r}] is {size}, and the axis has {least} cells; choose at most {least}"
            )
    return Locality(frozenset(dims), cells, frozenset(around)) if dims else None


def _names(given: Any, what: str) -> list[str]:
    if isinstance(given, str):
        return [given]
    if isinstance(given, Iterable) and not isinstance(given, Mapping):
        found = list(given)
        if all(isinstance(name, str) for name in found):
            return found
    raise ArgumentError(f"map: {what} must be names of dimensions, got {given!r}")


# --- boxes of specs --------------------------------------------------------------------------------


def array_leaves(spec: Spec, path: Path = ()) -> Iterator[tuple[Path, ArraySpec]]:
    """The arrays of a spec, with their paths."""
    if isinstance(spec, ArraySpec):
        yield path, spec
        return
    for key, child in children(spec):
        yield from array_leaves(child, (*path, key))


def children(tree: Any) -> list[tuple[str | int, Any]]:
    """Keys and children of a container; empty for a leaf."""
    if isinstance(tree, Mapping):
        return list(tree.items())
    if is_named_tuple(tree):
        return list(zip(type(tree)._fields, tree, strict=True))  # type: ignore[attr-defined]
    return list(enumerate(tree)) if isinstance(tree, tuple | list) else []


def dims_of(spec: Spec) -> dict[str, set[int | None]]:
    """The sizes that each named dimension has in the leaves of a spec."""
    if isinstance(spec, ArraySpec):
        found: dict[str, set[int | None]] = {}
        for name, size in zip(spec.dims or (), spec.shape, strict=False):
            if name is not None:
                found.setdefault(name, set()).add(size)
        return found
    both: dict[str, set[int | None]] = {}
    for _, child in children(spec):
        for name, sizes in dims_of(child).items():
            both.setdefault(name, set()).update(sizes)
    return both


def whole_box(leaf: ArraySpec) -> Box:
    """All cells of a leaf; an axis of unknown size counts as one of no cells."""
    return tuple(whole(size or 0) for size in leaf.shape)


def are_whole(one: Cells, other: Cells) -> bool:
    """Whether both are whole axes; the size of one may be unknown."""
    return one.is_whole and other.is_whole


def some_of(boxes: Boxes) -> dict[Path, Box]:
    """The boxes that are not whole leaves."""
    return {path: box for path, box in boxes.items() if not all(c.is_whole for c in box)}


def _with_cells(spec: Spec, cells: Mapping[str, Cells]) -> Boxes:
    found: dict[Path, Box] = {}
    for path, leaf in array_leaves(spec):
        named = zip(leaf.dims or (), whole_box(leaf), strict=False)
        found[path] = tuple(cells.get(name or "", each) for name, each in named) or whole_box(leaf)
    return some_of(found)
