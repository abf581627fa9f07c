"""Arrays that are open, and a tree of them that can be pickled and opened again.

Invariants: shapes and dtypes are those of the moment the tree was made; a store that no longer has
them when it is opened again is refused. Decoding directly and reading through TensorStore give the
same values.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, Union

import numpy as np
import tensorstore as ts

from windrow.errors import ArgumentError, MissingExtraError, SourceError
from windrow.sources.base import Columns, IntArray
from windrow.sources.box_readers import box_reader
from windrow.sources.boxes import BoxField, BoxPart, Padding
from windrow.sources.pieces import ArrayPart, BoxReader
from windrow.sources.process import refuse_forked
from windrow.sources.zarr_access import Access, is_far
from windrow.sources.zarr_alone import alone_reader
from windrow.sources.zarr_chunks import CheckedReader, DirectReader
from windrow.sources.zarr_far import FarArray, FarGuard, guard_begun
from windrow.sources.zarr_guard import spec_of
from windrow.sources.zarr_names import ChosenTree, Found, axis_names, choose
from windrow.sources.zarr_open import find_all, open_all, open_each, unread
from windrow.sources.zarr_plain import PlainArray, plain_array
from windrow.sources.zarr_python import (
    PythonArray,
    PythonBoxReader,
    PythonReader,
    open_python,
)
from windrow.sources.zarr_python_metadata import of_any_length, why_python
from windrow.sources.zarr_read import Rows, StoreReader, rows_of
from windrow.sources.zarr_reasons import bare, reason

LIBRARY: Final = "TensorStore"
_SHOWN_CHARACTERS: Final = 200
_SHOWN_ARRAYS: Final = 4

_Layout: TypeAlias = Union[int, "dict[str, _Layout]"]  # the tree, each leaf a number of an array


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class OpenArray:
    """An array that is open.

    Args:
        found: What was opened, with its name in the source.
        part: Its rows.
        chunk: Shape of its chunks; None along an axis where that is not known.
        plain: Set if it is decoded directly.
        rows: Set if TensorStore reads it.
        why: Why it is not decoded directly, in words; '' where that needs none.
        python: Set if zarr-python reads it.
    """

    found: Found
    part: ArrayPart
    chunk: tuple[int | None, ...]
    plain: PlainArray | None
    rows: Rows | None
    why: str
    python: PythonArray | None = None

    @property
    def name(self) -> str:
        """Name in the source; nested names are joined by `/`, a single array's name is ''."""
        return self.found.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return (self.part.rows, *self.part.row_shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """As delivered."""
        return self.part.dtype

    @property
    def dims(self) -> tuple[str | None, ...]:
        """Names of the axes, None for one without; two may have one name."""
        return self.found.dims or (None,) * len(self.shape)

    @property
    def attributes(self) -> Mapping[str, Any]:
        """As they are stored; empty where nothing tells."""
        return self.found.attributes

    @property
    def is_far(self) -> bool:
        """Whether it is read over a network."""
        if self.python is not None:
            return self.python.access is not None
        return self.rows is not None and self.rows.far is not None

    @property
    def missing_value(self) -> Any:
        """The fill value of an array of Zarr v2, which by xarray's convention means none."""
        metadata = self.found.metadata
        if self.plain is not None:
            metadata = self.plain.guard.metadata
        if metadata is not None:
            return metadata.get("fill_value") if metadata.get("zarr_format") == 2 else None
        if self.rows is None or spec_of(self.rows.store).get("driver") != "zarr":
            return None
        return self.rows.store.fill_value

    @property
    def facts(self) -> str:
        """What a state remembers of the array."""
        text = f"{self.dtype} {list(self.shape)} chunks {list(self.chunk)}"
        return f"{self.name}: {text}" if self.name else text

    def box_part(
        self,
        origins: Callable[[IntArray], IntArray],
        fields: tuple[BoxField, ...],
        padding: Padding | None = None,
    ) -> BoxPart:
        """The array as records that are boxes of it; see `BoxPart`."""
        if self.python is not None:
            reader: BoxReader = PythonBoxReader(self.python)
            sizes = zip(self.python.chunk_shape, self.shape, strict=True)
            chunk_shape = tuple(max(1, min(cells, size)) for cells, size in sizes)
            shift = (0,) * len(self.shape)
        else:
            reader, chunk_shape, shift = box_reader(self.plain, self.rows, self.chunk)
        return BoxPart(
            name=self.name,
            shape=self.shape,
            dtype=self.dtype,
            chunk_shape=chunk_shape,
            reader=reader,
            origins=origins,
            fields=fields,
            padding=padding,
            shift=shift,
        )


class ArrayTree:
    """Arrays by name, or a single one. Thread-safe; pickles without what is open."""

    def __init__(
        self,
        what: str,
        arrays: Any,
        *,
        direct: bool | None = None,
        names: Sequence[str] | None = None,
        access: Access | None = None,
    ) -> None:
        """Open the arrays; only metadata is read.

        Args:
            what: Name of the source, for messages.
            arrays: As for `ZarrDataSource`.
            direct: As for `ZarrDataSource`.
            names: As for `ZarrDataSource`.
            access: How URLs are reached.

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
        chosen, self._left_out = choose(what, find_all(what, arrays, names, self._access), names)
        self._chose = names is not None
        self._layout = _numbered(chosen, self._found)
        opened = _records(what, self._found, direct)
        self._facts = tuple(array.facts for array in opened)
        self._opened: tuple[OpenArray, ...] | None = opened
        self._stores: dict[str, ts.TensorStore] | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        specs = [
            array.found
            if array.rows is None or _is_sent_as_found(array.found)
            else dataclasses.replace(
                array.found, spec=_to_send(self._what, array.found, array.rows)
            )
            for array in self.open()
        ]
        return {
            "what": self._what,
            "access": self._access,
            "layout": self._layout,
            "facts": self._facts,
            "found": specs,
            "direct": self._direct,
            "left_out": self._left_out,
            "chose": self._chose,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._what = state["what"]
        self._access = state["access"]
        self._layout = state["layout"]
        self._facts = state["facts"]
        self._found = state["found"]
        self._direct = state["direct"]
        self._left_out = state["left_out"]
        self._chose = state["chose"]
        self._opened = None
        self._stores = None
        self._lock = threading.Lock()

    def open(self) -> tuple[OpenArray, ...]:
        """The arrays, in the order of the tree; opened again where they are not open here.

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
                opened = _records(self._what, self._found, self._direct)
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
                    if array.python is not None:
                        raise SourceError(
                            f"{self._what}: {array.found.named} in {array.found.where} is read by"
                            f" zarr-python ({array.why}), and TensorStore can not open it; open it"
                            " with zarr.open_array"
                        )
                absent = [array.found for array in opened if array.rows is None]
                direct = iter(open_all(absent))
                self._stores = {
                    array.name: next(direct) if array.rows is None else array.rows.store
                    for array in opened
                }
            return dict(self._stores)

    @property
    def is_far(self) -> bool:
        """Whether an array is read over a network."""
        return any(array.is_far for array in self.open())

    def counts(self) -> dict[str, Any]:
        """As `RemoteStats.counts` tells it, of what is far away."""
        return self._access.counts()

    @property
    def left_out(self) -> tuple[Found, ...]:
        """Arrays that were found and give no records: coordinates, and those that were not chosen.

        They are not open; `open_arrays` opens them.
        """
        return self._left_out

    @property
    def facts(self) -> str:
        """Names, dtypes, shapes and chunks of the arrays, or a digest where that is long."""
        text = "; ".join(self._facts)
        if len(text) > _SHOWN_CHARACTERS:
            digest = hashlib.sha256(text.encode()).hexdigest()[:16]
            text = f"{self.open()[0].part.rows} records, {len(self._facts)} arrays, sha256:{digest}"
        return text

    @property
    def place(self) -> str:
        """Where the arrays are and how they are read, for people."""
        opened = self.open()
        levels = zip(*(array.found.where.split("/") for array in opened), strict=False)
        shared = itertools.takewhile(lambda names: len(set(names)) == 1, levels)
        place = "/".join(names[0] for names in shared) or "several places"
        if self._left_out and not self._chose:
            labels = _listed([item.name for item in self._left_out])
            return f"{place}, {_ways(opened)}; coordinates: {labels}"
        return f"{place}, {_ways(opened)}"

    @property
    def own_name(self) -> str:
        """What a single array is called where it is stored; 'values' where that is not known."""
        where = self.open()[0].found.where.rstrip("/")
        return where.rpartition("/")[2] if "/" in where else "values"

    def assembled(self, columns: Sequence[Any]) -> Columns:
        """The tree with one column per array."""
        return _shaped(self._layout, columns.__getitem__)


@bare
def open_arrays(
    what: str, found: Sequence[Found], direct: bool | None = None
) -> tuple[OpenArray, ...]:
    """Arrays that were found, opened side by side; for the coordinates of a tree.

    Args:
        what: Name of the source, for messages.
        found: The arrays.
        direct: As for `ZarrDataSource`.

    Raises:
        NotFoundError, SourceError: As `ZarrDataSource` raises them.
    """
    plain = [_plain(what, item, direct) for item in found]
    python = {
        item: why
        for item, way in zip(found, plain, strict=True)
        if isinstance(way, str) and (why := why_python(item.metadata or {}) or _why_fsspec(item))
    }
    left = [
        item
        for item, way in zip(found, plain, strict=True)
        if isinstance(way, str) and item not in python
    ]
    stores = iter(_guarded(left, open_each(left)))
    opened = []
    for item, way in zip(found, plain, strict=True):
        if not isinstance(way, str):
            opened.append(_directly(item, way))
        elif item in python:
            opened.append(_through_python(item, python[item]))
        else:
            opened.append(_through_store(item, *next(stores), way))
    return tuple(opened)


def _why_fsspec(found: Found) -> str:
    """Why fsspec reads an array, in words; '' where TensorStore does."""
    if found.spec is not None:
        return ""
    if found.access is None or found.url is None:
        raise unread(found, "only TensorStore reads its format, and it does not open such URLs")
    return found.access.way(found.url).why


def _guarded(found: Sequence[Found], stores: Sequence[Any]) -> list[tuple[Any, FarArray | None]]:
    """The stores, with what reads those that are far away; all guards ask side by side."""
    guards: list[FarGuard | None] = []
    for item, store in zip(found, stores, strict=True):
        opened = item.access if isinstance(store, ts.TensorStore) else None
        guards.append(None if opened is None else guard_begun(opened, store, item.where))
    pairs: list[tuple[Any, FarArray | None]] = []
    for item, store, guard in zip(found, stores, guards, strict=True):
        far = None
        if isinstance(store, ts.TensorStore) and item.access and is_far(spec_of(store)):
            far = FarArray(item.access, store, _asked(item, item.access, guard))
        pairs.append((store, far))
    return pairs


def _asked(found: Found, access: Access, guard: FarGuard | None) -> FarGuard | None:
    """A guard that was begun, once it has its answer; None where there is nothing to guard."""
    try:
        return guard if guard is not None and guard.wait() else None
    except (ValueError, RuntimeError, OSError) as error:
        raise SourceError(
            f"{found.what}: the metadata of {found.named} in {found.where} can not be read:"
            f" {access.reason(error)}"
        ) from None


def _instead(found: Found, error: SourceError) -> OpenArray:
    """The array by zarr-python, where TensorStore gives `error`; that error if it can not either."""
    if found.metadata is None:
        raise error
    try:
        return _through_python(found, "TensorStore can not open it")
    except (SourceError, MissingExtraError):
        raise error from error.__cause__  # None for what is far away


def _records(what: str, found: Sequence[Found], direct: bool | None) -> tuple[OpenArray, ...]:
    """Arrays opened to be records: not those of texts of any length."""
    for item in found:
        if of_any_length(item.metadata or {}):
            why = why_python(item.metadata or {})
            raise unread(item, f"its values are texts, bytes or objects of any length ({why})")
    return open_arrays(what, found, direct)


def _to_send(what: str, found: Found, rows: Rows) -> Any:
    """The spec of an array that is open, to be pickled."""
    spec = rows.store.spec(retain_context=True, minimal_spec=True)
    try:
        spec.to_json()
    except (NotImplementedError, ValueError) as error:
        raise ArgumentError(
            f"{what}: {found.named} can not be pickled: {found.where} is a view that has no spec in"
            f" JSON, as one of ts.virtual_chunked ({reason(error)}). Read it in this process,"
            " without workers; or write its values to a store"
        ) from error
    return spec


def _is_sent_as_found(found: Found) -> bool:
    """Whether an array is opened again by a spec without anything that is open, of a URL."""
    return found.access is not None and isinstance(found.spec, dict) and is_far(found.spec)


def _plain(what: str, found: Found, direct: bool | None) -> PlainArray | str:
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
            f"{what}: {named} in {found.where} can not be decoded directly: {way}. Leave"
            " direct=True out to read it by TensorStore, or by zarr-python"
        )
    return "" if found.folder is None else way


def _directly(found: Found, plain: PlainArray) -> OpenArray:
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
    return OpenArray(_fitting(found, plain.shape), part, plain.chunk_shape, plain, None, "")


def _through_python(found: Found, why: str) -> OpenArray:
    python = open_python(found, why)
    part = ArrayPart(
        name=found.name,
        rows=python.shape[0],
        row_shape=python.shape[1:],
        dtype=python.dtype,
        piece_rows=python.chunk_shape[0],
        reader=PythonReader(python),
        alone=python.chunk_shape[0] == 1,
    )
    return OpenArray(
        _fitting(found, python.shape), part, python.chunk_shape, None, None, why, python
    )


def _fitting(found: Found, shape: Sequence[int]) -> Found:
    """`found` without names of axes if they are those of an array of another rank."""
    return found if len(found.dims) == len(shape) else dataclasses.replace(found, dims=())


def _through_store(found: Found, store: Any, far: FarArray | None, why: str) -> OpenArray:
    if isinstance(store, SourceError):
        return _instead(found, store)
    rows = rows_of(store, found.name, found.where, far)
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
    chunk = tuple(store.chunk_layout.read_chunk.shape or (None,) * store.rank)
    return OpenArray(_told(found, store), part, chunk, None, rows, why)


def _told(found: Found, store: Any) -> Found:
    """`found` with the names of the axes and the attributes that an open store tells."""
    labels = axis_names(tuple(store.domain.labels), store.rank)
    dims = found.dims if len(found.dims) == store.rank else ()
    attributes = found.attributes
    if found.shape is None and not attributes:
        told = spec_of(store).get("metadata", {}).get("attributes")
        attributes = told if isinstance(told, dict) else attributes
    return dataclasses.replace(found, dims=labels or dims, attributes=attributes)


def _ways(opened: tuple[OpenArray, ...]) -> str:
    """How the arrays are read, for people."""
    by_way: dict[str, list[str]] = {}
    for array in sorted(opened, key=lambda array: array.plain is None):
        way = "decoded directly"
        if array.plain is None:
            way = f"read by {LIBRARY if array.python is None else 'zarr-python'}"
            way += f" ({array.why})" if array.why else ""
        by_way.setdefault(way, []).append(array.name)
    if len(by_way) == 1:
        return next(iter(by_way))
    return "; ".join(f"{way}: {_listed(names)}" for way, names in by_way.items())


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN_ARRAYS
    return ", ".join(names[:_SHOWN_ARRAYS]) + (f" and {more} more" if more > 0 else "")


def _numbered(tree: ChosenTree, found: list[Found]) -> _Layout:
    if isinstance(tree, dict):
        return {name: _numbered(item, found) for name, item in tree.items()}
    found.append(tree)
    return len(found) - 1


def _shaped(layout: _Layout, leaf: Callable[[int], Any]) -> Columns:
    if isinstance(layout, dict):
        return {name: _shaped(item, leaf) for name, item in layout.items()}
    return leaf(layout)
