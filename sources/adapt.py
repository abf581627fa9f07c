"""From anything a user passes as a source to a `Source`.

Invariant: a source that is one already comes back as the same object.
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
from windrow.sources.memory import ArrayDataSource, SequenceDataSource
from windrow.sources.zarr import ZarrDataSource

_SEQUENCES = (list, tuple, range, collections.deque, array.array)


def as_source(value: Any) -> Source:
    """The source that `value` is or stands for.

    Args:
        value: A source of `windrow.sources`, anything with the same methods, a NumPy array or a
            dict of them, an open TensorStore or a dict of them, a list or tuple of records, or
            any object with `len` and `[i]`.

    Raises:
        ArgumentError: If `value` is a path (name the source that reads it), has no length or
            no `[i]`, or its `fingerprint` is no text.
        SourceError: If arrays have no first axis or differ in length.
    """
    if isinstance(value, BatchedSource):
        return _with_fingerprint(value)
    if isinstance(value, str | bytes | bytearray | os.PathLike):
        raise ArgumentError(_path_message(value))
    if isinstance(value, np.ndarray):
        return ArrayDataSource(value)
    if isinstance(value, ts.TensorStore):
        return ZarrDataSource(value)
    if isinstance(value, Mapping):
        for item in value.values():
            if isinstance(item, str | os.PathLike):
                raise ArgumentError(_path_message(item))
        return ZarrDataSource(value) if _holds_stores(value) else ArrayDataSource(value)
    if not isinstance(value, type) and isinstance(value, Source):
        return _with_fingerprint(value)
    if isinstance(value, _SEQUENCES):
        # A tuple or list of a class of its own is still a sequence of records.
        return SequenceDataSource(value)
    return ForeignDataSource(value)


def _with_fingerprint(source: Source) -> Source:
    # A method would be taken for its name and address, which differ in every process.
    found: object = source.fingerprint
    if not isinstance(found, str):
        shown = "a method" if callable(found) else f"{found!r} of type {type(found).__name__}"
        raise ArgumentError(
            f"{type(source).__name__}.fingerprint must be a text, got {shown}; write @property above"
            " `def fingerprint(self) -> str`, or set it to a text"
        )
    return source


def _holds_stores(value: Mapping[str, Any]) -> bool:
    return any(
        isinstance(item, ts.TensorStore) or (isinstance(item, Mapping) and _holds_stores(item))
        for item in value.values()
    )


def _path_message(value: Any) -> str:
    if isinstance(value, bytes | bytearray):
        return (
            f"a source can not be made of {type(value).__name__}; for one record of bytes write"
            " [record], for a file name its source, for example"
            " windrow.sources.ArrayRecordDataSource(path)"
        )
    path = os.fspath(value)
    return (
        f"a source can not be made of the text {path!r}; if it is a path, say what it holds:"
        f" windrow.sources.ArrayRecordDataSource({path!r}) for ArrayRecord files, or"
        f" windrow.sources.ZarrDataSource({path!r}) for a Zarr array or group"
    )
