"""Cells of records: the parts of records that a reader of a chain wants, leaf by leaf.

A leaf is narrowed along each of its axes to one run of cells, so its part is a box. A run may pass the end
of an axis and continue at its begin, where the axis is a circle, as longitudes are.

Invariant: a narrowed source has the records of the whole one, in the same order and blocks and under the
same fingerprint. Only the leaves that it reads are smaller, so states do not depend on it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from windrow.sources.base import AnyArray, Source


@dataclasses.dataclass(frozen=True, slots=True)
class Cells:
    """Cells `[start, stop)` of an axis with `size` cells, each modulo `size`; at most all of them."""

    start: int
    stop: int
    size: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def is_whole(self) -> bool:
        """Whether they are the axis as it is."""
        return self.start == 0 and self.stop == self.size

    @property
    def wraps(self) -> bool:
        """Whether they pass an end of the axis."""
        return self.start < 0 or self.stop > self.size

    @property
    def slices(self) -> list[tuple[int, int]]:
        """The runs `[start, stop)` inside of the axis that they are, one after the other."""
        if not self.wraps:
            return [(self.start, self.stop)]
        first = self.start % self.size
        stop = first + len(self)
        if stop <= self.size:
            return [(first, stop)]
        return [(first, self.size), (0, stop - self.size)]

    def grown(self, halo: int, *, wrap: bool) -> Cells:
        """The cells with `halo` more on each side, as far as there are more."""
        if not halo:
            return self
        start, stop = self.start - halo, self.stop + halo
        if not wrap:
            if self.wraps:  # cells next to an end inside have their own edge
                return whole(self.size)
            return Cells(max(0, start), min(self.size, stop), self.size)
        return Cells(start, stop, self.size) if stop - start < self.size else whole(self.size)

    def joined(self, other: Cells) -> Cells:
        """The smallest run with both; the whole axis where they are around a circle."""
        if self == other:
            return self
        if self.wraps or other.wraps:
            return whole(self.size)
        return Cells(min(self.start, other.start), max(self.stop, other.stop), self.size)

    def within(self, have: Cells) -> list[slice]:
        """Where the cells are in an axis that holds only the cells `have`, which contain them."""
        if have.is_whole:
            return [slice(*each) for each in self.slices]
        first = (self.start - have.start) % self.size
        return [slice(first, first + len(self))]


def whole(size: int) -> Cells:
    """All cells of an axis."""
    return Cells(0, size, size)


Path: TypeAlias = "tuple[str | int, ...]"
"""Keys of dicts, names of fields and positions in tuples that lead to a leaf."""

Box: TypeAlias = "tuple[Cells, ...]"
"""The cells of a leaf along each axis."""

Boxes: TypeAlias = Mapping[Path, Box]
"""The box of each leaf by its path; a leaf that is not named is whole."""


@runtime_checkable
class Narrowable(Protocol):
    """A source that can read parts of its records, without the chunks that they do not touch."""

    def narrowed(self, boxes: Boxes) -> Source | None:
        """The source whose records have only these boxes of their leaves; None if it has no parts.

        It has the length, fingerprint and blocks of this one.
        """
        ...


def cut(array: AnyArray, box: Sequence[Cells], have: Sequence[Cells], first: int = 0) -> AnyArray:
    """A copy of a box, from an array that has the cells `have` along the axes from `first` on."""
    for axis, (cells, held) in enumerate(zip(box, have, strict=True), first):
        if cells != held and not (cells.is_whole and held.is_whole):
            before = (slice(None),) * axis
            pieces = [array[(*before, each)] for each in cells.within(held)]
            array = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis)
    return np.array(array)


def numbered(tree: Any, path: Path = ()) -> dict[Path, Any]:
    """The leaves of a tree of dicts by their paths."""
    if not isinstance(tree, dict):
        return {path: tree}
    found: dict[Path, Any] = {}
    for key, child in tree.items():
        found.update(numbered(child, (*path, key)))
    return found
