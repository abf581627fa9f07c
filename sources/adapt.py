"""Turns any object that a user passes as a source into a `Source`.

Invariant: an object that is a `Source` already is returned unchanged.
"""

from __future__ import annotations

import array
import collections
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorstore as ts

from windrow.errors import ArgumentError
from windrow.sources.base import BatchedSource, Source
from windrow.sources.foreign import ForeignDataSource
from windrow.sources.memory import ArrayDataSource, SequenceDataSource, refuse_computed

_SEQUENCES = (list, tuple, range, collections.deque, array.array)


def as_source(value: Any) -> Source:
    """Returns the source that `value` is, or wraps it in one.

    Args:
        value: A source of `windrow.sources`, anything with the same methods, a NumPy array or a
            dict of them, an open TensorStore or a dict of them, a file, group or dict of datasets of h5py, a
            list or tuple of records, or any object with `len` and `[i]`.

    Raises:
        ArgumentError: If `value` is a path (name the source that reads it), has no length or
            no `[i]`, is of dask, or its `fingerprint` is not a string.
        SourceError: If arrays have no first axis or differ in length.
    """
    if isinstance(value, BatchedSource):
        return _with_fingerprint(value)
    if isinstance(value, str | bytes | bytearray | os.PathLike):
        raise ArgumentError(_path_message(value))
    if isinstance(value, np.ndarray):
        return ArrayDataSource(value)
    if isinstance(value, ts.TensorStore) or _is_opened(value):
        return _of_stores(value)
    if isinstance(value, Mapping):
        for item in value.values():
            if isinstance(item, str | os.PathLike):
                raise ArgumentError(_path_message(item))
        return _of_stores(value) if _holds_stores(value) else ArrayDataSource(value)
    if not isinstance(value, type) and isinstance(value, Source):
        return _with_fingerprint(value)
    if isinstance(value, _SEQUENCES):
        # A subclass of tuple or list is still a sequence of records.
        return SequenceDataSource(value)
    refuse_computed("a source cannot be made of", value)
    return ForeignDataSource(value)


def _with_fingerprint(source: Source) -> Source:
    # The text of a method has its address, which differs in every process.
    found: object = source.fingerprint
    if not isinstance(found, str):
        shown = "a method" if callable(found) else f"{found!r} of type {type(found).__name__}"
        raise ArgumentError(
            f"{type(source).__name__}.fingerprint must be a string, got {shown}; write @property above"
            " `def fingerprint(self) -> str`, or set it to a string"
        )
    return source


def _of_stores(value: Any) -> Source:
    # The Zarr readers are loaded where a process reads Zarr.
    from windrow.sources.zarr.source import ZarrDataSource

    return ZarrDataSource(value)


def _is_opened(value: Any) -> bool:
    # Neither zarr-python nor xarray is imported here; who has an object of theirs has imported them.
    bases = {kind.__module__.partition(".")[0] for kind in type(value).__mro__}
    if bases.isdisjoint(("zarr", "xarray")):  # a store of Icechunk derives from one of zarr-python
        return False
    from windrow.sources.zarr.objects import is_opened

    return is_opened(value)


def _holds_stores(value: Mapping[str, Any]) -> bool:
    return any(
        isinstance(item, ts.TensorStore)
        or _is_opened(item)
        or (isinstance(item, Mapping) and _holds_stores(item))
        for item in value.values()
    )


def _path_message(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        return (
            f"a source cannot be made of {type(value).__name__}; for one record of bytes write"
            " [record], for a file name its source, for example"
            " windrow.sources.ArrayRecordDataSource(path)"
        )
    path = os.fspath(value)
    return (
        f"a source cannot be made of the string {path!r}; if it is a path, name its source:"
        f" windrow.sources.ArrayRecordDataSource({path!r}) for ArrayRecord files, or"
        f" windrow.sources.ZarrDataSource({path!r}) for a Zarr array or group"
    )
