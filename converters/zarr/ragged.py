"""Ragged columns on their way into Zarr: rows that differ in length, as values and offsets.

The place of a row's values is known only when all rows before it have been counted. So each work
item writes its rows into two data files of the work folder: all values end to end, and the ends of
the rows among them. When all are there, the two arrays are written from byte ranges of those files, and
of more than one block of values an index: the first record that begins in each block or after it.

Invariant: row `i` is `values[offsets[i] : offsets[i + 1]]`, offsets begin with 0 and never fall, and
neither depends on how the rows were divided into work items.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from windrow.converters.job.folder import FinishedPart, OutputFolder
from windrow.converters.job.stages import Steps
from windrow.converters.records.record_files import cut_records
from windrow.converters.zarr.layout import ArrayLayout
from windrow.converters.zarr.rows import BLOCK_BYTES, RowFiles, ranges
from windrow.errors import ConversionError
from windrow.sources.tf_example.features import Array, Feature, Ragged
from windrow.sources.zarr.names import BLOCK_VALUES, BLOCKS, OFFSETS, RAGGED, VALUES

_OFFSET: Final = np.dtype("<i8")


def attribute(features: Mapping[str, Feature]) -> dict[str, Any]:
    """Return the group's attributes of its ragged features; {} without such features."""
    found = {
        name: {"dtype": feature.dtype, "shape": [None, *feature.item_shape]}
        for name, feature in features.items()
        if feature.ragged
    }
    return {RAGGED: found} if found else {}


@dataclasses.dataclass(frozen=True, slots=True)
class Spooled:
    """The rows of one feature in one work item: `rows` of them, of `items` values in all.

    `key` is the key of the part that wrote them, `name` the name of its two data files without
    their endings.
    """

    key: str
    name: str
    rows: int
    items: int


class Spool:
    """Writes the rows of one feature in one work item to data files.

    Args:
        folder: The folder of the output.
        name: The name of the files, as in `Spooled`.
    """

    def __init__(self, folder: OutputFolder, key: str, name: str) -> None:
        self._folder, self._key, self._name = folder, key, name
        self._stack = contextlib.ExitStack()
        self._rows = self._items = 0

    def __enter__(self) -> Spool:
        with contextlib.ExitStack() as stack:
            self._values, self._ends = (
                stack.enter_context(self._folder.left(_data_name(self._folder, self._name, what)))
                for what in (VALUES, OFFSETS)
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def add(self, column: Ragged) -> None:
        """Add the next rows."""
        self._values.write(np.asarray(column.values).tobytes())
        ends = column.offsets[1:] + self._items
        self._ends.write(ends.astype(_OFFSET).tobytes())
        self._rows += len(column)
        self._items += len(column.values)

    def close(self) -> Spooled:
        """Give the files their names in the work folder; all rows are there."""
        for file in (self._values, self._ends):
            file.finished(records=self._rows)
        return Spooled(self._key, self._name, self._rows, self._items)


@dataclasses.dataclass(frozen=True, slots=True)
class _SpooledRun:
    """Bytes `[start, stop)` of one data file, and the rows and items of all files before it."""

    spooled: Spooled
    start: int
    stop: int
    rows: int
    items: int


@dataclasses.dataclass(frozen=True)
class FilesOfRows:
    """Some files of one array of a feature, `[start, stop)` of it, from what was spooled. Picklable.

    `what` is the array: `VALUES`, `OFFSETS`, or `BLOCKS`, whose items are counted in blocks.
    """

    what: str
    layout: ArrayLayout
    start: int
    stop: int
    runs: tuple[_SpooledRun, ...] = dataclasses.field(repr=False)

    @property
    def key(self) -> str:
        """The key of the part that they are."""
        return f"ragged-{self.layout.name}-{self.start}-{self.stop}"

    @property
    def size_bytes(self) -> int:
        """Bytes of the items."""
        return (self.stop - self.start) * self.layout.row_bytes

    def write(self, folder: OutputFolder, steps: Steps) -> FinishedPart:
        """Write them."""
        with RowFiles(folder, self.layout, self.start, self.stop, counted=False) as out:
            for items in self._blocks(folder):
                out.add(items)
                steps.add(0, items.nbytes)
        return FinishedPart(self.key, 0, tuple(out.files))

    def _blocks(self, folder: OutputFolder) -> Iterator[Array]:
        """The items, in order, some at a time."""
        if self.what == BLOCKS:
            yield self._first_records(folder)
            return
        if self.what == OFFSETS and self.start == 0:
            yield np.zeros(1, _OFFSET)
        waiting: list[Array] = []
        for run, _, items in self._read(folder):
            waiting.append(items + run.items if self.what == OFFSETS else items)
            # Blocks may be small: many of them are encoded at a time.
            if sum(some.nbytes for some in waiting) >= BLOCK_BYTES:
                yield np.concatenate(waiting)
                waiting = []
        if waiting:
            yield np.concatenate(waiting)

    def _first_records(self, folder: OutputFolder) -> Array:
        """The first record that begins at the first value of each block, or after it."""
        edges = np.arange(self.start, self.stop) * self.layout.attributes[BLOCK_VALUES]
        found = np.zeros(len(edges), _OFFSET)
        done = 1 if self.start == 0 else 0  # record 0 begins with block 0
        for run, start, ends in self._read(folder):
            ends = ends + run.items
            until = int(np.searchsorted(edges, ends[-1], side="right"))
            if until > done:
                # A record begins where the one before it ends.
                first = run.rows + start // _OFFSET.itemsize + 1
                found[done:until] = first + np.searchsorted(ends, edges[done:until])
                done = until
        return found

    def _read(self, folder: OutputFolder) -> Iterator[tuple[_SpooledRun, int, Array]]:
        """Yield the items of each run, some at a time, and the byte at which these begin."""
        dtype, row_bytes = self.layout.numpy_dtype, self.layout.row_bytes
        step = max(1, BLOCK_BYTES // row_bytes) * row_bytes
        what = VALUES if self.what == VALUES else OFFSETS
        for run in self.runs:
            for start, stop in ranges(run.start, run.stop, step):
                data = _read(folder, run.spooled, what, start, stop)
                yield run, start, np.frombuffer(data, dtype).reshape(-1, *self.layout.shape[1:])


def ragged_files(what: str, layout: ArrayLayout, spooled: Sequence[Spooled]) -> list[FilesOfRows]:
    """Return the files of values or offsets of a feature, to be written in parallel.

    Args:
        what: `VALUES` or `OFFSETS`.
        layout: The layout of the array.
        spooled: The rows of all work items, in order.
    """
    # Item 0 of the offsets is 0 and lies in no file; the ends of rows follow it.
    shift = 1 if what == OFFSETS else 0
    counts = [one.rows if what == OFFSETS else one.items for one in spooled]
    before = _before(spooled)
    step, size = layout.file_shape[0], layout.row_bytes
    if layout.shard_shape is None:
        step *= max(1, BLOCK_BYTES // max(1, layout.chunk_bytes))
    bounds = ranges(0, layout.shape[0], step)
    cuts = [max(0, start - shift) for start, _ in bounds] + [layout.shape[0] - shift]
    return [
        FilesOfRows(
            what,
            layout,
            *bound,
            tuple(_SpooledRun(spooled[at], a * size, b * size, *before[at]) for at, a, b in runs),
        )
        for bound, runs in zip(bounds, cut_records(counts, cuts), strict=True)
    ]


def block_files(layout: ArrayLayout, spooled: Sequence[Spooled]) -> list[FilesOfRows]:
    """Return the files of the index of a feature, to be written in parallel.

    Args:
        layout: The layout of the index, as `Storage.blocks_layout` makes it.
        spooled: The rows of all work items, in order.
    """
    size = layout.attributes[BLOCK_VALUES]
    runs = [
        _SpooledRun(one, 0, one.rows * _OFFSET.itemsize, rows, items)
        for one, (rows, items) in zip(spooled, _before(spooled), strict=False)
    ]
    found = []
    for start, stop in ranges(0, layout.shape[0], layout.file_shape[0]):
        first, last = start * size, (stop - 1) * size
        own = [run for run in runs if run.items < last and run.items + run.spooled.items >= first]
        found.append(FilesOfRows(BLOCKS, layout, start, stop, tuple(own)))
    return found


def _before(spooled: Sequence[Spooled]) -> list[tuple[int, int]]:
    """Return the rows and items before each, and last of all."""
    rows = itertools.accumulate((one.rows for one in spooled), initial=0)
    return list(
        zip(rows, itertools.accumulate((one.items for one in spooled), initial=0), strict=True)
    )


def _data_name(folder: OutputFolder, name: str, what: str) -> str:
    return folder.data_name(f"{name}.{what}")


def _read(folder: OutputFolder, spooled: Spooled, what: str, start: int, stop: int) -> bytes:
    try:
        return folder.read_data(_data_name(folder, spooled.name, what), start, stop)
    except ConversionError:
        # The next run makes the part again.
        folder.forget(FinishedPart(spooled.key, 0, ()))
        raise
