"""Open arrays: which library reads an array that was found, its rows, its boxes.

Invariant: the readers of an array give values of its shape and dtype. Decoding directly and reading through
TensorStore give the same values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from windrow.core.native import native
from windrow.errors import ArgumentError, MissingExtraError, SourceError
from windrow.sources.base import IntArray
from windrow.sources.boxes import BoxField, BoxPart
from windrow.sources.chunks import ArrayPart, BoxReader, RowReader
from windrow.sources.padding import Padding
from windrow.sources.zarr.chunkwise import PrecomputedChunks, open_compressed, open_unequal
from windrow.sources.zarr.error_text import reason
from windrow.sources.zarr.metadata import axis_names, has_unequal_chunks
from windrow.sources.zarr.missing import StoredReader
from windrow.sources.zarr.names import Found
from windrow.sources.zarr.objects import HeldArray
from windrow.sources.zarr.plain import (
    PlainArray,
    PlainBoxReader,
    PlainRowReader,
    PlainStore,
    is_read_by_row,
    native_chunks,
    plain_array,
)
from windrow.sources.zarr.presence import refuse_misplaced, spec_of
from windrow.sources.zarr.remote import RemoteArray
from windrow.sources.zarr.remote_plain import remote_plain
from windrow.sources.zarr.store_array import (
    StoreArray,
    open_each,
    refuse_misplaced_store,
    with_remotes,
)
from windrow.sources.zarr.stores import bare, side_by_side
from windrow.sources.zarr.tensorstore import StoreReader
from windrow.sources.zarr.urls import is_remote_spec
from windrow.sources.zarr.zarr_python import PythonArray, PythonReader, open_python, why_by_python

LIBRARY: Final = "TensorStore"

Backend: TypeAlias = PlainStore | StoreArray | PythonArray


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class OpenArray:
    """An open array.

    Args:
        found: How it was found, with its name in the source.
        part: Its rows.
        chunk: Shape of its chunks; None along an axis where it is unknown.
        backend: The native core decodes a `PlainStore`, TensorStore reads a `StoreArray`, and
            zarr-python a `PythonArray`.
        why: The reason why it is not decoded directly; '' if that needs no explanation.
    """

    found: Found
    part: ArrayPart
    chunk: tuple[int | None, ...]
    backend: Backend
    why: str = ""

    @property
    def name(self) -> str:
        """Name in the source; nested names are joined by `/`, a single array's name is ''."""
        return self.found.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return (self.part.rows, *self.part.row_shape)

    @property
    def own_shape(self) -> Sequence[int]:
        """The shape in the array's own metadata, which may have grown since it was consolidated."""
        backend = self.backend
        if isinstance(backend, PlainStore):
            return tuple(backend.plain.presence.metadata["shape"])
        if isinstance(backend, PythonArray):
            return tuple(map(int, backend.array.shape))
        return spec_of(backend.store).get("metadata", {}).get("shape", self.shape)  # type: ignore[no-any-return]

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
        """As they are stored; empty if they are unknown."""
        return self.found.attributes

    @property
    def is_remote_source(self) -> bool:
        """Whether it is read over a network."""
        return self.backend.is_remote_source

    @property
    def fill_value(self) -> Any:
        """The value of cells that are not stored; None if it is unknown."""
        backend = self.backend
        return backend.plain.fill if isinstance(backend, PlainStore) else backend.fill_value

    @property
    def missing_value(self) -> Any:
        """The fill value of an array of Zarr v2, which marks missing values for xarray."""
        backend, metadata = self.backend, self.found.metadata
        if isinstance(self.found.spec, HeldArray):
            return None
        if isinstance(backend, PlainStore):
            metadata = backend.plain.presence.metadata
        if metadata is not None:
            return metadata.get("fill_value") if metadata.get("zarr_format") == 2 else None
        if isinstance(backend, StoreArray) and spec_of(backend.store).get("driver") == "zarr":
            return backend.fill_value
        return None

    @property
    def facts(self) -> str:
        """The facts that a state keeps about the array."""
        return self.facts_of_first(self.part.rows)

    def facts_of_first(self, rows: int) -> str:
        """The facts when the array had only its first rows."""
        shape = [self.shape[0] - (self.part.rows - rows), *self.shape[1:]]
        text = f"{self.dtype} {shape} chunks {list(self.chunk)}"
        return f"{self.name}: {text}" if self.name else text

    def box_part(
        self,
        origins: Callable[[IntArray], IntArray],
        fields: tuple[BoxField, ...],
        padding: Padding | None = None,
    ) -> BoxPart:
        """The array as records that are boxes of it; see `BoxPart`."""
        reader, chunk_shape, shift = self.box_reader()
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

    @property
    def refuses(self) -> bool:
        """Whether its readers must be made to refuse chunks that are not stored."""
        spec = self.found.spec
        if isinstance(spec, HeldArray) and not spec.is_of_store:  # nothing is missing
            return False
        by_itself = isinstance(self.backend, PythonArray) and self.backend.refuses_missing
        return self.found.refuse_missing and not by_itself

    def without_missing(self) -> OpenArray:
        """The array, whose part refuses chunks that are not stored.

        Raises:
            SourceError: If nothing shows which chunks are stored.
        """
        reader = StoredReader(self.part.reader, self.found, self.fill_value, self.dtype)
        return dataclasses.replace(self, part=dataclasses.replace(self.part, reader=reader))

    def box_reader(self) -> tuple[BoxReader, tuple[int, ...], tuple[int, ...]]:
        """The reader of boxes, the shape of its chunks, and cells of the first one before cell 0."""
        reader, chunk_shape, shift = self._box_reader()
        if self.refuses:
            reader = StoredReader(reader, self.found, self.fill_value, self.dtype)
        return reader, chunk_shape, shift

    def _box_reader(self) -> tuple[BoxReader, tuple[int, ...], tuple[int, ...]]:
        backend, shift = self.backend, (0,) * len(self.shape)
        if isinstance(backend, StoreArray):
            boxes = StoreReader(backend, rows=False)
            return boxes, boxes.chunk_shape, boxes.shift
        sizes = zip(self.chunk, self.shape, strict=True)
        shape = tuple(max(1, min(c or n, n)) for c, n in sizes)
        if isinstance(backend, PlainStore):
            return PlainBoxReader(backend), shape, shift
        return PythonReader(backend, shape), shape, shift

    @property
    def way(self) -> str:
        """How it is read, for people."""
        if isinstance(self.backend, PlainStore):
            return "decoded directly"
        way = self.backend.way if isinstance(self.backend, PythonArray) else f"read by {LIBRARY}"
        return way + (f" ({self.why})" if self.why else "")

    def pickled(self) -> Found:
        """How another process finds the array again.

        Raises:
            ArgumentError: If it is a view that has no spec in JSON.
        """
        found, backend = self.found, self.backend
        if not isinstance(backend, StoreArray) or _is_pickled_as_found(found):
            return found
        spec = backend.store.spec(retain_context=True, minimal_spec=True)
        try:
            spec.to_json()
        except (NotImplementedError, ValueError) as error:
            raise ArgumentError(
                f"{found.what}: {found.named} cannot be pickled: {found.where} is a view that has no spec in"
                f" JSON, such as a view of ts.virtual_chunked ({reason(error)}). Read it in this"
                " process, without workers; or write its values to a store"
            ) from error
        return dataclasses.replace(found, spec=spec)


def _is_pickled_as_found(found: Found) -> bool:
    """Whether the spec with which an array was found opens it again in another process."""
    if isinstance(found.spec, HeldArray) or found.is_n5 or found.is_precomputed:
        return True
    return found.access is not None and isinstance(found.spec, dict) and is_remote_spec(found.spec)


# --- opening -------------------------------------------------------------------------------------


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
    asked = [partial(_direct_or_reason, what, item, direct) for item in found]
    plain = side_by_side(asked, wait=any(item.url is not None for item in found))
    opened = [_open_alone(item, array) for item, array in zip(found, plain, strict=True)]
    left = [item for item, array in zip(found, opened, strict=True) if array is None]
    stores = iter(with_remotes(left, open_each(left)) if left else ())
    every = [
        array or _open_by_store(item, *next(stores), why if isinstance(why, str) else "")
        for item, array, why in zip(found, opened, plain, strict=True)
    ]
    for item in found:
        refuse_misplaced(item)
    return tuple(array.without_missing() if array.refuses else array for array in every)


def _open_alone(found: Found, plain: PlainStore | str) -> OpenArray | None:
    """Opens an array that TensorStore does not open, or not at once; None for any other."""
    if has_unequal_chunks(found.metadata or {}):
        return _python_array(found, open_unequal(found))
    if isinstance(plain, PlainStore):
        return _open_directly(found, plain)
    why = why_by_python(found)
    return _python_array(found, open_python(found, why)) if why else None


def _open_instead(found: Found, error: SourceError) -> OpenArray:
    """Opens by zarr-python what TensorStore cannot open; raises `error` if that fails too."""
    if found.metadata is None:
        raise error
    try:
        return _python_array(found, open_python(found, "TensorStore cannot open it"))
    except (SourceError, MissingExtraError):
        raise error from error.__cause__  # None for remote arrays


def _direct_or_reason(what: str, found: Found, direct: bool | None) -> PlainStore | str:
    """The array to decode directly; or the reason against it, '' if it needs no explanation."""
    if direct is False:
        return "direct=False"
    why = "only arrays given by the path of a local folder, or by a URL, can be"
    if found.folder is not None:
        plain = plain_array(found.folder, found.name)
        if isinstance(plain, PlainArray):
            shape = found.agreed_shape(plain.presence.metadata)
            plain = plain if shape is None else dataclasses.replace(plain, shape=shape)
            chunks = native_chunks(plain, plain.folder)
            if chunks is not None:
                return PlainStore(plain, chunks)
            return "without the native core" if native() is None else "the native core cannot"
        why = plain
    else:
        remote = remote_plain(found)
        if isinstance(remote, PlainStore):
            return remote
        why = remote or why
    if direct:
        named = f"array {found.name!r}" if found.name else "the array"
        raise SourceError(
            f"{what}: {named} in {found.where} cannot be decoded directly: {why}. Leave"
            " direct=True out to read it by TensorStore, or by zarr-python"
        )
    return "" if found.folder is None else why


def _open_directly(found: Found, store: PlainStore) -> OpenArray:
    plain = store.plain
    alone = not store.is_remote_source and is_read_by_row(plain)
    part = _part(found, plain, plain.chunk_shape[0], PlainRowReader(store), alone=alone)
    return OpenArray(_with_fitting_dims(found, plain.shape), part, plain.chunk_shape, store)


def _python_array(found: Found, python: PythonArray) -> OpenArray:
    part = _part(found, python, python.chunk_shape[0], PythonReader(python))
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
    array = StoreArray(store, found.name, found.where, remote)
    refuse_misplaced_store(found, store)
    if found.is_precomputed:
        chunks = PrecomputedChunks(found, store)
        if ending := chunks.ending():
            return _python_array(found, open_compressed(found, store, chunks, ending))
        array.holds = chunks.holds if chunks.knows_stored else None
    part = _part(found, array, array.read_rows, StoreReader(array, rows=True), shift=array.shift)
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
