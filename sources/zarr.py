"""Zarr arrays and groups as records: row `i` of every array is record `i`.

Invariant: shapes and dtypes are those of the moment the source was made; a store that no longer
has them when it is opened again is refused.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Callable
from typing import Any, Final, TypeAlias, Union

import tensorstore as ts

from windrow.errors import SourceError
from windrow.sources.base import BatchedSource, Columns, IntArray, checked_indices
from windrow.sources.process import refuse_forked
from windrow.sources.zarr_open import Found, FoundTree, find_arrays, open_all
from windrow.sources.zarr_read import Rows, read_rows, rows_of

_WHAT: Final = "ZarrDataSource"
_LIBRARY: Final = "TensorStore"
_SHOWN_CHARACTERS: Final = 200

_Layout: TypeAlias = Union[int, "dict[str, _Layout]"]  # the tree, each leaf a number of an array


class ZarrDataSource(BatchedSource):
    """Rows of a Zarr array (v2 or v3, sharded too), or of the arrays of a group or dict."""

    def __init__(self, arrays: Any) -> None:
        """Open the arrays; only metadata is read.

        Args:
            arrays: A path or URL of an array or a group, a dict of them (nested too), a spec of
                TensorStore, or an open `tensorstore.TensorStore`, views included. An array gives
                rows; anything with several gives a dict per record.

        Raises:
            ArgumentError: If the argument names no array.
            NotFoundError: If there is nothing where it points.
            SourceError: If metadata is unreadable, a dtype is not supported, an array has no
                first axis, or lengths differ.
            ConversionError: If the conversion that writes the folder has not finished.
            ReadError: If this process was forked from one that had used TensorStore.
        """
        refuse_forked(_LIBRARY, _WHAT)
        found: list[Found] = []
        self._layout = _numbered(find_arrays(arrays), found)
        stores = open_all(found)
        self._rows: tuple[Rows, ...] | None = tuple(
            rows_of(store, item.name, item.where) for store, item in zip(stores, found, strict=True)
        )
        lengths = {rows.length for rows in self._rows}
        if len(lengths) > 1:
            shown = "\n".join(f"  {rows.name}: {rows.length:,}" for rows in self._rows)
            raise SourceError(
                f"{_WHAT}: the arrays differ in length\n{shown}\n"
                "The first axis counts records: choose arrays of one length with a dict."
            )
        self._length = self._rows[0].length
        self._facts = tuple(_facts(rows) for rows in self._rows)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        rows = self._open()
        shown = ", ".join(
            (f"{r.name}: " if r.name else "") + f"{r.dtype} {list(r.row_shape)}" for r in rows[:4]
        )
        more = f" and {len(rows) - 4} more arrays" if len(rows) > 4 else ""
        levels = zip(*(r.where.split("/") for r in rows), strict=False)
        shared = itertools.takewhile(lambda names: len(set(names)) == 1, levels)
        place = "/".join(names[0] for names in shared) or "several places"
        return f"{_WHAT}({self._length:,} records of {shown}{more} in {place})"

    def __getstate__(self) -> dict[str, Any]:
        specs = [
            (r.name, r.where, r.store.spec(retain_context=True, minimal_spec=True))
            for r in self._open()
        ]
        return {
            "layout": self._layout,
            "length": self._length,
            "facts": self._facts,
            "specs": specs,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._layout = state["layout"]
        self._length = state["length"]
        self._facts = state["facts"]
        self._specs = [Found(name, where, spec) for name, where, spec in state["specs"]]
        self._rows = None
        self._lock = threading.Lock()

    @property
    def arrays(self) -> dict[str, ts.TensorStore]:
        """The open arrays by name; nested names are joined by `/`, a single array's name is ''."""
        return {rows.name: rows.store for rows in self._open()}

    @property
    def fingerprint(self) -> str:
        """Names, dtypes, shapes and chunks of the arrays."""
        text = "; ".join(self._facts)
        if len(text) > _SHOWN_CHARACTERS:
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            text = f"{self._length} records, {len(self._facts)} arrays, sha256:{digest}"
        return f"zarr({text})"

    def read(self, indices: IntArray) -> Columns:
        """Rows at `indices`: an array `(n, ...)`, or a dict of them, in new memory.

        Raises:
            ReadError: If a chunk can not be read; the message names array, file and records. Or
                if this process was forked from one that had used TensorStore.
        """
        refuse_forked(_LIBRARY, _WHAT)
        wanted = checked_indices(indices, self._length, _WHAT)
        columns = read_rows(self._open(), wanted)
        return _shaped(self._layout, columns.__getitem__)

    def _open(self) -> tuple[Rows, ...]:
        rows = self._rows
        if rows is not None:
            return rows
        refuse_forked(_LIBRARY, _WHAT)
        with self._lock:
            if self._rows is None:
                stores = open_all(self._specs)
                opened = tuple(
                    rows_of(store, item.name, item.where)
                    for store, item in zip(stores, self._specs, strict=True)
                )
                facts = tuple(_facts(rows) for rows in opened)
                if facts != self._facts:
                    raise SourceError(
                        f"{_WHAT}: the arrays changed since the source was made\n"
                        f"  then: {'; '.join(self._facts)}\n  now:  {'; '.join(facts)}\n"
                        "Make the source again."
                    )
                self._rows = opened
            return self._rows


def _numbered(tree: FoundTree, found: list[Found]) -> _Layout:
    if isinstance(tree, dict):
        return {name: _numbered(item, found) for name, item in tree.items()}
    found.append(tree)
    return len(found) - 1


def _shaped(layout: _Layout, leaf: Callable[[int], Any]) -> Columns:
    if isinstance(layout, dict):
        return {name: _shaped(item, leaf) for name, item in layout.items()}
    return leaf(layout)


def _facts(rows: Rows) -> str:
    shape = [rows.length, *rows.row_shape]
    chunk = list(rows.store.chunk_layout.read_chunk.shape or ())
    text = f"{rows.dtype} {shape} chunks {chunk}"
    return f"{rows.name}: {text}" if rows.name else text
