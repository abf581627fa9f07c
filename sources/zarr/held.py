"""Arrays in memory, or in a file that NumPy maps, as stores that the readers of Zarr read.

Invariant: values are not copied. A memory-mapped array is pickled as the place in its file, any other
array with its values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import tensorstore as ts

from windrow.errors import SourceError
from windrow.sources.base import AnyArray
from windrow.sources.mapped import MappedArray, mapped
from windrow.sources.zarr.names import Found

Labels: TypeAlias = tuple[str, AnyArray, Mapping[str, Any]]

_WITHOUT: Final[Mapping[str, Any]] = {}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class HeldArray:
    """An array of NumPy, with names of its axes, attributes, and the labels along axes.

    Args:
        values: The array; memory-mapped too.
        dims: Names of the axes; () without names.
        attributes: As they would be stored.
        labels: The dimension, values and attributes of each coordinate of one axis, by name.
        is_decoded: Whether an object of xarray holds the values, which are never decoded.
        is_of_store: Whether the values are read from a store, in which chunks may be missing.
    """

    values: AnyArray
    dims: tuple[str | None, ...] = ()
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=lambda: _WITHOUT)
    labels: Mapping[str, Labels] = dataclasses.field(default_factory=lambda: _WITHOUT)
    is_decoded: bool = False
    is_of_store: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        place = mapped(self.values)
        values = self.values if place is None else place
        labels = dict(self.labels)
        return _again, (values, self.dims, dict(self.attributes), labels, self.is_decoded)

    def found(self, what: str, name: str) -> Found:
        """The array as one that was found.

        Raises:
            SourceError: If TensorStore has no such dtype, or the array is masked.
        """
        place = mapped(self.values)
        where = "memory" if place is None else place.path
        found = Found(
            what, name, where, self, None, self.dims, self.attributes, tuple(self.values.shape)
        )
        if isinstance(self.values, np.ma.MaskedArray):
            raise SourceError(
                f"{what}: {found.named} is a masked array, and the mask would be lost; fill it:"
                " array.filled(value)"
            )
        self.open(found)
        return found

    def open(self, found: Found) -> Any:
        """The open store over the values.

        Raises:
            SourceError: If TensorStore has no such dtype.
        """
        try:
            return ts.array(np.asarray(self.values))
        except (TypeError, ValueError) as error:
            times = self.values.dtype.kind in "mM"
            way = (
                "give its numbers: array.view('int64')" if times else "write it with another dtype"
            )
            raise SourceError(
                f"{found.what}: {found.named} in {found.where} is not read: dtype"
                f" {self.values.dtype}; {way}"
            ) from error


def _again(
    values: AnyArray | MappedArray,
    dims: tuple[str | None, ...],
    attributes: Mapping[str, Any],
    labels: Mapping[str, Labels],
    is_decoded: bool,
) -> HeldArray:
    opened = values.open() if isinstance(values, MappedArray) else values
    return HeldArray(opened, dims, attributes, labels, is_decoded)
