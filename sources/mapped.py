"""Sends arrays of `numpy.memmap` to another process by the name of their file.

Invariant: a reopened array has the bytes at the same place of a file of the same size. Any other array
is pickled with its data.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

from windrow.errors import NotFoundError, ReadError
from windrow.sources.base import AnyArray


@dataclasses.dataclass(frozen=True, slots=True)
class MappedArray:
    """The place of a C-order array in a file, and the file's size."""

    path: str
    size_bytes: int
    offset_bytes: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def open(self) -> AnyArray:
        """Opens the array for reading only.

        Raises:
            NotFoundError: If the file is gone.
            ReadError: If the file has another size.
        """
        try:
            size = os.stat(self.path).st_size
        except FileNotFoundError as error:
            raise NotFoundError(
                f"ArrayDataSource: {self.path}, the file of a numpy.memmap, is gone or not on this"
                " machine; restore it, or make the source again"
            ) from error
        if size != self.size_bytes:
            raise ReadError(
                f"ArrayDataSource: {self.path}, the file of a numpy.memmap, changed since the source"
                f" was made: {size:,} bytes, then {self.size_bytes:,}; make the source again",
                is_unanswered=True,
            )
        return np.asarray(np.memmap(self.path, self.dtype, "r", self.offset_bytes, self.shape))


def mapped(array: AnyArray) -> MappedArray | None:
    """The place of `array` in a file; None if it is in memory, copied on writing, or strided."""
    root = None
    at: Any = array
    while isinstance(at, np.ndarray):
        # The first memmap of the chain: a slice of one keeps the offset of the whole.
        root = at if isinstance(at, np.memmap) else root
        at = at.base
    if root is None or root.filename is None or root.mode == "c":
        return None
    if not array.size or not array.flags.c_contiguous or array.dtype.hasobject:
        return None
    path = os.fspath(root.filename)
    offset = root.offset + array.ctypes.data - root.ctypes.data
    if isinstance(path, bytes) or not os.path.isfile(path):
        return None
    return MappedArray(path, os.stat(path).st_size, offset, array.dtype, array.shape)
