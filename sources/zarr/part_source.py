"""Boxes of the rows of Zarr arrays, read without the chunks that they do not touch.

Invariant: it has the rows, blocks and fingerprint of the source that it is a part of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import numpy as np

from windrow.core.process import refuse_forked
from windrow.sources.base import ArraySpec, Columns, IntArray, checked_indices
from windrow.sources.boxes import BoxField, BoxPart, Cut
from windrow.sources.cells import Box
from windrow.sources.chunks import ArrayPart, Blocks, LaidOutSource
from windrow.sources.zarr.in_flight import side_by_side
from windrow.sources.zarr.open_array import LIBRARY, OpenArray
from windrow.sources.zarr.over_tree import OverTree
from windrow.sources.zarr.tree import ArrayTree

_WHAT: Final = "ZarrDataSource"


class _Whole(Protocol):
    """The source that a part is of."""

    def __len__(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def fingerprint_of_first(self, records: int) -> str: ...

    def blocks(self) -> IntArray | Blocks: ...


class ZarrPartSource(OverTree, LaidOutSource):
    """Records with some boxes of the rows of arrays."""

    def __init__(self, whole: _Whole, tree: ArrayTree, boxes: Mapping[int, Box]) -> None:
        """Make a part of a source; nothing is read.

        Args:
            whole: The source.
            tree: Its arrays.
            boxes: The cells of a row of arrays by their numbers; others are whole.
        """
        self._whole, self._tree, self._boxes = whole, tree, dict(boxes)

    def __len__(self) -> int:
        return len(self._whole)

    def __repr__(self) -> str:
        shown = [
            f"{array.name}{': ' if array.name else ''}"
            + " x ".join(f"[{c.start}, {c.stop}) of {c.size}" for c in self._boxes[number])
            for number, array in enumerate(self._tree.open())
            if number in self._boxes
        ]
        return f"{self._whole!r}, of each record {'; '.join(shown)}"

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the whole source: the records are the same ones."""
        return self._whole.fingerprint

    def fingerprint_of_first(self, records: int) -> str:
        """As `sources.base.KnowsEarlier`."""
        return self._whole.fingerprint_of_first(records)

    @property
    def spec(self) -> Any:
        """Shape, dtype and dimensions of the part of a row of each array."""
        specs = []
        for number, array in enumerate(self._tree.open()):
            dims, box = array.dims[1:], self._boxes.get(number)
            shape = array.part.row_shape if box is None else tuple(map(len, box))
            named = dims if any(name is not None for name in dims) else None
            specs.append(ArraySpec(shape, array.dtype, named))
        return self._tree.assembled(specs)

    @property
    def parts(self) -> Sequence[BoxPart | ArrayPart]:
        """One part per array; those that are cut have chunks of all axes.

        Raises:
            ReadError: If this process was forked from a process that had used TensorStore.
        """
        refuse_forked(LIBRARY, _WHAT)
        opened = enumerate(self._tree.open())
        return [
            array.part if number not in self._boxes else _box_part(array, self._boxes[number])
            for number, array in opened
        ]

    def assembled(self, columns: Sequence[Any], indices: IntArray) -> Columns:
        """The tree of `read`, from one column per part."""
        found = [
            column[0].reshape(len(indices), *map(len, self._boxes[number]))
            if number in self._boxes
            else column
            for number, column in enumerate(columns)
        ]
        return self._tree.assembled(found)

    def blocks(self) -> IntArray | Blocks:
        """The blocks of the whole source, so that orders stay as they are."""
        return self._whole.blocks()

    def read(self, indices: IntArray) -> Columns:
        """Parts of the rows at `indices`: an array `(n, ...)`, or a dict of them, in new memory.

        Raises:
            ReadError: If a chunk cannot be read; the message names array and file.
        """
        wanted = checked_indices(indices, len(self), _WHAT)
        reads = [partial(part.read, wanted) for part in self.parts]
        return self.assembled(side_by_side(reads, wait=self.is_remote_source), wanted)


def _box_part(array: OpenArray, box: Box) -> BoxPart:
    cuts = [Cut((0,), (0,), (1,))]
    for cells in box:
        runs, target = [], 0
        for start, stop in cells.slices:
            runs.append((start, target, stop - start))
            target += stop - start
        cuts = [
            Cut((*cut.offset, start), (*cut.target, place), (*cut.shape, size))
            for cut in cuts
            for start, place, size in runs
        ]
    return array.box_part(_row_origins(len(box)), (BoxField((1, *map(len, box)), tuple(cuts)),))


def _row_origins(axes: int) -> Callable[[IntArray], IntArray]:
    def origins(indices: IntArray) -> IntArray:
        found = np.zeros((len(indices), axes + 1), np.int64)
        found[:, 0] = indices
        return found

    return origins
