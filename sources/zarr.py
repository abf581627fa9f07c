"""Zarr arrays and groups as records: row `i` of every array is record `i`.

Invariants: shapes and dtypes are those of the moment the source was made; a store that no longer
has them when it is opened again is refused. Decoding directly and reading through TensorStore give
the same records.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, Union

import numpy as np
import tensorstore as ts

from windrow.errors import ArgumentError, SourceError
from windrow.sources.base import Columns, IntArray, checked_indices
from windrow.sources.pieces import ArrayPart, LaidOutSource
from windrow.sources.process import refuse_forked
from windrow.sources.zarr_alone import alone_reader
from windrow.sources.zarr_chunks import CheckedReader, DirectReader
from windrow.sources.zarr_open import Found, FoundTree, find_arrays, open_all
from windrow.sources.zarr_plain import PlainArray, plain_array
from windrow.sources.zarr_read import Rows, StoreReader, read_rows, rows_of

_WHAT: Final = "ZarrDataSource"
_LIBRARY: Final = "TensorStore"
_SHOWN_CHARACTERS: Final = 200
_SHOWN_ARRAYS: Final = 4

_Layout: TypeAlias = Union[int, "dict[str, _Layout]"]  # the tree, each leaf a number of an array


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Opened:
    """An array that is open: decoded directly, or else through TensorStore by `rows`."""

    found: Found
    part: ArrayPart
    chunk: tuple[int | None, ...]
    rows: Rows | None
    why: str  # TensorStore reads it, in words; '' where that needs none

    @property
    def facts(self) -> str:
        shape = [self.part.rows, *self.part.row_shape]
        text = f"{self.part.dtype} {shape} chunks {list(self.chunk)}"
        return f"{self.part.name}: {text}" if self.part.name else text


class ZarrDataSource(LaidOutSource):
    """Rows of a Zarr array (v2 or v3, sharded too), or of the arrays of a group or dict."""

    def __init__(self, arrays: Any, *, direct: bool | None = None) -> None:
        """Open the arrays; only metadata is read.

        Args:
            arrays: A path or URL of an array or a group, a dict of them (nested too), a spec of
                TensorStore, or an open `tensorstore.TensorStore`, views included. An array gives
                rows; anything with several gives a dict per record.
            direct: Whether chunks are decoded without TensorStore, which is faster and gives the
                same records. None does so where it can be: arrays in local folders whose codecs
                are plain ones. True refuses other arrays, with the reason; False never does it.

        Raises:
            ArgumentError: If the argument names no array, or `direct` is no such value.
            NotFoundError: If there is nothing where it points.
            SourceError: If metadata is unreadable, a dtype is not supported, an array has no
                first axis, lengths differ, or `direct=True` can not be.
            ConversionError: If the conversion that writes the folder has not finished.
            ReadError: If this process was forked from one that had used TensorStore.
        """
        refuse_forked(_LIBRARY, _WHAT)
        if direct is not None and not isinstance(direct, bool):
            raise ArgumentError(f"{_WHAT}: direct must be True, False or None, got {direct!r}")
        self._direct = direct
        self._found: list[Found] = []
        self._layout = _numbered(find_arrays(arrays), self._found)
        opened = _open_each(self._found, direct)
        lengths = {array.part.rows for array in opened}
        if len(lengths) > 1:
            shown = "\n".join(f"  {array.part.name}: {array.part.rows:,}" for array in opened)
            raise SourceError(
                f"{_WHAT}: the arrays differ in length\n{shown}\n"
                "The first axis counts records: choose arrays of one length with a dict."
            )
        self._length = opened[0].part.rows
        self._facts = tuple(array.facts for array in opened)
        self._opened: tuple[_Opened, ...] | None = opened
        self._stores: dict[str, ts.TensorStore] | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        opened = self._open()
        shown = ", ".join(
            (f"{p.name}: " if p.name else "") + f"{p.dtype} {list(p.row_shape)}"
            for p in (array.part for array in opened[:_SHOWN_ARRAYS])
        )
        left = len(opened) - _SHOWN_ARRAYS
        more = f" and {left} more arrays" if left > 0 else ""
        levels = zip(*(array.found.where.split("/") for array in opened), strict=False)
        shared = itertools.takewhile(lambda names: len(set(names)) == 1, levels)
        place = "/".join(names[0] for names in shared) or "several places"
        return f"{_WHAT}({self._length:,} records of {shown}{more} in {place}, {_ways(opened)})"

    def __getstate__(self) -> dict[str, Any]:
        specs = [
            (
                array.found.name,
                array.found.where,
                array.found.spec
                if array.rows is None
                else array.rows.store.spec(retain_context=True, minimal_spec=True),
                array.found.folder,
            )
            for array in self._open()
        ]
        return {
            "layout": self._layout,
            "length": self._length,
            "facts": self._facts,
            "specs": specs,
            "direct": self._direct,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._layout = state["layout"]
        self._length = state["length"]
        self._facts = state["facts"]
        self._found = [Found(*spec) for spec in state["specs"]]
        self._direct = state["direct"]
        self._opened = None
        self._stores = None
        self._lock = threading.Lock()

    @property
    def arrays(self) -> dict[str, ts.TensorStore]:
        """The open arrays by name; nested names are joined by `/`, a single array's name is ''."""
        opened = self._open()
        with self._lock:
            if self._stores is None:
                absent = [array.found for array in opened if array.rows is None]
                direct = iter(open_all(absent))
                self._stores = {
                    array.part.name: next(direct) if array.rows is None else array.rows.store
                    for array in opened
                }
            return dict(self._stores)

    @property
    def fingerprint(self) -> str:
        """Names, dtypes, shapes and chunks of the arrays."""
        text = "; ".join(self._facts)
        if len(text) > _SHOWN_CHARACTERS:
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            text = f"{self._length} records, {len(self._facts)} arrays, sha256:{digest}"
        return f"zarr({text})"

    @property
    def parts(self) -> Sequence[ArrayPart]:
        """One part per array, in the order of the tree; pieces are the chunks of the first axis.

        Raises:
            ReadError: If this process was forked from one that had used TensorStore.
        """
        refuse_forked(_LIBRARY, _WHAT)
        return [array.part for array in self._open()]

    def assembled(self, columns: Sequence[Any]) -> Columns:
        """The tree of `read`, from one array of rows per part."""
        return _shaped(self._layout, columns.__getitem__)

    def blocks(self) -> IntArray:
        """Bounds of the chunks of one array, so that no other chunk is read far more often.

        It is the array with the most records per chunk, of those that have an eighth of a record's
        bytes or more: the chunks of the others lie in whole blocks of it, or weigh little.
        """
        parts = [array.part for array in self._open()]
        parts = [part for part in parts if not part.alone] or parts
        weight = sum(part.row_bytes for part in parts) / 8
        heavy = [part for part in parts if part.row_bytes >= weight] or parts
        part = max(heavy, key=lambda part: part.piece_rows)
        edges = np.arange(part.piece_count + 1, dtype=np.int64) * part.piece_rows - part.shift
        bounds: IntArray = np.unique(np.clip(edges, 0, self._length))
        return bounds

    def read(self, indices: IntArray) -> Columns:
        """Rows at `indices`: an array `(n, ...)`, or a dict of them, in new memory.

        Raises:
            ReadError: If a chunk can not be read; the message names array, file and records. Or
                if this process was forked from one that had used TensorStore.
        """
        refuse_forked(_LIBRARY, _WHAT)
        wanted = checked_indices(indices, self._length, _WHAT)
        opened = self._open()
        # All of TensorStore's reads at once: each may wait for a network.
        stores = iter(read_rows([a.rows for a in opened if a.rows is not None], wanted))
        columns = [a.part.read(wanted) if a.rows is None else next(stores) for a in opened]
        return self.assembled(columns)

    def _open(self) -> tuple[_Opened, ...]:
        opened = self._opened
        if opened is not None:
            return opened
        refuse_forked(_LIBRARY, _WHAT)
        with self._lock:
            if self._opened is None:
                opened = _open_each(self._found, self._direct)
                facts = tuple(array.facts for array in opened)
                if facts != self._facts:
                    raise SourceError(
                        f"{_WHAT}: the arrays changed since the source was made\n"
                        f"  then: {'; '.join(self._facts)}\n  now:  {'; '.join(facts)}\n"
                        "Make the source again."
                    )
                self._opened = opened
            return self._opened


def _open_each(found: list[Found], direct: bool | None) -> tuple[_Opened, ...]:
    plain = [_plain(item, direct) for item in found]
    left = [item for item, way in zip(found, plain, strict=True) if isinstance(way, str)]
    stores = iter(open_all(left))
    return tuple(
        _through_store(item, next(stores), way) if isinstance(way, str) else _directly(item, way)
        for item, way in zip(found, plain, strict=True)
    )


def _plain(found: Found, direct: bool | None) -> PlainArray | str:
    """The array to decode directly; or why it is not, '' where that is plain to see."""
    if direct is False:
        return "direct=False"
    if found.folder is not None:
        way = plain_array(found.folder, found.name)
    else:
        way = "only arrays given by the path of a local folder are"
    if direct and isinstance(way, str):
        named = f"array {found.name!r}" if found.name else "the array"
        raise SourceError(
            f"{_WHAT}: {named} in {found.where} can not be decoded directly: {way}. Leave"
            " direct=True out to read it through TensorStore"
        )
    return "" if found.folder is None else way


def _directly(found: Found, plain: PlainArray) -> _Opened:
    alone = alone_reader(plain, found.name, found.where)
    part = ArrayPart(
        name=found.name,
        rows=plain.shape[0],
        row_shape=plain.shape[1:],
        dtype=plain.dtype,
        piece_rows=plain.chunk_shape[0],
        reader=DirectReader(plain) if alone is None else CheckedReader(alone, plain),
        alone=alone is not None or plain.chunk_shape[0] == 1,
    )
    return _Opened(found, part, plain.chunk_shape, None, "")


def _through_store(found: Found, store: Any, why: str) -> _Opened:
    rows = rows_of(store, found.name, found.where)
    part = ArrayPart(
        name=found.name,
        rows=rows.length,
        row_shape=rows.row_shape,
        dtype=rows.dtype,
        piece_rows=rows.piece_rows,
        reader=StoreReader(rows),
        shift=rows.shift,
        alone=rows.piece_rows == 1,
    )
    return _Opened(found, part, tuple(store.chunk_layout.read_chunk.shape or ()), rows, why)


def _ways(opened: tuple[_Opened, ...]) -> str:
    """How the arrays are read, for people."""
    direct = [array.part.name for array in opened if array.rows is None]
    by_why: dict[str, list[str]] = {}
    for array in opened:
        if array.rows is not None:
            by_why.setdefault(array.why, []).append(array.part.name)
    if not by_why:
        return "decoded directly"
    if not direct and len(by_why) == 1:
        why = next(iter(by_why))
        return "read by TensorStore" + (f" ({why})" if why else "")
    told = [f"decoded directly: {_listed(direct)}"] if direct else []
    for why, names in by_why.items():
        told.append(f"read by TensorStore{f' ({why})' if why else ''}: {_listed(names)}")
    return "; ".join(told)


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN_ARRAYS
    return ", ".join(names[:_SHOWN_ARRAYS]) + (f" and {more} more" if more > 0 else "")


def _numbered(tree: FoundTree, found: list[Found]) -> _Layout:
    if isinstance(tree, dict):
        return {name: _numbered(item, found) for name, item in tree.items()}
    found.append(tree)
    return len(found) - 1


def _shaped(layout: _Layout, leaf: Callable[[int], Any]) -> Columns:
    if isinstance(layout, dict):
        return {name: _shaped(item, leaf) for name, item in layout.items()}
    return leaf(layout)
