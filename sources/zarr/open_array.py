"""An open array: its rows, its boxes, and how it is read.

Invariant: its readers give values of its shape and dtype.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from windrow.sources.base import IntArray
from windrow.sources.boxes import BoxField, BoxPart
from windrow.sources.chunks import ArrayPart, BoxReader
from windrow.sources.padding import Padding
from windrow.sources.zarr.box_readers import box_reader
from windrow.sources.zarr.held import HeldArray
from windrow.sources.zarr.local.presence import spec_of
from windrow.sources.zarr.missing import StoredReader
from windrow.sources.zarr.names import Found
from windrow.sources.zarr.plain import PlainBoxReader, PlainStore, box_chunk
from windrow.sources.zarr.store_array import StoreArray
from windrow.sources.zarr.zarr_python import PythonArray

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
        return not isinstance(self.backend, PlainStore) and self.backend.is_remote_source

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
        """As `box_readers.box_reader`."""
        reader, chunk_shape, shift = self._box_reader()
        if self.refuses:
            reader = StoredReader(reader, self.found, self.fill_value, self.dtype)
        return reader, chunk_shape, shift

    def _box_reader(self) -> tuple[BoxReader, tuple[int, ...], tuple[int, ...]]:
        backend = self.backend
        if isinstance(backend, PlainStore):
            return PlainBoxReader(backend), box_chunk(backend.plain), (0,) * len(self.shape)
        return box_reader(backend, self.chunk)

    @property
    def way(self) -> str:
        """How it is read, for people."""
        if isinstance(self.backend, PlainStore):
            return "decoded directly"
        way = self.backend.way if isinstance(self.backend, PythonArray) else f"read by {LIBRARY}"
        return way + (f" ({self.why})" if self.why else "")
