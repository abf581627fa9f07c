"""Open arrays, and a tree of them that can be pickled and opened again.

Invariants: shapes and dtypes stay as they were when the tree was made; a store that has others when
it is opened again is refused. Decoding directly and reading through TensorStore give the same
values.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, Union

import tensorstore as ts

from windrow.core.native import native
from windrow.core.process import refuse_forked
from windrow.core.text import listing
from windrow.errors import ArgumentError, MissingExtraError, SourceError
from windrow.sources.base import Columns
from windrow.sources.chunks import ArrayPart, RowReader
from windrow.sources.remote.options import useless_options
from windrow.sources.remote.request_counts import RemoteStats
from windrow.sources.zarr.box_readers import python_reader
from windrow.sources.zarr.chunkwise import has_unequal_chunks, open_compressed, open_unequal
from windrow.sources.zarr.consolidated import agreed_shape, warn_of_differences
from windrow.sources.zarr.error_text import bare, reason
from windrow.sources.zarr.find import find_all, open_each
from windrow.sources.zarr.held import HeldArray
from windrow.sources.zarr.local.metadata import PlainArray, plain_array
from windrow.sources.zarr.local.native_chunks import native_chunks
from windrow.sources.zarr.local.presence import spec_of
from windrow.sources.zarr.metadata import axis_names, of_any_length, why_python
from windrow.sources.zarr.missing import (
    Missing,
    refuses_missing,
)
from windrow.sources.zarr.names import ChosenTree, Found, FoundTree, choose, refusing
from windrow.sources.zarr.open_array import LIBRARY, OpenArray
from windrow.sources.zarr.placement import refuse_misplaced, refuse_misplaced_store
from windrow.sources.zarr.plain import PlainRowReader, PlainStore, is_read_by_row
from windrow.sources.zarr.precomputed import PrecomputedChunks
from windrow.sources.zarr.refused import unread
from windrow.sources.zarr.remote import RemoteArray
from windrow.sources.zarr.store_array import StoreArray, store_array
from windrow.sources.zarr.stores import Access
from windrow.sources.zarr.tensorstore import StoreReader
from windrow.sources.zarr.urls import is_remote_spec
from windrow.sources.zarr.zarr_python import LIBRARY as BY_PYTHON
from windrow.sources.zarr.zarr_python import (
    PythonArray,
    open_python,
    why_by_python,
)

_SHOWN_CHARACTERS: Final = 200
_SHOWN_ARRAYS: Final = 4

Numbers: TypeAlias = Union[int, "dict[str, Numbers]"]
"""A tree whose leaves are numbers of arrays or fields."""

Chooser: TypeAlias = Callable[
    [str, FoundTree, Sequence[str] | None], tuple[ChosenTree, tuple[Found, ...]]
]


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
            choose: Picks the arrays that give records, as `names.choose` does.
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
        refuses = refuses_missing(what, missing)
        tree = find_all(what, arrays, names if known is None else known, self._access)
        if refuses:
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
        found = [
            dataclasses.replace(array.found, spec=_pickled_spec(self._what, array.found, backend))
            if isinstance(backend := array.backend, StoreArray)
            and not _is_pickled_as_found(array.found)
            else array.found
            for array in self.open()
        ]
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


@bare
def open_arrays(
    what: str, found: Sequence[Found], direct: bool | None = None
) -> tuple[OpenArray, ...]:
    """Opens arrays that were found, concurrently.

    Args:
        what: Name of the source, for messages.
        found: The arrays.
        direct: As for `ZarrDataSource`.

    Raises:
        NotFoundError, SourceError: As `ZarrDataSource` raises them.
    """
    plain = [_direct_or_reason(what, item, direct) for item in found]
    opened = [
        _open_alone(item, array, by_core=direct is not False)
        for item, array in zip(found, plain, strict=True)
    ]
    left = [item for item, array in zip(found, opened, strict=True) if array is None]
    stores = iter(_with_remotes(left, open_each(left)))
    every = [
        array or _open_by_store(item, *next(stores), why if isinstance(why, str) else "")
        for item, array, why in zip(found, opened, plain, strict=True)
    ]
    for item in found:
        refuse_misplaced(item)
    return tuple(array.without_missing() if array.refuses else array for array in every)


def _open_alone(found: Found, plain: PlainStore | str, *, by_core: bool) -> OpenArray | None:
    """Opens an array that TensorStore does not open, or not at once; None for any other."""
    if has_unequal_chunks(found):
        return _python_array(found, open_unequal(found))
    if isinstance(plain, PlainStore):
        return _open_directly(found, plain)
    why = why_by_python(found)
    return _python_array(found, open_python(found, why, by_core=by_core)) if why else None


def _with_remotes(
    found: Sequence[Found], stores: Sequence[Any]
) -> list[tuple[Any, RemoteArray | None]]:
    """The stores, with a `RemoteArray` for remote ones, whose metadata are read concurrently."""
    pairs: list[tuple[Any, RemoteArray | None]] = []
    for item, store in zip(found, stores, strict=True):
        # The spec of an array in memory has all its values.
        held = isinstance(item.spec, HeldArray)
        is_remote = (
            not held and isinstance(store, ts.TensorStore) and is_remote_spec(spec_of(store))
        )
        access = item.access if is_remote else None
        pairs.append((store, RemoteArray(access, store, item.where) if access else None))
    for item, (_, remote) in zip(found, pairs, strict=True):
        try:
            if remote is not None:
                remote.wait()
        except (ValueError, RuntimeError, OSError) as error:
            why, _ = item.reason(error)
            raise SourceError(
                f"{item.what}: the metadata of {item.named} in {item.where} cannot be read: {why}"
            ) from None
    return pairs


def _open_instead(found: Found, error: SourceError) -> OpenArray:
    """Opens by zarr-python what TensorStore cannot open; raises `error` if that fails too."""
    if found.metadata is None:
        raise error
    try:
        return _python_array(found, open_python(found, "TensorStore cannot open it"))
    except (SourceError, MissingExtraError):
        raise error from error.__cause__  # None for remote arrays


def _open_records(what: str, found: Sequence[Found], direct: bool | None) -> tuple[OpenArray, ...]:
    """Opens arrays whose rows are records; refuses strings of any length."""
    for item in found:
        if of_any_length(item.metadata or {}):
            why = why_python(item.metadata or {})
            raise unread(item, f"its values are strings, bytes or objects of any length ({why})")
    return open_arrays(what, found, direct)


def _pickled_spec(what: str, found: Found, array: StoreArray) -> Any:
    """The spec with which another process opens an array again."""
    spec = array.store.spec(retain_context=True, minimal_spec=True)
    try:
        spec.to_json()
    except (NotImplementedError, ValueError) as error:
        raise ArgumentError(
            f"{what}: {found.named} cannot be pickled: {found.where} is a view that has no spec in"
            f" JSON, such as a view of ts.virtual_chunked ({reason(error)}). Read it in this"
            " process, without workers; or write its values to a store"
        ) from error
    return spec


def _is_pickled_as_found(found: Found) -> bool:
    """Whether the spec with which an array was found opens it again in another process."""
    if isinstance(found.spec, HeldArray) or found.is_n5 or found.is_precomputed:
        return True
    return found.access is not None and isinstance(found.spec, dict) and is_remote_spec(found.spec)


def _direct_or_reason(what: str, found: Found, direct: bool | None) -> PlainStore | str:
    """The array to decode directly; or the reason against it, '' if it needs no explanation."""
    if direct is False:
        return "direct=False"
    why = "only arrays given by the path of a local folder can be"
    if found.folder is not None:
        plain = plain_array(found.folder, found.name)
        if isinstance(plain, PlainArray):
            shape = agreed_shape(found, plain.presence.metadata)
            plain = plain if shape is None else dataclasses.replace(plain, shape=shape)
            chunks = native_chunks(plain, plain.folder)
            if chunks is not None:
                return PlainStore(plain, chunks)
            return "without the native core" if native() is None else "the native core cannot"
        why = plain
    if direct:
        named = f"array {found.name!r}" if found.name else "the array"
        raise SourceError(
            f"{what}: {named} in {found.where} cannot be decoded directly: {why}. Leave"
            " direct=True out to read it by TensorStore, or by zarr-python"
        )
    return "" if found.folder is None else why


def _open_directly(found: Found, store: PlainStore) -> OpenArray:
    plain, reader = store.plain, PlainRowReader(store)
    part = _part(found, plain, plain.chunk_shape[0], reader, alone=is_read_by_row(plain))
    return OpenArray(_with_fitting_dims(found, plain.shape), part, plain.chunk_shape, store)


def _python_array(found: Found, python: PythonArray) -> OpenArray:
    part = _part(found, python, python.chunk_shape[0], python_reader(python))
    fitting = _with_fitting_dims(found, python.shape)
    return OpenArray(fitting, part, python.chunk_shape, python, python.why)


def _part(
    found: Found,
    array: PlainArray | StoreArray | PythonArray,
    chunk_rows: int,
    reader: RowReader,
    *,
    shift: int = 0,
    alone: bool = False,
) -> ArrayPart:
    return ArrayPart(
        name=found.name,
        rows=array.shape[0],
        row_shape=array.shape[1:],
        dtype=array.dtype,
        chunk_rows=chunk_rows,
        reader=reader,
        shift=shift,
        alone=alone or chunk_rows == 1,
    )


def _with_fitting_dims(found: Found, shape: Sequence[int]) -> Found:
    """`found`, without names of axes if they are for an array of another rank."""
    return found if len(found.dims) == len(shape) else dataclasses.replace(found, dims=())


def _open_by_store(found: Found, store: Any, remote: RemoteArray | None, why: str) -> OpenArray:
    """Opens an array of TensorStore, which reads it for the reason `why`."""
    if isinstance(store, SourceError):
        return _open_instead(found, store)
    array = store_array(store, found.name, found.where, remote)
    refuse_misplaced_store(found, store)
    if found.is_precomputed:
        chunks = PrecomputedChunks(found, store)
        if ending := chunks.ending():
            return _python_array(found, open_compressed(found, store, chunks, ending))
        array = dataclasses.replace(array, holds=chunks.holds if chunks.knows_stored else None)
    part = _part(found, array, array.read_rows, StoreReader(array), shift=array.shift)
    chunk = tuple(store.chunk_layout.read_chunk.shape or (None,) * store.rank)
    return OpenArray(_described(found, store), part, chunk, array, why)


def _described(found: Found, store: Any) -> Found:
    """`found` with the names of axes and the attributes of its open store."""
    labels = axis_names(tuple(store.domain.labels), store.rank)
    dims = found.dims if len(found.dims) == store.rank else ()
    attributes = found.attributes
    if found.shape is None and not attributes:
        stored = spec_of(store).get("metadata", {}).get("attributes")
        attributes = stored if isinstance(stored, dict) else attributes
    names = (dims or labels) if found.listing else (labels or dims)
    return dataclasses.replace(found, dims=names, attributes=attributes)


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
