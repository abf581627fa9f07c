"""Zarr arrays and groups as records: row `i` of every array is record `i`.

Invariant: all arrays have one length.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tensorstore as ts

from windrow.errors import SourceError
from windrow.sources.base import ArraySpec, Columns, IntArray
from windrow.sources.boxes import BoxField, BoxPart, Cut
from windrow.sources.chunks import ArrayPart
from windrow.sources.remote.options import RemoteOptions
from windrow.sources.zarr.missing import Missing
from windrow.sources.zarr.objects import standing_for
from windrow.sources.zarr.open_array import OpenArray
from windrow.sources.zarr.over_tree import OverTree
from windrow.sources.zarr.stores import Access
from windrow.sources.zarr.tree import ArrayTree

if TYPE_CHECKING:
    from windrow.sources.cells import Box, Boxes

_WHAT: Final = "ZarrDataSource"
_SHOWN_ARRAYS: Final = 4
_MOST_ROW_BYTES: Final = 2**34
# A table has one number per block.
_MOST_BLOCKS: Final = 2**27


class ZarrDataSource(OverTree):
    """Rows of a Zarr array (v2 or v3, sharded too), or of the arrays of a group or dict."""

    def __init__(
        self,
        arrays: Any,
        *,
        direct: bool | None = None,
        names: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        remote: RemoteOptions | None = None,
        missing: Missing = "fill",
    ) -> None:
        """Open the arrays; only metadata is read.

        Args:
            arrays: A path or URL of an array or a group, a dict of these (which may be nested), a
                spec of TensorStore, or an open `tensorstore.TensorStore`, which may be a view. Also
                an open `zarr.Array`, `zarr.Group` or store of zarr-python, such as Icechunk's, an `xarray.Dataset` or `DataArray` that shows
                what its store holds or is in memory, or an array of NumPy, memory-mapped too. An
                array gives rows; several arrays give a dict per record. In a group, xarray's
                coordinates (arrays of one axis and its name, or listed by an attribute) and arrays
                of shape () are left out, unless the group holds nothing else.
            direct: Whether the native core decodes chunks, which is faster and gives the same
                records. None does so for arrays with plain codecs in local folders, and in the cache
                on disk of `remote`. True refuses all but those in local folders, with the reason.
                False never does so; TensorStore then reads, as where there is no native core.
            names: Arrays or groups of a group to take, nested names joined by `/`; None for all
                arrays that are not coordinates. Only these are opened.
            storage_options: Credentials and settings for URLs, as fsspec takes them. TensorStore
                reads http, https, s3 and gs if it has a setting for each option; otherwise
                zarr-python reads the URL, over byte ranges of any file system of fsspec.
            remote: Limits of reading over a network.
            missing: What a chunk is that is not stored: 'fill' reads it as the fill value, 'error' is a
                ReadError that names it, which `on_bad` takes for a bad record.

        Raises:
            ArgumentError: If `arrays` does not name an array, `direct` is not True, False or None,
                `names` is not a list of names, or `missing` is neither 'fill' nor 'error'.
            NotFoundError: If there is nothing at the path or URL.
            SourceError: If metadata is unreadable, one of `names` is not there, a dtype is not
                supported, an array has no first axis, lengths differ, or an array cannot be decoded
                with `direct=True`; if files lie in a local array, and no chunk where its metadata
                say; or if nothing shows which chunks are stored, with `missing="error"`.
            ConversionError: If the conversion that writes the folder has not finished.
            ReadError: If this process was forked from a process that had used TensorStore.

        Example:
            >>> import tempfile, zarr
            >>> group = zarr.create_group(folder := tempfile.mkdtemp())
            >>> _ = group.create_array("image", data=np.zeros((10, 4, 4), np.uint8), chunks=(5, 4, 4))
            >>> _ = group.create_array("label", data=np.arange(10), chunks=(5,))
            >>> source = ZarrDataSource(folder)
            >>> len(source), source[3]["image"].shape, source.read(np.array([3, 9]))["label"]
            (10, (4, 4), array([3, 9]))
        """
        arrays, names, storage_options = standing_for(_WHAT, arrays, names, storage_options)
        access = Access(_WHAT, storage_options, remote)
        self._tree = ArrayTree(
            _WHAT, arrays, direct=direct, names=names, access=access, missing=missing
        )
        parts = [array.part for array in self._tree.open()]
        if len({part.rows for part in parts}) > 1:
            shown = "\n".join(f"  {part.name}: {part.rows:,}" for part in parts)
            raise SourceError(
                f"{_WHAT}: the arrays differ in length\n{shown}\n"
                "The first axis counts records: choose arrays of one length by names=[...] or with"
                " a dict."
            )
        for array, part in zip(self._tree.open(), parts, strict=True):
            if part.row_bytes > _MOST_ROW_BYTES:
                raise SourceError(
                    f"{_WHAT}: a row of {array.found.named} in {array.found.where} has"
                    f" {part.row_bytes:,} bytes, and at most {_MOST_ROW_BYTES:,} are read; cut it"
                    " with WindowDataSource"
                )
        self._length = parts[0].rows
        self._boxes: dict[int, Box] = {}  # of rows, where not all of their cells are read
        self._tree.expect_answers()

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        opened = self._tree.open()
        shown = ", ".join(
            (f"{p.name}: " if p.name else "") + f"{p.dtype} {list(p.row_shape)}"
            for p in (array.part for array in opened[:_SHOWN_ARRAYS])
        )
        left = len(opened) - _SHOWN_ARRAYS
        more = f" and {left} more arrays" if left > 0 else ""
        shown = f"{_WHAT}({self._length:,} records of {shown}{more} in {self._tree.place})"
        cut = [
            f"{array.name}{': ' if array.name else ''}"
            + " x ".join(f"[{c.start}, {c.stop}) of {c.size}" for c in self._boxes[number])
            for number, array in enumerate(opened)
            if number in self._boxes
        ]
        return f"{shown}, of each record {'; '.join(cut)}" if cut else shown

    @property
    def arrays(self) -> dict[str, ts.TensorStore]:
        """The open arrays by name; nested names are joined by `/`, a single array's name is ''."""
        return self._tree.stores

    @property
    def fingerprint(self) -> str:
        """Names, dtypes, shapes and chunks of the arrays."""
        return f"zarr({self._tree.facts})"

    def fingerprint_of_first(self, records: int) -> str:
        """As `sources.base.KnowsEarlier`."""
        return f"zarr({self._tree.facts_of_first([records] * len(self._tree.open()))})"

    def narrowed(self, boxes: Boxes) -> ZarrDataSource | None:
        """Return the source that reads only these boxes of the rows; None if it is one already."""
        from windrow.sources.cells import numbered  # few chains are narrowed

        if self._boxes:
            return None
        numbers = numbered(self._tree.assembled(list(range(len(self._tree.open())))))
        made = copy.copy(self)
        made._boxes = {numbers[path]: box for path, box in boxes.items()}
        return made

    @property
    def parts(self) -> Sequence[ArrayPart | BoxPart]:
        """One part per array, in the order of the tree; chunks are the chunks of the first axis.

        An array is read in chunks along all axes where only boxes of its rows are read.

        Raises:
            ReadError: If this process was forked from a process that had used TensorStore.
        """
        return [
            array.part if number not in self._boxes else _box_part(array, self._boxes[number])
            for number, array in enumerate(self._open_tree())
        ]

    @property
    def spec(self) -> Any:
        """Shape, dtype and dimensions of a row of each array."""
        specs = []
        for number, array in enumerate(self._tree.open()):
            dims, box = array.dims[1:], self._boxes.get(number)
            shape = array.part.row_shape if box is None else tuple(map(len, box))
            named = dims if any(name is not None for name in dims) else None
            specs.append(ArraySpec(shape, array.dtype, named))
        return self._tree.assembled(specs)

    def assembled(self, columns: Sequence[Any], indices: IntArray) -> Columns:
        """The tree of `read`, from one column per part."""
        found = [
            column[0].reshape(len(indices), *map(len, self._boxes[number]))
            if number in self._boxes
            else column
            for number, column in enumerate(columns)
        ]
        return self._tree.assembled(found)

    def blocks(self) -> IntArray:
        """Bounds of the chunks of one array, chosen so that no other chunk is read far more often.

        It is the array with the most records per chunk, among those with an eighth of a record's
        bytes or more. The chunks of the other arrays lie in whole blocks of it, or weigh little.

        Raises:
            SourceError: If there are more chunks than a table can hold.
        """
        parts = [array.part for array in self._tree.open()]
        parts = [part for part in parts if not part.alone] or parts
        weight = sum(part.row_bytes for part in parts) / 8
        heavy = [part for part in parts if part.row_bytes >= weight] or parts
        part = max(heavy, key=lambda part: part.chunk_rows)
        if part.chunk_count > _MOST_BLOCKS:
            raise SourceError(
                f"{_WHAT}: the arrays lie in {part.chunk_count:,} chunks along the first axis, and"
                f" blocks are made of at most {_MOST_BLOCKS:,}; shuffle all records instead, or"
                " write larger chunks"
            )
        edges = np.arange(part.chunk_count + 1, dtype=np.int64) * part.chunk_rows - part.shift
        bounds: IntArray = np.unique(np.clip(edges, 0, self._length))
        return bounds


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
