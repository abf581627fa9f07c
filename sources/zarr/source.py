"""Zarr arrays and groups as records: row `i` of every array is record `i`.

An `ArrayTree` holds the open arrays of a source, can be pickled and opens them again.

Invariants: all arrays of a `ZarrDataSource` have one length. Shapes and dtypes stay as they were when a tree
was made; a store that has others when it is opened again is refused.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union

import numpy as np
import tensorstore as ts

from windrow.core.process import refuse_forked
from windrow.core.text import listing
from windrow.errors import ArgumentError, SourceError
from windrow.sources.base import ArraySpec, Columns, IntArray, checked_indices
from windrow.sources.boxes import BoxField, BoxPart, Cut
from windrow.sources.chunks import ArrayPart, LaidOutSource
from windrow.sources.remote.options import RemoteOptions, useless_options
from windrow.sources.remote.request_counts import RemoteStats
from windrow.sources.zarr.find import choose, find_all
from windrow.sources.zarr.metadata import of_any_length, why_python
from windrow.sources.zarr.missing import Missing
from windrow.sources.zarr.names import ChosenTree, Found, FoundTree, refusing, warn_of_differences
from windrow.sources.zarr.objects import standing_for
from windrow.sources.zarr.open_array import LIBRARY, OpenArray, open_arrays
from windrow.sources.zarr.plain import PlainStore
from windrow.sources.zarr.store_array import StoreArray, open_each
from windrow.sources.zarr.stores import Access, side_by_side
from windrow.sources.zarr.zarr_python import LIBRARY as BY_PYTHON
from windrow.sources.zarr.zarr_python import PythonArray

if TYPE_CHECKING:
    from windrow.sources.cells import Box, Boxes

_WHAT: Final = "ZarrDataSource"
_SHOWN_ARRAYS: Final = 4
_SHOWN_CHARACTERS: Final = 200
_MOST_ROW_BYTES: Final = 2**34
# A table has one number per block.
_MOST_BLOCKS: Final = 2**27

Numbers: TypeAlias = Union[int, "dict[str, Numbers]"]
"""A tree whose leaves are numbers of arrays or fields."""

Chooser: TypeAlias = Callable[
    [str, FoundTree, Sequence[str] | None], tuple[ChosenTree, tuple[Found, ...]]
]


def taken(
    what: str,
    arrays: Any,
    names: Sequence[str] | None,
    storage_options: Mapping[str, Any] | None,
    remote: RemoteOptions | None,
    *,
    decode: bool = False,
) -> tuple[Any, Sequence[str] | None, Access]:
    """The arrays and names that a source was given, without open objects, and how URLs are reached.

    Args:
        what: Name of the source, for messages.
        arrays: As for `ZarrDataSource`.
        names: As for `ZarrDataSource`.
        storage_options: As for `ZarrDataSource`.
        remote: As for `ZarrDataSource`.
        decode: Whether the source decodes values as xarray does.

    Raises:
        ArgumentError: If an argument is of a wrong kind, or an object has changed.
    """
    if not isinstance(arrays, str | os.PathLike):
        arrays, names, storage_options = standing_for(
            what, arrays, names, storage_options, decode=decode
        )
    return arrays, names, Access(what, storage_options, remote)


class ArrayTree:
    """Arrays by name, or a single one. Thread-safe; pickles without its open arrays."""

    def __init__(
        self,
        what: str,
        arrays: Any,
        *,
        direct: bool | None = None,
        names: Sequence[str] | None = None,
        access: Access | None = None,
        choose: Chooser = choose,
        known: Sequence[str] | None = None,
        missing: Missing = "fill",
    ) -> None:
        """Open the arrays; only metadata is read.

        Args:
            what: Name of the source, for messages.
            arrays: As for `ZarrDataSource`.
            direct: As for `ZarrDataSource`.
            names: As for `ZarrDataSource`.
            access: How URLs are reached.
            choose: Picks the arrays that give records, as `find.choose` does.
            known: Names to look for in groups that cannot be listed; by default `names`.
            missing: As for `ZarrDataSource`.

        Raises:
            ArgumentError, NotFoundError, SourceError, ConversionError, ReadError: As
                `ZarrDataSource` raises them.
        """
        refuse_forked(LIBRARY, what)
        if direct is not None and not isinstance(direct, bool):
            raise ArgumentError(f"{what}: direct must be True, False or None, got {direct!r}")
        self._what, self._direct = what, direct
        self._access = Access(what) if access is None else access
        self._found: list[Found] = []
        if missing not in ("fill", "error"):
            raise ArgumentError(f"{what}: missing must be 'fill' or 'error', got {missing!r}")
        tree = find_all(what, arrays, names if known is None else known, self._access)
        if missing == "error":
            tree = refusing(tree)
        if self._access.storage_options and not self._access.reached:
            raise useless_options(what, self._access.storage_options)
        chosen, self.left_out = choose(what, tree, names)
        """Arrays that were found and give no records: coordinates, and arrays that were not chosen.

        They are not open; `open_arrays` opens them.
        """
        self._chose = names is not None
        self._numbers = _numbered(chosen, self._found)
        opened = _open_records(what, self._found, direct)
        warn_of_differences((one.found, one.own_shape) for one in opened if one.found.listing)
        self._facts = tuple(array.facts for array in opened)
        self._opened: tuple[OpenArray, ...] | None = opened
        self._stores: dict[str, ts.TensorStore] | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        found = [array.pickled() for array in self.open()]
        return {**self.__dict__, "_found": found, "_opened": None, "_stores": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = {**state, "_lock": threading.Lock()}

    def open(self) -> tuple[OpenArray, ...]:
        """The arrays, in the order of the tree; opened again if this process has not opened them.

        Raises:
            SourceError: If they changed since the tree was made.
            ReadError: If this process was forked from one that had used TensorStore.
        """
        opened = self._opened
        if opened is not None:
            return opened
        refuse_forked(LIBRARY, self._what)
        with self._lock:
            if self._opened is None:
                opened = _open_records(self._what, self._found, self._direct)
                facts = tuple(array.facts for array in opened)
                if facts != self._facts:
                    raise SourceError(
                        f"{self._what}: the arrays changed since the source was made\n"
                        f"  then: {'; '.join(self._facts)}\n  now:  {'; '.join(facts)}\n"
                        "Make the source again."
                    )
                self._opened = opened
            return self._opened

    @property
    def stores(self) -> dict[str, ts.TensorStore]:
        """The arrays as open stores, by name."""
        opened = self.open()
        with self._lock:
            if self._stores is None:
                for array in opened:
                    if isinstance(array.backend, PythonArray):
                        own = array.backend.library == BY_PYTHON
                        way = "open it with zarr.open_array" if own else "read it by the source"
                        raise SourceError(
                            f"{self._what}: {array.found.named} in {array.found.where} is"
                            f" {array.way}, and TensorStore cannot open it; {way}"
                        )
                plain = [a.found for a in opened if not isinstance(a.backend, StoreArray)]
                stores = iter(open_each(plain, refuse=True))
                self._stores = {
                    a.name: a.backend.store if isinstance(a.backend, StoreArray) else next(stores)
                    for a in opened
                }
            return dict(self._stores)

    @property
    def is_remote_source(self) -> bool:
        """Whether an array is read over a network."""
        return any(array.is_remote_source for array in self.open())

    @property
    def remote_stats(self) -> RemoteStats:
        """The counts of requests for remote arrays."""
        return self._access.stats

    def expect_answers(self) -> None:
        """Wait for stores that are away from now on: all have answered."""
        self._access.expect_answers()

    @property
    def facts(self) -> str:
        """Names, dtypes, shapes and chunks of the arrays, or a digest if that is long; versions of data."""
        return _shown(self._facts, lambda: self.open()[0].part.rows) + self._versions

    def facts_of_first(self, rows: Sequence[int | None]) -> str:
        """The facts when each array had only its first rows; None leaves an array out."""
        every = zip(self.open(), rows, strict=True)
        pairs = [(array, count) for array, count in every if count is not None]
        shown = [array.facts_of_first(count) for array, count in pairs]
        return _shown(shown, lambda: pairs[0][1]) + self._versions

    @property
    def _versions(self) -> str:
        """What stores call the state of their data, such as a snapshot."""
        versions = (item.opened.version for item in self._found if item.opened is not None)
        return "".join(f"; {version}" for version in dict.fromkeys(versions) if version)

    @property
    def place(self) -> str:
        """Where the arrays are and how they are read, for people."""
        opened = self.open()
        levels = zip(*(array.found.where.split("/") for array in opened), strict=False)
        shared = itertools.takewhile(lambda names: len(set(names)) == 1, levels)
        place = "/".join(names[0] for names in shared) or "several places"
        if self.left_out and not self._chose:
            labels = listing([item.name for item in self.left_out], _SHOWN_ARRAYS)
            return f"{place}, {_ways(opened)}; coordinates: {labels}"
        return f"{place}, {_ways(opened)}"

    @property
    def own_name(self) -> str:
        """The name of a single array in its store; 'values' if it is unknown."""
        where = self.open()[0].found.where.rstrip("/")
        return where.rpartition("/")[2] if "/" in where else "values"

    def assembled(self, columns: Sequence[Any]) -> Columns:
        """The tree with one column per array."""
        return shaped(self._numbers, columns)


def _open_records(what: str, found: Sequence[Found], direct: bool | None) -> tuple[OpenArray, ...]:
    """Opens arrays whose rows are records; refuses strings of any length."""
    for item in found:
        if of_any_length(item.metadata or {}):
            why = why_python(item.metadata or {})
            raise item.unread(f"its values are strings, bytes or objects of any length ({why})")
    return open_arrays(what, found, direct)


def _ways(opened: tuple[OpenArray, ...]) -> str:
    """How the arrays are read, for people."""
    by_way: dict[str, list[str]] = {}
    for array in sorted(opened, key=lambda array: not isinstance(array.backend, PlainStore)):
        by_way.setdefault(array.way, []).append(array.name)
    if len(by_way) == 1:
        return next(iter(by_way))
    return "; ".join(f"{way}: {listing(names, _SHOWN_ARRAYS)}" for way, names in by_way.items())


def _numbered(tree: ChosenTree, found: list[Found]) -> Numbers:
    if isinstance(tree, dict):
        return {name: _numbered(item, found) for name, item in tree.items()}
    found.append(tree)
    return len(found) - 1


def shaped(tree: Numbers, leaves: Sequence[Any]) -> Any:
    """The tree with the leaf of each number in its place."""
    if isinstance(tree, dict):
        return {name: shaped(item, leaves) for name, item in tree.items()}
    return leaves[tree]


def _shown(facts: Sequence[str], rows: Callable[[], int]) -> str:
    """Facts of arrays, or a digest if they are long; `rows` counts the rows of the first array."""
    text = "; ".join(facts)
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{rows()} records, {len(facts)} arrays, sha256:{digest}"


class OverTree(LaidOutSource):
    """A source of the arrays of a tree: what it says of the reads of all of them."""

    _tree: ArrayTree

    def _open_tree(self) -> tuple[OpenArray, ...]:
        """The open arrays. Raises ReadError in a fork of a process that had used TensorStore."""
        refuse_forked(LIBRARY, type(self).__name__)
        return self._tree.open()

    def read(self, indices: IntArray) -> Columns:
        """Read the records at `indices`, in that order, in new memory.

        Raises:
            ReadError: If a chunk cannot be read; the message names array, file and records. Or
                if this process was forked from a process that had used TensorStore.
        """
        wanted = checked_indices(indices, len(self), type(self).__name__)
        reads = [partial(part.read, wanted) for part in self.parts]
        return self.assembled(side_by_side(reads, wait=self.is_remote_source), wanted)

    @property
    def is_remote_source(self) -> bool:
        """Whether an array is read over a network."""
        return self._tree.is_remote_source

    def stats(self) -> dict[str, Any]:
        """Counts of this process's requests to networks: `requests`, `retries`, `bytes`, `faults`.

        TensorStore does not report its requests. For an array that it reads, `requests` counts the
        reads that were started, of a chunk or of adjacent chunks, `bytes` the bytes of the values,
        and `faults` the reads that failed for good. TensorStore's own counts are for the whole
        process: `tensorstore.experimental_collect_matching_metrics("/tensorstore/http/")`.

        Once a request was answered also `p50_s`, `p95_s` and `p99_s`: seconds until the last 1,024 requests
        were answered, by percentile.
        """
        return self.remote_stats.counts()

    @property
    def remote_stats(self) -> RemoteStats:
        """The counts of requests to networks."""
        return self._tree.remote_stats


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
        arrays, names, access = taken(_WHAT, arrays, names, storage_options, remote)
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
